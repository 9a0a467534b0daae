// SPDX-License-Identifier: GPL-2.0
/*
 * A twin's card: attached while its interface is up, detached before the driver frees what the twin
 * uses.
 */
#include <linux/delay.h>
#include <linux/device/bus.h>
#include <linux/etherdevice.h>
#include <linux/if_bridge.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <net/switchdev.h>
#include <xen/events.h>
#include "internal.h"

/* More event channels no domain has. */
#define MAX_PORTS (1U << 17)
/*
 * With half a millisecond between them this is longer than the hypervisor waits for what a twin
 * waits for, also if the domain stands still.
 */
#define DETACH_TRIES 20000
/* A packet of a guest is as long as this at most, and is cut into so many segments at most. */
#define LONGEST 65536
#define MOST_SEGMENTS 256

/* What the hypervisor reads during the call. */
struct lists {
	struct twin_attach attach;
	struct twin_napi napis[TWIN_MAX_QUEUES];
	struct twin_irq irqs[TWIN_MAX_QUEUES];
};

/* The event channel of an interrupt; 0: none. */
static u32 port_of(u32 irq)
{
	u32 port;

	for (port = 1; port < MAX_PORTS; port++)
		if (irq_from_evtchn(port) == irq)
			return port;
	return 0;
}

/*
 * What the card's features stand for; of some packets its driver may say that they do not
 * (features.c).
 */
static u32 flags_of(const struct net_device *dev)
{
	netdev_features_t features = dev->features;
	u32 flags = 0;

	if (features & (NETIF_F_HW_CSUM | NETIF_F_IP_CSUM))
		flags |= TWIN_CHECKSUM_V4;
	if (features & (NETIF_F_HW_CSUM | NETIF_F_IPV6_CSUM))
		flags |= TWIN_CHECKSUM_V6;
	if (features & NETIF_F_SG)
		flags |= TWIN_SG;
	/* Guests' packets are as long as any, and cannot be told that a card wants shorter ones. */
	if (dev->gso_max_size < LONGEST || dev->gso_max_segs < MOST_SEGMENTS)
		return flags;
	if (features & NETIF_F_TSO)
		flags |= TWIN_GSO_TCPV4;
	if (features & NETIF_F_TSO6)
		flags |= TWIN_GSO_TCPV6;
	return flags;
}

/*
 * Is this one of the interrupt's handlers, with this argument? Whoever wants the card has read that
 * without a lock, and a driver may have freed both since, or may free them while it has the card;
 * it does so under rtnl_lock, as far as it uses them for an interface.
 */
static bool has_handler(const struct tandem_irq *irq)
{
	struct irq_data *data;
	struct irqaction *action = NULL;
	struct irq_desc *desc;
	unsigned long flags;

	/* The descriptor goes by RCU. */
	rcu_read_lock();
	data = irq_get_irq_data(irq->number);
	if (data) {
		desc = irq_data_to_desc(data);
		raw_spin_lock_irqsave(&desc->lock, flags);
		action = desc->action;
		while (action && ((unsigned long)action->handler != irq->handler ||
				  (unsigned long)action->dev_id != irq->argument))
			action = action->next;
		raw_spin_unlock_irqrestore(&desc->lock, flags);
	}
	rcu_read_unlock();
	return action;
}

static bool has_handlers(const struct tandem_irq *irqs, u32 count)
{
	while (count)
		if (!has_handler(&irqs[--count]))
			return false;
	return true;
}

