/*
 * A driver domain's code: a back end of disks, and a bridge between its interface and the wire. A copy of it runs in a page of its own, so
 * it uses nothing but its registers, its stack and what it maps.
 */
#include "grants.h"
#include "life.h"

enum { GNTTABOP_map_grant_ref, HOST_MAP = 2, UPDATE_VA_CALL = 14, MAP_CALL = 20, SCHED_CALL = 29, EVTCHN_CALL = 32 };
/* Packets on their way in, each with a place of its own. */
enum { NR_PLACES = NR_TX_DATA * (PAGE / 1024), ALL_PLACES = (1 << NR_PLACES) - 1 };
#define PLACE __attribute__((noinline, used, section(".text.child"), optimize("no-tree-loop-distribute-patterns,no-jump-tables")))
#define PART static inline __attribute__((always_inline))

/* How far it is with each of its rings. */
struct progress {
	struct life *life;
	u32 disk_port, disk_at, rx_at, tx_at, answers_at, free_places;
};

PART void *mapped(u32 page)
{
	return (u8 *)MAPPED_VA + page * PAGE;
}

/* Eight at a time: where it goes there is room. */
PART void copy_bytes(void *to, const void *from, u64 len)
{
	u64 nr_words = (len + 7) / 8;
	asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(nr_words) : : "memory");
}

PART void notify(u32 port)
{
	hypercall(EVTCHN_CALL, EVTCHN_send, (u64)&port, 0, 0, 0);
}

PART u32 map_one(u32 page, u16 domid, u32 ref)
{
	volatile struct map m;
	m.host_addr = (u64)mapped(page), m.flags = HOST_MAP, m.ref = ref, m.domid = domid, m.status = 99, m.handle = 0, m.bus_addr = 0;
	return hypercall(MAP_CALL, GNTTABOP_map_grant_ref, (u64)&m, 1, 0, 0) || m.status;
}

PART u32 map_all(const struct life *life)
{
	u32 error = 0;
	for (u32 n = 0; n < INTERFACE_AT; n++)
		error |= n < MEDIUM_AT ? map_one(n, life->service, life->ring_ref + n)
				       : map_one(n, 0, n < WIRE_AT ? life->medium_ref + n - MEDIUM_AT : life->wire_ref + n - WIRE_AT);
	for (u32 n = 0; n < NR_PAGES; n++)
		error |= hypercall(UPDATE_VA_CALL, (u64)mapped(INTERFACE_AT + n), pte(life->frames[n], P | RW | US), 2, 0, 0) != 0;
	return error;
}

PART u32 perform(const volatile struct blk_request *r, u32 ring_ref)
{
	const volatile struct blk_indirect *list = (const volatile void *)r;
	const volatile struct segment *seg = r->seg;
	u64 sector = r->sector;
	u32 nr_segments = r->nr, most = DIRECT_SEGMENTS;
	u8 op = r->op;
	if (op == OP_INDIRECT) {
		if (list->gref[0] - ring_ref - 1 >= NR_THROUGH)
			return 1;
		op = list->wanted, nr_segments = list->nr, most = MAX_SEGMENTS;
		seg = mapped(list->gref[0] - ring_ref);
	}
	if (op == OP_DISCARD || op == OP_FLUSH)
		return 0;
	bool is_write = op == OP_WRITE || op == OP_BARRIER;
	if (nr_segments > most)
		return 1;
	for (u32 n = 0; n < nr_segments; n++) {
		u32 page = seg[n].gref - ring_ref, first = seg[n].first, nr = seg[n].last + 1 - first;
		if (page == 0 || page >= NR_FRONT || sector + nr > SECTORS)
			return 1;
		u8 *bytes = (u8 *)mapped(page) + first * SECTOR, *medium = (u8 *)mapped(MEDIUM_AT) + sector * SECTOR;
		copy_bytes(is_write ? medium : bytes, is_write ? bytes : medium, nr * SECTOR);
		sector += nr;
	}
	return 0;
}

/* A request of the disk's, if there is one. */
PART bool serve_disk(struct progress *p)
{
	struct blk_ring *ring = mapped(0);
	volatile struct blk_request *r = &ring->slot[p->disk_at % BLK_SLOTS].request;
	volatile struct blk_response *answer = &ring->slot[p->disk_at % BLK_SLOTS].response;
	if (__atomic_load_n(&ring->req_prod, __ATOMIC_ACQUIRE) == p->disk_at) {
		ring->req_event = p->disk_at + 1;
		return false;
	}
	u64 id = r->id;
	u8 op = r->op;
	p->life->error |= perform(r, p->life->ring_ref);
	answer->id = id, answer->op = op, answer->status = BLK_OKAY;
	__atomic_store_n(&ring->rsp_prod, ++p->disk_at, __ATOMIC_SEQ_CST);
	if (p->disk_at == ring->rsp_event)
		notify(p->disk_port);
	return true;
}

