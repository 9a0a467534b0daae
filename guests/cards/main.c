/*
 * A network card whose driver is a twin: a guest's packets go out by it and come in, whatever it is that the driver asks the domain for
 * meanwhile; one that cuts packets gets them whole; one with two transmit queues sends by both, and neither waits for
 * the other; what is refused; what of its interrupts the domain handles; what happens to what is under way when the card goes; neither a driver that never comes to an end nor a
 * guest that never stops sending what the card does not take keeps its CPUs from others; and where memory is short a card that is there goes on,
 * and one that comes leaves the hypervisor what that keeps for itself.
 * (cpus: 2) (shares: channels fronts twins) (differs: stock Xen has no twins)
 */
#include "card.h"

const char test_name[] = "cards";

/* Packets go out, and are answered when the driver has let go of them. */
static void out_of_it(void)
{
	static const u32 lens[] = { 14, 60, 193, 1514 };
	for (u32 n = 0; n < COUNT(lens); n++) {
		send_out(lens[n], n);
		check_sent(lens[n], "going out");
		check_answers(0, "what the driver has");
		all_gone("going out");
	}
	for (u32 n = 0; n < 12; n++)
		send_out(100 + n, n);
	check(card->nr_sent - card->nr_done == 12, "the driver has %lu packets", card->nr_sent - card->nr_done);
	all_gone("many");
	check_nothing(&out, "beside a card");
	check(nr_in_use(&guest) == 2, "%u grants are in use", nr_in_use(&guest));
}

/* The device receives what is in `frame` into the next buffer that the driver gave it. */
void arrives(u32 len)
{
	u64 skb = card->rx[card->rx_there % 64], head = *word(skb, SKB_HEAD);
	memcpy((void *)(head + HEADROOM), frame, len);
	*word(skb, SKB_LEN) = len - 14;
	*word(skb, SKB_TAIL) = HEADROOM + len;
	*word(skb, SKB_MAC) = HEADROOM;
	*word(skb, SKB_DATA) = head + HEADROOM + 14;
	card->rx_there++;
}

static void into_it(void)
{
	static const u32 lens[] = { 60, 193, 1514 };
	card->rx_wanted = 8;
	interrupt("an empty poll");
	UNTIL(card->rx_filled == 8, "buffers for what is received");
	for (u32 n = 0; n < COUNT(lens); n++) {
		make_frame(guest.mac, stranger, lens[n], n);
		arrives(lens[n]);
		interrupt("coming in");
		UNTIL(card->rx_taken == card->rx_there, "coming in");
		check_received(&guest, lens[n], "coming in");
		UNTIL(*word((u64)card->napi, NAPI_STATE) == 0, "the end of the poll");
	}
	/* For nobody, and with the guest's own address. */
	make_frame(stranger, stranger, 60, 7);
	arrives(60);
	make_frame(stranger, guest.mac, 60, 7);
	arrives(60);
	interrupt("for nobody");
	UNTIL(card->rx_taken == card->rx_there, "for nobody");
	check_nothing(&guest, "what is for nobody");
	check(nr_notes(FREE_SKB) == 0, "a lent buffer is to be freed");
}

/* While the domain sleeps, and its CPU with it. Its ears are shut until it does: an answer that comes before it sleeps wakes it. */
static void asleep(void)
{
	volatile u8 *mask = &shared_info()->vcpu[0].upcall_mask;
	enum { VIRQ_TIMER };
	struct bind_virq timer = { VIRQ_TIMER, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &timer), 0, "binding the timer");
	send_out(60, 1);
	card->nr_gone = card->nr_sent;
	u64 nr = card->nr_interrupts, start = now_ns();
	HC3(vcpu_op, VCPUOP_set_singleshot_timer, 0, &((struct { u64 at; u32 flags, pad; }){ start + 1000000000, 0, 0 }));
	*mask = 1;
	ask_for_interrupt();
	while (!nr_answers(&guest) && now_ns() < start + 900000000) {
		HC1(sched_op, SCHEDOP_block);
		*mask = 1;
	}
	*mask = 0;
	check(card->nr_interrupts != nr, "the twin does not run while the domain sleeps");
	check_answers(1, "asleep");
	HC3(vcpu_op, VCPUOP_stop_singleshot_timer, 0, 0);
	check_result(evtchn(EVTCHN_close, &timer.port), 0, "closing the timer's port");
}

