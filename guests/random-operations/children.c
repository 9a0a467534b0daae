/*
 * Domains that come and go beside others: made from a copy of this kernel, as the tools would make them, on any of domain 0's
 * vCPUs, while the others pause, change, destroy and remake the same and other ones. Frames of theirs are kept mapped beyond
 * their end, so that they stay as zombies, which are destroyed again and whose parameters are set.
 */
#include "children.h"
#include "grants.h"

enum { CREATE = 1, DESTROY, PAUSE, UNPAUSE, INFO, SET_AFFINITY = 9, MAX_MEMORY = 11, SET_CONTEXT, GET_CONTEXT, VCPU_INFO,
	MAX_VCPUS_OF = 15, SCHEDULER = 16, RESUME = 27, TRIGGER = 28 };
enum { ONLINE = 1 << 5, INTERFACE = 0x15, CREDIT2 = 6, DYING = 1, SHUT_DOWN = 4, REASON_SHIFT = 16 };
enum { POPULATE = 6, SCHEDOP_remote_shutdown = 4, HOST_MAP = 2, READ_ONLY = 4, CONTAINS_PTE = 16 };

/* A child has frames for some of these. Those that its builder writes are in its window, others' at fixed places behind. */
enum { PFNS = 1024, FRAMES_END = 1 << 17, WINDOW = 0, WINDOW_PAGES = 96, PLACES = 128, NR_PLACES = 6 };
/* It is destroyed while its frame or grant is in a place of this kernel's. */
enum { NOBODY, EMPTY = ~0u };
/*
 * In ms: until a calm child has to have done something; and for how long some are left alone, for nobody would ever wait that
 * long, nor would a hostile one do much. Of the first numbers are calm ones that are, then hostile ones that are and do not end
 * themselves; the rest come and go.
 */
enum { PATIENCE_MS = 5000, TRUCE_MS = 8000 };
enum { CALM_FIRST = 2, CAREFUL_FIRST = 4 };

static struct child {
	/* The vCPU that builds it, plus one. */
	u32 builder;
	/* What it says counts: nobody writes to what it lives on, or has its vCPUs begin with each other's stacks. */
	volatile u32 is_trusted;
	/* Nobody disturbs it until then. */
	volatile u64 truce_until;
	/* Whatever may keep it from running, or stop it, is counted. */
	volatile u32 disturbed, lives;
	/* It runs undisturbed if both are what `disturbed` is. */
	volatile u32 calm_at, paused_for_watch;
	volatile u64 board_mfn, console_mfn, beats, since;
	/* That it was seen to have done. */
	volatile u64 operations;
	u32 console_at;
	u64 mfn[PFNS];
} children[CHILDREN] SHARED;

/* Does nothing to anybody; may end itself by what it does; is not disturbed for a while. */
struct nature {
	bool calm, reckless, left_alone;
};

static struct place {
	u32 handle;
	u16 domid;
	bool is_grant;
	/* Its vCPU began to take or to leave it. That may have been cut off anywhere: then nobody knows what is mapped there. */
	bool is_changing;
	u64 host_addr;
} places[MAX_VCPUS][NR_PLACES] SHARED;

static struct {
	u64 built, refused, destroyed, again, zombies, kept, beats, crashed, spoilt, operations;
} counts SHARED;

static u8 template[8][PAGE] SHARED;
extern u8 data_start[], data_end[], bss_end[];
void _start(void);

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
			u64 pages, max_pages, outstanding, shared, paged, shared_info;
		} info;
		struct {
			u32 vcpu, pad;
			u64 context;
		} context;
		struct {
			u32 vcpu, flags;
			u64 *hard;
			u32 hard_bits, pad0;
			u64 *soft;
			u32 soft_bits, pad1;
		} affinity;
		struct {
			u32 scheduler, cmd;
			u16 weight, cap;
		} scheduler;
		struct {
			u32 trigger, vcpu;
		} trigger;
		u64 max_kib;
		u32 max_vcpus;
		u64 room[16];
	};
};

