/*
 * A QEMU plugin that counts executed instructions and writes the counts when a mark is executed.
 *
 * Instructions are told apart by address: `low` (user space, and all code before paging is on), `hypervisor` (the
 * part of the address space that the PV ABI gives to the hypervisor) and `kernel` (the rest). Every iteration of a
 * repeated string instruction counts, as it does for -icount. A halted CPU counts nothing, so idle time is left out.
 *
 * A mark is either the instruction of images/src/mark.h, each time it runs, or the first execution at an address
 * given by the argument `at=ADDRESS:NUMBER`. One line a mark: number, low, hypervisor, kernel.
 *
 * The counters are plain memory: use one CPU, or all CPUs in one thread (-accel tcg,thread=single).
 */
#include "interface.h"

enum { LOW, HYPERVISOR, KERNEL, CLASSES, MAX_PLACES = 16 };

static uint64_t count[CLASSES];
static FILE *out;
static struct place {
	uint64_t address;
	unsigned number;
	int done;
} place[MAX_PLACES];
static int places;

static void write_mark(unsigned number)
{
	fprintf(out, "%u %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", number, count[LOW], count[HYPERVISOR], count[KERNEL]);
	fflush(out);
}

static void on_mark(unsigned cpu, void *data)
{
	(void)cpu;
	write_mark((unsigned)(uintptr_t)data);
}

static void on_place(unsigned cpu, void *data)
{
	struct place *p = data;

	(void)cpu;
	if (!p->done)
		write_mark(p->number);
	p->done = 1;
}

static int class_of(uint64_t address)
{
	if (address >> 47 == 0)
		return LOW;
	return address >> 43 == 0xffff800000000000ull >> 43 ? HYPERVISOR : KERNEL;
}

static void on_translation(plugin_id id, struct tb *tb)
{
	static const uint8_t head[] = { 0x0f, 0x1f, 0x84, 0x00 }, tail[] = { 0x00, 0x54, 0x44 };
	size_t i, n = qemu_plugin_tb_n_insns(tb);

	(void)id;
	for (i = 0; i < n; i++) {
		struct insn *in = qemu_plugin_tb_get_insn(tb, i);
		const uint8_t *code = qemu_plugin_insn_data(in);
		uint64_t address = qemu_plugin_insn_vaddr(in);
		int p;

		if (qemu_plugin_insn_size(in) == 8 && !memcmp(code, head, 4) && !memcmp(code + 5, tail, 3))
			qemu_plugin_register_vcpu_insn_exec_cb(in, on_mark, NO_REGISTERS, (void *)(uintptr_t)code[4]);
		for (p = 0; p < places; p++)
			if (place[p].address == address && !place[p].done)
				qemu_plugin_register_vcpu_insn_exec_cb(in, on_place, NO_REGISTERS, &place[p]);
		qemu_plugin_register_vcpu_insn_exec_inline(in, ADD_U64, &count[class_of(address)], 1);
	}
}

static void on_exit_of_qemu(plugin_id id, void *data)
{
	(void)id;
	(void)data;
	write_mark(255);
	fclose(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	int i;

	(void)info;
	for (i = 0; i < argc; i++) {
		char *end;

		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
		if (!strncmp(argv[i], "at=", 3) && places < MAX_PLACES) {
			place[places].address = strtoull(argv[i] + 3, &end, 16);
			place[places++].number = *end == ':' ? atoi(end + 1) : 0;
		}
	}
	if (!out)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_atexit_cb(id, on_exit_of_qemu, NULL);
	return 0;
}
