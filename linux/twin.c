// SPDX-License-Identifier: GPL-2.0
/* Loading and unloading a twin. */
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/swiotlb.h>
#include <asm/xen/page.h>
#include "internal.h"

/*
 * So long a twin is not used before its buffers come back: who takes the card away mostly gives it
 * back soon, or tries to each second.
 */
#define UNUSED_JIFFIES (3 * HZ)

/*
 * The machine frame of the page-table root at an address of the kernel image, 0 if there can be
 * none.
 */
static u64 root_frame(u64 address)
{
	if (!PAGE_ALIGNED(address) || address < __START_KERNEL_map ||
	    address - __START_KERNEL_map >= KERNEL_IMAGE_SIZE)
		return 0;
	if (!pfn_valid(PFN_DOWN(__pa_symbol(address))))
		return 0;
	return pfn_to_mfn(PFN_DOWN(__pa_symbol(address)));
}

/* First bus address that the card does not reach; 0: it reaches all. */
static u64 dma_limit(struct device *device)
{
	u64 mask = device->dma_mask ? *device->dma_mask : DMA_BIT_MASK(32);

	return mask + 1;
}

/* The PCI device of an interface: its own, or the one on which that stands, as virtio's do. */
static struct device *pci_device(struct net_device *dev)
{
	struct device *device = dev->dev.parent;

	while (device && !dev_is_pci(device))
		device = device->parent;
	return device;
}

static void describe_kernel(struct twin_kernel *kernel, struct device *device,
			    const struct tandem_load *load, const u32 *offsets)
{
	/*
	 * What the card does not reach, or what lies across frames that are apart, is copied there.
	 */
	const struct io_tlb_mem *bounce = device->dma_io_tlb_mem;

	*kernel = (struct twin_kernel) {
		.page_offset = page_offset_base,
		.vmalloc_start = VMALLOC_START,
		.vmalloc_end = VMALLOC_END + 1,
		.vmemmap_start = vmemmap_base,
		.jiffies = (unsigned long)&jiffies,
		.p2m = (unsigned long)xen_p2m_addr,
		.p2m_frames = xen_p2m_size,
		.dma_limit = dma_limit(device),
		.bounce = bounce ? PFN_DOWN(bounce->start) : 0,
		.bounce_frames = bounce ? PFN_UP(bounce->end) - PFN_DOWN(bounce->start) : 0,
		.offsets = (unsigned long)offsets,
		.nr_offsets = load->nr_offsets,
		.sleepers = load->sleepers,
		.nr_sleepers = load->nr_sleepers,
		.sleeper_bytes = load->sleeper_bytes,
	};
}

static int load_image(struct twin *twin, const struct tandem_load *load, const u32 *offsets,
		      const void *image)
{
	struct twin_kernel kernel;
	struct twin_load request = {
		.image = (unsigned long)image,
		.image_bytes = load->image_bytes,
		.mode = load->mode,
		.root = root_frame(load->root),
		.budget = load->budget,
		.rule = TWIN_NO_RULE,
		.flags = load->flags,
		.kernel = (unsigned long)&kernel,
	};
	int err;

	if (!request.root)
		return -EINVAL;
	describe_kernel(&kernel, pci_device(twin->dev), load, offsets);
	err = tandem_areas_get(&request);
	if (err)
		return err;
	err = twin_op(TWINOP_LOAD, &request);
	twin->status.rule = request.rule;
	twin->status.offset = request.offset;
	twin->status.areas = err == -EDOM ? request.twin : 0;
	if (err) {
		tandem_areas_put();
		return err;
	}
	twin->number = request.twin;
	return 0;
}

/*
 * Whoever waits for changes of ours does not have to look: he would try again at once what he tries
 * each second.
 */
static void update_features(struct twin *twin)
{
	twin->is_told = true;
	netdev_update_features(twin->dev);
	twin->is_told = false;
}

/*
 * While the driver may have lent sk_buffs, Linux does not merge what comes by the card (GRO): from
 * those that are merged it takes the pieces, and then it keeps the sk_buff itself for the next
 * packet, whoever else has a reference. The twin puts them into the driver's rings, and there they
 * are until they have been received into, also when Linux has the card again.
 */
void tandem_stop_merging(struct twin *twin)
{
	if (!twin->is_used || !(twin->dev->wanted_features & NETIF_F_GRO))
		return;
	twin->merges = true;
	twin->dev->wanted_features &= ~NETIF_F_GRO;
	update_features(twin);
}

static void merge_again(struct twin *twin)
{
	twin->is_used = false;
	if (!twin->merges || twin->dev->reg_state != NETREG_REGISTERED)
		return;
	twin->merges = false;
	twin->dev->wanted_features |= NETIF_F_GRO;
	update_features(twin);
}

