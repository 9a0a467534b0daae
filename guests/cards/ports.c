/* A card as a port of the switch: who gets what, packets that are cut and summed, several senders, and ends that go. */
#include "card.h"

enum { SLOTS_OF_CARD = NR_SKBS - NR_SKBS / 4 };

static struct front b;
static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 };

static struct channel_way_out way(void)
{
	return way_out_of(switch_name);
}

/* The bytes of the `n`-th packet that the driver was given. */
static u8 *sent(u64 n)
{
	return (u8 *)*word(card->tx[n % 64], SKB_DATA);
}

static u32 sent_len(u64 n)
{
	return (u32)*word(card->tx[n % 64], SKB_LEN);
}

static void begin(void)
{
	load_card("domains_own");
	check_result(attach(), 0, "attaching");
}

static void end(void)
{
	check_result(detach(), 0, "taking the card away");
	unload_card();
}

/* What the device has received it hands over at once. */
static void comes_in(u32 len, const char *what)
{
	arrives(len);
	interrupt(what);
	UNTIL(card->rx_taken == card->rx_there, what);
}

static void answered(struct front *front, u32 nr, const char *what)
{
	check(nr_answers(front) == nr, "%s: %u has %u answers instead of %u", what, front->number, nr_answers(front), nr);
	/* Extra information is answered with 1. */
	while (nr_answers(front))
		check((u32)answer(front) <= 1, "%s: an error", what);
}

/* To all, to the domain's own interface, with others' addresses. */
static void who_gets_what(void)
{
	begin();
	post(&guest, 8);
	post(&out, 8);
	struct channel_way_out before = way();
	check(before.kind == CARD_IS_WAY_OUT && before.vif == out.vif && before.out_packets == 0, "the way out is %u", before.kind);
	card->rx_wanted = 8;
	interrupt("an empty poll");
	UNTIL(card->rx_filled == 8, "buffers for what is received");

	send(&guest, everybody, guest.mac, 60, 1);
	check_sent(60, "to all");
	check_received(&b, 60, "to all");
	check_received(&out, 60, "to all");
	check_answers(0, "what the driver has");
	all_gone("to all");
	send(&guest, out.mac, guest.mac, 60, 2);
	check_received(&out, 60, "to the domain's own");
	answered(&guest, 1, "to the domain's own");
	send(&out, stranger, out.mac, 60, 3);
	check_sent(60, "from the domain's own");
	send(&out, stranger, stranger, 60, 4);
	/* Where one comes from whom nobody here knows cannot be told from a frame that came in by the card. */
	check(card->nr_sent == card->nr_done + 1, "what comes from a stranger goes back to the network");
	send(&out, guest.mac, b.mac, 60, 5);
	card->nr_gone = card->nr_sent;
	interrupt("from the domain's own");
	UNTIL(nr_answers(&out) == 3, "from the domain's own");
	answered(&out, 3, "from the domain's own");
	check_nothing(&guest, "from the domain's own with another's address");
	check(status_of(&out).tx_refused == 2, "%lu are refused", status_of(&out).tx_refused);

	make_frame(everybody, stranger, 100, 6);
	comes_in(100, "in to all");
	check_received(&guest, 100, "in to all");
	check_received(&b, 100, "in to all");
	check_received(&out, 100, "in to all");
	make_frame(out.mac, stranger, 60, 7);
	comes_in(60, "in to the domain's own");
	check_received(&out, 60, "in to the domain's own");
	make_frame(everybody, out.mac, 60, 8);
	comes_in(60, "what comes back");
	check_nothing(&guest, "what comes back");
	check_nothing(&b, "what is for others");

	struct channel_way_out after = way();
	check(after.out_packets == 2 && after.out_bytes == 120 && after.out_dropped == 0, "out: %lu packets, %lu bytes, %lu lost",
	      after.out_packets, after.out_bytes, after.out_dropped);
	check(after.in_packets == 2 && after.in_bytes == 160 && after.in_dropped == 1, "in: %lu packets, %lu bytes, %lu lost",
	      after.in_packets, after.in_bytes, after.in_dropped);
	audit();
	end();
	check(way().kind == INTERFACE_IS_WAY_OUT, "without the card the way out is %u", way().kind);
}

