/* What only domains with more rights may do, foreign memory, and privileged instructions. */
#include "hostile.h"

/*
 * Maps a frame, which must be this domain's. Besides its memory that may be shared_info, the grant table or its device; and
 * memory that the peer has transferred, which this domain can then give back.
 */
static void map_own(u64 mfn)
{
	u32 page = some_page();
	u64 entry = spare(page, pte(mfn, up_to(2) ? P | US : P | RW | US));
	s64 result = up_to(2) ? update_va(scratch_page(page), entry, 2) : mmu_update(board.of[me].entry_addresses[page], entry);
	note(result);
	if (result < 0 || was_own(mfn) || mfn == start_info->shared_info / PAGE || is_grant_frame(mfn) || is_register(mfn))
		return;
	update_va(scratch_page(page), 0, 2);
	if (!give_back(mfn))
		must_refuse(result, "mapping a frame of another", mfn);
}

/* In its name I/O memory is mapped, by those who may. */
enum { DOMID_IO = DOMID_SELF + 1 };

/* Foreign page tables, foreign frames, and frames that are nobody's business. */
void foreign_once(void)
{
	u16 domid = some_domid(), tables = up_to(4) ? 0 : some_domid();
	u64 mfn = up_to(2) ? up_to(1 << 20) : some_mfn(), result;
	u32 page = some_page();
	struct {
		u64 ptr, val;
	} request = { entry_address(page) | up_to(3), some_pte(page) };
	struct {
		u32 cmd, pad;
		u64 arg1, arg2;
	} ext = { up_to(24), 0, mfn, some_value() };
	u64 who = domid | (tables ? (u64)(tables + 1) << 16 : 0);
	bool is_foreign = (!is_self(domid) && domid != DOMID_IO) || (tables && !is_self(tables));
	switch (up_to(4)) {
	case 0:
		result = HC4(mmu_update, &request, 1, 0, who);
		note(result);
		if (is_foreign && (request.val & P))
			must_refuse(result, "mmu_update for another", who);
		break;
	case 1:
		result = hypercall(22, (u64)scratch_page(page), request.val, up_to(3), domid, 0);
		note(result);
		if (!is_self(domid) && domid != DOMID_IO)
			must_refuse(result, "update_va_mapping_otherdomain", domid);
		break;
	case 2:
		if (ext.cmd == NEW_BASEPTR || (is_vital(mfn) && ext.cmd >= CLEAR_PAGE))
			break;
		result = HC4(mmuext_op, &ext, 1, 0, domid);
		note(result);
		if (!is_self(domid))
			must_refuse(result, "mmuext_op for another", (u64)ext.cmd << 16 | domid);
		break;
	default:
		if (is_vital(mfn))
			break;
		map_own(mfn);
	}
}

/* The hypervisor's own calls, for twins of drivers and for switches: this domain has no twin, and no image of one. */
static void own_calls_once(void)
{
	enum { TWIN_OP = 55, CHANNEL_OP, HUGE = 1 << 23 };
	static u64 argument[16];
	u64 call = up_to(2) ? TWIN_OP : CHANNEL_OP, cmd = up_to(8) ? up_to(13) : draw() >> up_to(64);
	for (u32 i = 0; i < COUNT(argument); i++)
		argument[i] = up_to(4) ? up_to(2) ? some_value() : up_to(16) : 0;
	/* A request to load one, of scratch pages. */
	if (call == TWIN_OP && up_to(2)) {
		cmd = 0;
		argument[0] = (u64)scratch(), argument[1] = up_to(2) ? up_to(PAGE) : up_to(2 * HUGE);
		argument[1] |= 1ul << 32;
		argument[2] = some_mfn(), argument[4] = PAGE, argument[5] = 0, argument[7] = up_to(2) << 32, argument[8] = 0, argument[9] = 8;
	}
	s64 result = hypercall(call, cmd, up_to(8) ? (u64)argument : some_value(), 0, 0, 0);
	/* Commands have 32 bits. */
	must_refuse(result, "a call of the hypervisor's own", call << 32 | (u32)cmd);
}

/* domctl, sysctl, platform_op and the like: with the right versions, for whatever domain. */
void privileged_once(void)
{
	static u64 argument[32];
	static const u8 calls[] = { HC_domctl, HC_domctl, HC_domctl, HC_sysctl, 7, 37, HC_console_io };
	u16 domid = some_domid();
	static const u32 machine_ops[] = { 8, 9, 15, 16, 19, 20, 21, 24, 25, 26, 27, 29, 30, 31 };
	if (up_to(4) == 0)
		return own_calls_once();
	for (u32 i = 0; i < COUNT(argument); i++)
		argument[i] = some_value();
	if (up_to(8) == 0) {
		u32 cmd = machine_ops[up_to(COUNT(machine_ops))];
		must_refuse(HC2(physdev_op, cmd, argument), "a physdev_op", cmd);
		return;
	}
	if (up_to(8) == 0) {
		u32 cmd = up_to(8) ? 13 + up_to(2) : up_to(32);
		memcpy(argument, &domid, sizeof(domid));
		note(HC2(physdev_op, cmd, argument));
		return;
	}
	u64 call = calls[up_to(COUNT(calls))];
	u64 cmd = up_to(call == 7 ? 70 : 90), version = up_to(8) ? call == 7 ? 0x03000000 : 0x15 : 0x10 + up_to(16);
	argument[0] = cmd | version << 32;
	memcpy(&argument[1], &domid, sizeof(domid));
	if (call == HC_console_io)
		must_refuse(HC3(console_io, up_to(2), up_to(64), argument), "console_io", 0);
	else if (call == 37)
		must_refuse(hypercall(37, up_to(6), (u64)argument, 0, 0, 0), "kexec_op", 0);
	else
		must_refuse(hypercall(call, (u64)argument, 0, 0, 0, 0), "a call for the control domain", call << 32 | cmd);
}

