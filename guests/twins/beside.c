/* A twin runs on one CPU while the domain changes its page tables on another. */
#include "events.h"
#include "twins.h"

/* As long as this, and until the twin was stopped as often. */
enum { SECONDS = 2, ABORTS = 20, AT_MOST_SECONDS = 15 };

extern const u8 twin_hammer[];
static u8 *const target = pages[30], *const table = pages[31];
static volatile u64 nr_calls, nr_aborts, nr_odd;
static volatile bool is_over;
volatile bool has_stopped;

void (*volatile job)(void);

static void other_cpu(void)
{
	for (;;) {
		job();
		has_stopped = true;
		HC3(vcpu_op, VCPUOP_down, 1, 0);
	}
}

/* Calls and calls a twin that writes to the page, and loads it again when it was aborted. */
static void hammer(void)
{
	u32 twin = load();
	while (!is_over) {
		struct twin_call call = { .twin = twin, .function = address_of(twin_hammer), .args = { (u64)target, 200 } };
		if (hypercall(HC_twin_op, TWINOP_CALL, (u64)&call, 0, 0, 0))
			nr_odd++;
		nr_calls++;
		if (call.reason == RETURNED)
			continue;
		nr_aborts++;
		if (call.reason != MEMORY || (call.detail & 0xfff) || unload(twin))
			nr_odd++;
		twin = load();
	}
	unload(twin);
}

void twins_beside(void)
{
	static u8 stack[4 * PAGE] __attribute__((aligned(16)));
	u32 written_as_table = 0, written_unmapped = 0;
	need_vcpu(1);
	job = hammer;
	start_vcpu(1, other_cpu, stack + sizeof(stack));
	u64 until = now_ns() + 10000000000;
	while (!nr_calls && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	u64 start = now_ns(), end = start + SECONDS * 1000000000ul, limit = start + AT_MOST_SECONDS * 1000000000ul;
	u32 nr_changes = 0;
	for (; now_ns() < end || (nr_aborts < ABORTS && now_ns() < limit); nr_changes++) {
		/* A page table: what it had is what it has. */
		memset(target, 0, PAGE);
		make_read_only(target);
		/* Until it is pinned the twin may write by what it knows still. */
		if (!mmuext(PIN_L1, mfn_of(target), 0)) {
			u64 first = *(volatile u64 *)target, aborts = nr_aborts, enough = now_ns() + 5000000;
			/* A fault counts by what may be written afterwards. */
			for (u32 n = 0; n < 2000 || (nr_aborts == aborts && now_ns() < enough); n++)
				written_as_table += *(volatile u64 *)target != first;
			mmuext(UNPIN, mfn_of(target), 0);
		}
		/* Another page in its place: the first is no longer reached. */
		update_va(target, pte(mfn_of(table), P | RW | US | A | D), 2 | 4);
		update_va(pages[32], pte(mfn_of(target), P | RW | US | A | D), 2 | 4);
		memset(pages[32], 0, PAGE);
		for (u32 n = 0; n < 20; n++)
			for (u32 i = 0; i < PAGE / 8; i += 64)
				written_unmapped += ((volatile u64 *)pages[32])[i] != 0;
		update_va(pages[32], pte(mfn_of(pages[32]), P | RW | US | A | D), 2 | 4);
		update_va(target, pte(mfn_of(target), P | RW | US | A | D), 2 | 4);
	}
	is_over = true;
	until = now_ns() + 10000000000;
	while (!has_stopped && now_ns() < until)
		HC1(sched_op, SCHEDOP_yield);
	check(has_stopped, "vCPU 1 does not come back");
	check(written_as_table == 0, "a page table was written %u times", written_as_table);
	check(written_unmapped == 0, "a page that is mapped elsewhere was written %u times", written_unmapped);
	check(nr_odd == 0, "%lu odd answers", nr_odd);
	check(nr_calls > ABORTS && nr_aborts >= ABORTS, "%lu calls, %lu aborts", nr_calls, nr_aborts);
	printk("  beside %u changes: %lu calls, %lu aborts\n", nr_changes, nr_calls, nr_aborts);
}
