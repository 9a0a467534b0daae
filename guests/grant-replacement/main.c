/* A grant's mapping is taken down and another page's entry takes its place, in one step. */
#include "grants.h"

const char test_name[] = "grant-replacement";

struct entry {
	u16 flags, domid;
	u32 frame;
};
struct replace {
	u64 host_addr, new_addr;
	u32 handle;
	int16_t status;
	u16 pad;
};
enum { HOST_MAP = 2, CONTAINS_PTE = 16, PERMIT = 1, READING = 8, WRITING = 16 };

static volatile struct entry *table = (void *)pages[0];
static u8 *const window = pages[2], *const donor = pages[3];

static struct map map_ref(u64 at, u32 flags)
{
	struct map m = { at, flags, 8, 0, 99, 0, 0 };
	if (HC3(grant_table_op, 0, &m, 1))
		error("map_grant_ref");
	if (m.status)
		error("a grant cannot be mapped");
	return m;
}

static int replace(u64 at, void *with, u32 handle)
{
	struct replace r = { at, (u64)with, handle, 99, 0 };
	check_result(HC3(grant_table_op, 7, &r, 1), 0, "unmap_and_replace");
	return r.status;
}

static bool is_mapped(void *at)
{
	return PROBE("mov (%0), %%rax", : : "r"(at) : "rax", "r11", "memory") != 14;
}

void test_main(void)
{
	u64 frame = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		void *list;
	} setup = { DOMID_SELF, 0, 1, 99, &frame };
	if (HC3(grant_table_op, 2, &setup, 1) || setup.status || update_va((void *)table, pte(frame, P | RW | US), 2))
		error("no table of grants");

	volatile u64 *seen = (u64 *)window;
	*(volatile u64 *)pages[1] = 0x1234;
	*(volatile u64 *)donor = 0x5678;
	u64 donors = mfn_of(donor), own = mfn_of(window);
	table[8] = (struct entry){ PERMIT, 0, mfn_of(pages[1]) };
	struct map m = map_ref((u64)window, HOST_MAP);
	check(*seen == 0x1234, "the window shows %#lx", *seen);

	/* What cannot be: the mapping stays. */
	check(replace((u64)window, donor, m.handle + 100) < 0, "a handle that does not exist");
	check(replace((u64)window, (void *)0x123456000, m.handle) < 0, "an entry that does not exist");
	check(*seen == 0x1234 && is_mapped(donor), "after refusals the window shows %#lx", *seen);
	check(table[8].flags == (PERMIT | READING | WRITING), "flags are %#x", table[8].flags);

	check(replace((u64)window, donor, m.handle) == 0, "replacing");
	check(is_mapped(window) && *seen == 0x5678, "the window shows %#lx", is_mapped(window) ? *seen : 0);
	check(!is_mapped(donor), "the page is where it was, too");
	check(table[8].flags == PERMIT, "flags are %#x", table[8].flags);
	check(replace((u64)window, donor, m.handle) < 0, "the same handle again");
	*seen = 0x9abc;
	check_result(update_va(donor, pte(donors, P | RW | US), 2), 0, "mapping the page where it was");
	check(*(volatile u64 *)donor == 0x9abc, "the page holds %#lx", *(volatile u64 *)donor);

	/* With an entry that is empty the window is. */
	check_result(update_va(window, pte(own, P | RW | US), 2), 0, "the window's own page");
	m = map_ref((u64)window, HOST_MAP);
	check_result(update_va(donor, 0, 2), 0, "an empty entry");
	check(replace((u64)window, donor, m.handle) == 0 && !is_mapped(window), "replacing by nothing");

	/* Without another address it is an unmap. */
	m = map_ref((u64)window, HOST_MAP);
	check(replace((u64)window, 0, m.handle) == 0 && !is_mapped(window), "an address of 0");
	check(table[8].flags == PERMIT, "flags are %#x", table[8].flags);

	/* Whose place was named by its entry cannot be replaced, only unmapped. */
	check_result(update_va(donor, pte(donors, P | RW | US), 2), 0, "mapping the page where it was");
	u64 entry = maddr_of((void *)entry_for(window, 1));
	m = map_ref(entry, HOST_MAP | CONTAINS_PTE);
	check(replace(entry, donor, m.handle) < 0 && *seen == 0x1234, "by the address of the entry");
	check(replace(entry, 0, m.handle) == 0 && !is_mapped(window), "by the address of the entry, with nothing");
	check(table[8].flags == PERMIT, "flags are %#x in the end", table[8].flags);
}
