/* A card with two transmit queues: each guest's packets go by one of them, and neither waits for the other. */
#include "card.h"

enum { STRIDE = 1024, SKB_QUEUE = 6 * 8 };

static struct front b;

static u64 queue_at(u32 n)
{
	return (u64)card->queue + n * STRIDE;
}

static volatile u64 *state_of(u32 n)
{
	return word(queue_at(n), QUEUE_STATE);
}

static volatile u32 *lock_of(u32 n)
{
	return (u32 *)word(queue_at(n), QUEUE_LOCK);
}

static void begin(void)
{
	struct twin_attach request;
	load_card("domains_own");
	request = good_attach();
	request.nr_queues = 2;
	request.queue_stride = STRIDE;
	check_result(twin_op(TWINOP_ATTACH, &request), 0, "attaching a card with two queues");
}

static void from(struct front *front, u32 seed)
{
	send(front, stranger, front->mac, 60 + seed, seed);
}

/* The last packet that the driver has is this front end's, and is to go by this queue. */
static void check_queue(struct front *front, u32 seed, u32 queue, const char *what)
{
	u64 skb = card->tx[(card->nr_sent - 1) % 64];
	make_frame(stranger, front->mac, 60 + seed, seed);
	check_sent(60 + seed, what);
	check(*(u16 *)word(skb, SKB_QUEUE) == queue, "%s: by queue %u", what, *(u16 *)word(skb, SKB_QUEUE));
}

static void check_answered(struct front *front, u32 nr, const char *what)
{
	UNTIL(nr_answers(front) >= nr, what);
	check(nr_answers(front) == nr, "%s: %u answers instead of %u", what, nr_answers(front), nr);
	while (nr_answers(front))
		check(answer(front) == 0, "%s: an error", what);
}

/* All have gone, so many of each. */
static void gone(u32 guests, u32 bs, const char *what)
{
	card->nr_gone = card->nr_sent;
	interrupt(what);
	check_answered(&guest, guests, what);
	check_answered(&b, bs, what);
	check(*lock_of(0) == 0 && *lock_of(1) == 0, "%s: locks %#x, %#x", what, *lock_of(0), *lock_of(1));
}

static void each_has_its_own(void)
{
	for (u32 n = 0; n < 3; n++) {
		from(&guest, n);
		check_queue(&guest, n, 0, "the first one's");
		from(&b, n);
		check_queue(&b, n, 1, "the second one's");
	}
	gone(3, 3, "by both queues");
}

/* What is stopped or locked for one is not for the other. The driver's poll wakes the first queue, whichever lane runs it. */
static void neither_waits(void)
{
	u64 sent = card->nr_sent;
	*state_of(0) = 1;
	from(&guest, 1);
	from(&guest, 2);
	check(card->nr_sent == sent, "a stopped queue sends");
	from(&b, 3);
	check(card->nr_sent == sent + 1, "one queue waits for another");
	check_queue(&b, 3, 1, "beside a stopped queue");
	card->nr_gone = card->nr_sent;
	interrupt("beside a stopped queue");
	check_answered(&b, 1, "beside a stopped queue");
	check(nr_answers(&guest) == 0, "what waits for a queue is answered");
	card->wake = 1;
	interrupt("waking the queue");
	UNTIL(card->nr_sent == sent + 3, "what waited for the queue");
	check_queue(&guest, 2, 0, "what waited for the queue");
	gone(2, 0, "what waited for the queue");
	*lock_of(1) = 1;
	from(&b, 4);
	check(card->nr_sent == sent + 3 && *lock_of(1) == 1, "beside another who transmits; the lock is %#x", *lock_of(1));
	from(&guest, 5);
	check(card->nr_sent == sent + 4, "one queue's lock holds the other up");
	*lock_of(1) = 0;
	UNTIL(card->nr_sent == sent + 5, "when the other is done");
	gone(1, 1, "when the other is done");
}

