/* When something came, and when nothing did though it was waited for: lines that netprobe.c describes. Times are ms since the first question for one. */
#ifndef TANDEM_GAPS_H
#define TANDEM_GAPS_H
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { BIN_MS = 100, BINS = 40 };

static uint64_t waits_since, bins_from;
static unsigned bin[BINS];

static inline uint64_t now_ms(void)
{
	static uint64_t start;
	struct timespec t;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC, &t);
	now = t.tv_sec * 1000ull + t.tv_nsec / 1000000;
	if (!start)
		start = now;
	return now - start;
}

/* Tells the bins that are full. */
static inline void fill_bins(void)
{
	while (now_ms() >= bins_from + BINS * BIN_MS) {
		printf("bins %llu", (unsigned long long)bins_from);
		for (int n = 0; n < BINS; n++) {
			printf(" %u", bin[n]);
			bin[n] = 0;
		}
		printf("\n");
		bins_from += BINS * BIN_MS;
	}
}

/* All has come, and more is asked for now: until then nobody has waited. */
static inline void asked_anew(void)
{
	waits_since = now_ms();
}

/* Something came that was waited for. Nothing for less than `least` ms is no gap. */
static inline void came(uint64_t least)
{
	uint64_t now = now_ms();

	fill_bins();
	if (now - waits_since >= least)
		printf("gap %llu %llu\n", (unsigned long long)waits_since, (unsigned long long)(now - waits_since));
	waits_since = now;
	bin[(now - bins_from) / BIN_MS % BINS]++;
}
#endif
