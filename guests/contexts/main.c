/*
 * Contexts of another domain's vCPU that is running: reading one gives what its registers are now, a new one is what it goes on with,
 * and nothing of the old one stays. (cpus: 2) (vcpus: 1)
 */
#include "domains.h"

const char test_name[] = "contexts";

enum { OTHER = 5, ROUNDS = 50 };
/* Where the code is; the LDT is the same page, which the domain cannot write. */
enum { COUNT_AT = 0x20, FPU_AT = 0x40, NO_FPU_AT = 0x60, SELECTOR_AT = 0x800, SELECTOR = SELECTOR_AT | 7 };

static u8 code[PAGE] = {
	/*
	 * mov $SELECTOR, %ecx; mov %ecx, %es; 1: lock incq CODE_VA + PAGE; pause; jmp 1b. As descriptors, of eight bytes each, these
	 * are not present, and so no harm.
	 */
	0xb9, 0x07, 0x08, 0x00, 0x00, 0x66, 0x8e, 0xc1,
	0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xf3, 0x90, 0xeb, 0xf3,
	/* 1: inc %rdi; mov %rdi, CODE_VA + PAGE + 8; jmp 1b */
	[COUNT_AT] = 0x48, 0xff, 0xc7, 0x48, 0x89, 0x3c, 0x25, 0x08, 0x10, 0x40, 0x00, 0xeb, 0xf3,
	/* 1: nop; fldz; fstp %st(0); lock incq CODE_VA + PAGE + 16; jmp 1b. One of these descriptors is present, of data of ring 3. */
	[FPU_AT] = 0x90, 0xd9, 0xee, 0xdd, 0xd8, 0xf0, 0x48, 0xff, 0x04, 0x25, 0x10, 0x10, 0x40, 0x00, 0xeb, 0xf0,
	/* 1: lock incq CODE_VA + PAGE + 24; jmp 1b */
	[NO_FPU_AT] = 0xf0, 0x48, 0xff, 0x04, 0x25, 0x18, 0x10, 0x40, 0x00, 0xeb, 0xf5,
	/* Data of ring 3, four GiB. */
	[SELECTOR_AT] = 0xff, 0xff, 0x00, 0x00, 0x00, 0xf3, 0xcf, 0x00,
};
static struct vcpu_context context, seen;

static s64 contexts(u32 op, struct vcpu_context *which)
{
	struct domctl request = { .vcpu_context.context = which };
	return domctl(OTHER, op, &request);
}

/* CR0.TS is part of a context: who gives it gets it back, and the FPU traps with it. */
static void task_switched(volatile u64 *counters)
{
	enum { TS = 8, NM = 7 };
	check_result(contexts(DOMCTL_GET_CONTEXT, &seen), 0, "getvcpucontext");
	check(!(seen.ctrlreg[0] & TS), "CR0 is %#lx", seen.ctrlreg[0]);
	seen.ctrlreg[0] |= TS;
	check_result(contexts(DOMCTL_SET_CONTEXT, &seen), 0, "a context with TS");
	check_result(contexts(DOMCTL_GET_CONTEXT, &seen), 0, "getvcpucontext");
	check(seen.ctrlreg[0] & TS, "TS is lost: CR0 is %#lx", seen.ctrlreg[0]);
	seen.regs.rip = CODE_VA + FPU_AT;
	seen.traps[NM] = (struct trap_info){ NM, 0, FLAT_KERNEL_CS, CODE_VA + NO_FPU_AT };
	check_result(contexts(DOMCTL_SET_CONTEXT, &seen), 0, "a context that uses the FPU");
	check(counts(&counters[3]), "the FPU does not trap with TS set");
	check(counters[2] == 0, "it used the FPU %lu times", counters[2]);
	seen.ctrlreg[0] &= ~TS;
	check_result(contexts(DOMCTL_SET_CONTEXT, &seen), 0, "a context without TS");
	check(counts(&counters[2]), "it does not use the FPU without TS");
}

