/* Bringing up a second vCPU, interrupting it, and taking it down again. (cpus: 2) */
#include "events.h"

const char test_name[] = "second-vcpu";

enum { FSGSBASE = 1 << 16 };
static struct vcpu_context context;

volatile u64 heartbeat, argument, upcalls_there, control;
void second_entry(void), second_upcall(void);
asm(".text\nsecond_entry:\n\tmov %rdi, argument(%rip)\n\tmov %cr4, %rax\n\tmov %rax, control(%rip)\n1:\tlock incq heartbeat(%rip)\n\tpause\n\tjmp 1b\n"
    "second_upcall:\n\tlock incq upcalls_there(%rip)\n\tpop %rcx\n\tpop %r11\n\t"
    "mov shared_window(%rip), %rdx\n\tmovb $0, 64(%rdx)\n\tmovq $0, 64+8(%rdx)\n\t"
    "andl $0xffff, 8(%rsp)\n\tmovl $0, 12(%rsp)\n\t"
    "push $0\n\tpush %rcx\n\tpush %r11\n\tpush %rax\n\tmov $23, %eax\n\tsyscall");
volatile struct shared_info *shared_window;

static bool beats(void)
{
	u64 seen = heartbeat, until = now_ns() + 2000000000;
	while (heartbeat == seen && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	return heartbeat != seen;
}

/* The virtual timer of vCPU 1, which does nothing but count, alone on a CPU. */
static void its_timer(void)
{
	struct bind_virq virq = { 0, 1, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "bind_virq");
	check_result(HC3(vcpu_op, VCPUOP_stop_periodic_timer, 1, 0), 0, "stop_periodic_timer");
	u64 period = 20000000;
	check_result(HC3(vcpu_op, VCPUOP_set_periodic_timer, 1, &period), 0, "set_periodic_timer");
	for (u32 n = 0; n < 3; n++) {
		u64 seen = upcalls_there, until = now_ns() + 2000000000;
		__atomic_fetch_and((u64 *)&shared_window->pending[virq.port / 64], ~(1ul << virq.port % 64), __ATOMIC_SEQ_CST);
		while (upcalls_there == seen && now_ns() < until)
			asm volatile("pause");
		if (!check(upcalls_there != seen, "its timer has not ticked after %u times", n))
			break;
	}
	check_result(HC3(vcpu_op, VCPUOP_stop_periodic_timer, 1, 0), 0, "stop_periodic_timer");
	check_result(evtchn(EVTCHN_close, &virq.port), 0, "close");
}

void test_main(void)
{
	shared_window = shared_info();
	s64 state = HC3(vcpu_op, VCPUOP_is_up, 1, 0);
	if (state == -ENOENT)
		skip("the domain has one vCPU");
	check(state == 0, "vCPU 1 is up: %ld", state);
	check_refused(HC3(vcpu_op, VCPUOP_up, 1, 0), "starting a vCPU without a context");
	plain_context(&context, second_entry, pages[8]);
	context.regs.rdi = 0x5ec0;
	/* As ring 0 has it. */
	context.regs.cs &= ~3;
	context.event = (u64)second_upcall;
	/* Whatever it asks for, it gets what the processor has. */
	context.ctrlreg[4] = FSGSBASE | 0xfff;
	/* A root that is none. */
	context.ctrlreg[3] = maddr_of(pages[20]);
	check_refused(HC3(vcpu_op, VCPUOP_initialise, 1, &context), "a page-table root that is none");
	context.ctrlreg[3] = maddr_of((void *)start_info->pt_base);
	context.regs.rip = 0x800000000000;
	check_refused(HC3(vcpu_op, VCPUOP_initialise, 1, &context), "an entry that is not canonical");
	context.regs.rip = (u64)second_entry;
	check_result(HC3(vcpu_op, VCPUOP_initialise, 1, &context), 0, "initialise");
	check_result(HC3(vcpu_op, VCPUOP_initialise, 1, &context), -EEXIST, "initialise twice");
	check(heartbeat == 0, "it runs before it is up");
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "up");
	if (!check(beats(), "it does not run"))
		return;
	u32 leaf = 7, features, subleaf = 0, rest;
	asm("cpuid" : "+a"(leaf), "=b"(features), "+c"(subleaf), "=d"(rest));
	check(!(control & FSGSBASE) || features & 1, "CR4 is %#lx on a processor without FSGSBASE", control);
	check(argument == 0x5ec0, "rdi was %#lx", argument);
	check(HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 1, "it is not up");
	/* An interrupt: its events are masked until now. */
	u32 port = new_ipi(1);
	shared_window->vcpu[1].upcall_mask = 0;
	check_result(evtchn(EVTCHN_send, &port), 0, "send");
	u64 until = now_ns() + 2000000000;
	while (!upcalls_there && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(upcalls_there > 0, "no upcall on vCPU 1");
	check(beats(), "it stopped after the upcall");
	its_timer();
	check(beats(), "it stopped after its timer's upcalls");
	shared_window->vcpu[1].upcall_mask = 1;
	/* A change of the page tables and a flush by bitmap reach it. */
	u64 both = 3;
	check_result(update_va(pages[2], pte(mfn_of(pages[3]), P | RW | US), (u64)&both | 2), 0, "flushing on both");
	check_result(update_va(pages[2], pte(mfn_of(pages[2]), P | RW | US), 1 | 4), 0, "flushing on all");
	check_result(HC3(vcpu_op, VCPUOP_down, 1, 0), 0, "down");
	until = now_ns() + 200000000;
	while (now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	u64 seen = heartbeat;
	until = now_ns() + 200000000;
	while (now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(heartbeat == seen, "it runs though it is down");
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "up again");
	check(beats(), "it does not run again");
}
