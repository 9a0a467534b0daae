/* The hypercall page that the kernel asked for by an ELF note: an entry point each 32 bytes. */
#include "guest.h"

const char test_name[] = "hypercall-page";

extern u8 hypercall_page[PAGE];

static s64 call(u64 number, u64 a)
{
	s64 result;
	u64 rcx = 0x1234, r11;
	asm volatile("mov $0x5678, %%r11\n\tcall *%4\n\tmov %%r11, %2"
		     : "=a"(result), "+c"(rcx), "=&r"(r11)
		     : "D"(a), "r"(hypercall_page + number * 32)
		     : "rsi", "rdx", "r10", "r8", "r9", "r11", "memory");
	check(rcx == 0x1234 && r11 == 0x5678, "rcx is %#lx, r11 is %#lx after the call", rcx, r11);
	return result;
}

void test_main(void)
{
	check(call(HC_xen_version, 0) == 0x40011, "xen_version through the page");
	check(call(63, 0) == -ENOSYS, "an unknown hypercall through the page");
	/* Entry 23 is jumped to with iret's frame on the stack, of which it makes the first three words. */
	u64 reached = 0;
	asm volatile("mov %%rsp, %%rdx\n\t"
		     "push %[ss]\n\tpush %%rdx\n\tpushf\n\tpush %[cs]\n\tlea 1f(%%rip), %%rax\n\tpush %%rax\n\tpush $0\n\t"
		     "mov $0x77, %%eax\n\tjmp *%[iret]\n"
		     "1:\tmov %%rax, %[reached]"
		     : [reached] "=r"(reached)
		     : [ss] "r"((u64)FLAT_KERNEL_SS), [cs] "r"(FLAT_KERNEL_CS & ~3ul), [iret] "r"(hypercall_page + HC_iret * 32)
		     : "rax", "rdx", "rcx", "r11", "memory");
	check(reached == 0x77, "rax is %#lx after iret", reached);
}
