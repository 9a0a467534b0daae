/*
 * Snapshots: a domain that is noted while it is paused can be rolled back to that in place, whatever it has done since: spoilt its memory,
 * text, page tables, descriptors, event channels, registers, given frames up and got others, and crashed; with copies that are compressed, too.
 * What keeps it from going back is told, and nothing changes then. Nobody changes its vCPUs meanwhile. No frame is lost. (cpus: 2) (vcpus: 2) (differs:
 * stock Xen has no such call)
 */
#include "snapshots.h"

const char test_name[] = "snapshots";

enum { CHILD = 5, OTHER = 6, CHANNEL_OP = 56, TAKE = 17, ROLL_BACK, DROP, STATUS, FORGET_TWINS = 23, NOTIFY = 25 };
enum { NONE, TAKING, READY };
enum { UNSETTLED = 1, FOREIGN, MAPS, CHANNEL, TWIN, LOGGED, WHY_FRAMES, HELD, PORT, GRANT };
enum { COMPRESS = 1, UNKNOWN = 2 };
enum { SHUTDOWN = 1 << 2, ROUNDS = 4 };

struct snapshot {
	u16 domid, flags;
	u32 state, why, rolled_back;
	u64 what, frames, copies, missing, found, packed, packed_bytes, packed_frames;
};
_Static_assert(sizeof(struct snapshot) == 80, "layout");

/* Pages of domain 0's, for those of the child's and for building it. */
enum { ITS_REPORT = 40, ITS_RING, ITS_PAGE, BUILDING, OTHERS, MAPS_GRANT, MORE_GRANT };
enum { PFNS = 512, START_INFO = 0, RING, P2M, TABLES, NR_TABLES = 4, EXTRA = TABLES + NR_TABLES };

static struct vcpu_context context;
static struct domctl request;
static u64 child_mfn[PFNS];
static u8 template[8][PAGE];
static struct report *report = (void *)pages[ITS_REPORT];
static u32 own_port;
static struct map grant;
extern u8 data_start[], data_end[], bss_end[], stack_top[];
void _start(void);

/*
 * Behind an IOMMU domain 0's devices reach its frames and what it maps by grants. The hypervisor has a table for each 2 MiB of memory in which there is,
 * or was, one of these: which, and how many that a grant was the first in.
 */
enum { BLOCK = 512, BLOCKS = 4096 };
static bool is_reached[BLOCKS];
static u32 nr_new_tables;

static bool is_first_in_block(u64 mfn)
{
	if (mfn / BLOCK >= BLOCKS)
		error("so much memory");
	bool is_first = !is_reached[mfn / BLOCK];
	is_reached[mfn / BLOCK] = true;
	return is_first;
}

static s64 ask_so(u32 command, struct snapshot *s, u16 domid, u16 flags)
{
	*s = (struct snapshot){ .domid = domid, .flags = flags };
	return hypercall(CHANNEL_OP, command, (u64)s, 0, 0, 0);
}

static s64 ask(u32 command, struct snapshot *s, u16 domid)
{
	return ask_so(command, s, domid, 0);
}

static s64 say_why(s64 result, const struct snapshot *s)
{
	if (result == -EBUSY || result == -EIO)
		printk("  why %u: %#lx\n", s->why, s->what);
	return result;
}

static s64 plainly(u32 command)
{
	struct snapshot s;
	return say_why(ask(command, &s, CHILD), &s);
}

static s64 take(u16 flags)
{
	struct snapshot s;
	return say_why(ask_so(TAKE, &s, CHILD, flags), &s);
}

static void pause_child(void)
{
	check_result(domctl(CHILD, DOMCTL_PAUSE, &request), 0, "pausedomain");
}

