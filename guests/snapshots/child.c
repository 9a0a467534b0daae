/* The kernel that is rolled back: it sets itself up, waits to be noted, does damage, and looks whether that is undone. */
#include "snapshots.h"

static struct report *report = (void *)pages[REPORT];
static u32 ipi, waiting;
static u64 seed = 0x1234567;
enum { DEBUG_VALUE = 0x400000, LIMIT = 0x12345, GDT_ENTRIES = 16, SELECTOR = 10 * 8 + 3 };
enum { CRASH = 3, VIRQ_TIMER = 0, MACHPHYS = 1, SINGLE_SHOT_NS = 5000000 };

/* On a page of its own, for it is overwritten. */
__asm__(".pushsection .text; .balign 4096; .globl victim; victim: mov $4711, %eax; ret; .balign 4096; .popsection");
u32 victim(void);

static volatile struct vcpu_info *info(void)
{
	return (void *)(pages[INFO] + 64);
}

static void crash(void)
{
	u32 reason = CRASH;
	HC2(sched_op, SCHEDOP_shutdown, &reason);
}

static u64 pattern(u32 n)
{
	return (n + 1) * 0x9e3779b97f4a7c15;
}

/* Makes a page that only its kernel maps a table, as far as its mapping is concerned. */
static void pin(u32 which, u32 command)
{
	make_read_only(pages[which]);
	check_result(mmuext(command, mfn_of(pages[which]), 0), 0, "pinning");
}

static void unpin(u32 which)
{
	check_result(mmuext(UNPIN, mfn_of(pages[which]), 0), 0, "unpinning");
	make_writable(pages[which]);
}

static void load_gdt(bool is)
{
	u64 frames[16] = { mfn_of(pages[GDT]) };
	check_result(HC2(set_gdt, frames, is ? GDT_ENTRIES : 0), 0, "set_gdt");
}

static void set_up_memory(void)
{
	u64 *words = (u64 *)pages[PATTERN], *l1 = (u64 *)pages[PINNED_L1], *gdt = (u64 *)pages[GDT];
	for (u32 n = 0; n < 512; n++)
		words[n] = pattern(n);
	l1[3] = pte(mfn_of(pages[GRANTED]), P | US);
	pin(PINNED_L1, PIN_L1);
	memcpy(pages[PINNED_L4], (void *)start_info->pt_base, PAGE);
	pin(PINNED_L4, PIN_L4);
	/* Data, of DPL 3, up to LIMIT. */
	gdt[SELECTOR / 8] = 0x0040f20000000000 | (LIMIT & 0xffff) | (u64)(LIMIT >> 16) << 48;
	make_read_only(pages[GDT]);
	load_gdt(true);
	check_result(mmu_update(mfn_of(pages[NAMED]) * PAGE | MACHPHYS, OLD_NAME), 0, "naming a frame");
}

static void upcall(struct frame *frame)
{
	(void)frame;
	report->seen++;
	info()->upcall_pending = 0;
	if (report->is_fifo) {
		volatile u32 *control = (u32 *)pages[CONTROL], *words = (u32 *)pages[ARRAY];
		/* What comes behind a queue's end sets its bit anew: these go first, and the heads are the hypervisor's to write. */
		u32 ready = __atomic_exchange_n(&control[0], 0, __ATOMIC_SEQ_CST);
		for (u32 queue = 0; queue < 16; queue++) {
			u32 port = ready >> queue & 1 ? control[2 + queue] : 0;
			while (port) {
				u32 word = __atomic_fetch_and(&words[port], ~(1u << 29 | 0x1ffff), __ATOMIC_SEQ_CST);
				__atomic_fetch_and(&words[port], ~(1u << 31), __ATOMIC_SEQ_CST);
				upcall_ports[port / 64] |= 1ul << port % 64;
				port = word & 0x1ffff;
			}
		}
		return;
	}
	u64 words = __atomic_exchange_n((u64 *)&info()->pending_sel, 0, __ATOMIC_SEQ_CST);
	for (; words; words &= words - 1) {
		u32 word = __builtin_ctzl(words);
		u64 ports = __atomic_exchange_n((u64 *)&shared_info()->pending[word], 0, __ATOMIC_SEQ_CST);
		upcall_ports[word] |= ports;
	}
}

static u32 timer;

