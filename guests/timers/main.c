/* System time and timers: the clock runs, a single-shot timer fires when it should, a periodic one keeps firing, and each tick comes once. */
#include "events.h"

const char test_name[] = "timers";

static u32 port;

static u64 seen;

/* Waits until there is another upcall or, at the latest, a second from now; says how long in ns. */
static u64 wait(bool asleep)
{
	u64 start = now_ns();
	while (nr_upcalls == seen && now_ns() < start + 1000000000) {
		struct {
			u32 *ports;
			u32 nr, pad;
			u64 timeout;
		} poll = { &port, 1, 0, start + 1000000000 };
		if (asleep)
			HC2(sched_op, SCHEDOP_poll, &poll);
		else
			HC1(xen_version, 0);
	}
	HC1(xen_version, 0);
	seen = nr_upcalls;
	return now_ns() - start;
}

/* Has there been an upcall since the last time? */
static bool comes(void)
{
	HC1(xen_version, 0);
	u64 before = seen;
	seen = nr_upcalls;
	return seen != before;
}

/* How many ticks come in `rounds` rounds of a period and a half in which the vCPU runs, and a moment in which it does not. */
static u32 ticks(u32 rounds, u64 period)
{
	u32 nr = 0;
	HC1(xen_version, 0);
	for (u32 round = 0; round < rounds; round++) {
		u64 until = now_ns() + period * 3 / 2;
		while (now_ns() < until)
			nr += comes();
		struct {
			u32 *ports;
			u32 nr, pad;
			u64 timeout;
		} poll = { &port, 1, 0, now_ns() + period / 20 };
		HC2(sched_op, SCHEDOP_poll, &poll);
		nr += comes();
	}
	return nr;
}

void test_main(void)
{
	set_upcall();
	volatile struct vcpu_info *info = &shared_info()->vcpu[0];
	check(info->time.mul != 0 && !(info->time.version & 1), "time is not set up");
	u64 last = now_ns();
	for (int i = 0; i < 100000; i++) {
		u64 now = now_ns();
		if (!check(now >= last, "time goes back from %lu to %lu", last, now))
			break;
		last = now;
	}
	check(shared_info()->wc_sec > 1500000000, "the wall clock says %u", shared_info()->wc_sec);

	struct bind_virq virq = { 0, 0, 0 };
	if (evtchn(EVTCHN_bind_virq, &virq))
		error("bind_virq");
	port = virq.port;
	/* A vCPU starts with a periodic timer of 10 ms, until it is stopped. It ticks while the vCPU runs. */
	info->upcall_mask = 0;
	check(wait(false) < 500000000, "no periodic timer");
	check_result(HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0), 0, "stop_periodic_timer");
	HC1(xen_version, 0);
	seen = nr_upcalls;
	u64 slept = wait(true);
	check(slept >= 900000000, "stopped, but an event after %lu ns", slept);

	struct {
		u64 at;
		u32 flags, pad;
	} once = { now_ns() + 50000000, 0, 0 };
	check_result(HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &once), 0, "set_singleshot_timer");
	slept = wait(true);
	check(now_ns() >= once.at, "%lu ns too early", once.at - now_ns());
	check(slept < 900000000, "slept %lu ns instead of 50 ms", slept);
	slept = wait(true);
	check(slept >= 900000000, "it fired twice");
	/* In the past: at once. */
	once.at = now_ns() - 1000000;
	check_result(HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &once), 0, "a deadline in the past");
	check(wait(true) < 500000000, "a deadline in the past does not fire");
	/* Cancelled. */
	once.at = now_ns() + 100000000;
	HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &once);
	check_result(HC3(vcpu_op, VCPUOP_stop_singleshot_timer, 0, 0), 0, "stop_singleshot_timer");
	check(wait(true) >= 900000000, "a cancelled timer fired");
	u64 period = 20000000;
	check_result(HC3(vcpu_op, VCPUOP_set_periodic_timer, 0, &period), 0, "set_periodic_timer");
	for (int i = 0; i < 3; i++)
		check(wait(false) < 500000000, "no periodic event");
	u64 start = now_ns();
	u32 nr = ticks(20, period), most = (now_ns() - start) / period + 1;
	check(nr >= 10 && nr <= most, "%u ticks of at most %u", nr, most);
	period = 1;
	check_refused(HC3(vcpu_op, VCPUOP_set_periodic_timer, 0, &period), "a period of 1 ns");
	check_result(HC3(vcpu_op, VCPUOP_set_singleshot_timer, 1000, &once), -ENOENT, "a timer of vCPU 1000");
}
