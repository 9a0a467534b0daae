// SPDX-License-Identifier: GPL-2.0
/*
 * For tests: what a twin works on is damaged for a moment, so that it is aborted as it would be by
 * a driver that goes wrong. Only if the module was loaded with damage=1. Whoever asks chooses
 * neither place nor value.
 *
 * All CPUs of the domain stand still meanwhile, so nobody here sees the damage; it is gone before
 * they go on.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>
#include <xen/interface/sched.h>
#include "internal.h"

/*
 * So long for somebody to send a packet. Longer than the hypervisor waits for an answer of ours:
 * what a twin asks for that works on what is damaged is never done, for it is disabled before that.
 */
#define PATIENCE_NS (3 * NSEC_PER_SEC)
/* An address of the hypervisor's, which no twin reaches. */
#define WILD 0xffff800000000000
/* Every pointer of the kernel's is above. */
#define KERNEL_HALF 0xffff800000000001

static bool damage;
module_param(damage, bool, 0444);
MODULE_PARM_DESC(damage, "lets tests damage what a twin works on");

/* The driver's private data, up to the end of its memory. */
static size_t private_words(struct net_device *dev)
{
	void *start = (void *)dev - dev->padded;

	if (is_vmalloc_addr(start))
		return 0;
	return (start + ksize(start) - netdev_priv(dev)) / sizeof(u64);
}

struct damage {
	struct twin *twin;
	u64 *words, *saved;
	size_t count;
};

static int damage_words(void *data)
{
	struct damage *all = data;
	u64 end = ktime_get_ns() + PATIENCE_NS;
	bool is_over;
	size_t n;

	for (n = 0; n < all->count; n++) {
		all->saved[n] = READ_ONCE(all->words[n]);
		if (all->saved[n] >= KERNEL_HALF)
			WRITE_ONCE(all->words[n], WILD);
	}
	do {
		HYPERVISOR_sched_op(SCHEDOP_yield, NULL);
		is_over = tandem_is_disabled(all->twin);
	} while (!is_over && ktime_get_ns() < end);
	for (n = 0; n < all->count; n++)
		if (all->saved[n] >= KERNEL_HALF && READ_ONCE(all->words[n]) == WILD)
			WRITE_ONCE(all->words[n], all->saved[n]);
	return is_over ? 0 : -ETIMEDOUT;
}

int tandem_damage(struct twin *twin)
{
	struct damage all = { .twin = twin };
	int err;

	if (!damage)
		return -EPERM;
	if (twin->state != TANDEM_ATTACHED)
		return -ENOENT;
	all.words = netdev_priv(twin->dev);
	all.count = private_words(twin->dev);
	if (!all.count)
		return -EOPNOTSUPP;
	all.saved = kvmalloc_array(all.count, sizeof(*all.saved), GFP_KERNEL);
	if (!all.saved)
		return -ENOMEM;
	err = stop_machine(damage_words, &all, NULL);
	kvfree(all.saved);
	return err;
}
