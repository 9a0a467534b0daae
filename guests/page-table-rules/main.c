/* What mmu_update refuses: superpages, writable page tables, foreign frames, the hypervisor's slots, bad arguments. */
#include "guest.h"

const char test_name[] = "page-table-rules";

static s64 set(volatile u64 *entry, u64 value)
{
	return mmu_update(maddr_of((void *)entry), value);
}

static void l1_rules(void)
{
	volatile u64 *entry = entry_for(pages[0], 1);
	u64 old = *entry, table = mfn_of((void *)entry);
	check_refused(set(entry, pte(table, P | RW | US)), "a page table can be mapped writable");
	check(*entry == old, "a refused update changed the entry to %#lx", *entry);
	check_refused(set(entry, pte(mfn_of((void *)start_info->pt_base), P | RW | US)), "the root can be mapped writable");
	check_result(set(entry, pte(table, P | US)), 0, "a page table cannot be mapped read-only");
	/* Frames of nobody, and beyond all memory. */
	check(set(entry, pte(0xfffffffff, P | RW | US)) < 0, "frame 0xfffffffff can be mapped");
	check(set(entry, 0x7fffffffff000 | P | RW | US | 1ul << 51) < 0, "address bits up to 51 are accepted");
	u64 hypervisor = 0;
	for (u64 mfn = 0x200; mfn < 0x400 && !hypervisor; mfn++)
		if (((volatile u64 *)M2P_BASE)[mfn] >= start_info->nr_pages)
			hypervisor = mfn;
	s64 result = set(entry, pte(hypervisor, P | RW | US));
	check(result < 0, "frame %#lx of the hypervisor can be mapped", hypervisor);
	/* Entries that are not present may hold anything. */
	check_result(set(entry, 0xdeadbeef0 & ~1ul), 0, "an entry without P is refused");
	check(*entry == (0xdeadbeef0 & ~1ul), "an entry without P became %#lx", *entry);
	check(set(entry, old) == 0, "the old entry is refused: %#lx", old);
	/* Supervisor pages are made user pages; the guest reads back what was made of its entry. */
	check(set(entry, pte(mfn_of(pages[0]), P | RW)) == 0 && (*entry & (P | RW | US)) == (P | RW | US), "entry is %#lx", *entry);
	check_result(set(entry, old), 0, "the old entry is refused");
}

static void upper_rules(void)
{
	volatile u64 *l2 = entry_for(pages[0], 2), *l3 = entry_for(pages[0], 3), *l4 = entry_for(pages[0], 4);
	volatile u64 *free2 = l2 + 1, *free3 = (volatile u64 *)((u64)l3 & -PAGE), *root = (volatile u64 *)start_info->pt_base;
	u64 mfn = mfn_of(pages[1]) & ~511ul;
	check_refused(set(free2, pte(mfn, P | RW | US | PSE)), "a superpage is accepted at level 2");
	check_refused(set(free3, pte(mfn, P | RW | US | PSE)), "a superpage is accepted at level 3");
	/* A writable page is no page table. */
	check_refused(set(free2, pte(mfn_of(pages[1]), P | RW | US)), "a writable page becomes an L1 table");
	check_refused(set(free3, pte(mfn_of(pages[1]), P | RW | US)), "a writable page becomes an L2 table");
	/* Tables of the wrong level. */
	u64 l1_table = mfn_of((void *)((u64)entry_for(pages[0], 1) & -PAGE)), l2_table = mfn_of((void *)((u64)l2 & -PAGE));
	check_refused(set(free3, pte(l1_table, P | RW | US)), "an L1 table at level 3");
	check_refused(set(&root[1], pte(l2_table, P | RW | US)), "an L2 table at level 4");
	check_refused(set(free2, pte(l2_table, P | RW | US)), "an L2 table at level 2, writable");
	check_refused(set(&root[2], pte(mfn_of((void *)root), P | RW | US)), "the root in itself, writable");
	/* Tables that contain themselves, to be read as pages: Xen allows them if it was not told otherwise. */
	s64 linear = set(&root[2], pte(mfn_of((void *)root), P | US));
	check(linear == 0 || linear == -EINVAL, "the root in itself is %ld", linear);
	check((linear == 0) == (root[2] != 0), "with %ld the entry is %#lx", linear, root[2]);
	check_result(set(&root[2], 0), 0, "clearing an L4 entry");
	/* A table may be in two places. */
	check_result(set(free2, pte(l1_table, P | RW | US)), 0, "an L1 table cannot be shared");
	check_result(set(free2, 0), 0, "clearing an L2 entry");
	check_result(set(&root[1], *l4 & ~(u64)(A | D)), 0, "an L3 table cannot be shared");
	check_result(set(&root[1], 0), 0, "clearing an L4 entry");
	/* Slots of the hypervisor. */
	for (int slot = 256; slot < 272; slot += 5) {
		check(set(&root[slot], 0) == -EINVAL, "slot %d can be cleared", slot);
		check(set(&root[slot], *l4) == -EINVAL, "slot %d can be set", slot);
	}
	check_result(set(&root[272], 0) == 0 && set(&root[255], 0), 0, "the slots around the hypervisor's");
}

static void arguments(void)
{
	u64 entry = maddr_of((void *)entry_for(pages[0], 1));
	check(mmu_update(entry | 4, 0) == -ENOSYS, "command 4 gives %ld", mmu_update(entry | 4, 0));
	check(mmu_update(entry | 7, 0) == -ENOSYS, "command 7 gives %ld", mmu_update(entry | 7, 0));
	check(mmu_update(0xfffffffff000, 0) < 0, "an update of a frame that does not exist");
	struct {
		u64 ptr, val;
	} two[2] = { { entry, *entry_for(pages[0], 1) }, { entry | 7, 0 } };
	u32 done = 99;
	check(HC4(mmu_update, two, 2, &done, DOMID_SELF) == -ENOSYS && done == 1, "done is %u", done);
	check_result(HC4(mmu_update, two, 0, &done, DOMID_SELF), 0, "no updates at all");
	check_result(HC4(mmu_update, two, 1, &done, 12345), -ESRCH, "domain 12345");
	/* An ordinary page is just written to. */
	*(u64 *)pages[5] = 1;
	check(mmu_update(maddr_of(pages[5]), 0x1234) == 0 && *(volatile u64 *)pages[5] == 0x1234, "data page holds %#lx",
	      *(u64 *)pages[5]);
	/* The machine-to-physical table. */
	u64 mfn = mfn_of(pages[5]), pfn = pfn_of(pages[5]);
	check(mmu_update(mfn * PAGE | 1, pfn + 7) == 0 && ((volatile u64 *)M2P_BASE)[mfn] == pfn + 7, "M2P update");
	check_result(mmu_update(mfn * PAGE | 1, pfn), 0, "M2P update");
}

void test_main(void)
{
	l1_rules();
	upper_rules();
	arguments();
}
