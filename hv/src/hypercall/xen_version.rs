//! `xen_version`: who we say we are.

use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::hypercall::vm_assist;
use crate::mem::guest_ptr::plain;
use xen_abi::errno::Errno;
use xen_abi::features as feat;
use xen_abi::version as ver;

/// Xen 4.17, which stock tools check for.
const VERSION: i64 = 4 << 16 | 17;

#[derive(Clone, Copy)]
#[repr(C)]
struct FeatureInfo {
    submap_idx: u32,
    submap: u32,
}
#[derive(Clone, Copy)]
#[repr(C)]
struct CompileInfo {
    compiler: [u8; 64],
    compile_by: [u8; 16],
    compile_domain: [u8; 32],
    compile_date: [u8; 32],
}
plain!(FeatureInfo, CompileInfo);

/// `text` in a buffer of `N` bytes, NUL-terminated.
fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    let len = text.len().min(N - 1);
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
    out
}

/// Answers XENVER_* questions. Errors: EFAULT; EINVAL for an unknown feature page; ENODATA for the build id, which there
/// is none of; ENOSYS for an unknown command. Source: public/version.h.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    match cmd {
        ver::XENVER_VERSION => return Ok(Done::Return(VERSION)),
        ver::XENVER_EXTRAVERSION => arg.cast().write(&text::<16>(".7-tandem"))?,
        ver::XENVER_COMPILE_INFO => arg.cast().write(&CompileInfo {
            compiler: text("rustc"),
            compile_by: text("tandem"),
            compile_domain: text(""),
            compile_date: text(""),
        })?,
        ver::XENVER_CAPABILITIES => arg.cast().write(&text::<1024>("xen-3.0-x86_64 "))?,
        ver::XENVER_CHANGESET => arg.cast().write(&text::<64>(concat!("tandem-", env!("CARGO_PKG_VERSION"))))?,
        ver::XENVER_PLATFORM_PARAMETERS => arg.cast().write(&xen_abi::layout::HYPERVISOR_VIRT_START)?,
        ver::XENVER_GET_FEATURES => {
            let mut info: FeatureInfo = arg.cast().read()?;
            if info.submap_idx != 0 {
                return Err(Errno::EINVAL);
            }
            info.submap = features(cx);
            arg.cast().write(&info)?;
        }
        ver::XENVER_PAGESIZE => return Ok(Done::Return(x86::PAGE_SIZE as i64)),
        ver::XENVER_GUEST_HANDLE => arg.cast().write(&cx.domain().handle())?,
        ver::XENVER_COMMANDLINE => arg.cast().write(&text::<1024>(crate::command_line()))?,
        ver::XENVER_BUILD_ID => return Err(Errno::ENODATA),
        _ => return Err(Errno::ENOSYS),
    }
    OK
}

/// The feature bits of page 0 for the caller.
fn features(cx: &Caller) -> u32 {
    let mut bits = 1 << feat::MMU_PT_UPDATE_PRESERVE_AD
        | 1 << feat::HIGHMEM_ASSIST
        | 1 << feat::GNTTAB_MAP_AVAIL_BITS
        | 1 << feat::MEMORY_OP_VNODE_SUPPORTED
        | 1 << feat::DIRECT_MAPPED;
    if cx.domain().has_assist(vm_assist::PAE_EXTENDED_CR3) {
        bits |= 1 << feat::PAE_PGDIR_ABOVE_4GB;
    }
    if cx.domain().is_hardware {
        bits |= 1 << feat::DOM0;
    }
    bits
}
