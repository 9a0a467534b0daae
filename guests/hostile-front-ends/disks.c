/*
 * Disks of hostile guests, whose back ends do what they should and look at what they are asked for; and one of a good guest, beside. The
 * guest's pages are a ring, pages for lists of segments, data, and one that is now granted and now is not.
 */
#include "fronts.h"
#include "stations.h"

enum { NR_VICTIMS = 2, FIRST_LIST = 1, FIRST_DATA = 3, WATCHED_PAGE = 15, NR_HOSTILE = 16, FIRST_DISK_REF = 300 };
enum { GOOD_SERVICE = 9, HOSTILE_SERVICE };
static const u64 PATIENCE_NS = 20000000000;

static struct victim {
	struct disk disk;
	u32 guest_lock, back_lock;
	/* Nobody may write to the page that is watched. */
	bool is_watched;
	/* It asks for nothing that would overwrite its requests, or what they are about. */
	bool is_careful;
	struct taken taken[BLK_SLOTS];
	u32 nr_taken;
	/* Pages of the back end's through which something goes. */
	bool is_busy[NR_FRONT];
} victims[NR_VICTIMS] SHARED;
static struct station good SHARED;
static struct service good_service SHARED, hostile_service SHARED;
static u8 good_guest[NR_GUEST][PAGE] SHARED __attribute__((aligned(4096))), hostile_guest[NR_VICTIMS][NR_HOSTILE][PAGE] SHARED __attribute__((aligned(4096)));
static u8 good_page[PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 hostile_page[NR_VICTIMS * PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 tables[2][PAGE] SHARED __attribute__((aligned(4096)));
static struct {
	u64 passed_on, lives, connections, ended, watched, sure;
} seen SHARED;

static struct victim *some_victim(void)
{
	return &victims[up_to(NR_VICTIMS)];
}

/* Whose page that is. */
static const struct victim *named_by(u32 gref)
{
	u32 n = (gref - FIRST_DISK_REF) / NR_HOSTILE;
	return gref >= FIRST_DISK_REF && n < NR_VICTIMS ? &victims[n] : NULL;
}

static struct segment some_segment(const struct victim *v)
{
	u32 first = up_to(PAGE_SECTORS), page = up_to(8) ? FIRST_DATA + up_to(NR_HOSTILE - FIRST_DATA) : up_to(NR_HOSTILE);
	struct segment s = { v->disk.guest_ref + page, first, first + up_to(PAGE_SECTORS - first), 0 };
	switch (up_to(128)) {
	case 0: s.gref = draw() >> up_to(64); break;
	case 1: s.first = draw(); break;
	case 2: s.last = draw(); break;
	case 3: s.gref = up_to(512); break;
	}
	/* The other disk's answers may be on their way when this one's must be right. */
	const struct victim *owner = named_by(s.gref);
	if (owner && (s.gref - owner->disk.guest_ref < FIRST_DATA) && (v->is_careful || owner != v))
		s.gref += FIRST_DATA;
	return s;
}

static u64 some_sector(void)
{
	switch (up_to(16)) {
	case 0: return draw();
	case 1: return -up_to(300);
	case 2: return draw() >> up_to(64);
	default: return up_to(1000);
	}
}

/* Fills a slot with a request that nearly makes sense; what it is called. */
static u64 make_request(struct victim *v, union blk_slot *slot)
{
	static const u8 ops[] = { OP_READ, OP_READ, OP_WRITE, OP_WRITE, OP_FLUSH, OP_BARRIER, OP_DISCARD };
	u8 op = up_to(32) ? ops[up_to(COUNT(ops))] : draw();
	u64 id = draw();
	slot->request = (struct blk_request){ .op = op, .id = id, .sector = some_sector(), .handle = draw() };
	if ((op == OP_READ || op == OP_WRITE) && up_to(2)) {
		u32 page = FIRST_LIST + up_to(FIRST_DATA - FIRST_LIST), nr = up_to(8) ? 1 + up_to(MAX_SEGMENTS) : draw() >> up_to(64);
		struct segment *list = (struct segment *)v->disk.guest_page[page];
		for (u32 n = 0; n < MAX_SEGMENTS; n++)
			list[n] = some_segment(v);
		slot->indirect = (struct blk_indirect){ .op = OP_INDIRECT, .wanted = up_to(16) ? op : draw(), .nr = nr, .id = id, .sector = some_sector() };
		slot->indirect.gref[0] = v->is_careful || up_to(32) ? v->disk.guest_ref + page : draw() >> up_to(64);
		return id;
	}
	slot->request.nr = up_to(16) ? up_to(DIRECT_SEGMENTS + 1) : draw();
	for (u32 n = 0; n < DIRECT_SEGMENTS; n++)
		slot->request.seg[n] = some_segment(v);
	if (op == OP_DISCARD)
		*(u64 *)slot->request.seg = some_sector();
	return id;
}

void disk_requests_once(void)
{
	struct victim *v = some_victim();
	struct blk_ring *ring = v->disk.guest_ring;
	/* Two at once in a ring make other requests of it, which is tried now and then. */
	bool is_locked = up_to(16);
	if (is_locked && !try_lock(&v->guest_lock))
		return;
	for (u32 nr = 1 + up_to(4); nr-- && (ring->req_prod - ring->rsp_prod < BLK_SLOTS || up_to(256) == 0);) {
		make_request(v, next_slot(&v->disk));
		push_request(&v->disk);
	}
	if (up_to(8))
		note(kick(v->disk.guest_port));
	if (is_locked)
		unlock(&v->guest_lock);
}

static void change_index(struct blk_ring *ring)
{
	volatile u32 *index = (volatile u32 *)ring + up_to(4);
	switch (up_to(64)) {
	case 0: *index = draw(); break;
	case 1: *index += BLK_SLOTS + up_to(2); break;
	case 2: *index -= 1 + up_to(3); break;
	default: ring->rsp_event = up_to(2) ? draw() : ring->rsp_prod + up_to(3);
	}
}

/* Rings and lists change before, while and after they are looked at. */
void disk_words_once(void)
{
	struct victim *v = some_victim();
	u32 page = up_to(FIRST_DATA);
	for (u32 n = 1 + up_to(8); n--;)
		((volatile u32 *)v->disk.guest_page[page])[page ? up_to(2 * MAX_SEGMENTS) : 16 + up_to(PAGE / 4 - 16)] = draw() >> up_to(32);
	/* A disk is connected only by a ring that can be. */
	if (try_lock(&v->guest_lock)) {
		change_index(v->disk.guest_ring);
		unlock(&v->guest_lock);
	}
	note(kick(v->disk.guest_port));
}

static void spoil_grant(struct victim *v, u32 n)
{
	struct grant_entry *entry = &guest_grants(&v->disk)[n];
	switch (up_to(8)) {
	case 0: entry->flags = 0; break;
	case 1: entry->flags = draw(); break;
	case 2: entry->domid = some_domid(); break;
	case 3: entry->frame = mfn_of(up_to(4) ? v->disk.guest_page[FIRST_DATA + up_to(WATCHED_PAGE - FIRST_DATA)] : scratch()); break;
	default: grant(entry, HOSTILE_SERVICE, mfn_of(v->disk.guest_page[n]), up_to(4) ? 0 : GRANT_READ_ONLY);
	}
}

/* All but the grant of the page that is watched, whose frame nobody else gets either; the ring's not while a disk is connected by it. */
void disk_grants_once(void)
{
	struct victim *v = some_victim();
	if (up_to(16)) {
		spoil_grant(v, FIRST_LIST + up_to(WATCHED_PAGE - FIRST_LIST));
	} else if (try_lock(&v->guest_lock)) {
		spoil_grant(v, 0);
		unlock(&v->guest_lock);
	}
}

static u64 watched_word(const struct victim *v, u32 n)
{
	return 0x3ca5000000000000 | (u64)(v - victims) << 32 | n;
}

/* A page is granted, and filled and looked at when it is not: what is under way with it may end with an error, and not there. */
void disk_watch_once(void)
{
	struct victim *v = some_victim();
	struct grant_entry *entry = &guest_grants(&v->disk)[WATCHED_PAGE];
	u64 *words = (u64 *)v->disk.guest_page[WATCHED_PAGE];
	u16 idle = PERMIT;
	if (!try_lock(&v->guest_lock))
		return;
	if (v->is_watched) {
		for (u32 n = 0; n < PAGE / 8; n++)
			if (!check(words[n] == watched_word(v, n), "a page is written to whose grant was taken away: %#lx at %u", words[n], 8 * n))
				break;
		seen.watched++;
		v->is_watched = false;
		__atomic_store_n(&entry->flags, PERMIT, __ATOMIC_SEQ_CST);
	} else if (__atomic_compare_exchange_n(&entry->flags, &idle, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		for (u32 n = 0; n < PAGE / 8; n++)
			words[n] = watched_word(v, n);
		v->is_watched = true;
	}
	unlock(&v->guest_lock);
}

/* What a back end is asked for is about pages of its own, through which nothing else goes. */
static bool is_sound(struct victim *v, const struct taken *r)
{
	u32 ring = set_ref(&v->disk), nr_sectors = 0;
	bool may_be_empty = r->op == OP_FLUSH || r->op == OP_BARRIER;
	if (r->op == OP_DISCARD)
		return r->nr <= 1 && r->sector + *(const u64 *)r->seg >= r->sector;
	if (r->op > OP_FLUSH || r->nr > MAX_SEGMENTS || (r->nr == 0 && !may_be_empty))
		return false;
	if (r->list && v->is_busy[r->list - ring])
		return false;
	v->is_busy[r->list ? r->list - ring : 0] = r->list != 0;
	for (u32 n = 0; n < r->nr; n++) {
		const struct segment *seg = &r->seg[n];
		if (seg->gref <= ring || seg->gref >= ring + NR_FRONT || seg->first > seg->last || seg->last >= PAGE_SECTORS)
			return false;
		if (v->is_busy[seg->gref - ring])
			return false;
		v->is_busy[seg->gref - ring] = true;
		nr_sectors += seg->last + 1 - seg->first;
	}
	return r->sector + nr_sectors >= r->sector;
}

static void take(struct victim *v)
{
	struct taken *r = &v->taken[v->nr_taken];
	*r = take_request(&v->disk);
	seen.passed_on++;
	if (check(is_sound(v, r), "operation %u, %u segments, sector %#lx is passed on", r->op, r->nr, r->sector))
		v->nr_taken++;
}

static void serve_victim(struct victim *v, u32 most)
{
	u32 ring = set_ref(&v->disk);
	while (nr_passed_on(&v->disk) && v->nr_taken < BLK_SLOTS)
		take(v);
	for (; v->nr_taken && most; most--) {
		u32 at = up_to(v->nr_taken);
		struct taken *r = &v->taken[at];
		v->is_busy[r->list ? r->list - ring : 0] = false;
		for (u32 n = 0; r->op != OP_DISCARD && n < r->nr; n++) {
			v->is_busy[r->seg[n].gref - ring] = false;
			if (r->op == OP_READ)
				memset(set_page(&v->disk, r->seg[n].gref - ring) + r->seg[n].first * SECTOR, draw(), SECTOR);
		}
		read_something(&v->disk, r);
		bool is_optional = r->op != OP_READ && r->op != OP_WRITE;
		answer_request(&v->disk, r, is_optional && up_to(8) == 0 ? BLK_UNSUPPORTED : BLK_OKAY);
		*r = v->taken[--v->nr_taken];
	}
	v->disk.back_ring->req_event = v->disk.req_cons + 1;
	note(kick(v->disk.back_port));
}

static void new_life(struct victim *v)
{
	v->nr_taken = 0;
	memset(v->is_busy, 0, sizeof(v->is_busy));
	v->disk.max_segments = up_to(2) ? up_to(2 * MAX_SEGMENTS) : 0;
	attach_back(&v->disk);
	seen.lives++;
}

void disk_back_once(void)
{
	struct victim *v = some_victim();
	if (!try_lock(&v->back_lock))
		return;
	if (up_to(32) == 0) {
		detach_back(&v->disk);
		use_set(&v->disk, v->disk.set ^ (up_to(2) != 0));
		new_life(v);
	} else {
		serve_victim(v, up_to(BLK_SLOTS));
	}
	unlock(&v->back_lock);
}

static u32 some_offer(void)
{
	return up_to(4) ? WRITE | FLUSH | BARRIER | DISCARD : up_to(16);
}

static void join(struct victim *v)
{
	make_disk_guest(&v->disk);
	v->is_watched = false;
	connect_disk(&v->disk);
	seen.connections++;
	new_life(v);
}

static void leave(struct victim *v)
{
	struct disk_name name = { v->disk.name, 0 };
	seen.ended += (status_of_disk(&v->disk).state & ENDED) != 0;
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check_result(evtchn(EVTCHN_close, &v->disk.guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &v->disk.back_port), 0, "closing the back end's port");
	u32 in_use = grants_in_use(set_grants(&v->disk, 0), PAGE_SETS * NR_FRONT);
	check(in_use == 0, "%u grants of the back end are in use after a disk's end", in_use);
}

static void again(struct victim *v)
{
	leave(v);
	v->disk.flags = some_offer();
	join(v);
}

void disk_again_once(void)
{
	struct victim *v = some_victim();
	if (!try_lock(&v->guest_lock))
		return;
	if (try_lock(&v->back_lock)) {
		again(v);
		unlock(&v->back_lock);
	}
	unlock(&v->guest_lock);
}

void good_disk_once(void)
{
	if (up_to(4))
		guest_once(&good);
	else
		good_back_once(&good);
}

/* A ring full of requests that nearly make sense: as many answers, each to another of them. */
static void all_are_answered(struct victim *v)
{
	u64 ids[BLK_SLOTS];
	bool is_answered[BLK_SLOTS] = { false };
	/* Requests are taken at any time, also while lists change. */
	v->is_careful = true;
	for (u32 page = FIRST_LIST; page < FIRST_DATA; page++)
		memset(v->disk.guest_page[page], 0, PAGE);
	for (u32 n = 0; n < BLK_SLOTS; n++) {
		ids[n] = make_request(v, next_slot(&v->disk));
		push_request(&v->disk);
	}
	note(kick(v->disk.guest_port));
	for (u64 until = about_now_ns() + PATIENCE_NS; nr_disk_answers(&v->disk) < BLK_SLOTS && about_now_ns() < until;)
		serve_victim(v, BLK_SLOTS);
	check(nr_disk_answers(&v->disk) == BLK_SLOTS, "%u of %u requests are answered", nr_disk_answers(&v->disk), BLK_SLOTS);
	while (nr_disk_answers(&v->disk)) {
		struct blk_response r = take_answer(&v->disk);
		u32 n = 0;
		while (n < BLK_SLOTS && (ids[n] != r.id || is_answered[n]))
			n++;
		if (check(n < BLK_SLOTS, "an answer to %#lx, which was not asked for, or was answered", r.id))
			is_answered[n] = true;
	}
	check(status_of_disk(&v->disk).waiting == 0, "%u requests wait that were answered", status_of_disk(&v->disk).waiting);
	v->is_careful = false;
	seen.sure++;
}

/* Nobody else does anything: requests are answered, a ring that cannot be has ended and says so, and the good one is as ever. */
void disks_are_sure(void)
{
	struct victim *v = some_victim();
	u32 *locks[] = { &v->guest_lock, &v->back_lock, &good.guest_lock, &good.back_lock }, nr = 0;
	while (nr < COUNT(locks) && try_lock(locks[nr]))
		nr++;
	if (nr == COUNT(locks)) {
		again(v);
		all_are_answered(v);
		check(status_of_disk(&v->disk).state == 0, "the state of a disk is %u", status_of_disk(&v->disk).state);
		v->disk.guest_ring->req_prod += up_to(2) ? BLK_SLOTS + 1 + up_to(1u << 30) : -1 - up_to(1000);
		note(kick(v->disk.guest_port));
		check(status_of_disk(&v->disk).state == ENDED, "the state of a disk with a ring that cannot be is %u", status_of_disk(&v->disk).state);
		u32 in_use = grants_in_use(guest_grants(&v->disk), NR_HOSTILE);
		check(in_use == 1, "%u grants of a guest whose ring has ended are in use", in_use);
		again(v);
		make_sure(&good);
	}
	while (nr--)
		unlock(locks[nr]);
}

void connect_disks(void)
{
	make_service(&good_service, GOOD_SERVICE, good_page, COUNT(good_page), tables[0]);
	make_service(&hostile_service, HOSTILE_SERVICE, hostile_page, COUNT(hostile_page), tables[1]);
	good = (struct station){ .is_honest = true, .disk = { .service = &good_service, .guest_page = good_guest, .nr_guest = NR_GUEST,
			.guest_ref = DISK_REF, .device = 51712, .flags = WRITE | FLUSH | BARRIER | DISCARD } };
	use_set(&good.disk, 0);
	fresh_guest(&good);
	connect_disk(&good.disk);
	honest_back(&good);
	for (u32 n = 0; n < NR_VICTIMS; n++) {
		struct victim *v = &victims[n];
		*v = (struct victim){ .disk = { .service = &hostile_service, .first_page = n * PAGE_SETS * NR_FRONT, .guest_page = hostile_guest[n],
			.nr_guest = NR_HOSTILE, .guest_ref = FIRST_DISK_REF + n * NR_HOSTILE, .device = 51713 + n, .flags = some_offer() } };
		use_set(&v->disk, 0);
		join(v);
	}
}

static void end_service(struct service *service)
{
	check_result(destroy_domain(service->domid), 0, "destroydomain");
	let_go_of_service(service);
	check(domain_is_gone(service->domid), "a domain that guests grant to never goes");
}

void disconnect_disks(void)
{
	struct disk_name name = { good.disk.name, 0 };
	for (u32 n = 0; n < NR_VICTIMS; n++)
		leave(&victims[n]);
	make_sure(&good);
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check_result(evtchn(EVTCHN_close, &good.disk.guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &good.disk.back_port), 0, "closing the back end's port");
	end_service(&good_service);
	end_service(&hostile_service);
}

void say_disks(void)
{
	printk("  disks: %lu connections, of which %lu have ended a ring, %lu back ends, %lu requests passed on; %lu looks at a page; a good one with %lu answers\n",
	       seen.connections, seen.ended, seen.lives, seen.passed_on, seen.watched, good.nr_answered);
	check(seen.passed_on > 10 && seen.watched > 10 && seen.sure && good.nr_answered > 10 && good.nr_errors == 0, "disks have done too little");
}
