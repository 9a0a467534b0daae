/*
 * Deaths at random moments of a driver domain with a guest's disk and the way out of a switch: a child that runs is the back end of both, is destroyed
 * at any instruction of its own or of the guests', on whose one to four vCPUs they do what they do, and another one comes, with other pages. Each
 * request to the disk is answered once and without an error; what was written is on the medium, which is domain 0's, after each death, and
 * stays. Each packet for outside is given to one driver domain, once, whole, in its order, and is answered then and not before; lost is at most what one
 * was given and has not sent. Guests lose nothing that they send to each other. What comes from outside comes in its order, and at least what was
 * answered. No memory is lost. (cpus: 1) (vcpus: 5) (shares: chaos channels disks fronts stations) (clock: instructions)
 * (hypervisor: loglvl=warning) (differs: stock Xen has no end of a disk's)
 *
 * The command line may say seed=N, operations=N, which are deaths, vcpus=N, of which one is no guest's: docs/random-kernels.md.
 */
#include "network.h"

const char test_name[] = "random-deaths";

enum { SERVICE = 8, FIRST_CHILD = 10, MEDIUM_REF = 320, AUDIT_EACH = 256, REPORT_EACH = 64, STILL_USED = 64 };
/* How long a driver domain may take until it is ready, and what waits in the end until it is answered. */
static const u64 PATIENCE_NS = 20000000000;
/*
 * Most die within SHORT_NS after they have done some things, as many as MOST_DONE; one of EARLY_OF while it is being attached. Guests rest between
 * what they do, and who is to do something soon looks each GLANCE_NS.
 */
enum { SHORT_NS = 100000, MOST_DONE = 48, EARLY_OF = 16, MOST_REST_NS = 150000, GLANCE_NS = 20000, LEAST_WAY_NS = 1000,
	MOST_WAY_NS = 4000 };