/* The sum of bytes as big-endian words. */
static u32 sum(const u8 *at, u32 len, u32 from)
{
	for (u32 n = 0; n < len; n++)
		from += n % 2 ? at[n] : at[n] << 8;
	while (from >> 16)
		from = (from & 0xffff) + (from >> 16);
	return from;
}

/* What is added for TCP over IPv4 before the segment of `len` bytes. */
static u32 pseudo(const u8 *ip, u32 len)
{
	return sum(ip + 12, 8, 6 + len);
}

/* A TCP packet of `payload` bytes, whose checksum is to be completed. */
static u32 make_tcp(u32 payload)
{
	u8 *ip = frame + 14, *tcp = ip + 20;
	u32 len = 54 + payload;
	make_frame(stranger, guest.mac, len, 3);
	memset(ip, 0, 40);
	frame[12] = 8, frame[13] = 0;
	ip[0] = 0x45, ip[2] = (len - 14) >> 8, ip[3] = len - 14, ip[8] = 64, ip[9] = 6, ip[12] = 10, ip[16] = 10, ip[19] = 2;
	tcp[12] = 0x50, tcp[13] = 0x10;
	u32 blank = pseudo(ip, 20 + payload);
	tcp[16] = blank >> 8, tcp[17] = blank;
	return len;
}

/* As put(), with a first slot that says more, and extra information behind it if it is to be cut. */
static void put_tcp(u32 len, u32 segment)
{
	for (u32 at = 0, page = 0; at < len; at += PAGE, page++) {
		u32 now = len - at < PAGE ? len - at : PAGE, more = at + now < len ? MORE_DATA : 0;
		memcpy(guest.page[TX_DATA + page], frame + at, now);
		put_slot(&guest, guest.first_ref + TX_DATA + page, 0, at ? more : more | CSUM_BLANK | (segment ? EXTRA_INFO : 0), at ? now : len);
		if (at == 0 && segment)
			put_slot(&guest, 1 | segment << 16, 1, 0, 0);
	}
	check_result(kick_tx(&guest), 0, "a kick");
}

static void cut_and_summed(void)
{
	enum { PAYLOAD = 5000, SEGMENT = 1400 };
	begin();
	u32 len = make_tcp(PAYLOAD), at = 0;
	put_tcp(len, SEGMENT);
	check(card->nr_sent == 4, "%lu segments", card->nr_sent);
	for (u32 n = 0; n < 4 && n < card->nr_sent; n++) {
		u32 payload = PAYLOAD - at < SEGMENT ? PAYLOAD - at : SEGMENT;
		const u8 *ip = sent(n) + 14;
		check(sent_len(n) == 54 + payload, "segment %u has %u bytes", n, sent_len(n));
		check(memcmp(sent(n) + 54, frame + 54 + at, payload) == 0, "segment %u has other bytes", n);
		check(sum(ip, 20, 0) == 0xffff && sum(ip + 20, 20 + payload, pseudo(ip, 20 + payload)) == 0xffff, "the sums of segment %u", n);
		at += payload;
	}
	/* Nothing is answered before the last segment has gone. */
	card->nr_gone = 3;
	interrupt("three segments");
	UNTIL(card->nr_done == 3, "three segments");
	answered(&guest, 0, "three segments");
	card->nr_gone = 4;
	interrupt("four segments");
	UNTIL(nr_answers(&guest), "four segments");
	answered(&guest, 3, "four segments");
	/* Only summed. */
	len = make_tcp(500);
	put_tcp(len, 0);
	check(card->nr_sent == 5 && sent_len(4) == len, "a packet to be summed: %u bytes", sent_len(4));
	check(sum(sent(4) + 34, 520, pseudo(sent(4) + 14, 520)) == 0xffff, "a packet to be summed");
	all_gone("a packet to be summed");
	/* Longer than the card takes, and cut into what is. */
	len = make_tcp(2000);
	put_tcp(len, 0);
	put_tcp(len, 1500);
	answered(&guest, 3, "too long");
	check(card->nr_sent == 5 && way().out_dropped == 2, "too long: %lu are sent, %lu lost", card->nr_sent, way().out_dropped);
	end();
}

