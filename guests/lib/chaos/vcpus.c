/*
 * Several vCPUs of a hostile kernel: their tables and variables, what they do for ever, and who looks after them.
 *
 * A vCPU's L1 table of the first 2 MiB has copies of the pages of variables, all else is as on vCPU 0.
 */
#include "vcpus.h"

enum { L1, L2, L3, L4, OTHER_L4, NR_TABLES };
enum { L3_INDEX = 510, L4_INDEX = 511, ENTRIES = 512 };
enum { RUNNING, RUNNABLE, BLOCKED, OFFLINE };
/* How long a vCPU may take to come out of an operation while nothing else happens here, and nothing anywhere, in ms. */
enum { SUSPICIOUS_MS = 50, PATIENCE_MS = 20000 };

u32 me;
struct board board SHARED;
/* vCPU 0 has the kernel's own. */
static u8 arena[MAX_VCPUS - 1][VCPU_PAGES][PAGE] SHARED __attribute__((aligned(4096)));
static u64 tsc_at_start, ns_at_start, tsc_per_ms;
static const struct work *work;

extern u8 data_start[], bss_end[];
extern char entry_stack_top[], stack_top[];
void second_start(u64 vcpu), go_on_here(void);

u8 *vcpu_pages(u32 vcpu)
{
	return arena[vcpu - 1][0];
}

bool try_lock(u32 *lock)
{
	return __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) == 0;
}

