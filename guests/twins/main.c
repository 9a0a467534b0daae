/*
 * Twins: images are verified and loaded, run on this domain's memory and nothing else, end whatever they do, and leave nothing
 * behind; where memory ends, loading says so. (cpus: 2) (shares: twins) (differs: stock Xen has no twins)
 */
#include "domains.h"
#include "twins.h"

const char test_name[] = "twins";

extern const u8 twin_read[], twin_write[], twin_six[], twin_leftovers[], twin_below[], twin_variable[], twin_percpu[], twin_count[],
	twin_recurse[], twin_bug[], twin_divide[], twin_warn[], twin_indirect[], twin_deep_fault[], bad_code[], bad_code_end[], spin_code[],
	spin_code_end[];

static u8 image[3 * PAGE];
static u32 image_len;
static u64 value = 0x1122334455667788;

struct twin_load good_load(void)
{
	return (struct twin_load){ .image = (u64)image, .image_bytes = image_len, .mode = 1,
		.root = mfn_of((void *)start_info->pt_base), .percpu = (u64)pages[0], .percpu_stride = PAGE, .flags = 1, .areas = 2 };
}

u32 load(void)
{
	struct twin_load request = good_load();
	s64 result = hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0);
	check(result == 0, "loading: result %ld, rule %d at %#x", result, (int)request.rule, request.offset);
	return request.twin;
}

s64 unload(u32 twin)
{
	struct twin_name name = { twin, 0 };
	return hypercall(HC_twin_op, TWINOP_UNLOAD, (u64)&name, 0, 0, 0);
}

static struct twin_call last;
/* What the twin of the last run had done. */
static struct twin_stats stats;

static s64 call_twin(u32 twin, const void *function, u64 a, u64 b)
{
	last = (struct twin_call){ .twin = twin, .function = address_of(function), .args = { a, b } };
	return hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0);
}

/* Runs a function of a fresh twin. */
static void run(const void *function, u64 a, u64 b)
{
	u32 twin = load();
	s64 result = call_twin(twin, function, a, b);
	check(result == 0, "calling function %lx: result %ld", address_of(function) - TEXT, result);
	stats = (struct twin_stats){ .twin = twin };
	check_result(hypercall(HC_twin_op, TWINOP_STATS, (u64)&stats, 0, 0, 0), 0, "what it has done");
	check(stats.twin == twin && stats.calls == 1 && stats.turns && stats.ticks, "calls %lu, turns %lu, ticks %lu", stats.calls,
	      stats.turns, stats.ticks);
	check_result(unload(twin), 0, "unloading");
}

static void returns(const void *function, u64 a, u64 b, u64 expected, const char *what)
{
	run(function, a, b);
	check(last.reason == RETURNED && last.result == expected, "%s: %#lx instead of %#lx, reason %u, detail %#lx", what, last.result,
	      expected, last.reason, last.detail);
}

static void aborts(const void *function, u64 a, u64 b, u32 reason, const char *what)
{
	run(function, a, b);
	check(last.reason == reason, "%s: reason %u, detail %#lx, result %#lx", what, last.reason, last.detail, last.result);
	check(last.original - TEXT < 16 * NR_FUNCTIONS, "%s: at %#lx", what, last.original);
	check(stats.disabled && stats.aborts == 1 && stats.reason == last.reason && stats.detail == last.detail &&
	      stats.original == last.original && stats.offset == last.offset, "%s: told with reason %u, detail %#lx, at %#lx", what,
	      stats.reason, stats.detail, stats.original);
}

