//! Transmit queues: byte limits, stop and wake, and what a caller of a transmit routine has to do.

use super::{bad, lock, Done, Foreign, Host, Stop, Support};
use crate::abort::Reason;

const DRIVER_OFF: u64 = 1 << 0;
const STACK_OFF: u64 = 1 << 1;
const FROZEN: u64 = 1 << 2;

/// The owner of a transmit lock that is no CPU of the domain.
const OWNER: u32 = 0x7fff_fff0;

/// `netif_schedule_queue(queue)`.
pub fn schedule<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let state = host.u64(args[0].wrapping_add(s.offsets.queue_state))?;
    if state & (DRIVER_OFF | STACK_OFF) == 0 {
        host.queue_event(args[0]);
    }
    Ok(0)
}

/// `netif_tx_wake_queue(queue)`.
pub fn wake<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let at = args[0].wrapping_add(s.offsets.queue_state);
    let start = |state: u64| (state & DRIVER_OFF != 0).then_some(state & !DRIVER_OFF);
    if host.update_u64(at, start)?.1 {
        host.queue_event(args[0]);
    }
    Ok(0)
}

/// What the queue limits know, as read from `struct dql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Objects queued so far.
    pub queued: u32,
    /// Objects of the last queueing.
    pub last: u32,
    /// The limit in force.
    pub limit: u32,
    /// Objects completed so far.
    pub completed: u32,
    /// By how much the limit was exceeded at the last completion.
    pub prev_over: u32,
    /// `queued` at the last completion.
    pub prev_queued: u32,
    /// `last` at the last completion.
    pub prev_last: u32,
    /// Least slack seen in this period.
    pub slack: u32,
    /// Begin of the period.
    pub since: u64,
    /// Bounds of the limit.
    pub bounds: (u32, u32),
    /// Length of a period.
    pub hold: u32,
}

/// `a - b` if that is positive on the circle of 32-bit counters, else 0.
fn ahead(a: u32, b: u32) -> u32 {
    let distance = a.wrapping_sub(b);
    if distance < 1 << 31 {
        distance
    } else {
        0
    }
}

impl Limits {
    /// `count` more objects are completed at time `now`. The limit grows when the device ran dry while objects were
    /// held back, and shrinks by what was never needed in a whole period.
    #[must_use]
    pub fn after(self, count: u32, now: u64) -> Self {
        let completed = self.completed.wrapping_add(count);
        let over = ahead(self.queued.wrapping_sub(self.completed), self.limit);
        let in_flight = self.queued.wrapping_sub(completed);
        let was_in_flight = self.prev_queued.wrapping_sub(self.completed);
        let all_earlier_done = completed.wrapping_sub(self.prev_queued) < 1 << 31;
        let starved = (over > 0 && in_flight == 0) || (self.prev_over > 0 && all_earlier_done);
        let busy = in_flight > 0 && was_in_flight > 0 && !all_earlier_done;
        let mut next = self;
        if starved {
            let grow = ahead(completed, self.prev_queued).wrapping_add(self.prev_over);
            next.limit = self.limit.wrapping_add(grow);
            (next.since, next.slack) = (now, u32::MAX);
        } else if busy {
            let used = completed.wrapping_sub(self.completed).wrapping_mul(2);
            let unused = ahead(self.limit.wrapping_add(self.prev_over), used);
            let last = if self.prev_over > 0 { ahead(self.prev_last, self.prev_over) } else { 0 };
            next.slack = self.slack.min(unused.max(last));
            let ends = self.since.wrapping_add(u64::from(self.hold));
            if (ends.wrapping_sub(now) as i64) < 0 {
                next.limit = ahead(self.limit, next.slack);
                (next.since, next.slack) = (now, u32::MAX);
            }
        }
        next.limit = next.limit.max(self.bounds.0).min(self.bounds.1);
        next.prev_over = if next.limit == self.limit { over } else { 0 };
        next.prev_last = self.last;
        next.completed = completed;
        next.prev_queued = self.queued;
        next
    }
}