static int fill(struct lists *lists, struct twin *twin, const struct tandem_attach *wanted)
{
	struct net_device *dev = twin->dev;
	struct napi_struct *napi;
	u32 n;

	lists->attach = (struct twin_attach) {
		.twin = twin->number,
		.vif = wanted->vif,
		.device = (unsigned long)dev,
		.start_xmit = (unsigned long)dev->netdev_ops->ndo_start_xmit,
		.queues = (unsigned long)dev->_tx,
		.napis = (unsigned long)lists->napis,
		.irqs = (unsigned long)lists->irqs,
		.nr_queues = min_t(u32, dev->real_num_tx_queues, TWIN_MAX_QUEUES),
		.queue_stride = sizeof(*dev->_tx),
		.nr_irqs = wanted->nr_irqs,
		.flags = tandem_flags_of_all(dev, flags_of(dev)),
		.port = twin->port,
		.max_frame = dev->mtu + dev->hard_header_len,
	};
	twin->nr_queues = dev->real_num_tx_queues;
	twin->flags = flags_of(dev);
	twin->nr_polls = 0;
	list_for_each_entry(napi, &dev->napi_list, dev_list) {
		if (twin->nr_polls == TWIN_MAX_QUEUES)
			return -E2BIG;
		lists->napis[twin->nr_polls] = (struct twin_napi) {
			.napi = (unsigned long)napi,
			.poll = (unsigned long)napi->poll,
			.weight = napi->weight,
		};
		twin->polls[twin->nr_polls++] = napi->napi_id;
	}
	lists->attach.nr_napis = twin->nr_polls;
	if (!has_handlers(wanted->irqs, wanted->nr_irqs))
		return -EAGAIN;
	memcpy(twin->irqs, wanted->irqs, sizeof(twin->irqs));
	twin->nr_irqs = wanted->nr_irqs;
	for (n = 0; n < wanted->nr_irqs; n++) {
		lists->irqs[n] = (struct twin_irq) {
			.handler = wanted->irqs[n].handler,
			.argument = wanted->irqs[n].argument,
			.number = wanted->irqs[n].number,
			.port = port_of(wanted->irqs[n].number),
		};
		if (!lists->irqs[n].port)
			return -EINVAL;
	}
	return 0;
}

/*
 * The domain's own interface of this number, of the kind that has its other end in the hypervisor.
 */
static struct net_device *uplink_of(u32 vif)
{
	struct net_device *dev;
	char name[16];

	snprintf(name, sizeof(name), "vif-%u", vif);
	for_each_netdev(&init_net, dev) {
		struct device *parent = dev->dev.parent;

		if (parent && parent->bus && !strcmp(parent->bus->name, "xen") &&
		    !strcmp(dev_name(parent), name))
			return dev;
	}
	return NULL;
}

/*
 * What the driver here receives, because the hypervisor left an interrupt to it, goes where the
 * twin's packets go: to the switch by the uplink, and what is for this domain comes from there as
 * if it had been received there. What is for all stays here: the switch would send it back to where
 * it came from.
 */
static rx_handler_result_t pass_on(struct sk_buff **pskb)
{
	struct sk_buff *skb = skb_share_check(*pskb, GFP_ATOMIC);
	struct net_device *uplink;
	const u8 *target;

	if (!skb)
		return RX_HANDLER_CONSUMED;
	uplink = rcu_dereference(skb->dev->rx_handler_data);
	target = eth_hdr(skb)->h_dest;
	skb->dev = uplink;
	if (is_multicast_ether_addr(target)) {
		netif_rx(skb);
	} else if (ether_addr_equal(target, uplink->dev_addr)) {
		skb->pkt_type = PACKET_HOST;
		netif_rx(skb);
	} else {
		skb_push(skb, ETH_HLEN);
		skb_clear_tstamp(skb);
		dev_queue_xmit(skb);
	}
	return RX_HANDLER_CONSUMED;
}

#if IS_ENABLED(CONFIG_BRIDGE) && IS_ENABLED(CONFIG_BRIDGE_VLAN_FILTERING)
/* Asked so that this module does not need that of bridges. */
static bool filters_vlans(const struct net_device *bridge)
{
	typeof(br_vlan_enabled) *asked = symbol_get(br_vlan_enabled);
	bool filters = asked && asked(bridge);

	if (asked)
		symbol_put(br_vlan_enabled);
	return filters;
}
#else
static bool filters_vlans(const struct net_device *bridge)
{
	return false;
}
#endif

#ifdef CONFIG_NETPOLL
static bool has_netpoll(const struct net_device *dev)
{
	return rcu_access_pointer(dev->npinfo);
}
#else
static bool has_netpoll(const struct net_device *dev)
{
	return false;
}
#endif

/*
 * May the card be taken from who has the interface? A bridge of Linux has it back afterwards, but
 * not in the VLANs in which it was. Others (bonds, macvlans, Open vSwitch) do not let it go. A
 * program that is to see each packet (XDP) would see none of what the hypervisor receives. A
 * console that sends by it (netpoll) has the driver poll whenever it wants to, also while the twin
 * does. And one without a link takes nothing.
 */
int tandem_may_have(struct net_device *dev)
{
	struct net_device *master = netdev_master_upper_dev_get(dev);

	if (!netif_running(dev))
		return -ENETDOWN;
	if (!netif_carrier_ok(dev))
		return -ENOLINK;
	if (has_netpoll(dev))
		return -EADDRINUSE;
	if (dev_xdp_prog_count(dev))
		return -EOPNOTSUPP;
	if (master && netif_is_bridge_master(master))
		return filters_vlans(master) ? -EXDEV : 0;
	return netdev_is_rx_handler_busy(dev) ? -EUSERS : 0;
}

