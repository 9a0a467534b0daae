/*
 * Device channels: front ends are plugged into the hypervisor's own switch, packets go from one to the other byte for byte, a busy
 * sender need not notify of each, what front ends do wrong harms nobody else, nothing stays when interfaces or their domains go,
 * an interface with several queues is one port and packets of a connection go by one of them, strangers are reached by the switch's
 * way out, which senders have by their weights, and what is for them waits for the next one when that goes; who fills a ring while it is
 * served keeps no CPU.
 * (cpus: 2) (shares: channels fronts) (differs: stock Xen has no switch)
 */
#include "front.h"

const char test_name[] = "channels";

static struct front a, b, c;
static u32 switch_name;
static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 }, nobody[6] = { 2, 0, 0, 0, 0, 9 };

static void check_quiet(const char *what)
{
	check(nr_in_use(&a) == 2 && nr_in_use(&b) == 2 && nr_in_use(&c) == 2, "%s: %u, %u, %u grants are in use", what,
	      nr_in_use(&a), nr_in_use(&b), nr_in_use(&c));
}

static void packets(void)
{
	static const struct {
		u32 len, piece;
	} sizes[] = { { 14, 14 }, { 60, 60 }, { 191, 191 }, { 192, 192 }, { 193, 193 }, { 200, 14 }, { 1514, 1514 }, { 1514, 100 },
		{ 4096, 4096 }, { 4097, 2049 }, { 9014, 3005 }, { 16000, 4000 } };
	post(&b, 64);
	post(&c, 64);
	for (u32 n = 0; n < COUNT(sizes); n++) {
		u32 slots = (sizes[n].len + sizes[n].piece - 1) / sizes[n].piece;
		make_frame(b.mac, a.mac, sizes[n].len, n);
		put(&a, sizes[n].len, sizes[n].piece);
		check_result(kick_tx(&a), 0, "a kick");
		check_received(&b, sizes[n].len, "a packet");
		check_nothing(&c, "a packet for another");
		for (u32 slot = 0; slot < slots; slot++)
			check(answer(&a) == 0, "a packet of %u bytes, slot %u: an error", sizes[n].len, slot);
		check(nr_answers(&a) == 0, "answers too many");
		post(&b, slots + 4);
	}
	check_quiet("packets");
	send(&b, a.mac, b.mac, 60, 1);
	check(nr_answers(&b) == 0, "a packet that has to wait is answered");
	post(&a, 4);
	check_result(kick_rx(&a), 0, "a kick for room");
	check_received(&a, 60, "a packet that waited");
	check(answer(&b) == 0, "a packet that waited: an error");
	send(&a, everybody, a.mac, 100, 2);
	check_received(&b, 100, "a broadcast");
	check_received(&c, 100, "a broadcast");
	check_nothing(&a, "one's own broadcast");
	check(answer(&a) == 0, "a broadcast: an error");
	check_quiet("a broadcast");
}

/* What goes nowhere is answered, and counted. */
static void refused(void)
{
	u64 before = status_of(&a).tx_refused;
	send(&a, nobody, a.mac, 60, 1);
	send(&a, b.mac, c.mac, 60, 1);
	send(&a, b.mac, everybody, 60, 1);
	send(&a, a.mac, a.mac, 60, 1);
	for (u32 n = 0; n < 4; n++)
		check(answer(&a) == 0, "a packet that goes nowhere: an error");
	check_nothing(&b, "another's address");
	check_nothing(&c, "to nobody");
	check(status_of(&a).tx_refused == before + 4, "%lu packets are refused", status_of(&a).tx_refused - before);
	/* Changed while it waits: it is looked at again. */
	struct channel_status was = status_of(&c);
	u32 room = c.rx->req_prod;
	c.rx->req_prod = c.rx->rsp_prod;
	send(&a, c.mac, a.mac, 60, 3);
	check(nr_answers(&a) == 0, "a packet that has to wait is answered");
	u8 *at = a.page[TX_DATA] + (PAGE - 60) / 2;
	memcpy(at + 6, b.mac, 6);
	c.rx->req_prod = room;
	check_result(kick_rx(&c), 0, "a kick for room");
	check_nothing(&c, "a packet whose source was changed while it waited");
	check(answer(&a) == 0, "a packet that was changed: an error");
	check(status_of(&c).rx_packets == was.rx_packets, "it counts as received");
	check_quiet("refused packets");
	/* One that may send with any address. */
	disconnect_front(&a);
	close_ports(&a);
	make_front(&a, 0, 0);
	connect_front(&a, switch_name, SG | ANY_SOURCE);
	send(&a, b.mac, nobody, 60, 4);
	check_received(&b, 60, "any source");
	check(answer(&a) == 0, "any source: an error");
}