void unlock(u32 *lock)
{
	__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

u64 tsc(void)
{
	u32 low, high;
	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (u64)high << 32 | low;
}

u64 about_now_ns(void)
{
	return ns_at_start + (tsc() - tsc_at_start) / tsc_per_ms * 1000000;
}

static volatile u64 *table_of(u32 vcpu, u32 table)
{
	return (volatile u64 *)arena[vcpu - 1][table];
}

static void note_entries(u32 vcpu, volatile u64 *l1)
{
	for (u32 i = 0; i < SCRATCH; i++) {
		volatile u64 *entry = &l1[pfn_of(scratch_page(i)) % ENTRIES];
		board.of[vcpu].entry_addresses[i] = maddr_of((void *)entry);
		if (vcpu == me)
			entries[i] = entry;
	}
}

void vcpus_init(void)
{
	u64 max = number_after("vcpus=", MAX_VCPUS);
	while (board.nr_vcpus < max && board.nr_vcpus < MAX_VCPUS && HC3(vcpu_op, VCPUOP_is_up, board.nr_vcpus, 0) >= 0)
		board.nr_vcpus++;
	board.of[0].is_loaded = true;
	for (u32 i = 0; i < SCRATCH; i++) {
		entries[i] = entry_for(scratch_page(i), 1);
		board.of[0].entry_addresses[i] = maddr_of((void *)entries[i]);
	}
	board.of[0].roots[0] = board.of[0].roots[1] = maddr_of((void *)start_info->pt_base);
	volatile struct vcpu_info *info = &shared_info()->vcpu[0];
	tsc_at_start = tsc();
	ns_at_start = now_ns();
	/* The record says: ns = tsc << shift * mul >> 32. */
	u64 kilo = 1000000ul << 32;
	tsc_per_ms = info->time.mul ? kilo / info->time.mul : 1000000;
	tsc_per_ms = info->time.shift < 0 ? tsc_per_ms << -info->time.shift : tsc_per_ms >> info->time.shift;
}

static bool is_of_each_vcpu(const u8 *va)
{
	return va >= data_start && va < bss_end && !(va >= (u8 *)pages && va < (u8 *)pages + sizeof(pages));
}

/* Makes tables and variables for `vcpu` as they are here now. */
static void make_vcpu(u32 vcpu)
{
	u32 used = NR_TABLES, own = me;
	volatile u64 *l1 = table_of(vcpu, L1), *own_entries[SCRATCH];
	/* It knows who it is even if it never comes to second_start. */
	memcpy(own_entries, entries, sizeof(entries));
	me = vcpu;
	for (u32 i = 0; i < SCRATCH; i++)
		entries[i] = &l1[pfn_of(scratch_page(i)) % ENTRIES];
	memcpy((void *)l1, (void *)((u64)entry_for((void *)VIRT_BASE, 1) & -PAGE), PAGE);
	for (u32 i = 0; i < ENTRIES; i++) {
		u8 *va = (u8 *)VIRT_BASE + i * PAGE;
		/* Some have something else there, such as shared_info. */
		if (!is_of_each_vcpu(va) || (l1[i] & ADDR_MASK) / PAGE != mfn_of(va))
			continue;
		if (used == VCPU_PAGES)
			error("a vCPU's variables need more pages");
		u8 *copy = arena[vcpu - 1][used++];
		memcpy(copy, va, PAGE);
		l1[i] = pte(mfn_of(copy), P | RW | US | A | D);
	}
	me = own;
	memcpy(entries, own_entries, sizeof(entries));
	for (u32 level = 2; level < 4; level++)
		memcpy((void *)table_of(vcpu, level - 1), (void *)((u64)entry_for((void *)VIRT_BASE, level) & -PAGE), PAGE);
	table_of(vcpu, L2)[0] = pte(mfn_of((void *)l1), P | RW | US | A | D);
	table_of(vcpu, L3)[L3_INDEX] = pte(mfn_of((void *)table_of(vcpu, L2)), P | RW | US | A | D);
	for (u32 root = 0; root < 2; root++) {
		table_of(vcpu, L4 + root)[L4_INDEX] = pte(mfn_of((void *)table_of(vcpu, L3)), P | RW | US | A | D);
		board.of[vcpu].roots[root] = maddr_of((void *)table_of(vcpu, L4 + root));
	}
	for (u32 table = 0; table < NR_TABLES; table++)
		make_read_only((void *)table_of(vcpu, table));
	for (u32 root = 0; root < 2; root++)
		if (mmuext(PIN_L4, board.of[vcpu].roots[root] / PAGE, 0))
			error("a vCPU's tables are refused");
	note_entries(vcpu, l1);
}

void sound_context(struct vcpu_context *context, u32 vcpu)
{
	plain_context(context, (void (*)(void))second_start, stack_top);
	context->regs.rdi = vcpu;
	memcpy(context->traps, exception_traps, sizeof(exception_traps));
	context->kernel_sp = (u64)entry_stack_top;
	context->event = (u64)entry_256;
	context->failsafe = (u64)entry_258;
	context->syscall = (u64)entry_257;
	context->ctrlreg[3] = board.of[vcpu].roots[0];
	context->ctrlreg[1] = up_to(2) ? board.of[vcpu].roots[1] : 0;
}

static u64 some_root(void)
{
	switch (up_to(4)) {
	case 0: return 0;
	case 1: return some_mfn() * PAGE;
	case 2: return mfn_of((void *)start_info->pt_base) * PAGE;
	default: return some_value();
	}
}

/*
 * Tables that this domain should not bring a vCPU up with: those of another vCPU, whose variables and stack it would have, and
 * those that chance has made of a scratch page, where it would have none.
 */
static bool is_taken(u64 root)
{
	for (u32 i = 0; i < SCRATCH; i++)
		if (root / PAGE == mfn_of(scratch_page(i)))
			return true;
	for (u32 v = 0; v < board.nr_vcpus; v++)
		for (u32 i = 0; i < COUNT(board.of[v].roots); i++)
			if (root / PAGE == board.of[v].roots[i] / PAGE)
				return true;
	return false;
}

bool is_reckless(void)
{
	static u32 is;
	if (!is)
		is = 1 + number_after("reckless=", 0);
	return is == 2;
}

/* Not so that the whole domain ends. */
void spoil(struct vcpu_context *context)
{
	static const u64 nowhere[] = { 0, 0x123456789000, 0x800000000000, 0xffff800000000000, 0xffff830000000000, ~0ul };
	switch (up_to(14)) {
	case 0: case 1: {
		u64 root = some_root();
		context->ctrlreg[3] = is_taken(root) ? 0 : root;
		break;
	}
	case 2: case 3: context->ctrlreg[1] = some_root(); break;
	case 4: context->ctrlreg[4] = draw() >> up_to(64); break;
	case 5: context->regs.rip = nowhere[up_to(COUNT(nowhere))]; break;
	case 6: context->regs.cs = some_value(); break;
	case 7: context->regs.ss = some_value(); break;
	case 8: context->regs.rflags = draw(); break;
	case 9: context->gdt_frames[up_to(16)] = some_mfn(), context->gdt_entries = up_to(8192); break;
	case 10: context->ldt_base = some_value(), context->ldt_entries = up_to(8200); break;
	case 11: context->debugreg[up_to(8)] = some_value(); break;
	case 12: context->fs_base = some_value(), context->gs_kernel = some_value(), context->gs_user = some_value(); break;
	default: ((u64 *)context->fpu)[up_to(64)] = draw();
	}
}

void spoil_more(struct vcpu_context *context)
{
	switch (up_to(24)) {
	/* In user mode, perhaps without tables for it. */
	case 14: context->flags = 0; break;
	case 15: context->flags = draw(); break;
	case 16: context->kernel_sp = some_value(); break;
	case 17: context->event = some_value(), context->failsafe = some_value(); break;
	case 18: context->syscall = some_value(), context->flags = 0; break;
	case 19: context->traps[up_to(20)].address = some_value(); break;
	case 20: context->vm_assist = draw(); break;
	case 21: ((u64 *)context)[up_to(sizeof(*context) / 8)] = some_value(); break;
	default: spoil(context);
	}
}

/* Events come at any time, and unmasked at random. */
static void ignore_event(struct frame *frame)
{
	frame->rflags &= ~0x200ul;
}

/* One vCPU sends them to another. */
static void ignore_nmi(struct frame *frame)
{
	(void)frame;
}

static void ignore_debug(struct frame *frame)
{
	HC2(set_debugreg, 7, 0);
	frame->rflags &= ~0x100ul;
}

/* The last operations of this vCPU. */
static struct {
	u64 operation;
	const char *doing;
} last[8];

/* Where the first vCPU is lost, all is: what was going on? */
static void say_why(struct frame *frame)
{
	u64 cr2;
	asm volatile("mov %%cr2, %0" : "=r"(cr2));
	on_unexpected = NULL;
	printk("  vCPU 0 is lost: entry %lu, error %#lx, rip %#lx, rsp %#lx, cr2 %#lx\n", frame->number, frame->error, frame->rip,
	       frame->rsp, cr2);
	for (u32 v = 0; v < board.nr_vcpus; v++)
		printk("  vCPU %u: operation %lu, %s\n", v, board.of[v].operation - 1, board.of[v].doing);
	for (u32 i = 0; i < COUNT(last); i++)
		printk("  before: operation %lu, %s\n", last[i].operation, last[i].doing);
	error("unexpected entry");
}

/* Begins again. */
static void go_on(struct frame *frame)
{
	board.of[me].restarts++;
	board.of[me].is_asleep = false;
	frame->rip = (u64)go_on_here;
	frame->cs = FLAT_KERNEL_CS & ~3;
	frame->ss = FLAT_KERNEL_SS;
	frame->rsp = (u64)stack_top - 8;
	frame->rflags = 2;
}

/*
 * When this vCPU came back a selector could not be loaded whose descriptor is gone; it is 0 now. In front of where it was the frame
 * has what the four selectors were. In other code than this kernel's it is the code's or the stack's that cannot be loaded.
 */
static void go_on_without_selectors(struct frame *frame)
{
	const u64 *rest = (u64 *)(frame + 1);
	if ((rest[0] & 0xfffc) != (FLAT_KERNEL_CS & ~3)) {
		on_unexpected(frame);
		return;
	}
	frame->rip = frame->ss;
	frame->cs = rest[0];
	frame->rflags = rest[1];
	frame->rsp = rest[2];
	frame->ss = FLAT_KERNEL_SS;
}

static void prepare(void)
{
	/* A context may say that strings are copied downwards. */
	asm volatile("cld");
	handlers[1] = ignore_debug;
	handlers[2] = ignore_nmi;
	handlers[ENTRY_EVENT] = ignore_event;
	handlers[ENTRY_FAILSAFE] = go_on_without_selectors;
	on_unexpected = go_on;
	HC1(set_trap_table, exception_traps);
	HC2(stack_switch, FLAT_KERNEL_SS, entry_stack_top);
	set_callback(0, 0, entry_256);
	set_callback(1, 0, entry_258);
	set_callback(2, 0, entry_257);
}

static void take_rest(void)
{
	board.of[me].nr_failures += take_failures();
	board.of[me].accepted = nr_accepted;
}

static void operate(void)
{
	for (;;) {
		u64 n = board.of[me].operation;
		while (board.is_held && me) {
			board.of[me].is_here = true;
			asm volatile("pause");
		}
		board.of[me].is_here = false;
		begin(n);
		board.of[me].operation = n + 1;
		work->once();
		last[n % COUNT(last)].operation = n;
		last[n % COUNT(last)].doing = board.of[me].doing;
		if (n % 64 == 0)
			take_rest();
		if (n % 512 == 0)
			restore();
		if (me == 0 && !work->housekeeping(n))
			return;
	}
}

void run_operations(const struct work *what)
{
	work = what;
	prepare();
	for (u32 v = 0; v < board.nr_vcpus; v++) {
		board.of[v].operation = work->first;
		if (v)
			make_vcpu(v);
	}
	if (!is_reckless())
		on_unexpected = say_why;
	operate();
	take_rest();
}

/* Where another vCPU begins; the context says which it is. `work` is what it was when the variables were copied. */
void second_start(u64 vcpu)
{
	me = vcpu;
	for (u32 i = 0; i < SCRATCH; i++)
		entries[i] = &table_of(me, L1)[pfn_of(scratch_page(i)) % ENTRIES];
	nr_accepted = 0;
	prepare();
	operate();
}

void go_on_here(void)
{
	prepare();
	work->lost();
	operate();
}

u64 operations_done(void)
{
	u64 sum = 0;
	for (u32 v = 0; v < MAX_VCPUS; v++)
		sum += board.of[v].operation - (v < board.nr_vcpus ? work->first : 0);
	return sum;
}

u64 operations_accepted(void)
{
	u64 sum = 0;
	for (u32 v = 0; v < MAX_VCPUS; v++)
		sum += board.of[v].accepted;
	return sum;
}

bool keep_books(u64 nr_operations, u64 audit_each)
{
	enum { REPORT_EACH = 1 << 14 };
	static u64 last_report, last_audit;
	u64 done = operations_done();
	if (done >= last_report + REPORT_EACH) {
		last_report = done;
		printk("  done %lu, accepted %lu\n", done, operations_accepted());
	}
	if (done >= last_audit + audit_each) {
		last_audit = done;
		audit();
	}
	return done < nr_operations;
}

static u32 runstate_of(u32 vcpu)
{
	struct {
		u32 state, pad;
		u64 entered, times[4];
	} info = { OFFLINE, 0, 0, { 0 } };
	HC3(vcpu_op, VCPUOP_get_runstate_info, vcpu, &info);
	return info.state;
}

void wake_vcpus(void)
{
	for (u32 v = 1; v < board.nr_vcpus; v++)
		if (board.of[v].is_loaded)
			HC3(vcpu_op, VCPUOP_up, v, 0);
	u32 sleeper = 1 + up_to(MAX_VCPUS - 1);
	if (sleeper >= board.nr_vcpus || !board.of[sleeper].is_asleep)
		return;
	struct bind_ipi bind = { sleeper, 0 };
	if (evtchn(EVTCHN_bind_ipi, &bind))
		return;
	evtchn(EVTCHN_unmask, &bind.port);
	evtchn(EVTCHN_send, &bind.port);
	evtchn(EVTCHN_close, &bind.port);
}

void load_vcpus(void)
{
	for (u32 v = 1; v < board.nr_vcpus; v++) {
		static struct vcpu_context context;
		if (board.of[v].is_loaded)
			continue;
		sound_context(&context, v);
		board.of[v].is_loaded = HC3(vcpu_op, VCPUOP_initialise, v, &context) == 0;
	}
}

/* Comes out of its operation, or is in a state beyond `state`. */
static bool comes(u32 vcpu, u32 state, u32 ms)
{
	for (u64 until = tsc() + ms * tsc_per_ms; tsc() < until;) {
		if (board.of[vcpu].is_here || runstate_of(vcpu) > state)
			return true;
		/* Under QEMU it lets all other processors go first. */
		asm volatile("pause");
		if (state == RUNNABLE)
			HC2(sched_op, SCHEDOP_yield, 0);
	}
	return false;
}

/* Nobody begins anything; what others are in the middle of, while their state is `state` or less, ends. */
static void hold(void (*prepare)(void), u32 state)
{
	board.is_held = true;
	/* Who was there last time may have read that it may go on. */
	for (u32 v = 1; v < board.nr_vcpus; v++)
		board.of[v].is_here = false;
	for (u32 v = 1; v < board.nr_vcpus; v++) {
		if (!board.of[v].is_loaded || comes(v, state, SUSPICIOUS_MS))
			continue;
		/* The others are quiet, so it should. */
		prepare();
		if (!comes(v, state, PATIENCE_MS)) {
			check(false, "vCPU %u hangs in its operation %lu, %s", v, board.of[v].operation - 1, board.of[v].doing);
			fail();
		}
	}
}

void hold_vcpus(void (*prepare)(void))
{
	hold(prepare, RUNNABLE);
}

void release_vcpus(void)
{
	board.is_held = false;
}

void call_roll(void (*prepare)(void))
{
	hold(prepare, RUNNING);
	release_vcpus();
}

/* Takes all others down. Were they, already? */
static bool take_down(u64 until)
{
	bool were_down = true;
	for (u32 v = 1; v < board.nr_vcpus; v++) {
		if (runstate_of(v) <= RUNNABLE) {
			were_down = false;
			if (tsc() > until) {
				check(false, "vCPU %u does not stop, in its operation %lu, %s%s", v, board.of[v].operation - 1,
				      board.of[v].doing, board.of[v].is_here ? ", which has ended" : "");
				fail();
			}
		}
		HC3(vcpu_op, VCPUOP_down, v, 0);
	}
	return were_down;
}

void stop_vcpus(void)
{
	u64 until = tsc() + PATIENCE_MS * tsc_per_ms;
	board.is_held = true;
	/* One that still runs may bring up another that was seen down. After a look that found none running nobody does. */
	while (!take_down(until) || !take_down(until))
		;
}
