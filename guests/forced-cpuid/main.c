/* CPUID behind the prefix "ud2; xen": the domain's view. */
#include "guest.h"

const char test_name[] = "forced-cpuid";

static struct {
	u32 a, b, c, d;
} id;

static u64 cpuid(u32 leaf, u32 sub)
{
	u64 a, b, c, d;
	u64 vector = PROBE(".byte 0x0f, 0x0b, 0x78, 0x65, 0x6e, 0x0f, 0xa2", : "=a"(a), "=b"(b), "=c"(c), "=d"(d)
			   : "0"(leaf | 0xabul << 32), "2"(sub | 0xabul << 32) : "r11", "memory");
	id.a = a, id.b = b, id.c = c, id.d = d;
	if (vector == NO_TRAP)
		check((a | b | c | d) >> 32 == 0, "leaf %#x leaves upper halves", leaf);
	return vector;
}

void test_main(void)
{
	if (!check(cpuid(0x40000000, 0) == NO_TRAP, "it traps: %ld", probe.vector))
		return;
	check(id.b == 0x566e6558 && id.c == 0x65584d4d && id.d == 0x4d4d566e, "signature %#x %#x %#x", id.b, id.c, id.d);
	check(id.a >= 0x40000002 && id.a <= 0x400000ff, "last leaf %#x", id.a);
	cpuid(0x40000001, 0);
	check(id.a == 0x40011, "version %#x", id.a);
	cpuid(0x40000002, 0);
	check(id.a == 1 && (id.c & 1), "pages %#x, features %#x", id.a, id.c);
	cpuid(0x40000100, 0);
	check(!(id.a | id.b | id.c | id.d), "there are leaves at 0x40000100");
	cpuid(0, 0);
	check(id.a >= 1, "last leaf %#x", id.a);
	cpuid(1, 0);
	check(id.d & 1, "no FPU");
	check(id.d & 1 << 9, "no APIC");
	check(id.c & 1u << 31, "no hypervisor bit");
	check(!(id.c & 1 << 21), "x2APIC is shown");
	check(!(id.c & 1 << 3), "MONITOR is shown");
	cpuid(0x80000001, 0);
	check(id.d & 1 << 29, "no long mode");
	check(id.d & 1 << 11, "no SYSCALL");
	check(!(id.d & 1 << 26), "1 GiB pages are shown");
	check(!(id.c & 1 << 2), "SVM is shown");
	cpuid(7, 0);
	check(!(id.b & (1 << 7 | 1 << 10 | 1 << 20)), "SMEP, INVPCID or SMAP is shown: %#x", id.b);
	/* Only CPUID may follow the prefix. */
	check(PROBE(".byte 0x0f, 0x0b, 0x78, 0x65, 0x6e, 0x90", : : : "r11", "memory") == 6, "nop behind the prefix gives %ld",
	      probe.vector);
	check(PROBE(".byte 0x0f, 0x0b, 0x78, 0x65, 0x6f, 0x0f, 0xa2", : : : "rax", "rbx", "rcx", "rdx", "r11", "memory") == 6,
	      "another prefix gives %ld", probe.vector);
}