static void set_up_events(void)
{
	struct alloc_unbound alloc = { DOMID_SELF, 0, 0 };
	struct bind_virq virq = { VIRQ_TIMER, 0, 0 };
	struct {
		u64 mfn;
		u32 offset, pad;
	} move = { mfn_of(pages[INFO]), 64, 0 };
	handlers[ENTRY_EVENT] = upcall;
	check_result(set_callback(0, 0, entry_256), 0, "the callback");
	check_result(HC3(vcpu_op, VCPUOP_register_vcpu_info, 0, &move), 0, "register_vcpu_info");
	info()->upcall_mask = 1;
	if (report->is_fifo) {
		struct {
			u64 gfn;
			u32 offset, vcpu;
			u8 link_bits, pad[7];
		} init = { mfn_of(pages[CONTROL]), 0, 0, 0, { 0 } };
		u64 array = mfn_of(pages[ARRAY]);
		check_result(evtchn(EVTCHN_init_control, &init), 0, "init_control");
		check_result(evtchn(EVTCHN_expand_array, &array), 0, "expand_array");
	}
	check_result(evtchn(EVTCHN_alloc_unbound, &alloc), 0, "a port for domain 0");
	report->port = alloc.port;
	check_result(evtchn(EVTCHN_alloc_unbound, &alloc), 0, "a port that waits");
	waiting = alloc.port;
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "the timer's port");
	timer = virq.port;
	ipi = new_ipi(0);
}

static void set_up_grants(void)
{
	u64 frame = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		u64 *list;
	} setup = { DOMID_SELF, 0, 1, 99, &frame };
	check_result(HC3(grant_table_op, 2, &setup, 1), 0, "setup_table");
	check_result(update_va(pages[GRANT_TABLE], pte(frame, P | RW | US | A | D), 2), 0, "mapping the grant table");
	((volatile u64 *)pages[GRANT_TABLE])[GREF] = 1 | mfn_of(pages[GRANTED]) << 32;
}

static void set_up_registers(void)
{
	check_result(HC2(set_debugreg, 0, DEBUG_VALUE), 0, "set_debugreg");
	check_result(HC2(set_segment_base, 0, (u64)pages[PATTERN]), 0, "set_segment_base");
}

static void set_timer(u64 after)
{
	struct {
		u64 at;
		u32 flags, pad;
	} request = { now_ns() + after, 0, 0 };
	check_result(HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &request), 0, "set_singleshot_timer");
}

/* Waits for a command, with something in every register that nobody else puts there; which of them have lost it. */
static u32 wait_at_the_point(void)
{
	u32 lost;
	u64 xmm[2] = { 0x1111222233334444, 0x5555666677778888 }, now[2] = { 0 };
	asm volatile("movdqu (%[xmm]), %%xmm7\n\t"
		     "mov $0xa1, %%r8\n\t mov $0xa2, %%r9\n\t mov $0xa3, %%r10\n\t mov $0xa4, %%r11\n\t"
		     "mov $0xa5, %%r12\n\t mov $0xa6, %%r13\n\t mov $0xa7, %%r14\n\t mov $0xa8, %%r15\n\t"
		     "movl %[point], 4(%[report])\n"
		     "1:\tpause\n\t cmpl $0, (%[report])\n\t je 1b\n\t"
		     "xor %%eax, %%eax\n\t"
		     "sub $0xa1, %%r8\n\t or %%r8d, %%eax\n\t sub $0xa2, %%r9\n\t or %%r9d, %%eax\n\t"
		     "sub $0xa3, %%r10\n\t or %%r10d, %%eax\n\t sub $0xa4, %%r11\n\t or %%r11d, %%eax\n\t"
		     "sub $0xa5, %%r12\n\t or %%r12d, %%eax\n\t sub $0xa6, %%r13\n\t or %%r13d, %%eax\n\t"
		     "sub $0xa7, %%r14\n\t or %%r14d, %%eax\n\t sub $0xa8, %%r15\n\t or %%r15d, %%eax\n\t"
		     "movdqu %%xmm7, (%[now])"
		     : "=&a"(lost)
		     : [xmm] "D"(xmm), [now] "S"(now), [report] "b"(report), [point] "i"(AT_THE_POINT)
		     : "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory");
	return lost || memcmp(xmm, now, sizeof(xmm));
}

