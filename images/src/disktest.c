/*
 * disktest DEVICE MIB GENERATION [SECONDS]: reads and checks the first MIB mebibytes, which the host filled, then writes the
 * next MIB mebibytes with data of GENERATION and reads them back. Direct, asynchronous I/O, 32 requests in flight.
 * The host checks the written half again after the machine is off. Each block carries its number, so that a block
 * that went to the wrong place is noticed. No request may take longer than SECONDS (60): the driver domain may be started anew meanwhile.
 * Prints one line and returns 0 if every block is right.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "mark.h"
#include "pattern.h"

enum { BLOCK = 65536, DEPTH = 32 };
#define DISK_STREAM(generation, block) (((uint64_t)(generation) << 40) + (block))

static aio_context_t ctx;
static struct timespec limit = { .tv_sec = 60 };
static int fd;
static uint8_t *buf[DEPTH];
static struct iocb cb[DEPTH];

static void fail(const char *why, uint64_t block)
{
	printf("disk FAIL %s at block %llu\n", why, (unsigned long long)block);
	exit(1);
}

static void fill(uint8_t *p, uint64_t generation, uint64_t block)
{
	pattern_fill(p, BLOCK, DISK_STREAM(generation, block));
}

static void submit(int slot, int op, uint64_t block)
{
	struct iocb *one = &cb[slot];

	memset(one, 0, sizeof(*one));
	one->aio_lio_opcode = op;
	one->aio_fildes = fd;
	one->aio_buf = (uint64_t)(uintptr_t)buf[slot];
	one->aio_nbytes = BLOCK;
	one->aio_offset = block * BLOCK;
	one->aio_data = block;
	if (syscall(SYS_io_submit, ctx, 1L, &one) != 1)
		fail("request refused", block);
}

/* Waits for one request; gives its slot. */
static int complete(void)
{
	struct io_event ev;

	if (syscall(SYS_io_getevents, ctx, 1L, 1L, &ev, &limit) != 1)
		fail("stuck: no request finished in time", 0);
	if (ev.res != BLOCK)
		fail("I/O error", ev.data);
	return (struct iocb *)(uintptr_t)ev.obj - cb;
}

static void check(uint8_t *p, uint64_t generation, uint64_t block)
{
	static uint8_t want[BLOCK];

	fill(want, generation, block);
	if (memcmp(want, p, BLOCK))
		fail(generation == 1 ? "wrong data read" : "wrong data read back", block);
}

static void sweep(int op, uint64_t first, uint64_t count, uint64_t generation)
{
	uint64_t next = first, done = 0;
	int slot, busy = 0;

	for (slot = 0; slot < DEPTH && next < first + count; slot++, busy++, next++) {
		if (op == IOCB_CMD_PWRITE)
			fill(buf[slot], generation, next);
		submit(slot, op, next);
	}
	while (done < count) {
		slot = complete();
		if (op == IOCB_CMD_PREAD)
			check(buf[slot], generation, cb[slot].aio_data);
		done++;
		if (next < first + count) {
			if (op == IOCB_CMD_PWRITE)
				fill(buf[slot], generation, next);
			submit(slot, op, next++);
		}
	}
}

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	uint64_t count, generation;
	long long start;
	int i;

	if (argc < 4 || argc > 5)
		return 2;
	count = strtoull(argv[2], NULL, 0) * 1048576 / BLOCK;
	generation = strtoull(argv[3], NULL, 0);
	if (argc > 4)
		limit.tv_sec = strtoull(argv[4], NULL, 0);
	fd = open(argv[1], O_RDWR | O_DIRECT);
	if (fd < 0)
		fail("cannot open the disk", 0);
	if (syscall(SYS_io_setup, (long)DEPTH, &ctx))
		fail("no asynchronous I/O", 0);
	for (i = 0; i < DEPTH; i++)
		if (posix_memalign((void **)&buf[i], 4096, BLOCK))
			fail("no memory", 0);
	MARK(14);
	start = now_ms();
	sweep(IOCB_CMD_PREAD, 0, count, 1);
	sweep(IOCB_CMD_PWRITE, count, count, generation);
	if (fsync(fd))
		fail("flush failed", 0);
	sweep(IOCB_CMD_PREAD, count, count, generation);
	MARK(15);
	printf("disk ok read=%llu written=%llu block_bytes=%d ms=%lld\n", (unsigned long long)(2 * count),
	       (unsigned long long)count, BLOCK, now_ms() - start);
	return 0;
}
