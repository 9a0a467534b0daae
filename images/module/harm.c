// SPDX-License-Identifier: GPL-2.0
/*
 * Damages this kernel, bit by bit, until it has enough: `what=wild` writes at random into what its allocators have handed out,
 * `what=text target=MODULE` into that module's instructions. `what=dma`: of the addresses that drivers give their devices one in sixteen is
 * nobody's memory. `what=ring`: into what drivers share with their devices for good, which has to be got after this module was loaded; it begins when the
 * parameter `go` is written to. How much it has damaged it says now and then, as long as it can. For tests of who goes on when it does not.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/scatterlist.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

static char *what = "wild";
module_param(what, charp, 0444);
MODULE_PARM_DESC(what, "wild, text, dma or ring");
static char *target = "";
module_param(target, charp, 0444);
MODULE_PARM_DESC(target, "the module whose instructions are damaged");
static uint seed = 1;
module_param(seed, uint, 0444);
MODULE_PARM_DESC(seed, "of the chances");

/* How often something is damaged, how many words of memory then, and tries to find a page that is in use. Of so many it says a line. */
enum { PERIOD_US = 1000, WORDS = 4, TRIES = 10000, LINE = 16 };

static struct rnd_state chance;
static struct module *victim;
static atomic_t damaged = ATOMIC_INIT(0);

/* Said before it is done: it may be the last. */
static void count(void)
{
	int number = atomic_inc_return(&damaged);

	if (number == 1 || number % LINE == 0)
		pr_err("damaged %d\n", number);
}

static struct page *used_page(void)
{
	unsigned long pfn;
	int tries;

	for (tries = 0; tries < TRIES; tries++) {
		pfn = prandom_u32_state(&chance) % node_end_pfn(first_online_node);
		if (pfn_valid(pfn) && PageSlab(compound_head(pfn_to_page(pfn))))
			return pfn_to_page(pfn);
	}
	return NULL;
}

static void damage_memory(void)
{
	struct page *page = used_page();
	u64 *words;

	if (!page)
		return;
	count();
	words = page_address(page);
	words[prandom_u32_state(&chance) % (PAGE_SIZE / 8)] =
		(u64)prandom_u32_state(&chance) << 32 | prandom_u32_state(&chance);
}

/* Where the instructions are they cannot be written; their page is mapped a second time. */
static void damage_text(void)
{
	u8 *at = (u8 *)victim->core_layout.base + prandom_u32_state(&chance) % victim->core_layout.text_size;
	struct page *page = vmalloc_to_page(at);
	u8 *other = page ? vmap(&page, 1, VM_MAP, PAGE_KERNEL) : NULL;

	if (!other)
		return;
	count();
	other[offset_in_page(at)] ^= 1 << prandom_u32_state(&chance) % 8;
	vunmap(other);
}

/* Where no machine of these tests has memory, and no IOMMU leads. */
#define NOWHERE (1ULL << 36)

static bool is_turn(void)
{
	return prandom_u32_state(&chance) % 16 == 0;
}

static dma_addr_t nowhere(void)
{
	count();
	return NOWHERE | (u64)prandom_u32_state(&chance) % (NOWHERE >> PAGE_SHIFT) << PAGE_SHIFT;
}

static int page_is_mapped(struct kretprobe_instance *call, struct pt_regs *regs)
{
	if (is_turn())
		regs->ax = nowhere();
	return 0;
}

/* Where the list is, which is the second argument. */
static int list_comes(struct kretprobe_instance *call, struct pt_regs *regs)
{
	*(struct scatterlist **)call->data = (struct scatterlist *)regs->si;
	return 0;
}

static int list_is_mapped(struct kretprobe_instance *call, struct pt_regs *regs)
{
	struct scatterlist *first = *(struct scatterlist **)call->data;

	if ((int)regs->ax > 0 && is_turn())
		sg_dma_address(first) = nowhere();
	return 0;
}

static struct kretprobe of_pages = {
	.kp.symbol_name = "dma_map_page_attrs",
	.handler = page_is_mapped,
	.maxactive = 64,
};

static struct kretprobe of_lists = {
	.kp.symbol_name = "dma_map_sg_attrs",
	.entry_handler = list_comes,
	.handler = list_is_mapped,
	.data_size = sizeof(struct scatterlist *),
	.maxactive = 64,
};

static int damage_addresses(void)
{
	int error = register_kretprobe(&of_pages);

	if (error)
		return error;
	__module_get(THIS_MODULE);
	error = register_kretprobe(&of_lists);
	if (error)
		unregister_kretprobe(&of_pages);
	return error;
}

/* Memory that drivers share with their devices for good. */
static struct ring {
	void *at;
	size_t bytes;
} rings[64];
static DEFINE_SPINLOCK(ring_lock);

