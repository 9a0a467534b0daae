//! Whether a vCPU that blocks or polls (`sched_op`) sleeps, or has something to take first.

/// What waits for a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// An upcall is marked as pending.
    pub upcall: bool,
    /// It takes no events now.
    pub events_masked: bool,
    /// An NMI is pending.
    pub nmi: bool,
    /// One is being handled: no other is taken before the next iret.
    pub nmi_masked: bool,
}

impl Waiting {
    /// Does it take an NMI now?
    #[inline]
    const fn has_nmi(self) -> bool {
        self.nmi && !self.nmi_masked
    }

    /// Does it go on instead of sleeping? Who makes something pending wakes only those that sleep already, and for an
    /// NMI that is pending nobody is told again. So it is to be asked after it was noted that the vCPU sleeps.
    #[inline]
    pub const fn keeps_awake(self) -> bool {
        self.upcall && !self.events_masked || self.has_nmi()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nmi_keeps_a_vcpu_awake_as_an_event_does() {
        let nothing = Waiting::default();
        assert!(!nothing.keeps_awake());
        for waiting in [
            Waiting { upcall: true, ..nothing },
            Waiting { nmi: true, ..nothing },
            Waiting { nmi: true, events_masked: true, ..nothing },
            Waiting { upcall: true, nmi_masked: true, ..nothing },
        ] {
            assert!(waiting.keeps_awake(), "{waiting:?}");
        }
    }

    #[test]
    fn what_it_does_not_take_now_does_not() {
        let masked = Waiting { events_masked: true, nmi_masked: true, ..Waiting::default() };
        for waiting in [masked, Waiting { upcall: true, ..masked }, Waiting { nmi: true, ..masked }] {
            assert!(!waiting.keeps_awake(), "{waiting:?}");
        }
    }
}
