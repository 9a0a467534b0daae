/*
 * Whether vCPUs take their events can be seen from outside: how often they did, how long they ran and waited for a CPU, whether an event
 * waits; and whether it was the hypervisor that ended a domain. Who watches a domain is told at once that it has ended, and that a vCPU takes no events.
 * (cpus: 2) (differs: stock Xen does not tell)
 */
#include "domains.h"

const char test_name[] = "heartbeats";

enum { OTHER = 5, BEAT = 7, WATCH = 15, CHANNEL_OP = 56, VIRQ_SUPERVISOR = 23 };
enum { DOMCTL_SET_AFFINITY = 9, HARD = 1 };
enum { PENDING = 1, MASKED = 2, CRASHED = 4, WEDGED = 8, DMA_FAULT = 32, DMA_FAULTS = 1 };
enum { LIMIT_MS = 40, LIMIT_NS = LIMIT_MS * 1000000 };
enum { SHUTDOWN = 1 << 2, CODE_SHIFT = 16, POWEROFF = 0, CRASH = 3 };

struct beat {
	u16 domid, pad;
	u32 vcpu, upcalls, flags;
	u64 run_ns, ended_ns, wedged_ns, waited_ns, dma_fault_ns;
};

struct watch {
	u16 domid, flags;
	u32 wedged_ms;
};

/* The port of VIRQ_SUPERVISOR, whose event is looked for, not taken. */
static u32 told_port;

static struct vcpu_context context;

static s64 ask(struct beat *beat)
{
	return hypercall(CHANNEL_OP, BEAT, (u64)beat, 0, 0, 0);
}

static struct beat beat_of(u16 domid)
{
	struct beat beat = { .domid = domid };
	check_result(ask(&beat), 0, "a beat");
	return beat;
}

static void spin(u64 ns)
{
	for (u64 start = now_ns(); now_ns() - start < ns;)
		;
}

static s64 watch(u16 domid, u32 wedged_ms)
{
	struct watch watch = { .domid = domid, .wedged_ms = wedged_ms };
	return hypercall(CHANNEL_OP, WATCH, (u64)&watch, 0, 0, 0);
}

/* Whether we were told something since the last time. */
static bool told(void)
{
	volatile struct shared_info *shared = shared_info();
	u64 bit = 1UL << told_port % 64;
	bool is_set = shared->pending[told_port / 64] & bit;
	__atomic_fetch_and((u64 *)&shared->pending[told_port / 64], ~bit, __ATOMIC_SEQ_CST);
	return is_set;
}

/* Our own, on which an event waits: that is told when it has run for so long, once, and is over when it takes the event. */
static void wedged(void)
{
	struct evtchn_send { u32 port; } send;
	volatile struct shared_info *shared = shared_info();
	send.port = new_ipi(0);
	check_result(watch(0, LIMIT_MS), 0, "watching ourselves");
	for (u32 n = 0; n < 3 * LIMIT_MS; n++) {
		check_result(evtchn(EVTCHN_send, &send), 0, "send");
		spin(1000000);
	}
	check(!told() && !(beat_of(0).flags & WEDGED), "one that takes its events is not wedged");
	shared->vcpu[0].upcall_mask = 1;
	spin(2 * LIMIT_NS);
	check(!told(), "nor is one for which none waits");
	u64 from = now_ns(), after;
	check_result(evtchn(EVTCHN_send, &send), 0, "send");
	while (!told() && now_ns() - from < 10000000000)
		;
	after = now_ns() - from;
	struct beat beat = beat_of(0);
	check(after >= LIMIT_NS, "wedged after %lu ns", after);
	check(beat.flags & WEDGED, "one that does not: flags %#x", beat.flags);
	check(beat.wedged_ns >= LIMIT_NS && beat.wedged_ns <= now_ns() - from, "wedged for %lu ns", beat.wedged_ns);
	printk("told after %lu us, of %u\n", after / 1000, LIMIT_NS / 1000);
	spin(2 * LIMIT_NS);
	check(!told(), "it is told twice");
	shared->vcpu[0].upcall_mask = 0;
	beat_of(0);
	spin(20000000);
	check(!(beat_of(0).flags & WEDGED), "it has taken its event");
	check_result(watch(0, 0), 0, "watching only the end");
	shared->vcpu[0].upcall_mask = 1;
	check_result(evtchn(EVTCHN_send, &send), 0, "send");
	spin(2 * LIMIT_NS);
	check(!told() && !(beat_of(0).flags & WEDGED), "without a limit none is wedged");
	shared->vcpu[0].upcall_mask = 0;
	beat_of(0);
}

