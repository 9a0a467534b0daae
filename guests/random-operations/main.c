/*
 * A hostile kernel: random hypercalls, page-table entries and instructions. Whatever the answers, the hypervisor lives.
 * The kernel's command line may say seed=N and operations=N; the seed is printed, so that a run can be repeated. Tandem
 * recounts all its frames at the beginning, now and then, and at the end.
 */
#include "chaos.h"

const char test_name[] = "random-operations";

/* Calls that would end this kernel's life by its own will, or the console's usefulness. */
static bool is_suicide(u64 number, u64 a, u64 b)
{
	(void)b;
	switch (number) {
	case HC_set_trap_table: case HC_iret: case HC_console_io: case HC_set_debugreg: case HC_stack_switch: case HC_multicall:
	case 4: case 6: case 7: case 15: case 28: case 36: case 35: case 37: /* callbacks, compat, platform, timer, nmi, domctl, sysctl, kexec */
		return true;
	case HC_sched_op: return a != SCHEDOP_yield;
	case HC_vcpu_op: return a == VCPUOP_down || a == VCPUOP_up || a == 11;
	case HC_callback_op: return true;
	case HC_physdev_op: return a != 7 && a != 8; /* irq_status_query and the like would be enough; keep the console's */
	case HC_mmuext_op: return false;
	case HC_update_va_mapping: return a >= VIRT_BASE && (a < (u64)scratch_page(0) || a >= (u64)scratch_page(SCRATCH));
	case HC_memory_op: return (a & 63) == 1 || (a & 63) == 11; /* may give this kernel's own code away */
	}
	return false;
}

static void hypercall_once(void)
{
	u64 number = up_to(50), arguments[5];
	for (u32 i = 0; i < COUNT(arguments); i++)
		arguments[i] = some_value();
	if (up_to(2))
		arguments[0] = up_to(24);
	/* The answers of a long batch would reach beyond the scratch pages. */
	if (number == HC_grant_table_op)
		arguments[2] = up_to(4);
	if (number == HC_mmu_update || number == HC_mmuext_op)
		arguments[1] = up_to(20);
	if (is_suicide(number, arguments[0], arguments[1]))
		return;
	note(hypercall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]));
}

/* Tandem's debug key `f` recounts all frames, and fails if one is lost or wrong. Stock Xen has no such key, and ignores it. */
static void audit(void)
{
	static const char key = 'f';
	struct {
		u32 command, version;
		const char *keys;
		u32 nr_keys, pad[29];
	} argument = { .command = 7, .version = 0x15, .keys = &key, .nr_keys = 1 };
	_Static_assert(sizeof(argument) == 136, "xen_sysctl");
	check_result(HC1(sysctl, &argument), 0, "the audit of frames");
}

/* vcpu_info may have moved to a scratch page, where events are unmasked at random. */
static void ignore(struct frame *frame)
{
	frame->rflags &= ~0x200ul;
}

void test_main(void)
{
	u64 nr_operations = number_after("operations=", 150000);
	printk("  seed %lu, %lu operations\n", number_after("seed=", 20060101), nr_operations);
	chaos_init();
	handlers[ENTRY_EVENT] = ignore;
	set_callback(0, 0, entry_256);
	HC2(vm_assist, 0, 2);
	audit();
	for (u64 n = 0; n < nr_operations; n++) {
		begin(n);
		switch (up_to(16)) {
		case 0: fill(); break;
		case 1: case 2: case 3: hypercall_once(); break;
		case 4: write_entry(); break;
		default: mmu_once();
		}
		if (n % 1024 == 0)
			restore();
		if (n % 1000000 == 999999)
			audit();
	}
	restore();
	audit();
	printk("  %lu of %lu were accepted\n", nr_accepted, nr_operations);
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	check(nr_accepted > nr_operations / 100, "nearly everything was refused");
}
