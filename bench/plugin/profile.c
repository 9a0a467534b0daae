/*
 * A QEMU plugin that tells where the instructions between two marks were executed: for each block of code its virtual
 * address, its machine address and how many instructions ran in it. By the machine address the same kernel in two
 * domains is told apart. The host makes components of it (bench/src/profile.rs).
 *
 * Marks are the instruction of images/src/mark.h: 4 begins counting at all (before it the machine runs nearly as fast as
 * without the plugin), 2 begins a window and 3 ends it. A window is written to the file `out=FILE` as a line
 * "window TOTAL", a line "VIRTUAL MACHINE COUNT" for each block that ran, numbers of the latter in hexadecimal but for
 * the count, a line "event KIND VIRTUAL MACHINE COUNT" for each instruction that loads CR3 (KIND cr3), flushes entries of the
 * TLB (tlb) or makes a system call or hypercall (syscall), and a line "end". Every iteration of a repeated string instruction counts, as it does for -icount; a
 * halted CPU counts nothing.
 *
 * For one CPU, or for several that QEMU runs in turns in one thread (-accel tcg,thread=single) with `slice=N`: then each has at most about N
 * instructions before it is the next one's turn, and a CPU that waits in the hypervisor for a lock (pause) gives its turn away. What they do
 * in one round they would have done at the same time: a round lasts as long as the longest turn in it. A window then also has a
 * line "time INSTRUCTIONS", the sum of its rounds, and for each CPU "cpu NUMBER EXECUTED WAITED": what it executed itself, and how
 * long those rounds were in which it waited, without what it executed in them. When all CPUs have slept, one of a higher number that wakes is counted to
 * the round before: at most a turn is missing then.
 */
#include "interface.h"

/* Exported by QEMU as all its functions are. The first gives the address in QEMU of the machine's first page, the last ends a CPU's turn. */
void *cpu_physical_memory_map(uint64_t address, uint64_t *len, int is_write);
void *qemu_get_cpu(int index);
void cpu_exit(void *cpu);

enum { START = 2, STOP = 3, COUNT = 4, BUCKETS = 1 << 18, CPUS = 64 };

struct block {
	struct block *next;
	uint64_t address;
	const uint8_t *host;
	uint64_t count, before;
	/* Of one instruction that is an event: its kind. Else NULL. */
	const char *kind;
};

static struct block *bucket[BUCKETS];
static const uint8_t *ram;
static FILE *out;
static plugin_id self;
static int counting;

/* Of several CPUs: in all rounds that are over, in the one that runs, and at the window's beginning. */
static struct cpu {
	uint64_t executed, waited, in_round, executed_before, waited_before;
	int waits;
} cpus[CPUS];
/* Instructions of all CPUs, those that belong to a turn that is over, and those of rounds. */
static uint64_t executed, seen, elapsed, elapsed_before;
static uint64_t slice;
static unsigned running;
static int is_asked;

static struct block *block_at(uint64_t address, const uint8_t *host, const char *kind)
{
	uint64_t hash = (address * 0x9e3779b97f4a7c15ull ^ (uintptr_t)host * 0xd1342543de82ef95ull) >> 46;
	struct block *b;

	for (b = bucket[hash]; b; b = b->next)
		if (b->address == address && b->host == host && b->kind == kind)
			return b;
	b = calloc(1, sizeof(*b));
	if (!b)
		abort();
	b->address = address;
	b->host = host;
	b->kind = kind;
	b->next = bucket[hash];
	return bucket[hash] = b;
}

/* The kind of event that an instruction is, or NULL. */
static const char *kind_of(const uint8_t *code, size_t size)
{
	static const char cr3[] = "cr3", tlb[] = "tlb", syscall[] = "syscall";

	/* An operand size or an extension of a register's number. */
	while (size > 2 && (*code == 0x66 || (*code & 0xf0) == 0x40))
		code++, size--;
	if (size < 2 || code[0] != 0x0f)
		return NULL;
	if (code[1] == 0x05)
		return syscall;
	if (size > 2 && code[1] == 0x22 && (code[2] >> 3 & 7) == 3)
		return cr3;
	if (size > 2 && code[1] == 0x01 && code[2] >> 6 != 3 && (code[2] >> 3 & 7) == 7)
		return tlb;
	if (size > 3 && code[1] == 0x38 && code[2] == 0x82)
		return tlb;
	return NULL;
}

static void end_turn(void)
{
	cpus[running].in_round += executed - seen;
	seen = executed;
	is_asked = 0;
}

static void end_round(void)
{
	uint64_t longest = 0;
	struct cpu *c;

	for (c = cpus; c < cpus + CPUS; c++)
		if (c->in_round > longest)
			longest = c->in_round;
	for (c = cpus; c < cpus + CPUS; c++) {
		c->executed += c->in_round;
		c->waited += c->waits ? longest - c->in_round : 0;
		c->in_round = c->waits = 0;
	}
	elapsed += longest;
}

