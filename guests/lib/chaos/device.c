/*
 * A device of this domain, if it has one: QEMU's edu, which copies between a buffer of its own and whatever address the IOMMU
 * lets it reach, a tenth of a second after it was told to. Pages become page tables and memory again meanwhile.
 *
 * The command line: bar=MFN of its registers, bar_pages=N, bdf=N, gsi=N.
 */
#include "hostile.h"

enum { RAISE = 0x60, ACKNOWLEDGE = 0x64, SOURCE = 0x80, TARGET = 0x88, LENGTH = 0x90, COMMAND = 0x98, BUFFER = 0x40000 };
enum { RUN = 1, TO_MEMORY = 2 };
enum { MAP_PIRQ = 13, UNMAP_PIRQ = 14, EOI = 12, STATUS = 5, EOI_GMFN_V1 = 17, FREE_PIRQ = 23, EOI_GMFN_V2 = 28 };

/* Addresses that the device can name (xtask/src/suite/passthrough.rs), and those where a write is an interrupt. */
#define REACH (1ul << 39)
enum { MESSAGES = 0xfee00000, MESSAGES_END = 0xfef00000, VECTOR_SPURIOUS = 0xff };

static u8 *const window = pages[57];
static u64 bar, bar_pages, bdf, gsi, nr_copies;
static u32 pirqs[8];

static volatile u64 *reg64(u32 offset)
{
	return (volatile u64 *)(window + offset);
}

bool device_init(void)
{
	bar = number_after("bar=", 0);
	bar_pages = number_after("bar_pages=", 0);
	bdf = number_after("bdf=", 0);
	gsi = number_after("gsi=", 0);
	if (!bar_pages)
		return false;
	if (update_va(window, pte(bar, P | RW | US | PCD), 2))
		error("the device's registers cannot be mapped");
	for (u32 i = 0; i < COUNT(pirqs); i++)
		pirqs[i] = gsi;
	return true;
}

bool is_register(u64 mfn)
{
	return mfn >= bar && mfn < bar + bar_pages;
}

u64 device_copies(void)
{
	return nr_copies;
}

/*
 * An interrupt that nobody programmed. An IOMMU that remaps interrupts stops it; QEMU's lets messages of the format without
 * remapping pass, as any machine without an IOMMU does. So it is the one that a hypervisor may take for no interrupt at all:
 * with other data the device could reset the processors.
 */
static u32 message_data;
static bool is_loaded;

static void message(void)
{
	if (*reg64(COMMAND) & RUN)
		return;
	message_data = VECTOR_SPURIOUS;
	*reg64(SOURCE) = is_loaded ? BUFFER : maddr_of(&message_data);
	*reg64(TARGET) = is_loaded ? MESSAGES | up_to(2) << 12 : BUFFER;
	*reg64(LENGTH) = sizeof(message_data);
	*reg64(COMMAND) = RUN | (is_loaded ? TO_MEMORY : 0);
	is_loaded = !is_loaded;
	nr_accepted++;
}

/* To where it may write, this domain's vital pages are spared; where it may not, it is the IOMMU's to stop it. */
static void copy(void)
{
	/* The device's model ends QEMU at a copy that includes its buffer's last byte. */
	u64 offset = up_to(PAGE / 8) * 8, length = 1 + up_to(PAGE - 1 - offset), mfn = up_to(4) ? some_mfn() : mfn_of(scratch());
	bool to_memory = up_to(2);
	if (up_to(4) == 0)
		mfn = mfn_of((void *)(start_info->pt_base + up_to(start_info->nr_pt_frames) * PAGE));
	if (is_loaded || is_vital(mfn) || mfn >= REACH / PAGE || (*reg64(COMMAND) & RUN))
		return;
	if (mfn >= MESSAGES / PAGE && mfn < MESSAGES_END / PAGE)
		return;
	u64 address = mfn * PAGE + up_to(PAGE);
	/* Not beyond the page, where something vital may be. */
	if (length > PAGE - address % PAGE)
		length = PAGE - address % PAGE;
	*reg64(SOURCE) = to_memory ? BUFFER + offset : address;
	*reg64(TARGET) = to_memory ? address : BUFFER + offset;
	*reg64(LENGTH) = length;
	*reg64(COMMAND) = RUN | (to_memory ? TO_MEMORY : 0);
	nr_copies++;
	nr_accepted++;
}