static void unpause_child(void)
{
	check_result(domctl(CHILD, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
}

/* What the child has said, if it has anything to complain of. */
static void say_what_it_said(void)
{
	const struct {
		char in[1024], out[2048];
		u32 in_cons, in_prod, out_cons, out_prod;
	} *ring = (void *)pages[ITS_RING];
	char text[200];
	u32 len = 0;
	for (u32 n = 0; n < ring->out_prod && n < sizeof(ring->out); n++) {
		text[len++] = ring->out[n];
		if (text[len - 1] == '\n' || len == sizeof(text) - 2) {
			text[len] = 0;
			printk("  it says: %s%s", text, text[len - 1] == '\n' ? "" : "\n");
			len = 0;
		}
	}
}

static bool reaches(u32 state)
{
	for (u64 until = now_ns() + 10000000000; now_ns() < until;) {
		if (report->state == state)
			return true;
		HC2(sched_op, SCHEDOP_yield, 0);
	}
	say_what_it_said();
	return check(false, "it is in state %u instead of %u", report->state, state);
}

static bool ends(void)
{
	for (u64 until = now_ns() + 10000000000; now_ns() < until;) {
		if (domain_info(CHILD, &request) == 0 && request.info.flags & SHUTDOWN)
			return true;
		HC2(sched_op, SCHEDOP_yield, 0);
	}
	say_what_it_said();
	return check(false, "it does not end: state %u", report->state);
}

static u64 extra_pfn(u32 which)
{
	return pfn_of(bss_end) + which;
}

static void *map_child(u64 pfn)
{
	check_result(map_frame_of(CHILD, pages[BUILDING], child_mfn[pfn]), 0, "mapping a page of the child");
	return pages[BUILDING];
}

static void write_tables(void)
{
	u64 first = extra_pfn(TABLES), *table;
	for (u32 level = 4; level > 1; level--) {
		table = map_child(first + 4 - level);
		memset(table, 0, PAGE);
		table[level == 4 ? 511 : level == 3 ? 510 : 0] = pte(child_mfn[first + 5 - level], P | RW | US | A | D);
	}
	table = map_child(first + 3);
	memset(table, 0, PAGE);
	for (u64 pfn = 256; pfn < extra_pfn(EXTRA); pfn++)
		table[pfn] = pte(child_mfn[pfn], pfn >= first ? P | US | A : P | RW | US | A | D);
}

static void map_grant(struct map *map, const char *what)
{
	check_result(update_va((void *)map->host_addr, 0, 2), 0, "room for a grant");
	check_result(HC3(grant_table_op, 0, map, 1), 0, "map_grant_ref");
	if (check(map->status == 0, "%s: status %d", what, map->status))
		nr_new_tables += is_first_in_block(map->bus_addr / PAGE);
}

/* A copy of this kernel, which finds that it is not domain 0. */
static void make_child(bool is_fifo)
{
	static u64 list[PFNS];
	u32 nr = extra_pfn(EXTRA) - 256;
	if (extra_pfn(EXTRA) > PFNS)
		error("this kernel is too large");
	check_result(create_domain(CHILD), 0, "createdomain");
	request.max_kib = 2048;
	check_result(domctl(CHILD, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	set_max_vcpus(CHILD);
	for (u32 n = 0; n < nr; n++)
		list[n] = 256 + n;
	check_result(populate_domain(CHILD, list, nr), nr, "its memory");
	memcpy(&child_mfn[256], list, nr * 8);
	for (u64 pfn = 256; pfn * PAGE < (u64)data_end - VIRT_BASE; pfn++) {
		u8 *from = (u8 *)(VIRT_BASE + pfn * PAGE);
		memcpy(map_child(pfn), from < data_start ? from : template[pfn - pfn_of(data_start)], PAGE);
	}
	check_result(domain_info(CHILD, &request), 0, "getdomaininfo");
	struct start_info *info = map_child(extra_pfn(START_INFO));
	memset(info, 0, PAGE);
	info->nr_pages = extra_pfn(EXTRA);
	info->shared_info = request.info.shared_info_frame * PAGE;
	info->console_mfn = info->store_mfn = child_mfn[extra_pfn(RING)];
	info->pt_base = VIRT_BASE + extra_pfn(TABLES) * PAGE;
	info->nr_pt_frames = NR_TABLES;
	info->mfn_list = VIRT_BASE + extra_pfn(P2M) * PAGE;
	memcpy(map_child(extra_pfn(P2M)), child_mfn, sizeof(child_mfn));
	write_tables();
	check_result(update_va(pages[BUILDING], 0, 2), 0, "letting its pages go");
	check_result(map_frame_of(CHILD, pages[ITS_RING], child_mfn[extra_pfn(RING)]), 0, "its console");
	check_result(map_frame_of(CHILD, report, child_mfn[pfn_of(pages[REPORT])]), 0, "its report");
	report->is_fifo = is_fifo;
	plain_context(&context, _start, stack_top);
	context.flags |= ONLINE;
	context.regs.rsi = VIRT_BASE + extra_pfn(START_INFO) * PAGE;
	context.ctrlreg[3] = child_mfn[extra_pfn(TABLES)] * PAGE;
	request.vcpu_context.vcpu = 0, request.vcpu_context.context = &context;
	check_result(domctl(CHILD, DOMCTL_SET_CONTEXT, &request), 0, "setvcpucontext");
	unpause_child();
	if (!reaches(NEEDS_PEER))
		fail();
	struct bind_interdomain bind = { CHILD, 0, report->port, 0 };
	check_result(evtchn(EVTCHN_bind_interdomain, &bind), 0, "bind_interdomain");
	own_port = bind.local_port;
	/* A grant that is in use all the time. */
	grant = (struct map){ .host_addr = (u64)pages[MAPS_GRANT], .flags = 2, .ref = GREF, .domid = CHILD, .status = 99 };
	map_grant(&grant, "mapping its grant");
	report->command = VERIFY;
	if (!reaches(AT_THE_POINT))
		fail();
}

static void unmap(struct map *map)
{
	struct unmap unmap = { .host_addr = map->host_addr, .handle = map->handle, .status = 99 };
	check_result(HC3(grant_table_op, 1, &unmap, 1), 0, "unmap_grant_ref");
	check(unmap.status == 0, "unmapping: status %d", unmap.status);
}

static void end_child(void)
{
	unmap(&grant);
	check_result(update_va(pages[ITS_RING], 0, 2), 0, "letting its console go");
	check_result(update_va(report, 0, 2), 0, "letting its report go");
	check_result(destroy_domain(CHILD), 0, "destroydomain");
	check(domain_is_gone(CHILD), "it never goes");
	struct evtchn_close { u32 port; } close = { own_port };
	evtchn(EVTCHN_close, &close);
}

static void command(u32 what)
{
	report->command = what;
	unpause_child();
}

/* Back, on, and whether it finds itself as it was. */
static void roll_back_and_verify(const char *after)
{
	check_result(domain_info(CHILD, &request), 0, "getdomaininfo");
	if (!check_result(plainly(ROLL_BACK), 0, after))
		fail();
	check_result(domain_info(CHILD, &request), 0, "getdomaininfo");
	check(!(request.info.flags & SHUTDOWN), "%s: it is still shut down", after);
	check(report->state == AT_THE_POINT && report->command == NOTHING, "%s: state %u, command %u", after, report->state, report->command);
	command(VERIFY);
	if (reaches(VERIFIED) && !check(report->failures == 0, "%s: %u things are not what they were", after, report->failures))
		say_what_it_said();
	pause_child();
}

static void lives(u16 flags)
{
	static const char *const names[] = { [SPOIL_MEMORY] = "after spoilt memory", [SPOIL_TABLES] = "after spoilt page tables",
					     [SPOIL_EVENTS] = "after spoilt event channels", [SPOIL_REGISTERS] = "after spoilt registers",
					     [SPOIL_FRAMES] = "with other frames", [SLEEP] = "asleep" };
	struct snapshot s;
	pause_child();
	check_result(take(flags), 0, "taking it");
	check_result(ask(STATUS, &s, CHILD), 0, "its status");
	check(s.state == READY && s.frames == extra_pfn(EXTRA) - 256 && s.copies > 10 && s.copies < s.frames,
	      "state %u, %lu frames, %lu copies", s.state, s.frames, s.copies);
	/* Its text shrinks, and most of its data. */
	check(flags ? s.packed > 10 && s.packed + s.found <= s.copies : s.packed == 0, "%lu of %lu copies are packed", s.packed, s.copies);
	check(s.packed_bytes <= s.packed * 3072 && s.packed_frames >= s.packed_bytes / PAGE && s.packed_frames <= s.packed, "%lu packed in %lu bytes, in %lu frames",
	      s.packed, s.packed_bytes, s.packed_frames);
	printk("%lu frames, %lu of them not zero; %lu are packed in %lu frames\n", s.frames, s.copies, s.packed, s.packed_frames);
	check_result(take(0), -EEXIST, "taking another");
	check_result(take(COMPRESS), -EEXIST, "taking another that is compressed");
	audit();
	u32 count = 0;
	for (u32 round = 0; round < ROUNDS; round++) {
		for (u32 life = SPOIL_MEMORY; life <= SLEEP; life++, count++) {
			roll_back_and_verify("alive");
			check_result(plainly(ROLL_BACK), 0, "for another life");
			command(life);
			if (life == SLEEP)
				reaches(LIVING);
			else if (!ends())
				fail();
			pause_child();
			struct { u32 port; } send = { own_port };
			check_result(evtchn(EVTCHN_send, &send), 0, "an event for a dead one");
			roll_back_and_verify(names[life]);
		}
		audit();
	}
	check_result(ask(STATUS, &s, CHILD), 0, "its status");
	check(s.rolled_back == 3 * count, "rolled back %u times of %u", s.rolled_back, 3 * count);
}

static void is_refused(u32 why, u64 what, const char *name)
{
	struct snapshot s;
	u64 before[3] = { report->state, report->command, report->seen };
	check_result(ask(ROLL_BACK, &s, CHILD), -EBUSY, name);
	check(s.why == why && s.what == what && s.state == READY, "%s: why %u, %#lx, state %u", name, s.why, s.what, s.state);
	check(before[0] == report->state && before[1] == report->command && before[2] == report->seen, "%s: it has changed", name);
	check_result(domain_info(CHILD, &request), 0, "getdomaininfo");
	check(request.info.flags & SHUTDOWN, "%s: it is not shut down any more", name);
}

static void die(u32 life)
{
	check_result(plainly(ROLL_BACK), 0, "to die otherwise");
	command(life);
	if (!ends())
		fail();
	pause_child();
}

static s64 forget_twins(u16 domid, u16 pad)
{
	struct {
		u16 domid, pad[3];
	} request = { domid, { 0, 0, pad } };
	return hypercall(CHANNEL_OP, FORGET_TWINS, (u64)&request, 0, 0, 0);
}

static s64 notify(u16 domid, u16 pad, u32 port)
{
	struct {
		u16 domid, pad;
		u32 port;
	} request = { domid, pad, port };
	return hypercall(CHANNEL_OP, NOTIFY, (u64)&request, 0, 0, 0);
}

/* An event in the child's name, which is paused, by its port that leads here. */
static void stand_in(void)
{
	u64 *word = (u64 *)&shared_info()->pending[own_port / 64], bit = 1ul << own_port % 64;
	__atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST);
	check_result(notify(CHILD, 1, report->port), -EINVAL, "notifying with bad padding");
	check_result(notify(CHILD, 0, 4000), -EINVAL, "by a port that is not there");
	check_result(notify(0, 0, own_port), -EINVAL, "in domain 0's name");
	check_result(notify(OTHER, 0, 1), -ESRCH, "in the name of no domain");
	check(!(__atomic_load_n(word, __ATOMIC_SEQ_CST) & bit), "an event has come");
	check_result(notify(CHILD, 0, report->port), 0, "notifying in its name");
	check(__atomic_load_n(word, __ATOMIC_SEQ_CST) & bit, "no event has come");
	__atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST);
	unpause_child();
	check_result(notify(CHILD, 0, report->port), -EINVAL, "notifying in the name of one that is not paused");
	pause_child();
}

static void refusals(void)
{
	struct snapshot s;
	check_result(forget_twins(CHILD, 0), 0, "forgetting the twins of one that has none");
	check_result(forget_twins(CHILD, 1), -EINVAL, "the same with bad padding");
	check_result(forget_twins(0, 0), -EINVAL, "those of domain 0");
	check_result(forget_twins(OTHER, 0), -ESRCH, "those of no domain");
	check_result(ask(TAKE, &s, 0), -EINVAL, "of domain 0");
	check_result(ask(TAKE, &s, 4000), -ESRCH, "of no domain");
	check_result(ask(ROLL_BACK, &s, OTHER), -ESRCH, "of no domain");
	for (u32 command = TAKE; command <= STATUS; command++)
		check_result(ask_so(command, &s, CHILD, command == TAKE ? UNKNOWN : COMPRESS), -EINVAL, "a flag that is not for this");
	check_result(hypercall(CHANNEL_OP, STATUS, 8, 0, 0, 0), -EFAULT, "a bad pointer");
	/* What must be a table again is held. */
	die(FREE_TABLE);
	u64 mfn = child_mfn[pfn_of(pages[PINNED_L1])];
	check_result(map_frame_of(CHILD, pages[ITS_PAGE], mfn), 0, "mapping what was a table");
	is_refused(HELD, mfn, "a table that is held");
	check_result(update_va(pages[ITS_PAGE], 0, 2), 0, "letting it go");
	roll_back_and_verify("after a table was held");
	/* A grant that nobody used then. */
	die(GRANT_MORE);
	struct map more = { .host_addr = (u64)pages[MORE_GRANT], .flags = 2, .ref = NEW_GREF, .domid = CHILD, .status = 99 };
	map_grant(&more, "mapping another grant");
	is_refused(GRANT, NEW_GREF, "a grant that is new");
	unmap(&more);
	roll_back_and_verify("after a grant was used");
	unpause_child();
	check_result(plainly(ROLL_BACK), -EINVAL, "of one that runs");
	check_result(forget_twins(CHILD, 0), -EINVAL, "forgetting the twins of one that runs");
	pause_child();
	/* A frame that it has given up, and that is mapped all the same. */
	check_result(plainly(ROLL_BACK), 0, "to give a frame up");
	check_result(map_frame_of(CHILD, pages[ITS_PAGE], child_mfn[pfn_of(pages[GIVEN_UP])]), 0, "mapping a frame");
	command(GIVE_UP);
	if (!ends())
		fail();
	pause_child();
	roll_back_and_verify("after a frame was given up");
	check_result(update_va(pages[ITS_PAGE], 0, 2), 0, "letting it go");
	roll_back_and_verify("and let go");
	/* With frames that wait for it. */
	die(SPOIL_FRAMES);
	audit();
	check_result(plainly(DROP), 0, "dropping it");
	check_result(plainly(DROP), -ENOENT, "dropping it again");
	check_result(plainly(ROLL_BACK), -ENOENT, "without one");
	check_result(ask(STATUS, &s, CHILD), 0, "its status");
	check(s.state == NONE && s.frames == 0 && s.copies == 0 && s.packed == 0 && s.packed_frames == 0, "state %u, %lu frames, %lu copies, %lu packed in %lu",
	      s.state, s.frames, s.copies, s.packed, s.packed_frames);
	check_result(plainly(TAKE), -EINVAL, "of one that has shut down");
}

/* What keeps one from being noted; and a peer that is gone. */
static void refused_to_be_taken(u16 flags)
{
	struct snapshot s;
	check_result(plainly(TAKE), -EINVAL, "of one that runs");
	((volatile u64 *)pages[OTHERS])[OTHERS_GREF] = 1 | CHILD << 16 | mfn_of(pages[ITS_PAGE]) << 32;
	report->command = MAP_OTHERS;
	reaches(VERIFIED);
	pause_child();
	check_result(ask(TAKE, &s, CHILD), -EBUSY, "of one that maps a grant");
	check(s.why == MAPS && s.state == NONE, "why %u, state %u", s.why, s.state);
	report->state = LIVING;
	unpause_child();
	reaches(AT_THE_POINT);
	report->command = UNMAP_OTHERS;
	reaches(VERIFIED);
	report->state = LIVING;
	reaches(AT_THE_POINT);
	check(report->failures == 0, "mapping a grant: %u failures", report->failures);
	pause_child();
	/* All memory is set aside for another. */
	check_result(create_domain(OTHER), 0, "createdomain");
	request.max_kib = 1ul << 40;
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	struct {
		u64 *list;
		u64 nr;
		u32 order, flags;
		u16 domid, pad[3];
	} claim = { NULL, 0, 0, 0, OTHER, { 0 } };
	for (u64 bit = 1ul << 24; bit; bit >>= 1) {
		claim.nr += bit;
		if (HC2(memory_op, 24, &claim)) {
			claim.nr -= bit;
		} else {
			u64 nr = claim.nr;
			claim.nr = 0;
			check_result(HC2(memory_op, 24, &claim), 0, "giving a claim up");
			claim.nr = nr;
		}
	}
	check_result(HC2(memory_op, 24, &claim), 0, "claiming all memory");
	check_result(ask_so(TAKE, &s, CHILD, flags), -ENOMEM, "without memory");
	check(s.missing > 0 && s.missing <= extra_pfn(EXTRA) && s.state == NONE, "missing %lu, state %u", s.missing, s.state);
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "the other never goes");
	check_result(take(flags), 0, "with memory");
	/* Its peer closes the port. */
	struct { u32 port; } close = { own_port };
	check_result(evtchn(EVTCHN_close, &close), 0, "close");
	check_result(ask(ROLL_BACK, &s, CHILD), -EBUSY, "without its peer");
	check(s.why == PORT && s.what == report->port, "why %u, %lu", s.why, s.what);
	/* It runs on, and goes with its snapshot. */
	command(SPOIL_TABLES);
	ends();
}

static u64 tsc(void)
{
	u32 low, high;
	asm volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high));
	return low | (u64)high << 32;
}

