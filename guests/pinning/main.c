/* Pinning page tables: what may be pinned as what, and the way back to ordinary memory. */
#include "guest.h"

const char test_name[] = "pinning";

void test_main(void)
{
	u8 *l1 = pages[0], *data = pages[1];
	u64 mfn = mfn_of(l1);
	((u64 *)l1)[0] = pte(mfn_of(data), P | RW | US);
	((u64 *)l1)[1] = pte(mfn_of(data), P | US);
	check_refused(mmuext(PIN_L1, mfn, 0), "a table that is mapped writable can be pinned");
	make_read_only(l1);
	check_refused(mmuext(UNPIN, mfn, 0), "a page that is not pinned can be unpinned");
	check_result(mmuext(PIN_L1, mfn, 0), 0, "a good L1 table cannot be pinned");
	check_refused(mmuext(PIN_L1, mfn, 0), "it can be pinned twice");
	check_refused(mmuext(PIN_L2, mfn, 0), "it can be pinned as an L2 table, too");
	check_refused(update_va(l1, pte(mfn, P | RW | US), 2), "a pinned table can be mapped writable");
	check_result(mmuext(UNPIN, mfn, 0), 0, "it cannot be unpinned");
	make_writable(l1);
	check(*(u64 *)l1 != 0, "unpinning cleared it");

	/* Tables with bad entries. */
	((u64 *)l1)[2] = pte(mfn, P | RW | US);
	make_read_only(l1);
	check_refused(mmuext(PIN_L1, mfn, 0), "a table that maps itself writable can be pinned");
	make_writable(l1);
	((u64 *)l1)[2] = pte(0xffffffff, P | RW | US);
	make_read_only(l1);
	check(mmuext(PIN_L1, mfn, 0) < 0, "a table that maps a frame that does not exist can be pinned");
	make_writable(l1);
	((u64 *)l1)[2] = 0;

	/* A tree of its own: L4 -> L3 -> L2 -> L1. */
	u8 *l2 = pages[2], *l3 = pages[3], *l4 = pages[4];
	((u64 *)l2)[7] = pte(mfn_of(l1), P | RW | US);
	((u64 *)l3)[7] = pte(mfn_of(l2), P | RW | US);
	((u64 *)l4)[7] = pte(mfn_of(l3), P | RW | US);
	((u64 *)l4)[300] = pte(mfn_of(l3), P | RW | US);
	((u64 *)l4)[260] = 0x1234567;
	u8 *all[] = { l1, l2, l3, l4 };
	for (u32 i = 0; i < 3; i++)
		make_read_only(all[i]);
	check_refused(mmuext(PIN_L4, mfn_of(l4), 0), "a root that is mapped writable can be pinned");
	make_read_only(l4);
	check_result(mmuext(PIN_L4, mfn_of(l4), 0), 0, "a good root cannot be pinned");
	check(((u64 *)l4)[260] != 0x1234567, "the hypervisor's slots of a new root are the guest's");
	check_refused(update_va(l1, pte(mfn_of(l1), P | RW | US), 2), "a table of a pinned tree can be mapped writable");
	check_refused(mmuext(UNPIN, mfn_of(l1), 0), "a table that is only referred to can be unpinned");
	check(mmuext(NEW_BASEPTR, mfn_of(l2), 0) < 0, "an L2 table can be the root");
	check_result(mmuext(UNPIN, mfn_of(l4), 0), 0, "the root cannot be unpinned");
	for (u32 i = 0; i < 4; i++)
		make_writable(all[i]);

	/* A tree with many entries: what was taken down is ordinary memory as soon as the call returns. */
	for (u32 i = 0; i < 512; i++)
		((u64 *)l2)[i] = pte(mfn_of(l1), P | RW | US);
	for (u32 i = 0; i < 4; i++)
		make_read_only(all[i]);
	check_result(mmuext(PIN_L4, mfn_of(l4), 0), 0, "a large tree cannot be pinned");
	check_result(mmuext(UNPIN, mfn_of(l4), 0), 0, "a large tree cannot be unpinned");
	check_result(update_va(l1, pte(mfn_of(l1), P | RW | US), 2), 0, "a table of a large tree that was unpinned is no ordinary memory");
	make_read_only(l1);
	check_result(mmuext(PIN_L4, mfn_of(l4), 0), 0, "a large tree cannot be pinned again");
	check_result(mmu_update(mfn_of(l4) * PAGE + 7 * 8, 0), 0, "an entry of a root cannot be cleared");
	check_result(mmu_update(mfn_of(l4) * PAGE + 300 * 8, 0), 0, "the other one neither");
	check_result(update_va(l1, pte(mfn_of(l1), P | RW | US), 2), 0, "a table that was cut off a root is no ordinary memory");
	check_result(mmuext(UNPIN, mfn_of(l4), 0), 0, "a root without entries cannot be unpinned");
	for (u32 i = 1; i < 4; i++)
		make_writable(all[i]);

	/* The domain's own root: pinned from the start, and in use when it is not. */
	u64 root = mfn_of((void *)start_info->pt_base);
	check_refused(mmuext(PIN_L4, root, 0), "the initial root is not pinned");
	check_result(mmuext(UNPIN, root, 0), 0, "the initial root cannot be unpinned");
	check_refused(update_va((void *)start_info->pt_base, pte(root, P | RW | US), 2), "the root in use can be mapped writable");
	check_result(mmuext(PIN_L4, root, 0), 0, "it cannot be pinned again");
	check_result(mmuext(NEW_BASEPTR, root, 0), 0, "the same root cannot be loaded");
	/* Frames that are not the domain's. */
	check(mmuext(PIN_L1, 0xfffffffff, 0) < 0, "a frame that does not exist can be pinned");
	check_refused(mmuext(PIN_L1, start_info->shared_info / PAGE, 0), "shared_info can be pinned");
	check(mmuext(99, 0, 0) == -ENOSYS, "command 99 gives %ld", mmuext(99, 0, 0));
}
