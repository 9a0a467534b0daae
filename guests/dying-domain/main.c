/* A domain that is destroyed while somebody maps its memory: it stays until that ends, and gets nothing more. */
#include "domains.h"

const char test_name[] = "dying-domain";

enum { OTHER = 5 };
enum { TRANSFER = 4, ACCEPT_TRANSFER = 2, TRANSFERRED = 2 | 4 | 8 };
enum { FIRST_REF = 8, SECOND_REF };

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

void test_main(void)
{
	struct domctl request = { 0 };
	u64 frames[2] = { 0, 1 };
	check_result(create_domain(OTHER), 0, "createdomain");
	check_result(populate_domain(OTHER, frames, 2), 2, "memory for it");
	check_result(map_frame_of(OTHER, pages[1], frames[0]), 0, "mapping its memory");
	map_grant_table_of(OTHER, pages[2]);
	volatile u64 *table = (u64 *)pages[2], *data = (u64 *)pages[3];
	u64 given = mfn_of(pages[3]), kept = mfn_of(pages[4]);
	data[0] = 0x1234;
	table[FIRST_REF] = ACCEPT_TRANSFER;
	check_result(transfer(pages[3], FIRST_REF), 0, "a page for it");
	check(table[FIRST_REF] == (TRANSFERRED | given << 32), "its grant entry is %#lx", table[FIRST_REF]);
	check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
	check(request.info.domid == OTHER && request.info.pages == 3, "it has %lu pages", request.info.pages);

	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check_result(domain_info(OTHER, &request), 0, "getdomaininfo, as it dies");
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
	check_result(populate_domain(OTHER, frames, 1), 0, "memory for a dying domain");
	check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
	check(request.info.pages == 1, "it now has %lu pages", request.info.pages);

	check_result(update_va(pages[2], 0, 2), 0, "letting its grant table go");
	check_result(update_va(pages[1], 0, 2), 0, "letting its memory go");
	check(domain_is_gone(OTHER), "it never goes");
}
