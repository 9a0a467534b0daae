/*
 * The network: guests of a switch whose way out is a hostile driver domain's interface. Two send to each other, and a third one sends
 * outside; what comes from there may be anything, but not from a guest.
 */
#include "backs.h"
#include "lies.h"

enum { LEFT, RIGHT, SENDER, OUT, NR_USED };
/* Packets of the sender's at one time, each with a place of its own; and how long it is waited for what must come. */
enum { NR_PLACES = 16, PLACE = 1024, LONGEST_MS = 600000, CHILD = 5 };
static const u64 PATIENCE_NS = 20000000000;

static struct front fronts[NR_USED] SHARED;
static u32 switch_name SHARED, pair_lock SHARED, sender_lock SHARED, out_lock SHARED;
/* What the two get, and what the sender and the way out get. */
static u8 got_pair[65536] SHARED, got_else[65536] SHARED;
static const u8 stranger[6] = { 2, 0, 0, 0, 0, 9 }, everybody[6] = { 255, 255, 255, 255, 255, 255 };
/* What the sender has sent, and whether it still waits. */
static struct {
	bool is_out, is_for_all;
} sent[NR_PLACES] SHARED;
static u32 nr_sent SHARED;
static struct {
	u64 exchanged, answered, from_outside, ways_out, carried;
} seen SHARED;

static void connect_good(u32 which)
{
	connect_granting_to(&fronts[which], which, GOOD_SERVICE, switch_name);
}

/* What comes from outside is for it, or for many, and has no guest's address. */
static bool is_from_outside(const struct front *to, const u8 *got, u32 len)
{
	static const u8 reserved[5] = { 1, 0x80, 0xc2, 0, 0 };
	if (len < 14 || len > 65535 || (!(got[0] & 1) && memcmp(got, to->mac, 6)) || (memcmp(got, reserved, 5) == 0 && got[5] < 16))
		return false;
	for (u32 n = 0; n < OUT; n++)
		if (memcmp(got + 6, fronts[n].mac, 6) == 0)
			return false;
	return !(got[6] & 1);
}

static bool is_of(const u8 *packet, const struct front *from)
{
	return memcmp(packet + 6, from->mac, 6) == 0;
}

static void make_packet(u8 *at, u32 number, u32 len, bool is_for_all)
{
	for (u32 n = 0; n < len; n++)
		at[n] = n * 5 + number + (n >> 8);
	memcpy(at, is_for_all ? everybody : stranger, 6);
	memcpy(at + 6, fronts[SENDER].mac, 6);
	at[12] = 0x88, at[13] = 0xb5;
	memcpy(at + 14, &number, 4);
}

/* The number of a packet of the sender's, which is as it was made; or 0. */
static u32 number_of(const u8 *packet, u32 len)
{
	u8 made[PLACE];
	u32 number = 0;
	if (len < 60 || len > PLACE || !is_of(packet, &fronts[SENDER]))
		return 0;
	memcpy(&number, packet + 14, 4);
	make_packet(made, number, len, memcmp(packet, everybody, 6) == 0);
	return memcmp(packet, made, len) == 0 ? number : 0;
}

/* Takes what has come, but for what `from` has sent, if somebody is asked for; the length of that. */
static u32 look_at(struct front *to, const struct front *from)
{
	u8 *got = to->number == SENDER ? got_else : got_pair;
	u32 len = 0;
	while (len == 0 && to->rx->rsp_prod != to->rx_cons) {
		u32 now = receive(to, got);
		if (from && now <= 65535 && is_of(got, from))
			len = now;
		else if (number_of(got, now) && (got[0] & 1))
			continue;
		else if (check(is_from_outside(to, got, now), "%u receives %d bytes for %x:%x:%x:%x:%x:%x, from %x:%x:%x:%x:%x:%x", to->number, now, got[0],
			       got[1], got[2], got[3], got[4], got[5], got[6], got[7], got[8], got[9], got[10], got[11]))
			seen.from_outside++;
	}
	post(to, NR_RX_DATA - (to->rx->req_prod - to->rx_cons));
	kick_rx(to);
	return len;
}

