/*
 * Moving vcpu_info into the kernel's own memory; and a vCPU that has no room for it in shared_info, which is brought up only then.
 * (cpus: 2) (vcpus: 1)
 */
#include "domains.h"

const char test_name[] = "vcpu-info";

/* A domain with 33 vCPUs: the last one has no vcpu_info. */
static void has_none(void)
{
	enum { OTHER = 5, VCPUS = 33 };
	static const u8 code[] = {
		/* vcpu_op(VCPUOP_initialise, 32, bad pointer); its result to CODE_VA + PAGE + 8 */
		0xb8, 24, 0, 0, 0, 0x31, 0xff, 0xbe, 32, 0, 0, 0, 0xba, 8, 0, 0, 0, 0x0f, 0x05, 0x48, 0x89, 0x04, 0x25, 0x08, 0x10, 0x40, 0x00,
		/* The same with vCPU 31, to CODE_VA + PAGE + 16 */
		0xb8, 24, 0, 0, 0, 0x31, 0xff, 0xbe, 31, 0, 0, 0, 0xba, 8, 0, 0, 0, 0x0f, 0x05, 0x48, 0x89, 0x04, 0x25, 0x10, 0x10, 0x40, 0x00,
		/* 1: lock incq CODE_VA + PAGE; pause; jmp 1b */
		0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xf3, 0x90, 0xeb, 0xf3,
	};
	static struct vcpu_context context;
	volatile s64 *results = (s64 *)pages[2];
	struct domctl request = { .create = { .max_vcpus = VCPUS, .max_port = 1023, .max_grant_frames = 4, .max_maptrack_frames = 4,
					      .grant_version = 1 } };
	check_result(domctl(OTHER, DOMCTL_CREATE, &request), 0, "createdomain");
	request.max_kib = 1024;
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	request.max_vcpus = VCPUS;
	check_result(domctl(OTHER, DOMCTL_MAX_VCPUS, &request), 0, "max_vcpus");
	make_running_domain(OTHER, code, sizeof(code), pages[2], &context);
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	check(counts((u64 *)pages[2]), "it does not run");
	check(results[1] == -EINVAL, "initialising a vCPU without vcpu_info: %ld", results[1]);
	check(results[2] == -EFAULT, "initialising one with a bad pointer: %ld", results[2]);
	check_result(update_va(pages[2], 0, 2), 0, "letting its results go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}

void test_main(void)
{
	volatile struct vcpu_info *info = (void *)(pages[0] + 128), *old = &shared_info()->vcpu[0];
	struct {
		u64 mfn;
		u32 offset, pad;
	} place = { mfn_of(pages[0]), 128, 0 };
	struct {
		u64 mfn;
		u32 offset, pad;
	} bad = { mfn_of((void *)start_info->pt_base), 128, 0 };
	if (is_initial_domain())
		has_none();
	check_refused(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &bad), "in a page table");
	bad.mfn = place.mfn, bad.offset = PAGE - 32;
	check_refused(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &bad), "over the end of a page");
	bad.offset = 0xffffff80;
	check_refused(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &bad), "far outside the page");
	bad.mfn = 0xfffffffff, bad.offset = 0;
	check_refused(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &bad), "in a frame that does not exist");
	check_refused(HC3(vcpu_op, VCPUOP_register_vcpu_info, 1000, &place), "of vCPU 1000");
	u32 mul = old->time.mul;
	check_result(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &place), 0, "register_vcpu_info");
	check(info->upcall_mask == 1, "events are unmasked");
	check(info->upcall_pending == 1 && info->pending_sel == ~0ul, "no rescan: pending %d, %#lx", info->upcall_pending,
	      info->pending_sel);
	check(info->time.mul == mul && mul, "no time there: %u", info->time.mul);
	check_refused(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &place), "a second time");
	/* It is in use: events and fault addresses go there. */
	info->upcall_pending = 0, info->pending_sel = 0;
	old->upcall_pending = 0;
	u32 port = new_ipi(0);
	evtchn(EVTCHN_send, &port);
	check(info->upcall_pending == 1 && info->pending_sel == 1ul << port / 64, "pending %d, %#lx", info->upcall_pending,
	      info->pending_sel);
	check(old->upcall_pending == 0, "the old place is still in use");
	check(PROBE("mov (%0), %%rax", : : "r"(0x123456789) : "rax", "r11", "memory") == 14, "a fault");
	check(info->cr2 == 0x123456789, "cr2 is %#lx", info->cr2);
	/* The page cannot become a page table now. */
	check_refused(mmuext(PIN_L1, mfn_of(pages[0]), 0), "pinning it");
}
