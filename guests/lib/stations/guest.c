/* Guests of disks that do what they should, and look at all that they get. */
#include "stations.h"

enum { OF_GUEST = 0xa5, OF_BACK_END = 0xb1, UNTOUCHED = 0xc3, WORDS = SECTOR / 8 };

u64 word_of(const struct station *s, u32 sector, u32 version, u32 at)
{
	return (u64)OF_GUEST << 56 | (u64)s->number << 48 | (u64)sector << 32 | (u64)at << 24 | (version & 0xffffff);
}

u64 lie_of(const struct station *s)
{
	return (u64)OF_BACK_END << 56 | (u64)s->number << 48 | draw() >> 16;
}

bool is_lie_of(const struct station *s, u64 word)
{
	return word >> 48 == (OF_BACK_END << 8 | (u64)s->number);
}

static u8 *data_of(struct station *s, u32 which)
{
	return s->disk.guest_page[1 + which * ASK_PAGES];
}

static u64 *sector_of(struct station *s, u32 which, u32 n)
{
	return (u64 *)(data_of(s, which) + n * SECTOR);
}

static u64 untouched(u32 which, u32 n)
{
	return (u64)UNTOUCHED << 56 | which << 16 | n;
}

static void set_untouched(struct station *s, u32 which)
{
	for (u32 n = 0; n < ASK_SECTORS * WORDS; n++)
		((u64 *)data_of(s, which))[n] = untouched(which, n / WORDS);
}

static bool is_untouched(struct station *s, u32 which, u32 from, u32 to)
{
	for (u32 n = from * WORDS; n < to * WORDS; n++)
		if (((volatile u64 *)data_of(s, which))[n] != untouched(which, n / WORDS))
			return false;
	return true;
}

void fresh_guest(struct station *s)
{
	make_disk_guest(&s->disk);
	memset(s->asks, 0, sizeof(s->asks));
	memset(s->is_known, 0, sizeof(s->is_known));
}

u32 nr_out(const struct station *s)
{
	u32 nr = 0;
	for (u32 which = 0; which < NR_ASKS; which++)
		nr += s->asks[which].is_out;
	return nr;
}

/* The next sectors, of which at most as many as are left in their page: a segment. */
static struct segment next_segment(const struct station *s, u32 which, u32 at, u32 left)
{
	u32 room = PAGE_SECTORS - at % PAGE_SECTORS, most = room < left ? room : left, nr = up_to(4) ? most : 1 + up_to(most);
	u32 gref = s->disk.guest_ref + 1 + which * ASK_PAGES + at / PAGE_SECTORS;
	return (struct segment){ gref, at % PAGE_SECTORS, at % PAGE_SECTORS + nr - 1, 0 };
}

static u32 segments_of(const struct station *s, u32 which, struct segment *list)
{
	const struct ask *ask = &s->asks[which];
	u32 nr = 0;
	for (u32 at = ask->skip; at < ask->skip + ask->nr; nr++) {
		list[nr] = next_segment(s, which, at, ask->skip + ask->nr - at);
		at += list[nr].last + 1 - list[nr].first;
	}
	return nr;
}

/* The request, in its slot. What has more segments than a request has room for lists them in a page. */
static void put_slot_of(struct station *s, u32 which)
{
	const struct ask *ask = &s->asks[which];
	struct segment list[MAX_SEGMENTS];
	union blk_slot *slot = next_slot(&s->disk);
	u32 nr = ask->op == OP_DISCARD ? 0 : segments_of(s, which, list);
	bool may_be_indirect = ask->op == OP_READ || ask->op == OP_WRITE;
	u64 sector = which * ASK_SECTORS + ask->first;
	memset(slot, 0, sizeof(*slot));
	if (nr > DIRECT_SEGMENTS || (may_be_indirect && up_to(4) == 0)) {
		u32 page = 1 + which * ASK_PAGES + DATA_PAGES;
		memcpy(s->disk.guest_page[page], list, nr * sizeof(*list));
		slot->indirect = (struct blk_indirect){ .op = OP_INDIRECT, .wanted = ask->op, .nr = nr, .id = ask->id, .sector = sector };
		slot->indirect.gref[0] = s->disk.guest_ref + page;
		return;
	}
	slot->request = (struct blk_request){ .op = ask->op, .nr = nr, .id = ask->id, .sector = sector };
	memcpy(slot->request.seg, list, nr * sizeof(*list));
	if (ask->op == OP_DISCARD)
		*(u64 *)slot->request.seg = ask->nr;
}

