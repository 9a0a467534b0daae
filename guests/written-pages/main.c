/*
 * The log of a domain's writes has what the domain writes, and what others write where it lets them, and nothing else: who may not write a page does
 * not mark it. It goes as far as the domain does when it is switched on, however small that was before. A domain whose writes are logged gets no part
 * of a device, since devices write without being noticed, and one with a part of a device has no log. What the
 * hypervisor keeps from domain 0 no domain gets. (cpus: 2) (differs: stock Xen has no log for a PV domain)
 */
#include "domains.h"
#include "grants.h"

const char test_name[] = "written-pages";

enum { OTHER = 5, SHADOW_OP = 10, OFF = 0, ENABLE_LOGDIRTY = 2, CLEAN = 11, PEEK };
/* Configuration space, an interrupt controller, and a timer: their first ports and their numbers. And the interrupt controllers of CPUs. */
static const u32 withheld[][2] = { { 0xcf8, 8 }, { 0xcf8, 1 }, { 0xcff, 2 }, { 0x20, 2 }, { 0x1f, 2 }, { 0x40, 4 }, { 0, 65536 } };
enum { LOCAL_APIC = 0xfee00 };

enum { IRQ_PERMISSION = 19, IOMEM_PERMISSION, IOPORT_PERMISSION };
enum { EXDEV = 18, BAD_PAGE = -9, GREF = 8, FAR = 400, FARTHER = 5000, NR_WORDS = 16 };
/* Old graphics memory, a delay's port, and an interrupt that nobody has. */
enum { ITS_FRAME = 0xa0, ITS_PORT = 0x80, ITS_IRQ = 13 };

static struct vcpu_context context;
static u64 frames[FRAMES], written[NR_WORDS];
static u32 nr_counted;

static s64 shadow_op(u32 op)
{
	struct domctl request = { .room = { op } };
	return domctl(OTHER, SHADOW_OP, &request);
}

static bool is_written(u32 pfn)
{
	return written[pfn / 64] >> pfn % 64 & 1;
}

/* How many pages were written since the last CLEAN; `written` has their bits. */
static u32 read_log(u32 op)
{
	/* op and mode; memory, which means nothing here; the bitmap; its bits; what was counted. */
	struct domctl request = { .room = { op, 0, (u64)written, NR_WORDS * 64 } };
	u32 count = 0;
	memset(written, 0, sizeof(written));
	check_result(domctl(OTHER, SHADOW_OP, &request), 0, "reading the log");
	nr_counted = request.room[4] >> 32;
	for (u32 pfn = 0; pfn < NR_WORDS * 64; pfn++)
		count += is_written(pfn);
	return count;
}

/* Copies a byte of ours to where `to` says. */
static s64 copy_to(u64 to, bool is_grant)
{
	struct copy c = { { mfn_of(pages[4]), DOMID_SELF, 0, { 0 } }, { to, is_grant ? OTHER : DOMID_SELF, 0, { 0 } }, 1, is_grant ? 2 : 0, 99 };
	check_result(HC3(grant_table_op, 5, &c, 1), 0, "copy");
	return c.status;
}

static s64 permit(u32 what, bool allow)
{
	/* nr_pages and allow of I/O memory; the others have them in one word. */
	struct domctl request = { .room = { what == IOMEM_PERMISSION ? ITS_FRAME : what == IOPORT_PERMISSION ? 1ul << 32 | ITS_PORT : (u64)allow << 32 | ITS_IRQ,
					    what == IOMEM_PERMISSION ? 1 : allow, allow } };
	return domctl(OTHER, what, &request);
}

static void own_writes(void)
{
	struct domctl request = { 0 };
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	check_result(shadow_op(ENABLE_LOGDIRTY), 0, "switching the log on");
	check_result(shadow_op(ENABLE_LOGDIRTY), -EBUSY, "switching it on again");
	check(counts((u64 *)pages[2]), "it does not run with a log");
	read_log(CLEAN);
	check(is_written(DATA), "what it writes is not noted");
	check(!is_written(CODE) && !is_written(FRAMES), "what nobody writes is noted");
	check(counts((u64 *)pages[2]), "it does not run any more");
	check_result(domctl(OTHER, DOMCTL_PAUSE, &request), 0, "pausedomain");
	check(read_log(PEEK) >= 1 && is_written(DATA), "what it writes again is not noted");
	check(read_log(CLEAN) >= 1 && is_written(DATA), "who looks without clearing clears");
	u32 nr = read_log(CLEAN);
	check(nr == 0 && nr_counted == 0, "%u pages of a domain that does not run were written, %u are counted", nr, nr_counted);
}