/* A packet from one to the other, in pieces, which comes whatever is outside. */
static void exchange(struct front *from, struct front *to)
{
	static const u32 pieces[] = { 300, 1000, 4096 };
	u32 piece = pieces[up_to(COUNT(pieces))], len = 14 + up_to(piece * NR_TX_DATA - 14), slots = (len + piece - 1) / piece, came = 0;
	look_at(to, NULL);
	make_frame(to->mac, from->mac, len, draw());
	put(from, len, piece);
	check_result(notify_tx(from), 0, "a good kick");
	for (u64 until = about_now_ns() + PATIENCE_NS; about_now_ns() < until && !(came && nr_answers(from) >= slots);)
		if (!came)
			came = look_at(to, from);
	check(came == len && memcmp(got_pair, frame, len) == 0, "a packet of %u bytes to a neighbour: %u come", len, came);
	for (u32 n = 0; n < slots; n++)
		check(answer(from) == 0, "a packet to a neighbour: an error in slot %u of %u", n, slots);
	check(nr_answers(from) == 0, "%u answers too many to a packet to a neighbour", nr_answers(from));
	seen.exchanged++;
}

void exchange_once(void)
{
	if (!try_lock(&pair_lock))
		return;
	bool is_left = up_to(2);
	exchange(&fronts[is_left ? LEFT : RIGHT], &fronts[is_left ? RIGHT : LEFT]);
	unlock(&pair_lock);
}

/* Where the sender's packets lie as long as they are not answered. */
static u8 *place_of(u32 place)
{
	return fronts[SENDER].page[TX_DATA + place % NR_TX_DATA] + place / NR_TX_DATA * PLACE;
}

/* Packets that are not answered; or of those the ones to strangers only. */
static u32 nr_waiting(bool to_strangers)
{
	u32 nr = 0;
	for (u32 n = 0; n < NR_PLACES; n++)
		nr += sent[n].is_out && !(to_strangers && sent[n].is_for_all);
	return nr;
}

static void send_outside(u32 place)
{
	struct front *from = &fronts[SENDER];
	u32 len = 60 + up_to(PLACE - 60);
	sent[place].is_out = true;
	sent[place].is_for_all = up_to(4) == 0;
	make_packet(place_of(place), ++nr_sent, len, sent[place].is_for_all);
	put_slot_as(from, place, from->first_ref + TX_DATA + place % NR_TX_DATA, place / NR_TX_DATA * PLACE, len);
}

/* Each is answered once, and without an error, wherever it went. */
static void take_sent(void)
{
	struct front *from = &fronts[SENDER];
	for (; nr_answers(from); from->tx_cons++) {
		volatile struct tx_slot *slot = &from->tx->tx[from->tx_cons % SLOTS];
		u32 place = slot->response.id;
		if (!check(place < NR_PLACES && sent[place].is_out, "an answer to packet %u, which was not sent, or was answered", place))
			continue;
		check(slot->response.status == 0, "a packet to outside: status %d", slot->response.status);
		sent[place].is_out = false;
		seen.answered++;
	}
	from->tx->rsp_event = from->tx_cons + 1;
}

void outside_once(void)
{
	if (!try_lock(&sender_lock))
		return;
	take_sent();
	for (u32 nr = up_to(NR_PLACES); nr--;) {
		u32 place = up_to(NR_PLACES);
		if (!sent[place].is_out)
			send_outside(place);
	}
	notify_tx(&fronts[SENDER]);
	look_at(&fronts[SENDER], NULL);
	unlock(&sender_lock);
}

static s64 hold(u32 cmd, u32 ms)
{
	struct channel_hold request = { switch_name, ms };
	return channel_op(cmd, &request);
}

static void let_go(void)
{
	struct channel_vif request = { fronts[OUT].vif, 0 };
	note(channel_op(VIF_DISCONNECT, &request));
}

static void connect_out(u32 flags)
{
	struct channel_connect request = request_of(&fronts[OUT], switch_name, flags);
	if (up_to(8) == 0)
		request.rate_bytes = 1000 + up_to(100000), request.rate_interval_us = 1 + up_to(100000);
	s64 result = channel_op(VIF_CONNECT, &request);
	note(result);
	if (result == 0)
		fronts[OUT].vif = request.vif, seen.ways_out++;
}

/* The driver domain's memory goes with it. */
static void end_out(void)
{
	struct front *out = &fronts[OUT];
	bool is_child = out->domid != 0;
	if (!is_child || up_to(2))
		let_go();
	if (!is_child) {
		close_ports(out);
		return;
	}
	check_result(destroy_domain(CHILD), 0, "destroydomain");
	let_go_of_pages(out);
	check(domain_is_gone(CHILD), "a driver domain never goes");
}

/* Pages of other domains come and go on vCPU 0 only, which has mapped them. */
static void another_out(void)
{
	struct front *out = &fronts[OUT];
	if (out->domid && me)
		return;
	if (out->domid || up_to(2)) {
		end_out();
		make_front(out, OUT, me == 0 && up_to(4) == 0 ? CHILD : 0);
	} else {
		let_go();
	}
	if (up_to(8))
		connect_out(UPLINK | (up_to(2) ? SG : up_to(32)));
	post(out, up_to(128));
}