/// `dql_completed(dql, count)`.
pub fn dql_completed<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let (dql, count) = (args[0], (args[1] & 0xffff_ffff) as u32);
    let o = &s.offsets;
    let word = |member: u64| host.u32(dql.wrapping_add(member));
    let now = host.u64(s.kernel.jiffies)?;
    let before = Limits {
        queued: word(o.dql_num_queued)?,
        last: word(o.dql_last_obj_cnt)?,
        limit: word(o.dql_limit)?,
        completed: word(o.dql_num_completed)?,
        prev_over: word(o.dql_prev_ovlimit)?,
        prev_queued: word(o.dql_prev_num_queued)?,
        prev_last: word(o.dql_prev_last_obj_cnt)?,
        slack: word(o.dql_lowest_slack)?,
        since: host.u64(dql.wrapping_add(o.dql_slack_start_time))?,
        bounds: (word(o.dql_min_limit)?, word(o.dql_max_limit)?),
        hold: word(o.dql_slack_hold_time)?,
    };
    if count > before.queued.wrapping_sub(before.completed) {
        return Err(bad("more completed than queued", u64::from(count)));
    }
    let after = before.after(count, now);
    let put = |member: u64, value: u32| host.put_u32(dql.wrapping_add(member), value);
    if after.limit != before.limit {
        put(o.dql_limit, after.limit)?;
    }
    put(o.dql_adj_limit, after.limit.wrapping_add(after.completed))?;
    put(o.dql_prev_ovlimit, after.prev_over)?;
    put(o.dql_prev_last_obj_cnt, after.prev_last)?;
    put(o.dql_num_completed, after.completed)?;
    put(o.dql_prev_num_queued, after.prev_queued)?;
    if after.slack != before.slack {
        put(o.dql_lowest_slack, after.slack)?;
    }
    if after.since != before.since {
        host.put_u64(dql.wrapping_add(o.dql_slack_start_time), after.since)?;
    }
    Ok(0)
}

/// What came of the wish to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The lock is the caller's, and the queue takes packets.
    Open,
    /// The queue is stopped: somebody will wake it.
    Stopped,
    /// Somebody transmits.
    Busy,
}

impl Support {
    /// Takes the transmit lock of a `netdev_queue` as Linux does before it calls a driver. It is tried once.
    ///
    /// # Errors
    /// If the queue is not there.
    pub fn begin_transmit<H: Host>(&self, host: &mut H, queue: u64) -> Result<Begun, Reason> {
        if !lock::take(host, queue.wrapping_add(self.offsets.queue_lock))? {
            return Ok(Begun::Busy);
        }
        host.put_u32(queue.wrapping_add(self.offsets.queue_lock_owner), OWNER)?;
        if self.is_open(host, queue)? {
            return Ok(Begun::Open);
        }
        self.end_transmit(host, queue, false)?;
        Ok(Begun::Stopped)
    }

    /// Does the queue take packets?
    ///
    /// # Errors
    /// If it is not there.
    pub fn is_open<H: Host>(&self, host: &H, queue: u64) -> Result<bool, Reason> {
        let state = host.u64(queue.wrapping_add(self.offsets.queue_state))?;
        Ok(state & (DRIVER_OFF | STACK_OFF | FROZEN) == 0)
    }

    /// Gives the lock back; `sent` says whether the driver took the packet. One that only the domain can release is
    /// left to it, also by a host that cannot wait: there is no invocation that could.
    ///
    /// # Errors
    /// If the queue is not there, or somebody changed the lock.
    pub fn end_transmit<H: Host>(&self, host: &mut H, queue: u64, sent: bool) -> Result<(), Reason> {
        if sent {
            let now = host.u64(self.kernel.jiffies)?;
            let at = queue.wrapping_add(self.offsets.queue_trans_start);
            if host.u64(at)? != now {
                host.put_u64(at, now)?;
            }
        }
        host.put_u32(queue.wrapping_add(self.offsets.queue_lock_owner), u32::MAX)?;
        let lock = queue.wrapping_add(self.offsets.queue_lock);
        match lock::release(self, host, lock) {
            Ok(()) => Ok(()),
            Err(Stop::Abort(reason)) => Err(reason),
            Err(Stop::Upcall) => {
                host.free_in_domain(Foreign::Lock(lock));
                Ok(())
            }
        }
    }
}
