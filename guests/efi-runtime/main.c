/*
 * EFI's tables and run-time services for domain 0: what they tell, variables, and requests that make no sense; firmware that faults.
 * (skips: only a machine that UEFI has started has them)
 */
#include "guest.h"

const char test_name[] = "efi-runtime";

enum { EFI_CALL = 49, FIRMWARE_INFO = 50 };
enum { GET_TIME = 1, SET_WAKEUP_TIME = 4, GET_VARIABLE = 6, SET_VARIABLE, GET_NEXT_NAME, QUERY_INFO, QUERY_CAPSULE };
enum { VERSION, CONFIG_TABLE, VENDOR, MEM_INFO, RT_VERSION, PCI_ROM };
#define EFI_INFO 4
#define ERROR(number) (1ul << 63 | (number))
enum { TOO_SMALL = 5, NOT_FOUND = 14 };

struct guid {
	u8 bytes[16];
};

struct op {
	u32 cmd, version;
	union {
		struct {
			u32 type, index;
			union {
				u32 version;
				struct {
					u64 addr;
					u32 count;
				} config;
				struct {
					u32 revision, bytes;
					u64 name;
				} vendor;
				struct {
					u64 addr, size, attr;
					u32 type;
				} mem;
			};
		} info;
		struct {
			u32 function, misc;
			u64 status;
			union {
				struct {
					u16 year;
					u8 month, day, hour, minute, second, pad;
					u32 ns;
				} time;
				struct {
					u64 name, size, data;
					struct guid guid;
				} variable;
				struct {
					u64 size, name;
					struct guid guid;
				} next;
				struct {
					u32 attr, pad;
					u64 most, left, largest;
				} space;
			};
		} call;
		u8 all[128];
	};
};
_Static_assert(sizeof(struct op) == 136, "xen_platform_op");

static struct op op;
static const struct guid ours = { { 0x78, 0x56, 0x34, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 } };
static u16 our_name[] = { 'T', 'a', 'n', 'd', 'e', 'm', 0 };
static const char text[] = "a variable's value";

static s64 platform_op(u32 cmd)
{
	op.cmd = cmd, op.version = 0x03000001;
	return HC1(platform_op, &op);
}

static s64 ask(u32 index)
{
	op.info.type = EFI_INFO, op.info.index = index;
	return platform_op(FIRMWARE_INFO);
}

static s64 call(u32 function, u32 misc)
{
	op.call.function = function, op.call.misc = misc, op.call.status = ~0ul;
	return platform_op(EFI_CALL);
}

static s64 variable(u32 function, u32 misc, const void *name, u64 size, void *data)
{
	op.call.variable.name = (u64)name, op.call.variable.size = size, op.call.variable.data = (u64)data;
	op.call.variable.guid = ours;
	return call(function, misc);
}

static void facts(void)
{
	check_result(ask(VERSION), 0, "version");
	check(op.info.version >> 16 == 2, "version %#x", op.info.version);
	check_result(ask(RT_VERSION), 0, "version of the services");
	check(op.info.version >> 16 == 2, "version of the services %#x", op.info.version);
	check_result(ask(CONFIG_TABLE), 0, "configuration tables");
	u64 table = op.info.config.addr;
	check(op.info.config.count > 2 && op.info.config.count < 100, "%u configuration tables", op.info.config.count);

	memset(pages[0], 0xff, PAGE);
	op.info.vendor.name = (u64)pages[0], op.info.vendor.bytes = 64;
	check_result(ask(VENDOR), 0, "vendor");
	check(pages[0][0] == 'E' && pages[0][1] == 0 && pages[0][2] == 'D', "the vendor starts with %#x", pages[0][0]);
	memset(pages[0], 0xff, PAGE);
	op.info.vendor.name = (u64)pages[0], op.info.vendor.bytes = 5;
	check_result(ask(VENDOR), 0, "vendor, cut");
	check(pages[0][2] == 'D' && pages[0][4] == 0xff, "more than there is room for");
	op.info.vendor.name = 0x123456789, op.info.vendor.bytes = 64;
	check_result(ask(VENDOR), -EFAULT, "vendor to nowhere");

	op.info.mem.addr = table, op.info.mem.size = ~0ul;
	check_result(ask(MEM_INFO), 0, "what the tables lie in");
	check(op.info.mem.type == 6, "the tables lie in memory of type %u", op.info.mem.type);
	check(op.info.mem.size > 0 && op.info.mem.size < 1ul << 30, "which has %#lx bytes", op.info.mem.size);
	op.info.mem.addr = 1ul << 50, op.info.mem.size = 1;
	check_result(ask(MEM_INFO), -ESRCH, "what is where nothing is");
	check_refused(ask(100), "an unknown fact");
}

