/* RDMSR and WRMSR of the kernel: those that are emulated, and #GP for the rest. */
#include "guest.h"

const char test_name[] = "msrs";

static u64 value;

static u64 rdmsr(u32 msr)
{
	u32 low = 0, high = 0;
	u64 vector = PROBE("rdmsr", : "+a"(low), "+d"(high) : "c"(msr) : "r11", "memory");
	value = (u64)high << 32 | low;
	return vector;
}

static u64 wrmsr(u32 msr, u64 to)
{
	return PROBE("wrmsr", : : "c"(msr), "a"((u32)to), "d"((u32)(to >> 32)) : "r11", "memory");
}

void test_main(void)
{
	/* Segment bases. */
	static const u32 bases[] = { 0xc0000100, 0xc0000101, 0xc0000102 };
	for (u32 i = 0; i < COUNT(bases); i++) {
		check(wrmsr(bases[i], (u64)pages[i]) == NO_TRAP, "writing %#x gives %ld", bases[i], probe.vector);
		check(rdmsr(bases[i]) == NO_TRAP && value == (u64)pages[i], "%#x is %#lx", bases[i], value);
		check(wrmsr(bases[i], 0x800000000000) == 13, "a non-canonical value for %#x gives %ld", bases[i], probe.vector);
		check(rdmsr(bases[i]) == NO_TRAP && value == (u64)pages[i], "%#x became %#lx", bases[i], value);
	}
	/* They are the real ones. */
	u64 seen;
	*(u64 *)pages[0] = 0xf5;
	*(u64 *)pages[1] = 0x65;
	asm volatile("mov %%fs:0, %0" : "=r"(seen) : : "memory");
	check(seen == 0xf5, "fs:0 is %#lx", seen);
	asm volatile("mov %%gs:0, %0" : "=r"(seen) : : "memory");
	check(seen == 0x65, "gs:0 is %#lx", seen);
	/* The page attribute table that Linux knows. */
	check(rdmsr(0x277) == NO_TRAP && value == 0x050100070406, "PAT is %#lx", value);
	check(rdmsr(0xc0000080) == NO_TRAP && (value & 0xd01) == 0xd01, "EFER is %#lx", value);
	u64 efer = value;
	check(wrmsr(0xc0000080, efer & ~1ul) != NO_TRAP || (rdmsr(0xc0000080), value == efer), "EFER can be changed");
	check(rdmsr(0x1b) == NO_TRAP && (value & 0xfffff900) == 0xfee00900, "APICBASE is %#lx", value);
	/* What does not exist. */
	check(rdmsr(0x12345678) == 13, "reading 0x12345678 gives %ld", probe.vector);
	check(probe.frame.error == 0, "error code %#lx", probe.frame.error);
	check(wrmsr(0x12345678, 0) == 13, "writing 0x12345678 gives %ld", probe.vector);
	/* What is the hypervisor's: its entry points. */
	static const u32 forbidden[] = { 0xc0000081, 0xc0000082, 0xc0000083, 0xc0000084, 0x174, 0x175, 0x176 };
	for (u32 i = 0; i < COUNT(forbidden); i++)
		wrmsr(forbidden[i], 0x1000);
	check(HC1(xen_version, 0) == 0x40011, "hypercalls are broken by a write to an entry point's MSR");
}