/* Empty; apart in one word; all the same; a quarter without order; all of it; pieces of four bytes without order. */
enum contents { EMPTY, APART, ALIKE, QUARTER, NOISE, PIECES };

static void fill(u64 *page, enum contents contents, u32 which)
{
	u64 seed = which;
	memset(page, 0, PAGE);
	for (u32 n = 0; n < 512; n++) {
		seed = seed * 6364136223846793005 + 1442695040888963407;
		u64 noise = seed >> 32 ^ seed << 32;
		if (contents == NOISE || (contents == QUARTER && n < 128))
			page[n] = noise;
		if (contents == PIECES)
			page[n] = (noise & 63) * 0x01030507 | ((noise >> 32 & 63) * 0x0b0d1113) << 32;
	}
	if (contents != EMPTY)
		page[511] = contents == ALIKE ? 1 : which;
}

static u64 *map_page(u64 mfn)
{
	check_result(map_frame_of(CHILD, pages[BUILDING], mfn), 0, "mapping some of it");
	return (u64 *)pages[BUILDING];
}

/* What it takes for many frames with such contents: instructions, if the machine counts them as time. */
static void measure(enum contents contents, u16 flags)
{
	enum { BATCH = 512, BATCHES = 16, ALL = BATCH * BATCHES, EACH = 61 };
	static const char *const names[] = { "empty", "apart", "alike", "a quarter noise", "noise", "pieces" };
	static u64 list[BATCH], some[ALL / EACH + 1], page[512];
	struct snapshot s;
	make_child(false);
	request.max_kib = 64 << 10;
	check_result(domctl(CHILD, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	for (u32 n = 0; n < ALL; n++) {
		if (n % BATCH == 0) {
			for (u32 m = 0; m < BATCH; m++)
				list[m] = BATCH + n + m;
			check_result(populate_domain(CHILD, list, BATCH), BATCH, "more memory");
		}
		if (n % EACH == 0)
			some[n / EACH] = list[n % BATCH];
		if (contents != EMPTY)
			fill(map_page(list[n % BATCH]), contents, n + 1);
	}
	check_result(update_va(pages[BUILDING], 0, 2), 0, "letting it go");
	pause_child();
	u64 start = tsc();
	check_result(take(flags), 0, "taking a large one");
	u64 taken = tsc() - start;
	for (u32 n = 0; n < COUNT(some); n++)
		memset(map_page(some[n]), 0x5a, PAGE);
	check_result(update_va(pages[BUILDING], 0, 2), 0, "letting it go");
	start = tsc();
	check_result(plainly(ROLL_BACK), 0, "rolling a large one back");
	u64 back = tsc() - start;
	for (u32 n = 0; n < COUNT(some); n++) {
		fill(page, contents, n * EACH + 1);
		if (!check(memcmp(map_page(some[n]), page, PAGE) == 0, "page %u is not what it was", n * EACH))
			break;
	}
	check_result(update_va(pages[BUILDING], 0, 2), 0, "letting it go");
	check_result(ask(STATUS, &s, CHILD), 0, "its status");
	check((contents != EMPTY) == (s.copies > ALL), "%lu copies of %lu frames", s.copies, s.frames);
	check((contents == ALIKE) == (s.found >= ALL - 1) && (contents == ALIKE || s.found < BATCH), "%lu of %lu copies were there", s.found, s.copies);
	bool shrinks = flags && (contents == APART || contents == QUARTER);
	check(contents == PIECES || shrinks == (s.packed >= ALL), "%lu are packed", s.packed);
	/* One word and zeroes take 64 bytes, and a quarter of a page a little more than that: three of them are in a frame. */
	if (shrinks)
		check(s.packed_frames < ALL / (contents == APART ? 60u : 3u) + 64, "%lu are packed in %lu frames", s.packed, s.packed_frames);
	start = tsc();
	check_result(plainly(DROP), 0, "dropping a large one");
	printk("%s, %s: %lu frames, %lu copies, %lu of them there already, %lu packed in %lu frames: taken in %lu time stamps, rolled back in %lu, dropped in %lu\n",
	       flags ? "compressed" : "whole", names[contents], s.frames, s.copies, s.found, s.packed, s.packed_frames, taken, back, tsc() - start);
	unpause_child();
	end_child();
}

static volatile bool is_over;
static volatile u64 nr_busy, nr_let_through, nr_others;

/* Contexts that are no good: they change nothing, whenever they are looked at. */
static void __attribute__((noreturn)) meddles(void)
{
	static struct vcpu_context bad;
	bad.regs.rip = 1ul << 63;
	while (!is_over) {
		struct domctl of_its_vcpu = { .vcpu_context.context = &bad };
		s64 result = domctl(CHILD, DOMCTL_SET_CONTEXT, &of_its_vcpu);
		if (result == -EBUSY)
			nr_busy++;
		else if (result == -EINVAL)
			nr_let_through++;
		else
			nr_others++;
	}
	go_down(1);
}

/* It goes back in many executions of the call. Between two of them nobody changes what it counts on. */
static void changed_meanwhile(void)
{
	make_child(false);
	pause_child();
	check_result(take(0), 0, "taking it");
	start_vcpu(1, meddles, pages[62]);
	u32 n = 0;
	for (; n < 300 && (!nr_busy || n < 3); n++)
		if (!check_result(plainly(ROLL_BACK), 0, "rolling it back while somebody meddles"))
			break;
	u64 until = now_ns() + 2000000000, before = nr_let_through;
	while (nr_let_through == before && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(nr_let_through != before, "its vCPUs cannot be changed any more");
	is_over = true;
	wait_until_down(1);
	printk("rolled back %u times: %lu contexts were refused meanwhile\n", n, nr_busy);
	check(nr_busy != 0, "a vCPU of a domain on its way back could be changed, %lu times", nr_let_through);
	check(nr_others == 0, "%lu results of setvcpucontext are strange", nr_others);
	roll_back_and_verify("after somebody meddled");
	check_result(plainly(DROP), 0, "dropping it");
	unpause_child();
	end_child();
}

/* The hypervisor's memory for it stays. */
static void set_up_own_grants(void)
{
	u64 frame = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		u64 *list;
	} setup = { DOMID_SELF, 0, 1, 99, &frame };
	check_result(HC3(grant_table_op, 2, &setup, 1), 0, "setup_table");
	check_result(update_va(pages[OTHERS], pte(frame, P | RW | US | A | D), 2), 0, "mapping the grant table");
}

void test_main(void)
{
	if (!is_initial_domain())
		child_main();
	memcpy(template, data_start, data_end - data_start);
	if ((u64)(data_end - data_start) > sizeof(template))
		error("too much data");
	set_upcall();
	shared_info()->vcpu[0].upcall_mask = 1;
	set_up_own_grants();
	for (u64 pfn = 0; pfn < start_info->nr_pages; pfn++)
		is_first_in_block(mfn_of_pfn(pfn));
	/* What is made when it is first needed stays. */
	changed_meanwhile();
	u64 before = all_pages();
	bool has_iommu = physinfo().capabilities & PHYSCAP_DIRECTIO;
	nr_new_tables = 0;
	audit();
	measure(EMPTY, 0);
	measure(APART, 0);
	measure(ALIKE, 0);
	for (enum contents contents = APART; contents <= PIECES; contents++)
		measure(contents, COMPRESS);
	for (u32 is_fifo = 0; is_fifo < 2; is_fifo++) {
		make_child(is_fifo);
		lives(is_fifo ? COMPRESS : 0);
		stand_in();
		refusals();
		end_child();
		make_child(is_fifo);
		refused_to_be_taken(is_fifo ? COMPRESS : 0);
		end_child();
		audit();
		s64 lost = before - all_pages(), kept = has_iommu ? nr_new_tables : 0;
		check(lost == kept, "%ld pages are gone, of which %ld are tables of an IOMMU", lost, kept);
	}
}
