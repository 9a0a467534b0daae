/* Numbers without a hypercall give -ENOSYS, whatever the arguments. */
#include "guest.h"

const char test_name[] = "unknown-hypercall";

void test_main(void)
{
	static const u64 numbers[] = { 11, 43, 44, 47, 57, 63, 64, 127, 1000, 0x7fffffff, 0xffffffff, 1ul << 32, ~0ul };
	for (u32 i = 0; i < COUNT(numbers); i++) {
		s64 result = hypercall(numbers[i], ~0ul, ~0ul, ~0ul, ~0ul, ~0ul);
		check(result == -ENOSYS, "hypercall %#lx gives %ld", numbers[i], result);
	}
	static const u64 sub_operations[] = { HC_sched_op, HC_vcpu_op, HC_event_channel_op, HC_xen_version };
	for (u32 i = 0; i < COUNT(sub_operations); i++) {
		s64 result = hypercall(sub_operations[i], 12345, 0, 0, 0, 0);
		check(result == -ENOSYS, "sub-operation 12345 of hypercall %lu gives %ld", sub_operations[i], result);
	}
}
