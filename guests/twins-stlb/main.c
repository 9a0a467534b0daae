/*
 * Twins that look addresses up in a table: they have the domain's pages with its rights, as they are at the time, and nothing else.
 * (cpus: 2) (shares: twins) (hypervisor: twin-stlb) (differs: stock Xen has no twins)
 */
#include "events.h"
#include "../twins/twins.h"

const char test_name[] = "twins-stlb";

extern const u8 stlb_code[], stlb_code_end[], stlb_read[], stlb_write[], stlb_reach[], stlb_variable[], stlb_kept[], stlb_sweep[],
	stlb_no_miss[];
extern const u32 stlb_functions[][2], stlb_functions_end[][2], stlb_labels[][2], stlb_labels_end[][2];

static const struct twin_code looking_up = { .start = stlb_code, .end = stlb_code_end, .functions = stlb_functions,
	.functions_end = stlb_functions_end, .labels = stlb_labels, .labels_end = stlb_labels_end, .mode = MODE_STLB };
static u8 image[2 * PAGE];
static u32 image_len;
static struct twin_call last;

u64 stlb_address_of(const void *function);
u64 stlb_address_of(const void *function)
{
	return address_in(&looking_up, function);
}

struct twin_load good_load(void)
{
	return (struct twin_load){ .image = (u64)image, .image_bytes = image_len, .mode = MODE_STLB,
		.root = mfn_of((void *)start_info->pt_base), .percpu = (u64)pages[0], .percpu_stride = PAGE, .flags = 1, .areas = 2 };
}

u32 load(void)
{
	struct twin_load request = good_load();
	s64 result = hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0);
	check(result == 0, "loading: result %ld, rule %d at %#x", result, (int)request.rule, request.offset);
	return request.twin;
}

s64 unload(u32 twin)
{
	struct twin_name name = { twin, 0 };
	return hypercall(HC_twin_op, TWINOP_UNLOAD, (u64)&name, 0, 0, 0);
}

static void call_twin(u32 twin, const void *function, u64 a, u64 b, u64 c)
{
	last = (struct twin_call){ .twin = twin, .function = stlb_address_of(function), .args = { a, b, c } };
	check_result(hypercall(HC_twin_op, TWINOP_CALL, (u64)&last, 0, 0, 0), 0, "a call");
}

static void go_on(void)
{
	check(last.reason == UPCALL && last.detail == IMPORTED, "an upcall: reason %u, detail %#lx", last.reason, last.detail);
	check_result(hypercall(HC_twin_op, TWINOP_RESUME, (u64)&last, 0, 0, 0), 0, "going on");
}

static void returned(u64 expected, const char *what)
{
	check(last.reason == RETURNED && last.result == expected, "%s: reason %u, result %#lx, detail %#lx", what, last.reason, last.result,
	      last.detail);
}

static void was_aborted(const char *what)
{
	check(last.reason == MEMORY, "%s: reason %u, detail %#lx, result %#lx", what, last.reason, last.detail, last.result);
}

/* In a twin of its own. */
static void returns(const void *function, u64 a, u64 b, u64 expected, const char *what)
{
	call_twin(load(), function, a, b, 0);
	returned(expected, what);
	check_result(unload(last.twin), 0, "unloading");
}

static void aborts(const void *function, u64 a, u64 b, const char *what)
{
	call_twin(load(), function, a, b, 0);
	was_aborted(what);
	check_result(unload(last.twin), 0, "unloading");
}

static u64 *word(u32 page, u32 offset)
{
	return (u64 *)(pages[page] + offset);
}

static void maps(u32 page, u32 what, const char *why)
{
	check_result(update_va(pages[page], pte(mfn_of(pages[what]), P | RW | US | A | D), 2 | 4), 0, why);
}

static void own_pages(void)
{
	*word(3, 8) = 0x1122334455667788, *word(4, 0) = 0x99;
	memset(pages[3] + PAGE - 4, 0x5a, 4);
	returns(stlb_read, (u64)word(3, 8), 0, 0x1122334455667788, "reading");
	returns(stlb_write, (u64)word(3, 8), 42, 42, "writing");
	check(*word(3, 8) == 42, "what it wrote is not there: %#lx", *word(3, 8));
	returns(stlb_read, (u64)word(3, PAGE - 4), 0, 0x995a5a5a5a, "reading over a page's end");
	returns(stlb_reach, (u64)word(3, 8), 0, 0x99, "reaching into the next page");
	returns(stlb_variable, 77, 0, 77, "a variable whose address is taken");
	struct twin_status status = { .twin = load() };
	check_result(hypercall(HC_twin_op, TWINOP_STATUS, (u64)&status, 0, 0, 0), 0, "the status");
	check(status.mode == MODE_STLB, "the mode is %u", status.mode);
	unload(status.twin);
}

