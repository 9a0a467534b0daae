#include "lies.h"

enum { BLANK = 1, VALIDATED = 2, EXTRA = 8 };
enum { IPV4 = 0x0800, IPV6 = 0x86dd, ARP = 0x0806, VLAN = 0x8100, TCP = 6, UDP = 17, HEADERS = 120, MOST_SLOTS = 17, BUSY = 64 };

struct extra {
	u8 type, flags;
	u16 size;
	u8 gso_type, pad;
	u16 features;
};

static void put16(u8 *at, u32 value)
{
	at[0] = value >> 8, at[1] = value;
}

static void addresses(u8 *at, const struct front *from, const struct who *who)
{
	static const u8 others[][6] = { { 255, 255, 255, 255, 255, 255 }, { 0x33, 0x33, 0, 0, 0, 1 }, { 1, 0x80, 0xc2, 0, 0, 3 },
		{ 2, 0, 0, 0, 0, 9 }, { 0, 0, 0, 0, 0, 0 } };
	memcpy(at, up_to(4) ? who->fronts[up_to(who->nr)].mac : others[up_to(COUNT(others))], 6);
	if (up_to(2))
		memcpy(at, who->favourite->mac, 6);
	memcpy(at + 6, up_to(8) ? from->mac : up_to(2) ? who->fronts[up_to(who->nr)].mac : others[up_to(COUNT(others))], 6);
}

/* Headers of a packet of `len` bytes, nearly right. */
static void make_headers(u8 *at, const struct front *from, const struct who *who, u32 len)
{
	static const u16 types[] = { IPV4, IPV4, IPV4, IPV6, IPV6, ARP, VLAN, 0x88b5, 0 };
	u32 type = types[up_to(COUNT(types))], place = 14, protocol = up_to(8) ? up_to(2) ? TCP : UDP : draw();
	for (u32 n = 0; n < HEADERS; n += 8) {
		u64 r = draw();
		memcpy(at + n, &r, 8);
	}
	addresses(at, from, who);
	put16(at + 12, type);
	if (type == VLAN) {
		put16(at + 16, up_to(2) ? IPV4 : VLAN);
		place = 18, type = IPV4;
	}
	u8 *ip = at + place;
	if (type == IPV4) {
		u32 words = up_to(8) ? 5 : up_to(16);
		ip[0] = (up_to(16) ? 0x40 : 0x60) | words;
		put16(ip + 2, up_to(4) ? len - place : draw());
		put16(ip + 6, up_to(8) ? 0x4000 : draw());
		ip[9] = protocol;
		ip += 4 * words;
	} else if (type == IPV6) {
		ip[0] = 0x60;
		put16(ip + 4, up_to(4) ? len - place - 40 : draw());
		ip[6] = up_to(8) ? protocol : up_to(4) * 43;
		ip += 40;
		if (up_to(8) == 0)
			ip[0] = protocol, ip[1] = up_to(4), ip += 8;
	}
	if (protocol == TCP)
		ip[12] = (up_to(8) ? 5 + up_to(4) : up_to(16)) << 4;
	else
		put16(ip + 4, up_to(4) ? (u64)(at + len - ip) : draw());
	if (up_to(4) == 0)
		at[up_to(HEADERS)] = draw();
}

static void put_extra(struct front *front)
{
	u32 at = front->tx->req_prod;
	struct extra extra = { 1, up_to(64) == 0, up_to(8) ? 500 + up_to(1000) : draw(), up_to(64) ? 1 + up_to(2) : draw(), 0, 0 };
	if (up_to(64) == 0)
		((u8 *)&extra)[up_to(sizeof(extra))] = draw();
	memcpy((void *)&front->tx->tx[at % SLOTS], &extra, sizeof(extra));
	front->tx->req_prod = at + 1;
}

void put_packets(struct front *front, const struct who *who)
{
	struct {
		u32 page, offset, len;
	} pieces[MOST_SLOTS];
	for (u32 nr = 1 + up_to(3); nr && front->tx->req_prod - front->tx->rsp_prod < SLOTS - MOST_SLOTS - 1; nr--) {
		bool is_large = up_to(4) == 0, has_extra = is_large ? up_to(8) : up_to(16) == 0;
		u32 nr_pieces = is_large ? 1 + up_to(MOST_SLOTS) : 1 + up_to(3), first = up_to(NR_TX_DATA), len = 0;
		for (u32 n = 0; n < nr_pieces; n++) {
			u32 offset = up_to(2) ? 0 : up_to(n ? PAGE - 1 : PAGE - HEADERS - 16), room = PAGE - offset;
			pieces[n].page = TX_DATA + (first + n) % NR_TX_DATA, pieces[n].offset = offset;
			pieces[n].len = !is_large && room > 600 ? 40 + up_to(500) : up_to(4) && len + room < 65536 ? room : 1 + up_to(room);
			len += pieces[n].len;
		}
		make_headers(front->page[pieces[0].page] + pieces[0].offset, front, who, len);
		u32 flags = up_to(2) ? BLANK | VALIDATED : up_to(4), claimed = up_to(128) ? len : draw();
		for (u32 n = 0; n < nr_pieces; n++) {
			u32 more = up_to(256) ? n + 1 < nr_pieces ? MORE_DATA : 0 : up_to(2) * MORE_DATA;
			put_slot(front, up_to(256) ? front->first_ref + pieces[n].page : draw(), pieces[n].offset,
				 (n ? 0 : flags) | more | (n == 0 && has_extra ? EXTRA : 0), n ? pieces[n].len : claimed);
			if (n == 0 && has_extra)
				put_extra(front);
		}
	}
}

