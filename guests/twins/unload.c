/* A twin is unloaded on one CPU while it runs on another. */
#include "events.h"
#include "twins.h"

static struct twin_call endless_call;
static volatile s64 called, called_again;
static volatile bool is_calling, has_fired, has_fired_in_time;
static u64 timer_bit;

static void call_endless(void)
{
	is_calling = true;
	called = hypercall(HC_twin_op, TWINOP_CALL, (u64)&endless_call, 0, 0, 0);
	is_calling = false;
	struct twin_call again = endless_call;
	called_again = hypercall(HC_twin_op, TWINOP_CALL, (u64)&again, 0, 0, 0);
}

static void timer_upcall(struct frame *frame)
{
	volatile struct shared_info *shared = shared_info();
	(void)frame;
	shared->vcpu[0].upcall_pending = 0;
	shared->vcpu[0].pending_sel = 0;
	if (!(__atomic_fetch_and((u64 *)&shared->pending[0], ~timer_bit, __ATOMIC_SEQ_CST) & timer_bit))
		return;
	has_fired = true;
	has_fired_in_time = is_calling;
}

/* Who unloads it waits until it is over, but his CPU does not: his timer fires meanwhile. And nobody begins to call it. */
void twins_unloaded_beside(void)
{
	struct bind_virq virq = { 0, 0, 0 };
	struct {
		u64 at;
		u32 flags, pad;
	} timer = { 0, 0, 0 };
	volatile struct shared_info *shared = shared_info();
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "bind_virq");
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	timer_bit = 1ul << virq.port;
	handlers[ENTRY_EVENT] = timer_upcall;
	check_result(set_callback(0, 0, entry_256), 0, "set_callback");
	shared->vcpu[0].upcall_mask = 0;
	has_stopped = false;
	u32 twin = load_endless();
	endless_call = (struct twin_call){ .twin = twin, .function = TEXT };
	job = call_endless;
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "vCPU 1");
	u64 until = now_ns() + 10000000000;
	while (!is_calling && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	u64 start = now_ns();
	while (now_ns() < start + 5000000)
		;
	timer.at = start + 15000000;
	HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &timer);
	check_result(unload(twin), 0, "unloading a twin that is called");
	check(has_fired && has_fired_in_time, "a timer has %s beside a twin that is unloaded while it is called", has_fired ? "fired late" : "not fired");
	until = now_ns() + 10000000000;
	while (!has_stopped && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(has_stopped, "vCPU 1 does not come back");
	check(called == 0 && endless_call.reason == TIME_OUT, "an endless loop: %ld, reason %u", called, endless_call.reason);
	check(called_again == -ENOENT || called_again == -EBUSY, "calling a twin that is unloaded: %ld", called_again);
	shared->vcpu[0].upcall_mask = 1;
	struct { u32 port; } close = { virq.port };
	evtchn(EVTCHN_close, &close);
}
