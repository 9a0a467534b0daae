/*
 * nettest DEVICE PEER-ADDRESS MIB WINDOW: moves MIB mebibytes in each direction with the peer at UDP port 7000.
 * nettest serve: is that peer, for one at a time.
 *
 * Sending: datagrams of varying length, numbered, each with a checksum; at most WINDOW of them unacknowledged. The
 * peer counts what it got, what was damaged and what was missing. Receiving: WINDOW datagrams are asked for at a time
 * and checked here in the same way. Nothing is ever sent again, so one lost or damaged frame fails the test.
 * Prints one line and returns 0 if everything arrived intact.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "mark.h"
#include "pattern.h"

enum { PUSH = 1, ACK = 2, SYNC = 3, PULL = 4, DATA = 5 };
enum { PORT = 7000, MAX_PAYLOAD = 1448, STUCK_MS = 10000 };
#define MAGIC 0x4d444e54u

struct head {
	uint32_t magic, kind;
	uint64_t seq, sum;
};
struct report {
	uint64_t got, damaged, missing;
	uint64_t due, came; /* the first time that one was missing: its number, and the one in its place */
};
struct datagram {
	struct head h;
	uint8_t body[MAX_PAYLOAD];
};

static int fd;
static struct sockaddr_in *asker; /* who serves answers to this one; others are connected */

static void fail(const char *why, uint64_t at)
{
	printf("net FAIL %s at datagram %llu\n", why, (unsigned long long)at);
	exit(1);
}

static void missed(const struct report *r, uint64_t at)
{
	char why[128];

	snprintf(why, sizeof(why), "peer missed frames, %llu in all, first it got %llu in the place of %llu; noticed",
		 (unsigned long long)r->missing, (unsigned long long)r->came, (unsigned long long)r->due);
	fail(why, at);
}

/* Full frames mostly; every eighth one has another length, down to a few bytes. */
static size_t length_of(uint64_t seq)
{
	return seq % 8 ? MAX_PAYLOAD : pattern_word(77, seq) % MAX_PAYLOAD + 1;
}

static void transmit(uint32_t kind, uint64_t seq, struct datagram *d, size_t len)
{
	d->h.magic = MAGIC;
	d->h.kind = kind;
	d->h.seq = seq;
	d->h.sum = checksum(d->body, len);
	while (sendto(fd, d, sizeof(d->h) + len, 0, (void *)asker, asker ? sizeof(*asker) : 0) < 0)
		usleep(1000);
}

/* Length of the next datagram's body, or -1 when nothing came for `ms`. */
static int receive(struct datagram *d, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t n;

	if (poll(&p, 1, ms) <= 0)
		return -1;
	n = recv(fd, d, sizeof(*d), 0);
	if (n < (ssize_t)sizeof(d->h) || d->h.magic != MAGIC)
		return -1;
	return n - sizeof(d->h);
}

/*
 * One question and answer before the numbered datagrams. Without it Linux would still hold the first of them back for
 * the peer's hardware address, and those that follow on another CPU could overtake them.
 */
static void greet(void)
{
	struct datagram in;

	transmit(SYNC, 0, &in, 0);
	if (receive(&in, STUCK_MS) < (int)sizeof(struct report) || in.h.kind != ACK)
		fail("no answer from the peer", 0);
}

static void send_all(uint64_t count, unsigned window)
{
	struct datagram d, in;
	struct report r;
	uint64_t seq = 0, acked = 0, synced = 0;

	while (acked < count) {
		while (seq < count && seq - acked < window) {
			pattern_fill(d.body, length_of(seq), seq);
			transmit(PUSH, seq, &d, length_of(seq));
			seq++;
		}
		/* The peer acknowledges every 16 datagrams by itself. */
		if (synced != seq && (seq == count || window < 32)) {
			transmit(SYNC, seq, &d, 0);
			synced = seq;
		}
		if (receive(&in, STUCK_MS) < (int)sizeof(r) || in.h.kind != ACK)
			fail("transmit stuck: no acknowledgement", seq);
		memcpy(&r, in.body, sizeof(r));
		if (r.damaged)
			fail("peer got damaged frames", in.h.seq);
		if (r.missing)
			missed(&r, in.h.seq);
		acked = in.h.seq;
	}
}