static void check_port(u32 port, u32 status, const char *what)
{
	struct evtchn_status now = { DOMID_SELF, 0, port, 99, 0, 0 };
	check_result(evtchn(EVTCHN_status, &now), 0, what);
	check(now.status == status, "%s: status %u instead of %u", what, now.status, status);
}

static bool takes_event(u32 port)
{
	for (u64 until = now_ns() + 3000000000; now_ns() < until;) {
		if (upcall_ports[port / 64] >> port % 64 & 1) {
			upcall_ports[port / 64] &= ~(1ul << port % 64);
			return true;
		}
		HC2(sched_op, SCHEDOP_yield, 0);
	}
	return false;
}

static void verify_memory(void)
{
	u64 *words = (u64 *)pages[PATTERN], *zeroes = (u64 *)pages[ZEROES], base, limit = 0;
	for (u32 n = 0; n < 512; n++)
		if (!check(words[n] == pattern(n) && zeroes[n] == 0, "word %u is %#lx and %#lx", n, words[n], zeroes[n]))
			break;
	check(seed == 0x1234567, "a variable is %#lx", seed);
	check(victim() == 4711, "its text");
	check_refused(mmuext(PIN_L1, mfn_of(pages[PINNED_L1]), 0), "pinning an L1 table that is pinned");
	check_refused(mmuext(PIN_L4, mfn_of(pages[PINNED_L4]), 0), "pinning an L4 table that is pinned");
	check_refused(mmuext(UNPIN, mfn_of(pages[NEW_TABLE]), 0), "unpinning what was not pinned");
	check(((u64 *)pages[PINNED_L1])[3] == pte(mfn_of(pages[GRANTED]), P | US), "its entry is %#lx", ((u64 *)pages[PINNED_L1])[3]);
	check_result(mmu_update(maddr_of(&((u64 *)pages[PINNED_L1])[4]), pte(mfn_of(pages[PATTERN]), P | US)), 0, "an entry of the L1 table");
	check_result(mmu_update(maddr_of(&((u64 *)pages[PINNED_L1])[4]), 0), 0, "the same");
	check_refused(update_va(pages[PINNED_L1], pte(mfn_of(pages[PINNED_L1]), P | RW | US), 2), "mapping a table writable");
	check_refused(update_va(pages[GDT], pte(mfn_of(pages[GDT]), P | RW | US), 2), "mapping descriptors writable");
	check_result(mmuext(NEW_BASEPTR, mfn_of(pages[PINNED_L4]), 0), 0, "the other root");
	check_result(mmuext(NEW_BASEPTR, mfn_of((void *)start_info->pt_base), 0), 0, "its own root");
	asm("lsl %1, %0" : "+r"(limit) : "r"((u64)SELECTOR));
	check(limit == LIMIT, "the limit of a segment is %#lx", limit);
	asm("mov %%fs:8, %0" : "=r"(base));
	check(base == pattern(1), "at FS base is %#lx", base);
	u64 name = ((volatile u64 *)M2P_BASE)[mfn_of(pages[NAMED])];
	check(name == OLD_NAME, "a frame is named %lu", name);
}

static void verify(u32 registers_lost)
{
	verify_memory();
	check(registers_lost == 0, "registers have changed: %#x", registers_lost);
	check_result(HC1(get_debugreg, 0), DEBUG_VALUE, "the debug register");
	check(PROBE("ud2", ::: "r11", "memory") == 6, "a trap has vector %lu", probe.vector);
	check_port(report->port, 2, "the port to domain 0");
	check_port(waiting, 1, "the port that waits");
	check_port(timer, 4, "the timer's port");
	check_port(ipi, 5, "the IPI's port");
	check_port(ipi + 1, 0, "a port that there was not");
	/* All of these may have lost one. */
	info()->upcall_mask = 0;
	check(takes_event(report->port) && takes_event(timer) && takes_event(ipi), "events that may have been lost");
	check_result(evtchn(EVTCHN_send, &ipi), 0, "send");
	check(takes_event(ipi), "the event that it sends itself");
	set_timer(SINGLE_SHOT_NS);
	check(takes_event(timer), "the timer");
	volatile u64 *entry = &((volatile u64 *)pages[GRANT_TABLE])[GREF];
	check((*entry & ~0x18ul) == (1 | mfn_of(pages[GRANTED]) << 32), "its grant is %#lx", *entry);
	check(((volatile u64 *)pages[GRANT_TABLE])[NEW_GREF] == 0, "a grant that there was not is %#lx",
	      ((volatile u64 *)pages[GRANT_TABLE])[NEW_GREF]);
	info()->upcall_mask = 1;
}

