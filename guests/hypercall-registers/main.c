/* A hypercall gives its result in rax and changes no other register but rcx and r11, nor the flags that matter. */
#include "guest.h"

const char test_name[] = "hypercall-registers";

static u64 before[16];
u64 after[16];

static void call(u64 number, u64 first, u64 second)
{
	for (u64 i = 0; i < 16; i++)
		before[i] = 0x1111111111111111ul * (i + 1);
	before[0] = number;
	before[7] = first;
	before[6] = second;
	asm volatile("push %%rbp\n\tpush %%rbx\n\t"
		     "mov %0, %%rax\n\tmov 8*0(%%rax), %%r9\n\tpush %%r9\n\t"
		     "mov 8*3(%%rax), %%rbx\n\tmov 8*5(%%rax), %%rbp\n\tmov 8*6(%%rax), %%rsi\n\tmov 8*7(%%rax), %%rdi\n\t"
		     "mov 8*2(%%rax), %%rdx\n\tmov 8*8(%%rax), %%r8\n\tmov 8*9(%%rax), %%r9\n\tmov 8*10(%%rax), %%r10\n\t"
		     "mov 8*12(%%rax), %%r12\n\tmov 8*13(%%rax), %%r13\n\tmov 8*14(%%rax), %%r14\n\tmov 8*15(%%rax), %%r15\n\t"
		     "pop %%rax\n\tsyscall\n\t"
		     "push %%rax\n\tlea after(%%rip), %%rax\n\tpop 8*0(%%rax)\n\t"
		     "mov %%rbx, 8*3(%%rax)\n\tmov %%rbp, 8*5(%%rax)\n\tmov %%rsi, 8*6(%%rax)\n\tmov %%rdi, 8*7(%%rax)\n\t"
		     "mov %%rdx, 8*2(%%rax)\n\tmov %%r8, 8*8(%%rax)\n\tmov %%r9, 8*9(%%rax)\n\tmov %%r10, 8*10(%%rax)\n\t"
		     "mov %%r12, 8*12(%%rax)\n\tmov %%r13, 8*13(%%rax)\n\tmov %%r14, 8*14(%%rax)\n\tmov %%r15, 8*15(%%rax)\n\t"
		     "pop %%rbx\n\tpop %%rbp"
		     :
		     : "r"(before)
		     : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
	for (int i = 2; i < 16; i++)
		if (i != 4 && i != 11) /* rsp, r11 */
			check(after[i] == before[i], "hypercall %lu changed register %d: %#lx became %#lx", number, i, before[i],
			      after[i]);
}

void test_main(void)
{
	call(HC_xen_version, 0, 0);
	check(after[0] == 0x40011, "version is %#lx", after[0]);
	call(1000, 0, 0);
	check((s64)after[0] == -ENOSYS, "unknown hypercall gives %ld", (s64)after[0]);
	call(HC_fpu_taskswitch, 0, 0);
	check(after[0] == 0, "fpu_taskswitch gives %ld", (s64)after[0]);
	call(HC_get_debugreg, 7, 0);
	check(after[0] == 0x400, "get_debugreg(7) gives %#lx", after[0]);
	/* The direction flag and the arithmetic flags are not the hypervisor's business. */
	u64 flags, result = HC_xen_version;
	asm volatile("std\n\tstc\n\tsyscall\n\tpushf\n\tpop %1\n\tcld"
		     : "+a"(result), "=r"(flags)
		     : "D"(0ul)
		     : "rcx", "r11", "memory", "cc");
	check((flags & 0x401) == 0x401, "flags were %#lx afterwards", flags);
}
