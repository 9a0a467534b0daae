/*
 * Two guests of a switch and somebody outside, behind the driver domain's interface, send numbered packets to each other and to all. The number
 * says whom a packet is for and what it is, so each knows what has to come next.
 *
 * What a driver domain is given is in its receive ring, which domain 0 still maps when it is dead: all of it, over all lives, must be what the guests
 * have sent, each packet once and in its order. What is not on the wire of that is lost; and so is what was taken from the wire and is not answered.
 */
#include "network.h"

enum { LEFT, RIGHT, OUTSIDE, NR_ENDS, NR_GUESTS = OUTSIDE, NR_PLACES = 16, PLACE = 1024, SHORTEST = 60, LONGEST_MS = 600000 };
/* Whom it is for: of a guest's; outside, only the lowest bit counts. */
enum { TO_OUTSIDE, TO_OUTSIDE_TOO, TO_NEIGHBOUR, TO_ALL, NR_KINDS };

static struct front guest[NR_GUESTS] SHARED, way_out[PAGE_SETS] SHARED;
static struct wire wire SHARED __attribute__((aligned(4096)));
static u8 got[NR_GUESTS][65536] SHARED;
static u32 switch_name, guest_lock[NR_GUESTS], wire_lock;
/* How many packets each has sent; and of those from one to another, behind which all have come. */
static u32 nr_sent[NR_ENDS], come[NR_ENDS][NR_ENDS];
/* Of a guest's packet that is not answered the number, and 1. */
static u32 in_place[NR_GUESTS][NR_PLACES];
/* Packets outside that the driver domains before this one had taken. */
static u32 taken_before;
static const u8 stranger[6] = { 2, 0, 0, 0, 0, 9 }, everybody[6] = { 255, 255, 255, 255, 255, 255 };
static struct {
	u64 near, out, in, answered, lost_out, lost_in, waited, drained;
} seen;

static u32 kind_of(u32 number)
{
	return (number * 0x9e3779b1 >> 16) % NR_KINDS;
}

static u32 receiver_of(u32 who, u32 number)
{
	u32 kind = kind_of(number);
	if (who == OUTSIDE)
		return kind % NR_GUESTS;
	return kind == TO_NEIGHBOUR ? !who : OUTSIDE;
}

static bool goes_to(u32 who, u32 number, u32 to)
{
	return kind_of(number) == TO_ALL || receiver_of(who, number) == to;
}

static const u8 *address_of(u32 end)
{
	return end == OUTSIDE ? stranger : guest[end].mac;
}

/* The length. */
static u32 make_packet(u8 *at, u32 who, u32 number)
{
	u32 len = SHORTEST + (number * 0x85ebca6b >> 8) % (ROOM - SHORTEST + 1);
	for (u32 n = 0; n < (len + 7) / 8; n++) {
		u64 word = ((u64)number << 32 | who << 16 | n) * 0xd1342543de82ef95;
		memcpy(at + 8 * n, &word, 8);
	}
	memcpy(at, kind_of(number) == TO_ALL ? everybody : address_of(receiver_of(who, number)), 6);
	memcpy(at + 6, address_of(who), 6);
	at[12] = 0x88, at[13] = 0xb5;
	memcpy(at + 14, &number, 4);
	return len;
}

static u32 sender_of(const u8 *packet)
{
	u32 who = 0;
	while (who < NR_ENDS && memcmp(packet + 6, address_of(who), 6))
		who++;
	return who;
}

/* The number of the packet that comes next, or will. */
static u32 next_of(u32 who, u32 to)
{
	u32 number = come[who][to];
	while (!goes_to(who, number, to))
		number++;
	return number;
}

/* A packet has come to `to`: it is the next one of its sender's, and whole. */
static void has_come(u32 to, const u8 *packet, u32 len)
{
	u8 made[ROOM];
	u32 who = len >= SHORTEST && len <= ROOM ? sender_of(packet) : NR_ENDS, said;
	if (!check(who < NR_ENDS && who != to, "%u gets %d bytes, of nobody who sends to it", to, len))
		return;
	u32 number = next_of(who, to), made_len = make_packet(made, who, number);
	memcpy(&said, packet + 14, 4);
	check(number < nr_sent[who] && len == made_len && memcmp(packet, made, len) == 0, "%u gets %u bytes, number %u, of %u, instead of %u, number %u", to,
	      len, said, who, made_len, number);
	come[who][to] = number + 1;
	*(to == OUTSIDE ? &seen.out : who == OUTSIDE ? &seen.in : &seen.near) += 1;
}

static void receive_all(u32 to)
{
	struct front *front = &guest[to];
	for (u32 len; (len = receive(front, got[to])) != 0;)
		has_come(to, got[to], len);
	post(front, NR_RX_DATA - (front->rx->req_prod - front->rx_cons));
	note(kick_rx(front));
}

