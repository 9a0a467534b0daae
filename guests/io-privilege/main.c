/* CLI, STI, IN and OUT after PHYSDEVOP_set_iopl(1), as a Linux kernel uses them. */
#include "guest.h"

const char test_name[] = "io-privilege";

void test_main(void)
{
	volatile u8 *mask = &shared_info()->vcpu[0].upcall_mask;
	u32 level = 1, value;
	check(PROBE("cli", : : : "r11", "memory") == 13, "cli gives %ld before", probe.vector);
	if (!check_result(HC2(physdev_op, 6, &level), 0, "set_iopl"))
		return;
	*mask = 0;
	check(PROBE("cli", : : : "r11", "memory") == NO_TRAP, "cli gives %ld", probe.vector);
	check(PROBE("sti", : : : "r11", "memory") == NO_TRAP, "sti gives %ld", probe.vector);
	*mask = 1;
	u64 flags;
	asm volatile("pushf\n\tpop %0" : "=r"(flags));
	check(flags & 0x200, "IF is clear");
	level = 4;
	check_result(HC2(physdev_op, 6, &level), -EINVAL, "set_iopl(4)");
	/* Domain 0 may use the CMOS: the index register, then the data of the day of the week (1 to 7). */
	check(PROBE("out %%al, $0x70", : : "a"(6) : "r11", "memory") == NO_TRAP, "out to 0x70 gives %ld", probe.vector);
	check(PROBE("in $0x71, %%al", : "=a"(value) : "0"(0) : "r11", "memory") == NO_TRAP, "in from 0x71 gives %ld", probe.vector);
	check((value & 0xff) >= 1 && (value & 0xff) <= 7, "the day of the week is %#x", value);
	check(PROBE("in $0x71, %%eax", : "=a"(value) : : "r11", "memory") == NO_TRAP, "a wide in gives %ld", probe.vector);
	/* By DX, and as a string. */
	check(PROBE("in %%dx, %%al", : "=a"(value) : "d"(0x61), "0"(~0ul) : "r11", "memory") == NO_TRAP, "in gives %ld",
	      probe.vector);
	u8 buffer[4] = { 0 };
	u64 count = 2;
	u8 *to = buffer;
	check(PROBE("cld\n\trep insb", : "+D"(to), "+c"(count) : "d"(0x71) : "r11", "memory") == NO_TRAP, "rep insb gives %ld",
	      probe.vector);
	check(count == 0 && to == buffer + 2, "rep insb leaves count %lu", count);
	/* Ports of the hypervisor: reads give all ones, writes go nowhere. */
	check(PROBE("in $0x21, %%al", : "=a"(value) : "0"(0) : "r11", "memory") == NO_TRAP || probe.vector == 13,
	      "in from 0x21 gives %ld", probe.vector);
}
