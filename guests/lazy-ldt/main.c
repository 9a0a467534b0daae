/*
 * The pages of an LDT, which the hypervisor maps when they are needed: each is found whatever another vCPU does meanwhile to the page
 * tables, when a selector is loaded and on the way back to code in it. (cpus: 2)
 */
#include "segments.h"

const char test_name[] = "lazy-ldt";

#define DATA 0x00cff3000000ffff /* flat, ring 3, writable */
enum { DATA_SELECTOR = 1 << 3 | 7, CODE_SELECTOR = 2 << 3 | 4 };
enum { TABLES = 60, ENTRIES = 512, ROUNDS = 20000, ENTERED_EACH = 16 };

/* Tables without a use: an L2, and L1s that it fills up with. */
static u64 table_of_tables[ENTRIES] __attribute__((aligned(4096)));
static u64 ldt[ENTRIES] __attribute__((aligned(4096)));
static volatile u64 pinned, failed;

/* Validates all of them, and takes them down again. */
static void pin(void)
{
	u64 mfn = mfn_of(table_of_tables);
	if (mmuext(PIN_L2, mfn, 0) || mmuext(UNPIN, mfn, 0))
		failed = 1;
	else
		pinned++;
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
	count_lost();
	start_work(pin);
	u64 until = now_ns() + 2000000000;
	while (pinned < 2 && now_ns() < until)
		asm volatile("pause");
	if (!check(pinned >= 2, "the other vCPU does not get on"))
		return;

	static struct frame to;
	to = frame_on(CODE_SELECTOR, resume, pages[63]);
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
	end_work();
	check(traps == 0, "%lu of %u times a selector of the LDT was not found", traps, ROUNDS);
	check(lost == 0, "%lu of %u times code of the LDT was not found", lost, ROUNDS / ENTERED_EACH);
	check(!failed, "a table was refused");
	check_result(mmuext(SET_LDT, 0, 0), 0, "no LDT");
	audit();
}
