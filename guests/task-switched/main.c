/* The FPU: with CR0.TS set by fpu_taskswitch its use traps, without it does not, and its registers are kept. */
#include "guest.h"

const char test_name[] = "task-switched";

#define USE_FPU PROBE("fldz\n\tfstp %%st(0)", : : : "r11", "memory")

void test_main(void)
{
	u64 cr0;
	HC1(fpu_taskswitch, 0);
	check(USE_FPU == NO_TRAP, "the FPU traps with TS clear: %ld", probe.vector);
	check_result(HC1(fpu_taskswitch, 1), 0, "fpu_taskswitch(1)");
	asm volatile("mov %%cr0, %0" : "=r"(cr0));
	check(cr0 & 8, "CR0 is %#lx", cr0);
	check(USE_FPU == 7, "the FPU does not trap with TS set: %ld", probe.vector);
	/* The trap has cleared it: kernels for Xen's old interface count on that. */
	asm volatile("mov %%cr0, %0" : "=r"(cr0));
	check(!(cr0 & 8), "CR0 is %#lx after the trap", cr0);
	check(USE_FPU == NO_TRAP, "the FPU traps again: %ld", probe.vector);
	HC1(fpu_taskswitch, 1);
	asm volatile("clts");
	check(USE_FPU == NO_TRAP, "the FPU traps after clts: %ld", probe.vector);
	HC1(fpu_taskswitch, 1);
	check_result(HC1(fpu_taskswitch, 0), 0, "fpu_taskswitch(0)");
	check(USE_FPU == NO_TRAP, "the FPU traps after fpu_taskswitch(0): %ld", probe.vector);
	/* SSE registers survive hypercalls and being descheduled. */
	u64 in[2] = { 0x1122334455667788, 0x99aabbccddeeff00 }, out[2] = { 0, 0 };
	asm volatile("movups %0, %%xmm7" : : "m"(in));
	for (int i = 0; i < 100; i++) {
		HC1(sched_op, 0);
		HC1(xen_version, 0);
	}
	asm volatile("movups %%xmm7, %0" : "=m"(out));
	check(out[0] == in[0] && out[1] == in[1], "xmm7 became %#lx %#lx", out[0], out[1]);
	u32 mxcsr;
	asm volatile("stmxcsr %0" : "=m"(mxcsr));
	check(mxcsr == 0x1f80, "MXCSR is %#x", mxcsr);
}
