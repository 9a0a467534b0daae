/*
 * Two guests' disks that one driver domain serves have it in shares by their weights while both ask for more than it does; one that asks for one at a
 * time does not wait behind the other's flood; one alone is not held back; one that is not answered is not waited for; and what a disk has under way
 * when it goes leaves room to the other at once.
 * (cpus: 1) (shares: channels disks) (differs: stock Xen has no end of a disk's)
 */
#include "disk.h"

const char test_name[] = "disk-shares";

/* The domain that never runs. A room is what may be under way of requests of a page each, of both disks. */
enum { FRONT = 7, NR_DISKS = 2, NR_GUEST = 2, BYTES = 1, ROOM = 32, QUEUE = 128, STEPS = 4000 };

static u8 front_page[NR_DISKS * PAGE_SETS * NR_FRONT][PAGE] SHARED __attribute__((aligned(4096)));
static u8 guest_page[NR_DISKS][NR_GUEST][PAGE] SHARED __attribute__((aligned(4096)));
static u8 front_table[PAGE] SHARED __attribute__((aligned(4096)));

static struct service service;
static struct disk disk[NR_DISKS];
static const u16 weight[NR_DISKS] = { 1, 3 };
/* Requests that a guest has made, and answers that it has got. */
static u64 nr_asked[NR_DISKS], nr_answered[NR_DISKS];

/* What the driver domain was asked, in the order in which it was. */
static struct {
	u32 of;
	struct taken request;
} queue[QUEUE];
static u32 queue_first, queue_end;

static void take_requests(void)
{
	for (u32 n = 0; n < NR_DISKS; n++)
		while (nr_passed_on(&disk[n]) > 0) {
			if (!check(queue_end - queue_first < QUEUE, "more than can be under way"))
				fail();
			queue[queue_end % QUEUE].of = n;
			queue[queue_end++ % QUEUE].request = take_request(&disk[n]);
		}
}

/* A guest asks until `most` of its requests are under way. None is another's neighbour. */
static void ask(u32 n, u32 most)
{
	for (; nr_asked[n] < nr_answered[n] + most; nr_asked[n]++) {
		struct blk_request *r = &next_slot(&disk[n])->request;
		*r = (struct blk_request){ .op = OP_READ, .nr = 1, .id = nr_asked[n], .sector = nr_asked[n] * 1000 };
		r->seg[0] = (struct segment){ disk[n].guest_ref + BYTES, 0, 7, 0 };
		push_request(&disk[n]);
	}
	check_result(kick(disk[n].guest_port), 0, "a guest's kick");
	take_requests();
}

/* The driver domain answers what it was asked first. Whose it was. */
static u32 answer_one(void)
{
	if (!check(queue_end != queue_first, "the driver domain has nothing to do"))
		fail();
	u32 n = queue[queue_first % QUEUE].of;
	const struct taken *r = &queue[queue_first++ % QUEUE].request;
	read_something(&disk[n], r);
	answer_request(&disk[n], r, 0);
	check_result(kick(disk[n].back_port), 0, "the back end's kick");
	while (nr_disk_answers(&disk[n]) > 0) {
		struct blk_response told = take_answer(&disk[n]);
		check(told.op == OP_READ && told.status == 0, "answer to %lu: %d", told.id, told.status);
		nr_answered[n]++;
	}
	take_requests();
	return n;
}

static void drain(void)
{
	while (queue_end != queue_first)
		answer_one();
	for (u32 n = 0; n < NR_DISKS; n++)
		check(nr_answered[n] == nr_asked[n], "disk %u: %lu of %lu are answered", n, nr_answered[n], nr_asked[n]);
}

static void floods(void)
{
	u64 before[NR_DISKS] = { nr_answered[0], nr_answered[1] };
	ask(0, BLK_SLOTS);
	check(queue_end - queue_first == BLK_SLOTS, "alone it has %u under way", queue_end - queue_first);
	ask(1, BLK_SLOTS);
	check(queue_end - queue_first == ROOM, "%u are under way", queue_end - queue_first);
	for (u32 step = 0; step < STEPS; step++)
		ask(answer_one(), BLK_SLOTS);
	u64 light = nr_answered[0] - before[0], heavy = nr_answered[1] - before[1];
	check(light + heavy == STEPS, "%lu and %lu are answered", light, heavy);
	check(light > STEPS / 4 - STEPS / 50 && light < STEPS / 4 + STEPS / 50, "of %u the light one has %lu", STEPS, light);
	printk("weights 1 and 3: %lu and %lu are answered\n", light, heavy);
	drain();
}

