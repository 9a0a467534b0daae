/* vcpu_op(get_physid): the APIC and ACPI ids of the CPU of a vCPU of domain 0, if it is pinned to one. (cpus: 2) */
#include "domains.h"

const char test_name[] = "physical-ids";

enum { DOMCTL_SET_AFFINITY = 9, HARD = 1, GET_PHYSID = 12 };

static s64 pin(u32 vcpu, u8 mask)
{
	static u8 bits;
	struct {
		u32 cmd, version;
		u16 domid, pad[3];
		u32 vcpu, flags;
		struct {
			u8 *bits;
			u32 nr, pad;
		} hard, soft;
	} request = { DOMCTL_SET_AFFINITY, 0x15, 0, { 0 }, vcpu, HARD, { &bits, 8, 0 }, { 0, 0, 0 } };
	bits = mask;
	return HC1(domctl, &request);
}

void test_main(void)
{
	u64 id = ~0ul;
	if (HC3(vcpu_op, VCPUOP_is_up, 1, 0) == -ENOENT)
		skip("the domain has one vCPU");
	check_result(HC3(vcpu_op, GET_PHYSID, 0, &id), -EINVAL, "of a vCPU that may run anywhere");
	for (u32 vcpu = 0; vcpu < 2; vcpu++) {
		check_result(pin(vcpu, 1 << vcpu), 0, "pinning");
		check_result(HC3(vcpu_op, GET_PHYSID, vcpu, &id), 0, "of a pinned vCPU");
		check((u32)id == vcpu && id >> 32 == vcpu, "the ids of vCPU %u: %#lx", vcpu, id);
		check_result(HC3(vcpu_op, GET_PHYSID, vcpu, 8), -EFAULT, "to a bad pointer");
	}
	/* The ids go by the vCPU's number. */
	check_result(pin(1, 1), 0, "pinning to the other CPU");
	check_result(HC3(vcpu_op, GET_PHYSID, 1, &id), 0, "of a vCPU on another CPU");
	check(id == (1ul << 32 | 1), "the ids of vCPU 1 on CPU 0: %#lx", id);
	check_result(pin(1, 3), 0, "letting go");
	check_result(HC3(vcpu_op, GET_PHYSID, 1, &id), -EINVAL, "of a vCPU that may run on two");
	check_result(HC3(vcpu_op, GET_PHYSID, 9, &id), -ENOENT, "of a vCPU that is none");
}
