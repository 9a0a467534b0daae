// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/poke: whoever writes an address, a value and a number of its bytes (4 or 8) there has that written to this kernel's memory. EFAULT
 * if nothing can be written at that address. For tests that damage a driver's data.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

struct poke {
	u64 address, value, bytes;
};

static int poke(const struct poke *poke)
{
	u32 half = poke->value;

	if (poke->bytes == sizeof(u64))
		__put_kernel_nofault((void *)poke->address, &poke->value, u64, fault);
	else
		__put_kernel_nofault((void *)poke->address, &half, u32, fault);
	return 0;
fault:
	return -EFAULT;
}

static ssize_t poke_write(struct file *file, const char __user *buffer, size_t len, loff_t *pos)
{
	struct poke request;
	int err;

	if (len != sizeof(request) || copy_from_user(&request, buffer, len))
		return -EINVAL;
	if (request.bytes != sizeof(u32) && request.bytes != sizeof(u64))
		return -EINVAL;
	pagefault_disable();
	err = poke(&request);
	pagefault_enable();
	return err ?: len;
}

static const struct file_operations poke_operations = {
	.owner = THIS_MODULE,
	.write = poke_write,
	.llseek = noop_llseek,
};

static struct miscdevice poke_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "poke",
	.mode = 0600,
	.fops = &poke_operations,
};
module_misc_device(poke_device);

MODULE_DESCRIPTION("Writes to this kernel's memory what it is told to");
MODULE_LICENSE("GPL");
