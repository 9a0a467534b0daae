// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers that are lent to a twin. Each has one reference more than whoever uses it, also while
 * nobody does: an sk_buff in `users`, a page of a fragment in `_refcount`, which are 2 all the
 * time. So whoever frees one that is lent gives up a reference and no more; whoever does not look
 * at `users` (GRO) is kept off them (twin.c). When the card is taken away, those that nobody uses
 * come back from the hypervisor, until it is given away again. At the end they are freed; of the
 * others the lender's reference goes, and the driver frees them when it is done with them.
 */
#include <linux/bsearch.h>
#include <linux/ethtool.h>
#include <linux/mm.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "internal.h"

/* Of all kinds. */
#define MOST 8190
/* Buffers with their shared info. Pieces of this size do not lie across pages. */
#define BUFFER 2048
#define AT_ONCE (PAGE_SIZE / sizeof(struct twin_lent))

static int make_skb(struct lent *lent)
{
	struct sk_buff *skb = alloc_skb(SKB_WITH_OVERHEAD(BUFFER), GFP_KERNEL);

	if (!skb)
		return -ENOMEM;
	lent->object = (unsigned long)skb;
	lent->head = skb->head;
	lent->end = skb_end_offset(skb);
	if (lent->end == SKB_WITH_OVERHEAD(BUFFER) &&
	    offset_in_page(skb->head) + BUFFER <= PAGE_SIZE) {
		skb_get(skb);
		return 0;
	}
	pr_err("a buffer lies across pages: the kernel's allocator looks for errors\n");
	kfree_skb(skb);
	return -EIO;
}

/* Nothing gives an sk_buff without a buffer, so that one is made of one with. */
static int make_bare_skb(struct lent *lent)
{
	struct sk_buff *skb = alloc_skb(0, GFP_KERNEL);

	if (!skb)
		return -ENOMEM;
	kfree(skb->head);
	skb->head = NULL;
	skb_get(skb);
	lent->object = (unsigned long)skb;
	return 0;
}

static int make_fragment(struct lent *lent)
{
	struct page *page = alloc_page(GFP_KERNEL);

	if (!page)
		return -ENOMEM;
	get_page(page);
	lent->object = (unsigned long)page_address(page);
	lent->head = page;
	return 0;
}

static int make(struct lent *lent)
{
	switch (lent->kind) {
	case TWIN_SKB:
		return make_skb(lent);
	case TWIN_BARE_SKB:
		return make_bare_skb(lent);
	default:
		return make_fragment(lent);
	}
}

/* One that nobody uses; what the twin left in it says nothing. */
static void free_unused(struct lent *lent)
{
	struct sk_buff *skb = (void *)(unsigned long)lent->object;

	if (lent->kind == TWIN_FRAGMENT) {
		put_page(lent->head);
		put_page(lent->head);
		return;
	}
	memset(skb, 0, offsetof(struct sk_buff, tail));
	refcount_set(&skb->users, 1);
	if (lent->kind == TWIN_BARE_SKB) {
		kfree_skb_partial(skb, true);
		return;
	}
	skb->head = lent->head;
	skb->data = lent->head;
	skb_reset_tail_pointer(skb);
	skb_set_end_offset(skb, lent->end);
	memset(skb_shinfo(skb), 0, offsetof(struct skb_shared_info, dataref));
	atomic_set(&skb_shinfo(skb)->dataref, 1);
	kfree_skb(skb);
}

/* One that the driver has, or has freed. */
static void let_go(struct lent *lent)
{
	if (lent->kind == TWIN_FRAGMENT)
		put_page(lent->head);
	else
		consume_skb((void *)(unsigned long)lent->object);
}

static int by_object(const void *a, const void *b)
{
	const struct lent *one = a, *other = b;

	return one->object < other->object ? -1 : one->object > other->object;
}

/* Lends the first of those from `*from` on that are home, and goes on behind them. */
static int lend_some(struct twin *twin, struct twin_lent *list, u32 *from)
{
	struct twin_lend lend = { .twin = twin->number, .list = (unsigned long)list };
	struct pool *pool = &twin->pool;
	u32 first = *from, n;
	int err;

	for (n = first; n < pool->count && lend.count < AT_ONCE; n++) {
		const struct lent *lent = &pool->list[n];

		if (!lent->is_home)
			continue;
		list[lend.count++] = (struct twin_lent) {
			.kind = lent->kind,
			.bytes = lent->kind == TWIN_SKB ? BUFFER :
				 lent->kind == TWIN_FRAGMENT ? PAGE_SIZE : 0,
			.object = lent->object,
			.of = lent->kind == TWIN_BARE_SKB ? 0 : (unsigned long)lent->head,
			.references = lent->kind == TWIN_FRAGMENT ? 2 : 0,
		};
	}
	err = lend.count ? twin_op(TWINOP_LEND, &lend) : 0;
	if (!err)
		for (*from = n; first < n; first++)
			pool->list[first].is_home = false;
	return err;
}

/* What lies in the card's receive rings once all of it came from the twin. */
static u32 in_rings(struct net_device *dev)
{
	struct kernel_ethtool_ringparam kernel = {};
	struct ethtool_ringparam param = {};
	u64 entries;

	if (!dev->ethtool_ops || !dev->ethtool_ops->get_ringparam)
		return 0;
	dev->ethtool_ops->get_ringparam(dev, &param, &kernel, NULL);
	entries = (u64)param.rx_pending + param.rx_mini_pending + param.rx_jumbo_pending;
	return min_t(u64, entries * dev->real_num_rx_queues, MOST);
}

/*
 * A kind of which none are asked for is none that the driver uses. Of each other one: what is asked
 * for, for each queue that sends, and what lies in rings, but of all kinds the same number at most.
 */
