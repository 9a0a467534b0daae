/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The two interfaces of tandem.ko. First hypercall 55, as twin-abi/src/op.rs describes it; then
 * what twind asks for, as twind/src/device.rs has it. All fields are little-endian, and there is no
 * padding.
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <linux/build_bug.h>
#include <linux/types.h>

#define __HYPERVISOR_twin_op 55

enum twin_command {
	TWINOP_LOAD, TWINOP_UNLOAD, TWINOP_CALL, TWINOP_STATUS, TWINOP_RESUME, TWINOP_LEND,
	TWINOP_NOTES, TWINOP_ATTACH, TWINOP_DETACH, TWINOP_NEXT, TWINOP_RECALL, TWINOP_STATS,
};

#define TWIN_LOAD_COUNTED	1
#define TWIN_NO_RULE		U32_MAX
#define TWIN_MAX_IMAGE		(8U << 20)
#define TWIN_MAX_QUEUES		16
#define TWIN_MAX_OFFSETS	256

struct twin_load {
	u64 image;
	u32 image_bytes, mode;
	u64 root, percpu, percpu_stride, budget;
	u32 twin, rule, offset, flags;
	u64 kernel;
	u32 areas, pad;
};
static_assert(sizeof(struct twin_load) == 80);

struct twin_kernel {
	u64 page_offset, vmalloc_start, vmalloc_end, vmemmap_start;
	u64 jiffies, p2m, p2m_frames, dma_limit;
	u64 bounce, bounce_frames, offsets;
	u32 nr_offsets, flags;
	u64 sleepers;
	u32 nr_sleepers, sleeper_bytes;
};
static_assert(sizeof(struct twin_kernel) == 112);

enum {
	TWIN_CHECKSUM_V4 = 1,
	TWIN_CHECKSUM_V6 = 2,
	TWIN_SG = 4,
	TWIN_GSO_TCPV4 = 8,
	TWIN_GSO_TCPV6 = 16,
};

struct twin_attach {
	u32 twin, vif;
	u64 device, start_xmit, queues, napis, irqs;
	u32 nr_queues, queue_stride, nr_napis, nr_irqs, flags, port, max_frame, pad;
};
static_assert(sizeof(struct twin_attach) == 80);

struct twin_napi {
	u64 napi, poll;
	u32 weight, flags;
};
static_assert(sizeof(struct twin_napi) == 24);

struct twin_irq {
	u64 handler, argument;
	u32 number, port;
};
static_assert(sizeof(struct twin_irq) == 24);

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
static_assert(sizeof(struct twin_call) == 136);

enum { TWIN_RETURNED = 0, TWIN_UPCALL = 12 };

/* In flags, for TWINOP_NEXT: only what an interrupt handler may call. */
enum { TWIN_NEXT_ATOMIC = 1 };

struct twin_stats {
	u32 twin, flags, domain, functions, disabled, has_card, reason, offset;
	u64 detail, original, calls, handlers, polls, packets, upcalls, lock_waits, turns, ticks;
	u64 aborts;
};
static_assert(sizeof(struct twin_stats) == 120);

struct twin_lend {
	u32 twin, count;
	u64 list;
};

enum twin_lent_kind { TWIN_SKB, TWIN_BARE_SKB, TWIN_FRAGMENT };

struct twin_lent {
	u32 kind, bytes;
	u64 object, of;
	u32 references, flags;
};
static_assert(sizeof(struct twin_lent) == 32);

struct twin_notes {
	u32 twin, count;
	u64 list;
};

enum twin_note_kind { TWIN_FREE_SKB, TWIN_FREE_FRAGMENT, TWIN_QUEUE, TWIN_DISABLED, TWIN_UNLOCK };

struct twin_note {
	u32 kind, flags;
	u64 object;
};
static_assert(sizeof(struct twin_note) == 16);

/*
 * /dev/tandem: an open file is a twin. A request is one write, which begins with its command and
 * returns when it is done; nothing in it is an address of the writer's. A read gives a struct
 * tandem_status, and waits until there is something that this file has not been told yet; so does
 * poll. TANDEM_LOOK does nothing but make that something. Closing the file undoes everything.
 *
 * Errors of a write: EINVAL for what makes no sense, and for an image that breaks a rule, which the
 * status names; ENODEV if there is no such interface, or it is gone; EOPNOTSUPP if it is no PCI
 * device's, or a program is to see its packets (XDP); EEXIST if a twin is loaded; ENOENT if none
 * is; EDOM if there are too few per-CPU areas, of which the status says how many are needed;
 * ENETDOWN for an interface that is down, ENOLINK for one whose card has no link; EBUSY if it is
 * attached; EAGAIN if its driver has other interrupts by now, ENXIO if they are another
 * interface's; EPERM to damage what the module does not allow; ETIMEDOUT if the twin did not
 * notice; others as the hypervisor gives them. Opening gives ENOSYS on another hypervisor.
 */
enum tandem_command {
	TANDEM_LOAD, TANDEM_UNLOAD, TANDEM_ATTACH, TANDEM_DETACH, TANDEM_CALL, TANDEM_LOOK,
	TANDEM_DAMAGE,
};

/* Followed by nr_offsets words and the image. */
struct tandem_load {
	u32 command, flags;
	char interface[16];
	u64 root;		/* address of init_top_pgt */
	u64 budget;
	u32 nr_offsets, image_bytes;
	/* Buffers, beside what lies in the card's rings; 0: none of that kind. */
	u32 skbs, bare_skbs, fragments;
	u32 mode;		/* of the image, as the hypervisor names it */
	u64 sleepers;		/* pv_lock_hash, or 0 */
	u32 nr_sleepers, sleeper_bytes;
};
static_assert(sizeof(struct tandem_load) == 80);

struct tandem_irq {
	u64 handler, argument;
	u32 number, pad;
};

struct tandem_attach {
	u32 command, vif, nr_irqs;
	/* Of the interface whose interrupts these are: others may have got its name. */
	u32 ifindex;
	struct tandem_irq irqs[TWIN_MAX_QUEUES];
};
static_assert(sizeof(struct tandem_attach) == 16 + 24 * TWIN_MAX_QUEUES);

/* Runs a function of the twin here, with an interrupt off meanwhile unless it is 0. */
struct tandem_call {
	u32 command, irq;
	u64 function, args[6];
};
static_assert(sizeof(struct tandem_call) == 64);

#define TANDEM_FUNCTIONS 32

enum tandem_state { TANDEM_EMPTY, TANDEM_LOADED, TANDEM_ATTACHED };

struct tandem_status {
	u32 state;
	/* The error that attaching the card would give for what the interface is just now, or 0. */
	u32 obstacle;
	u32 areas;
	u32 lent;		/* buffers */
	u32 rule, offset;	/* of the image that was refused last */
	u32 reason, steps;	/* how the last call ended */
	u64 result, detail, original;
	u32 code_offset;
	u32 news;		/* counts what was told, but for what a request has done */
	struct twin_stats stats;
	/*
	 * Functions of this kernel that the twin had called, and how often; the last one counts all
	 * others.
	 */
	struct {
		u64 function, count;
	} called[TANDEM_FUNCTIONS];
};
static_assert(sizeof(struct tandem_status) == 184 + 16 * TANDEM_FUNCTIONS);

#endif
