/*
 * A guest's disk: what it asks for is passed on to a back end, once, as it was asked for, neighbours together, and answered after that; when the back
 * end is gone the next one does what was not answered, also by other pages; what a back end says that is not so changes nothing, and its errors count if
 * it outlives them, for whose they are; what is refused; what a suspended guest has asked for waits until it goes on; who lets a disk go leaves
 * nothing unanswered; and nothing stays when the disk, its guest or its back end goes.
 * (cpus: 2) (shares: channels disks) (differs: stock Xen has no end of a disk's)
 */
#include "disk.h"

const char test_name[] = "disks";

/* The domain that never runs, and one that is granted nothing. */
enum { FRONT = 7, OTHER = 8 };
/* A guest that is suspended, and goes on. */
enum { GUEST = 9, SCHEDOP_remote_shutdown = 4, SHUTDOWN_suspend = 2, DOMCTL_RESUME = 27 };
enum { NR_GUEST = 6, SECTORS = 256, BYTES = 1 };

static u8 front_page[PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 guest_page[NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 front_table[PAGE] SHARED __attribute__((aligned(4096)));
static u8 other_page[NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 other_table[PAGE] SHARED __attribute__((aligned(4096)));
static u8 medium[SECTORS][SECTOR] SHARED;

static struct service service;
static struct disk disk = { .service = &service, .guest_page = guest_page, .nr_guest = NR_GUEST, .guest_ref = 40, .device = 51712,
			    .flags = WRITE | FLUSH | BARRIER };

static u32 nr_guests_in_use(void)
{
	return grants_in_use(guest_grants(&disk), NR_GUEST);
}

/* Of the first set of pages. */
static u32 nr_fronts_in_use(void)
{
	return grants_in_use(set_grants(&disk, 0), NR_FRONT);
}

static void make_front(void)
{
	make_service(&service, FRONT, front_page, PAGE_SETS * NR_FRONT, front_table);
	use_set(&disk, 0);
}

/* Until the hypervisor has done what there was to do at the beginning. */
static void wait_for(volatile u32 *index, u32 value)
{
	u64 start = now_ns();
	while (__atomic_load_n(index, __ATOMIC_ACQUIRE) != value && now_ns() - start < 10000000000)
		HC1(sched_op, SCHEDOP_yield);
}

/* The back end is taken away, and another one comes. */
static void another_back_end(void)
{
	detach_back(&disk);
	attach_back(&disk);
}

static struct disk_status status(void)
{
	return status_of_disk(&disk);
}

static void put(u8 op, u64 id, u64 sector, u32 nr, u32 page)
{
	struct blk_request *r = &next_slot(&disk)->request;
	*r = (struct blk_request){ .op = op, .nr = nr, .id = id, .sector = sector };
	for (u32 n = 0; n < nr; n++)
		r->seg[n] = (struct segment){ disk.guest_ref + page + n, 0, 7, 0 };
	push_request(&disk);
}

/* The back end takes a request and does it. */
static struct taken perform(void)
{
	struct taken r = take_request(&disk);
	if (!check(move_bytes(&disk, &r, medium, SECTORS), "grants or sectors that are none"))
		fail();
	return r;
}

static void answer(struct taken r, int16_t status)
{
	answer_request(&disk, &r, status);
}

static void check_answer(u64 id, u8 op, int status, const char *what)
{
	if (!check(nr_disk_answers(&disk) > 0, "%s: no answer", what))
		return;
	struct blk_response r = take_answer(&disk);
	check(r.id == id && r.op == op && r.status == status, "%s: answer to %lu (%u): %d", what, r.id, r.op, r.status);
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
	check_result(kick(disk.guest_port), 0, "a kick");
	check(status().waiting == 0 && status().back == NO_BACK, "it is taken without a back end");
	attach_back(&disk);
	wait_for(&disk.back_ring->req_prod, 1);
	check(is_pending(disk.back_port), "the back end is not told");
	check(status().waiting == 1 && status().back == 0, "%u wait", status().waiting);
	check(nr_guests_in_use() == 1, "%u of the guest's grants are in use", nr_guests_in_use());
	check(nr_fronts_in_use() == NR_FRONT, "%u grants are in use", nr_fronts_in_use());
	for (u32 n = 0; n < NR_FRONT - 1 - 2; n++)
		check(front_page[1 + 2 + n][77] == 0 || front_page[1 + 2 + n][78] != 0x5a, "page %u has what it had before", n);
	/* What it does with its pages now is its own affair. */
	memset(guest_page[BYTES], 0xee, PAGE);
	struct taken write = perform();
	check(nr_disk_answers(&disk) == 0, "an answer before it is done");
	clear_pending(disk.guest_port);
	answer(write, 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check(is_pending(disk.guest_port), "the guest is not told");
	check_answer(100, OP_WRITE, 0, "a write");
	fill(guest_page[BYTES], 1);
	check(memcmp(medium[8], guest_page[BYTES], PAGE) == 0 && memcmp(medium[16], guest_page[BYTES + 1], PAGE) == 0, "other bytes");
	memset(guest_page[BYTES + 2], 0, 2 * PAGE);
	put(OP_READ, 101, 8, 2, BYTES + 2);
	check_result(kick(disk.guest_port), 0, "a kick");
	answer(perform(), 0);
	check(memcmp(guest_page[BYTES + 2], guest_page[BYTES], PAGE) != 0, "bytes before the answer");
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(101, OP_READ, 0, "a read");
	check(memcmp(guest_page[BYTES + 2], guest_page[BYTES], 2 * PAGE) == 0, "a read gives other bytes");
	put(OP_FLUSH, 102, 0, 0, 0);
	check_result(kick(disk.guest_port), 0, "a kick");
	struct taken flush = perform();
	check(flush.op == OP_FLUSH, "no flush");
	answer(flush, BLK_UNSUPPORTED);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(102, OP_FLUSH, BLK_UNSUPPORTED, "a flush");
	struct disk_status s = status();
	check(s.writes == 1 && s.reads == 1 && s.written_sectors == 16 && s.read_sectors == 16 && s.errors == 1, "counts");
}

/* What is refused is not passed on; what a grant does not allow is not done. */
static void refused(void)
{
	static const struct {
		u8 op, nr;
		int status;
	} bad[] = { { OP_READ, 0, BLK_ERROR }, { OP_READ, 12, BLK_ERROR }, { OP_WRITE, 255, BLK_ERROR }, { OP_DISCARD, 0, BLK_UNSUPPORTED },
		    { 4, 1, BLK_UNSUPPORTED }, { 77, 1, BLK_UNSUPPORTED } };
	for (u32 n = 0; n < COUNT(bad); n++) {
		put(bad[n].op, n, 0, 1, BYTES);
		disk.guest_ring->slot[(disk.guest_ring->req_prod - 1) % 32].request.nr = bad[n].nr;
		check_result(kick(disk.guest_port), 0, "a kick");
		check(nr_passed_on(&disk) == 0, "%u is passed on", n);
		check_answer(n, bad[n].op, bad[n].status, "a bad request");
	}
	guest_grants(&disk)[BYTES].domid = OTHER;
	put(OP_WRITE, 50, 0, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	check(nr_passed_on(&disk) == 0, "what was not granted is passed on");
	check_answer(50, OP_WRITE, BLK_ERROR, "a grant to another");
	grant(&guest_grants(&disk)[BYTES], FRONT, mfn_of(guest_page[BYTES]), GRANT_READ_ONLY);
	fill(guest_page[BYTES], 9);
	put(OP_READ, 51, 0, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(51, OP_READ, BLK_ERROR, "a read into what may not be written");
	check(guest_page[BYTES][1] == 16, "it was written");
	grant(&guest_grants(&disk)[BYTES], FRONT, mfn_of(guest_page[BYTES]), 0);
}

/* The back end goes with requests that it has taken; the next one gets them again, and what it says of the old ones is not believed. */
static void back_ends(bool by_closing)
{
	fill(guest_page[BYTES], 3);
	put(OP_WRITE, 200, 40, 1, BYTES);
	put(OP_FLUSH, 201, 0, 0, 0);
	check_result(kick(disk.guest_port), 0, "a kick");
	struct taken old = perform();
	check(nr_passed_on(&disk) == 0, "a flush passes a write");
	memset(medium[40], 0, PAGE);
	struct disk_status before = status();
	if (by_closing) {
		check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	} else {
		struct disk_name request = { disk.name, 0 };
		check_result(channel_op(DISK_DETACH, &request), 0, "detaching");
		check_result(channel_op(DISK_DETACH, &request), -ENOENT, "detaching twice");
		check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	}
	check(status().back == NO_BACK && status().waiting == 2, "after the end of a back end");
	check(nr_fronts_in_use() == NR_THROUGH, "%u grants hold what waits", nr_fronts_in_use());
	audit();
	put(OP_READ, 202, 40, 1, BYTES + 1);
	check_result(kick(disk.guest_port), 0, "a kick");
	check(nr_disk_answers(&disk) == 0, "an answer without a back end");
	attach_back(&disk);
	wait_for(&disk.back_ring->req_prod, 2);
	check(nr_passed_on(&disk) == 2, "%u are passed on", nr_passed_on(&disk));
	/* Answers go over requests: first these are taken. */
	struct taken write = perform(), read = perform();
	answer(old, 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check(nr_disk_answers(&disk) == 0 && status().bad_answers == before.bad_answers + 1, "an answer of an earlier life");
	check(write.op == OP_WRITE && read.op == OP_READ && write.id != old.id, "other requests");
	check(memcmp(medium[40], guest_page[BYTES], PAGE) == 0, "other bytes");
	answer(write, 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(200, OP_WRITE, 0, "a write");
	/* It has answered as much as it was asked now: more cannot be. */
	struct taken flush = perform();
	check(flush.op == OP_FLUSH, "no flush");
	answer(flush, 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(201, OP_FLUSH, 0, "a flush");
	check(status().repeated == before.repeated + 1, "%lu are repeated", status().repeated - before.repeated);
	answer(read, 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check((status().state & BACK_ENDED) && nr_disk_answers(&disk) == 0, "a ring that cannot be");
	check(status().bad_rings == before.bad_rings + 1, "%u rings could not be", status().bad_rings - before.bad_rings);
	another_back_end();
	wait_for(&disk.back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(202, OP_READ, 0, "a read");
	check(status().state == 0 && status().waiting == 0, "state %#x", status().state);
}

/* A back end says that it has read, and has not: the guest is told nothing, and the next one is asked. */
static void reads_nothing(void)
{
	struct disk_status before = status();
	put(OP_READ, 250, 40, 2, BYTES + 1);
	check_result(kick(disk.guest_port), 0, "a kick");
	answer(take_request(&disk), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check(status().state == BACK_EMPTY && nr_disk_answers(&disk) == 0, "a read that brought nothing is believed: state %#x", status().state);
	check(status().empty_reads == before.empty_reads + 1 && status().bad_rings == before.bad_rings, "counts");
	another_back_end();
	wait_for(&disk.back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(250, OP_READ, 0, "a read");
	check(memcmp(guest_page[BYTES + 1], medium[40], 2 * PAGE) == 0 && status().state == 0, "other bytes, or state %#x", status().state);
}

/* Who dies answers with errors before: of those the guest hears only if the back end lives on. */
static void errors_are_doubted(void)
{
	struct disk_status before = status();
	put(OP_WRITE, 300, 8, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	answer(perform(), BLK_ERROR);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check(nr_disk_answers(&disk) == 0 && status().waiting == 1, "an error that is believed at once");
	another_back_end();
	wait_for(&disk.back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(300, OP_WRITE, 0, "a write that the next one does");
	put(OP_WRITE, 301, 8, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	answer(perform(), BLK_ERROR);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	clear_pending(disk.guest_port);
	u64 start = now_ns();
	wait_for(&disk.guest_ring->rsp_prod, disk.guest_ring->rsp_prod + 1);
	check(now_ns() - start > 4000000000, "an error is believed after %lu ms", (now_ns() - start) / 1000000);
	check(is_pending(disk.guest_port), "the guest is not told");
	check_answer(301, OP_WRITE, BLK_ERROR, "a write that cannot be");
	check(status().errors == before.errors + 1, "%lu errors", status().errors - before.errors);
}

/*
 * What waits together and is neighbours goes together, and each is answered; an error of all may be one's alone, so each is done once more by
 * itself.
 */
static void neighbours(void)
{
	static const u64 sector[] = { 24, 8, 16 };
	struct disk_status before = status();
	for (u32 n = 0; n < COUNT(sector); n++) {
		fill(guest_page[BYTES + n], 20 + n);
		put(OP_WRITE, 500 + n, sector[n], 1, BYTES + n);
	}
	check_result(kick(disk.guest_port), 0, "a kick");
	check(nr_passed_on(&disk) == 1, "%u are passed on", nr_passed_on(&disk));
	struct taken all = perform();
	check(all.op == OP_WRITE && all.sector == 8 && all.nr == 3, "%u pages at %lu", all.nr, all.sector);
	for (u32 n = 0; n < COUNT(sector); n++)
		check(memcmp(medium[sector[n]], guest_page[BYTES + n], PAGE) == 0, "other bytes at %lu", sector[n]);
	answer(all, BLK_ERROR);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check(nr_disk_answers(&disk) == 0, "an error that may be another's");
	check(nr_passed_on(&disk) == 3, "%u are passed on once more", nr_passed_on(&disk));
	for (u64 at = 8; at <= 24; at += 8) {
		struct taken one = perform();
		check(one.op == OP_WRITE && one.sector == at && one.nr == 1, "%u pages at %lu, not %lu", one.nr, one.sector, at);
		answer(one, 0);
		check_result(kick(disk.back_port), 0, "the back end's kick");
		check_answer(500 + (at == 24 ? 0 : at / 8), OP_WRITE, 0, "a neighbour");
	}
	struct disk_status s = status();
	check(s.merged == before.merged + 2 && s.passed_on == before.passed_on + 4 && s.errors == before.errors, "counts");
	check(s.answered == before.answered + 4, "%lu are answered", s.answered - before.answered);
}

/* A run of more pages than a slot has room for is listed in a page, if the back end takes that. */
static void lists(void)
{
	enum { NR = 5, ASKS = 3 };
	for (disk.max_segments = 0; disk.max_segments <= 2 * MAX_SEGMENTS; disk.max_segments += NR * ASKS) {
		bool is_listed = disk.max_segments >= NR * ASKS;
		struct disk_status before = status();
		/* The new one is looked at once, when it comes: not between two of these. */
		disk.guest_ring->req_event = disk.guest_ring->req_prod;
		another_back_end();
		wait_for(&disk.guest_ring->req_event, disk.guest_ring->req_prod + 1);
		for (u32 n = 0; n < ASKS; n++) {
			fill(guest_page[BYTES + n], disk.max_segments + n);
			put(OP_WRITE, 600 + n, n * NR * PAGE_SECTORS, NR, BYTES);
		}
		check_result(kick(disk.guest_port), 0, "a kick");
		u32 nr = nr_passed_on(&disk);
		check(nr == (is_listed ? 1 : 2), "%u are passed on to who takes %u", nr, disk.max_segments);
		for (; nr > 0; nr--) {
			struct taken r = perform();
			check((r.list != 0) == is_listed && r.nr == (is_listed ? NR * ASKS : nr == 2 ? DIRECT_SEGMENTS : 4), "%u pages, listed in %u", r.nr,
			      r.list);
			answer(r, 0);
		}
		check_result(kick(disk.back_port), 0, "the back end's kick");
		for (u32 n = 0; n < ASKS; n++)
			check_answer(600 + n, OP_WRITE, 0, "a part of a long run");
		for (u32 n = 0; n < ASKS * NR; n++)
			check(memcmp(medium[n * PAGE_SECTORS], guest_page[BYTES + n % NR], PAGE) == 0, "other bytes in page %u", n);
		check(status().errors == before.errors, "errors");
	}
	disk.max_segments = 0;
	another_back_end();
}

static u64 rdtsc(void)
{
	u32 low, high;
	asm volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (u64)high << 32 | low;
}

/* What the hypervisor takes for reads of a page, from the guest's notification and from the back end's: `nr` at a time, `step` sectors apart. */
static void cost(u32 nr, u64 step)
{
	enum { ROUNDS = 64 };
	u64 ticks = 0;
	for (u32 round = 0; round < ROUNDS; round++) {
		for (u32 n = 0; n < nr; n++)
			put(OP_READ, n, 8 + n * step, 1, BYTES);
		u64 start = rdtsc();
		check_result(kick(disk.guest_port), 0, "a kick");
		ticks += rdtsc() - start;
		while (nr_passed_on(&disk) > 0) {
			struct taken r = take_request(&disk);
			read_something(&disk, &r);
			answer(r, 0);
		}
		start = rdtsc();
		check_result(kick(disk.back_port), 0, "the back end's kick");
		ticks += rdtsc() - start;
		check(nr_disk_answers(&disk) == nr, "%u answers", nr_disk_answers(&disk));
		while (nr_disk_answers(&disk) > 0)
			take_answer(&disk);
	}
	printk("  %u at a time, %lu sectors apart: %lu ticks for each read of a page\n", nr, step, ticks / nr / ROUNDS);
}

static void costs(void)
{
	cost(1, 8);
	for (u32 nr = 4; nr <= BLK_SLOTS; nr *= 8) {
		cost(nr, 8);
		cost(nr, 1000);
	}
}

/* Nobody waits for another back end: the guest gets errors. */
static void given_up(void)
{
	struct disk_name wait = { disk.name, 0 }, give_up = { disk.name, GIVE_UP };
	put(OP_WRITE, 400, 8, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	perform();
	clear_pending(disk.guest_port);
	check_result(channel_op(DISK_DETACH, &give_up), 0, "giving up");
	wait_for(&disk.guest_ring->rsp_prod, disk.rsp_cons + 1);
	check(is_pending(disk.guest_port), "the guest is not told");
	check_answer(400, OP_WRITE, BLK_ERROR, "one that has given up");
	check(status().state == GIVEN_UP && status().back == NO_BACK, "state %#x", status().state);
	put(OP_READ, 401, 8, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	check_answer(401, OP_READ, BLK_ERROR, "one that comes later");
	check_result(channel_op(DISK_DETACH, &wait), 0, "waiting again");
	check_result(channel_op(DISK_DETACH, &wait), -ENOENT, "waiting still");
	check(status().state == 0, "state %#x", status().state);
	put(OP_READ, 402, 8, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	check(nr_disk_answers(&disk) == 0, "an answer without a back end");
	check_result(channel_op(DISK_DETACH, &give_up), 0, "giving up again");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	wait_for(&disk.guest_ring->rsp_prod, disk.rsp_cons + 1);
	check_answer(402, OP_READ, BLK_ERROR, "one that has given up again");
	attach_back(&disk);
	check(status().state == 0, "state %#x", status().state);
	put(OP_READ, 403, 8, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	wait_for(&disk.back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(403, OP_READ, 0, "a read");
	audit();
}

/* The back end is taken away while two requests wait in its pages, which are held for them. */
static void leave_pages(void)
{
	const struct grant_entry *old = set_grants(&disk, disk.set);
	struct disk_name name = { disk.name, 0 };
	check_result(channel_op(DISK_DETACH, &name), 0, "detaching");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	check((old[0].flags & WRITING) == 0, "the ring of the one before is in use");
	check(grants_in_use(old, NR_FRONT) == NR_THROUGH, "%u grants hold what waits", grants_in_use(old, NR_FRONT));
	audit();
	use_set(&disk, !disk.set);
}

static void only_this_set_is_used(u32 nr)
{
	u32 own = grants_in_use(set_grants(&disk, disk.set), NR_FRONT), others = grants_in_use(set_grants(&disk, !disk.set), NR_FRONT);
	check(own == nr && others == 0, "%u grants of the set are in use, and %u of the other", own, others);
}

/* What waits goes to another set of pages while the one before is somebody's still, and is what the guest had, not what its back end has left. */
static void other_pages(void)
{
	fill(guest_page[BYTES], 31);
	fill(guest_page[BYTES + 1], 32);
	put(OP_WRITE, 500, 24, 2, BYTES);
	put(OP_READ, 501, 40, 1, BYTES + 2);
	check_result(kick(disk.guest_port), 0, "a kick");
	wait_for(&disk.back_ring->req_prod, disk.req_cons + 2);
	/* What it leaves there nobody is to write. */
	for (u32 n = 1; n < NR_FRONT; n++)
		memset(set_page(&disk, n), 0xbd, PAGE);
	leave_pages();
	/* It has moved when the port is found to be none. */
	make_back_port(&disk);
	struct disk_attach request = request_of_back(&disk);
	request.port++;
	check_result(channel_op(DISK_ATTACH, &request), -EINVAL, "a port that is not there");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	only_this_set_is_used(NR_THROUGH);
	audit();
	use_set(&disk, !disk.set);
	attach_back(&disk);
	only_this_set_is_used(NR_FRONT);
	leave_pages();
	attach_back(&disk);
	only_this_set_is_used(NR_FRONT);
	wait_for(&disk.back_ring->req_prod, 2);
	answer(perform(), 0);
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(500, OP_WRITE, 0, "a write");
	check_answer(501, OP_READ, 0, "a read");
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
	name = (struct disk_port){ 0, 0, disk.guest_port };
	check_result(channel_op(DISK_CLOSE_PORT, &name), -EBUSY, "the hypervisor's");
}

static void bad_connections(void)
{
	struct disk_connect connect;
	struct disk_name name = { disk.name, 0 };
#define REFUSED(change, expected, what)                                                                                \
	connect = request_of_guest(&disk);                                                                                  \
	connect.device++;                                                                                              \
	change;                                                                                                        \
	check_result(channel_op(DISK_CONNECT, &connect), -(expected), what);                                           \
	check(nr_guests_in_use() == 1, "%s: %u grants are in use", what, nr_guests_in_use())
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
	struct disk_attach attach = request_of_back(&disk);
	check_result(channel_op(DISK_ATTACH, &attach), -EBUSY, "attaching twice");
	check_result(channel_op(DISK_DETACH, &name), 0, "detaching");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	make_back_port(&disk);
#define NOT_ATTACHED(change, expected, what)                                                                           \
	attach = request_of_back(&disk);                                                                                    \
	change;                                                                                                        \
	check_result(channel_op(DISK_ATTACH, &attach), -(expected), what);                                             \
	check(nr_fronts_in_use() == 0, "%s: %u grants are in use", what, nr_fronts_in_use())
	NOT_ATTACHED(attach.disk ^= 1 << 10, ENOENT, "no such disk");
	NOT_ATTACHED(attach.disk |= 1u << 31, ENOENT, "no such disk");
	NOT_ATTACHED(attach.back = 77, ESRCH, "no such back end");
	NOT_ATTACHED(attach.nr_pages = 31, EINVAL, "too few pages");
	NOT_ATTACHED(attach.nr_pages = 1025, EINVAL, "too many pages");
	NOT_ATTACHED(attach.nr_pages = ~0u, EINVAL, "too many pages");
	NOT_ATTACHED(attach.first_page = ~0u, EINVAL, "grants beyond all");
	NOT_ATTACHED(attach.nr_pages += NR_FRONT + 1, EBUSY, "a page that was not granted");
	NOT_ATTACHED(attach.ring--, EBUSY, "a ring that was not granted");
	NOT_ATTACHED(attach.port++, EINVAL, "a port that is not there");
	set_grants(&disk, 0)[NR_FRONT - 1].domid = OTHER;
	NOT_ATTACHED((void)0, EBUSY, "a page that is granted to another");
	set_grants(&disk, 0)[NR_FRONT - 1].domid = 0;
	set_grants(&disk, 0)[NR_FRONT - 1].flags = PERMIT | GRANT_READ_ONLY;
	NOT_ATTACHED((void)0, EBUSY, "a page that may not be written");
	set_grants(&disk, 0)[NR_FRONT - 1].flags = PERMIT;
	attach = request_of_back(&disk);
	check_result(channel_op(DISK_ATTACH, &attach), 0, "attaching after all that");
	name.flags = 2;
	check_result(channel_op(DISK_DETACH, &name), -EINVAL, "detaching with flags");
	name.flags = GIVE_UP;
	check_result(channel_op(DISK_DISCONNECT, &name), -EINVAL, "disconnecting with flags");
	name = (struct disk_name){ disk.name ^ 1 << 10, 0 };
	check_result(channel_op(DISK_DISCONNECT, &name), -ENOENT, "disconnecting what is not there");
	struct disk_status list = { .next = 0 };
	check_result(channel_op(DISK_NEXT, &list), 0, "the first of all");
	check(list.disk == disk.name && list.guest == 0 && list.backend == FRONT && list.device == 51712, "another is the first");
	check_result(channel_op(DISK_NEXT, &list), -ENOENT, "the second of all");
}

static void gone(const char *what)
{
	struct disk_status status = { .disk = disk.name };
	check_result(channel_op(DISK_STATUS, &status), -ENOENT, what);
	check(nr_guests_in_use() == 0, "%s: %u of the guest's grants are in use", what, nr_guests_in_use());
	audit();
}

/* What a suspended guest has asked for waits until it goes on here: it may go on elsewhere, and have written something else since. */
static void suspended(void)
{
	static struct service guest;
	struct disk own = disk;
	struct domctl resume = { 0 };
	u32 remote[2] = { GUEST, SHUTDOWN_suspend };
	make_service(&guest, GUEST, other_page, NR_GUEST, other_table);
	set_max_vcpus(GUEST);
	disk = (struct disk){ .service = &service, .guest = &guest, .guest_page = other_page, .nr_guest = NR_GUEST, .guest_ref = 40,
			      .device = own.device, .flags = own.flags };
	use_set(&disk, !own.set);
	make_disk_guest(&disk);
	connect_disk(&disk);
	fill(other_page[BYTES], 41);
	put(OP_WRITE, 800, 80, 1, BYTES);
	attach_back(&disk);
	wait_for(&disk.back_ring->req_prod, 1);
	detach_back(&disk);
	check(status().waiting == 1 && status().state == 0, "%u wait, state %#x", status().waiting, status().state);
	check_result(HC2(sched_op, SCHEDOP_remote_shutdown, remote), 0, "suspending the guest");
	check(status().state == GUEST_STOPPED, "state %#x of a suspended guest's", status().state);
	disk.back_ring->req_prod = 0;
	make_back_port(&disk);
	struct disk_attach request = request_of_back(&disk);
	check_result(channel_op(DISK_ATTACH, &request), -EAGAIN, "attaching a suspended guest's disk");
	check(status().back == NO_BACK && status().waiting == 1 && disk.back_ring->req_prod == 0, "it has a back end");
	check_result(domctl(GUEST, DOMCTL_RESUME, &resume), 0, "resumedomain");
	check(status().state == 0, "state %#x", status().state);
	check_result(channel_op(DISK_ATTACH, &request), 0, "attaching when it goes on");
	disk.req_cons = 0;
	wait_for(&disk.back_ring->req_prod, 1);
	answer(perform(), 0);
	check_result(kick(disk.back_port), 0, "the back end's kick");
	check_answer(800, OP_WRITE, 0, "a write");
	check(memcmp(medium[80], other_page[BYTES], PAGE) == 0 && nr_passed_on(&disk) == 0, "other bytes, or more than was asked");
	check_result(destroy_domain(GUEST), 0, "destroydomain");
	gone("one whose guest is dead");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	let_go_of_service(&guest);
	check(domain_is_gone(GUEST), "it never goes");
	disk = own;
}

/* Who lets a disk go leaves nothing unanswered, whether it was taken from the ring or not: a front end that closes waits for that. */
static void let_go_with_requests(void)
{
	struct disk_name name = { disk.name, 0 };
	put(OP_READ, 700, 8, 1, BYTES);
	put(OP_WRITE, 701, 64, 1, BYTES + 1);
	check_result(kick(disk.guest_port), 0, "a kick");
	check(status().waiting == 2 && nr_disk_answers(&disk) == 0, "%u wait", status().waiting);
	put(OP_READ, 702, 16, 1, BYTES + 2);
	clear_pending(disk.guest_port);
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check(nr_disk_answers(&disk) == 3, "%u answers to what was asked of a disk that is let go", nr_disk_answers(&disk));
	check(is_pending(disk.guest_port), "the guest is not told");
	check_answer(700, OP_READ, BLK_ERROR, "a read under way");
	check_answer(701, OP_WRITE, BLK_ERROR, "a write under way");
	check_answer(702, OP_READ, BLK_ERROR, "one that nobody has taken");
	gone("one that was let go with requests");
	check_result(evtchn(EVTCHN_close, &disk.guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	make_disk_guest(&disk);
	connect_disk(&disk);
	attach_back(&disk);
}

/* A guest's ring that cannot be ends the disk; the guest closes its port; the domain that it grants to goes. */
static void ends(void)
{
	struct disk_name name = { disk.name, 0 };
	disk.guest_ring->req_prod += 33;
	check_result(kick(disk.guest_port), 0, "a kick");
	check(status().state == ENDED, "state %#x of a ring that cannot be", status().state);
	check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
	check_result(channel_op(DISK_DISCONNECT, &name), -ENOENT, "disconnecting twice");
	gone("one that was disconnected");
	check(nr_fronts_in_use() == 0, "%u grants are in use", nr_fronts_in_use());
	check_result(evtchn(EVTCHN_close, &disk.guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	make_disk_guest(&disk);
	connect_disk(&disk);
	attach_back(&disk);
	put(OP_WRITE, 1, 0, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	check_result(evtchn(EVTCHN_close, &disk.guest_port), 0, "closing the guest's port");
	gone("one whose port is closed");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	make_disk_guest(&disk);
	connect_disk(&disk);
	attach_back(&disk);
	put(OP_WRITE, 1, 0, 1, BYTES);
	check_result(kick(disk.guest_port), 0, "a kick");
	check_result(destroy_domain(FRONT), 0, "destroydomain");
	gone("one whose front end is dead");
	check_result(evtchn(EVTCHN_close, &disk.guest_port), 0, "closing the guest's port");
	check_result(evtchn(EVTCHN_close, &disk.back_port), 0, "closing the back end's port");
	let_go_of_service(&service);
	check(domain_is_gone(FRONT), "it never goes");
}

void test_main(void)
{
	shared_info();
	audit();
	make_front();
	make_disk_guest(&disk);
	connect_disk(&disk);
	bytes_and_events();
	refused();
	back_ends(true);
	back_ends(false);
	reads_nothing();
	audit();
	errors_are_doubted();
	neighbours();
	lists();
	costs();
	given_up();
	other_pages();
	other_pages();
	ports_are_closed();
	bad_connections();
	suspended();
	let_go_with_requests();
	ends();
	audit();
}
