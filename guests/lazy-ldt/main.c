/*
 * The pages of an LDT, which the hypervisor maps when they are needed: each is found whatever another vCPU does meanwhile to the page
 * tables, when a selector is loaded and on the way back to code in it. (cpus: 2)
 */
#include "events.h"

const char test_name[] = "lazy-ldt";

#define DATA 0x00cff3000000ffff /* flat, ring 3, writable */
#define CODE 0x00affb000000ffff /* 64-bit, ring 3 */
/* In an iret frame a kernel asks for itself by RPL 0. */
enum { DATA_SELECTOR = 1 << 3 | 7, CODE_SELECTOR = 2 << 3 | 4 };
enum { TABLES = 60, ENTRIES = 512, ROUNDS = 20000, ENTERED_EACH = 16 };

/* Tables without a use: an L2, and L1s that it fills up with. */
static u64 table_of_tables[ENTRIES] __attribute__((aligned(4096)));
static u64 ldt[ENTRIES] __attribute__((aligned(4096)));
static volatile u64 pinned, failed;
static volatile bool ends;
static u32 lost;

/* It validates all of them, and takes them down again, all the time. */
static void pin_for_ever(void)
{
	u64 mfn = mfn_of(table_of_tables);
	while (!ends) {
		if (mmuext(PIN_L2, mfn, 0) || mmuext(UNPIN, mfn, 0))
			failed = 1;
		else
			pinned++;
	}
	for (;;)
		HC3(vcpu_op, VCPUOP_down, 1, 0);
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
	for (u32 t = 0; t < TABLES; t++) {
		for (u32 e = 0; e < ENTRIES; e++)
			((u64 *)pages[t])[e] = pte(mfn_of(ldt), P | US);
		table_of_tables[t] = pte(mfn_of(pages[t]), P | US);
		make_read_only(pages[t]);
	}
	make_read_only(table_of_tables);
	ldt[1] = DATA, ldt[2] = CODE;
	make_read_only(ldt);
	set_callback(1, 0, entry_258);
	handlers[ENTRY_FAILSAFE] = on_lost;
	static u8 stack[4 * PAGE];
	start_vcpu(1, pin_for_ever, stack + sizeof(stack));
	u64 until = now_ns() + 2000000000;
	while (pinned < 2 && now_ns() < until)
		asm volatile("pause");
	if (!check(pinned >= 2, "the other vCPU does not get on"))
		return;

	static struct frame to;
	to = (struct frame){ .rip = (u64)resume, .cs = CODE_SELECTOR, .rflags = 2, .rsp = (u64)pages[63], .ss = FLAT_KERNEL_SS };
	u64 traps = 0, before = pinned;
	for (u32 n = 0; n < ROUNDS; n++) {
		/* None of it is mapped from now on. */
		check_result(mmuext(SET_LDT, (u64)ldt, 4), 0, "SET_LDT");
		if (n % ENTERED_EACH)
			traps += PROBE("mov %0, %%ds\n\tmov %1, %%ds", : : "r"(DATA_SELECTOR), "r"(0) : "r11", "memory") != NO_TRAP;
		else
			enter(&to);
	}
	check(pinned > before, "the other vCPU did nothing meanwhile");
	ends = true;
	check(traps == 0, "%lu of %u times a selector of the LDT was not found", traps, ROUNDS);
	check(lost == 0, "%u of %u times code of the LDT was not found", lost, ROUNDS / ENTERED_EACH);
	check(!failed, "a table was refused");
	check_result(mmuext(SET_LDT, 0, 0), 0, "no LDT");
	while (HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 1)
		HC1(sched_op, SCHEDOP_yield);
	audit();
}
