/* Guests send by a card on one CPU, while the card, its domain's interface and one of the guests come and go on the other. */
#include "card.h"

enum { SECONDS = 2, MOST = 200, LEN = 1000 };

static struct front b;
static struct front *const all[] = { &guest, &b, &out };
volatile bool stop_job, has_stopped;
static volatile u64 nr_put, nr_received, nr_odd, nr_by_card;

/* What each guest sends, again and again: to the outside, to all, and to the other. */
static void fill(struct front *front, const struct front *other)
{
	static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 };
	const u8 *to[] = { stranger, everybody, other->mac };
	for (u32 n = 0; n < COUNT(to); n++) {
		make_frame(to[n], front->mac, LEN, front->number);
		memcpy(front->page[TX_DATA + n], frame, LEN);
	}
}

void (*volatile job)(void);

static void other_cpu(void)
{
	for (;;) {
		job();
		has_stopped = true;
		HC3(vcpu_op, VCPUOP_down, 1, 0);
	}
}

static void traffic(void)
{
	static u8 got[4096];
	for (u32 round = 0; !stop_job; round++) {
		for (u32 n = 0; n < 2; n++) {
			struct front *from = all[n];
			for (u32 nr = 0; nr < 8 && from->tx->req_prod - from->tx->rsp_prod < MOST; nr++, nr_put++)
				put_slot(from, from->first_ref + TX_DATA + (nr + round) % 3, 0, 0, LEN);
			kick_tx(from);
		}
		for (u32 n = 0; n < COUNT(all); n++) {
			for (u32 len; (len = receive(all[n], got)); nr_received++)
				nr_odd += len != LEN || got[LEN - 1] != (u8)((LEN - 1) * 7 + got[11] + (LEN - 1) / 256);
			if (all[n]->rx->req_prod - all[n]->rx->rsp_prod < 8)
				post(all[n], 8);
			kick_rx(all[n]);
		}
	}
}

/* Its rings go on where they are. */
static void plug_anew(struct front *front, u32 flags)
{
	struct channel_vif vif = { front->vif, 0 };
	check_result(channel_op(VIF_DISCONNECT, &vif), 0, "disconnecting");
	connect_front(front, switch_name, flags);
}

static void card_comes_and_goes(u32 round)
{
	load_card("domains_own");
	check_result(attach(), 0, "attaching");
	for (u32 n = 0; n < 4; n++) {
		card->nr_gone = card->nr_sent;
		interrupt("beside others");
		if (n == 2 && round % 4 == 2)
			plug_anew(&out, SG | UPLINK);
		if (n == 2 && round % 4 == 3)
			plug_anew(&b, SG);
	}
	nr_by_card += card->nr_done;
	if (round % 4 == 0)
		check_result(detach(), 0, "taking the card away");
	if (round % 4 == 1) {
		bool is_disabled = false;
		/* A packet of the other CPU's may be the end before the interrupt comes. */
		card->xmit_bug = card->poll_bug = 1;
		ask_for_interrupt();
		UNTIL((is_disabled = is_disabled || nr_notes(DISABLED)), "a BUG");
	}
	unload_card();
}

void beside(void)
{
	static u8 stack[4 * PAGE] __attribute__((aligned(16)));
	u32 nr_rounds = 0;
	need_vcpu(1);
	make_front(&b, 2, 0);
	connect_front(&b, switch_name, SG);
	fill(&guest, &b);
	fill(&b, &guest);
	job = traffic;
	start_vcpu(1, other_cpu, stack + sizeof(stack));
	for (u64 end = now_ns() + SECONDS * 1000000000ul; now_ns() < end; nr_rounds++) {
		card_comes_and_goes(nr_rounds);
		if (nr_rounds % 8 == 0)
			audit();
	}
	stop_job = true;
	UNTIL(has_stopped, "vCPU 1");
	/* Whatever waits anywhere is answered, for a neighbour who takes nothing any more after ten seconds. */
	disconnect_front(&out);
	for (u32 n = 0; n < 2; n++) {
		kick_tx(all[n]);
		UNTIL(all[n]->tx->rsp_prod == all[n]->tx->req_prod, "the last answers");
		check(nr_in_use(all[n]) == 2, "%u grants are in use", nr_in_use(all[n]));
		all[n]->tx_cons = all[n]->tx->rsp_prod;
	}
	connect_front(&out, switch_name, SG | UPLINK);
	check(nr_odd == 0, "%lu odd packets", nr_odd);
	check(nr_put > 100 && nr_received > 100 && nr_by_card > 20, "%lu packets were sent, %lu by the card, %lu received", nr_put,
	      nr_by_card, nr_received);
	printk("  beside %u cards: %lu packets sent, %lu by cards, %lu received\n", nr_rounds, nr_put, nr_by_card, nr_received);
	disconnect_front(&b);
	close_ports(&b);
	audit();
}

/* A card for whatever twin there is. */
static void attach_always(void)
{
	while (!stop_job)
		attach();
}

/* A twin that goes while it is given a card leaves none behind. */
void cards_for_those_that_go(void)
{
	u32 nr_rounds = 0, nr_left = 0, nr_with_card = 0;
	need_vcpu(1);
	UNTIL(HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 0, "vCPU 1's end");
	stop_job = has_stopped = false;
	load_card("domains_own");
	job = attach_always;
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "vCPU 1");
	for (u64 end = now_ns() + 10000000000; nr_with_card < 20 && now_ns() < end; nr_rounds++) {
		for (u64 until = now_ns() + 1000 * (nr_rounds % 64); now_ns() < until;)
			;
		nr_with_card += way_out_of(switch_name).kind == CARD_IS_WAY_OUT;
		unload_card();
		nr_left += way_out_of(switch_name).kind != INTERFACE_IS_WAY_OUT;
		load_card("domains_own");
	}
	stop_job = true;
	UNTIL(has_stopped, "vCPU 1");
	unload_card();
	check(nr_left == 0 && nr_with_card > 0, "%u of %u twins left a card; %u had one", nr_left, nr_rounds, nr_with_card);
	printk("  %u twins went, %u with a card\n", nr_rounds, nr_with_card);
}
