/*
 * A vCPU that goes to code on a segment which another vCPU works against, again and again: for the tests of what is lost on the way. `work` is done
 * by vCPU 1 until end_work().
 */
#ifndef SEGMENTS_H
#define SEGMENTS_H
#include "events.h"

#define CODE 0x00affb000000ffff /* 64-bit, ring 3 */

static volatile bool ends;
/* How often it came back by the failsafe callback, or an exception of stock Xen's. */
static u64 lost;
static void (*work_of_other)(void);

static void work_for_ever(void)
{
	while (!ends)
		work_of_other();
	go_down(1);
}

static inline void start_work(void (*work)(void))
{
	static u8 stack[4 * PAGE];
	work_of_other = work;
	start_vcpu(1, work_for_ever, stack + sizeof(stack));
}

static inline void end_work(void)
{
	ends = true;
	wait_until_down(1);
}

static void on_lost(struct frame *frame)
{
	(void)frame;
	lost++;
	resume();
}

static inline void count_lost(void)
{
	set_callback(1, 0, entry_258);
	handlers[ENTRY_FAILSAFE] = on_lost;
}

/* For enter(). In an iret frame a kernel asks for itself by RPL 0. */
static inline struct frame frame_on(u16 selector, void (*code)(void), void *stack)
{
	return (struct frame){ .rip = (u64)code, .cs = selector, .rflags = 2, .rsp = (u64)stack, .ss = FLAT_KERNEL_SS };
}
#endif
