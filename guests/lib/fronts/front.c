#include "front.h"

u8 frame[65536] SHARED;
static u8 area[NR_FRONTS][NR_PAGES][PAGE] SHARED __attribute__((aligned(4096)));
static u8 tables[NR_FRONTS][PAGE] SHARED __attribute__((aligned(4096)));

u32 new_switch(void)
{
	struct channel_switch request = { 0 };
	s64 result = channel_op(SWITCH_CREATE, &request);
	if (!check(result == 0, "no switch: result %ld", result))
		fail();
	return request.name;
}

struct channel_way_out way_out_of(u32 switch_name)
{
	struct channel_way_out way = { .switch_name = switch_name };
	check_result(channel_op(WAY_OUT, &way), 0, "the way out");
	return way;
}

static u32 new_port(u16 domid)
{
	struct alloc_unbound request = { domid ? domid : DOMID_SELF, 0, 0 };
	if (evtchn(EVTCHN_alloc_unbound, &request))
		error("alloc_unbound");
	return request.port;
}

void make_front(struct front *front, u32 number, u16 domid)
{
	u64 frames[NR_PAGES];
	/* Others may be using it: what is there is good at any time. */
	front->page = area[number];
	front->tx = (struct ring *)area[number][TX_RING];
	front->rx = (struct ring *)area[number][RX_RING];
	front->domid = domid;
	front->number = front->device = number;
	front->vif = front->tx_cons = front->rx_cons = 0;
	front->first_ref = FIRST_REF + (domid ? 0 : number * NR_PAGES);
	memcpy(front->mac, (u8[]){ 0, 0x16, 0x3e, 0, 0, number }, 6);
	for (u32 n = 0; n < NR_PAGES; n++)
		frames[n] = domid ? n : mfn_of(area[number][n]);
	if (domid) {
		check_result(create_domain(domid), 0, "createdomain");
		check_result(populate_domain(domid, frames, NR_PAGES), NR_PAGES, "memory for the new domain");
		for (u32 n = 0; n < NR_PAGES; n++)
			check_result(map_frame_of(domid, area[number][n], frames[n]), 0, "mapping its pages");
		map_grant_table_of(domid, tables[number]);
		front->grants = (struct grant_entry *)tables[number] + front->first_ref;
	} else {
		front->grants = own_grants() + front->first_ref;
	}
	memset(area[number], 0, sizeof(area[number]));
	for (u32 n = 0; n < NR_PAGES; n++) {
		bool is_read_only = n >= TX_DATA && n < RX_DATA;
		grant(&front->grants[n], 0, frames[n], is_read_only ? GRANT_READ_ONLY : 0);
	}
	front->tx->req_event = front->tx->rsp_event = front->rx->req_event = front->rx->rsp_event = 1;
	front->tx_port = new_port(domid);
	front->rx_port = new_port(domid);
}

void let_go_of_pages(struct front *front)
{
	for (u32 n = 0; n < NR_PAGES; n++)
		make_writable(area[front->number][n]);
	make_writable(tables[front->number]);
}

struct channel_queue queue_of(const struct front *front)
{
	return (struct channel_queue){ .tx_ring = front->first_ref + TX_RING, .rx_ring = front->first_ref + RX_RING,
		.tx_port = front->tx_port, .rx_port = front->rx_port };
}

struct channel_connect request_of(const struct front *front, u32 switch_name, u32 flags)
{
	struct channel_connect request = { .guest = front->domid, .device = front->device, .switch_name = switch_name,
		.flags = flags, .nr_queues = 1 };
	request.queues[0] = queue_of(front);
	memcpy(request.mac, front->mac, 6);
	return request;
}

void connect_front(struct front *front, u32 switch_name, u32 flags)
{
	struct channel_connect request = request_of(front, switch_name, flags);
	check_result(channel_op(VIF_CONNECT, &request), 0, "connecting");
	front->vif = request.vif;
}