/*
 * The card is the switch's: what comes for others passes it too, and Linux does not bridge it, or
 * packets would go around.
 */
static int leave_bridge(struct twin *twin, struct net_device *uplink)
{
	struct net_device *master = netdev_master_upper_dev_get(twin->dev);
	int err = 0;

	twin->bridge = 0;
	if (master && netif_is_bridge_master(master)) {
		err = master->netdev_ops->ndo_del_slave(master, twin->dev);
		twin->bridge = err ? 0 : master->ifindex;
	}
	if (!err)
		err = netdev_rx_handler_register(twin->dev, pass_on, uplink);
	if (err)
		return err;
	twin->uplink = uplink;
	dev_hold(uplink);
	dev_set_promiscuity(twin->dev, 1);
	return 0;
}

static void enter_bridge(struct twin *twin)
{
	struct net_device *master = __dev_get_by_index(&init_net, twin->bridge);
	struct net_device *uplink = twin->uplink;
	struct switchdev_notifier_fdb_info learnt = {};
	int err = 0;

	if (uplink) {
		netdev_rx_handler_unregister(twin->dev);
		dev_set_promiscuity(twin->dev, -1);
	}
	if (master && netif_is_bridge_master(master) && !netdev_master_upper_dev_get(twin->dev) &&
	    twin->dev->reg_state == NETREG_REGISTERED)
		err = master->netdev_ops->ndo_add_slave(master, twin->dev, NULL);
	if (err)
		pr_err("%s is no part of %s any more: %d\n", twin->dev->name, master->name, err);
	if (uplink) {
		/*
		 * What is outside came by the uplink meanwhile; a bridge that has learnt that would
		 * look for it there.
		 */
		call_switchdev_notifiers(SWITCHDEV_FDB_FLUSH_TO_BRIDGE, uplink, &learnt.info, NULL);
		twin->uplink = NULL;
		dev_put(uplink);
	}
}

int tandem_attach(struct twin *twin, const struct tandem_attach *wanted)
{
	struct net_device *uplink = uplink_of(wanted->vif);
	struct lists *lists;
	int err;

	if (twin->state == TANDEM_EMPTY)
		return -ENOENT;
	if (twin->state == TANDEM_ATTACHED)
		return -EBUSY;
	if (wanted->ifindex != twin->dev->ifindex)
		return -ENXIO;
	err = tandem_may_have(twin->dev);
	if (err)
		return err;
	if (!uplink)
		return -ENODEV;
	lists = kzalloc(sizeof(*lists), GFP_KERNEL);
	if (!lists)
		return -ENOMEM;
	err = tandem_serve_begin(twin);
	if (err)
		goto out;
	tandem_stop_lro(twin);
	err = fill(lists, twin, wanted);
	if (err)
		goto not_used;
	err = tandem_use_card(twin);
	if (err)
		goto not_attached;
	err = twin_op(TWINOP_ATTACH, &lists->attach);
	if (err)
		goto not_attached;
	twin->state = TANDEM_ATTACHED;
	err = leave_bridge(twin, uplink);
	if (err)
		tandem_detach(twin);
	goto out;

not_attached:
	tandem_undo_use(twin);
not_used:
	tandem_serve_end(twin);
out:
	kfree(lists);
	return err;
}

/* It waits for what the twin waits for, which the work of serve.c does meanwhile. */
static int take_card(struct twin *twin)
{
	struct twin_name name = { .twin = twin->number };
	u32 n;
	int err = -EBUSY;

	for (n = 0; n < DETACH_TRIES && err == -EBUSY; n++) {
		if (n)
			usleep_range(500, 1000);
		err = twin_op(TWINOP_DETACH, &name);
	}
	/* A twin that was disabled has no card any more. */
	return err == -ENOENT ? 0 : err;
}

void tandem_detach(struct twin *twin)
{
	struct napi_struct *napi;
	int err = take_card(twin);

	if (err) {
		pr_err("twin %u cannot be detached, and is unloaded: %d\n", twin->number, err);
		tandem_end(twin);
	}
	tandem_serve_end(twin);
	twin->state = TANDEM_LOADED;
	twin->used_at = jiffies;
	/*
	 * Work that the twin began the driver goes on with, interrupts of the card with it. What
	 * one has left that ended in the middle it does not know.
	 */
	if (err) {
		tandem_anew(twin->dev);
	} else if (!tandem_is_disabled(twin)) {
		local_bh_disable();
		list_for_each_entry(napi, &twin->dev->napi_list, dev_list)
			napi_schedule(napi);
		local_bh_enable();
	}
	enter_bridge(twin);
	if (err)
		tandem_forget(twin);
	tandem_tell(twin);
}

