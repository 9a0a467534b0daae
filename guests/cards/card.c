/* A card that is nothing but memory, and what a driver domain does for it. */
#include "card.h"

enum { RTC_IRQ = 8, PHYSDEVOP_set_iopl = 6, PHYSDEVOP_map_pirq = 13 };

extern const u8 card_xmit[], card_interrupt[], card_poll[];
struct card *const card = (struct card *)pages[40];
struct front guest, out;
u32 switch_name, twin, irq_port, card_port;
const u8 stranger[6] = { 2, 0, 0, 0, 0, 9 };
struct sleeper *const sleepers = (struct sleeper *)pages[10];
static u8 (*const skbs)[512] = (void *)pages[42];
static u8 (*const buffers)[BUFFER] = (void *)pages[46];
static u32 offsets[NR_OFFSETS];
static u8 image[3 * PAGE];

s64 twin_op(u32 cmd, void *argument)
{
	return hypercall(HC_twin_op, cmd, (u64)argument, 0, 0, 0);
}

u64 *word(u64 object, u32 member)
{
	return (u64 *)(object + member);
}

static u8 cmos(u8 index)
{
	u8 value;
	asm volatile("out %1, $0x70\n\tin $0x71, %0" : "=a"(value) : "0"(index));
	return value;
}

static void set_cmos(u8 index, u8 value)
{
	asm volatile("out %0, $0x70" : : "a"(index));
	asm volatile("out %0, $0x71" : : "a"(value));
}

void set_ticking(bool is_ticking)
{
	set_cmos(0xb, (cmos(0xb) & ~0x40) | is_ticking << 6);
}

void bind_interrupt(void)
{
	struct bind_pirq bind = { RTC_IRQ, 0, 0 };
	if (evtchn(EVTCHN_bind_pirq, &bind))
		error("bind_pirq");
	irq_port = bind.port;
}

/* The clock is the device that interrupts: again when it was asked why. */
static void set_up_interrupt(void)
{
	struct {
		u16 domid, pad;
		int type, index, pirq, bus, devfn, entry, pad1;
		u64 table;
	} map = { .domid = DOMID_SELF, .type = 1, .index = RTC_IRQ, .pirq = RTC_IRQ };
	u32 level = 1;
	if (HC2(physdev_op, PHYSDEVOP_set_iopl, &level))
		error("set_iopl");
	HC2(physdev_op, PHYSDEVOP_map_pirq, &map);
	bind_interrupt();
	set_cmos(0xa, 0x26); /* 1024 a second */
	set_ticking(true);
}

void ask_for_interrupt(void)
{
	cmos(0xc);
}

void interrupt(const char *what)
{
	u64 before = card->nr_interrupts;
	ask_for_interrupt();
	UNTIL(card->nr_interrupts != before, what);
}

void load_card_with(const char *first, const char *last)
{
	const char *imports[NR_IMPORTS] = { first, "napi_schedule_prep", "__napi_schedule", "napi_consume_skb", "netif_tx_wake_queue",
		"napi_gro_receive", "napi_complete_done", "__napi_alloc_skb", last };
	static struct twin_lent lent[NR_SKBS];
	static bool is_set_up;
	struct alloc_unbound alloc = { DOMID_SELF, DOMID_SELF, 0 };
	if (!is_set_up) {
		set_up_interrupt();
		is_set_up = true;
	}
	for (u32 n = 0; n < NR_OFFSETS - 3; n++)
		offsets[n] = 8 * n;
	offsets[NR_OFFSETS - 3] = 512;
	offsets[NR_OFFSETS - 2] = 320;
	offsets[NR_OFFSETS - 1] = 64;
	struct twin_kernel kernel = { .vmalloc_start = 0xffffc90000000000, .vmalloc_end = 0xffffe90000000000, .vmemmap = 0xffffea0000000000,
		.jiffies = (u64)pages[8], .p2m = start_info->mfn_list, .p2m_frames = start_info->nr_pages, .offsets = (u64)offsets,
		.nr_offsets = NR_OFFSETS, .sleepers = (u64)sleepers, .nr_sleepers = NR_SLEEPERS, .sleeper_bytes = sizeof(*sleepers) };
	struct twin_load request = { .image = (u64)image, .image_bytes = make_image_with(image, imports), .mode = 1,
		.root = mfn_of((void *)start_info->pt_base), .percpu = (u64)pages[0], .percpu_stride = PAGE, .flags = 1, .areas = 8,
		.kernel = (u64)&kernel };
	check_result(twin_op(TWINOP_LOAD, &request), 0, "loading");
	twin = request.twin;
	for (u32 n = 0; n < NR_SKBS; n++) {
		lent[n] = (struct twin_lent){ SKB, BUFFER, (u64)skbs[n], (u64)buffers[n], 0, 0 };
		*(u32 *)word((u64)skbs[n], SKB_USERS) = 2;
	}
	struct twin_lend lend = { twin, NR_SKBS, (u64)lent };
	check_result(twin_op(TWINOP_LEND, &lend), 0, "lending");
	memset(card, 0, PAGE);
	*word((u64)card->napi, NAPI_STATE + 8) = (u64)card;
	if (evtchn(EVTCHN_alloc_unbound, &alloc))
		error("alloc_unbound");
	card_port = alloc.port;
}

