/*
 * A domain keeps no mapping of registers that it may not use any more. It goes on as if the device had been pulled out: reads give all ones and
 * writes reach nobody, those too that were not let through before, whether it runs meanwhile, is paused and goes on, or is paused twice. What it may
 * use still, or again, it has. (cpus: 2) (differs: stock Xen leaves them mapped)
 */
#include "domains.h"

const char test_name[] = "withdrawn-registers";

enum { OTHER = 5, IOMEM_PERMISSION = 20 };
/* Where no memory is, and nothing that matters: old graphics memory. */
enum { LOST = 0xa0, KEPT = 0xa1, NEVER_HAD = 0xa2 };
/* Its entries in the domain's L1 table. */
enum { LOST_AT = 2, KEPT_AT = 3, ONLY_READ_AT = 4 };
enum { COUNTER = 2, LOOKING = 4 };

static struct vcpu_context context;
static u64 frames[FRAMES];
static volatile u64 *counter = (u64 *)pages[COUNTER];
static volatile u32 *has_read = (u32 *)(pages[COUNTER] + 8);
static volatile u8 *writes_more = pages[COUNTER] + 16;

static s64 permit(u64 frame, bool allow)
{
	struct domctl request = { .room = { frame, 1, allow } };
	return domctl(OTHER, IOMEM_PERMISSION, &request);
}

static s64 ask(u32 what)
{
	struct domctl request = { 0 };
	return domctl(OTHER, what, &request);
}

/*
 * It reads the register that it loses and says what it has read, writes to the next one and to one that it keeps, and counts, again and again. If it
 * is told to, it writes where it may only read, too.
 */
static void begin(void)
{
	static const u8 code[] = {
		/* 1: mov CODE_VA + 2 * PAGE, %eax; mov %eax, CODE_VA + PAGE + 8; mov %eax, CODE_VA + 2 * PAGE + 8 */
		0x8b, 0x04, 0x25, 0x00, 0x20, 0x40, 0x00, 0x89, 0x04, 0x25, 0x08, 0x10, 0x40, 0x00, 0x89, 0x04, 0x25, 0x08, 0x20, 0x40, 0x00,
		/* lock incq CODE_VA + PAGE; mov %eax, CODE_VA + 3 * PAGE */
		0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0x89, 0x04, 0x25, 0x00, 0x30, 0x40, 0x00,
		/* cmpb $0, CODE_VA + PAGE + 16; je 1b; mov %eax, CODE_VA + 4 * PAGE; jmp 1b */
		0x80, 0x3c, 0x25, 0x10, 0x10, 0x40, 0x00, 0x00, 0x74, 0xd1, 0x89, 0x04, 0x25, 0x00, 0x40, 0x40, 0x00, 0xeb, 0xc8,
	};
	static const u64 registers[] = { LOST, KEPT };
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	check_result(permit(LOST, true), 0, "permitting a register");
	check_result(permit(KEPT, true), 0, "permitting another");
	memset(&context, 0, sizeof(context));
	build_running_domain(OTHER, code, sizeof(code), pages[COUNTER], &context, frames, registers, 2);
	struct { u64 at, to; } only_read = { frames[L1] * PAGE + ONLY_READ_AT * 8, pte(LOST, P | US) };
	check_result(HC4(mmu_update, &only_read, 1, NULL, (OTHER + 1) << 16 | OTHER), 0, "mapping a register for reading");
	check_result(ask(DOMCTL_UNPAUSE), 0, "unpausedomain");
	check(counts((u64 *)counter), "it does not run");
}

static u64 entry(u32 index)
{
	check_result(HC4(update_va_mapping_otherdomain, pages[LOOKING], pte(frames[L1], P | US), 2, OTHER), 0, "looking at its table");
	u64 found = ((volatile u64 *)pages[LOOKING])[index];
	check_result(update_va(pages[LOOKING], 0, 2), 0, "and not any more");
	return found;
}

static bool is_mapped(u32 index, u64 frame)
{
	u64 found = entry(index);
	return found & P && (found & 0xffffffffff000) >> 12 == frame;
}

/* It runs, and has a page of ones in the place of the register. */
static void is_without(const char *how)
{
	*has_read = 0;
	check(counts((u64 *)counter) && counts((u64 *)counter), "%s: it has stopped", how);
	check(*has_read == ~0u, "%s: it has read %#x", how, *has_read);
	check(!is_mapped(LOST_AT, LOST) && entry(LOST_AT) & P, "%s: its entry is %#lx", how, entry(LOST_AT));
	check(is_mapped(KEPT_AT, KEPT), "%s: the entry that it may have is %#lx", how, entry(KEPT_AT));
	check(!is_mapped(ONLY_READ_AT, LOST) && (entry(ONLY_READ_AT) & (P | RW)) == P, "%s: it may write by %#lx", how, entry(ONLY_READ_AT));
	*writes_more = 1;
	check(counts((u64 *)counter) && counts((u64 *)counter), "%s: it has stopped since it has written where it may read", how);
	*writes_more = 0;
}

static void end(void)
{
	check_result(update_va(pages[COUNTER], 0, 2), 0, "letting its counter go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}

static void while_it_runs(void)
{
	begin();
	check_result(permit(NEVER_HAD, false), 0, "forbidding what it never had");
	check(counts((u64 *)counter), "it has stopped although it lost nothing");
	check_result(permit(LOST, false), 0, "forbidding a register");
	is_without("running");
	check_result(permit(LOST, true), 0, "permitting it again");
	is_without("permitted again");
	check_result(permit(LOST, false), 0, "forbidding it once more");
	is_without("forbidden again");
	end();
}

static void while_it_is_paused(void)
{
	begin();
	check_result(ask(DOMCTL_PAUSE), 0, "pausedomain");
	check_result(permit(LOST, false), 0, "forbidding a register");
	check_result(permit(LOST, true), 0, "permitting it again");
	check_result(ask(DOMCTL_UNPAUSE), 0, "unpausedomain");
	check(counts((u64 *)counter), "it has stopped although it has its register again");
	check_result(ask(DOMCTL_PAUSE), 0, "pausedomain");
	check_result(permit(LOST, false), 0, "forbidding a register");
	check_result(ask(DOMCTL_PAUSE), 0, "pausedomain again");
	check_result(ask(DOMCTL_UNPAUSE), 0, "unpausedomain once");
	check(!counts((u64 *)counter), "it runs although it is paused");
	check_result(ask(DOMCTL_UNPAUSE), 0, "unpausedomain twice");
	is_without("paused");
	check_result(ask(DOMCTL_UNPAUSE), -EINVAL, "unpausedomain of one that is not paused");
	end();
}

/* What it does not run with any more does no harm when it goes. */
static void and_destroyed(void)
{
	begin();
	check_result(ask(DOMCTL_PAUSE), 0, "pausedomain");
	check_result(permit(LOST, false), 0, "forbidding a register");
	end();
}

void test_main(void)
{
	while_it_runs();
	while_it_is_paused();
	and_destroyed();
	audit();
}
