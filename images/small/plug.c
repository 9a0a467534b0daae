/*
 * plug [MIB]: what `xl devd` does in a driver domain, without a toolstack and without a script. For each disk that the toolstack asks
 * for (backend/vbd/GUEST/N), stock blkback is told the numbers of the block device that `params` names; each interface
 * (backend/vif/GUEST/N) is put into the bridge that `bridge` names, and stock netback is told so. What has gone is taken away.
 *
 * The store is asked by Linux' own device for that, one request at a time. Events only say that there may be something to do: all is
 * looked at each time. So it may be killed and started again at any moment.
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
#include <linux/sockios.h>

enum { DIRECTORY = 1, READ = 2, WATCH = 4, WRITE = 11, REMOVE = 13, EVENT = 15, FAILED = 16 };
enum { MOST = 4096, INIT_WAIT = 2, CLOSED = 6 };

struct header {
	uint32_t type, request, transaction, length;
};

static int store, events;

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

/* Asks; the answer is text of `*length` bytes, and 0 behind it. False if the store says no. */
static int ask(uint32_t type, const char *what, size_t size, char *text, size_t *length)
{
	struct {
		struct header h;
		char body[MOST];
	} m = { .h = { .type = type, .length = size } };
	uint32_t got;

	if (size > MOST)
		return 0;
	memcpy(m.body, what, size);
	if (write(store, &m, sizeof(m.h) + size) != (ssize_t)(sizeof(m.h) + size))
		quit("the store");
	while ((got = next(text, length)) == EVENT)
		events++;
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

static int plug_disk(const char *node)
{
	char text[MOST + 1];
	struct stat file;

	if (stat(get(text, node, "params"), &file) || !S_ISBLK(file.st_mode))
		return 0;
	put(node, "physical-device", "%x:%x", major(file.st_rdev), minor(file.st_rdev));
	return 1;
}

static int plug_interface(const char *node, unsigned guest, unsigned number)
{
	char text[MOST + 1];
	struct ifreq one = { 0 }, bridge = { 0 };
	int done, s = socket(AF_INET, SOCK_DGRAM, 0);

	snprintf(one.ifr_name, sizeof(one.ifr_name), "vif%u.%u", guest, number);
	get(text, node, "bridge");
	if (s < 0 || strlen(text) >= sizeof(bridge.ifr_name))
		return 0;
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
	return done;
}

static void look_at(const char *kind, const char *guest, const char *number)
{
	char node[256], text[MOST + 1];
	size_t length;
	int state, done;

	if (snprintf(node, sizeof(node), "backend/%s/%s/%s", kind, guest, number) >= (int)sizeof(node))
		return;
	state = atoi(get(text, node, "state"));
	if (state == CLOSED && !strcmp(get(text, node, "online"), "0")) {
		ask(REMOVE, node, strlen(node) + 1, text, &length);
		return;
	}
	if (state != INIT_WAIT || *get(text, node, "hotplug-status"))
		return;
	done = kind[1] == 'b' ? plug_disk(node) : plug_interface(node, atoi(guest), atoi(number));
	if (!done)
		put(node, "hotplug-error", "no such device here, or no such bridge: %s",
		    get(text, node, kind[1] == 'b' ? "params" : "bridge"));
	put(node, "hotplug-status", done ? "connected" : "error");
}

/* What is in a directory: names, each with a 0 behind it. Too many for one message are none. */
static size_t names(const char *path, char *text)
{
	size_t length;

	return ask(DIRECTORY, path, strlen(path) + 1, text, &length) ? length : 0;
}

static void look(const char *kind)
{
	char path[256], guests[MOST + 1], numbers[MOST + 1];
	size_t g, n, size, all;

	snprintf(path, sizeof(path), "backend/%s", kind);
	all = names(path, guests);
	for (g = 0; g < all; g += strlen(guests + g) + 1) {
		if (snprintf(path, sizeof(path), "backend/%s/%s", kind, guests + g) >= (int)sizeof(path))
			continue;
		size = names(path, numbers);
		/* The last one's going leaves it empty. */
		if (!size)
			ask(REMOVE, path, strlen(path) + 1, numbers, &size);
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

int main(int argc, char **argv)
{
	static const char watched[] = "backend\0plug";
	char text[MOST + 1];
	size_t length;
	struct pollfd waited[2] = { { .events = POLLIN }, { .events = POLLIN } };

	store = waited[0].fd = open("/dev/xen/xenbus", O_RDWR | O_CLOEXEC);
	if (store < 0)
		quit("/dev/xen/xenbus");
	if (!ask(WATCH, watched, sizeof(watched), text, &length))
		quit("the store refuses to tell of changes");
	setvbuf(stdin, NULL, _IONBF, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	waited[1].fd = -1;
	if (argc > 1) {
		keep(atol(argv[1]));
		waited[1].fd = 0;
		printf("TANDEM: serving\n");
	}
	for (;;) {
		if (events) {
			events = 0;
			look("vbd");
			look("vif");
			continue;
		}
		if (poll(waited, 2, -1) < 0 && errno != EINTR)
			quit("waiting");
		if (waited[1].revents && !tell())
			waited[1].fd = -1;
		if (waited[0].revents && next(text, &length) == EVENT)
			events++;
	}
}
