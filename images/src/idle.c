/*
 * idle SECONDS [contents]: sleeps, between marks, so that what others do meanwhile is counted; afterwards, if it is to, makes the mark by which what
 * memory holds is written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "mark.h"

int main(int argc, char **argv)
{
	unsigned seconds = argc > 1 ? strtoul(argv[1], NULL, 10) : 10;

	MARK(2);
	sleep(seconds);
	MARK(3);
	if (argc > 2)
		MARK(5);
	return 0;
}
