//! What a copy request asks for, checked before anything is looked up.

use super::DomId;
use xen_abi::grant::{CopyPtr, GntStatus, GrantCopy, GNTCOPY_DEST_GREF, GNTCOPY_SOURCE_GREF};
use xen_abi::layout::DOMID_SELF;

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySide {
    /// A grant of a domain to the caller.
    Grant {
        /// The granter.
        dom: DomId,
        /// The entry.
        gref: u32,
    },
    /// A frame of the caller's own.
    Own(u64),
}

/// Source and destination of a copy by domain `caller`. `PermissionDenied`: a frame of somebody else without a grant.
/// `BadCopyArg`: across the end of a page, or unknown flags.
pub fn check_copy(op: &GrantCopy, caller: DomId) -> Result<(CopySide, CopySide), GntStatus> {
    if op.flags & !(GNTCOPY_SOURCE_GREF | GNTCOPY_DEST_GREF) != 0 {
        return Err(GntStatus::BadCopyArg);
    }
    let source = side(&op.source, op.flags & GNTCOPY_SOURCE_GREF != 0, caller)?;
    let dest = side(&op.dest, op.flags & GNTCOPY_DEST_GREF != 0, caller)?;
    for offset in [op.source.offset, op.dest.offset] {
        if u32::from(offset) + u32::from(op.len) > 4096 {
            return Err(GntStatus::BadCopyArg);
        }
    }
    Ok((source, dest))
}

fn side(ptr: &CopyPtr, is_grant: bool, caller: DomId) -> Result<CopySide, GntStatus> {
    let dom = if ptr.domid == DOMID_SELF { caller } else { ptr.domid };
    if is_grant {
        // The low half of the union is the reference.
        let [a, b, c, d, ..] = ptr.u.to_le_bytes();
        Ok(CopySide::Grant { dom, gref: u32::from_le_bytes([a, b, c, d]) })
    } else if ptr.domid == DOMID_SELF {
        Ok(CopySide::Own(ptr.u))
    } else {
        Err(GntStatus::PermissionDenied)
    }
}
