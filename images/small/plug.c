/*
 * plug [MIB]: what `xl devd` does in a driver domain, without a toolstack and without a script. For each disk that the toolstack asks
 * for (backend/vbd/GUEST/N), stock blkback is told the numbers of the block device that `params` names; each interface
 * (backend/vif/GUEST/N) is put into the bridge that `bridge` names, and stock netback is told so. What has gone is taken away.
 *
 * The store is asked by Linux' own device for that, one request at a time. Events only say that there may be something to do: all is
 * looked at each time. So it may be killed and started again at any moment.
 *
 * A block device that is not there may come: that is said, and looked again when the kernel tells of one. So this is also for a driver domain that
 * waits for its device. What takes long at the first guest of such a domain is done at once, see prepare().
 *
 * With MIB it is the domain's only program, which the shell has become: memory over so much is given back to the hypervisor, and whoever writes a line
 * to the console is told what there is. The line begins with a number, with which the answer ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
/* Names that the next one uses and does not explain. */
typedef uint32_t grant_ref_t;
typedef uint16_t domid_t;
#include <xen/gntdev.h>

enum { DIRECTORY = 1, READ = 2, WATCH = 4, BEGIN = 6, END = 7, WRITE = 11, REMOVE = 13, EVENT = 15, FAILED = 16 };
enum { MOST = 4096, INIT_WAIT = 2, CLOSED = 6 };
/* The group of uevents that the kernel itself sends. */
enum { KERNEL = 1 };

struct header {
	uint32_t type, request, transaction, length;
};

static int store, events;
/* Of what is asked; 0: none. */
static uint32_t transaction;

static void quit(const char *why)
{
	fprintf(stderr, "plug: %s: %s\n", why, strerror(errno));
	exit(1);
}