static void good_calls(void)
{
	returns(twin_read, (u64)&value, 0, value, "reading");
	returns(twin_write, (u64)&value, 42, 42, "writing");
	check(value == 42, "what it wrote is not there: %#lx", value);
	returns(twin_six, 1, 2, 5, "two arguments");
	returns(twin_leftovers, 0, 0, 0, "registers that are not arguments");
	returns(twin_below, 0, 0, 0, "the stack of a fresh twin");
	returns(twin_variable, 77, 0, 77, "a variable whose address is taken");
	run(twin_percpu, 0, 0);
	check(last.result == (u64)pages[0] || last.result == (u64)pages[1], "the per-CPU area: %#lx", last.result);
	returns(twin_count, 1000, 0, 1000, "a loop");
	check(last.steps == 1000, "a loop of 1000 rounds took %u steps", last.steps);
	returns(twin_warn, 99, 0, 99, "a warning");
	returns(twin_indirect, address_of(twin_count), 5, 6, "an indirect call");
	check_result(call_twin(load(), twin_six, 0, 0), 0, "a call without arguments");
	struct twin_status status = { .twin = last.twin };
	check_result(hypercall(HC_twin_op, TWINOP_STATUS, (u64)&status, 0, 0, 0), 0, "the status");
	check(status.invocations == 1 && status.aborts == 0 && status.functions == NR_FUNCTIONS && !status.disabled, "status: %lu %lu %u %u",
	      status.invocations, status.aborts, status.functions, status.disabled);
	last.args[0] = 1;
	last.args[1] = 10, last.args[2] = 100, last.args[3] = 1000, last.args[4] = 10000, last.args[5] = 100000;
	check_result(hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0), 0, "a call with six arguments");
	check(last.result == 1 + 20 + 400 + 8000 + 160000 + 3200000, "six arguments: %lu", last.result);
	stats = (struct twin_stats){ .flags = STATS_ALL };
	check_result(hypercall(HC_twin_op, TWINOP_STATS, (u64)&stats, 0, 0, 0), 0, "what all have done");
	check(stats.calls == 2 && stats.flags == MODE_MIRROR && stats.domain == 0 && !stats.has_card && !stats.disabled && stats.functions == NR_FUNCTIONS, "stats: %lu calls",
	      stats.calls);
	stats = (struct twin_stats){ .flags = 2 };
	check(hypercall(HC_twin_op, TWINOP_STATS, (u64)&stats, 0, 0, 0) == -EINVAL, "unknown flags");
	unload(last.twin);
	stats = (struct twin_stats){ 0 };
	check(hypercall(HC_twin_op, TWINOP_STATS, (u64)&stats, 0, 0, 0) == -ENOENT, "what none has done");
}

static void bad_accesses(void)
{
	static const u64 foreign[] = { 0, 0x1000, 0x7fffffffefff, 0xffff800000000000, 0xffff808000000000, 0xffff818000000000,
		0xffff820000020000, 0xffff82d080000000, 0xffff82e000000000, 0xffff830000000000, 0xffff830000100000, 0xffff87ffffffffff,
		0xfffffffffffffff8, 0x800000000000, 0x0000008000000000, 0x0000008000001ff8 };
	for (u32 i = 0; i < COUNT(foreign); i++) {
		run(twin_read, foreign[i], 0);
		check(last.reason == MEMORY || last.reason == STACK, "reading %#lx: reason %u, result %#lx", foreign[i], last.reason, last.result);
		check(last.detail >> 47 == 0, "reading %#lx: the fault is at %#lx", foreign[i], last.detail);
		run(twin_write, foreign[i], 0x4141414141414141);
		check(last.reason == MEMORY || last.reason == STACK, "writing %#lx: reason %u", foreign[i], last.reason);
	}
	/* The domain's own rights. */
	returns(twin_read, (u64)entry_for(pages[5], 1), 0, *entry_for(pages[5], 1), "reading a page table");
	aborts(twin_write, (u64)entry_for(pages[5], 1), 0, MEMORY, "writing a page table");
	make_read_only(pages[5]);
	aborts(twin_write, (u64)pages[5], 1, MEMORY, "writing a read-only page");
	make_writable(pages[5]);
	returns(twin_write, (u64)pages[5], 1, 1, "writing it when it is writable again");
	u32 twin = load();
	call_twin(twin, twin_read, (u64)pages[6], 0);
	u64 entry = *entry_for(pages[6], 1);
	update_va(pages[6], 0, 2);
	check_result(call_twin(twin, twin_read, (u64)pages[6], 0), 0, "a call");
	check(last.reason == MEMORY, "reading a page that is no longer mapped: reason %u", last.reason);
	update_va(pages[6], entry, 2);
	check(call_twin(twin, twin_read, (u64)pages[6], 0) == -5, "an aborted twin runs again");
	check_result(unload(twin), 0, "unloading an aborted twin");
}

