/* Grants: given to others, mapped, copied, and the table itself. */
#include "grants.h"
#include "hostile.h"

enum { FRAMES = 4, REFS = 32, HELD = 64 };
enum { MAP, UNMAP, SETUP, DUMP, TRANSFER, COPY, QUERY, REPLACE, SET_VERSION, GET_STATUS, GET_VERSION, SWAP, CACHE_FLUSH };
enum { HOST_MAP = 2, READ_ONLY = 4, CONTAINS_PTE = 16 };

struct replace {
	u64 host_addr, new_addr;
	u32 handle;
	int16_t status;
};
struct frames {
	u16 domid, pad;
	u32 nr;
	int16_t status;
	u64 *list;
};
struct status_frames {
	u32 nr;
	u16 domid;
	int16_t status;
	u64 *list;
};

/* The grant table, and a page for a frame of statuses. */
static volatile u64 *const table = (void *)pages[48];
static u8 *const status_page = pages[56];
static u32 version = 1;
static u64 table_frames[FRAMES], status_frames[FRAMES];
static struct {
	u64 host_addr, bus_addr;
	u32 handle;
} held[HELD];

static s64 op(u32 cmd, void *argument, u32 count)
{
	s64 result = HC3(grant_table_op, cmd, argument, count);
	note(result);
	return result;
}

static void map_table(void)
{
	struct frames setup = { DOMID_SELF, 0, FRAMES, 99, table_frames };
	if (op(SETUP, &setup, 1) || setup.status)
		return;
	for (u32 i = 0; i < FRAMES; i++)
		if (update_va((u8 *)table + i * PAGE, pte(table_frames[i], P | RW | US), 2))
			check(false, "the grant table cannot be mapped");
}

bool is_grant_frame(u64 mfn)
{
	for (u32 i = 0; i < FRAMES; i++)
		if (mfn == table_frames[i] || (mfn && mfn == status_frames[i]))
			return true;
	return false;
}

void grants_init(void)
{
	map_table();
	for (u32 i = 0; i < HELD; i++)
		held[i].handle = ~0u;
}

static u32 some_ref(void)
{
	switch (up_to(16)) {
	case 0: return up_to(FRAMES * PAGE / 8);
	case 1: return draw();
	default: return up_to(REFS);
	}
}

/* Never a frame that this domain lives on: others write to what they are granted. */
static u64 expendable(u64 mfn)
{
	return is_vital(mfn) ? mfn_of(scratch()) : mfn;
}

/* The hypervisor lends a domain its shared_info and the frames of its table. */
static u64 some_lent(void)
{
	return up_to(2) ? start_info->shared_info / PAGE : table_frames[up_to(FRAMES)];
}

void grant_everything(void)
{
	for (u32 ref = 8; ref < REFS; ref++) {
		u64 frame = up_to(2) ? some_lent() : mfn_of(scratch());
		table[ref] = 1 | (up_to(2) ? 4 : 0) | (up_to(2) ? (u64)some_domid() << 16 : 0) | frame << 32;
	}
}

void granter_once(void)
{
	static const u16 kinds[] = { 1, 1, 1, 1 | 4, 2, 3, 0, 1 | 0x100, 1 | 0x18, 3 | 4, 2 | 4 };
	u16 flags = up_to(16) ? kinds[up_to(COUNT(kinds))] : draw();
	u64 head = flags | (u64)some_domid() << 16, frame = up_to(8) ? expendable(up_to(4) ? mfn_of(scratch()) : some_mfn()) : some_lent();
	u64 ref = up_to(8) ? up_to(REFS) : up_to(FRAMES * PAGE / 16);
	if (version == 1) {
		table[ref] = head | frame << 32;
		return;
	}
	switch (up_to(3)) {
	case 0: table[2 * ref] = head, table[2 * ref + 1] = frame; break;
	/* Part of a page; another domain's grant, passed on. */
	case 1: table[2 * ref] = head | up_to(PAGE + 2) << 32 | up_to(PAGE + 2) << 48, table[2 * ref + 1] = frame; break;
	default: table[2 * ref] = head | (u64)some_domid() << 32, table[2 * ref + 1] = some_ref();
	}
	nr_accepted++;
}

