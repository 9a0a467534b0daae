/* User mode: system calls, faults and forbidden instructions come to the kernel, on its own stack, with the user's CS. */
#include "guest.h"

const char test_name[] = "user-mode";

void user_syscall(void), user_fault(void), user_hlt(void), user_int80(void), user_cli(void), user_out(void), user_end(void);
asm(".text\n"
    "user_syscall:\n\tmov $0x1234, %eax\n\tmov $0x5678, %edi\n\tsyscall\nuser_end:\n\tud2\n"
    "user_fault:\n\tmov $0x123456789, %rdx\n\tmov (%rdx), %rax\n\tud2\n"
    "user_hlt:\n\thlt\n\tud2\n"
    "user_int80:\n\tint $0x80\n\tud2\n"
    "user_cli:\n\tcli\n\tud2\n"
    "user_out:\n\tmov $0x80, %edx\n\tout %al, (%dx)\n\tud2\n");

static struct frame seen;
static u64 handler_rsp;

static void record(struct frame *frame)
{
	memcpy(&seen, frame, sizeof(seen));
	handler_rsp = (u64)frame;
	resume();
}

static u64 run(void (*code)(void))
{
	struct frame to = {
		.rip = (u64)code, .cs = FLAT_KERNEL_CS, .rflags = 0x202, .rsp = (u64)pages[4], .ss = FLAT_KERNEL_SS,
		.rbx = 0xb0b, .r15 = 0xf15,
	};
	memset(&seen, 0, sizeof(seen));
	seen.number = NO_TRAP;
	enter(&to);
	shared_info()->vcpu[0].upcall_mask = 1;
	check(seen.cs == FLAT_KERNEL_CS || (seen.cs & 0xffff) == FLAT_KERNEL_CS, "cs is %#lx", seen.cs);
	check(seen.ss == FLAT_KERNEL_SS, "ss is %#lx", seen.ss);
	check(seen.rsp == (u64)pages[4], "rsp is %#lx", seen.rsp);
	check(seen.rbx == 0xb0b && seen.r15 == 0xf15, "rbx %#lx, r15 %#lx", seen.rbx, seen.r15);
	extern char entry_stack_top[];
	check(handler_rsp < (u64)entry_stack_top && handler_rsp > (u64)entry_stack_top - 512, "the kernel's stack is at %#lx",
	      handler_rsp);
	return seen.number;
}

static void page_fault_of_kernel(void)
{
	u64 rax;
	handlers[14] = NULL;
	check(PROBE("mov (%1), %0", : "=&r"(rax) : "r"(0x123456789) : "r11", "memory") == 14 && probe.frame.error == 0,
	      "a kernel's fault has error code %#lx", probe.frame.error);
}

void test_main(void)
{
	u64 root = mfn_of((void *)start_info->pt_base);
	if (!check_result(mmuext(NEW_USER_BASEPTR, root, 0), 0, "NEW_USER_BASEPTR"))
		return;
	set_callback(2, 1, entry_257);
	set_trap(0x80, 3, entry_128);
	handlers[ENTRY_SYSCALL] = handlers[128] = handlers[13] = handlers[14] = handlers[6] = record;

	check(run(user_syscall) == ENTRY_SYSCALL, "a system call arrives as %ld", seen.number);
	check(seen.rax == 0x1234 && seen.rdi == 0x5678, "rax %#lx, rdi %#lx", seen.rax, seen.rdi);
	check(seen.rip == (u64)user_end, "rip is %#lx", seen.rip);
	check(seen.rcx == seen.rip, "rcx is %#lx", seen.rcx);
	check((seen.rflags & 0x3200) == 0x200, "rflags is %#lx", seen.rflags);

	check(run(user_fault) == 14, "a fault arrives as %ld", seen.number);
	check(seen.error == 4, "error code is %#lx", seen.error);
	check(shared_info()->vcpu[0].cr2 == 0x123456789, "cr2 is %#lx", shared_info()->vcpu[0].cr2);
	page_fault_of_kernel();

	check(run(user_hlt) == 13 && seen.error == 0 && seen.rip == (u64)user_hlt, "hlt arrives as %ld, error %#lx", seen.number,
	      seen.error);
	check(run(user_int80) == 128, "int 0x80 arrives as %ld", seen.number);
	check(run(user_cli) == 13, "cli arrives as %ld", seen.number);
	/* An address that is none: the fault is that of the instruction there. */
	void (*nowhere)(void) = (void (*)(void))0x800000000000;
	check(run(nowhere) == 13 && seen.error == 0 && seen.rip == (u64)nowhere,
	      "at an address that is none: %ld, error %#lx, rip %#lx", seen.number, seen.error, seen.rip);
	check(run(user_out) == 13, "out arrives as %ld", seen.number);
}
