/*
 * nap PERIOD_US COUNT: wakes COUNT times at exact times, PERIOD_US apart, and says how late it was: half of the wakes,
 * all but a hundredth, and all of them were no later than so many microseconds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int64_t period = (argc > 1 ? atoll(argv[1]) : 5000) * 1000;
	int count = argc > 2 ? atoi(argv[2]) : 1000;
	int64_t *late = count > 0 && period > 0 ? calloc(count, sizeof(*late)) : NULL;

	if (!late) {
		puts("TANDEM: nap FAIL a period and a count are wanted");
		return 1;
	}
	prctl(PR_SET_TIMERSLACK, 1);
	for (int i = 0; i < count; i++) {
		int64_t at = now_ns() + period;
		struct timespec t = { at / 1000000000, at % 1000000000 };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		late[i] = now_ns() - at;
	}
	qsort(late, count, sizeof(*late), by_size);
	printf("TANDEM: nap wakes=%d p50_us=%ld p99_us=%ld max_us=%ld\n", count, (long)late[count / 2] / 1000,
	       (long)late[count - 1 - count / 100] / 1000, (long)late[count - 1] / 1000);
	return 0;
}
