/* A driver domain, and what it shares with who makes it. */
#ifndef LIFE_H
#define LIFE_H
#include "front.h"
#include "stations.h"

/* What is outside: packets that the driver domain has sent there, and those that wait there to be taken in. */
enum { WIRE_SLOTS = 31, ROOM = 1016 };
struct wire_slot {
	u32 len, pad;
	u8 bytes[ROOM];
};
struct wire {
	/* Sent by this driver domain, and seen outside; made outside, and taken in by any. Each counts its own only. */
	volatile u32 nr_out, nr_out_seen, nr_in, nr_in_taken;
	u8 pad[2048 - 16];
	struct wire_slot out[WIRE_SLOTS], in[WIRE_SLOTS];
};

_Static_assert(sizeof(struct wire) % PAGE == 0, "it has its pages for itself");

enum { MEDIUM_PAGES = SECTORS * SECTOR / PAGE, WIRE_PAGES = sizeof(struct wire) / PAGE };
/* Where it maps the disk's ring and the pages that bytes go through, the medium, the wire, and the pages of its own interface. */
enum { MEDIUM_AT = NR_FRONT, WIRE_AT = MEDIUM_AT + MEDIUM_PAGES, INTERFACE_AT = WIRE_AT + WIRE_PAGES, NR_MAPPED = INTERFACE_AT + NR_PAGES };
#define MAPPED_VA (CODE_VA + 0x10000)

/* At the beginning of the page behind its code; its stack is at that page's end. */
struct life {
	/* The service, its port for this life, and the first grants of its set of pages, of the medium and of the wire. */
	u16 service, pad;
	u32 port, ring_ref, medium_ref, wire_ref;
	/* Its interface: the first grant and the frames of the pages, and the ports. */
	u32 interface_ref, tx_port, rx_port, frames[NR_PAGES];
	/* It has mapped all and is bound; it may look at the rings; what it has done of all kinds; what it could not do. */
	volatile u32 is_ready, may_go, nr_done, error;
};

/* Its code, which fits into a page and runs anywhere. */
void driver_domain(void);
#endif
