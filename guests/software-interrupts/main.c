/* int n: vectors that the kernel lets this level raise arrive without an error code; others are #GP(n << 3 | 2). */
#include "guest.h"

const char test_name[] = "software-interrupts";

/* QEMU's software CPU gives #GP(n << 4 | 2) in long mode: then no hypervisor can tell which vector was meant. */
static bool is_qemu;

static bool is_gp(u64 vector, u64 n)
{
	u64 shift = is_qemu && n != 0x80 ? 4 : 3;
	return vector == 13 && probe.frame.error == (n << shift | 2);
}

void test_main(void)
{
	u64 after;
	/* Nothing registered. */
	u64 first = PROBE("int $0x20", : : : "r11", "memory");
	is_qemu = first == 13 && probe.frame.error == (0x20 << 4 | 2);
	check(is_gp(first, 0x20), "int 0x20 gives %ld, error %#lx", probe.vector, probe.frame.error);
	check(PROBE("int $0x80", : : : "r11", "memory") == 13, "int 0x80 gives %ld", probe.vector);
	check(probe.frame.error == (0x80 << 3 | 2), "error code is %#lx", probe.frame.error);
	/* Registered for the kernel's level: a PV kernel counts as level 1, so a gate of level 0 is closed. */
	for (u8 dpl = 0; dpl < 4 && !is_qemu; dpl++) {
		set_trap(0x81, dpl, entry_129);
		u64 vector = PROBE("lea 2f(%%rip), %0\n\tint $0x81\n2:", : "=&r"(after) : : "r11", "memory");
		if (dpl == 0) {
			check(vector == 13 && probe.frame.error == (0x81 << 3 | 2), "level 0: vector %ld, error %#lx", vector,
			      probe.frame.error);
		} else {
			check(vector == 0x81 && probe.frame.error == 0, "level %d: vector %ld, error %#lx", dpl, vector,
			      probe.frame.error);
			check(probe.frame.rip == after, "level %d: rip %#lx instead of %#lx", dpl, probe.frame.rip, after);
		}
	}
	/* The Linux system call gate is direct. */
	set_trap(0x80, 3, entry_128);
	check(PROBE("lea 2f(%%rip), %0\n\tint $0x80\n2:", : "=&r"(after) : : "r11", "memory") == 0x80, "int 0x80 gives %ld",
	      probe.vector);
	check(probe.frame.rip == after, "rip %#lx instead of %#lx", probe.frame.rip, after);
	/* Breakpoints. */
	check(PROBE("lea 2f(%%rip), %0\n\tint3\n2:", : "=&r"(after) : : "r11", "memory") == 3, "int3 gives %ld", probe.vector);
	check(probe.frame.rip == after, "rip %#lx instead of %#lx", probe.frame.rip, after);
	check(PROBE("int $3", : : : "r11", "memory") == 3, "int 3 gives %ld", probe.vector);
	/* An exception's vector raised by instruction: no error code is made up. */
	check(is_gp(PROBE("int $14", : : : "r11", "memory"), 14), "int 14 gives %ld, error %#lx", probe.vector,
	      probe.frame.error);
}