static void take(void *to, size_t size)
{
	while (size) {
		ssize_t n = read(store, to, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			quit("the store");
		to = (char *)to + n;
		size -= n;
	}
}

/* The next message, as text: its type. */
static uint32_t next(char *text, size_t *length)
{
	struct header h;

	take(&h, sizeof(h));
	if (h.length > MOST)
		quit("a message of the store's is too long");
	take(text, h.length);
	text[h.length] = 0;
	*length = h.length;
	return h.type;
}

/* Whether there may be something to do: a device came or went, or an end of one says how it is. The rest is what blkback says of its disk, and what is
 * written here. */
static int is_news(const char *path)
{
	static const char *const told[] = { "/state", "/online" };
	const char *at, *last = strrchr(path, '/');
	int slashes = 0;
	unsigned n;

	for (at = path; *at; at++)
		slashes += *at == '/';
	/* backend/KIND/GUEST/NUMBER */
	if (slashes <= 3)
		return 1;
	for (n = 0; n < sizeof(told) / sizeof(told[0]); n++)
		if (!strcmp(last, told[n]))
			return 1;
	return 0;
}

/* Asks; the answer is text of `*length` bytes, and 0 behind it. False if the store says no. */
static int ask(uint32_t type, const char *what, size_t size, char *text, size_t *length)
{
	struct {
		struct header h;
		char body[MOST];
	} m = { .h = { .type = type, .transaction = transaction, .length = size } };
	uint32_t got;

	if (size > MOST)
		return 0;
	memcpy(m.body, what, size);
	if (write(store, &m, sizeof(m.h) + size) != (ssize_t)(sizeof(m.h) + size))
		quit("the store");
	while ((got = next(text, length)) == EVENT)
		events += is_news(text);
	if (got != FAILED && got != type)
		quit("an answer to something else");
	return got == type;
}

/* A node's value, "" if there is none. */
static const char *get(char *text, const char *node, const char *key)
{
	char path[MOST];
	size_t length, size = snprintf(path, sizeof(path), "%s/%s", node, key);

	if (size >= sizeof(path) || !ask(READ, path, size + 1, text, &length))
		text[0] = 0;
	return text;
}

static void put(const char *node, const char *key, const char *format, ...)
{
	char body[MOST], text[MOST + 1];
	size_t length, size = snprintf(body, sizeof(body), "%s/%s", node, key) + 1;
	va_list list;

	if (size >= sizeof(body))
		return;
	va_start(list, format);
	length = vsnprintf(body + size, sizeof(body) - size, format, list);
	va_end(list);
	if (length < sizeof(body) - size && !ask(WRITE, body, size + length, text, &length))
		fprintf(stderr, "plug: %s/%s cannot be written: %s\n", node, key, text);
}

enum outcome { DONE, FAILED_TO, LATER };

/* Back ends that lack nothing but their device, as it was when all was looked at last, and the paths of those. */
static struct {
	char node[256], path[256];
} waiting[16];
static unsigned nr_waiting;

static void wait_for(const char *node, const char *path)
{
	if (nr_waiting == sizeof(waiting) / sizeof(waiting[0]) || strlen(path) >= sizeof(waiting[0].path))
		return;
	strcpy(waiting[nr_waiting].node, node);
	strcpy(waiting[nr_waiting++].path, path);
}

/* Its node comes before it can be opened, and blkback would give up. */
static enum outcome tell_disk(const char *node, const char *path)
{
	struct stat file;
	int disk = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	int is_known = disk >= 0 && !fstat(disk, &file);

	if (disk >= 0)
		close(disk);
	if (!is_known)
		return LATER;
	if (!S_ISBLK(file.st_mode))
		return FAILED_TO;
	put(node, "physical-device", "%x:%x", major(file.st_rdev), minor(file.st_rdev));
	return DONE;
}

static enum outcome plug_disk(const char *node)
{
	char text[MOST + 1];
	enum outcome outcome = tell_disk(node, get(text, node, "params"));

	if (outcome == LATER)
		wait_for(node, text);
	return outcome;
}

/* A block device has come: those that wait for one are all that this may concern. They are told, and nothing else is looked at: each question takes time
 * from blkback, which has its own. */
static void tell_waiting(void)
{
	char text[MOST + 1];
	unsigned n, left = 0;

	/* Not all may have found room. */
	events += nr_waiting == sizeof(waiting) / sizeof(waiting[0]);
	for (n = 0; n < nr_waiting; n++) {
		enum outcome outcome = FAILED_TO;

		if (atoi(get(text, waiting[n].node, "state")) == INIT_WAIT)
			outcome = tell_disk(waiting[n].node, waiting[n].path);
		if (outcome == DONE)
			put(waiting[n].node, "hotplug-status", "connected");
		if (outcome == LATER)
			waiting[left++] = waiting[n];
	}
	nr_waiting = left;
}

static enum outcome plug_interface(const char *node, unsigned guest, unsigned number)
{
	char text[MOST + 1];
	struct ifreq one = { 0 }, bridge = { 0 };
	int done, s;

	snprintf(one.ifr_name, sizeof(one.ifr_name), "vif%u.%u", guest, number);
	if (strlen(get(text, node, "bridge")) >= sizeof(bridge.ifr_name))
		return FAILED_TO;
	s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return FAILED_TO;
	strcpy(bridge.ifr_name, text);
	/* As the toolstack's script has it: an address that no bridge takes for its own. */
	one.ifr_hwaddr = (struct sockaddr){ .sa_family = 1, .sa_data = { (char)0xfe, -1, -1, -1, -1, -1 } };
	done = !ioctl(s, SIOCSIFHWADDR, &one) && !ioctl(s, SIOCGIFINDEX, &one);
	bridge.ifr_ifindex = one.ifr_ifindex;
	done = done && (!ioctl(s, SIOCBRADDIF, &bridge) || errno == EBUSY);
	done = done && !ioctl(s, SIOCGIFFLAGS, &one);
	one.ifr_flags |= IFF_UP;
	done = done && !ioctl(s, SIOCSIFFLAGS, &one);
	close(s);
	return done ? DONE : FAILED_TO;
}

/* Says what is missing, once: it is an event, too. */
static void complain(const char *node, const char *key)
{
	char text[MOST + 1], wanted[MOST + 1];

	if (*get(text, node, "hotplug-error"))
		return;
	put(node, "hotplug-error", "no such device here, or no such bridge: %s", get(wanted, node, key));
}

static void look_at(const char *kind, const char *guest, const char *number)
{
	char node[256], text[MOST + 1];
	size_t length;
	enum outcome outcome;
	int state, is_disk = kind[1] == 'b';

	if (snprintf(node, sizeof(node), "backend/%s/%s/%s", kind, guest, number) >= (int)sizeof(node))
		return;
	state = atoi(get(text, node, "state"));
	if (state == CLOSED && !strcmp(get(text, node, "online"), "0")) {
		ask(REMOVE, node, strlen(node) + 1, text, &length);
		return;
	}
	if (state != INIT_WAIT || *get(text, node, "hotplug-status"))
		return;
	outcome = is_disk ? plug_disk(node) : plug_interface(node, atoi(guest), atoi(number));
	if (outcome != DONE)
		complain(node, is_disk ? "params" : "bridge");
	if (outcome != LATER)
		put(node, "hotplug-status", outcome == DONE ? "connected" : "error");
}

/* What is in a directory: names, each with a 0 behind it. False if the store does not say: it is not there, or has too many for one message. */
static int names(const char *path, char *text, size_t *length)
{
	return ask(DIRECTORY, path, strlen(path) + 1, text, length);
}

/* The last one's going leaves a directory empty. One that has come meanwhile does not go with it. */
static void remove_empty(const char *path)
{
	char text[MOST + 1];
	size_t length;

	if (!ask(BEGIN, "", 1, text, &length))
		return;
	transaction = strtoul(text, NULL, 10);
	if (names(path, text, &length) && !length)
		ask(REMOVE, path, strlen(path) + 1, text, &length);
	ask(END, "T", 2, text, &length);
	transaction = 0;
}

static void look(const char *kind)
{
	char path[256], guests[MOST + 1], numbers[MOST + 1];
	size_t g, n, size, all;

	snprintf(path, sizeof(path), "backend/%s", kind);
	if (!names(path, guests, &all))
		return;
	for (g = 0; g < all; g += strlen(guests + g) + 1) {
		if (snprintf(path, sizeof(path), "backend/%s/%s", kind, guests + g) >= (int)sizeof(path))
			continue;
		if (!names(path, numbers, &size))
			continue;
		if (!size)
			remove_empty(path);
		for (n = 0; n < size; n += strlen(numbers + n) + 1)
			look_at(kind, guests + g, numbers + n);
	}
}

static void tell_file(const char *path)
{
	char text[4096];
	ssize_t n;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	while (file >= 0 && (n = read(file, text, sizeof(text))) > 0)
		fwrite(text, 1, n, stdout);
	close(file);
}

/* What memory there is, how long it runs, and how often it was interrupted. False if nobody will ask any more. */
static int tell(void)
{
	char line[256];

	if (!fgets(line, sizeof(line), stdin))
		return 0;
	tell_file("/proc/meminfo");
	tell_file("/proc/uptime");
	tell_file("/proc/interrupts");
	printf("TANDEM: did %.*s 0.\n", (int)strcspn(line, " \n"), line);
	return 1;
}

/* The balloon does it by itself, as soon as it can. */
static void keep(long mib)
{
	static const char target[] = "/sys/devices/system/xen_memory/xen_memory0/target_kb";
	FILE *file = fopen(target, "w");

	if (!file || fprintf(file, "%ld\n", mib * 1024) < 0 || fclose(file))
		quit(target);
}

/* The kernel tells here of devices that come. It may lose some of that, and says so: then there may be one, too. */
static int kernel_tells(void)
{
	struct sockaddr_nl all = { .nl_family = AF_NETLINK, .nl_groups = KERNEL };
	int s = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);

	if (s < 0 || bind(s, (struct sockaddr *)&all, sizeof(all)))
		quit("the kernel refuses to tell of devices");
	return s;
}