/* A block begins on this CPU. */
static void on_block(unsigned index, void *data)
{
	(void)data;
	if (index >= CPUS)
		abort();
	if (index != running || is_asked) {
		int is_over = index <= running;

		end_turn();
		if (is_over)
			end_round();
		running = index;
	} else if (executed - seen >= slice) {
		is_asked = 1;
		cpu_exit(qemu_get_cpu(index));
	}
}

/* The hypervisor waits. */
static void on_pause(unsigned index, void *data)
{
	(void)data;
	cpus[index].waits = 1;
}

static void start(void)
{
	size_t i;
	struct block *b;
	struct cpu *c;

	end_turn();
	end_round();
	for (c = cpus; c < cpus + CPUS; c++) {
		c->executed_before = c->executed;
		c->waited_before = c->waited;
	}
	elapsed_before = elapsed;

	for (i = 0; i < BUCKETS; i++)
		for (b = bucket[i]; b; b = b->next)
			b->before = b->count;
}

static void stop(void)
{
	uint64_t total = 0;
	size_t i;
	struct block *b;
	struct cpu *c;

	end_turn();
	end_round();
	for (i = 0; i < BUCKETS; i++)
		for (b = bucket[i]; b; b = b->next)
			total += b->kind ? 0 : b->count - b->before;
	fprintf(out, "window %" PRIu64 "\n", total);
	for (i = 0; i < BUCKETS; i++)
		for (b = bucket[i]; b; b = b->next)
			if (b->count != b->before)
				fprintf(out, "%s%s%s%" PRIx64 " %" PRIx64 " %" PRIu64 "\n", b->kind ? "event " : "",
					b->kind ? b->kind : "", b->kind ? " " : "", b->address, b->host ? (uint64_t)(b->host - ram) : 0, b->count - b->before);
	if (slice) {
		fprintf(out, "time %" PRIu64 "\n", elapsed - elapsed_before);
		for (c = cpus; c < cpus + CPUS; c++)
			if (c->executed != c->executed_before)
				fprintf(out, "cpu %d %" PRIu64 " %" PRIu64 "\n", (int)(c - cpus),
					c->executed - c->executed_before, c->waited - c->waited_before);
	}
	fprintf(out, "end\n");
	fflush(out);
}

static void on_translation(plugin_id id, struct tb *tb);

static void on_reset(plugin_id id)
{
	counting = 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
}

static void on_mark(unsigned cpu, void *data)
{
	uint64_t len = 4096;

	(void)cpu;
	switch ((uintptr_t)data) {
	case START:
		start();
		break;
	case STOP:
		stop();
		break;
	case COUNT:
		if (counting)
			break;
		ram = cpu_physical_memory_map(0, &len, 0);
		/* All code is translated anew, now with counters. */
		qemu_plugin_reset(self, on_reset);
		break;
	}
}

static void on_translation(plugin_id id, struct tb *tb)
{
	static const uint8_t head[] = { 0x0f, 0x1f, 0x84, 0x00 }, tail[] = { 0x00, 0x54, 0x44 };
	size_t i, n = qemu_plugin_tb_n_insns(tb);
	struct block *b = NULL;
	const char *kind;

	(void)id;
	if (counting)
		b = block_at(qemu_plugin_tb_vaddr(tb), qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, 0)), NULL);
	if (counting && slice)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, NO_REGISTERS, NULL);
	for (i = 0; i < n; i++) {
		struct insn *in = qemu_plugin_tb_get_insn(tb, i);
		const uint8_t *code = qemu_plugin_insn_data(in);

		if (qemu_plugin_insn_size(in) == 8 && !memcmp(code, head, 4) && !memcmp(code + 5, tail, 3))
			qemu_plugin_register_vcpu_insn_exec_cb(in, on_mark, NO_REGISTERS, (void *)(uintptr_t)code[4]);
		if (!b)
			continue;
		qemu_plugin_register_vcpu_insn_exec_inline(in, ADD_U64, &b->count, 1);
		if (slice)
			qemu_plugin_register_vcpu_insn_exec_inline(in, ADD_U64, &executed, 1);
		/* The hypervisor's part of the address space. */
		if (slice && qemu_plugin_insn_vaddr(in) >> 43 == 0xffff800000000000ull >> 43 &&
		    qemu_plugin_insn_size(in) == 2 && code[0] == 0xf3 && code[1] == 0x90)
			qemu_plugin_register_vcpu_insn_exec_cb(in, on_pause, NO_REGISTERS, NULL);
		kind = kind_of(code, qemu_plugin_insn_size(in));
		if (kind)
			qemu_plugin_register_vcpu_insn_exec_inline(
				in, ADD_U64, &block_at(qemu_plugin_insn_vaddr(in), qemu_plugin_insn_haddr(in), kind)->count, 1);
	}
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	int i;

	(void)info;
	self = id;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
		if (!strncmp(argv[i], "slice=", 6))
			slice = strtoull(argv[i] + 6, NULL, 10);
	}
	if (!out)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