/* More than the card has room for: who comes second has its turn soon. */
static void turns(void)
{
	begin();
	make_frame(stranger, guest.mac, 60, 1);
	for (u32 n = 0; n < 60; n++)
		put(&guest, 60, 60);
	check_result(kick_tx(&guest), 0, "a kick");
	check(card->nr_sent == SLOTS_OF_CARD && way().waiting == 60 - SLOTS_OF_CARD, "%lu are sent, %u wait", card->nr_sent, way().waiting);
	make_frame(stranger, b.mac, 60, 2);
	for (u32 n = 0; n < 5; n++)
		put(&b, 60, 60);
	check_result(kick_tx(&b), 0, "a kick");
	check(way().waiting == 65 - SLOTS_OF_CARD && nr_answers(&b) == 0, "%u wait", way().waiting);
	/* What is for others does not. It is in another page: what waits is looked at again. */
	make_frame(b.mac, guest.mac, 60, 3);
	memcpy(guest.page[TX_DATA + 1], frame, 60);
	put_slot(&guest, guest.first_ref + TX_DATA + 1, 0, 0, 60);
	check_result(kick_tx(&guest), 0, "a kick");
	check_received(&b, 60, "beside what waits");
	audit();
	check(nr_in_use(&guest) > 2, "what waits is not in use");
	card->nr_gone = card->nr_sent;
	interrupt("room");
	UNTIL(card->nr_sent == 2 * SLOTS_OF_CARD, "what waited");
	u32 of_b = 0;
	for (u64 n = SLOTS_OF_CARD; n < card->nr_sent; n++)
		of_b += sent(n)[11] == b.mac[5];
	check(of_b == 5, "%u packets of the second are among the next %u", of_b, SLOTS_OF_CARD);
	while (card->nr_done != 65 && card->nr_sent != card->nr_done) {
		card->nr_gone = card->nr_sent;
		interrupt("the rest");
		UNTIL(card->nr_done == card->nr_gone, "the rest");
		HC1(sched_op, SCHEDOP_yield);
	}
	UNTIL(nr_answers(&guest) == 61 && nr_answers(&b) == 5, "answers");
	answered(&guest, 61, "at last");
	answered(&b, 5, "at last");
	end();
}

