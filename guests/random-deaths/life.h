/* A driver domain, and what it shares with who makes it. */
#ifndef LIFE_H
#define LIFE_H
#include "stations.h"

enum { MEDIUM_PAGES = SECTORS * SECTOR / PAGE, NR_MAPPED = NR_FRONT + MEDIUM_PAGES };
/* Where it maps the ring, the pages that bytes go through and the medium. */
#define MAPPED_VA (CODE_VA + 0x10000)

/* At the beginning of the page behind its code; its stack is at that page's end. */
struct life {
	/* The service, its port for this life, and the first grants of its set of pages and of the medium. */
	u16 service, pad;
	u32 port, ring_ref, medium_ref;
	/* It has mapped all and is bound; it may look at the ring; what it has done; what it could not do. */
	volatile u32 is_ready, may_go, nr_done, error;
};

/* Its code, which fits into a page and runs anywhere. */
void driver_domain(void);
#endif
