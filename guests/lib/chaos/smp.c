/* vcpu_op and sched_op: this domain's vCPUs, against each other. */
#include "hostile.h"

enum { REGISTER_TIME = 13, GET_PHYSID = 12, SEND_NMI = 11 };
enum { REMOTE_SHUTDOWN = 4, PIN_OVERRIDE = 7 };
enum { TLB_FLUSH_MULTI = 8, INVLPG_MULTI = 9, TLB_FLUSH_ALL = 10 };

static struct vcpu_context context;

static u32 some_vcpu(void)
{
	return up_to(16) ? up_to(board.nr_vcpus) : up_to(64);
}

/* The first vCPU looks after the others, so nobody takes it down, and it does not sleep for long. */
static bool may_stop(u32 vcpu)
{
	return vcpu != 0 || is_reckless();
}

static void load_once(void)
{
	u32 vcpu = 1 + up_to(MAX_VCPUS);
	if (vcpu >= board.nr_vcpus)
		return;
	sound_context(&context, vcpu);
	if (up_to(2))
		spoil(&context);
	s64 result = HC3(vcpu_op, VCPUOP_initialise, vcpu, &context);
	note(result);
	if (result == 0)
		board.of[vcpu].is_loaded = true;
}

static void up_or_down(void)
{
	u32 vcpu = some_vcpu(), times = up_to(4) ? 1 : up_to(64);
	if (vcpu < MAX_VCPUS && !board.of[vcpu].is_loaded)
		return;
	bool down = may_stop(vcpu) && up_to(2), up = !down || up_to(4);
	/* Both in turn, without a break, is how others' requests meet a vCPU that is no longer what it was. */
	for (u32 i = 0; i < times; i++) {
		if (down)
			note(HC3(vcpu_op, VCPUOP_down, vcpu, 0));
		if (up)
			note(HC3(vcpu_op, VCPUOP_up, vcpu, 0));
	}
}

static void areas(void)
{
	u32 vcpu = some_vcpu();
	u64 area[2] = { up_to(8) ? (u64)scratch() + up_to(PAGE) : up_to(2) ? 0 : 0xffff800000000000 - up_to(64), 0 };
	struct {
		u64 mfn;
		u32 offset, pad;
	} info = { mfn_of(scratch()), up_to(2) ? up_to(60) * 64 : up_to(PAGE), 0 };
	switch (up_to(8)) {
	case 0: note(HC3(vcpu_op, VCPUOP_register_vcpu_info, vcpu, &info)); break;
	case 1: note(HC3(vcpu_op, REGISTER_TIME, vcpu, area)); break;
	case 2: note(HC3(vcpu_op, VCPUOP_get_runstate_info, vcpu, area[0])); break;
	case 3: note(HC3(vcpu_op, GET_PHYSID, vcpu, area)); break;
	default: note(HC3(vcpu_op, VCPUOP_register_runstate, vcpu, area));
	}
}

static void timers(void)
{
	u32 vcpu = up_to(2) ? me : some_vcpu();
	u64 period = up_to(4) ? 1000000 + up_to(1 << 24) : draw() >> up_to(64);
	u64 single[2] = { up_to(4) ? about_now_ns() + up_to(2000000) : draw() >> up_to(64), up_to(2) };
	switch (up_to(6)) {
	case 0: note(HC3(vcpu_op, VCPUOP_set_periodic_timer, vcpu, &period)); break;
	case 1: note(HC3(vcpu_op, VCPUOP_stop_periodic_timer, vcpu, 0)); break;
	case 2: note(HC3(vcpu_op, VCPUOP_stop_singleshot_timer, vcpu, 0)); break;
	case 3: note(hypercall(15, single[0], 0, 0, 0, 0)); break;
	default: note(HC3(vcpu_op, VCPUOP_set_singleshot_timer, vcpu, single));
	}
}

static void sleep_once(void)
{
	struct {
		u32 *ports, nr, pad;
		u64 timeout;
	} poll = { (u32 *)scratch(), up_to(4), 0, up_to(4) ? about_now_ns() + up_to(1000000) : 1 };
	u64 single[2] = { about_now_ns() + up_to(1000000), 0 };
	u32 kind = up_to(16);
	if (kind < 8) {
		note(HC2(sched_op, SCHEDOP_yield, 0));
	} else if (!may_stop(me)) {
		poll.timeout = 1;
		note(HC2(sched_op, SCHEDOP_poll, &poll));
	} else {
		board.of[me].is_asleep = true;
		HC3(vcpu_op, VCPUOP_set_singleshot_timer, me, single);
		note(kind < 15 ? HC2(sched_op, SCHEDOP_poll, &poll) : HC2(sched_op, SCHEDOP_block, 0));
		board.of[me].is_asleep = false;
	}
}

