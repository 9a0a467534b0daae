//! The senders of packets that are with the driver do not wait for them any more, since its card is gone.

use super::{Pool, Use};

/// Objects at which [`Pool::forget_cookies`] looks at a time.
const PORTION: usize = 512;

/// How far that is, which is done in portions: whoever has the pool locked is waited for.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "nothing is forgotten before a portion is done"]
pub struct Forgetting {
    /// Those below this address were looked at. Objects may come and go meanwhile.
    next: u64,
    is_over: bool,
    /// How many were looked at.
    pub looks: usize,
}

impl Forgetting {
    /// Was all looked at?
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Pool {
    /// Forgets the next cookies, as many as there is room for in `into`, where they are written to; how many that are.
    pub fn forget_cookies(&mut self, forgetting: &mut Forgetting, into: &mut [u64]) -> usize {
        let first = self.skbs.objects.partition_point(|(skb, _)| *skb < forgetting.next);
        let objects = self.skbs.objects.get_mut(first..).unwrap_or_default();
        forgetting.is_over = objects.len() <= PORTION;
        let mut count = 0;
        for (skb, lent) in objects.iter_mut().take(PORTION) {
            let Some(to) = into.get_mut(count) else {
                forgetting.is_over = false;
                break;
            };
            (forgetting.next, forgetting.looks) = (skb.saturating_add(1), forgetting.looks + 1);
            if let Use::Transmit(cookie) = lent.out {
                (lent.out, *to) = (Use::Driver, cookie);
                count += 1;
            }
        }
        self.nr_transmitting = self.nr_transmitting.saturating_sub(count);
        self.receiving.now += count;
        count
    }
}
