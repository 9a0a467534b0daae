/* A switch's way out: an interface of a driver domain's, which gets what is for nobody else. */
#include "front.h"

static struct front a, b, out, other;
static u32 switch_name;
static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 }, group[6] = { 0x33, 0x33, 0, 0, 0, 1 },
		reserved[6] = { 1, 0x80, 0xc2, 0, 0, 0 }, stranger[6] = { 2, 0, 0, 0, 0, 9 };

static void answered(struct front *front, const char *what)
{
	check(answer(front) == 0 && nr_answers(front) == 0, "%s: an error, or answers too many", what);
}

/* What guests send: to strangers by the way out, to each other and to all as ever, and with their own addresses only. */
static void out_of_it(void)
{
	u64 refused = status_of(&a).tx_refused;
	send(&a, stranger, a.mac, 1514, 1);
	check_received(&out, 1514, "to a stranger");
	answered(&a, "to a stranger");
	/* The way out has an address, too, which is a stranger's to the switch: a bridge may have that or another. */
	send(&a, out.mac, a.mac, 60, 2);
	check_received(&out, 60, "to the driver domain");
	answered(&a, "to the driver domain");
	send(&a, b.mac, a.mac, 60, 3);
	check_received(&b, 60, "to a neighbour");
	answered(&a, "to a neighbour");
	check_nothing(&out, "to a neighbour");
	send(&a, everybody, a.mac, 60, 4);
	check_received(&b, 60, "to all");
	check_received(&out, 60, "to all");
	answered(&a, "to all");
	check(status_of(&a).tx_refused == refused, "%lu packets are refused", status_of(&a).tx_refused - refused);
	send(&a, stranger, b.mac, 60, 5);
	send(&a, stranger, stranger, 60, 6);
	send(&a, everybody, out.mac, 60, 7);
	send(&a, reserved, a.mac, 60, 8);
	check(status_of(&a).tx_refused == refused + 4, "%lu packets are refused", status_of(&a).tx_refused - refused);
	for (u32 n = 0; n < 4; n++)
		check(answer(&a) == 0, "what is refused: an error");
	check_nothing(&out, "with another's address");
	check_nothing(&b, "with another's address");
}

/* What comes in has any address but a guest's, and goes where its address is. */
static void into_it(void)
{
	u64 refused = status_of(&out).tx_refused;
	send(&out, b.mac, stranger, 1514, 1);
	check_received(&b, 1514, "from a stranger");
	answered(&out, "from a stranger");
	check_nothing(&a, "from a stranger to another");
	send(&out, a.mac, out.mac, 60, 2);
	check_received(&a, 60, "from the driver domain");
	answered(&out, "from the driver domain");
	send(&out, group, stranger, 60, 3);
	check_received(&a, 60, "from a stranger to a group");
	check_received(&b, 60, "from a stranger to a group");
	answered(&out, "from a stranger to a group");
	check(status_of(&out).tx_refused == refused, "%lu packets are refused", status_of(&out).tx_refused - refused);
	send(&out, b.mac, a.mac, 60, 4);
	send(&out, everybody, a.mac, 60, 5);
	send(&out, stranger, out.mac, 60, 6);
	send(&out, reserved, stranger, 60, 7);
	send(&out, a.mac, everybody, 60, 8);
	check(status_of(&out).tx_refused == refused + 5, "%lu packets are refused", status_of(&out).tx_refused - refused);
	for (u32 n = 0; n < 5; n++)
		check(answer(&out) == 0, "what is refused: an error");
	check_nothing(&a, "what comes back");
	check_nothing(&b, "what comes back");
	check_nothing(&out, "what it has sent itself");
}

