/* grant_table_op(transfer): what is refused, and that nothing is lost by it which still has a use. */
#include "guest.h"

const char test_name[] = "page-transfer";

struct transfer {
	u64 mfn;
	u16 domid;
	u32 ref;
	int16_t status;
};

static int transfer(u64 mfn, u16 domid)
{
	struct transfer t = { mfn, domid, 8, 99 };
	if (HC3(grant_table_op, 4, &t, 1))
		error("transfer");
	return t.status;
}

void test_main(void)
{
	volatile u64 *data = (u64 *)pages[1];
	data[0] = 0x1234;
	check(transfer(mfn_of(pages[1]), 77) < 0, "a page in use, to a domain that is not there");
	check(transfer(mfn_of(pages[1]), 0) < 0, "a page in use");
	check(transfer(0xfffffffffff, 0) < 0, "a frame that is not there");
	check(transfer(entry_for(pages[1], 4)[0] / PAGE & 0xffffffff, 0) < 0, "a page table");
	check(data[0] == 0x1234, "the page has %lx", data[0]);
	struct transfer two[2] = { { mfn_of(pages[1]), 77, 8, 99 }, { mfn_of(pages[1]), 78, 8, 99 } };
	check_result(HC3(grant_table_op, 4, two, 2), 0, "two at once");
	check(two[0].status < 0 && two[1].status < 0, "statuses %d and %d", two[0].status, two[1].status);
	check_result(HC3(grant_table_op, 4, 8, 1), -EFAULT, "a bad pointer");
	check_result(HC3(grant_table_op, 4, two, 0), 0, "none");
	data[0]++;
	check(data[0] == 0x1235, "the page has %lx", data[0]);
}
