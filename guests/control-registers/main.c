/* MOV to and from control registers, CLTS, LMSW, debug registers: emulated, or refused with #GP. */
#include "guest.h"

const char test_name[] = "control-registers";

void test_main(void)
{
	u64 value;
	check(PROBE("mov %%cr0, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP, "reading CR0 gives %ld", probe.vector);
	check((value & 0x80000001) == 0x80000001, "CR0 is %#lx", value);
	check(PROBE("mov %%cr3, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP, "reading CR3 gives %ld", probe.vector);
	check(value == maddr_of((void *)start_info->pt_base), "CR3 is %#lx", value);
	check(PROBE("mov %%cr4, %0", : "=r"(value) : : "r11", "memory") == NO_TRAP, "reading CR4 gives %ld", probe.vector);
	check((value & 0x20) && !(value & 1 << 20) && !(value & 1 << 21), "CR4 is %#lx", value);
	u64 cr4 = value;
	/* Bits that are the hypervisor's are dropped in silence. */
	check(PROBE("mov %0, %%cr4", : : "r"(cr4 & ~0x20ul) : "r11", "memory") == NO_TRAP, "writing CR4 gives %ld", probe.vector);
	asm volatile("mov %%cr4, %0" : "=r"(value));
	check(value & 0x20, "PAE could be switched off");
	/* DE is the guest's. */
	asm volatile("mov %0, %%cr4" : : "r"(cr4 | 8));
	asm volatile("mov %%cr4, %0" : "=r"(value));
	check(value & 8, "DE cannot be set: %#lx", value);
	asm volatile("mov %0, %%cr4" : : "r"(cr4));
	/* The same root again is a flush. */
	check(PROBE("mov %%cr3, %0\n\tmov %0, %%cr3", : "=&r"(value) : : "r11", "memory") == NO_TRAP, "writing CR3 gives %ld",
	      probe.vector);
	/* A frame that is no page table. */
	check(PROBE("mov %0, %%cr3", : : "r"(maddr_of(pages[0])) : "r11", "memory") == 13, "a bad CR3 gives %ld", probe.vector);
	/* TS. */
	check(PROBE("clts", : : : "r11", "memory") == NO_TRAP, "clts gives %ld", probe.vector);
	asm volatile("mov %%cr0, %0" : "=r"(value));
	check(PROBE("mov %0, %%cr0", : : "r"(value | 8) : "r11", "memory") == NO_TRAP, "setting TS gives %ld", probe.vector);
	check(PROBE("mov %0, %%cr0", : : "r"(value & ~1ul) : "r11", "memory") == 13, "clearing PE gives %ld", probe.vector);
	asm volatile("clts");
	check(PROBE("mov %%cr8, %0", : "=r"(value) : : "r11", "memory") == 13, "reading CR8 gives %ld", probe.vector);
}