/* Our own: an event counts when it is taken, not when it comes. */
static void own(void)
{
	struct evtchn_send { u32 port; } send;
	volatile struct shared_info *shared = shared_info();
	set_upcall();
	send.port = new_ipi(0);
	struct beat before = beat_of(0);
	shared->vcpu[0].upcall_mask = 1;
	check_result(evtchn(EVTCHN_send, &send), 0, "send");
	spin(20000000);
	struct beat masked = beat_of(0);
	check((masked.flags & (PENDING | MASKED)) == (PENDING | MASKED), "with events masked: flags %#x", masked.flags);
	check(masked.upcalls == before.upcalls, "with events masked: %u taken", masked.upcalls - before.upcalls);
	check(masked.run_ns - before.run_ns >= 20000000, "it ran %lu ns", masked.run_ns - before.run_ns);
	u64 seen = nr_upcalls;
	shared->vcpu[0].upcall_mask = 0;
	/* The next hypercall delivers it. */
	struct beat ready = beat_of(0);
	struct beat taken = beat_of(0);
	check(nr_upcalls == seen + 1, "%lu upcalls", nr_upcalls - seen);
	check((ready.flags & MASKED) == 0 && (taken.flags & (PENDING | MASKED)) == 0, "flags %#x, then %#x", ready.flags, taken.flags);
	check(taken.upcalls == before.upcalls + 1, "%u taken", taken.upcalls - before.upcalls);
}