/* x87's control word comes with a context that has some, and is as at reset after another one. */
static void floating_point(void)
{
	enum { I387_VALID = 1, AT_RESET = 0x37f, ITS_OWN = 0x27f };
	u16 *control = (u16 *)seen.fpu;
	*control = ITS_OWN;
	seen.flags |= I387_VALID;
	check_result(contexts(DOMCTL_SET_CONTEXT, &seen), 0, "a context with x87 state");
	check_result(contexts(DOMCTL_GET_CONTEXT, &seen), 0, "getvcpucontext");
	check(*control == ITS_OWN, "x87's control word is %#x", *control);
	seen.flags &= ~I387_VALID;
	check_result(contexts(DOMCTL_SET_CONTEXT, &seen), 0, "a context without x87 state");
	check_result(contexts(DOMCTL_GET_CONTEXT, &seen), 0, "getvcpucontext");
	/* Stock Xen shows what was there, and does not load it. */
	check(!is_tandem() || *control == AT_RESET, "x87's control word is %#x, and was not given", *control);
}

/* A few MSRs at once are as good as one, and many are refused, however good each is. */
static void many_msrs(void)
{
	enum { SET_VCPU_MSRS = 73, TSC_AUX = 0xc0000103, FEW = 32 };
	u64 (*msrs)[2] = (void *)pages[4];
	for (u32 n = 0; n <= FEW; n++)
		msrs[n][0] = TSC_AUX, msrs[n][1] = n;
	struct domctl one = { .room = { 1ul << 32, (u64)msrs } }, few = { .room = { (u64)FEW << 32, (u64)msrs } };
	struct domctl many = { .room = { (u64)(FEW + 1) << 32, (u64)msrs } };
	s64 result = domctl(OTHER, SET_VCPU_MSRS, &one);
	/* Not if there is no such MSR. */
	check(result == 0 || result == -EINVAL, "setting TSC_AUX: result %ld", result);
	check_result(domctl(OTHER, SET_VCPU_MSRS, &few), result, "setting it again and again");
	/* Stock Xen reads them all. */
	check_result(domctl(OTHER, SET_VCPU_MSRS, &many), is_tandem() ? -E2BIG : result, "setting it once more than that");
}

void test_main(void)
{
	struct domctl request = { 0 };
	volatile u64 *counters = (u64 *)pages[2];
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	context.ldt_base = CODE_VA;
	context.ldt_entries = 512;
	u64 code_frame = make_running_domain(OTHER, code, sizeof(code), pages[2], &context);
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	if (!check(counts((u64 *)pages[2]), "it does not run on an LDT"))
		return;
	check(map_frame_of(OTHER, pages[3], code_frame) < 0, "the pages of its LDT can be written");

	/* Another context. Stock Xen takes one with other tables only after none. */
	check_result(contexts(DOMCTL_SET_CONTEXT, NULL), 0, "no context");
	context.regs.rip = CODE_VA + COUNT_AT;
	context.ldt_entries = 0;
	check_result(contexts(DOMCTL_SET_CONTEXT, &context), 0, "a context without an LDT");
	if (!check(counts((u64 *)pages[2] + 1), "it does not go on with the new context"))
		return;
	/* Stock Xen keeps it for longer. */
	check_result(map_frame_of(OTHER, pages[3], code_frame), is_tandem() ? 0 : -EBUSY, "writing to what was its LDT");
	check_result(update_va(pages[3], 0, 2), 0, "unmapping it");

	/* It runs on, and has counted at least as far as it has told. */
	u32 stale = 0, ahead = 0;
	for (u32 n = 0; n < ROUNDS; n++) {
		u64 before = counters[1];
		check_result(contexts(DOMCTL_GET_CONTEXT, &seen), 0, "getvcpucontext");
		stale += seen.regs.rdi < before;
		ahead += seen.regs.rdi > counters[1] + 1;
		/* As far as this, and from there on. */
		seen.regs.rdi += 1ul << 32;
		check_result(contexts(DOMCTL_SET_CONTEXT, &seen), 0, "setvcpucontext");
		u64 until = now_ns() + 1000000000;
		while (counters[1] < seen.regs.rdi && now_ns() < until)
			asm volatile("pause");
		if (!check(counters[1] >= seen.regs.rdi, "round %u: it is at %#lx, not %#lx", n, counters[1], seen.regs.rdi))
			break;
	}
	check(stale == 0 && ahead == 0, "%u of %u contexts were old, %u of the future", stale, ROUNDS, ahead);
	task_switched(counters);
	floating_point();
	many_msrs();
	check_result(update_va(pages[2], 0, 2), 0, "letting its counters go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
	audit();
}
