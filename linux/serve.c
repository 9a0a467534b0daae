// SPDX-License-Identifier: GPL-2.0
/*
 * What a twin wants of this kernel: functions that it calls, and work that it leaves.
 *
 * A function runs as a driver's caller would have it: without softirqs, or without interrupts. What
 * it changes of that (the irqsave form of a lock returns with interrupts off) is of no meaning to
 * the twin and is undone; so the functions of spin locks are not called, but the word is taken or
 * given back here.
 */
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/rtnetlink.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <xen/events.h>
#include <xen/interface/event_channel.h>
#include <asm/xen/hypercall.h>
#include "internal.h"

/* Notes that are fetched at once. */
#define NOTES 128
/* How long a lock is waited for: the twin is disabled after five seconds. */
#define LOCK_NS (500 * NSEC_PER_MSEC)

#define IS(function, name) ((function) == (unsigned long)(name))

static bool is_lock(u64 f)
{
	return IS(f, _raw_spin_lock) || IS(f, _raw_spin_lock_bh) || IS(f, _raw_spin_lock_irq) ||
	       IS(f, _raw_spin_lock_irqsave);
}

static bool is_unlock(u64 f)
{
	return IS(f, _raw_spin_unlock) || IS(f, _raw_spin_unlock_bh) ||
	       IS(f, _raw_spin_unlock_irq) ||
	       IS(f, _raw_spin_unlock_irqrestore);
}

static bool is_function(u64 address)
{
	return (address >= __START_KERNEL_map &&
		address < __START_KERNEL_map + KERNEL_IMAGE_SIZE) ||
	       (address >= MODULES_VADDR && address < MODULES_END);
}

static int take_lock(arch_spinlock_t *lock)
{
	u64 end = ktime_get_ns() + LOCK_NS;

	while (!arch_spin_trylock(lock)) {
		if (ktime_get_ns() > end)
			return -EDEADLK;
		cpu_relax();
	}
	return 0;
}

