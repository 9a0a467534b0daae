/* The run-time of test kernels: output, verdicts, entries, memory. */
#include "guest.h"

struct start_info *start_info;
handler *handlers[ENTRY_COUNT];
handler *on_unexpected;
volatile struct probe probe;
u8 pages[64][PAGE] __attribute__((aligned(4096)));
static u32 nr_failures;

/* Output: collected into lines, each one hypercall, or one message on the console ring of a domain that xl made. */
static struct {
	char text[256];
	u32 len;
} line;

static struct console_ring {
	char in[1024], out[2048];
	u32 in_cons, in_prod, out_cons, out_prod;
} volatile *ring;

static void write_out(void)
{
	if (is_initial_domain()) {
		HC3(console_io, 0, line.len, line.text);
		return;
	}
	for (u32 n = 0; n < line.len; n++) {
		while (ring->out_prod - ring->out_cons >= sizeof(ring->out))
			HC2(sched_op, 0, 0);
		ring->out[ring->out_prod % sizeof(ring->out)] = line.text[n];
		__atomic_fetch_add(&ring->out_prod, 1, __ATOMIC_SEQ_CST);
	}
	HC2(event_channel_op, 4, &start_info->console_evtchn);
}

static void put(char c)
{
	if (line.len == sizeof(line.text) || c == '\n') {
		if (c == '\n' && line.len < sizeof(line.text))
			line.text[line.len++] = c;
		write_out();
		line.len = 0;
		if (c == '\n')
			return;
	}
	line.text[line.len++] = c;
}

static void put_number(u64 value, u32 base)
{
	char digits[24];
	u32 n = 0;
	do
		digits[n++] = "0123456789abcdef"[value % base];
	while (value /= base);
	while (n)
		put(digits[--n]);
}

static void put_formatted(const char *format, va_list args)
{
	for (; *format; format++) {
		if (*format != '%') {
			put(*format);
			continue;
		}
		bool is_long = false;
		while (*++format == 'l' || *format == '#')
			if (*format == 'l')
				is_long = true;
			else
				put('0'), put('x');
		if (*format == 's') {
			for (const char *s = va_arg(args, const char *); *s; s++)
				put(*s);
		} else if (*format == 'd') {
			s64 value = is_long ? va_arg(args, s64) : va_arg(args, int);
			if (value < 0)
				put('-');
			put_number(value < 0 ? -(u64)value : (u64)value, 10);
		} else if (*format == 'u' || *format == 'x') {
			u64 value = is_long ? va_arg(args, u64) : va_arg(args, u32);
			put_number(value, *format == 'u' ? 10 : 16);
		} else {
			put(*format);
		}
	}
}

void printk(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	put_formatted(format, args);
	va_end(args);
}

static void __attribute__((noreturn)) finish(const char *verdict)
{
	/* The machine reboots; a domain that xl made powers off. */
	u32 reason = is_initial_domain();
	printk("Test %s: %s\n", test_name, verdict);
	HC2(sched_op, 2, &reason);
	for (;;)
		;
}

bool check_that(bool holds, const char *format, ...)
{
	if (!holds) {
		va_list args;
		va_start(args, format);
		printk("  failed: ");
		put_formatted(format, args);
		put('\n');
		va_end(args);
		nr_failures++;
	}
	return holds;
}

u32 take_failures(void)
{
	u32 nr = nr_failures;
	nr_failures = 0;
	return nr;
}

void skip(const char *why)
{
	printk("  %s\n", why);
	finish("SKIP");
}

void fail(void)
{
	finish("FAILURE");
}

void error(const char *why)
{
	printk("  %s\n", why);
	finish("ERROR");
}

/* Entries. A trap inside PROBE is recorded; any other needs a handler. */
void on_entry(struct frame *frame)
{
	handler *handle = frame->number < ENTRY_COUNT ? handlers[frame->number] : NULL;
	if (handle) {
		handle(frame);
	} else if (frame->number < 256 && probe.resume_at) {
		probe.vector = frame->number;
		probe.nr_traps++;
		memcpy((void *)&probe.frame, frame, sizeof(*frame));
		frame->rip = probe.resume_at;
		frame->rflags &= ~0x100ul; /* a single step is one step */
		probe.resume_at = 0;
	} else if (on_unexpected) {
		on_unexpected(frame);
	} else {
		u64 cr2;
		asm volatile("mov %%cr2, %0" : "=r"(cr2));
		printk("  unexpected entry %lu, error %#lx, rip %#lx, rsp %#lx, cr2 %#lx\n", frame->number, frame->error,
		       frame->rip, frame->rsp, cr2);
		error("unexpected entry");
	}
	frame->cs &= 0xffff;
}

s64 set_trap(u8 vector, u8 flags, void (*address)(void))
{
	struct trap_info table[2] = { { vector, flags, FLAT_KERNEL_CS, (u64)address } };
	return HC1(set_trap_table, table);
}

s64 set_callback(u16 type, u16 flags, void (*address)(void))
{
	struct {
		u16 type, flags;
		u64 address;
	} argument = { type, flags, (u64)address };
	return HC2(callback_op, 0, &argument);
}