/* The light one asks for one at a time. */
static void one_at_a_time(void)
{
	u64 before = nr_answered[0];
	u32 waited = 0, longest = 0;
	ask(1, BLK_SLOTS);
	ask(0, 1);
	for (u32 step = 0; step < STEPS; step++) {
		u32 n = answer_one();
		waited = n == 0 ? 0 : waited + 1;
		longest = waited > longest ? waited : longest;
		ask(n, n == 0 ? 1 : BLK_SLOTS);
	}
	/* It waits for what is under way before it, and no more. */
	check(longest <= ROOM, "once it has waited for %u answers", longest);
	check(nr_answered[0] - before >= STEPS / (ROOM + 1), "%lu are answered", nr_answered[0] - before);
	drain();
}

/* One has all the room and is not answered: the other one waits for a while, and no longer. */
static void one_hangs(void)
{
	ask(0, BLK_SLOTS);
	u64 start = now_ns();
	ask(1, BLK_SLOTS);
	check(queue_end - queue_first == ROOM, "%u are under way", queue_end - queue_first);
	while (nr_passed_on(&disk[1]) < BLK_SLOTS && now_ns() - start < 10000000000)
		HC1(sched_op, SCHEDOP_yield);
	u64 waited = now_ns() - start;
	check(waited > 90000000 && waited < 2000000000, "it has waited for %lu ms", waited / 1000000);
	take_requests();
	check(queue_end - queue_first == ROOM + BLK_SLOTS, "%u are under way", queue_end - queue_first);
	drain();
}

/* One goes with all the room, and the other one has it at once. */
static void room_is_left(void)
{
	ask(0, BLK_SLOTS);
	ask(1, BLK_SLOTS);
	check(queue_end - queue_first == ROOM, "%u are under way", queue_end - queue_first);
	u32 before = disk[1].req_cons;
	detach_back(&disk[0]);
	take_requests();
	check(disk[1].req_cons - before == BLK_SLOTS, "%u go on of the one that is left", disk[1].req_cons - before);
	while (queue_end != queue_first)
		if (queue[queue_first % QUEUE].of == 0)
			queue_first++;
		else
			answer_one();
	attach_back(&disk[0]);
	u64 start = now_ns();
	while (nr_passed_on(&disk[0]) < BLK_SLOTS && now_ns() - start < 10000000000)
		HC1(sched_op, SCHEDOP_yield);
	take_requests();
	drain();
}

void test_main(void)
{
	shared_info();
	audit();
	make_service(&service, FRONT, front_page, NR_DISKS * PAGE_SETS * NR_FRONT, front_table);
	for (u32 n = 0; n < NR_DISKS; n++) {
		disk[n] = (struct disk){ .service = &service, .first_page = n * PAGE_SETS * NR_FRONT, .guest_page = guest_page[n],
					 .nr_guest = NR_GUEST, .guest_ref = 40 + n * NR_GUEST, .device = 51712 + n, .flags = WRITE | FLUSH,
					 .weight = weight[n] };
		use_set(&disk[n], 0);
		make_disk_guest(&disk[n]);
		connect_disk(&disk[n]);
		attach_back(&disk[n]);
	}
	floods();
	one_at_a_time();
	one_hangs();
	room_is_left();
	audit();
	for (u32 n = 0; n < NR_DISKS; n++) {
		struct disk_status status = status_of_disk(&disk[n]);
		check(status.waiting == 0 && status.bad_answers == 0 && status.errors == 0, "disk %u has %u waiting", n, status.waiting);
		struct disk_name name = { disk[n].name, 0 };
		check_result(channel_op(DISK_DISCONNECT, &name), 0, "disconnecting");
		check(grants_in_use(guest_grants(&disk[n]), NR_GUEST) == 0, "grants are in use after that");
	}
	audit();
}