static struct station s SHARED;
static struct service service SHARED;
static u8 guest_page[NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 front_page[PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 table[PAGE] SHARED __attribute__((aligned(4096)));
static u8 life_page[PAGE_SETS][PAGE] SHARED __attribute__((aligned(4096)));
/* The driver domain that lives, or the last one that did. */
static u16 domid;
static struct {
	u64 early, idle, in_operation, in_own_code, done;
} seen;
/* Instructions of its code at which one has died. */
static bool has_died_at[PAGE];
/* The vCPUs of the guests, which are all but the first. */
static struct {
	volatile bool is_busy;
	u8 stack[4 * PAGE] __attribute__((aligned(16)));
} guests[MAX_VCPUS - 1];
static volatile bool may_play;

/* Whoever wakes from it runs at once, whatever the CPU does: between any two instructions of others, as it has all the time that they have. */
static void sleep_ns(u64 ns)
{
	struct {
		u32 *ports;
		u32 nr, pad;
		u64 until;
	} request = { NULL, 0, 0, now_ns() + ns };
	check_result(HC2(sched_op, SCHEDOP_poll, &request), 0, "sleeping");
}

/* Of its code, the instruction that it executes next. */
static u64 where_it_is(void)
{
	static struct vcpu_context context;
	struct domctl request = { .vcpu_context.context = &context };
	check_result(domctl(domid, DOMCTL_GET_CONTEXT, &request), 0, "getvcpucontext");
	return context.regs.rip - CODE_VA;
}

static bool is_behind_hypercall(u64 at)
{
	static const u8 syscall[] = { 0x0f, 0x05 };
	return at >= 2 && at < PAGE && memcmp((const u8 *)driver_domain + at - 2, syscall, 2) == 0;
}

/* Most of its time is in hypercalls, and who wakes meanwhile finds it behind one: from there it goes a little way. */
static void let_it_go_on(void)
{
	for (u32 n = 0; n < 16 && is_behind_hypercall(where_it_is()); n++)
		sleep_ns(LEAST_WAY_NS + up_to(MOST_WAY_NS));
}

static void kill(void)
{
	u64 at = where_it_is();
	bool is_busy = false;
	for (u32 n = 0; n < COUNT(guests); n++)
		is_busy |= guests[n].is_busy;
	if (at < PAGE)
		has_died_at[at] = true;
	seen.in_operation += is_busy;
	seen.in_own_code += !is_behind_hypercall(at);
	check_result(destroy_domain(domid), 0, "destroydomain");
}

/* A vCPU of the guests', and of who is outside. */
static void play(void)
{
	static u32 nr;
	u32 own = __atomic_fetch_add(&nr, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		guests[own].is_busy = true;
		if (may_play) {
			if (up_to(2))
				guest_once(&s);
			network_once();
		}
		guests[own].is_busy = false;
		sleep_ns(may_play ? up_to(MOST_REST_NS * (board.nr_vcpus - 1)) : GLANCE_NS);
	}
}

/* They have done what they had begun, and begin nothing. */
static void hold_guests(void)
{
	may_play = false;
	for (u32 n = 0; n < COUNT(guests); n++)
		while (guests[n].is_busy)
			sleep_ns(GLANCE_NS);
}

/* A domain that waits to be told to look at the ring. */
static struct life *make_life(u32 set)
{
	static struct vcpu_context context;
	static bool had[PAGE_SETS];
	struct life *life = (struct life *)life_page[set];
	struct domctl unpause = { 0 };
	domid = FIRST_CHILD + set;
	if (had[set])
		check(domain_is_gone(domid), "a driver domain never goes");
	had[set] = true;
	struct life about = { 0 };
	make_interface(set, domid, &about);
	set_max_vcpus(domid);
	memset(&context, 0, sizeof(context));
	make_running_domain(domid, (const u8 *)driver_domain, PAGE, life, &context);
	use_set(&s.disk, set);
	struct alloc_unbound port = { SERVICE, domid, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound for the front end");
	s.disk.front_port = port.port;
	about.service = SERVICE, about.port = port.port;
	about.ring_ref = set_ref(&s.disk), about.medium_ref = MEDIUM_REF + set * MEDIUM_PAGES;
	*life = about;
	check_result(domctl(domid, DOMCTL_UNPAUSE, &unpause), 0, "unpausedomain");
	for (u64 until = now_ns() + PATIENCE_NS; !life->is_ready && now_ns() < until;)
		sleep_ns(GLANCE_NS);
	if (!check(life->is_ready && !life->error, "a driver domain: ready %u, error %u", life->is_ready, life->error))
		fail();
	return life;
}

/* All that the guest was told is written is there. */
static void look_at_medium(void)
{
	for (u32 sector = 0; sector < SECTORS; sector++) {
		if (!s.is_known[sector] || s.asks[sector / ASK_SECTORS].is_out)
			continue;
		const u64 *words = (u64 *)s.medium[sector];
		for (u32 at = 0; at < SECTOR / 8; at += SECTOR / 8 - 1)
			check(words[at] == word_of(&s, sector, s.versions[sector], at), "sector %u is %#lx instead of version %u", sector, words[at],
			      s.versions[sector]);
	}
}

/* Does so many of the steps that it takes, in one of their orders. */
static void attach_life(struct life *life, u32 set, u32 nr_steps, bool is_disk_first)
{
	s.disk.max_segments = up_to(2) ? MAX_SEGMENTS : 0;
	struct disk_attach request = request_of_back(&s.disk);
	request.back = domid;
	for (u32 step = 0; step < nr_steps; step++) {
		if (step == 2)
			life->may_go = 1;
		else if (is_disk_first == (step == 0))
			check_result(channel_op(DISK_ATTACH, &request), 0, "attaching its back end");
		else
			check_result(connect_interface(set), 0, "connecting its interface");
	}
}

static void end_life(u32 set)
{
	struct life *life = (struct life *)life_page[set];
	struct disk_port port = { SERVICE, 0, s.disk.front_port };
	check(!life->error, "a driver domain was asked for what cannot be");
	seen.done += life->nr_done;
	channel_op(DISK_CLOSE_PORT, &port);
	end_interface(set);
	make_writable(life);
	struct disk_status status = status_of_disk(&s.disk);
	check(status.back == NO_BACK && status.state == 0, "the state of a disk is %u, its back end %u", status.state, status.back);
	check(status.waiting <= nr_out(&s), "%u requests wait, of %u", status.waiting, nr_out(&s));
	check(status.bad_answers == 0 && status.bad_rings == 0, "%lu bad answers, %u bad rings", status.bad_answers, status.bad_rings);
	look_at_medium();
}

/* The guests do what they do before it is there and until it is dead. */
static void die_once(u32 set)
{
	enum { ALL_STEPS = 3 };
	u32 steps = up_to(EARLY_OF) ? ALL_STEPS : up_to(ALL_STEPS), things = up_to(MOST_DONE), left_ns = up_to(SHORT_NS);
	bool is_disk_first = up_to(2), is_in_own_code = up_to(2);
	may_play = true;
	struct life *life = make_life(set);
	attach_life(life, set, steps, is_disk_first);
	for (u64 until = now_ns() + PATIENCE_NS; steps == ALL_STEPS && life->nr_done < things && now_ns() < until;)
		sleep_ns(GLANCE_NS);
	check(steps < ALL_STEPS || life->nr_done >= things, "a driver domain does %u things instead of %u", life->nr_done, things);
	sleep_ns(left_ns);
	if (is_in_own_code && steps == ALL_STEPS)
		let_it_go_on();
	kill();
	hold_guests();
	seen.early += steps < ALL_STEPS;
	seen.idle += life->nr_done == 0;
	take_answers(&s);
	end_life(set);
}

/* With one that lives all is answered, and all comes. */
static void live_on(u32 set)
{
	struct life *life = make_life(set);
	attach_life(life, set, 3, true);
	bool is_done = false;
	for (u64 until = now_ns() + PATIENCE_NS; !is_done && now_ns() < until;) {
		note(kick(s.disk.guest_port));
		take_answers(&s);
		sleep_ns(GLANCE_NS);
		is_done = has_all_come(set) && nr_out(&s) == 0;
	}
	check(is_done, "not all has come in the end, and %u requests are not answered", nr_out(&s));
	kill();
	end_life(set);
}

static void connect_all(void)
{
	s = (struct station){ .is_honest = true, .disk = { .service = &service, .guest_page = guest_page, .nr_guest = NR_GUEST, .guest_ref = DISK_REF,
			.device = 51712, .flags = WRITE | FLUSH | BARRIER | DISCARD } };
	make_service(&service, SERVICE, front_page, COUNT(front_page), table);
	for (u32 set = 0; set < PAGE_SETS; set++) {
		for (u32 n = 0; n < NR_FRONT; n++)
			set_grants(&s.disk, set)[n].domid = FIRST_CHILD + set;
		for (u32 n = 0; n < MEDIUM_PAGES; n++)
			grant(&own_grants()[MEDIUM_REF + set * MEDIUM_PAGES + n], FIRST_CHILD + set, mfn_of(s.medium[n * (PAGE / SECTOR)]), 0);
	}
	use_set(&s.disk, 0);
	fresh_guest(&s);
	connect_disk(&s.disk);
	connect_network(SERVICE, FIRST_CHILD);
}

static void disconnect_all(void)
{
	struct disk_name name = { s.disk.name, 0 };
	for (u32 set = 0; set < PAGE_SETS; set++)
		check(domain_is_gone(FIRST_CHILD + set), "a driver domain never goes");
	disconnect_network();
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check_result(evtchn(EVTCHN_close, &s.disk.guest_port), 0, "closing the guest's port");
	check_result(destroy_domain(SERVICE), 0, "destroydomain");
	let_go_of_service(&service);
	check(domain_is_gone(SERVICE), "the service never goes");
	u32 in_use = grants_in_use(own_grants() + DISK_REF, MEDIUM_REF + PAGE_SETS * MEDIUM_PAGES - DISK_REF);
	check(in_use == 0, "%u grants are in use in the end", in_use);
}

void test_main(void)
{
	if (!is_tandem())
		skip("there is no end of a disk's here");
	u64 nr = number_after("operations=", 64);
	chaos_init();
	own_grants();
	audit();
	u64 pages_before = all_pages();
	connect_all();
	if (board.nr_vcpus < 2)
		error("one vCPU is not enough");
	for (u32 v = 1; v < board.nr_vcpus; v++)
		start_vcpu(v, play, guests[v - 1].stack + sizeof(guests[v - 1].stack));
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	printk("  seed %lu, %lu deaths, %u vCPUs of guests\n", number_after("seed=", 20060101), nr, board.nr_vcpus - 1);
	/* What is for outside waits if there has been a way out. */
	begin(0);
	live_on(PAGE_SETS - 1);
	for (u64 n = 0; n < nr; n++) {
		begin(n);
		die_once(n % PAGE_SETS);
		if (n % REPORT_EACH == 0)
			printk("  done %lu\n", n);
		if (n % AUDIT_EACH == 0)
			audit();
	}
	live_on(nr % PAGE_SETS);
	disconnect_all();
	u64 pages_after = all_pages();
	check(pages_after + STILL_USED >= pages_before, "%lu pages were there, %lu are", pages_before, pages_after);
	audit();
	u32 nr_places = 0;
	for (u32 n = 0; n < PAGE; n++)
		nr_places += has_died_at[n];
	printk("  %lu deaths, %lu in its own code at %u instructions, %lu in an operation of a guest's, %lu before all was attached, %lu before it had done anything\n",
	       nr, seen.in_own_code, nr_places, seen.in_operation, seen.early, seen.idle);
	printk("  disk: %lu requests answered; %lu things done in %lu ms\n", s.nr_answered, seen.done, now_ns() / 1000000);
	say_network(nr);
	check(s.nr_answered > nr && s.nr_errors == 0, "too little was done, or with errors");
}
