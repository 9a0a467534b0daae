/* Descriptor tables: set_gdt and update_descriptor accept data and code of ring 3 and refuse what would give power. */
#include "guest.h"

const char test_name[] = "descriptors";

#define DATA 0x00cff3000000ffff /* flat, ring 3, writable */
#define CODE 0x00affb000000ffff /* 64-bit, ring 3 */

void test_main(void)
{
	u64 *gdt = (u64 *)pages[0];
	gdt[1] = CODE & ~(3ul << 45); /* asks for ring 0 */
	gdt[2] = DATA & ~(3ul << 45);
	gdt[3] = DATA;
	u64 frames[15];
	for (u32 i = 0; i < COUNT(frames); i++)
		frames[i] = mfn_of(gdt);
	check_refused(HC2(set_gdt, frames, 512), "a GDT that is mapped writable");
	make_read_only(gdt);
	check_refused(HC2(set_gdt, frames, 0x1c01), "too many entries");
	check_result(HC2(set_gdt, frames, 512), 0, "a good GDT");
	check((gdt[1] >> 45 & 3) == 3 && (gdt[2] >> 45 & 3) == 3, "descriptors keep ring 0: %#lx %#lx", gdt[1], gdt[2]);
	check_refused(update_va(gdt, pte(mfn_of(gdt), P | RW | US), 2), "a GDT in use can be mapped writable");
	/* They work. */
	u32 selector;
	asm volatile("mov %1, %%ds\n\tmov %%ds, %0\n\tmov %2, %%ds" : "=r"(selector) : "r"(0x13), "r"(0));
	check(selector == 0x13, "DS is %#x", selector);
	check(PROBE("mov %0, %%ds", : : "r"(0x23) : "r11", "memory") == 13 && probe.frame.error == 0x20, "an empty descriptor: %ld",
	      probe.vector);
	/* A flat code segment of its own is as good as the hypervisor's. */
	static struct frame to;
	to = (struct frame){ .rip = (u64)resume, .cs = 0x08, .rflags = 2, .rsp = (u64)pages[2], .ss = 0x13 };
	enter(&to);

	u64 address = maddr_of(&gdt[4]);
	check(HC2(update_descriptor, address, DATA) == 0 && (gdt[4] | 1ul << 40) == (DATA | 1ul << 40), "entry is %#lx", gdt[4]);
	check(HC2(update_descriptor, address, 0) == 0 && gdt[4] == 0, "clearing an entry");
	check_refused(HC2(update_descriptor, address + 4, DATA), "a misaligned address");
	/* Ring 0, and system descriptors: TSS, LDT, interrupt gate, call gate to the hypervisor. */
	check(HC2(update_descriptor, address, DATA & ~(3ul << 45)) < 0 || (gdt[4] >> 45 & 3) == 3, "ring 0 data: %#lx", gdt[4]);
	static const u64 refused[] = { 0x0000890000000067, 0x0000820000000067, 0x00008e0000000000, 0x00008f0000000000 };
	for (u32 i = 0; i < COUNT(refused); i++)
		check(HC2(update_descriptor, address, refused[i]) == -EINVAL, "descriptor %#lx is accepted", refused[i]);
	check_refused(HC2(update_descriptor, maddr_of((void *)start_info->pt_base), DATA), "a descriptor in a page table");
	check_refused(HC2(update_descriptor, 0xfffffffff000, DATA), "a descriptor in a frame that does not exist");
	/* The other descriptor tables' frames. */
	frames[0] = mfn_of((void *)start_info->pt_base);
	check_refused(HC2(set_gdt, frames, 512), "a page table as GDT");
	frames[0] = 0xfffffffff;
	check_refused(HC2(set_gdt, frames, 512), "a frame that does not exist as GDT");
	frames[0] = mfn_of(gdt);
	check(PROBE("mov %0, %%ds\n\tmov %1, %%ds", : : "r"(0x13), "r"(0) : "r11", "memory") == NO_TRAP, "the old GDT is gone: %ld",
	      probe.vector);
	/* None at all. */
	check_result(HC2(set_gdt, frames, 0), 0, "no GDT");
	check(PROBE("mov %0, %%ds", : : "r"(0x13) : "r11", "memory") == 13, "the old GDT is still there");
	make_writable(gdt);
	/* An LDT. */
	gdt[1] = DATA;
	make_read_only(gdt);
	check_result(mmuext(SET_LDT, (u64)gdt, 4), 0, "SET_LDT");
	check(PROBE("mov %0, %%ds\n\tmov %1, %%ds", : : "r"(0xf), "r"(0) : "r11", "memory") == NO_TRAP, "an LDT selector: %ld",
	      probe.vector);
	check(PROBE("mov %0, %%ds", : : "r"(0x1007) : "r11", "memory") == 13, "beyond the LDT: %ld", probe.vector);
	check_refused(mmuext(SET_LDT, (u64)gdt + 8, 4), "a misaligned LDT");
	check_refused(mmuext(SET_LDT, (u64)gdt, 8193), "too large an LDT");
	check_result(mmuext(SET_LDT, 0, 0), 0, "no LDT");
	make_writable(gdt);
}
