/* Front ends that do what they should. */
#include "fronts.h"

enum { PATIENCE_NS = 2000000000, MOST_SLOTS = 16 };

static u32 good_lock SHARED, watch_lock SHARED;
static u8 got[65536] SHARED;
static struct {
	u64 sent, bytes, watched;
} seen SHARED;

/* They have granted to another domain than the hostile ones, so that those cannot name their pages. */
void connect_good(u32 which, u32 switch_name)
{
	connect_granting_to(&fronts[which], which, BACK_END, switch_name);
}

/* A packet from one to the other, in pieces; then it is looked at. */
static void exchange(struct front *from, struct front *to)
{
	static const u32 pieces[] = { 100, 300, 1000, 2048, 4096 };
	u32 piece = pieces[up_to(COUNT(pieces))], fit = PAGE / piece * NR_TX_DATA, most = piece * (fit < MOST_SLOTS ? fit : MOST_SLOTS);
	u32 len = 14 + up_to(most - 14), slots = (len + piece - 1) / piece;
	make_frame(to->mac, from->mac, len, draw());
	u32 answers = from->tx->rsp_prod;
	put(from, len, piece);
	post(to, NR_RX_DATA - (to->rx->req_prod - to->rx->rsp_prod));
	kick_rx(to);
	check_result(notify_tx(from), 0, "a good kick");
	/* Somebody else may be at it. */
	for (u64 until = about_now_ns() + PATIENCE_NS; about_now_ns() < until;)
		if (to->rx->rsp_prod != to->rx_cons && from->tx->rsp_prod - answers >= slots)
			break;
	check_received(to, len, "a good packet");
	for (u32 n = 0; n < slots; n++)
		check(answer(from) == 0, "a good packet of %u slots: an error in slot %u", slots, n);
	seen.sent++;
	seen.bytes += len;
}

void good_once(void)
{
	if (!try_lock(&good_lock))
		return;
	bool is_a = up_to(2);
	exchange(&fronts[is_a ? GOOD_A : GOOD_B], &fronts[is_a ? GOOD_B : GOOD_A]);
	unlock(&good_lock);
}

/* Has this packet the address of a hostile front end that may send it? */
static bool is_sound(const struct front *to, u32 len)
{
	static const u8 reserved[5] = { 1, 0x80, 0xc2, 0, 0 };
	const u8 *from = got + 6;
	if (len < 14 || (!(got[0] & 1) && memcmp(got, to->mac, 6)) || (memcmp(got, reserved, sizeof(reserved)) == 0 && got[5] < 16))
		return false;
	for (u32 n = 0; n < HOSTILE; n++)
		if (memcmp(from, fronts[n].mac, 6) == 0)
			return true;
	return has_any_source;
}

void watch_once(void)
{
	struct front *to = &fronts[WATCHED];
	if (!try_lock(&watch_lock))
		return;
	for (u32 n = 0; n < 200 && to->rx->rsp_prod != to->rx_cons; n++) {
		u32 len = receive(to, got);
		check(len <= 65535, "the watched one's pages are good, but it receives an error");
		if (len <= 65535 && !is_sound(to, len))
			check(false, "%u bytes for %x:%x:%x:%x:%x:%x, from %x:%x:%x:%x:%x:%x, type %x%x", len, got[0], got[1], got[2], got[3],
			      got[4], got[5], got[6], got[7], got[8], got[9], got[10], got[11], got[12], got[13]);
		seen.watched++;
	}
	post(to, NR_RX_DATA - (to->rx->req_prod - to->rx_cons));
	kick_rx(to);
	unlock(&watch_lock);
}

void say_good(void)
{
	printk("  %lu good packets with %lu bytes; the watched one received %lu\n", seen.sent, seen.bytes, seen.watched);
	check(seen.sent > 10 && seen.watched > 10, "too few good packets, or none of the hostile ones");
}
