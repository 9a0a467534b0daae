/*
 * domlife CYCLES: domain 0 builds tiny domains one after the other, as the tools do (privcmd, foreign mappings, pinned page
 * tables, a vCPU context), lets each run until it has left a mark in its memory and powered off, and destroys it. All
 * memory must come back.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY_OP = 12, MMUEXT_OP = 26, SYSCTL = 35, DOMCTL = 36, PHYSINFO = 3, INTERFACE_VERSION = 0x15 };
enum { CREATEDOMAIN = 1, DESTROYDOMAIN, UNPAUSE = 4, GETDOMAININFO, MAX_MEM = 11, SETVCPUCONTEXT, MAX_VCPUS = 15 };
enum { POPULATE_PHYSMAP = 6, CLAIM_PAGES = 24, PIN_L4 = 3, MAP_BATCH = 4, MAP_RESOURCE = 7, GRANT_TABLE = 1 };
enum { PAGE = 4096, ENTRIES = 512, PRESENT = 1, WRITABLE = 2, USER = 4 };
enum { SHUT_DOWN = 4, SHUTDOWN_CODE_SHIFT = 16, NO_DOMAIN = -1 };

/* The domain: its first pages, mapped from BASE on, and what is in them. Its program stores MAGIC in page DATA. */
enum { PAGES = 1024, CODE = 0, L4 = 2, L3, L2, L1, DATA = 8 };
#define BASE 0xffffffff80000000ull
#define MAGIC 0x6c69766573ull

static const uint8_t program[] = {
	0x48, 0xb8, 0x73, 0x65, 0x76, 0x69, 0x6c, 0x00, 0x00, 0x00, /* mov $MAGIC, %rax */
	0x48, 0xc7, 0xc1, 0x00, 0x80, 0x00, 0x80,                   /* mov $BASE + DATA * PAGE, %rcx */
	0x48, 0x89, 0x01,                                           /* mov %rax, (%rcx) */
	0x6a, 0x00, 0x48, 0x89, 0xe6,                               /* push $0 (power off); mov %rsp, %rsi */
	0xbf, 0x02, 0x00, 0x00, 0x00, 0xb8, 0x1d, 0x00, 0x00, 0x00, /* mov $2 (shutdown), %edi; mov $29, %eax */
	0x0f, 0x05, 0xeb, 0xfe,                                     /* syscall; jmp . */
};

struct hypercall {
	uint64_t op, arg[5];
};
struct domctl {
	uint32_t cmd, version;
	uint16_t domain, pad[3];
	union {
		uint32_t word[32];
		uint64_t quad[16];
	};
};
struct reservation {
	uint64_t extents, nr;
	uint32_t order, flags;
	uint16_t domain, pad[3];
};
struct mmuext {
	uint32_t cmd, pad;
	uint64_t arg1, arg2;
};
struct batch {
	uint32_t num;
	uint16_t domain;
	uint64_t addr;
	const uint64_t *frames;
	int *errors;
};
struct resource {
	uint16_t domain;
	uint32_t type, id, first;
	uint64_t num, addr;
};
/* vcpu_guest_context, as far as it is not zero here. */
struct context {
	uint8_t fpu[512];
	uint64_t flags, gpr[15], error_code, rip, cs, rflags, rsp, ss, segments[4];
	uint8_t traps[4096];
	uint64_t ldt[2], gdt[17], kernel_ss, kernel_sp, ctrlreg[8], rest[15];
};
_Static_assert(sizeof(struct context) == 5168, "vcpu_guest_context has 5168 bytes");

static int fd;
/* Memory that the hypervisor reads and writes: it must not be paged out. */
static struct shared {
	uint64_t mfn[PAGES];
	struct domctl domctl;
	struct context context;
	struct reservation reservation;
	struct mmuext mmuext;
	uint64_t sysctl[32];
} *s;

static void fail(const char *what, long long result)
{
	printf("domlife FAIL %s: %lld (errno %d)\n", what, result, errno);
	exit(1);
}

static long call(uint64_t op, uint64_t a, const void *b, uint64_t c, uint64_t d)
{
	struct hypercall h = { op, { a, (uintptr_t)b, c, d } };

	return ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h);
}

static long domctl(uint32_t cmd, int domain)
{
	struct hypercall h = { DOMCTL, { (uintptr_t)&s->domctl } };

	s->domctl.cmd = cmd;
	s->domctl.version = INTERFACE_VERSION;
	s->domctl.domain = domain;
	return ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h);
}

static void set(uint32_t cmd, int domain, uint64_t value)
{
	memset(&s->domctl, 0, sizeof(s->domctl));
	s->domctl.quad[0] = value;
	if (domctl(cmd, domain) < 0)
		fail("domctl", cmd);
}

