/*
 * What domains leave behind when they go, and what the next ones get: nothing that is done to a domain that is dead but for what
 * others map concerns those that come after it.
 */
#include "domains.h"

const char test_name[] = "domains-again";

enum { FIRST = 5, SECOND = 6, THIRD = 7 };

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

void test_main(void)
{
	vcpus_of_the_next();
}