/* How long it is to be, which is the second argument. */
static int ring_comes(struct kretprobe_instance *call, struct pt_regs *regs)
{
	*(size_t *)call->data = regs->si;
	return 0;
}

static struct ring *ring_at(void *at)
{
	int n;

	for (n = 0; n < ARRAY_SIZE(rings); n++)
		if (rings[n].at == at)
			return &rings[n];
	return NULL;
}

static int ring_is_got(struct kretprobe_instance *call, struct pt_regs *regs)
{
	struct ring *free;
	unsigned long flags;

	spin_lock_irqsave(&ring_lock, flags);
	free = ring_at(NULL);
	if (free && regs->ax)
		*free = (struct ring){ .at = (void *)regs->ax, .bytes = *(size_t *)call->data };
	spin_unlock_irqrestore(&ring_lock, flags);
	return 0;
}

/* Where it is, is the third argument. */
static int ring_goes(struct kprobe *probe, struct pt_regs *regs)
{
	struct ring *ring;
	unsigned long flags;

	spin_lock_irqsave(&ring_lock, flags);
	ring = regs->dx ? ring_at((void *)regs->dx) : NULL;
	if (ring)
		ring->at = NULL;
	spin_unlock_irqrestore(&ring_lock, flags);
	return 0;
}

static struct kretprobe of_rings = {
	.kp.symbol_name = "dma_alloc_attrs",
	.entry_handler = ring_comes,
	.handler = ring_is_got,
	.data_size = sizeof(size_t),
	.maxactive = 64,
};

static struct kprobe of_freed = {
	.symbol_name = "dma_free_attrs",
	.pre_handler = ring_goes,
};

static void damage_ring(void)
{
	struct ring *ring = &rings[prandom_u32_state(&chance) % ARRAY_SIZE(rings)];
	unsigned long flags;

	spin_lock_irqsave(&ring_lock, flags);
	if (ring->at && ring->bytes >= 8) {
		count();
		((u64 *)ring->at)[prandom_u32_state(&chance) % (ring->bytes / 8)] =
			(u64)prandom_u32_state(&chance) << 32 | prandom_u32_state(&chance);
	}
	spin_unlock_irqrestore(&ring_lock, flags);
}

static int watch_rings(void)
{
	int error = register_kretprobe(&of_rings);

	if (error)
		return error;
	error = register_kprobe(&of_freed);
	if (error)
		unregister_kretprobe(&of_rings);
	return error;
}

static int damage(void *unused)
{
	bool is_of_rings = !strcmp(what, "ring");
	int n;

	for (;;) {
		if (victim)
			damage_text();
		else if (is_of_rings)
			for (n = 0; n < ARRAY_SIZE(rings); n++)
				damage_ring();
		else
			for (n = 0; n < WORDS; n++)
				damage_memory();
		usleep_range(PERIOD_US, PERIOD_US * 2);
	}
	return 0;
}

/* There is no end to it. */
static int begin(void)
{
	__module_get(THIS_MODULE);
	pr_info("%s, from now on\n", what);
	return PTR_ERR_OR_ZERO(kthread_run(damage, NULL, "harm"));
}

static int go(const char *value, const struct kernel_param *param)
{
	int error = strcmp(what, "ring") ? -EINVAL : kstrtouint(value, 0, &seed);

	if (error)
		return error;
	prandom_seed_state(&chance, seed);
	return begin();
}

static const struct kernel_param_ops go_ops = { .set = go };
module_param_cb(go, &go_ops, NULL, 0200);
MODULE_PARM_DESC(go, "rings are damaged from now on; with this seed");

/* By the list that all modules are in. Its head is in none, and what is read there as a name is some other data of the kernel's. */
static struct module *find(const char *name)
{
	struct module *each;

	list_for_each_entry(each, &THIS_MODULE->list, list)
		if (!strncmp(each->name, name, sizeof(each->name)))
			return each;
	return NULL;
}

static int __init harm_init(void)
{
	prandom_seed_state(&chance, seed);
	if (!strcmp(what, "text")) {
		victim = find(target);
		if (!victim)
			return -ENOENT;
	} else if (strcmp(what, "wild") && strcmp(what, "dma") && strcmp(what, "ring")) {
		return -EINVAL;
	}
	if (!strcmp(what, "dma"))
		return damage_addresses();
	if (!strcmp(what, "ring"))
		return watch_rings();
	return begin();
}
module_init(harm_init);

static void __exit harm_exit(void)
{
	unregister_kprobe(&of_freed);
	unregister_kretprobe(&of_rings);
}
module_exit(harm_exit);

MODULE_DESCRIPTION("Damages the kernel that loads it");
MODULE_LICENSE("GPL");
