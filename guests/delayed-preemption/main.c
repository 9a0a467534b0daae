/*
 * The preemption of a vCPU that drives devices waits while its kernel has events off, until they are on again or up to a bound: what it holds a
 * lock for is done by then, and its other vCPU need not spin for whole turns. One that never has them on gets no more than its share, and a domain
 * without devices is preempted at once. (cpus: 1) (vcpus: 2) (clock: instructions) (differs: stock Xen preempts at once)
 */
#include "domains.h"

const char test_name[] = "delayed-preemption";

enum { OTHER = 5, BEAT = 7, CHANNEL_OP = 56 };
/* What the hypervisor does between an interrupt and the vCPU that waits for it takes so long, at most. */
enum { BOUND_NS = 30000, SWITCH_NS = 10000, ROUNDS = 60, PAUSE_NS = 250000, SHORT_NS = 5000, SECTION_NS = 15000, SPAN_NS = 300000000, LOCKS_NS = 500000000 };

struct beat {
	u16 domid, pad;
	u32 vcpu, upcalls, flags;
	u64 run_ns, ended_ns, wedged_ns, waited_ns;
};

struct runstate {
	u32 state, pad;
	u64 since, time[4];
};

/* What the second vCPU does, until it is told something else. */
static volatile enum { NOTHING, COMPUTES, IS_MASKED, LOOKS, CALLS, NEVER_LOOKS, LOCKS } order, does;
static volatile bool is_masking;
static volatile u64 nr_upcalls_of_second;

/* The records of how long each vCPU ran and waited, which are written whenever one gets the CPU. */
static volatile struct runstate *states[2] = { (void *)pages[2], (void *)(pages[2] + 2048) };

struct holder {
	/* How often it had the lock, and was preempted meanwhile; how often it spun; how long, in all and at most. */
	u64 taken, preempted, spun, spun_ns, longest_ns;
};
static struct vcpu_context context;
static struct holder holders[2];
static volatile u64 lock;

static void mask(u32 vcpu, bool on)
{
	shared_info()->vcpu[vcpu].upcall_mask = on;
	asm volatile("" : : : "memory");
}

/* As Linux does it: an upcall that is pending is asked for. */
static void unmask(u32 vcpu)
{
	mask(vcpu, false);
	if (shared_info()->vcpu[vcpu].upcall_pending)
		HC2(xen_version, 0, 0);
}

static void spin(u64 ns)
{
	for (u64 start = now_ns(); now_ns() - start < ns;)
		;
}

/* Takes the lock, has it for a while, and goes without for as long, as a driver does that takes it for each packet. */
static void take_and_release(u32 vcpu, struct holder *me)
{
	if (is_masking)
		mask(vcpu, true);
	if (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
		u64 start = now_ns(), ns;
		while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
			;
		ns = now_ns() - start;
		me->spun++;
		me->spun_ns += ns;
		if (ns > me->longest_ns)
			me->longest_ns = ns;
	}
	u64 waited = states[vcpu]->time[1];
	spin(SECTION_NS);
	me->preempted += states[vcpu]->time[1] != waited;
	me->taken++;
	__atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
	if (is_masking)
		unmask(vcpu);
	spin(SECTION_NS);
}

static void second_upcall(struct frame *frame)
{
	(void)frame;
	nr_upcalls_of_second++;
	shared_info()->vcpu[1].upcall_pending = 0;
}

static void __attribute__((noreturn)) second_entry(void)
{
	for (;;) {
		does = order;
		switch (does) {
		case IS_MASKED:
			mask(1, true);
			break;
		case LOOKS:
		case CALLS:
		case NEVER_LOOKS:
			mask(1, true);
			spin(SHORT_NS);
			if (does == LOOKS)
				unmask(1);
			else
				mask(1, false);
			if (does == CALLS)
				HC2(xen_version, 0, 0);
			spin(SHORT_NS);
			break;
		case LOCKS:
			take_and_release(1, &holders[1]);
			break;
		default:
			mask(1, false);
		}
	}
}

/* Sleeps; how much later than it asked for it runs again. */
static u64 sleep_until(u64 at)
{
	struct {
		u32 *ports;
		u32 nr, pad;
		u64 timeout;
	} poll = { NULL, 0, 0, at };
	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "poll");
	u64 now = now_ns();
	check(now >= at, "woken %lu ns early", at - now);
	return now - at;
}

static void tell(u32 what)
{
	order = what;
	while (does != what)
		sleep_until(now_ns() + 1000000);
}

/* How long we wait for the CPU when we wake while the other does something: least, most, and how often more than a switch takes. */
struct waits {
	u64 least, most, late;
};

static struct waits waits(const char *during)
{
	struct waits w = { .least = ~0ul };
	for (u32 n = 0; n < ROUNDS; n++) {
		/* 137: not in step with what the other does. */
		u64 late = sleep_until(now_ns() + PAUSE_NS + n * 137);
		w.least = late < w.least ? late : w.least;
		w.most = late > w.most ? late : w.most;
		w.late += late > SWITCH_NS;
	}
	printk("%s: we run %lu to %lu ns after our timer, %lu of %u times after more than %u\n", during, w.least, w.most, w.late, ROUNDS,
	       SWITCH_NS);
	return w;
}

