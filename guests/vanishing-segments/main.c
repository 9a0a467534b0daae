/*
 * A vCPU runs on a code segment whose descriptor another one takes away and puts back: whatever brings it back there meanwhile ends in
 * its kernel, and everything goes on. (cpus: 2)
 */
#include "events.h"

const char test_name[] = "vanishing-segments";

#define CODE 0x00affb000000ffff /* 64-bit, ring 3 */
/* In an iret frame a kernel asks for itself by RPL 0. */
enum { ENTRY = 1, SELECTOR = ENTRY << 3, SPAN_S = 5 };

static u64 gdt[512] __attribute__((aligned(4096)));
static volatile bool ends;
static volatile u64 toggled;
static u64 lost, rounds;

static void toggle_for_ever(void)
{
	u64 address = maddr_of(&gdt[ENTRY]);
	for (; !ends; toggled++) {
		HC2(update_descriptor, address, toggled % 2 ? CODE : 0);
		for (u32 n = 0; n < 3000; n++)
			asm volatile("pause");
	}
	for (;;)
		HC3(vcpu_op, VCPUOP_down, 1, 0);
}

/* Runs on SELECTOR for a while, then goes back to the kernel's own. */
void stay(void), stay_no_longer(void);
asm(".text\nstay:\n\tmov $200000, %ecx\n1:\tdec %ecx\n\tjnz 1b\n"
    "\tpush $" "0xe033" "\n\tpush $stay_no_longer\n\tlretq\nstay_no_longer:\n\tjmp stayed\n");

void stayed(void)
{
	rounds++;
	resume();
}

static void on_lost(struct frame *frame)
{
	(void)frame;
	lost++;
	resume();
}

void test_main(void)
{
	need_vcpu(1);
	gdt[ENTRY] = CODE;
	make_read_only(gdt);
	u64 frame_number = mfn_of(gdt);
	check_result(HC2(set_gdt, &frame_number, 512), 0, "set_gdt");
	set_callback(1, 0, entry_258);
	/* Stock Xen makes it an exception. */
	handlers[ENTRY_FAILSAFE] = handlers[13] = on_lost;
	static u8 stack[4 * PAGE];
	start_vcpu(1, toggle_for_ever, stack + sizeof(stack));
	static struct frame to;
	to = (struct frame){ .rip = (u64)stay, .cs = SELECTOR, .rflags = 2, .rsp = (u64)pages[2], .ss = FLAT_KERNEL_SS };
	u64 until = now_ns() + SPAN_S * 1000000000ul;
	/* Events are masked, and it does not give way: little brings it back but what the machine sends. */
	while (now_ns() < until)
		enter(&to);
	ends = true;
	check(rounds > 0 && lost > 0 && toggled > 1, "%lu rounds, lost %lu times, %lu changes", rounds, lost, toggled);
	while (HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 1)
		HC1(sched_op, SCHEDOP_yield);
	check_result(HC2(set_gdt, &frame_number, 0), 0, "no GDT");
	audit();
}
