/* How a card ends: taken away, unloaded, or because its twin was aborted. What is under way comes back. */
#include "card.h"

static bool has_event(u32 port)
{
	return upcall_ports[port / 64] >> port % 64 & 1;
}

static void begin_with(const char *first, const char *last)
{
	load_card_with(first, last);
	upcall_ports[card_port / 64] &= ~(1ul << card_port % 64);
	check_result(attach(), 0, "attaching");
}

static void begin(const char *first)
{
	begin_with(first, "_raw_spin_unlock");
}

static bool is_over(void)
{
	struct twin_stats stats = { .twin = twin };
	check_result(twin_op(TWINOP_STATS, &stats), 0, "what it has done");
	return stats.disabled;
}

/* The twin is disabled, the domain hears of it, and the guest's packets come back. This is the poll's state then. */
static void is_disabled_with(u64 state, u32 answers, u32 reason, const char *what)
{
	UNTIL(has_event(card_port), what);
	struct twin_stats stats = { .twin = twin };
	check_result(twin_op(TWINOP_STATS, &stats), 0, "what it has done");
	check(stats.disabled && !stats.has_card && stats.reason == reason && stats.aborts == 1, "%s: disabled for reason %u", what,
	      stats.reason);
	check(stats.packets >= card->nr_sent && stats.turns && stats.ticks, "%s: %lu packets in %lu turns", what, stats.packets, stats.turns);
	if (reason == BUG)
		check(stats.original - TEXT < 16 * NR_FUNCTIONS, "%s: at %#lx", what, stats.original);
	check(nr_notes(DISABLED) == 1, "%s: no note", what);
	check_answers(answers, what);
	check(detach() == -ENOENT, "%s: there is a card still", what);
	check(attach() == -EIO, "%s: a card for a disabled twin", what);
	check(*(u32 *)word((u64)card->queue, QUEUE_LOCK) == 0, "%s: the transmit lock stays taken", what);
	check(*word((u64)card->napi, NAPI_STATE) == state, "%s: the poll's state is %#lx", what, *word((u64)card->napi, NAPI_STATE));
	send_out(60, 1);
	check_received(&out, 60, what);
	check_answers(1, what);
	unload_card();
	check(nr_in_use(&guest) == 2, "%s: %u grants are in use", what, nr_in_use(&guest));
}

/* The poll is nobody's. */
static void is_disabled(u32 answers, u32 reason, const char *what)
{
	is_disabled_with(0, answers, reason, what);
}

/* When it has given its poll up, the domain's own driver takes it; then the twin is aborted. */
static void polled_by_the_domain(void)
{
	struct twin_call call;
	bool has_call = false;
	begin("domains_own");
	send_out(60, 1);
	card->late_call = 1;
	interrupt("a poll that was given up");
	UNTIL((has_call = has_call || next(&call)), "a call after a poll");
	check(*word((u64)card->napi, NAPI_STATE) == 0, "a poll that was given up: its state is %#lx", *word((u64)card->napi, NAPI_STATE));
	*word((u64)card->napi, NAPI_STATE) = SCHED;
	check_result(go_on(&call, 0), 0, "going on");
	is_disabled_with(SCHED, 1, BUG, "a BUG after the poll");
	*word((u64)card->napi, NAPI_STATE) = 0;
}

/* The domain's only processor sleeps until the twin releases the transmit lock: nothing of the domain's has to run for that. */
static void behind_a_lock(volatile u32 *held)
{
	struct {
		u32 *ports;
		u32 nr_ports, pad;
		u64 timeout;
	} poll = { NULL, 0, 0, now_ns() + 3000000000 };
	volatile u32 *lock = (u32 *)word((u64)card->queue, QUEUE_LOCK);
	u64 sent = card->nr_sent;
	*held = 1;
	card->xmit_call = 2;
	send_out(60, 3);
	check(card->nr_sent == sent && *lock == 1, "the driver waits with the transmit lock, which is %#x", *lock);
	sleepers[5].lock = (u64)lock;
	*lock = 3;
	shared_info()->vcpu[0].upcall_mask = 1;
	*held = 0;
	check_result(HC2(sched_op, SCHEDOP_poll, &poll), 0, "sleeping");
	check(now_ns() < poll.timeout - 1000000000, "who sleeps behind a lock is not woken");
	shared_info()->vcpu[0].upcall_mask = 0;
	check(*lock == 0 && !sleepers[5].lock, "the lock is %#x, behind it sleeps %#lx", *lock, sleepers[5].lock);
	check(nr_notes(UNLOCK) == 0, "the domain is to release a lock");
	check(card->nr_sent == sent + 1, "what waited for a lock");
	card->xmit_call = 0;
	all_gone("who sleeps behind a lock");
}

/* A lock that the driver waits for is no longer there. Another that it has taken is the domain's again. */
static void a_lock_goes(volatile u32 *held)
{
	u8 *page = pages[50];
	u64 entry = pte(mfn_of(page), P | RW | US | A | D);
	begin_with("_raw_spin_lock", "_raw_spin_lock");
	*held = 0;
	*(volatile u32 *)page = 1;
	card->argument = (u64)held;
	card->second = (u64)page;
	card->xmit_call = 2;
	send_out(60, 1);
	check(card->nr_sent == 0 && *held == 1, "the first of two locks is %#x", *held);
	check_result(update_va(page, 0, 2 | 4), 0, "taking a page away");
	is_disabled(1, MEMORY, "a lock that goes");
	check_result(update_va(page, entry, 2 | 4), 0, "the page is back");
	check(*held == 0, "the lock of a twin that waited for another is %#x", *held);
}