static void bad_code_ends(void)
{
	aborts(twin_bug, 0, 0, BUG, "a BUG");
	aborts(twin_divide, 0, 0, EXCEPTION, "a division by zero");
	check(last.detail == 0, "a division by zero: vector %lu", last.detail);
	aborts(twin_count, ~0ul, 0, BUDGET, "an endless loop");
	aborts(twin_recurse, 0, 0, STACK, "an endless recursion");
	/* The deepest frame that fits, and those around it. */
	for (u64 depth = 6; depth < 11; depth++) {
		run(twin_deep_fault, depth, 0);
		check(last.reason == BUG || last.reason == STACK, "an exception at depth %lu: reason %u", depth, last.reason);
	}
	aborts(twin_indirect, (u64)twin_read, 0, INDIRECT_CALL, "an indirect call to no function");
	aborts(twin_indirect, TEXT + 1, 0, INDIRECT_CALL, "an indirect call into a function");
	aborts(twin_indirect, 0xffff82d080001000, 0, INDIRECT_CALL, "an indirect call to the hypervisor");
	check(last.detail == 0xffff82d080001000, "the detail is %#lx", last.detail);
}

u32 load_endless(void)
{
	static u8 spin[PAGE];
	struct twin_load request = good_load();
	request.image = (u64)spin, request.flags = 0;
	request.image_bytes = make_image_of(spin, spin_code, spin_code_end, false);
	s64 result = hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0);
	check(result == 0, "loading an image that is not counted: result %ld, rule %u at %u", result, request.rule, request.offset);
	return request.twin;
}

/* A loop that is never charged ends by the time, and interrupts are served meanwhile. */
static void endless_loop_ends_by_time(void)
{
	u32 twin = load_endless();
	u64 start = now_ns();
	last = (struct twin_call){ .twin = twin, .function = TEXT };
	check_result(hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0), 0, "calling an endless loop");
	u64 took_ms = (now_ns() - start) / 1000000;
	check(last.reason == TIME_OUT && took_ms >= 100, "an endless loop: reason %u after %lu ms", last.reason, took_ms);
	check_result(unload(twin), 0, "unloading");
	/* Also if the timer fires on the way there: a timer of this vCPU's is due then. */
	for (u32 n = 0; n < 12; n++) {
		struct {
			u64 at;
			u32 flags;
		} timer = { 0, 0 };
		twin = load_endless();
		last = (struct twin_call){ .twin = twin, .function = TEXT };
		timer.at = now_ns() + (n + 1) * 2000;
		HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &timer);
		hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0);
		check(last.reason == TIME_OUT, "an endless loop beside a timer: reason %u", last.reason);
		check_result(unload(twin), 0, "unloading");
	}
}

