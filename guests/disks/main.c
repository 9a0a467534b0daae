/*
 * A guest's disk: what it asks for is passed on to a back end, once, as it was asked for, and answered after that; when the back end is gone
 * the next one does what was not answered, also by other pages; what a back end says that is not so changes nothing, and its errors count if it outlives them; what is refused; and nothing stays when the
 * disk, its guest or its back end goes.
 * (cpus: 2) (differs: stock Xen has no end of a disk's)
 */
#include "domains.h"

const char test_name[] = "disks";

enum { HC_channel_op = 56, DISK_CONNECT = 8, DISK_DISCONNECT, DISK_ATTACH, DISK_DETACH, DISK_STATUS, DISK_NEXT, DISK_CLOSE_PORT };
enum { WRITE = 1, FLUSH = 2, BARRIER = 4, DISCARD = 8, ENDED = 1, BACK_ENDED = 2, GIVEN_UP = 4, GIVE_UP = 1, NO_BACK = 0xffff };
enum { OP_READ, OP_WRITE, OP_BARRIER, OP_FLUSH, OP_DISCARD = 5, OP_INDIRECT };
enum { RSP_ERROR = -1, RSP_EOPNOTSUPP = -2 };

struct disk {
	u32 disk, flags;
};
struct disk_port {
	u16 domain, pad;
	u32 port;
};
struct disk_connect {
	u16 guest, backend;
	u32 device, ring, port, flags, disk;
};
struct disk_attach {
	u32 disk;
	u16 back, pad;
	u32 ring, port, first_page, nr_pages;
};
struct disk_status {
	u32 disk, next;
	u16 guest, backend;
	u32 device, flags;
	u16 back, waiting;
	u32 state, bad_rings;
	u64 reads, writes, flushes, discards, read_sectors, written_sectors, errors, repeated, bad_answers;
};
_Static_assert(sizeof(struct disk_status) == 104 && sizeof(struct disk_attach) == 24, "layouts");

struct segment {
	u32 gref;
	u8 first, last;
	u16 pad;
};
struct request {
	u8 op, nr;
	u16 handle;
	u32 pad;
	u64 id, sector;
	struct segment seg[11];
};
struct response {
	u64 id;
	u8 op, pad;
	int16_t status;
};
union slot {
	struct request request;
	struct response response;
};
struct ring {
	volatile u32 req_prod, req_event, rsp_prod, rsp_event;
	u32 room[12];
	union slot slot[32];
};
_Static_assert(sizeof(struct request) == 112 && sizeof(union slot) == 112, "layouts");

struct grant_entry {
	volatile u16 flags, domid;
	volatile u32 frame;
};
enum { PERMIT = 1, GRANT_READ_ONLY = 4, READING = 8, WRITING = 16 };

/* The domain that never runs, and one that is granted nothing. */
enum { FRONT = 7, OTHER = 8 };
/* Its pages: a ring, and those that bytes go through. The guest's: a ring, and data. */
enum { NR_THROUGH = 32, NR_FRONT = 1 + NR_THROUGH, NR_SETS = 2, NR_GUEST = 6, FIRST_REF = 40, SECTORS = 256, BYTES = 1 };

