/* What the parts of this kernel share. */
#ifndef TWINS_H
#define TWINS_H
#include "hostile.h"
#include "image.h"

/* Page tables that twins see; this kernel lives on others. In them scratch pages are where they are here, and all else is read-only. */
enum { ROOTS = 4 };
void roots_init(void);
/* The machine frame of the first; of any one, or of what is none. */
u64 good_root(void);
u64 some_twin_root(void);
/* Changes an entry of one of their tables, or whether it is pinned. */
void root_once(void);
/* None of them is pinned any more. */
void roots_end(void);

/* An address in the window of a twin: of a scratch page, or where there is little or nothing. */
u64 some_address(void);

void images_init(void);
/* Loads an image: a good one, or one in which something was changed. */
void load_once(void);
/* A good one of a card's driver; its number, or ~0. */
u32 load_driver(u64 root);
u32 some_twin(void);
/* Calls a function of a twin, and goes on with what waits. */
void call_once(void);
void resume_once(void);
void unload_once(void);
/* Buffers that are lent and come back, and notes. */
void lend_once(void);
void notes_once(void);
/* What waits and was not fetched. */
void next_once(void);
/* Cards, of a switch's way out. */
void cards_init(void);
void cards_end(void);
void say_cards(void);
void card_once(void);
s64 attach_good(u32 twin);
/* Any command, and an argument that may be anywhere. */
void raw_once(void);
/* As many as there is room for, each of which has a card for a moment; and none any more. */
void load_all(void);
void unload_all(void);

/* Calls that have succeeded, by command; how often invocations ended for which reason. */
enum { NR_COMMANDS = 12, NR_REASONS = 16 };
struct tally {
	u64 tried[NR_COMMANDS], done[NR_COMMANDS], ended[NR_REASONS], longest;
};
extern struct tally tally;
/* The hypercall, which is counted and timed. */
s64 twin_op(u32 cmd, void *argument);

/* Another domain, whose memory nobody may change. */
void bystander_init(void);
void bystander_check(void);
void bystander_end(void);
#endif
