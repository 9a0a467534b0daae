/*
 * crash: gives the hypervisor a kernel stack that does not exist, through Linux' privcmd device. The next interrupt or system
 * call finds no place for its frame, so the hypervisor has to crash this domain; the kernel gets to know nothing of it. If it
 * runs something else first it sets its stack again, so this is done until it works.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

enum { STACK_SWITCH = 3, KERNEL_SS = 0xe02b, NOT_MAPPED = 0x1000 };

struct hypercall {
	uint64_t op, arg[5];
};

int main(void)
{
	struct hypercall h = { .op = STACK_SWITCH, .arg = { KERNEL_SS, NOT_MAPPED } };
	int fd = open("/dev/xen/privcmd", O_RDWR);

	while (fd >= 0 && ioctl(fd, _IOC(_IOC_NONE, 'P', 0, sizeof(h)), &h) >= 0)
		;
	printf("crash FAIL no privcmd\n");
	return 1;
}
