/* A card that is nothing but memory, its driver's twin, and a switch whose way out it is. */
#ifndef CARD_H
#define CARD_H
#include "events.h"
#include "front.h"
#include "image.h"

/* Places that guests/lib/twins/code.S knows. A test plays the device: it says how many packets have gone, and what is there. */
struct card {
	volatile u64 xmit_answer, xmit_call, xmit_bug, poll_call, poll_bug, argument, nr_sent, nr_gone, nr_done, wake, rx_filled, rx_wanted,
		rx_there, rx_taken, weight, nr_interrupts, nr_polls, second, interrupt_bug, late_call, interrupt_flip;
	u64 pad0[11];
	volatile u64 tx[64], rx[64];
	u8 napi[768];
	u8 queue[2048];
};
_Static_assert(offsetof(struct card, tx) == 256 && offsetof(struct card, napi) == 1280 && offsetof(struct card, queue) == 2048, "places");

/* Members in the pretended kernel: eight bytes each, in the order of the interface. */
enum { SKB_LEN = 4 * 8, SKB_PKT_TYPE = 8 * 8, SKB_DATA_LEN = 5 * 8, SKB_HEAD = 17 * 8, SKB_DATA = 18 * 8, SKB_TAIL = 15 * 8, SKB_MAC = 14 * 8, SKB_USERS = 20 * 8, NAPI_STATE = 31 * 8, QUEUE_LOCK = 33 * 8,
	QUEUE_STATE = 36 * 8, HEADROOM = 64, NR_SKBS = 32, BUFFER = 2048, DISABLE = 4, SCHED = 1 };

/* Who sleeps until a lock is released, as the pretended kernel puts it down. */
struct sleeper {
	volatile u64 lock, who;
};
enum { NR_SLEEPERS = 8 };

extern struct card *const card;
extern struct sleeper *const sleepers;
extern struct front guest, out;
extern u32 switch_name, twin, irq_port, card_port;
extern const u8 stranger[6];

#define UNTIL(condition, what)                                                                                         \
	({                                                                                                             \
		u64 end_ = now_ns() + 15000000000;                                                                     \
		while (!(condition) && now_ns() < end_)                                                                \
			HC1(sched_op, SCHEDOP_yield);                                                                  \
		check(condition, "%s: does not come", what);                                                           \
	})

s64 twin_op(u32 cmd, void *argument);
/* A fresh twin, with buffers; it imports `first` as number 0, and `last` as number 8. */
void load_card_with(const char *first, const char *last);
/* One that releases locks by that. */
void load_card(const char *first);
void unload_card(void);
struct twin_attach good_attach(void);
s64 attach(void);
s64 detach(void);
/* The device's interrupt has a port, `irq_port`. */
void bind_interrupt(void);
/* Does the device interrupt at all? */
void set_ticking(bool is_ticking);
/* The device interrupts once. */
void ask_for_interrupt(void);
void interrupt(const char *what);
/* What the twin was told to free and so on; how many of `kind`. */
u32 nr_notes(u32 kind);
u64 *word(u64 object, u32 member);
/* A packet of the guest's to the outside, of which the driver hears at once. */
void send_out(u32 len, u32 seed);
/* The device receives what is in `frame` into the next buffer that the driver gave it. */
void arrives(u32 len);
/* The last packet that the driver has is the one in `frame`. */
void check_sent(u32 len, const char *what);
/* All that was sent has gone, and the guest hears of it. */
void all_gone(const char *what);
void check_answers(u32 nr, const char *what);
/* What the twin waits for, if the domain has not fetched it; and going on. */
bool next(struct twin_call *call);
/* Only one that an interrupt handler may serve. */
bool next_at_once(struct twin_call *call);
s64 go_on(struct twin_call *call, u64 result);

void whole(void);
void bad_attaches(void);
void ends(void);
void queues(void);
void ports(void);
void beside(void);
void cards_for_those_that_go(void);
/* What vCPU 1 does when it is brought up, whether it has come to the end of that, and whether it is to. */
extern void (*volatile job)(void);
extern volatile bool stop_job, has_stopped;
void endless(void);
void short_of_memory(void);
void measure(void);
#endif
