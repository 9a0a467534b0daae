/* sched_op(pin_override): the hardware domain's vCPU stays on a CPU until it says that it need not any more. */
#include "guest.h"

const char test_name[] = "pin-override";

enum { SCHEDOP_yield, SCHEDOP_pin_override = 7 };

static s64 pin(int cpu)
{
	return HC2(sched_op, SCHEDOP_pin_override, &cpu);
}

void test_main(void)
{
	check_result(pin(-1), -EINVAL, "letting go what is not pinned");
	check_result(pin(0), 0, "CPU 0");
	check_result(HC2(sched_op, SCHEDOP_yield, 0), 0, "yield");
	check_result(pin(0), -EBUSY, "CPU 0 again");
	check_result(pin(-1), 0, "letting go");
	check_result(pin(-1), -EINVAL, "letting go again");
	check_result(pin(0), 0, "CPU 0 once more");
	check_result(pin(-7), 0, "letting go by another negative number");
	check_result(pin(4095), -EINVAL, "a CPU that is not there");
	check_result(pin(0x7fffffff), -EINVAL, "the last number");
	check_result(HC2(sched_op, SCHEDOP_pin_override, 8), -EFAULT, "a bad pointer");
	check_result(pin(-1), -EINVAL, "what was refused does not pin");
}
