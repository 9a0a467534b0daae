/*
 * claim DOMID PAGES: sets memory aside for the domain, so that it can have so many pages in all; 0 gives it up. The builder
 * of domains does that for as long as it builds one; this lets a test do so for longer.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { MEMORY_OP = 12, CLAIM_PAGES = 24 };

struct hypercall {
	uint64_t op, arg[5];
};
struct reservation {
	uint64_t extents, nr_extents;
	uint32_t extent_order, flags;
	uint16_t domain;
};

int main(int argc, char **argv)
{
	int fd = open("/dev/xen/privcmd", O_RDWR);
	struct reservation *r = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	struct hypercall h = { MEMORY_OP, { CLAIM_PAGES, (uintptr_t)r } };

	if (argc != 3 || fd < 0 || r == MAP_FAILED) {
		printf("claim DOMID PAGES, in a domain with privcmd\n");
		return 2;
	}
	r->domain = atoi(argv[1]);
	r->nr_extents = strtoull(argv[2], NULL, 0);
	if (ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h) < 0) {
		perror("claim");
		return 1;
	}
	return 0;
}
