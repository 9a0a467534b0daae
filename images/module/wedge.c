// SPDX-License-Identifier: GPL-2.0
/* A kernel that runs and takes no interrupt any more: loading this never ends. For tests of who notices that. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/processor.h>

static int __init wedge_init(void)
{
	pr_info("no interrupt is taken from now on\n");
	local_irq_disable();
	for (;;)
		cpu_relax();
	return 0;
}
module_init(wedge_init);

MODULE_DESCRIPTION("Stops taking interrupts, for ever");
MODULE_LICENSE("GPL");
