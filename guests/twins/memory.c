/* Loading while there is little memory: the answer is ENOMEM, whatever it is that finds none. */
#include "domains.h"
#include "twins.h"

enum { OTHER = 9, BLOCKS = 80, BLOCK = 2, LARGE = 9 };

static s64 change_memory(u32 command, u64 *list, u64 nr, u32 order)
{
	struct {
		u64 *list;
		u64 nr;
		u32 order, flags;
		u16 domid, pad[3];
	} r = { list, nr, order, 0, OTHER, { 0 } };
	return HC2(memory_op, command, &r);
}

/* All memory that domains may have goes to another one; `back` are the blocks that come back later. */
static void take_all(u64 *back)
{
	struct domctl most = { .max_kib = 4ul << 20 };
	u64 frame = 0, pfn = 0;
	check_result(create_domain(OTHER), 0, "creating a domain");
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &most), 0, "max_mem");
	for (; pfn < BLOCKS; pfn++)
		back[pfn] = pfn << BLOCK;
	check_result(change_memory(6, back, BLOCKS, BLOCK), BLOCKS, "blocks that come back");
	pfn <<= LARGE;
	for (u32 order = LARGE + 1; order--;)
		for (; frame = pfn, change_memory(6, &frame, 1, order) == 1; pfn += 1ul << order)
			;
}

void twins_short_of_memory(void)
{
	static u64 back[BLOCKS];
	u64 before = all_pages();
	u32 nr_without = 0, nr_loaded = 0;
	take_all(back);
	/* What is left is not for a twin. */
	struct twin_load request = good_load();
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -ENOMEM, "loading without memory");
	request.image_bytes = 8 << 20;
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -ENOMEM, "loading a large image without memory");
	/* It ends in the middle of everything. */
	for (u32 n = 0; n < BLOCKS; n++) {
		check_result(change_memory(1, back + n, 1, BLOCK), 1, "giving a block back");
		/* Who asks for more than there is has all of it made ready. */
		u64 huge = 1ul << 30;
		check_result(change_memory(6, &huge, 1, LARGE + 1), 0, "more than there is");
		request = good_load();
		s64 result = hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0);
		check(result == 0 || result == -ENOMEM, "loading with %u blocks: %ld", n + 1, result);
		if (result == 0)
			check_result(unload(request.twin), 0, "unloading");
		nr_loaded += result == 0;
		nr_without += result == -ENOMEM;
	}
	check(nr_without > 5 && nr_loaded > 5, "%u found no memory, %u were loaded", nr_without, nr_loaded);
	printk("  %u found no memory, %u were loaded\n", nr_without, nr_loaded);
	check_result(destroy_domain(OTHER), 0, "destroying the other domain");
	check(domain_is_gone(OTHER), "the other domain stays");
	u64 after = all_pages();
	check(before == after, "%lu pages before, %lu afterwards", before, after);
}
