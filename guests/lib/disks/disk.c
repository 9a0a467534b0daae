#include "disk.h"

enum { MOST_PAGES = 256 };

void make_service(struct service *service, u16 domid, u8 (*page)[PAGE], u32 nr, u8 *table)
{
	static u64 frames[MOST_PAGES];
	*service = (struct service){ domid, nr, page, (struct grant_entry *)table };
	if (nr > MOST_PAGES)
		error("too many pages");
	for (u32 n = 0; n < nr; n++)
		frames[n] = n;
	check_result(create_domain(domid), 0, "createdomain");
	check_result(populate_domain(domid, frames, nr), nr, "memory for it");
	map_grant_table_of(domid, table);
	for (u32 n = 0; n < nr; n++) {
		check_result(map_frame_of(domid, page[n], frames[n]), 0, "mapping its pages");
		memset(page[n], 0x5a, PAGE);
		grant(&service->grants[DISK_REF + n], 0, frames[n], 0);
	}
}

void let_go_of_service(struct service *service)
{
	for (u32 n = 0; n < service->nr; n++)
		make_writable(service->page[n]);
	make_writable(service->grants);
}

struct grant_entry *guest_grants(const struct disk *disk)
{
	return (disk->guest ? disk->guest->grants : own_grants()) + disk->guest_ref;
}

static u64 frame_of_guest(const struct disk *disk, u32 n)
{
	return disk->guest ? disk->guest->grants[DISK_REF + n].frame : mfn_of(disk->guest_page[n]);
}

struct grant_entry *set_grants(const struct disk *disk, u32 set)
{
	return disk->service->grants + DISK_REF + disk->first_page + set * NR_FRONT;
}

u32 set_ref(const struct disk *disk)
{
	return DISK_REF + disk->first_page + disk->set * NR_FRONT;
}

u8 *set_page(const struct disk *disk, u32 n)
{
	return disk->service->page[disk->first_page + disk->set * NR_FRONT + n];
}

void use_set(struct disk *disk, u32 set)
{
	disk->set = set;
	disk->back_ring = (struct blk_ring *)set_page(disk, 0);
}

void make_disk_guest(struct disk *disk)
{
	struct alloc_unbound port = { disk->guest ? disk->guest->domid : DOMID_SELF, disk->service->domid, 0 };
	memset(disk->guest_page, 0, disk->nr_guest * PAGE);
	disk->guest_ring = (struct blk_ring *)disk->guest_page[0];
	disk->guest_ring->req_event = disk->guest_ring->rsp_event = 1;
	disk->rsp_cons = 0;
	for (u32 n = 0; n < disk->nr_guest; n++)
		grant(&guest_grants(disk)[n], disk->service->domid, frame_of_guest(disk, n), 0);
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound");
	disk->guest_port = port.port;
}

struct disk_connect request_of_guest(const struct disk *disk)
{
	return (struct disk_connect){ .guest = disk->guest ? disk->guest->domid : 0, .backend = disk->service->domid, .device = disk->device, .ring = disk->guest_ref,
				      .port = disk->guest_port, .flags = disk->flags, .weight = disk->weight };
}

void connect_disk(struct disk *disk)
{
	struct disk_connect request = request_of_guest(disk);
	check_result(channel_op(DISK_CONNECT, &request), 0, "connecting");
	disk->name = request.disk;
}

