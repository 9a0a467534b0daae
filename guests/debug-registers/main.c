/* Breakpoints in hardware: set by hypercall, delivered as #DB, and never on the hypervisor's own addresses. */
#include "guest.h"

const char test_name[] = "debug-registers";

static volatile u64 watched;
#define SINGLE_STEP "pushf\n\torl $0x100, (%%rsp)\n\tpopf\n\tnop"

void test_main(void)
{
	static const u32 defaults[][2] = { { 0, 0 }, { 1, 0 }, { 2, 0 }, { 3, 0 }, { 6, 0xffff0ff0 }, { 7, 0x400 } };
	for (u32 i = 0; i < COUNT(defaults); i++) {
		u64 value = HC1(get_debugreg, defaults[i][0]);
		check(value == defaults[i][1], "DR%u is %#lx", defaults[i][0], value);
	}
	/* A data breakpoint: on writes of eight bytes. */
	check_result(HC2(set_debugreg, 0, &watched), 0, "DR0");
	check_result(HC2(set_debugreg, 7, 1 << 0 | 1 << 16 | 2 << 18), 0, "DR7");
	u64 vector = PROBE("movq $1, (%0)\n\tnop", : : "r"(&watched) : "r11", "memory");
	check(vector == 1, "a write to the watched word gives %ld", vector);
	check((HC1(get_debugreg, 6) & 0xf) == 1, "DR6 is %#lx", HC1(get_debugreg, 6));
	HC2(set_debugreg, 6, 0xffff0ff0);
	check(PROBE("mov (%0), %%rax", : : "r"(&watched) : "rax", "r11", "memory") == NO_TRAP, "a read gives %ld", probe.vector);
	check_result(HC2(set_debugreg, 7, 0x400), 0, "DR7");
	check(PROBE("movq $1, (%0)\n\tnop", : : "r"(&watched) : "r11", "memory") == NO_TRAP, "switched off, a write gives %ld",
	      probe.vector);
	/* An instruction breakpoint. */
	u64 address;
	asm volatile("lea breakpoint_here(%%rip), %0" : "=r"(address));
	check_result(HC2(set_debugreg, 1, address), 0, "DR1");
	check_result(HC2(set_debugreg, 7, 1 << 2), 0, "DR7");
	check(PROBE("breakpoint_here: nop", : : : "r11", "memory") == 1, "an instruction breakpoint gives %ld", probe.vector);
	check(probe.frame.rip == address, "at %#lx", probe.frame.rip);
	HC2(set_debugreg, 7, 0x400);
	/* What DR6 says stays until it is cleared, whatever happens next. */
	check(PROBE(SINGLE_STEP, : : : "r11", "memory", "cc") == 1, "a single step gives %ld", probe.vector);
	check(HC1(get_debugreg, 6) == 0xffff4ff2, "DR6 is %#lx after a breakpoint and a single step", HC1(get_debugreg, 6));
	/* And no longer, also if there were breakpoints then. */
	HC2(set_debugreg, 7, 1 << 2);
	HC2(set_debugreg, 6, 0xffff8ff1);
	HC2(set_debugreg, 7, 0x400);
	HC2(set_debugreg, 6, 0xffff0ff0);
	check(PROBE(SINGLE_STEP, : : : "r11", "memory", "cc") == 1, "a single step gives %ld", probe.vector);
	check(HC1(get_debugreg, 6) == 0xffff4ff0, "DR6 is %#lx after a single step", HC1(get_debugreg, 6));
	/* What is refused. */
	check_refused(HC2(set_debugreg, 0, 0xffff830000000000), "a breakpoint in the hypervisor");
	check_refused(HC2(set_debugreg, 0, 0x800000000000), "a breakpoint at a non-canonical address");
	check_refused(HC2(set_debugreg, 7, 1ul << 40), "reserved bits of DR7");
	check_refused(HC2(set_debugreg, 8, 0), "DR8");
	check_refused(HC1(get_debugreg, 8), "reading DR8");
	/* By instruction. */
	u64 value;
	check(PROBE("mov %%dr7, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP && value == 0x400, "DR7 is %#lx, trap %ld", value,
	      probe.vector);
	check(PROBE("mov %0, %%dr0", : : "r"(&watched) : "r11", "memory") == NO_TRAP, "writing DR0 gives %ld", probe.vector);
	check(HC1(get_debugreg, 0) == (s64)&watched, "DR0 is %#lx", HC1(get_debugreg, 0));
}