static void receive_all(uint64_t count, unsigned window)
{
	struct datagram d;
	uint64_t seq = 0, asked = 0, n;
	int len;

	while (seq < count) {
		if (asked - seq <= window / 2 && asked < count) {
			n = window / 2 + 1;
			if (n > count - asked)
				n = count - asked;
			memcpy(d.body, &n, 8);
			transmit(PULL, asked, &d, 8);
			asked += n;
		}
		len = receive(&d, STUCK_MS);
		if (len < 0)
			fail("receive stuck: nothing came", seq);
		if (d.h.kind != DATA)
			continue;
		if (d.h.seq != seq)
			fail("frame lost or out of order", seq);
		if ((size_t)len != length_of(seq) || checksum(d.body, len) != d.h.sum)
			fail("damaged frame received", seq);
		seq++;
	}
}

/* The peer's part: acknowledges every 16 datagrams, and when it is asked; sends what is asked for. */
static void serve(void)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct report r = { 0 };
	uint64_t due = 0, count;
	unsigned unanswered = 0;
	struct datagram d;
	socklen_t size;
	ssize_t len;

	if (bind(fd, (void *)&from, sizeof(from)))
		fail("the port is taken", 0);
	asker = &from;
	for (;;) {
		size = sizeof(from);
		len = recvfrom(fd, &d, sizeof(d), 0, (void *)&from, &size) - (ssize_t)sizeof(d.h);
		if (len < 0 || d.h.magic != MAGIC)
			continue;
		if (d.h.kind == PUSH) {
			if ((size_t)len != length_of(d.h.seq) || checksum(d.body, len) != d.h.sum) {
				r.damaged++;
			} else if (d.h.seq != due) {
				if (!r.missing) {
					r.due = due;
					r.came = d.h.seq;
				}
				r.missing += d.h.seq > due ? d.h.seq - due : due - d.h.seq;
			} else {
				r.got++;
			}
			due = d.h.seq + 1;
		} else if (d.h.kind == SYNC && !d.h.seq) {
			memset(&r, 0, sizeof(r));
			due = 0;
		} else if (d.h.kind == PULL) {
			memcpy(&count, d.body, 8);
			for (uint64_t seq = d.h.seq, end = seq + count; seq < end; seq++) {
				pattern_fill(d.body, length_of(seq), seq);
				transmit(DATA, seq, &d, length_of(seq));
			}
		}
		if (d.h.kind == SYNC || (d.h.kind == PUSH && ++unanswered == 16)) {
			unanswered = 0;
			memcpy(d.body, &r, sizeof(r));
			transmit(ACK, due, &d, sizeof(r));
		}
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
	int room = 8 << 20; /* a full window must not be dropped for want of socket memory */
	unsigned window;
	uint64_t count;
	double t0, t1, t2;

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	if (argc != 5)
		return 2;
	inet_pton(AF_INET, argv[2], &to.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, argv[1], strlen(argv[1]));
	count = strtoull(argv[3], NULL, 0) * 1048576 / 1357 + 1; /* 1357: mean of length_of() */
	window = atoi(argv[4]);
	if (connect(fd, (void *)&to, sizeof(to)))
		fail("no route to the peer", 0);
	greet();
	MARK(10);
	t0 = now();
	send_all(count, window);
	t1 = now();
	receive_all(count, window);
	t2 = now();
	MARK(11);
	printf("net ok sent=%llu received=%llu send_ms=%.0f receive_ms=%.0f\n", (unsigned long long)count,
	       (unsigned long long)count, (t1 - t0) * 1e3, (t2 - t1) * 1e3);
	return 0;
}
