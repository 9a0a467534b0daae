/*
 * Hostile front ends of network interfaces and disks: from several vCPUs at once, whatever can be in rings, requests, grants and events, and
 * connections and domains that end at any time. Those that do what they should lose nothing meanwhile; what others receive has the
 * address of who sent it; what a disk's back end is asked for is about pages of its own; each request is answered once; a page whose grant
 * was taken away is not written to; a ring that cannot be has ended and says so; no memory is lost. (cpus: 2)
 * (shares: chaos channels disks fronts lies stations) (differs: stock Xen has no switch)
 *
 * The command line may say seed=N, operations=N, vcpus=N: docs/random-kernels.md.
 */
#include "fronts.h"

const char test_name[] = "hostile-front-ends";

enum { AUDIT_EACH = 1 << 14 };
/* Pages that were given back, but are still some vCPU's; and a few of which the hypervisor's heap keeps a part. */
enum { STILL_USED = 64 };

struct front fronts[NR_FRONTS] SHARED;
u32 hostile_switch SHARED, good_switch SHARED;
static u64 nr_operations;

static void once(void)
{
	switch (up_to(64)) {
	case 0: DO(fill); break;
	case 1: DO(write_entry); break;
	case 2: DO(memory_once); break;
	case 3: case 4: DO(mmu_once); break;
	case 5: DO(copier_once); break;
	case 6: case 7: case 8: case 9: case 10: DO(good_once); break;
	case 11: case 12: case 13: DO(watch_once); break;
	case 14: case 15: case 16: case 17: case 18: case 19: DO(grants_once); break;
	case 20: case 21: DO(storm_once); break;
	case 22: case 23: case 24: DO(again_once); break;
	case 25: DO(ports_once); break;
	case 26: if (up_to(8) == 0) DO(child_once); break;
	case 27: DO(raw_once); break;
	case 28: if (up_to(4) == 0) DO(indices_once); break;
	case 29: case 30: case 31: case 32: case 33: DO(slots_once); break;
	case 34: case 35: case 36: case 37: case 38: case 39: case 40: case 41: DO(requests_once); break;
	case 42: case 43: case 44: DO(disk_requests_once); break;
	case 45: DO(disk_words_once); break;
	case 46: DO(disk_grants_once); break;
	case 47: DO(disk_watch_once); break;
	case 48: case 49: case 50: DO(disk_back_once); break;
	case 51: if (up_to(4) == 0) DO(disk_again_once); break;
	case 52: case 53: case 54: DO(good_disk_once); break;
	default: DO(packets_once);
	}
}

static void nothing(void)
{
}

/* Nobody else does anything: what ends a ring does so, and only that ring. */
static void ends_are_seen(void)
{
	u32 which = up_to(HOSTILE);
	struct front *front = &fronts[which];
	if (front->domid)
		return;
	/* What may have any address is gone. */
	if (has_any_source) {
		for (u32 n = 0; n < HOSTILE; n++)
			if (!fronts[n].domid)
				renew(n);
		watch_once();
		has_any_source = !!fronts[HOSTILE - 1].domid;
	}
	renew(which);
	check(status_of(front).state == 0, "a fresh ring's state is %u", status_of(front).state);
	bool is_tx = up_to(2);
	struct ring *ring = is_tx ? front->tx : front->rx;
	u32 far = SLOTS + 1 + up_to(1u << 30);
	ring->req_prod = up_to(2) ? far : -1 - up_to(1000);
	/* A receive ring is looked at when there is something for it. */
	if (is_tx) {
		notify_tx(front);
	} else {
		make_frame(front->mac, fronts[WATCHED].mac, 60, 1);
		put(&fronts[WATCHED], 60, 60);
		notify_tx(&fronts[WATCHED]);
	}
	u32 state = status_of(front).state;
	check(state == (is_tx ? TX_ENDED : RX_ENDED), "a ring with %u requests: the state is %u", ring->req_prod, state);
	check(status_of(&fronts[GOOD_A]).state == 0 && status_of(&fronts[GOOD_B]).state == 0, "a good ring has ended");
	check(nr_in_use(front) == 2, "%u grants are in use", nr_in_use(front));
	renew(which);
	if (fronts[WATCHED].tx->req_prod != fronts[WATCHED].tx_cons)
		check(answer(&fronts[WATCHED]) == 0, "a packet for a ring that has ended: an error");
}

static bool housekeeping(u64 n)
{
	if (n % 64)
		return true;
	load_vcpus();
	wake_vcpus();
	if (n % 512 == 0) {
		hold_vcpus(nothing);
		ends_are_seen();
		disks_are_sure();
		release_vcpus();
		refill();
	}
	return keep_books(nr_operations, AUDIT_EACH);
}

static void connect_all(void)
{
	hostile_switch = new_switch();
	good_switch = new_switch();
	for (u32 n = 0; n < NR_FRONTS; n++) {
		if (n >= HOSTILE) {
			connect_good(n, n >= GOOD_A ? good_switch : hostile_switch);
			continue;
		}
		make_front(&fronts[n], n, 0);
		connect_front(&fronts[n], hostile_switch, SG);
		post(&fronts[n], 128);
	}
	connect_disks();
}

static void disconnect_all(void)
{
	struct channel_switch switches[] = { { hostile_switch, 0 }, { good_switch, 0 } };
	disconnect_disks();
	hostile_end();
	for (u32 n = HOSTILE; n < NR_FRONTS; n++) {
		disconnect_front(&fronts[n]);
		close_ports(&fronts[n]);
	}
	for (u32 n = 0; n < COUNT(switches); n++)
		check_result(channel_op(SWITCH_DESTROY, &switches[n]), 0, "destroying a switch");
}

void test_main(void)
{
	static const struct work work = { .once = once, .housekeeping = housekeeping, .lost = nothing };
	if (!is_tandem())
		skip("there is no switch here");
	nr_operations = number_after("operations=", 10000);
	chaos_init();
	whom_init();
	HC2(vm_assist, 0, 2);
	shared_info();
	check_result(create_domain(BACK_END), 0, "createdomain");
	begin(0);
	connect_all();
	disconnect_all();
	audit();
	u64 pages_before = all_pages();
	connect_all();
	printk("  seed %lu, %lu operations, %u vCPUs\n", number_after("seed=", 20060101), nr_operations, board.nr_vcpus);
	run_operations(&work);
	/* None is in the middle of anything. */
	hold_vcpus(nothing);
	stop_vcpus();
	disconnect_all();
	for (u32 v = 1; v < board.nr_vcpus; v++)
		for (u32 i = 0; i < SCRATCH; i++)
			mmu_update(board.of[v].entry_addresses[i], 0);
	restore();
	refill();
	u64 pages_after = all_pages();
	check_result(destroy_domain(BACK_END), 0, "destroydomain");
	check(domain_is_gone(BACK_END), "the back end never goes");
	check(pages_after + STILL_USED >= pages_before, "%lu pages were there, %lu are", pages_before, pages_after);
	audit();
	printk("  %lu of %lu were accepted\n", operations_accepted(), operations_done());
	say_good();
	say_hostile();
	say_disks();
	for (u32 v = 0; v < board.nr_vcpus; v++)
		printk("  vCPU %u: %lu operations, lost %lu times\n", v, board.of[v].operation, board.of[v].restarts);
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	for (u32 v = 0; v < board.nr_vcpus; v++)
		check(board.of[v].nr_failures == 0, "vCPU %u has seen what must not be", v);
}