static void bounds(void)
{
	tell(COMPUTES);
	struct waits w = waits("beside one with events on");
	if (!check(w.late == 0, "one with events on is preempted after %lu ns", w.most))
		fail();
	tell(IS_MASKED);
	w = waits("beside one with events off");
	check(w.least >= BOUND_NS, "one with events off is preempted after %lu ns", w.least);
	check(w.most <= BOUND_NS + SWITCH_NS, "one with events off is preempted after %lu ns only", w.most);
	tell(LOOKS);
	w = waits("beside one with events off for 5 us, which looks for some then");
	check(w.late == 0, "one that has them off for a moment and looks for some is preempted after %lu ns", w.most);
	check(w.most > w.least + SHORT_NS / 2, "one that has them off for a moment is preempted at once");
	tell(CALLS);
	w = waits("beside one with events off for 5 us, which calls then");
	check(w.late == 0, "one that has them off for a moment and calls is preempted after %lu ns", w.most);
	tell(NEVER_LOOKS);
	w = waits("beside one with events off for 5 us, which does neither");
	check(w.most <= BOUND_NS + SWITCH_NS, "one that has them off for a moment is preempted after %lu ns", w.most);
	check(nr_upcalls_of_second == 0 && shared_info()->vcpu[1].upcall_pending == 0, "%lu upcalls without an event", nr_upcalls_of_second);
}

static u64 ran(u16 domid, u32 vcpu)
{
	struct beat beat = { .domid = domid, .vcpu = vcpu };
	/* Stock Xen does not tell. */
	if (!check(hypercall(CHANNEL_OP, BEAT, (u64)&beat, 0, 0, 0) == 0, "no beat"))
		fail();
	return beat.run_ns;
}

/* Another domain, which has no device and runs all the time. */
static void begin_other(bool with_events_off)
{
	/* jmp to itself */
	static const u8 code[] = { 0xeb, 0xfe };
	struct domctl request = { 0 };
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	memset(&context, 0, sizeof(context));
	make_running_domain(OTHER, code, sizeof(code), pages[3], &context);
	check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
	check_result(map_frame_of(OTHER, pages[4], request.info.shared_info_frame), 0, "mapping its shared_info");
	((volatile struct shared_info *)pages[4])->vcpu[0].upcall_mask = with_events_off;
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
}

static void end_other(void)
{
	check_result(update_va(pages[4], 0, 2), 0, "letting its shared_info go");
	check_result(update_va(pages[3], 0, 2), 0, "letting its page go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}

/* One with events off all the time and another domain share the CPU as if it had them on. */
static void shares(void)
{
	tell(IS_MASKED);
	u64 ours = ran(0, 1), theirs = ran(OTHER, 0);
	/* Each time that we wake, one of them is preempted. */
	for (u64 until = now_ns() + SPAN_NS; now_ns() < until;)
		sleep_until(now_ns() + PAUSE_NS);
	ours = ran(0, 1) - ours;
	theirs = ran(OTHER, 0) - theirs;
	u64 more = ours > theirs ? ours - theirs : theirs - ours;
	printk("one with events off ran %lu us, another domain %lu\n", ours / 1000, theirs / 1000);
	/* A turn is 10 ms: that much one may be ahead. */
	check(more <= 10500000, "one with events off ran %lu ns, another domain %lu", ours, theirs);
}

/* Two vCPUs that take a lock, and another domain that wants the CPU. */
static struct holder contend(bool with_events_off)
{
	struct holder all = { 0 };
	is_masking = with_events_off;
	memset(holders, 0, sizeof(holders));
	tell(LOCKS);
	u64 until = now_ns() + LOCKS_NS;
	while (now_ns() < until)
		take_and_release(0, &holders[0]);
	mask(0, true);
	order = NOTHING;
	while (does != NOTHING)
		sleep_until(now_ns() + 1000000);
	for (u32 n = 0; n < 2; n++) {
		all.taken += holders[n].taken;
		all.preempted += holders[n].preempted;
		all.spun += holders[n].spun;
		all.spun_ns += holders[n].spun_ns;
		all.longest_ns = all.longest_ns > holders[n].longest_ns ? all.longest_ns : holders[n].longest_ns;
	}
	printk("with events %s: the lock was held %lu times; preempted %lu of them; waited for %lu times, %lu us in all, %lu at most\n",
	       with_events_off ? "off" : "on", all.taken, all.preempted, all.spun, all.spun_ns / 1000, all.longest_ns / 1000);
	return all;
}

static void locks(void)
{
	struct holder on = contend(false), off = contend(true);
	check(on.preempted >= 5 && on.spun_ns > LOCKS_NS / 10, "with events on %lu holders are preempted, and %lu ns spun", on.preempted, on.spun_ns);
	check(off.preempted == 0, "with events off %lu holders are preempted", off.preempted);
	check(off.longest_ns <= BOUND_NS, "with events off one spins for %lu ns", off.longest_ns);
	check(off.taken > on.taken, "with events off the lock is held %lu times, else %lu", off.taken, on.taken);
}

/* No device, no delay: we wake beside it as beside one with events on. */
static void without_devices(void)
{
	struct waits w;
	/* Only the other domain is there to run. */
	check_result(HC3(vcpu_op, VCPUOP_down, 1, 0), 0, "down");
	begin_other(true);
	w = waits("beside a domain without devices and with events off");
	check(ran(OTHER, 0) >= ROUNDS * PAUSE_NS / 2, "the other domain does not run");
	check(w.late == 0, "a domain without devices is preempted after %lu ns", w.most);
	end_other();
}

void test_main(void)
{
	need_vcpu(1);
	for (u32 n = 0; n < 2; n++) {
		u64 area = (u64)states[n];
		check_result(HC3(vcpu_op, VCPUOP_register_runstate, n, &area), 0, "a place for run states");
	}
	plain_context(&context, second_entry, pages[32]);
	context.event = (u64)entry_256;
	handlers[ENTRY_EVENT] = second_upcall;
	bring_up(1, &context);
	bounds();
	begin_other(false);
	shares();
	locks();
	end_other();
	without_devices();
}
