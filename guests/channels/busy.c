/* A front end that sends one packet after another is asked to notify less and less often, and all that it sends is sent. */
#include "front.h"

static u32 nr_sent, nr_kicks;

/* Puts a packet, and notifies if that is asked for. */
static bool send_one(struct front *from)
{
	u32 before = from->tx->req_prod;
	put(from, 60, 60);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	bool is_asked = before + 1 - from->tx->req_event < 1;
	nr_sent++;
	nr_kicks += is_asked;
	if (is_asked)
		check_result(notify_tx(from), 0, "a kick");
	return is_asked;
}

/* Takes what there is of answers and packets. */
static void take(struct front *from, struct front *to)
{
	while (nr_answers(from))
		check(answer(from) == 0, "a busy sender: an error");
	for (; to->rx->rsp_prod != to->rx_cons; post(to, 1))
		check_received(to, 60, "from a busy sender");
}

static bool is_all_sent(const struct front *from)
{
	return __atomic_load_n(&from->tx->rsp_prod, __ATOMIC_ACQUIRE) == from->tx->req_prod;
}

void busy(struct front *from, struct front *to)
{
	u64 was = status_of(to).rx_packets;
	/* Room for as many as may come at once. */
	u32 nr_posted = to->rx->req_prod - to->rx->rsp_prod;
	if (nr_posted < 128)
		post(to, 128 - nr_posted);
	make_frame(to->mac, from->mac, 60, 7);
	/* Until it is asked to notify of none of the next four packets. */
	bool is_late = false;
	nr_sent = nr_kicks = 0;
	for (u64 end = now_ns() + 10000000000; !is_late && now_ns() < end;) {
		send_one(from);
		take(from, to);
		is_late = from->tx->req_event - from->tx->req_prod >= 4 && from->tx->req_event - from->tx->req_prod < SLOTS;
	}
	check(is_late, "it is asked to notify of %u packets of %u", nr_kicks, nr_sent);
	/* Who goes to sleep has its packets sent first. */
	u32 nr_late = 0;
	for (u32 n = 0; n < 100; n++) {
		nr_late += !send_one(from);
		sleep_a_moment();
		check(is_all_sent(from), "packet %u is not sent when its sender goes to sleep", n);
		take(from, to);
	}
	/* And if nothing happens they are sent soon. */
	for (u32 n = 0; n < 100; n++) {
		for (u32 m = 0; m < 4; m++)
			nr_late += !send_one(from);
		for (u64 end = now_ns() + 1000000000; !is_all_sent(from) && now_ns() < end;)
			;
		check(is_all_sent(from), "packets of which nobody was notified are not sent");
		take(from, to);
	}
	check(nr_late > 0, "each of the packets was notified");
	check(status_of(to).rx_packets - was == nr_sent, "%lu packets of %u arrive", status_of(to).rx_packets - was, nr_sent);
	printk("  busy %u packets, %u notifications\n", nr_sent, nr_kicks);
}
