/*
 * owner NAME DOMID: says which machine frames the domain owns, and which of them are page tables, as ranges; the host finds out by them whose code
 * ran and whose memory was touched. Asks the hypervisor for the kinds of all frames: those of others are invalid.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { SYSCTL = 35, DOMCTL = 36, PHYSINFO = 3, GETPAGEFRAMEINFO3 = 61, INTERFACE_VERSION = 0x15, BATCH = 1024 };
#define INVALID 0xf0000000u

struct hypercall {
	uint64_t op, arg[5];
};
/* Memory that the hypervisor reads and writes: it must not be paged out. */
static struct shared {
	uint64_t frame[BATCH];
	struct {
		uint32_t cmd, version;
		uint16_t domain, pad[3];
		uint64_t num, array, rest[14];
	} domctl;
	uint64_t sysctl[32];
} *s;
static int fd;

/* A range of frames that are something, which is said when it ends. */
struct range {
	const char *what;
	uint64_t first, count;
};

static void add(struct range *range, const char *name, uint64_t frame, int is_that)
{
	if (is_that && !range->count++)
		range->first = frame;
	if (is_that || !range->count)
		return;
	printf("TANDEM: %s %s %llx %llx\n", range->what, name, (unsigned long long)range->first,
	       (unsigned long long)range->count);
	range->count = 0;
}

static long call(uint64_t op, void *what)
{
	struct hypercall h = { op, { (uintptr_t)what } };

	return ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h);
}

int main(int argc, char **argv)
{
	struct range frames = { .what = "frames" }, tables = { .what = "tables" };
	uint64_t frame, last;
	int i;

	fd = open("/dev/xen/privcmd", O_RDWR);
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	if (argc != 3 || fd < 0 || s == MAP_FAILED) {
		printf("TANDEM: owner FAIL no privcmd\n");
		return 1;
	}
	s->sysctl[0] = (uint64_t)INTERFACE_VERSION << 32 | PHYSINFO;
	if (call(SYSCTL, s->sysctl) < 0) {
		printf("TANDEM: owner FAIL no physinfo\n");
		return 1;
	}
	last = s->sysctl[10];
	for (frame = 0; frame <= last; frame += BATCH) {
		for (i = 0; i < BATCH; i++)
			s->frame[i] = frame + i;
		memset(&s->domctl, 0, sizeof(s->domctl));
		s->domctl.cmd = GETPAGEFRAMEINFO3;
		s->domctl.version = INTERFACE_VERSION;
		s->domctl.domain = atoi(argv[2]);
		s->domctl.num = BATCH;
		s->domctl.array = (uintptr_t)s->frame;
		if (call(DOMCTL, &s->domctl) < 0) {
			printf("TANDEM: owner FAIL no kinds of frames from %llx on\n", (unsigned long long)frame);
			return 1;
		}
		for (i = 0; i < BATCH; i++) {
			int is_valid = (s->frame[i] & INVALID) != INVALID;
			unsigned level = s->frame[i] >> 28 & 7;

			add(&frames, argv[1], frame + i, is_valid);
			add(&tables, argv[1], frame + i, is_valid && level >= 1 && level <= 4);
		}
	}
	add(&frames, argv[1], frame, 0);
	add(&tables, argv[1], frame, 0);
	return 0;
}
