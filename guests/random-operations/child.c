/* What runs in the children of the random kernel: calm ones, which must get on, and reckless ones. */
#include "children.h"

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
	case 21: DO(privileged_once); break;
	case 22: case 23: case 24: case 25: case 26: DO(vcpu_once); break;
	case 27: DO(instruction_once); break;
	default: DO(mmu_once);
	}
}

static bool housekeeping(u64 n)
{
	if (n % 512 == 0)
		refill();
	if (n % 64 == 0)
		wake_vcpus();
	return true;
}

static void lost(void)
{
}

/* Sleeps and runs in turn, and does nothing to anybody. */
static void be_calm(void)
{
	struct {
		u32 state, pad;
		u64 entered, times[4];
	} run = { 0 };
	grant_everything();
	for (;;) {
		board.of[0].beats++;
		HC3(vcpu_op, VCPUOP_get_runstate_info, 0, &run);
		struct {
			u32 *ports, nr, pad;
			u64 timeout;
		} poll = { NULL, 0, 0, run.entered + 2000000 };
		HC2(sched_op, SCHEDOP_poll, &poll);
		HC2(sched_op, SCHEDOP_yield, 0);
	}
}

void child_main(void)
{
	static const struct work work = { .once = once, .housekeeping = housekeeping, .lost = lost };
	chaos_init();
	whom_init();
	HC2(vm_assist, 0, 2);
	grants_init();
	if (number_after("calm=", 0))
		be_calm();
	run_operations(&work);
	for (;;)
		;
}
