/*
 * blocks NAME DEVICE read|write random|sequential BYTES COUNT DEPTH: a load of `./tandem bench disk`: direct,
 * asynchronous requests, DEPTH of them under way, between two marks that the profiling plugin sees.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "mark.h"

enum { MAX_DEPTH = 64, PIECE = 4096, MAX_PIECES = 16 };

/* A request's pages. Neighbours are apart in memory: how many could be joined would depend on which pages were free. */
static struct iovec pieces[MAX_DEPTH][MAX_PIECES];

static void fail(const char *why, long at)
{
	printf("TANDEM: load FAIL %s at request %ld\n", why, at);
	exit(1);
}

int main(int argc, char **argv)
{
	static struct iocb request[MAX_DEPTH], *list[MAX_DEPTH];
	static struct io_event event[MAX_DEPTH];
	long bytes, count, depth, warm, limit, sent = 0, done = 0, n, i;
	int writing, random, fd, free_slot[MAX_DEPTH], free_slots = 0;
	uint64_t size, blocks, x = 88172645463325252ull;
	aio_context_t context = 0;
	char *data;

	if (argc != 8)
		return 2;
	writing = !strcmp(argv[3], "write");
	random = !strcmp(argv[4], "random");
	bytes = atol(argv[5]);
	count = atol(argv[6]);
	depth = atol(argv[7]);
	fd = open(argv[2], O_RDWR | O_DIRECT);
	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &size) || depth < 1 || depth > MAX_DEPTH)
		fail("no such disk", 0);
	if (bytes < PIECE || bytes % PIECE || bytes > PIECE * MAX_PIECES)
		fail("no such size", 0);
	blocks = size / bytes;
	data = mmap(NULL, 2 * bytes * depth, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	if (data == MAP_FAILED || !blocks || syscall(SYS_io_setup, MAX_DEPTH, &context))
		fail("no room for requests", 0);
	while (free_slots < depth) {
		for (i = 0; i < bytes / PIECE; i++) {
			pieces[free_slots][i].iov_base = data;
			pieces[free_slots][i].iov_len = PIECE;
			data += 2 * PIECE;
		}
		free_slot[free_slots] = free_slots;
		free_slots++;
	}
	/* A tenth, and 200 at most, before the window; none of those is under way when it begins. */
	warm = count / 10 < 200 ? count / 10 : 200;
	for (limit = warm; done < warm + count;) {
		for (n = 0; free_slots && sent < limit; n++, sent++) {
			int slot = free_slot[--free_slots];
			struct iocb *one = &request[slot];

			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			memset(one, 0, sizeof(*one));
			one->aio_data = slot;
			one->aio_fildes = fd;
			one->aio_lio_opcode = writing ? IOCB_CMD_PWRITEV : IOCB_CMD_PREADV;
			one->aio_buf = (uintptr_t)pieces[slot];
			one->aio_nbytes = bytes / PIECE;
			one->aio_offset = (random ? x : (uint64_t)sent) % blocks * bytes;
			list[n] = one;
		}
		if (n && syscall(SYS_io_submit, context, n, list) != n)
			fail("not taken", sent);
		n = syscall(SYS_io_getevents, context, 1, depth, event, NULL);
		for (i = 0; i < n; i++) {
			if ((long)event[i].res != bytes)
				fail("not done", done);
			free_slot[free_slots++] = event[i].data;
		}
		done += n;
		if (limit == warm && done == warm) {
			limit += count;
			MARK(2);
		}
	}
	MARK(3);
	printf("TANDEM: load %s units=%ld\n", argv[1], count);
	return 0;
}
