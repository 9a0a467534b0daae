/* Front ends that do what none should. */
#include "front.h"

static struct front a, b, c;
static u32 switch_name;

static void renew(struct front *front)
{
	disconnect_front(front);
	close_ports(front);
	make_front(front, front->number, 0);
	connect_front(front, switch_name, SG);
}

/* `a` has ended; the others have not. */
static void check_ended(const char *what)
{
	check(status_of(&a).state == TX_ENDED, "%s: the state is %u", what, status_of(&a).state);
	check(nr_in_use(&a) == 2, "%s: %u grants are in use", what, nr_in_use(&a));
	check_nothing(&b, what);
	post(&b, 1);
	send(&c, b.mac, c.mac, 60, 1);
	check_received(&b, 60, what);
	check(answer(&c) == 0, "%s: another's packet: an error", what);
	renew(&a);
}

static void bad_transmits(void)
{
	u32 ref = a.first_ref + TX_DATA;
	a.tx->req_prod += 257;
	kick_tx(&a);
	check_ended("too many requests");
	a.tx->req_prod--;
	kick_tx(&a);
	check_ended("fewer requests than none");
	put_slot(&a, ref, 97, 0, 4000);
	kick_tx(&a);
	check_ended("a slot that leaves its page");
	put_slot(&a, ref, 0, MORE_DATA, 100);
	kick_tx(&a);
	check_ended("a packet that goes on behind the last slot");
	put_slot(&a, ref, 0, 8, 100);
	kick_tx(&a);
	check_ended("extra information that is not there");
	for (u32 n = 0; n < 25; n++)
		put_slot(&a, ref, 0, MORE_DATA, n ? 1 : 100);
	kick_tx(&a);
	check_ended("a packet of endless slots");
	/* These are answered with an error, and the next is sent. */
	put_slot(&a, ref, 0, 0, 13);
	put_slot(&a, 3, 0, 0, 60);
	put_slot(&a, ~0u, 0, 0, 60);
	post(&b, 1);
	send(&a, b.mac, a.mac, 60, 2);
	for (u32 n = 0; n < 3; n++)
		check(answer(&a) == RSP_ERROR, "bad packet %u: no error", n);
	check(answer(&a) == 0, "a good packet behind bad ones: an error");
	check_received(&b, 60, "a good packet behind bad ones");
	check(nr_in_use(&a) == 2, "bad packets: %u grants are in use", nr_in_use(&a));
}

static void bad_receivers(void)
{
	u8 got[4096];
	/* A grant that does not hold. */
	u32 at = b.rx->req_prod;
	post(&b, 1);
	b.rx->rx[at % SLOTS].request.gref = 3;
	send(&a, b.mac, a.mac, 60, 1);
	check(receive(&b, got) == (u32)-1, "a page without a grant: no error");
	check(answer(&a) == 0, "to a page without a grant: an error");
	/* A grant that cannot be written. */
	at = b.rx->req_prod;
	post(&b, 1);
	b.rx->rx[at % SLOTS].request.gref = b.first_ref + TX_DATA;
	send(&a, b.mac, a.mac, 60, 1);
	check(receive(&b, got) == (u32)-1, "a page that cannot be written: no error");
	check(answer(&a) == 0, "to a page that cannot be written: an error");
	/* A ring that cannot be: what waits and what comes is lost, and its senders are answered. */
	send(&a, b.mac, a.mac, 60, 1);
	check(nr_answers(&a) == 0, "a packet that has to wait is answered");
	b.rx->req_prod += 1000;
	check_result(kick_rx(&b), 0, "a kick");
	check(answer(&a) == 0, "to a ring that has ended: an error");
	check(status_of(&b).state == RX_ENDED, "the state is %u", status_of(&b).state);
	send(&a, b.mac, a.mac, 60, 1);
	check(answer(&a) == 0, "to a ring that has ended: an error");
	check(nr_in_use(&a) == 2 && nr_in_use(&b) == 2, "%u, %u grants are in use", nr_in_use(&a), nr_in_use(&b));
	renew(&b);
}

/* One that takes nothing cannot keep others from sending elsewhere. */
static void no_room_for_ever(void)
{
	make_frame(b.mac, a.mac, 60, 1);
	for (u32 n = 0; n < 250; n++)
		put(&a, 60, 60);
	check_result(kick_tx(&a), 0, "a kick");
	check(nr_answers(&a) >= 100, "%u of 250 answers: the ring is full of packets for one", nr_answers(&a));
	check(status_of(&a).tx_waiting >= 100, "%u packets wait", status_of(&a).tx_waiting);
	check(status_of(&b).rx_dropped == nr_answers(&a), "%lu are lost", status_of(&b).rx_dropped);
	post(&c, 1);
	send(&a, c.mac, a.mac, 60, 2);
	check_received(&c, 60, "a packet for another");
	post(&b, 200);
	check_result(kick_rx(&b), 0, "a kick for room");
	check(nr_answers(&a) == 251, "%u of 251 answers", nr_answers(&a));
	check(nr_in_use(&a) == 2, "%u grants are in use", nr_in_use(&a));
	renew(&a);
	renew(&b);
}

