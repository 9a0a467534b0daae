/* Makes twin images (twin-abi/src/image.rs). */
#ifndef IMAGE_H
#define IMAGE_H
#include "guest.h"

enum { HC_twin_op = 55, TWINOP_LOAD = 0, TWINOP_UNLOAD, TWINOP_CALL, TWINOP_STATUS, TWINOP_RESUME, TWINOP_LEND, TWINOP_NOTES,
	TWINOP_ATTACH, TWINOP_DETACH, TWINOP_NEXT, TWINOP_RECALL, TWINOP_STATS };
enum { NEXT_ATOMIC = 1 };
/* So long a domain may take to do what its twin asks for. */
#define UPCALL_LIMIT_NS 5000000000ULL
enum { STATS_ALL = 1 };
enum { MODE_MIRROR = 1, MODE_STLB };
enum { MAX_TWINS_EACH = 8 };
enum { RETURNED, MEMORY, EXCEPTION, BUG, BUDGET, TIME_OUT, INDIRECT_CALL, IMPORT, STACK_POINTER, LOCK, STRUCTURE, STACK, UPCALL };
enum { NR_FUNCTIONS = 32, NR_IMPORTS = 9, NR_OFFSETS = 64 };
enum { SKB, BARE_SKB, FRAGMENT };
enum { FREE_SKB, FREE_FRAGMENT, QUEUE, DISABLED, UNLOCK };

struct twin_load {
	u64 image;
	u32 image_bytes, mode;
	u64 root, percpu, percpu_stride, budget;
	u32 twin, rule, offset, flags;
	u64 kernel;
	u32 areas, pad;
};
struct twin_kernel {
	u64 page_offset, vmalloc_start, vmalloc_end, vmemmap, jiffies, p2m, p2m_frames, dma_limit, bounce, bounce_frames, offsets;
	u32 nr_offsets, flags;
	u64 sleepers;
	u32 nr_sleepers, sleeper_bytes;
};
struct twin_lend {
	u32 twin, count;
	u64 list;
};
struct twin_lent {
	u32 kind, bytes;
	u64 object, of;
	u32 references, flags;
};
struct twin_note {
	u32 kind, flags;
	u64 object;
};
struct twin_notes {
	u32 twin, count;
	u64 list;
};
struct twin_name {
	u32 twin, flags;
};
struct twin_call {
	u32 twin, reason;
	u64 function, args[6], result, detail, original;
	u32 offset, steps;
	u64 more[4];
	u32 instance, flags;
};
struct twin_status {
	u32 twin, mode;
	u64 invocations, aborts;
	u32 functions, disabled;
};
struct twin_stats {
	u32 twin, flags, domain, functions, disabled, has_card, reason, offset;
	u64 detail, original, calls, handlers, polls, packets, upcalls, lock_waits, turns, ticks, aborts;
};
_Static_assert(sizeof(struct twin_stats) == 120, "layout");

struct twin_attach {
	u32 twin, vif;
	u64 device, start_xmit, queues, napis, irqs;
	u32 nr_queues, queue_stride, nr_napis, nr_irqs, flags, port, max_frame, pad;
};
struct twin_napi {
	u64 napi, poll;
	u32 weight, flags;
};
struct twin_irq {
	u64 handler, argument;
	u32 number, port;
};
_Static_assert(sizeof(struct twin_attach) == 80, "layout");

/* Where the image says that the driver's text is; function N is at TEXT + 16 * N. */
#define TEXT 0xffffffffc0200000ul
/* Where it says that the functions are that the driver imports, 16 bytes from one to the next; their names. */
#define IMPORTED 0xffffffff81000000ul
extern const char *const import_names[NR_IMPORTS];

/* Functions, as records of two offsets from the code's start each: from, to. Labels: where, and which state, with CHARGE. */
struct twin_code {
	const u8 *start, *end;
	const u32 (*functions)[2], (*functions_end)[2], (*labels)[2], (*labels_end)[2];
	u32 mode;
};
/* An image of these, which import what they are told; the domain's address of one of them. */
u32 make_image_from(u8 *at, const struct twin_code *from, const char *const imports[NR_IMPORTS]);
u64 address_in(const struct twin_code *from, const void *function);
/* An image of the functions in code.S, in `at`; its length. The other one imports what it is told. */
u32 make_image(u8 *at);
u32 make_image_with(u8 *at, const char *const imports[NR_IMPORTS]);
/* One of a single function, the bytes from `start` to `end`; counted if its loops and calls are charged. */
u32 make_image_of(u8 *at, const u8 *start, const u8 *end, bool is_counted);
/* The domain's address of a function of code.S. */
u64 address_of(const void *function);
#endif
