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
	for (u32 n = 0; n < COUNT(all); n++) {
		disconnect_front(all[n]);
		close_ports(all[n]);
	}
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
}
