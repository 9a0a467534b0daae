/* Disks with a guest that looks at all that it gets, and back ends that do what they should and end at any time. */
#ifndef STATIONS_H
#define STATIONS_H
#include "disk.h"
#include "hostile.h"

/*
 * A guest asks for so many things at once. Each has its own pages, which are four for data and a list of segments, and sectors of its
 * own, so that what is under way never overlaps.
 */
enum { NR_ASKS = 8, DATA_PAGES = 4, ASK_PAGES = DATA_PAGES + 1, ASK_SECTORS = DATA_PAGES * PAGE_SECTORS, NR_GUEST = 1 + NR_ASKS * ASK_PAGES,
	SECTORS = NR_ASKS * ASK_SECTORS };

struct ask {
	/* It waits for its answer; its pages are as they were left, and so they must stay. */
	bool is_out, is_idle;
	/* Nobody has lied since it was asked for. */
	bool is_trusted;
	u8 op;
	u64 id;
	/* Sectors of its own that it is about, as many before them in its pages, and what they get. */
	u32 first, nr, skip, version;
};

struct station {
	u32 number;
	struct disk disk;
	/* Who plays the guest, and who the back end, but for the lies. */
	u32 guest_lock, back_lock;
	/* It is served as it should be. */
	bool is_honest;
	struct ask asks[NR_ASKS];
	/* What is on the medium, if it is known. */
	u32 version, versions[SECTORS];
	bool is_known[SECTORS];
	u8 medium[SECTORS][SECTOR] __attribute__((aligned(4096)));
	/* Requests that an honest back end has taken and not answered. */
	struct taken taken[BLK_SLOTS];
	u32 nr_taken;
	/* Names of requests that back ends of this disk have seen. */
	u64 seen[64];
	u32 nr_seen;
	u64 nr_answered, nr_errors, nr_lives, nr_connections;
};

/* What a back end writes that lies: word by word. */
u64 lie_of(const struct station *s);
bool is_lie_of(const struct station *s, u64 word);
/* What is in a sector that a guest has written. */
u64 word_of(const struct station *s, u32 sector, u32 version, u32 at);

/* The guest. A fresh one has asked for nothing. */
void fresh_guest(struct station *s);
void guest_once(struct station *s);
void take_answers(struct station *s);
/* Requests that are not answered. */
u32 nr_out(const struct station *s);
/* Whose back end is honest for now, and nobody else does anything: all is answered, and every byte is what it should be. */
void make_sure(struct station *s);

/* The back end that does what it should: it comes; it takes what there is, does some of it and answers that; it does so, or ends. */
void honest_back(struct station *s);
void serve(struct station *s, u32 most);
void good_back_once(struct station *s);
#endif
