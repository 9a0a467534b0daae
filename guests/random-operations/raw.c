/*
 * Hypercalls with random numbers and arguments. Lists of what is to be done are made by chance, in scratch pages, and any vCPU
 * may be writing there. What could take away what this kernel lives on is copied, and only that is changed in the copy.
 */
#include "grants.h"
#include "raw.h"

enum { TRANSFER = 4, COPY = 5, LONGEST = 20 };

/* Calls that would end this kernel's life by its own will, or the console's usefulness. */
static bool is_suicide(u64 number, u64 a)
{
	/* Commands have 32 bits. */
	u32 command = a;
	switch (number) {
	case HC_set_trap_table: case HC_iret: case HC_console_io: case HC_set_debugreg: case HC_stack_switch: case HC_multicall:
	case 4: case 6: case 7: case 15: case 28: case 36: case 35: case 37: /* callbacks, compat, platform, timer, nmi, domctl, sysctl, kexec */
		return true;
	case HC_sched_op: return command != SCHEDOP_yield;
	/* vcpu_once() does that with care. */
	case HC_vcpu_op: return command == VCPUOP_down || command == VCPUOP_up || command == VCPUOP_initialise || command == VCPUOP_send_nmi;
	case HC_callback_op: return true;
	case HC_physdev_op: return command != 7 && command != 8; /* irq_status_query and the like would be enough; keep the console's */
	case HC_update_va_mapping: case HC_update_va_mapping_otherdomain:
		return a >= VIRT_BASE && (a < (u64)scratch_page(0) || a >= (u64)scratch_page(SCRATCH));
	case HC_memory_op: return (a & 63) == 1 || (a & 63) == 11; /* may give this kernel's own code away */
	}
	return false;
}

/* A frame that may be written, given away or forgotten. */
static u64 expendable(u64 mfn)
{
	return is_vital(mfn) || is_boot_table(mfn) ? mfn_of(scratch()) : mfn;
}

static u32 page_of_entry(u64 address)
{
	for (u32 v = 0; v < board.nr_vcpus; v++)
		for (u32 page = 0; page < SCRATCH; page++)
			if (board.of[v].entry_addresses[page] == (address & -8ul))
				return page;
	return SCRATCH;
}

struct update {
	u64 ptr, val;
};
struct extended {
	u32 cmd, pad;
	u64 arg1, arg2;
};
struct transfer {
	u64 mfn;
	u16 domid;
	u32 ref;
	int16_t status;
};

static void spare_update(void *item)
{
	struct update *u = item;
	u32 page = page_of_entry(u->ptr);
	if (page < SCRATCH)
		u->val = spare(page, u->val);
	/* Kind 1 is of the M2P. */
	else if ((u->ptr & 3) != 1)
		u->ptr = expendable(u->ptr / PAGE) * PAGE | u->ptr % PAGE;
}

static void spare_extended(void *item)
{
	struct extended *e = item;
	if (e->cmd == CLEAR_PAGE || e->cmd == COPY_PAGE)
		e->arg1 = expendable(e->arg1);
	/* Tables that chance has made do not have this kernel in them. */
	if (e->cmd == NEW_BASEPTR)
		e->arg1 = board.of[me].roots[e->arg1 & 1] / PAGE;
}

static void spare_transfer(void *item)
{
	struct transfer *t = item;
	t->mfn = expendable(t->mfn);
}

static void spare_copy(void *item)
{
	struct copy *c = item;
	c->to.ref_or_gfn = expendable(c->to.ref_or_gfn);
}

static const struct kind {
	u32 size;
	void (*spare)(void *item);
} updates = { sizeof(struct update), spare_update }, extended = { sizeof(struct extended), spare_extended },
  transfers = { sizeof(struct transfer), spare_transfer }, copies = { sizeof(struct copy), spare_copy };

/*
 * A copy of the list at `from`, changed where it concerns what is vital; it is shorter if not all of it can be read. `from`
 * itself, if it is not in the scratch pages.
 */
static u64 spared(const struct kind *kind, u64 from, u64 *count)
{
	static u8 list[LONGEST * sizeof(struct copy)] __attribute__((aligned(8)));
	if (from + LONGEST * kind->size <= (u64)scratch_page(0) || from >= (u64)scratch_page(SCRATCH))
		return from;
	u64 bytes = *count * kind->size, left = bytes, at = from;
	u8 *to = list;
	PROBE("rep movsb", : "+D"(to), "+S"(at), "+c"(left) : : "r11", "memory");
	u64 nr = (bytes - left) / kind->size;
	if (nr == 0)
		return from;
	*count = nr;
	for (u32 i = 0; i < nr; i++)
		kind->spare(list + i * kind->size);
	return (u64)list;
}

void hypercall_once(void)
{
	u64 number = up_to(50), a[5];
	for (u32 i = 0; i < COUNT(a); i++)
		a[i] = some_value();
	if (up_to(2))
		a[0] = up_to(24);
	if (is_suicide(number, a[0]))
		return;
	switch (number) {
	case HC_mmu_update: case HC_mmuext_op:
		a[1] = up_to(LONGEST);
		a[0] = spared(number == HC_mmu_update ? &updates : &extended, a[0], &a[1]);
		break;
	case HC_grant_table_op:
		/* The answers of a long batch would reach beyond the scratch pages. */
		a[2] = up_to(4);
		if ((u32)a[0] == TRANSFER || (u32)a[0] == COPY)
			a[1] = spared((u32)a[0] == TRANSFER ? &transfers : &copies, a[1], &a[2]);
		break;
	case HC_update_va_mapping: case HC_update_va_mapping_otherdomain:
		a[1] = spare((a[0] - (u64)scratch_page(0)) / PAGE, a[1]);
		break;
	case HC_update_descriptor:
		a[0] = expendable(a[0] / PAGE) * PAGE | a[0] % PAGE;
		break;
	}
	note(hypercall(number, a[0], a[1], a[2], a[3], a[4]));
}