/* The twin's functions are about to run: all buffers are lent, and Linux merges nothing. */
int tandem_use(struct twin *twin)
{
	twin->is_used = true;
	twin->used_at = jiffies;
	tandem_stop_merging(twin);
	return tandem_pool_lend(twin);
}

/*
 * As for a bridge, which has most cards: what others get is as it was on the wire. That stays so,
 * for some drivers reset their card for it, and would each time that somebody tries.
 */
void tandem_stop_lro(struct twin *twin)
{
	twin->is_told = true;
	dev_disable_lro(twin->dev);
	twin->is_told = false;
}

/* The twin is to be used for the card. */
int tandem_use_card(struct twin *twin)
{
	twin->was_used = twin->is_used;
	twin->was_used_at = twin->used_at;
	return tandem_use(twin);
}

/*
 * It has not had the card after all: Linux merges what comes by that as before, and the time for
 * which the twin is not used goes on.
 */
void tandem_undo_use(struct twin *twin)
{
	twin->used_at = twin->was_used_at;
	if (!twin->was_used)
		merge_again(twin);
}

/*
 * Linux merges again if it did, when the twin has not run for a while and the driver has none of
 * the lent sk_buffs any more.
 */
void tandem_let_merge(struct twin *twin)
{
	if (twin->state != TANDEM_LOADED || !twin->is_used ||
	    time_before(jiffies, twin->used_at + UNUSED_JIFFIES))
		return;
	if (tandem_pool_is_drained(twin))
		merge_again(twin);
}

int tandem_load(struct twin *twin, const struct tandem_load *load, const u32 *offsets,
		const void *image)
{
	struct device *device;
	int err;

	if (twin->state != TANDEM_EMPTY)
		return -EEXIST;
	twin->dev = __dev_get_by_name(&init_net, load->interface);
	if (!twin->dev)
		return -ENODEV;
	device = pci_device(twin->dev);
	if (!device) {
		twin->dev = NULL;
		return -EOPNOTSUPP;
	}
	err = load_image(twin, load, offsets, image);
	if (err) {
		twin->dev = NULL;
		return err;
	}
	dev_hold(twin->dev);
	twin->state = TANDEM_LOADED;
	twin->is_restarted = false;
	memset(twin->status.called, 0, sizeof(twin->status.called));
	twin->is_used = false;
	twin->merges = false;
	err = tandem_pool_make(twin, load);
	if (!err)
		err = tandem_pool_lend(twin);
	if (err)
		tandem_unload(twin);
	return err;
}

/* The hypervisor has the twin no more, nor its card, whatever that waits for. */
void tandem_end(struct twin *twin)
{
	struct twin_name name = { .twin = twin->number };
	int err;

	/* If they do not come back nobody knows who has them. */
	if (tandem_pool_recall(twin))
		twin->pool.count = 0;
	err = twin_op(TWINOP_UNLOAD, &name);
	if (err)
		pr_err("twin %u cannot be unloaded: %d\n", twin->number, err);
}

/* Nor has this module. */
void tandem_forget(struct twin *twin)
{
	tandem_areas_put();
	tandem_pool_free(&twin->pool);
	twin->state = TANDEM_EMPTY;
	merge_again(twin);
	dev_put(twin->dev);
	twin->dev = NULL;
}

/* Undoes what was done, whatever that is. */
void tandem_unload(struct twin *twin)
{
	if (twin->state == TANDEM_ATTACHED)
		tandem_detach(twin);
	if (twin->state == TANDEM_LOADED) {
		tandem_restart(twin);
		tandem_end(twin);
		tandem_forget(twin);
	}
}

void tandem_fill_status(struct twin *twin)
{
	struct tandem_status *status = &twin->status;

	/*
	 * Drivers tell nobody that they use fewer queues, nor what they have freed, nor netpoll
	 * that it uses a card, nor do all programs that they are there. Somebody reads this each
	 * second.
	 */
	tandem_check(twin);
	tandem_give_way(twin);
	tandem_let_merge(twin);
	status->state = twin->state;
	status->obstacle = twin->state == TANDEM_LOADED ? -tandem_may_have(twin->dev) : 0;
	status->lent = twin->pool.count;
	status->news = atomic_read(&twin->news);
	status->stats = (struct twin_stats) { .twin = twin->number };
	if (twin->state == TANDEM_EMPTY || twin_op(TWINOP_STATS, &status->stats) ||
	    status->stats.twin != twin->number)
		status->stats = (struct twin_stats) { .twin = twin->number };
}

bool tandem_is_disabled(struct twin *twin)
{
	struct twin_stats stats = { .twin = twin->number };

	return !twin_op(TWINOP_STATS, &stats) && stats.twin == twin->number && stats.disabled;
}
