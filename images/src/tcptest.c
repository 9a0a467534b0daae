/*
 * tcptest serve | put HOST MIB [PAUSE-MS] | get HOST MIB [PAUSE-MS]: a TCP stream whose every byte is known, at port 7001.
 *
 * A request is two 64-bit numbers: 1 (put) or 2 (get), and a count of 64 KiB blocks. Block n is stream n of the pattern.
 * Who receives checks each block; after a put the server answers with the number of blocks that were right.
 * Prints one line and returns 0 if every block is right. With a pause after each block, which may be of 0 ms, it says how many there were so far, and
 * waits as long as its kernel does.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "mark.h"
#include "pattern.h"

enum { PORT = 7001, BLOCK = 65536, PUT = 1, GET = 2, STUCK_S = 300, PATIENT_S = 1800 };

/* Negative: none, and nothing is said. */
static long pause_us = -1;
static const char *broken = "not all blocks were right";

static void fail(const char *why, uint64_t block)
{
	printf("tcp FAIL %s at block %llu\n", why, (unsigned long long)block);
	exit(1);
}

/* All of it, or -1: then `broken` says why. */
static int transfer(int fd, void *buf, size_t len, int writing)
{
	uint8_t *p = buf;

	while (len) {
		ssize_t n = writing ? write(fd, p, len) : read(fd, p, len);

		/* Limits of waiting have it told if its kernel was suspended meanwhile. */
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			broken = n ? strerror(errno) : "the other end closed the connection";
			return -1;
		}
		p += n;
		len -= n;
	}
	return 0;
}

/* So many blocks went, or came and were right. */
static void rest(uint64_t blocks)
{
	if (pause_us < 0)
		return;
	printf("tcp at %llu\n", (unsigned long long)blocks);
	if (pause_us)
		usleep(pause_us);
}

/* Sends `count` blocks; gives how many went. */
static uint64_t send_blocks(int fd, uint64_t count)
{
	static uint8_t block[BLOCK];
	uint64_t n;

	for (n = 0; n < count; n++) {
		pattern_fill(block, BLOCK, n);
		if (transfer(fd, block, BLOCK, 1))
			break;
		rest(n + 1);
	}
	return n;
}

/* Receives `count` blocks; gives how many came and were right. */
static uint64_t receive_blocks(int fd, uint64_t count)
{
	static uint8_t block[BLOCK], want[BLOCK];
	uint64_t n;

	for (n = 0; n < count; n++) {
		pattern_fill(want, BLOCK, n);
		if (transfer(fd, block, BLOCK, 0))
			break;
		if (memcmp(block, want, BLOCK)) {
			broken = "wrong data";
			break;
		}
		rest(n + 1);
	}
	return n;
}

static void limit_waiting(int fd)
{
	struct timeval limit = { .tv_sec = pause_us >= 0 ? PATIENT_S : STUCK_S };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static void answer(int fd)
{
	uint64_t request[2], right;

	limit_waiting(fd);
	if (transfer(fd, request, sizeof(request), 0))
		return;
	if (request[0] == GET) {
		send_blocks(fd, request[1]);
	} else if (request[0] == PUT) {
		right = receive_blocks(fd, request[1]);
		transfer(fd, &right, sizeof(right), 1);
	}
}

static int serve(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int on = 1, fd, listener = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (void *)&here, sizeof(here)) || listen(listener, 16))
		fail("cannot listen", 0);
	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		fd = accept(listener, NULL, NULL);
		if (fd >= 0 && fork() == 0) {
			answer(fd);
			_exit(0);
		}
		close(fd);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	uint64_t request[2], right;
	double start;
	int fd;

	if (argc == 2 && !strcmp(argv[1], "serve"))
		return serve();
	if (argc != 4 && argc != 5)
		return 2;
	if (argc == 5)
		pause_us = strtoul(argv[4], NULL, 0) * 1000;
	setvbuf(stdout, NULL, _IOLBF, 0);
	request[0] = strcmp(argv[1], "put") ? GET : PUT;
	request[1] = strtoull(argv[3], NULL, 0) * 1048576 / BLOCK;
	signal(SIGPIPE, SIG_IGN);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	limit_waiting(fd);
	if (inet_pton(AF_INET, argv[2], &to.sin_addr) != 1 || connect(fd, (void *)&to, sizeof(to)))
		fail(strerror(errno), 0);
	MARK(12);
	start = now();
	if (transfer(fd, request, sizeof(request), 1))
		fail(broken, 0);
	if (request[0] == GET) {
		right = receive_blocks(fd, request[1]);
	} else {
		right = send_blocks(fd, request[1]);
		if (right == request[1] && transfer(fd, &right, sizeof(right), 0))
			fail(broken, request[1]);
	}
	if (right != request[1])
		fail(broken, right);
	MARK(13);
	printf("tcp ok %s blocks=%llu ms=%.0f\n", argv[1], (unsigned long long)right, (now() - start) * 1e3);
	return 0;
}