/* A switch has one way out, and may be without. */
static void one_or_none(void)
{
	make_front(&other, 3, 0);
	struct channel_connect request = request_of(&other, switch_name, SG | UPLINK);
	check_result(channel_op(VIF_CONNECT, &request), -EBUSY, "a second way out");
	request = request_of(&other, switch_name, SG | NO_OFFLOAD);
	check_result(channel_op(VIF_CONNECT, &request), -EINVAL, "nothing is left to one that is not the way out");
	check(nr_in_use(&other) == 0, "%u grants are in use", nr_in_use(&other));
	u32 another = new_switch();
	connect_front(&other, another, SG | UPLINK);
	disconnect_front(&other);
	struct channel_switch sw = { another, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the other switch");
	close_ports(&other);
	/* Without room out there a packet waits. When the way out goes it is lost, as what comes later. */
	out.rx->req_prod = out.rx->rsp_prod;
	send(&a, stranger, a.mac, 60, 1);
	check(nr_answers(&a) == 0, "a packet that has to wait is answered");
	/* So does all that is in a sender's ring: it is held back, as by a network card. */
	for (u32 n = 1; n < 200; n++)
		send(&a, stranger, a.mac, 60, 1);
	check(nr_answers(&a) == 0, "%u packets that have to wait are answered", nr_answers(&a));
	check(status_of(&a).tx_waiting == 200, "%u packets wait", status_of(&a).tx_waiting);
	struct channel_way_out way = way_out_of(switch_name);
	check(way.waiting == 200 && way.state == 0, "%u packets wait for the way out, its state is %#x", way.waiting, way.state);
	audit();
	disconnect_front(&out);
	for (u32 n = 1; n < 200; n++)
		check(answer(&a) == 0, "when the way out goes: an error");
	answered(&a, "when the way out goes");
	send(&a, stranger, a.mac, 60, 2);
	answered(&a, "without a way out");
	close_ports(&out);
	make_front(&out, 2, 0);
	connect_front(&out, switch_name, SG | UPLINK);
	post(&out, 2);
	send(&a, stranger, a.mac, 60, 3);
	check_received(&out, 60, "when there is a way out again");
	answered(&a, "when there is a way out again");
}

static s64 hold(u32 name, u32 ms)
{
	struct channel_hold request = { name, ms };
	return channel_op(SWITCH_HOLD, &request);
}

static s64 drain(u32 name, u32 ms)
{
	struct channel_hold request = { name, ms };
	return channel_op(SWITCH_DRAIN, &request);
}

static void way_out_comes(void)
{
	make_front(&out, 2, 0);
	connect_front(&out, switch_name, SG | UPLINK);
	post(&out, 64);
	/* What waits comes with the next timer. */
	for (u64 end = now_ns() + 10000000000; out.rx->rsp_prod == out.rx_cons && now_ns() < end;)
		HC1(sched_op, SCHEDOP_yield);
}

static void way_out_goes(void)
{
	disconnect_front(&out);
	close_ports(&out);
}

/* The next packet that it has not looked at has this source. */
static bool is_first_of(struct front *front, const u8 *mac)
{
	u32 slot = front->rx_cons % SLOTS;
	volatile struct rx_slot *r = &front->rx->rx[slot];
	return memcmp(front->page[front->posted[slot]] + r->response.offset + 6, mac, 6) == 0;
}

/* Sends from a place of its own, of seven: what waits must stay as it is. */
static void send_from(u32 place, struct front *front, const u8 *to, const u8 *from, u32 len, u32 seed)
{
	u32 page = TX_DATA + place % NR_TX_DATA, offset = place / NR_TX_DATA * PAGE / 2;
	make_frame(to, from, len, seed);
	memcpy(front->page[page] + offset, frame, len);
	put_slot(front, front->first_ref + page, offset, 0, len);
	check_result(kick_tx(front), 0, "a kick");
}

/* What is for outside waits for the next way out, in its order, and keeps nothing else from its way. */
static void held(void)
{
	check_result(hold(switch_name, 600001), -EINVAL, "a wait that is too long");
	check_result(hold(~0u, 1), -ENOENT, "a wait at no switch");
	check_result(hold(switch_name, 600000), 0, "a wait");
	/* Two have arrived there and wait for room when it goes. */
	out.rx->req_prod = out.rx->rsp_prod;
	send_from(0, &a, stranger, a.mac, 1514, 1);
	send_from(1, &a, everybody, a.mac, 60, 2);
	check_received(&b, 60, "to all, when the way out has no room");
	way_out_goes();
	send_from(2, &a, stranger, a.mac, 200, 3);
	send_from(3, &b, stranger, b.mac, 60, 4);
	send_from(4, &a, b.mac, a.mac, 60, 5);
	check_received(&b, 60, "to a neighbour, while there is no way out");
	send_from(5, &a, everybody, a.mac, 60, 6);
	check_received(&b, 60, "to all, while there is no way out");
	check(status_of(&a).tx_waiting == 4 && status_of(&b).tx_waiting == 1, "%u and %u packets wait", status_of(&a).tx_waiting,
	      status_of(&b).tx_waiting);
	check(nr_answers(&b) == 0, "a packet that waits is answered");
	/* That to the neighbour. */
	answered(&a, "while there is no way out");
	u64 refused = status_of(&a).tx_refused;
	send_from(6, &a, stranger, b.mac, 60, 7);
	check(status_of(&a).tx_refused == refused + 1, "with another's address, while there is no way out");
	answered(&a, "with another's address, while there is no way out");
	audit();
	way_out_comes();
	/* Of each sender in its order; which sender is first is nobody's business. */
	bool is_bs_first = out.rx->rsp_prod != out.rx_cons && is_first_of(&out, b.mac);
	if (is_bs_first) {
		make_frame(stranger, b.mac, 60, 4);
		check_received(&out, 60, "what has waited, of the other");
	}
	make_frame(stranger, a.mac, 1514, 1);
	check_received(&out, 1514, "the first that has waited");
	make_frame(everybody, a.mac, 60, 2);
	check_received(&out, 60, "the second");
	make_frame(stranger, a.mac, 200, 3);
	check_received(&out, 200, "the third");
	make_frame(everybody, a.mac, 60, 6);
	check_received(&out, 60, "the fourth");
	if (!is_bs_first) {
		make_frame(stranger, b.mac, 60, 4);
		check_received(&out, 60, "what has waited, of the other");
	}
	check_nothing(&out, "what has waited");
	check_nothing(&b, "what has waited for the way out");
	for (u32 n = 0; n < 4; n++)
		check(answer(&a) == 0, "what has waited: an error");
	answered(&b, "what has waited");
}

/* A whole ring waits; it is lost when the time is over, or when there is to be no wait any more. */
static void held_in_vain(void)
{
	check_result(hold(switch_name, 300), 0, "a short wait");
	way_out_goes();
	u64 refused = status_of(&a).tx_refused;
	for (u32 n = 0; n < 200; n++)
		send(&a, stranger, a.mac, 60, n);
	check(nr_answers(&a) == 0 && status_of(&a).tx_waiting == 200, "%u packets wait", status_of(&a).tx_waiting);
	for (u64 end = now_ns() + 5000000000; nr_answers(&a) < 200 && now_ns() < end;)
		HC1(sched_op, SCHEDOP_yield);
	for (u32 n = 1; n < 200; n++)
		check(answer(&a) == 0, "when the time is over: an error");
	answered(&a, "when the time is over");
	check(status_of(&a).tx_refused == refused + 200, "%lu packets are refused", status_of(&a).tx_refused - refused);
	send(&a, stranger, a.mac, 60, 1);
	answered(&a, "when the time is over");
	way_out_comes();
	check_nothing(&out, "what was lost");
	check_result(hold(switch_name, 600000), 0, "a long wait");
	way_out_goes();
	send(&a, stranger, a.mac, 60, 1);
	check(nr_answers(&a) == 0, "a packet that waits is answered");
	check_result(hold(switch_name, 0), 0, "no wait any more");
	for (u64 end = now_ns() + 5000000000; nr_answers(&a) == 0 && now_ns() < end;)
		HC1(sched_op, SCHEDOP_yield);
	answered(&a, "when there is no wait any more");
	/* Its sender goes while one waits. */
	check_result(hold(switch_name, 600000), 0, "a long wait");
	way_out_comes();
	way_out_goes();
	send(&b, stranger, b.mac, 60, 1);
	disconnect_front(&b);
	check(nr_in_use(&b) == 0, "%u grants of a sender that has gone are in use", nr_in_use(&b));
	close_ports(&b);
	make_front(&b, 1, 0);
	connect_front(&b, switch_name, SG);
	way_out_comes();
	check_nothing(&out, "of a sender that has gone");
}

/* A way out that is about to go gets nothing any more, and what comes by it arrives; what is for outside waits for the next. */
static void drained(void)
{
	check_result(drain(switch_name, 10001), -EINVAL, "a drain that is too long");
	check_result(drain(~0u, 1), -ENOENT, "a drain of no switch");
	check_result(hold(switch_name, 600000), 0, "a wait");
	post(&a, 8);
	post(&b, 8);
	/* Two have arrived there and wait for room when it is drained. */
	out.rx->req_prod = out.rx->rsp_prod;
	send_from(3, &a, stranger, a.mac, 90, 8);
	send_from(4, &a, everybody, a.mac, 91, 9);
	check_received(&b, 91, "to all, when the way out has no room");
	check_result(drain(switch_name, 10000), 0, "a drain");
	send_from(0, &a, stranger, a.mac, 1514, 1);
	send_from(1, &a, everybody, a.mac, 60, 2);
	check_received(&b, 60, "to all, while the way out is drained");
	post(&out, 8);
	kick_rx(&out);
	check(nr_answers(&a) == 0 && status_of(&a).tx_waiting == 4, "%u packets wait", status_of(&a).tx_waiting);
	check_nothing(&out, "for outside, while it is drained");
	/* Of what comes from there, nothing waits to go back. */
	send(&out, a.mac, stranger, 200, 3);
	check_received(&a, 200, "from a way out that is drained");
	send(&out, everybody, stranger, 60, 4);
	check_received(&a, 60, "to all, from a way out that is drained");
	check_received(&b, 60, "to all, from a way out that is drained");
	u64 refused = status_of(&out).tx_refused;
	send(&out, stranger, stranger, 60, 5);
	check(status_of(&out).tx_refused == refused + 1, "to a stranger, from a way out that is drained");
	for (u32 n = 0; n < 2; n++)
		check(answer(&out) == 0, "from a way out that is drained: an error");
	answered(&out, "from a way out that is drained");
	/* Others that come and go do not end it. */
	disconnect_front(&b);
	close_ports(&b);
	make_front(&b, 1, 0);
	connect_front(&b, switch_name, SG);
	post(&b, 32);
	send_from(2, &a, stranger, a.mac, 60, 6);
	check(nr_answers(&a) == 0, "a packet that waits is answered");
	audit();
	way_out_goes();
	check_result(drain(switch_name, 1000), -ENODEV, "a drain without a way out");
	check(nr_answers(&a) == 0, "a packet that waits is answered");
	way_out_comes();
	make_frame(stranger, a.mac, 90, 8);
	check_received(&out, 90, "the first, of the next way out");
	make_frame(everybody, a.mac, 91, 9);
	check_received(&out, 91, "the second");
	make_frame(stranger, a.mac, 1514, 1);
	check_received(&out, 1514, "the third");
	make_frame(everybody, a.mac, 60, 2);
	check_received(&out, 60, "the fourth");
	make_frame(stranger, a.mac, 60, 6);
	check_received(&out, 60, "the fifth");
	for (u32 n = 0; n < 4; n++)
		check(answer(&a) == 0, "what has waited: an error");
	answered(&a, "what has waited");
	/* One that is not replaced is the way out again, by itself or when it is said. */
	for (u32 is_said = 0; is_said < 2; is_said++) {
		check_result(drain(switch_name, is_said ? 10000 : 300), 0, "a drain");
		send(&a, stranger, a.mac, 60, 7 + is_said);
		check(nr_answers(&a) == 0, "a packet that waits is answered");
		if (is_said)
			check_result(drain(switch_name, 0), 0, "no drain any more");
		for (u64 end = now_ns() + 5000000000; nr_answers(&a) == 0 && now_ns() < end;)
			HC1(sched_op, SCHEDOP_yield);
		answered(&a, "when it is drained no more");
		make_frame(stranger, a.mac, 60, 7 + is_said);
		check_received(&out, 60, "when it is drained no more");
	}
	check_result(hold(switch_name, 0), 0, "no wait");
}

/* All of a ring may wait for the way out, also what is for all: half of it is the limit for neighbours. */
static void for_all_behind_many(void)
{
	enum { STRANGERS = 200, ALL = STRANGERS + 1 };
	static u8 got[PAGE];
	u32 nr = 0, nr_for_all = 0;
	/* It has posted nothing. */
	out.rx->req_prod = out.rx->rsp_prod;
	make_frame(stranger, a.mac, 60, 1);
	memcpy(a.page[TX_DATA], frame, 60);
	make_frame(everybody, a.mac, 60, 2);
	memcpy(a.page[TX_DATA + 1], frame, 60);
	for (u32 n = 0; n < ALL; n++)
		put_slot(&a, a.first_ref + TX_DATA + n / STRANGERS, 0, 0, 60);
	check_result(kick_tx(&a), 0, "a kick");
	check_received(&b, 60, "to all, behind many for the way out");
	check(nr_answers(&a) == 0, "%u packets that have to wait are answered", nr_answers(&a));
	for (u32 round = 0; round < ALL && nr < ALL; round++) {
		post(&out, 8);
		kick_rx(&out);
		for (; receive(&out, got) > 0; nr++)
			nr_for_all += got[0] == 255;
	}
	check(nr == ALL && nr_for_all == 1, "of %u packets %u go out, %u of them for all", ALL, nr, nr_for_all);
	for (nr = 0; nr_answers(&a); nr++)
		check(answer(&a) == 0, "what has waited: an error");
	check(nr == ALL, "%u answers", nr);
}

/* What the way out takes now, of each of both. */
static void take(struct front *const from[2], u32 nr_pages, u32 nr[2])
{
	static u8 got[PAGE];
	post(&out, nr_pages);
	kick_rx(&out);
	while (receive(&out, got) > 0)
		nr[memcmp(got + 6, from[0]->mac, 6) != 0]++;
}

/* Guests that both send more than the way out takes have shares of it by their weights, and lose nothing. */
static void by_weight(void)
{
	enum { STEPS = 500, EACH = 8, FULL = 200 };
	static const u16 weight[2] = { 1, 3 };
	struct front *const from[2] = { &a, &b };
	u32 nr[2] = { 0, 0 };
	for (u32 n = 0; n < 2; n++) {
		disconnect_front(from[n]);
		close_ports(from[n]);
		make_front(from[n], n, 0);
		struct channel_connect request = request_of(from[n], switch_name, SG);
		request.weight = weight[n];
		check_result(channel_op(VIF_CONNECT, &request), 0, "connecting with a weight");
		from[n]->vif = request.vif;
		make_frame(stranger, from[n]->mac, 60, n);
		memcpy(from[n]->page[TX_DATA], frame, 60);
	}
	/* It has posted nothing. */
	out.rx->req_prod = out.rx->rsp_prod;
	for (u32 step = 0; step < STEPS; step++) {
		for (u32 n = 0; n < 2; n++) {
			while (nr_answers(from[n]) > 0)
				check(answer(from[n]) == 0, "an error");
			while (from[n]->tx->req_prod - from[n]->tx_cons < FULL)
				put_slot(from[n], from[n]->first_ref + TX_DATA, 0, 0, 60);
			check_result(kick_tx(from[n]), 0, "a kick");
		}
		take(from, EACH, nr);
	}
	printk("  weights 1 and 3: %u and %u packets go out\n", nr[0], nr[1]);
	check(nr[0] + nr[1] == STEPS * EACH, "%u packets go out", nr[0] + nr[1]);
	check(nr[0] > STEPS * EACH / 4 - STEPS / 4 && nr[0] < STEPS * EACH / 4 + STEPS / 4, "the light one has sent %u", nr[0]);
	for (u32 round = 0; round < 2 * FULL / EACH; round++)
		take(from, EACH, nr);
	for (u32 n = 0; n < 2; n++)
		check(nr[n] == from[n]->tx->req_prod && status_of(from[n]).tx_waiting == 0, "of %u packets %u arrive", from[n]->tx->req_prod, nr[n]);
}

static void check_way_out(void)
{
	struct channel_way_out way = way_out_of(switch_name);
	struct channel_status status = status_of(&out);
	check(way.kind == INTERFACE_IS_WAY_OUT && way.vif == out.vif && way.domid == 0, "the way out: %u, %#x", way.kind, way.vif);
	/* Its directions are not the interface's. */
	check(way.out_packets == 3 && way.out_bytes == 1514 + 60 + 60 && way.out_dropped == 0, "out went %lu packets, %lu bytes",
	      way.out_packets, way.out_bytes);
	check(way.in_packets == 8 && way.in_bytes == status.tx_bytes && way.in_dropped == 5, "in came %lu packets, %lu were lost",
	      way.in_packets, way.in_dropped);
	way.switch_name = ~0u;
	check_result(channel_op(WAY_OUT, &way), -ENOENT, "the way out of no switch");
	check_result(channel_op(WAY_OUT, (void *)8), -EFAULT, "the way out to nowhere");
}

void outside(void)
{
	struct front *all[] = { &a, &b, &out };
	switch_name = new_switch();
	check(way_out_of(switch_name).kind == NO_WAY_OUT, "a switch without ports has a way out");
	for (u32 n = 0; n < COUNT(all); n++) {
		make_front(all[n], n, 0);
		connect_front(all[n], switch_name, all[n] == &out ? SG | UPLINK : SG);
		post(all[n], 16);
	}
	out_of_it();
	into_it();
	check_way_out();
	one_or_none();
	held();
	held_in_vain();
	drained();
	for_all_behind_many();
	by_weight();
	for (u32 n = 0; n < COUNT(all); n++) {
		disconnect_front(all[n]);
		close_ports(all[n]);
	}
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
}
