/*
 * lmb: the operations of lmbench's latency set, each between two marks that the counting plugin sees. For every row
 * three windows are measured after a warm-up, and one line says how often the operation ran in each window. Figures
 * are computed by the host from the instructions executed between the marks, so time and idling play no part.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "mark.h"

enum { ROUNDS = 3, PAGE = 4096, RING = 8 };

static char *self;
static int ring[RING][2], ping[2], pong[2];
static pid_t helper[RING];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void null_call(unsigned n)
{
	while (n--)
		syscall(SYS_getpid);
}

static void getppid_call(unsigned n)
{
	while (n--)
		syscall(SYS_getppid);
}

static void await(pid_t pid)
{
	if (pid < 0 || waitpid(pid, NULL, 0) != pid)
		die("fork");
}

static void fork_exit(unsigned n)
{
	while (n--) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		await(pid);
	}
}

static void fork_exec(unsigned n)
{
	while (n--) {
		pid_t pid = fork();

		if (pid == 0) {
			execl(self, self, "exit", (char *)NULL);
			_exit(1);
		}
		await(pid);
	}
}

/* First write to each page of fresh memory; mapping and unmapping are spread over all of them. */
static void page_fault(unsigned n)
{
	char *p = mmap(NULL, (size_t)n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned i;

	if (p == MAP_FAILED)
		die("mmap");
	madvise(p, (size_t)n * PAGE, MADV_NOHUGEPAGE);
	for (i = 0; i < n; i++)
		p[(size_t)i * PAGE] = 1;
	munmap(p, (size_t)n * PAGE);
}

/* 64 pages mapped, 4 of them used, all unmapped. */
static void map_unmap(unsigned n)
{
	while (n--) {
		char *p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int i;

		if (p == MAP_FAILED)
			die("mmap");
		for (i = 0; i < 64; i += 16)
			p[i * PAGE] = 1;
		munmap(p, 64 * PAGE);
	}
}

/* A token goes round a ring of processes; one hop is one operation. */
static void context_switch(unsigned n)
{
	char token = 0;

	for (n /= RING; n; n--)
		if (write(ring[0][1], &token, 1) != 1 || read(ring[RING - 1][0], &token, 1) != 1)
			die("ring");
}

static void start_ring(void)
{
	char token;
	int i;

	for (i = 0; i < RING; i++)
		if (pipe(ring[i]))
			die("pipe");
	for (i = 1; i < RING; i++) {
		helper[i] = fork();
		if (helper[i] == 0)
			for (;;)
				if (read(ring[i - 1][0], &token, 1) != 1 || write(ring[i][1], &token, 1) != 1)
					_exit(0);
	}
}

static void pipe_round_trip(unsigned n)
{
	char token = 0;

	while (n--)
		if (write(ping[1], &token, 1) != 1 || read(pong[0], &token, 1) != 1)
			die("pipe");
}

static void start_pong(void)
{
	char token;

	if (pipe(ping) || pipe(pong))
		die("pipe");
	helper[0] = fork();
	if (helper[0] == 0)
		for (;;)
			if (read(ping[0], &token, 1) != 1 || write(pong[1], &token, 1) != 1)
				_exit(0);
}

static void on_signal(int number)
{
	(void)number;
}

static void signal_delivery(unsigned n)
{
	pid_t pid = getpid();

	while (n--)
		kill(pid, SIGUSR1);
}

static void timer_wakeup(unsigned n)
{
	struct timespec t = { .tv_nsec = 100000 };

	while (n--)
		nanosleep(&t, NULL);
}

static void clock_reading(unsigned n)
{
	struct timespec t;

	while (n--)
		clock_gettime(CLOCK_MONOTONIC, &t);
}

static const struct row {
	const char *name;
	void (*run)(unsigned n);
	unsigned n;
} rows[] = {
	{ "null-syscall", null_call, 2000 },
	{ "getppid", getppid_call, 2000 },
	{ "fork+exit", fork_exit, 20 },
	{ "fork+exec", fork_exec, 20 },
	{ "page-fault", page_fault, 1024 },
	{ "mmap+munmap", map_unmap, 100 },
	{ "context-switch", context_switch, 4000 },
	{ "pipe-round-trip", pipe_round_trip, 2000 },
	{ "signal", signal_delivery, 1000 },
	{ "timer-wakeup", timer_wakeup, 100 },
	{ "clock_gettime", clock_reading, 2000 },
};

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	size_t i;
	int round;

	if (argc > 1 && !strcmp(argv[1], "exit"))
		return 0;
	self = argv[0][0] == '/' ? argv[0] : (char *)"/tools/lmb";
	sigaction(SIGUSR1, &action, NULL);
	start_ring();
	start_pong();
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		rows[i].run(rows[i].n);
		for (round = 0; round < ROUNDS; round++) {
			MARK(2);
			rows[i].run(rows[i].n);
			MARK(3);
		}
		printf("TANDEM: lmb %s n=%u rounds=%d\n", rows[i].name, rows[i].n, ROUNDS);
		fflush(stdout);
	}
	for (i = 0; i < RING; i++)
		kill(helper[i], SIGKILL);
	return 0;
}
