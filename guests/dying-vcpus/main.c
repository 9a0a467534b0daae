/*
 * A domain that is destroyed while somebody maps its memory gets neither vCPUs nor contexts for those that it has.
 * (differs: stock Xen gives it both, and it stays for ever)
 */
#include "domains.h"

const char test_name[] = "dying-vcpus";

enum { WITHOUT_VCPU = 5, WITH_VCPU };

static s64 set_context(u16 domid, struct vcpu_context *context)
{
	struct domctl request = { .vcpu_context.context = context };
	return domctl(domid, DOMCTL_SET_CONTEXT, &request);
}

/* Maps it for reading only, so that it may become a page table: one that maps nothing. */
static void make_possible_table(u16 domid, u8 *page, u64 mfn)
{
	memset(page, 0, PAGE);
	check_result(HC4(update_va_mapping_otherdomain, page, pte(mfn, P | US), 2, domid), 0, "mapping it read-only");
}

/* Nobody would drop what a vCPU refers to that comes, or gets a state, when its domain has been taken apart. */
void test_main(void)
{
	static struct vcpu_context context;
	struct domctl request = { 0 };
	u64 frame = 0;
	check_result(create_domain(WITHOUT_VCPU), 0, "createdomain, without a vCPU");
	check_result(populate_domain(WITHOUT_VCPU, &frame, 1), 1, "memory for it");
	check_result(map_frame_of(WITHOUT_VCPU, pages[1], frame), 0, "mapping its memory");
	make_possible_table(WITHOUT_VCPU, pages[1], frame);
	check_result(create_domain(WITH_VCPU), 0, "createdomain, with a vCPU");
	set_max_vcpus(WITH_VCPU);
	make_counting_domain(WITH_VCPU, pages[2], &context);
	make_possible_table(WITH_VCPU, pages[2], (*entry_for(pages[2], 1) & ADDR_MASK) / PAGE);
	check_result(destroy_domain(WITHOUT_VCPU), 0, "destroydomain");
	check_result(destroy_domain(WITH_VCPU), 0, "destroydomain");

	request.max_vcpus = 1;
	check_result(domctl(WITHOUT_VCPU, DOMCTL_MAX_VCPUS, &request), -EINVAL, "max_vcpus");
	context.ctrlreg[3] = frame * PAGE;
	check_refused(set_context(WITHOUT_VCPU, &context), "a context for the first");
	context.ctrlreg[3] = *entry_for(pages[2], 1) & ADDR_MASK;
	check_result(set_context(WITH_VCPU, &context), -EINVAL, "a context for the other");
	check_result(set_context(WITH_VCPU, NULL), -EINVAL, "no context for the other");
	check_result(set_context(WITH_VCPU, &context), -EINVAL, "a context after none");
	check_result(update_va(pages[1], 0, 2), 0, "letting its memory go");
	check_result(update_va(pages[2], 0, 2), 0, "letting the other's memory go");
	check(domain_is_gone(WITHOUT_VCPU), "the one without a vCPU never goes");
	check(domain_is_gone(WITH_VCPU), "the one with a vCPU never goes");
	audit();
}
