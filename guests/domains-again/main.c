/*
 * What domains leave behind when they go, and what the next ones get: nothing that is done to a domain that is dead but for what
 * others map concerns those that come after it.
 */
#include "domains.h"

const char test_name[] = "domains-again";

enum { FIRST = 5, SECOND = 6, THIRD = 7 };
enum { IN_KERNEL = 4, ONLINE = 32 };
enum { L4, L3, L2, L1, CODE, DATA, FRAMES };
#define CODE_VA 0x400000ul

static struct vcpu_context context;

/* Writes a page of `domid`, which is mapped nowhere afterwards. */
static void fill(u16 domid, u64 mfn, const void *bytes, size_t len, size_t at)
{
	check_result(map_frame_of(domid, pages[10], mfn), 0, "mapping a page of the new domain");
	memcpy(pages[10] + at, bytes, len);
	check_result(update_va(pages[10], 0, 2), 0, "unmapping it");
}

static void entry(u16 domid, u64 table, u32 index, u64 to, u64 flags)
{
	u64 value = pte(to, flags);
	fill(domid, table, &value, 8, index * 8);
}

/* A domain that does nothing but count, in its second page, which is mapped at `counter`. */
static void make_counting_domain(u16 domid, void *counter)
{
	/* lock incq CODE_VA + PAGE; pause; jmp to the start. */
	static const u8 code[] = { 0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xf3, 0x90, 0xeb, 0xf3 };
	static const u8 zeroes[PAGE];
	struct domctl request = { 0 };
	u64 mfn[FRAMES] = { 0, 1, 2, 3, 4, 5 };
	check_result(populate_domain(domid, mfn, FRAMES), FRAMES, "memory for the new domain");
	for (u32 i = 0; i < FRAMES; i++)
		fill(domid, mfn[i], zeroes, PAGE, 0);
	fill(domid, mfn[CODE], code, sizeof(code), 0);
	entry(domid, mfn[L4], 0, mfn[L3], P | RW | US);
	entry(domid, mfn[L3], 0, mfn[L2], P | RW | US);
	entry(domid, mfn[L2], CODE_VA >> 21, mfn[L1], P | RW | US);
	entry(domid, mfn[L1], 0, mfn[CODE], P | US);
	entry(domid, mfn[L1], 1, mfn[DATA], P | RW | US);
	check_result(map_frame_of(domid, counter, mfn[DATA]), 0, "its counter");
	context.flags = IN_KERNEL | ONLINE;
	context.regs.rip = CODE_VA;
	context.regs.rsp = CODE_VA + 2 * PAGE;
	context.regs.cs = FLAT_KERNEL_CS;
	context.regs.ss = FLAT_KERNEL_SS;
	context.regs.rflags = 0x202;
	context.ctrlreg[3] = mfn[L4] * PAGE;
	request.vcpu_context.context = &context;
	check_result(domctl(domid, DOMCTL_SET_CONTEXT, &request), 0, "setvcpucontext");
}

static bool counts(volatile u64 *counter)
{
	u64 seen = *counter, until = now_ns() + 2000000000;
	while (*counter == seen && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	return *counter != seen;
}

static void max_vcpus(u16 domid)
{
	struct domctl request = { .max_vcpus = 1 };
	check_result(domctl(domid, DOMCTL_MAX_VCPUS, &request), 0, "max_vcpus");
}

/* The vCPUs of a domain that comes after one that is destroyed, again and again, are its own. */
static void vcpus_of_the_next(void)
{
	struct domctl request = { 0 };
	u64 frame = 0;
	check_result(create_domain(FIRST), 0, "createdomain");
	max_vcpus(FIRST);
	check_result(populate_domain(FIRST, &frame, 1), 1, "memory for it");
	check_result(map_frame_of(FIRST, pages[1], frame), 0, "mapping it");
	check_result(destroy_domain(FIRST), 0, "destroydomain");
	check_result(create_domain(SECOND), 0, "createdomain, for another");
	max_vcpus(SECOND);
	make_counting_domain(SECOND, pages[2]);
	check_result(destroy_domain(FIRST), 0, "destroydomain, of one that is dead");
	check_result(create_domain(THIRD), 0, "createdomain, for a third");
	max_vcpus(THIRD);
	check_result(domctl(SECOND, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	check(counts((u64 *)pages[2]), "the second domain does not run");
	check_result(domctl(SECOND, DOMCTL_PAUSE, &request), 0, "pausedomain");
	u64 seen = *(volatile u64 *)pages[2], until = now_ns() + 50000000;
	while (now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(*(volatile u64 *)pages[2] == seen, "it runs though it is paused");
	/* A context that cannot be leaves it as it was, or without any. */
	u64 root = context.ctrlreg[3];
	request.vcpu_context.vcpu = 0, request.vcpu_context.context = &context;
	context.ctrlreg[3] = 0;
	check_refused(domctl(SECOND, DOMCTL_SET_CONTEXT, &request), "a context without page tables");
	context.ctrlreg[3] = mfn_of(pages[20]) * PAGE;
	check_refused(domctl(SECOND, DOMCTL_SET_CONTEXT, &request), "a context with another domain's page for tables");
	check_result(domctl(SECOND, DOMCTL_UNPAUSE, &request), 0, "unpausedomain, after bad contexts");
	until = now_ns() + 50000000;
	while (now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check_result(domctl(SECOND, DOMCTL_PAUSE, &request), 0, "pausedomain");
	context.ctrlreg[3] = root;
	request.vcpu_context.vcpu = 0, request.vcpu_context.context = &context;
	check_result(domctl(SECOND, DOMCTL_SET_CONTEXT, &request), 0, "setvcpucontext, of the first tables");
	check_result(domctl(SECOND, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	check(counts((u64 *)pages[2]), "the second domain does not run again");
	check_result(update_va(pages[2], 0, 2), 0, "letting its counter go");
	check_result(destroy_domain(SECOND), 0, "destroydomain");
	check_result(destroy_domain(THIRD), 0, "destroydomain");
	check(domain_is_gone(SECOND) && domain_is_gone(THIRD), "the others do not go");
	check_result(domain_info(FIRST, &request), 0, "getdomaininfo of the one that is mapped");
	check_result(update_va(pages[1], 0, 2), 0, "letting it go");
	check(domain_is_gone(FIRST), "it never goes");
}

void test_main(void)
{
	vcpus_of_the_next();
}
