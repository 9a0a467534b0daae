/*
 * fileload DIRECTORY FILES: writes files of a mounted file system anew, makes them durable, renames them over the old ones, removes some, and reads
 * others back from the medium, at random, until it gets SIGTERM; then it reads all of them. What each file holds is remembered here, so one that
 * was lost, came back after it was removed, or has another's bytes is seen.
 *
 *   gap FROM LENGTH, bins FROM N N N...   as netprobe says of answers
 *   wrong FILE, error FILE                it holds other bytes, or is there and should not be; a call failed
 *   file NAME GENERATION                  at the end, of each one that is there: pattern.rs says what it holds
 *   files ok|FAIL verified=N wrong=N errors=N written=N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
#include "gaps.h"
#include "pattern.h"

enum { MOST = 65536, FILES = 256, GAP_MS = 50, REMOVALS = 8 };

/* Zero: it is not there. */
static uint64_t generation[FILES], last;
static uint64_t verified, wrong, errors, written;
static unsigned files;
static int directory;
static uint8_t *buf;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void failed(unsigned file)
{
	errors++;
	printf("error %u: %s\n", file, strerror(errno));
}

static const char *name_of(unsigned file)
{
	static char name[16];

	snprintf(name, sizeof(name), "%u", file);
	return name;
}

/* The same is in testbed/src/pattern.rs. */
static size_t length_of(uint64_t generation)
{
	return pattern_word(55, generation) % MOST + 1;
}

static int put(int fd, const uint8_t *from, size_t length)
{
	while (length) {
		ssize_t n = write(fd, from, length);

		if (n < 0)
			return 0;
		from += n;
		length -= n;
	}
	return !fsync(fd);
}

/* Whole, and durable, before it gets its name; a crash in between would leave the old one. */
static void renew(unsigned file)
{
	size_t length = length_of(++last);
	int fd = openat(directory, "new", O_CREAT | O_TRUNC | O_WRONLY, 0644);
	int is_done;

	pattern_fill(buf, length, last);
	is_done = fd >= 0 && put(fd, buf, length) && !renameat(directory, "new", directory, name_of(file)) && !fsync(directory);
	if (fd >= 0)
		close(fd);
	if (!is_done) {
		failed(file);
		return;
	}
	generation[file] = last;
	written++;
	came(GAP_MS);
}

static void drop(unsigned file)
{
	if (!generation[file])
		return;
	if (unlinkat(directory, name_of(file), 0) || fsync(directory)) {
		failed(file);
		return;
	}
	generation[file] = 0;
	came(GAP_MS);
}

/* Not from the page cache. */
static void check(unsigned file)
{
	static uint8_t want[MOST];
	int fd = openat(directory, name_of(file), O_RDONLY | O_DIRECT);
	ssize_t length = fd < 0 ? -1 : read(fd, buf, 2 * MOST);
	int is_right;

	if (length < 0 && !(errno == ENOENT && !generation[file])) {
		failed(file);
	} else {
		is_right = length < 0 || (generation[file] && (size_t)length == length_of(generation[file]));
		if (is_right && length > 0) {
			pattern_fill(want, length, generation[file]);
			is_right = !memcmp(want, buf, length);
		}
		verified++;
		if (!is_right) {
			wrong++;
			printf("wrong %u\n", file);
		}
		came(GAP_MS);
	}
	if (fd >= 0)
		close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	files = strtoul(argv[2], NULL, 0);
	directory = open(argv[1], O_RDONLY | O_DIRECTORY);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (directory < 0 || !files || files > FILES || posix_memalign((void **)&buf, 4096, 2 * MOST)) {
		printf("files FAIL no directory, or no such number of files\n");
		return 1;
	}
	signal(SIGTERM, stop);
	for (unsigned file = 0; file < files; file++)
		renew(file);
	for (uint64_t round = 1; !stopped; round++) {
		uint64_t chance = pattern_word(97, round);
		unsigned file = chance % files;

		if ((chance >> 32) % REMOVALS)
			renew(file);
		else
			drop(file);
		check(pattern_word(96, round) % files);
		usleep(20000);
		fill_bins();
	}
	for (unsigned file = 0; file < files; file++)
		check(file);
	for (unsigned file = 0; file < files; file++)
		if (generation[file])
			printf("file %u %llu\n", file, (unsigned long long)generation[file]);
	printf("files %s verified=%llu wrong=%llu errors=%llu written=%llu\n", wrong || errors ? "FAIL" : "ok", (unsigned long long)verified,
	       (unsigned long long)wrong, (unsigned long long)errors, (unsigned long long)written);
	return wrong || errors;
}
