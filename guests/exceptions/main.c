/* Faults of the kernel's own instructions arrive as on a bare machine. */
#include "guest.h"

const char test_name[] = "exceptions";

void test_main(void)
{
	u64 rip;
	check(PROBE("xor %%edx, %%edx\n\tmov $1, %%eax\n\txor %%ecx, %%ecx\n\tdiv %%ecx",
		    : : : "rax", "rcx", "rdx", "r11", "memory") == 0, "a division by zero gives %ld", probe.vector);
	check(PROBE("lea 2f(%%rip), %0\n2:\tud2", : "=&r"(rip) : : "r11", "memory") == 6, "ud2 gives %ld", probe.vector);
	check(probe.frame.rip == rip, "rip %#lx instead of %#lx", probe.frame.rip, rip);
	check(PROBE("mov (%0), %%rax", : : "r"(0x800000000000) : "rax", "r11", "memory") == 13,
	      "a non-canonical access gives %ld", probe.vector);
	check(probe.frame.error == 0, "error code %#lx", probe.frame.error);
	check(PROBE("mov %0, %%ds", : : "r"(0x1234) : "r11", "memory") == 13, "a bad selector gives %ld", probe.vector);
	check(probe.frame.error == 0x1234, "error code %#lx", probe.frame.error);
	/* A single step. */
	check(PROBE("pushf\n\torq $0x100, (%%rsp)\n\tpopf\n\tnop\n\tnop", : : : "r11", "memory", "cc") == 1,
	      "a single step gives %ld", probe.vector);
	asm volatile("pushf\n\tandq $~0x100, (%%rsp)\n\tpopf" : : : "memory", "cc");
}