static u32 how_many(const struct tandem_load *load, u32 asked_for, struct net_device *dev)
{
	u32 nr_kinds = !!load->skbs + !!load->bare_skbs + !!load->fragments;
	u64 wanted = (u64)asked_for * dev->real_num_tx_queues + in_rings(dev);

	return asked_for ? min_t(u64, wanted, MOST / nr_kinds) : 0;
}

int tandem_pool_make(struct twin *twin, const struct tandem_load *load)
{
	struct pool *pool = &twin->pool;
	u32 skbs, bare, wanted;
	int err = 0;

	if (load->skbs > MOST || load->bare_skbs > MOST || load->fragments > MOST)
		return -EINVAL;
	skbs = how_many(load, load->skbs, twin->dev);
	bare = how_many(load, load->bare_skbs, twin->dev);
	wanted = skbs + bare + how_many(load, load->fragments, twin->dev);
	pool->list = kvcalloc(wanted, sizeof(*pool->list), GFP_KERNEL);
	if (!pool->list)
		return -ENOMEM;
	while (pool->count < wanted && !err) {
		struct lent *lent = &pool->list[pool->count];

		lent->kind = pool->count < skbs ? TWIN_SKB :
			     pool->count < skbs + bare ? TWIN_BARE_SKB : TWIN_FRAGMENT;
		err = make(lent);
		lent->is_home = true;
		pool->count += !err;
		cond_resched();
	}
	sort(pool->list, pool->count, sizeof(*pool->list), by_object, NULL);
	return err;
}

static struct lent *find(const struct pool *pool, u64 object)
{
	struct lent key = { .object = object };

	return bsearch(&key, pool->list, pool->count, sizeof(key), by_object);
}

/*
 * What the driver has put into an sk_buff that it has freed, but for the lender's reference, is
 * still in it: pieces of pages, and other sk_buffs. The hypervisor takes back only those that have
 * none. What it has sent itself has pages that are lent, and comes back with them.
 */
static void free_rest(const struct pool *pool, const struct lent *lent)
{
	struct sk_buff *skb = (void *)(unsigned long)lent->object;
	struct skb_shared_info *info;
	u32 n;

	if (lent->is_home || lent->kind != TWIN_SKB || refcount_read(&skb->users) != 1)
		return;
	/*
	 * Whoever was the other user has done all that he did before. A copy that shares the data
	 * frees nothing either.
	 */
	smp_rmb();
	info = skb_shinfo(skb);
	if ((atomic_read(&info->dataref) & SKB_DATAREF_MASK) != 1)
		return;
	for (n = 0; n < info->nr_frags; n++)
		if (find(pool, (unsigned long)page_address(skb_frag_page(&info->frags[n]))))
			return;
	for (n = 0; n < info->nr_frags; n++)
		skb_frag_unref(skb, n);
	info->nr_frags = 0;
	kfree_skb_list(info->frag_list);
	info->frag_list = NULL;
}

/* Those that are home are lent. The twin does not run: nobody uses what was freed. */
int tandem_pool_lend(struct twin *twin)
{
	struct pool *pool = &twin->pool;
	struct twin_lent *list;
	int err = 0;
	u32 n;

	for (n = 0; n < pool->count; n++)
		free_rest(pool, &pool->list[n]);
	n = 0;
	if (pool->is_lent)
		return 0;
	list = (void *)__get_free_page(GFP_KERNEL);
	if (!list)
		return -ENOMEM;
	while (!err && n < pool->count)
		err = lend_some(twin, list, &n);
	free_page((unsigned long)list);
	pool->is_lent = !err;
	return err;
}

/* Those of the buffers that the twin does not use come back. */
int tandem_pool_recall(struct twin *twin)
{
	struct twin_lent *list = (void *)__get_free_page(GFP_KERNEL | __GFP_NOFAIL);
	struct twin_lend lend;
	u32 n;
	int err;

	do {
		lend = (struct twin_lend) {
			.twin = twin->number,
			.count = AT_ONCE,
			.list = (unsigned long)list,
		};
		err = twin_op(TWINOP_RECALL, &lend);
		for (n = 0; !err && n < lend.count; n++) {
			struct lent *lent = find(&twin->pool, list[n].object);

			if (lent)
				lent->is_home = true;
		}
		cond_resched();
	} while (!err && lend.count);
	if (err)
		pr_err("%u buffers of twin %u do not come back: %d\n", twin->pool.count, twin->number, err);
	free_page((unsigned long)list);
	twin->pool.is_lent = false;
	twin->pool.nr_drained = 0;
	return err;
}

/*
 * Has the driver none of the sk_buffs any more? Those that it has are told from the others by these
 * coming back. Of one that it has freed the lender's reference is left; it does not get it again,
 * so nobody looks at it twice.
 */
bool tandem_pool_is_drained(struct twin *twin)
{
	struct pool *pool = &twin->pool;

	if (pool->is_lent)
		tandem_pool_recall(twin);
	for (; pool->nr_drained < pool->count; pool->nr_drained++) {
		const struct lent *lent = &pool->list[pool->nr_drained];
		const struct sk_buff *skb = (void *)(unsigned long)lent->object;

		if (!lent->is_home && lent->kind != TWIN_FRAGMENT &&
		    refcount_read(&skb->users) != 1)
			return false;
	}
	return true;
}

/* After the twin was unloaded, or never had them. */
void tandem_pool_free(struct pool *pool)
{
	u32 n;

	for (n = 0; n < pool->count; n++) {
		if (pool->list[n].is_home)
			free_unused(&pool->list[n]);
		else
			let_go(&pool->list[n]);
	}
	kvfree(pool->list);
	pool->list = NULL;
	pool->count = 0;
	pool->is_lent = false;
}