/* With packets in the card and others that wait for it, ends go: the sender, the domain's interface, and the card. */
static void ends_go(void)
{
	begin();
	make_frame(stranger, b.mac, 60, 1);
	for (u32 n = 0; n < SLOTS_OF_CARD + 10; n++)
		put(&b, 60, 60);
	check_result(kick_tx(&b), 0, "a kick");
	check(way().waiting == 10, "%u wait", way().waiting);
	disconnect_front(&b);
	close_ports(&b);
	check(way().waiting == 0, "%u wait for nobody", way().waiting);
	audit();
	make_front(&b, 2, 0);
	connect_front(&b, switch_name, SG);
	post(&b, 16);
	send(&b, stranger, b.mac, 60, 2);
	check(way().waiting == 1, "%u wait beside what has lost its sender", way().waiting);
	/* What its forerunner had sent is no answer for it. */
	card->nr_gone = SLOTS_OF_CARD;
	interrupt("packets without a sender");
	UNTIL(card->nr_sent == SLOTS_OF_CARD + 1, "what waited");
	check_sent(60, "what waited");
	answered(&b, 0, "packets without a sender");
	card->nr_gone = card->nr_sent;
	interrupt("its own");
	UNTIL(nr_answers(&b), "its own");
	answered(&b, 1, "its own");

	make_frame(stranger, b.mac, 60, 3);
	for (u32 n = 0; n < SLOTS_OF_CARD + 10; n++)
		put(&b, 60, 60);
	check_result(kick_tx(&b), 0, "a kick");
	disconnect_front(&out);
	check(way().kind == NO_WAY_OUT, "the way out is %u", way().kind);
	answered(&b, 10, "without the domain's interface");
	send(&b, stranger, b.mac, 60, 4);
	answered(&b, 1, "without the domain's interface");
	audit();
	connect_front(&out, switch_name, SG | UPLINK);
	check(way().kind == CARD_IS_WAY_OUT && way().vif == out.vif, "the way out is %u", way().kind);
	card->nr_gone = card->nr_sent;
	interrupt("what was on its way");
	UNTIL(nr_answers(&b) == SLOTS_OF_CARD, "what was on its way");
	answered(&b, SLOTS_OF_CARD, "what was on its way");

	make_frame(stranger, b.mac, 60, 5);
	for (u32 n = 0; n < SLOTS_OF_CARD + 10; n++)
		put(&b, 60, 60);
	check_result(kick_tx(&b), 0, "a kick");
	check_result(detach(), 0, "taking the card away");
	UNTIL(nr_answers(&b) == SLOTS_OF_CARD + 10, "without the card");
	answered(&b, SLOTS_OF_CARD + 10, "without the card");
	/* What waited for the card has gone by the interface; what was in the card has not. */
	for (u32 n = 0; n < 10; n++)
		check_received(&out, 60, "what waited for the card");
	check_nothing(&out, "what was in the card");
	check(nr_in_use(&b) == 2, "%u grants are in use", nr_in_use(&b));
	audit();
	unload_card();

	/* A way out that is drained is, also by the interface, when its card has gone: what waited for the card waits. */
	begin();
	post(&out, 8);
	make_frame(stranger, b.mac, 60, 6);
	for (u32 n = 0; n < SLOTS_OF_CARD + 8; n++)
		put(&b, 60, 60);
	check_result(kick_tx(&b), 0, "a kick");
	struct channel_hold drain = { switch_name, 10000 };
	check_result(channel_op(SWITCH_DRAIN, &drain), 0, "a drain");
	check_result(detach(), 0, "taking the card away while it is drained");
	UNTIL(nr_answers(&b) == SLOTS_OF_CARD, "what was in a card that was drained");
	answered(&b, SLOTS_OF_CARD, "what was in a card that was drained");
	check_nothing(&out, "beside a card that was drained");
	drain.hold_ms = 0;
	check_result(channel_op(SWITCH_DRAIN, &drain), 0, "the end of a drain");
	UNTIL(nr_answers(&b) == 8, "what waited until it was drained no more");
	for (u32 n = 0; n < 8; n++)
		check_received(&out, 60, "what waited until it was drained no more");
	answered(&b, 8, "what waited until it was drained no more");
	audit();
	unload_card();
}

/* What waits for the domain's interface goes by the card that comes, but for what is the domain's own. */
static void card_comes(void)
{
	enum { NR = 12 };
	disconnect_front(&out);
	close_ports(&out);
	make_front(&out, 1, 0);
	connect_front(&out, switch_name, SG | UPLINK);
	make_frame(stranger, b.mac, 60, 7);
	for (u32 n = 0; n < NR; n++)
		put(&b, 60, 60);
	make_frame(out.mac, b.mac, 60, 8);
	memcpy(b.page[TX_DATA + 1], frame, 60);
	put_slot(&b, b.first_ref + TX_DATA + 1, 0, 0, 60);
	check_result(kick_tx(&b), 0, "a kick");
	check(nr_answers(&b) == 0, "%u are answered that wait for an interface without room", nr_answers(&b));
	begin();
	UNTIL(card->nr_sent == NR, "what waited for the interface");
	card->nr_gone = card->nr_sent;
	interrupt("what waited for the interface");
	post(&out, 8);
	UNTIL(nr_answers(&b) == NR + 1, "what waited for the interface");
	answered(&b, NR + 1, "what waited for the interface");
	check_received(&out, 60, "the domain's own");
	check_nothing(&out, "what goes by the card");
	audit();
	end();
}

void ports(void)
{
	make_front(&b, 2, 0);
	connect_front(&b, switch_name, SG);
	post(&b, 32);
	who_gets_what();
	cut_and_summed();
	turns();
	ends_go();
	card_comes();
	disconnect_front(&b);
	close_ports(&b);
}
