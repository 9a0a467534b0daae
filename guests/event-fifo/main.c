/* The FIFO event ABI: queues by priority, consumed in order. */
#include "events.h"

const char test_name[] = "event-fifo";

#define PENDING (1u << 31)
#define MASKED (1u << 30)
#define LINKED (1u << 29)

static volatile struct {
	u32 ready, pad;
	u32 head[16];
} *control = (void *)pages[0];
static volatile u32 *words = (u32 *)pages[1];

/* Takes the first event of a priority off its queue. */
static u32 take(u32 priority)
{
	u32 port = control->head[priority];
	if (!port)
		return 0;
	u32 word = __atomic_fetch_and(&words[port], ~(LINKED | 0x1ffff), __ATOMIC_SEQ_CST);
	control->head[priority] = word & 0x1ffff;
	if (!(word & 0x1ffff))
		__atomic_fetch_and(&control->ready, ~(1u << priority), __ATOMIC_SEQ_CST);
	__atomic_fetch_and(&words[port], ~PENDING, __ATOMIC_SEQ_CST);
	return port;
}

void test_main(void)
{
	volatile struct shared_info *shared = shared_info();
	struct {
		u64 gfn;
		u32 offset, vcpu;
		u8 link_bits, pad[7];
	} init = { mfn_of((void *)control), 0, 0, 0, { 0 } };
	if (evtchn(EVTCHN_init_control, &init) == -ENOSYS)
		skip("the FIFO ABI is not offered");
	check(init.link_bits == 17, "%d link bits", init.link_bits);
	check_refused(evtchn(EVTCHN_init_control, &init), "a second control block");
	u32 port = new_ipi(0);
	u64 array = mfn_of((void *)words);
	check_result(evtchn(EVTCHN_expand_array, &array), 0, "expand_array");
	u32 ports[4] = { port, new_ipi(0), new_ipi(0), new_ipi(0) };
	shared->vcpu[0].upcall_pending = 0;
	/* In order of sending, within one priority. */
	for (int i = 3; i >= 0; i--)
		check_result(evtchn(EVTCHN_send, &ports[i]), 0, "send");
	check(control->ready == 1u << 7, "ready is %#x", control->ready);
	check(shared->vcpu[0].upcall_pending, "no upcall");
	for (int i = 3; i >= 0; i--) {
		u32 got = take(7);
		check(got == ports[i], "port %u instead of %u", got, ports[i]);
	}
	check(take(7) == 0 && control->ready == 0, "ready is %#x", control->ready);
	/* Twice sent is once queued. */
	evtchn(EVTCHN_send, &ports[1]);
	evtchn(EVTCHN_send, &ports[1]);
	check(words[ports[1]] == (PENDING | LINKED), "word is %#x", words[ports[1]]);
	check(take(7) == ports[1] && take(7) == 0, "it is queued twice");
	/* Priorities. */
	struct {
		u32 port, priority;
	} set = { ports[2], 0 };
	check_result(evtchn(EVTCHN_set_priority, &set), 0, "set_priority");
	evtchn(EVTCHN_send, &ports[0]);
	evtchn(EVTCHN_send, &ports[2]);
	check(control->ready == (1u << 7 | 1), "ready is %#x", control->ready);
	check(take(0) == ports[2] && take(7) == ports[0], "queues");
	set.priority = 16;
	check_refused(evtchn(EVTCHN_set_priority, &set), "priority 16");
	/* A masked event is pending, but on no queue until it is unmasked. */
	__atomic_fetch_or(&words[ports[3]], MASKED, __ATOMIC_SEQ_CST);
	evtchn(EVTCHN_send, &ports[3]);
	check(words[ports[3]] == (PENDING | MASKED) && control->head[7] == 0, "word is %#x", words[ports[3]]);
	check_result(evtchn(EVTCHN_unmask, &ports[3]), 0, "unmask");
	check(take(7) == ports[3], "an unmasked event is not queued");
	/* Nonsense in the shared words harms only ourselves. */
	words[ports[0]] = LINKED | 0x1ffff;
	for (u32 i = 0; i < 100; i++) {
		control->head[7] = 0x1ffff - i;
		words[ports[0]] = i * 0x1234567;
		words[ports[1]] = i * 0x89abcdef;
		for (u32 j = 0; j < 4; j++)
			evtchn(EVTCHN_send, &ports[j]);
	}
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor is alive");
}