void put_slots(struct front *front)
{
	for (u32 n = 1 + up_to(8); n--;) {
		u32 ref = up_to(16) ? front->first_ref + up_to(NR_PAGES) : up_to(2) ? up_to(512) : draw();
		u32 size = up_to(64) ? up_to(1024) : draw(), offset = up_to(64) ? up_to(1024) : draw();
		put_slot(front, ref, offset, up_to(32) ? 0 : up_to(16) ? up_to(16) : draw(), size);
		if (up_to(16) == 0)
			((volatile u32 *)front->tx)[16 + up_to(3 * SLOTS)] = draw() >> up_to(32);
	}
}

void put_requests(struct front *front)
{
	u32 at = front->rx->req_prod;
	for (u32 n = 1 + up_to(32); n--; at++) {
		volatile struct rx_slot *slot = &front->rx->rx[at % SLOTS];
		slot->request.id = up_to(32) ? at % SLOTS : draw();
		slot->request.gref = front->first_ref + (up_to(32) ? RX_DATA + up_to(NR_RX_DATA) : up_to(NR_PAGES));
		if (up_to(64) == 0)
			slot->request.gref = up_to(2) ? up_to(512) : draw();
	}
	if (up_to(8) == 0)
		((volatile u32 *)front->rx)[16 + up_to(2 * SLOTS)] = draw() >> up_to(32);
	front->rx->req_prod = at;
}

void spoil_indices(struct front *front)
{
	struct ring *ring = up_to(2) ? front->rx : front->tx;
	volatile u32 *word = (volatile u32 *)ring + up_to(up_to(8) ? 4 : 16);
	switch (up_to(8)) {
	case 0: *word = draw(); break;
	case 1: *word += SLOTS + up_to(2); break;
	case 2: *word -= 1 + up_to(3); break;
	case 3: memset(ring, draw(), up_to(PAGE)); break;
	/* Events only. */
	default: (up_to(2) ? &ring->req_event : &ring->rsp_event)[0] = up_to(2) ? draw() : ring->rsp_prod + up_to(3);
	}
}

/* A frame that anybody may write to. */
static u64 some_frame(const struct front *front)
{
	return up_to(4) ? mfn_of(front->page[RX_DATA + up_to(NR_RX_DATA)]) : mfn_of(scratch());
}

void spoil_grants(struct front *front)
{
	u32 n = up_to(16) ? TX_DATA + up_to(NR_PAGES - TX_DATA) : up_to(NR_PAGES);
	struct grant_entry *entry = &front->grants[n];
	switch (up_to(6)) {
	case 0: entry->flags = 0; break;
	case 1: entry->flags = draw(); break;
	case 2: entry->domid = up_to(2) ? some_domid() : 0; break;
	case 3: entry->frame = some_frame(front); break;
	default:
		/* As it was. */
		if (front->domid == 0)
			entry->frame = mfn_of(front->page[n]);
		entry->domid = 0;
		entry->flags = PERMIT | (n >= TX_DATA && n < RX_DATA ? GRANT_READ_ONLY : 0);
	}
}

void spoil_ports(struct front *front)
{
	u32 *port = up_to(2) ? &front->tx_port : &front->rx_port;
	struct bind_vcpu bind = { *port, up_to(4) };
	if (front->domid)
		return;
	switch (up_to(8)) {
	/* Its number may be another's soon. */
	case 0: *port = 0, note(evtchn(EVTCHN_close, &bind.port)); break;
	case 1: note(evtchn(EVTCHN_bind_vcpu, &bind)); break;
	case 2: shared_info()->mask[bind.port / 64 % 64] ^= 1ul << bind.port % 64; break;
	default: note(evtchn(EVTCHN_unmask, &bind.port));
	}
}

void storm(struct front *front)
{
	for (u32 n = up_to(BUSY); n--;)
		note(up_to(2) ? notify_tx(front) : kick_rx(front));
}