/* Each is answered once, and without an error. */
static void take_sent(u32 who)
{
	struct front *from = &guest[who];
	for (; nr_answers(from); from->tx_cons++) {
		volatile struct tx_slot *slot = &from->tx->tx[from->tx_cons % SLOTS];
		u32 place = slot->response.id;
		if (!check(place < NR_PLACES && in_place[who][place], "an answer to %u of %u, which was not sent, or was answered", place, who))
			continue;
		check(slot->response.status == 0, "packet %u of %u: status %d", in_place[who][place] - 1, who, slot->response.status);
		in_place[who][place] = 0;
		seen.answered++;
	}
	from->tx->rsp_event = from->tx_cons + 1;
}

static void send_from(u32 who, u32 place)
{
	struct front *from = &guest[who];
	u32 page = TX_DATA + place % NR_TX_DATA, offset = place / NR_TX_DATA * PLACE, number = nr_sent[who]++;
	u32 len = make_packet(from->page[page] + offset, who, number);
	in_place[who][place] = number + 1;
	put_slot_as(from, place, from->first_ref + page, offset, len);
}

static void guest_talks(u32 who)
{
	if (!try_lock(&guest_lock[who]))
		return;
	take_sent(who);
	receive_all(who);
	for (u32 nr = up_to(NR_PLACES); nr--;) {
		u32 place = up_to(NR_PLACES);
		if (!in_place[who][place])
			send_from(who, place);
	}
	if (up_to(8))
		note(notify_tx(&guest[who]));
	unlock(&guest_lock[who]);
}

static void see_what_is_out(void)
{
	for (; wire.nr_out_seen != __atomic_load_n(&wire.nr_out, __ATOMIC_ACQUIRE); wire.nr_out_seen++) {
		struct wire_slot *slot = &wire.out[wire.nr_out_seen % WIRE_SLOTS];
		has_come(OUTSIDE, slot->bytes, slot->len);
	}
}

static s64 wait_for_way_out(u32 cmd, u32 ms)
{
	struct channel_hold request = { switch_name, ms };
	return channel_op(cmd, &request);
}

static void outside_talks(void)
{
	if (!try_lock(&wire_lock))
		return;
	see_what_is_out();
	for (u32 nr = up_to(WIRE_SLOTS); nr-- && wire.nr_in - wire.nr_in_taken < WIRE_SLOTS;) {
		struct wire_slot *slot = &wire.in[wire.nr_in % WIRE_SLOTS];
		slot->len = make_packet(slot->bytes, OUTSIDE, nr_sent[OUTSIDE]++);
		__atomic_store_n(&wire.nr_in, nr_sent[OUTSIDE], __ATOMIC_SEQ_CST);
	}
	if (up_to(128) == 0)
		seen.drained += wait_for_way_out(SWITCH_DRAIN, 1) == 0;
	unlock(&wire_lock);
}

void network_once(void)
{
	guest_talks(up_to(NR_GUESTS));
	outside_talks();
}

void make_interface(u32 set, u16 domid, struct life *life)
{
	struct front *out = &way_out[set];
	make_front(out, NR_GUESTS + set, domid);
	life->interface_ref = out->first_ref;
	life->tx_port = out->tx_port, life->rx_port = out->rx_port;
	life->wire_ref = WIRE_REF + set * WIRE_PAGES;
	for (u32 n = 0; n < NR_PAGES; n++)
		life->frames[n] = out->grants[n].frame;
}

s64 connect_interface(u32 set)
{
	struct channel_connect request = request_of(&way_out[set], switch_name, SG | UPLINK);
	s64 result = channel_op(VIF_CONNECT, &request);
	way_out[set].vif = request.vif;
	return result;
}

/* All that is under way between guests comes; what is for outside stays where it is. */
static void settle(void)
{
	for (u32 quiet = 0; quiet < 2; quiet++) {
		u64 before = seen.near + seen.in + seen.answered;
		for (u32 who = 0; who < NR_GUESTS; who++) {
			note(notify_tx(&guest[who]));
			take_sent(who);
			receive_all(who);
		}
		if (seen.near + seen.in + seen.answered != before)
			quiet = 0;
	}
}

/* What the dead one was given, and has not sent. */
static void look_at_what_is_out(const struct front *out)
{
	u32 nr_given = out->rx->rsp_prod;
	see_what_is_out();
	if (!check(nr_given - wire.nr_out <= NR_RX_DATA, "%u packets were given to the way out, which has sent %u", nr_given, wire.nr_out))
		return;
	for (u32 n = wire.nr_out; n != nr_given; n++) {
		volatile struct rx_slot *slot = &out->rx->rx[n % SLOTS];
		has_come(OUTSIDE, out->page[RX_DATA + n % NR_RX_DATA] + slot->response.offset, slot->response.status);
		seen.lost_out++, seen.out--;
	}
}

