/* xen_version and vm_assist: what a kernel asks for before anything else. */
#include "guest.h"

const char test_name[] = "version-and-assists";

static void build_id(void)
{
	struct {
		u32 len;
		u8 id[60];
	} answer = { sizeof(answer.id), { 0 } };
	s64 bytes = HC2(xen_version, 10, 0);
	check(bytes > 0 && bytes <= (s64)sizeof(answer.id), "the build id has %ld bytes", bytes);
	check_result(HC2(xen_version, 10, &answer), bytes, "build_id");
	u8 any = 0;
	for (u32 i = 0; i < sizeof(answer.id); i++)
		any |= answer.id[i];
	check(any, "the build id is all zero");
	check(answer.len == sizeof(answer.id), "the room for it has changed");
	answer.len = 0;
	check_result(HC2(xen_version, 10, &answer), -EINVAL, "build_id without room");
	answer.len = bytes - 1;
	check_result(HC2(xen_version, 10, &answer), -105, "build_id with too little room");
	check_result(HC2(xen_version, 10, 0x123456789), -EFAULT, "build_id to nowhere");
}

void test_main(void)
{
	check(HC1(xen_version, 0) == 0x40011, "version %#lx", HC1(xen_version, 0));
	char *text = (char *)pages[0];
	memset(text, 0xff, PAGE);
	check_result(HC2(xen_version, 1, text), 0, "extraversion");
	check(text[0] == '.' || text[0] == 0, "extraversion starts with %#x", text[0]);
	check((u8)text[16] == 0xff, "extraversion is longer than 16 bytes");
	memset(text, 0xff, PAGE);
	check_result(HC2(xen_version, 3, text), 0, "capabilities");
	check(!memcmp(text, "xen-3.0-x86_64 ", 15), "capabilities are %s", text);
	check((u8)text[1024] == 0xff, "capabilities are longer than 1024 bytes");
	check_result(HC2(xen_version, 2, text), 0, "compile_info");
	check(text[0] && text[64] && text[112], "no compiler, person or date");
	check_result(HC2(xen_version, 4, text), 0, "changeset");
	u64 start = 0;
	check_result(HC2(xen_version, 5, &start), 0, "platform_parameters");
	check(start == 0xffff800000000000, "virt_start is %#lx", start);
	struct {
		u32 index, map;
	} f = { 0, 0 };
	check_result(HC2(xen_version, 6, &f), 0, "get_features");
	check((f.map & 0x8b0) == 0x8b0, "features %#x", f.map);
	check(!(f.map & 0x70f), "features %#x", f.map);
	f.index = 1;
	check_refused(HC2(xen_version, 6, &f), "features 32-63");
	check(HC1(xen_version, 7) == PAGE, "pagesize %ld", HC1(xen_version, 7));
	check_result(HC2(xen_version, 8, text), 0, "guest_handle");
	memset(text, 0xff, PAGE);
	check_result(HC2(xen_version, 9, text), 0, "commandline");
	bool has_console = false;
	for (u32 i = 0; i < 1000 && text[i]; i++)
		has_console |= !memcmp(text + i, "console=", 8);
	check(has_console, "the command line is %s", text);

	build_id();

	static const u64 assists[] = { 0, 2, 3, 5 };
	for (u32 i = 0; i < COUNT(assists); i++) {
		check(HC2(vm_assist, 0, assists[i]) == 0, "assist %lu cannot be enabled", assists[i]);
		check(HC2(vm_assist, 1, assists[i]) == 0, "assist %lu cannot be disabled", assists[i]);
	}
	check_refused(HC2(vm_assist, 0, 31), "assist 31");
	check_refused(HC2(vm_assist, 0, 64), "assist 64");
	check_refused(HC2(vm_assist, 2, 0), "command 2");
}
