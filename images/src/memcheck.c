/*
 * memcheck MIB [PAGES]: keeps memory whose every word is known, rewrites PAGES (default 50) random pages a round, forks
 * now and then, looks through a sixteenth of it a round, and says once a second how many words and sets of registers were
 * wrong since it started. A child of it on CPU 0 sleeps with the vector and floating-point registers full, nearly all the
 * time; the rest is done on CPU 1, if there is one, so that they stay in the CPU. For guests that are saved, restored and moved
 * while it runs: nothing may be lost, and clocks must go on.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

struct registers {
	uint64_t vector[16][4];
	double x87[8];
	uint32_t mxcsr;
	uint16_t control;
} __attribute__((aligned(32)));

/* Offsets for the assembly below. */
_Static_assert(offsetof(struct registers, x87) == 512 && offsetof(struct registers, mxcsr) == 576 &&
		       offsetof(struct registers, control) == 580, "struct registers");

#define EACH(what) what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7) \
		   what(8) what(9) what(10) what(11) what(12) what(13) what(14) what(15)
#define LOAD_AVX(n) "vmovdqu 32*" #n "(%%rbx), %%ymm" #n "\n"
#define STORE_AVX(n) "vmovdqu %%ymm" #n ", 32*" #n "(%%rdx)\n"
#define LOAD_SSE(n) "movdqu 32*" #n "(%%rbx), %%xmm" #n "\n"
#define STORE_SSE(n) "movdqu %%xmm" #n ", 32*" #n "(%%rdx)\n"
#define LOAD_X87 \
	"fninit\n" \
	"fldl 512(%%rbx)\nfldl 520(%%rbx)\nfldl 528(%%rbx)\nfldl 536(%%rbx)\n" \
	"fldl 544(%%rbx)\nfldl 552(%%rbx)\nfldl 560(%%rbx)\nfldl 568(%%rbx)\n" \
	"ldmxcsr 576(%%rbx)\nfldcw 580(%%rbx)\n"
#define STORE_X87 \
	"stmxcsr 576(%%rdx)\nfnstcw 580(%%rdx)\n" \
	"fstpl 568(%%rdx)\nfstpl 560(%%rdx)\nfstpl 552(%%rdx)\nfstpl 544(%%rdx)\n" \
	"fstpl 536(%%rdx)\nfstpl 528(%%rdx)\nfstpl 520(%%rdx)\nfstpl 512(%%rdx)\n" \
	"fninit\n"
#define SLEEP(load, store, last) \
	asm volatile(EACH(load) LOAD_X87 "syscall\n" STORE_X87 EACH(store) last \
		     : "+a"(number) : "b"(&want), "d"(&got), "D"(&duration), "S"(NULL) \
		     : "rcx", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
		       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", \
		       "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)")

/* Sleeps for 20 ms with all registers full; whether they hold something else afterwards. */
static bool lost_registers(uint64_t round, bool avx)
{
	struct timespec duration = { .tv_nsec = 20000000 };
	struct registers want, got;
	uint32_t mxcsr = __builtin_ia32_stmxcsr();
	long number = SYS_nanosleep;

	memset(&want, 0, sizeof(want));
	for (unsigned n = 0; n < 16; n++)
		for (unsigned i = 0; i < 4; i++)
			want.vector[n][i] = value(n, i, round);
	for (unsigned n = 0; n < 8; n++)
		want.x87[n] = round + n / 8.0;
	want.mxcsr = 0xff80;   /* not the default: rounds to zero, flushes to zero */
	want.control = 0xc7f;  /* likewise: rounds to zero, single precision */
	got = want;
	memset(got.x87, 0, sizeof(got.x87));
	for (unsigned n = 0; n < 16; n++)
		memset(got.vector[n], 0, avx ? 32 : 16);
	if (avx)
		SLEEP(LOAD_AVX, STORE_AVX, "vzeroupper\n");
	else
		SLEEP(LOAD_SSE, STORE_SSE, "");
	__builtin_ia32_ldmxcsr(mxcsr);
	return memcmp(&want, &got, sizeof(want)) != 0;
}

static void run_on(unsigned cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* Counts in `lost` how often registers held something else, until its parent ends. */
static void keep_registers(_Atomic uint64_t *lost, bool avx)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	run_on(0);
	for (uint64_t round = 0;; round++)
		*lost += lost_registers(round, avx);
}

int main(int argc, char **argv)
{
	size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * 256;
	unsigned rewrites = argc > 2 ? strtoul(argv[2], NULL, 10) : 50;
	uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *version = calloc(pages, sizeof(*version));
	uint64_t random = 88172645463325252u, wrong = 0;
	bool avx = __builtin_cpu_supports("avx");
	double last = seconds(CLOCK_MONOTONIC);

	_Atomic uint64_t *lost = mmap(NULL, sizeof(*lost), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED || lost == MAP_FAILED || !version || !pages) {
		puts("TANDEM: memcheck FAIL no memory");
		return 1;
	}
	pid_t ended, keeper = fork();

	if (keeper < 0) {
		puts("TANDEM: memcheck FAIL no process");
		return 1;
	}
	if (keeper == 0)
		keep_registers(lost, avx);
	run_on(1);
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
		/* The child's write breaks a copy-on-write page, and its end takes page tables apart. */
		if (round % FORK_EVERY == 0 && fork() == 0) {
			memory[0] = 0;
			_exit(0);
		}
		while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
			wrong += ended == keeper;
		usleep(1000);
		double now = seconds(CLOCK_MONOTONIC);
		if (now - last >= 1 || now < last) {
			printf("TANDEM: memcheck round=%lu wrong=%lu registers=%s monotonic=%.2f real=%.2f\n", round, wrong + *lost,
			       avx ? "avx" : "sse", now, seconds(CLOCK_REALTIME));
			fflush(stdout);
			last = now;
		}
	}
}