/* getdomaininfo into s->domctl; its flags. */
static long state(int domain)
{
	memset(&s->domctl, 0, sizeof(s->domctl));
	if (domctl(GETDOMAININFO, domain) < 0 || s->domctl.domain != domain)
		return NO_DOMAIN;
	return s->domctl.word[1];
}

static uint64_t free_pages(void)
{
	struct hypercall h = { SYSCTL, { (uintptr_t)s->sysctl } };

	memset(s->sysctl, 0, sizeof(s->sysctl));
	s->sysctl[0] = (uint64_t)INTERFACE_VERSION << 32 | PHYSINFO;
	if (ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h) < 0)
		fail("physinfo", 0);
	return s->sysctl[7];
}

/* Maps frames of the domain; an error of one of them is the result. */
static int try_map(void **at, int domain, const uint64_t *frames, unsigned n, int rights)
{
	static int errors[PAGES];
	struct batch b = { n, domain, 0, frames, errors };
	unsigned i;

	*at = mmap(NULL, (size_t)n * PAGE, rights, MAP_SHARED, fd, 0);
	b.addr = (uintptr_t)*at;
	if (*at == MAP_FAILED)
		fail("mmap", n);
	memset(errors, 0, sizeof(errors));
	if (ioctl(fd, _IOC(_IOC_NONE, 'P', MAP_BATCH, sizeof(b)), &b) < 0)
		return -errno;
	for (i = 0; i < n; i++)
		if (errors[i])
			return errors[i];
	return 0;
}

static void *map(int domain, const uint64_t *frames, unsigned n, int rights)
{
	void *at;
	int error = try_map(&at, domain, frames, n, rights);

	if (error)
		fail("foreign mapping", error);
	return at;
}

static long reserve(uint64_t op, int domain, const uint64_t *list, uint64_t nr, uint32_t order)
{
	s->reservation = (struct reservation){ (uintptr_t)list, nr, order, 0, domain, { 0 } };
	return call(MEMORY_OP, op, &s->reservation, 0, 0);
}

static int create(void)
{
	memset(&s->domctl, 0, sizeof(s->domctl));
	s->domctl.word[7] = 1;               /* vCPUs */
	s->domctl.word[8] = 1023;            /* event channels */
	s->domctl.word[9] = (uint32_t)-1;    /* grant frames */
	s->domctl.word[10] = (uint32_t)-1;   /* maptrack frames */
	s->domctl.word[11] = 1;              /* grant table version */
	if (domctl(CREATEDOMAIN, 0) < 0)
		fail("createdomain", 0);
	return s->domctl.domain;
}

/* Half of the memory in single pages, half in one extent, and not one page more. */
static void populate(int domain)
{
	static uint64_t more;
	long done;
	int i;

	if ((done = reserve(CLAIM_PAGES, domain, NULL, PAGES, 0)))
		fail("claim_pages", done);
	for (i = 0; i < PAGES; i++)
		s->mfn[i] = i;
	if ((done = reserve(POPULATE_PHYSMAP, domain, s->mfn, PAGES / 2, 0)) != PAGES / 2)
		fail("populate_physmap, single pages", done);
	if ((done = reserve(POPULATE_PHYSMAP, domain, s->mfn + PAGES / 2, 1, 9)) != 1)
		fail("populate_physmap, an extent", done);
	for (i = PAGES / 2; i < PAGES; i++)
		s->mfn[i] = s->mfn[PAGES / 2] + i - PAGES / 2;
	more = PAGES;
	if ((done = reserve(POPULATE_PHYSMAP, domain, &more, 1, 0)))
		fail("more memory than max_mem", done);
}

/* Program and page tables; the tables are mapped read-only. */
static void fill(int domain)
{
	uint64_t *page = map(domain, s->mfn, PAGES, PROT_READ | PROT_WRITE);
	int i;

	for (i = 0; i < PAGES * ENTRIES; i++)
		if (page[i])
			fail("memory of a new domain is not clean: word", i);
	memcpy(page + CODE * ENTRIES, program, sizeof(program));
	page[L4 * ENTRIES + 511] = s->mfn[L3] << 12 | PRESENT | WRITABLE | USER;
	page[L3 * ENTRIES + 510] = s->mfn[L2] << 12 | PRESENT | WRITABLE | USER;
	for (i = 0; i < PAGES / ENTRIES; i++)
		page[L2 * ENTRIES + i] = s->mfn[L1 + i] << 12 | PRESENT | WRITABLE | USER;
	for (i = 0; i < PAGES; i++)
		page[L1 * ENTRIES + i] = s->mfn[i] << 12 | PRESENT | USER | (i >= L4 && i < DATA ? 0 : WRITABLE);
	munmap(page, (size_t)PAGES * PAGE);
}