/* The page behind those that are posted is there to receive into. */
PART void post_page(const struct progress *p)
{
	struct ring *rx = mapped(INTERFACE_AT + RX_RING);
	u32 at = rx->req_prod;
	rx->rx[at % SLOTS].request.id = at % SLOTS;
	rx->rx[at % SLOTS].request.gref = p->life->interface_ref + RX_DATA + at % NR_RX_DATA;
	__atomic_store_n(&rx->req_prod, at + 1, __ATOMIC_SEQ_CST);
	if (rx->req_event == at + 1)
		notify(p->life->rx_port);
}

/* A packet that its interface has received goes to the wire, if there is one, and room. */
PART bool send_out(struct progress *p)
{
	struct ring *rx = mapped(INTERFACE_AT + RX_RING);
	struct wire *wire = mapped(WIRE_AT);
	volatile struct rx_slot *r = &rx->rx[p->rx_at % SLOTS];
	struct wire_slot *slot = &wire->out[p->rx_at % WIRE_SLOTS];
	if (__atomic_load_n(&rx->rsp_prod, __ATOMIC_ACQUIRE) == p->rx_at || p->rx_at - wire->nr_out_seen == WIRE_SLOTS)
		return false;
	u32 len = r->response.status;
	if (r->response.status <= 0 || len > ROOM || (r->response.flags & MORE_DATA)) {
		p->life->error |= 1;
		return false;
	}
	copy_bytes(slot->bytes, (u8 *)mapped(INTERFACE_AT + RX_DATA + p->rx_at % NR_RX_DATA) + r->response.offset, len);
	slot->len = len;
	__atomic_store_n(&wire->nr_out, ++p->rx_at, __ATOMIC_SEQ_CST);
	post_page(p);
	return true;
}

/* A packet from the wire goes to its interface, if there is one, and room. */
PART bool take_in(struct progress *p)
{
	struct ring *tx = mapped(INTERFACE_AT + TX_RING);
	struct wire *wire = mapped(WIRE_AT);
	u32 taken = wire->nr_in_taken;
	for (; __atomic_load_n(&tx->rsp_prod, __ATOMIC_ACQUIRE) != p->answers_at; p->answers_at++) {
		p->free_places |= 1 << tx->tx[p->answers_at % SLOTS].response.id;
		p->life->error |= tx->tx[p->answers_at % SLOTS].response.status != 0;
	}
	if (__atomic_load_n(&wire->nr_in, __ATOMIC_ACQUIRE) == taken || !p->free_places)
		return false;
	u32 place = __builtin_ctz(p->free_places), page = TX_DATA + place % NR_TX_DATA, offset = place / NR_TX_DATA * 1024;
	const struct wire_slot *slot = &wire->in[taken % WIRE_SLOTS];
	volatile struct tx_slot *t = &tx->tx[p->tx_at % SLOTS];
	u32 len = slot->len;
	copy_bytes((u8 *)mapped(INTERFACE_AT + page) + offset, slot->bytes, len);
	__atomic_store_n(&wire->nr_in_taken, taken + 1, __ATOMIC_SEQ_CST);
	t->request.gref = p->life->interface_ref + page, t->request.offset = offset;
	t->request.flags = 0, t->request.id = place, t->request.size = len;
	p->free_places &= ~(1 << place);
	__atomic_store_n(&tx->req_prod, ++p->tx_at, __ATOMIC_SEQ_CST);
	if (tx->req_event == p->tx_at)
		notify(p->life->tx_port);
	return true;
}

PLACE void driver_domain(void)
{
	struct life *life = (struct life *)(CODE_VA + PAGE);
	struct progress p = { life, 0, 0, 0, 0, 0, ALL_PLACES };
	volatile struct bind_interdomain bind;
	life->error |= map_all(life);
	bind.remote = life->service, bind.pad = 0, bind.remote_port = life->port, bind.local_port = 0;
	life->error |= hypercall(EVTCHN_CALL, EVTCHN_bind_interdomain, (u64)&bind, 0, 0, 0) != 0;
	p.disk_port = bind.local_port;
	for (u32 n = 0; n < NR_RX_DATA && !life->error; n++)
		post_page(&p);
	life->is_ready = 1;
	while (!life->may_go)
		hypercall(SCHED_CALL, SCHEDOP_yield, 0, 0, 0, 0);
	for (;;) {
		u32 done = serve_disk(&p);
		done += send_out(&p);
		done += take_in(&p);
		life->nr_done += done;
		if (!done)
			hypercall(SCHED_CALL, SCHEDOP_yield, 0, 0, 0, 0);
	}
}
