/* Pointers that a guest must not use, or that lead nowhere, give -EFAULT and harm nobody. */
#include "guest.h"

const char test_name[] = "bad-pointers";

void test_main(void)
{
	static const u64 bad[] = {
		0x1000,		    /* not mapped */
		0x00007ffffffffff8, /* at the end of the lower half */
		0x0000800000000000, /* not canonical */
		0xffff7ffffffffff8, /* not canonical */
		0xffff808000000000, /* the hypervisor's */
		0xffff82d080200000, /* the hypervisor's */
		0xffff830000000000, /* the hypervisor's */
		0xffff87fffffffff8, /* its last word */
		0xfffffffffffffff8, /* wraps around */
	};
	for (u32 i = 0; i < COUNT(bad); i++) {
		s64 result = HC2(xen_version, 6, bad[i]);
		check(result == -EFAULT, "get_features at %#lx gives %ld", bad[i], result);
		result = HC2(xen_version, 3, bad[i]);
		check(result == -EFAULT, "capabilities at %#lx gives %ld", bad[i], result);
		result = HC4(mmu_update, bad[i], 1, 0, DOMID_SELF);
		check(result == -EFAULT, "mmu_update at %#lx gives %ld", bad[i], result);
		result = HC2(multicall, bad[i], 1);
		check(result == -EFAULT, "multicall at %#lx gives %ld", bad[i], result);
		result = HC1(set_trap_table, bad[i]);
		check(result == -EFAULT, "set_trap_table at %#lx gives %ld", bad[i], result);
	}
	/* A read-only page may be read from, not written to. */
	make_read_only(pages[0]);
	check_result(HC2(xen_version, 3, pages[0]), -EFAULT, "writing to a read-only page");
	check_result(HC1(set_trap_table, pages[0]), 0, "reading an empty trap table from a read-only page");
	/* The hypervisor's memory is as unreachable for instructions. */
	u64 value;
	for (u32 i = 4; i < 8; i++) {
		check(PROBE("mov (%1), %0", : "=&r"(value) : "r"(bad[i]) : "r11", "memory") == 14, "%#lx can be read", bad[i]);
		check(PROBE("movq $0, (%0)", : : "r"(bad[i]) : "r11", "memory") == 14, "%#lx can be written", bad[i]);
	}
	check(PROBE("movq $0, (%0)", : : "r"(M2P_BASE) : "r11", "memory") == 14, "the M2P can be written");
}
