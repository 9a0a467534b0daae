//! `xenpmu_op`: virtual performance counters, which there are none of.

use super::{Caller, Outcome};
use xen_abi::errno::Errno;

/// Always EOPNOTSUPP, which guests take for "switched off". Source: public/pmu.h.
pub fn call(_cx: &mut Caller) -> Outcome {
    Err(Errno::EOPNOTSUPP)
}
