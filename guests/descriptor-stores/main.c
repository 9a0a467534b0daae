/* SGDT, SIDT, SLDT, STR and SMSW are executed by the processor, also where it could forbid them to ring 3 (UMIP): neither CPUID
 * nor CR4 offers that, nor SMEP and SMAP. (processor: max) */
#include "guest.h"

const char test_name[] = "descriptor-stores";

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

void test_main(void)
{
	STORES("sgdt");
	STORES("sidt");
	STORES("sldt");
	STORES("str");
	STORES("smsw");
	u64 selector = 0;
	check(PROBE("str %0", : "=r"(selector) : : "r11", "memory") == NO_TRAP && selector == 0xe040, "STR gives %#lx", selector);
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
