/* Grants to oneself: the table, mapping and unmapping, copying, and what is refused. */
#include "grants.h"

const char test_name[] = "grants";

struct entry {
	u16 flags, domid;
	u32 frame;
};
enum { HOST_MAP = 2, READ_ONLY = 4, PERMIT = 1, GRANT_READ_ONLY = 4, READING = 8, WRITING = 16 };

static volatile struct entry *table = (void *)pages[0];

static struct map map_ref(u32 ref, void *at, u32 flags)
{
	struct map m = { (u64)at, flags, ref, 0, 99, 0, 0 };
	if (HC3(grant_table_op, 0, &m, 1))
		error("map_grant_ref");
	return m;
}

static int unmap(void *at, u32 handle)
{
	struct unmap u = { (u64)at, 0, handle, 99 };
	if (HC3(grant_table_op, 1, &u, 1))
		error("unmap_grant_ref");
	return u.status;
}

void test_main(void)
{
	/* Whatever the answer, it says which version the table has. */
	u32 version[2] = { 3, 0 };
	check_result(HC3(grant_table_op, 8, version, 1), -22, "set_version(3)");
	check(version[0] == 1, "set_version(3) says version %u", version[0]);
	version[0] = 2;
	s64 second = HC3(grant_table_op, 8, version, 1);
	check(second == 0 ? version[0] == 2 : second == -38 && version[0] == 1, "set_version(2) is %ld, version %u", second,
	      version[0]);
	version[0] = 1;
	check_result(HC3(grant_table_op, 8, version, 1), 0, "set_version(1)");
	u64 frame = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		void *list;
	} setup = { DOMID_SELF, 0, 1, 99, &frame };
	check_result(HC3(grant_table_op, 2, &setup, 1), 0, "setup_table");
	if (!check(setup.status == 0, "setup_table: status %d", setup.status))
		return;
	check_result(update_va((void *)table, pte(frame, P | RW | US), 2), 0, "mapping the table");
	struct {
		u16 domid, pad;
		u32 nr, max;
		int16_t status;
	} size = { DOMID_SELF, 0, 0, 0, 99 };
	HC3(grant_table_op, 6, &size, 1);
	check(size.status == 0 && size.nr >= 1 && size.max >= size.nr, "query_size: %u of %u frames", size.nr, size.max);

	volatile u64 *data = (u64 *)pages[1];
	void *window = pages[2];
	volatile u64 *seen = window;
	data[0] = 0x1234;
	table[8] = (struct entry){ PERMIT, 0, mfn_of(pages[1]) };
	struct map m = map_ref(8, window, HOST_MAP);
	check(m.status == 0, "mapping: status %d", m.status);
	check(*seen == 0x1234, "the window shows %#lx", *seen);
	*seen = 0x5678;
	check(data[0] == 0x5678, "the page holds %#lx", data[0]);
	check((table[8].flags & (READING | WRITING)) == (READING | WRITING), "flags are %#x", table[8].flags);
	struct map again = map_ref(8, pages[3], HOST_MAP | READ_ONLY);
	check(again.status == 0, "mapping it read-only, too: status %d", again.status);
	check(PROBE("movq $0, (%0)", : : "r"(pages[3]) : "r11", "memory") == 14, "a read-only mapping can be written");
	check(unmap(window, m.handle) == 0, "unmapping");
	check((table[8].flags & (READING | WRITING)) == READING, "flags are %#x", table[8].flags);
	check(PROBE("mov (%0), %%rax", : : "r"(window) : "rax", "r11", "memory") == 14, "it is still mapped");
	check(unmap(pages[3], again.handle) == 0, "unmapping");
	check(table[8].flags == PERMIT, "flags are %#x", table[8].flags);
	check(unmap(window, m.handle) < 0, "unmapping twice");
	check(unmap(window, 0xfffff) < 0, "unmapping a handle that does not exist");

	/* What is not granted. */
	check(map_ref(9, window, HOST_MAP).status < 0, "an empty entry can be mapped");
	check(map_ref(0x7fffffff, window, HOST_MAP).status < 0, "an entry beyond the table can be mapped");
	table[9] = (struct entry){ PERMIT, 7, mfn_of(pages[1]) };
	check(map_ref(9, window, HOST_MAP).status < 0, "an entry for domain 7 can be mapped");
	table[9] = (struct entry){ PERMIT | GRANT_READ_ONLY, 0, mfn_of(pages[1]) };
	check(map_ref(9, window, HOST_MAP).status < 0, "a read-only entry can be mapped for writing");
	m = map_ref(9, window, HOST_MAP | READ_ONLY);
	check(m.status == 0 && unmap(window, m.handle) == 0, "a read-only entry cannot be mapped: status %d", m.status);
	table[9] = (struct entry){ PERMIT, 0, 0xfffffff };
	check(map_ref(9, window, HOST_MAP).status < 0, "a frame that does not exist can be mapped");
	table[9] = (struct entry){ PERMIT, 0, mfn_of((void *)start_info->pt_base) };
	check(map_ref(9, window, HOST_MAP).status < 0, "a page table can be mapped for writing");
	m = map_ref(8, (void *)0x123456000, HOST_MAP);
	check(m.status < 0, "mapped where there is no page table");
	check(table[8].flags == PERMIT, "flags are %#x after a refusal", table[8].flags);

	/* Copying: from a grant to a page of one's own, and to a grant. */
	volatile u64 *target = (u64 *)pages[4];
	data[1] = 0xc0ffee;
	struct copy c = { { 8, DOMID_SELF, 8, { 0 } }, { mfn_of(pages[4]), DOMID_SELF, 16, { 0 } }, 8, 1, 99 };
	check_result(HC3(grant_table_op, 5, &c, 1), 0, "copy");
	check(c.status == 0 && target[2] == 0xc0ffee, "status %d, %#lx", c.status, target[2]);
	c = (struct copy){ { mfn_of(pages[4]), DOMID_SELF, 16, { 0 } }, { 8, DOMID_SELF, 24, { 0 } }, 8, 2, 99 };
	HC3(grant_table_op, 5, &c, 1);
	check(c.status == 0 && data[3] == 0xc0ffee, "status %d, %#lx", c.status, data[3]);
	c.to.offset = PAGE - 4;
	HC3(grant_table_op, 5, &c, 1);
	check(c.status < 0, "copying over the end of a page");
	table[9] = (struct entry){ PERMIT | GRANT_READ_ONLY, 0, mfn_of(pages[1]) };
	c.to.offset = 0, c.to.ref_or_gfn = 9;
	HC3(grant_table_op, 5, &c, 1);
	check(c.status < 0, "copying to a read-only grant");
	check(table[8].flags == PERMIT, "flags are %#x after copying", table[8].flags);
}