static struct domctl request;
static struct vcpu_context context;

static s64 domctl(u32 cmd, u16 domid)
{
	request.cmd = cmd;
	request.version = INTERFACE;
	request.domid = domid;
	s64 result = HC1(domctl, &request);
	note(result);
	return result;
}

static u16 domid_of(const struct child *c)
{
	return 1 + (c - children);
}

static u64 ms_to_tsc(u64 ms)
{
	static u64 per_ms;
	if (!per_ms) {
		volatile struct vcpu_info *info = &shared_info()->vcpu[0];
		per_ms = info->time.mul ? (1000000ul << 32) / info->time.mul : 1000000;
		per_ms = info->time.shift < 0 ? per_ms << -info->time.shift : per_ms >> info->time.shift;
	}
	return ms * per_ms;
}

void children_init(void)
{
	memcpy(template, data_start, data_end - data_start);
	ms_to_tsc(0);
	for (u32 v = 0; v < MAX_VCPUS; v++)
		for (u32 i = 0; i < NR_PLACES; i++)
			places[v][i].handle = EMPTY;
}

/* The machine address of this vCPU's L1 entry for page `pfn` of the first 2 MiB. */
static u64 entry_of(u32 vcpu, u64 pfn)
{
	return (board.of[vcpu].entry_addresses[0] & -PAGE) + pfn * 8;
}

static void *window(u64 page)
{
	return (void *)(VIRT_BASE + (WINDOW + page) * PAGE);
}

/* Maps frames of `domid` from page `first` of the window on. */
static s64 map_frames(u16 domid, u32 first, const u64 *mfns, u32 nr)
{
	static struct {
		u64 ptr, val;
	} list[WINDOW_PAGES];
	for (u32 i = 0; i < nr; i++) {
		list[i].ptr = entry_of(me, WINDOW + first + i);
		list[i].val = mfns ? pte(mfns[i], P | RW | US | A | D) : 0;
	}
	s64 result = HC4(mmu_update, list, nr, 0, domid);
	mmuext(FLUSH_LOCAL, 0, 0);
	return result;
}

static void unmap_frames(u32 first, u32 nr)
{
	map_frames(DOMID_SELF, first, NULL, nr);
}

/* Where things are in a child, by page frame. */
enum { START_INFO, CONSOLE, P2M, P2M_PAGES = PFNS * 8 / 4096, TABLES = P2M + P2M_PAGES, NR_TABLES = 5, NR_EXTRA = TABLES + NR_TABLES };
static u64 extra_pfn(u32 which)
{
	return pfn_of(sets_start) + (sets_for(FRAMES_END) + PAGE - 1) / PAGE + which;
}

static bool has_frame(u64 pfn)
{
	const u8 *va = (u8 *)(VIRT_BASE + pfn * PAGE);
	return (pfn >= 256 && va < bss_end) || (pfn >= pfn_of(&board) && va < (u8 *)(&board + 1)) ||
	       (va >= vcpu_pages(1) && va < vcpu_pages(2)) || (va + PAGE > sets_start && pfn < extra_pfn(NR_EXTRA));
}

/* Gets memory for the child; false: there is none. */
static bool populate(struct child *c)
{
	static u64 pfns[512], list[512];
	u32 nr = 0;
	for (u64 pfn = 0; pfn < PFNS; pfn++) {
		c->mfn[pfn] = ~0ul;
		if (has_frame(pfn) && nr < COUNT(list)) {
			pfns[nr] = pfn;
			list[nr++] = pfn;
		}
	}
	struct {
		u64 *list;
		u64 nr;
		u32 order, flags;
		u16 domid, pad[3];
	} r = { list, nr, 0, 0, domid_of(c), { 0 } };
	if (HC2(memory_op, POPULATE, &r) != nr)
		return false;
	for (u32 i = 0; i < nr; i++)
		c->mfn[pfns[i]] = list[i];
	return true;
}

