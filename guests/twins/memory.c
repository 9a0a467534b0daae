/* Loading while there is little memory: the answer is ENOMEM, whatever it is that finds none. */
#include "domains.h"
#include "twins.h"

enum { OTHER = 9, BLOCKS = 80, BLOCK = 2 };

void twins_short_of_memory(void)
{
	static u64 back[BLOCKS];
	u64 before = all_pages();
	u32 nr_without = 0, nr_loaded = 0;
	give_all_memory(OTHER, back, BLOCKS, BLOCK);
	/* What is left is not for a twin. */
	struct twin_load request = good_load();
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -ENOMEM, "loading without memory");
	request.image_bytes = 8 << 20;
	check_result(hypercall(HC_twin_op, TWINOP_LOAD, (u64)&request, 0, 0, 0), -ENOMEM, "loading a large image without memory");
	/* It ends in the middle of everything. */
	for (u32 n = 0; n < BLOCKS; n++) {
		give_block_back(OTHER, back + n, BLOCK);
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