/* A message of that kind, ACTION@PATH, with words behind it: is it of a block device that came? */
static int came(int s)
{
	char text[MOST + 1];
	ssize_t size = recv(s, text, MOST, MSG_DONTWAIT), at;

	if (size < 0)
		return errno == ENOBUFS;
	text[size] = 0;
	for (at = 0; at < size && !strncmp(text, "add@", 4); at += strlen(text + at) + 1)
		if (!strcmp(text + at, "SUBSYSTEM=block"))
			return 1;
	return 0;
}

/*
 * The kernel has no pages for what guests grant until somebody wants some, and then describes 128 MiB of them, while the guest waits. gntdev
 * takes a page as soon as it is told a grant, whether that is one or not. Without gntdev nothing is gained.
 */
static void prepare(void)
{
	struct ioctl_gntdev_map_grant_ref one = { .count = 1 };
	int file = open("/dev/xen/gntdev", O_RDWR | O_CLOEXEC);

	if (file < 0)
		return;
	if (ioctl(file, IOCTL_GNTDEV_MAP_GRANT_REF, &one))
		perror("plug: no page for a grant");
	close(file);
}

int main(int argc, char **argv)
{
	static const char watched[] = "backend\0plug";
	char text[MOST + 1];
	size_t length;
	struct pollfd waited[3] = { { .events = POLLIN }, { .events = POLLIN }, { .events = POLLIN } };

	store = waited[0].fd = open("/dev/xen/xenbus", O_RDWR | O_CLOEXEC);
	if (store < 0)
		quit("/dev/xen/xenbus");
	if (!ask(WATCH, watched, sizeof(watched), text, &length))
		quit("the store refuses to tell of changes");
	setvbuf(stdin, NULL, _IONBF, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	waited[1].fd = -1;
	waited[2].fd = kernel_tells();
	prepare();
	if (argc > 1) {
		keep(atol(argv[1]));
		waited[1].fd = 0;
		printf("TANDEM: serving\n");
	}
	for (;;) {
		if (events) {
			events = nr_waiting = 0;
			look("vbd");
			look("vif");
			continue;
		}
		if (poll(waited, 3, -1) < 0) {
			if (errno != EINTR)
				quit("waiting");
			continue;
		}
		if (waited[1].revents && !tell())
			waited[1].fd = -1;
		if (waited[2].revents && came(waited[2].fd))
			tell_waiting();
		if (waited[0].revents && next(text, &length) == EVENT)
			events += is_news(text);
	}
}
