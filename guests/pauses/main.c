/*
 * Two vCPUs pause and unpause a domain: while one of them has paused it, it does not run; and when a pause has begun, it is on no CPU,
 * not even in the hypervisor. (cpus: 3) (vcpus: 2)
 */
#include "domains.h"

const char test_name[] = "pauses";

enum { OTHER = 5, ROUNDS = 4000, ROUNDS_IN_HYPERCALLS = 400 };

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
	go_down(1);
}

/* The domain makes requests that take a while: a GDT of 14 pages, which are looked through, and none. */
static void pauses_in_hypercalls(void)
{
	enum { RUNNING = 1 << 5, GDT_PAGES = 14 };
	static const u8 code[] = {
		/* 1: set_gdt(CODE_VA + PAGE + 64, 14 * 512); set_gdt(the same, 0) */
		0xb8, 2, 0, 0, 0, 0xbf, 0x40, 0x10, 0x40, 0x00, 0xbe, 0x00, 0x1c, 0x00, 0x00, 0x0f, 0x05,
		0xb8, 2, 0, 0, 0, 0xbf, 0x40, 0x10, 0x40, 0x00, 0x31, 0xf6, 0x0f, 0x05,
		/* lock incq CODE_VA + PAGE; jmp 1b */
		0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xeb, 0xd6,
	};
	static const u8 zeroes[PAGE];
	struct domctl request = { 0 };
	u64 gdt[GDT_PAGES] = { 0 };
	u32 still_running = 0, refusals = 0;
	check_result(create_domain(OTHER), 0, "createdomain");
	set_max_vcpus(OTHER);
	memset(&context, 0, sizeof(context));
	make_running_domain(OTHER, code, sizeof(code), pages[2], &context);
	check_result(populate_domain(OTHER, gdt, GDT_PAGES), GDT_PAGES, "pages for its GDT");
	for (u32 n = 0; n < GDT_PAGES; n++)
		fill_page_of(OTHER, gdt[n], zeroes, PAGE, 0);
	memcpy(pages[2] + 64, gdt, sizeof(gdt));
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	for (u32 n = 0; n < ROUNDS_IN_HYPERCALLS && counts((u64 *)pages[2]); n++) {
		refusals += domctl(OTHER, DOMCTL_PAUSE, &request) != 0;
		refusals += domctl(OTHER, DOMCTL_INFO, &request) != 0;
		still_running += (request.info.flags & RUNNING) != 0;
		refusals += domctl(OTHER, DOMCTL_UNPAUSE, &request) != 0;
	}
	check(counts((u64 *)pages[2]), "its requests are refused, or it does not run");
	check(refusals == 0, "%u requests were refused", refusals);
	check(still_running == 0, "it was on a CPU in %u of %u pauses", still_running, ROUNDS_IN_HYPERCALLS);
	check_result(update_va(pages[2], 0, 2), 0, "letting its counter go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
}

/* Whether its writes are logged, and who reads the log, changes nothing for who pauses it. */
static void pauses_and_the_log(void)
{
	enum { SHADOW_OP = 10, OFF = 0, ENABLE_LOGDIRTY = 2, CLEAN = 11 };
	volatile u64 *counter = (u64 *)pages[2];
	struct domctl request = { .room = { ENABLE_LOGDIRTY } }, other = { 0 };
	check_result(domctl(OTHER, SHADOW_OP, &request), 0, "switching the log on");
	check(counts((u64 *)counter), "it does not run with a log");
	for (u32 i = 0; i < 100; i++) {
		struct domctl clean = { .room = { CLEAN } };
		if (!check_result(domctl(OTHER, SHADOW_OP, &clean), 0, "reading the log"))
			break;
	}
	check(counts((u64 *)counter), "it does not run when its log was read");
	check_result(domctl(OTHER, DOMCTL_PAUSE, &other), 0, "pausedomain");
	request.room[0] = CLEAN;
	check_result(domctl(OTHER, SHADOW_OP, &request), 0, "reading the log of a paused domain");
	check(!counts((u64 *)counter), "it runs because its log was read");
	request.room[0] = OFF;
	check_result(domctl(OTHER, SHADOW_OP, &request), 0, "switching the log off");
	check(!counts((u64 *)counter), "it runs because it has no log any more");
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &other), 0, "unpausedomain");
	check(counts((u64 *)counter), "it does not run any more");
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &other), -EINVAL, "unpausedomain of one that is not paused");
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
	wait_until_down(1);
	for (u32 who = 0; who < 2; who++) {
		check(rounds[who] == ROUNDS, "vCPU %u: %lu rounds", who, rounds[who]);
		check(refused[who] == 0, "vCPU %u: %lu requests were refused", who, refused[who]);
		check(ran_while_paused[who] == 0, "the domain ran in %lu of %u pauses of vCPU %u", ran_while_paused[who], ROUNDS,
		      who);
	}
	check(counts((u64 *)pages[2]), "the domain does not run in the end");
	/* Debian's hypervisor has no log for a PV domain. */
	if (is_tandem())
		pauses_and_the_log();
	check_result(update_va(pages[2], 0, 2), 0, "letting its counter go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	check(domain_is_gone(OTHER), "it never goes");
	pauses_in_hypercalls();
}