/* Events are sent when they are asked for, and not else. */
static void events(void)
{
	clear_pending(b.rx_port);
	clear_pending(a.tx_port);
	send(&a, b.mac, a.mac, 60, 1);
	check(is_pending(b.rx_port) && is_pending(a.tx_port), "no events");
	clear_pending(b.rx_port);
	clear_pending(a.tx_port);
	send(&a, b.mac, a.mac, 60, 1);
	check(!is_pending(b.rx_port) && !is_pending(a.tx_port), "events that nobody has asked for");
	for (u32 n = 0; n < 2; n++) {
		check_received(&b, 60, "a packet");
		answer(&a);
	}
	struct evtchn_status status = { DOMID_SELF, 0, a.tx_port, 99, 99, 99 };
	check_result(evtchn(EVTCHN_status, &status), 0, "the port's status");
	check(status.status == 2 && (status.u & 0xffff) == 0, "the port's status is %u, %#lx", status.status, status.u);
}

static void bad_requests(void)
{
	struct front d;
	struct channel_connect request;
	struct channel_vif vif = { a.vif, 0 };
	struct channel_status status = { .vif = 0 };
	struct channel_switch sw = { switch_name, 0 };
	make_front(&d, 3, 0);
#define REFUSED(change, expected, what)                                                                                \
	request = request_of(&d, switch_name, SG);                                                                     \
	change;                                                                                                        \
	check_result(channel_op(VIF_CONNECT, &request), -(expected), what);                                            \
	check(nr_in_use(&d) == 0, "%s: %u grants are in use", what, nr_in_use(&d))
	REFUSED(request.switch_name++, ENOENT, "no such switch");
	REFUSED(request.guest = 77, ESRCH, "no such guest");
	REFUSED(request.backend = 77, ESRCH, "no such back end");
	REFUSED(request.guest = DOMID_SELF, ESRCH, "a guest that is no number");
	REFUSED(request.flags = 128, EINVAL, "unknown flags");
	REFUSED(request.mac[0] = 1, EINVAL, "the address of a group");
	REFUSED(request.rate_bytes = 1, EINVAL, "half a rate");
	REFUSED(request.rate_interval_us = 1, EINVAL, "the other half");
	REFUSED(request.queues[0].tx_ring = 7, EINVAL, "a grant that is none");
	REFUSED(request.queues[0].rx_ring = ~0u, EINVAL, "a grant beyond the table");
	REFUSED(request.queues[0].tx_ring = d.first_ref + TX_DATA, EINVAL, "a ring that cannot be written");
	REFUSED(request.queues[0].tx_port = 0, EINVAL, "port 0");
	REFUSED(request.queues[0].rx_port = 1023, EINVAL, "a port that is closed");
	REFUSED(request.queues[0].rx_port = ~0u, EINVAL, "a port that cannot be");
	REFUSED(request.queues[0].rx_port = new_ipi(0), EINVAL, "a port for something else");
	REFUSED(request.queues[0].tx_port = a.tx_port, EBUSY, "a port of another");
	REFUSED(request.queues[0].rx_port = a.tx_port, EBUSY, "a port of another");
	REFUSED(request.device = a.device, EBUSY, "a device that is connected");
	REFUSED(d.tx->req_prod = 257, EINVAL, "a ring that is too full");
	d.tx->req_prod = 0;
	REFUSED(d.rx->rsp_prod = 1, EINVAL, "a ring with more responses than requests");
	d.rx->rsp_prod = 0;
	check_result(channel_op(VIF_CONNECT, (void *)8), -EFAULT, "a request that is not there");
	check_result(channel_op(VIF_CONNECT, (void *)0xffff830000000000), -EFAULT, "a request in the hypervisor");
	check_result(channel_op(VIF_STATUS, (void *)8), -EFAULT, "a status that is not there");
	check_result(channel_op(99, &request), -ENOSYS, "command 99");
	check_result(channel_op(SWITCH_DESTROY, &sw), -EBUSY, "a switch in use");
	sw.name = ~0u;
	check_result(channel_op(SWITCH_DESTROY, &sw), -ENOENT, "destroying a switch that is none");
	sw.flags = 1;
	check_result(channel_op(SWITCH_CREATE, &sw), -EINVAL, "a switch with flags");
	vif.flags = 1;
	check_result(channel_op(VIF_DISCONNECT, &vif), -EINVAL, "disconnecting with flags");
	for (u32 n = 0; n < 3; n++) {
		vif = (struct channel_vif){ n == 0 ? a.vif ^ 1 << 12 : n == 1 ? ~0u : a.vif | 1 << 10, 0 };
		check_result(channel_op(VIF_DISCONNECT, &vif), -ENOENT, "disconnecting what is not there");
		status.vif = vif.vif;
		check_result(channel_op(VIF_STATUS, &status), -ENOENT, "the status of what is not there");
	}
	/* All of them, in order. */
	u32 nr = 0;
	for (status.next = 0; channel_op(VIF_NEXT, &status) == 0; nr++)
		check(status.vif == a.vif || status.vif == b.vif || status.vif == c.vif, "interface %#x", status.vif);
	check(nr == 3, "%u interfaces", nr);
	status.next = ~0u;
	check_result(channel_op(VIF_NEXT, &status), -ENOENT, "the list from beyond its end");
}