/* The domain keeps an interrupt from itself, and gets it. */
static void masked(void)
{
	volatile struct shared_info *shared = shared_info();
	u64 bit = 1ul << irq_port % 64, before = card->nr_interrupts;
	__atomic_fetch_or((u64 *)&shared->mask[irq_port / 64], bit, __ATOMIC_SEQ_CST);
	send_out(60, 1);
	card->nr_gone = card->nr_sent;
	asm volatile("out %0, $0x70\n\tin $0x71, %0" : : "a"((u8)0xc));
	UNTIL(is_pending(irq_port), "a masked interrupt");
	check(card->nr_interrupts == before && nr_answers(&guest) == 0, "the twin handles what the domain has masked");
	evtchn(EVTCHN_unmask, &irq_port);
	UNTIL(!is_pending(irq_port), "the domain's interrupt");
	/* Whether this tick of the clock or the next one is the twin's. */
	interrupt("unmasked");
	UNTIL(card->nr_done == card->nr_gone && nr_answers(&guest), "unmasked");
	check_answers(1, "unmasked");
	/* With its ears shut it keeps the twin out as well, until it opens them. */
	before = card->nr_interrupts;
	shared->vcpu[0].upcall_mask = 1;
	asm volatile("out %0, $0x70\n\tin $0x71, %0" : : "a"((u8)0xc));
	u64 end = now_ns() + 50000000;
	while (now_ns() < end)
		HC1(sched_op, SCHEDOP_yield);
	check(card->nr_interrupts == before && !is_pending(irq_port), "the twin interrupts a vCPU that has shut its ears");
	shared->vcpu[0].upcall_mask = 0;
	UNTIL(card->nr_interrupts != before, "ears are open again");
	/* What its own kernel frees comes back. */
	send_out(60, 2);
	*(u32 *)word(card->tx[(card->nr_sent - 1) % 64], SKB_USERS) = 1;
	card->nr_gone = card->nr_done = card->nr_sent;
	UNTIL(nr_answers(&guest) == 1, "what the domain has freed");
	check_answers(1, "what the domain has freed");
}

/* A stopped queue, a driver without room, and somebody else who transmits. */
static void held_up(void)
{
	volatile u64 *state = word((u64)card->queue, QUEUE_STATE);
	volatile u32 *lock = (u32 *)word((u64)card->queue, QUEUE_LOCK);
	u64 sent = card->nr_sent;
	*state = 1;
	send_out(60, 1);
	check(card->nr_sent == sent, "a stopped queue sends");
	card->wake = 1;
	interrupt("waking the queue");
	UNTIL(card->nr_sent == sent + 1, "what waited for the queue");
	check_sent(60, "what waited for the queue");
	check(nr_notes(QUEUE) == 1, "the domain is not told of its queue");
	all_gone("what waited for the queue");
	/* By the domain, of which nobody hears. */
	*state = 1;
	send_out(60, 2);
	*state = 0;
	UNTIL(card->nr_sent == sent + 2, "what waited for the domain");
	all_gone("what waited for the domain");
	card->xmit_answer = 0x10;
	send_out(60, 3);
	check(card->nr_sent == sent + 2 && *lock == 0, "a busy driver; the lock is %#x", *lock);
	card->xmit_answer = 0;
	UNTIL(card->nr_sent == sent + 3, "what was refused at first");
	check_sent(60, "what was refused at first");
	all_gone("what was refused at first");
	*lock = 1;
	send_out(60, 4);
	check(card->nr_sent == sent + 3 && *lock == 1, "beside another who transmits; the lock is %#x", *lock);
	*lock = 0;
	UNTIL(card->nr_sent == sent + 4, "when the other is done");
	check(*lock == 0, "the lock is %#x", *lock);
	all_gone("when the other is done");
}

