/* Calls of twins, what they are lent, and what they are told to do. */
#include "twins.h"

extern const u8 twin_read[], twin_write[], twin_six[], twin_leftovers[], twin_below[], twin_variable[], twin_percpu[], twin_count[],
	twin_recurse[], twin_bug[], twin_divide[], twin_warn[], twin_indirect[], twin_deep_fault[], twin_hammer[], twin_upcall[],
	twin_upcalls[], twin_scatter[], twin_import_1[];

enum { PLACES = 6, LARGEST = 1 << 20 };

struct tally tally;
/* What waits, as this vCPU knows. */
static struct twin_call waits;

s64 twin_op(u32 cmd, void *argument)
{
	u64 start = tsc();
	s64 result = hypercall(HC_twin_op, cmd, (u64)argument, 0, 0, 0);
	u64 took = tsc() - start;
	note(result);
	if (cmd < NR_COMMANDS) {
		tally.tried[cmd]++;
		tally.done[cmd] += result == 0;
	}
	if (took > tally.longest)
		tally.longest = took;
	return result;
}

u32 some_twin(void)
{
	return up_to(32) ? up_to(PLACES) : up_to(2) ? up_to(40) : draw();
}

u64 some_address(void)
{
	static const u64 edges[] = { 0, 0x1000, 0x7fffffffefff, 0xffff800000000000, 0xffff818000000000, 0xffff82d080000000,
		0xffff830000000000, 0xffff87ffffffffff, 0xffff880000000000, 0xfffffffffffffff8, 0x800000000000, 0x0000008000000000 };
	switch (up_to(24)) {
	case 0: return edges[up_to(COUNT(edges))] - up_to(16);
	case 1: return some_value();
	case 2: return (u64)scratch_page(SCRATCH - 1) + PAGE * 2 - up_to(16);
	case 3: return (u64)scratch() - up_to(16);
	/* Where the same pages are, too. */
	case 4: return 0xffff000000000000 + ((300 + up_to(ROOTS)) << 39) + pfn_of(scratch()) * PAGE + up_to(PAGE);
	case 5: return VIRT_BASE + up_to(2 << 20);
	case 6: return draw();
	default: return (u64)scratch() + up_to(PAGE / 8) * 8;
	}
}

static u64 some_argument(void)
{
	switch (up_to(8)) {
	case 0: return up_to(64);
	case 1: return up_to(2048);
	case 2: return up_to(LARGEST + 2);
	case 3: return 0xffffea0000000000 + up_to(start_info->nr_pages + 2) * 64;
	default: return some_address();
	}
}

/* One that returns, mostly. */
static void choose(struct twin_call *call)
{
	static const u8 *const functions[] = { twin_read, twin_write, twin_six, twin_leftovers, twin_below, twin_variable, twin_percpu,
		twin_warn };
	u64 *a = call->args;
	for (u32 n = 0; n < COUNT(call->args); n++)
		a[n] = some_argument();
	switch (up_to(32)) {
	case 0: call->function = some_value(); break;
	case 1: call->function = TEXT + up_to(17 * 26); break;
	case 2: call->function = address_of(twin_count), a[0] = up_to(4) ? up_to(2000) : draw(); break;
	case 3: {
		static const u8 *const wrong[] = { twin_recurse, twin_bug, twin_divide, twin_deep_fault };
		call->function = address_of(wrong[up_to(COUNT(wrong))]), a[0] = up_to(12);
		break;
	}
	case 4: call->function = address_of(twin_indirect), a[0] = TEXT + up_to(26) * 16; break;
	case 5: case 6: call->function = address_of(twin_hammer), a[1] = up_to(400); break;
	case 7: case 8: case 9: call->function = address_of(twin_upcall); break;
	case 10: call->function = address_of(twin_upcalls), a[0] = up_to(20); break;
	case 11: case 12: case 13:
		call->function = address_of(twin_scatter);
		a[0] = up_to(4) ? (u64)scratch() : some_address();
		a[1] = up_to(8) ? PAGE - 8 : up_to(2) ? 0xffff : draw() >> up_to(64);
		a[2] = draw(), a[3] = 1 + up_to(300);
		break;
	case 14: case 15: case 16: case 17: call->function = address_of(functions[up_to(COUNT(functions))]); break;
	/* The imports. */
	default: call->function = address_of(twin_import_1) + 16 * up_to(NR_IMPORTS - 2);
	}
}

