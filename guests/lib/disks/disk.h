/*
 * Guests' disks, from both ends: a guest's front end and a driver domain's back end, which are this domain's both, and between them
 * pages of a domain that never runs.
 */
#ifndef DISK_H
#define DISK_H
#include "channel.h"

enum { WRITE = 1, FLUSH = 2, BARRIER = 4, DISCARD = 8, ENDED = 1, BACK_ENDED = 2, GIVEN_UP = 4, BACK_EMPTY = 8, GUEST_STOPPED = 32, GIVE_UP = 1, NO_BACK = 0xffff };
enum { OP_READ, OP_WRITE, OP_BARRIER, OP_FLUSH, OP_DISCARD = 5, OP_INDIRECT };
enum { BLK_OKAY = 0, BLK_ERROR = -1, BLK_UNSUPPORTED = -2 };

struct disk_name {
	u32 disk, flags;
};
struct disk_port {
	u16 domain, pad;
	u32 port;
};
struct disk_connect {
	u16 guest, backend;
	u32 device, ring, port, flags, disk;
	u16 weight, pad;
};
struct disk_attach {
	u32 disk;
	u16 back, max_segments;
	u32 ring, port, first_page, nr_pages;
};
struct disk_status {
	u32 disk, next;
	u16 guest, backend;
	u32 device, flags;
	u16 back, waiting;
	u32 state, bad_rings;
	u64 reads, writes, flushes, discards, read_sectors, written_sectors, errors, repeated, bad_answers, passed_on, merged;
	u64 empty_reads, oldest_ns, answered, overdue_ns;
};
_Static_assert(sizeof(struct disk_connect) == 28 && sizeof(struct disk_status) == 152 && sizeof(struct disk_attach) == 24, "layouts");

enum { BLK_SLOTS = 32, DIRECT_SEGMENTS = 11, MAX_SEGMENTS = 32, SECTOR = 512, PAGE_SECTORS = 8 };
struct segment {
	u32 gref;
	u8 first, last;
	u16 pad;
};
struct blk_request {
	u8 op, nr;
	u16 handle;
	u32 pad;
	u64 id, sector;
	struct segment seg[DIRECT_SEGMENTS];
};
struct blk_indirect {
	u8 op, wanted;
	u16 nr;
	u32 pad;
	u64 id, sector;
	u16 handle, pad1;
	u32 gref[8], pad2;
};
/* What a back end has taken, wherever its segments were listed: in the page of grant `list`, if that is not 0. */
struct taken {
	u8 op, nr;
	u32 list;
	u64 id, sector;
	struct segment seg[MAX_SEGMENTS];
};
struct blk_response {
	u64 id;
	u8 op, pad;
	int16_t status;
};
union blk_slot {
	struct blk_request request;
	struct blk_indirect indirect;
	struct blk_response response;
	u32 words[28];
};
struct blk_ring {
	volatile u32 req_prod, req_event, rsp_prod, rsp_event;
	u32 room[12];
	union blk_slot slot[BLK_SLOTS];
};
_Static_assert(sizeof(struct blk_request) == 112 && sizeof(union blk_slot) == 112, "layouts");
_Static_assert(offsetof(struct blk_indirect, gref) == 28, "layouts");

/* Of a back end: a ring and the pages that bytes go through. A disk has two sets of them. */
enum { NR_THROUGH = 32, NR_FRONT = 1 + NR_THROUGH, PAGE_SETS = 2, DISK_REF = 240 };

/* The domain that guests grant to, and that grants `page` to back ends, which are here. */
struct service {
	u16 domid;
	u32 nr;
	u8 (*page)[PAGE];
	struct grant_entry *grants;
};
/* Makes such a domain of `nr` pages, which are mapped at `page`, as its grant table is at `table`. All is granted, from DISK_REF on. */
void make_service(struct service *service, u16 domid, u8 (*page)[PAGE], u32 nr, u8 *table);
/* It is dead: its pages are mapped here no longer. */
void let_go_of_service(struct service *service);

struct disk {
	struct service *service;
	/* Whose it is, if it is not this domain's: pages of such a domain, too, and their grants. */
	struct service *guest;
	/* Of the service's pages the first that is this disk's. */
	u32 first_page;
	/* The guest's pages, of which the first is the ring, and their grants. */
	u8 (*guest_page)[PAGE];
	u32 nr_guest, guest_ref;
	u32 device, flags, name;
	/* Of the back end: segments that it takes in a list. */
	u16 weight, max_segments;
	/* Which of the sets of pages the back end has. */
	u32 set;
	struct blk_ring *guest_ring, *back_ring;
	u32 guest_port, front_port, back_port, rsp_cons, req_cons;
};

/* The grants of the guest, and of the sets of pages. */
struct grant_entry *guest_grants(const struct disk *disk);
struct grant_entry *set_grants(const struct disk *disk, u32 set);
/* The first reference of the set that the back end has, which is the ring's, and a page of it. */
u32 set_ref(const struct disk *disk);
u8 *set_page(const struct disk *disk, u32 n);
void use_set(struct disk *disk, u32 set);

/* A fresh front end of this domain's, with a port. */
void make_disk_guest(struct disk *disk);
struct disk_connect request_of_guest(const struct disk *disk);
void connect_disk(struct disk *disk);
/* A stock back end does this: it binds to the port that the front end has named. */
void make_back_port(struct disk *disk);
struct disk_attach request_of_back(const struct disk *disk);
void attach_back(struct disk *disk);
/* The back end is taken away, and its port closed. */
void detach_back(struct disk *disk);
struct disk_status status_of_disk(const struct disk *disk);

/* The slot of the guest's next request, and the end of filling it. */
union blk_slot *next_slot(struct disk *disk);
void push_request(struct disk *disk);
/* Requests that the back end has not taken; the next of them. */
u32 nr_passed_on(const struct disk *disk);
struct taken take_request(struct disk *disk);
/* The bytes of a read or write, sector by sector. False: a grant is none of the back end's pages, or a sector not of the medium's. */
bool move_bytes(const struct disk *disk, const struct taken *r, u8 (*medium)[SECTOR], u64 nr_sectors);
/* Something else than was there, at the end of each segment of a read: less is not believed. */
void read_something(const struct disk *disk, const struct taken *r);
void answer_request(struct disk *disk, const struct taken *r, int16_t status);
/* Answers that the guest has not taken; the next of them. */
u32 nr_disk_answers(const struct disk *disk);
struct blk_response take_answer(struct disk *disk);
#endif
