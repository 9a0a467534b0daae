/*
 * A PCI front end that the hypervisor answers in its back end's place: its functions' configuration space; base addresses that tell their sizes and
 * stay where they are; what is not there; messages; questions at random. The back end hears of none, and of all when the port is another. (shares: channels)
 * (differs: stock Xen has no such hypercall)
 */
#include "channel.h"

const char test_name[] = "pci-fronts";

enum { PHYSDEVOP_set_iopl = 6, PCI_SERVE = 24, MAX_FUNCTIONS = 8, DEVFN = 0x28, WIRE = 9, ROUNDS = 20000 };
enum { CONF_READ, CONF_WRITE, ENABLE_MSI, DISABLE_MSI, ENABLE_MSIX, DISABLE_MSIX };
enum { SUCCESS = 0, DEV_NOT_FOUND = -1, INVALID_OFFSET = -2, NOT_IMPLEMENTED = -4, OP_FAILED = -5 };
enum { CONFIG_ADDRESS = 0xcf8, CONFIG_DATA = 0xcfc };

struct channel_pci {
	u16 domid, nr_functions;
	u32 ring, port, pad;
	struct {
		u32 function;
		u8 devfn, wire, pad[2];
	} functions[MAX_FUNCTIONS];
};
_Static_assert(sizeof(struct channel_pci) == 80, "layouts");

/* What both ends share. */
static struct ring {
	volatile u32 flags, cmd;
	volatile int32_t err;
	volatile u32 domain, bus, devfn;
	volatile int32_t offset, size;
	volatile u32 value, info;
	struct {
		volatile u16 vector, entry;
	} messages[128];
	u8 rest[PAGE - 40 - 128 * 4];
} ring __attribute__((aligned(4096)));
_Static_assert(sizeof(struct ring) == PAGE, "layouts");

static u32 ref = 8, front, back, at;

/* By the machine's ports, as domain 0 may. */
static u32 config(u32 devfn, u32 offset)
{
	u32 value;
	asm volatile("out %0, %1" : : "a"(1u << 31 | devfn << 8 | offset), "d"((u16)CONFIG_ADDRESS));
	asm volatile("in %1, %0" : "=a"(value) : "d"((u16)CONFIG_DATA));
	return value;
}

static void connect(void)
{
	struct alloc_unbound port = { DOMID_SELF, DOMID_SELF, 0 };
	if (evtchn(EVTCHN_alloc_unbound, &port))
		error("alloc_unbound");
	struct bind_interdomain bind = { DOMID_SELF, 0, port.port, 0 };
	if (evtchn(EVTCHN_bind_interdomain, &bind))
		error("bind_interdomain");
	back = port.port;
	front = bind.local_port;
	clear_pending(back);
}

static struct channel_pci request(void)
{
	struct channel_pci it = { 0, 1, ref, front, 0, { { at, DEVFN, WIRE, { 0 } } } };
	return it;
}

/* What comes of a question; a value that it brings is in the ring. */
static int32_t ask(u32 cmd, u32 devfn, int32_t offset, int32_t size, u32 value)
{
	ring.cmd = cmd;
	ring.err = 1;
	ring.domain = ring.bus = 0;
	ring.devfn = devfn;
	ring.offset = offset;
	ring.size = size;
	ring.value = value;
	ring.flags = 1;
	check_result(kick(front), 0, "a question");
	check(!(ring.flags & 1), "question %u at %#x of %#x is not answered", cmd, offset, devfn);
	return ring.err;
}

static u32 read(int32_t offset, int32_t size)
{
	int32_t err = ask(CONF_READ, DEVFN, offset, size, 0);
	check(err == SUCCESS, "reading %d bytes at %#x: error %d", size, offset, err);
	return ring.value;
}

static void write(int32_t offset, int32_t size, u32 value)
{
	int32_t err = ask(CONF_WRITE, DEVFN, offset, size, value);
	check(err == SUCCESS, "writing %d bytes at %#x: error %d", size, offset, err);
}

