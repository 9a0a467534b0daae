/* memory_op: frames given back, got and exchanged, and what is for others. */
#include "hostile.h"

enum { INCREASE, DECREASE, MAX_PAGE, CURRENT, MAXIMUM, M2P_LIST, POPULATE, ADD_TO_PHYSMAP, EXCHANGE = 11, MACHPHYS, SET_MAP, MAX_GPFN,
	REMOVE_FROM_PHYSMAP, ADD_BATCH = 23, CLAIM, ACQUIRE = 28 };
enum { EXTENTS = 4, HELD = 64 };

struct reservation {
	u64 list, nr;
	u32 order, flags;
	u16 domid, pad[3];
};

/* Frames above what is needed for the scratch pages. */
static u64 extra[HELD];
static u32 nr_extra;

static s64 op(u64 cmd, void *argument)
{
	s64 result = HC2(memory_op, cmd, argument);
	note(result);
	return result;
}

static struct reservation of(u64 *list, u64 nr, u32 order, u16 domid)
{
	return (struct reservation){ (u64)list, nr, order, 0, domid, { 0 } };
}

bool give_back(u64 mfn)
{
	struct reservation r = of(&mfn, 1, 0, DOMID_SELF);
	if (op(DECREASE, &r) != 1)
		return false;
	set_own(mfn, false);
	return true;
}

static u64 get(u64 pfn)
{
	u64 frame = pfn;
	struct reservation r = of(&frame, 1, 0, DOMID_SELF);
	if (op(POPULATE, &r) != 1)
		return 0;
	set_own(frame, true);
	return frame;
}

static void set_frame(const u8 *page, u64 mfn)
{
	((volatile u64 *)start_info->mfn_list)[pfn_of(page)] = mfn;
}

static void got(u64 first, u32 order)
{
	for (u64 mfn = first; mfn < first + (1ul << order); mfn++) {
		set_own(mfn, true);
		if (nr_extra < HELD)
			extra[nr_extra++] = mfn;
		else
			give_back(mfn);
	}
}

void refill(void)
{
	for (u32 i = 0; i < SCRATCH; i++) {
		u8 *page = scratch_page(i);
		if (is_own(mfn_of(page)))
			continue;
		u64 mfn = get(pfn_of(page));
		if (!mfn)
			continue;
		set_frame(page, mfn);
		update_va(page, pte(mfn, P | RW | US | A | D), 2);
	}
	for (u32 i = nr_extra; i-- > 0;)
		if (give_back(extra[i]))
			extra[i] = extra[--nr_extra];
}

/* Gives a scratch page back, unmapped or not, or what is not this domain's. */
static void decrease(void)
{
	u8 *page = scratch();
	u64 list[EXTENTS], nr = 1 + up_to(EXTENTS);
	if (up_to(2))
		update_va(page, 0, 2);
	for (u32 i = 0; i < nr; i++) {
		list[i] = up_to(3) ? mfn_of(scratch()) : some_mfn();
		if (is_vital(list[i]) || is_boot_table(list[i]))
			list[i] = mfn_of(page);
	}
	u16 domid = up_to(4) ? DOMID_SELF : some_domid();
	struct reservation r = of(list, nr, 0, domid);
	u64 start = up_to(8) ? 0 : up_to(EXTENTS);
	s64 done = op(DECREASE | start << 6, &r);
	if (!is_self(domid) && done > (s64)start)
		must_refuse(done, "giving back another's memory", domid);
	else if (is_self(domid))
		for (s64 i = start; i < done && i < EXTENTS; i++)
			set_own(list[i], false);
}

static void populate(void)
{
	u64 list[EXTENTS], nr = 1 + up_to(EXTENTS);
	u32 order = up_to(4) ? 0 : up_to(4);
	u16 domid = up_to(4) ? DOMID_SELF : some_domid();
	for (u32 i = 0; i < nr; i++)
		list[i] = up_to(2) ? pfn_of(scratch()) : some_value();
	struct reservation r = of(list, nr, order, domid);
	r.flags = up_to(2) ? 0 : up_to(2) ? up_to(64) : draw();
	if (up_to(8) == 0 && !is_initial_domain())
		r.nr = draw() >> up_to(64), r.order = 10 + up_to(30), list[0] = 0;
	s64 done = op(POPULATE, &r);
	if (done > 0 && !is_self(domid))
		must_refuse(done, "memory for another", domid);
	else if (done > 0)
		for (s64 i = 0; i < done && i < EXTENTS; i++)
			got(list[i], order);
}

static void exchange(void)
{
	u32 order = up_to(3), by_one = up_to(2);
	u64 nr = 1ul << order, in[4], out[4];
	u16 domid = up_to(8) ? DOMID_SELF : some_domid();
	for (u32 i = 0; i < nr; i++) {
		const u8 *page = scratch_page((up_to(SCRATCH / 4) * 4 + i));
		in[i] = mfn_of(page), out[i] = pfn_of(page);
		if (up_to(8))
			update_va(page, 0, 2);
	}
	struct {
		struct reservation in, out;
		u64 nr_exchanged;
	} e = { of(in, nr, 0, domid), of(out, by_one ? nr : 1, by_one ? 0 : order, domid), up_to(16) ? 0 : draw() };
	if (up_to(4) == 0)
		e.out.flags = up_to(48);
	if (up_to(16) == 0)
		e.out.nr = draw() >> up_to(64);
	u64 start = e.nr_exchanged;
	s64 result = op(EXCHANGE, &e);
	if (!is_self(domid)) {
		must_refuse(result, "exchanging another's memory", domid);
		return;
	}
	/* A start behind the end is refused, or is the end. */
	for (u64 i = start; i < e.nr_exchanged && i < nr; i++)
		set_own(in[i], false);
	u64 nr_got = start ? 0 : by_one ? e.nr_exchanged : e.nr_exchanged / nr;
	for (u64 i = 0; i < nr_got && i < nr; i++)
		got(out[i], by_one ? 0 : order);
}

/* What is not for this domain: another's figures, its memory, maps of the machine. */
static void others(void)
{
	static const u8 commands[] = { CURRENT, MAXIMUM, MAX_GPFN, ADD_TO_PHYSMAP, REMOVE_FROM_PHYSMAP, ADD_BATCH, CLAIM, ACQUIRE, SET_MAP };
	u64 cmd = commands[up_to(COUNT(commands))], argument[8];
	u16 domid = some_domid();
	for (u32 i = 0; i < COUNT(argument); i++)
		argument[i] = some_value();
	memcpy(&argument[cmd == CLAIM ? 2 : 0], &domid, sizeof(domid));
	/* A window that this domain has is of its own frames only, and they stay. */
	if (is_self(domid) && (cmd == ADD_TO_PHYSMAP || cmd == REMOVE_FROM_PHYSMAP || cmd == ADD_BATCH))
		return;
	s64 result = op(cmd, argument);
	if (!is_self(domid))
		must_refuse(result, "a memory_op for another", cmd << 16 | domid);
}

void memory_once(void)
{
	switch (up_to(8)) {
	case 0: case 1: return decrease();
	case 2: case 3: return populate();
	case 4: case 5: return exchange();
	case 6: return others();
	default: {
		u64 cmd = up_to(64) | (up_to(4) ? 0 : up_to(1 << 10) << 6);
		if ((cmd & 63) == DECREASE || (cmd & 63) == EXCHANGE || (cmd & 63) == POPULATE || (cmd & 63) == INCREASE)
			return;
		op(cmd, up_to(2) ? scratch() : (void *)some_value());
	}
	}
}