void make_back_port(struct disk *disk)
{
	u16 service = disk->service->domid;
	struct alloc_unbound port = { service, 0, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound for the front end");
	disk->front_port = port.port;
	struct bind_interdomain bind = { service, 0, port.port, 0 };
	check_result(evtchn(EVTCHN_bind_interdomain, &bind), 0, "bind_interdomain");
	disk->back_port = bind.local_port;
}

struct disk_attach request_of_back(const struct disk *disk)
{
	return (struct disk_attach){ .disk = disk->name, .back = 0, .ring = set_ref(disk), .port = disk->front_port,
				     .first_page = set_ref(disk) + 1, .nr_pages = NR_THROUGH,
				     .max_segments = disk->max_segments };
}

void attach_back(struct disk *disk)
{
	make_back_port(disk);
	struct disk_attach request = request_of_back(disk);
	check_result(channel_op(DISK_ATTACH, &request), 0, "attaching");
	disk->req_cons = 0;
}

void detach_back(struct disk *disk)
{
	struct disk_name request = { disk->name, 0 };
	check_result(channel_op(DISK_DETACH, &request), 0, "detaching");
	check_result(evtchn(EVTCHN_close, &disk->back_port), 0, "closing the back end's port");
}

struct disk_status status_of_disk(const struct disk *disk)
{
	struct disk_status status = { .disk = disk->name };
	check_result(channel_op(DISK_STATUS, &status), 0, "the status");
	return status;
}

union blk_slot *next_slot(struct disk *disk)
{
	return &disk->guest_ring->slot[disk->guest_ring->req_prod % BLK_SLOTS];
}

void push_request(struct disk *disk)
{
	__atomic_store_n(&disk->guest_ring->req_prod, disk->guest_ring->req_prod + 1, __ATOMIC_SEQ_CST);
}

u32 nr_passed_on(const struct disk *disk)
{
	return __atomic_load_n(&disk->back_ring->req_prod, __ATOMIC_ACQUIRE) - disk->req_cons;
}

struct taken take_request(struct disk *disk)
{
	if (!check(nr_passed_on(disk) > 0, "nothing is passed on"))
		fail();
	const union blk_slot *slot = &disk->back_ring->slot[disk->req_cons++ % BLK_SLOTS];
	const struct blk_request *r = &slot->request;
	const struct blk_indirect *list = &slot->indirect;
	struct taken taken = { .op = r->op, .nr = r->nr, .id = r->id, .sector = r->sector };
	if (r->op != OP_INDIRECT) {
		memcpy(taken.seg, r->seg, sizeof(r->seg));
		return taken;
	}
	u32 page = list->gref[0] - set_ref(disk);
	taken.op = list->wanted, taken.nr = list->nr, taken.list = list->gref[0];
	if (!check(page - 1 < NR_THROUGH && list->nr > DIRECT_SEGMENTS && list->nr <= disk->max_segments && list->nr <= MAX_SEGMENTS &&
			   list->wanted <= OP_WRITE, "operation %u with %u segments in a list, in page %u", list->wanted, list->nr, page))
		fail();
	memcpy(taken.seg, set_page(disk, page), list->nr * sizeof(taken.seg[0]));
	return taken;
}

bool move_bytes(const struct disk *disk, const struct taken *r, u8 (*medium)[SECTOR], u64 nr_sectors)
{
	u32 ring = set_ref(disk);
	u64 sector = r->sector;
	if (r->op == OP_DISCARD)
		return true;
	for (u32 n = 0; n < r->nr && n < MAX_SEGMENTS; n++) {
		struct segment s = r->seg[n];
		if (s.gref <= ring || s.gref >= ring + NR_FRONT)
			return false;
		for (u32 at = s.first; at <= s.last; at++, sector++) {
			u8 *bytes = set_page(disk, s.gref - ring) + at * SECTOR;
			if (sector >= nr_sectors)
				return false;
			memcpy(r->op == OP_READ ? bytes : medium[sector], r->op == OP_READ ? medium[sector] : bytes, SECTOR);
		}
	}
	return true;
}

void read_something(const struct disk *disk, const struct taken *r)
{
	for (u32 n = 0; r->op == OP_READ && n < r->nr && n < MAX_SEGMENTS; n++)
		set_page(disk, r->seg[n].gref - set_ref(disk))[(r->seg[n].last + 1) * SECTOR - 1] ^= 0xff;
}

void answer_request(struct disk *disk, const struct taken *r, int16_t status)
{
	disk->back_ring->slot[disk->back_ring->rsp_prod % BLK_SLOTS].response = (struct blk_response){ r->id, r->op, 0, status };
	__atomic_store_n(&disk->back_ring->rsp_prod, disk->back_ring->rsp_prod + 1, __ATOMIC_SEQ_CST);
}

u32 nr_disk_answers(const struct disk *disk)
{
	return __atomic_load_n(&disk->guest_ring->rsp_prod, __ATOMIC_ACQUIRE) - disk->rsp_cons;
}

struct blk_response take_answer(struct disk *disk)
{
	struct blk_response r = disk->guest_ring->slot[disk->rsp_cons++ % BLK_SLOTS].response;
	__atomic_store_n(&disk->guest_ring->rsp_event, disk->rsp_cons + 1, __ATOMIC_SEQ_CST);
	return r;
}
