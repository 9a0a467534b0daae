/* An image that lies in registers of a device: however long they take to be read, other CPUs have what they want of the one that reads them. */
#include "events.h"
#include "twins.h"

/* Old graphics memory: a device everywhere, which takes its time to answer. */
enum { REGISTERS = 0xa0, ENTRIES = 512, NR_L1S = 4, SLOT = 301, FLUSH_ALL = 10 };
#define AT (0xffff000000000000ul | (u64)SLOT << 39)
#define USUAL (P | RW | US | A | D)

static u8 *const l3 = pages[41], *const l2 = pages[42], *const l1s = pages[44];
static volatile bool is_loading;
static volatile s64 result;
static u64 took_ns;

static void load_slowly(void)
{
	struct twin_load request = good_load();
	request.image = AT;
	request.image_bytes = NR_L1S * ENTRIES * PAGE;
	u64 start = now_ns();
	is_loading = true;
	result = hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0);
	is_loading = false;
	took_ns = now_ns() - start;
}

void twins_loaded_slowly(void)
{
	u64 at_slot = maddr_of((void *)(start_info->pt_base + 8 * SLOT)), longest = 0;
	u32 nr = 0;
	memset(l3, 0, PAGE), memset(l2, 0, PAGE);
	for (u32 n = 0; n < NR_L1S; n++) {
		u64 *l1 = (u64 *)(l1s + n * PAGE);
		for (u32 i = 0; i < ENTRIES; i++)
			l1[i] = pte(REGISTERS, P | US | A | PCD);
		((u64 *)l2)[n] = pte(mfn_of(l1), USUAL);
		make_read_only(l1);
	}
	((u64 *)l3)[0] = pte(mfn_of(l2), USUAL);
	make_read_only(l2), make_read_only(l3);
	check_result(mmu_update(at_slot, pte(mfn_of(l3), USUAL)), 0, "an entry of the root");
	has_stopped = false;
	job = load_slowly;
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "vCPU 1");
	u64 until = now_ns() + 30000000000;
	while (!has_stopped && now_ns() < until) {
		u64 start = now_ns();
		check_result(mmuext(FLUSH_ALL, 0, 0), 0, "a flush");
		u64 took = now_ns() - start;
		if (is_loading && took > longest)
			longest = took;
		nr += is_loading;
	}
	check(has_stopped, "vCPU 1 does not come back");
	check_result(result, -EINVAL, "loading registers");
	check(nr && longest < took_ns / 2, "a flush took %lu us beside a load of %lu us", longest / 1000, took_ns / 1000);
	printk("  loading registers took %lu ms; the longest of %u flushes beside it %lu us\n", took_ns / 1000000, nr, longest / 1000);
	check_result(mmu_update(at_slot, 0), 0, "no entry of the root");
	make_writable(l3), make_writable(l2);
	for (u32 n = 0; n < NR_L1S; n++)
		make_writable(l1s + n * PAGE);
}
