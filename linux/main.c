// SPDX-License-Identifier: GPL-2.0
/* The module and its file /dev/tandem. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include "internal.h"

LIST_HEAD(tandem_twins);

/*
 * Whether the hypervisor has twins at all: another one does not know the hypercall, this one has no
 * twin of that number.
 */
static bool has_twins(void)
{
	struct twin_stats stats = { .twin = U32_MAX };

	return twin_op(TWINOP_STATS, &stats) != -ENOSYS;
}

static int tandem_open(struct inode *inode, struct file *file)
{
	struct twin *twin;

	if (!has_twins()) {
		pr_err_once("this hypervisor is not Tandem\n");
		return -ENOSYS;
	}
	twin = kzalloc(sizeof(*twin), GFP_KERNEL);
	if (!twin)
		return -ENOMEM;
	init_waitqueue_head(&twin->changed);
	atomic_set(&twin->changes, 1);
	twin->status.rule = TWIN_NO_RULE;
	tandem_serve_open(twin);
	file->private_data = twin;
	rtnl_lock();
	list_add(&twin->list, &tandem_twins);
	rtnl_unlock();
	return 0;
}

static int tandem_release(struct inode *inode, struct file *file)
{
	struct twin *twin = file->private_data;

	rtnl_lock();
	tandem_unload(twin);
	list_del(&twin->list);
	rtnl_unlock();
	tandem_serve_release(twin);
	kfree(twin);
	return 0;
}

static ssize_t tandem_read(struct file *file, char __user *buffer, size_t len, loff_t *pos)
{
	struct twin *twin = file->private_data;
	int err;

	if (len != sizeof(twin->status))
		return -EINVAL;
	if (file->f_flags & O_NONBLOCK) {
		if (atomic_read(&twin->changes) == READ_ONCE(twin->seen))
			return -EAGAIN;
	} else {
		err = wait_event_interruptible(twin->changed,
					       atomic_read(&twin->changes) != READ_ONCE(twin->seen));
		if (err)
			return err;
	}
	rtnl_lock();
	WRITE_ONCE(twin->seen, atomic_read(&twin->changes));
	tandem_fill_status(twin);
	err = copy_to_user(buffer, &twin->status, len) ? -EFAULT : 0;
	rtnl_unlock();
	return err ?: len;
}

static __poll_t tandem_poll(struct file *file, poll_table *wait)
{
	struct twin *twin = file->private_data;

	poll_wait(file, &twin->changed, wait);
	return atomic_read(&twin->changes) == READ_ONCE(twin->seen) ? 0 : EPOLLIN | EPOLLRDNORM;
}

static int load_request(struct twin *twin, const void *request, size_t len)
{
	const struct tandem_load *load = request;
	const u32 *offsets = request + sizeof(*load);

	if (len < sizeof(*load) || load->nr_offsets > TWIN_MAX_OFFSETS ||
	    load->image_bytes > TWIN_MAX_IMAGE ||
	    len != sizeof(*load) + load->nr_offsets * sizeof(u32) + load->image_bytes ||
	    strnlen(load->interface, sizeof(load->interface)) == sizeof(load->interface))
		return -EINVAL;
	return tandem_load(twin, load, offsets, offsets + load->nr_offsets);
}

static int attach_request(struct twin *twin, const void *request, size_t len)
{
	const struct tandem_attach *attach = request;

	if (len != sizeof(*attach) || !attach->nr_irqs || attach->nr_irqs > TWIN_MAX_QUEUES)
		return -EINVAL;
	return tandem_attach(twin, attach);
}

static int serve_request(struct twin *twin, const void *request, size_t len)
{
	switch (*(const u32 *)request) {
	case TANDEM_LOAD:
		return load_request(twin, request, len);
	case TANDEM_UNLOAD:
		if (twin->state == TANDEM_EMPTY)
			return -ENOENT;
		tandem_unload(twin);
		return 0;
	case TANDEM_ATTACH:
		return attach_request(twin, request, len);
	case TANDEM_DETACH:
		/* One that was disabled goes by itself. */
		if (twin->state == TANDEM_LOADED && tandem_is_disabled(twin))
			return 0;
		if (twin->state != TANDEM_ATTACHED)
			return -ENOENT;
		tandem_detach(twin);
		tandem_restart(twin);
		return 0;
	case TANDEM_CALL:
		return len == sizeof(struct tandem_call) ? tandem_call(twin, request) : -EINVAL;
	case TANDEM_LOOK:
		return 0;
	case TANDEM_DAMAGE:
		return tandem_damage(twin);
	default:
		return -EINVAL;
	}
}

static ssize_t tandem_write(struct file *file, const char __user *buffer, size_t len, loff_t *pos)
{
	struct twin *twin = file->private_data;
	void *request;
	int err;

	if (len < sizeof(u32) ||
	    len > sizeof(struct tandem_load) + TWIN_MAX_OFFSETS * sizeof(u32) + TWIN_MAX_IMAGE)
		return -EINVAL;
	request = vmemdup_user(buffer, len);
	if (IS_ERR(request))
		return PTR_ERR(request);
	rtnl_lock();
	err = serve_request(twin, request, len);
	tandem_tell_writer(twin);
	rtnl_unlock();
	kvfree(request);
	return err ?: len;
}

static const struct file_operations tandem_fops = {
	.owner = THIS_MODULE,
	.open = tandem_open,
	.release = tandem_release,
	.read = tandem_read,
	.write = tandem_write,
	.poll = tandem_poll,
	.llseek = no_llseek,
};

static struct miscdevice tandem_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "tandem",
	.fops = &tandem_fops,
	.mode = 0600,
};

static int __init tandem_init(void)
{
	int err;

	if (!xen_pv_domain()) {
		pr_err("this kernel does not run as a paravirtualised domain\n");
		return -ENODEV;
	}
	err = tandem_serve_init();
	if (err)
		return err;
	err = tandem_anew_init();
	if (err)
		goto no_anew;
	err = tandem_areas_init();
	if (err)
		goto no_areas;
	err = register_netdevice_notifier(&tandem_netdev_notifier);
	if (err)
		goto no_notifier;
	err = misc_register(&tandem_device);
	if (err)
		goto no_device;
	return 0;

no_device:
	unregister_netdevice_notifier(&tandem_netdev_notifier);
no_notifier:
	tandem_areas_exit();
no_areas:
	tandem_anew_exit();
no_anew:
	tandem_serve_exit();
	return err;
}

static void __exit tandem_exit(void)
{
	misc_deregister(&tandem_device);
	unregister_netdevice_notifier(&tandem_netdev_notifier);
	tandem_areas_exit();
	tandem_anew_exit();
	tandem_serve_exit();
}

module_init(tandem_init);
module_exit(tandem_exit);
MODULE_DESCRIPTION("Twin drivers in the hypervisor Tandem");
MODULE_LICENSE("GPL");
