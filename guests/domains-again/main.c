/*
 * What domains leave behind when they go, and what the next ones get: a domain that others still map stays, also if what they
 * map was only lent to it, and nothing that is done to it concerns those that come after it. An audit beside many domains is right.
 */
#include "domains.h"
#include "grants.h"

const char test_name[] = "domains-again";

enum { FIRST = 5, SECOND = 6, THIRD = 7 };
enum { MAP_GRANT, UNMAP_GRANT };

static struct vcpu_context context;

/* The vCPUs of a domain that comes after one that is destroyed, again and again, are its own. */
static void vcpus_of_the_next(void)
{
	struct domctl request = { 0 };
	u64 frame = 0;
	check_result(create_domain(FIRST), 0, "createdomain");
	set_max_vcpus(FIRST);
	check_result(populate_domain(FIRST, &frame, 1), 1, "memory for it");
	check_result(map_frame_of(FIRST, pages[1], frame), 0, "mapping it");
	check_result(destroy_domain(FIRST), 0, "destroydomain");
	check_result(create_domain(SECOND), 0, "createdomain, for another");
	set_max_vcpus(SECOND);
	make_counting_domain(SECOND, pages[2], &context);
	check_result(destroy_domain(FIRST), 0, "destroydomain, of one that is dead");
	check_result(create_domain(THIRD), 0, "createdomain, for a third");
	set_max_vcpus(THIRD);
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

/* Frames that were lent to a domain keep it, as its own do. */
static void lent_frames(void)
{
	struct domctl request = { 0 };
	check_result(create_domain(FIRST), 0, "createdomain, again");
	check_result(domain_info(FIRST, &request), 0, "getdomaininfo");
	u64 shared_info_frame = request.info.shared_info_frame;
	u64 table_frame = map_grant_table_of(FIRST, pages[3]);
	volatile u64 *table = (u64 *)pages[3];
	/* Its grant table, granted to domain 0. */
	table[8] = 1 | table_frame << 32;
	struct map map = { .host_addr = (u64)pages[4], .flags = 2, .ref = 8, .domid = FIRST, .status = 99 };
	check_result(update_va(pages[4], 0, 2), 0, "room for a grant");
	check_result(HC3(grant_table_op, MAP_GRANT, &map, 1), 0, "map_grant_ref");
	if (!check(map.status == 0, "a grant of the grant table: status %d", map.status))
		return;
	check_result(map_frame_of(FIRST, pages[5], shared_info_frame), 0, "mapping its shared_info");
	check_result(update_va(pages[3], 0, 2), 0, "letting the grant table go");
	check_result(destroy_domain(FIRST), 0, "destroydomain");
	for (u32 step = 0; step < 2; step++) {
		/* Long enough for it to be freed. */
		u64 until = now_ns() + 50000000;
		while (now_ns() < until)
			HC1(sched_op, SCHEDOP_yield);
		check_result(domain_info(FIRST, &request), 0, step ? "getdomaininfo, its grant table is mapped" :
								     "getdomaininfo, its shared_info is mapped, too");
		check(request.info.flags & DOMINF_DYING && request.info.pages == 0, "flags %#x, %lu pages", request.info.flags,
		      request.info.pages);
		check_refused(create_domain(FIRST), "another one of its number");
		if (step == 0)
			check_result(update_va(pages[5], 0, 2), 0, "letting its shared_info go");
	}
	table = (u64 *)pages[4];
	check(table[8] >> 32 == table_frame, "the granted page has %#lx", table[8]);
	struct unmap unmap = { .host_addr = (u64)pages[4], .handle = map.handle, .status = 99 };
	check_result(HC3(grant_table_op, UNMAP_GRANT, &unmap, 1), 0, "unmap_grant_ref");
	check(unmap.status == 0, "unmapping: status %d", unmap.status);
	check(domain_is_gone(FIRST), "it never goes");
	check_result(create_domain(FIRST), 0, "createdomain, once it is gone");
	check_result(destroy_domain(FIRST), 0, "destroydomain");
	check(domain_is_gone(FIRST), "the last one never goes");
}

/*
 * With each further domain the hypervisor has a few more objects of each size, so that one time or another those of a size fill their pages: what an
 * audit takes for itself then would be missing from what it counts.
 */
static void audits_among_many(void)
{
	enum { MANY = 40 };
	for (u16 id = FIRST; id < FIRST + MANY; id++) {
		u64 frame = 0;
		check_result(create_domain(id), 0, "createdomain, of many");
		check_result(populate_domain(id, &frame, 1), 1, "memory for it");
		audit();
	}
	for (u16 id = FIRST; id < FIRST + MANY; id++)
		check_result(destroy_domain(id), 0, "destroydomain, of many");
	check(domain_is_gone(FIRST + MANY - 1), "the last of many never goes");
	audit();
}

void test_main(void)
{
	vcpus_of_the_next();
	lent_frames();
	audits_among_many();
}