static char *put_word(char *at, const char *word, u64 value)
{
	while (*word)
		*at++ = *word++;
	char digits[24];
	u32 n = 0;
	do
		digits[n++] = '0' + value % 10;
	while (value /= 10);
	while (n)
		*at++ = digits[--n];
	*at++ = ' ';
	*at = 0;
	return at;
}

static void write_start_info(struct child *c, struct start_info *info, u64 shared_info, struct nature is, u64 seed)
{
	memset(info, 0, sizeof(*info));
	memcpy(info->magic, "xen-3.0-x86_64", 15);
	info->nr_pages = extra_pfn(NR_EXTRA);
	info->shared_info = shared_info * PAGE;
	info->console_mfn = info->store_mfn = c->mfn[extra_pfn(CONSOLE)];
	info->pt_base = VIRT_BASE + extra_pfn(TABLES) * PAGE;
	info->nr_pt_frames = NR_TABLES;
	info->mfn_list = VIRT_BASE + extra_pfn(P2M) * PAGE;
	char *at = put_word(info->cmd_line, "seed=", seed);
	at = put_word(at, "self=", domid_of(c));
	at = put_word(put_word(at, "peer=", 1), "peers=", CHILDREN);
	at = put_word(put_word(at, "frames=", FRAMES_END), "vcpus=", 2);
	put_word(put_word(at, "reckless=", is.reckless), "calm=", is.calm);
}

static void write_tables(struct child *c, u64 (*tables)[PAGE / 8])
{
	enum { CHILD_L4, CHILD_L3, CHILD_L2, CHILD_L1 };
	memset(tables, 0, NR_TABLES * PAGE);
	u64 first = extra_pfn(TABLES);
	for (u64 pfn = 0; pfn < PFNS; pfn++) {
		bool is_table = pfn >= first && pfn < first + NR_TABLES;
		if (c->mfn[pfn] != ~0ul)
			tables[CHILD_L1 + pfn / 512][pfn % 512] = pte(c->mfn[pfn], is_table ? P | US | A : P | RW | US | A | D);
	}
	for (u32 i = 0; i < 2; i++)
		tables[CHILD_L2][i] = pte(c->mfn[first + CHILD_L1 + i], P | RW | US | A | D);
	tables[CHILD_L3][510] = pte(c->mfn[first + CHILD_L2], P | RW | US | A | D);
	tables[CHILD_L4][511] = pte(c->mfn[first + CHILD_L3], P | RW | US | A | D);
}

/* Writes what the child begins with; false: some of it is not there any more. */
static bool fill_child(struct child *c, u64 shared_info, struct nature is, u64 seed)
{
	u32 nr_text = (data_start - (u8 *)VIRT_BASE) / PAGE - 256, nr_data = (data_end - data_start + PAGE - 1) / PAGE;
	u32 nr = nr_text + nr_data;
	u16 domid = domid_of(c);
	if (nr + NR_EXTRA > WINDOW_PAGES || nr_data > COUNT(template))
		error("the window is too small");
	if (map_frames(domid, 0, &c->mfn[256], nr) || map_frames(domid, nr, &c->mfn[extra_pfn(0)], NR_EXTRA)) {
		unmap_frames(0, nr + NR_EXTRA);
		return false;
	}
	memcpy(window(0), (u8 *)VIRT_BASE + 256 * PAGE, nr_text * PAGE);
	memcpy(window(nr_text), template, data_end - data_start);
	write_start_info(c, window(nr + START_INFO), shared_info, is, seed);
	memset(window(nr + CONSOLE), 0, PAGE);
	memcpy(window(nr + P2M), c->mfn, sizeof(c->mfn));
	write_tables(c, window(nr + TABLES));
	unmap_frames(0, nr + NR_EXTRA);
	return true;
}

static void child_context(const struct child *c)
{
	sound_context(&context, 0);
	context.flags |= ONLINE;
	context.regs.rip = (u64)_start;
	context.regs.rsi = VIRT_BASE + extra_pfn(START_INFO) * PAGE;
	context.ctrlreg[3] = c->mfn[extra_pfn(TABLES)] * PAGE;
	context.ctrlreg[1] = up_to(2) ? context.ctrlreg[3] : 0;
}