static void spoil_memory(void)
{
	memset(pages[PATTERN], 0xee, PAGE);
	memset(pages[ZEROES], 0xee, PAGE);
	seed = 0;
	report->seen = ~0ul;
	check_result(update_va((void *)victim, pte(mfn_of((void *)victim), P | RW | US), 2), 0, "its text, for writing");
	memset((void *)victim, 0xcc, PAGE);
	/* Of the main stack, and all that this kernel could do about a fault. */
	static const struct trap_info none[1];
	HC1(set_trap_table, none);
	HC1(set_trap_table, 0);
	victim();
	asm volatile("ud2");
}

static void spoil_tables(void)
{
	unpin(PINNED_L1);
	memset(pages[PINNED_L1], 0x77, PAGE);
	unpin(PINNED_L4);
	memset(pages[PINNED_L4], 0x77, PAGE);
	load_gdt(false);
	make_writable(pages[GDT]);
	memset(pages[GDT], 0xff, PAGE);
	memset(pages[NEW_TABLE], 0, PAGE);
	((u64 *)pages[NEW_TABLE])[7] = pte(mfn_of(pages[PINNED_L1]), P | RW | US);
	pin(NEW_TABLE, PIN_L1);
	memcpy(pages[NEW_ROOT], (void *)start_info->pt_base, PAGE);
	pin(NEW_ROOT, PIN_L4);
	check_result(mmuext(NEW_BASEPTR, mfn_of(pages[NEW_ROOT]), 0), 0, "a new root");
	check_result(mmu_update(mfn_of(pages[NAMED]) * PAGE | MACHPHYS, NEW_NAME), 0, "renaming a frame");
	/* What was data, for walking; and what it ran on, out of the way. */
	volatile u64 *entry = entry_for(pages[PATTERN], 1);
	*(volatile u64 *)&seed = *entry;
	check_result(update_va(pages[PATTERN], 0, 2), 0, "unmapping a page");
	crash();
}

static void spoil_events(void)
{
	struct alloc_unbound alloc = { DOMID_SELF, 0, 0 };
	u32 close[] = { ipi, timer, waiting };
	info()->upcall_mask = 0;
	for (u32 n = 0; n < COUNT(close); n++)
		check_result(evtchn(EVTCHN_close, &close[n]), 0, "close");
	/* Others in their places, and more. */
	for (u32 n = 0; n < 200; n++)
		check_result(evtchn(EVTCHN_alloc_unbound, &alloc), 0, "alloc_unbound");
	struct bind_virq virq = { VIRQ_TIMER, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "the timer, elsewhere");
	for (u32 n = 0; n < 64; n++)
		shared_info()->mask[n] = ~0ul;
	set_timer(1);
	crash();
}

static void spoil_registers(void)
{
	HC2(set_debugreg, 0, 0x500000);
	HC2(set_segment_base, 0, 0);
	set_callback(0, 0, (void (*)(void))8);
	HC2(stack_switch, 0, 8);
	asm volatile("pxor %%xmm7, %%xmm7" ::: "memory");
	HC1(set_trap_table, 0);
	/* Without a handler: it is the hypervisor that ends it. */
	asm volatile("ud2");
}

static void map_others(bool is)
{
	static struct map map;
	if (is) {
		check_result(update_va(pages[MAPPED], 0, 2), 0, "room");
		map = (struct map){ .host_addr = (u64)pages[MAPPED], .flags = 2, .ref = OTHERS_GREF, .domid = 0, .status = 99 };
		check_result(HC3(grant_table_op, 0, &map, 1), 0, "map_grant_ref");
		check(map.status == 0, "mapping: status %d", map.status);
		return;
	}
	struct unmap unmap = { .host_addr = (u64)pages[MAPPED], .handle = map.handle, .status = 99 };
	check_result(HC3(grant_table_op, 1, &unmap, 1), 0, "unmap_grant_ref");
	check(unmap.status == 0, "unmapping: status %d", unmap.status);
}

struct reservation {
	u64 *list, nr;
	u32 order, flags;
	u16 domid, pad[3];
};
enum { INCREASE, DECREASE, EXCHANGE = 11, NEW_PFN = 500 };