static void variables(void)
{
	check_result(variable(SET_VARIABLE, 7, our_name, sizeof(text), (void *)text), 0, "SetVariable");
	check(op.call.status == 0, "SetVariable: status %#lx", op.call.status);
	check_result(variable(GET_VARIABLE, 0, our_name, 100, pages[1]), 0, "GetVariable");
	check(op.call.status == 0 && op.call.misc == 7, "GetVariable: status %#lx, attributes %u", op.call.status, op.call.misc);
	check(op.call.variable.size == sizeof(text) && !memcmp(pages[1], text, sizeof(text)), "it has become '%s', %lu bytes",
	      (char *)pages[1], op.call.variable.size);
	check_result(variable(GET_VARIABLE, 0, our_name, 3, pages[1]), 0, "GetVariable without room");
	check(op.call.status == ERROR(TOO_SMALL) && op.call.variable.size == sizeof(text), "without room: status %#lx, %lu bytes",
	      op.call.status, op.call.variable.size);
	check_result(variable(GET_VARIABLE, 0, our_name, 100, (void *)0x123456789), -EFAULT, "GetVariable to nowhere");
	check_result(variable(GET_VARIABLE, 0, (void *)0x123456789, 100, pages[1]), -EFAULT, "GetVariable without a name");
	check_result(variable(SET_VARIABLE, 7, our_name, 100, (void *)0x123456789), -EFAULT, "SetVariable from nowhere");
	check_result(variable(GET_VARIABLE, 1, our_name, 100, pages[1]), -EINVAL, "GetVariable with a flag");
	check_refused(variable(GET_VARIABLE, 0, our_name, ~0ul, pages[1]), "GetVariable with all room there is");
	check_refused(variable(SET_VARIABLE, 7, our_name, ~0ul, pages[1]), "SetVariable of everything");
	/* A name that never ends. */
	static u16 endless[3 * PAGE];
	for (u32 i = 0; i < COUNT(endless); i++)
		endless[i] = 'x';
	s64 result = variable(GET_VARIABLE, 0, endless, 100, pages[1]);
	check(result < 0 || op.call.status >> 63, "an endless name: result %ld, status %#lx", result, op.call.status);

	bool found = false;
	u32 count = 0;
	memset(pages[2], 0, PAGE);
	op.call.next.guid = (struct guid){ { 0 } };
	do {
		op.call.next.size = 1024, op.call.next.name = (u64)pages[2];
		if (!check_result(call(GET_NEXT_NAME, 0), 0, "GetNextVariableName"))
			break;
		found |= !memcmp(pages[2], our_name, sizeof(our_name));
	} while (!op.call.status && ++count < 1000);
	check(op.call.status == ERROR(NOT_FOUND), "the last name: status %#lx", op.call.status);
	check(count > 5 && found, "%u names, ours %s", count, found ? "among them" : "missing");
	op.call.next.size = ~0ul, op.call.next.name = (u64)pages[2];
	check_refused(call(GET_NEXT_NAME, 0), "GetNextVariableName with all room there is");
	op.call.next.size = 64, op.call.next.name = 0x123456789;
	check_result(call(GET_NEXT_NAME, 0), -EFAULT, "GetNextVariableName to nowhere");

	op.call.space.attr = 7;
	check_result(call(QUERY_INFO, 0), 0, "QueryVariableInfo");
	check(op.call.status == 0 && op.call.space.most >= op.call.space.left && op.call.space.left > 0,
	      "QueryVariableInfo: status %#lx, %lu of %lu bytes", op.call.status, op.call.space.left, op.call.space.most);
	check_result(variable(SET_VARIABLE, 7, our_name, 0, pages[1]), 0, "deleting");
	check(op.call.status == 0, "deleting: status %#lx", op.call.status);
	check_result(variable(GET_VARIABLE, 0, our_name, 100, pages[1]), 0, "GetVariable of none");
	check(op.call.status == ERROR(NOT_FOUND), "GetVariable of none: status %#lx", op.call.status);
}

/* Where the code of guests/firmware begins, and with it its services that do nothing wrong. */
static u64 firmware_code(void)
{
	enum { LINKED = 0x4000000, RUNTIME_CODE = 5 };
	for (u64 address = LINKED; address < LINKED + (1 << 20); address += PAGE) {
		op.info.mem.addr = address, op.info.mem.size = 1;
		if (!ask(MEM_INFO) && op.info.mem.type == RUNTIME_CODE)
			return address;
	}
	check(false, "there is no code of run-time services");
	return 0;
}

