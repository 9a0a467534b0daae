// SPDX-License-Identifier: GPL-2.0
/*
 * Interfaces whose drivers begin anew: what a twin that ended in the middle of a routine has left
 * is nothing that a driver knows, so its interface goes down and up. One that does not come up, as
 * there is no memory just then, is tried again each second for a while, also when its twin has
 * gone.
 */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "internal.h"

/* One each second. */
#define MOST_TRIES 30

struct anew {
	struct delayed_work work;
	struct net_device *dev;
	u32 nr_tries;
	/* It went down for this. */
	bool is_down;
};

static struct workqueue_struct *queue;

/*
 * Is there nothing more to do? Whoever else takes the interface down, or has it come up, has had
 * its driver begin anew.
 */
static bool is_done(struct anew *anew)
{
	struct net_device *dev = anew->dev;
	int err;

	if (dev->reg_state != NETREG_REGISTERED || netif_running(dev) == anew->is_down)
		return true;
	if (!anew->is_down) {
		pr_warn("the twin of %s ended in the middle; the interface goes down and up\n", dev->name);
		dev_close(dev);
		anew->is_down = true;
	}
	err = dev_open(dev, NULL);
	if (!err)
		return true;
	if (!anew->nr_tries++)
		pr_err("%s does not come up again, which is tried each second: %d\n", dev->name, err);
	if (anew->nr_tries < MOST_TRIES)
		return false;
	pr_err("%s stays down: %d\n", dev->name, err);
	return true;
}

static void try(struct work_struct *work)
{
	struct anew *anew = container_of(to_delayed_work(work), struct anew, work);
	bool is_over;

	rtnl_lock();
	is_over = is_done(anew);
	rtnl_unlock();
	if (!is_over) {
		queue_delayed_work(queue, &anew->work, HZ);
		return;
	}
	dev_put(anew->dev);
	kfree(anew);
	/* Who unloads this waits for the queue. */
	module_put(THIS_MODULE);
}

/* It goes down, if it has not yet, and comes up, as soon as that can be. Under rtnl_lock. */
void tandem_anew(struct net_device *dev)
{
	struct anew *anew = kzalloc(sizeof(*anew), GFP_KERNEL | __GFP_NOFAIL);

	__module_get(THIS_MODULE);
	dev_hold(dev);
	anew->dev = dev;
	anew->is_down = !netif_running(dev);
	INIT_DELAYED_WORK(&anew->work, try);
	queue_delayed_work(queue, &anew->work, 0);
}

int tandem_anew_init(void)
{
	queue = alloc_workqueue("tandem_anew", WQ_UNBOUND, 0);
	return queue ? 0 : -ENOMEM;
}

void tandem_anew_exit(void)
{
	destroy_workqueue(queue);
}
