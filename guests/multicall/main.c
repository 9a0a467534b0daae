/* multicall: hypercalls in order, each with its result. */
#include "guest.h"

const char test_name[] = "multicall";

struct call {
	u64 op, result, args[6];
};

void test_main(void)
{
	u64 platform = 0;
	struct {
		u32 index, map;
	} feature = { 0, 0 };
	struct call calls[] = {
		{ HC_xen_version, 99, { 0 } },
		{ HC_xen_version, 99, { 6, (u64)&feature } },
		{ 1000, 99, { 0 } },
		{ HC_xen_version, 99, { 5, (u64)&platform } },
		{ HC_xen_version, 99, { 6, 8 } },
	};
	check_result(HC2(multicall, calls, COUNT(calls)), 0, "a batch");
	check(calls[0].result == 0x40011, "result 0 is %#lx", calls[0].result);
	check(calls[1].result == 0 && (feature.map & 1 << 5), "result 1 is %ld, features %#x", calls[1].result, feature.map);
	check((s64)calls[2].result == -ENOSYS, "result 2 is %ld", calls[2].result);
	check(calls[3].result == 0 && platform == 0xffff800000000000, "result 3 is %ld, %#lx", calls[3].result, platform);
	check((s64)calls[4].result == -EFAULT, "result 4 is %ld", calls[4].result);
	check(calls[0].op == HC_xen_version && calls[1].args[1] == (u64)&feature, "the arguments were changed");
	check_result(HC2(multicall, calls, 0), 0, "an empty batch");

	/* Changes take effect in order. */
	volatile u64 *window = (u64 *)pages[2];
	*(u64 *)pages[1] = 0; /* asks for feature map 0, behind which the answer goes */
	u64 own = mfn_of(pages[2]);
	struct call map[] = {
		{ HC_update_va_mapping, 99, { (u64)window, pte(mfn_of(pages[1]), P | RW | US), 2 } },
		{ HC_xen_version, 99, { 6, (u64)window } },
		{ HC_update_va_mapping, 99, { (u64)window, pte(own, P | RW | US), 2 } },
	};
	check_result(HC2(multicall, map, COUNT(map)), 0, "mapping in a batch");
	check(map[0].result == 0 && map[2].result == 0, "results %ld, %ld", map[0].result, map[2].result);
	check(*(u64 *)pages[1] != 0, "the call between the mappings wrote elsewhere");

	/* A batch that cannot be read to its end: what came before is done. */
	struct call *edge = (struct call *)(pages[4] + PAGE - sizeof(struct call));
	*edge = (struct call){ HC_xen_version, 99, { 0 } };
	update_va(pages[5], 0, 2);
	check_result(HC2(multicall, edge, 2), -EFAULT, "a batch into nowhere");
	check(edge->result == 0x40011, "result is %#lx", edge->result);
	/* Many. */
	static struct call many[500];
	for (u32 i = 0; i < COUNT(many); i++)
		many[i] = (struct call){ HC_xen_version, 99, { i & 1 ? 7 : 0 } };
	check_result(HC2(multicall, many, COUNT(many)), 0, "500 calls");
	for (u32 i = 0; i < COUNT(many); i++)
		if (!check(many[i].result == (i & 1 ? PAGE : 0x40011), "result %u is %#lx", i, many[i].result))
			break;
}