static void rights(void)
{
	returns(stlb_read, (u64)entry_for(pages[5], 1), 0, *entry_for(pages[5], 1), "reading a page table");
	aborts(stlb_write, (u64)entry_for(pages[5], 1), 0, "writing a page table");
	make_read_only(pages[5]);
	*word(4, 0) = 7;
	aborts(stlb_write, (u64)pages[5], 1, "writing a read-only page");
	aborts(stlb_write, (u64)word(4, PAGE - 4), 1, "writing over the end of a page into a read-only one");
	check(*(volatile u32 *)word(4, PAGE - 4) == 0, "half a word was written");
	make_writable(pages[5]);
	returns(stlb_write, (u64)pages[5], 1, 1, "writing it when it is writable again");
	/* One that is not there, and its neighbour. */
	check_result(update_va(pages[5], 0, 2 | 4), 0, "taking a page away");
	returns(stlb_read, (u64)word(4, 0), 0, 7, "reading the page before one that is not there");
	aborts(stlb_read, (u64)word(4, PAGE - 4), 0, "reading over its end");
	aborts(stlb_read, (u64)pages[5], 0, "reading a page that is not there");
	maps(5, 5, "a page comes back");
}

/* What is not the domain's own kernel half. */
static void foreign_pages(void)
{
	const u64 foreign[] = { 0, 0x1000, 0x7fffffffefff, 0x7fffffffffff, 0xffff800000000000, 0xffff808000000000, 0xffff818000000000,
		0xffff820000000000, 0xffff820000010000, 0xffff820000020000, 0xffff82d080000000, 0xffff82e000000000, 0xffff830000000000,
		0xffff830000100000, 0xffff87ffffffffff, 0xfffffffffffffff8, 0xffffffffffffffff, 0x800000000000, 0xffff7ffffffffff8,
		0x0000008000000000, 0x0000008000001ff8, 0x0000080000000000, (u64)image & 0x7fffffffffff };
	for (u32 i = 0; i < COUNT(foreign); i++) {
		call_twin(load(), stlb_read, foreign[i], 0, 0);
		check(last.reason == MEMORY || last.reason == EXCEPTION, "reading %#lx: reason %u, result %#lx", foreign[i], last.reason,
		      last.result);
		unload(last.twin);
		call_twin(load(), stlb_write, foreign[i], 0x4141414141414141, 0);
		check(last.reason == MEMORY || last.reason == EXCEPTION, "writing %#lx: reason %u", foreign[i], last.reason);
		unload(last.twin);
	}
	/* The table has an entry for the page that its tag does not name. */
	u32 twin = load();
	call_twin(twin, stlb_write, (u64)pages[6], 6, 0);
	call_twin(twin, stlb_read, (u64)pages[6] - (4096ul << 12) * 1024 * 1024, 0, 0);
	was_aborted("a foreign page that shares an entry");
	unload(twin);
	aborts(stlb_no_miss, 0, 0, "the answer to a miss that there was not");
	/* Of the areas in which variables lie whose address is taken, an instance has its own. */
	u32 nr_read = 0;
	for (u64 area = 0x8000002000; area < 0x8000042000; area += 0x10000) {
		call_twin(load(), stlb_read, area, 0, 0);
		nr_read += last.reason == RETURNED;
		unload(last.twin);
	}
	check(nr_read <= 1, "%u areas were read", nr_read);
}

/* The table knows a page by its address; what is there is what the domain has there now. */
static void changes_between(void)
{
	u32 twin = load();
	*word(7, 0) = 7, *word(8, 0) = 8;
	call_twin(twin, stlb_read, (u64)pages[7], 0, 0);
	returned(7, "a page");
	maps(7, 8, "another page in its place");
	call_twin(twin, stlb_read, (u64)pages[7], 0, 0);
	returned(8, "another page in its place");
	maps(7, 7, "the page again");
	call_twin(twin, stlb_write, (u64)pages[7], 9, 0);
	returned(9, "the page again");
	check(*word(7, 0) == 9 && *word(8, 0) == 8, "written were %lu and %lu", *word(7, 0), *word(8, 0));
	/* It becomes a page table and is one no longer. */
	memset(pages[7], 0, PAGE);
	make_read_only(pages[7]);
	check_result(mmuext(PIN_L1, mfn_of(pages[7]), 0), 0, "what was a window becomes a page table");
	call_twin(twin, stlb_read, (u64)pages[7], 0, 0);
	returned(0, "a page table");
	call_twin(twin, stlb_write, (u64)pages[7], P | RW | US, 0);
	was_aborted("writing what has become a page table");
	check_result(mmuext(UNPIN, mfn_of(pages[7]), 0), 0, "unpinning it");
	make_writable(pages[7]);
	check_result(unload(twin), 0, "unloading");
}

