/* Cards where there is little memory. */
#include "card.h"

enum { OTHER = 9, MANY = 10, NR_MANY = 200, BLOCKS = 200, BLOCK = 3, NR_QUEUES = 16, STRIDE = 128, FEW = 16 };

/* Domains of many vCPUs are made until the hypervisor says that its own memory is short; how many. */
static u32 take_reserve(void)
{
	struct domctl request;
	u32 nr = 0;
	for (s64 result = 0; nr < NR_MANY; nr++) {
		request = (struct domctl){ .create = { .max_vcpus = 128, .max_port = 1023, .max_grant_frames = 4,
						       .max_maptrack_frames = 4, .grant_version = 1 } };
		result = domctl(MANY + nr, DOMCTL_CREATE, &request);
		if (result == -ENOMEM)
			return nr;
		if (!check(result == 0, "creating domain %u: %ld", MANY + nr, result))
			break;
		request = (struct domctl){ .max_vcpus = 128 };
		domctl(MANY + nr, DOMCTL_MAX_VCPUS, &request);
	}
	error("memory is never short");
}

static void other_goes(void)
{
	check_result(destroy_domain(OTHER), 0, "destroying the other domain");
	check(domain_is_gone(OTHER), "the other domain stays");
}

/* What the twin waits for is answered though there is no memory left. */
static void waits_without_memory(void)
{
	struct twin_call call;
	load_card("domains_own");
	check_result(attach(), 0, "attaching");
	give_all_memory(OTHER, NULL, 0, 0);
	u32 nr = take_reserve();
	card->xmit_call = 1;
	send_out(60, 1);
	check(next_at_once(&call) && call.reason == UPCALL, "a call without memory is not told");
	card->xmit_call = 0;
	check_result(go_on(&call, 5), 0, "going on without memory");
	check(call.reason == RETURNED, "going on without memory: reason %u", call.reason);
	check_sent(60, "without memory");
	all_gone("without memory");
	for (u32 n = 0; n < nr; n++)
		check_result(destroy_domain(MANY + n), 0, "destroying one of many");
	for (u32 n = 0; n < nr; n++)
		check(domain_is_gone(MANY + n), "domain %u stays", MANY + n);
	other_goes();
	check_result(detach(), 0, "taking the card away");
	unload_card();
}

static s64 attach_with_many_queues(void)
{
	struct twin_attach request = good_attach();
	request.nr_queues = NR_QUEUES;
	request.queue_stride = STRIDE;
	return twin_op(TWINOP_ATTACH, &request);
}

/* What many queues take is not of the memory that the hypervisor keeps for itself. Free is what there is beside that. */
static void attached_with_little_memory(void)
{
	static u64 blocks[BLOCKS];
	u32 nr = 0;
	load_card("domains_own");
	u64 free = free_pages();
	check_result(attach_with_many_queues(), 0, "attaching a card with many queues");
	u64 taken = free - free_pages();
	check_result(detach(), 0, "taking it away");
	give_all_memory(OTHER, blocks, BLOCKS, BLOCK);
	s64 result = attach_with_many_queues();
	check(result == -ENOMEM, "attaching it without memory: %ld", result);
	for (; result && nr < BLOCKS; nr++) {
		give_block_back(OTHER, blocks + nr, BLOCK);
		free = free_pages();
		result = attach_with_many_queues();
		check(result == 0 || result == -ENOMEM, "attaching it with %u blocks: %ld", nr + 1, result);
	}
	check(result == 0, "it is attached never");
	free -= free_pages();
	check(free + FEW >= taken, "%lu of the %lu pages of its were free", free, taken);
	printk("  a card with %u queues takes %lu pages, and was attached with %u blocks\n", NR_QUEUES, taken, nr);
	check_result(detach(), 0, "taking it away");
	other_goes();
	unload_card();
}

void short_of_memory(void)
{
	waits_without_memory();
	attached_with_little_memory();
}
