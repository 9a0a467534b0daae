/*
 * A hostile domain beside domain 0 and a peer of its kind: random operations on grants, event channels and memory of its own
 * and of others, on page tables, on its vCPUs, and on what only domains with more rights may do, from all of its vCPUs. With a
 * device it is a hostile driver domain. Made by xl: images/xen/tests/hostile.sh. (shares: chaos) (skips:
 * it is no domain 0)
 *
 * The command line: seed=N, first=N, operations=N of vCPU 0, self=DOMID, peer=DOMID.
 */
#include "hostile.h"

const char test_name[] = "hostile-domain";

enum { REPORT = 10000 };
static u64 end;
static bool has_device;

static void once(void)
{
	switch (up_to(32)) {
	case 0: case 1: DO(fill); break;
	case 2: DO(write_entry); break;
	case 3: case 4: case 5: case 6: DO(granter_once); break;
	case 7: case 8: case 9: case 10: DO(mapper_once); break;
	case 11: case 12: DO(copier_once); break;
	case 13: DO(grant_table_once); break;
	case 14: case 15: case 16: DO(event_once); break;
	case 17: case 18: DO(memory_once); break;
	case 19: case 20: DO(foreign_once); break;
	case 21: case 22: DO(privileged_once); break;
	case 23: case 24: DO(vcpu_once); break;
	case 25: DO(instruction_once); break;
	/* The device is vCPU 0's. */
	case 26: if (has_device && me == 0) return DO(device_once); /* fall through */
	default: DO(mmu_once);
	}
}

static bool housekeeping(u64 n)
{
	if (n % 512 == 0)
		refill();
	if (n % 64 == 0)
		wake_vcpus();
	if (n % REPORT == REPORT - 1)
		printk("  done %lu, accepted %lu, all vCPUs %lu\n", n + 1, operations_accepted(), operations_done());
	return n + 1 < end;
}

static void lost(void)
{
}

void test_main(void)
{
	if (is_initial_domain())
		skip("xl makes it: ./tandem test xl a-hostile-domain");
	static struct work work = { .once = once, .housekeeping = housekeeping, .lost = lost };
	work.first = number_after("first=", 0);
	end = number_after("operations=", 10000);
	chaos_init();
	whom_init();
	printk("  seed %lu, operations %lu to %lu, domain %lu, peer %lu, %u vCPUs\n", number_after("seed=", 20060101), work.first, end,
	       number_after("self=", 1), number_after("peer=", 2), board.nr_vcpus);
	HC2(vm_assist, 0, 2);
	grants_init();
	has_device = device_init();
	run_operations(&work);
	stop_vcpus();
	if (has_device)
		printk("  the device was told to copy %lu times\n", device_copies());
	for (u32 v = 1; v < board.nr_vcpus; v++)
		printk("  vCPU %u: %lu operations, lost %lu times\n", v, board.of[v].operation - work.first, board.of[v].restarts);
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	check(operations_accepted() > operations_done() / 100, "nearly everything was refused");
	for (u32 v = 0; v < board.nr_vcpus; v++)
		check(board.of[v].nr_failures == 0, "vCPU %u has seen what must not be", v);
}
