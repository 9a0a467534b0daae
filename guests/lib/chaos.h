/*
 * For hostile kernels: random values of which some are likely to be accepted, pages to lose, and what to do with both.
 *
 * Each operation draws its numbers from the run's seed and its own number, so that an operation does the same whatever was
 * answered before it, and a run can begin at any of them.
 */
#ifndef CHAOS_H
#define CHAOS_H
#include "events.h"

enum { SCRATCH = 24 };

/* Pages that may become anything, the L1 entries that map them, and the machine addresses of those. */
u8 *scratch_page(u32 index);
extern volatile u64 *entries[SCRATCH];
extern u64 entry_addresses[SCRATCH];

/* Operations that were not refused. */
extern u64 nr_accepted;
void note(s64 result);

void chaos_init(void);
/* The number behind `name` on the command line. */
u64 number_after(const char *name, u64 otherwise);
/* What follows is operation `n`. */
void begin(u64 n);

u64 draw(void);
u64 up_to(u64 n);
u8 *scratch(void);
u64 entry_address(void);
u64 some_mfn(void);
u64 some_pte(void);
u64 some_value(void);
/* Frames of this kernel's own image, tables and stack: to write to them is to lose. The tables may be mapped, though. */
bool is_vital(u64 mfn);
bool is_boot_table(u64 mfn);

/* One operation each: fills a page with such values; changes an entry or a table's use; writes an entry directly. */
void fill(void);
void mmu_once(void);
void write_entry(void);
/* Makes scratch pages ordinary memory again. */
void restore(void);
#endif
