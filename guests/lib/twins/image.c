/* Makes twin images (twin-abi/src/image.rs). */
#include "image.h"

enum { CODE, FUNCTIONS, LABELS, STATES, ADDRESSES, IMPORTS, STRINGS, ORIGINS, SECTIONS };
enum { HEADER = 192, COUNTED = 2 };

struct function {
	u32 start, end, name;
	u16 name_len, stack_args;
	u64 domain;
	u32 frame, pad;
};
struct label {
	u32 offset, state;
};
struct state {
	u64 regs;
	u16 depth;
	u8 saved[6];
};
struct import {
	u32 name, name_len;
	u64 domain;
};
struct address {
	u64 domain;
	u32 function, pad;
};

extern const u8 code[], code_end[];
extern const u32 twin_functions[][2], twin_functions_end[][2], twin_labels[][2], twin_labels_end[][2];

static const struct twin_code masking = { .start = code, .end = code_end, .functions = twin_functions,
	.functions_end = twin_functions_end, .labels = twin_labels, .labels_end = twin_labels_end, .mode = MODE_MIRROR };

/* What labels declare: kinds of registers, depth of the frame, saved registers. From 3 on, rdi is a window. */
enum { WINDOW_IN_RDI = 9u << 28 };
static const struct state states[] = { { 0, 0, { 0 } }, { 0, 510, { 0 } }, { 0, 2, { 1, 2 } }, { WINDOW_IN_RDI, 0, { 0 } },
	{ WINDOW_IN_RDI, 2, { 1, 2 } }, { WINDOW_IN_RDI, 2, { 0 } }, { 0, 2, { 0 } } };
const char *const import_names[NR_IMPORTS] = { "domains_own", "__netdev_alloc_skb", "kfree_skb_reason", "_raw_spin_lock",
	"_raw_spin_unlock", "dma_map_page_attrs", "netif_tx_wake_queue", "napi_gro_receive", "_raw_spin_trylock" };
static u8 *image;
static u32 image_len;

static void put32(u32 at, u32 value)
{
	memcpy(image + at, &value, 4);
}

static void section(u32 number, const void *bytes, u32 len)
{
	put32(64 + 8 * number, image_len);
	put32(64 + 8 * number + 4, len);
	memcpy(image + image_len, bytes, len);
	memset(image + image_len + len, 0, -len % 16);
	image_len += len + -len % 16;
}

static void header(u8 *at, u64 text_bytes, bool is_counted, u32 mode)
{
	u64 text = TEXT;
	image = at;
	image_len = HEADER;
	memset(image, 0, HEADER);
	memcpy(image, "TANDTWIN", 8);
	put32(8, 1);
	put32(12, mode == MODE_MIRROR);
	put32(16, is_counted ? COUNTED : 0);
	put32(20, mode == MODE_MIRROR ? 47 : 0);
	memcpy(image + 24, &text, 8);
	memcpy(image + 32, &text_bytes, 8);
}

static u32 finish(const struct function *functions, u32 nr_functions, const struct label *labels, u32 nr_labels,
		  const char *const *names, u32 nr_imports, u32 mode)
{
	struct import imports[NR_IMPORTS];
	char strings[256] = "function";
	u32 len = 8;
	for (u32 n = 0; n < nr_imports; n++) {
		u32 name_len = 0;
		while (names[n][name_len])
			name_len++;
		memcpy(strings + len, names[n], name_len);
		imports[n] = (struct import){ len, name_len, IMPORTED + 16 * n };
		len += name_len;
	}

	struct address addresses[32];
	for (u32 n = 0; n < nr_functions; n++)
		addresses[n] = (struct address){ functions[n].domain, n, 0 };
	section(FUNCTIONS, functions, nr_functions * sizeof(*functions));
	section(LABELS, labels, nr_labels * sizeof(*labels));
	/* No more than there are labels; and no windows but where there is a table. */
	u32 nr_states = mode == MODE_STLB ? COUNT(states) : 3;
	section(STATES, states, (nr_labels > nr_states ? nr_states : 1) * sizeof(*states));
	section(ADDRESSES, addresses, nr_functions * sizeof(*addresses));
	section(IMPORTS, imports, nr_imports * sizeof(*imports));
	section(STRINGS, strings, len);
	section(ORIGINS, "", 0);
	return image_len;
}

u32 make_image_from(u8 *at, const struct twin_code *from, const char *const imports[NR_IMPORTS])
{
	struct function functions[32];
	struct label labels[64];
	u32 nr_functions = from->functions_end - from->functions, nr_labels = 0;
	if (nr_functions > COUNT(functions))
		error("too many functions");
	header(at, 16 * nr_functions, true, from->mode);
	section(CODE, from->start, from->end - from->start);
	for (u32 n = 0; n < nr_functions; n++) {
		functions[n] = (struct function){ from->functions[n][0], from->functions[n][1], 0, 8, 0, TEXT + 16 * n, 4080, 0 };
		labels[nr_labels++] = (struct label){ functions[n].start, 0 };
		for (const u32(*l)[2] = from->labels; l < from->labels_end; l++)
			if ((*l)[0] > functions[n].start && (*l)[0] < functions[n].end)
				labels[nr_labels++] = (struct label){ (*l)[0], (*l)[1] };
	}
	return finish(functions, nr_functions, labels, nr_labels, imports, NR_IMPORTS, from->mode);
}

u32 make_image_with(u8 *at, const char *const imports[NR_IMPORTS])
{
	return make_image_from(at, &masking, imports);
}

u32 make_image(u8 *at)
{
	return make_image_with(at, import_names);
}

u32 make_image_of(u8 *at, const u8 *start, const u8 *end, bool is_counted)
{
	struct function function = { 0, end - start, 0, 8, 0, TEXT, 4080, 0 };
	struct label label = { 0, 0 };
	header(at, 16, is_counted, MODE_MIRROR);
	section(CODE, start, end - start);
	return finish(&function, 1, &label, 1, NULL, 0, MODE_MIRROR);
}

u64 address_in(const struct twin_code *from, const void *function)
{
	for (u32 n = 0; n < (u32)(from->functions_end - from->functions); n++)
		if (from->start + from->functions[n][0] == (const u8 *)function)
			return TEXT + 16 * n;
	error("no such function");
}

u64 address_of(const void *function)
{
	return address_in(&masking, function);
}
