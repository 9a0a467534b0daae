/* Two vCPUs pause and unpause a domain: while one of them has paused it, it does not run. (cpus: 3) (vcpus: 2) */
#include "domains.h"

const char test_name[] = "pauses";

enum { OTHER = 5, ROUNDS = 4000 };

static struct vcpu_context context;
static volatile u64 rounds[2], ran_while_paused[2], refused[2];

static void pause_and_look(u32 who)
{
	struct domctl request = { 0 };
	volatile u64 *counter = (u64 *)pages[2];
	for (u32 i = 0; i < ROUNDS; i++) {
		refused[who] += domctl(OTHER, DOMCTL_PAUSE, &request) != 0;
		u64 before = *counter;
		for (u32 n = 0; n < 300; n++)
			asm volatile("pause");
		ran_while_paused[who] += *counter != before;
		refused[who] += domctl(OTHER, DOMCTL_UNPAUSE, &request) != 0;
		rounds[who]++;
	}
}

static void __attribute__((noreturn)) second_entry(void)
{
	pause_and_look(1);
	for (;;)
		HC3(vcpu_op, VCPUOP_down, 1, 0);
}

void test_main(void)
{
	struct domctl request = { 0 };
	need_vcpu(1);
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	make_counting_domain(OTHER, pages[2], &context);
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	check(counts((u64 *)pages[2]), "the domain does not run");
	start_vcpu(1, second_entry, pages[32]);
	pause_and_look(0);
	while (HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 1)
		HC1(sched_op, SCHEDOP_yield);
	for (u32 who = 0; who < 2; who++) {
		check(rounds[who] == ROUNDS, "vCPU %u: %lu rounds", who, rounds[who]);
		check(refused[who] == 0, "vCPU %u: %lu requests were refused", who, refused[who]);
		check(ran_while_paused[who] == 0, "the domain ran in %lu of %u pauses of vCPU %u", ran_while_paused[who], ROUNDS,
		      who);
	}
	check(counts((u64 *)pages[2]), "the domain does not run in the end");
	check_result(update_va(pages[2], 0, 2), 0, "letting its counter go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}
