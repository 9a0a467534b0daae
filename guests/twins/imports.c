/* What a twin calls outside of its image: functions of the domain, and routines of the hypervisor's on the domain's structures. */
#include "twins.h"

extern const u8 twin_full[], twin_upcall[], twin_upcalls[], twin_lock_upcall[], twin_read[], twin_import_1[], twin_import_2[], twin_import_3[], twin_import_4[],
	twin_import_5[], twin_import_6[], twin_import_7[];

/* Where the pretended kernel has its members: eight bytes each, in the order of the interface; then the sizes. */
enum { SKB_LEN = 4 * 8, SKB_HEAD = 17 * 8, SKB_DATA = 18 * 8, SKB_USERS = 20 * 8, QUEUE_STATE = 36 * 8, PAGE_BYTES = 64, INFO_BYTES = 320 };
/* Its page structures: nothing is there. */
#define VMEMMAP 0xffffea0000000000ul

static u32 offsets[NR_OFFSETS];
static struct twin_call last;

static struct twin_kernel good_kernel(void)
{
	for (u32 n = 0; n < NR_OFFSETS - 3; n++)
		offsets[n] = 8 * n;
	offsets[NR_OFFSETS - 3] = 512;
	offsets[NR_OFFSETS - 2] = INFO_BYTES;
	offsets[NR_OFFSETS - 1] = PAGE_BYTES;
	return (struct twin_kernel){ .vmalloc_start = 0xffffc90000000000, .vmalloc_end = 0xffffe90000000000, .vmemmap = VMEMMAP,
		.jiffies = (u64)pages[0], .p2m = start_info->mfn_list, .p2m_frames = start_info->nr_pages, .offsets = (u64)offsets,
		.nr_offsets = NR_OFFSETS };
}

u32 load_with_kernel(void)
{
	struct twin_kernel kernel = good_kernel();
	struct twin_load request = good_load();
	request.kernel = (u64)&kernel;
	s64 result = hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0);
	check(result == 0, "loading with a kernel: result %ld, rule %d at %#x", result, (int)request.rule, request.offset);
	return request.twin;
}

static s64 call(u32 twin, const void *function, u64 a, u64 b, u64 c, u64 d)
{
	last = (struct twin_call){ .twin = twin, .function = address_of(function), .args = { a, b, c, d, 5, 6 } };
	return hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0);
}

static s64 go_on(u64 result)
{
	last.result = result;
	return hypercall(HC_twin_op, TWINOP_RESUME, (u64)&last, 0, 0, 0);
}

static void returned(u64 expected, const char *what)
{
	check(last.reason == RETURNED && last.result == expected, "%s: reason %u, result %#lx, detail %#lx", what, last.reason, last.result,
	      last.detail);
}

static void upcalls(void)
{
	u32 twin = load();
	check_result(call(twin, twin_upcall, 1, 2, 3, 4), 0, "a call that waits");
	check(last.reason == UPCALL && last.detail == IMPORTED && last.offset == 0, "it waits: reason %u, for %#lx", last.reason, last.detail);
	for (u32 n = 0; n < 6; n++)
		check(last.args[n] == n + 1, "argument %u of the upcall is %lu", n, last.args[n]);
	check(last.more[0] == 77 && last.more[1] == 78, "on the stack are %lu and %lu", last.more[0], last.more[1]);
	for (u32 n = 2; n < 4; n++)
		check(last.more[n] >> 40 != 0xffff82 >> 0 && last.more[n] >> 39 != 0x1fffe << 7, "the stack shows %#lx", last.more[n]);
	struct twin_call waits = last;
	/* Another instance serves meanwhile. */
	u64 value = 99;
	check_result(call(twin, twin_read, (u64)&value, 0, 0, 0), 0, "a call while another waits");
	returned(99, "a call while another waits");
	last = waits;
	check_result(go_on(1000), 0, "going on");
	returned(1001, "going on");
	check(go_on(1) == -ENOENT, "going on twice");
	last.instance = 1000;
	check(go_on(1) == -ENOENT, "going on where nothing is");
	last = waits;
	last.flags = 1;
	check(go_on(1) == -EINVAL, "unknown flags");
	/* One after the other in one invocation. */
	check_result(call(twin, twin_upcalls, 1000, 0, 0, 0), 0, "many upcalls");
	u32 nr = 0;
	for (; last.reason == UPCALL && nr < 2000; nr++)
		check_result(go_on(last.args[0]), 0, "going on");
	check(nr == 1000, "%u upcalls instead of 1000", nr);
	returned(500500, "many upcalls");
	check(last.steps == 2000, "%u steps", last.steps);
	/* What the hypervisor could serve, the domain does if it does not describe its kernel. */
	check_result(call(twin, twin_import_3, (u64)&value, 0, 0, 0), 0, "a lock");
	check(last.reason == UPCALL && last.detail == IMPORTED + 3 * 16, "a lock: reason %u, for %#lx", last.reason, last.detail);
	/* It is unloaded while that waits. */
	check_result(unload(twin), 0, "unloading");
	check(go_on(0) == -ENOENT, "going on in a twin that is gone");
}