/* Breakpoints of ours mean our memory: one where the firmware has its code is none to that, and all are there afterwards. */
static void breakpoints(s64 expected)
{
	static volatile u64 watched;
	check_result(HC2(set_debugreg, 0, firmware_code()), 0, "DR0");
	check_result(HC2(set_debugreg, 1, &watched), 0, "DR1");
	check_result(HC2(set_debugreg, 7, 1 << 0 | 1 << 2 | 1 << 20 | 2 << 22), 0, "DR7");
	check_result(call(QUERY_INFO, 0), expected, "a service with a breakpoint in it");
	u64 vector = PROBE("movq $1, (%0)\n\tnop", : : "r"(&watched) : "r11", "memory");
	check(vector == 1, "a write to the watched word gives %ld", vector);
	check_result(HC2(set_debugreg, 7, 0x400), 0, "DR7");
}

/* Made by guests/firmware: GetTime does what firmware must not do. */
static void faulty_firmware(u32 fault)
{
	enum { RETURNS = 11, NR_FAULTS };
	u64 before[2] = { 0x1122334455667788, 0x99aabbccddeeff00 }, after[2];
	for (u32 n = 0; n < 2; n++) {
		op.call.function = GET_TIME, op.call.misc = 0, op.cmd = EFI_CALL, op.version = 0x03000001;
		s64 result;
		asm volatile("movups %0, %%xmm1" : : "m"(before));
		result = HC1(platform_op, &op);
		asm volatile("movups %%xmm1, %0" : "=m"(after));
		check(result == (fault < RETURNS && fault ? -EOPNOTSUPP : 0), "fault %u, call %u: result %ld", fault, n, result);
		check(!memcmp(before, after, sizeof(before)), "xmm1 has become %#lx", after[0]);
	}
	/* Nobody knows in what state it is: no other service is called either. */
	check_result(call(QUERY_INFO, 0), fault < RETURNS && fault ? -EOPNOTSUPP : 0, "another service");
	breakpoints(fault < RETURNS && fault ? -EOPNOTSUPP : 0);
	check(fault < NR_FAULTS, "there is no fault %u", fault);
	/* And everything goes on. */
	u64 until = now_ns() + 20000000;
	while (now_ns() < until)
		HC1(sched_op, 0);
	audit();
}

static bool number_of_fault(u32 *fault)
{
	static const char key[] = "faulty=";
	for (const char *at = start_info->cmd_line; *at; at++)
		if (!memcmp(at, key, sizeof(key) - 1)) {
			at += sizeof(key) - 1;
			for (*fault = 0; *at >= '0' && *at <= '9'; at++)
				*fault = *fault * 10 + *at - '0';
			return true;
		}
	return false;
}

void test_main(void)
{
	u32 fault;
	if (number_of_fault(&fault)) {
		faulty_firmware(fault);
		return;
	}
	if (ask(VERSION) == -ENOSYS) {
		check_result(call(GET_TIME, 0), -ENOSYS, "a service without UEFI");
		skip("this machine was not started by UEFI");
	}
	facts();
	memset(&op, 0, sizeof(op));
	check_result(call(GET_TIME, 0), 0, "GetTime");
	check(op.call.status == 0 && op.call.time.year > 2000 && op.call.time.month <= 12 && op.call.time.hour < 24,
	      "GetTime: status %#lx, year %u, month %u, hour %u", op.call.status, op.call.time.year, op.call.time.month,
	      op.call.time.hour);
	check_result(call(GET_TIME, 1), -EINVAL, "GetTime with a flag");
	check_result(call(SET_WAKEUP_TIME, 4), -EINVAL, "SetWakeupTime with an unknown flag");
	check_result(call(QUERY_CAPSULE, 0), -ENOSYS, "QueryCapsuleCapabilities");
	check_result(call(100, 0), -ENOSYS, "an unknown service");
	variables();
	/* The SSE registers are ours, whatever the firmware does with them. */
	u64 before[2] = { 0x1122334455667788, 0x99aabbccddeeff00 }, after[2];
	op.call.function = GET_TIME, op.call.misc = 0, op.cmd = EFI_CALL;
	asm volatile("movups %0, %%xmm1" : : "m"(before));
	HC1(platform_op, &op);
	asm volatile("movups %%xmm1, %0" : "=m"(after));
	check(!memcmp(before, after, sizeof(before)), "xmm1 has become %#lx", after[0]);
}