void disconnect_front(struct front *front)
{
	struct channel_vif request = { front->vif, 0 };
	check_result(channel_op(VIF_DISCONNECT, &request), 0, "disconnecting");
	check(nr_in_use(front) == 0, "%u grants of %u are in use after its end", nr_in_use(front), front->number);
}

void close_ports(struct front *front)
{
	u32 ports[] = { front->tx_port, front->rx_port };
	for (u32 n = 0; n < COUNT(ports); n++)
		evtchn(EVTCHN_close, &ports[n]);
}

struct channel_status status_of(const struct front *front)
{
	struct channel_status status = { .vif = front->vif };
	check_result(channel_op(VIF_STATUS, &status), 0, "the status");
	return status;
}

void make_frame(const u8 *to, const u8 *from, u32 len, u32 seed)
{
	for (u32 n = 0; n < len; n++)
		frame[n] = n * 7 + seed + (n >> 8);
	memcpy(frame, to, 6);
	memcpy(frame + 6, from, 6);
	/* A protocol that is none. */
	frame[12] = 0x88, frame[13] = 0xb5;
}

static void write_slot(struct front *front, u32 at, u32 gref, u32 offset, u32 flags, u32 size)
{
	volatile struct tx_slot *slot = &front->tx->tx[at % SLOTS];
	slot->request.gref = gref;
	slot->request.offset = offset;
	slot->request.flags = flags;
	slot->request.id = at % SLOTS;
	slot->request.size = size;
}

void put_slot(struct front *front, u32 gref, u32 offset, u32 flags, u32 size)
{
	u32 at = front->tx->req_prod;
	write_slot(front, at, gref, offset, flags, size);
	__atomic_store_n(&front->tx->req_prod, at + 1, __ATOMIC_RELEASE);
}

void put_slot_as(struct front *front, u32 id, u32 gref, u32 offset, u32 size)
{
	u32 at = front->tx->req_prod;
	write_slot(front, at, gref, offset, 0, size);
	front->tx->tx[at % SLOTS].request.id = id;
	__atomic_store_n(&front->tx->req_prod, at + 1, __ATOMIC_RELEASE);
}

void put(struct front *front, u32 len, u32 piece)
{
	put_whole(front, len, piece, 0);
}

void put_whole(struct front *front, u32 len, u32 piece, u32 segment)
{
	/* Behind the first slot is one that says how it is to be cut: a TCP packet over IPv4. */
	u32 n = 0, first = front->tx->req_prod, nr_extra = segment != 0, flags = segment ? EXTRA_INFO | CSUM_BLANK : 0;
	for (u32 at = 0; at < len; at += piece, n++) {
		/* Pieces are beside each other if they are more than there are pages. */
		bool are_many = len > piece * NR_TX_DATA;
		u32 now = len - at < piece ? len - at : piece, offset = are_many ? n / NR_TX_DATA * piece : (PAGE - now) / 2;
		memcpy(front->page[TX_DATA + n % NR_TX_DATA] + offset, frame + at, now);
		/* The first slot has the whole length. */
		u32 gref = front->first_ref + TX_DATA + n % NR_TX_DATA;
		u32 more = at + now < len ? MORE_DATA : 0;
		write_slot(front, first + n + (n ? nr_extra : 0), gref, offset, n ? more : more | flags, at ? now : len);
	}
	if (segment)
		write_slot(front, first + 1, EXTRA_GSO | segment << 16, GSO_TCPV4, 0, 0);
	/* The hypervisor may look at any time: it sees all of a packet or nothing. */
	__atomic_store_n(&front->tx->req_prod, first + n + nr_extra, __ATOMIC_RELEASE);
}

s64 notify_tx(struct front *front)
{
	return kick(front->tx_port);
}

void sleep_a_moment(void)
{
	struct {
		const u32 *ports;
		u32 nr_ports, pad;
		u64 timeout;
	} poll = { 0, 0, 0, now_ns() + 10000 };
	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "poll");
}

