/*
 * Deaths at random moments of a driver domain with a guest's disk: a child that runs is its back end, is destroyed at any instruction of its
 * own or of the guest's, by either of the guest's vCPUs, and another one comes, with other pages. The guest gets one answer to each request
 * and no error; what it was told is written is on the medium, which is domain 0's, after each death, and stays; no memory is lost.
 * (cpus: 1) (vcpus: 2) (shares: chaos channels disks stations) (clock: instructions) (differs: stock Xen has no end of a disk's)
 *
 * The command line may say seed=N, operations=N, which are deaths, vcpus=N: docs/random-kernels.md.
 */
#include "life.h"

const char test_name[] = "random-deaths";

enum { SERVICE = 8, FIRST_CHILD = 10, MEDIUM_REF = 320, AUDIT_EACH = 64, REPORT_EACH = 64, STILL_USED = 64, VIRQ_TIMER = 0 };
/* Of a life: how long it may take until it is ready, what waits at its end may take to be answered; and how long it is at most. */
static const u64 PATIENCE_NS = 20000000000, LONGEST_NS = 3000000;

static struct station s SHARED;
static struct service service SHARED;
static u8 guest_page[NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 front_page[PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 table[PAGE] SHARED __attribute__((aligned(4096)));
static u8 life_page[PAGE_SETS][PAGE] SHARED __attribute__((aligned(4096)));
/* The driver domain that lives, or the last one that did; which of the sets of pages it has. */
static u16 domid;
static volatile bool is_dying, is_dead = true;
static u32 timer_port;
static struct {
	u64 early, idle, by_other, done;
} seen;
/* What the other vCPU is told: after so many turns the domain is to die. */
static volatile u32 order;
/* The other vCPU plays the guest, too. */
static volatile bool is_busy;
static u8 second_stack[4 * PAGE] __attribute__((aligned(16)));

static void kill(void)
{
	is_dying = true;
	check_result(destroy_domain(domid), 0, "destroydomain");
	is_dead = true;
}

/* What the guest does; then the driver domain may run. */
static void play_guest(void)
{
	guest_once(&s);
	HC1(sched_op, SCHEDOP_yield);
}

static void second(void)
{
	for (;;) {
		u32 turns = order;
		if (turns) {
			while (turns--)
				if (turns % 4096 == 0)
					HC1(sched_op, SCHEDOP_yield);
			kill();
			order = 0;
		}
		is_busy = true;
		if (!is_dead)
			play_guest();
		is_busy = false;
		HC1(sched_op, SCHEDOP_yield);
	}
}

/* The timer. Both vCPUs and the driver domain share a CPU: each is between any two of its instructions. */
static void upcall(struct frame *frame)
{
	volatile struct shared_info *shared = shared_info();
	(void)frame;
	shared->vcpu[0].upcall_pending = 0;
	u64 words = __atomic_exchange_n((u64 *)&shared->vcpu[0].pending_sel, 0, __ATOMIC_SEQ_CST);
	bool is_time = is_pending(timer_port);
	for (; words; words &= words - 1)
		__atomic_store_n((u64 *)&shared->pending[__builtin_ctzl(words)], 0, __ATOMIC_SEQ_CST);
	if (is_time)
		clear_pending(timer_port);
	if (is_time && !is_dead)
		kill();
}

static void set_timer(u64 ns)
{
	struct {
		u64 at;
		u32 flags, pad;
	} request = { now_ns() + ns, 0, 0 };
	check_result(HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &request), 0, "a timer");
}

/* No upcall as long as this is set. */
static void mask(bool is)
{
	volatile struct shared_info *shared = shared_info();
	shared->vcpu[0].upcall_mask = is;
	asm volatile("" : : : "memory");
	/* What came meanwhile comes now. */
	if (!is && shared->vcpu[0].upcall_pending)
		HC2(xen_version, 0, 0);
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
	check_result(create_domain(domid), 0, "createdomain");
	set_max_vcpus(domid);
	memset(&context, 0, sizeof(context));
	make_running_domain(domid, (const u8 *)driver_domain, PAGE, life, &context);
	use_set(&s.disk, set);
	struct alloc_unbound port = { SERVICE, domid, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound for the front end");
	s.disk.front_port = port.port;
	*life = (struct life){ .service = SERVICE, .port = port.port, .ring_ref = set_ref(&s.disk), .medium_ref = MEDIUM_REF + set * MEDIUM_PAGES };
	check_result(domctl(domid, DOMCTL_UNPAUSE, &unpause), 0, "unpausedomain");
	for (u64 until = now_ns() + PATIENCE_NS; !life->is_ready && now_ns() < until;)
		HC1(sched_op, SCHEDOP_yield);
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

static void attach_life(struct life *life)
{
	struct disk_attach request = request_of_back(&s.disk);
	request.back = domid;
	s64 result = channel_op(DISK_ATTACH, &request);
	/* It may be dead before. */
	check(result == 0 || is_dying, "attaching: result %ld", result);
	seen.early += result != 0;
	life->may_go = 1;
}

static void end_life(u32 set)
{
	struct life *life = (struct life *)life_page[set];
	struct disk_port port = { SERVICE, 0, s.disk.front_port };
	check(!life->error, "a driver domain was asked for what cannot be");
	seen.idle += life->nr_done == 0;
	seen.done += life->nr_done;
	channel_op(DISK_CLOSE_PORT, &port);
	make_writable(life);
	struct disk_status status = status_of_disk(&s.disk);
	check(status.back == NO_BACK && status.state == 0, "the state of a disk is %u, its back end %u", status.state, status.back);
	check(status.waiting <= nr_out(&s), "%u requests wait, of %u", status.waiting, nr_out(&s));
	check(status.bad_answers == 0 && status.bad_rings == 0, "%lu bad answers, %u bad rings", status.bad_answers, status.bad_rings);
	look_at_medium();
}

/* From before its back end is attached until it is dead the guest does what it does. */
static void die_once(u64 n, u32 set)
{
	bool by_other = board.nr_vcpus > 1 && n % 2;
	struct life *life = make_life(set);
	is_dead = is_dying = false;
	if (by_other)
		order = 1 + up_to(1 << (12 + up_to(9))), seen.by_other++;
	else
		set_timer(up_to(LONGEST_NS));
	attach_life(life);
	while (!is_dead)
		play_guest();
	mask(true);
	while (is_busy || order)
		HC1(sched_op, SCHEDOP_yield);
	take_answers(&s);
	end_life(set);
	mask(false);
}

/* With one that lives all is answered. */
static void live_on(u32 set)
{
	struct life *life = make_life(set);
	attach_life(life);
	for (u64 until = now_ns() + PATIENCE_NS; nr_out(&s) && now_ns() < until;) {
		note(kick(s.disk.guest_port));
		take_answers(&s);
		HC1(sched_op, SCHEDOP_yield);
	}
	check(nr_out(&s) == 0, "%u requests are not answered in the end", nr_out(&s));
	kill();
	end_life(set);
	check(domain_is_gone(domid), "a driver domain never goes");
}

static void connect_all(void)
{
	struct bind_virq timer = { VIRQ_TIMER, 0, 0 };
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
	check_result(evtchn(EVTCHN_bind_virq, &timer), 0, "the timer's port");
	timer_port = timer.port;
}

static void disconnect_all(void)
{
	struct disk_name name = { s.disk.name, 0 };
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
	handlers[ENTRY_EVENT] = upcall;
	if (set_callback(0, 0, entry_256))
		error("callback_op");
	audit();
	u64 pages_before = all_pages();
	connect_all();
	if (board.nr_vcpus > 1)
		start_vcpu(1, second, second_stack + sizeof(second_stack));
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	mask(false);
	printk("  seed %lu, %lu deaths, %u vCPUs\n", number_after("seed=", 20060101), nr, board.nr_vcpus);
	for (u64 n = 0; n < nr; n++) {
		begin(n);
		die_once(n, n % PAGE_SETS);
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
	printk("  %lu deaths, %lu by another vCPU, %lu before the back end was attached, %lu before it had done anything; %lu requests done, %lu answered\n", nr,
	       seen.by_other, seen.early, seen.idle, seen.done, s.nr_answered);
	check(s.nr_answered > nr && s.nr_errors == 0, "too little was done, or with errors");
}
