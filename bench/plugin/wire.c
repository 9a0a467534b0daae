/*
 * A QEMU plugin that is a wire: the network back end "wire" for `-device NIC,netdev=wire`. At its other end is a
 * program that listens at the local socket given by `socket=PATH` (testbed/src/peer/wire.rs).
 *
 * Everything happens in virtual time. The clock stands still while the program is asked, and what it answers is
 * delivered when it says. So under -icount traffic repeats exactly, however busy the host is; with QEMU's own socket
 * back end it would depend on when the kernel runs which process.
 *
 * A question: time in ns, length, a frame (or none: the time that the program asked to be woken at has come).
 * An answer: when to wake it (0: never), a number of frames, and for each the time of delivery, length and bytes.
 * All numbers have 64 bits, little-endian.
 *
 * Plugins have no interface for devices, but Debian's QEMU exports its functions, since its own devices can be modules.
 * What is used of QEMU 7.2's net/net.h and qemu/timer.h is declared here; xtask checks the version.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>
#include "interface.h"

/* QEMU's classes of back ends; it only tells NICs from others. */
enum { DRIVER_DGRAM = 7, CLOCK_VIRTUAL = 1, NANOSECONDS = 1 };

struct client_info {
	int driver;
	size_t size;
	ssize_t (*receive)(void *client, const uint8_t *data, size_t len);
	void *others[48];
};

void *qemu_new_net_client(struct client_info *info, void *peer, const char *model, const char *name);
ssize_t qemu_send_packet_async(void *client, const uint8_t *data, int len, void (*sent)(void *client, ssize_t len));
int64_t qemu_clock_get_ns(int clock);
void timer_init_full(void *timer, void *group, int clock, int scale, int attributes, void (*cb)(void *), void *data);
void timer_mod_ns(void *timer, int64_t when);
void timer_del(void *timer);

enum { MAX_FRAME = 65536 };

struct frame {
	struct frame *next;
	int64_t when;
	int len;
	uint8_t data[];
};

static int fd = -1;
static void *client;
static uint64_t delivery[64], wake[64]; /* QEMUTimer is smaller */
static struct frame *queue;
static int blocked;

static void fail(const char *what)
{
	fprintf(stderr, "wire: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void get(void *to, size_t len)
{
	for (uint8_t *p = to; len;) {
		ssize_t n = read(fd, p, len);

		if (n <= 0)
			fail("the other end is gone");
		p += n;
		len -= n;
	}
}

static void put(const void *from, size_t len)
{
	for (const uint8_t *p = from; len;) {
		ssize_t n = write(fd, p, len);

		if (n <= 0)
			fail("the other end is gone");
		p += n;
		len -= n;
	}
}

static uint64_t get_number(void)
{
	uint64_t n;

	get(&n, sizeof(n));
	return n;
}

static void deliver(void *data);

/* The NIC had no room for the last frame, and now has. */
static void on_room(void *which, ssize_t len)
{
	(void)which;
	(void)len;
	blocked = 0;
	timer_mod_ns(delivery, qemu_clock_get_ns(CLOCK_VIRTUAL));
}

static void deliver(void *data)
{
	(void)data;
	while (queue && !blocked && queue->when <= qemu_clock_get_ns(CLOCK_VIRTUAL)) {
		struct frame *f = queue;

		queue = f->next;
		/* QEMU keeps a copy of a frame that the NIC does not take yet. */
		blocked = qemu_send_packet_async(client, f->data, f->len, on_room) == 0;
		free(f);
	}
	if (queue && !blocked)
		timer_mod_ns(delivery, queue->when);
}

/* In order of time; frames of the same time stay in the order in which they came. */
static void enqueue(struct frame *f)
{
	struct frame **at = &queue;

	while (*at && (*at)->when <= f->when)
		at = &(*at)->next;
	f->next = *at;
	*at = f;
}

static void ask(const uint8_t *data, size_t len)
{
	int64_t now = qemu_clock_get_ns(CLOCK_VIRTUAL);
	uint64_t head[2] = { now, len }, when, frames;

	put(head, sizeof(head));
	put(data, len);
	when = get_number();
	for (frames = get_number(); frames; frames--) {
		int64_t at = get_number();
		uint64_t bytes = get_number();
		struct frame *f;

		if (bytes > MAX_FRAME || !(f = malloc(sizeof(*f) + bytes)))
			fail("a frame is too long");
		f->when = at > now ? at : now + 1;
		f->len = bytes;
		get(f->data, bytes);
		enqueue(f);
	}
	if (when)
		timer_mod_ns(wake, (int64_t)when > now ? (int64_t)when : now + 1);
	else
		timer_del(wake);
	if (queue && !blocked)
		timer_mod_ns(delivery, queue->when);
}

static ssize_t on_frame(void *which, const uint8_t *data, size_t len)
{
	(void)which;
	ask(data, len);
	return len;
}

static void on_wake(void *data)
{
	(void)data;
	ask(NULL, 0);
}

/* The first CPU is made after QEMU's network is ready and before the NIC looks for its back end. */
static void on_cpu(plugin_id id, unsigned cpu)
{
	static struct client_info info = { .driver = DRIVER_DGRAM, .size = 4096, .receive = on_frame };

	(void)id;
	if (cpu || client)
		return;
	timer_init_full(delivery, NULL, CLOCK_VIRTUAL, NANOSECONDS, 0, deliver, NULL);
	timer_init_full(wake, NULL, CLOCK_VIRTUAL, NANOSECONDS, 0, on_wake, NULL);
	client = qemu_new_net_client(&info, NULL, "wire", "wire");
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int i;

	(void)info;
	for (i = 0; i < argc; i++)
		if (!strncmp(argv[i], "socket=", 7))
			snprintf(to.sun_path, sizeof(to.sun_path), "%s", argv[i] + 7);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (void *)&to, sizeof(to)))
		fail(to.sun_path);
	qemu_plugin_register_vcpu_init_cb(id, on_cpu);
	return 0;
}
