/*
 * XSETBV, and AVX registers when two vCPUs share a CPU: each keeps its own, also what it has switched off meanwhile.
 * (vcpus: 2) (processor: max,-smap)
 */
#include "events.h"

const char test_name[] = "extended-state";

enum { OSXSAVE = 1 << 18, CPUID_XSAVE = 1 << 26, CPUID_AVX = 1 << 28 };
enum { X87 = 1, SSE = 2, AVX = 4 };

#define EACH(what) what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7) \
		   what(8) what(9) what(10) what(11) what(12) what(13) what(14) what(15)
#define LOAD(n) "vmovdqu 32*" #n "(%0), %%ymm" #n "\n"
#define STORE(n) "vmovdqu %%ymm" #n ", 32*" #n "(%0)\n"
#define STORE_SECOND(n) "\tvmovdqu %ymm" #n ", 32*" #n "(%rdi)\n"

typedef u64 registers[16][4];
static registers want, got;

/*
 * The second vCPU: has SSE only until it is told to switch AVX on, stores the registers that it finds then, and goes on.
 * It gives way all the time.
 */
#define YIELD "\tlock incq heartbeat(%rip)\n\tmov $29, %eax\n\txor %edi, %edi\n\tsyscall\n"
volatile u64 heartbeat, switch_on, stored;
registers others;
void second_entry(void);
asm(".text\nsecond_entry:\n\tmov %cr4, %rax\n\tor $1 << 18, %rax\n\tmov %rax, %cr4\n"
    "\txor %ecx, %ecx\n\txor %edx, %edx\n\tmov $3, %eax\n\txsetbv\n"
    "1:" YIELD "\tcmpq $0, switch_on(%rip)\n\tje 1b\n"
    "\txor %ecx, %ecx\n\txor %edx, %edx\n\tmov $7, %eax\n\txsetbv\n\tlea others(%rip), %rdi\n" EACH(STORE_SECOND)
    "\tmovq $1, stored(%rip)\n2:" YIELD "\tjmp 2b\n");

static u64 xsetbv(u32 index, u64 value)
{
	return PROBE("xsetbv", : : "c"(index), "a"((u32)value), "d"((u32)(value >> 32)) : "r11", "memory");
}

static u64 xgetbv(void)
{
	u32 low, high;

	asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (u64)high << 32 | low;
}

static void switch_to(u64 states)
{
	check(xsetbv(0, states) == NO_TRAP, "XCR0 = %#lx gives %ld", states, probe.vector);
	check(xgetbv() == states, "XCR0 is %#lx, not %#lx", xgetbv(), states);
}

/* The CPU has nothing to do meanwhile. */
static void nap(void)
{
	struct {
		u32 *ports;
		u32 nr, pad;
		u64 timeout;
	} poll = { NULL, 0, 0, now_ns() + 5000000 };

	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "poll");
}

/* Until the other vCPU ran a few times. */
static bool give_way(void)
{
	u64 seen = heartbeat, until = now_ns() + 2000000000;

	while (heartbeat < seen + 3 && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	return check(heartbeat >= seen + 3, "the second vCPU does not run");
}

static void check_registers(const char *when)
{
	asm volatile(EACH(STORE) : : "r"(got) : "memory");
	for (unsigned n = 0; n < 16; n++)
		if (!check(memcmp(want[n], got[n], 32) == 0, "%s, ymm%u has %#lx %#lx %#lx %#lx", when, n, got[n][0], got[n][1],
			   got[n][2], got[n][3]))
			return;
}

void test_main(void)
{
	static struct vcpu_context context;
	u32 a = 1, b, c = 0, d;
	u64 cr4;

	asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	if (!(c & CPUID_XSAVE) || !(c & CPUID_AVX))
		skip("the processor has no AVX");
	need_vcpu(1);
	asm volatile("mov %%cr4, %0\n\tor %1, %0\n\tmov %0, %%cr4" : "=&r"(cr4) : "i"(OSXSAVE));
	static const u64 invalid[] = { 0, SSE, X87 | AVX, X87 | SSE | 8, X87 | 1ul << 63 };
	for (unsigned i = 0; i < COUNT(invalid); i++)
		check(xsetbv(0, invalid[i]) == 13, "XCR0 = %#lx gives %ld", invalid[i], probe.vector);
	check(xsetbv(1, X87 | SSE) == 13, "XCR1 gives %ld", probe.vector);
	static const u64 fewer[] = { X87 | SSE, X87 };
	for (unsigned i = 0; i < COUNT(fewer); i++) {
		switch_to(fewer[i]);
		nap();
		check(xgetbv() == fewer[i], "XCR0 is %#lx after a nap, not %#lx", xgetbv(), fewer[i]);
	}

	plain_context(&context, second_entry, pages[8]);
	for (unsigned i = 0; i < 256; i++)
		context.traps[i] = (struct trap_info){ .vector = i };
	bring_up(1, &context);

	for (unsigned n = 0; n < 16; n++)
		for (unsigned i = 0; i < 4; i++)
			want[n][i] = 0x5ec0000000000000 | n << 8 | i;
	switch_to(X87 | SSE | AVX);
	asm volatile(EACH(LOAD) : : "r"(want) : "memory");
	if (!give_way())
		return;
	check_registers("after another vCPU ran");
	for (unsigned i = 0; i < COUNT(fewer); i++) {
		switch_to(fewer[i]);
		give_way();
		switch_to(X87 | SSE | AVX);
		check_registers("after AVX was off");
	}
	/* These are in the CPU when the other one, which never used any, switches them on. */
	switch_on = 1;
	give_way();
	check(stored == 1, "the second vCPU did not get as far");
	for (unsigned n = 0; n < 16; n++)
		if (!check(memcmp(others[n], (registers){ 0 }[0], 32) == 0, "another vCPU finds %#lx %#lx %#lx %#lx in ymm%u",
			   others[n][0], others[n][1], others[n][2], others[n][3], n))
			return;
	check_registers("at the end");
}
