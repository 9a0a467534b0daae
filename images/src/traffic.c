/*
 * traffic WHAT...: the loads of `./tandem bench net`, each between two marks that the profiling plugin sees.
 *
 *   arm                     begins counting, and credits the random pool: unseeded, Linux hashes at every interrupt
 *   send NAME SIZE COUNT    datagrams in frames of SIZE bytes to the peer's port 9
 *   receive NAME ...        the same from the peer, which has 256 of them under way
 *   put NAME COUNT, get ... a TCP stream of COUNT full segments, to or from the peer
 *   ping COUNT              echo requests, one at a time
 *   serve                   a web server for the next: one process, an answer a connection
 *   web NAME PORT PATH N    the peer fetches a page N times, eight connections at a time
 *   run NAME UNITS PROGRAM [ARGUMENT]...
 *                           what another program does until it ends
 *   offloads DEVICE on|off  checksums, scatter-gather and segmentation by the device
 *   together send|receive NAME SIZE COUNT GUESTS NUMBER
 *                           send or receive in so many guests at one time, of which this one has that number: they wait for each
 *                           other, the marks are number 0's, and its units are those of all
 *
 * Every load runs for a while before its window begins. One line says how many units the window had.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/random.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mark.h"

/* testbed/src/peer/load.rs has the same. */
enum { SYNC = 1, GENERATE, CREDIT, FETCH, MEET };
enum { CONTROL = 7010, SINK = 9, TAKES = 7020, GIVES = 7021 };
enum { HEADERS = 42, WINDOW = 256, CREDIT_EVERY = 64, SEGMENT = 1448, STUCK_MS = 20000 };
#define MAGIC 0x444f4c54u

struct message {
	uint32_t magic, kind;
	uint64_t a, b, c;
	char path[64];
};

/*
 * The CPU is to be the limit of a stream that is sent, so its socket has room for more than can be under way, and it moves this
 * much before its window: after slow start the congestion window grows for some hundred round trips. Otherwise microseconds
 * of the first round trips settle which limit holds, differently in each build.
 */
enum { SEND_BUFFER = 1 << 20, UNTIL_STEADY = 32 << 20 };

static char buffer[1 << 16];

static void fail(const char *why, long at)
{
	printf("TANDEM: load FAIL %s at %ld\n", why, at);
	exit(1);
}

static void say(const char *name, long units)
{
	printf("TANDEM: load %s units=%ld\n", name, units);
}

static struct sockaddr_in at(const char *host, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
		fail("no address", 0);
	return a;
}

static int connected(int type, int port)
{
	struct sockaddr_in to = at("10.9.0.1", port);
	int fd = socket(AF_INET, type, 0);

	if (fd < 0 || connect(fd, (void *)&to, sizeof(to)))
		fail("no connection", port);
	return fd;
}

static void tell_all(int fd, uint32_t kind, uint64_t a, uint64_t b, uint64_t c, const char *path)
{
	struct message m = { .magic = MAGIC, .kind = kind, .a = a, .b = b, .c = c };

	snprintf(m.path, sizeof(m.path), "%s", path);
	if (send(fd, &m, sizeof(m), 0) != sizeof(m))
		fail("cannot send", kind);
}

static void tell(int fd, uint32_t kind, uint64_t a, uint64_t b, const char *path)
{
	tell_all(fd, kind, a, b, 0, path);
}

/* The peer's answer to the last message. */
static struct message answer(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct message m = { 0 };

	if (poll(&p, 1, STUCK_MS * 10) <= 0 || recv(fd, &m, sizeof(m), 0) < 32 || m.magic != MAGIC)
		fail("no answer from the peer", 0);
	return m;
}

/* How many datagrams the peer's sink got so far. */
static uint64_t sunk(int fd)
{
	tell(fd, SYNC, 0, 0, "");
	return answer(fd).a;
}

static void push_datagrams(int fd, long size, long count)
{
	long n;

	for (n = 0; n < count; n++)
		if (send(fd, buffer, size - HEADERS, 0) < 0)
			fail("cannot send", n);
}

static void send_datagrams(const char *name, long size, long count)
{
	int control = connected(SOCK_DGRAM, CONTROL), fd = connected(SOCK_DGRAM, SINK);
	uint64_t before;

	push_datagrams(fd, size, 600);
	before = sunk(control);
	MARK(2);
	push_datagrams(fd, size, count);
	before = sunk(control) - before;
	MARK(3);
	/* The back end's queues are finite and nothing tells a sender of datagrams to wait: a few may be dropped, on any system. */
	if ((count - (long)before) * 100 > count)
		fail("datagrams were lost", count - before);
	say(name, before);
}