typedef u64 any_function(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

/* With ten arguments: functions with fewer do not look at the others. */
static u64 call_plainly(u64 address, const u64 *a, const u64 *more)
{
	any_function *function = (void *)(unsigned long)address;
	unsigned long flags;
	int count;
	u64 result;

	local_save_flags(flags);
	count = preempt_count();
	result = function(a[0], a[1], a[2], a[3], a[4], a[5], more[0], more[1], more[2], more[3]);
	if (preempt_count() != count) {
		pr_warn_once("%ps returns with another preempt count\n", function);
		preempt_count_set(count);
	}
	local_irq_restore(flags);
	return result;
}

static int call_function(struct twin_call *call)
{
	arch_spinlock_t *lock = (void *)(unsigned long)call->args[0];

	call->result = 0;
	if (!is_function(call->detail))
		return -EFAULT;
	if (is_lock(call->detail))
		return take_lock(lock);
	if (IS(call->detail, _raw_spin_trylock))
		call->result = arch_spin_trylock(lock);
	else if (is_unlock(call->detail))
		arch_spin_unlock(lock);
	else if (IS(call->detail, __napi_schedule_irqoff))
		/* It relies on interrupts being off. */
		__napi_schedule((void *)lock);
	else
		call->result = call_plainly(call->detail, call->args, call->more);
	return 0;
}

static void count_call(struct twin *twin, u64 function)
{
	static DEFINE_SPINLOCK(lock);
	unsigned long flags;
	unsigned int n = 0;

	spin_lock_irqsave(&lock, flags);
	while (n < TANDEM_FUNCTIONS - 1 && twin->status.called[n].function &&
	       twin->status.called[n].function != function)
		n++;
	twin->status.called[n].function = n < TANDEM_FUNCTIONS - 1 ? function : 0;
	twin->status.called[n].count++;
	spin_unlock_irqrestore(&lock, flags);
}

/*
 * Goes on with an invocation until it ends. Until then softirqs do not run here, as they do not
 * under a driver's caller: one might wait for a lock that the twin has, and that it releases when
 * this has gone on.
 */
static int go_on(struct twin *twin, struct twin_call *call)
{
	int err;

	while (call->reason == TWIN_UPCALL) {
		count_call(twin, call->detail);
		err = call_function(call);
		if (err) {
			pr_err("twin %u wants %pS with %llx: %d\n", twin->number,
			       (void *)(unsigned long)call->detail, call->args[0], err);
			return err;
		}
		call->flags = 0;
		err = twin_op(TWINOP_RESUME, call);
		if (err) {
			/* EIO: it was disabled meanwhile, which the hypervisor has told. */
			if (err != -EIO)
				pr_err("twin %u cannot be gone on with: %d\n", twin->number, err);
			return err;
		}
	}
	return 0;
}

/*
 * What a transmit routine or an interrupt handler waits for is called where the event comes, with
 * interrupts off: so Linux calls them too, for a console behind a network. What the event has
 * interrupted may wait for the transmit lock, which the twin has, and no other CPU may be there to
 * do it.
 */
static void serve_at_once(struct twin *twin)
{
	u32 n;

	/* Each of the card's transmit queues may wait; the event is one for all. */
	for (n = 0; n < TWIN_MAX_QUEUES; n++) {
		twin->at_once = (struct twin_call) {
			.twin = twin->number,
			.flags = TWIN_NEXT_ATOMIC,
		};
		if (twin_op(TWINOP_NEXT, &twin->at_once) || go_on(twin, &twin->at_once))
			return;
	}
}

/*
 * Of no CPU in particular: the one that heard of the work may wait for a lock that the twin has,
 * until the work is done.
 */
static struct workqueue_struct *queue;

static bool is_queue_of(struct net_device *dev, u64 address)
{
	u64 offset = address - (unsigned long)dev->_tx;

	return offset < dev->num_tx_queues * sizeof(*dev->_tx) && !(offset % sizeof(*dev->_tx));
}

static void serve_note(struct twin *twin, const struct twin_note *note)
{
	void *object = (void *)(unsigned long)note->object;

	switch (note->kind) {
	case TWIN_FREE_SKB:
		dev_kfree_skb_any(object);
		break;
	case TWIN_FREE_FRAGMENT:
		page_frag_free(object);
		break;
	case TWIN_QUEUE:
		if (is_queue_of(twin->dev, note->object))
			netif_schedule_queue(object);
		break;
	case TWIN_UNLOCK:
		/* It was taken for the twin; a CPU of ours waits for it asleep. */
		arch_spin_unlock(object);
		break;
	case TWIN_DISABLED:
		tandem_tell(twin);
		queue_work(queue, &twin->anew);
		break;
	}
}

static u32 serve_notes(struct twin *twin)
{
	struct twin_notes notes = {
		.twin = twin->number,
		.count = NOTES,
		.list = (unsigned long)twin->notes,
	};
	u32 n;

	if (twin_op(TWINOP_NOTES, &notes))
		return 0;
	for (n = 0; n < notes.count; n++)
		serve_note(twin, &twin->notes[n]);
	return notes.count;
}

/* Softirqs are off before a call is fetched: none delays what the twin waits for. */
static bool serve_next(struct twin *twin)
{
	bool is_served;

	twin->call = (struct twin_call) { .twin = twin->number };
	local_bh_disable();
	is_served = !twin_op(TWINOP_NEXT, &twin->call) && !go_on(twin, &twin->call);
	local_bh_enable();
	return is_served;
}

static void serve(struct work_struct *work)
{
	struct twin *twin = container_of(work, struct twin, work);
	u32 count;

	do {
		count = serve_notes(twin);
		count += serve_next(twin);
		cond_resched();
	} while (count);
}

/*
 * Whoever reads that the twin was disabled would ask for the same, if he is there and when he comes
 * to it. Until then the driver goes on with what the twin has left.
 */
static void begin_anew(struct work_struct *work)
{
	struct twin *twin = container_of(work, struct twin, anew);

	rtnl_lock();
	if (twin->state == TANDEM_ATTACHED && tandem_is_disabled(twin))
		tandem_detach(twin);
	tandem_restart(twin);
	tandem_tell(twin);
	rtnl_unlock();
}

void tandem_serve_open(struct twin *twin)
{
	INIT_WORK(&twin->anew, begin_anew);
}

/* Not under rtnl_lock, which the work waits for. Nothing is attached, so there is no more of it. */
void tandem_serve_release(struct twin *twin)
{
	cancel_work_sync(&twin->anew);
}

int tandem_serve_init(void)
{
	queue = alloc_workqueue("tandem", WQ_HIGHPRI | WQ_UNBOUND, 0);
	return queue ? 0 : -ENOMEM;
}

void tandem_serve_exit(void)
{
	destroy_workqueue(queue);
}

static irqreturn_t event(int irq, void *data)
{
	struct twin *twin = data;

	serve_at_once(twin);
	queue_work(queue, &twin->work);
	return IRQ_HANDLED;
}

/* Makes the port that the hypervisor raises. */
int tandem_serve_begin(struct twin *twin)
{
	struct evtchn_alloc_unbound alloc = { .dom = DOMID_SELF, .remote_dom = DOMID_SELF };
	struct evtchn_close close;
	int err;

	twin->notes = kcalloc(NOTES, sizeof(*twin->notes), GFP_KERNEL);
	if (!twin->notes)
		return -ENOMEM;
	INIT_WORK(&twin->work, serve);
	err = HYPERVISOR_event_channel_op(EVTCHNOP_alloc_unbound, &alloc);
	if (err)
		goto no_port;
	err = bind_evtchn_to_irqhandler(alloc.port, event, 0, "tandem", twin);
	if (err < 0)
		goto not_bound;
	twin->irq = err;
	twin->port = alloc.port;
	/*
	 * Not where devices interrupt, if there is another CPU: their handlers may wait for locks
	 * of the twin's.
	 */
	irq_set_affinity(twin->irq, cpumask_of(cpumask_last(cpu_online_mask)));
	return 0;

not_bound:
	close.port = alloc.port;
	HYPERVISOR_event_channel_op(EVTCHNOP_close, &close);
no_port:
	kfree(twin->notes);
	twin->notes = NULL;
	return err;
}

/* The hypervisor raises it no more; what it left is done first. */
void tandem_serve_end(struct twin *twin)
{
	unbind_from_irqhandler(twin->irq, twin);
	cancel_work_sync(&twin->work);
	while (serve_notes(twin))
		;
	kfree(twin->notes);
	twin->notes = NULL;
}

/* A call for whoever tries a twin out. Without softirqs, as an interrupt handler's. */
int tandem_call(struct twin *twin, const struct tandem_call *wanted)
{
	struct twin_call *call;
	int err;

	if (twin->state != TANDEM_LOADED)
		return twin->state == TANDEM_EMPTY ? -ENOENT : -EBUSY;
	err = tandem_use(twin);
	if (err)
		return err;
	call = kzalloc(sizeof(*call), GFP_KERNEL);
	if (!call)
		return -ENOMEM;
	call->twin = twin->number;
	call->function = wanted->function;
	memcpy(call->args, wanted->args, sizeof(call->args));
	if (wanted->irq) {
		disable_irq(wanted->irq);
		/* So that there is something for it to do. */
		usleep_range(1000, 2000);
	}
	local_bh_disable();
	err = twin_op(TWINOP_CALL, call);
	if (!err)
		err = go_on(twin, call);
	local_bh_enable();
	if (wanted->irq)
		enable_irq(wanted->irq);
	twin->status.reason = call->reason;
	twin->status.result = call->result;
	twin->status.detail = call->detail;
	twin->status.original = call->original;
	twin->status.code_offset = call->offset;
	twin->status.steps = call->steps;
	twin->notes = kcalloc(NOTES, sizeof(*twin->notes), GFP_KERNEL);
	while (twin->notes && serve_notes(twin))
		;
	kfree(twin->notes);
	twin->notes = NULL;
	kfree(call);
	return err;
}
