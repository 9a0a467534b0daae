/* sched_op(watchdog): two of them; wound up, wound up again and let go in time, they do nothing. */
#include "guest.h"

const char test_name[] = "watchdogs";

enum { SCHEDOP_watchdog = 6 };

static s64 wind(u32 id, u32 seconds)
{
	u32 watchdog[2] = { id, seconds };
	return HC2(sched_op, SCHEDOP_watchdog, watchdog);
}

void test_main(void)
{
	check_result(wind(1, 60), -EINVAL, "the first, which is not in use");
	check_result(wind(0, 1), 1, "a new one");
	check_result(wind(0, 60), 2, "another");
	/* Xen 4.17 gives only the lower 32 bits of this error. */
	check_result((int)wind(0, 60), -ENOSPC, "a third");
	check_result(wind(3, 60), -EINVAL, "number 3");
	check_result(wind(~0u, 60), -EINVAL, "the last number");
	check_result(HC2(sched_op, SCHEDOP_watchdog, 8), -EFAULT, "a bad pointer");
	/* Three times half a second: the first would bite after one if it were not wound up again. */
	for (int i = 0; i < 3; i++) {
		for (u64 start = now_ns(); now_ns() - start < 500000000;)
			;
		check_result(wind(1, 1), 0, "the first again");
	}
	check_result(wind(1, 0), 0, "letting the first go");
	check_result(wind(1, 0), -EINVAL, "letting it go again");
	check_result(wind(0, 1), 1, "its number is free");
	check_result(wind(1, 0), 0, "letting it go");
	check_result(wind(2, 0), 0, "letting the second go");
	for (u64 start = now_ns(); now_ns() - start < 1500000000;)
		;
}