void way_out_once(void)
{
	if (!try_lock(&out_lock))
		return;
	switch (up_to(4)) {
	case 0: note(hold(SWITCH_HOLD, up_to(2) ? LONGEST_MS : up_to(1000))); break;
	case 1: note(hold(SWITCH_DRAIN, up_to(2000))); break;
	default: another_out();
	}
	unlock(&out_lock);
}

void out_lies_once(void)
{
	static const struct who who = { fronts, NR_USED, &fronts[LEFT] };
	struct front *out = &fronts[OUT];
	switch (up_to(16)) {
	case 0: spoil_indices(out); break;
	case 1: case 2: spoil_grants(out); break;
	case 3: put_slots(out); break;
	case 4: storm(out); break;
	case 5: if (try_lock(&out_lock)) spoil_ports(out), unlock(&out_lock); break;
	case 6: case 7: case 8: put_requests(out); break;
	default: put_packets(out, &who);
	}
	note(up_to(2) ? notify_tx(out) : kick_rx(out));
}

/* Those to strangers that wait come, in their order; of those to all may be as much as that. */
static void what_waits_comes(u32 nr_strangers, u32 nr)
{
	struct front *out = &fronts[OUT];
	u32 strangers = 0, came = 0, last = 0;
	for (u64 until = about_now_ns() + PATIENCE_NS; about_now_ns() < until && (nr_waiting(false) || strangers < nr_strangers);) {
		kick_tx(&fronts[SENDER]);
		take_sent();
		look_at(&fronts[LEFT], NULL);
		look_at(&fronts[RIGHT], NULL);
		for (u32 len; (len = receive(out, got_else)) != 0; came++) {
			u32 number = number_of(got_else, len);
			check(number, "the way out receives %d bytes that are not the sender's", len);
			check(number > last, "packet %u comes out after %u", number, last);
			last = number;
			strangers += memcmp(got_else, stranger, 6) == 0;
		}
	}
	take_sent();
	check(strangers == nr_strangers && came <= nr && nr_waiting(false) == 0, "%u packets waited, %u for strangers; %u came, %u for strangers; %u wait",
	      nr, nr_strangers, came, strangers, nr_waiting(false));
	seen.carried += came;
}

/* Nobody else does anything: with an honest way out all goes where it should. */
static void make_sure_of_way_out(void)
{
	struct front *out = &fronts[OUT];
	/* From now on it waits for as long as that. */
	check_result(hold(SWITCH_HOLD, LONGEST_MS), 0, "a wait");
	end_out();
	kick_tx(&fronts[SENDER]);
	take_sent();
	make_front(out, OUT, 0);
	connect_front(out, switch_name, SG | UPLINK);
	post(out, 128);
	what_waits_comes(nr_waiting(true), nr_waiting(false));
	for (u32 place = 0; place < NR_PLACES; place++)
		send_outside(place);
	what_waits_comes(nr_waiting(true), NR_PLACES);
}

void honest_way_out(void)
{
	u32 *locks[] = { &pair_lock, &sender_lock, &out_lock }, nr = 0;
	while (nr < COUNT(locks) && try_lock(locks[nr]))
		nr++;
	if (nr == COUNT(locks))
		make_sure_of_way_out();
	while (nr--)
		unlock(locks[nr]);
}

void connect_network(void)
{
	switch_name = new_switch();
	for (u32 n = LEFT; n < OUT; n++)
		connect_good(n);
	make_front(&fronts[OUT], OUT, 0);
	connect_front(&fronts[OUT], switch_name, SG | UPLINK);
	memset(sent, 0, sizeof(sent));
}

void disconnect_network(void)
{
	struct channel_switch request = { switch_name, 0 };
	make_sure_of_way_out();
	for (u32 n = LEFT; n < NR_USED; n++) {
		disconnect_front(&fronts[n]);
		close_ports(&fronts[n]);
	}
	check_result(channel_op(SWITCH_DESTROY, &request), 0, "destroying the switch");
}

void say_network(void)
{
	printk("  network: %lu packets between neighbours, %lu answered that went out, of which %lu are sure to have come, %lu from outside, %lu ways out\n",
	       seen.exchanged, seen.answered, seen.carried, seen.from_outside, seen.ways_out);
	check(seen.exchanged > 10 && seen.answered > 10 && seen.from_outside > 10 && seen.ways_out > 10, "the network has done too little");
}
