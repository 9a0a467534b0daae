/*
 * memcheck MIB [PAGES]: keeps memory whose every word is known, rewrites PAGES (default 50) random pages a round, forks
 * now and then, looks through a sixteenth of it a round, and says once a second how many words were wrong since it
 * started. For guests that are saved, restored and moved while it runs: nothing may be lost, and clocks must go on.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512, PART = 16, FORK_EVERY = 8 };

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t value(size_t page, unsigned word, uint64_t version)
{
	return ((uint64_t)page << 32 | word) ^ version << 16;
}

static void write_page(uint64_t *memory, size_t page, uint64_t version)
{
	for (unsigned i = 0; i < WORDS; i++)
		memory[page * WORDS + i] = value(page, i, version);
}

static uint64_t wrong_words(const uint64_t *memory, size_t page, uint64_t version)
{
	uint64_t wrong = 0;

	for (unsigned i = 0; i < WORDS; i++)
		wrong += memory[page * WORDS + i] != value(page, i, version);
	return wrong;
}

int main(int argc, char **argv)
{
	size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * 256;
	unsigned rewrites = argc > 2 ? strtoul(argv[2], NULL, 10) : 50;
	uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *version = calloc(pages, sizeof(*version));
	uint64_t random = 88172645463325252u, wrong = 0;
	volatile double sum = 0;
	double last = seconds(CLOCK_MONOTONIC);

	if (memory == MAP_FAILED || !version || !pages) {
		puts("TANDEM: memcheck FAIL no memory");
		return 1;
	}
	for (size_t p = 0; p < pages; p++)
		write_page(memory, p, 0);
	for (uint64_t round = 0;; round++) {
		for (unsigned n = 0; n < rewrites; n++) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			write_page(memory, random % pages, ++version[random % pages]);
		}
		for (size_t p = round % PART; p < pages; p += PART)
			wrong += wrong_words(memory, p, version[p]);
		sum += 0.5; /* floating point must survive, too */
		wrong += sum != (round + 1) * 0.5;
		/* The child's write breaks a copy-on-write page, and its end takes page tables apart. */
		if (round % FORK_EVERY == 0 && fork() == 0) {
			memory[0] = 0;
			_exit(0);
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		usleep(1000);
		double now = seconds(CLOCK_MONOTONIC);
		if (now - last >= 1 || now < last) {
			printf("TANDEM: memcheck round=%lu wrong=%lu monotonic=%.2f real=%.2f\n", round, wrong, now,
			       seconds(CLOCK_REALTIME));
			fflush(stdout);
			last = now;
		}
	}
}
