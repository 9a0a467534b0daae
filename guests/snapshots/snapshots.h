/* What domain 0 and the kernel that it rolls back say to each other. */
#ifndef SNAPSHOTS_H
#define SNAPSHOTS_H
#include "domains.h"
#include "grants.h"

/* In a page of the child's, which goes back with the rest of its memory. */
struct report {
	volatile u32 command, state, failures, is_fifo, port, pad;
	volatile u64 seen, ticks;
};
enum { STARTING, NEEDS_PEER, AT_THE_POINT, LIVING, VERIFIED };
/* Commands: it looks whether it is what it was, or lives on in one of these ways. */
enum { NOTHING, VERIFY, SPOIL_MEMORY, SPOIL_TABLES, SPOIL_EVENTS, SPOIL_REGISTERS, SPOIL_FRAMES, SLEEP, FREE_TABLE, GRANT_MORE, GIVE_UP, MAP_OTHERS,
	UNMAP_OTHERS, COMMANDS };

/* Pages of the child's, in `pages`. */
enum { REPORT, PATTERN, ZEROES, PINNED_L1, PINNED_L4, CONTROL, ARRAY, GRANTED, NAMED, GDT, INFO, NEW_TABLE, NEW_ROOT, GRANT_TABLE, MORE_GRANTED,
	GIVEN_UP, MAPPED, CODE_PAGE };
enum { GREF = 8, NEW_GREF = 9, OTHERS_GREF = 10 };
enum { OLD_NAME = 777, NEW_NAME = 778 };

void child_main(void) __attribute__((noreturn));
#endif