static u64 some_host_address(u32 *flags)
{
	/* What is granted for reading may be a table. */
	u32 page = *flags & READ_ONLY ? WRITTEN + up_to(SCRATCH - WRITTEN) : some_page();
	*flags &= ~(u32)CONTAINS_PTE;
	switch (up_to(8)) {
	case 0: case 1: case 2: *flags |= CONTAINS_PTE; return entry_address(page);
	case 3: *flags |= up_to(2) ? CONTAINS_PTE : 0; return maddr_of(scratch()) + up_to(512) * 8;
	case 4: return (u64)scratch_page(page) + up_to(PAGE);
	default: return (u64)scratch_page(page);
	}
}

static void map(void)
{
	struct map list[4];
	u32 count = 1 + (up_to(4) ? 0 : up_to(COUNT(list)));
	for (u32 i = 0; i < count; i++) {
		u32 flags = HOST_MAP | (up_to(2) ? READ_ONLY : 0);
		if (up_to(8) == 0)
			flags ^= 1 << up_to(20);
		list[i] = (struct map){ some_host_address(&flags), flags, some_ref(), some_domid(), 99, ~0u, 0 };
	}
	op(MAP, list, count);
	for (u32 i = 0; i < count; i++)
		if (list[i].status == 0) {
			u32 slot = up_to(HELD);
			held[slot].host_addr = list[i].host_addr;
			held[slot].bus_addr = list[i].bus_addr;
			held[slot].handle = list[i].handle;
			nr_accepted++;
		}
}

bool __attribute__((weak)) is_kept(u32 handle)
{
	(void)handle;
	return false;
}

static void unmap(void)
{
	struct unmap list[4];
	u32 count = 1 + (up_to(4) ? 0 : up_to(COUNT(list)));
	for (u32 i = 0; i < count; i++) {
		u32 slot = up_to(HELD);
		list[i] = (struct unmap){ held[slot].host_addr, up_to(4) ? 0 : held[slot].bus_addr, held[slot].handle, 99 };
		switch (up_to(16)) {
		case 0: list[i].handle = up_to(2 * HELD); break;
		case 1: list[i].handle = draw(); break;
		case 2: list[i].host_addr = (u64)scratch(); break;
		case 3: list[i].host_addr = entry_address(some_page()); break;
		case 4: list[i].host_addr = 0; break;
		case 5: list[i].bus_addr = some_value(); break;
		}
		/* With another mapping of the same frame it could be ended. */
		if (is_kept(list[i].handle))
			list[i].handle = ~0u;
	}
	op(UNMAP, list, count);
}

void mapper_once(void)
{
	switch (up_to(8)) {
	case 0: case 1: case 2: case 3: return map();
	case 4: {
		u32 slot = up_to(HELD);
		struct replace r = { held[slot].host_addr, up_to(8) ? (u64)scratch_page(up_to(WRITTEN)) : some_value(), held[slot].handle, 99 };
		if (!is_kept(r.handle))
			op(REPLACE, &r, 1);
		break;
	}
	default: unmap();
	}
}

