/*
 * A vCPU runs on a code segment whose descriptor another one takes away and puts back: whatever brings it back there meanwhile ends in
 * its kernel, and everything goes on. (cpus: 2)
 */
#include "segments.h"

const char test_name[] = "vanishing-segments";

enum { ENTRY = 1, SELECTOR = ENTRY << 3, SPAN_S = 5 };

static u64 gdt[512] __attribute__((aligned(4096)));
static volatile u64 toggled;
static u64 rounds;

static void toggle(void)
{
	HC2(update_descriptor, maddr_of(&gdt[ENTRY]), toggled++ % 2 ? CODE : 0);
	for (u32 n = 0; n < 3000; n++)
		asm volatile("pause");
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

void test_main(void)
{
	need_vcpu(1);
	gdt[ENTRY] = CODE;
	make_read_only(gdt);
	u64 frame_number = mfn_of(gdt);
	check_result(HC2(set_gdt, &frame_number, 512), 0, "set_gdt");
	count_lost();
	/* Stock Xen makes it an exception. */
	handlers[13] = on_lost;
	start_work(toggle);
	static struct frame to;
	to = frame_on(SELECTOR, stay, pages[2]);
	u64 until = now_ns() + SPAN_S * 1000000000ul;
	/* Events are masked, and it does not give way: little brings it back but what the machine sends. */
	while (now_ns() < until)
		enter(&to);
	end_work();
	check(rounds > 0 && lost > 0 && toggled > 1, "%lu rounds, lost %lu times, %lu changes", rounds, lost, toggled);
	check_result(HC2(set_gdt, &frame_number, 0), 0, "no GDT");
	audit();
}
