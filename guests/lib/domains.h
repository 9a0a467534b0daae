/* Other domains, made and unmade by domain 0, for the tests that need them. */
#ifndef DOMAINS_H
#define DOMAINS_H
#include "events.h"

enum { DOMCTL_CREATE = 1, DOMCTL_DESTROY, DOMCTL_PAUSE, DOMCTL_UNPAUSE, DOMCTL_INFO, DOMCTL_MAX_MEMORY = 11, DOMCTL_SET_CONTEXT,
	DOMCTL_GET_CONTEXT, DOMCTL_VCPU_INFO, DOMCTL_MAX_VCPUS };
enum { DOMINF_DYING = 1 };

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
			u64 pages, max_pages, outstanding, shared, paged, shared_info_frame;
		} info;
		struct {
			u32 vcpu, pad;
			struct vcpu_context *context;
		} vcpu_context;
		u64 max_kib;
		u32 max_vcpus;
		u64 room[16];
	};
};

static inline s64 domctl(u16 domid, u32 cmd, struct domctl *request)
{
	request->cmd = cmd;
	request->version = 0x15;
	request->domid = domid;
	return HC1(domctl, request);
}

/* Makes a domain of a MiB at most, with room for one vCPU; paused. */
static inline s64 create_domain(u16 domid)
{
	struct domctl request = { .create = { .max_vcpus = 1, .max_port = 1023, .max_grant_frames = 4, .max_maptrack_frames = 4,
					      .grant_version = 1 } };
	s64 result = domctl(domid, DOMCTL_CREATE, &request);
	request.max_kib = 1024;
	return result ? result : domctl(domid, DOMCTL_MAX_MEMORY, &request);
}

static inline s64 destroy_domain(u16 domid)
{
	struct domctl request = { 0 };
	return domctl(domid, DOMCTL_DESTROY, &request);
}

/* What getdomaininfo says of exactly this domain; -ESRCH. */
static inline s64 domain_info(u16 domid, struct domctl *request)
{
	s64 result = domctl(domid, DOMCTL_INFO, request);
	return result == 0 && request->info.domid != domid ? -ESRCH : result;
}

enum { PHYSCAP_DIRECTIO = 1 << 2 };
struct physinfo {
	u32 command, version, numbers[7], capabilities, more_capabilities, pad;
	u64 total, free, more[9];
};
_Static_assert(sizeof(struct physinfo) == 136, "physinfo");

static inline struct physinfo physinfo(void)
{
	struct physinfo info = { .command = 3, .version = 0x15 };
	check_result(HC1(sysctl, &info), 0, "physinfo");
	return info;
}

/* Free memory, in pages. */
static inline u64 free_pages(void)
{
	return physinfo().free;
}

/* With this domain's own: what it gives away and gets does not count. */
static inline u64 all_pages(void)
{
	struct domctl own = { 0 };
	check_result(domain_info(0, &own), 0, "what it is itself");
	return free_pages() + own.info.pages;
}

static inline bool domain_is_gone(u16 domid)
{
	struct domctl info = { 0 };
	for (u32 i = 0; i < 200000; i++) {
		if (domain_info(domid, &info) == -ESRCH)
			return true;
		HC2(sched_op, 0, 0);
	}
	return false;
}

enum { GIVES_BACK = 1, GETS = 6 };

/* It gets blocks of frames, or gives them back; how many. */
static inline s64 change_memory_of(u16 domid, u32 command, u64 *list, u64 nr, u32 order)
{
	struct {
		u64 *list;
		u64 nr;
		u32 order, flags;
		u16 domid, pad[3];
	} r = { list, nr, order, 0, domid, { 0 } };
	return HC2(memory_op, command, &r);
}

/* Gives it `nr` frames; how many it got. */
static inline s64 populate_domain(u16 domid, u64 *list, u64 nr)
{
	return change_memory_of(domid, GETS, list, nr, 0);
}

/* A new domain gets all memory that domains may have: `nr` blocks, which it may give back by these names, and all the rest. */
static inline void give_all_memory(u16 domid, u64 *blocks, u64 nr, u32 order)
{
	enum { LARGE = 9 };
	struct domctl most = { .max_kib = 4ul << 20 };
	u64 frame = 0, pfn = ((nr << order) + (1ul << LARGE) - 1) >> LARGE << LARGE;
	check_result(create_domain(domid), 0, "creating a domain");
	check_result(domctl(domid, DOMCTL_MAX_MEMORY, &most), 0, "max_mem");
	for (u64 n = 0; n < nr; n++)
		blocks[n] = n << order;
	check_result(change_memory_of(domid, GETS, blocks, nr, order), (s64)nr, "blocks that come back");
	for (u32 large = LARGE + 1; large--;)
		for (; frame = pfn, change_memory_of(domid, GETS, &frame, 1, large) == 1; pfn += 1ul << large)
			;
}

