/* Page faults: address in vcpu_info and in CR2, error codes as the kernel would see them on a bare machine. */
#include "guest.h"

const char test_name[] = "page-faults";

static void expect(const char *what, u64 vector, u64 address, u64 error)
{
	u64 cr2;
	check(vector == 14, "%s gives %ld", what, vector);
	check(shared_info()->vcpu[0].cr2 == address, "%s: vcpu_info has %#lx", what, shared_info()->vcpu[0].cr2);
	asm volatile("mov %%cr2, %0" : "=r"(cr2));
	check(cr2 == address, "%s: CR2 is %#lx", what, cr2);
	check(probe.frame.error == error, "%s: error code %#lx", what, probe.frame.error);
}

void test_main(void)
{
	u64 nowhere = 0x123456000;
	expect("a read", PROBE("mov 8(%0), %%rax", : : "r"(nowhere) : "rax", "r11", "memory"), nowhere + 8, 0);
	expect("a write", PROBE("mov %%rax, 16(%0)", : : "r"(nowhere) : "rax", "r11", "memory"), nowhere + 16, 2);
	make_read_only(pages[0]);
	expect("a write to a read-only page", PROBE("mov %%rax, 24(%0)", : : "r"(pages[0]) : "rax", "r11", "memory"),
	       (u64)pages[0] + 24, 3);
	expect("a write to a page table", PROBE("mov %%rax, (%0)", : : "r"(start_info->pt_base) : "rax", "r11", "memory"),
	       start_info->pt_base, 3);
	/* A fetch: from an address that is not mapped, and from a page that is not executable. */
	u64 vector = PROBE("jmp *%0", : : "r"(nowhere) : "r11", "memory");
	check(vector == 14 && shared_info()->vcpu[0].cr2 == nowhere && (probe.frame.error & ~0x10ul) == 0,
	      "a fetch from nowhere: vector %ld, error %#lx", vector, probe.frame.error);
	if (update_va(pages[1], pte(mfn_of(pages[1]), P | RW | US) | NX, 2))
		error("no NX");
	expect("a fetch from a data page", PROBE("jmp *%0", : : "r"(pages[1]) : "r11", "memory"), (u64)pages[1], 0x11);
	/* The frame names the instruction, so that it can be tried again. */
	check(probe.frame.rip == (u64)pages[1], "rip is %#lx", probe.frame.rip);
}
