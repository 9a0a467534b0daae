/*
 * Hostile back ends: driver domains that lie in rings, pages and events of guests' disks, or as their way out to the network, and come and go
 * at any moment, from several vCPUs at once. Each request of a guest is answered once and no more; what it reads is its disk's, or what its
 * own back end made up; its pages are written to only as it was asked for, and never later; a disk beside, whose back ends do what they
 * should until they end, has each byte right and gets no error, and so has any as soon as its back end is an honest one; guests lose
 * nothing that they send to each other, and what waits for a way out comes by the next one, in its order; no memory is lost. (cpus: 2)
 * (shares: chaos channels disks fronts lies stations) (differs: stock Xen has no end of a disk's)
 *
 * The command line may say seed=N, operations=N, vcpus=N: docs/random-kernels.md.
 */
#include "backs.h"

const char test_name[] = "hostile-back-ends";

enum { AUDIT_EACH = 1 << 14, STILL_USED = 64 };

struct station stations[NR_DISKS] SHARED;
static u8 guest_page[NR_DISKS][NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 good_page[PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 good_table[PAGE] SHARED __attribute__((aligned(4096)));
static struct service good_service SHARED;
static u64 nr_operations;

static void guests_once(void)
{
	guest_once(&stations[up_to(NR_DISKS)]);
}

static void good_backs_once(void)
{
	good_back_once(&stations[GOOD]);
}

static void once(void)
{
	switch (up_to(64)) {
	case 0: DO(raw_once); break;
	case 1: DO(connection_once); break;
	case 2: DO(service_once); break;
	case 3: DO(ports_once); break;
	case 4: DO(lives_once); break;
	case 5: case 6: DO(storm_once); break;
	case 7: DO(indices_once); break;
	case 8: case 9: DO(slots_once); break;
	case 10: case 11: case 12: case 13: case 14: DO(bytes_once); break;
	case 15: case 16: case 17: case 18: case 19: case 20: case 21: case 22: case 23: DO(good_backs_once); break;
	case 24: case 25: case 26: case 27: case 28: case 29: case 30: case 31: case 32: case 33: DO(answers_once); break;
	case 34: case 35: case 36: case 37: case 38: case 39: case 40: DO(out_lies_once); break;
	case 41: DO(way_out_once); break;
	case 42: case 43: case 44: DO(exchange_once); break;
	case 45: case 46: case 47: DO(outside_once); break;
	default: DO(guests_once);
	}
}

static void nothing(void)
{
}

/* All others have done what they had begun, and do nothing more. */
static void end_operations(void)
{
	hold_vcpus(nothing);
	stop_vcpus();
}

/* Nobody else does anything: with an honest back end, all that its guest waits for comes, and all that it then writes is there. */
static void honest_for_once(void)
{
	struct station *s = &stations[up_to(NR_DISKS)];
	if (!try_lock(&s->guest_lock))
		return;
	if (try_lock(&s->back_lock)) {
		s->is_honest = true;
		if (s != &stations[GOOD]) {
			end_of_lies(s);
			honest_back(s);
		}
		make_sure(s);
		s->is_honest = s == &stations[GOOD];
		unlock(&s->back_lock);
	}
	unlock(&s->guest_lock);
}

static bool housekeeping(u64 n)
{
	if (n % 64)
		return true;
	load_vcpus();
	wake_vcpus();
	if (n % 512 == 0) {
		hold_vcpus(nothing);
		honest_for_once();
		honest_way_out();
		release_vcpus();
	}
	return keep_books(nr_operations, AUDIT_EACH);
}

static void connect_all(void)
{
	for (u32 n = 0; n < NR_DISKS; n++)
		stations[n] = (struct station){ .number = n, .disk = { .guest_page = guest_page[n], .nr_guest = NR_GUEST, .guest_ref = 240 + n * NR_GUEST,
							  .device = 51712 + n, .flags = WRITE | FLUSH | BARRIER | DISCARD } };
	struct station *good = &stations[GOOD];
	make_service(&good_service, GOOD_SERVICE, good_page, COUNT(good_page), good_table);
	good->disk.service = &good_service;
	good->is_honest = true;
	use_set(&good->disk, 0);
	fresh_guest(good);
	connect_disk(&good->disk);
	honest_back(good);
	make_hostile_service();
	connect_network();
}

static void disconnect_all(void)
{
	struct station *good = &stations[GOOD];
	struct disk_name name = { good->disk.name, 0 };
	disconnect_network();
	end_hostile_service();
	make_sure(good);
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check_result(evtchn(EVTCHN_close, &good->disk.guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &good->disk.back_port), 0, "closing the back end's port");
	check_result(destroy_domain(GOOD_SERVICE), 0, "destroydomain");
	let_go_of_service(&good_service);
	check(domain_is_gone(GOOD_SERVICE), "the domain that the good guest grants to never goes");
	u32 in_use = grants_in_use(guest_grants(&good->disk), NR_DISKS * NR_GUEST);
	check(in_use == 0, "%u grants are in use in the end", in_use);
}

static void say(void)
{
	for (u32 n = 0; n < NR_DISKS; n++) {
		const struct station *s = &stations[n];
		printk("  disk %u: %lu connections, %lu back ends, %lu answers, of which %lu errors\n", n, s->nr_connections, s->nr_lives,
		       s->nr_answered, s->nr_errors);
		check(s->nr_answered > 10 && s->nr_lives > 10, "disk %u has done too little", n);
	}
	say_network();
	for (u32 v = 0; v < board.nr_vcpus; v++)
		printk("  vCPU %u: %lu operations, lost %lu times\n", v, board.of[v].operation, board.of[v].restarts);
}

void test_main(void)
{
	static const struct work work = { .once = once, .housekeeping = housekeeping, .lost = nothing };
	if (!is_tandem())
		skip("there is no end of a disk's here");
	nr_operations = number_after("operations=", 20000);
	chaos_init();
	whom_init();
	shared_info();
	own_grants();
	begin(0);
	connect_all();
	disconnect_all();
	audit();
	u64 pages_before = all_pages();
	connect_all();
	printk("  seed %lu, %lu operations, %u vCPUs\n", number_after("seed=", 20060101), nr_operations, board.nr_vcpus);
	run_operations(&work);
	end_operations();
	disconnect_all();
	u64 pages_after = all_pages();
	check(pages_after + STILL_USED >= pages_before, "%lu pages were there, %lu are", pages_before, pages_after);
	audit();
	printk("  %lu of %lu were accepted\n", operations_accepted(), operations_done());
	say();
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	for (u32 v = 0; v < board.nr_vcpus; v++)
		check(board.of[v].nr_failures == 0, "vCPU %u has seen what must not be", v);
}