static void go_on(struct twin_call *call, u32 times)
{
	while (times-- && call->reason == UPCALL) {
		call->result = some_argument();
		if (twin_op(TWINOP_RESUME, call))
			return;
	}
	if (call->reason == UPCALL)
		waits = *call;
	else if (call->reason < NR_REASONS)
		tally.ended[call->reason]++;
}

void call_once(void)
{
	static struct twin_call call;
	memset(&call, 0, sizeof(call));
	call.twin = some_twin();
	choose(&call);
	if (up_to(64) == 0)
		((u32 *)&call)[up_to(sizeof(call) / 4)] = draw();
	s64 result = twin_op(TWINOP_CALL, &call);
	if (result == 0)
		return go_on(&call, up_to(4) ? 4 : 0);
	struct twin_name name = { call.twin, 0 };
	if (result == -EIO && up_to(2))
		twin_op(TWINOP_UNLOAD, &name);
	else if (result == -ENOENT && call.twin < PLACES)
		load_once();
	/* All instances wait: somebody has to answer. */
	else if (result == -EBUSY && up_to(2))
		resume_once();
}

void resume_once(void)
{
	static struct twin_call call;
	call = waits;
	if (up_to(2))
		call.twin = some_twin(), call.instance = up_to(8) ? up_to(board.nr_vcpus) : draw();
	if (up_to(32) == 0)
		((u32 *)&call)[up_to(sizeof(call) / 4)] = draw();
	call.reason = UPCALL;
	go_on(&call, 1 + up_to(3));
}

void unload_once(void)
{
	struct twin_name name = { some_twin(), up_to(32) ? 0 : draw() };
	twin_op(TWINOP_UNLOAD, &name);
}

void unload_all(void)
{
	for (u32 twin = 0; twin < 32; twin++) {
		struct twin_name name = { twin, 0 };
		s64 result = twin_op(TWINOP_UNLOAD, &name);
		check(result == 0 || result == -ENOENT, "unloading twin %u in the end: result %ld", twin, result);
	}
}

void lend_once(void)
{
	static struct twin_lent list[256];
	struct twin_lend lend = { some_twin(), up_to(8) ? 1 + up_to(8) : up_to(260), (u64)list };
	if (up_to(8) == 0) {
		twin_op(TWINOP_RECALL, &lend);
		return;
	}
	for (u32 n = 0; n < COUNT(list) && n < lend.count; n++) {
		u64 kind = up_to(3), of = some_address(), object = some_address(), bytes = up_to(kind == FRAGMENT ? PAGE - object % PAGE : PAGE - of % PAGE);
		list[n] = (struct twin_lent){ kind, up_to(8) ? bytes : up_to(PAGE), object, of, up_to(4), 0 };
		if (up_to(64) == 0)
			((u32 *)&list[n])[up_to(sizeof(list[n]) / 4)] = draw();
	}
	if (up_to(32) == 0)
		lend.list = some_value();
	twin_op(TWINOP_LEND, &lend);
}

void notes_once(void)
{
	static struct twin_note list[256];
	struct twin_notes notes = { some_twin(), up_to(260), up_to(8) ? (u64)list : some_value() };
	if (up_to(2)) {
		struct twin_status status = { .twin = some_twin() };
		twin_op(TWINOP_STATUS, &status);
		struct twin_stats stats = { .twin = some_twin(), .flags = up_to(4) };
		twin_op(TWINOP_STATS, &stats);
	} else if (twin_op(TWINOP_NOTES, &notes) == 0) {
		check(notes.count <= COUNT(list), "%u notes", notes.count);
	}
}

void next_once(void)
{
	static struct twin_call call;
	call = (struct twin_call){ .twin = some_twin(), .flags = up_to(32) ? up_to(2) : draw() };
	if (twin_op(TWINOP_NEXT, &call) == 0)
		go_on(&call, up_to(8) ? 4 : 0);
}

void raw_once(void)
{
	u32 cmd = up_to(4) ? up_to(NR_COMMANDS) : up_to(2) ? TWINOP_LOAD | (1 + up_to(40)) << 8 : draw() >> up_to(64);
	u64 argument = up_to(4) ? (u64)scratch() + up_to(PAGE) : some_value();
	/* What would be run with a wrong frame as its root must not have this kernel's. */
	if ((cmd & 255) == TWINOP_LOAD && cmd >> 8 == 0)
		return load_once();
	twin_op(cmd, (void *)argument);
}
