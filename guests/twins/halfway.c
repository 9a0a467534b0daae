/* Hypercalls that are not gone on with. A twin is unloaded while it is loaded: the two do not make one that sees what is given back already. */
#include "events.h"
#include "twins.h"

/* Tables below the shared one, and below the one that keeps the MMU lock busy: more than are taken down in one go. */
enum { SHARED_L1S = 200, BUSY_L1S = 300, SLOT = 272, MOST_NS = 2000000 };
#define LIMIT_NS 20000000000ul
#define USUAL (P | RW | US | A | D)

static u8 l1s[SHARED_L1S + BUSY_L1S][PAGE] __attribute__((aligned(4096)));
static u8 *const root = pages[40], *const l3 = pages[41], *const l2 = pages[42], *const busy = pages[43];
static volatile bool is_over, is_to_rest, rests;
/* The hypercall on which the last upcall came was to be executed again; with this as its first argument. */
static volatile bool was_cut;
static volatile u64 goes_on_with;

/* The page tables of vCPU 1 are always being made or taken down, but while it rests. */
static void keep_busy(void)
{
	while (!is_over) {
		rests = is_to_rest;
		if (!rests && (mmuext(PIN_L2, mfn_of(busy), 0) || mmuext(UNPIN, mfn_of(busy), 0)))
			error("a table cannot be pinned or unpinned");
	}
}

static void rest(bool on)
{
	is_to_rest = on;
	u64 until = now_ns() + 10000000000;
	while (rests != on && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	if (rests != on)
		error("vCPU 1 does not answer");
}

/* A hypercall that is to be executed again is not. */
static void cut(struct frame *frame)
{
	shared_info()->vcpu[0].upcall_pending = 0;
	was_cut = memcmp((void *)frame->rip, "\x0f\x05", 2) == 0;
	goes_on_with = frame->rdi;
	if (was_cut)
		frame->rip += 2;
}

/* Begins a hypercall, and does not go on with it when it says that it is to be executed again: then `was_cut`. */
static s64 twin_op_in_part(u64 cmd, void *argument)
{
	volatile struct vcpu_info *vcpu = &shared_info()->vcpu[0];
	was_cut = false;
	vcpu->upcall_pending = 1;
	vcpu->upcall_mask = 0;
	s64 result = hypercall(HC_twin_op, cmd, (u64)argument, 0, 0, 0);
	bool cut_by_it = was_cut;
	vcpu->upcall_mask = 1;
	vcpu->upcall_pending = 0;
	was_cut = cut_by_it;
	return result;
}

/* Loads and unloads once, both in part. Had the twin begun to see the table? */
static bool meet(u64 *seed)
{
	struct {
		u64 at;
		u32 flags, pad;
	} timer = { now_ns() + random_u64(seed) % MOST_NS, 0, 0 };
	struct twin_load request = good_load();
	struct twin_name name = { 0, 0 };
	bool met = false;
	request.root = mfn_of(root);
	check_result(mmu_update(maddr_of(root + 8 * SLOT), pte(mfn_of(l3), USUAL)), 0, "an entry of the root");
	HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &timer);
	s64 result = twin_op_in_part(TWINOP_LOAD, &request);
	u64 command = goes_on_with;
	bool is_loading = was_cut && command != TWINOP_LOAD;
	rest(true);
	/* From here on only the mirror has the table, if it has. */
	check_result(mmu_update(maddr_of(root + 8 * SLOT), 0), 0, "no entry of the root");
	if (is_loading) {
		name.twin = (command >> 8) - 1;
		result = twin_op_in_part(TWINOP_UNLOAD, &name);
		met = was_cut;
		if (met) {
			result = hypercall(HC_twin_op, command, (u64)&request, 0, 0, 0);
			check_result(result, -ENOENT, "loading a twin that is being unloaded");
			if (result == 0)
				unload(request.twin);
		} else {
			check_result(result, 0, "unloading what is being loaded");
		}
	} else if (!was_cut) {
		check_result(result, 0, "loading");
		check_result(unload(request.twin), 0, "unloading");
	}
	rest(false);
	return met;
}

/* Many buffers are lent in parts, and each of them once. */
static void lend_in_parts(void)
{
	enum { MANY = 256 };
	static struct twin_lent list[MANY];
	u32 twin = load_with_kernel(), nr_cuts = 0;
	s64 result;
	for (u32 n = 0; n < MANY; n++)
		list[n] = (struct twin_lent){ BARE_SKB, 0, 0x1000 * (u64)(MANY - n), 0, 0, 0 };
	struct twin_lend request = { twin, MANY, (u64)list };
	do {
		result = twin_op_in_part(TWINOP_LEND, &request);
		nr_cuts += was_cut;
	} while (was_cut && nr_cuts < MANY);
	check_result(result, 0, "lending the rest");
	check(nr_cuts > 4, "%u buffers were lent in %u parts", MANY, nr_cuts + 1);
	check_result(hypercall(HC_twin_op, TWINOP_RECALL, (u64)&request, 0, 0, 0), 0, "taking them back");
	check(request.count == MANY, "%u of %u come back", request.count, MANY);
	check_result(unload(twin), 0, "unloading");
}

static void make_table(u8 *table, u8 (*below)[PAGE], u32 nr)
{
	for (u32 n = 0; n < nr; n++) {
		((u64 *)table)[n] = pte(mfn_of(below[n]), USUAL);
		make_read_only(below[n]);
	}
	make_read_only(table);
}

void twins_unloaded_halfway(void)
{
	u64 seed = 1;
	u32 nr_tries = 0, nr_met = 0;
	memset(root, 0, PAGE), memset(l3, 0, PAGE), memset(l2, 0, PAGE), memset(busy, 0, PAGE);
	make_table(l2, l1s, SHARED_L1S);
	make_table(busy, l1s + SHARED_L1S, BUSY_L1S);
	*(u64 *)l3 = pte(mfn_of(l2), USUAL);
	make_read_only(l3);
	make_read_only(root);
	check_result(mmuext(PIN_L4, mfn_of(root), 0), 0, "pinning a root");
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	handlers[ENTRY_EVENT] = cut;
	check_result(set_callback(0, 0, entry_256), 0, "set_callback");
	lend_in_parts();
	has_stopped = false;
	job = keep_busy;
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "vCPU 1");
	for (u64 end = now_ns() + LIMIT_NS; nr_met < 3 && now_ns() < end; nr_tries++)
		nr_met += meet(&seed);
	is_over = true;
	u64 until = now_ns() + 10000000000;
	while (!has_stopped && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(has_stopped, "vCPU 1 does not come back");
	check(nr_met, "in %u tries no load was cut short where it should be", nr_tries);
	printk("  a twin was unloaded while it was half loaded, %u times of %u\n", nr_met, nr_tries);
	audit();
	check_result(mmuext(UNPIN, mfn_of(root), 0), 0, "unpinning the root");
	make_writable(root), make_writable(l3), make_writable(l2), make_writable(busy);
	for (u32 n = 0; n < COUNT(l1s); n++)
		make_writable(l1s[n]);
}
