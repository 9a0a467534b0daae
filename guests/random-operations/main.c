/*
 * A hostile kernel: random hypercalls, page-table entries and instructions. Whatever the answers, the hypervisor lives.
 * The kernel's command line may say seed=N and operations=N; the seed is printed, so that a run can be repeated. Tandem
 * recounts all its frames at the beginning, now and then, and at the end.
 */
#include "events.h"

const char test_name[] = "random-operations";

enum { SCRATCH = 24 };
static u64 seed = 1, nr_operations = 150000, nr_accepted;

static u64 up_to(u64 n)
{
	return (random_u64(&seed) >> 11) % n;
}

static u8 *scratch(void)
{
	return pages[16 + up_to(SCRATCH)];
}

/*
 * The L1 entries of the scratch pages, found once: entries of other pages keep this kernel alive, and the M2P that leads
 * to them may be spoilt later.
 */
static volatile u64 *entries[SCRATCH];
static u64 entry_addresses[SCRATCH];

static u64 entry_address(void)
{
	return entry_addresses[up_to(SCRATCH)];
}

static u64 some_mfn(void)
{
	switch (up_to(10)) {
	case 0: return start_info->shared_info / PAGE;
	case 1: return mfn_of((void *)(start_info->pt_base + up_to(start_info->nr_pt_frames) * PAGE));
	case 2: return up_to(0x400); /* the low memory, the hypervisor */
	case 3: return up_to(1 << 24);
	case 4: return random_u64(&seed) >> up_to(40);
	case 5: return 0xfee00 + up_to(2);
	default: return mfn_of(scratch());
	}
}

/* Frames of this kernel's own image, tables and stack: to write to them is to lose. The tables may be mapped, though. */
static bool is_vital(u64 mfn)
{
	u64 offset = mfn - mfn_of(pages[0]) + pfn_of(pages[0]);
	return offset < pfn_of((void *)start_info->pt_base) &&
	       (offset < pfn_of(pages[16]) || offset >= pfn_of(pages[16 + SCRATCH]));
}

static u64 some_pte(void)
{
	static const u64 flags[] = { 0, P, P | US, P | RW | US, P | RW | US | A | D, P | US | PSE, P | RW | US | G };
	u64 entry = (some_mfn() & (ADDR_MASK / PAGE)) * PAGE | flags[up_to(COUNT(flags))];
	if (up_to(8) == 0)
		entry ^= 1ul << up_to(64);
	return is_vital((entry & ADDR_MASK) / PAGE) ? 0 : entry;
}

static u64 some_value(void)
{
	switch (up_to(14)) {
	case 0: return up_to(64);
	case 1: return up_to(4096);
	case 2: return DOMID_SELF + up_to(6);
	case 3: return (u64)scratch() + up_to(PAGE);
	case 4: return (u64)scratch();
	case 5: return some_mfn();
	case 6: return some_pte();
	case 7: return entry_address() + up_to(8);
	case 8: return random_u64(&seed);
	case 9: return 0xffff800000000000 + (random_u64(&seed) >> 17);
	case 10: return -up_to(64);
	case 11: return 1ul << up_to(64);
	case 12: return 0x800000000000 - up_to(16);
	default: return 0;
	}
}

/* Fills a scratch page; it may not be mapped, or not writable, just now. */
static void fill(void)
{
	u32 page = up_to(SCRATCH);
	u64 *at = (u64 *)pages[16 + page] + up_to(500);
	/* Through a mapping of a page table this would hit entries of this kernel's own code. */
	if ((*entries[page] & ADDR_MASK) / PAGE != mfn_of(pages[16 + page]))
		return;
	for (u32 i = 0; i < 8; i++) {
		u64 value = some_value();
		PROBE("mov %0, (%1)", : : "r"(value), "r"(at + i) : "r11", "memory");
	}
}

/* Calls that would end this kernel's life by its own will, or the console's usefulness. */
static bool is_suicide(u64 number, u64 a, u64 b)
{
	(void)b;
	switch (number) {
	case HC_set_trap_table: case HC_iret: case HC_console_io: case HC_set_debugreg: case HC_stack_switch: case HC_multicall:
	case 6: case 7: case 15: case 28: case 36: case 35: case 37: /* compat, platform, timer, nmi, domctl, sysctl, kexec */
		return true;
	case HC_sched_op: return a != SCHEDOP_yield;
	case HC_vcpu_op: return a == VCPUOP_down || a == VCPUOP_up || a == 11;
	case HC_callback_op: return true;
	case HC_physdev_op: return a != 7 && a != 8; /* irq_status_query and the like would be enough; keep the console's */
	case HC_mmuext_op: return false;
	case HC_update_va_mapping: return a >= VIRT_BASE && (a < (u64)pages[16] || a >= (u64)pages[16 + SCRATCH]);
	case HC_memory_op: return (a & 63) == 1 || (a & 63) == 11; /* may give this kernel's own code away */
	}
	return false;
}

