/* Random values for hostile kernels. */
#include "vcpus.h"

enum { FIRST = 16, MFNS = 1 << 24 };

volatile u64 *entries[SCRATCH];
u64 nr_accepted;
static u64 run, state;
/* By machine frame: the M2P may be spoilt later. A kernel made by another has only the beginning, up to `nr_known`. */
static u64 sets[MFNS / 64][NR_SETS] SHARED_LAST;
static u64 nr_known;
u8 *const sets_start = (u8 *)sets;

u64 sets_for(u64 end)
{
	return (end + 63) / 64 * sizeof(sets[0]);
}

bool is_in(enum set set, u64 mfn)
{
	return mfn < nr_known && (sets[mfn / 64][set] >> mfn % 64 & 1);
}

void put_in(enum set set, u64 mfn, bool is)
{
	if (mfn >= nr_known)
		return;
	if (is)
		__atomic_fetch_or(&sets[mfn / 64][set], 1ul << mfn % 64, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&sets[mfn / 64][set], ~(1ul << mfn % 64), __ATOMIC_RELAXED);
}

u64 number_after(const char *name, u64 otherwise)
{
	u32 len = 0;
	while (name[len])
		len++;
	for (const char *at = start_info->cmd_line; *at; at++) {
		if (memcmp(at, name, len))
			continue;
		u64 value = 0;
		for (at += len; *at >= '0' && *at <= '9'; at++)
			value = value * 10 + (u64)(*at - '0');
		return value;
	}
	return otherwise;
}

u8 *scratch_page(u32 index)
{
	return pages[FIRST + index];
}

void chaos_init(void)
{
	u64 tables = pfn_of((void *)start_info->pt_base);
	run = number_after("seed=", 20060101);
	nr_known = number_after("frames=", MFNS);
	for (u64 pfn = 0; pfn < tables; pfn++)
		if (pfn < pfn_of(pages[FIRST]) || pfn >= pfn_of(pages[FIRST + SCRATCH]))
			put_in(VITAL, mfn_of_pfn(pfn), true);
	for (u64 n = 0; n < start_info->nr_pt_frames; n++)
		put_in(BOOT_TABLES, mfn_of_pfn(tables + n), true);
	vcpus_init();
}

void begin(u64 n)
{
	state = (run ^ n * 0xd1342543de82ef95 ^ me * 0xa0761d6478bd642f) * 0x9e3779b97f4a7c15;
	state ^= state >> 29;
	state |= 1;
}

void note(s64 result)
{
	if (result >= 0)
		nr_accepted++;
}

u64 draw(void)
{
	return random_u64(&state);
}

u64 up_to(u64 n)
{
	return (draw() >> 11) % n;
}

u8 *scratch(void)
{
	return scratch_page(up_to(SCRATCH));
}

u32 some_page(void)
{
	return up_to(SCRATCH);
}

u64 entry_address(u32 page)
{
	u32 vcpu = up_to(4) ? me : up_to(board.nr_vcpus);
	return board.of[vcpu].entry_addresses[page];
}

u64 some_mfn(void)
{
	switch (up_to(10)) {
	case 0: return start_info->shared_info / PAGE;
	case 1: return mfn_of((void *)(start_info->pt_base + up_to(start_info->nr_pt_frames) * PAGE));
	case 2: return up_to(0x400); /* the low memory, the hypervisor */
	case 3: return up_to(nr_known);
	case 4: return draw() >> up_to(40);
	case 5: return 0xfee00 + up_to(2);
	default: return mfn_of(scratch());
	}
}

u64 spare(u32 page, u64 entry)
{
	u64 mfn = (entry & ADDR_MASK) / PAGE;
	if (is_vital(mfn))
		return 0;
	/* For writing a table is always refused. */
	return page < WRITTEN && is_boot_table(mfn) ? entry | RW : entry;
}

u64 some_pte(u32 page)
{
	static const u64 flags[] = { 0, P, P | US, P | RW | US, P | RW | US | A | D, P | US | PSE, P | RW | US | G };
	u64 entry = (some_mfn() & (ADDR_MASK / PAGE)) * PAGE | flags[up_to(COUNT(flags))];
	if (up_to(8) == 0)
		entry ^= 1ul << up_to(64);
	return spare(page, entry);
}

u64 some_value(void)
{
	switch (up_to(14)) {
	case 0: return up_to(64);
	case 1: return up_to(4096);
	case 2: return DOMID_SELF + up_to(6);
	case 3: return (u64)scratch() + up_to(PAGE);
	case 4: return (u64)scratch();
	case 5: return some_mfn();
	case 6: return some_pte(some_page());
	case 7: return entry_address(some_page()) + up_to(8);
	case 8: return draw();
	case 9: return 0xffff800000000000 + (draw() >> 17);
	case 10: return -up_to(64);
	case 11: return 1ul << up_to(64);
	case 12: return 0x800000000000 - up_to(16);
	default: return 0;
	}
}

/* The page may not be mapped, or not writable, just now. */
void fill(void)
{
	u64 *at = (u64 *)scratch_page(up_to(WRITTEN)) + up_to(500);
	for (u32 i = 0; i < 8; i++) {
		u64 value = some_value();
		PROBE("mov %0, (%1)", : : "r"(value), "r"(at + i) : "r11", "memory");
	}
}

void mmu_once(void)
{
	s64 result;
	u32 page = some_page();
	switch (up_to(8)) {
	case 0: case 1: result = mmu_update(entry_address(page) | (up_to(4) ? 0 : 2), some_pte(page)); break;
	case 2: case 3: result = update_va(scratch_page(page), some_pte(page), up_to(3)); break;
	case 4: result = mmuext(PIN_L1 + up_to(4), some_mfn(), 0); break;
	case 5: result = mmuext(UNPIN, mfn_of(scratch()), 0); break;
	case 6: result = mmuext(up_to(2) ? CLEAR_PAGE : COPY_PAGE, mfn_of(scratch()), mfn_of(scratch())); break;
	default: result = mmu_update(maddr_of(scratch()) + up_to(512) * 8, some_pte(page)); break;
	}
	note(result);
}

void write_entry(void)
{
	u32 page = some_page();
	u64 value = some_pte(page);
	PROBE("xchg %0, (%1)", : "+r"(value) : "r"(entries[page]) : "r11", "memory");
}

/* Page tables among the pages go first from the top. */
void restore(void)
{
	for (u32 pass = 0; pass < 5; pass++) {
		for (u32 i = 0; i < SCRATCH; i++) {
			mmuext(UNPIN, mfn_of(scratch_page(i)), 0);
			update_va(scratch_page(i), 0, 2);
		}
		for (u32 i = 0; i < SCRATCH; i++)
			update_va(scratch_page(i), pte(mfn_of(scratch_page(i)), P | RW | US | A | D), 2);
	}
}
