/*
 * seeks DEVICE BYTES DEPTH SECONDS: reads BYTES bytes at places at random, DEPTH such requests under way, by direct, asynchronous I/O, for so long. Prints
 * one line: how many there were, and how long one took.
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
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "pattern.h"

enum { MAX_DEPTH = 32, PAGE = 4096, MAX_BYTES = 32 * PAGE, MAX_TIMES = 1 << 20 };

static aio_context_t ctx;
static int fd;
static long bytes;
static uint64_t places;
static uint8_t *buf[MAX_DEPTH];
static struct iocb cb[MAX_DEPTH];
static uint64_t since_us[MAX_DEPTH];
static uint32_t took_us[MAX_TIMES];
static uint64_t nr_asked, nr_done;

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void fail(const char *why)
{
	printf("seeks FAIL %s after %llu reads\n", why, (unsigned long long)nr_done);
	exit(1);
}

static void ask(int slot)
{
	struct iocb *one = &cb[slot];

	memset(one, 0, sizeof(*one));
	one->aio_lio_opcode = IOCB_CMD_PREAD;
	one->aio_fildes = fd;
	one->aio_buf = (uint64_t)(uintptr_t)buf[slot];
	one->aio_nbytes = bytes;
	one->aio_offset = pattern_word(41, nr_asked++) % places * bytes;
	one->aio_data = slot;
	since_us[slot] = now_us();
	if (syscall(SYS_io_submit, ctx, 1L, &one) != 1)
		fail("a request was refused");
}

static int by_time(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
	uint64_t size, start, until, sum = 0, nr_times;
	struct io_event ev[MAX_DEPTH];
	int depth;

	if (argc != 5)
		return 2;
	bytes = atol(argv[2]);
	depth = atoi(argv[3]);
	if (bytes < PAGE || bytes > MAX_BYTES || bytes % PAGE || depth < 1 || depth > MAX_DEPTH)
		return 2;
	fd = open(argv[1], O_RDONLY | O_DIRECT);
	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &size) || !(places = size / bytes))
		fail("no such disk");
	if (syscall(SYS_io_setup, (long)depth, &ctx))
		fail("no asynchronous I/O");
	for (int slot = 0; slot < depth; slot++)
		if (posix_memalign((void **)&buf[slot], PAGE, bytes))
			fail("no memory");
	start = now_us();
	until = start + strtoull(argv[4], NULL, 0) * 1000000;
	for (int slot = 0; slot < depth; slot++)
		ask(slot);
	while (now_us() < until) {
		long n = syscall(SYS_io_getevents, ctx, 1L, (long)depth, ev, NULL);

		for (long i = 0; i < n; i++) {
			int slot = ev[i].data;

			if (ev[i].res != bytes)
				fail("a request failed");
			if (nr_done < MAX_TIMES)
				took_us[nr_done] = now_us() - since_us[slot];
			nr_done++;
			ask(slot);
		}
	}
	nr_times = nr_done < MAX_TIMES ? nr_done : MAX_TIMES;
	if (!nr_times)
		fail("nothing was read");
	for (uint64_t n = 0; n < nr_times; n++)
		sum += took_us[n];
	qsort(took_us, nr_times, sizeof(took_us[0]), by_time);
	printf("seeks reads=%llu ms=%llu mean_us=%llu half_us=%u p99_us=%u max_us=%u\n", (unsigned long long)nr_done,
	       (unsigned long long)(now_us() - start) / 1000, (unsigned long long)(sum / nr_times), took_us[nr_times / 2],
	       took_us[nr_times - 1 - nr_times / 100], took_us[nr_times - 1]);
	return 0;
}