/* A queue that is stopped takes no more than its share of the buffers that were lent: half of those that are not for receiving. */
static void none_takes_all(void)
{
	enum { MANY = 30, SHARE = NR_SKBS * 3 / 4 / 2 };
	u64 sent = card->nr_sent;
	*state_of(0) = 1;
	for (u32 n = 0; n < MANY; n++)
		from(&guest, 1);
	for (u32 n = 0; n < SHARE; n++)
		from(&b, 2);
	check(card->nr_sent == sent + SHARE, "%lu packets go beside a stopped queue whose sender has many", card->nr_sent - sent);
	gone(0, SHARE, "beside a stopped queue whose sender has many");
	card->wake = 1;
	u32 nr = 0;
	for (u64 end = now_ns() + 10000000000; nr < MANY && now_ns() < end;) {
		card->nr_gone = card->nr_sent;
		ask_for_interrupt();
		HC1(sched_op, SCHEDOP_yield);
		for (; nr_answers(&guest); nr++)
			check(answer(&guest) == 0, "an error");
	}
	check(nr == MANY && card->nr_sent == sent + SHARE + MANY, "%u of %u packets were sent when the queue was woken", nr, MANY);
}

/* Both wait for the domain at one time, each in an instance of its own. */
static void both_wait(void)
{
	struct twin_call first, second, third;
	u64 sent = card->nr_sent;
	card->xmit_call = 1;
	card->argument = 70;
	from(&guest, 1);
	card->argument = 71;
	from(&b, 2);
	check(next(&first) && next(&second), "two calls at one time");
	check(first.instance != second.instance && first.args[0] + second.args[0] == 141, "calls of %lu in %u, %lu in %u", first.args[0],
	      first.instance, second.args[0], second.instance);
	check(!next(&third), "a third call");
	check(detach() == -EBUSY, "taking a card away of which two queues wait");
	card->xmit_call = 0;
	check_result(go_on(&second, 0), 0, "the second goes on first");
	check(second.reason == RETURNED && card->nr_sent == sent + 1, "%lu packets", card->nr_sent - sent);
	check(detach() == -EBUSY, "taking a card away of which one queue waits");
	check_result(go_on(&first, 0), 0, "then the first");
	check(card->nr_sent == sent + 2, "%lu packets", card->nr_sent - sent);
	gone(1, 1, "what waited for calls");
}

/* One queue waits for the domain, or is stopped, when the card goes: what is under way in both comes back. */
static void ends_in_both(void)
{
	struct twin_call call;
	*state_of(1) = 1;
	from(&b, 1);
	from(&guest, 2);
	check_result(detach(), 0, "taking it away with packets in both");
	check_answered(&guest, 1, "taken away");
	check_answered(&b, 1, "taken away");
	/* The driver was not given this one. */
	make_frame(stranger, b.mac, 61, 1);
	check_received(&out, 61, "taken away");
	unload_card();

	begin();
	card->xmit_call = 1;
	from(&guest, 1);
	check(next(&call), "a call");
	card->xmit_call = 0;
	from(&b, 2);
	card->xmit_bug = 1;
	from(&b, 3);
	bool is_disabled = false;
	UNTIL((is_disabled = is_disabled || nr_notes(DISABLED)), "a BUG beside a call that waits");
	check(go_on(&call, 0) == -EIO, "a call that returns too late");
	check_answered(&guest, 1, "a BUG in the other queue");
	check_answered(&b, 2, "a BUG");
	check(*lock_of(0) == 0 && *lock_of(1) == 0, "locks after a BUG: %#x, %#x", *lock_of(0), *lock_of(1));
	send_out(60, 1);
	check_received(&out, 60, "without the card");
	check_answers(1, "without the card");
	unload_card();
}

void queues(void)
{
	make_front(&b, 2, 0);
	connect_front(&b, switch_name, SG);
	begin();
	each_has_its_own();
	neither_waits();
	none_takes_all();
	both_wait();
	ends_in_both();
	check(nr_in_use(&guest) == 2 && nr_in_use(&b) == 2, "%u and %u grants are in use", nr_in_use(&guest), nr_in_use(&b));
	disconnect_front(&b);
	close_ports(&b);
}
