/*
 * hvmem RAM-KIB: how much of the machine's RAM is neither domain 0's nor free, that is, kept by the hypervisor and the
 * firmware. Asks the hypervisor through Linux' privcmd device, as the tools do.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { MEMORY_OP = 12, SYSCTL = 35, CURRENT_RESERVATION = 3, PHYSINFO = 3, SYSCTL_VERSION = 0x15, SELF = 0x7ff0 };

struct hypercall {
	uint64_t op, arg[5];
};
struct physinfo {
	uint32_t cmd, version;
	uint32_t threads_per_core, cores_per_socket, nr_cpus, max_cpu_id, nr_nodes, max_node_id, cpu_khz, capabilities;
	uint32_t arch_capabilities, pad;
	uint64_t total_pages, free_pages, scrub_pages, outstanding_pages, max_mfn;
	uint32_t hw_cap[8];
	uint8_t rest[128];
};

static int fd;

static long call(uint64_t op, uint64_t a, void *b)
{
	struct hypercall h = { .op = op, .arg = { a, (uintptr_t)b } };

	if (op == SYSCTL)
		h.arg[0] = (uintptr_t)b;
	return ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h);
}

int main(int argc, char **argv)
{
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	struct physinfo *info = (void *)(page + 64);
	uint16_t *self = (void *)page;
	long dom0;

	fd = open("/dev/xen/privcmd", O_RDWR);
	if (argc != 2 || fd < 0 || page == MAP_FAILED) {
		printf("hvmem FAIL no privcmd\n");
		return 1;
	}
	*self = SELF;
	dom0 = call(MEMORY_OP, CURRENT_RESERVATION, self);
	info->cmd = PHYSINFO;
	info->version = SYSCTL_VERSION;
	if (call(SYSCTL, 0, info) < 0 || dom0 < 0) {
		printf("hvmem FAIL the hypervisor does not tell\n");
		return 1;
	}
	printf("hvmem ok kept_kib=%lld dom0_kib=%ld free_kib=%llu total_kib=%llu\n",
	       atoll(argv[1]) - (long long)(dom0 + info->free_pages) * 4, dom0 * 4, (unsigned long long)info->free_pages * 4,
	       (unsigned long long)info->total_pages * 4);
	return 0;
}
