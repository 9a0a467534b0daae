/* Instructions that a guest must not execute: #GP, and nothing else happens. */
#include "guest.h"

const char test_name[] = "privileged-instructions";

#define REFUSED(code) check(PROBE(code, : : "d"(pages[0]) : "rax", "rcx", "r11", "memory") == 13, code " gives %ld", probe.vector)

void test_main(void)
{
	REFUSED("hlt");
	REFUSED("lgdt (%%rdx)");
	REFUSED("lidt (%%rdx)");
	REFUSED("lldt %%dx");
	REFUSED("ltr %%dx");
	/* QEMU 10's processor lets ring 3 execute it. */
	if (!is_qemu_10())
		REFUSED("invd");
	REFUSED("swapgs");
	REFUSED("sysretq");
	/* Interrupt flag and ports, before the kernel has asked for an I/O privilege level. */
	REFUSED("cli");
	REFUSED("sti");
	/* Plain instructions are none of the hypervisor's business. */
	u64 low, high;
	check(PROBE("rdtsc", : "=a"(low), "=d"(high) : : "r11", "memory") == NO_TRAP, "rdtsc gives %ld", probe.vector);
	check(PROBE("sgdt (%0)", : : "r"(pages[0]) : "r11", "memory") == NO_TRAP, "sgdt gives %ld", probe.vector);
}