/* When none is left that does not wait. */
static void instances_end(void)
{
	struct twin_call waits;
	u32 twin = load(), nr = 0;
	for (; nr < 64 && !call(twin, twin_upcall, 0, 0, 0, 0); nr++)
		waits = last;
	check(nr >= 1 && nr < 64, "%u invocations wait", nr);
	check(call(twin, twin_upcall, 0, 0, 0, 0) == -EBUSY, "one more");
	u64 end = now_ns() + UPCALL_LIMIT_NS + 100000000;
	while (now_ns() < end)
		;
	check(call(twin, twin_upcall, 0, 0, 0, 0) == -EBUSY, "one more, later");
	check(call(twin, twin_upcall, 0, 0, 0, 0) == -EIO, "a twin whose upcalls do not return");
	last = waits;
	check(go_on(0) == -EIO, "an upcall that returns too late");
	check_result(unload(twin), 0, "unloading");
}

/* An invocation waits with a lock of the domain's. */
static u32 load_and_wait_with(volatile u32 *lock)
{
	u32 twin = load_with_kernel();
	*lock = 0;
	check_result(call(twin, twin_lock_upcall, (u64)lock, 0, 0, 0), 0, "a call that waits with a lock");
	check(last.reason == UPCALL && last.detail == IMPORTED && *lock == 1, "it waits: reason %u, the lock is %#x", last.reason, *lock);
	return twin;
}

/* Whoever wants the lock would spin for ever when what has it never goes on. */
static void locks_of_what_waits(void)
{
	volatile u32 *lock = (u32 *)pages[42];
	u32 twin = load_and_wait_with(lock);
	check_result(go_on(7), 0, "going on with a lock");
	returned(7, "going on with a lock");
	check(*lock == 0, "the lock that it released is %#x", *lock);
	check_result(unload(twin), 0, "unloading");
	twin = load_and_wait_with(lock);
	check_result(unload(twin), 0, "unloading while it waits with a lock");
	check(*lock == 0, "the lock that it had when the twin was unloaded is %#x", *lock);
	twin = load_and_wait_with(lock);
	struct twin_call waits = last;
	call(twin, twin_import_3, 0xffff830000000000, 0, 0, 0);
	check(last.reason == MEMORY, "an abort beside what waits: reason %u", last.reason);
	check(*lock == 0, "the lock that it had when the twin was aborted is %#x", *lock);
	last = waits;
	check(go_on(0) == -EIO, "going on in a twin that was aborted");
	check_result(unload(twin), 0, "unloading");
}

static s64 lend(u32 twin, struct twin_lent what)
{
	struct twin_lend request = { twin, 1, (u64)&what };
	return hypercall(HC_twin_op, TWINOP_LEND, (u64)&request, 0, 0, 0);
}

static u32 notes(u32 twin, struct twin_note *list, u32 room)
{
	struct twin_notes request = { twin, room, (u64)list };
	check_result(hypercall(HC_twin_op, TWINOP_NOTES, (u64)&request, 0, 0, 0), 0, "fetching notes");
	return request.count;
}