#define EXCEPTIONS(X)                                                                                                  \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)   \
	X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define DECLARE(n) extern void entry_##n(void);
EXCEPTIONS(DECLARE)

/* The kernel may raise breakpoint and overflow by instruction. */
#define ROW(n) { n, n == 3 || n == 4 ? 3 : 0, FLAT_KERNEL_CS, (u64)entry_##n },
const struct trap_info exception_traps[] = { EXCEPTIONS(ROW) { 0, 0, 0, 0 } };

static void set_traps(void)
{
	if (HC1(set_trap_table, exception_traps))
		error("set_trap_table");
}

/* For entries from user mode. */
extern char entry_stack_top[];

void guest_main(struct start_info *info)
{
	start_info = info;
	if (!is_initial_domain())
		ring = va_of_mfn(info->console_mfn);
	printk("Test %s\n", test_name);
	set_traps();
	HC2(stack_switch, FLAT_KERNEL_SS, entry_stack_top);
	test_main();
	finish(nr_failures ? "FAILURE" : "SUCCESS");
}

/* Memory. */
bool is_qemu_10(void)
{
	static const char word[] = "qemu=10 ";
	for (const char *at = start_info->cmd_line; *at; at++)
		if (!memcmp(at, word, sizeof(word) - 1))
			return true;
	return false;
}

void *memset(void *to, int byte, size_t len)
{
	void *start = to;
	asm volatile("rep stosb" : "+D"(to), "+c"(len) : "a"(byte) : "memory");
	return start;
}

void *memcpy(void *to, const void *from, size_t len)
{
	void *start = to;
	asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
	return start;
}

int memcmp(const void *a, const void *b, size_t len)
{
	const u8 *x = a, *y = b;
	for (; len; len--, x++, y++)
		if (*x != *y)
			return *x - *y;
	return 0;
}

volatile u64 *entry_for(const void *va, int level)
{
	volatile u64 *table = (u64 *)start_info->pt_base;
	for (int l = 4;; l--) {
		volatile u64 *entry = &table[(u64)va >> (12 + 9 * (l - 1)) & 511];
		if (l == level)
			return entry;
		if (!(*entry & P))
			error("entry_for: not mapped");
		table = va_of_mfn((*entry & ADDR_MASK) / PAGE);
	}
}

s64 update_va(const void *va, u64 entry, u64 flags)
{
	return HC3(update_va_mapping, va, entry, flags);
}

s64 mmu_update(u64 ptr, u64 val)
{
	struct {
		u64 ptr, val;
	} request = { ptr, val };
	return HC4(mmu_update, &request, 1, 0, DOMID_SELF);
}

s64 mmuext(u32 cmd, u64 arg1, u64 arg2)
{
	struct {
		u32 cmd, pad;
		u64 arg1, arg2;
	} request = { cmd, 0, arg1, arg2 };
	return HC4(mmuext_op, &request, 1, 0, DOMID_SELF);
}

void make_read_only(const void *page)
{
	if (update_va(page, pte(mfn_of(page), P | US | A | D), 2))
		error("make_read_only");
}

void make_writable(const void *page)
{
	if (update_va(page, pte(mfn_of(page), P | RW | US | A | D), 2))
		error("make_writable");
}

volatile struct shared_info *shared_info(void)
{
	static u8 window[PAGE] __attribute__((aligned(4096)));
	static bool is_mapped;
	if (!is_mapped && update_va(window, start_info->shared_info | P | RW | US | A | D, 2))
		error("shared_info");
	is_mapped = true;
	return (void *)window;
}

u64 random_u64(u64 *seed)
{
	/* xorshift */
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed * 0x9e3779b97f4a7c15;
}

u64 now_ns(void)
{
	volatile struct vcpu_info *info = &shared_info()->vcpu[0];
	u32 version, low, high;
	u64 ns;
	do {
		version = info->time.version;
		asm volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
		u64 delta = ((u64)high << 32 | low) - info->time.tsc_timestamp;
		delta = info->time.shift < 0 ? delta >> -info->time.shift : delta << info->time.shift;
		ns = info->time.system_time + (u64)((unsigned __int128)delta * info->time.mul >> 32);
	} while ((version & 1) || version != info->time.version);
	return ns;
}

bool is_tandem(void)
{
	enum { EXTRAVERSION = 1 };
	char text[17] = { 0 };
	HC2(xen_version, EXTRAVERSION, text);
	for (u32 n = 0; n + 6 < sizeof(text); n++)
		if (!memcmp(text + n, "tandem", 6))
			return true;
	return false;
}

void audit(void)
{
	static const char key = 'f';
	struct {
		u32 command, version;
		const char *keys;
		u32 nr_keys, pad[29];
	} argument = { .command = 7, .version = 0x15, .keys = &key, .nr_keys = 1 };
	_Static_assert(sizeof(argument) == 136, "xen_sysctl");
	check_result(HC1(sysctl, &argument), 0, "the audit of frames");
}
