/* Network cards that are nothing but memory, which somebody else uses, too; and packets that go there. */
#include "front.h"
#include "twins.h"

extern const u8 card_xmit[], card_interrupt[], card_poll[];

enum { RTC_IRQ = 8, PHYSDEVOP_set_iopl = 6, PHYSDEVOP_map_pirq = 13, SOME = 2, MOST_WAIT = 8 };

/* The way out, and who sends there. */
static struct front out SHARED, sender SHARED;
/* Where the last card is, of which `enum` says the words that its driver knows. */
enum { XMIT_ANSWER, XMIT_CALL, XMIT_BUG, POLL_CALL, POLL_BUG, ARGUMENT, NR_SENT, NR_GONE, NR_DONE, WAKE, RX_FILLED, RX_WANTED, RX_THERE };
static u64 last_place SHARED;
static u32 switch_name SHARED, lock SHARED, card_ports[MAX_VCPUS] SHARED, irq_port SHARED;

static void write_cmos(u8 index, u8 value)
{
	asm volatile("out %0, $0x70" : : "a"(index));
	asm volatile("out %0, $0x71" : : "a"(value));
}

/* The clock interrupts, again when it was asked why. */
static void interrupt_again(void)
{
	asm volatile("out %%al, $0x70\n\tin $0x71, %%al" : : "a"(0xc) : "memory");
}

void cards_init(void)
{
	struct {
		u16 domid, pad;
		int type, index, pirq, bus, devfn, entry, pad1;
		u64 table;
	} map = { .domid = DOMID_SELF, .type = 1, .index = RTC_IRQ, .pirq = RTC_IRQ };
	struct bind_pirq bind = { RTC_IRQ, 0, 0 };
	u32 level = 1;
	shared_info();
	if (HC2(physdev_op, PHYSDEVOP_set_iopl, &level))
		error("set_iopl");
	HC2(physdev_op, PHYSDEVOP_map_pirq, &map);
	if (evtchn(EVTCHN_bind_pirq, &bind))
		error("bind_pirq");
	irq_port = bind.port;
	write_cmos(0xa, 0x26); /* 1024 a second */
	write_cmos(0xb, 0x42);
	for (u32 v = 0; v < board.nr_vcpus; v++) {
		struct alloc_unbound alloc = { DOMID_SELF, DOMID_SELF, 0 };
		if (evtchn(EVTCHN_alloc_unbound, &alloc))
			error("alloc_unbound");
		card_ports[v] = alloc.port;
	}
	switch_name = new_switch();
	make_front(&out, 0, 0);
	make_front(&sender, 1, 0);
	connect_front(&out, switch_name, SG | UPLINK);
	connect_front(&sender, switch_name, SG);
}

void cards_end(void)
{
	struct channel_switch request = { switch_name, 0 };
	write_cmos(0xb, 2);
	/* Their grants may say anything by now. */
	struct channel_vif vifs[] = { { sender.vif, 0 }, { out.vif, 0 } };
	for (u32 n = 0; n < COUNT(vifs); n++)
		check_result(channel_op(VIF_DISCONNECT, &vifs[n]), 0, "disconnecting");
	check_result(channel_op(SWITCH_DESTROY, &request), 0, "destroying the switch");
}

static u64 word(u32 n)
{
	u64 value = 0;
	PROBE("mov (%1), %0", : "+r"(value) : "r"(last_place + 8 * n) : "r11", "memory");
	return value;
}

static void set_word(u32 n, u64 value)
{
	PROBE("mov %0, (%1)", : : "r"(value), "r"(last_place + 8 * n) : "r11", "memory");
}

/* The device, that is the last card's memory, does something, or tells its driver what to do. */
static void device_works(void)
{
	set_word(XMIT_CALL, up_to(3) == 0);
	set_word(POLL_CALL, up_to(3) == 0);
	set_word(up_to(POLL_BUG), up_to(8) == 0);
	set_word(NR_GONE, up_to(16) ? word(NR_SENT) : draw());
	set_word(RX_WANTED, up_to(16));
	set_word(RX_THERE, up_to(8) ? word(RX_FILLED) : draw());
	set_word(WAKE, up_to(8) == 0);
}

/* A place where mostly nothing is set. It may not be mapped. */
static u64 clean_place(void)
{
	u8 *at = scratch_page(up_to(WRITTEN));
	u64 left = PAGE;
	void *to = at;
	if (up_to(4))
		PROBE("rep stosb", : "+D"(to), "+c"(left) : "a"(0) : "r11", "memory");
	return (u64)at;
}

s64 attach_good(u32 twin)
{
	u64 place = (u64)scratch_page(0);
	struct twin_napi napi = { place + 1024, address_of(card_poll), 64, 0 };
	struct twin_irq irq = { address_of(card_interrupt), place, 40, irq_port };
	struct twin_attach attach = { .twin = twin, .vif = out.device, .device = place, .start_xmit = address_of(card_xmit),
		.queues = place + 2048, .napis = (u64)&napi, .irqs = (u64)&irq, .nr_queues = 2, .queue_stride = 512, .nr_napis = 1,
		.nr_irqs = 1, .port = card_ports[me], .max_frame = 1514 };
	return twin_op(TWINOP_ATTACH, &attach);
}