static void routines(void)
{
	u8 *skb = pages[40], *buffer = pages[41];
	volatile u32 *lock = (u32 *)pages[42];
	struct twin_note list[4];
	u32 twin = load_with_kernel();
	memset(skb, 0xee, PAGE);
	*(u32 *)(skb + SKB_USERS) = 2;
	/* Buffers. */
	call(twin, twin_import_1, 1, 1000, 0, 0);
	returned(0, "a buffer from an empty pool");
	check_result(lend(twin, (struct twin_lent){ SKB, PAGE, (u64)skb, (u64)buffer, 0, 0 }), 0, "lending");
	call(twin, twin_import_1, 0x4444, 1000, 0, 0);
	returned((u64)skb, "a buffer");
	check(*(u64 *)(skb + SKB_HEAD) == (u64)buffer && *(u64 *)(skb + SKB_DATA) == (u64)buffer + 64, "head %#lx, data %#lx",
	      *(u64 *)(skb + SKB_HEAD), *(u64 *)(skb + SKB_DATA));
	check(*(u32 *)(skb + SKB_LEN) == 0 && *(u32 *)(skb + SKB_USERS) == 2, "users %u", *(u32 *)(skb + SKB_USERS));
	call(twin, twin_import_1, 1, 1000, 0, 0);
	returned(0, "a second one");
	call(twin, twin_import_2, (u64)skb, 0, 0, 0);
	returned(0, "giving it back");
	check(*(u32 *)(skb + SKB_USERS) == 2, "users at home: %u", *(u32 *)(skb + SKB_USERS));
	/* Buffers that it does not use go back, the others when they come home. */
	struct twin_lent back[3];
	struct twin_lend recall = { twin, 3, (u64)back };
	check_result(lend(twin, (struct twin_lent){ FRAGMENT, PAGE, (u64)pages[43], VMEMMAP, 2, 0 }), 0, "lending a fragment");
	call(twin, twin_import_1, 0x4444, 1000, 0, 0);
	check_result(hypercall(HC_twin_op, TWINOP_RECALL, (u64)&recall, 0, 0, 0), 0, "taking back");
	check(recall.count == 1 && back[0].kind == FRAGMENT && back[0].object == (u64)pages[43], "back came %u, first %u %#lx", recall.count,
	      back[0].kind, back[0].object);
	call(twin, twin_import_2, (u64)skb, 0, 0, 0);
	recall.count = 3;
	check_result(hypercall(HC_twin_op, TWINOP_RECALL, (u64)&recall, 0, 0, 0), 0, "taking back again");
	check(recall.count == 1 && back[0].kind == SKB && back[0].object == (u64)skb, "back came %u, first %u %#lx", recall.count, back[0].kind,
	      back[0].object);
	call(twin, twin_import_1, 1, 1000, 0, 0);
	returned(0, "a buffer from a pool that was emptied");
	check_result(lend(twin, (struct twin_lent){ SKB, PAGE, (u64)skb, (u64)buffer, 0, 0 }), 0, "lending again");
	/* What was not lent is the domain's to free. */
	check(notes(twin, list, 4) == 0, "notes of nothing");
	call(twin, twin_import_2, 0x1234, 0, 0, 0);
	call(twin, twin_import_2, 0x5678, 0, 0, 0);
	check(notes(twin, list, 1) == 1 && list[0].kind == FREE_SKB && list[0].object == 0x1234, "a note: %u %#lx", list[0].kind, list[0].object);
	check(notes(twin, list, 4) == 1 && list[0].object == 0x5678, "the next note: %#lx", list[0].object);
	/* Locks. One that it takes and keeps nobody else would release. */
	u32 keeps = load_with_kernel();
	*lock = 0;
	call(keeps, twin_import_3, (u64)lock, 0, 0, 0);
	check(last.reason == LOCK && last.detail == (u64)lock && last.original == address_of(twin_import_3),
	      "keeping a lock: reason %u, at %#lx", last.reason, last.original);
	check(*lock == 0, "the lock that it kept is %#x", *lock);
	check_result(unload(keeps), 0, "unloading");
	*lock = 1;
	call(twin, twin_import_4, (u64)lock, 0, 0, 0);
	returned(0, "giving it back");
	check(*lock == 0, "the lock is %#x", *lock);
	*lock = 3;
	call(twin, twin_import_4, (u64)lock, 0, 0, 0);
	check(last.reason == UPCALL && last.detail == IMPORTED + 4 * 16, "a lock with the slow mark: reason %u", last.reason);
	check_result(go_on(0), 0, "going on");
	/* Addresses for the device. */
	u64 pfn = pfn_of(skb);
	call(twin, twin_import_5, 0, VMEMMAP + pfn * PAGE_BYTES, 16, 100);
	returned(mfn_of(skb) * PAGE + 16, "the address of a page");
	call(twin, twin_import_5, 0, VMEMMAP + start_info->nr_pages * PAGE_BYTES, 0, 100);
	returned(~0ul, "a page beyond the list");
	u64 *entry = &((u64 *)start_info->mfn_list)[pfn], mfn = *entry;
	static const u64 not_its_own[] = { 0, 1, 0xfffff, 1ul << 40, 1ul << 62, 1ul << 63, ~0ul };
	for (u32 n = 0; n < COUNT(not_its_own); n++) {
		*entry = not_its_own[n];
		call(twin, twin_import_5, 0, VMEMMAP + pfn * PAGE_BYTES, 0, 100);
		returned(~0ul, "a page of somebody else");
	}
	*entry = mfn;
	/* Queues. */
	*(u64 *)(skb + QUEUE_STATE) = 1;
	call(twin, twin_import_6, (u64)skb, 0, 0, 0);
	check(*(u64 *)(skb + QUEUE_STATE) == 0 && notes(twin, list, 4) == 1 && list[0].kind == QUEUE && list[0].object == (u64)skb,
	      "a queue that goes on");
	/* What the domain's kernel has to know of. */
	call(twin, twin_import_7, 1, (u64)skb, 0, 0);
	check(last.reason == UPCALL && last.detail == IMPORTED + 7 * 16 && last.args[1] == (u64)skb, "a received packet: reason %u", last.reason);
	check_result(go_on(3), 0, "going on");
	returned(3, "a received packet");
	/* What ends a twin. */
	call(twin, twin_import_2, (u64)skb, 0, 0, 0);
	check(last.reason == STRUCTURE && last.detail == (u64)skb, "freeing twice: reason %u", last.reason);
	check_result(unload(twin), 0, "unloading");
	twin = load_with_kernel();
	*lock = 1;
	call(twin, twin_import_3, (u64)lock, 0, 0, 0);
	check(last.reason == LOCK && last.detail == (u64)lock, "a lock that stays taken: reason %u", last.reason);
	check_result(unload(twin), 0, "unloading");
	twin = load_with_kernel();
	call(twin, twin_import_3, 0xffff830000000000, 0, 0, 0);
	check(last.reason == MEMORY, "a lock in the hypervisor: reason %u", last.reason);
	check_result(unload(twin), 0, "unloading");
	twin = load_with_kernel();
	u32 nr = 0;
	while (!call(twin, twin_import_2, 0x1234, 0, 0, 0) && last.reason == RETURNED && nr < 10000)
		nr++;
	check(last.reason == STRUCTURE && nr == 8192, "%u notes that nobody fetches: reason %u", nr, last.reason);
	check_result(unload(twin), 0, "unloading");
}