static s64 load(u16 domid, u32 vcpu)
{
	request.context.vcpu = vcpu;
	request.context.pad = 0;
	request.context.context = (u64)&context;
	return domctl(SET_CONTEXT, domid);
}

/* Nobody is to write to what it lives on. */
static void protect(const struct child *c, bool is)
{
	for (u64 pfn = 0; pfn < PFNS; pfn++)
		if (c->mfn[pfn] != ~0ul)
			put_in(VITAL, c->mfn[pfn], is);
}

static bool has_truce(const struct child *c)
{
	return tsc() < c->truce_until;
}

static s64 destroy(struct child *c)
{
	c->disturbed++;
	protect(c, false);
	s64 result = domctl(DESTROY, domid_of(c));
	if (result == 0)
		counts.destroyed++;
	return result;
}

static struct nature nature_of(const struct child *c)
{
	u32 at = c - children;
	bool is_usual = up_to(4);
	if (at < CALM_FIRST && is_usual)
		return (struct nature){ .calm = true, .left_alone = true };
	if (at < CAREFUL_FIRST && is_usual)
		return (struct nature){ .left_alone = true };
	return (struct nature){ .calm = up_to(3) == 0, .reckless = true };
}

/* Makes it, if there is none. */
static void build(struct child *c)
{
	u16 domid = domid_of(c);
	u32 begun = c->disturbed, vcpus = 1 + up_to(3);
	struct nature is = nature_of(c);
	bool is_sound = is.calm || !is.reckless || up_to(2), is_spared = is.calm || up_to(4);
	u64 seed = draw() >> 32;
	memset(&request, 0, sizeof(request));
	request.create.max_vcpus = vcpus;
	request.create.max_port = 1023;
	request.create.max_grant_frames = 4 + up_to(4);
	request.create.max_maptrack_frames = up_to(8) ? 4 : 1;
	request.create.grant_version = 1;
	if (domctl(CREATE, domid))
		return;
	c->calm_at = begun - 1;
	c->truce_until = c->operations = 0;
	c->lives++;
	c->is_trusted = is_spared;
	c->board_mfn = c->console_mfn = 0;
	c->console_at = 0;
	request.max_kib = 2048;
	domctl(MAX_MEMORY, domid);
	request.max_vcpus = vcpus;
	if (domctl(MAX_VCPUS_OF, domid) || !populate(c))
		goto refused;
	protect(c, is_spared);
	request.room[0] = 0;
	if (domctl(INFO, domid) || request.info.domid != domid || !fill_child(c, request.info.shared_info, is, seed))
		goto refused;
	child_context(c);
	if (!is_sound) {
		spoil_more(&context);
		counts.spoilt++;
	}
	if (load(domid, 0)) {
		child_context(c);
		if (load(domid, 0))
			goto refused;
	}
	c->board_mfn = c->mfn[pfn_of(&board)];
	c->console_mfn = c->mfn[extra_pfn(CONSOLE)];
	c->beats = 0;
	c->since = tsc();
	if (domctl(UNPAUSE, domid) == 0) {
		if (is.calm)
			c->calm_at = begun;
		if (is.left_alone && c->disturbed == begun)
			c->truce_until = c->since + ms_to_tsc(TRUCE_MS);
	}
	counts.built++;
	return;
refused:
	counts.refused++;
	destroy(c);
}

/* What is between the last look at it and its end is not counted. */
static void count_operations(struct child *c, u64 done)
{
	u64 before = __atomic_exchange_n(&c->operations, done, __ATOMIC_RELAXED);
	if (done > before)
		__atomic_fetch_add(&counts.operations, done - before, __ATOMIC_RELAXED);
}

