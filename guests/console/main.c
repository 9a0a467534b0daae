/* console_io: what domain 0 writes is printed, odd lengths and bad pointers do no harm. */
#include "guest.h"

const char test_name[] = "console";

void test_main(void)
{
	static const char text[] = "  console: a line\n";
	check_result(HC3(console_io, 0, sizeof(text) - 1, text), 0, "a line");
	check_result(HC3(console_io, 0, 0, text), 0, "nothing");
	check_refused(HC3(console_io, 0, 10, 0x123456000), "a line from nowhere");
	check_refused(HC3(console_io, 0, 10, 0xffff830000000000), "a line from the hypervisor");
	update_va(pages[1], 0, 2);
	memset(pages[0] + PAGE - 3, '\n', 3);
	check_refused(HC3(console_io, 0, 12, pages[0] + PAGE - 3), "more than is mapped");
	char in[8];
	s64 read = HC3(console_io, 1, sizeof(in), in);
	check(read == 0, "%ld bytes were read", read);
	check_result(HC3(console_io, 99, 0, 0), -ENOSYS, "command 99");
}
