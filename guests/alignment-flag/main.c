/* EFLAGS.AC, which ring 0 uses to open guest memory to itself: a guest that has it set keeps it across hypercalls, exceptions
 * and returns, its handlers start without it, and alignment checks are on. (processor: max) */
#include "guest.h"

const char test_name[] = "alignment-flag";

#define AC 0x40000ul
#define SET_AC "pushfq\n\torq $0x40000, (%%rsp)\n\tpopfq\n\t"
#define CLEAR_AC "pushfq\n\tandq $~0x40000, (%%rsp)\n\tpopfq\n\t"

static struct frame seen;
static u64 flags_in_handler;

static void record(struct frame *frame)
{
	asm volatile("pushfq\n\tpop %0" : "=r"(flags_in_handler));
	memcpy(&seen, frame, sizeof(seen));
	resume();
}

/* A hypercall with AC set; gives the flags after it. */
static u64 hypercall_with_ac(u64 number, u64 a, u64 b, u64 c, s64 *result)
{
	u64 flags;
	asm volatile(SET_AC "syscall\n\tpushfq\n\tpop %[flags]\n\t" CLEAR_AC
		     : [flags] "=&r"(flags), "=a"(*result), "+D"(a), "+S"(b), "+d"(c)
		     : "a"(number)
		     : "rcx", "r11", "memory", "cc");
	return flags;
}

static void hypercalls(void)
{
	s64 result;
	u64 flags = hypercall_with_ac(HC_xen_version, 0, 0, 0, &result);
	check(result == 0x40011 && (flags & AC), "without a pointer: result %#lx, flags %#lx", result, flags);
	/* Out to memory, in from memory, and a pointer that faults: each is a copy of its own kind. */
	memset(pages[0], 0, PAGE);
	flags = hypercall_with_ac(HC_xen_version, 1, (u64)pages[0], 0, &result);
	check(result == 0 && pages[0][0] == '.' && (flags & AC), "out: result %ld, flags %#lx", result, flags);
	flags = hypercall_with_ac(HC_console_io, 0, 17, (u64)"  a line with AC\n", &result);
	check(result >= 0 && (flags & AC), "in: result %ld, flags %#lx", result, flags);
	flags = hypercall_with_ac(HC_xen_version, 1, 0x123456789000, 0, &result);
	check(result == -EFAULT && (flags & AC), "faulting: result %ld, flags %#lx", result, flags);
}

static void exceptions(void)
{
	check(PROBE(SET_AC "ud2", : : : "r11", "memory", "cc") == 6, "ud2 gives %ld", probe.vector);
	check(probe.frame.rflags & AC, "ud2: flags %#lx", probe.frame.rflags);
	asm volatile(CLEAR_AC : : : "memory", "cc");
	check(PROBE(SET_AC "hlt", : : : "r11", "memory", "cc") == 13, "hlt gives %ld", probe.vector);
	check(probe.frame.rflags & AC, "hlt: flags %#lx", probe.frame.rflags);
	asm volatile(CLEAR_AC : : : "memory", "cc");
	check(PROBE(SET_AC "mov (%0), %%rax", : : "r"(0x123456789000) : "rax", "r11", "memory", "cc") == 14, "a bad access gives %ld",
	      probe.vector);
	check(probe.frame.rflags & AC, "a bad access: flags %#lx", probe.frame.rflags);
	asm volatile(CLEAR_AC : : : "memory", "cc");
	/* What the hypervisor emulates, from an instruction that it reads. */
	u64 cr4, flags;
	check(PROBE(SET_AC "mov %%cr4, %0\n\tpushfq\n\tpop %1\n\t" CLEAR_AC, : "=&r"(cr4), "=&r"(flags) : : "r11", "memory", "cc") == NO_TRAP,
	      "reading CR4 gives %ld", probe.vector);
	check((cr4 & 0x20) && (flags & AC), "CR4 %#lx, flags %#lx", cr4, flags);
}

/* Interrupts for the periodic timer, which lead to no event here: the hypervisor touches none of the guest's memory. */
static void interrupts(void)
{
	shared_info()->vcpu[0].upcall_mask = 1;
	u64 count = 20000000, flags;
	asm volatile(SET_AC "1:\tdec %0\n\tjnz 1b\n\tpushfq\n\tpop %1\n\t" CLEAR_AC : "+r"(count), "=r"(flags) : : "memory", "cc");
	check(flags & AC, "interrupted: flags %#lx", flags);
}

void user_code(void), user_bad(void);
asm(".text\nuser_code:\n\tsyscall\n\tud2\nuser_bad:\n\tmov 0x123456788, %rax\n\tud2\n");

static void user_mode(void)
{
	if (!check_result(mmuext(NEW_USER_BASEPTR, mfn_of((void *)start_info->pt_base), 0), 0, "NEW_USER_BASEPTR"))
		return;
	set_callback(2, 1, entry_257);
	handlers[ENTRY_SYSCALL] = handlers[14] = record;
	void (*const codes[])(void) = { user_code, user_bad };
	for (u32 i = 0; i < COUNT(codes); i++) {
		struct frame to = {
			.rip = (u64)codes[i], .cs = FLAT_KERNEL_CS, .rflags = 0x202 | AC, .rsp = (u64)pages[4], .ss = FLAT_KERNEL_SS,
		};
		enter(&to);
		shared_info()->vcpu[0].upcall_mask = 1;
		check(seen.number == (i ? 14 : ENTRY_SYSCALL), "user code %u arrives as %ld", i, seen.number);
		check(seen.rflags & AC, "user code %u: flags %#lx", i, seen.rflags);
		check(!(flags_in_handler & AC), "user code %u: the handler has flags %#lx", i, flags_in_handler);
	}
}

void test_main(void)
{
	hypercalls();
	exceptions();
	interrupts();
	user_mode();
	/* With CR0.AM a misaligned access is #AC then; QEMU's processor does not do that. */
	u64 cr0;
	asm volatile("smsw %0" : "=r"(cr0));
	check(cr0 & AC, "alignment checks are off: CR0 is %#lx", cr0);
}
