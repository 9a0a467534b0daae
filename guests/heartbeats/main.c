/*
 * Whether vCPUs take their events can be seen from outside: how often they did, how long they ran, whether one waits; and whether it
 * was the hypervisor that ended a domain. (cpus: 2) (differs: stock Xen does not tell)
 */
#include "domains.h"

const char test_name[] = "heartbeats";

enum { OTHER = 5, BEAT = 7, CHANNEL_OP = 56 };
enum { PENDING = 1, MASKED = 2, CRASHED = 4 };
enum { SHUTDOWN = 1 << 2, CODE_SHIFT = 16, POWEROFF = 0, CRASH = 3 };

struct beat {
	u16 domid, pad;
	u32 vcpu, upcalls, flags;
	u64 run_ns;
};

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
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	for (u32 n = 0; n < 200000; n++) {
		check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
		if (request.info.flags & SHUTDOWN)
			break;
		HC1(sched_op, SCHEDOP_yield);
	}
	check((request.info.flags >> CODE_SHIFT & 0xff) == code_of_end, "%s: flags %#x", what, request.info.flags);
	struct beat beat = beat_of(OTHER);
	check((beat.flags & CRASHED) == flags, "%s: flags %#x", what, beat.flags);
	check(beat.run_ns > 0, "%s: it did not run", what);
	check_result(update_va(pages[2], 0, 2), 0, "letting its page go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
	beat = (struct beat){ .domid = OTHER };
	check_result(ask(&beat), -ESRCH, "of a domain that is gone");
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
	own();
	ends(poweroff, sizeof(poweroff), POWEROFF, 0, "one that switches itself off");
	ends(crash, sizeof(crash), CRASH, 0, "one that says it has crashed");
	ends(fault, sizeof(fault), CRASH, CRASHED, "one that is ended");
}
