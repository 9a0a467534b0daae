/* Traffic on one CPU, while interfaces and domains come and go on another. */
#include "front.h"

enum { SECONDS = 2, CHILD = 5 };

static struct front a, b, c, d;
static u32 switch_name;
static volatile u64 nr_sent, nr_received, nr_odd;
static volatile bool is_over, has_stopped;

/* A packet of 1000 bytes whose every byte tells its sender and its number. */
static void put_marked(struct front *from, const u8 *to, u32 page, u8 mark)
{
	u8 *at = from->page[TX_DATA + page];
	memset(at, mark, 1000);
	memcpy(at, to, 6);
	memcpy(at + 6, from->mac, 6);
	at[12] = 0x88, at[13] = 0xb5, at[14] = from->number;
	put_slot(from, from->first_ref + TX_DATA + page, 0, 0, 1000);
}

/* What has arrived is for it, is from who it says, and is of one piece. The page may be written again only by who sends. */
static void look_at_all(struct front *front)
{
	static u8 got[65536];
	while (front->rx->rsp_prod != front->rx_cons) {
		u32 len = receive(front, got);
		nr_received++;
		bool is_odd = len != 1000 || (memcmp(got, front->mac, 6) && got[0] != 255) || got[11] != got[14] || got[10];
		for (u32 n = 16; n < 1000 && !is_odd; n++)
			is_odd = got[n] != got[15];
		nr_odd += is_odd;
	}
}

/* vCPU 1: two front ends send to each other, whatever becomes of them meanwhile. */
static void other_cpu(void)
{
	struct front *both[] = { &a, &b };
	for (u32 round = 0; !is_over; round++) {
		struct front *from = both[round % 2], *to = both[1 - round % 2];
		/* A page is written anew when its packet was answered. */
		u32 free = NR_TX_DATA - (from->tx->req_prod - from->tx->rsp_prod);
		for (u32 n = 0; n < free && free <= NR_TX_DATA; n++) {
			put_marked(from, to->mac, from->tx->req_prod % NR_TX_DATA, round);
			nr_sent++;
		}
		kick_tx(from);
		look_at_all(to);
		if (to->rx->req_prod - to->rx->rsp_prod < 8)
			post(to, 4);
		kick_rx(to);
	}
	has_stopped = true;
	HC3(vcpu_op, VCPUOP_down, 1, 0);
	/* Brought up again. */
	keep_ring_full();
	go_down(1);
}

/* The child joins, gets broadcasts, and dies. */
static void child_comes_and_goes(const u8 *everybody)
{
	make_front(&d, 3, CHILD);
	connect_front(&d, switch_name, SG);
	post(&d, 2);
	for (u32 n = 0; n < NR_TX_DATA; n++) {
		put_marked(&c, n % 2 ? everybody : a.mac, n, n);
		kick_tx(&c);
	}
	check_result(destroy_domain(CHILD), 0, "destroydomain");
	let_go_of_pages(&d);
	check(domain_is_gone(CHILD), "it does not go");
}

void beside(void)
{
	static u8 stack[4 * PAGE] __attribute__((aligned(16)));
	static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 };
	struct front *all[] = { &a, &b, &c };
	need_vcpu(1);
	switch_name = new_switch();
	for (u32 n = 0; n < COUNT(all); n++) {
		make_front(all[n], n, 0);
		connect_front(all[n], switch_name, SG);
	}
	start_vcpu(1, other_cpu, stack + sizeof(stack));
	u32 nr_rounds = 0;
	for (u64 end = now_ns() + SECONDS * 1000000000ul; now_ns() < end; nr_rounds++) {
		struct channel_vif vif = { (nr_rounds % 2 ? &a : &b)->vif, 0 };
		check_result(channel_op(VIF_DISCONNECT, &vif), 0, "disconnecting");
		/* Its rings go on where they are. */
		connect_front(nr_rounds % 2 ? &a : &b, switch_name, SG);
		if (nr_rounds % 16 == 0)
			child_comes_and_goes(everybody);
		if (nr_rounds % 64 == 0)
			audit();
		disconnect_front(&c);
		close_ports(&c);
		make_front(&c, 2, 0);
		connect_front(&c, switch_name, SG);
	}
	is_over = true;
	for (u64 until = now_ns() + 10000000000; !has_stopped && now_ns() < until;)
		HC1(sched_op, SCHEDOP_yield);
	check(has_stopped, "vCPU 1 does not come back");
	check(nr_odd == 0, "%lu odd packets", nr_odd);
	check(nr_received > 100 && nr_sent > 100, "%lu packets were sent, %lu received", nr_sent, nr_received);
	printk("  beside %u connections: %lu packets sent, %lu received\n", nr_rounds, nr_sent, nr_received);
	for (u32 n = 0; n < COUNT(all); n++) {
		disconnect_front(all[n]);
		close_ports(all[n]);
	}
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
}

/* Its packets are for all, and there is nobody else: nothing is copied. */
void alone(void)
{
	wait_until_down(1);
	switch_name = new_switch();
	make_front(&a, 0, 0);
	connect_front(&a, switch_name, SG);
	make_frame((const u8[]){ 255, 255, 255, 255, 255, 255 }, a.mac, 60, 1);
	check_interrupted(&a, 60, "to all, where nobody is");
	disconnect_front(&a);
	close_ports(&a);
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
}