static void hypercall_once(void)
{
	u64 number = up_to(50), arguments[5];
	for (u32 i = 0; i < COUNT(arguments); i++)
		arguments[i] = some_value();
	if (up_to(2))
		arguments[0] = up_to(24);
	/* The answers of a long batch would reach beyond the scratch pages. */
	if (number == HC_grant_table_op)
		arguments[2] = up_to(4);
	if (number == HC_mmu_update || number == HC_mmuext_op)
		arguments[1] = up_to(20);
	if (is_suicide(number, arguments[0], arguments[1]))
		return;
	if (hypercall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]) >= 0)
		nr_accepted++;
}

static void mmu_once(void)
{
	s64 result;
	switch (up_to(8)) {
	case 0: case 1: result = mmu_update(entry_address() | (up_to(4) ? 0 : 2), some_pte()); break;
	case 2: case 3: result = update_va(scratch(), some_pte(), up_to(3)); break;
	case 4: result = mmuext(PIN_L1 + up_to(4), some_mfn(), 0); break;
	case 5: result = mmuext(UNPIN, mfn_of(scratch()), 0); break;
	case 6: result = mmuext(up_to(2) ? CLEAR_PAGE : COPY_PAGE, mfn_of(scratch()), mfn_of(scratch())); break;
	default: result = mmu_update(maddr_of(scratch()) + up_to(512) * 8, some_pte()); break;
	}
	if (result >= 0)
		nr_accepted++;
}

/* Tandem's debug key `f` recounts all frames, and fails if one is lost or wrong. Stock Xen has no such key, and ignores it. */
static void audit(void)
{
	static const char key = 'f';
	struct {
		u32 command, version;
		const char *keys;
		u32 nr_keys, pad[29];
	} argument = { .command = 7, .version = 0x15, .keys = &key, .nr_keys = 1 };
	_Static_assert(sizeof(argument) == 136, "xen_sysctl");
	check_result(HC1(sysctl, &argument), 0, "the audit of frames");
}

/* Makes scratch pages ordinary memory again. Page tables among them go first from the top. */
static void restore(void)
{
	for (u32 pass = 0; pass < 5; pass++) {
		for (u32 i = 0; i < SCRATCH; i++) {
			mmuext(UNPIN, mfn_of(pages[16 + i]), 0);
			update_va(pages[16 + i], 0, 2);
		}
		for (u32 i = 0; i < SCRATCH; i++)
			update_va(pages[16 + i], pte(mfn_of(pages[16 + i]), P | RW | US | A | D), 2);
	}
}

/* vcpu_info may have moved to a scratch page, where events are unmasked at random. */
static void ignore(struct frame *frame)
{
	frame->rflags &= ~0x200ul;
}

static u64 number_after(const char *name, u64 otherwise)
{
	u32 len = 0;
	while (name[len])
		len++;
	for (const char *at = start_info->cmd_line; *at; at++) {
		if (memcmp(at, name, len))
			continue;
		u64 value = 0;
		for (at += len; *at >= '0' && *at <= '9'; at++)
			value = value * 10 + (u64)(*at - '0');
		return value;
	}
	return otherwise;
}

void test_main(void)
{
	seed = number_after("seed=", 20060101) | 1;
	nr_operations = number_after("operations=", nr_operations);
	printk("  seed %lu, %lu operations\n", seed, nr_operations);
	handlers[ENTRY_EVENT] = ignore;
	set_callback(0, 0, entry_256);
	HC2(vm_assist, 0, 2);
	for (u32 i = 0; i < SCRATCH; i++) {
		entries[i] = entry_for(pages[16 + i], 1);
		entry_addresses[i] = maddr_of((void *)entries[i]);
	}
	audit();
	for (u64 n = 0; n < nr_operations; n++) {
		switch (up_to(16)) {
		case 0: fill(); break;
		case 1: case 2: case 3: hypercall_once(); break;
		case 4: {
			u64 value = some_pte();
			PROBE("xchg %0, (%1)", : "+r"(value) : "r"(entries[up_to(SCRATCH)]) : "r11", "memory");
			break;
		}
		default: mmu_once();
		}
		if (n % 1024 == 0)
			restore();
		if (n % 1000000 == 999999)
			audit();
	}
	restore();
	audit();
	printk("  %lu of %lu were accepted\n", nr_accepted, nr_operations);
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	check(nr_accepted > nr_operations / 100, "nearly everything was refused");
}
