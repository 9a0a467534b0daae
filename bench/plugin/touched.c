/*
 * A QEMU plugin that tells in which memory the machine's CPU works: for each sample of 90 ms of the machine's time, between two marks, the
 * frames that an instruction has read or written or was fetched from. The host makes domains' working sets of that (bench/src/working.rs).
 *
 * Marks are the instruction of images/src/mark.h: 2 begins a window and 3 ends it, as for profile.c. Outside of a window the machine runs nearly as
 * fast as without the plugin. A window is written to the file `out=FILE` as a line "window", for each sample a line "sample FRAME...", in
 * hexadecimal and in no order, and a line "end". What is left at the end of a window is no whole sample and is not written. At the mark 5 what the
 * machine's memory holds is written to the file `contents=FILE`, in which pages of zeros are holes.
 *
 * What is not seen: page tables that only the MMU reads, what the CPU writes to a stack when it takes an interrupt or an exception, and what
 * devices read and write.
 *
 * For one CPU. The machine's memory, `memory=MIB`, is to be in one piece, as QEMU's q35 has it up to 2815 MiB.
 */
#include <sys/types.h>
#include <unistd.h>
#include "interface.h"

/* QEMU exports all its functions, since its own devices can be modules. These are 7.2's; xtask checks the version. */
void *cpu_physical_memory_map(uint64_t address, uint64_t *len, int is_write);
int64_t qemu_clock_get_ns(int clock);
void timer_init_full(void *timer, void *group, int clock, int scale, int attributes, void (*cb)(void *), void *data);
void timer_mod_ns(void *timer, int64_t when);
void timer_del(void *timer);

enum { START = 2, STOP = 3, CONTENTS = 5, CLOCK_VIRTUAL = 1, NANOSECONDS = 1, PAGE = 4096, SAMPLE = 90000000 };

static plugin_id self;
static FILE *out;
static const char *contents;
static uint64_t timer[64]; /* QEMUTimer is smaller */
static int64_t due;
static int watching;

static const uint8_t *ram;
static uint64_t nr_frames;
/* Of each frame the sample in which it was touched last; and those of this sample. */
static uint32_t *touched_in, *touched;
static uint64_t nr_touched;
static uint32_t sample;

static void begin_sample(void)
{
	sample++;
	nr_touched = 0;
	due += SAMPLE;
	timer_mod_ns(timer, due);
}

/* While this runs no instruction does: QEMU stops the CPU for a timer of the machine's time. */
static void on_timer(void *data)
{
	uint64_t i;

	(void)data;
	if (!watching)
		return;
	fprintf(out, "sample");
	for (i = 0; i < nr_touched; i++)
		fprintf(out, " %x", touched[i]);
	fprintf(out, "\n");
	begin_sample();
}

static inline void touch(uint64_t frame)
{
	if (frame >= nr_frames || touched_in[frame] == sample)
		return;
	touched_in[frame] = sample;
	touched[nr_touched++] = frame;
}

static void on_code(unsigned cpu, void *frame)
{
	(void)cpu;
	touch((uintptr_t)frame);
}

static void touch_at(uint32_t info, uint64_t address)
{
	struct address *at = qemu_plugin_get_hwaddr(info, address);

	if (at && !qemu_plugin_hwaddr_is_io(at))
		touch(qemu_plugin_hwaddr_phys_addr(at) / PAGE);
}

static void on_access(unsigned cpu, uint32_t info, uint64_t address, void *data)
{
	uint64_t size = 1ull << qemu_plugin_mem_size_shift(info);

	(void)cpu;
	(void)data;
	touch_at(info, address);
	if (address % PAGE + size > PAGE)
		touch_at(info, address + size - 1);
}

static void write_contents(void)
{
	static const uint8_t zeros[PAGE];
	FILE *to = fopen(contents, "w");
	uint64_t frame;
	int done = to != NULL;

	for (frame = 0; done && frame < nr_frames; frame++)
		if (memcmp(ram + frame * PAGE, zeros, PAGE))
			done = !fseeko(to, frame * PAGE, SEEK_SET) && fwrite(ram + frame * PAGE, PAGE, 1, to) == 1;
	if (!done || fflush(to) || ftruncate(fileno(to), nr_frames * PAGE) || fclose(to)) {
		perror("touched: contents cannot be written");
		exit(1);
	}
}

static void on_translation(plugin_id id, struct tb *tb);

static void on_reset(plugin_id id)
{
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	if (!watching)
		return;
	due = qemu_clock_get_ns(CLOCK_VIRTUAL);
	begin_sample();
}

/* All code is translated anew, with calls of ours or without. */
static void watch(int wanted)
{
	uint64_t len = PAGE;

	if (watching == wanted)
		return;
	watching = wanted;
	if (!ram)
		ram = cpu_physical_memory_map(0, &len, 0);
	if (wanted)
		fprintf(out, "window\n");
	else
		fprintf(out, "end\n");
	fflush(out);
	if (!wanted)
		timer_del(timer);
	qemu_plugin_reset(self, on_reset);
}

static void on_mark(unsigned cpu, void *data)
{
	(void)cpu;
	switch ((uintptr_t)data) {
	case START:
		watch(1);
		break;
	case STOP:
		watch(0);
		break;
	case CONTENTS:
		if (contents && ram)
			write_contents();
		break;
	}
}

static void on_translation(plugin_id id, struct tb *tb)
{
	static const uint8_t head[] = { 0x0f, 0x1f, 0x84, 0x00 }, tail[] = { 0x00, 0x54, 0x44 };
	uint64_t before = nr_frames;
	size_t i, n = qemu_plugin_tb_n_insns(tb);

	(void)id;
	for (i = 0; i < n; i++) {
		struct insn *in = qemu_plugin_tb_get_insn(tb, i);
		const uint8_t *code = qemu_plugin_insn_data(in), *host = qemu_plugin_insn_haddr(in);
		uint64_t frame = (uint64_t)(host - ram) / PAGE;

		if (qemu_plugin_insn_size(in) == 8 && !memcmp(code, head, 4) && !memcmp(code + 5, tail, 3))
			qemu_plugin_register_vcpu_insn_exec_cb(in, on_mark, NO_REGISTERS, (void *)(uintptr_t)code[4]);
		if (!watching)
			continue;
		/* Of a block, which is in two pages at the most, what is in the first and what is in the next. */
		if (frame != before)
			qemu_plugin_register_vcpu_insn_exec_cb(in, on_code, NO_REGISTERS, (void *)(uintptr_t)frame);
		before = frame;
		qemu_plugin_register_vcpu_mem_cb(in, on_access, NO_REGISTERS, READS | WRITES, NULL);
	}
}

/* The machine's clock is there when the first CPU is made. */
static void on_cpu(plugin_id id, unsigned cpu)
{
	(void)id;
	if (!cpu)
		timer_init_full(timer, NULL, CLOCK_VIRTUAL, NANOSECONDS, 0, on_timer, NULL);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	int i;

	(void)info;
	self = id;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
		if (!strncmp(argv[i], "contents=", 9))
			contents = strdup(argv[i] + 9);
		if (!strncmp(argv[i], "memory=", 7))
			nr_frames = strtoull(argv[i] + 7, NULL, 10) * (1 << 20) / PAGE;
	}
	touched_in = calloc(nr_frames, sizeof(*touched_in));
	touched = calloc(nr_frames, sizeof(*touched));
	if (!out || !nr_frames || !touched_in || !touched)
		return 1;
	qemu_plugin_register_vcpu_init_cb(id, on_cpu);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
