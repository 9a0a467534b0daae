/* A plain two-level upcall handler, and a plain way to start another vCPU. */
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

void plain_context(struct vcpu_context *context, void (*entry)(void), void *stack_top)
{
	enum { IN_KERNEL = 4 };
	memset(context, 0, sizeof(*context));
	context->flags = IN_KERNEL;
	context->regs.rip = (u64)entry;
	context->regs.cs = FLAT_KERNEL_CS;
	context->regs.ss = FLAT_KERNEL_SS;
	context->regs.rflags = 0x202;
	/* As behind a call. */
	context->regs.rsp = (u64)stack_top - 8;
	context->kernel_ss = FLAT_KERNEL_SS;
	context->kernel_sp = (u64)stack_top;
	context->ctrlreg[3] = maddr_of((void *)start_info->pt_base);
}

void need_vcpu(u32 vcpu)
{
	if (HC3(vcpu_op, VCPUOP_is_up, vcpu, 0) == -ENOENT)
		skip("the domain has too few vCPUs");
}

void bring_up(u32 vcpu, struct vcpu_context *context)
{
	check_result(HC3(vcpu_op, VCPUOP_initialise, vcpu, context), 0, "initialise");
	check_result(HC3(vcpu_op, VCPUOP_up, vcpu, 0), 0, "up");
}

void start_vcpu(u32 vcpu, void (*entry)(void), void *stack_top)
{
	static struct vcpu_context context;
	need_vcpu(vcpu);
	plain_context(&context, entry, stack_top);
	bring_up(vcpu, &context);
}

void go_down(u32 vcpu)
{
	for (;;)
		HC3(vcpu_op, VCPUOP_down, vcpu, 0);
}

void wait_until_down(u32 vcpu)
{
	while (HC3(vcpu_op, VCPUOP_is_up, vcpu, 0) == 1) {
		HC1(sched_op, SCHEDOP_yield);
		asm volatile("pause");
	}
}
