/* A device's interrupt goes to the CPU on which the vCPU is that its event channel is bound to. (cpus: 2) */
#include "events.h"

const char test_name[] = "interrupt-affinity";

enum { RTC_IRQ = 8, IO_APIC = 0xfec00000, TRIES = 5 };
enum { PHYSDEVOP_apic_read = 8, PHYSDEVOP_map_pirq = 13 };

void busy(void);
asm(".text\nbusy:\n\tpause\n\tjmp busy\n");

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

/* The destination of the clock's wire, as the chip has it, or the IOMMU to which that leads. */
static u32 destination(void)
{
	struct {
		u64 physbase;
		u32 reg, value;
	} argument = { IO_APIC, 0x10 + 2 * RTC_IRQ + 1, 0 };
	if (HC2(physdev_op, PHYSDEVOP_apic_read, &argument))
		error("apic_read");
	return argument.value >> 24;
}

/* Binds the port to `vcpu` and takes some interrupts. */
static u32 destination_for(u32 port, u32 vcpu)
{
	volatile struct shared_info *shared = shared_info();
	struct bind_vcpu bind = { port, vcpu };
	check_result(evtchn(EVTCHN_bind_vcpu, &bind), 0, "bind_vcpu");
	u64 until = now_ns() + 3000000000;
	for (u32 taken = 0; taken < 40;) {
		if (shared->pending[port / 64] >> port % 64 & 1) {
			asm volatile("lock andq %1, %0" : "+m"(shared->pending[port / 64]) : "r"(~(1ul << port % 64)));
			cmos(0xc);
			taken++;
		} else if (now_ns() > until) {
			check(false, "bound to vCPU %u: %u interrupts came", vcpu, taken);
			break;
		}
	}
	return destination();
}

void test_main(void)
{
	struct {
		u16 domid, pad;
		int type, index, pirq, bus, devfn, entry, pad1;
		u64 table;
	} map = { .domid = DOMID_SELF, .type = 1, .index = RTC_IRQ, .pirq = RTC_IRQ };
	struct bind_pirq bind = { RTC_IRQ, 0, 0 };
	u32 level = 1;
	if (HC2(physdev_op, 6, &level))
		error("set_iopl");
	HC2(physdev_op, PHYSDEVOP_map_pirq, &map);
	if (!check_result(evtchn(EVTCHN_bind_pirq, &bind), 0, "bind_pirq"))
		return;
	start_vcpu(1, busy, pages[8]);
	set_cmos(0xa, 0x29); /* 128 a second */
	set_cmos(0xb, cmos(0xb) | 0x40);
	cmos(0xc);
	/* The vCPUs may change places meanwhile. */
	u32 first = 0, second = 0;
	for (u32 i = 0; i < TRIES && first == second; i++) {
		first = destination_for(bind.port, 0);
		second = destination_for(bind.port, 1);
	}
	check(first != second, "destination %#x for both vCPUs", first);
	u32 again = second;
	for (u32 i = 0; i < TRIES && again != first; i++)
		again = destination_for(bind.port, 0);
	check(again == first, "destination %#x for vCPU 0, before %#x", again, first);
	set_cmos(0xb, cmos(0xb) & ~0x40);
}