/* Does the calm one get on? What have the reckless ones to say? */
static void look_after(struct child *c)
{
	u32 disturbed = c->disturbed, lives = c->lives;
	u64 frames[2] = { c->board_mfn, c->console_mfn }, beats = 0;
	u16 domid = domid_of(c);
	char text[200];
	u32 len = 0;
	bool is_calm = c->calm_at == disturbed;
	if (!frames[0] || map_frames(domid, 0, frames, 2))
		return unmap_frames(0, 2);
	const struct board *its = (struct board *)((u8 *)window(0) + (u64)&board % PAGE);
	beats = its->of[0].beats;
	count_operations(c, its->of[0].operation + its->of[1].operation);
	const struct {
		char in[1024], out[2048];
		u32 in_cons, in_prod, out_cons, out_prod;
	} volatile *ring = window(1);
	u32 said = ring->out_prod - c->console_at;
	for (u32 i = 0; i < said && i < sizeof(ring->out) && len < sizeof(text) - 1; i++)
		text[len++] = ring->out[(c->console_at + i) % sizeof(ring->out)];
	text[len] = 0;
	c->console_at += said;
	*(volatile u32 *)&ring->out_cons = c->console_at;
	unmap_frames(0, 2);
	bool has_failed = false;
	for (u32 i = 0; i + 7 < len; i++)
		has_failed |= memcmp(&text[i], "failed:", 7) == 0;
	if (has_failed && lives == c->lives && c->is_trusted)
		check(false, "child d%u: %s", domid, text);
	if (!is_calm)
		return;
	if (beats != c->beats) {
		counts.beats++;
		c->beats = beats;
		c->since = tsc();
		return;
	}
	/* In this order: others look after it, too, and begin anew. */
	u64 since = c->since;
	if (tsc() - since < ms_to_tsc(PATIENCE_MS))
		return;
	c->since = tsc();
	memset(&request, 0, sizeof(request));
	s64 result = domctl(INFO, domid);
	if (c->disturbed == disturbed && c->calm_at == disturbed)
		check(false, "child d%u, life %u, was not disturbed, but stopped after %lu beats: result %ld, domid %u, flags %#x", domid,
		      lives, beats, result, request.info.domid, request.info.flags);
}

/* Destroys those that ended themselves. */
static void bury(struct child *c)
{
	memset(&request, 0, sizeof(request));
	if (domctl(INFO, domid_of(c)) || request.info.domid != domid_of(c))
		return;
	if (request.info.flags & DYING)
		counts.zombies++;
	else if (request.info.flags & SHUT_DOWN) {
		counts.crashed += (request.info.flags >> REASON_SHIFT & 255) == 3;
		destroy(c);
	}
}

/*
 * Before a place had its handle, some other vCPU may have ended it with its own mapping of the same frame. Its own handle is good
 * for this mapping then.
 */
static bool ends_by_another_handle(const struct place *place)
{
	for (u32 handle = 0; handle < 512; handle++) {
		struct unmap u = { place->host_addr, 0, handle, 99 };
		if (!is_kept(handle) && HC3(grant_table_op, 1, &u, 1) == 0 && u.status == 0)
			return true;
	}
	return false;
}

/* Whatever is mapped there, and with whatever handle, is not any more. */
static void clear(struct place *place, u64 entry)
{
	struct unmap own = { place->host_addr, 0, place->handle, 99 };
	if (place->is_grant)
		HC3(grant_table_op, 1, &own, 1);
	place->handle = EMPTY;
	ends_by_another_handle(place);
	mmu_update(entry, 0);
}

static void leave(struct place *place, u64 entry)
{
	if (place->handle != EMPTY && place->is_grant) {
		struct unmap u = { place->host_addr, 0, place->handle, 99 };
		HC3(grant_table_op, 1, &u, 1);
		check(u.status == 0 || ends_by_another_handle(place), "a grant of d%u cannot be unmapped: %d", place->domid, u.status);
	} else {
		mmu_update(entry, 0);
	}
	place->handle = EMPTY;
}

