/* A plain two-level upcall handler. */
#include "events.h"

volatile u64 nr_upcalls, upcall_ports[4096 / 64];

static void upcall(struct frame *frame)
{
	volatile struct shared_info *shared = shared_info();
	(void)frame;
	nr_upcalls++;
	shared->vcpu[0].upcall_pending = 0;
	u64 words = __atomic_exchange_n((u64 *)&shared->vcpu[0].pending_sel, 0, __ATOMIC_SEQ_CST);
	for (; words; words &= words - 1) {
		u32 word = __builtin_ctzl(words);
		u64 ports = shared->pending[word] & ~shared->mask[word];
		upcall_ports[word] |= ports;
		__atomic_fetch_and((u64 *)&shared->pending[word], ~ports, __ATOMIC_SEQ_CST);
	}
}

void set_upcall(void)
{
	shared_info();
	handlers[ENTRY_EVENT] = upcall;
	if (set_callback(0, 0, entry_256))
		error("callback_op");
}
