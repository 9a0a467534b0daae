/*
 * joins DEVICE BYTES: segments of TCP that an interface receives are joined to packets of at most so many bytes. `ip link set DEVICE
 * gro_max_size BYTES` of iproute2 does the same; busybox does not know it.
 */
#include <errno.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>

int main(int argc, char **argv)
{
	struct {
		struct nlmsghdr head;
		struct ifinfomsg link;
		struct nlattr attribute;
		uint32_t bytes;
	} request = {
		.head = { .nlmsg_len = sizeof(request), .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK },
		.attribute = { .nla_len = NLA_HDRLEN + sizeof(uint32_t), .nla_type = IFLA_GRO_MAX_SIZE },
	};
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char more[256];
	} answer;
	int link;

	if (argc != 3 || !(request.bytes = strtoul(argv[2], NULL, 0))) {
		fprintf(stderr, "joins: a device and a number of bytes are wanted\n");
		return 1;
	}
	request.link.ifi_index = if_nametoindex(argv[1]);
	link = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (!request.link.ifi_index || link < 0 || send(link, &request, sizeof(request), 0) < 0 ||
	    recv(link, &answer, sizeof(answer), 0) < (ssize_t)(sizeof(answer.head) + sizeof(answer.error.error))) {
		fprintf(stderr, "joins: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	if (answer.head.nlmsg_type == NLMSG_ERROR && answer.error.error) {
		fprintf(stderr, "joins: %s: %s\n", argv[1], strerror(-answer.error.error));
		return 1;
	}
	return 0;
}
