/*
 * One vCPU takes a second down and registers memory for it, while a third brings it up all the time: each of them gets on.
 * (cpus: 3)
 */
#include "events.h"

const char test_name[] = "vcpu-held-still";

volatile u64 heartbeat, rounds;
void second_entry(void), third_entry(void);
/* The second counts, and asks for something now and then that takes a while: all of the machine's TLBs. */
asm(".text\nsecond_entry:\n1:\tlock incq heartbeat(%rip)\n\t"
    "mov $26, %eax\n\tlea flush_all(%rip), %rdi\n\tmov $1, %esi\n\txor %edx, %edx\n\tmov $0x7ff0, %r10d\n\tsyscall\n\tjmp 1b\n"
    /* The third says: vcpu_op(up, 1). */
    "third_entry:\n1:\tmov $24, %eax\n\tmov $1, %edi\n\tmov $1, %esi\n\txor %edx, %edx\n\tsyscall\n\tlock incq rounds(%rip)\n\t"
    "jmp 1b\n");
struct {
	u32 cmd, pad;
	u64 arg1, arg2;
} flush_all = { 10, 0, 0, 0 };

void test_main(void)
{
	need_vcpu(2);
	start_vcpu(1, second_entry, pages[9]);
	start_vcpu(2, third_entry, pages[10]);
	u64 area = (u64)pages[3], none = 0, until = now_ns() + 3000000000, done = 0;
	while (done < 3000 && now_ns() < until) {
		check_result(HC3(vcpu_op, VCPUOP_down, 1, 0), 0, "down");
		check_result(HC3(vcpu_op, VCPUOP_register_runstate, 1, done % 2 ? &none : &area), 0, "a place for its run states");
		done++;
	}
	printk("%lu registrations, %lu times up, %lu flushes\n", done, rounds, heartbeat);
	check(done >= 100, "only %lu registrations", done);
	check_result(HC3(vcpu_op, VCPUOP_down, 2, 0), 0, "down");
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "up, the last time");
	u64 seen = heartbeat;
	until = now_ns() + 2000000000;
	while (heartbeat == seen && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(heartbeat != seen, "it does not run any more");
}
