/*
 * owner NAME DOMID: says which machine frames the domain owns, as ranges; the host finds out by them whose code ran. Asks
 * the hypervisor for the kinds of all frames: those of others are invalid.
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

static long call(uint64_t op, void *what)
{
	struct hypercall h = { op, { (uintptr_t)what } };

	return ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h);
}

int main(int argc, char **argv)
{
	uint64_t frame, first = 0, count = 0, last;
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
			if ((s->frame[i] & INVALID) == INVALID) {
				if (count)
					printf("TANDEM: frames %s %llx %llx\n", argv[1], (unsigned long long)first,
					       (unsigned long long)count);
				count = 0;
			} else if (!count++) {
				first = frame + i;
			}
		}
	}
	if (count)
		printf("TANDEM: frames %s %llx %llx\n", argv[1], (unsigned long long)first, (unsigned long long)count);
	return 0;
}
