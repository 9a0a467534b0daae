/* A card that cuts TCP packets into segments gets them whole, with their rest in lent pages. */
#include "card.h"

enum { SEND_PAGES = 64, LEN = 12000, PIECE = 3000, SEGMENT = 1460, LINEAR = 192, HEADERS = 54, INFO = BUFFER - 320,
	NR_FRAGS = INFO + 21 * 8, GSO_SIZE = INFO + 23 * 8, GSO_SEGS = INFO + 24 * 8, GSO_TYPE = INFO + 26 * 8, FRAGS = INFO + 28 * 8,
	HAS_CSUM = 1, HAS_PAGES = 4, HAS_GSO = 8 };

static u8 room[SEND_PAGES][PAGE] __attribute__((aligned(PAGE)));
static const u64 vmemmap = 0xffffea0000000000;

/* A TCP packet without its checksum. */
static void make_tcp(void)
{
	make_frame(stranger, guest.mac, LEN, 11);
	u8 *ip = frame + 14, *tcp = ip + 20;
	frame[12] = 8, frame[13] = 0;
	memset(ip, 0, 40);
	ip[0] = 0x45, ip[2] = (LEN - 14) >> 8, ip[3] = (LEN - 14) & 255, ip[8] = 64, ip[9] = 6;
	tcp[12] = 5 << 4;
}

static void send_whole(void)
{
	make_tcp();
	put_whole(&guest, LEN, PIECE, SEGMENT);
	check_result(kick_tx(&guest), 0, "a kick");
}

static s64 attach_with(u32 flags)
{
	struct twin_attach request = good_attach();
	request.flags = flags;
	return twin_op(TWINOP_ATTACH, &request);
}

/* What the driver was given is the packet in `frame`. */
static void check_whole(void)
{
	u64 skb = card->tx[(card->nr_sent - 1) % 64], head = *word(skb, SKB_HEAD), data = *word(skb, SKB_DATA);
	check((u32)*word(skb, SKB_LEN) == LEN && (u32)*word(skb, SKB_DATA_LEN) == LEN - LINEAR, "%u bytes, %u of them in pages",
	      (u32)*word(skb, SKB_LEN), (u32)*word(skb, SKB_DATA_LEN));
	check((u16)*word(head, GSO_SIZE) == SEGMENT && (u16)*word(head, GSO_SEGS) == (LEN - HEADERS + SEGMENT - 1) / SEGMENT &&
	      (u32)*word(head, GSO_TYPE) == 1, "%u segments of %u bytes", (u16)*word(head, GSO_SEGS), (u16)*word(head, GSO_SIZE));
	check(memcmp((void *)data, frame, LINEAR) == 0, "the packet begins otherwise");
	u32 at = LINEAR, nr = (u8)*word(head, NR_FRAGS);
	for (u32 n = 0; n < nr && at < LEN; n++) {
		u64 page = *word(head, FRAGS + 16 * n), len_and_offset = *word(head, FRAGS + 16 * n + 8);
		u32 len = len_and_offset, number = (page - vmemmap) / 64;
		if (!check(number < SEND_PAGES && len <= PAGE && len_and_offset >> 32 == 0, "fragment %u: page %u, %u bytes", n, number, len))
			return;
		check(memcmp(room[number], frame + at, len) == 0, "fragment %u has other bytes", n);
		at += len;
	}
	check(at == LEN, "%u fragments have %u bytes", nr, at - LINEAR);
}

/* So many packets are answered: each slot, and the one that says how to cut, which has an answer that says nothing. */
static void check_whole_answers(u32 nr, const char *what)
{
	u32 nr_good = 0, nr_null = 0;
	UNTIL(nr_answers(&guest) == nr * (LEN / PIECE + 1), what);
	while (nr_answers(&guest)) {
		int status = answer(&guest);
		nr_good += status == 0, nr_null += status == RSP_NULL;
	}
	check(nr_good == nr * (LEN / PIECE) && nr_null == nr, "%s: %u slots are answered, and %u", what, nr_good, nr_null);
}

