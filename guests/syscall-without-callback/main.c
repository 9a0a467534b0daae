/* A user's SYSCALL when the kernel has registered no entry point for it is an undefined instruction. */
#include "guest.h"

const char test_name[] = "syscall-without-callback";

void user_code(void);
asm(".text\nuser_code:\n\tsyscall\n\thlt");

static struct frame seen;

static void record(struct frame *frame)
{
	memcpy(&seen, frame, sizeof(seen));
	resume();
}

void test_main(void)
{
	handlers[6] = handlers[13] = record;
	if (mmuext(NEW_USER_BASEPTR, mfn_of((void *)start_info->pt_base), 0))
		error("NEW_USER_BASEPTR");
	struct frame to = {
		.rip = (u64)user_code, .cs = FLAT_KERNEL_CS, .rflags = 0x202, .rsp = (u64)pages[4], .ss = FLAT_KERNEL_SS,
	};
	enter(&to);
	check(seen.number == 6, "it arrives as %ld", seen.number);
	check(seen.rip == (u64)user_code, "rip is %#lx instead of %#lx", seen.rip, (u64)user_code);
	check((seen.cs & 0xffff) == FLAT_KERNEL_CS, "cs is %#lx", seen.cs);
}
