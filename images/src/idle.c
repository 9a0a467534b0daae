/* idle SECONDS: sleeps, between marks, so that what others do meanwhile is counted. */
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
	return 0;
}