static void memory(u32 command, u64 *list, u64 nr, const char *what)
{
	struct reservation r = { list, nr, 0, 0, DOMID_SELF, { 0 } };
	check_result(HC2(memory_op, command, &r), (s64)nr, what);
}

static void give_up(u32 which)
{
	u64 mfn = mfn_of(pages[which]);
	check_result(update_va(pages[which], 0, 2), 0, "unmapping it");
	memory(DECREASE, &mfn, 1, "giving up a frame");
}

/* As drivers do for a buffer of two pages; both are written to. */
static void exchange_two(void)
{
	u64 in[2] = { mfn_of(pages[MORE_GRANTED]), mfn_of(pages[MAPPED]) }, out = NEW_PFN;
	struct {
		struct reservation in, out;
		u64 nr_exchanged;
	} exchange = { { in, 2, 0, 0, DOMID_SELF, { 0 } }, { &out, 1, 1, 0, DOMID_SELF, { 0 } }, 0 };
	check_result(update_va(pages[MORE_GRANTED], 0, 2), 0, "unmapping one");
	check_result(update_va(pages[MAPPED], 0, 2), 0, "unmapping the other");
	check_result(HC2(memory_op, EXCHANGE, &exchange), 0, "exchanging two frames");
	check_result(update_va(pages[MORE_GRANTED], pte(out, P | RW | US | A | D), 2), 0, "the first of the new ones");
	check_result(update_va(pages[MAPPED], pte(out + 1, P | RW | US | A | D), 2), 0, "the second");
	memset(pages[MORE_GRANTED], 0xee, PAGE);
	memset(pages[MAPPED], 0xee, PAGE);
}

/* Other frames than those that were noted, in all uses: one is a table that maps another, and one that was a table, for writing. */
static void spoil_frames(void)
{
	u64 new[2] = { 0 }, *table = (u64 *)pages[GIVEN_UP];
	give_up(GIVEN_UP);
	exchange_two();
	memory(INCREASE, new, 2, "two frames more");
	check_result(update_va(table, pte(new[0], P | RW | US | A | D), 2), 0, "mapping a new frame");
	unpin(PINNED_L1);
	memset(table, 0, PAGE);
	table[1] = pte(new[1], P | RW | US);
	table[2] = pte(mfn_of(pages[PINNED_L1]), P | RW | US);
	check_result(update_va(table, 0, 2), 0, "unmapping it");
	check_result(mmuext(PIN_L1, new[0], 0), 0, "pinning it");
	memory(DECREASE, new, 1, "giving up a table that is pinned");
	give_up(PATTERN);
	crash();
}

static void live(u32 command, u32 registers_lost)
{
	switch (command) {
	case VERIFY:
		verify(registers_lost);
		break;
	case SPOIL_MEMORY: spoil_memory(); break;
	case SPOIL_TABLES: spoil_tables(); break;
	case SPOIL_EVENTS: spoil_events(); break;
	case SPOIL_REGISTERS: spoil_registers(); break;
	case SPOIL_FRAMES: spoil_frames(); break;
	case SLEEP:
		for (;;)
			HC2(sched_op, SCHEDOP_block, 0);
	case FREE_TABLE:
		unpin(PINNED_L1);
		crash();
		break;
	case GRANT_MORE:
		((volatile u64 *)pages[GRANT_TABLE])[NEW_GREF] = 1 | mfn_of(pages[MORE_GRANTED]) << 32;
		crash();
		break;
	case GIVE_UP:
		give_up(GIVEN_UP);
		crash();
		break;
	case MAP_OTHERS: map_others(true); break;
	case UNMAP_OTHERS: map_others(false); break;
	}
}

void child_main(void)
{
	report->state = STARTING;
	set_up_memory();
	set_up_events();
	set_up_grants();
	set_up_registers();
	report->state = NEEDS_PEER;
	while (!report->command)
		HC2(sched_op, SCHEDOP_yield, 0);
	for (;;) {
		report->command = NOTHING;
		u32 lost = wait_at_the_point();
		report->state = LIVING;
		live(report->command, lost);
		report->failures += take_failures();
		report->state = VERIFIED;
		while (report->state == VERIFIED)
			HC2(sched_op, SCHEDOP_yield, 0);
	}
}
