/* memory_op: giving memory back, getting some, exchanging it, and asking about it. */
#include "guest.h"

const char test_name[] = "memory-operations";

struct reservation {
	u64 list, nr;
	u32 order, flags;
	u16 domid, pad[3];
};

static struct reservation of(u64 *list, u64 nr, u32 order)
{
	return (struct reservation){ (u64)list, nr, order, 0, DOMID_SELF, { 0 } };
}

void test_main(void)
{
	u16 domid[4] = { DOMID_SELF };
	s64 before = HC2(memory_op, 3, domid), now;
	check((u64)before >= start_info->nr_pages, "current_reservation is %ld", before);
	check(HC2(memory_op, 4, domid) >= before, "maximum_reservation is %ld", HC2(memory_op, 4, domid));
	struct {
		u64 start, end, max;
	} m2p = { 0, 0, 0 };
	check_result(HC2(memory_op, 12, &m2p), 0, "machphys_mapping");
	check(m2p.start == M2P_BASE && m2p.end == 0xffff804000000000 && m2p.max > 0, "M2P %#lx-%#lx, last %#lx", m2p.start, m2p.end,
	      m2p.max);

	/* A page that is still mapped stays until it is unmapped. */
	u8 *page = pages[0];
	u64 pfn = pfn_of(page), mfn = mfn_of(page), gone = mfn;
	if (update_va(page, 0, 2))
		error("unmapping");
	struct reservation r = of(&mfn, 1, 0);
	check_result(HC2(memory_op, 1, &r), 1, "decrease_reservation");
	now = HC2(memory_op, 3, domid);
	check(now == before - 1, "reservation %ld instead of %ld", now, before - 1);
	check_refused(update_va(page, pte(gone, P | RW | US), 2), "mapping a page that was given back");
	check_result(HC2(memory_op, 1, &r), 0, "giving it back twice");
	/* Another one in its place. */
	u64 frame = pfn;
	r = of(&frame, 1, 0);
	check_result(HC2(memory_op, 6, &r), 1, "populate_physmap");
	check(frame != pfn, "no machine frame was given");
	check(((volatile u64 *)M2P_BASE)[frame] == pfn, "its M2P entry is %#lx", ((volatile u64 *)M2P_BASE)[frame]);
	check_result(update_va(page, pte(frame, P | RW | US), 2), 0, "mapping it");
	bool is_clean = true;
	for (u32 i = 0; i < 512; i++)
		is_clean &= ((u64 *)page)[i] == 0;
	check(is_clean, "it is not clean");
	((volatile u64 *)start_info->mfn_list)[pfn] = frame;
	check(HC2(memory_op, 3, domid) == before, "reservation %ld", HC2(memory_op, 3, domid));

	/* Exchange: two pages for a contiguous pair below 4 GiB. */
	u64 in[2] = { mfn_of(pages[2]), mfn_of(pages[3]) }, out[1] = { pfn_of(pages[2]) };
	update_va(pages[2], 0, 2);
	update_va(pages[3], 0, 2);
	struct {
		struct reservation in, out;
		u64 nr_exchanged;
	} exchange = { of(in, 2, 0), of(out, 1, 1), 0 };
	exchange.out.flags = 32;
	check_result(HC2(memory_op, 11, &exchange), 0, "exchange");
	check(exchange.nr_exchanged == 2, "%lu exchanged", exchange.nr_exchanged);
	check(out[0] % 2 == 0 && out[0] < 1 << 20, "frame %#lx", out[0]);
	for (u32 i = 0; i < 2; i++) {
		check(((volatile u64 *)M2P_BASE)[out[0] + i] == pfn_of(pages[2 + i]), "M2P of the new frames");
		check_result(update_va(pages[2 + i], pte(out[0] + i, P | RW | US), 2), 0, "mapping it");
	}
	/* A page in use cannot be exchanged, and nothing else is lost over it. */
	u64 used[1] = { mfn_of(pages[4]) }, gets[1] = { pfn_of(pages[4]) };
	exchange.in = of(used, 1, 0), exchange.out = of(gets, 1, 0), exchange.nr_exchanged = 0;
	check_refused(HC2(memory_op, 11, &exchange), "exchanging a mapped page");
	check(exchange.nr_exchanged == 0, "%lu exchanged", exchange.nr_exchanged);
	*(volatile u64 *)pages[4] = 4;
	/* Nonsense. */
	exchange.in.nr = 3;
	check_refused(HC2(memory_op, 11, &exchange), "exchanging three for one");
	u64 none = 0xfffffffff;
	r = of(&none, 1, 0);
	check_result(HC2(memory_op, 1, &r), 0, "giving back a frame that does not exist");
	r = of(&none, 1, 30);
	check(HC2(memory_op, 6, &r) <= 0, "an extent of 2^30 pages");
	r = of(&none, 1, 0);
	r.domid = 12345;
	check(HC2(memory_op, 1, &r) <= 0, "memory of domain 12345 was given back");
	check_result(HC2(memory_op, 60, &r), -ENOSYS, "operation 60");
	/* The machine's memory map, which domain 0 may see. */
	struct {
		u32 nr, pad;
		void *buffer;
	} map = { PAGE / 20, 0, pages[5] };
	check_result(HC2(memory_op, 10, &map), 0, "machine_memory_map");
	check(map.nr > 0 && map.nr < 128, "%u entries", map.nr);
}
