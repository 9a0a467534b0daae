/*
 * nbdclient DEVICE ADDRESS PORT: DEVICE is the disk that a server has there for who asks for it by NBD, for as long as both are connected; without an end, if nothing
 * happens. Requests wait as long as the server does not answer. When the connection is over those that wait fail, and this program ends.
 *
 *   nbd connected BYTES   the device is ready soon
 *   nbd FAIL why          it was not to be had (status 1), or is lost (status 3)
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/nbd.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The fixed newstyle handshake: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md */
#define HELLO "NBDMAGICIHAVEOPT"
#define OPTION "IHAVEOPT"
enum { FIXED_NEWSTYLE = 1, NO_ZEROES = 2, EXPORT_NAME = 1, SECTOR = 512 };

struct __attribute__((packed)) greeting {
	char hello[16];
	uint16_t flags;
};
struct __attribute__((packed)) wish {
	uint32_t flags;
	char option[8];
	uint32_t kind, len;
};
struct __attribute__((packed)) disk {
	uint64_t bytes;
	uint16_t flags;
};

static int status = 1;

static void fail(const char *why)
{
	printf("nbd FAIL %s: %s\n", why, strerror(errno));
	exit(status);
}

static void receive(int fd, void *what, size_t len)
{
	if (recv(fd, what, len, MSG_WAITALL) != (ssize_t)len)
		fail("the server does not answer");
}

static void tell(int device, unsigned long what, unsigned long value)
{
	if (ioctl(device, what, value) < 0)
		fail("the kernel does not take it");
}

int main(int argc, char **argv)
{
	struct wish wish = { htobe32(FIXED_NEWSTYLE | NO_ZEROES), OPTION, htobe32(EXPORT_NAME), 0 };
	struct sockaddr_in at = { .sin_family = AF_INET };
	int device, server, on = 1;
	struct greeting greeting;
	struct disk disk;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 4 || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1)
		return 2;
	at.sin_port = htons(atoi(argv[3]));
	server = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(server, (void *)&at, sizeof(at)))
		fail("no connection");
	receive(server, &greeting, sizeof(greeting));
	errno = EPROTO;
	if (memcmp(greeting.hello, HELLO, sizeof(greeting.hello)) || !(be16toh(greeting.flags) & NO_ZEROES))
		fail("that is no such server");
	if (send(server, &wish, sizeof(wish), 0) != sizeof(wish))
		fail("nothing can be sent");
	receive(server, &disk, sizeof(disk));
	device = open(argv[1], O_RDWR);
	if (device < 0)
		fail("no such device");
	tell(device, NBD_SET_BLKSIZE, SECTOR);
	tell(device, NBD_SET_SIZE_BLOCKS, be64toh(disk.bytes) / SECTOR);
	tell(device, NBD_SET_FLAGS, be16toh(disk.flags));
	tell(device, NBD_SET_SOCK, server);
	printf("nbd connected %llu\n", (unsigned long long)be64toh(disk.bytes));
	status = 3;
	ioctl(device, NBD_DO_IT);
	fail("the connection is over");
}