static void events_between(void)
{
	static u32 ports[MAX_VCPUS];
	struct bind_ipi bind = { some_vcpu(), 0 };
	u32 slot = up_to(MAX_VCPUS);
	if (up_to(8) == 0) {
		evtchn(EVTCHN_close, &ports[slot]);
		if (evtchn(EVTCHN_bind_ipi, &bind) == 0)
			ports[slot] = bind.port;
	}
	if (up_to(2))
		shared_info()->vcpu[up_to(board.nr_vcpus)].upcall_mask = 0;
	note(evtchn(up_to(4) ? EVTCHN_send : EVTCHN_unmask, &ports[slot]));
}

void from_user(void), in_user_syscall(void), in_user_trap(void), in_user_loop(void);
asm(".text\n"
    "in_user_syscall:\n\tsyscall\n\tud2\n"
    "in_user_trap:\n\tint $0x80\n\tud2\n"
    "in_user_loop:\n\tdec %rcx\n\tjnz in_user_loop\n\tmov (%rcx), %rax\n\tud2\n");

static handler *after_user;

static void back(struct frame *frame)
{
	(void)frame;
	on_unexpected = after_user;
	resume();
}

static void user_once(void)
{
	static void (*const code[])(void) = { in_user_syscall, in_user_trap, in_user_loop };
	struct frame to = { .rip = (u64)code[up_to(COUNT(code))], .cs = FLAT_KERNEL_CS, .rflags = 0x202, .ss = FLAT_KERNEL_SS,
			    .rcx = 1 + up_to(1000), .rsp = (u64)pages[4] };
	/* To user mode without tables for it is a crash. */
	u64 root = board.of[me].roots[up_to(2)] / PAGE;
	if (up_to(8) == 0)
		root = is_reckless() ? some_mfn() * up_to(2) : mfn_of(scratch());
	s64 result = mmuext(NEW_USER_BASEPTR, root, 0);
	note(result);
	if (result < 0 || (root == 0 && !is_reckless()))
		return;
	after_user = on_unexpected;
	on_unexpected = back;
	enter(&to);
	on_unexpected = after_user;
}

static void roots_once(void)
{
	u64 root = board.of[me].roots[up_to(2)] / PAGE;
	switch (up_to(4)) {
	case 0: note(mmuext(NEW_BASEPTR, root, 0)); break;
	case 1: note(mmuext(NEW_USER_BASEPTR, up_to(2) ? root : 0, 0)); break;
	case 2: note(mmuext(NEW_USER_BASEPTR, some_mfn(), 0)); break;
	/* It may lead nowhere. */
	default: note(mmuext(NEW_BASEPTR, is_reckless() ? mfn_of(scratch()) : 0, 0));
	}
}

static void descriptors(void)
{
	u64 frames[14];
	for (u32 i = 0; i < COUNT(frames); i++)
		frames[i] = up_to(8) ? mfn_of(scratch()) : some_mfn();
	switch (up_to(4)) {
	case 0: note(HC2(set_gdt, frames, up_to(up_to(2) ? 512 : 14 * 512))); break;
	case 1: note(mmuext(SET_LDT, up_to(2) ? (u64)scratch() : some_value(), up_to(8200))); break;
	case 2: note(HC2(set_segment_base, up_to(5), some_value())); break;
	default: note(HC2(update_descriptor, maddr_of(scratch()) + up_to(512) * 8, draw()));
	}
}

static void flushes(void)
{
	u64 mask = draw() >> up_to(64);
	u32 page = some_page();
	switch (up_to(4)) {
	case 0: note(mmuext(TLB_FLUSH_MULTI, 0, (u64)&mask)); break;
	case 1: note(mmuext(INVLPG_MULTI, (u64)scratch(), (u64)&mask)); break;
	case 2: note(mmuext(TLB_FLUSH_ALL, 0, 0)); break;
	default: note(update_va(scratch_page(page), some_pte(page), (u64)&mask | (1 + up_to(2))));
	}
}

static void others(void)
{
	u32 remote[2] = { some_domid(), up_to(6) };
	int cpu = up_to(5) - 1;
	switch (up_to(4)) {
	case 0:
		if (!is_self(remote[0]) && !is_initial_domain())
			must_refuse(HC2(sched_op, REMOTE_SHUTDOWN, remote), "shutting another down", remote[0]);
		break;
	case 1: {
		s64 result = HC2(sched_op, PIN_OVERRIDE, &cpu);
		note(result);
		must_refuse(result, "pin_override", cpu);
		break;
	}
	default:
		if (!is_initial_domain())
			note(HC3(vcpu_op, SEND_NMI, some_vcpu(), 0));
	}
}

void vcpu_once(void)
{
	switch (up_to(20)) {
	case 0: return DO(load_once);
	case 1: case 2: case 3: case 4: return DO(up_or_down);
	case 5: case 6: case 7: case 8: return DO(areas);
	case 9: case 10: return DO(timers);
	case 11: case 12: return DO(sleep_once);
	case 13: return DO(events_between);
	case 14: case 15: return DO(user_once);
	case 16: return DO(roots_once);
	case 17: return DO(descriptors);
	case 18: return DO(flushes);
	default: DO(others);
	}
}
