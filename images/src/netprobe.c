/*
 * netprobe PEER-ADDRESS INTERVAL-MS: asks the peer at UDP port 7000 for a datagram every so often, for ever, and says when answers
 * came: who watches it sees when the way to the peer was interrupted, in the clock of the machine that it runs in.
 *
 *   gap FROM LENGTH      no answer came for so long, though something was asked; times are ms since it began
 *   bins FROM N N N...   so many answers came in each 100 ms from then on
 *   wrong NUMBER         an answer had other bytes than it should have
 *   counts ASKED ANSWERS so many so far, once a second
 *
 * What is lost is not asked for again. Where a send would wait, nothing is sent.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "gaps.h"
#include "pattern.h"

/* What has waited for a way comes at once. */
enum { PULL = 4, DATA = 5, PORT = 7000, MAX_PAYLOAD = 1448, GAP_MS = 10, COUNTS_MS = 1000, ROOM = 8 << 20 };
#define MAGIC 0x4d444e54u

struct datagram {
	struct {
		uint32_t magic, kind;
		uint64_t seq, sum;
	} h;
	uint8_t body[MAX_PAYLOAD];
};

/* As nettest's: of every eighth one another. */
static size_t length_of(uint64_t seq)
{
	return seq % 8 ? MAX_PAYLOAD : pattern_word(77, seq) % MAX_PAYLOAD + 1;
}

/* The next question, and the first one that nobody has answered, nor any after it. */
static uint64_t next_seq, unanswered;
static uint64_t nr_asked, nr_answers;

static void ask(int fd)
{
	uint64_t seq = next_seq++;
	struct datagram d = { .h = { .magic = MAGIC, .kind = PULL, .seq = seq } };
	uint64_t count = 1;

	if (unanswered == seq)
		asked_anew();
	memcpy(d.body, &count, sizeof(count));
	d.h.sum = checksum(d.body, sizeof(count));
	/* Errors are those of ways that are not there: the next one tells. */
	nr_asked += send(fd, &d, sizeof(d.h) + sizeof(count), MSG_DONTWAIT) > 0;
}

static void take(int fd)
{
	static uint8_t want[MAX_PAYLOAD];
	struct datagram d;
	ssize_t len = recv(fd, &d, sizeof(d), MSG_DONTWAIT);

	if (len < (ssize_t)sizeof(d.h) || d.h.magic != MAGIC || d.h.kind != DATA)
		return;
	nr_answers++;
	pattern_fill(want, length_of(d.h.seq), d.h.seq);
	if ((size_t)len - sizeof(d.h) != length_of(d.h.seq) || memcmp(d.body, want, length_of(d.h.seq)))
		printf("wrong %llu\n", (unsigned long long)d.h.seq);
	came(GAP_MS);
	if (d.h.seq >= unanswered)
		unanswered = d.h.seq + 1;
}

static void tell_counts(void)
{
	static uint64_t due;

	if (now_ms() < due)
		return;
	printf("counts %llu %llu\n", (unsigned long long)nr_asked, (unsigned long long)nr_answers);
	due = now_ms() + COUNTS_MS;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct pollfd p = { .events = POLLIN };
	uint64_t interval, due;
	int room = ROOM;

	if (argc != 3 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	interval = strtoull(argv[2], NULL, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	p.fd = socket(AF_INET, SOCK_DGRAM, 0);
	setsockopt(p.fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	if (connect(p.fd, (void *)&to, sizeof(to)))
		return 1;
	for (due = now_ms();;) {
		uint64_t now = now_ms();

		if (now >= due) {
			ask(p.fd);
			/* What was missed while it did not run is not made good. */
			due = now + interval;
		}
		if (poll(&p, 1, due - now_ms() > interval ? 0 : (int)(due - now_ms())) > 0)
			take(p.fd);
		fill_bins();
		tell_counts();
	}
}
