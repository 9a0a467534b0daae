/*
 * Writes to L1 tables by plain instructions, with vm_assist(writable_page_tables): each form that Linux may use.
 * Xen 4.17 allows them without the assist as well, so that is not tested.
 */
#include "guest.h"

const char test_name[] = "writable-page-tables";

static volatile u64 *entry;
static u64 old, free_value;

static void value_is(const char *what, u64 vector, u64 expected)
{
	check(vector == NO_TRAP, "%s gives trap %ld, error %#lx", what, vector, probe.frame.error);
	check(((*entry ^ expected) & ~(u64)(G | A | D | 1ul << 52)) == 0, "%s left %#lx instead of %#lx", what, *entry, expected);
}

#define WRITE(code, ...) PROBE(code, : : "d"(entry), ##__VA_ARGS__ : "rcx", "r8", "r11", "memory", "cc")
#define UPDATE(code, expected, ...)                                                                                    \
	({                                                                                                             \
		*entry = free_value;                                                                                   \
		value_is(code, WRITE(code, ##__VA_ARGS__), expected);                                                  \
	})

void test_main(void)
{
	entry = entry_for(pages[0], 1);
	old = *entry;
	if (!check_result(HC2(vm_assist, 0, 2), 0, "vm_assist"))
		return;
	u64 mapping = pte(mfn_of(pages[0]), P | RW | US);
	/* Entries that are not present: any value. */
	free_value = 0x1230;
	value_is("mov imm32", WRITE("movq $0x1230, (%%rdx)"), 0x1230);
	value_is("mov r64", WRITE("mov %1, (%%rdx)", "r"(mapping)), mapping);
	value_is("mov r32", WRITE("movl $0, (%%rdx)"), mapping & ~0xfffffffful);
	*entry = free_value;
	value_is("mov r16", WRITE("movw $0x4560, (%%rdx)"), 0x4560);
	value_is("mov r8", WRITE("movb $0x78, (%%rdx)"), 0x4578);
	value_is("mov m8, high byte", WRITE("movb $0x12, 1(%%rdx)"), 0x1278);
	UPDATE("orq $0x400, (%%rdx)", free_value | 0x400);
	UPDATE("lock orq $0x400, (%%rdx)", free_value | 0x400);
	UPDATE("andq $~0x30, (%%rdx)", free_value & ~0x30ul);
	UPDATE("lock andb $0xdf, (%%rdx)", free_value & ~0x20ul);
	UPDATE("ds andb $0xdf, (%%rdx)", free_value & ~0x20ul);
	UPDATE("xorq $0x10, (%%rdx)", free_value ^ 0x10);
	UPDATE("addq $0x1000, (%%rdx)", free_value + 0x1000);
	UPDATE("subq $0x10, (%%rdx)", free_value - 0x10);
	UPDATE("lock btsq $11, (%%rdx)", free_value | 0x800);
	UPDATE("lock btrq $5, (%%rdx)", free_value & ~0x20ul);
	UPDATE("btcq $5, (%%rdx)", free_value ^ 0x20);
	UPDATE("incw 2(%%rdx)", free_value + 0x10000);
	UPDATE("notw 4(%%rdx)", free_value | 0xffff00000000);
	/* With results in registers. */
	u64 got;
	*entry = free_value;
	check(PROBE("xchg %0, (%%rdx)", : "=&r"(got) : "d"(entry), "0"(0ul) : "r11", "memory") == NO_TRAP && got == free_value,
	      "xchg gives %#lx", got);
	check(*entry == 0, "xchg left %#lx", *entry);
	*entry = free_value;
	u8 equal;
	check(PROBE("lock cmpxchg %2, (%%rdx)\n\tsete %1", : "=&a"(got), "=&q"(equal) : "r"(0x440ul), "d"(entry), "0"(free_value)
		    : "r11", "memory", "cc") == NO_TRAP && equal && *entry == 0x440, "cmpxchg left %#lx", *entry);
	check(PROBE("lock cmpxchg %2, (%%rdx)\n\tsete %1", : "=&a"(got), "=&q"(equal) : "r"(0x880ul), "d"(entry), "0"(free_value)
		    : "r11", "memory", "cc") == NO_TRAP && !equal && got == 0x440 && *entry == 0x440,
	      "a cmpxchg that fails: rax %#lx, entry %#lx", got, *entry);
	got = 0x1000;
	check(PROBE("lock xadd %0, (%%rdx)", : "+r"(got) : "d"(entry) : "r11", "memory", "cc") == NO_TRAP && got == 0x440 &&
		      *entry == 0x1440, "xadd: register %#lx, entry %#lx", got, *entry);
	/* Flags are those of the real instruction. */
	*entry = free_value;
	u8 zero, carry;
	PROBE("andq $0, (%%rdx)\n\tsetz %0\n\tsetc %1", : "=&q"(zero), "=&q"(carry) : "d"(entry) : "r11", "memory", "cc");
	check(zero && !carry, "and: ZF %d, CF %d", zero, carry);
	*entry = free_value;
	PROBE("lock btrq $5, (%%rdx)\n\tsetc %0", : "=&q"(carry) : "d"(entry) : "r11", "memory", "cc");
	check(carry, "btr: CF %d", carry);
	/* The rules hold: a writable mapping of a page table is a fault of the kernel's. */
	*entry = 0;
	u64 bad = pte(mfn_of((void *)((u64)entry & -PAGE)), P | RW | US);
	check(WRITE("mov %1, (%%rdx)", "r"(bad)) == 14, "a page table was mapped writable: %ld", probe.vector);
	check(*entry == 0, "entry is %#lx", *entry);
	/* Across two entries: not a naturally aligned access. */
	check(WRITE("movq $0, 4(%%rdx)") == 14, "a misaligned write gives %ld", probe.vector);
	/* Only L1 tables. */
	check(PROBE("movq $0, (%0)", : : "r"(start_info->pt_base + 8) : "r11", "memory") == 14, "an L4 table can be written: %ld",
	      probe.vector);
	/* The page is mapped as the entry says. */
	value_is("mov r64", WRITE("mov %1, (%%rdx)", "r"(old)), old);
	mmuext(INVLPG_LOCAL, (u64)pages[0], 0);
	*(volatile u64 *)pages[0] = 5;
}