static void refusals(void)
{
#define REFUSED(expected, what, ...)                                                                                   \
	({                                                                                                             \
		struct channel_pci it = request();                                                                     \
		__VA_ARGS__;                                                                                           \
		check_result(channel_op(PCI_SERVE, &it), -(expected), what);                                           \
	})
	REFUSED(ESRCH, "no such domain", it.domid = 77);
	REFUSED(EINVAL, "nine functions", it.nr_functions = 9);
	REFUSED(EINVAL, "padding", it.pad = 1);
	REFUSED(EINVAL, "padding of a function", it.functions[0].pad[1] = 1);
	REFUSED(EINVAL, "a grant that does not hold", it.ring = ref + 1);
	REFUSED(EINVAL, "a port that is not there", it.port = 999);
	REFUSED(EPERM, "a function that is not there", it.functions[0].function = 0xff << 8);
	REFUSED(EINVAL, "one function twice", it.nr_functions = 2; it.functions[1] = it.functions[0]; it.functions[1].devfn = 0);
	u32 ipi = new_ipi(0);
	REFUSED(EINVAL, "a port that is not connected", it.port = ipi);
	check_result(channel_op(PCI_SERVE, (void *)8), -EFAULT, "a request that is not there");
	check(grants_in_use(&own_grants()[ref], 1) == 0, "a grant is in use");
	ring.flags = 1;
	check_result(kick(front), 0, "an event");
	check(ring.flags == 1 && is_pending(back), "the back end has heard nothing");
	clear_pending(back);
}

static void regions(void)
{
	u32 nr = 0;
	for (u32 n = 0; n < 6; n++) {
		u32 offset = 0x10 + 4 * n, base = config(at, offset);
		check(read(offset, 4) == base, "base address %u is %#x", n, ring.value);
		write(offset, 4, ~0u);
		u32 size = read(offset, 4), bits = size & ~(base & 1 ? 3u : 15u);
		/* A row of ones, up to the top or to that of the ports. */
		bool is_row = bits == 0 || ((bits | 0xffff * (base & 1) << 16) & ((~bits & (base & 1 ? 0xffff : ~0u)) + 1)) != 0;
		check(is_row && (base == 0 || size != base), "region %u, of %#x, says %#x for its size", n, base, size);
		nr += bits != 0;
		check(config(at, offset) == base, "region %u moves to %#x", n, config(at, offset));
		write(offset, 4, base + 0x100000);
		check(read(offset, 4) == base && config(at, offset) == base, "region %u can be moved", n);
	}
	check(nr > 0, "no region has a size");
}

static void registers(void)
{
	check(read(0, 4) == config(at, 0) && read(2, 2) == config(at, 0) >> 16 && read(8, 4) == config(at, 8), "not the function's registers");
	check(read(0x3c, 1) == WIRE, "its wire is %u", ring.value);
	u32 command = config(at, 4) & 0xffff;
	write(4, 2, command ^ 4);
	check((config(at, 4) & 0xffff) == (command ^ 4), "the command register is %#x", config(at, 4));
	write(4, 2, command);
	check((config(at, 4) & 0xffff) == command, "the command register is %#x", config(at, 4));
	check(ask(CONF_READ, DEVFN + 1, 0, 4, 0) == DEV_NOT_FOUND, "another function: error %d", ring.err);
	check(ask(CONF_READ, DEVFN, 4096, 4, 0) == INVALID_OFFSET, "behind the end: error %d", ring.err);
	check(ask(CONF_WRITE, DEVFN, -1, 1, 0) == INVALID_OFFSET, "before the beginning: error %d", ring.err);
	check(ask(CONF_READ, DEVFN, 2, 4, 0) == INVALID_OFFSET, "across two registers: error %d", ring.err);
	check(ask(9, DEVFN, 0, 4, 0) == NOT_IMPLEMENTED, "question 9: error %d", ring.err);
	ring.flags = 2;
	check_result(kick(front), 0, "an event without a question");
	check(ring.flags == 2, "flags %#x", ring.flags);
	check(!is_pending(back), "the back end has heard of it");
}

