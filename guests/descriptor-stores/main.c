/* SGDT, SIDT, SLDT, STR and SMSW work for guests, also where the processor can forbid them to ring 3 (UMIP). Then Tandem forbids them
 * and emulates them without the tables' addresses, as Xen does not; neither CPUID nor CR4 offers UMIP, SMEP or SMAP. (processor: max) */
#include "guest.h"

const char test_name[] = "descriptor-stores";

struct pointer {
	u16 limit;
	u64 base;
} __attribute__((packed));

#define STORES(code)                                                                                                   \
	do {                                                                                                           \
		memset(pages[0], 0xee, 16);                                                                            \
		u64 vector = PROBE(code " (%0)", : : "r"(pages[0]) : "r11", "memory");                                 \
		check(vector == NO_TRAP, code " gives %ld", vector);                                                   \
		check(pages[0][0] != 0xee || pages[0][1] != 0xee, code " stores nothing");                             \
	} while (0)

static void cpuid_hides(void)
{
	u32 eax = 7, ebx, ecx = 0, edx;
	asm volatile("ud2\n\t.ascii \"xen\"\n\tcpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
	check(!(ebx & (1 << 7 | 1 << 20)) && !(ecx & 1 << 2), "CPUID leaf 7 has ebx %#x, ecx %#x", ebx, ecx);
}

/* The processor itself has UMIP: what it says without the hypervisor. */
static bool has_umip(void)
{
	u32 eax = 7, ebx, ecx = 0, edx;
	asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
	return ecx & 1 << 2;
}

static void addresses_are_hidden(void)
{
	struct pointer gdt = { 0 }, idt = { 0 };
	bool hidden = has_umip() && is_tandem();
	check(PROBE("sgdt %0", : "=m"(gdt) : : "r11", "memory") == NO_TRAP, "SGDT gives %ld", probe.vector);
	check(PROBE("sidt %0", : "=m"(idt) : : "r11", "memory") == NO_TRAP, "SIDT gives %ld", probe.vector);
	check((gdt.base == 0xfffffffffffe0000 && gdt.limit == 0) == hidden, "SGDT tells %#lx, limit %#x", gdt.base, gdt.limit);
	check((idt.base == 0xffffffffffff0000 && idt.limit == 0) == hidden, "SIDT tells %#lx, limit %#x", idt.base, idt.limit);
	printk("  the processor %s UMIP, the tables are %s\n", has_umip() ? "has" : "has no", hidden ? "hidden" : "shown");
}

void test_main(void)
{
	STORES("sgdt");
	STORES("sidt");
	STORES("sldt");
	STORES("str");
	STORES("smsw");
	u64 selector = 0, status = 0;
	check(PROBE("str %0", : "=r"(selector) : : "r11", "memory") == NO_TRAP && selector == 0xe040, "STR gives %#lx", selector);
	check(PROBE("smsw %0", : "=r"(status) : : "r11", "memory") == NO_TRAP && (status & 0x80000001) == 0x80000001, "SMSW gives %#lx", status);
	addresses_are_hidden();
	cpuid_hides();
	u64 before, after;
	asm volatile("mov %%cr4, %0" : "=r"(before));
	asm volatile("mov %0, %%cr4" : : "r"(before | 1 << 11 | 1 << 20 | 1 << 21));
	asm volatile("mov %%cr4, %0" : "=r"(after));
	check(before == after && !(before & (1 << 11 | 1 << 20 | 1 << 21)), "CR4 goes from %#lx to %#lx", before, after);
	/* STAC and CLAC are ring 0's. */
	check(PROBE("stac", : : : "r11", "memory") == 6, "stac gives %ld", probe.vector);
	check(PROBE("clac", : : : "r11", "memory") == 6, "clac gives %ld", probe.vector);
}
