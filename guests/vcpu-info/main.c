/* Moving vcpu_info into the kernel's own memory. */
#include "events.h"

const char test_name[] = "vcpu-info";

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