static void take(struct place *place, u64 entry, const struct child *c)
{
	place->domid = domid_of(c);
	place->host_addr = entry;
	if (up_to(4)) {
		struct map m = { .status = 99 };
		for (u32 tries = 0; tries < 4 && m.status; tries++) {
			u32 flags = HOST_MAP | CONTAINS_PTE | (up_to(4) ? READ_ONLY : 0), ref = up_to(8) ? 8 + up_to(24) : up_to(2048);
			m = (struct map){ entry, flags, ref, place->domid, 99, EMPTY, 0 };
			HC3(grant_table_op, 0, &m, 1);
			note(m.status);
		}
		if (m.status == 0)
			place->is_grant = true, place->handle = m.handle, counts.kept++;
		return;
	}
	u64 mfn = c->mfn[256 + up_to(512)];
	struct {
		u64 ptr, val;
	} one = { entry, pte(mfn, P | US) };
	if (mfn != ~0ul && HC4(mmu_update, &one, 1, 0, place->domid) == 0)
		place->is_grant = false, place->handle = 0, counts.kept++;
}

/* One place of this vCPU is taken for a frame or a grant of the child, or left. */
static void keep_once(struct child *c)
{
	u32 at = up_to(NR_PLACES);
	struct place *place = &places[me][at];
	u64 entry = entry_of(me, PLACES + at);
	bool was_changing = __atomic_exchange_n(&place->is_changing, true, __ATOMIC_SEQ_CST);
	if (was_changing)
		clear(place, entry);
	else if (place->handle != EMPTY)
		leave(place, entry);
	else
		take(place, entry, c);
	__atomic_store_n(&place->is_changing, false, __ATOMIC_SEQ_CST);
}

static void change(struct child *c)
{
	u16 domid = domid_of(c);
	u64 mask = draw() >> up_to(64);
	memset(&request, 0, sizeof(request));
	switch (up_to(8)) {
	case 0: case 1:
		request.scheduler.scheduler = CREDIT2;
		request.scheduler.weight = 1 + up_to(1000);
		request.scheduler.cap = up_to(4) ? 0xffff : 0;
		domctl(SCHEDULER, domid);
		break;
	case 2: case 3:
		request.affinity.vcpu = up_to(3);
		request.affinity.flags = 1 + up_to(3);
		request.affinity.hard = request.affinity.soft = &mask;
		request.affinity.hard_bits = request.affinity.soft_bits = 64;
		domctl(SET_AFFINITY, domid);
		break;
	case 4:
		if (has_truce(c))
			break;
		request.trigger.vcpu = up_to(3);
		c->disturbed++;
		domctl(TRIGGER, domid);
		break;
	case 5:
		request.context.vcpu = up_to(3);
		domctl(VCPU_INFO, domid);
		break;
	case 6:
		request.context.vcpu = up_to(3);
		request.context.context = (u64)&context;
		domctl(GET_CONTEXT, domid);
		break;
	default:
		request.max_kib = up_to(4096);
		domctl(MAX_MEMORY, domid);
	}
}

static void stop_and_go(struct child *c)
{
	u16 domid = domid_of(c);
	u32 remote[2] = { domid, up_to(6) };
	if (up_to(2)) {
		/* What it is told to do twice is undone twice, so this disturbs nobody for long. */
		s64 result = domctl(PAUSE, domid);
		for (u64 until = tsc() + up_to(200000); tsc() < until;)
			asm volatile("pause");
		if (result == 0)
			domctl(UNPAUSE, domid);
		return;
	}
	if (has_truce(c))
		return;
	c->disturbed++;
	switch (up_to(4)) {
	case 0: note(HC2(sched_op, SCHEDOP_remote_shutdown, remote)); break;
	case 1: domctl(RESUME, domid); break;
	case 2: domctl(PAUSE, domid); break;
	default: domctl(UNPAUSE, domid);
	}
}

