/* A copy of the time record where the kernel wants it, for programs that read the clock without a system call. */
#include "events.h"

const char test_name[] = "time-area";

struct record {
	u32 version, pad;
	u64 tsc_timestamp, system_time;
	u32 mul;
	int8_t shift;
	u8 flags, pad1[2];
};

static s64 place(u32 vcpu, u64 address)
{
	return HC3(vcpu_op, VCPUOP_register_vcpu_time_memory_area, vcpu, &address);
}

/* The record at `place` is the one in shared_info. Xen writes both anew each second: another look if it was just then. */
static void check_copy(const volatile struct record *copy, const char *where)
{
	const volatile struct record *own = (void *)&shared_info()->vcpu[0].time;
	for (int tries = 0; tries < 3 && copy->tsc_timestamp != own->tsc_timestamp; tries++)
		HC1(xen_version, 0);
	check(copy->mul != 0 && !(copy->version & 1), "%s: no record: version %u, mul %u", where, copy->version, copy->mul);
	check(copy->version == own->version, "%s: version %u, not %u", where, copy->version, own->version);
	check(copy->tsc_timestamp == own->tsc_timestamp && copy->system_time == own->system_time &&
		      copy->mul == own->mul && copy->shift == own->shift && copy->flags == own->flags,
	      "%s: it differs: mul %u instead of %u", where, copy->mul, own->mul);
}

static void record_and_resume(struct frame *frame)
{
	(void)frame;
	resume();
}

void user_code(void);
asm(".text\nuser_code:\n\tsyscall\n\tud2\n");

static void visit_user_mode(void)
{
	struct frame to = { .rip = (u64)user_code, .cs = FLAT_KERNEL_CS, .rflags = 0x202, .rsp = (u64)pages[4], .ss = FLAT_KERNEL_SS };
	handlers[ENTRY_SYSCALL] = record_and_resume;
	enter(&to);
	shared_info()->vcpu[0].upcall_mask = 1;
}

void test_main(void)
{
	volatile struct record *first = (void *)(pages[0] + 64), *second = (void *)(pages[1] + 8), *third = (void *)pages[2];

	check_result(place(0, (u64)first), 0, "a place");
	check_copy(first, "a place");
	check_result(place(0, (u64)second), 0, "another place");
	check_copy(second, "another place");
	/* The first is left alone now. */
	memset((void *)first, 0, sizeof(*first));
	check_result(place(0, 0), 0, "no place");
	check_result(place(0, (u64)second), 0, "a place after none");
	check_copy(second, "a place after none");
	check(first->mul == 0, "the place that was given up is written");

	check_result(place(1000, (u64)first), -ENOENT, "vCPU 1000");
	check_result(place(0, 0x800000000000), -EFAULT, "a non-canonical address");
	check_result(place(0, 0xffff830000000000), -EFAULT, "the hypervisor's memory");
	check_result(place(0, M2P_BASE), -EFAULT, "the machine-to-physical table");
	check_result(HC3(vcpu_op, VCPUOP_register_vcpu_time_memory_area, 0, 0x123456789), -EFAULT, "no argument");

	/* What cannot be written now comes later: with the next entry into kernel mode, or on Xen within about a second. */
	u64 root = mfn_of((void *)start_info->pt_base);
	if (!check_result(mmuext(NEW_USER_BASEPTR, root, 0), 0, "NEW_USER_BASEPTR"))
		return;
	set_callback(2, 1, entry_257);
	make_read_only((void *)third);
	check_result(place(0, (u64)third), 0, "a read-only place");
	visit_user_mode();
	check(third->mul == 0, "the read-only place is written");
	make_writable((void *)third);
	u64 start = now_ns();
	do
		visit_user_mode();
	while (third->mul == 0 && now_ns() < start + 5000000000);
	check_copy(third, "a place that has become writable");

	/* It goes on when vcpu_info has moved: the record is read from there. */
	struct {
		u64 mfn;
		u32 offset, pad;
	} info = { mfn_of(pages[3]), 0, 0 };
	check_result(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &info), 0, "register_vcpu_info");
	const volatile struct record *moved = (void *)&((struct vcpu_info *)pages[3])->time;
	check(third->version == moved->version && third->tsc_timestamp == moved->tsc_timestamp,
	      "after vcpu_info has moved: version %u, not %u", third->version, moved->version);
}