void load_card(const char *first)
{
	load_card_with(first, "_raw_spin_unlock");
}

void unload_card(void)
{
	struct twin_name name = { twin, 0 };
	check_result(twin_op(TWINOP_UNLOAD, &name), 0, "unloading");
	check_result(evtchn(EVTCHN_close, &card_port), 0, "closing the card's port");
}

struct twin_attach good_attach(void)
{
	static struct twin_napi napi;
	static struct twin_irq irq;
	napi = (struct twin_napi){ (u64)card->napi, address_of(card_poll), 16, 0 };
	irq = (struct twin_irq){ address_of(card_interrupt), (u64)card, 40, irq_port };
	return (struct twin_attach){ .twin = twin, .vif = out.device, .device = (u64)card, .start_xmit = address_of(card_xmit),
		.queues = (u64)card->queue, .napis = (u64)&napi, .irqs = (u64)&irq, .nr_queues = 1, .nr_napis = 1, .nr_irqs = 1,
		.port = card_port, .max_frame = 1514 };
}

s64 attach(void)
{
	struct twin_attach request = good_attach();
	return twin_op(TWINOP_ATTACH, &request);
}

s64 detach(void)
{
	struct twin_name name = { twin, 0 };
	return twin_op(TWINOP_DETACH, &name);
}

u32 nr_notes(u32 kind)
{
	struct twin_note list[64];
	struct twin_notes request = { twin, 64, (u64)list };
	u32 nr = 0;
	check_result(twin_op(TWINOP_NOTES, &request), 0, "fetching notes");
	for (u32 n = 0; n < request.count; n++)
		nr += list[n].kind == kind;
	return nr;
}

void send_out(u32 len, u32 seed)
{
	send(&guest, stranger, guest.mac, len, seed);
}

void check_sent(u32 len, const char *what)
{
	u64 skb = card->tx[(card->nr_sent - 1) % 64];
	if (!check(card->nr_sent != card->nr_done && skb, "%s: the driver has no packet", what))
		return;
	u64 data = *word(skb, SKB_DATA);
	check((u32)*word(skb, SKB_LEN) == len && data == *word(skb, SKB_HEAD) + HEADROOM, "%s: %u bytes", what, (u32)*word(skb, SKB_LEN));
	check(memcmp((void *)data, frame, len) == 0, "%s: the driver has other bytes", what);
}

void check_answers(u32 nr, const char *what)
{
	check(nr_answers(&guest) == nr, "%s: %u answers instead of %u", what, nr_answers(&guest), nr);
	while (nr_answers(&guest))
		check(answer(&guest) == 0, "%s: an error", what);
}

void all_gone(const char *what)
{
	u32 nr = card->nr_sent - card->nr_done;
	card->nr_gone = card->nr_sent;
	interrupt(what);
	UNTIL(card->nr_done == card->nr_gone, what);
	UNTIL(nr_answers(&guest) >= nr, what);
	check_answers(nr, what);
}

static bool next_of(struct twin_call *call, u32 flags)
{
	*call = (struct twin_call){ .twin = twin, .flags = flags };
	s64 result = twin_op(TWINOP_NEXT, call);
	check(result == 0 || result == -ENOENT, "fetching a call: %ld", result);
	return result == 0;
}

bool next(struct twin_call *call)
{
	return next_of(call, 0);
}

bool next_at_once(struct twin_call *call)
{
	return next_of(call, NEXT_ATOMIC);
}

s64 go_on(struct twin_call *call, u64 result)
{
	call->result = result;
	return twin_op(TWINOP_RESUME, call);
}