static void messages(void)
{
	u32 capability = config(at, 4) >> 20 & 1 ? config(at, 0x34) & 0xfc : 0, msi = 0, msix = 0;
	for (u32 n = 0; capability && n < 48; n++, capability = config(at, capability) >> 8 & 0xfc) {
		msi = (config(at, capability) & 0xff) == 5 ? capability : msi;
		msix = (config(at, capability) & 0xff) == 17 ? capability : msix;
	}
	for (u32 round = 0; round < 3; round++) {
		int32_t err = ask(ENABLE_MSI, DEVFN, 0, 0, 0);
		check(err == (msi ? SUCCESS : OP_FAILED) && !msi == !ring.value, "MSI: error %d, interrupt %u", err, ring.value);
		ring.messages[0].entry = 0;
		ring.messages[1].entry = 1;
		ring.messages[0].vector = ring.messages[1].vector = 0;
		err = ask(ENABLE_MSIX, DEVFN, 0, 0, msix ? 2 : 1);
		check(err == (msix ? SUCCESS : OP_FAILED) && ring.value == 0, "MSI-X: error %d, %u", err, ring.value);
		check(!msix == !ring.messages[0].vector && !msix == !ring.messages[1].vector, "MSI-X: no interrupts");
		ring.messages[1].entry = 0;
		err = ask(ENABLE_MSIX, DEVFN, 0, 0, 2);
		check(err == OP_FAILED, "one message twice: error %d", err);
		/* As Linux ends MSI-X. */
		check(ask(round ? DISABLE_MSI : DISABLE_MSIX, DEVFN, 0, 0, 0) == SUCCESS, "no messages: error %d", ring.err);
	}
	check(ask(ENABLE_MSIX, DEVFN, 0, 0, 0) == OP_FAILED, "no message: error %d", ring.err);
	check(ask(ENABLE_MSIX, DEVFN, 0, 0, 129) == OP_FAILED, "too many messages: error %d", ring.err);
}

static u64 state = 1;
static u32 any(u32 n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (u32)(state >> 32) % n;
}

/* Whatever is asked is answered. Nothing but base addresses is written: it is a device of this machine. */
static void random_questions(void)
{
	for (u32 n = 0; n < ROUNDS; n++) {
		u32 cmd = any(8);
		int32_t offset = cmd == CONF_WRITE ? (int32_t)(0x10 + any(24)) : any(16) ? (int32_t)any(4100) - 2 : (int32_t)any(~0u);
		for (u32 m = 0; m < 4; m++)
			ring.messages[any(128)].entry = any(4);
		int32_t err = ask(cmd, any(4) ? DEVFN : any(~0u), offset, any(8) ? 1 << any(3) : (int32_t)any(~0u), any(2) ? any(~0u) : any(4));
		if (!check(err >= OP_FAILED && err <= SUCCESS, "question %u: error %d", n, err))
			break;
	}
	ask(DISABLE_MSIX, DEVFN, 0, 0, 0);
}

void test_main(void)
{
	u32 level = 1;
	if (HC2(physdev_op, PHYSDEVOP_set_iopl, &level))
		error("set_iopl");
	/* One that is a device, and has a region. */
	for (at = 0; at < 256; at++)
		if ((config(at, 0) & 0xffff) != 0xffff && (config(at, 12) >> 16 & 0x7f) == 0 && (config(at, 0x10) || config(at, 0x20)))
			break;
	if (at == 256)
		skip("no device with a region");
	grant(&own_grants()[ref], 0, mfn_of(&ring), 0);
	connect();
	refusals();
	struct channel_pci it = request();
	check_result(channel_op(PCI_SERVE, &it), 0, "a front end");
	check(grants_in_use(&own_grants()[ref], 1) == 1, "its grant is not in use");
	check_result(channel_op(PCI_SERVE, &it), 0, "the same again");
	registers();
	regions();
	messages();
	random_questions();
	regions();
	audit();
	check(!is_pending(back), "the back end has heard of something");
	/* It is served by its port. By another one the back end hears. */
	u32 port = front;
	check_result(evtchn(EVTCHN_close, &port), 0, "closing the port");
	connect();
	ring.flags = 1;
	check_result(kick(front), 0, "an event by another port");
	check(ring.flags == 1 && is_pending(back), "the back end has heard nothing");
}
