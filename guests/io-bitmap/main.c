/* The I/O bitmap of PHYSDEVOP_set_iobitmap: which ports user code may use, in one piece and across bytes of the map. */
#include "guest.h"

const char test_name[] = "io-bitmap";

void user_in(void), user_in_end(void), user_in_wide(void), user_in_wide_end(void), user_insb(void), user_insb_end(void);
asm(".text\n"
    "user_in:\n\tin %dx, %al\nuser_in_end:\n\tud2\n"
    "user_in_wide:\n\tin %dx, %eax\nuser_in_wide_end:\n\tud2\n"
    "user_insb:\n\tmov $3, %ecx\n\trep insb\nuser_insb_end:\n\tud2\n");

static struct frame seen;
static u8 *map = pages[0]; /* of 65536 bits, and a byte behind them */

static void record(struct frame *frame)
{
	memcpy(&seen, frame, sizeof(seen));
	resume();
}

/* Executes an access at `port` as user code. Does it pass? */
static bool passes(void (*code)(void), void (*end)(void), u16 port)
{
	struct frame to = {
		.rip = (u64)code, .cs = FLAT_KERNEL_CS, .rflags = 0x202, .rsp = (u64)pages[5], .ss = FLAT_KERNEL_SS,
		.rdx = port, .rdi = (u64)pages[6],
	};
	seen.number = NO_TRAP;
	enter(&to);
	shared_info()->vcpu[0].upcall_mask = 1;
	if (seen.number == 6)
		check(seen.rip == (u64)end, "port %#x: ends at %#lx", port, seen.rip);
	else
		check(seen.number == 13 && seen.error == 0 && seen.rip != (u64)end, "port %#x: trap %lu, error %#lx, rip %#lx",
		      port, seen.number, seen.error, seen.rip);
	return seen.number == 6;
}
#define PASSES(what, port) passes(user_##what, user_##what##_end, port)

static s64 set(void *bitmap, u32 nr_ports)
{
	struct {
		u64 bitmap;
		u32 nr_ports, pad;
	} argument = { (u64)bitmap, nr_ports, 0 };
	return HC2(physdev_op, 7, &argument);
}

static void allow(u16 port, bool allowed)
{
	u8 bit = 1 << port % 8;
	map[port / 8] = allowed ? map[port / 8] & ~bit : map[port / 8] | bit;
}

void test_main(void)
{
	if (mmuext(NEW_USER_BASEPTR, mfn_of((void *)start_info->pt_base), 0))
		error("NEW_USER_BASEPTR");
	handlers[13] = handlers[6] = record;
	memset(map, 0xff, 3 * PAGE);
	check(!PASSES(in, 0x80), "a port without a bitmap");
	check_result(set(map, 65537), -EINVAL, "a bitmap of 65537 ports");
	check_result(set(map, 65536), 0, "a bitmap");
	check(!PASSES(in, 0x80), "a port whose bit is set");
	/* The map is looked at when it is needed. */
	allow(0x86, true);
	allow(0x87, true);
	allow(0x88, true);
	check(PASSES(in, 0x87), "a port whose bit is clear");
	check(!PASSES(in, 0x85), "the port before it");
	check(PASSES(insb, 0x87), "a string");
	check(seen.rcx == 0 && seen.rdi == (u64)pages[6] + 3, "a string leaves count %lu", seen.rcx);
	check(!PASSES(insb, 0x89), "a string from a port whose bit is set");
	check(!PASSES(in_wide, 0x86), "four ports of which the last is forbidden");
	allow(0x89, true);
	check(PASSES(in_wide, 0x86), "four ports across bytes of the map");
	allow(0x87, false);
	check(!PASSES(in_wide, 0x86), "four ports of which the second is forbidden");
	/* Its end. */
	check_result(set(map, 0x88), 0, "a short bitmap");
	check(PASSES(in, 0x86), "a port below the limit");
	check(!PASSES(in, 0x88), "a port at the limit");
	allow(0x87, true);
	check(!PASSES(in_wide, 0x86), "ports across the limit");
	/* The last port. */
	check_result(set(map, 65536), 0, "a whole bitmap");
	pages[1][PAGE - 1] &= 0x7f;
	check(PASSES(in, 0xffff), "the last port");
	check(!PASSES(in_wide, 0xfffe), "ports beyond the last one");
	/* A map that is nowhere permits nothing. */
	check_result(set((void *)0x123456789000, 65536), 0, "a bitmap in a hole");
	check(!PASSES(in, 0x86), "a port of a bitmap in a hole");
	check_result(set(NULL, 0), 0, "no bitmap");
	check(!PASSES(in, 0x86), "a port without a bitmap");
	/* The kernel may use it as well. */
	handlers[13] = NULL;
	set(pages, 0x88);
	u64 value;
	check(PROBE("in %%dx, %%al", : "=a"(value) : "d"(0x86) : "r11", "memory") == NO_TRAP, "the kernel: trap %ld", probe.vector);
	check(PROBE("in %%dx, %%al", : "=a"(value) : "d"(0x80) : "r11", "memory") == 13, "the kernel, forbidden: trap %ld",
	      probe.vector);
}
