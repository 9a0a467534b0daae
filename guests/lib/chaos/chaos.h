/*
 * For hostile kernels: random values of which some are likely to be accepted, pages to lose, and what to do with both.
 *
 * Each operation draws its numbers from the run's seed, its vCPU and its own number there, so that an operation does the same
 * whatever was answered before it, and a run can begin at any of them.
 */
#ifndef CHAOS_H
#define CHAOS_H
#include "events.h"

/*
 * Scratch pages, and how many of them the vCPUs themselves write to. Tables that a vCPU lives on are mapped only at those behind:
 * a write there would change them.
 */
enum { SCRATCH = 24, WRITTEN = 18, MAX_VCPUS = 8 };

/* As SHARED, behind all others: it may be longer than what is there of it. */
#define SHARED_LAST __attribute__((section(".shared.last,\"aw\",@nobits#")))

/* Pages that may become anything, the L1 entries of this vCPU that map them, and the machine addresses of those. */
u8 *scratch_page(u32 index);
extern volatile u64 *entries[SCRATCH];

/* Operations that were not refused. */
extern u64 nr_accepted;
void note(s64 result);

void chaos_init(void);
/* The number behind `name` on the command line. */
u64 number_after(const char *name, u64 otherwise);
/* What follows is operation `n` of this vCPU. */
void begin(u64 n);

u64 draw(void);
u64 up_to(u64 n);
u8 *scratch(void);
/* Of the L1 entry for scratch page `page` of this vCPU or, not as often, of another. */
u64 entry_address(u32 page);
u32 some_page(void);
u64 some_mfn(void);
/* An entry for scratch page `page`. */
u64 some_pte(u32 page);
/* `entry`, or what is like it and does not let this kernel write where it must not. */
u64 spare(u32 page, u64 entry);
u64 some_value(void);

/* Sets of machine frames. */
enum set {
	/* This kernel's own image, tables and stack: to write to them is to lose. The tables may be mapped, though. */
	VITAL,
	BOOT_TABLES,
	/* What is this domain's, and what ever was: a frame that is given back stays until its last use ends. */
	OWN,
	ONCE_OWN,
	NR_SETS
};
bool is_in(enum set set, u64 mfn);
void put_in(enum set set, u64 mfn, bool is);
static inline bool is_vital(u64 mfn)
{
	return is_in(VITAL, mfn);
}
static inline bool is_boot_table(u64 mfn)
{
	return is_in(BOOT_TABLES, mfn);
}
/* Bytes of the sets that frames below `end` need. */
u64 sets_for(u64 end);
extern u8 *const sets_start;

/* One operation each: fills a page with such values; changes an entry or a table's use; writes an entry directly. */
void fill(void);
void mmu_once(void);
void write_entry(void);
/* Makes scratch pages ordinary memory again. */
void restore(void);
#endif
