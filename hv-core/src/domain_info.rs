//! What the tools are told of a domain as a whole (`getdomaininfo`).

use xen_abi::domctl::{DOMINF_BLOCKED, DOMINF_RUNNING};

/// What its vCPUs do: `online` of them are up, one of these is `running`, all of these are `blocked`. None of both is
/// what `xl list` shows of one that could run, and of one without a vCPU that is up.
pub const fn vcpu_flags(online: u32, running: bool, blocked: bool) -> u32 {
    match (online, running, blocked) {
        (0, _, _) => 0,
        (_, true, _) => DOMINF_RUNNING,
        (_, false, true) => DOMINF_BLOCKED,
        (_, false, false) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_vcpus_that_are_up_say_what_a_domain_does() {
        // As for one that is not built yet.
        assert_eq!(vcpu_flags(0, false, true), 0);
        assert_eq!(vcpu_flags(1, false, true), DOMINF_BLOCKED);
        assert_eq!(vcpu_flags(2, true, false), DOMINF_RUNNING);
        assert_eq!(vcpu_flags(1, true, true), DOMINF_RUNNING, "it is about to block");
        assert_eq!(vcpu_flags(3, false, false), 0);
    }
}
