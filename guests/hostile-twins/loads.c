/* Images and requests to load them. */
#include "twins.h"

extern const u8 spin_code[], spin_code_end[], bad_code[], bad_code_end[];

/* Routines that the hypervisor serves, and some that it does not. */
static const char *const routines[] = { "is_vmalloc_addr", "dma_map_page_attrs", "dma_unmap_page_attrs", "dma_sync_single_for_cpu",
	"skb_tstamp_tx", "napi_consume_skb", "__dev_kfree_skb_any", "consume_skb", "__netdev_alloc_skb", "__napi_alloc_skb",
	"napi_build_skb", "build_skb", "__netdev_alloc_frag_align", "__napi_alloc_frag_align", "page_frag_free", "skb_put", "skb_trim",
	"__skb_pad", "eth_type_trans", "napi_gro_receive", "netif_receive_skb", "napi_schedule_prep", "__napi_schedule",
	"napi_complete_done", "dql_completed", "netif_schedule_queue", "netif_tx_wake_queue", "_raw_spin_lock", "_raw_spin_lock_irqsave",
	"_raw_spin_trylock", "_raw_spin_unlock", "memcpy", "memmove", "memset", "ioread8", "ioread16", "ioread32", "iowrite8", "iowrite16",
	"iowrite32", "net_ratelimit", "queue_work_on", "queue_delayed_work_on", "mod_timer", "unknown" };

enum { IMAGE_PAGES = 3 };
static u8 images[MAX_VCPUS][IMAGE_PAGES * PAGE] SHARED;
static u8 spin[PAGE] SHARED;
static u32 spin_len;

void images_init(void)
{
	spin_len = make_image_of(spin, spin_code, spin_code_end, false);
}

/* The good image with other imports; its length. */
static u32 fresh_image(u8 *at)
{
	const char *names[NR_IMPORTS] = { "domains_own" };
	for (u32 n = 1; n < NR_IMPORTS; n++)
		names[n] = routines[up_to(COUNT(routines))];
	return make_image_with(at, names);
}

/* Changes a few bytes or words. */
static u32 spoil_image(u8 *at, u32 len)
{
	for (u32 nr = 1 + up_to(4); nr--;) {
		u32 place = up_to(4) ? up_to(len) : up_to(192);
		u32 *word = (u32 *)(at + place / 4 * 4);
		switch (up_to(8)) {
		case 0: at[place] = draw(); break;
		case 1: *word = draw() >> up_to(32); break;
		case 2: *word += up_to(2) ? 1 : -1; break;
		case 3: *word = up_to(len); break;
		case 4: *word = up_to(2) ? 0 : ~0u; break;
		case 5: *word = ((u32 *)at)[up_to(len / 4)]; break;
		default: at[place] ^= 1 << up_to(8);
		}
	}
	return up_to(16) ? len : up_to(2) ? up_to(len) : len + up_to(IMAGE_PAGES * PAGE - len);
}

static void spoil_request(struct twin_load *r)
{
	switch (up_to(14)) {
	case 0: r->image = up_to(2) ? (u64)scratch() + up_to(PAGE) : some_value(); break;
	case 1: r->image_bytes = draw() >> up_to(64); break;
	case 2: r->mode = up_to(4); break;
	case 3: r->root = draw() >> up_to(64); break;
	case 4: r->percpu = some_value(); break;
	case 5: r->percpu_stride = up_to(2) ? some_value() : -r->percpu / 2; break;
	case 6: r->budget = up_to(2) ? 1000000 + up_to(2) : draw() >> up_to(64); break;
	case 7: r->twin = draw(), r->rule = draw(), r->offset = draw(); break;
	case 8: r->flags = up_to(4); break;
	case 9: r->kernel = some_value(); break;
	case 10: r->areas = up_to(8); break;
	case 11: r->pad = 1u << up_to(32); break;
	case 12: r->image = (u64)images[up_to(MAX_VCPUS)]; break;
	default: r->image_bytes -= 1 + up_to(16);
	}
}

