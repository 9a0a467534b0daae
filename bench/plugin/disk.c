/*
 * A QEMU plugin that puts the nvme controller's work into virtual time: `-device nvme,drive=NAME` with the block node
 * that `node=NAME` names. Left to itself QEMU does it in its main loop, in a thread beside the CPU's, so that it would
 * depend on the host how many requests that thread finds at once and how many completions an interrupt announces.
 *
 * Two things are done about it. When a driver has written a doorbell, the CPU's thread itself does what the main loop has
 * to do (QEMU has that done by whoever has its lock), and the clock stands meanwhile: then the controller has read all
 * that was submitted. And requests are held by draining the block node, which queues them, but for an instant `LATENCY`
 * of virtual time after the first of them was submitted. Those submitted later wait less: it is a disk that serves what
 * there is at once. So under -icount requests repeat exactly, however busy the host is.
 *
 * Commands of administration are done at once, and so is the request that follows one: a driver that shuts the controller
 * down has it write back its cache by a store, which must not wait. Requests of firmware are not held either.
 *
 * Only stores of kernels' modules are looked at, of which Linux' driver is one, and of firmware until a module has run.
 *
 * Plugins have no interface for devices, but Debian's QEMU exports its functions, since its own devices can be modules.
 * What is used of QEMU 7.2's block/aio.h, block/block.h and qemu/timer.h is declared here; xtask checks the version.
 */
#include "interface.h"

enum { CLOCK_VIRTUAL = 1, NANOSECONDS = 1 };

void *bdrv_find_node(const char *name);
void bdrv_drained_begin(void *node);
void bdrv_drained_end(void *node);
void *qemu_get_aio_context(void);
_Bool aio_poll(void *context, _Bool blocking);
void qemu_mutex_lock_iothread_impl(const char *file, int line);
void qemu_mutex_unlock_iothread(void);
int64_t qemu_clock_get_ns(int clock);
void timer_init_full(void *timer, void *group, int clock, int scale, int attributes, void (*cb)(void *), void *data);
void timer_mod_ns(void *timer, int64_t when);

/* A fast disk's. In nanoseconds, which are instructions. */
enum { LATENCY = 10000 };

/* The controller's registers, as NVMe has them. */
enum { DOORBELLS = 0x1000, REGISTERS = 0x4000, QUEUE = 8, COMPLETION = 4, ADMINISTRATION = 0 };

static const uint64_t MODULES = 0xffffffffc0000000;

static const char *name;
static void *node;
static uint64_t tick[64]; /* QEMUTimer is smaller */
static int ticking, held, seen_module;

static void fail(const char *what)
{
	fprintf(stderr, "disk: %s\n", what);
	exit(1);
}

/* With QEMU's lock: what its main loop would do, until there is nothing left. */
static void work(void)
{
	void *context = qemu_get_aio_context();
	int rounds = 0;

	while (aio_poll(context, 0))
		if (++rounds == 100000)
			fail("there is no end of work");
}

static void serve(void *data)
{
	(void)data;
	ticking = 0;
	work();
	if (!held)
		return;
	bdrv_drained_end(node);
	work();
	bdrv_drained_begin(node);
}

static void hold(int wanted)
{
	if (wanted == held)
		return;
	if (wanted)
		bdrv_drained_begin(node);
	else
		bdrv_drained_end(node);
	held = wanted;
}

static void on_doorbell(unsigned queue, int submission, int of_linux)
{
	qemu_mutex_lock_iothread_impl(__FILE__, __LINE__);
	if (!node) {
		node = bdrv_find_node(name);
		if (!node)
			fail("there is no such block node");
		timer_init_full(tick, NULL, CLOCK_VIRTUAL, NANOSECONDS, 0, serve, NULL);
	}
	work();
	if (of_linux)
		hold(queue != ADMINISTRATION);
	if (held && submission && !ticking) {
		ticking = 1;
		timer_mod_ns(tick, qemu_clock_get_ns(CLOCK_VIRTUAL) + LATENCY);
	}
	work();
	qemu_mutex_unlock_iothread();
}

static void on_store(unsigned cpu, uint32_t info, uint64_t address, void *of_linux)
{
	struct address *at = qemu_plugin_get_hwaddr(info, address);
	uint64_t offset;

	(void)cpu;
	if (!at || !qemu_plugin_hwaddr_is_io(at) || strcmp(qemu_plugin_hwaddr_device_name(at), "nvme"))
		return;
	offset = qemu_plugin_hwaddr_phys_addr(at) % REGISTERS;
	if (offset >= DOORBELLS)
		on_doorbell((offset - DOORBELLS) / QUEUE, !(offset & COMPLETION), of_linux != NULL);
}

static void on_translation(plugin_id id, struct tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb);
	size_t i, n = qemu_plugin_tb_n_insns(tb);

	(void)id;
	seen_module |= address >= MODULES;
	if (address < MODULES && (seen_module || address >> 32))
		return;
	for (i = 0; i < n; i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), on_store, NO_REGISTERS, WRITES,
						 address < MODULES ? NULL : tick);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	int i;

	(void)info;
	for (i = 0; i < argc; i++)
		if (!strncmp(argv[i], "node=", 5))
			name = strdup(argv[i] + 5);
	if (!name)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
