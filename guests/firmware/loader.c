/* The 32-bit part: the hypervisor, the last module, goes where it wants to be, and is told what a UEFI loader tells. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DATA __attribute__((section(".firmware_data")))

enum { NR_FAULTS = 13, RAM = 1, RESERVED = 2 };
enum { RUNTIME_CODE = 5, RUNTIME_DATA = 6 };
#define RUNTIME (1ull << 63)
#define WRITE_BACK 8ull

struct module { u32 start, end, text, pad; };
/* What QEMU tells, as far as it is used. */
struct info { u32 flags, pad[3], text, nr_modules, modules, pad1[4], map_bytes, map; };
struct region { u32 size; u64 start, bytes; u32 kind; } __attribute__((packed));
struct elf { u8 ident[24]; u64 entry, segments; u8 pad[14]; u16 segment_bytes, nr_segments; } __attribute__((packed));
struct segment { u32 kind, flags; u64 offset, va, addr, file_bytes, bytes, align; } __attribute__((packed));

/* As the specification has them. */
struct header { u64 signature; u32 revision, bytes, crc, pad; };
static struct { struct header header; u64 functions[14]; } services DATA;
static struct { struct header header; u64 vendor; u32 revision, pad; u64 consoles[6], services, boot, nr_tables, tables; } system DATA;
static u16 vendor[] DATA = { 'F', 'a', 'u', 'l', 't', 'y', 0 };
extern const u32 faults[NR_FAULTS];
extern u8 firmware_code[], firmware_code_end[], firmware_data[], firmware_data_end[];

static u8 told[16384] __attribute__((aligned(8)));
static u32 nr_told;

static void copy(u32 to, u32 from, u32 bytes)
{
	for (u32 n = 0; n < bytes; n++)
		((u8 *)to)[n] = ((const u8 *)from)[n];
}

static void put(const void *what, u32 bytes)
{
	copy((u32)told + nr_told, (u32)what, bytes);
	nr_told += bytes;
}

static u32 begin(u32 kind)
{
	u32 head[2] = { kind, 0 }, at = nr_told;
	put(head, sizeof(head));
	return at;
}

static void end(u32 at)
{
	*(u32 *)(told + at + 4) = nr_told - at;
	nr_told = (nr_told + 7) & -8;
}

static void put_text(u32 text)
{
	u32 len = 0;
	while (((const char *)text)[len++])
		;
	put((const void *)text, len);
}

static void put_region(u64 start, u64 bytes, u32 kind)
{
	u64 words[3] = { start, bytes, kind };
	put(words, sizeof(words));
}

static void put_firmware(u32 kind, u32 start, u32 end)
{
	u64 words[5] = { kind, start, 0, (end - start) / 4096, RUNTIME | WRITE_BACK };
	put(words, sizeof(words));
}

static u32 fault_asked_for(const char *text)
{
	static const char key[] = "faulty=";
	for (; *text; text++) {
		u32 n = 0;
		while (key[n] && text[n] == key[n])
			n++;
		if (!key[n]) {
			u32 number = text[n] - '0';
			return text[n + 1] >= '0' && text[n + 1] <= '9' ? number * 10 + text[n + 1] - '0' : number;
		}
	}
	return 0;
}

u64 load(const struct info *info)
{
	const struct module *modules = (const struct module *)info->modules;
	u32 nr_modules = info->nr_modules - 1, image = modules[nr_modules].start;
	/* The firmware's tables. All functions but the first are as they should be. */
	services.header = (struct header){ 0x56524553544e5552, 2 << 16 | 70, sizeof(services), 0, 0 };
	for (u32 n = 0; n < 14; n++)
		services.functions[n] = faults[0];
	services.functions[0] = faults[fault_asked_for((const char *)modules[0].text) % NR_FAULTS];
	system.header = (struct header){ 0x5453595320494249, 2 << 16 | 70, sizeof(system), 0, 0 };
	system.vendor = (u32)vendor;
	system.services = (u32)&services;
	/* What the hypervisor is told. */
	nr_told = 8;
	u32 at = begin(1);
	put_text(info->text);
	end(at);
	for (u32 n = 0; n < nr_modules; n++) {
		at = begin(3);
		put(&modules[n], 8);
		put_text(modules[n].text);
		end(at);
	}
	at = begin(6);
	put((u32[]){ 24, 0 }, 8);
	for (u32 map = info->map; map < info->map + info->map_bytes; map += ((struct region *)map)->size + 4) {
		const struct region *region = (const struct region *)map;
		put_region(region->start, region->bytes, region->kind);
	}
	put_region((u32)firmware_code, firmware_data_end - firmware_code, RESERVED);
	end(at);
	at = begin(12);
	put((u64[]){ (u32)&system }, 8);
	end(at);
	at = begin(17);
	put((u32[]){ 40, 1 }, 8);
	put_firmware(RUNTIME_CODE, (u32)firmware_code, (u32)firmware_code_end);
	put_firmware(RUNTIME_DATA, (u32)firmware_data, (u32)firmware_data_end);
	end(at);
	end(begin(0));
	*(u32 *)told = nr_told;
	/* The hypervisor. */
	const struct elf *elf = (const struct elf *)image;
	for (u32 n = 0; n < elf->nr_segments; n++) {
		const struct segment *s = (const struct segment *)(image + (u32)elf->segments + n * elf->segment_bytes);
		if (s->kind != 1)
			continue;
		copy(s->addr, image + (u32)s->offset, s->file_bytes);
		for (u32 i = s->file_bytes; i < s->bytes; i++)
			((u8 *)(u32)s->addr)[i] = 0;
	}
	return (u64)(u32)told << 32 | (u32)elf->entry;
}