static u64 some_function(const u8 *right)
{
	return up_to(4) ? address_of(right) : TEXT + 16 * up_to(NR_FUNCTIONS + 1);
}

static void attach(u32 twin)
{
	static struct twin_napi napis[16];
	static struct twin_irq irqs[16];
	static struct twin_attach attach;
	u64 place = last_place = clean_place();
	for (u32 n = 0; n < COUNT(napis); n++) {
		napis[n] = (struct twin_napi){ place + 1024 + n * 8, some_function(card_poll), 1 + up_to(64), 0 };
		irqs[n] = (struct twin_irq){ some_function(card_interrupt), place, 40, n ? up_to(16) : irq_port };
	}
	attach = (struct twin_attach){ .twin = twin, .vif = out.device, .device = place, .start_xmit = some_function(card_xmit),
		.queues = up_to(4) ? place + 2048 : some_address(), .napis = (u64)napis, .irqs = (u64)irqs, .nr_queues = 1 + up_to(4), .queue_stride = 512,
		.nr_napis = 1 + up_to(SOME), .nr_irqs = up_to(8) ? 1 : 1 + up_to(SOME), .flags = up_to(32), .port = card_ports[me],
		.max_frame = up_to(8) ? 1514 : 60 + up_to(70000) };
	if (up_to(8) == 0)
		((u32 *)(up_to(2) ? (void *)napis : (void *)irqs))[up_to(12)] = draw() >> up_to(64);
	if (up_to(8) == 0)
		((u32 *)&attach)[up_to(sizeof(attach) / 4)] = draw() >> up_to(64);
	twin_op(TWINOP_ATTACH, &attach);
}

/* What went by the cards that there were, as far as somebody has looked. */
static struct {
	u64 out, in;
} seen SHARED;

static void look(void)
{
	struct channel_way_out way = { .switch_name = switch_name };
	if (channel_op(WAY_OUT, &way) == 0 && way.kind == CARD_IS_WAY_OUT)
		seen.out += way.out_packets != 0, seen.in += way.in_packets != 0;
}

void say_cards(void)
{
	printk("  cards that have sent something were seen %lu times, those that have received something %lu times\n", seen.out, seen.in);
}

static void send_something(void)
{
	static const u8 stranger[6] = { 2, 0, 0, 0, 0, 9 };
	if (!try_lock(&lock))
		return;
	if (sender.tx->req_prod - sender.tx->rsp_prod < MOST_WAIT) {
		u32 len = 14 + up_to(up_to(8) ? 1500 : 9000);
		make_frame(stranger, sender.mac, len, draw());
		put(&sender, len, 4000);
	}
	notify_tx(&sender);
	look();
	unlock(&lock);
}

/* A fresh driver, with buffers. Another card may be in its way. */
static void drive(void)
{
	static struct twin_lent lent[8];
	struct twin_name other = { some_twin(), 0 };
	u32 twin = load_driver(some_twin_root());
	if (up_to(2))
		twin_op(TWINOP_UNLOAD, &other);
	for (u32 n = up_to(2) ? 32 : 0; n--;) {
		struct twin_name name = { n, 0 };
		if (twin_op(TWINOP_DETACH, &name) == -EBUSY)
			twin_op(TWINOP_UNLOAD, &name);
	}
	if (twin == ~0u || twin == other.twin)
		return;
	for (u32 n = 0; n < COUNT(lent); n++)
		lent[n] = (struct twin_lent){ SKB, 2048, (u64)scratch_page(up_to(WRITTEN)) + up_to(8) * 512, (u64)scratch_page(up_to(WRITTEN)) + up_to(2) * 2048, 0, 0 };
	struct twin_lend lend = { twin, 1, (u64)lent };
	/* One of them may be nowhere; the others are lent. */
	for (u32 n = 0; n < COUNT(lent); n++, lend.list += sizeof(lent[0]))
		twin_op(TWINOP_LEND, &lend);
	attach(twin);
	if (up_to(2))
		device_works();
	for (u32 n = up_to(6); n--;)
		send_something();
}

void card_once(void)
{
	struct twin_name name = { some_twin(), up_to(32) ? 0 : draw() };
	switch (up_to(12)) {
	case 0: twin_op(TWINOP_DETACH, &name); break;
	case 1: case 2: next_once(); break;
	case 3: attach(some_twin()); break;
	case 4: case 5: drive(); break;
	case 6: case 7: case 8:
		if (last_place)
			device_works();
		if (me == 0)
			interrupt_again();
		evtchn(EVTCHN_unmask, &irq_port);
		break;
	default: send_something();
	}
}