static void ask_for(struct station *s, u32 which, u8 op)
{
	struct ask *ask = &s->asks[which];
	if (ask->is_idle)
		check(is_untouched(s, which, 0, ASK_SECTORS), "disk %u: the pages of an answered request are written to", s->number);
	ask->op = op;
	ask->id = draw();
	ask->skip = up_to(PAGE_SECTORS);
	ask->nr = op == OP_FLUSH ? 0 : 1 + up_to(ASK_SECTORS - ask->skip);
	/* A segment of its own for each sector, of a barrier: those have no lists. */
	if (op == OP_BARRIER && ask->nr > DIRECT_SEGMENTS)
		ask->nr = DIRECT_SEGMENTS;
	ask->first = up_to(ASK_SECTORS - ask->nr + 1);
	ask->version = ++s->version;
	set_untouched(s, which);
	if (op == OP_WRITE || op == OP_BARRIER)
		for (u32 n = 0; n < ask->nr; n++)
			for (u32 at = 0; at < WORDS; at++)
				sector_of(s, which, ask->skip + n)[at] = word_of(s, which * ASK_SECTORS + ask->first + n, ask->version, at);
	ask->is_out = true;
	ask->is_trusted = s->is_honest;
	put_slot_of(s, which);
	push_request(&s->disk);
}

/* What was read is this disk's: what was on the medium, or what a back end has put there, and nobody else's. */
static bool is_read(struct station *s, u32 which, u32 n)
{
	struct ask *ask = &s->asks[which];
	u32 sector = which * ASK_SECTORS + ask->first + n;
	bool is_known = ask->is_trusted && s->is_known[sector];
	const u64 *words = sector_of(s, which, ask->skip + n);
	for (u32 at = 0; at < WORDS; at++) {
		if (is_known && words[at] != word_of(s, sector, s->versions[sector], at)) {
			check(false, "disk %u: sector %u reads %#lx instead of version %u", s->number, sector, words[at],
			      s->versions[sector]);
			return false;
		}
		bool is_own = words[at] >> 48 == (OF_GUEST << 8 | (u64)s->number);
		if (words[at] && !is_own && !is_lie_of(s, words[at])) {
			check(false, "disk %u: sector %u reads %#lx, which is nobody's of this disk", s->number, sector, words[at]);
			return false;
		}
	}
	return true;
}

static bool is_written(struct station *s, u32 which, u32 n)
{
	struct ask *ask = &s->asks[which];
	for (u32 at = 0; at < WORDS; at++)
		if (sector_of(s, which, ask->skip + n)[at] != word_of(s, which * ASK_SECTORS + ask->first + n, ask->version, at))
			return false;
	return true;
}

/* Nothing but what was asked for has been written into its pages. */
static void look_at_pages(struct station *s, u32 which, int status)
{
	struct ask *ask = &s->asks[which];
	bool has_bytes = ask->op == OP_WRITE || ask->op == OP_BARRIER, is_kept = true;
	u32 nr = has_bytes || (ask->op == OP_READ && status == BLK_OKAY) ? ask->nr : 0;
	/* One that failed half way may have written to some. */
	if (ask->op != OP_READ || status == BLK_OKAY)
		is_kept = is_untouched(s, which, ask->skip, ask->skip + (has_bytes || ask->op == OP_READ ? 0 : ask->nr));
	is_kept &= is_untouched(s, which, 0, ask->skip) && is_untouched(s, which, ask->skip + ask->nr, ASK_SECTORS);
	for (u32 n = 0; n < nr && is_kept; n++)
		is_kept = ask->op == OP_READ ? is_read(s, which, n) : is_written(s, which, n);
	check(is_kept, "disk %u: the pages of request %u, operation %u, %u sectors behind %u, are not what they should be, status %d",
	      s->number, which, ask->op, ask->nr, ask->skip, status);
}

