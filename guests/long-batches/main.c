/*
 * Lists of long hypercalls: an event that is due meanwhile comes after some of the work, not after all of it. (cpus: 2) (clock: instructions)
 */
#include "domains.h"
#include "grants.h"

const char test_name[] = "long-batches";

enum { BATCH = 16, OPS = 14, TABLES = 56, UNDONE = 0x7777, NEVER = 99, FLUSH_ALL = 10, FLUSH_CACHE = 12, COPY = 5, DECREASE = 1, POPULATE = 6, CHUNK = 512 };

static volatile struct call {
	u64 op, result, args[6];
} batch[BATCH];

static u32 port;
static handler *plain_upcall;
/* How many calls of the batch were done when the timer's event came. */
static volatile u32 done_at_event;

static u32 nr_done(void)
{
	u32 done = 0;
	while (done < BATCH && batch[done].result != UNDONE)
		done++;
	return done;
}

static void upcall(struct frame *frame)
{
	plain_upcall(frame);
	if (upcall_ports[port / 64] >> port % 64 & 1 && done_at_event == NEVER)
		done_at_event = nr_done();
	upcall_ports[port / 64] &= ~(1ul << port % 64);
}

/* Executes the batch. Its first call has the timer fire; when the event comes, at most `most` calls have been done. */
static void is_interrupted(u32 most, const char *what)
{
	struct {
		u64 at;
		u32 flags, pad;
	} once = { 1, 0, 0 };
	batch[0] = (struct call){ HC_vcpu_op, 0, { VCPUOP_set_singleshot_timer, 0, (u64)&once } };
	for (u32 i = 0; i < BATCH; i++)
		batch[i].result = UNDONE;
	done_at_event = NEVER;
	check_result(HC2(multicall, batch, BATCH), 0, what);
	/* The event may be due only now. */
	HC1(xen_version, 0);
	u32 done = done_at_event;
	check(done != NEVER, "%s: the event never came", what);
	check(done >= 1 && done <= most, "%s: %u of %u calls were done when the event came", what, done, BATCH);
}

static void have_succeeded(u64 result, const char *what)
{
	for (u32 i = 1; i < BATCH; i++)
		check(batch[i].result == result, "%s: result %u is %ld", what, i, batch[i].result);
}

static struct mmuext_op {
	u32 cmd, pad;
	u64 arg1, arg2;
} ops[OPS];

static void each_does_ops(void)
{
	for (u32 i = 1; i < BATCH; i++)
		batch[i] = (struct call){ HC_mmuext_op, 0, { (u64)ops, OPS, 0, DOMID_SELF } };
}

/* Pins and unpins `table` again and again. */
static void each_pins(u32 pin, const void *table)
{
	for (u32 i = 0; i < OPS; i++)
		ops[i] = (struct mmuext_op){ i & 1 ? UNPIN : pin, 0, mfn_of(table), 0 };
	each_does_ops();
}

/* Four lists of tables leave room for as many of copies. */
static void copies(const void *table)
{
	static struct copy pieces[OPS];
	each_pins(PIN_L1, table);
	for (u32 i = 5; i < BATCH; i++)
		batch[i] = (struct call){ HC_grant_table_op, 0, { COPY, (u64)pieces, OPS } };
	for (u32 i = 0; i < OPS; i++) {
		pieces[i] = (struct copy){ .from = { mfn_of(pages[2]), DOMID_SELF }, .to = { mfn_of(pages[3]), DOMID_SELF }, .len = PAGE };
		pieces[i].status = NEVER;
	}
	is_interrupted(11, "copies");
	have_succeeded(0, "copies");
	for (u32 i = 0; i < OPS; i++)
		check(pieces[i].status == 0, "copy %u: status %d", i, pieces[i].status);
}

static void page_tables(void)
{
	u8 *l2 = pages[7], (*l1)[PAGE] = &pages[8];
	for (u32 i = 0; i < TABLES; i++) {
		((u64 *)l2)[i] = pte(mfn_of(l1[i]), P | RW | US);
		make_read_only(l1[i]);
	}
	make_read_only(l2);
	/* None of the operations takes down or validates more tables than one may at once. */
	each_pins(PIN_L2, l2);
	is_interrupted(2, "trees");
	have_succeeded(0, "trees");
	each_pins(PIN_L1, l1[0]);
	is_interrupted(7, "tables");
	have_succeeded(0, "tables");
	copies(l1[0]);
	make_writable(l2);

	/* An entry by which a table is validated, and taken down. */
	static struct {
		u64 ptr, val;
	} updates[OPS];
	for (u32 i = 0; i < TABLES; i++)
		((u64 *)l2)[i] = 0;
	make_read_only(l2);
	check_result(mmuext(PIN_L2, mfn_of(l2), 0), 0, "an empty table cannot be pinned");
	for (u32 i = 0; i < OPS; i++) {
		updates[i].ptr = mfn_of(l2) * PAGE;
		updates[i].val = i & 1 ? 0 : pte(mfn_of(l1[0]), P | RW | US);
	}
	for (u32 i = 1; i < BATCH; i++)
		batch[i] = (struct call){ HC_mmu_update, 0, { (u64)updates, OPS, 0, DOMID_SELF } };
	is_interrupted(7, "entries");
	have_succeeded(0, "entries");
	check_result(mmuext(UNPIN, mfn_of(l2), 0), 0, "the table cannot be unpinned");
	make_writable(l2);
	for (u32 i = 0; i < TABLES; i++)
		make_writable(l1[i]);
}

