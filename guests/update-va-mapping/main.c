/* update_va_mapping: by virtual address, with a flush. */
#include "guest.h"

const char test_name[] = "update-va-mapping";

void test_main(void)
{
	u64 seen;
	volatile u64 *a = (u64 *)pages[0], *b = (u64 *)pages[1], *window = (u64 *)pages[2];
	*a = 0xa, *b = 0xb, *window = 0xc;
	u64 own = mfn_of((void *)window);
	check_result(update_va((void *)window, pte(mfn_of((void *)a), P | RW | US), 2), 0, "mapping a page");
	seen = *window;
	check(seen == 0xa, "the window shows %#lx instead of 0xa", seen);
	check_result(update_va((void *)window, pte(mfn_of((void *)b), P | RW | US), 1), 0, "mapping a page");
	seen = *window;
	check(seen == 0xb, "the window shows %#lx instead of 0xb", seen);
	check_result(update_va((void *)window, 0, 2), 0, "unmapping");
	check(PROBE("mov (%0), %%rax", : : "r"(window) : "rax", "r11", "memory") == 14, "it is still mapped: %ld", probe.vector);
	check_result(update_va((void *)window, pte(own, P | RW | US), 2 | 4), 0, "flushing everywhere");
	seen = *window;
	check(seen == 0xc, "the window shows %#lx instead of 0xc", seen);
	u64 everyone = 1;
	check_result(update_va((void *)window, pte(own, P | RW | US), (u64)&everyone | 2), 0, "flushing by bitmap");
	/* The offset in the page does not matter. */
	check_result(update_va((u8 *)window + 123, pte(mfn_of((void *)a), P | RW | US), 2), 0, "an odd address");
	seen = *window;
	check(seen == 0xa, "the window shows %#lx instead of 0xa", seen);
	check_result(update_va((void *)window, pte(own, P | RW | US), 2), 0, "back");
	/* Addresses without an L1 table, non-canonical ones, and the hypervisor's. */
	static const u64 bad[] = { 0x123456000, 0x800000000000, M2P_BASE, 0xffff830000000000 };
	for (u32 i = 0; i < COUNT(bad); i++)
		check(update_va((void *)bad[i], pte(own, P | RW | US), 2) < 0, "%#lx is accepted", bad[i]);
	check_refused(update_va((void *)window, pte(mfn_of((void *)start_info->pt_base), P | RW | US), 2), "a writable page table");
	check(*window == 0xc, "a refused update changed the mapping");
}
