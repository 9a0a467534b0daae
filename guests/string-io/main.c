/* INS and OUTS with repeat prefixes: data, order, direction flag, and the registers after a fault in the middle. */
#include "guest.h"

const char test_name[] = "string-io";

/* QEMU's configuration device: a selector and a stream of bytes. */
enum { SELECTOR = 0x510, STREAM = 0x511, SIGNATURE = 0, DIRECTORY = 0x19, LENGTH = 1900 };
enum { CONFIG_ADDRESS = 0xcf8, CONFIG_DATA = 0xcfc };

static void select(u16 key)
{
	asm volatile("out %0, %1" : : "a"(key), "d"((u16)SELECTOR));
}

static u8 next_byte(void)
{
	u8 byte;
	asm volatile("in %1, %0" : "=a"(byte) : "d"((u16)STREAM));
	return byte;
}

static u64 fault_address(void)
{
	return shared_info()->vcpu[0].cr2;
}

/* INS of `count` items with prefixes and direction as in `code`; gives the trap. */
#define INS(code, port, to, count)                                                                                     \
	PROBE(code "\n\tcld", : "+D"(to), "+c"(count) : "d"((u16)(port)) : "r11", "memory")
#define OUTS(code, port, from, count)                                                                                  \
	PROBE(code "\n\tcld", : "+S"(from), "+c"(count) : "d"((u16)(port)) : "r11", "memory")

static void streams(void)
{
	u8 *expected = pages[0], *to = pages[2] - 1000, *start = to;
	u64 count = LENGTH;
	select(DIRECTORY);
	for (u32 i = 0; i < LENGTH; i++)
		expected[i] = next_byte();
	select(DIRECTORY);
	check(INS("rep insb", STREAM, to, count) == NO_TRAP, "rep insb: trap %ld", probe.vector);
	check(count == 0 && to == start + LENGTH, "rep insb: count %lu, moved by %ld", count, to - start);
	check(!memcmp(start, expected, LENGTH), "rep insb: wrong data");
	/* Downwards, over the border of a page. */
	to = pages[2] + 99, start = to, count = 200;
	select(DIRECTORY);
	check(INS("std\n\trep insb", STREAM, to, count) == NO_TRAP, "downwards: trap %ld", probe.vector);
	check(count == 0 && to == start - 200, "downwards: count %lu, moved by %ld", count, start - to);
	for (u32 i = 0; i < 200; i++)
		if (!check(start[-(s64)i] == expected[i], "downwards: byte %u is %#x", i, start[-(s64)i]))
			break;
	/* Nothing at all. */
	to = NULL, count = 0;
	check(INS("rep insb", STREAM, to, count) == NO_TRAP && !to && !count, "no iteration: trap %ld", probe.vector);
	check(next_byte() == expected[200], "no iteration: a byte was read");
}

static void faults(void)
{
	u8 *hole = pages[6], *to = hole - 4;
	u64 count = 9, entry = *entry_for(hole, 1);
	u8 after[5];
	select(DIRECTORY);
	if (update_va(hole, 0, 2))
		error("update_va");
	check(INS("rep insb", STREAM, to, count) == 14, "insb into a hole: trap %ld", probe.vector);
	check(fault_address() == (u64)hole && probe.frame.error & 2, "insb into a hole: address %#lx, error %#lx", fault_address(),
	      probe.frame.error);
	check(count == 5 && to == hole, "insb into a hole: count %lu, moved by %ld", count, to - hole + 4);
	/* Stock Xen reads the port before it sees that the memory is missing, so that one byte is lost. */
	for (u32 i = 0; i < COUNT(after); i++)
		after[i] = next_byte();
	check(!memcmp(hole - 4, pages[0], 4), "insb into a hole: wrong data before it");
	check(!memcmp(after, pages[0] + 4, sizeof(after)) || !memcmp(after, pages[0] + 5, sizeof(after)),
	      "insb into a hole: wrong data after it");
	/* The second half of an item is missing. */
	u32 sent[2] = { 0x80000000, 0x80000800 }, got = 0;
	const u8 *from = hole - 6;
	memcpy(hole - 6, sent, 6);
	count = 2;
	check(OUTS("rep outsl", CONFIG_ADDRESS, from, count) == 14, "outsl from a hole: trap %ld", probe.vector);
	check(fault_address() == (u64)hole && !(probe.frame.error & 2), "outsl from a hole: address %#lx, error %#lx", fault_address(),
	      probe.frame.error);
	check(count == 1 && from == hole - 2, "outsl from a hole: count %lu, moved by %ld", count, from - hole + 6);
	asm volatile("in %1, %0" : "=a"(got) : "d"((u16)CONFIG_ADDRESS));
	check(got == sent[0], "outsl from a hole: the port has %#x", got);
	if (update_va(hole, entry, 2))
		error("update_va");
}

static void widths(void)
{
	u32 addresses[2] = { 0x80000800, 0x80000000 }, got[3] = { 0 };
	const u8 *from = (void *)addresses;
	u8 *to = (void *)got;
	u64 count = 2;
	check(OUTS("rep outsl", CONFIG_ADDRESS, from, count) == NO_TRAP, "rep outsl: trap %ld", probe.vector);
	check(count == 0 && from == (void *)(addresses + 2), "rep outsl: count %lu", count);
	count = 3;
	check(INS("rep insl", CONFIG_ADDRESS, to, count) == NO_TRAP, "rep insl: trap %ld", probe.vector);
	check(count == 0 && to == (void *)(got + 3), "rep insl: count %lu", count);
	check(got[0] == addresses[1] && got[1] == got[0] && got[2] == got[0], "rep insl: %#x %#x %#x", got[0], got[1], got[2]);
	to = (void *)got, count = 2;
	check(INS("rep insw", CONFIG_DATA, to, count) == NO_TRAP, "rep insw: trap %ld", probe.vector);
	check((got[0] & 0xffff) == 0x8086 && got[0] >> 16 == 0x8086, "rep insw: the host bridge's vendor is %#x", got[0]);
}

void test_main(void)
{
	u32 level = 1;
	if (HC2(physdev_op, 6, &level))
		error("set_iopl");
	select(SIGNATURE);
	char is[5] = { next_byte(), next_byte(), next_byte(), next_byte(), 0 };
	if (memcmp(is, "QEMU", 4))
		skip("no QEMU configuration device");
	streams();
	faults();
	widths();
}
