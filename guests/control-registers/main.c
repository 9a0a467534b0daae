/* MOV to and from control registers, CLTS, LMSW, debug registers: emulated, or refused with #GP. */
#include "guest.h"

const char test_name[] = "control-registers";

/*
 * Leaves a root by an instruction. What only that referred to is ordinary memory then, however much it is: more tables than are taken down
 * in one go, nearly all of them the same few.
 */
static void leave_a_large_tree(void)
{
	enum { L4, L3, L1, FIRST_L2, TABLES = 16, FREE_SLOT = 5 };
	u64 *old = (u64 *)start_info->pt_base, *root = (u64 *)pages[L4], *l3 = (u64 *)pages[L3];
	for (u32 n = 0; n < 512; n++) {
		bool is_own = n < 256 || n >= 272;
		root[n] = is_own ? old[n] : 0;
		l3[n] = pte(mfn_of(pages[FIRST_L2 + n % (TABLES - FIRST_L2)]), P | RW | US);
		((u64 *)pages[L1])[n] = pte(mfn_of(pages[TABLES]), P | US);
		for (u32 table = FIRST_L2; table < TABLES; table++)
			((u64 *)pages[table])[n] = pte(mfn_of(pages[L1]), P | RW | US);
	}
	check(!(root[FREE_SLOT] & P), "the slot is in use");
	root[FREE_SLOT] = pte(mfn_of(l3), P | RW | US);
	for (u32 table = 0; table < TABLES; table++)
		make_read_only(pages[table]);
	check_result(mmuext(PIN_L4, mfn_of(root), 0), 0, "pinning a large tree");
	check_result(mmuext(NEW_BASEPTR, mfn_of(root), 0), 0, "loading it");
	check_result(mmuext(UNPIN, mfn_of(root), 0), 0, "unpinning it");
	check(update_va(root, pte(mfn_of(root), P | RW | US), 2) < 0, "the root in use can be mapped writable");
	check(PROBE("mov %0, %%cr3", : : "r"(maddr_of(old)) : "r11", "memory") == NO_TRAP, "leaving it gives %ld", probe.vector);
	u32 still_tables = 0;
	for (u32 table = 0; table < TABLES; table++)
		still_tables += update_va(pages[table], pte(mfn_of(pages[table]), P | RW | US), 2) != 0;
	check(still_tables == 0, "%u of %u pages are page tables still", still_tables, TABLES);
	u64 now;
	asm volatile("mov %%cr3, %0" : "=r"(now));
	check(now == maddr_of(old), "CR3 is %#lx", now);
}

void test_main(void)
{
	u64 value;
	check(PROBE("mov %%cr0, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP, "reading CR0 gives %ld", probe.vector);
	check((value & 0x80000001) == 0x80000001, "CR0 is %#lx", value);
	check(PROBE("mov %%cr3, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP, "reading CR3 gives %ld", probe.vector);
	check(value == maddr_of((void *)start_info->pt_base), "CR3 is %#lx", value);
	check(PROBE("mov %%cr4, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP, "reading CR4 gives %ld", probe.vector);
	check((value & 0x20) && !(value & 1 << 20) && !(value & 1 << 21), "CR4 is %#lx", value);
	u64 cr4 = value;
	/* Bits that are the hypervisor's are dropped in silence. */
	check(PROBE("mov %0, %%cr4", : : "r"(cr4 & ~0x20ul) : "r11", "memory") == NO_TRAP, "writing CR4 gives %ld", probe.vector);
	asm volatile("mov %%cr4, %0" : "=r"(value));
	check(value & 0x20, "PAE could be switched off");
	/* DE is the guest's. */
	asm volatile("mov %0, %%cr4" : : "r"(cr4 | 8));
	asm volatile("mov %%cr4, %0" : "=r"(value));
	check(value & 8, "DE cannot be set: %#lx", value);
	asm volatile("mov %0, %%cr4" : : "r"(cr4));
	/* The same root again is a flush. */
	check(PROBE("mov %%cr3, %0\n\tmov %0, %%cr3", : "=&r"(value) : : "r11", "memory") == NO_TRAP, "writing CR3 gives %ld",
	      probe.vector);
	/* A frame that is no page table. */
	check(PROBE("mov %0, %%cr3", : : "r"(maddr_of(pages[0])) : "r11", "memory") == 13, "a bad CR3 gives %ld", probe.vector);
	/* TS. */
	check(PROBE("clts", : : : "r11", "memory") == NO_TRAP, "clts gives %ld", probe.vector);
	asm volatile("mov %%cr0, %0" : "=r"(value));
	check(PROBE("mov %0, %%cr0", : : "r"(value | 8) : "r11", "memory") == NO_TRAP, "setting TS gives %ld", probe.vector);
	check(PROBE("mov %0, %%cr0", : : "r"(value & ~1ul) : "r11", "memory") == 13, "clearing PE gives %ld", probe.vector);
	asm volatile("clts");
	check(PROBE("mov %%cr8, %0", : "=r"(value) : : "r11", "memory") == 13, "reading CR8 gives %ld", probe.vector);
	leave_a_large_tree();
	audit();
}
