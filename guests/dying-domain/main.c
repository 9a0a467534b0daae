/* A domain that is destroyed while somebody maps its memory: it stays until that ends, and gets nothing more. */
#include "guest.h"

const char test_name[] = "dying-domain";

enum { OTHER = 5, INTERFACE = 0x15 };
enum { CREATE = 1, DESTROY = 2, INFO = 5, MAX_MEMORY = 11 };
enum { POPULATE = 6, DOMINF_DYING = 1 };
enum { SETUP = 2, TRANSFER = 4, ACCEPT_TRANSFER = 2, TRANSFERRED = 2 | 4 | 8 };
enum { FIRST_REF = 8, SECOND_REF };

struct domctl {
	u32 cmd, version;
	u16 domid, pad[3];
	union {
		struct {
			u32 ssidref;
			u8 handle[16];
			u32 flags, iommu, max_vcpus, max_port;
			int32_t max_grant_frames, max_maptrack_frames;
			u32 grant_version, trace, pool, emulation, misc;
		} create;
		struct {
			u16 domid, pad;
			u32 flags;
			u64 pages;
		} info;
		u64 max_kib;
		u64 room[16];
	};
};

static s64 domctl(u32 cmd, struct domctl *request)
{
	request->cmd = cmd;
	request->version = INTERFACE;
	request->domid = OTHER;
	return HC1(domctl, request);
}

static s64 populate(u64 *list, u64 nr)
{
	struct {
		u64 *list;
		u64 nr;
		u32 order, flags;
		u16 domid, pad[3];
	} r = { list, nr, 0, 0, OTHER, { 0 } };
	return HC2(memory_op, POPULATE, &r);
}

static void map_of_other(u8 *page, u64 mfn)
{
	check_result(HC4(update_va_mapping_otherdomain, page, pte(mfn, P | RW | US), 2, OTHER), 0, "mapping the other's frame");
}

/* Gives a page away, which is mapped nowhere; the status. */
static int transfer(u8 *page, u32 ref)
{
	struct {
		u64 mfn;
		u16 domid;
		u32 ref;
		int16_t status;
	} t = { mfn_of(page), OTHER, ref, 99 };
	if (update_va(page, 0, 2) || HC3(grant_table_op, TRANSFER, &t, 1))
		error("transfer");
	return t.status;
}

static volatile u64 *grant_table(void)
{
	u64 frame = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		u64 *list;
	} setup = { OTHER, 0, 1, 99, &frame };
	if (HC3(grant_table_op, SETUP, &setup, 1) || setup.status)
		error("the other's grant table");
	map_of_other(pages[2], frame);
	return (volatile u64 *)pages[2];
}

static bool is_gone(void)
{
	struct domctl info = { 0 };
	for (u32 i = 0; i < 1000000; i++) {
		if (domctl(INFO, &info) == -ESRCH)
			return true;
		HC2(sched_op, 0, 0);
	}
	return false;
}

void test_main(void)
{
	struct domctl request = { .create = { .max_vcpus = 1, .max_port = 1023, .max_grant_frames = 4, .max_maptrack_frames = 4,
					      .grant_version = 1 } };
	u64 frames[2] = { 0, 1 };
	check_result(domctl(CREATE, &request), 0, "createdomain");
	request.max_kib = 1024;
	check_result(domctl(MAX_MEMORY, &request), 0, "max_mem");
	check_result(populate(frames, 2), 2, "memory for it");
	map_of_other(pages[1], frames[0]);
	volatile u64 *table = grant_table(), *data = (u64 *)pages[3];
	u64 given = mfn_of(pages[3]), kept = mfn_of(pages[4]);
	data[0] = 0x1234;
	table[FIRST_REF] = ACCEPT_TRANSFER;
	check_result(transfer(pages[3], FIRST_REF), 0, "a page for it");
	check(table[FIRST_REF] == (TRANSFERRED | given << 32), "its grant entry is %#lx", table[FIRST_REF]);
	check_result(domctl(INFO, &request), 0, "getdomaininfo");
	check(request.info.domid == OTHER && request.info.pages == 3, "it has %lu pages", request.info.pages);

	check_result(domctl(DESTROY, &request), 0, "destroydomain");
	check_result(domctl(INFO, &request), 0, "getdomaininfo, as it dies");
	check(request.info.flags & DOMINF_DYING, "flags %#x", request.info.flags);
	check(request.info.pages == 1, "it still has %lu pages", request.info.pages);
	table[SECOND_REF] = ACCEPT_TRANSFER;
	data = (u64 *)pages[4];
	data[0] = 0x4321;
	int status = transfer(pages[4], SECOND_REF);
	check(status < 0, "a page for a dying domain: status %d", status);
	/* Xen frees the page all the same; Tandem leaves it here. */
	if (update_va(pages[4], pte(kept, P | RW | US), 2) == 0)
		check(data[0] == 0x4321, "the page has %#lx", data[0]);
	check_result(populate(frames, 1), 0, "memory for a dying domain");
	check_result(domctl(INFO, &request), 0, "getdomaininfo");
	check(request.info.pages == 1, "it now has %lu pages", request.info.pages);

	check_result(update_va(pages[2], 0, 2), 0, "letting its grant table go");
	check_result(update_va(pages[1], 0, 2), 0, "letting its memory go");
	check(is_gone(), "it never goes");
}
