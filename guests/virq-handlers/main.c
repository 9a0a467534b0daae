/* domctl(set_virq_handler): which of the machine's virtual interrupts may be given to a domain, and to which. */
#include "guest.h"

const char test_name[] = "virq-handlers";

enum { SET_VIRQ_HANDLER = 66, INTERFACE_VERSION = 0x15, EACCES = 13 };
enum { VIRQ_TIMER, VIRQ_DEBUG, VIRQ_CONSOLE, VIRQ_DOM_EXC, VIRQ_TBUF, VIRQ_DEBUGGER = 6, VIRQ_XENOPROF, VIRQ_CON_RING };

static u32 version = INTERFACE_VERSION;

static s64 give(u32 virq, u16 domain)
{
	struct {
		u32 cmd, version;
		u16 domain, pad[3];
		u32 virq, rest[31];
	} op = { SET_VIRQ_HANDLER, version, domain, { 0 }, virq, { 0 } };
	return HC1(domctl, &op);
}

void test_main(void)
{
	check_result(give(VIRQ_DOM_EXC, 0), 0, "exceptions of domains");
	check_result(give(VIRQ_DOM_EXC, 0), 0, "the same again");
	check_result(give(VIRQ_CONSOLE, 0), 0, "the console");
	check_result(give(VIRQ_CON_RING, 0), 0, "the console's ring");
	check_result(give(VIRQ_TIMER, 0), -EINVAL, "the timer");
	check_result(give(VIRQ_DEBUG, 0), -EINVAL, "the debug interrupt of a vCPU");
	check_result(give(24, 0), -EINVAL, "number 24");
	check_result(give(~0u, 0), -EINVAL, "the last number");
	check_result(give(VIRQ_DOM_EXC, 77), -ESRCH, "a domain that is not there");
	version = 0x77;
	check_result(give(VIRQ_DOM_EXC, 0), -EACCES, "another version of the interface");
	check_result(HC1(domctl, 8), -EFAULT, "a bad pointer");
}