static struct twin_kernel good_kernel(u32 *offsets)
{
	for (u32 n = 0; n < NR_OFFSETS - 3; n++)
		offsets[n] = 8 * n;
	offsets[NR_OFFSETS - 3] = 512;
	offsets[NR_OFFSETS - 2] = 320;
	offsets[NR_OFFSETS - 1] = 64;
	struct twin_kernel k = { .page_offset = VIRT_BASE, .vmalloc_start = 0xffffc90000000000, .vmalloc_end = 0xffffe90000000000,
		.vmemmap = 0xffffea0000000000, .jiffies = (u64)scratch(), .p2m = start_info->mfn_list, .p2m_frames = start_info->nr_pages,
		.offsets = (u64)offsets, .nr_offsets = NR_OFFSETS,
		.sleepers = (u64)scratch(), .nr_sleepers = up_to(256), .sleeper_bytes = 8 * up_to(32) };
	return k;
}

static struct twin_kernel some_kernel(u32 *offsets)
{
	struct twin_kernel k = good_kernel(offsets);
	if (up_to(4) == 0)
		k.p2m = (u64)scratch(), k.p2m_frames = up_to(2) ? 512 : draw() >> up_to(64);
	if (up_to(8) == 0)
		offsets[up_to(NR_OFFSETS)] = up_to(16) ? up_to(1000) : up_to(65540);
	if (up_to(16) == 0)
		((u64 *)&k)[up_to(sizeof(k) / 8)] = some_value();
	return k;
}

u32 load_driver(u64 root)
{
	static const char *const imports[NR_IMPORTS] = { "domains_own", "napi_schedule_prep", "__napi_schedule", "napi_consume_skb",
		"netif_tx_wake_queue", "napi_gro_receive", "napi_complete_done", "__napi_alloc_skb", "_raw_spin_unlock" };
	static u32 offsets[NR_OFFSETS];
	struct twin_kernel kernel = good_kernel(offsets);
	struct twin_load request = { .image = (u64)images[me], .image_bytes = make_image_with(images[me], imports), .mode = 1,
		.root = root, .percpu = VIRT_BASE, .flags = 1, .areas = 8, .kernel = (u64)&kernel };
	return twin_op(TWINOP_LOAD, &request) ? ~0u : request.twin;
}

void load_all(void)
{
	for (u32 n = 0; n < MAX_TWINS_EACH; n++)
		check_result(load_driver(good_root()), n, "loading a good image");
	check_result((int)load_driver(good_root()), -1, "loading one more");
	for (u32 n = 0; n < MAX_TWINS_EACH; n++) {
		struct twin_name name = { n, 0 };
		check_result(attach_good(n), 0, "giving it a card");
		check_result(twin_op(TWINOP_DETACH, &name), 0, "taking the card away");
	}
}

void load_once(void)
{
	static u32 offsets[NR_OFFSETS];
	static struct twin_kernel kernel;
	static struct twin_load request;
	u8 *at = images[me];
	request = (struct twin_load){ .image = (u64)at, .mode = 1, .root = some_twin_root(), .percpu = some_address(),
		.percpu_stride = PAGE, .flags = 1, .areas = 8 };
	u32 kind = up_to(64), len = fresh_image(at);
	if (kind < 24)
		len = spoil_image(at, len);
	request.image_bytes = len;
	if (kind == 24)
		request.image = (u64)spin, request.image_bytes = spin_len, request.flags = 0;
	else if (kind == 25)
		request.image_bytes = make_image_of(at, bad_code, bad_code_end, true);
	kernel = some_kernel(offsets);
	request.kernel = up_to(4) ? (u64)&kernel : 0;
	if (up_to(3) == 0)
		request.budget = 1 + up_to(2000);
	if (kind >= 48)
		spoil_request(&request);
	twin_op(TWINOP_LOAD, &request);
}