/* A domain that ends by itself, or is ended. */
static void ends(const u8 *code, size_t len, u32 code_of_end, u32 flags, const char *what)
{
	struct domctl request = { 0 };
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	memset(&context, 0, sizeof(context));
	make_running_domain(OTHER, code, len, pages[2], &context);
	struct beat first = beat_of(OTHER);
	check(first.upcalls == 0 && first.run_ns == 0, "%s: before it ran: %u taken, %lu ns", what, first.upcalls, first.run_ns);
	check_result(watch(OTHER, 500), 0, "watching it");
	/* The one before was told of when it was gone, too. */
	told();
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	for (u32 n = 0; n < 200000; n++) {
		check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
		if (request.info.flags & SHUTDOWN)
			break;
		HC1(sched_op, SCHEDOP_yield);
	}
	check((request.info.flags >> CODE_SHIFT & 0xff) == code_of_end, "%s: flags %#x", what, request.info.flags);
	/* A moment after that can be seen. */
	u64 from = now_ns();
	bool was_told = told();
	while (!was_told && now_ns() - from < 10000000000)
		was_told = told();
	check(was_told, "%s: nobody was told", what);
	struct beat beat = beat_of(OTHER);
	check((beat.flags & CRASHED) == flags, "%s: flags %#x", what, beat.flags);
	/* Its CPU may not have given a sign since. */
	while (beat.run_ns == 0 && now_ns() - from < 10000000000)
		beat = beat_of(OTHER);
	check(beat.run_ns > 0, "%s: it did not run", what);
	check_result(update_va(pages[2], 0, 2), 0, "letting its page go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
	beat = (struct beat){ .domid = OTHER };
	check_result(ask(&beat), -ESRCH, "of a domain that is gone");
}

static void keep_on(u16 domid, u64 cpus)
{
	struct {
		u32 cmd, version;
		u16 domid, pad[3];
		u32 vcpu, flags;
		struct { u64 *bits; u32 nr_bits, pad; } hard, soft;
	} request = { DOMCTL_SET_AFFINITY, 0x15, domid, { 0 }, 0, HARD, { &cpus, 8, 0 }, { 0, 0, 0 } };
	check_result(HC1(domctl, &request), 0, "setvcpuaffinity");
}

/* The other one, which never stops, has a CPU together with us, and then one for itself. */
static void waits_for_a_cpu(void)
{
	keep_on(0, 1);
	keep_on(OTHER, 1);
	u64 first = beat_of(OTHER).waited_ns, from = now_ns();
	/* Then it has left the other CPU, and does not run while we do. */
	while (beat_of(OTHER).waited_ns == first && now_ns() - from < 10000000000)
		;
	from = now_ns();
	struct beat before = beat_of(OTHER);
	while (beat_of(OTHER).waited_ns - before.waited_ns < LIMIT_NS && now_ns() - from < 10000000000)
		spin(1000000);
	struct beat after = beat_of(OTHER);
	u64 waited = after.waited_ns - before.waited_ns, ran = after.run_ns - before.run_ns, all = now_ns() - from;
	check(waited >= LIMIT_NS, "it waited %lu ns of %lu for a CPU", waited, all);
	check(waited + ran <= all, "it waited %lu ns and ran %lu of %lu", waited, ran, all);
	before = beat_of(OTHER);
	keep_on(OTHER, 2);
	spin(LIMIT_NS);
	after = beat_of(OTHER);
	check(after.waited_ns - before.waited_ns < LIMIT_NS / 2, "with a CPU of its own it waited %lu ns", after.waited_ns - before.waited_ns);
	keep_on(0, 3);
}

/* A domain that is watched before it has vCPUs, as one is that is seen while it is built: those that it gets then are watched, too. */
static void watched_from_the_start(void)
{
	/* jmp to itself */
	static const u8 spins[] = { 0xeb, 0xfe };
	struct domctl request = { 0 };
	check_result(create_domain(OTHER), 0, "createdomain");
	check_result(watch(OTHER, LIMIT_MS), 0, "watching one without vCPUs");
	set_max_vcpus(OTHER);
	memset(&context, 0, sizeof(context));
	make_running_domain(OTHER, spins, sizeof(spins), pages[2], &context);
	check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
	check_result(map_frame_of(OTHER, pages[3], request.info.shared_info_frame), 0, "mapping its shared_info");
	volatile struct shared_info *shared = (void *)pages[3];
	shared->vcpu[0].upcall_mask = 1;
	shared->vcpu[0].upcall_pending = 1;
	told();
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	u64 from = now_ns();
	while (!(beat_of(OTHER).flags & WEDGED) && now_ns() - from < 10000000000)
		HC1(sched_op, SCHEDOP_yield);
	check(beat_of(OTHER).flags & WEDGED, "watched from the start: flags %#x", beat_of(OTHER).flags);
	check(told(), "watched from the start: nobody was told");
	waits_for_a_cpu();
	check_result(update_va(pages[3], 0, 2), 0, "letting its shared_info go");
	check_result(update_va(pages[2], 0, 2), 0, "letting its page go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}

void test_main(void)
{
	/* sched_op(shutdown, CODE_VA + PAGE), which holds 0; and the same with crash, which the domain asks for itself. */
	static const u8 poweroff[] = { 0xb8, 29, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xbe, 0x00, 0x10, 0x40, 0x00, 0x0f, 0x05, 0xeb, 0xfe };
	static const u8 crash[] = { 0xc7, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, CRASH, 0, 0, 0,
				    0xb8, 29, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xbe, 0x00, 0x10, 0x40, 0x00, 0x0f, 0x05, 0xeb, 0xfe };
	/* ud2, without a handler. */
	static const u8 fault[] = { 0x0f, 0x0b };
	struct beat beat = { .domid = 0, .vcpu = 4000 };
	check_result(ask(&beat), -ENOENT, "of a vCPU that is none");
	beat = (struct beat){ .pad = 1 };
	check_result(ask(&beat), -EINVAL, "with something in the padding");
	check_result(hypercall(CHANNEL_OP, BEAT, 8, 0, 0, 0), -EFAULT, "a bad pointer");
	check_result(watch(4000, 1), -ESRCH, "watching no domain");
	struct watch devices = { .flags = DMA_FAULTS }, in_use = { .flags = DMA_FAULTS << 1 };
	struct watch bad = { .flags = DMA_FAULTS << 2 }, both = { .flags = DMA_FAULTS | DMA_FAULTS << 1 };
	check_result(hypercall(CHANNEL_OP, WATCH, (u64)&bad, 0, 0, 0), -EINVAL, "watching for what is not known");
	check_result(hypercall(CHANNEL_OP, WATCH, (u64)&both, 0, 0, 0), -EINVAL, "watching from two moments on");
	check_result(hypercall(CHANNEL_OP, WATCH, (u64)&in_use, 0, 0, 0), 0, "watching devices when they are of use");
	check_result(hypercall(CHANNEL_OP, WATCH, (u64)&devices, 0, 0, 0), 0, "watching devices");
	check(!(beat_of(0).flags & DMA_FAULT), "a device that nobody stopped");
	check_result(watch(0, 0), 0, "watching no devices");
	struct bind_virq virq = { VIRQ_SUPERVISOR, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "binding the virtual interrupt");
	told_port = virq.port;
	own();
	wedged();
	shared_info()->vcpu[0].upcall_mask = 1;
	watched_from_the_start();
	ends(poweroff, sizeof(poweroff), POWEROFF, 0, "one that switches itself off");
	ends(crash, sizeof(crash), CRASH, 0, "one that says it has crashed");
	ends(fault, sizeof(fault), CRASH, CRASHED, "one that is ended");
}