/* Packets wait in both directions, and one end goes. */
static void ends_in_the_middle(void)
{
	for (u32 how = 0; how < 3; how++) {
		for (u32 n = 0; n < 5; n++) {
			send(&a, b.mac, a.mac, 1514, n);
			send(&b, a.mac, b.mac, 1514, n);
			send(&c, b.mac, c.mac, 1514, n);
		}
		check(status_of(&a).tx_waiting == 5 && nr_in_use(&a) == 3, "%u packets wait, %u grants are in use",
		      status_of(&a).tx_waiting, nr_in_use(&a));
		audit();
		/* The grants are taken away in the middle of their use. */
		a.grants[TX_DATA].flags &= READING | WRITING;
		struct channel_status status = { .vif = b.vif };
		u32 port = how == 1 ? b.tx_port : b.rx_port;
		if (how == 0)
			disconnect_front(&b);
		else
			check_result(evtchn(EVTCHN_close, &port), 0, "closing a port");
		check_result(channel_op(VIF_STATUS, &status), -ENOENT, "the status of one that has closed a port");
		check(nr_in_use(&b) == 0, "%u of its grants are in use", nr_in_use(&b));
		check(nr_in_use(&a) == 2, "%u grants of the other are in use", nr_in_use(&a));
		check(nr_answers(&a) == 5 && nr_answers(&c) == 5 && nr_answers(&b) == 0, "%u, %u, %u answers", nr_answers(&a),
		      nr_answers(&c), nr_answers(&b));
		for (u32 n = 0; n < 5; n++)
			check(answer(&a) == 0 && answer(&c) == 0, "to one that is gone: an error");
		post(&a, 5);
		check_result(kick_rx(&a), 0, "a kick for room");
		check_nothing(&a, "packets of one that is gone");
		audit();
		close_ports(&b);
		make_front(&b, b.number, 0);
		connect_front(&b, switch_name, SG);
		renew(&a);
		renew(&c);
	}
}

/* Anything in the rings, for a while. */
static void garbage(void)
{
	u64 seed = 0x1234567;
	for (u32 round = 0; round < 3000; round++) {
		struct front *front = round % 2 ? &a : &b;
		for (u32 n = 0; n < 8; n++) {
			u64 r = random_u64(&seed);
			u32 ref = front->first_ref + r % NR_PAGES, at = front->tx->req_prod;
			u32 flags = r >> 8 & 7 ? 0 : r >> 16 & 15, size = r >> 12 & 3 ? r >> 20 & 1023 : r >> 20;
			if (r >> 60 == 0)
				ref = r >> 32;
			put_slot(front, ref, r >> 40 & (r >> 11 & 7 ? 1023 : 0xffff), flags, size);
			memcpy(front->page[TX_DATA + r % NR_TX_DATA], r >> 62 ? b.mac : a.mac, 6);
			memcpy(front->page[TX_DATA + r % NR_TX_DATA] + 6, r >> 62 ? a.mac : b.mac, 6);
			if (r >> 50 & 1)
				((volatile u32 *)front->rx)[16 + at % 512] = r >> 51 & 1 ? ref : r >> 32;
		}
		u64 r = random_u64(&seed);
		front->rx->req_prod += r % 24;
		if (!(r >> 8 & 63))
			((volatile u32 *)(r >> 16 & 1 ? front->rx : front->tx))[r >> 17 & 3] = r >> 32;
		kick_tx(front);
		kick_rx(front);
		if (status_of(front).state || front->tx->req_prod - front->tx->rsp_prod > 200)
			renew(front);
	}
	renew(&a);
	renew(&b);
}

void hostile_front_ends(void)
{
	switch_name = new_switch();
	struct front *all[] = { &a, &b, &c };
	for (u32 n = 0; n < COUNT(all); n++) {
		make_front(all[n], n, 0);
		connect_front(all[n], switch_name, SG);
	}
	bad_transmits();
	bad_receivers();
	no_room_for_ever();
	audit();
	ends_in_the_middle();
	garbage();
	audit();
	for (u32 n = 0; n < COUNT(all); n++) {
		disconnect_front(all[n]);
		close_ports(all[n]);
	}
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
	audit();
}
