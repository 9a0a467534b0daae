/*
 * clock: reads the clock without system calls. The kernel kills the process that reads it at any but exit, and a clock
 * that the kernel must be asked for is one. (Not seccomp's strict mode: that forbids RDTSC as well.)
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READINGS = 100000 };

static int forbid_system_calls(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int read_the_clock(void)
{
	struct timespec last, now;
	int i;

	clock_gettime(CLOCK_MONOTONIC, &last);
	if (forbid_system_calls())
		return 2;
	for (i = 0; i < READINGS; i++) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec))
			return 1;
		last = now;
	}
	return 0;
}

int main(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		syscall(SYS_exit, read_the_clock());
	if (pid < 0 || waitpid(pid, &status, 0) != pid) {
		perror("clock");
		return 1;
	}
	if (WIFSIGNALED(status))
		printf("clock FAIL a reading is a system call\n");
	else if (WEXITSTATUS(status) == 2)
		printf("clock FAIL system calls cannot be forbidden\n");
	else if (WEXITSTATUS(status))
		printf("clock FAIL it goes back\n");
	else
		printf("clock ok readings=%d\n", READINGS);
	return status != 0;
}
