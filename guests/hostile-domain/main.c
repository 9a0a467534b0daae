/*
 * A hostile domain beside domain 0 and a peer of its kind: random operations on grants, event channels and memory of its own
 * and of others, on page tables, and on what only domains with more rights may do. With a device it is a hostile driver domain.
 * Made by xl: images/xen/tests/hostile.sh.
 *
 * The command line: seed=N, first=N, operations=N, self=DOMID, peer=DOMID.
 */
#include "hostile.h"

const char test_name[] = "hostile-domain";

enum { MFNS = 1 << 24, REPORT = 10000 };
/* What is this domain's, and what ever was: a frame that is given back stays until its last use ends. */
static u64 own[MFNS / 64], once_own[MFNS / 64], self, peer, operation;
static bool has_device;

u16 some_domid(void)
{
	switch (up_to(10)) {
	case 0: case 1: return 0;
	case 2: return self;
	case 3: case 4: return DOMID_SELF;
	case 5: return DOMID_SELF + up_to(6);
	case 6: return up_to(2) ? up_to(16) : draw();
	default: return peer;
	}
}

bool is_self(u16 domid)
{
	return domid == DOMID_SELF || domid == self;
}

u64 number_of_operation(void)
{
	return operation;
}

void must_refuse(s64 result, const char *what, u64 detail)
{
	if (result < 0)
		return;
	check(false, "operation %lu: %s (%#lx) was not refused: %ld", operation, what, detail, result);
}

bool is_own(u64 mfn)
{
	return mfn < MFNS && (own[mfn / 64] >> mfn % 64 & 1);
}

bool was_own(u64 mfn)
{
	return mfn < MFNS && (once_own[mfn / 64] >> mfn % 64 & 1);
}

void set_own(u64 mfn, bool is)
{
	if (mfn >= MFNS)
		return;
	own[mfn / 64] &= ~(1ul << mfn % 64);
	own[mfn / 64] |= (u64)is << mfn % 64;
	once_own[mfn / 64] |= 1ul << mfn % 64;
}

static void ignore(struct frame *frame)
{
	/* vcpu_info may have moved to a scratch page, where events are unmasked at random. */
	frame->rflags &= ~0x200ul;
}

static void ignore_debug(struct frame *frame)
{
	(void)frame;
	HC2(set_debugreg, 7, 0);
}

static void once(void)
{
	switch (up_to(32)) {
	case 0: case 1: fill(); break;
	case 2: write_entry(); break;
	case 3: case 4: case 5: case 6: granter_once(); break;
	case 7: case 8: case 9: case 10: mapper_once(); break;
	case 11: case 12: copier_once(); break;
	case 13: grant_table_once(); break;
	case 14: case 15: case 16: event_once(); break;
	case 17: case 18: memory_once(); break;
	case 19: case 20: foreign_once(); break;
	case 21: case 22: privileged_once(); break;
	case 23: vcpu_once(); break;
	case 24: instruction_once(); break;
	case 25: if (has_device) return device_once(); /* fall through */
	default: mmu_once();
	}
}

void test_main(void)
{
	if (is_initial_domain())
		skip("xl makes it: ./tandem test xl a-hostile-domain");
	u64 first = number_after("first=", 0), end = number_after("operations=", 10000);
	self = number_after("self=", 1);
	peer = number_after("peer=", 2);
	printk("  seed %lu, operations %lu to %lu, domain %lu, peer %lu\n", number_after("seed=", 20060101), first, end, self, peer);
	chaos_init();
	for (u64 pfn = 0; pfn < start_info->nr_pages; pfn++)
		set_own(mfn_of_pfn(pfn), true);
	handlers[1] = ignore_debug;
	handlers[ENTRY_EVENT] = ignore;
	set_callback(0, 0, entry_256);
	HC2(vm_assist, 0, 2);
	grants_init();
	has_device = device_init();
	for (operation = first; operation < end; operation++) {
		begin(operation);
		once();
		if (operation % 512 == 0) {
			restore();
			refill();
		}
		if (operation % REPORT == REPORT - 1)
			printk("  done %lu, accepted %lu\n", operation + 1, nr_accepted);
	}
	if (has_device)
		printk("  the device was told to copy %lu times\n", device_copies());
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	check(nr_accepted > (end - first) / 100, "nearly everything was refused");
}
