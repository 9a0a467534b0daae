/* domctl(set_virq_handler): which of the machine's virtual interrupts may be given to a domain, to which, and for how long. */
#include "domains.h"

const char test_name[] = "virq-handlers";

enum { SET_VIRQ_HANDLER = 66, INTERFACE_VERSION = 0x15 };
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

/* A domain that dies is told nothing any more, nor is the next one of its number. */
static void handler_dies(void)
{
	enum { HANDLER = 5, OTHER = 6 };
	volatile struct shared_info *shared = shared_info();
	struct bind_virq bind = { VIRQ_DOM_EXC, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &bind), 0, "bind_virq");
	u64 bit = 1ul << bind.port % 64;
	for (u32 round = 0; round < 2; round++) {
		check_result(create_domain(HANDLER), 0, "createdomain");
		if (round == 0) {
			check_result(give(VIRQ_DOM_EXC, HANDLER), 0, "exceptions of domains, for another domain");
			check_result(destroy_domain(HANDLER), 0, "destroydomain");
			check(domain_is_gone(HANDLER), "it never goes");
		}
	}
	__atomic_fetch_and(&shared->pending[bind.port / 64], ~bit, __ATOMIC_SEQ_CST);
	check_result(create_domain(OTHER), 0, "createdomain, for a third");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
	check(shared->pending[bind.port / 64] & bit, "domain 0 is not told of a domain's end");
	check_result(destroy_domain(HANDLER), 0, "destroydomain");
	check(domain_is_gone(HANDLER), "it never goes");
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
	handler_dies();
	version = 0x77;
	check_result(give(VIRQ_DOM_EXC, 0), -EACCES, "another version of the interface");
	check_result(HC1(domctl, 8), -EFAULT, "a bad pointer");
}
