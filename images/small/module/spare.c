// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of the kernel's own image that nobody uses in a small driver domain becomes free memory, as that of its initialisation did when it had
 * booted; the balloon can then give it back to the hypervisor. Which that is says who loads the module (images/small/init.sh):
 *
 *	zero=START,END	variables that are as they were at boot: all of it must be 0, and is read as 0 for ever
 *	data=START,END	constants that nobody reads any more
 *
 * Nothing is taken unless all of it can be. Who writes there after all, or reads constants, gets a fault and not somebody else's memory.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/string.h>
#include <xen/xen.h>
#include <asm/sections.h>
#include <asm/xen/hypercall.h>
#include <asm/xen/hypervisor.h>
#include <asm/xen/page.h>

static unsigned long zero[2], data[2];
module_param_array(zero, ulong, NULL, 0);
module_param_array(data, ulong, NULL, 0);

static struct page *page_of(unsigned long address)
{
	return pfn_to_page(__pa(address) >> PAGE_SHIFT);
}

/* Whole pages of the range; whether each of them is the image's, and nobody else's. */
static bool may_go(unsigned long range[2], bool is_zero)
{
	unsigned long at;

	range[0] = PAGE_ALIGN(range[0]);
	range[1] &= PAGE_MASK;
	if (!range[0] && !range[1])
		return true;
	if (range[0] < __START_KERNEL_map || range[0] >= range[1] || range[1] > __START_KERNEL_map + KERNEL_IMAGE_SIZE)
		return false;
	for (at = range[0]; at < range[1]; at += PAGE_SIZE) {
		if (!pfn_valid(__pa(at) >> PAGE_SHIFT) || !PageReserved(page_of(at)) || page_count(page_of(at)) != 1)
			return false;
		if (is_zero && memchr_inv((void *)at, 0, PAGE_SIZE))
			return false;
	}
	return true;
}

/* Its pages have one mapping from now on, that of all memory, by which they can be written; in the image there is `instead`. */
static unsigned long give(const unsigned long range[2], pte_t instead)
{
	unsigned long at, count = 0;

	for (at = range[0]; at < range[1]; at += PAGE_SIZE) {
		unsigned long pfn = __pa(at) >> PAGE_SHIFT;

		if (HYPERVISOR_update_va_mapping(at, instead, UVMF_INVLPG | UVMF_ALL))
			break;
		if (HYPERVISOR_update_va_mapping((unsigned long)__va(pfn << PAGE_SHIFT), pfn_pte(pfn, PAGE_KERNEL),
						 UVMF_INVLPG | UVMF_ALL))
			break;
		free_reserved_page(pfn_to_page(pfn));
		count++;
	}
	return count;
}

static int __init spare_init(void)
{
	unsigned long count;

	if (!xen_pv_domain() || !may_go(zero, true) || !may_go(data, false)) {
		pr_err("%lx-%lx and %lx-%lx cannot be spared\n", zero[0], zero[1], data[0], data[1]);
		return -EINVAL;
	}
	count = give(zero, mk_pte(ZERO_PAGE(0), PAGE_KERNEL_RO)) + give(data, native_make_pte(0));
	pr_info("%lu KiB of the kernel's image are free\n", count << (PAGE_SHIFT - 10));
	return 0;
}
module_init(spare_init);

static void __exit spare_exit(void)
{
}
module_exit(spare_exit);

MODULE_DESCRIPTION("Frees what the kernel's image has in vain");
MODULE_LICENSE("GPL");