/* Switches extended state on and off at random. What this domain has left in an AVX register it finds there, and nothing else. */
static void extended_once(void)
{
	enum { ALL = 7 };
	static const u64 usual[] = { 1, 3, ALL, ALL, 0xe7 };
	static u64 xcr0 = 3, mine[4], found[4];
	u64 value = up_to(8) ? usual[up_to(COUNT(usual))] : some_value();
	u32 index = !up_to(16);

	PROBE("clts", : : : "r11", "memory");
	/* As a kernel has it that uses XSETBV at all. */
	PROBE("mov %0, %%cr4", : : "r"(1ul << 18) : "r11", "memory");
	if (PROBE("xsetbv", : : "c"(index), "a"((u32)value), "d"((u32)(value >> 32)) : "r11", "memory") == NO_TRAP)
		xcr0 = value;
	if ((xcr0 & ALL) != ALL)
		return;
	if (PROBE("vmovdqu %%ymm15, (%0)", : : "r"(found) : "r11", "memory") != NO_TRAP) {
		check(false, "operation %lu: no AVX with XCR0 = %#lx", board.of[me].operation, xcr0);
		return;
	}
	check(memcmp(mine, found, sizeof(mine)) == 0, "operation %lu: ymm15 has %#lx %#lx %#lx %#lx", board.of[me].operation, found[0],
	      found[1], found[2], found[3]);
	for (u32 i = 0; i < COUNT(mine); i++)
		mine[i] = up_to(4) ? draw() : 0;
	asm volatile("vmovdqu (%0), %%ymm15" : : "r"(mine) : "memory");
}

/* None of these is for a kernel without I/O; a #GP is as good as no effect. */
void instruction_once(void)
{
	static const u32 msrs[] = { 0x10, 0x1b, 0x3a, 0x48, 0x49, 0x79, 0x8b, 0xce, 0x10a, 0x10b, 0x122, 0x174, 0x179, 0x199, 0x1a0, 0x1d9,
		0x277, 0x2ff, 0x38f, 0x400, 0x480, 0x600, 0x6e0, 0x800, 0x830, 0xda0, 0xc0000080, 0xc0000081, 0xc0000082, 0xc0000083,
		0xc0000084, 0xc0000101, 0xc0000103, 0xc0010010, 0xc0010015, 0xc0011029 };
	u64 value = some_value();
	u32 msr = up_to(4) ? msrs[up_to(COUNT(msrs))] : draw();
	u16 port = up_to(3) ? draw() : 0xcf8 + up_to(8);
	u32 kind = up_to(14);
	/* Domain 0 has the ports that end the machine. */
	if (is_initial_domain() && kind >= 3 && kind <= 7)
		return;
	switch (kind) {
	case 0: case 1:
		PROBE("wrmsr", : : "c"(msr), "a"((u32)value), "d"((u32)(value >> 32)) : "r11", "memory");
		break;
	case 2: PROBE("rdmsr", : : "c"(msr) : "rax", "rdx", "r11", "memory"); break;
	case 3: PROBE("outl %%eax, %%dx", : : "a"((u32)value), "d"(port) : "r11", "memory"); break;
	case 4: PROBE("outb %%al, %%dx", : : "a"((u32)value), "d"(port) : "r11", "memory"); break;
	case 5: PROBE("inl %%dx, %%eax", : : "d"(port) : "rax", "r11", "memory"); break;
	case 6: {
		u8 *from = scratch();
		value %= 64;
		PROBE("rep outsb", : "+S"(from), "+c"(value) : "d"(port) : "r11", "memory");
		break;
	}
	case 7: {
		u32 level[1] = { up_to(4) };
		note(HC2(physdev_op, 6, level));
		struct {
			u64 bitmap;
			u32 nr, pad;
		} ports = { up_to(2) ? (u64)scratch() : value, up_to(65537), 0 };
		note(HC2(physdev_op, 7, &ports));
		break;
	}
	case 8: PROBE("mov %0, %%cr4", : : "r"(value) : "r11", "memory"); break;
	case 9: PROBE("mov %0, %%dr0", : : "r"(value) : "r11", "memory"); break;
	case 10: PROBE("cpuid", : "+a"(msr), "+c"(value) : : "rbx", "rdx", "r11", "memory"); break;
	case 11: case 12: extended_once(); break;
	default: PROBE("invlpg (%0)\n\tlidt (%0)\n\tmov %0, %%cr0", : : "r"(scratch()) : "r11", "memory");
	}
}