/* Who calls a twin all the time does not put timers off. */
static void timers_fire_beside_calls(void)
{
	enum { MOST = 20000 };
	struct bind_virq virq = { 0, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "bind_virq");
	HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0);
	volatile u64 *pending = &shared_info()->pending[virq.port / 64];
	u64 bit = 1ul << virq.port % 64;
	u32 twin = load();
	for (u32 n = 0; n < 200; n++) {
		struct {
			u64 at;
			u32 flags, pad;
		} timer = { now_ns() + 300000, 0, 0 };
		u32 calls = 0;
		__atomic_fetch_and(pending, ~bit, __ATOMIC_SEQ_CST);
		HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &timer);
		while (!(*pending & bit) && calls++ < MOST)
			call_twin(twin, twin_read, (u64)&value, 0);
		check(calls < MOST, "a timer has not fired after %u calls, %lu us too late", calls, (now_ns() - timer.at) / 1000);
	}
	check_result(unload(twin), 0, "unloading");
	struct { u32 port; } close = { virq.port };
	evtchn(EVTCHN_close, &close);
}

/* What the domain enters into its root after the twin was loaded, the twin finds. */
static void later_entries(void)
{
	u8 *l1 = pages[10], *l2 = pages[11], *l3 = pages[12];
	u64 root = mfn_of((void *)start_info->pt_base);
	u64 address = 0xffff960000000000;
	u32 twin = load();
	((u64 *)l1)[0] = pte(mfn_of(&value), P | RW | US | A | D);
	((u64 *)l2)[0] = pte(mfn_of(l1), P | RW | US | A | D);
	((u64 *)l3)[0] = pte(mfn_of(l2), P | RW | US | A | D);
	make_read_only(l1), make_read_only(l2), make_read_only(l3);
	check_result(mmu_update(root * PAGE + 300 * 8, pte(mfn_of(l3), P | RW | US | A | D)), 0, "an entry of the root");
	check_result(call_twin(twin, twin_read, address + (u64)&value % PAGE, 0), 0, "a call");
	check(last.reason == RETURNED && last.result == value, "a later entry: reason %u, result %#lx", last.reason, last.result);
	/* The mirror keeps it a table when the domain takes it out. */
	check_result(mmu_update(root * PAGE + 300 * 8, 0), 0, "the entry cannot be taken out");
	check_refused(update_va(l3, pte(mfn_of(l3), P | RW | US), 2), "a table that a mirror refers to can be written");
	audit();
	check_result(unload(twin), 0, "unloading");
	make_writable(l3), make_writable(l2), make_writable(l1);
}