/* The device's pages, and those beside them, which must not be had. */
static void map_registers(void)
{
	u64 mfn = bar - 2 + up_to(bar_pages + 4);
	s64 result = update_va(scratch(), pte(mfn, up_to(2) ? P | RW | US | PCD : P | US), 2);
	note(result);
	if (!is_register(mfn))
		must_refuse(result, "registers of another device", mfn);
}

static u32 some_pirq(void)
{
	return up_to(4) ? pirqs[up_to(COUNT(pirqs))] : up_to(2) ? up_to(64) : draw();
}

static void interrupt(void)
{
	static u32 nr_taken;
	struct {
		u16 domid, pad0;
		u32 kind, index, pirq, bus, devfn, entry, pad1;
		u64 table;
	} map = { up_to(8) ? DOMID_SELF : some_domid(), 0, up_to(5), up_to(4) ? gsi : up_to(64), up_to(2) ? ~0u : some_pirq(),
		  up_to(8) ? bdf >> 8 : draw(), up_to(8) ? bdf & 255 : draw(), up_to(4), 0, up_to(2) ? 0 : bar * PAGE };
	u32 two[2] = { some_pirq(), 0 };
	u64 page = mfn_of(scratch());
	struct bind_pirq bind = { some_pirq(), up_to(2), 0 };
	s64 result;
	switch (up_to(10)) {
	case 0: case 1:
		result = HC2(physdev_op, MAP_PIRQ, &map);
		note(result);
		if (!is_self(map.domid))
			must_refuse(result, "an interrupt for another", map.domid);
		/* Type 1 is a wire; only the device's own is permitted. */
		else if (map.kind == 1 && map.index != gsi)
			must_refuse(result, "another device's interrupt", map.index);
		else if (result >= 0)
			pirqs[up_to(COUNT(pirqs))] = map.pirq;
		break;
	case 2: {
		struct {
			u16 domid, pad;
			u32 pirq;
		} unmap = { DOMID_SELF, 0, some_pirq() };
		note(HC2(physdev_op, UNMAP_PIRQ, &unmap));
		break;
	}
	case 3: note(evtchn(EVTCHN_bind_pirq, &bind)); break;
	case 4: note(HC2(physdev_op, EOI, two)); break;
	case 5: note(HC2(physdev_op, STATUS, two)); break;
	case 6: note(HC2(physdev_op, FREE_PIRQ, two)); break;
	case 7:
		/* Takes a page for good. */
		if (nr_taken < 1 && HC2(physdev_op, up_to(2) ? EOI_GMFN_V1 : EOI_GMFN_V2, &page) == 0)
			nr_taken++;
		break;
	case 8: *(volatile u32 *)(window + RAISE) = up_to(2) ? 1 : draw(); break;
	default: *(volatile u32 *)(window + ACKNOWLEDGE) = up_to(2) ? ~0u : draw();
	}
}

/* The ports of the PCI configuration, which are dom0's. */
static void configuration(void)
{
	u32 iopl = 1, at = 1u << 31 | (up_to(4) ? bdf : up_to(1 << 16)) << 8 | (up_to(64) << 2), value = some_value();
	HC2(physdev_op, 6, &iopl);
	PROBE("out %%eax, %%dx", : : "a"(at), "d"(0xcf8) : "r11", "memory");
	PROBE("out %%eax, %%dx", : : "a"(value), "d"(0xcfc) : "r11", "memory");
	PROBE("in %%dx, %%eax", : "+a"(value) : "d"(0xcfc) : "r11", "memory");
}

void device_once(void)
{
	switch (up_to(8)) {
	case 0: return map_registers();
	case 1: case 2: case 3: return interrupt();
	case 4: return configuration();
	case 5: return message();
	default: copy();
	}
}
