/* Interfaces with several queues: each has rings and ports of its own, and all of them are one port of the switch. */
#include "front.h"

enum { PLACES = 1023, FLOWS = 32 };

static struct front a, w[2];

/* A datagram over IPv4 from this port. */
static void make_datagram(const u8 *to, const u8 *from, u32 port)
{
	make_frame(to, from, 60, port);
	memcpy(frame + 12, (const u8[]){ 8, 0, 0x45 }, 3);
	memset(frame + 20, 0, 2);
	frame[23] = 17;
	memset(frame + 26, 10, 8);
	memcpy(frame + 34, (const u8[]){ port >> 8, port, 0, 80 }, 4);
}

static struct channel_connect request_of_both(u32 switch_name)
{
	struct channel_connect request = request_of(&w[0], switch_name, SG);
	request.nr_queues = 2;
	request.queues[1] = queue_of(&w[1]);
	return request;
}

static void connect_both(u32 switch_name)
{
	struct channel_connect request = request_of_both(switch_name);
	check_result(channel_op(VIF_CONNECT, &request), 0, "connecting one with two queues");
	w[0].vif = request.vif;
}

static void bad_requests(u32 switch_name)
{
	struct channel_connect request;
#define REFUSED(change, expected, what)                                                                                \
	request = request_of_both(switch_name);                                                                        \
	change;                                                                                                        \
	check_result(channel_op(VIF_CONNECT, &request), -(expected), what);                                            \
	check(nr_in_use(&w[0]) == 0 && nr_in_use(&w[1]) == 0, "%s: %u, %u grants are in use", what, nr_in_use(&w[0]), nr_in_use(&w[1]))
	REFUSED(request.nr_queues = 0, EINVAL, "no queue");
	REFUSED(request.nr_queues = 9, EINVAL, "nine queues");
	REFUSED(request.nr_queues = ~0u, EINVAL, "queues without number");
	REFUSED(request.pad = 1, EINVAL, "what must be zero");
	REFUSED(request.flags |= UPLINK, EINVAL, "a way out with two queues");
	REFUSED((request.rate_bytes = 2000, request.rate_interval_us = 50000), EINVAL, "two queues with a rate");
	REFUSED(request.queues[1].tx_ring = 7, EINVAL, "a second queue whose grant is none");
	REFUSED(request.queues[1].rx_port = 1023, EINVAL, "a second queue whose port is closed");
	REFUSED(request.queues[1].tx_port = w[0].tx_port, EBUSY, "a second queue with the first one's port");
}

/* Which of both has received the frame; the other one has not. */
static u32 receiver(void)
{
	u32 n = w[0].rx->rsp_prod == w[0].rx_cons;
	check_received(&w[n], 60, "a packet to one of two queues");
	check_nothing(&w[1 - n], "the other queue");
	post(&w[n], 1);
	return n;
}

static void packets(void)
{
	u32 counts[2] = { 0, 0 };
	for (u32 n = 0; n < 2; n++)
		post(&w[n], 8);
	post(&a, 8);
	for (u32 port = 0; port < FLOWS; port++) {
		u32 which[2];
		for (u32 n = 0; n < 2; n++) {
			make_datagram(w[0].mac, a.mac, port);
			put(&a, 60, PAGE);
			check_result(kick_tx(&a), 0, "a kick");
			which[n] = receiver();
			check(answer(&a) == 0, "a packet to one of two queues: an error");
		}
		check(which[0] == which[1], "packets from port %u go by both queues", port);
		counts[which[0]]++;
	}
	check(counts[0] > FLOWS / 8 && counts[1] > FLOWS / 8, "%u connections go by one queue, %u by the other", counts[0], counts[1]);
	static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 };
	send(&a, everybody, a.mac, 60, 1);
	check(receiver() == 0, "a broadcast goes by the second queue");
	check(answer(&a) == 0, "a broadcast: an error");
	for (u32 n = 0; n < 2; n++) {
		send(&w[n], a.mac, w[0].mac, 60, n);
		check_received(&a, 60, "a packet from one of two queues");
		send(&w[n], w[0].mac, w[0].mac, 60, n);
		send(&w[n], a.mac, a.mac, 60, n);
		for (u32 packet = 0; packet < 3; packet++)
			check(answer(&w[n]) == 0, "a packet of queue %u: an error", n);
		check_nothing(&w[1 - n], "one's own packet");
		check_nothing(&a, "a packet with another's address");
	}
	struct channel_status status = status_of(&w[0]);
	check(status.nr_queues == 2, "%u queues", status.nr_queues);
	check(status.tx_packets == 6 && status.tx_refused == 4 && status.rx_packets == 2 * FLOWS + 1, "both queues: %lu sent, %lu refused, %lu received",
	      status.tx_packets, status.tx_refused, status.rx_packets);
}

/* Queues have places in a row. */
static void places(u32 switch_name)
{
	static struct front d;
	u32 first = w[0].vif & PLACES;
	make_front(&d, 3, 0);
	connect_front(&d, switch_name, SG);
	check((d.vif & PLACES) == first + 2, "place %u after %u and the next", d.vif & PLACES, first);
	struct channel_vif second = { w[0].vif + 1, 0 };
	check_result(channel_op(VIF_DISCONNECT, &second), -ENOENT, "disconnecting a second queue");
	disconnect_front(&w[0]);
	check(nr_in_use(&w[1]) == 0, "%u grants of a second queue are in use", nr_in_use(&w[1]));
	disconnect_front(&a);
	connect_front(&a, switch_name, SG);
	disconnect_front(&d);
	connect_front(&d, switch_name, SG);
	check((d.vif & PLACES) == first, "place %u in the place of two, which began at %u", d.vif & PLACES, first);
	for (u32 n = 0; n < 2; n++) {
		close_ports(&w[n]);
		make_front(&w[n], 1 + n, 0);
	}
	connect_both(switch_name);
	check((w[0].vif & PLACES) == first + 1, "place %u for two queues", w[0].vif & PLACES);
	disconnect_front(&d);
	close_ports(&d);
}

void queues(void)
{
	u32 switch_name = new_switch();
	make_front(&a, 0, 0);
	for (u32 n = 0; n < 2; n++)
		make_front(&w[n], 1 + n, 0);
	connect_front(&a, switch_name, SG);
	bad_requests(switch_name);
	connect_both(switch_name);
	audit();
	packets();
	audit();
	places(switch_name);
	/* With one port the whole interface goes. */
	check_result(evtchn(EVTCHN_close, &w[1].rx_port), 0, "closing a second queue's port");
	struct channel_status status = { .vif = w[0].vif };
	check_result(channel_op(VIF_STATUS, &status), -ENOENT, "the status of one that has lost a port");
	check(nr_in_use(&w[0]) == 0 && nr_in_use(&w[1]) == 0, "%u, %u grants of one that has lost a port are in use", nr_in_use(&w[0]), nr_in_use(&w[1]));
	evtchn(EVTCHN_close, &w[1].tx_port);
	close_ports(&w[0]);
	disconnect_front(&a);
	close_ports(&a);
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
	audit();
}