static void bad_requests(void)
{
	struct twin_kernel kernel;
	struct twin_load request;
#define REFUSED(change, expected, what)                                                                                \
	request = good_load(), kernel = good_kernel(), request.kernel = (u64)&kernel;                                  \
	change;                                                                                                        \
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -(expected), what)
	REFUSED(request.kernel = 8, EFAULT, "a kernel that is not there");
	REFUSED(kernel.flags = 1, EINVAL, "unknown flags of a kernel");
	REFUSED(kernel.nr_sleepers = 1025, EINVAL, "too many that sleep");
	REFUSED(kernel.sleeper_bytes = 257, EINVAL, "too large ones that sleep");
	REFUSED(kernel.nr_offsets--, EINVAL, "too few offsets");
	REFUSED(kernel.nr_offsets++, EINVAL, "too many offsets");
	REFUSED(kernel.offsets = 8, EFAULT, "offsets that are not there");
	REFUSED(offsets[5] = 65537, EINVAL, "an offset that is too large");
	u32 twin = load_with_kernel();
	struct twin_lent skb = { SKB, PAGE, (u64)pages[40], (u64)pages[41], 0, 0 };
#define NOT_LENT(change, what)                                                                                         \
	{                                                                                                              \
		struct twin_lent bad = skb;                                                                            \
		change;                                                                                                \
		check_result(lend(twin, bad), -EINVAL, what);                                                          \
	}
	NOT_LENT(bad.kind = 3, "an unknown kind");
	/* Its page is as it was. */
	memset(pages[41], 0, PAGE);
	make_read_only(pages[41]);
	check_result(mmuext(PIN_L1, mfn_of(pages[41]), 0), 0, "making a page that was not lent a table");
	mmuext(UNPIN, mfn_of(pages[41]), 0);
	make_writable(pages[41]);
	NOT_LENT(bad.bytes = 0, "an empty buffer");
	NOT_LENT(bad.bytes = (1 << 20) + 1, "a huge buffer");
	NOT_LENT(bad.flags = 1, "unknown flags of a buffer");
	/* Address 0 says that there is none. */
	NOT_LENT(bad.object = 0, "an sk_buff at 0");
	NOT_LENT(bad.of = 0, "a buffer at 0");
	NOT_LENT((bad.kind = BARE_SKB, bad.object = 0), "a bare sk_buff at 0");
	NOT_LENT((bad.kind = FRAGMENT, bad.object = 0), "a fragment at 0");
	struct twin_lend many = { twin, 257, (u64)&skb };
	check(hypercall(HC_twin_op, TWINOP_LEND, (u64)&many, 0, 0, 0) == -E2BIG, "too many at once");
	many = (struct twin_lend){ twin, 2, 8 };
	check(hypercall(HC_twin_op, TWINOP_LEND, (u64)&many, 0, 0, 0) == -EFAULT, "a list that is not there");
	check(hypercall(HC_twin_op, TWINOP_RECALL, (u64)&(struct twin_lend){ twin, 257, 8 }, 0, 0, 0) == -E2BIG, "too many back at once");
	check(hypercall(HC_twin_op, TWINOP_RECALL, (u64)&(struct twin_lend){ 31, 1, 8 }, 0, 0, 0) == -ENOENT, "back from none");
	many = (struct twin_lend){ 31, 1, (u64)&skb };
	check(hypercall(HC_twin_op, TWINOP_LEND, (u64)&many, 0, 0, 0) == -ENOENT, "lending to none");
	u32 nr = 0;
	s64 result = 0;
	for (; nr < 10000 && !result; nr++)
		result = lend(twin, (struct twin_lent){ BARE_SKB, 0, 0x1000 * (u64)(nr + 1), 0, 0, 0 });
	check(result == -ENOSPC && nr == 8193, "lending the %uth: %ld", nr, result);
	struct twin_notes far = { twin, 257, (u64)&skb };
	check(hypercall(HC_twin_op, TWINOP_NOTES, (u64)&far, 0, 0, 0) == -E2BIG, "too many notes at once");
	check_result(unload(twin), 0, "unloading");
}

