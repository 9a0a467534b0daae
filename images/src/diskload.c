/*
 * diskload DEVICE FIRST-MIB MIB: writes blocks at random in that range (MIB is a power of two), with flushes, and reads them back at random, until it gets
 * SIGTERM; then all of them. Direct, asynchronous I/O, 32 requests in flight. What each block holds is remembered here, so a write
 * that was lost, came twice too late, or went elsewhere is seen. The sum at the end is of what all of them should hold: testbed/src/medium.rs
 * compares it with the medium. If blocks were wrong all are written and read once more before, so that the medium has to be right in the end.
 *
 *   gap FROM LENGTH, bins FROM N N N...   as netprobe says of answers
 *   wrong BLOCK at MS: ...                a block was read that holds other bytes: all of them of an earlier write or of another block, or none such
 *   error BLOCK                           a request or a flush failed
 *   disk ok|FAIL verified=N wrong=N errors=N flushes=N sum=HEX
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gaps.h"
#include "pattern.h"

enum { BLOCK = 4096, DEPTH = 32, STUCK_S = 300, GAP_MS = 5, ROUNDS_PER_FLUSH = 4 };

static aio_context_t ctx;
static int fd;
static uint8_t *buf[DEPTH];
static struct iocb cb[DEPTH];
static uint64_t first, count, *generation;
static uint64_t verified, wrong, errors, flushes;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void fill(uint8_t *p, uint64_t block)
{
	pattern_fill(p, BLOCK, (generation[block] << 32) + first + block);
}

static uint64_t sum_of_all(void)
{
	static uint8_t want[BLOCK];
	uint64_t sum = 0;

	for (uint64_t block = 0; block < count; block++) {
		fill(want, block);
		sum = sum * 0x100000001b3ull + checksum(want, BLOCK);
	}
	return sum;
}

static void finish(const char *why)
{
	int ok = !wrong && !errors && !*why;

	printf("disk %s%s verified=%llu wrong=%llu errors=%llu flushes=%llu sum=%llx\n", ok ? "ok" : "FAIL", why, (unsigned long long)verified,
	       (unsigned long long)wrong, (unsigned long long)errors, (unsigned long long)flushes,
	       (unsigned long long)(generation ? sum_of_all() : 0));
	exit(!ok);
}

/* Says whose bytes those are that came in the place of a block's. */
static void tell_wrong(const uint8_t *p, const uint8_t *want, uint64_t block)
{
	static uint8_t whole[BLOCK];
	uint64_t head, same = 0;

	memcpy(&head, p, sizeof(head));
	for (unsigned n = 0; n < BLOCK; n++)
		same += p[n] == want[n];
	printf("wrong %llu at %llu: of write %llu %llu bytes are right, ", (unsigned long long)block, (unsigned long long)now_ms(),
	       (unsigned long long)generation[block], (unsigned long long)same);
	for (uint64_t other = 0; other < count; other++) {
		/* It may be one whose write has not begun. */
		for (uint64_t write = generation[other] + 1; write; write--) {
			if (pattern_word((write << 32) + first + other, 0) == head) {
				pattern_fill(whole, BLOCK, (write << 32) + first + other);
				printf("it %s write %llu of block %llu, of which %llu is the last\n", memcmp(whole, p, BLOCK) ? "begins as" : "is",
				       (unsigned long long)write, (unsigned long long)other, (unsigned long long)generation[other]);
				return;
			}
		}
	}
	printf("it begins with %016llx\n", (unsigned long long)head);
}

static void check(uint8_t *p, uint64_t block)
{
	static uint8_t want[BLOCK];

	fill(want, block);
	verified++;
	if (memcmp(want, p, BLOCK)) {
		wrong++;
		tell_wrong(p, want, block);
	}
}

static void failed(uint64_t block)
{
	errors++;
	printf("error %llu\n", (unsigned long long)block);
}

static void submit(int slot, int op, uint64_t block)
{
	struct iocb *one = &cb[slot];

	memset(one, 0, sizeof(*one));
	one->aio_lio_opcode = op;
	one->aio_fildes = fd;
	one->aio_buf = (uint64_t)(uintptr_t)buf[slot];
	one->aio_nbytes = BLOCK;
	one->aio_offset = (first + block) * BLOCK;
	one->aio_data = block;
	if (syscall(SYS_io_submit, ctx, 1L, &one) != 1)
		finish(" a request was refused;");
}

/* Waits for so many requests of one kind. A write that failed may be there or not: it is done again. */
static void complete(int busy, int op)
{
	struct timespec limit = { .tv_sec = STUCK_S };
	struct io_event ev;
	long done;

	while (busy--) {
		/* Who is told to end meanwhile still waits for this sweep. */
		do
			done = syscall(SYS_io_getevents, ctx, 1L, 1L, &ev, &limit);
		while (done < 0 && errno == EINTR);
		if (done != 1)
			finish(" stuck: no request finished;");
		int slot = (struct iocb *)(uintptr_t)ev.obj - cb;

		came(GAP_MS);
		if (ev.res != BLOCK) {
			failed(ev.data);
			usleep(100000);
			submit(slot, op, ev.data);
			busy++;
		} else if (op == IOCB_CMD_PREAD) {
			check(buf[slot], ev.data);
		}
	}
}

/* So many blocks from `from` on, with an odd `step` between them. */
static void sweep(int op, uint64_t from, uint64_t step, int busy)
{
	asked_anew();
	for (int slot = 0; slot < busy; slot++) {
		uint64_t block = (from + slot * step) % count;

		if (op == IOCB_CMD_PWRITE) {
			generation[block]++;
			fill(buf[slot], block);
		}
		submit(slot, op, block);
	}
	complete(busy, op);
}

static void flush(void)
{
	flushes++;
	asked_anew();
	if (fsync(fd))
		failed(count);
	came(GAP_MS);
}

static void sweep_all(int op)
{
	for (uint64_t at = 0; at < count; at += DEPTH)
		sweep(op, at, 1, DEPTH);
	flush();
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	first = strtoull(argv[2], NULL, 0) * 1048576 / BLOCK;
	count = strtoull(argv[3], NULL, 0) * 1048576 / BLOCK;
	generation = calloc(count, sizeof(*generation));
	fd = open(argv[1], O_RDWR | O_DIRECT);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count < DEPTH || count & (count - 1))
		finish(" the mebibytes are no power of two;");
	if (fd < 0 || !generation || syscall(SYS_io_setup, (long)DEPTH, &ctx))
		finish(" no disk, or no asynchronous I/O;");
	for (int slot = 0; slot < DEPTH; slot++)
		if (posix_memalign((void **)&buf[slot], BLOCK, BLOCK))
			finish(" no memory;");
	signal(SIGTERM, stop);
	sweep_all(IOCB_CMD_PWRITE);
	for (uint64_t round = 1; !stopped; round++) {
		/* An odd step, and a count that is a power of two: no block comes twice in a round. */
		uint64_t chance = pattern_word(99, round), step = (chance >> 40) * 2 + 1;

		sweep(IOCB_CMD_PWRITE, chance % count, step, DEPTH);
		if (round % ROUNDS_PER_FLUSH == 0)
			flush();
		sweep(IOCB_CMD_PREAD, pattern_word(98, round) % count, step, DEPTH);
		usleep(20000);
		fill_bins();
	}
	sweep_all(IOCB_CMD_PREAD);
	if (wrong) {
		sweep_all(IOCB_CMD_PWRITE);
		sweep_all(IOCB_CMD_PREAD);
	}
	finish("");
}