/* Another context for a vCPU that perhaps runs, or none. */
static void reload(struct child *c)
{
	if (has_truce(c))
		return;
	c->disturbed++;
	c->is_trusted = false;
	child_context(c);
	if (up_to(4))
		spoil_more(&context);
	if (up_to(4)) {
		load(domid_of(c), up_to(3));
		return;
	}
	memset(&request, 0, sizeof(request));
	request.context.vcpu = up_to(3);
	domctl(SET_CONTEXT, domid_of(c));
}

bool is_kept(u32 handle)
{
	/* A child has no places. */
	for (u32 v = 0; v < MAX_VCPUS && is_initial_domain(); v++)
		for (u32 i = 0; i < NR_PLACES; i++)
			if (places[v][i].handle == handle && places[v][i].is_grant)
				return true;
	return false;
}

void children_once(void)
{
	u64 nr = number_after("children=", CHILDREN);
	if (nr == 0)
		return;
	struct child *c = &children[up_to(nr)];
	switch (up_to(16)) {
	case 0: case 1: case 2: case 3:
		if (__atomic_exchange_n(&c->builder, me + 1, __ATOMIC_ACQUIRE) == 0) {
			build(c);
			__atomic_store_n(&c->builder, 0, __ATOMIC_RELEASE);
		}
		break;
	case 4:
		for (u32 times = 1 + up_to(3); times-- && !has_truce(c);)
			destroy(c);
		break;
	case 5: case 6: keep_once(c); break;
	case 7: case 8: change(c); break;
	case 9: stop_and_go(c); break;
	case 10: reload(c); break;
	case 11: bury(c); break;
	default: look_after(c);
	}
}

void leave_children(void)
{
	for (u32 i = 0; i < CHILDREN; i++)
		if (children[i].builder == me + 1)
			children[i].builder = 0;
}

static bool is_paused_for_watch;

void pause_children(void)
{
	for (u32 i = 0; i < CHILDREN; i++)
		children[i].paused_for_watch = domctl(PAUSE, domid_of(&children[i])) == 0;
	is_paused_for_watch = true;
}

void unpause_children(void)
{
	if (!is_paused_for_watch)
		return;
	is_paused_for_watch = false;
	for (u32 i = 0; i < CHILDREN; i++) {
		children[i].since = tsc();
		if (children[i].paused_for_watch)
			domctl(UNPAUSE, domid_of(&children[i]));
	}
}

void end_children(void)
{
	/* What all vCPUs have mapped. */
	for (u32 v = 0; v < board.nr_vcpus; v++) {
		for (u32 i = 0; i < NR_PLACES; i++) {
			struct place *place = &places[v][i];
			(place->is_changing ? clear : leave)(place, entry_of(v, PLACES + i));
		}
		for (u32 i = 0; v && i < WINDOW_PAGES; i++)
			mmu_update(entry_of(v, WINDOW + i), 0);
		for (u32 i = 0; v && i < SCRATCH; i++)
			mmu_update(board.of[v].entry_addresses[i], 0);
	}
	mmuext(FLUSH_LOCAL, 0, 0);
	for (u32 i = 0; i < CHILDREN; i++)
		destroy(&children[i]);
	for (u32 i = 0; i < CHILDREN; i++) {
		s64 result = 0;
		u16 domid = domid_of(&children[i]);
		for (u64 until = tsc() + ms_to_tsc(PATIENCE_MS); tsc() < until;) {
			result = domctl(INFO, domid);
			if (result == -ESRCH || (result == 0 && request.info.domid != domid))
				break;
			destroy(&children[i]);
			result = 0;
		}
		check(result == -ESRCH || request.info.domid != domid, "child d%u is never gone: %lu pages", domid, request.info.pages);
	}
}

void say_children(void)
{
	printk("  children: %lu built (%lu with a context that was spoilt, %lu not finished), %lu destroyed, %lu crashed, seen %lu times as "
	       "zombies, %lu of their frames kept, %lu looks at calm ones, %lu operations at least\n",
	       counts.built, counts.spoilt, counts.refused, counts.destroyed, counts.crashed, counts.zombies, counts.kept, counts.beats,
	       counts.operations);
}
