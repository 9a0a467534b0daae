/*
 * A driver domain's code: a back end of disks. A copy of it runs in a page of its own, so it uses nothing but its registers, its stack and
 * what it maps.
 */
#include "grants.h"
#include "life.h"

enum { GNTTABOP_map_grant_ref, HOST_MAP = 2, MAP_CALL = 20, SCHED_CALL = 29, EVTCHN_CALL = 32 };
#define PLACE __attribute__((noinline, used, section(".text.child"), optimize("no-tree-loop-distribute-patterns,no-jump-tables")))

static inline __attribute__((always_inline)) void copy_bytes(void *to, const void *from, u64 len)
{
	asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
}

static inline __attribute__((always_inline)) u32 map_one(u64 at, u16 domid, u32 ref)
{
	volatile struct map m;
	m.host_addr = at, m.flags = HOST_MAP, m.ref = ref, m.domid = domid, m.status = 99, m.handle = 0, m.bus_addr = 0;
	return hypercall(MAP_CALL, GNTTABOP_map_grant_ref, (u64)&m, 1, 0, 0) || m.status;
}

static inline __attribute__((always_inline)) u32 perform(const volatile struct blk_request *r, u32 ring_ref)
{
	u64 sector = r->sector;
	bool is_write = r->op == OP_WRITE || r->op == OP_BARRIER;
	if (r->op == OP_DISCARD || r->op == OP_FLUSH)
		return 0;
	for (u32 n = 0; n < r->nr && n < DIRECT_SEGMENTS; n++) {
		u32 page = r->seg[n].gref - ring_ref, first = r->seg[n].first, nr = r->seg[n].last + 1 - first;
		if (page == 0 || page >= NR_FRONT || sector + nr > SECTORS)
			return 1;
		u8 *bytes = (u8 *)MAPPED_VA + page * PAGE + first * SECTOR, *medium = (u8 *)MAPPED_VA + NR_FRONT * PAGE + sector * SECTOR;
		copy_bytes(is_write ? medium : bytes, is_write ? bytes : medium, nr * SECTOR);
		sector += nr;
	}
	return 0;
}

PLACE void driver_domain(void)
{
	struct life *life = (struct life *)(CODE_VA + PAGE);
	struct blk_ring *ring = (struct blk_ring *)MAPPED_VA;
	volatile struct bind_interdomain bind;
	for (u32 n = 0; n < NR_MAPPED; n++)
		life->error |= n < NR_FRONT ? map_one(MAPPED_VA + n * PAGE, life->service, life->ring_ref + n)
					    : map_one(MAPPED_VA + n * PAGE, 0, life->medium_ref + n - NR_FRONT);
	bind.remote = life->service, bind.pad = 0, bind.remote_port = life->port, bind.local_port = 0;
	life->error |= hypercall(EVTCHN_CALL, EVTCHN_bind_interdomain, (u64)&bind, 0, 0, 0) != 0;
	u32 port = bind.local_port;
	life->is_ready = 1;
	while (!life->may_go)
		hypercall(SCHED_CALL, SCHEDOP_yield, 0, 0, 0, 0);
	for (u32 at = 0;;) {
		while (__atomic_load_n(&ring->req_prod, __ATOMIC_ACQUIRE) == at) {
			ring->req_event = at + 1;
			hypercall(SCHED_CALL, SCHEDOP_yield, 0, 0, 0, 0);
		}
		volatile struct blk_request *r = &ring->slot[at % BLK_SLOTS].request;
		volatile struct blk_response *answer = &ring->slot[at % BLK_SLOTS].response;
		u64 id = r->id;
		u8 op = r->op;
		life->error |= perform(r, life->ring_ref);
		answer->id = id, answer->op = op, answer->status = BLK_OKAY;
		__atomic_store_n(&ring->rsp_prod, ++at, __ATOMIC_SEQ_CST);
		life->nr_done++;
		if (at == ring->rsp_event)
			hypercall(EVTCHN_CALL, EVTCHN_send, (u64)&port, 0, 0, 0);
	}
}
