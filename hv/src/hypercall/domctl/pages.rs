//! What a domain's frames are.

use super::{Outcome, Request};
use crate::hypercall::GuestPtr;
use crate::mem::frames;
use hv_core::frame::{FrameType, UsageState};
use x86::Mfn;
use xen_abi::domctl as op;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;

/// Frames of one call; the tools know the limit.
const MAX_FRAMES: u64 = 1024;

/// Replaces each frame number in a list by what the frame is: a page table and its level, whether it is pinned; nothing
/// in particular; or no frame of the domain's. E2BIG for more than 1024.
pub(super) fn kinds(r: &Request) -> Outcome {
    let d = r.target()?;
    let request: op::GetPageFrameInfo3 = r.read()?;
    if request.num > MAX_FRAMES {
        return Err(Errno::E2BIG);
    }
    let list = GuestPtr::<u64>::new(request.array);
    for n in 0..request.num {
        let element = list.at(n)?;
        let kind = kind(d.mm.id, Mfn::new(element.read()?));
        element.write(&kind.into())?;
    }
    r.answer(&request)
}

fn kind(owner: DomId, mfn: Mfn) -> u32 {
    let Some(frame) = frames::frame(mfn).filter(|f| f.owner() == owner && f.count().refs() != 0) else {
        return op::PFINFO_XTAB;
    };
    let usage = frame.usage();
    let level = match (usage.state(), usage.ty()) {
        (UsageState::Idle, _) => 0,
        (_, FrameType::L1) => op::PFINFO_L1TAB,
        (_, FrameType::L2) => op::PFINFO_L2TAB,
        (_, FrameType::L3) => op::PFINFO_L3TAB,
        (_, FrameType::L4) => op::PFINFO_L4TAB,
        _ => 0,
    };
    level | if usage.is_pinned() { op::PFINFO_LPINTAB } else { 0 }
}