void copier_once(void)
{
	struct copy list[3];
	u32 count = 1 + up_to(COUNT(list));
	for (u32 i = 0; i < count; i++) {
		struct copy *c = &list[i];
		*c = (struct copy){ .flags = up_to(16) ? up_to(4) : draw(), .status = 99 };
		u64 offset = up_to(PAGE + 1), len = up_to(8) ? up_to(PAGE + 1 - offset) : up_to(PAGE + 2);
		c->from.offset = offset, c->to.offset = up_to(2) ? offset : up_to(PAGE + 1), c->len = len;
		c->from.domid = c->flags & 1 || up_to(8) == 0 ? some_domid() : DOMID_SELF;
		c->to.domid = c->flags & 2 || up_to(8) == 0 ? some_domid() : DOMID_SELF;
		c->from.ref_or_gfn = c->flags & 1 ? some_ref() : some_mfn();
		c->to.ref_or_gfn = c->flags & 2 ? some_ref() : expendable(some_mfn());
	}
	op(COPY, list, count);
	for (u32 i = 0; i < count; i++)
		if (list[i].status == 0) {
			nr_accepted++;
			if (!(list[i].flags & 1) && !is_self(list[i].from.domid))
				must_refuse(0, "copying from a domain without a grant", list[i].from.domid);
			if (!(list[i].flags & 2) && !is_self(list[i].to.domid))
				must_refuse(0, "copying to a domain without a grant", list[i].to.domid);
		}
}

static void transfer(void)
{
	u8 *page = scratch();
	struct {
		u64 mfn;
		u16 domid;
		u32 ref;
		int16_t status;
	} t = { mfn_of(page), some_domid(), some_ref(), 99 };
	update_va(page, 0, 2);
	op(TRANSFER, &t, 1);
	if (t.status == 0 && !is_self(t.domid))
		set_own(t.mfn, false);
}

static void change_version(void)
{
	u32 wish[2] = { up_to(16) ? 1 + up_to(2) : draw(), 0 };
	update_va(status_page, 0, 2);
	if (op(SET_VERSION, wish, 1) == 0 && wish[0] >= 1 && wish[0] <= 2)
		version = wish[0];
}

static void statuses(void)
{
	u64 list[FRAMES] = { 0 };
	u16 domid = some_domid();
	struct status_frames get = { up_to(FRAMES + 1), domid, 99, list };
	op(GET_STATUS, &get, 1);
	if (get.status)
		return;
	if (!is_self(domid)) {
		must_refuse(0, "another's status frames", domid);
	} else if (get.nr) {
		memcpy(status_frames, list, sizeof(list));
		note(update_va(status_page, pte(list[0], P | RW | US), 2));
	}
}

void grant_table_once(void)
{
	u64 list[FRAMES];
	u16 domid = some_domid();
	switch (up_to(12)) {
	case 0: case 1: return transfer();
	case 2: return change_version();
	case 3: return statuses();
	case 4: {
		struct frames setup = { domid, 0, up_to(FRAMES + 1), 99, list };
		if (op(SETUP, &setup, 1) == 0 && setup.status == 0 && !is_self(domid))
			must_refuse(0, "another's grant table", domid);
		break;
	}
	case 5: {
		struct {
			u16 domid, pad;
			u32 nr, max;
			int16_t status;
		} size = { domid, 0, 0, 0, 99 };
		op(QUERY, &size, 1);
		break;
	}
	case 6: {
		u32 get[2] = { domid, 0 };
		op(GET_VERSION, get, 1);
		break;
	}
	case 7: {
		u32 swap[3] = { some_ref(), some_ref(), 0 };
		op(SWAP, swap, 1);
		break;
	}
	case 8: {
		struct {
			u64 address;
			u16 offset, length;
			u32 op;
		} flush = { up_to(2) ? maddr_of(scratch()) : some_value(), up_to(PAGE), up_to(PAGE), up_to(4) };
		if (up_to(2))
			flush.op |= 1u << 31, flush.address = some_ref();
		op(CACHE_FLUSH, &flush, 1);
		break;
	}
	case 9: {
		u16 dump[2] = { domid, 0 };
		if (op(DUMP, dump, 1) == 0 && (int16_t)dump[1] == 0)
			must_refuse(0, "dumping a grant table", domid);
		break;
	}
	default: {
		/* A bad list, or a strange command. */
		op(up_to(8) ? up_to(13) : draw(), (void *)some_value(), up_to(4));
		break;
	}
	}
}
