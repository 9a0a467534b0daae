/* Instructions per packet, if the machine counts them as time: see guests/channels. */
#include "card.h"

enum { BATCH = 8, ROUNDS = 8 };

static u64 tsc(void)
{
	u32 low, high;
	asm volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high));
	return low | (u64)high << 32;
}

void measure(void)
{
	u64 best = ~0ul;
	load_card("domains_own");
	check_result(attach(), 0, "attaching");
	for (u32 round = 0; round < ROUNDS; round++) {
		make_frame(stranger, guest.mac, 1514, round);
		for (u32 n = 0; n < BATCH; n++)
			put(&guest, 1514, PAGE);
		u64 start = tsc();
		kick_tx(&guest);
		u64 took = tsc() - start;
		best = took < best ? took : best;
		check(card->nr_sent - card->nr_done == BATCH, "the driver has %lu packets", card->nr_sent - card->nr_done);
		all_gone("measuring");
	}
	printk("  out: %lu time stamps a packet of 1514 bytes, %u at once\n", best / BATCH, BATCH);
	check_result(detach(), 0, "taking the card away");
	unload_card();
}