/*
 * A routine of the driver's was aborted in the middle, and what it has left is nothing that the
 * driver knows: descriptors that are taken off a ring whose index says otherwise, a card that is
 * told not to interrupt. The interface goes down and up. The polls that the twin had taken the
 * hypervisor has given back: who stops the interface does not wait for them.
 */
void tandem_restart(struct twin *twin)
{
	struct net_device *dev = twin->dev;

	if (twin->state != TANDEM_LOADED || twin->is_restarted || !tandem_is_disabled(twin) ||
	    !netif_running(dev))
		return;
	pr_warn("the twin of %s was aborted; the interface goes down and up\n", dev->name);
	dev_close(dev);
	if (dev_open(dev, NULL))
		tandem_anew(dev);
}

/*
 * Are these the queues, polls and interrupts that the card was attached with, and does it take what
 * it took? A driver that is told to use more queues makes all of them anew, or uses others of those
 * that it has. And has nobody else come who has the driver poll? A card whose link is gone is
 * Linux's, which sends nothing then: some drivers reset a card in whose rings something waits,
 * again and again.
 */
static bool is_as_attached(const struct twin *twin)
{
	struct net_device *dev = twin->dev;
	const struct napi_struct *napi;
	u32 n = 0;

	if (dev->real_num_tx_queues != twin->nr_queues || flags_of(dev) != twin->flags ||
	    has_netpoll(dev) || dev_xdp_prog_count(dev) || !netif_carrier_ok(dev) ||
	    !has_handlers(twin->irqs, twin->nr_irqs))
		return false;
	list_for_each_entry(napi, &dev->napi_list, dev_list)
		if (n == twin->nr_polls || napi->napi_id != twin->polls[n++])
			return false;
	return n == twin->nr_polls;
}

/* Whoever reads that it is not attached attaches it again. */
void tandem_check(struct twin *twin)
{
	if (twin->state == TANDEM_ATTACHED && !is_as_attached(twin))
		tandem_detach(twin);
}

/*
 * If the driver runs no programs (XDP) Linux does, and gives each room before the packet. It may
 * not move the data of an sk_buff that has another user, as those have that are lent, and stops. So
 * none is lent any more then, also of those that lie in the card's rings.
 */
void tandem_give_way(struct twin *twin)
{
	if (twin->state != TANDEM_LOADED || !twin->is_used ||
	    !rcu_access_pointer(twin->dev->xdp_prog))
		return;
	pr_warn("a program is to see what %s receives (XDP); its twin is unloaded\n", twin->dev->name);
	tandem_unload(twin);
	tandem_tell(twin);
}

static int netdev_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct net_device *dev = netdev_notifier_info_to_dev(data);
	struct twin *twin;

	list_for_each_entry(twin, &tandem_twins, list) {
		if (event == NETDEV_UNREGISTER && twin->uplink == dev)
			tandem_detach(twin);
		if (twin->dev != dev)
			continue;
		/*
		 * Who takes the interface out of a bridge or a bond may be about to put it into
		 * another one: what is seen each second will do for that.
		 */
		switch (event) {
		case NETDEV_GOING_DOWN:
		case NETDEV_PRECHANGEMTU:
			if (twin->state == TANDEM_ATTACHED)
				tandem_detach(twin);
			if (event == NETDEV_GOING_DOWN)
				twin->is_restarted = twin->state == TANDEM_LOADED &&
						     tandem_is_disabled(twin);
			break;
		case NETDEV_CHANGE:
			/*
			 * The link may be gone, or be there: whoever waits for that attaches the
			 * card at once. Or a program has come.
			 */
			tandem_check(twin);
			tandem_give_way(twin);
			tandem_tell(twin);
			break;
		case NETDEV_FEAT_CHANGE:
			tandem_check(twin);
			tandem_stop_merging(twin);
			if (!twin->is_told)
				tandem_tell(twin);
			break;
		case NETDEV_UP:
		case NETDEV_DOWN:
		case NETDEV_CHANGEMTU:
		case NETDEV_CHANGENAME:
			tandem_tell(twin);
			break;
		case NETDEV_UNREGISTER:
			tandem_unload(twin);
			tandem_tell(twin);
			break;
		}
	}
	return NOTIFY_DONE;
}

struct notifier_block tandem_netdev_notifier = { .notifier_call = netdev_event };
