/* Back ends of disks that lie: in answers, indices, slots and pages, with events, and by coming and going at any moment. */
#include "backs.h"

enum { BUSY = 64 };

static u8 hostile_page[(NR_DISKS - HOSTILE) * PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 hostile_table[PAGE] SHARED __attribute__((aligned(4096)));
static struct service hostile_service SHARED;

static struct station *some_liar(void)
{
	return &stations[HOSTILE + up_to(NR_DISKS - HOSTILE)];
}

/* A page of either set, whether or not it is this back end's just now. */
static u8 *some_page_of(const struct station *s)
{
	return s->disk.service->page[s->disk.first_page + up_to(PAGE_SETS * NR_FRONT)];
}

/* What it has been asked for is heard of, if it makes sense or not. */
static void look(struct station *s)
{
	for (u32 n = up_to(4); n--;)
		s->seen[s->nr_seen++ % COUNT(s->seen)] = s->disk.back_ring->slot[up_to(BLK_SLOTS)].request.id;
}

/* Of a request that waits, of one that has waited in this life or an earlier one, nearly one of these, or nothing. */
static u64 some_name(const struct station *s)
{
	const struct blk_ring *ring = s->disk.back_ring;
	u64 seen = s->seen[up_to(COUNT(s->seen))], waits = ring->slot[(up_to(2) ? ring->rsp_prod : up_to(BLK_SLOTS)) % BLK_SLOTS].request.id;
	switch (up_to(16)) {
	case 0: return draw();
	case 1: return seen ^ 1ul << up_to(64);
	case 2: return seen + (1ul << 48);
	case 3: return waits ^ 1ul << up_to(64);
	case 4: case 5: case 6: case 7: return seen;
	default: return waits;
	}
}

static int16_t some_status(void)
{
	switch (up_to(32)) {
	case 0: return BLK_ERROR;
	case 1: return BLK_UNSUPPORTED;
	case 2: return draw();
	case 3: return 1 + up_to(1000);
	default: return BLK_OKAY;
	}
}

/* Whoever is asked for more than one answer to one request gives one again. */
void answers_once(void)
{
	struct station *s = some_liar();
	struct blk_ring *ring = s->disk.back_ring;
	look(s);
	for (u32 n = 1 + up_to(8); n--;) {
		u32 at = ring->rsp_prod;
		/* Those that were not asked for end the ring, which is tried elsewhere. */
		if (ring->req_prod - at - 1 >= BLK_SLOTS && up_to(64))
			break;
		if (up_to(8))
			ring->slot[at % BLK_SLOTS].response = (struct blk_response){ some_name(s), up_to(8), 0, some_status() };
		__atomic_store_n(&ring->rsp_prod, at + 1, __ATOMIC_SEQ_CST);
	}
	if (up_to(4))
		note(kick(s->disk.back_port));
}

/* Another back end comes, if the ring has ended by now; else only events may be got wrong, mostly. */
void indices_once(void)
{
	struct station *s = some_liar();
	volatile u32 *word = (volatile u32 *)s->disk.back_ring + up_to(4);
	switch (up_to(64)) {
	case 0: *word = draw(); break;
	case 1: *word += BLK_SLOTS + up_to(2); break;
	case 2: *word -= 1 + up_to(3); break;
	case 3: s->disk.back_ring->rsp_prod = s->disk.back_ring->req_prod + up_to(2); break;
	default: (up_to(2) ? &s->disk.back_ring->req_event : &s->disk.back_ring->rsp_event)[0] = up_to(2) ? draw() : s->disk.back_ring->req_prod + up_to(3);
	}
	note(kick(s->disk.back_port));
}

/* Requests are changed before, while and after they are there. */
void slots_once(void)
{
	struct station *s = some_liar();
	u32 *words = up_to(8) ? s->disk.back_ring->slot[0].words : (u32 *)s->disk.service->page[s->disk.first_page + up_to(PAGE_SETS) * NR_FRONT] + 16;
	for (u32 n = 1 + up_to(8); n--;)
		words[up_to(BLK_SLOTS * COUNT(s->disk.back_ring->slot[0].words))] = draw() >> up_to(32);
	if (up_to(64) == 0)
		memset(words, draw(), BLK_SLOTS * sizeof(union blk_slot));
}

/* The pages that bytes go through, at any time; those that are not its own any longer, too, as by a device that goes on. */
void bytes_once(void)
{
	struct station *s = some_liar();
	u8 *page = some_page_of(s);
	u64 lie = lie_of(s);
	if (page == s->disk.service->page[s->disk.first_page] || page == s->disk.service->page[s->disk.first_page + NR_FRONT])
		return;
	for (u32 n = up_to(PAGE / 8), end = n + up_to(PAGE / 8 - n); n < end; n++)
		((volatile u64 *)page)[n] = lie;
}

void storm_once(void)
{
	struct station *s = some_liar();
	for (u32 n = up_to(BUSY); n--;)
		note(kick(up_to(2) ? s->disk.back_port : s->disk.guest_port));
}

static void close_port(u32 *port)
{
	if (*port)
		note(evtchn(EVTCHN_close, port));
	*port = 0;
}

/* Only under its lock: a number may be somebody else's port as soon as it is closed. */
void ports_once(void)
{
	struct station *s = some_liar();
	if (!try_lock(&s->back_lock))
		return;
	struct bind_vcpu bind = { s->disk.back_port, up_to(4) };
	switch (up_to(8)) {
	case 0: case 1: close_port(&s->disk.back_port); break;
	case 2: case 3: note(evtchn(EVTCHN_bind_vcpu, &bind)); break;
	case 4: shared_info()->mask[bind.port / 64 % 64] ^= 1ul << bind.port % 64; break;
	default: note(evtchn(EVTCHN_unmask, &bind.port));
	}
	unlock(&s->back_lock);
}

static void end_back(struct station *s)
{
	struct disk_name name = { s->disk.name, 0 };
	note(channel_op(DISK_DETACH, &name));
	close_port(&s->disk.back_port);
}

/* So that it is refused: what is not granted, not as many pages as there must be, a domain or a port that is none. */
static void spoil_request(struct disk_attach *request)
{
	switch (up_to(6)) {
	case 0: request->back = some_value(); break;
	case 1: request->max_segments = draw(); break;
	case 2: request->ring = up_to(2) ? up_to(DISK_REF) : draw(); break;
	case 3: request->port = up_to(2) ? 0 : 512 + up_to(1 << 20); break;
	case 4: request->first_page = up_to(2) ? up_to(DISK_REF - NR_THROUGH) : draw() | 1 << 10; break;
	default: request->nr_pages = up_to(2) ? up_to(NR_THROUGH) : COUNT(hostile_page) + draw();
	}
}

/* With a field that is wrong, now and then. */
static void attach(struct station *s)
{
	make_back_port(&s->disk);
	struct disk_attach request = request_of_back(&s->disk);
	if (up_to(8) == 0)
		spoil_request(&request);
	s64 result = channel_op(DISK_ATTACH, &request);
	note(result);
	s->nr_lives += result == 0;
	if (result == 0)
		return;
	/* The other end is nobody's: the service's. */
	struct disk_port port = { s->disk.service->domid, 0, s->disk.front_port };
	close_port(&s->disk.back_port);
	note(channel_op(DISK_CLOSE_PORT, &port));
}

void lives_once(void)
{
	struct station *s = some_liar();
	struct disk_name name = { s->disk.name, GIVE_UP };
	if (!try_lock(&s->back_lock))
		return;
	if (up_to(8))
		end_back(s);
	if (up_to(32) == 0)
		note(channel_op(DISK_DETACH, &name));
	if (up_to(16)) {
		if (up_to(2) && s->disk.back_port == 0)
			use_set(&s->disk, !s->disk.set);
		if (s->disk.back_port == 0)
			attach(s);
	}
	unlock(&s->back_lock);
}

static void disconnect(struct station *s)
{
	struct disk_name name = { s->disk.name, 0 };
	/* Either end of the ring may be the one that goes first. */
	if (up_to(2))
		close_port(&s->disk.guest_port);
	s64 result = channel_op(DISK_DISCONNECT, &name);
	check(result == 0 || result == -ENOENT, "disconnecting: result %ld", result);
	close_port(&s->disk.guest_port);
	close_port(&s->disk.back_port);
	u32 guests = grants_in_use(guest_grants(&s->disk), NR_GUEST), sets = grants_in_use(set_grants(&s->disk, 0), PAGE_SETS * NR_FRONT);
	check(guests == 0 && sets == 0, "disk %u: %u grants of the guest and %u of the back end are in use after its end", s->number,
	      guests, sets);
}

/* The guest begins anew, on a fresh ring; what it had asked for is answered no more. */
static void connect_anew(struct station *s)
{
	s->nr_connections++;
	fresh_guest(s);
	connect_disk(&s->disk);
}

void end_of_lies(struct station *s)
{
	struct disk_status status = { .disk = s->disk.name };
	/* Somebody has let all of it go. */
	if (channel_op(DISK_STATUS, &status)) {
		disconnect(s);
		connect_anew(s);
	}
	end_back(s);
}

static bool try_both(struct station *s)
{
	if (!try_lock(&s->guest_lock))
		return false;
	if (try_lock(&s->back_lock))
		return true;
	unlock(&s->guest_lock);
	return false;
}

static void unlock_both(struct station *s)
{
	unlock(&s->back_lock);
	unlock(&s->guest_lock);
}

void connection_once(void)
{
	struct station *s = some_liar();
	if (up_to(8) || !try_both(s))
		return;
	disconnect(s);
	connect_anew(s);
	unlock_both(s);
}

void make_hostile_service(void)
{
	make_service(&hostile_service, HOSTILE_SERVICE, hostile_page, COUNT(hostile_page), hostile_table);
	for (u32 n = HOSTILE; n < NR_DISKS; n++) {
		struct station *s = &stations[n];
		s->disk.service = &hostile_service;
		s->disk.first_page = (n - HOSTILE) * PAGE_SETS * NR_FRONT;
		use_set(&s->disk, 0);
		connect_anew(s);
	}
}

void end_hostile_service(void)
{
	check_result(destroy_domain(HOSTILE_SERVICE), 0, "destroydomain");
	for (u32 n = HOSTILE; n < NR_DISKS; n++)
		disconnect(&stations[n]);
	let_go_of_service(&hostile_service);
	check(domain_is_gone(HOSTILE_SERVICE), "the domain that guests grant to never goes");
}

/* It is destroyed while back ends lie. */
void service_once(void)
{
	u32 locked = HOSTILE;
	if (me || up_to(64))
		return;
	while (locked < NR_DISKS && try_both(&stations[locked]))
		locked++;
	if (locked == NR_DISKS) {
		end_hostile_service();
		make_hostile_service();
	}
	while (locked-- > HOSTILE)
		unlock_both(&stations[locked]);
}

/* What the control domain may ask of disks, with random arguments; what is good is let alone. */
void raw_once(void)
{
	/* No argument is longer. */
	static u32 argument[64];
	u32 cmd = DISK_CONNECT + up_to(DISK_CLOSE_PORT + 1 - DISK_CONNECT);
	for (u32 n = 0; n < COUNT(argument); n++)
		argument[n] = up_to(4) ? up_to(2) ? 0 : up_to(64) : some_value();
	if (up_to(2))
		argument[0] = stations[up_to(NR_DISKS)].disk.name ^ (up_to(2) ? 0 : 1 << up_to(32));
	bool is_asking = cmd == DISK_STATUS || cmd == DISK_NEXT;
	u64 at = up_to(16) ? (u64)argument : some_value();
	/* Another's memory may be named, and nobody knows what that says. */
	if (!is_asking && (at != (u64)argument || argument[0] == stations[GOOD].disk.name || cmd == DISK_CONNECT || cmd == DISK_CLOSE_PORT))
		return;
	note(channel_op(cmd, (void *)at));
}