static void others_writes(void)
{
	volatile u64 *entries = (u64 *)pages[3];
	/* It has not granted these. */
	for (u32 n = 0; n < FRAMES; n++)
		check_result(copy_to(frames[n], false), BAD_PAGE, "a copy to another's page");
	u32 nr = read_log(CLEAN);
	check(nr == 0 && nr_counted == 0, "%u pages that could not be written are noted, %u are counted", nr, nr_counted);
	entries[GREF] = frames[DATA] << 32 | 1 | 4;
	check(copy_to(GREF, true) < 0, "a copy into a grant for reading succeeds");
	nr = read_log(CLEAN);
	check(nr == 0, "%u pages are noted by a use that was refused", nr);
	entries[GREF] = frames[DATA] << 32 | 1;
	check_result(copy_to(GREF, true), 0, "a copy into a grant");
	check(read_log(CLEAN) == 1 && is_written(DATA) && nr_counted == 1, "a copy into a grant is not noted, or more than that");
	struct { u64 at, to; } entry = { frames[L1] * PAGE + 8 * 8, 0 };
	check_result(HC4(mmu_update, &entry, 1, NULL, (OTHER + 1) << 16 | OTHER), 0, "an entry of its page tables");
	check(read_log(CLEAN) == 1 && is_written(L1), "an entry of its page tables is not noted, or more than that");
}

static void grows(void)
{
	struct domctl request = { .max_kib = 2048 };
	u64 pfn = FAR;
	check_result(shadow_op(OFF), 0, "switching the log off");
	check_result(shadow_op(CLEAN), -EINVAL, "reading a log that is off");
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	check_result(populate_domain(OTHER, &pfn, 1), 1, "a page beyond the end of the log");
	((volatile u64 *)pages[3])[GREF] = pfn << 32 | 1;
	check_result(shadow_op(ENABLE_LOGDIRTY), 0, "switching it on again");
	check(read_log(CLEAN) == 0, "it begins with what was written before");
	check_result(copy_to(GREF, true), 0, "a copy there");
	check(read_log(CLEAN) == 1 && is_written(FAR), "a write to a page that came before the log was switched on again is not noted");
	/* What comes while it is logged may have no place in the log, but it counts. */
	pfn = FARTHER;
	check_result(populate_domain(OTHER, &pfn, 1), 1, "a page beyond the end of this one");
	u32 nr = read_log(CLEAN);
	check(nr == 0 && nr_counted >= 1, "%u pages are noted, %u are counted", nr, nr_counted);
}

/* The hypervisor keeps these from us, so they are not ours to give, nor to take. */
static void withheld_registers(void)
{
	for (u32 allow = 0; allow <= 1; allow++) {
		for (u32 n = 0; n < COUNT(withheld); n++) {
			struct domctl request = { .room = { (u64)withheld[n][1] << 32 | withheld[n][0], allow } };
			check_result(domctl(OTHER, IOPORT_PERMISSION, &request), -EPERM, "ports that are not ours");
		}
		for (u32 nr = 1; nr <= 2; nr++) {
			struct domctl request = { .room = { LOCAL_APIC + 1 - nr, nr, allow } };
			check_result(domctl(OTHER, IOMEM_PERMISSION, &request), -EPERM, "registers that are not ours");
		}
	}
	struct domctl beyond = { .room = { 2ull << 32 | 0xffff, 1 } };
	check_result(domctl(OTHER, IOPORT_PERMISSION, &beyond), -EINVAL, "a port that is none");
}

static void devices(void)
{
	static const u32 kinds[] = { IRQ_PERMISSION, IOMEM_PERMISSION, IOPORT_PERMISSION };
	for (u32 n = 0; n < COUNT(kinds); n++)
		check_result(permit(kinds[n], true), -EXDEV, "a part of a device for a domain that is logged");
	for (u32 n = 0; n < COUNT(kinds); n++)
		check_result(permit(kinds[n], false), 0, "taking away what it does not have");
	check_result(shadow_op(OFF), 0, "switching the log off");
	for (u32 n = 0; n < COUNT(kinds); n++) {
		check_result(permit(kinds[n], true), 0, "a part of a device");
		check_result(shadow_op(ENABLE_LOGDIRTY), -EXDEV, "a log of one with a part of a device");
	}
}

void test_main(void)
{
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	memset(&context, 0, sizeof(context));
	/* lock incq CODE_VA + PAGE; pause; jmp to the start. */
	static const u8 code[] = { 0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xf3, 0x90, 0xeb, 0xf3 };
	build_running_domain(OTHER, code, sizeof(code), pages[2], &context, frames, NULL, 0);
	map_grant_table_of(OTHER, pages[3]);
	own_writes();
	others_writes();
	grows();
	withheld_registers();
	devices();
	check_result(update_va(pages[2], 0, 2), 0, "letting its counter go");
	check_result(update_va(pages[3], 0, 2), 0, "letting its grants go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
	audit();
}
