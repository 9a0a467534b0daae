/* User mode: system calls, faults and forbidden instructions come to the kernel, on its own stack, with the user's CS. */
#include "events.h"

const char test_name[] = "user-mode";

void user_syscall(void), user_fault(void), user_in_ldt(void), user_hlt(void), user_int80(void), user_cli(void), user_out(void), user_end(void);
asm(".text\n"
    "user_syscall:\n\tmov $0x1234, %eax\n\tmov $0x5678, %edi\n\tsyscall\nuser_end:\n\tud2\n"
    "user_fault:\n\tmov $0x123456789, %rdx\n\tmov (%rdx), %rax\n\tud2\n"
    "user_in_ldt:\n\tmov (%rdx), %rax\n\tud2\n"
    "user_hlt:\n\thlt\n\tud2\n"
    "user_int80:\n\tint $0x80\n\tud2\n"
    "user_cli:\n\tcli\n\tud2\n"
    "user_out:\n\tmov $0x80, %edx\n\tout %al, (%dx)\n\tud2\n");

static struct frame seen;
static u64 handler_rsp;
static u8 mask_in_handler;
static u64 user_rdx;

static void record(struct frame *frame)
{
	mask_in_handler = shared_info()->vcpu[0].upcall_mask;
	memcpy(&seen, frame, sizeof(seen));
	handler_rsp = (u64)frame;
	resume();
}

static u64 run_with(void (*code)(void), u64 rflags)
{
	struct frame to = {
		.rip = (u64)code, .cs = FLAT_KERNEL_CS, .rflags = rflags, .rsp = (u64)pages[4], .ss = FLAT_KERNEL_SS,
		.rbx = 0xb0b, .r15 = 0xf15, .rdx = user_rdx,
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

static u64 run(void (*code)(void))
{
	return run_with(code, 0x202);
}

/* The short ways of system calls and of iret are for the usual case. What is not usual is not lost on them. */
static void unusual_ways(void)
{
	check(run_with(user_syscall, 0x002) == ENTRY_SYSCALL, "with events masked a system call arrives as %ld", seen.number);
	check((seen.cs >> 32 & 0xff) == 1 && (seen.rflags & 0x200) == 0, "events were masked: cs %#lx, rflags %#lx", seen.cs,
	      seen.rflags);
	check(run_with(user_syscall, 0x8d7) == ENTRY_SYSCALL && (seen.rflags & 0x8d5) == 0x8d5, "rflags is %#lx", seen.rflags);
	check(run(user_syscall) == ENTRY_SYSCALL && (seen.cs >> 32 & 0xff) == 0, "events were not masked: cs %#lx", seen.cs);
	check(mask_in_handler == 1, "the system call has not masked events");
	set_callback(2, 0, entry_257);
	check(run(user_syscall) == ENTRY_SYSCALL && mask_in_handler == 0, "the system call has masked events");
	set_callback(2, 1, entry_257);
	/* What is pending comes before the first instruction of user mode. */
	shared_info()->vcpu[0].upcall_pending = 1;
	check(run(user_syscall) == ENTRY_EVENT, "with an event pending %ld arrives", seen.number);
	check(seen.rip == (u64)user_syscall && (seen.cs >> 32 & 0xff) == 0, "rip is %#lx, cs %#lx", seen.rip, seen.cs);
	check(mask_in_handler == 1, "the upcall has not masked events");
	shared_info()->vcpu[0].upcall_pending = 0;
	/* With the IOPL in sight, in both directions. */
	check_result(HC2(vm_assist, 0, 4), 0, "architectural_iopl");
	check(run_with(user_syscall, 0x1202) == ENTRY_SYSCALL && (seen.rflags & 0x3200) == 0x1200, "rflags is %#lx", seen.rflags);
	check(run_with(user_syscall, 0x0202) == ENTRY_SYSCALL && (seen.rflags & 0x3200) == 0x200, "rflags is %#lx", seen.rflags);
	check_result(HC2(vm_assist, 1, 4), 0, "no architectural_iopl");
	check(run(user_syscall) == ENTRY_SYSCALL && seen.rcx == (u64)user_end, "%ld arrives, rcx %#lx", seen.number, seen.rcx);
}

/* Where the hypervisor has mapped the LDT is no place for the program: it gets a fault, and not the descriptors. */
static void access_to_ldt(void)
{
	enum { LDT_BEHIND_GDT = 16 * PAGE, VIRQ_TIMER = 0 };
	const u64 hypervisor_start = 0xffff800000000000, hypervisor_end = 0xffff880000000000;
	struct __attribute__((packed)) {
		u16 limit;
		u64 base;
	} gdtr;
	asm volatile("sgdt %0" : "=m"(gdtr));
	/* With UMIP it is not told: what is said instead is no place of the hypervisor's. */
	if (gdtr.base < hypervisor_start || gdtr.base >= hypervisor_end) {
		printk("the GDT is said to be at %#lx: access to the LDT is not tested\n", gdtr.base);
		return;
	}
	user_rdx = (gdtr.base & -PAGE) + LDT_BEHIND_GDT;
	u64 *ldt = (u64 *)pages[5];
	ldt[1] = 0x00cff3000000ffff;
	make_read_only(ldt);
	check_result(mmuext(SET_LDT, (u64)ldt, 4), 0, "SET_LDT");
	/* It ends, also if the access does not. */
	struct bind_virq virq = { VIRQ_TIMER, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "bind_virq");
	for (u32 n = 0; n < 10; n++) {
		shared_info()->vcpu[0].upcall_pending = 0;
		shared_info()->vcpu[0].pending_sel = 0;
		shared_info()->pending[virq.port / 64] &= ~(1ul << virq.port % 64);
		if (run(user_in_ldt) != ENTRY_EVENT)
			break;
	}
	check(seen.number == 14 && seen.error & 4, "an access to the LDT arrives as %ld, error %#lx", seen.number, seen.error);
	check(shared_info()->vcpu[0].cr2 == user_rdx, "cr2 is %#lx, not %#lx", shared_info()->vcpu[0].cr2, user_rdx);
	check_result(evtchn(EVTCHN_close, &virq.port), 0, "close");
	check_result(mmuext(SET_LDT, 0, 0), 0, "no LDT");
	make_writable(ldt);
	shared_info()->vcpu[0].upcall_pending = 0;
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
	set_callback(0, 1, entry_256);
	handlers[ENTRY_EVENT] = handlers[ENTRY_SYSCALL] = handlers[128] = handlers[13] = handlers[14] = handlers[6] = record;

	check(run(user_syscall) == ENTRY_SYSCALL, "a system call arrives as %ld", seen.number);
	check(seen.rax == 0x1234 && seen.rdi == 0x5678, "rax %#lx, rdi %#lx", seen.rax, seen.rdi);
	check(seen.rip == (u64)user_end, "rip is %#lx", seen.rip);
	check(seen.rcx == seen.rip, "rcx is %#lx", seen.rcx);
	check((seen.rflags & 0x3200) == 0x200, "rflags is %#lx", seen.rflags);
	unusual_ways();

	check(run(user_fault) == 14, "a fault arrives as %ld", seen.number);
	check(seen.error == 4, "error code is %#lx", seen.error);
	check(shared_info()->vcpu[0].cr2 == 0x123456789, "cr2 is %#lx", shared_info()->vcpu[0].cr2);
	access_to_ldt();
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
