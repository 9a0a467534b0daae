// SPDX-License-Identifier: GPL-2.0
/*
 * What a card does for each packet that the hypervisor leaves to it.
 *
 * Linux asks a driver for every packet whether the card's features hold for it
 * (ndo_features_check), and sums or cuts itself what the card would not. For a twin's packets
 * nobody asks. So before it gets the card the driver is asked about packets at the corners of what
 * there may be: plain headers with options or without, lengths, sizes of segments, what lies in the
 * last fragment. A feature that one of them does not have none has: the hypervisor does that then.
 */
#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include "internal.h"

/*
 * Payload of a segment, and bytes of a packet, at least: of others the hypervisor sums and cuts all
 * (channel/src).
 */
#define LEAST_SEGMENT 256
#define LEAST_PACKET ETH_ZLEN
/* Whole pages of one that is to be cut, at most. */
#define MOST_PAGES 15
/* What has a longer payload lies in pages. */
#define BUFFER 1600
/* With options. */
#define MOST_HEADER 60
/* Some cards do not take all that goes to the clocks of PTP. */
#define PTP_PORT 319

struct packet {
	bool is_v6;
	u8 protocol;
	/* Bytes of IP's header, and of TCP's or UDP's. */
	u32 ip, transport;
	/*
	 * Payload behind them, and in fragments of a page each; of a segment, if it is to be cut.
	 */
	u32 behind, in_pages, segment;
};

/* What all packets have: those in one piece, and those that are to be cut. */
struct answers {
	netdev_features_t sums, segments;
};

static void write_headers(struct sk_buff *skb, const struct packet *packet)
{
	u32 len = packet->transport + packet->behind + packet->in_pages;

	skb->protocol = packet->is_v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP);
	eth_hdr(skb)->h_proto = skb->protocol;
	if (packet->is_v6) {
		ipv6_hdr(skb)->version = 6;
		ipv6_hdr(skb)->nexthdr = packet->protocol;
		ipv6_hdr(skb)->payload_len = htons(len);
	} else {
		ip_hdr(skb)->version = 4;
		ip_hdr(skb)->ihl = packet->ip / 4;
		ip_hdr(skb)->protocol = packet->protocol;
		ip_hdr(skb)->tot_len = htons(packet->ip + len);
	}
	if (packet->protocol == IPPROTO_TCP) {
		tcp_hdr(skb)->doff = packet->transport / 4;
		skb->csum_offset = offsetof(struct tcphdr, check);
	} else {
		udp_hdr(skb)->dest = htons(PTP_PORT);
		udp_hdr(skb)->len = htons(len);
		skb->csum_offset = offsetof(struct udphdr, check);
	}
}

static void fill_pages(struct sk_buff *skb, struct page *page, u32 bytes)
{
	u32 n, len;

	for (n = 0; bytes; n++, bytes -= len) {
		len = min_t(u32, bytes, PAGE_SIZE);
		get_page(page);
		skb_add_rx_frag(skb, n, page, 0, len, PAGE_SIZE);
	}
}

/* As the hypervisor makes them: TCP's or UDP's sum is blank. All of its pages are this one. */
static struct sk_buff *make(struct net_device *dev, const struct packet *packet, struct page *page)
{
	u32 len = ETH_HLEN + packet->ip + packet->transport + packet->behind;
	struct sk_buff *skb = alloc_skb(LL_MAX_HEADER + len, GFP_KERNEL);

	if (!skb)
		return NULL;
	skb_reserve(skb, LL_MAX_HEADER);
	skb_put_zero(skb, len);
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	skb_set_transport_header(skb, ETH_HLEN + packet->ip);
	skb->dev = dev;
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_transport_header(skb) - skb->head;
	write_headers(skb, packet);
	fill_pages(skb, page, packet->in_pages);
	if (packet->segment) {
		skb_shinfo(skb)->gso_size = packet->segment;
		skb_shinfo(skb)->gso_segs = DIV_ROUND_UP(packet->behind + packet->in_pages,
							 packet->segment);
		skb_shinfo(skb)->gso_type = packet->is_v6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4;
	}
	return skb;
}

/* Leaves of the features those that this packet has; none without memory. */
static void ask(struct net_device *dev, const struct packet *packet, struct page *page,
		netdev_features_t *features)
{
	struct sk_buff *skb = make(dev, packet, page);

	if (!skb) {
		*features = 0;
		return;
	}
	/* As where packets are sent. */
	rcu_read_lock_bh();
	*features &= netif_skb_features(skb);
	rcu_read_unlock_bh();
	consume_skb(skb);
}