static void learn(struct station *s, u32 which, int status)
{
	const struct ask *ask = &s->asks[which];
	if (ask->op == OP_READ || ask->op == OP_FLUSH)
		return;
	for (u32 n = 0; n < ask->nr; n++) {
		u32 sector = which * ASK_SECTORS + ask->first + n;
		s->is_known[sector] = status == BLK_OKAY && ask->is_trusted && ask->op != OP_DISCARD;
		s->versions[sector] = ask->version;
	}
}

static void answered(struct station *s, struct blk_response r)
{
	u32 which = 0;
	while (which < NR_ASKS && !(s->asks[which].is_out && s->asks[which].id == r.id))
		which++;
	if (!check(which < NR_ASKS, "disk %u: an answer to %#lx, which was not asked for, or was answered", s->number, r.id))
		return;
	struct ask *ask = &s->asks[which];
	bool is_optional = ask->op == OP_FLUSH || ask->op == OP_BARRIER || ask->op == OP_DISCARD;
	check(r.op == ask->op, "disk %u: an answer to operation %u instead of %u", s->number, r.op, ask->op);
	check(r.status == BLK_OKAY || r.status == BLK_ERROR || (is_optional && r.status == BLK_UNSUPPORTED), "disk %u: the status of operation %u is %d",
	      s->number, ask->op, r.status);
	if (ask->is_trusted && s->is_honest)
		check(r.status == BLK_OKAY, "disk %u: operation %u of an honest back end: %d", s->number, ask->op, r.status);
	ask->is_trusted &= s->is_honest;
	look_at_pages(s, which, r.status);
	learn(s, which, r.status);
	ask->is_out = false;
	ask->is_idle = true;
	set_untouched(s, which);
	s->nr_answered++;
	s->nr_errors += r.status != BLK_OKAY;
}

void take_answers(struct station *s)
{
	u32 nr = nr_disk_answers(&s->disk);
	if (!check(nr <= nr_out(s), "disk %u: %u answers to %u requests", s->number, nr, nr_out(s)))
		return;
	while (nr--)
		answered(s, take_answer(&s->disk));
}

static u8 some_op(void)
{
	static const u8 ops[] = { OP_READ, OP_READ, OP_READ, OP_WRITE, OP_WRITE, OP_WRITE, OP_FLUSH, OP_BARRIER, OP_DISCARD };
	return ops[up_to(COUNT(ops))];
}

void guest_once(struct station *s)
{
	if (!try_lock(&s->guest_lock))
		return;
	take_answers(s);
	for (u32 nr = up_to(NR_ASKS); nr--;) {
		u32 which = up_to(NR_ASKS);
		if (!s->asks[which].is_out)
			ask_for(s, which, some_op());
	}
	if (up_to(8))
		note(kick(s->disk.guest_port));
	unlock(&s->guest_lock);
}

/* All that is out is answered, by an honest back end, in time. False: there is more to come. */
static bool drain(struct station *s)
{
	static const u64 PATIENCE_NS = 20000000000;
	for (u64 until = about_now_ns() + PATIENCE_NS; nr_out(s) && about_now_ns() < until;) {
		note(kick(s->disk.guest_port));
		serve(s, BLK_SLOTS);
		take_answers(s);
	}
	if (!check(nr_out(s) == 0, "disk %u: %u requests are not answered", s->number, nr_out(s)))
		return false;
	check(status_of_disk(&s->disk).waiting == 0, "disk %u: %u requests wait", s->number, status_of_disk(&s->disk).waiting);
	return true;
}

void make_sure(struct station *s)
{
	if (!drain(s))
		return;
	for (u32 which = 0; which < NR_ASKS; which++)
		ask_for(s, which, OP_WRITE);
	if (!drain(s))
		return;
	for (u32 which = 0; which < NR_ASKS; which++)
		ask_for(s, which, OP_READ);
	drain(s);
}
