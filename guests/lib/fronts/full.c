/* A front end whose ring is never empty: vCPU 1 puts a packet wherever there is an answer, while vCPU 0 notifies. Events of vCPU 0 come nevertheless. */
#include "front.h"

/* So long the ring is filled at most, and so soon there is an event; what is answered has this in the place of its grant. */
enum { SPAN_NS = 2000000000, DUE_NS = 5000000, SOON_NS = 500000000, NAME = 0xffff, VIRQ_TIMER = 0 };

static struct front *refilled;
static u32 len;
static handler *usual;
static volatile bool is_refilling;
static volatile u64 end, came_at;

void keep_ring_full(void)
{
	u32 gref = refilled->first_ref + TX_DATA;
	is_refilling = true;
	while (!came_at && now_ns() < end) {
		/* The request of a whole ring ago, or the answer to it. */
		if (refilled->tx->tx[refilled->tx->req_prod % SLOTS].request.gref != gref)
			put_slot_as(refilled, NAME, gref, 0, len);
	}
}

static void comes(struct frame *entry)
{
	if (!came_at)
		came_at = now_ns();
	usual(entry);
}

void check_interrupted(struct front *front, u32 frame_len, const char *what)
{
	struct bind_virq timer = { VIRQ_TIMER, 0, 0 };
	volatile u8 *mask = &shared_info()->vcpu[0].upcall_mask;
	u8 was_masked = *mask;
	set_upcall();
	usual = handlers[ENTRY_EVENT];
	handlers[ENTRY_EVENT] = comes;
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	check_result(evtchn(EVTCHN_bind_virq, &timer), 0, "binding the timer");
	refilled = front, len = frame_len;
	memcpy(front->page[TX_DATA], frame, len);
	u32 first = front->tx->req_prod;
	while (front->tx->req_prod - first < SLOTS)
		put_slot_as(front, NAME, front->first_ref + TX_DATA, 0, len);
	/* What is pending comes before. */
	*mask = 0;
	HC1(xen_version, 0);
	came_at = 0, is_refilling = false, end = now_ns() + SPAN_NS;
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "vCPU 1");
	while (!is_refilling && now_ns() < end)
		;
	u64 due = now_ns() + DUE_NS;
	HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &((struct { u64 at; u32 flags, pad; }){ due, 0, 0 }));
	check_result(notify_tx(front), 0, "a kick");
	/* If its ring was empty for a moment. */
	while (!came_at && now_ns() < end)
		;
	u32 nr = front->tx->req_prod - first;
	check(came_at && came_at < due + SOON_NS, "%s: no event while %u packets are put", what, nr);
	wait_until_down(1);
	*mask = was_masked;
	handlers[ENTRY_EVENT] = usual;
	HC3(vcpu_op, VCPUOP_stop_singleshot_timer, 0, 0);
	check_result(evtchn(EVTCHN_close, &timer.port), 0, "closing the timer's port");
	check_result(kick_tx(front), 0, "a kick");
	check(front->tx->rsp_prod == front->tx->req_prod, "%s: packets without an answer", what);
	front->tx_cons = front->tx->rsp_prod;
	check(nr_in_use(front) == 2, "%s: %u grants are in use", what, nr_in_use(front));
	printk("  %s: %u packets before an event\n", what, nr);
}
