/* set_segment_base: FS, the kernel's GS, the user's GS, and the user's GS selector. */
#include "guest.h"

const char test_name[] = "segment-bases";

static u64 seen_gs;
void user_code(void);
asm(".text\nuser_code:\n\tmov %gs:0, %rax\n\tsyscall\n\tud2");

static void record(struct frame *frame)
{
	seen_gs = frame->rax;
	resume();
}

static u64 read_fs(void)
{
	u64 value;
	asm volatile("mov %%fs:0, %0" : "=r"(value) : : "memory");
	return value;
}

static u64 read_gs(void)
{
	u64 value;
	asm volatile("mov %%gs:0, %0" : "=r"(value) : : "memory");
	return value;
}

void test_main(void)
{
	*(u64 *)pages[0] = 0xf5, *(u64 *)pages[1] = 0x65, *(u64 *)pages[2] = 0x75;
	check_result(HC2(set_segment_base, 0, pages[0]), 0, "FS");
	check(read_fs() == 0xf5, "fs:0 is %#lx", read_fs());
	check_result(HC2(set_segment_base, 2, pages[1]), 0, "kernel GS");
	check(read_gs() == 0x65, "gs:0 is %#lx", read_gs());
	check_result(HC2(set_segment_base, 1, pages[2]), 0, "user GS");
	check(read_gs() == 0x65, "setting the user's GS base changed the kernel's: %#lx", read_gs());
	/* The user sees its own. */
	set_callback(2, 1, entry_257);
	handlers[ENTRY_SYSCALL] = record;
	if (mmuext(NEW_USER_BASEPTR, mfn_of((void *)start_info->pt_base), 0))
		error("NEW_USER_BASEPTR");
	struct frame to = {
		.rip = (u64)user_code, .cs = FLAT_KERNEL_CS, .rflags = 0x202, .rsp = (u64)pages[4], .ss = FLAT_KERNEL_SS,
	};
	enter(&to);
	check(seen_gs == 0x75, "the user's gs:0 is %#lx", seen_gs);
	check(read_gs() == 0x65 && read_fs() == 0xf5, "afterwards: gs:0 %#lx, fs:0 %#lx", read_gs(), read_fs());
	check_result(HC2(set_segment_base, 3, 0), 0, "a null selector for the user");
	check(HC2(set_segment_base, 3, 0x1234) <= 0, "a bad selector for the user");
	check_refused(HC2(set_segment_base, 0, 0x800000000000), "a non-canonical FS base");
	check_refused(HC2(set_segment_base, 1, 0x800000000000), "a non-canonical user GS base");
	check_refused(HC2(set_segment_base, 2, 0x800000000000), "a non-canonical kernel GS base");
	check_refused(HC2(set_segment_base, 4, 0), "register 4");
	check(read_gs() == 0x65 && read_fs() == 0xf5, "refusals changed: gs:0 %#lx, fs:0 %#lx", read_gs(), read_fs());
}
