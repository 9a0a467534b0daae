/* Whom a hostile kernel turns to, and what is its own. */
#include "hostile.h"

static u64 self, peer, nr_peers;

void whom_init(void)
{
	self = number_after("self=", !is_initial_domain());
	peer = number_after("peer=", self + 1);
	nr_peers = number_after("peers=", 1);
	for (u64 pfn = 0; pfn < start_info->nr_pages; pfn++)
		put_in(OWN, mfn_of_pfn(pfn), true), put_in(ONCE_OWN, mfn_of_pfn(pfn), true);
}

u16 some_domid(void)
{
	switch (up_to(10)) {
	case 0: case 1: return 0;
	case 2: return self;
	case 3: case 4: return DOMID_SELF;
	case 5: return DOMID_SELF + up_to(6);
	case 6: return up_to(2) ? up_to(16) : draw();
	default: return peer + up_to(nr_peers);
	}
}

bool is_self(u16 domid)
{
	return domid == DOMID_SELF || domid == self;
}

void must_refuse(s64 result, const char *what, u64 detail)
{
	if (result < 0 || is_initial_domain())
		return;
	check(false, "vCPU %u, operation %lu: %s (%#lx) was not refused: %ld", me, board.of[me].operation, what, detail, result);
}

bool is_own(u64 mfn)
{
	return is_in(OWN, mfn);
}

bool was_own(u64 mfn)
{
	return is_in(ONCE_OWN, mfn);
}

void set_own(u64 mfn, bool is)
{
	put_in(OWN, mfn, is);
	put_in(ONCE_OWN, mfn, true);
}