/* One in one piece that has so many bytes, or more if its headers have. */
static void ask_of_length(struct net_device *dev, struct packet packet, struct page *page, u32 len,
			  netdev_features_t *features)
{
	u32 headers = ETH_HLEN + packet.ip + packet.transport;
	u32 payload = len > headers ? len - headers : 0;

	packet.behind = payload <= BUFFER ? payload : 0;
	packet.in_pages = payload - packet.behind;
	ask(dev, &packet, page, features);
}

/* Those with these headers that are to be cut, into segments of this size. */
static void ask_of_segments(struct net_device *dev, struct packet packet, struct page *page,
			    netdev_features_t *features)
{
	static const u32 last[] = { 1, 6, 7, PAGE_SIZE / 2 };
	u32 n;

	for (n = 0; n < ARRAY_SIZE(last); n++) {
		packet.behind = 0;
		packet.in_pages = MOST_PAGES * PAGE_SIZE + last[n];
		ask(dev, &packet, page, features);
		packet.in_pages = round_up(packet.segment, PAGE_SIZE) + last[n];
		ask(dev, &packet, page, features);
		if (packet.segment + last[n] > BUFFER)
			continue;
		packet.behind = packet.segment;
		packet.in_pages = last[n];
		ask(dev, &packet, page, features);
		packet.behind += last[n];
		packet.in_pages = 0;
		ask(dev, &packet, page, features);
	}
}

static void ask_of_headers(struct net_device *dev, struct packet packet, struct page *page,
			   struct answers *answers)
{
	u32 headers = packet.ip + packet.transport;

	ask_of_length(dev, packet, page, LEAST_PACKET, &answers->sums);
	ask_of_length(dev, packet, page, ETH_HLEN + dev->mtu, &answers->sums);
	if (packet.protocol != IPPROTO_TCP || dev->mtu < headers + LEAST_SEGMENT)
		return;
	packet.segment = LEAST_SEGMENT;
	ask_of_segments(dev, packet, page, &answers->segments);
	packet.segment = min_t(u32, dev->mtu, MOST_PAGES * PAGE_SIZE) - headers;
	ask_of_segments(dev, packet, page, &answers->segments);
}

static void ask_of_protocols(struct net_device *dev, struct packet packet, struct page *page,
			     struct answers *answers)
{
	/* Without options, with a time stamp, with all that there is room for. */
	static const u32 tcp[] = { sizeof(struct tcphdr), sizeof(struct tcphdr) + 12, MOST_HEADER };
	u32 n;

	packet.protocol = IPPROTO_UDP;
	packet.transport = sizeof(struct udphdr);
	ask_of_headers(dev, packet, page, answers);
	packet.protocol = IPPROTO_TCP;
	for (n = 0; n < ARRAY_SIZE(tcp); n++) {
		packet.transport = tcp[n];
		ask_of_headers(dev, packet, page, answers);
	}
}

/*
 * Of the flags that a card's features stand for, those that all packets have. Without memory it has
 * none of them. What a driver answers may change with its features and its MTU; the card is
 * attached anew then.
 */
u32 tandem_flags_of_all(struct net_device *dev, u32 flags)
{
	struct answers v4 = { dev->features, dev->features }, v6 = v4;
	struct page *page = alloc_page(GFP_KERNEL);

	if (!page)
		return 0;
	ask_of_protocols(dev, (struct packet) { .ip = sizeof(struct iphdr) }, page, &v4);
	ask_of_protocols(dev, (struct packet) { .ip = MOST_HEADER }, page, &v4);
	ask_of_protocols(dev, (struct packet) { .is_v6 = true, .ip = sizeof(struct ipv6hdr) }, page,
			 &v6);
	__free_page(page);
	if (!(v4.sums & (NETIF_F_HW_CSUM | NETIF_F_IP_CSUM)))
		flags &= ~TWIN_CHECKSUM_V4;
	if (!(v6.sums & (NETIF_F_HW_CSUM | NETIF_F_IPV6_CSUM)))
		flags &= ~TWIN_CHECKSUM_V6;
	if (!(v4.segments & NETIF_F_TSO))
		flags &= ~TWIN_GSO_TCPV4;
	if (!(v6.segments & NETIF_F_TSO6))
		flags &= ~TWIN_GSO_TCPV6;
	return flags;
}
