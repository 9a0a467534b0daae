/* The page tables that twins see. */
#include "twins.h"

/* From the bottom. A second L3 table, with the same L2 table, is for entries that come and go. */
enum { L1, L2, L3, OTHER_L3, L4, NR_TABLES };
enum { ENTRIES = 512, L3_INDEX = 510, L4_INDEX = 511, FIRST_SLOT = 272, USUAL = P | RW | US | A | D };

static u8 tables[ROOTS][NR_TABLES][PAGE] SHARED __attribute__((aligned(4096)));

static volatile u64 *table_of(u32 root, u32 table)
{
	return (volatile u64 *)tables[root][table];
}

static u64 entry_to(u32 root, u32 table)
{
	return pte(mfn_of(tables[root][table]), USUAL);
}

static u64 address_of_entry(u32 root, u32 table, u32 index)
{
	return maddr_of((void *)&table_of(root, table)[index]);
}

void roots_init(void)
{
	for (u32 root = 0; root < ROOTS; root++) {
		volatile u64 *l1 = table_of(root, L1);
		memcpy((void *)l1, (void *)((u64)entry_for((void *)VIRT_BASE, 1) & -PAGE), PAGE);
		for (u32 i = 0; i < ENTRIES; i++)
			l1[i] &= ~(u64)RW;
		for (u32 i = 0; i < SCRATCH; i++)
			l1[pfn_of(scratch_page(i)) % ENTRIES] |= RW;
		table_of(root, L2)[0] = entry_to(root, L1);
		table_of(root, L3)[L3_INDEX] = entry_to(root, L2);
		table_of(root, OTHER_L3)[0] = entry_to(root, L2);
		table_of(root, L4)[L4_INDEX] = entry_to(root, L3);
		table_of(root, L4)[300 + root] = entry_to(root, OTHER_L3);
		for (u32 table = 0; table < NR_TABLES; table++)
			make_read_only(tables[root][table]);
		if (mmuext(PIN_L4, mfn_of(tables[root][L4]), 0))
			error("a root is refused");
	}
}

u64 good_root(void)
{
	return mfn_of(tables[0][L4]);
}

u64 some_twin_root(void)
{
	if (up_to(16))
		return mfn_of(tables[up_to(ROOTS)][L4]);
	u64 mfn = up_to(2) ? mfn_of(tables[up_to(ROOTS)][up_to(NR_TABLES)]) : some_mfn();
	/* A twin with this kernel's own tables would write to it. */
	return is_boot_table(mfn) || is_vital(mfn) ? 0 : mfn;
}

void root_once(void)
{
	u32 root = up_to(ROOTS), other = up_to(8) ? root : up_to(ROOTS), page = some_page();
	switch (up_to(12)) {
	case 0: note(mmuext(PIN_L4, mfn_of(tables[root][L4]), 0)); break;
	case 1: note(mmuext(UNPIN, mfn_of(tables[root][L4]), 0)); break;
	case 2: note(mmuext(PIN_L1 + up_to(4), mfn_of(tables[root][up_to(NR_TABLES)]), 0)); break;
	case 3: note(mmu_update(address_of_entry(root, L2, up_to(2)), up_to(2) ? entry_to(other, L1) : 0)); break;
	case 4: note(mmu_update(address_of_entry(root, L3, L3_INDEX), up_to(4) ? entry_to(other, L2) : 0)); break;
	case 5: case 6: {
		u32 slot = up_to(8) ? FIRST_SLOT + up_to(ENTRIES - FIRST_SLOT) : up_to(ENTRIES);
		u64 entry = up_to(2) ? entry_to(other, up_to(2) ? L3 : OTHER_L3) : 0;
		note(mmu_update(address_of_entry(root, L4, slot), entry));
		break;
	}
	default: {
		/* Often what was there at first. */
		u64 entry = up_to(4) ? pte(mfn_of(scratch_page(page)), USUAL) : some_pte(page);
		note(mmu_update(address_of_entry(root, L1, pfn_of(scratch_page(page)) % ENTRIES) | (up_to(4) ? 0 : 2), entry));
	}
	}
}

void roots_end(void)
{
	for (u32 root = 0; root < ROOTS; root++) {
		mmuext(UNPIN, mfn_of(tables[root][L4]), 0);
		for (u32 table = 0; table < NR_TABLES; table++)
			mmuext(UNPIN, mfn_of(tables[root][table]), 0);
	}
	for (u32 root = 0; root < ROOTS; root++)
		for (u32 table = 0; table < NR_TABLES; table++)
			make_writable(tables[root][table]);
}