/* It gives a block back, which is free at once: who asks for more than there is has all of it made ready. */
static inline void give_block_back(u16 domid, u64 *block, u32 order)
{
	u64 huge = 1ul << 30;
	check_result(change_memory_of(domid, GIVES_BACK, block, 1, order), 1, "giving a block back");
	check_result(change_memory_of(domid, GETS, &huge, 1, 10), 0, "more than there is");
}

static inline s64 map_frame_of(u16 domid, void *page, u64 mfn)
{
	return HC4(update_va_mapping_otherdomain, page, pte(mfn, P | RW | US), 2, domid);
}

/* Maps the first frame of its grant table at `page`; the frame. */
static inline u64 map_grant_table_of(u16 domid, void *page)
{
	u64 frame = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		u64 *list;
	} setup = { domid, 0, 1, 99, &frame };
	if (HC3(grant_table_op, 2, &setup, 1) || setup.status || map_frame_of(domid, page, frame))
		error("the other's grant table");
	return frame;
}
static inline void set_max_vcpus(u16 domid)
{
	struct domctl request = { .max_vcpus = 1 };
	check_result(domctl(domid, DOMCTL_MAX_VCPUS, &request), 0, "max_vcpus");
}

/* Writes a page of `domid`, which is mapped nowhere afterwards. */
static inline void fill_page_of(u16 domid, u64 mfn, const void *bytes, size_t len, size_t at)
{
	check_result(map_frame_of(domid, pages[10], mfn), 0, "mapping a page of the new domain");
	memcpy(pages[10] + at, bytes, len);
	check_result(update_va(pages[10], 0, 2), 0, "unmapping it");
}

static inline void set_entry_of(u16 domid, u64 table, u32 index, u64 to, u64 flags)
{
	u64 value = pte(to, flags);
	fill_page_of(domid, table, &value, 8, index * 8);
}

/*
 * Makes a domain one that runs `code` at CODE_VA, with a page behind it that is mapped at `data`, and behind that `nr` frames of I/O memory
 * that it may use; `context` is its vCPU's, and `mfn` gets its frames.
 */
enum { L4, L3, L2, L1, CODE, DATA, FRAMES };
enum { IN_KERNEL = 4, ONLINE = 32 };
#define CODE_VA 0x400000ul
static inline void build_running_domain(u16 domid, const u8 *code, size_t len, void *data, struct vcpu_context *context, u64 *mfn,
					const u64 *io, u32 nr)
{
	static const u8 zeroes[PAGE];
	struct domctl request = { .vcpu_context.context = context };
	for (u32 i = 0; i < FRAMES; i++)
		mfn[i] = i;
	check_result(populate_domain(domid, mfn, FRAMES), FRAMES, "memory for the new domain");
	for (u32 i = 0; i < FRAMES; i++)
		fill_page_of(domid, mfn[i], zeroes, PAGE, 0);
	fill_page_of(domid, mfn[CODE], code, len, 0);
	set_entry_of(domid, mfn[L4], 0, mfn[L3], P | RW | US);
	set_entry_of(domid, mfn[L3], 0, mfn[L2], P | RW | US);
	set_entry_of(domid, mfn[L2], CODE_VA >> 21, mfn[L1], P | RW | US);
	set_entry_of(domid, mfn[L1], 0, mfn[CODE], P | US);
	set_entry_of(domid, mfn[L1], 1, mfn[DATA], P | RW | US);
	for (u32 i = 0; i < nr; i++)
		set_entry_of(domid, mfn[L1], 2 + i, io[i], P | RW | US);
	check_result(map_frame_of(domid, data, mfn[DATA]), 0, "its data");
	context->flags = IN_KERNEL | ONLINE;
	context->regs.rip = CODE_VA;
	context->regs.rsp = CODE_VA + 2 * PAGE;
	context->regs.cs = FLAT_KERNEL_CS;
	context->regs.ss = FLAT_KERNEL_SS;
	context->regs.rflags = 0x202;
	context->ctrlreg[3] = mfn[L4] * PAGE;
	check_result(domctl(domid, DOMCTL_SET_CONTEXT, &request), 0, "setvcpucontext");
}

/* One without I/O memory. The frame of the code. */
static inline u64 make_running_domain(u16 domid, const u8 *code, size_t len, void *data, struct vcpu_context *context)
{
	u64 mfn[FRAMES];
	build_running_domain(domid, code, len, data, context, mfn, NULL, 0);
	return mfn[CODE];
}

/* One that does nothing but count, at `counter`. */
static inline void make_counting_domain(u16 domid, void *counter, struct vcpu_context *context)
{
	/* lock incq CODE_VA + PAGE; pause; jmp to the start. */
	static const u8 code[] = { 0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xf3, 0x90, 0xeb, 0xf3 };
	make_running_domain(domid, code, sizeof(code), counter, context);
}

static inline bool counts(volatile u64 *counter)
{
	u64 seen = *counter, until = now_ns() + 2000000000;
	while (*counter == seen && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	return *counter != seen;
}
#endif
