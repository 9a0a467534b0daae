/*
 * A hostile kernel: random hypercalls, page-table entries and instructions, from several vCPUs that also act on each other, and
 * children: domains that it makes, disturbs and destroys. Whatever the answers, the hypervisor lives, every vCPU gets on, a
 * calm child goes on until it is destroyed, and then is gone. (cpus: 4) (shares: chaos) (differs: stock Xen keeps a page of some of them)
 *
 * The kernel's command line may say seed=N, operations=N (of all vCPUs; those of children come on top), vcpus=N, children=N; the
 * seed is printed, so that a run can be repeated: docs/random-kernels.md. Tandem recounts all its frames at the beginning, now and
 * then, and at the end.
 */
#include "children.h"
#include "raw.h"

const char test_name[] = "random-operations";

enum { AUDIT_EACH = 1 << 16 };
static u64 nr_operations;

static void once(void)
{
	switch (up_to(64)) {
	case 0: case 1: case 2: case 3: DO(fill); break;
	case 4: case 5: case 6: case 7: case 8: case 9: case 10: case 11: DO(hypercall_once); break;
	case 12: case 13: case 14: DO(write_entry); break;
	case 15: case 16: case 17: case 18: case 19: case 20: case 21: case 22: DO(vcpu_once); break;
	case 23: case 24: DO(granter_once); break;
	case 25: DO(copier_once); break;
	case 26: DO(event_once); break;
	case 27: DO(memory_once); break;
	case 28: DO(foreign_once); break;
	case 29: DO(instruction_once); break;
	case 30: DO(children_once); break;
	default: DO(mmu_once);
	}
}

static bool housekeeping(u64 n)
{
	if (n % 64)
		return true;
	wake_vcpus();
	if (n % 512 == 0) {
		call_roll(pause_children);
		unpause_children();
		refill();
	}
	return keep_books(nr_operations, AUDIT_EACH);
}

void test_main(void)
{
	static const struct work work = { .once = once, .housekeeping = housekeeping, .lost = leave_children };
	if (!is_initial_domain())
		child_main();
	nr_operations = number_after("operations=", 30000);
	chaos_init();
	whom_init();
	printk("  seed %lu, %lu operations, %u vCPUs\n", number_after("seed=", 20060101), nr_operations, board.nr_vcpus);
	HC2(vm_assist, 0, 2);
	grants_init();
	children_init();
	audit();
	run_operations(&work);
	stop_vcpus();
	restore();
	end_children();
	audit();
	printk("  %lu of %lu were accepted\n", operations_accepted(), operations_done());
	for (u32 v = 0; v < board.nr_vcpus; v++)
		printk("  vCPU %u: %lu operations, lost %lu times\n", v, board.of[v].operation, board.of[v].restarts);
	say_children();
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	check(operations_accepted() > operations_done() / 100, "nearly everything was refused");
	for (u32 v = 0; v < board.nr_vcpus; v++)
		check(board.of[v].nr_failures == 0, "vCPU %u has seen what must not be", v);
}