/* They come in turns with those of other guests, as soon as so many have asked for some. */
static void take_datagrams(int fd, long size, long count, long guests)
{
	uint64_t number;
	long n;

	tell_all(fd, GENERATE, size, count, guests, "");
	for (n = 0; n < count; n++) {
		if (recv(fd, buffer, sizeof(buffer), 0) < 8)
			fail("nothing came", n);
		memcpy(&number, buffer, 8);
		if (number != (uint64_t)n)
			fail("a datagram was lost", n);
		if (n % CREDIT_EVERY == CREDIT_EVERY - 1)
			tell(fd, CREDIT, n + 1, 0, "");
	}
}

/* A socket for datagrams from the peer, which has room for many. */
static int for_datagrams(void)
{
	int fd = connected(SOCK_DGRAM, CONTROL), room = 16 << 20;
	struct timeval limit = { .tv_sec = STUCK_MS / 1000 };

	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fd;
}

/* In two parts: what waits in a queue when the window begins would be left out of it. */
static void receive_datagrams(const char *name, long size, long count)
{
	int fd = for_datagrams();

	take_datagrams(fd, size, 1024, 1);
	MARK(2);
	take_datagrams(fd, size, count, 1);
	MARK(3);
	say(name, count);
}

/* Waits until so many guests are here. What this one has sent has arrived then. */
static void meet(int fd, long guests)
{
	tell(fd, MEET, guests, 0, "");
	answer(fd);
}

/*
 * When number 0 makes a mark, all others have done what was before it and wait, but for the answer to their meeting. Who is done before
 * number 0 has made the last one keeps quiet until then.
 */
static void together(int is_send, const char *name, long size, long count, long guests, long number)
{
	int control = for_datagrams(), fd = connected(SOCK_DGRAM, SINK), warm;
	uint64_t before = 0, units;

	for (warm = 1; warm >= 0; warm--) {
		if (!warm && !number) {
			before = sunk(control);
			MARK(2);
		}
		meet(control, guests);
		if (is_send)
			push_datagrams(fd, size, warm ? 600 : count);
		else
			take_datagrams(control, size, warm ? 600 : count, guests);
		meet(control, guests);
	}
	if (number) {
		sleep(5);
		printf("TANDEM: together %ld\n", number);
		return;
	}
	MARK(3);
	units = is_send ? sunk(control) - before : (uint64_t)(count * guests);
	if ((count * guests - (long)units) * 100 > count * guests)
		fail("datagrams were lost", count * guests - units);
	say(name, units);
}

/* Waits until the peer has acknowledged everything. */
static void drain(int fd)
{
	int left;

	while (!ioctl(fd, SIOCOUTQ, &left) && left)
		usleep(1000);
}

static long put(int fd, long bytes)
{
	long n, done;

	for (done = 0; done < bytes; done += n) {
		n = write(fd, buffer, sizeof(buffer));
		if (n <= 0)
			fail("the connection broke", done);
	}
	drain(fd);
	return done;
}

static void put_stream(const char *name, long segments)
{
	int fd = connected(SOCK_STREAM, TAKES), room = SEND_BUFFER;
	long done;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	put(fd, UNTIL_STEADY);
	MARK(2);
	done = put(fd, segments * SEGMENT);
	MARK(3);
	close(fd);
	say(name, done / SEGMENT);
}

/* Asks for so many bytes of a stream and takes them. */
static void get(int fd, uint64_t bytes)
{
	uint64_t done;
	long n;

	if (write(fd, &bytes, sizeof(bytes)) != sizeof(bytes))
		fail("the connection broke", 0);
	for (done = 0; done < bytes; done += n) {
		n = read(fd, buffer, sizeof(buffer));
		if (n <= 0)
			fail("the connection broke", done);
	}
}

/* In two parts, as above. */
static void get_stream(const char *name, long segments)
{
	int fd = connected(SOCK_STREAM, GIVES);

	get(fd, 2 << 20);
	MARK(2);
	get(fd, segments * SEGMENT);
	MARK(3);
	close(fd);
	say(name, segments);
}

