/*
 * What a vCPU's runstate record says to the others of its domain while it does not run: that it wants to, or that it is blocked, since when,
 * and how long it was what. (cpus: 1) (vcpus: 2)
 */
#include "events.h"

const char test_name[] = "runstates";

enum { RUNNING, RUNNABLE, BLOCKED };
static struct record {
	u32 state, pad;
	u64 since, time[4];
} volatile record __attribute__((aligned(64)));
static volatile u64 heartbeat, sleeps_until;
static volatile bool is_to_sleep;

/* It computes, and when it is told to, it sleeps. */
static void second(void)
{
	u64 area = (u64)&record;
	HC3(vcpu_op, VCPUOP_register_runstate, 1, &area);
	for (;;) {
		heartbeat++;
		if (is_to_sleep) {
			struct {
				u32 *ports;
				u32 nr, pad;
				u64 timeout;
			} poll = { NULL, 0, 0, sleeps_until };
			HC2(sched_op, SCHEDOP_poll, &poll);
		}
	}
}

static void give_way(void)
{
	u64 seen = heartbeat, until = now_ns() + 2000000000;
	while (heartbeat == seen && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(heartbeat != seen, "the second vCPU does not run");
}

static void check_record(u32 state, u64 from, const char *when)
{
	struct record seen = record;
	check(seen.state == state, "%s: state %u", when, seen.state);
	check(seen.since >= from && seen.since <= now_ns(), "%s: since %lu, not between %lu and %lu", when, seen.since, from, now_ns());
	check(seen.time[RUNNING] > 0, "%s: it never ran", when);
}

void test_main(void)
{
	static u8 stack[4 * PAGE];
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	u64 start = now_ns();
	start_vcpu(1, second, stack + sizeof(stack));
	give_way();
	/* There is one CPU: while this runs the other one does not. */
	check_record(RUNNABLE, start, "preempted");
	u64 ran = record.time[RUNNING], before = now_ns();
	give_way();
	check_record(RUNNABLE, before, "preempted again");
	check(record.time[RUNNING] > ran, "it ran, and is said to have run for %lu ns as before", ran);

	before = now_ns(), sleeps_until = before + 2000000000, is_to_sleep = true;
	u64 seen = heartbeat;
	/* This sleeps, too: it is the other's turn whatever either has had. */
	struct {
		u32 *ports;
		u32 nr, pad;
		u64 timeout;
	} poll = { NULL, 0, 0, before + 500000000 };
	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "poll");
	check(heartbeat == seen || heartbeat == seen + 1, "it does not sleep");
	check_record(BLOCKED, before, "asleep");
}