/* A rate is kept, and what it holds back is sent when its time comes, without another word of the guest's. */
static void rates(void)
{
	disconnect_front(&a);
	close_ports(&a);
	make_front(&a, 0, 0);
	struct channel_connect request = request_of(&a, switch_name, SG);
	request.rate_bytes = 2000, request.rate_interval_us = 500000;
	u64 start = now_ns();
	check_result(channel_op(VIF_CONNECT, &request), 0, "connecting with a rate");
	a.vif = request.vif;
	make_frame(b.mac, a.mac, 1514, 5);
	put(&a, 1514, 1514);
	put(&a, 1514, 1514);
	check_result(kick_tx(&a), 0, "a kick");
	check_received(&b, 1514, "the first packet");
	if (now_ns() - start < 400000000)
		check_nothing(&b, "the second packet, at once");
	while (b.rx->rsp_prod == b.rx_cons && now_ns() - start < 5000000000)
		HC1(sched_op, SCHEDOP_yield);
	check(now_ns() - start >= 500000000, "the second packet after %lu ns", now_ns() - start);
	check_received(&b, 1514, "the second packet");
	check(answer(&a) == 0 && answer(&a) == 0, "packets with a rate: an error");
}

/* While a guest moves to this host itself, both of it are there: what is for it goes to the one that came last, whatever place that has got. */
static void moves_here(void)
{
	struct front later;
	make_front(&later, 3, 0);
	memcpy(later.mac, c.mac, 6);
	/* A place before the other's is free. */
	disconnect_front(&a);
	close_ports(&a);
	connect_front(&later, switch_name, SG);
	post(&later, 1);
	send(&b, c.mac, b.mac, 60, 8);
	check_received(&later, 60, "to one that is there twice");
	check_nothing(&c, "to one that is there twice");
	check(answer(&b) == 0, "to one that is there twice: an error");
	disconnect_front(&later);
	close_ports(&later);
	send(&b, c.mac, b.mac, 60, 9);
	check_received(&c, 60, "to one that is there once again");
	check(answer(&b) == 0, "to one that is there once again: an error");
	make_front(&a, 0, 0);
	connect_front(&a, switch_name, SG);
}

void test_main(void)
{
	shared_info();
	audit();
	switch_name = new_switch();
	make_front(&a, 0, 0);
	make_front(&b, 1, 0);
	make_front(&c, 2, 0);
	connect_front(&a, switch_name, SG);
	connect_front(&b, switch_name, SG);
	connect_front(&c, switch_name, SG);
	check_quiet("at the beginning");
	audit();
	packets();
	refused();
	events();
	bad_requests();
	busy(&a, &b);
	check_quiet("a busy sender");
	rates();
	moves_here();
	audit();
	disconnect_front(&a);
	disconnect_front(&b);
	disconnect_front(&c);
	struct channel_vif again = { a.vif, 0 };
	check_result(channel_op(VIF_DISCONNECT, &again), -ENOENT, "disconnecting twice");
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
	check_result(channel_op(SWITCH_DESTROY, &sw), -ENOENT, "destroying it twice");
	audit();
	queues();
	hostile_front_ends();
	domains_die();
	audit();
	outside();
	audit();
	measure();
	beside();
	audit();
	alone();
	audit();
}