/* What it has taken from the wire, and did not come to all that it was for. */
static void look_at_what_came_in(const struct front *out)
{
	u32 nr_taken = wire.nr_in_taken - taken_before, nr_sent_on = out->tx->req_prod, nr_answered = out->tx->rsp_prod, nr_lost = 0;
	for (u32 n = taken_before; n != wire.nr_in_taken; n++) {
		bool is_lost = false;
		for (u32 to = 0; to < NR_GUESTS; to++)
			is_lost |= goes_to(OUTSIDE, n, to) && n >= come[OUTSIDE][to];
		nr_lost += is_lost;
	}
	for (u32 to = 0; to < NR_GUESTS; to++) {
		check(come[OUTSIDE][to] <= taken_before + nr_sent_on, "%u has got what the way out has not sent", to);
		come[OUTSIDE][to] = wire.nr_in_taken;
	}
	check(nr_taken - nr_sent_on <= 1, "the way out has sent %u packets of %u", nr_sent_on, nr_taken);
	check(nr_lost <= nr_taken - nr_answered, "%u packets from outside are lost, and %u of %u were answered", nr_lost, nr_answered, nr_taken);
	seen.lost_in += nr_lost;
	taken_before = wire.nr_in_taken;
}

/* Those packets wait that are for outside and were given to nobody, and no others. */
static void look_at_what_waits(u32 who)
{
	struct channel_status status = status_of(&guest[who]);
	u32 nr_due = 0, nr_waiting = 0;
	for (u32 n = come[who][OUTSIDE]; n < nr_sent[who]; n++)
		nr_due += goes_to(who, n, OUTSIDE);
	for (u32 place = 0; place < NR_PLACES; place++) {
		u32 number = in_place[who][place] - 1;
		if (!in_place[who][place])
			continue;
		nr_waiting++;
		check(goes_to(who, number, OUTSIDE) && number >= come[who][OUTSIDE], "packet %u of %u is not answered", number, who);
	}
	check(nr_due == nr_waiting && status.tx_waiting == nr_waiting, "%u packets of %u were given to nobody, and %u wait, of which the hypervisor knows %u",
	      nr_due, who, nr_waiting, status.tx_waiting);
	check(next_of(who, !who) >= nr_sent[who], "packet %u of %u to its neighbour is lost", next_of(who, !who), who);
	check(status.state == 0 && !(status.tx_errors | status.tx_dropped | status.tx_refused | status.rx_errors | status.rx_dropped),
	      "%u: state %u, sent with %lu errors, %lu lost, %lu refused, received with %lu errors, %lu lost", who, status.state, status.tx_errors,
	      status.tx_dropped, status.tx_refused, status.rx_errors, status.rx_dropped);
	seen.waited += nr_waiting;
}

void end_interface(u32 set)
{
	struct front *out = &way_out[set];
	settle();
	check(way_out_of(switch_name).kind == NO_WAY_OUT, "a dead domain is the way out");
	check(nr_in_use(out) == 0, "%u grants of a dead domain's interface are in use", nr_in_use(out));
	look_at_what_is_out(out);
	look_at_what_came_in(out);
	for (u32 who = 0; who < NR_GUESTS; who++)
		look_at_what_waits(who);
	wire.nr_out = wire.nr_out_seen = 0;
	let_go_of_pages(out);
}

bool has_all_come(u32 set)
{
	const struct front *out = &way_out[set];
	settle();
	see_what_is_out();
	bool is_all = wire.nr_in == wire.nr_in_taken && out->tx->rsp_prod == out->tx->req_prod && out->rx->rsp_prod == wire.nr_out;
	for (u32 who = 0; who < NR_ENDS; who++)
		for (u32 to = 0; to < NR_ENDS; to++)
			is_all &= who == to || next_of(who, to) >= nr_sent[who];
	for (u32 who = 0; who < NR_GUESTS; who++)
		for (u32 place = 0; place < NR_PLACES; place++)
			is_all &= !in_place[who][place];
	return is_all;
}

void connect_network(u16 backend, u16 first)
{
	switch_name = new_switch();
	for (u32 who = 0; who < NR_GUESTS; who++)
		connect_granting_to(&guest[who], who, backend, switch_name);
	for (u32 set = 0; set < PAGE_SETS; set++)
		for (u32 n = 0; n < WIRE_PAGES; n++)
			grant(&own_grants()[WIRE_REF + set * WIRE_PAGES + n], first + set, mfn_of((u8 *)&wire + n * PAGE), 0);
	check_result(wait_for_way_out(SWITCH_HOLD, LONGEST_MS), 0, "a wait");
}

void disconnect_network(void)
{
	struct channel_switch request = { switch_name, 0 };
	for (u32 who = 0; who < NR_GUESTS; who++) {
		disconnect_front(&guest[who]);
		close_ports(&guest[who]);
	}
	check_result(channel_op(SWITCH_DESTROY, &request), 0, "destroying the switch");
	u32 in_use = grants_in_use(own_grants() + WIRE_REF, PAGE_SETS * WIRE_PAGES);
	check(in_use == 0, "%u grants of the wire are in use in the end", in_use);
}

void say_network(u64 nr)
{
	printk("  network: %lu packets between neighbours, %lu came out and %lu in, %lu and %lu were lost with who had them, %lu waited for another; %lu drains\n", seen.near,
	       seen.out, seen.in, seen.lost_out, seen.lost_in, seen.waited, seen.drained);
	check(seen.near > nr && seen.out > nr && seen.in > nr, "the network has done too little");
}
