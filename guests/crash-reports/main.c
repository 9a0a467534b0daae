/*
 * A domain that the hypervisor ends on all of its vCPUs at once: one report says why, the end is told before it, and the registers are in the
 * console's ring. (cpus: 4) (differs: stock Xen says it in other words)
 */
#include "domains.h"

const char test_name[] = "crash-reports";

enum { OTHER = 5, VCPUS = 3, SHUTDOWN = 1 << 2, CODE_SHIFT = 16, CRASH = 3 };

static struct vcpu_context context;
static char ring[1 << 16];

/* What the console's ring has; how much. */
static u32 read_ring(void)
{
	struct {
		u32 command, version;
		u8 clear, incremental;
		u16 pad;
		u32 index;
		char *buffer;
		u32 count, more[27];
	} request = { .command = 1, .version = 0x15, .buffer = ring, .count = sizeof(ring) };
	_Static_assert(sizeof(request) == 136, "xen_sysctl");
	check_result(HC1(sysctl, &request), 0, "readconsole");
	return request.count;
}

/* Where `text` is for the first time from `at` on; `end` if nowhere. */
static u32 find(u32 at, u32 end, const char *text)
{
	u32 len = 0;
	while (text[len])
		len++;
	for (; at + len <= end; at++)
		if (!memcmp(ring + at, text, len))
			return at;
	return end;
}

static u32 count(u32 end, const char *text)
{
	u32 nr = 0;
	for (u32 at = find(0, end, text); at < end; at = find(at + 1, end, text))
		nr++;
	return nr;
}

static void make(const u8 *code, size_t len)
{
	struct domctl request = { .create = { .max_vcpus = VCPUS, .max_port = 1023, .max_grant_frames = 4, .max_maptrack_frames = 4,
					      .grant_version = 1 } };
	check_result(domctl(OTHER, DOMCTL_CREATE, &request), 0, "createdomain");
	request = (struct domctl){ .max_kib = 1024 };
	check_result(domctl(OTHER, DOMCTL_MAX_MEMORY, &request), 0, "max_mem");
	request = (struct domctl){ .max_vcpus = VCPUS };
	check_result(domctl(OTHER, DOMCTL_MAX_VCPUS, &request), 0, "max_vcpus");
	make_running_domain(OTHER, code, len, pages[2], &context);
	for (u32 n = 1; n < VCPUS; n++) {
		request = (struct domctl){ .vcpu_context = { .vcpu = n, .context = &context } };
		check_result(domctl(OTHER, DOMCTL_SET_CONTEXT, &request), 0, "setvcpucontext");
	}
}

void test_main(void)
{
	/* 1: pause; cmpl $0, CODE_VA + PAGE; je 1b; mov $8, %esp; iret, whose frame is where nothing is mapped */
	static const u8 code[] = { 0xf3, 0x90, 0x83, 0x3c, 0x25, 0x00, 0x10, 0x40, 0x00, 0x00, 0x74, 0xf4,
				   0xbc, 0x08, 0x00, 0x00, 0x00, 0xb8, 23, 0, 0, 0, 0x0f, 0x05 };
	struct domctl request = { 0 };
	make(code, sizeof(code));
	check_result(domctl(OTHER, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	/* All of them run by then. */
	for (u64 from = now_ns(); now_ns() - from < 100000000;)
		;
	*(volatile u32 *)pages[2] = 1;
	for (u64 from = now_ns(); now_ns() - from < 10000000000;) {
		check_result(domain_info(OTHER, &request), 0, "getdomaininfo");
		if (request.info.flags & SHUTDOWN)
			break;
		HC1(sched_op, SCHEDOP_yield);
	}
	check((request.info.flags >> CODE_SHIFT & 0xff) == CRASH, "flags %#x", request.info.flags);
	check_result(update_va(pages[2], 0, 2), 0, "letting its page go");
	check_result(destroy_domain(OTHER), 0, "destroydomain");
	/* Then none of its vCPUs is in the hypervisor. */
	check(domain_is_gone(OTHER), "it never goes");
	u32 end = read_ring();
	check(count(end, " crashed: iret") == 1, "%u reports", count(end, " crashed: iret"));
	check(count(end, " rax 0x") == 1, "registers: %u times", count(end, " rax 0x"));
	check(find(0, end, "d5 shut down, reason 3") < find(0, end, " crashed: iret"), "it is reported before its end is told");
}