s64 kick_tx(struct front *front)
{
	s64 result = notify_tx(front);
	sleep_a_moment();
	return result;
}

s64 kick_rx(struct front *front)
{
	return kick(front->rx_port);
}

void send(struct front *front, const u8 *to, const u8 *from, u32 len, u32 seed)
{
	make_frame(to, from, len, seed);
	put(front, len, PAGE);
	check_result(kick_tx(front), 0, "a kick");
}

void post(struct front *front, u32 nr)
{
	u32 at = front->rx->req_prod;
	check(nr <= SLOTS, "posting %u receive pages", nr);
	for (; nr--; at++) {
		volatile struct rx_slot *slot = &front->rx->rx[at % SLOTS];
		front->posted[at % SLOTS] = RX_DATA + at % NR_RX_DATA;
		slot->request.id = at % SLOTS;
		slot->request.gref = front->first_ref + front->posted[at % SLOTS];
	}
	__atomic_store_n(&front->rx->req_prod, at, __ATOMIC_RELEASE);
}

void connect_granting_to(struct front *front, u32 which, u16 domid, u32 switch_name)
{
	u32 *ports[] = { &front->tx_port, &front->rx_port };
	make_front(front, which, 0);
	close_ports(front);
	for (u32 n = 0; n < NR_PAGES; n++)
		front->grants[n].domid = domid;
	for (u32 n = 0; n < COUNT(ports); n++) {
		struct alloc_unbound request = { DOMID_SELF, domid, 0 };
		check_result(evtchn(EVTCHN_alloc_unbound, &request), 0, "alloc_unbound");
		*ports[n] = request.port;
	}
	struct channel_connect request = request_of(front, switch_name, SG);
	request.backend = domid;
	check_result(channel_op(VIF_CONNECT, &request), 0, "connecting one that grants to another domain");
	front->vif = request.vif;
	post(front, NR_RX_DATA);
}

u32 nr_answers(const struct front *front)
{
	return __atomic_load_n(&front->tx->rsp_prod, __ATOMIC_ACQUIRE) - front->tx_cons;
}

int answer(struct front *front)
{
	if (!nr_answers(front)) {
		check(false, "no answer for %u", front->number);
		return 99;
	}
	int status = front->tx->tx[front->tx_cons++ % SLOTS].response.status;
	__atomic_store_n(&front->tx->rsp_event, front->tx_cons + 1, __ATOMIC_SEQ_CST);
	return status;
}

u32 receive(struct front *front, u8 *to)
{
	u32 len = 0;
	while (__atomic_load_n(&front->rx->rsp_prod, __ATOMIC_ACQUIRE) != front->rx_cons) {
		u32 slot = front->rx_cons++ % SLOTS;
		volatile struct rx_slot *r = &front->rx->rx[slot];
		check(r->response.id == slot, "response %u in slot %u", r->response.id, slot);
		if (r->response.status < 0)
			return (u32)-1;
		if (!len)
			front->rx_flags = r->response.flags;
		memcpy(to + len, front->page[front->posted[slot]] + r->response.offset, r->response.status);
		len += r->response.status;
		__atomic_store_n(&front->rx->rsp_event, front->rx_cons + 1, __ATOMIC_SEQ_CST);
		if (!(r->response.flags & MORE_DATA))
			break;
	}
	return len;
}

void check_received(struct front *front, u32 len, const char *what)
{
	static u8 got[65536] SHARED;
	u32 got_len = receive(front, got);
	if (!check(got_len == len, "%s: %u receives %u bytes instead of %u", what, front->number, got_len, len))
		return;
	check(memcmp(got, frame, len) == 0, "%s: %u receives other bytes", what, front->number);
}

void check_nothing(struct front *front, const char *what)
{
	check(front->rx->rsp_prod == front->rx_cons, "%s: %u receives something", what, front->number);
}

u32 nr_in_use(const struct front *front)
{
	return grants_in_use(front->grants, NR_PAGES);
}