static void bad_loads(void)
{
	struct twin_load request;
#define REFUSED(change, expected, what)                                                                                \
	request = good_load();                                                                                         \
	change;                                                                                                        \
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -(expected), what)
	REFUSED(request.flags = 3, EINVAL, "unknown flags");
	REFUSED(request.mode = 3, EINVAL, "an unknown mode");
	REFUSED(request.mode = MODE_STLB, EACCES, "stlb mode, which the boot options do not allow");
	REFUSED(request.budget = 1000001, EINVAL, "a budget that is too large");
	REFUSED(request.image_bytes = (8 << 20) + 1, EINVAL, "an image that is too large");
	REFUSED(request.image = 0, EFAULT, "an image that is not there");
	REFUSED(request.image = 0xffff830000000000, EFAULT, "an image in the hypervisor");
	REFUSED(request.image_bytes = 100, EINVAL, "half a header");
	check(request.rule == 0, "half a header breaks rule %u", request.rule);
	REFUSED(request.root = mfn_of(pages[20]), EINVAL, "a root that is no table");
	REFUSED(request.root = 0, EINVAL, "no root");
	REFUSED(request.root = 0xfffffffff, EINVAL, "a root that does not exist");
	REFUSED(request.root = start_info->shared_info / PAGE, EINVAL, "shared_info as the root");
	REFUSED(request.percpu_stride = ~0ul, EINVAL, "per-CPU areas that wrap around");
	REFUSED(request.pad = 1, EINVAL, "an unknown flag");
	REFUSED(request.areas = 0, EDOM, "no per-CPU areas");
	check(request.twin >= 1 && request.twin <= 2, "it wants %u of them", request.twin);
	check(hypercall(HC_twin_op, TWINOP_LOAD, 0, 0, 0, 0) == -EFAULT, "a request that is not there");
	check(hypercall(HC_twin_op, 99, (u64)&request, 0, 0, 0) == -ENOSYS, "command 99");
	/* Code that breaks a rule. */
	static u8 bad[PAGE];
	u32 len = make_image_of(bad, bad_code, bad_code_end, true);
	request = good_load();
	request.image = (u64)bad, request.image_bytes = len;
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -EINVAL, "an access that is not confined");
	check(request.rule == 11 && request.offset == 2, "it breaks rule %u at %#x", request.rule, request.offset);
	request.image_bytes = make_image_of(bad, spin_code, spin_code_end, false);
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -EINVAL, "an image that should be counted");
	check(request.rule == 1, "it breaks rule %u", request.rule);
	/* Where the number cannot be written there is no twin. */
	struct twin_load *answer = (void *)pages[21];
	*answer = good_load();
	make_read_only(pages[21]);
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)answer, 0, 0, 0), -EFAULT, "an answer that cannot be written");
	make_writable(pages[21]);
	check(unload(0) == -ENOENT, "a twin whose number was not told is there");
	/* Going on with a load that is not under way. */
	for (u64 place = 0; place < 40; place += 13)
		check(hypercall(HC_twin_op, TWINOP_LOAD | (place + 1) << 8, (u64)&request, 0, 0, 0) == -ENOENT, "going on in place %lu", place);
	/* A twin whose number cannot be told does not stay. */
	struct twin_load *untold = (struct twin_load *)pages[21];
	*untold = good_load();
	make_read_only(untold);
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)untold, 0, 0, 0), -EFAULT, "a request that cannot be written");
	make_writable(untold);
	stats = (struct twin_stats){ 0 };
	check(hypercall(HC_twin_op, TWINOP_STATS, (u64)&stats, 0, 0, 0) == -ENOENT, "a twin whose number is told nobody");
	/* Twins that are not there. */
	check(unload(0) == -ENOENT && unload(31) == -ENOENT && unload(32) == -ENOENT && unload(~0u) == -ENOENT, "unloading none");
	check(call_twin(0, twin_read, 0, 0) == -ENOENT, "calling none");
	struct twin_status status = { .twin = 5 };
	check(hypercall(HC_twin_op, TWINOP_STATUS, (u64)&status, 0, 0, 0) == -ENOENT, "the status of none");
	u32 twin = load();
	last = (struct twin_call){ .twin = twin, .function = TEXT + 8 };
	check(hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0) == -ESRCH, "calling the middle of a function");
	check_result(unload(twin), 0, "unloading");
	check(unload(twin) == -ENOENT, "unloading twice");
	/* As many as one domain may have. */
	u32 nr = 0;
	for (; nr < 40; nr++) {
		request = good_load();
		if (hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0))
			break;
	}
	check(nr == MAX_TWINS_EACH, "%u twins at once", nr);
	check(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0) == -ENOSPC, "one too many");
	for (u32 n = 0; n < nr; n++)
		check_result(unload(n), 0, "unloading");
}

void test_main(void)
{
	u32 first;
	u64 before = all_pages();
	image_len = make_image(image);
	if (image_len > sizeof(image))
		error("the image is too large");
	first = load();
	check_result(call_twin(first, twin_read, (u64)&value, 0), 0, "a first call");
	check_result(unload(first), 0, "unloading");
	check(all_pages() == before, "%lu pages before the first twin, %lu afterwards", before, all_pages());
	audit();
	good_calls();
	audit();
	bad_accesses();
	bad_code_ends();
	endless_loop_ends_by_time();
	timers_fire_beside_calls();
	later_entries();
	bad_loads();
	audit();
	twins_import();
	audit();
	twins_short_of_memory();
	audit();
	twins_beside();
	audit();
	twins_unloaded_beside();
	audit();
	twins_unloaded_halfway();
	audit();
	twins_loaded_slowly();
	audit();
}