/* A card that takes nothing holds up what is for all as it does what is for strangers, though that is more than half of a ring. */
static void held_up_for_all(void)
{
	enum { STRANGERS = 200, ALL = STRANGERS + 1 };
	static const u8 everybody[6] = { 255, 255, 255, 255, 255, 255 };
	volatile u64 *state = word((u64)card->queue, QUEUE_STATE);
	u64 sent = card->nr_sent;
	u32 nr = 0;
	post(&out, 1);
	*state = 1;
	make_frame(stranger, guest.mac, 60, 1);
	memcpy(guest.page[TX_DATA], frame, 60);
	make_frame(everybody, guest.mac, 60, 2);
	memcpy(guest.page[TX_DATA + 1], frame, 60);
	for (u32 n = 0; n < ALL; n++)
		put_slot(&guest, guest.first_ref + TX_DATA + n / STRANGERS, 0, 0, 60);
	check_result(kick_tx(&guest), 0, "a kick");
	check_received(&out, 60, "to all, when the card takes nothing");
	check(card->nr_sent == sent && nr_answers(&guest) == 0, "%lu packets go, %u are answered", card->nr_sent - sent, nr_answers(&guest));
	card->wake = 1;
	for (u64 end = now_ns() + 10000000000; nr < ALL && now_ns() < end;) {
		card->nr_gone = card->nr_sent;
		ask_for_interrupt();
		HC1(sched_op, SCHEDOP_yield);
		for (; nr_answers(&guest); nr++)
			check(answer(&guest) == 0, "an error");
	}
	check(nr == ALL && card->nr_sent == sent + ALL, "of %u packets %lu go, %u are answered", ALL, card->nr_sent - sent, nr);
	UNTIL(*word((u64)card->napi, NAPI_STATE) == 0, "the end of the poll");
}

/* Functions of the domain. */
static void calls_out(void)
{
	struct twin_call call, other;
	u64 sent = card->nr_sent;
	card->argument = 77;
	card->xmit_call = 1;
	clear_pending(card_port);
	upcall_ports[card_port / 64] &= ~(1ul << card_port % 64);
	send_out(60, 1);
	UNTIL(upcall_ports[card_port / 64] >> card_port % 64 & 1, "an event for a call");
	check(next_at_once(&call) && call.reason == UPCALL && call.detail == IMPORTED && call.args[0] == 77, "the call: %u %#lx", call.reason, call.detail);
	check(!next(&other), "a call is told twice");
	check(detach() == -EBUSY, "taking a card away that waits");
	send_out(60, 2);
	check(card->nr_sent == sent, "a card that waits goes on");
	card->xmit_call = 0;
	check_result(go_on(&call, 5), 0, "going on");
	upcall_ports[card_port / 64] &= ~(1ul << card_port % 64);
	check(call.reason == RETURNED, "going on: reason %u", call.reason);
	check(go_on(&call, 5) == -ENOENT, "going on twice");
	UNTIL(card->nr_sent == sent + 2, "what waited for the call");
	check(*(u32 *)word((u64)card->queue, QUEUE_LOCK) == 0, "the transmit lock stays taken");
	all_gone("what waited for the call");
	card->poll_call = 1;
	send_out(60, 3);
	card->nr_gone = card->nr_sent;
	/* It may have been asked for before: then there is no other before the call returns. */
	ask_for_interrupt();
	bool has_call = false;
	UNTIL(upcall_ports[card_port / 64] >> card_port % 64 & 1, "an event for a poll's call");
	check(!next_at_once(&call), "a poll's call is told to interrupt handlers");
	UNTIL((has_call = has_call || next(&call)), "a poll's call");
	card->poll_call = 0;
	check_answers(0, "before the call returns");
	check_result(go_on(&call, 5), 0, "going on");
	UNTIL(card->nr_done == card->nr_gone, "a poll that goes on");
	check_answers(1, "a poll that goes on");
	UNTIL(*word((u64)card->napi, NAPI_STATE) == 0, "the end of the poll");
}

