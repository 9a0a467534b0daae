/*
 * The first program: says to the counting plugin that userspace runs, then becomes the shell with /init.sh.
 * Nothing else is done here, so that the figure is the kernel's and the hypervisor's.
 */
#include <unistd.h>
#include "mark.h"

int main(void)
{
	char *argv[] = { "sh", "/init.sh", NULL };
	char *envp[] = { "PATH=/tools:/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/", "TERM=linux", NULL };

	MARK(1);
	execve("/bin/busybox", argv, envp);
	return 1;
}