/* Memory that is wiped: a large extent comes, and goes again. */
static void extents(void)
{
	static u64 frames[CHUNK];
	struct {
		u64 *list;
		u64 nr;
		u32 order, flags;
		u16 domid, pad[3];
	} r = { frames, CHUNK, 0, 0, DOMID_SELF, { 0 } };
	/* Pages that are mapped nowhere. */
	for (u32 i = 0; i < CHUNK; i++)
		frames[i] = mfn_of_pfn(start_info->nr_pages - CHUNK + i);
	check_result(HC2(memory_op, DECREASE, &r), CHUNK, "decrease_reservation");
	frames[0] = start_info->nr_pages - CHUNK;
	r.nr = 1;
	r.order = 9;
	for (u32 i = 1; i < BATCH; i++)
		batch[i] = (struct call){ HC_memory_op, 0, { i & 1 ? POPULATE : DECREASE, (u64)&r } };
	is_interrupted(2, "extents");
	have_succeeded(1, "extents");
}

/*
 * Switching the log of a domain's writes on: it has a bit for each page that the domain may have, 32 MiB for a TiB; and each of its vCPUs gets a
 * MiB, which is wiped.
 */
static void log_of_writes(void)
{
	enum { OTHER = 5, VCPUS = 8, SHADOW_OP = 10, OFF = 0, ENABLE_LOGDIRTY = 2 };
	struct domctl request = { .create = { .max_vcpus = VCPUS, .max_port = 1023, .max_grant_frames = 4, .max_maptrack_frames = 4,
					      .grant_version = 1 } };
	struct domctl enable = { .cmd = SHADOW_OP, .version = 0x15, .domid = OTHER, .room = { ENABLE_LOGDIRTY } };
	check_result(domctl(OTHER, DOMCTL_CREATE, &request), 0, "createdomain");
	request.max_kib = 1ul << 30;
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	for (u32 i = 1; i < BATCH; i++)
		batch[i] = (struct call){ i == 1 ? HC_domctl : HC_xen_version, 0, { i == 1 ? (u64)&enable : 7 } };
	is_interrupted(1, "a long log");
	check(batch[1].result == 0, "switching a long log on: result %ld", batch[1].result);
	struct domctl disable = { .cmd = SHADOW_OP, .version = 0x15, .domid = OTHER, .room = { OFF } };
	check_result(domctl(OTHER, SHADOW_OP, &disable), 0, "switching a long log off");
	request.max_kib = 2048;
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	request.max_vcpus = VCPUS;
	check_result(domctl(OTHER, DOMCTL_MAX_VCPUS, &request), 0, "max_vcpus");
	for (u32 i = 1; i < BATCH; i++)
		batch[i] = (struct call){ i == 1 ? HC_domctl : HC_xen_version, 0, { i == 1 ? (u64)&enable : 7 } };
	is_interrupted(1, "the log");
	check(batch[1].result == 0, "switching the log on: result %ld", batch[1].result);
	check_result(domctl(OTHER, SHADOW_OP, &enable), -EBUSY, "switching it on twice");
	enable.room[0] = OFF;
	check_result(domctl(OTHER, SHADOW_OP, &enable), 0, "switching it off");
	enable.room[0] = ENABLE_LOGDIRTY;
	check_result(domctl(OTHER, SHADOW_OP, &enable), 0, "switching it on again");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}

static volatile bool other_runs, ends;

/* QEMU's CPUs run one after the other where instructions are counted: who waits has to say so. */
static void run_for_ever(void)
{
	while (!ends) {
		other_runs = true;
		asm volatile("pause");
	}
	go_down(1);
}

/* Flushes that another CPU is to do, too. */
static void other_cpus(void)
{
	static u8 stack[4 * PAGE];
	start_vcpu(1, run_for_ever, stack + sizeof(stack));
	while (!other_runs)
		asm volatile("pause");
	for (u32 i = 0; i < OPS; i++)
		ops[i] = (struct mmuext_op){ FLUSH_ALL, 0, 0, 0 };
	each_does_ops();
	is_interrupted(11, "other CPUs");
	have_succeeded(0, "other CPUs");
	ends = true;
	wait_until_down(1);
}

void test_main(void)
{
	set_upcall();
	plain_upcall = handlers[ENTRY_EVENT];
	handlers[ENTRY_EVENT] = upcall;
	check_result(HC3(vcpu_op, VCPUOP_stop_periodic_timer, 0, 0), 0, "stop_periodic_timer");
	struct bind_virq virq = { 0, 0, 0 };
	if (evtchn(EVTCHN_bind_virq, &virq))
		error("bind_virq");
	port = virq.port;
	shared_info()->vcpu[0].upcall_mask = 0;
	page_tables();
	extents();
	for (u32 i = 0; i < OPS; i++)
		ops[i] = (struct mmuext_op){ FLUSH_CACHE, 0, 0, 0 };
	each_does_ops();
	is_interrupted(2, "caches");
	have_succeeded(0, "caches");
	/* Debian's hypervisor has no log for a PV domain. */
	if (is_tandem())
		log_of_writes();
	other_cpus();
	audit();
}
