/* A vCPU that is brought up must have page tables to run on: contexts without any are refused. (cpus: 2) */
#include "events.h"

const char test_name[] = "vcpu-without-tables";

static struct vcpu_context context;

volatile u64 heartbeat;
void second_entry(void);
asm(".text\nsecond_entry:\n1:\tlock incq heartbeat(%rip)\n\tpause\n\tjmp 1b");

static void rest(void)
{
	u64 until = now_ns() + 100000000;
	while (now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
}

/* What is refused leaves nothing that could be brought up. */
static void must_not_run(const char *what)
{
	s64 result = HC3(vcpu_op, VCPUOP_initialise, 1, &context);
	check(result == -EINVAL, "%s: result %ld", what, result);
	if (result == 0)
		printk("  bringing it up\n");
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), -EINVAL, "up, after that");
	rest();
	check(heartbeat == 0, "it runs");
}

void test_main(void)
{
	enum { IN_KERNEL = 4 };
	need_vcpu(1);
	u64 root = maddr_of((void *)start_info->pt_base);
	plain_context(&context, second_entry, pages[8]);
	context.ctrlreg[3] = 0;
	must_not_run("no page tables at all");
	context.ctrlreg[1] = root;
	must_not_run("page tables for user mode only");
	context.ctrlreg[3] = 0x800000000000;
	must_not_run("page tables beyond the memory");
	context.ctrlreg[3] = root;
	context.ctrlreg[1] = maddr_of(pages[20]);
	must_not_run("page tables for user mode that are none");
	context.ctrlreg[1] = 0;
	context.flags = 0;
	must_not_run("user mode, and page tables for the kernel only");
	context.flags = IN_KERNEL;
	check_result(HC3(vcpu_op, VCPUOP_initialise, 1, &context), 0, "initialise");
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "up");
	u64 until = now_ns() + 2000000000;
	while (!heartbeat && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(heartbeat > 0, "it does not run");
}