/* The card has found the sum of what comes in right, and the guest is told so only where the card is believed. */
static void comes_in_summed(bool is_believed, const char *what)
{
	enum { UNNECESSARY = 1 << 5 };
	card->rx_wanted = card->rx_filled + 2;
	interrupt("buffers for what is received");
	UNTIL(card->rx_filled == card->rx_wanted, "buffers for what is received");
	for (u32 is_summed = 0; is_summed < 2; is_summed++) {
		make_frame(guest.mac, stranger, 200, is_summed);
		post(&guest, 1);
		*word(card->rx[card->rx_there % 64], SKB_PKT_TYPE) = is_summed ? UNNECESSARY : 0;
		arrives(200);
		interrupt(what);
		UNTIL(card->rx_taken == card->rx_there, what);
		check_received(&guest, 200, what);
		check((guest.rx_flags & RX_VALIDATED) == (is_summed && is_believed ? RX_VALIDATED : 0), "%s: the flags are %#x", what, guest.rx_flags);
	}
}

/* The sum of 16-bit words, folded. */
static u32 sum_of(const u8 *bytes, u32 len, u32 sum)
{
	for (u32 n = 0; n < len; n++)
		sum += n % 2 ? bytes[n] : bytes[n] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* A TCP packet for the guest, whose sum is right, or wrong by one byte. */
static void make_arriving(u32 len, bool is_right)
{
	u32 tcp_len = len - 34;
	make_frame(guest.mac, stranger, len, len);
	u8 *ip = frame + 14, *tcp = ip + 20;
	frame[12] = 8, frame[13] = 0;
	memset(ip, 0, 12);
	ip[0] = 0x45, ip[2] = (len - 14) >> 8, ip[3] = (len - 14) & 255, ip[8] = 64, ip[9] = 6;
	tcp[12] = 5 << 4, tcp[16] = 0, tcp[17] = 0;
	u32 sum = ~sum_of(tcp, tcp_len, sum_of(ip + 12, 8, 6 + tcp_len));
	tcp[16] = sum >> 8 & 255, tcp[17] = sum & 255;
	if (!is_right)
		frame[34 + len % tcp_len] ^= 1 << len % 8;
}

/* The card says nothing of sums. Those that are right are found to be, and the guest is told so, if the card is believed. */
static void comes_in_unsummed(bool is_believed, const char *what)
{
	static const u32 lens[] = { 54, 55, 61, 62, 63, 97, 98, 99, 105, 162, 163, 226, 289, 290, 1000, 1513, 1514 };
	for (u32 n = 0; n < 2 * sizeof(lens) / sizeof(*lens); n++) {
		u32 len = lens[n / 2];
		bool is_right = n % 2;
		card->rx_wanted = card->rx_filled + 1;
		interrupt("a buffer for what is received");
		UNTIL(card->rx_filled == card->rx_wanted, "a buffer for what is received");
		make_arriving(len, is_right);
		post(&guest, 1);
		*word(card->rx[card->rx_there % 64], SKB_PKT_TYPE) = 0;
		arrives(len);
		interrupt(what);
		UNTIL(card->rx_taken == card->rx_there, what);
		check_received(&guest, len, what);
		check((guest.rx_flags & RX_VALIDATED) == (is_right && is_believed ? RX_VALIDATED : 0), "%s: %u bytes, the flags are %#x", what, len,
		      guest.rx_flags);
	}
}

/* The next packet that the guest receives is `len` bytes of this protocol, whose sum is made. */
static void check_sum(u32 len, u8 protocol, const char *what)
{
	static u8 got[65536];
	u32 got_len = receive(&guest, got), l4_len = len - 34;
	if (!check(got_len == len, "%s: %u bytes instead of %u", what, got_len, len))
		return;
	/* The addresses, the protocol and the length. */
	u32 sum = sum_of(got + 34, l4_len, sum_of(got + 26, 8, protocol + l4_len));
	check(sum == 0xffff && (guest.rx_flags & RX_VALIDATED), "%s: the sum is %#x, the flags are %#x", what, sum, guest.rx_flags);
}

enum { TCP = 6, UDP = 17, SIZE = 500, MANY = 3, SHORT = 10, VERY_MANY = 150, GSO_TCP = 1, GSO_SCTP = 1 << 14, GSO_FRAGMENTS = 1 << 16, GSO_UDP = 1 << 17 };

/* A packet of this protocol arrives as a neighbour on the same host has sent it to `to`: its headers and `body` bytes, to be cut so often. */
static void neighbour_sends(const u8 *to, u8 protocol, u32 kind, u32 body, u32 size, const char *what)
{
	enum { PARTIAL = 3 << 5, START = 9 * 8, OFFSET = 10 * 8 };
	u32 headers = protocol == TCP ? HEADERS : 42, field = protocol == TCP ? 16 : 6;
	u32 len = headers + body, l4_len = len - 34;
	u64 skb = card->rx[card->rx_there % 64], info = *word(skb, SKB_HEAD);
	make_frame(to, stranger, len, kind);
	u8 *ip = frame + 14, *l4 = ip + 20;
	frame[12] = 8, frame[13] = 0;
	memset(ip, 0, 12);
	ip[0] = 0x45, ip[2] = (len - 14) >> 8, ip[3] = (len - 14) & 255, ip[8] = 64, ip[9] = protocol;
	memset(l4, 0, headers - 34);
	if (protocol == TCP)
		l4[12] = 5 << 4;
	else
		l4[4] = l4_len >> 8, l4[5] = l4_len & 255;
	u32 sum = sum_of(ip + 12, 8, protocol + l4_len);
	l4[field] = sum >> 8, l4[field + 1] = sum & 255;
	*word(skb, SKB_PKT_TYPE) = PARTIAL;
	*word(skb, START) = HEADROOM + 34;
	*word(skb, OFFSET) = field;
	*word(info, GSO_SIZE) = kind ? size : 0;
	*word(info, GSO_TYPE) = kind;
	arrives(len);
	interrupt(what);
	UNTIL(card->rx_taken == card->rx_there, what);
}

/* With a kind it comes as MANY, for the guest to get `nr` of. */
static void comes_blank(const u8 *to, u8 protocol, u32 kind, u32 nr, const char *what)
{
	u32 headers = protocol == TCP ? HEADERS : 42, body = kind ? MANY * SIZE : 200;
	post(&guest, nr);
	neighbour_sends(to, protocol, kind, body, SIZE, what);
	for (u32 n = 0; n < nr; n++)
		check_sum(headers + (nr == MANY ? SIZE : body), protocol, what);
	check_nothing(&guest, what);
}

/* What comes from a neighbour on the same host was on no wire: its sum is not made, and it may be one for many. What cannot be cut is counted. */
static void comes_in_blank(const char *what)
{
	static const u8 all[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
	card->rx_wanted = card->rx_filled + 8;
	interrupt("buffers for what is received");
	UNTIL(card->rx_filled == card->rx_wanted, "buffers for what is received");
	struct channel_way_out before = way_out_of(switch_name);
	comes_blank(guest.mac, TCP, 0, 1, what);
	comes_blank(guest.mac, TCP, GSO_TCP, MANY, what);
	comes_blank(guest.mac, UDP, 0, 1, what);
	comes_blank(guest.mac, UDP, GSO_UDP, MANY, what);
	comes_blank(guest.mac, UDP, GSO_FRAGMENTS, 1, what);
	comes_blank(guest.mac, UDP, GSO_SCTP, 0, what);
	/* More segments than are cut at one time, and than the guest has pages for. */
	post(&guest, VERY_MANY);
	neighbour_sends(guest.mac, TCP, GSO_TCP, VERY_MANY * SHORT, SHORT, what);
	for (u32 n = 0; n < VERY_MANY; n++) {
		static u8 got[65536];
		u32 len = receive(&guest, got);
		if (!check(len == HEADERS + SHORT, "%s: segment %u of %u has %u bytes", what, n, VERY_MANY, len))
			break;
	}
	check_nothing(&guest, what);
	/* Nobody sends segments of TCP to all. */
	comes_blank(all, TCP, GSO_TCP, 0, what);
	struct channel_way_out after = way_out_of(switch_name);
	check(after.in_packets == before.in_packets + 6 && after.in_dropped == before.in_dropped + 2, "%s: %lu packets came in, %lu were lost", what,
	      after.in_packets - before.in_packets, after.in_dropped - before.in_dropped);
}

void whole(void)
{
	static struct twin_lent lent[SEND_PAGES];
	for (u32 n = 0; n < SEND_PAGES; n++)
		lent[n] = (struct twin_lent){ FRAGMENT, PAGE, (u64)room[n], vmemmap + 64 * n, 2, 0 };
	struct twin_lend lend = { twin, SEND_PAGES, (u64)lent };
	check_result(detach(), 0, "taking the card away");
	check_result(twin_op(TWINOP_LEND, &lend), 0, "lending pages");
	/* One that does not cut: nine segments. */
	check_result(attach_with(HAS_CSUM), 0, "attaching one that does not cut");
	u64 sent = card->nr_sent;
	send_whole();
	check(card->nr_sent == sent + 9, "%lu segments", card->nr_sent - sent);
	card->nr_gone = card->nr_sent;
	interrupt("segments");
	check_whole_answers(1, "segments");
	check_result(detach(), 0, "taking the card away");
	check_result(attach_with(HAS_CSUM | HAS_PAGES | HAS_GSO), 0, "attaching one that cuts");
	/* More than once, so that pages come back: three of 64 are in use each time. */
	for (u32 n = 0; n < 40; n++) {
		sent = card->nr_sent;
		send_whole();
		if (!check(card->nr_sent == sent + 1, "packet %u: the driver has %lu", n, card->nr_sent - sent))
			break;
		check_whole();
		card->nr_gone = card->nr_sent;
		interrupt("a whole packet");
		check_whole_answers(1, "a whole packet");
	}
	/* As many as there are pages for, but for those that are kept to receive: the others wait. */
	sent = card->nr_sent;
	for (u32 n = 0; n < 20; n++)
		send_whole();
	check(card->nr_sent == sent + 15, "%lu packets have pages", card->nr_sent - sent);
	card->nr_gone = card->nr_sent;
	interrupt("packets with pages");
	UNTIL(card->nr_sent == sent + 20, "those that waited for pages");
	check_whole();
	card->nr_gone = card->nr_sent;
	interrupt("packets that waited for pages");
	check_whole_answers(20, "packets that waited for pages");
	check(nr_in_use(&guest) == 2, "%u grants are in use", nr_in_use(&guest));
	comes_in_summed(true, "coming in from one that is believed");
	comes_in_unsummed(true, "coming in with a sum that nobody has made");
	comes_in_blank("coming in from a neighbour");
	check_result(detach(), 0, "taking the card away");
	/* One that cuts, and is not to. */
	disconnect_front(&out);
	connect_front(&out, switch_name, SG | UPLINK | NO_OFFLOAD);
	check_result(attach_with(HAS_CSUM | HAS_PAGES | HAS_GSO), 0, "attaching one that is left nothing");
	sent = card->nr_sent;
	send_whole();
	check(card->nr_sent == sent + 9, "%lu segments by one that is left nothing", card->nr_sent - sent);
	card->nr_gone = card->nr_sent;
	interrupt("segments by one that is left nothing");
	check_whole_answers(1, "segments by one that is left nothing");
	comes_in_summed(false, "coming in from one that is left nothing");
	comes_in_unsummed(false, "coming in with a sum from one that is left nothing");
	check_result(detach(), 0, "taking the card away");
	disconnect_front(&out);
	connect_front(&out, switch_name, SG | UPLINK);
	post(&out, 16);
	check_result(attach(), 0, "attaching");
}
