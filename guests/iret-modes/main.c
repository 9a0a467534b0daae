/* The iret hypercall: back to the kernel with events masked or not, and with or without rcx and r11. */
#include "guest.h"

const char test_name[] = "iret-modes";

u64 landed[4];
void landing(void);
asm(".text\nlanding:\n\t"
    "mov %rax, landed(%rip)\n\tmov %rcx, landed+8(%rip)\n\tmov %r11, landed+16(%rip)\n\t"
    "pushf\n\tpopq landed+24(%rip)\n\tjmp resume");

static u8 mask_after(u64 rflags)
{
	struct frame to = {
		.rax = 0xa, .rcx = 0xc, .r11 = 0xb,
		.rip = (u64)landing, .cs = FLAT_KERNEL_CS & ~3, .rflags = rflags, .rsp = (u64)pages[2], .ss = FLAT_KERNEL_SS,
	};
	enter(&to);
	u8 mask = shared_info()->vcpu[0].upcall_mask;
	shared_info()->vcpu[0].upcall_mask = 1;
	return mask;
}

static void ignore(struct frame *frame)
{
	/* An event that was pending: stay masked. */
	frame->rflags &= ~0x200ul;
}

void test_main(void)
{
	handlers[ENTRY_EVENT] = ignore;
	set_callback(0, 0, entry_256);
	check(mask_after(0x202) == 0 || shared_info()->vcpu[0].upcall_pending, "IF set does not unmask events");
	check(landed[0] == 0xa && landed[1] == 0xc && landed[2] == 0xb, "rax %#lx, rcx %#lx, r11 %#lx", landed[0], landed[1],
	      landed[2]);
	check(mask_after(0x002) == 1, "IF clear does not mask events");
	check(landed[3] & 0x200, "IF is really clear: rflags %#lx", landed[3]);
	mask_after(0x3002);
	check(!(landed[3] & 0x3000), "IOPL is really set: rflags %#lx", landed[3]);
	mask_after(0x8d5 | 2);
	check((landed[3] & 0x8d5) == 0x8d5, "arithmetic flags are lost: rflags %#lx", landed[3]);
	/* As after a system call: rcx and r11 need not come back, all else does. */
	iret_flags = VGCF_IN_SYSCALL;
	mask_after(0x002);
	check(landed[0] == 0xa, "rax is %#lx", landed[0]);
	iret_flags = 0;
	/* An unloadable stack selector goes to the failsafe callback, which is not tested here; bits 0-1 are made 3. */
	struct frame to = {
		.rip = (u64)landing, .cs = FLAT_KERNEL_CS & ~3, .rflags = 2, .rsp = (u64)pages[2], .ss = FLAT_KERNEL_SS & ~3,
	};
	enter(&to);
}