static void changes_during(void)
{
	u32 twin = load();
	*word(7, 0) = 7, *word(8, 0) = 800;
	call_twin(twin, stlb_kept, (u64)pages[7], 0, 0);
	go_on();
	returned(14, "the same page before and after");
	call_twin(twin, stlb_kept, (u64)pages[7], 0, 0);
	maps(7, 8, "another page in its place");
	go_on();
	returned(807, "another page in its place meanwhile");
	maps(7, 7, "the page again");
	call_twin(twin, stlb_kept, (u64)pages[7], 0, 0);
	check_result(update_va(pages[7], 0, 2 | 4), 0, "taking it away");
	go_on();
	was_aborted("a page that is taken away meanwhile");
	maps(7, 7, "the page again");
	check_result(unload(twin), 0, "unloading");
}

/* More pages than the table has entries, in a part of the address space that the domain makes when the twin is there. */
static void more_than_the_table(void)
{
	enum { FIRST = 20, TABLES = 16, L2 = 40, L3 = 41, EACH = 512, WORDS = 8 };
	const u64 address = 0xffff960000000000;
	u64 root = mfn_of((void *)start_info->pt_base), sum = 0;
	u32 twin = load();
	for (u32 n = 0; n < WORDS; n++)
		*word(50 + n, 0) = 1ul << 4 * n;
	memset(pages[L2], 0, PAGE);
	memset(pages[L3], 0, PAGE);
	for (u32 t = 0; t < TABLES; t++) {
		for (u32 n = 0; n < EACH; n++) {
			u32 which = (t * EACH + n) * 7 % 13 % WORDS;
			((u64 *)pages[FIRST + t])[n] = pte(mfn_of(pages[50 + which]), P | US | A);
			sum += 1ul << 4 * which;
		}
		((u64 *)pages[L2])[t] = pte(mfn_of(pages[FIRST + t]), P | RW | US | A | D);
		make_read_only(pages[FIRST + t]);
	}
	((u64 *)pages[L3])[0] = pte(mfn_of(pages[L2]), P | RW | US | A | D);
	make_read_only(pages[L2]), make_read_only(pages[L3]);
	check_result(mmu_update(root * PAGE + 300 * 8, pte(mfn_of(pages[L3]), P | RW | US | A | D)), 0, "an entry of the root");
	for (u32 n = 0; n < 3; n++) {
		call_twin(twin, stlb_sweep, address, PAGE, TABLES * EACH);
		returned(sum, "8192 pages");
	}
	/* Pages that share one entry of the table: 4096 are between them. */
	call_twin(twin, stlb_sweep, address, 4096ul * PAGE, 2);
	returned(*(u64 *)address + *(u64 *)(address + 4096ul * PAGE), "two pages that share an entry");
	call_twin(twin, stlb_write, address, 1, 0);
	was_aborted("writing where the domain may not");
	check_result(mmu_update(root * PAGE + 300 * 8, 0), 0, "the entry goes");
	check_result(unload(twin), 0, "unloading");
	for (u32 page = FIRST; page < FIRST + TABLES; page++)
		make_writable(pages[page]);
	make_writable(pages[L2]), make_writable(pages[L3]);
}

/* An image says its mode, and is checked by the rules of that. */
static void wrong_mode(void)
{
	static u8 other[3 * PAGE];
	struct twin_load request = good_load();
	request.mode = MODE_MIRROR;
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -EINVAL, "an image of this mode, loaded as of the other");
	check(request.rule == 1, "it breaks rule %u", request.rule);
	request = good_load();
	request.image = (u64)other, request.image_bytes = make_image(other);
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -EINVAL, "an image of the other mode, loaded as of this");
	check(request.rule == 1, "it breaks rule %u", request.rule);
}

void test_main(void)
{
	image_len = make_image_from(image, &looking_up, import_names);
	if (image_len > sizeof(image))
		error("the image is too large");
	call_twin(load(), stlb_read, (u64)pages[3], 0, 0);
	check_result(unload(last.twin), 0, "unloading");
	audit();
	own_pages();
	rights();
	foreign_pages();
	changes_between();
	changes_during();
	audit();
	more_than_the_table();
	wrong_mode();
	audit();
	twins_beside();
	audit();
}