static u32 reason_at(u64 depth, u64 kind)
{
	u32 twin = load_with_kernel();
	check_result(call(twin, twin_full, depth, kind, 0, 0), 0, "a deep call");
	check_result(unload(twin), 0, "unloading");
	return last.reason;
}

/* Where there is room for the return address of a call and for nothing else, an import can be called as any function. */
static void full_stack(void)
{
	enum { OWN = 0, IMPORT = 1000 };
	u64 fits = 1, too_deep = 8192;
	while (too_deep - fits > 1) {
		u64 depth = (fits + too_deep) / 2;
		*(reason_at(depth, OWN) == RETURNED ? &fits : &too_deep) = depth;
	}
	check(fits > 4000, "the stack has room for %lu calls", fits);
	u32 at_end = reason_at(fits, IMPORT), beyond = reason_at(too_deep, IMPORT), own_beyond = reason_at(too_deep, OWN);
	check(at_end == RETURNED, "an import at depth %lu: reason %u, detail %#lx", fits, at_end, last.detail);
	check(beyond == STACK && own_beyond == STACK, "too deep: reasons %u and %u", beyond, own_beyond);
}

void twins_import(void)
{
	full_stack();
	upcalls();
	instances_end();
	locks_of_what_waits();
	routines();
	bad_requests();
}