/* Has the domain had an event of the device's? */
static bool has_interrupt(void)
{
	return upcall_ports[irq_port / 64] >> irq_port % 64 & 1;
}

static void forget_interrupt(void)
{
	upcall_ports[irq_port / 64] &= ~(1ul << irq_port % 64);
}

/* A handler that wants a thread of the domain's; and an interrupt that the domain has bound anew, whose port has the number that it had. */
static void domains_interrupts(void)
{
	load_card("domains_own");
	check_result(attach(), 0, "attaching");
	interrupt("a handler");
	forget_interrupt();
	card->interrupt_flip = 3;
	interrupt("a handler that wants a thread");
	UNTIL(has_interrupt(), "an interrupt that wants a thread");
	card->interrupt_flip = 0;
	u32 port = irq_port;
	check_result(evtchn(EVTCHN_close, &port), 0, "closing the interrupt's port");
	forget_interrupt();
	u64 nr = card->nr_interrupts;
	bind_interrupt();
	check(irq_port == port, "bound anew it has port %u", irq_port);
	ask_for_interrupt();
	UNTIL(has_interrupt(), "an interrupt that was bound anew");
	check(card->nr_interrupts == nr, "the twin handles what was bound anew");
	check_result(detach(), 0, "taking the card away");
	/* Given to a card again it is the card's. */
	check_result(attach(), 0, "attaching again");
	interrupt("attached again");
	UNTIL(*word((u64)card->napi, NAPI_STATE) == 0, "the end of the poll");
	check_result(detach(), 0, "taking the card away again");
	unload_card();
}

/* Packets that the card does not take are answered at once. */
static void too_long(void)
{
	load_card("domains_own");
	check_result(attach(), 0, "attaching");
	UNTIL(HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 0, "vCPU 1's end");
	job = keep_ring_full;
	make_frame(stranger, guest.mac, 1515, 1);
	check_interrupted(&guest, 1515, "longer than the card takes");
	check(card->nr_sent == 0, "the driver has %lu packets", card->nr_sent);
	check_result(detach(), 0, "taking the card away");
	unload_card();
}

void test_main(void)
{
	set_upcall();
	shared_info()->vcpu[0].upcall_mask = 0;
	switch_name = new_switch();
	make_front(&guest, 0, 0);
	make_front(&out, 1, 0);
	connect_front(&guest, switch_name, SG);
	connect_front(&out, switch_name, SG | UPLINK);
	post(&guest, 16), post(&out, 16);
	load_card("domains_own");
	audit();
	bad_attaches();
	if (!check_result(attach(), 0, "attaching"))
		fail();
	audit();
	out_of_it();
	into_it();
	asleep();
	masked();
	held_up();
	held_up_for_all();
	calls_out();
	whole();
	audit();
	check_result(detach(), 0, "taking the card away");
	check(detach() == -ENOENT, "taking it away twice");
	/* The interface is the way out again. */
	send_out(60, 9);
	check_received(&out, 60, "without the card");
	check_answers(1, "without the card");
	unload_card();
	audit();
	domains_interrupts();
	audit();
	ends();
	audit();
	queues();
	audit();
	ports();
	audit();
	measure();
	beside();
	audit();
	cards_for_those_that_go();
	audit();
	endless();
	audit();
	too_long();
	audit();
	short_of_memory();
	audit();
	disconnect_front(&guest);
	disconnect_front(&out);
	close_ports(&guest);
	close_ports(&out);
	audit();
}
