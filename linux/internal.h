/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of tandem.ko share. Everything about twins is done under rtnl_lock; only the work
 * of serve.c is not, which runs between tandem_serve_begin and tandem_serve_end and touches nothing
 * that changes in between.
 */
#ifndef TANDEM_INTERNAL_H
#define TANDEM_INTERNAL_H

#include <linux/netdevice.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <xen/xen.h>
#include <xen/interface/xen.h>
#include <asm/xen/hypercall.h>
#include "tandem.h"

#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

/* A buffer that is lent. */
struct lent {
	u64 object;
	u8 kind;
	bool is_home;
	u32 end;
	void *head;
};

struct pool {
	struct lent *list;
	u32 count;
	/* All are lent; else only those that the driver has, or has freed. */
	bool is_lent;
	/* So many of the first the driver has not any more then. */
	u32 nr_drained;
};

/* An open file. */
struct twin {
	struct list_head list;
	struct net_device *dev;
	enum tandem_state state;
	u32 number;
	struct tandem_status status;
	struct pool pool;
	/* The driver may have lent buffers: the twin runs or has run, at last at this time. */
	bool is_used;
	unsigned long used_at;
	/* The same, before somebody tried to have the twin have the card. */
	bool was_used;
	unsigned long was_used_at;
	/* Linux is to merge what comes by the card when it has not. */
	bool merges;
	/* It is told so just now, or told not to. */
	bool is_told;
	/* The driver has begun anew since its twin was disabled. */
	bool is_restarted;
	/* Counts what a reader may want to know, and what of it no request has done. */
	atomic_t changes, news;
	int seen;
	wait_queue_head_t changed;
	/* Number of the bridge that the card was a part of before it was attached; 0: none. */
	int bridge;
	/* The domain's interface that is plugged into the switch; while the card is attached. */
	struct net_device *uplink;
	/* serve.c */
	int irq;
	u32 port;
	struct work_struct work;
	/* The twin was disabled: the driver begins anew. */
	struct work_struct anew;
	struct twin_call call;
	/* What is served where the event came. */
	struct twin_call at_once;
	struct twin_note *notes;
	/*
	 * The driver's polls when the card was attached: their numbers, which no others get. The
	 * driver may have freed them.
	 */
	u32 polls[TWIN_MAX_QUEUES];
	u32 nr_polls;
	/* As many transmit queues it used then, and for this its features stood. */
	u32 nr_queues, flags;
	/* Its interrupts. */
	struct tandem_irq irqs[TWIN_MAX_QUEUES];
	u32 nr_irqs;
};

static inline long twin_op(enum twin_command command, void *arg)
{
	return _hypercall2(long, twin_op, command, arg);
}

static inline void tandem_tell_writer(struct twin *twin)
{
	atomic_inc(&twin->changes);
	wake_up(&twin->changed);
}

static inline void tandem_tell(struct twin *twin)
{
	atomic_inc(&twin->news);
	tandem_tell_writer(twin);
}

/* twin.c */
int tandem_load(struct twin *twin, const struct tandem_load *load, const u32 *offsets,
		const void *image);
void tandem_unload(struct twin *twin);
void tandem_end(struct twin *twin);
void tandem_forget(struct twin *twin);
void tandem_stop_merging(struct twin *twin);
int tandem_use(struct twin *twin);
void tandem_stop_lro(struct twin *twin);
int tandem_use_card(struct twin *twin);
void tandem_undo_use(struct twin *twin);
void tandem_let_merge(struct twin *twin);
void tandem_fill_status(struct twin *twin);
bool tandem_is_disabled(struct twin *twin);

/* areas.c */
int tandem_areas_init(void);
void tandem_areas_exit(void);
int tandem_areas_get(struct twin_load *load);
void tandem_areas_put(void);

/* pool.c */
int tandem_pool_make(struct twin *twin, const struct tandem_load *load);
int tandem_pool_lend(struct twin *twin);
int tandem_pool_recall(struct twin *twin);
bool tandem_pool_is_drained(struct twin *twin);
void tandem_pool_free(struct pool *pool);

/* card.c */
extern struct notifier_block tandem_netdev_notifier;
int tandem_attach(struct twin *twin, const struct tandem_attach *attach);
void tandem_detach(struct twin *twin);
void tandem_check(struct twin *twin);
void tandem_give_way(struct twin *twin);
int tandem_may_have(struct net_device *dev);
void tandem_restart(struct twin *twin);

/* features.c */
u32 tandem_flags_of_all(struct net_device *dev, u32 flags);

/* serve.c */
int tandem_serve_init(void);
void tandem_serve_exit(void);
void tandem_serve_open(struct twin *twin);
void tandem_serve_release(struct twin *twin);
int tandem_serve_begin(struct twin *twin);
void tandem_serve_end(struct twin *twin);
int tandem_call(struct twin *twin, const struct tandem_call *call);

/* anew.c */
int tandem_anew_init(void);
void tandem_anew_exit(void);
void tandem_anew(struct net_device *dev);

/* damage.c */
int tandem_damage(struct twin *twin);

/* main.c */
extern struct list_head tandem_twins;

#endif