/* From now on nobody may write the tables, but they can be read. */
static void pin(int domain)
{
	uint64_t *table;
	void *at;
	long result;

	s->mmuext = (struct mmuext){ PIN_L4, 0, s->mfn[L4], 0 };
	result = call(MMUEXT_OP, (uintptr_t)&s->mmuext, (void *)1, 0, domain);
	if (result)
		fail("pin", result);
	if (!try_map(&at, domain, &s->mfn[L1], 1, PROT_READ | PROT_WRITE))
		fail("a page table can be mapped writable", 0);
	munmap(at, PAGE);
	table = map(domain, &s->mfn[L1], 1, PROT_READ);
	if (table[DATA] >> 12 != s->mfn[DATA] || !(table[DATA] & USER))
		fail("a table's entry", (long long)table[DATA]);
	munmap(table, PAGE);
}

/* The pages that are the hypervisor's, filled in as the tools do: shared info, and the grant table. */
static void lent_pages(int domain)
{
	struct resource grants = { domain, GRANT_TABLE, 0, 0, 1, 0 };
	uint64_t frame;
	uint8_t *at;

	if (state(domain) == NO_DOMAIN || s->domctl.quad[1] != PAGES)
		fail("getdomaininfo", (long long)s->domctl.quad[1]);
	frame = s->domctl.quad[6];
	at = map(domain, &frame, 1, PROT_READ | PROT_WRITE);
	at[1] = 1; /* events are masked */
	munmap(at, PAGE);
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	grants.addr = (uintptr_t)at;
	if (ioctl(fd, _IOC(_IOC_NONE, 'P', MAP_RESOURCE, sizeof(grants)), &grants) < 0)
		fail("grant table", 0);
	at[0] = at[1] = 0;
	munmap(at, PAGE);
}

static void start(int domain)
{
	struct context *c = &s->context;

	memset(c, 0, sizeof(*c));
	c->flags = 0x24; /* in kernel mode, online */
	c->rip = BASE + CODE * PAGE;
	c->rsp = c->kernel_sp = BASE + (CODE + 2) * PAGE;
	c->rflags = 0x200;
	c->cs = 0xe033;
	c->ss = c->kernel_ss = 0xe02b;
	c->ctrlreg[3] = s->mfn[L4] << 12;
	memset(&s->domctl, 0, sizeof(s->domctl));
	s->domctl.quad[1] = (uintptr_t)c;
	if (domctl(SETVCPUCONTEXT, domain) < 0)
		fail("setvcpucontext", 0);
	set(UNPAUSE, domain, 0);
}

static void wait_for_mark(int domain, const uint64_t *data)
{
	long flags = 0;
	int tries;

	for (tries = 0; tries < 5000 && !((flags = state(domain)) & SHUT_DOWN); tries++)
		usleep(1000);
	if (!(flags & SHUT_DOWN) || flags >> SHUTDOWN_CODE_SHIFT & 0xff)
		fail("it does not power off: flags", flags);
	if (*data != MAGIC)
		fail("it left no mark", (long long)*data);
}

/* A page that is still mapped here keeps the dead domain until it is let go. */
static void destroy(int domain, uint64_t *data)
{
	int tries;

	set(DESTROYDOMAIN, domain, 0);
	if (state(domain) == NO_DOMAIN || s->domctl.quad[1] != 1)
		fail("pages of a dead domain", (long long)s->domctl.quad[1]);
	if (*data != MAGIC)
		fail("a page that is still mapped changed", (long long)*data);
	munmap(data, PAGE);
	for (tries = 0; tries < 1000 && state(domain) != NO_DOMAIN; tries++)
		usleep(1000);
	if (state(domain) != NO_DOMAIN)
		fail("it stays", domain);
}

static void live_and_die(void)
{
	int domain = create();
	uint64_t *data;

	set(MAX_VCPUS, domain, 1);
	set(MAX_MEM, domain, PAGES * (PAGE / 1024));
	populate(domain);
	fill(domain);
	pin(domain);
	lent_pages(domain);
	data = map(domain, &s->mfn[DATA], 1, PROT_READ);
	start(domain);
	wait_for_mark(domain, data);
	destroy(domain, data);
}

int main(int argc, char **argv)
{
	int i, cycles = argc > 1 ? atoi(argv[1]) : 10;
	uint64_t before, after = 0;

	fd = open("/dev/xen/privcmd", O_RDWR);
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED | MAP_POPULATE, -1, 0);
	if (fd < 0 || s == MAP_FAILED)
		fail("no privcmd", fd);
	/* The first one may leave tables of the tools' own behind. */
	live_and_die();
	before = free_pages();
	for (i = 0; i < cycles; i++)
		live_and_die();
	/* A hypervisor may need a moment to clean up. */
	for (i = 0; i < 300 && (after = free_pages()) < before; i++)
		usleep(10000);
	printf("domlife %s cycles=%d lost_pages=%lld\n", after >= before ? "ok" : "FAIL", cycles, (long long)(before - after));
	return after < before;
}