/* What the driver has to receive into leaves some to send. The domain's kernel frees it, as when the interface goes down, and nothing else
 * happens: who waits for a buffer gets one. */
static void freed_meanwhile(void)
{
	enum { TAKEN = NR_SKBS * 3 / 4, LEFT = NR_SKBS - TAKEN, SENT = LEFT - LEFT / 4 };
	begin("domains_own");
	card->rx_wanted = TAKEN;
	interrupt("buffers for what is received");
	UNTIL(card->rx_filled == TAKEN, "buffers for what is received");
	set_ticking(false);
	for (u32 n = 0; n < SENT; n++)
		send_out(60, n);
	check(card->nr_sent == SENT, "%lu packets are sent beside what is for receiving", card->nr_sent);
	send_out(60, SENT);
	check(card->nr_sent == SENT, "what is for receiving is sent");
	/* Nothing is under way now, and nothing comes. */
	for (u64 end = now_ns() + 200000000; now_ns() < end;)
		HC1(sched_op, SCHEDOP_yield);
	check(card->nr_sent == SENT, "a buffer that the driver has is sent");
	for (u32 n = 0; n < TAKEN; n++)
		*(u32 *)word(card->rx[n], SKB_USERS) = 1;
	u64 start = now_ns();
	UNTIL(card->nr_sent == SENT + 1, "a buffer that the domain has freed");
	check(now_ns() - start < 2000000000, "a freed buffer is found after %lu ms", (now_ns() - start) / 1000000);
	set_ticking(true);
	check_sent(60, "a buffer that the domain has freed");
	all_gone("a buffer that the domain has freed");
	unload_card();
}

void ends(void)
{
	struct twin_call call;
	freed_meanwhile();
	begin("domains_own");
	for (u32 n = 0; n < 5; n++)
		send_out(60, n);
	check_result(detach(), 0, "taking it away with packets under way");
	check_answers(5, "taken away");
	unload_card();

	begin("domains_own");
	*word((u64)card->queue, QUEUE_STATE) = 1;
	send_out(60, 1);
	send_out(60, 1);
	unload_card();
	*word((u64)card->queue, QUEUE_STATE) = 0;
	/* Its driver was not given them: they go by the interface. */
	UNTIL(nr_answers(&guest) == 2, "unloaded");
	check_answers(2, "unloaded");
	for (u32 n = 0; n < 2; n++)
		check_received(&out, 60, "unloaded");

	begin("domains_own");
	send_out(60, 1);
	card->xmit_bug = 1;
	send_out(60, 2);
	is_disabled(2, BUG, "a BUG when sending");

	begin("domains_own");
	send_out(60, 1);
	card->poll_bug = 1;
	interrupt("a BUG in the poll");
	is_disabled(1, BUG, "a BUG in the poll");

	/* It has taken a poll, and not scheduled it: who stops the interface would wait for its end for ever. */
	begin("domains_own");
	send_out(60, 1);
	card->interrupt_bug = 1;
	interrupt("a BUG with a poll");
	is_disabled(1, BUG, "a BUG with a poll");
	polled_by_the_domain();

	/* With a lock of the driver's, which the domain gets back. */
	volatile u32 *lock = (u32 *)pages[9];
	begin("_raw_spin_lock");
	*lock = 0;
	card->argument = (u64)lock;
	card->xmit_call = 1;
	card->xmit_bug = 1;
	send_out(60, 1);
	is_disabled(1, BUG, "a BUG with a lock");
	check(*lock == 0, "the lock of a twin that was aborted is %#x", *lock);

	/* An upcall that is answered late: the machine itself may have stood still. */
	begin("domains_own");
	card->xmit_call = 1;
	send_out(60, 1);
	bool has_late = false;
	UNTIL((has_late = has_late || next(&call)), "a call");
	u64 late = now_ns() + UPCALL_LIMIT_NS + 120000000;
	while (now_ns() < late)
		HC1(sched_op, SCHEDOP_yield);
	card->xmit_call = 0;
	check_result(go_on(&call, 0), 0, "a call that returns late");
	all_gone("a call that returns late");
	unload_card();

	/* An upcall that nobody answers. */
	begin("domains_own");
	card->xmit_call = 1;
	send_out(60, 1);
	bool has_call = false;
	UNTIL((has_call = has_call || next(&call)), "a call");
	UNTIL(is_over(), "the end of a twin whose call does not return");
	check(go_on(&call, 0) == -EIO, "a call that returns too late");
	is_disabled(1, UPCALL, "a call that does not return");

	/* Unloaded while one waits. */
	begin("domains_own");
	card->xmit_call = 1;
	send_out(60, 1);
	unload_card();
	check_answers(1, "unloaded while it waits");
	check(*(u32 *)word((u64)card->queue, QUEUE_LOCK) == 0, "the transmit lock stays taken");

	/* A lock of the driver's that somebody holds for a while. */
	begin("_raw_spin_lock");
	*lock = 1;
	card->argument = (u64)lock;
	card->second = (u64)lock;
	card->xmit_call = 2;
	send_out(60, 1);
	check(card->nr_sent == 0 && *lock == 1, "a lock that is taken");
	check(!next(&call), "the domain is asked for a lock");
	*lock = 0;
	UNTIL(card->nr_sent == 1, "a lock that is free again");
	check(*lock == 0, "the driver has not released the lock: %#x", *lock);
	card->xmit_call = 0;
	all_gone("a lock that is free again");
	behind_a_lock(lock);
	*lock = 1;
	card->xmit_call = 1;
	send_out(60, 1);
	is_disabled(1, LOCK, "a lock that stays taken");
	*lock = 0;
	a_lock_goes(lock);
}
