/* A back end that does what it should, and ends at any time. */
#include "stations.h"

/* The sectors of a write are newer than what is there, or the same: nothing is done after its answer. */
static void look_at_bytes(struct station *s, const struct taken *r)
{
	u32 ring = set_ref(&s->disk);
	u64 sector = r->sector;
	for (u32 n = 0; n < r->nr; n++)
		for (u32 at = r->seg[n].first; at <= r->seg[n].last; at++, sector++) {
			u64 word = *(u64 *)(set_page(&s->disk, r->seg[n].gref - ring) + at * SECTOR), old = *(u64 *)s->medium[sector];
			u32 version = word & 0xffffff;
			if (is_lie_of(s, word) || !s->is_honest)
				continue;
			check(word == word_of(s, sector, version, 0), "disk %u: %#lx is to be written to sector %lu", s->number, word, sector);
			check(is_lie_of(s, old) || version >= (old & 0xffffff), "disk %u: sector %lu goes back from %lu to %u", s->number,
			      sector, old & 0xffffff, version);
		}
}

/* All of it is of the pages that it was given, and of the guest's sectors. */
static bool is_sound(const struct station *s, const struct taken *r)
{
	u32 ring = set_ref(&s->disk), nr_sectors = 0;
	if (r->op == OP_DISCARD)
		return r->sector + *(u64 *)r->seg <= SECTORS;
	if (r->op > OP_FLUSH || r->nr > MAX_SEGMENTS || (r->nr == 0 && r->op != OP_FLUSH))
		return false;
	for (u32 n = 0; n < r->nr; n++) {
		const struct segment *seg = &r->seg[n];
		if (seg->gref <= ring || seg->gref >= ring + NR_FRONT || seg->first > seg->last || seg->last >= PAGE_SECTORS)
			return false;
		nr_sectors += seg->last + 1 - seg->first;
	}
	return r->sector + nr_sectors <= SECTORS;
}

static void do_one(struct station *s, struct taken *r)
{
	if (!check(is_sound(s, r), "disk %u: operation %u, %u segments, sector %lu is passed on", s->number, r->op, r->nr, r->sector))
		return;
	if (r->op == OP_WRITE || r->op == OP_BARRIER)
		look_at_bytes(s, r);
	u8 op = r->op;
	/* A barrier writes. */
	r->op = op == OP_BARRIER ? OP_WRITE : op;
	move_bytes(&s->disk, r, s->medium, SECTORS);
	r->op = op;
}

/* Takes what there is, does some of it and answers that. */
void serve(struct station *s, u32 most)
{
	while (nr_passed_on(&s->disk) && s->nr_taken < BLK_SLOTS) {
		s->taken[s->nr_taken++] = take_request(&s->disk);
		s->seen[s->nr_seen++ % COUNT(s->seen)] = s->taken[s->nr_taken - 1].id;
	}
	for (; s->nr_taken && most; most--) {
		u32 n = up_to(s->nr_taken);
		do_one(s, &s->taken[n]);
		answer_request(&s->disk, &s->taken[n], BLK_OKAY);
		s->taken[n] = s->taken[--s->nr_taken];
	}
	s->disk.back_ring->req_event = s->disk.req_cons + 1;
	note(kick(s->disk.back_port));
}

void honest_back(struct station *s)
{
	s->nr_taken = 0;
	s->disk.max_segments = up_to(2) ? up_to(2 * MAX_SEGMENTS) : 0;
	attach_back(&s->disk);
	s->nr_lives++;
}

/* The next one has the other pages, or these again; it has heard of nothing that the last one has not answered. */
static void another_life(struct station *s)
{
	/* Some of it was done. */
	for (u32 n = 0; n < s->nr_taken; n++)
		if (up_to(2))
			do_one(s, &s->taken[n]);
	if (up_to(2)) {
		detach_back(&s->disk);
	} else {
		check_result(evtchn(EVTCHN_close, &s->disk.back_port), 0, "closing the back end's port");
	}
	if (up_to(4))
		use_set(&s->disk, !s->disk.set);
	honest_back(s);
}

void good_back_once(struct station *s)
{
	if (!try_lock(&s->back_lock))
		return;
	if (up_to(32) == 0)
		another_life(s);
	else
		serve(s, up_to(BLK_SLOTS));
	unlock(&s->back_lock);
}
