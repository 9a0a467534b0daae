/*
 * Several vCPUs of a hostile kernel. Each has page tables and variables of its own, so that the same code runs on all of them
 * with a state for each; the scratch pages, and variables that are SHARED, are the same frames for all.
 */
#ifndef VCPUS_H
#define VCPUS_H
#include "chaos.h"

/* This vCPU. */
extern u32 me;

/* What vCPUs know of each other. */
struct board {
	/* That the domain has, and that were loaded with a context that leads into this kernel. */
	u32 nr_vcpus;
	/* Nobody begins another operation: when vCPU 0 calls the roll, and in the end. */
	volatile u32 is_held;
	struct {
		/* The next operation's number; how often a calm kernel has woken up. */
		volatile u64 operation, beats;
		u64 accepted, restarts;
		volatile u32 is_loaded, is_asleep, nr_failures;
		/* It is between two operations, and waits. */
		volatile u32 is_here;
		/* What kind of operation it does. */
		const char *volatile doing;
		/* Two L4 tables over the same L3. */
		u64 roots[2];
		u64 entry_addresses[SCRATCH];
	} of[MAX_VCPUS];
};
extern struct board board;
/* Calls a function, and notes which. */
#define DO(name) (board.of[me].doing = #name, name())

void vcpus_init(void);
/* Pages of a vCPU's tables and variables, for vCPU `vcpu`. */
enum { VCPU_PAGES = 40 };
u8 *vcpu_pages(u32 vcpu);

/*
 * What vCPUs do for ever: `once` does one operation. On vCPU 0 `housekeeping` comes behind each, and says whether that is
 * enough. `lost` is called where a vCPU begins again because it met an entry that nobody expected.
 */
struct work {
	u64 first;
	void (*once)(void);
	bool (*housekeeping)(u64 n);
	void (*lost)(void);
};
void run_operations(const struct work *work);

/* Of all vCPUs. */
u64 operations_done(void);
/* Says now and then how many that are, and recounts all frames each time that so many more are. Is there anything left to do? */
bool keep_books(u64 nr_operations, u64 audit_each);
u64 operations_accepted(void);
/* Takes all other vCPUs down, for good. */
void stop_vcpus(void);

/* May this domain end by what it does? Then there will be another. (The command line: reckless=1.) */
bool is_reckless(void);

/* A context that leads to operations on vCPU `vcpu`; makes something in a context wrong. */
void sound_context(struct vcpu_context *context, u32 vcpu);
void spoil(struct vcpu_context *context);
void spoil_more(struct vcpu_context *context);

/*
 * vCPU 0 lets nobody begin anything, and all who run must come out of what they do: a hypercall ends however long others do what
 * they do. `prepare` is called before one that does not is waited for in earnest, for what else keeps the CPUs busy.
 */
void call_roll(void (*prepare)(void));
/* The same in two parts, and those that wait for a CPU must come out, too. Between them vCPU 0 is alone, if none sleeps in its operation. */
void hold_vcpus(void (*prepare)(void));
void release_vcpus(void);
/* Gives contexts to those that have none. */
void load_vcpus(void);
/* Makes vCPUs that were taken down, or that nobody wakes, go on. */
void wake_vcpus(void);

/* Only one vCPU at a time does something with it. False: another one does. */
bool try_lock(u32 *lock);
void unlock(u32 *lock);

u64 tsc(void);
/* System time, roughly. */
u64 about_now_ns(void);
#endif
