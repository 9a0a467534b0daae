//! Names of the loads of vCPUs on pCPUs.

/// One load of a vCPU on a pCPU: no two are alike while the machine runs, whichever vCPUs came and went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadId(u64);

/// Bits of the pCPU. The rest suffices for nine thousand years of one load per microsecond on each.
const CPU_BITS: u32 = 6;
const _: () = assert!(super::MAX_PCPUS <= 1 << CPU_BITS);

impl LoadId {
    /// What a vCPU or a pCPU has before its first.
    pub const NEVER: Self = Self(0);

    /// The load on `cpu` after this one, which was its last.
    #[must_use]
    pub const fn next_on(self, cpu: u32) -> Self {
        Self(((self.0 >> CPU_BITS) + 1) << CPU_BITS | cpu as u64)
    }

    /// This is the last load of a pCPU, `of_vcpu` that of a vCPU: does the pCPU still hold what it loaded?
    pub fn is_last_of(self, of_vcpu: Self) -> bool {
        self == of_vcpu && self != Self::NEVER
    }
}

#[cfg(test)]
mod tests {
    use super::LoadId;

    #[test]
    fn a_vcpu_that_another_pcpu_loaded_meanwhile_does_not_stay() {
        let here = LoadId::NEVER.next_on(0);
        assert!(here.is_last_of(here));
        let there = LoadId::NEVER.next_on(1);
        assert!(!here.is_last_of(there));
        assert!(!there.is_last_of(here));
    }

    #[test]
    fn one_that_was_never_loaded_is_held_nowhere() {
        assert!(!LoadId::NEVER.is_last_of(LoadId::NEVER));
        assert!(!LoadId::NEVER.next_on(0).is_last_of(LoadId::NEVER));
    }

    #[test]
    fn however_often_each_was_loaded_no_two_loads_are_alike() {
        let mut seen = std::collections::BTreeSet::new();
        for cpu in [0, 1, 63] {
            let mut last = LoadId::NEVER;
            for _ in 0..100 {
                last = last.next_on(cpu);
                assert!(seen.insert(last.0));
            }
        }
    }
}
