/* sched_op: yield, block, poll, and the record of how long the vCPU ran. */
#include "events.h"

const char test_name[] = "scheduling";

void test_main(void)
{
	set_upcall();
	volatile struct shared_info *shared = shared_info();
	check_result(HC1(sched_op, SCHEDOP_yield), 0, "yield");
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	u32 port = new_ipi(0);
	/* Blocking unmasks events; one that is pending already ends it at once. */
	evtchn(EVTCHN_send, &port);
	check_result(HC1(sched_op, SCHEDOP_block), 0, "block");
	check(shared->vcpu[0].upcall_mask == 0 && nr_upcalls == 1, "mask %d, %lu upcalls", shared->vcpu[0].upcall_mask, nr_upcalls);
	shared->vcpu[0].upcall_mask = 1;
	/* Polling: a pending port, though masked, ends it; else the timeout. */
	shared->mask[port / 64] |= 1ul << port % 64;
	evtchn(EVTCHN_send, &port);
	struct {
		u32 *ports;
		u32 nr, pad;
		u64 timeout;
	} poll = { &port, 1, 0, now_ns() + 2000000000 };
	u64 start = now_ns();
	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "poll");
	check(now_ns() - start < 1000000000, "polling for a pending port waits");
	shared->pending[port / 64] &= ~(1ul << port % 64);
	shared->vcpu[0].upcall_pending = 0;
	poll.timeout = now_ns() + 30000000;
	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "poll");
	check(now_ns() >= poll.timeout, "polling ended %lu ns early", poll.timeout - now_ns());
	poll.nr = 200;
	check_refused(HC2(sched_op, SCHEDOP_poll, &poll), "polling for 200 ports");
	poll.nr = 1, port = 100000;
	check_refused(HC2(sched_op, SCHEDOP_poll, &poll), "polling for port 100000");
	/* Run states. */
	struct {
		u32 state, pad;
		u64 since, time[4];
	} state = { 9, 0, 0, { 0 } };
	check_result(HC3(vcpu_op, VCPUOP_get_runstate_info, 0, &state), 0, "get_runstate_info");
	check(state.state == 0, "state %u while running", state.state);
	check(state.time[0] > 0, "it never ran");
	check(state.time[2] >= 25000000, "it was blocked for %lu ns", state.time[2]);
	u64 area = (u64)pages[3];
	check_result(HC3(vcpu_op, VCPUOP_register_runstate, 0, &area), 0, "register_runstate_memory_area");
	check(*(volatile u32 *)pages[3] == 0 && ((volatile u64 *)pages[3])[2] > 0, "the record is not written");
	check(HC3(vcpu_op, VCPUOP_is_up, 0, 0) == 1, "vCPU 0 is down");
	check_result(HC3(vcpu_op, VCPUOP_is_up, 8191, 0), -ENOENT, "vCPU 8191");
}
