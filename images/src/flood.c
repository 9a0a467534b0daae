/*
 * flood ADDRESS BYTES SECONDS [EVERY-US]: sends datagrams in frames of BYTES bytes to the peer's port 9, which nobody answers, as fast as its kernel takes
 * them; the kernel makes it wait when its queue is full. Or one in so many microseconds: what it could not send in time it sends as soon as it can. Prints
 * one line: how many the kernel took.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DISCARD = 9, HEADERS = 42, MAX_FRAME = 1514, BETWEEN_LOOKS = 64 };

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(DISCARD) };
	uint64_t start = now_us(), sent = 0, taken = 0, every = 0, end;
	static char body[MAX_FRAME];
	int fd, bytes;

	if (argc < 4 || argc > 5 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	bytes = atoi(argv[2]);
	if (bytes < HEADERS || bytes > MAX_FRAME)
		return 2;
	end = start + strtoull(argv[3], NULL, 0) * 1000000;
	if (argc == 5)
		every = strtoull(argv[4], NULL, 0);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (connect(fd, (void *)&to, sizeof(to)))
		return 1;
	for (;;) {
		uint64_t now = now_us();

		if (now >= end)
			break;
		if (every && start + sent * every > now) {
			usleep(start + sent * every - now);
			continue;
		}
		for (int n = 0; n < (every ? 1 : BETWEEN_LOOKS); n++, sent++)
			taken += send(fd, body, bytes - HEADERS, 0) == bytes - HEADERS;
	}
	printf("flood taken=%llu bytes=%llu ms=%llu\n", (unsigned long long)taken, (unsigned long long)taken * bytes,
	       (unsigned long long)(now_us() - start) / 1000);
	return 0;
}