static uint16_t checksum(const uint16_t *p, int words)
{
	uint32_t sum = 0;

	while (words--)
		sum += *p++;
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static void ping(long count)
{
	struct sockaddr_in to = at("10.9.0.1", 0);
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	long n;

	if (fd < 0 || connect(fd, (void *)&to, sizeof(to)))
		fail("no raw socket", 0);
	for (n = -20; n < count; n++) {
		union {
			struct icmphdr head;
			uint16_t word[32];
		} echo = { .head = { .type = ICMP_ECHO, .un.echo = { htons(77), htons(n) } } };

		echo.head.checksum = checksum(echo.word, 32);
		if (n == 0)
			MARK(2);
		if (send(fd, &echo, sizeof(echo), 0) != sizeof(echo))
			fail("cannot send", n);
		do
			if (poll(&p, 1, STUCK_MS) <= 0 || recv(fd, buffer, sizeof(buffer), 0) < 28)
				fail("no echo", n);
		while (buffer[20] != ICMP_ECHOREPLY);
	}
	MARK(3);
	say("ping", count);
}

static void serve(void)
{
	struct sockaddr_in here = at("0.0.0.0", 81);
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, fd, file;
	struct stat about;
	char *path, *end;
	ssize_t n;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (void *)&here, sizeof(here)) || listen(listener, 64) || daemon(0, 0))
		fail("cannot listen", 81);
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		fd = accept(listener, NULL, NULL);
		n = read(fd, buffer, sizeof(buffer) - 1);
		buffer[n > 0 ? n : 0] = 0;
		path = strstr(buffer, "GET ");
		end = path ? strchr(path + 4, ' ') : NULL;
		if (end) {
			*end = 0;
			snprintf(buffer + 8192, 256, "/www%s", path + 4);
			file = open(buffer + 8192, O_RDONLY);
			if (file >= 0 && !fstat(file, &about)) {
				n = snprintf(buffer, 256, "HTTP/1.0 200 OK\r\nContent-Length: %lld\r\n\r\n",
					     (long long)about.st_size);
				n += read(file, buffer + n, sizeof(buffer) - n);
				n = write(fd, buffer, n);
			}
			close(file);
		}
		close(fd);
	}
}

static void web(const char *name, long port, const char *path, long count)
{
	int fd = connected(SOCK_DGRAM, CONTROL);
	struct message m;

	tell(fd, FETCH, 24, port, path);
	answer(fd);
	MARK(2);
	tell(fd, FETCH, count, port, path);
	m = answer(fd);
	MARK(3);
	if (m.a != (uint64_t)count || m.b)
		fail("pages did not come", m.b);
	say(name, count);
}

static void offloads(const char *device, int on)
{
	static const uint32_t features[] = { ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_SSG, ETHTOOL_STXCSUM };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), i, count = sizeof(features) / sizeof(features[0]);

	for (i = 0; i < count; i++) {
		/* Segmentation needs scatter-gather, and that checksums: on in the other order. */
		struct ethtool_value value = { features[on ? count - 1 - i : i], on };
		struct ifreq request = { .ifr_data = (void *)&value };

		snprintf(request.ifr_name, IFNAMSIZ, "%s", device);
		ioctl(fd, SIOCETHTOOL, &request);
	}
}

static void run(const char *name, long units, char **program)
{
	int status = 0;
	pid_t child;

	MARK(2);
	child = fork();
	if (!child) {
		execvp(program[0], program);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		fail("no process", units);
	MARK(3);
	if (status)
		fail("a program did not end well, but", status);
	say(name, units);
}

static void arm(void)
{
	struct {
		int bits, bytes;
		char data[64];
	} credit = { 512, 64, "not random, only credited" };
	int fd = open("/dev/urandom", O_WRONLY);

	if (fd < 0 || ioctl(fd, RNDADDENTROPY, &credit))
		fail("no random pool", 0);
	MARK(4);
	usleep(1000);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long number[6] = { 0 };
	int i;

	for (i = 2; i < argc && i < 8; i++)
		number[i - 2] = atol(argv[i]);
	if (!strcmp(what, "arm"))
		arm();
	else if (!strcmp(what, "send") && argc == 5)
		send_datagrams(argv[2], number[1], number[2]);
	else if (!strcmp(what, "receive") && argc == 5)
		receive_datagrams(argv[2], number[1], number[2]);
	else if (!strcmp(what, "put") && argc == 4)
		put_stream(argv[2], number[1]);
	else if (!strcmp(what, "get") && argc == 4)
		get_stream(argv[2], number[1]);
	else if (!strcmp(what, "ping") && argc == 3)
		ping(number[0]);
	else if (!strcmp(what, "serve"))
		serve();
	else if (!strcmp(what, "web") && argc == 6)
		web(argv[2], number[1], argv[4], number[3]);
	else if (!strcmp(what, "run") && argc > 4)
		run(argv[2], number[1], argv + 4);
	else if (!strcmp(what, "offloads") && argc == 4)
		offloads(argv[2], !strcmp(argv[3], "on"));
	else if (!strcmp(what, "together") && argc == 8)
		together(!strcmp(argv[2], "send"), argv[3], number[2], number[3], number[4], number[5]);
	else
		return 2;
	return 0;
}