static u8 front_page[NR_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 guest_page[NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 front_table[PAGE] SHARED __attribute__((aligned(4096)));
static u8 own_table[PAGE] SHARED __attribute__((aligned(4096)));
static u8 medium[SECTORS][512] SHARED;

static struct ring *back_ring = (struct ring *)front_page[0], *const guest_ring = (struct ring *)guest_page[0];
static struct grant_entry *const front_grants = (struct grant_entry *)front_table, *const own_grants = (struct grant_entry *)own_table;
/* Which of the sets of pages the back end has. */
static u32 set;
static u32 guest_port, front_port, back_port, disk, rsp_cons, req_cons;

static s64 channel_op(u32 cmd, void *argument)
{
	return hypercall(HC_channel_op, cmd, (u64)argument, 0, 0, 0);
}

static void grant(struct grant_entry *entry, u16 to, u64 frame, u16 flags)
{
	entry->frame = frame;
	entry->domid = to;
	__atomic_store_n(&entry->flags, PERMIT | flags, __ATOMIC_RELEASE);
}

static u32 nr_in_use(const struct grant_entry *grants, u32 nr)
{
	u32 in_use = 0;
	for (u32 n = 0; n < nr; n++)
		in_use += (grants[FIRST_REF + n].flags & (READING | WRITING)) != 0;
	return in_use;
}

static void make_front(void)
{
	u64 frames[NR_SETS * NR_FRONT];
	for (u32 n = 0; n < NR_SETS * NR_FRONT; n++)
		frames[n] = n;
	check_result(create_domain(FRONT), 0, "createdomain");
	check_result(populate_domain(FRONT, frames, NR_SETS * NR_FRONT), NR_SETS * NR_FRONT, "memory for it");
	map_grant_table_of(FRONT, front_table);
	for (u32 n = 0; n < NR_SETS * NR_FRONT; n++) {
		check_result(map_frame_of(FRONT, front_page[n], frames[n]), 0, "mapping its pages");
		memset(front_page[n], 0x5a, PAGE);
		grant(&front_grants[FIRST_REF + n], 0, frames[n], 0);
	}
}

static void make_guest(void)
{
	struct alloc_unbound port = { DOMID_SELF, FRONT, 0 };
	memset(guest_page, 0, sizeof(guest_page));
	guest_ring->req_event = guest_ring->rsp_event = 1;
	rsp_cons = 0;
	for (u32 n = 0; n < NR_GUEST; n++)
		grant(&own_grants[FIRST_REF + n], FRONT, mfn_of(guest_page[n]), 0);
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound");
	guest_port = port.port;
}

static struct disk_connect request_of_guest(void)
{
	return (struct disk_connect){ .guest = 0, .backend = FRONT, .device = 51712, .ring = FIRST_REF, .port = guest_port,
				      .flags = WRITE | FLUSH | BARRIER };
}

static void connect_guest(void)
{
	struct disk_connect request = request_of_guest();
	check_result(channel_op(DISK_CONNECT, &request), 0, "connecting");
	disk = request.disk;
}

/* A stock back end does this: it binds to the port that the front end has named. */
static void make_back_port(void)
{
	struct alloc_unbound port = { FRONT, 0, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound for the front end");
	front_port = port.port;
	struct bind_interdomain bind = { FRONT, 0, front_port, 0 };
	check_result(evtchn(EVTCHN_bind_interdomain, &bind), 0, "bind_interdomain");
	back_port = bind.local_port;
}

static struct disk_attach request_of_back(void)
{
	u32 ring = FIRST_REF + set * NR_FRONT;
	return (struct disk_attach){ .disk = disk, .back = 0, .ring = ring, .port = front_port, .first_page = ring + 1,
				     .nr_pages = NR_THROUGH };
}

/* Until the hypervisor has done what there was to do at the beginning. */
static void wait_for(volatile u32 *index, u32 value)
{
	u64 start = now_ns();
	while (__atomic_load_n(index, __ATOMIC_ACQUIRE) != value && now_ns() - start < 10000000000)
		HC1(sched_op, SCHEDOP_yield);
}

static void attach(void)
{
	make_back_port();
	struct disk_attach request = request_of_back();
	check_result(channel_op(DISK_ATTACH, &request), 0, "attaching");
	req_cons = 0;
}

/* The back end is taken away, and another one comes. */
static void another_back_end(void)
{
	struct disk request = { disk, 0 };
	check_result(channel_op(DISK_DETACH, &request), 0, "detaching");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	attach();
}

static struct disk_status status(void)
{
	struct disk_status status = { .disk = disk };
	check_result(channel_op(DISK_STATUS, &status), 0, "the status");
	return status;
}

static void put(u8 op, u64 id, u64 sector, u32 nr, u32 page)
{
	struct request *r = &guest_ring->slot[guest_ring->req_prod % 32].request;
	*r = (struct request){ .op = op, .nr = nr, .id = id, .sector = sector };
	for (u32 n = 0; n < nr; n++)
		r->seg[n] = (struct segment){ FIRST_REF + page + n, 0, 7, 0 };
	__atomic_store_n(&guest_ring->req_prod, guest_ring->req_prod + 1, __ATOMIC_SEQ_CST);
}

static s64 kick(u32 port)
{
	return evtchn(EVTCHN_send, &port);
}

static u32 nr_passed_on(void)
{
	return __atomic_load_n(&back_ring->req_prod, __ATOMIC_ACQUIRE) - req_cons;
}

/* The back end takes a request and does it. */
static struct request perform(void)
{
	if (!check(nr_passed_on() > 0, "nothing is passed on"))
		fail();
	struct request r = back_ring->slot[req_cons++ % 32].request;
	u64 sector = r.sector;
	for (u32 n = 0; n < r.nr && r.op != OP_DISCARD; n++) {
		struct segment s = r.seg[n];
		u32 ring = FIRST_REF + set * NR_FRONT;
		if (!check(s.gref > ring && s.gref < ring + NR_FRONT, "grant %u", s.gref))
			fail();
		for (u32 at = s.first; at <= s.last; at++, sector++) {
			u8 *bytes = front_page[s.gref - FIRST_REF] + at * 512;
			memcpy(r.op == OP_READ ? bytes : medium[sector], r.op == OP_READ ? medium[sector] : bytes, 512);
		}
	}
	return r;
}

static void answer(struct request r, int16_t status)
{
	back_ring->slot[back_ring->rsp_prod % 32].response = (struct response){ r.id, r.op, 0, status };
	__atomic_store_n(&back_ring->rsp_prod, back_ring->rsp_prod + 1, __ATOMIC_SEQ_CST);
}

static u32 nr_answers(void)
{
	return __atomic_load_n(&guest_ring->rsp_prod, __ATOMIC_ACQUIRE) - rsp_cons;
}

static void check_answer(u64 id, u8 op, int status, const char *what)
{
	if (!check(nr_answers() > 0, "%s: no answer", what))
		return;
	struct response r = guest_ring->slot[rsp_cons++ % 32].response;
	check(r.id == id && r.op == op && r.status == status, "%s: answer to %lu (%u): %d", what, r.id, r.op, r.status);
	__atomic_store_n(&guest_ring->rsp_event, rsp_cons + 1, __ATOMIC_SEQ_CST);
}

static bool is_pending(u32 port)
{
	return shared_info()->pending[port / 64] >> port % 64 & 1;
}

static void clear_pending(u32 port)
{
	__atomic_fetch_and((u64 *)&shared_info()->pending[port / 64], ~(1ul << port % 64), __ATOMIC_SEQ_CST);
}

static void fill(u8 *page, u32 seed)
{
	for (u32 n = 0; n < PAGE; n++)
		page[n] = n * 7 + seed + (n >> 8);
}

/* Asked for before there is a back end, and then: bytes go where they belong, and events come when they were asked for. */
static void bytes_and_events(void)
{
	fill(guest_page[BYTES], 1);
	fill(guest_page[BYTES + 1], 2);
	put(OP_WRITE, 100, 8, 2, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	check(status().waiting == 0 && status().back == NO_BACK, "it is taken without a back end");
	attach();
	wait_for(&back_ring->req_prod, 1);
	check(is_pending(back_port), "the back end is not told");
	check(status().waiting == 1 && status().back == 0, "%u wait", status().waiting);
	check(nr_in_use(own_grants, NR_GUEST) == 1, "%u of the guest's grants are in use", nr_in_use(own_grants, NR_GUEST));
	check(nr_in_use(front_grants, NR_FRONT) == NR_FRONT, "%u grants are in use", nr_in_use(front_grants, NR_FRONT));
	for (u32 n = 0; n < NR_FRONT - 1 - 2; n++)
		check(front_page[1 + 2 + n][77] == 0 || front_page[1 + 2 + n][78] != 0x5a, "page %u has what it had before", n);
	/* What it does with its pages now is its own affair. */
	memset(guest_page[BYTES], 0xee, PAGE);
	struct request write = perform();
	check(nr_answers() == 0, "an answer before it is done");
	clear_pending(guest_port);
	answer(write, 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check(is_pending(guest_port), "the guest is not told");
	check_answer(100, OP_WRITE, 0, "a write");
	fill(guest_page[BYTES], 1);
	check(memcmp(medium[8], guest_page[BYTES], PAGE) == 0 && memcmp(medium[16], guest_page[BYTES + 1], PAGE) == 0, "other bytes");
	memset(guest_page[BYTES + 2], 0, 2 * PAGE);
	put(OP_READ, 101, 8, 2, BYTES + 2);
	check_result(kick(guest_port), 0, "a kick");
	answer(perform(), 0);
	check(memcmp(guest_page[BYTES + 2], guest_page[BYTES], PAGE) != 0, "bytes before the answer");
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(101, OP_READ, 0, "a read");
	check(memcmp(guest_page[BYTES + 2], guest_page[BYTES], 2 * PAGE) == 0, "a read gives other bytes");
	put(OP_FLUSH, 102, 0, 0, 0);
	check_result(kick(guest_port), 0, "a kick");
	check(perform().op == OP_FLUSH, "no flush");
	answer(back_ring->slot[(req_cons - 1) % 32].request, RSP_EOPNOTSUPP);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(102, OP_FLUSH, RSP_EOPNOTSUPP, "a flush");
	struct disk_status s = status();
	check(s.writes == 1 && s.reads == 1 && s.written_sectors == 16 && s.read_sectors == 16 && s.errors == 1, "counts");
}

/* What is refused is not passed on; what a grant does not allow is not done. */
static void refused(void)
{
	static const struct {
		u8 op, nr;
		int status;
	} bad[] = { { OP_READ, 0, RSP_ERROR }, { OP_READ, 12, RSP_ERROR }, { OP_WRITE, 255, RSP_ERROR }, { OP_DISCARD, 0, RSP_EOPNOTSUPP },
		    { 4, 1, RSP_EOPNOTSUPP }, { 77, 1, RSP_EOPNOTSUPP } };
	for (u32 n = 0; n < COUNT(bad); n++) {
		put(bad[n].op, n, 0, 1, BYTES);
		guest_ring->slot[(guest_ring->req_prod - 1) % 32].request.nr = bad[n].nr;
		check_result(kick(guest_port), 0, "a kick");
		check(nr_passed_on() == 0, "%u is passed on", n);
		check_answer(n, bad[n].op, bad[n].status, "a bad request");
	}
	own_grants[FIRST_REF + BYTES].domid = OTHER;
	put(OP_WRITE, 50, 0, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	check(nr_passed_on() == 0, "what was not granted is passed on");
	check_answer(50, OP_WRITE, RSP_ERROR, "a grant to another");
	grant(&own_grants[FIRST_REF + BYTES], FRONT, mfn_of(guest_page[BYTES]), GRANT_READ_ONLY);
	fill(guest_page[BYTES], 9);
	put(OP_READ, 51, 0, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	answer(perform(), 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(51, OP_READ, RSP_ERROR, "a read into what may not be written");
	check(guest_page[BYTES][1] == 16, "it was written");
	grant(&own_grants[FIRST_REF + BYTES], FRONT, mfn_of(guest_page[BYTES]), 0);
}

/* The back end goes with requests that it has taken; the next one gets them again, and what it says of the old ones is not believed. */
static void back_ends(bool by_closing)
{
	fill(guest_page[BYTES], 3);
	put(OP_WRITE, 200, 40, 1, BYTES);
	put(OP_FLUSH, 201, 0, 0, 0);
	check_result(kick(guest_port), 0, "a kick");
	struct request old = perform();
	check(nr_passed_on() == 0, "a flush passes a write");
	memset(medium[40], 0, PAGE);
	struct disk_status before = status();
	if (by_closing) {
		check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	} else {
		struct disk request = { disk, 0 };
		check_result(channel_op(DISK_DETACH, &request), 0, "detaching");
		check_result(channel_op(DISK_DETACH, &request), -ENOENT, "detaching twice");
		check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	}
	check(status().back == NO_BACK && status().waiting == 2, "after the end of a back end");
	check(nr_in_use(front_grants, NR_FRONT) == NR_THROUGH, "%u grants hold what waits", nr_in_use(front_grants, NR_FRONT));
	audit();
	put(OP_READ, 202, 40, 1, BYTES + 1);
	check_result(kick(guest_port), 0, "a kick");
	check(nr_answers() == 0, "an answer without a back end");
	attach();
	wait_for(&back_ring->req_prod, 2);
	check(nr_passed_on() == 2, "%u are passed on", nr_passed_on());
	/* Answers go over requests: first these are taken. */
	struct request write = perform(), read = perform();
	answer(old, 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check(nr_answers() == 0 && status().bad_answers == before.bad_answers + 1, "an answer of an earlier life");
	check(write.op == OP_WRITE && read.op == OP_READ && write.id != old.id, "other requests");
	check(memcmp(medium[40], guest_page[BYTES], PAGE) == 0, "other bytes");
	answer(write, 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(200, OP_WRITE, 0, "a write");
	/* It has answered as much as it was asked now: more cannot be. */
	check(perform().op == OP_FLUSH, "no flush");
	answer(back_ring->slot[(req_cons - 1) % 32].request, 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(201, OP_FLUSH, 0, "a flush");
	check(status().repeated == before.repeated + 1, "%lu are repeated", status().repeated - before.repeated);
	answer(read, 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check((status().state & BACK_ENDED) && nr_answers() == 0, "a ring that cannot be");
	check(status().bad_rings == before.bad_rings + 1, "%u rings could not be", status().bad_rings - before.bad_rings);
	another_back_end();
	wait_for(&back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(202, OP_READ, 0, "a read");
	check(status().state == 0 && status().waiting == 0, "state %#x", status().state);
}

/* Who dies answers with errors before: of those the guest hears only if the back end lives on. */
static void errors_are_doubted(void)
{
	struct disk_status before = status();
	put(OP_WRITE, 300, 8, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	answer(perform(), RSP_ERROR);
	check_result(kick(back_port), 0, "the back end's kick");
	check(nr_answers() == 0 && status().waiting == 1, "an error that is believed at once");
	another_back_end();
	wait_for(&back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(300, OP_WRITE, 0, "a write that the next one does");
	put(OP_WRITE, 301, 8, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	answer(perform(), RSP_ERROR);
	check_result(kick(back_port), 0, "the back end's kick");
	clear_pending(guest_port);
	u64 start = now_ns();
	wait_for(&guest_ring->rsp_prod, guest_ring->rsp_prod + 1);
	check(now_ns() - start > 4000000000, "an error is believed after %lu ms", (now_ns() - start) / 1000000);
	check(is_pending(guest_port), "the guest is not told");
	check_answer(301, OP_WRITE, RSP_ERROR, "a write that cannot be");
	check(status().errors == before.errors + 1, "%lu errors", status().errors - before.errors);
}

/* Nobody waits for another back end: the guest gets errors. */
static void given_up(void)
{
	struct disk wait = { disk, 0 }, give_up = { disk, GIVE_UP };
	put(OP_WRITE, 400, 8, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	perform();
	clear_pending(guest_port);
	check_result(channel_op(DISK_DETACH, &give_up), 0, "giving up");
	wait_for(&guest_ring->rsp_prod, rsp_cons + 1);
	check(is_pending(guest_port), "the guest is not told");
	check_answer(400, OP_WRITE, RSP_ERROR, "one that has given up");
	check(status().state == GIVEN_UP && status().back == NO_BACK, "state %#x", status().state);
	put(OP_READ, 401, 8, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	check_answer(401, OP_READ, RSP_ERROR, "one that comes later");
	check_result(channel_op(DISK_DETACH, &wait), 0, "waiting again");
	check_result(channel_op(DISK_DETACH, &wait), -ENOENT, "waiting still");
	check(status().state == 0, "state %#x", status().state);
	put(OP_READ, 402, 8, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	check(nr_answers() == 0, "an answer without a back end");
	check_result(channel_op(DISK_DETACH, &give_up), 0, "giving up again");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	wait_for(&guest_ring->rsp_prod, rsp_cons + 1);
	check_answer(402, OP_READ, RSP_ERROR, "one that has given up again");
	attach();
	check(status().state == 0, "state %#x", status().state);
	put(OP_READ, 403, 8, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	wait_for(&back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(403, OP_READ, 0, "a read");
	audit();
}

/* The back end is taken away while two requests wait in its pages, which are held for them. */
static void leave_pages(void)
{
	const struct grant_entry *old = front_grants + set * NR_FRONT;
	struct disk name = { disk, 0 };
	check_result(channel_op(DISK_DETACH, &name), 0, "detaching");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	check((old[FIRST_REF].flags & WRITING) == 0, "the ring of the one before is in use");
	check(nr_in_use(old, NR_FRONT) == NR_THROUGH, "%u grants hold what waits", nr_in_use(old, NR_FRONT));
	audit();
	set = !set;
	back_ring = (struct ring *)front_page[set * NR_FRONT];
}

static void only_this_set_is_used(u32 nr)
{
	u32 own = nr_in_use(front_grants + set * NR_FRONT, NR_FRONT), others = nr_in_use(front_grants + !set * NR_FRONT, NR_FRONT);
	check(own == nr && others == 0, "%u grants of the set are in use, and %u of the other", own, others);
}

/* What waits goes to another set of pages while the one before is somebody's still. */
static void other_pages(void)
{
	fill(guest_page[BYTES], 31);
	fill(guest_page[BYTES + 1], 32);
	put(OP_WRITE, 500, 24, 2, BYTES);
	put(OP_READ, 501, 40, 1, BYTES + 2);
	check_result(kick(guest_port), 0, "a kick");
	wait_for(&back_ring->req_prod, req_cons + 2);
	memset(guest_page[BYTES], 0xee, PAGE);
	leave_pages();
	/* It has moved when the port is found to be none. */
	make_back_port();
	struct disk_attach request = request_of_back();
	request.port++;
	check_result(channel_op(DISK_ATTACH, &request), -EINVAL, "a port that is not there");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	only_this_set_is_used(NR_THROUGH);
	audit();
	set = !set;
	back_ring = (struct ring *)front_page[set * NR_FRONT];
	attach();
	only_this_set_is_used(NR_FRONT);
	leave_pages();
	attach();
	only_this_set_is_used(NR_FRONT);
	wait_for(&back_ring->req_prod, 2);
	answer(perform(), 0);
	answer(perform(), 0);
	check_result(kick(back_port), 0, "the back end's kick");
	check_answer(500, OP_WRITE, 0, "a write");
	check_answer(501, OP_READ, 0, "a read");
	fill(guest_page[BYTES], 31);
	check(memcmp(medium[24], guest_page[BYTES], PAGE) == 0 && memcmp(medium[32], guest_page[BYTES + 1], PAGE) == 0, "other bytes");
	check(memcmp(medium[40], guest_page[BYTES + 2], PAGE) == 0, "other bytes are read");
	audit();
}

/* A front end that begins again has no use for the port that it had opened. */
static void ports_are_closed(void)
{
	struct alloc_unbound port = { FRONT, 0, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound for the front end");
	struct disk_port name = { FRONT, 0, port.port };
	struct bind_interdomain bind = { FRONT, 0, port.port, 0 };
	check_result(evtchn(EVTCHN_bind_interdomain, &bind), 0, "bind_interdomain");
	check_result(channel_op(DISK_CLOSE_PORT, &name), 0, "closing it");
	check_result(channel_op(DISK_CLOSE_PORT, &name), -EINVAL, "closing it twice");
	u32 first = port.port;
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound for the front end");
	check(port.port == first, "port %u after %u", port.port, first);
	check_result(channel_op(DISK_CLOSE_PORT, &name), 0, "closing one that nobody is bound to");
	check_result(evtchn(EVTCHN_close, &bind.local_port), 0, "closing the other end");
	name.pad = 1;
	check_result(channel_op(DISK_CLOSE_PORT, &name), -EINVAL, "a field that must be zero");
	name = (struct disk_port){ 77, 0, 1 };
	check_result(channel_op(DISK_CLOSE_PORT, &name), -ESRCH, "no such domain");
	name = (struct disk_port){ 0, 0, guest_port };
	check_result(channel_op(DISK_CLOSE_PORT, &name), -EBUSY, "the hypervisor's");
}

static void bad_connections(void)
{
	struct disk_connect connect;
	struct disk name = { disk, 0 };
#define REFUSED(change, expected, what)                                                                                \
	connect = request_of_guest();                                                                                  \
	connect.device++;                                                                                              \
	change;                                                                                                        \
	check_result(channel_op(DISK_CONNECT, &connect), -(expected), what);                                           \
	check(nr_in_use(own_grants, NR_GUEST) == 1, "%s: %u grants are in use", what, nr_in_use(own_grants, NR_GUEST))
	REFUSED(connect.guest = 77, ESRCH, "no such guest");
	REFUSED(connect.backend = 77, ESRCH, "no such back end");
	REFUSED(connect.flags = 16, EINVAL, "unknown flags");
	REFUSED(connect.disk = 1, EINVAL, "a field that must be zero");
	REFUSED(connect.device--, EBUSY, "a device that is connected");
	REFUSED(connect.ring = 7, EINVAL, "a grant that is none");
	REFUSED(connect.ring = ~0u, EINVAL, "a grant beyond the table");
	REFUSED(connect.port = 0, EINVAL, "port 0");
	REFUSED(connect.port = new_ipi(0), EINVAL, "a port for something else");
	REFUSED(connect.ring += NR_GUEST - 1, EBUSY, "a port of another");
	check_result(channel_op(DISK_CONNECT, (void *)8), -EFAULT, "a request that is not there");
	struct disk_attach attach = request_of_back();
	check_result(channel_op(DISK_ATTACH, &attach), -EBUSY, "attaching twice");
	check_result(channel_op(DISK_DETACH, &name), 0, "detaching");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	make_back_port();
#define NOT_ATTACHED(change, expected, what)                                                                           \
	attach = request_of_back();                                                                                    \
	change;                                                                                                        \
	check_result(channel_op(DISK_ATTACH, &attach), -(expected), what);                                             \
	check(nr_in_use(front_grants, NR_FRONT) == 0, "%s: %u grants are in use", what, nr_in_use(front_grants, NR_FRONT))
	NOT_ATTACHED(attach.disk ^= 1 << 10, ENOENT, "no such disk");
	NOT_ATTACHED(attach.disk |= 1u << 31, ENOENT, "no such disk");
	NOT_ATTACHED(attach.back = 77, ESRCH, "no such back end");
	NOT_ATTACHED(attach.pad = 1, EINVAL, "a field that must be zero");
	NOT_ATTACHED(attach.nr_pages = 31, EINVAL, "too few pages");
	NOT_ATTACHED(attach.nr_pages = 1025, EINVAL, "too many pages");
	NOT_ATTACHED(attach.nr_pages = ~0u, EINVAL, "too many pages");
	NOT_ATTACHED(attach.first_page = ~0u, EINVAL, "grants beyond all");
	NOT_ATTACHED(attach.nr_pages += NR_FRONT + 1, EBUSY, "a page that was not granted");
	NOT_ATTACHED(attach.ring--, EBUSY, "a ring that was not granted");
	NOT_ATTACHED(attach.port++, EINVAL, "a port that is not there");
	front_grants[FIRST_REF + NR_FRONT - 1].domid = OTHER;
	NOT_ATTACHED((void)0, EBUSY, "a page that is granted to another");
	front_grants[FIRST_REF + NR_FRONT - 1].domid = 0;
	front_grants[FIRST_REF + NR_FRONT - 1].flags = PERMIT | GRANT_READ_ONLY;
	NOT_ATTACHED((void)0, EBUSY, "a page that may not be written");
	front_grants[FIRST_REF + NR_FRONT - 1].flags = PERMIT;
	attach = request_of_back();
	check_result(channel_op(DISK_ATTACH, &attach), 0, "attaching after all that");
	name.flags = 2;
	check_result(channel_op(DISK_DETACH, &name), -EINVAL, "detaching with flags");
	name.flags = GIVE_UP;
	check_result(channel_op(DISK_DISCONNECT, &name), -EINVAL, "disconnecting with flags");
	name = (struct disk){ disk ^ 1 << 10, 0 };
	check_result(channel_op(DISK_DISCONNECT, &name), -ENOENT, "disconnecting what is not there");
	struct disk_status list = { .next = 0 };
	check_result(channel_op(DISK_NEXT, &list), 0, "the first of all");
	check(list.disk == disk && list.guest == 0 && list.backend == FRONT && list.device == 51712, "another is the first");
	check_result(channel_op(DISK_NEXT, &list), -ENOENT, "the second of all");
}

static void gone(const char *what)
{
	struct disk_status status = { .disk = disk };
	check_result(channel_op(DISK_STATUS, &status), -ENOENT, what);
	check(nr_in_use(own_grants, NR_GUEST) == 0, "%s: %u of the guest's grants are in use", what, nr_in_use(own_grants, NR_GUEST));
	audit();
}

/* A guest's ring that cannot be ends the disk; the guest closes its port; the domain that it grants to goes. */
static void ends(void)
{
	struct disk name = { disk, 0 };
	guest_ring->req_prod += 33;
	check_result(kick(guest_port), 0, "a kick");
	check(status().state == ENDED, "state %#x of a ring that cannot be", status().state);
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check_result(channel_op(DISK_DISCONNECT, &name), -ENOENT, "disconnecting twice");
	gone("one that was disconnected");
	check(nr_in_use(front_grants, NR_FRONT) == 0, "%u grants are in use", nr_in_use(front_grants, NR_FRONT));
	check_result(evtchn(EVTCHN_close, &guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	make_guest();
	connect_guest();
	attach();
	put(OP_WRITE, 1, 0, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	check_result(evtchn(EVTCHN_close, &guest_port), 0, "closing the guest's port");
	gone("one whose port is closed");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	make_guest();
	connect_guest();
	attach();
	put(OP_WRITE, 1, 0, 1, BYTES);
	check_result(kick(guest_port), 0, "a kick");
	check_result(destroy_domain(FRONT), 0, "destroydomain");
	gone("one whose front end is dead");
	check_result(evtchn(EVTCHN_close, &guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &back_port), 0, "closing the back end's port");
	for (u32 n = 0; n < NR_SETS * NR_FRONT; n++)
		make_writable(front_page[n]);
	make_writable(front_table);
	check(domain_is_gone(FRONT), "it never goes");
}

void test_main(void)
{
	u64 frame_of_table = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		void *list;
	} setup = { DOMID_SELF, 0, 1, 99, &frame_of_table };
	shared_info();
	if (HC3(grant_table_op, 2, &setup, 1) || setup.status || update_va(own_table, pte(frame_of_table, P | RW | US), 2))
		error("the grant table");
	audit();
	make_front();
	make_guest();
	connect_guest();
	bytes_and_events();
	refused();
	back_ends(true);
	back_ends(false);
	audit();
	errors_are_doubted();
	given_up();
	other_pages();
	other_pages();
	ports_are_closed();
	bad_connections();
	ends();
	audit();
}
