//! `xen_version`: who we say we are.

use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::mem::guest_ptr::plain;
use crate::sync::Once;
use alloc::string::String;
use xen_abi::assist;
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

/// What a domain reads that may not know.
const DENIED: &[u8] = b"<denied>\0";

/// `text` in a buffer of `N` bytes, NUL-terminated.
fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    let len = text.len().min(N - 1);
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
    out
}

/// Answers XENVER_* questions. The command line is the control domain's alone. Errors: EFAULT; EINVAL for an unknown
/// feature page; EPERM for the build id unless the caller is the control domain, EINVAL and ENOBUFS for no room and too
/// little for it, ENODATA if the linker made none; ENOSYS for an unknown command. Source: public/version.h.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    match cmd {
        ver::XENVER_VERSION => return Ok(Done::Return(VERSION)),
        ver::XENVER_EXTRAVERSION => arg.cast().write(&text::<16>(".7-tandem"))?,
        ver::XENVER_COMPILE_INFO => arg.cast().write(&CompileInfo {
            compiler: text(env!("TANDEM_COMPILER")),
            compile_by: text(env!("TANDEM_BUILD_BY")),
            compile_domain: text(env!("TANDEM_BUILD_DOMAIN")),
            compile_date: text(env!("TANDEM_BUILD_DATE")),
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
        ver::XENVER_COMMANDLINE => {
            if cx.require_privilege().is_ok() {
                arg.cast().write(&text::<1024>(COMMAND_LINE.get().map_or("", |s| s)))?;
            } else {
                arg.write_slice(DENIED)?;
            }
        }
        ver::XENVER_BUILD_ID => {
            cx.require_privilege()?;
            return build_id(arg);
        }
        _ => return Err(Errno::ENOSYS),
    }
    OK
}

/// Writes the id that the linker computed from the image behind the length that there is room for. Gives its length;
/// with a null pointer only that.
fn build_id(arg: GuestPtr<u8>) -> Outcome {
    let id = image_build_id();
    let room: Option<u32> = if arg.is_null() { None } else { Some(arg.cast().read()?) };
    if room == Some(0) {
        return Err(Errno::EINVAL);
    }
    if id.is_empty() {
        return Err(Errno::ENODATA);
    }
    if let Some(room) = room {
        if (room as usize) < id.len() {
            return Err(Errno::ENOBUFS);
        }
        arg.at(size_of::<ver::BuildIdHeader>() as u64)?.write_slice(id)?;
    }
    Ok(Done::Return(id.len() as i64))
}

/// What the note of the linker's holds: lengths of name and contents, a type, the name `GNU`, then the id.
fn image_build_id() -> &'static [u8] {
    const HEAD: usize = 16;
    extern "C" {
        static build_id_note: u8;
        static build_id_note_end: u8;
    }
    let (start, end) = (&raw const build_id_note, &raw const build_id_note_end);
    // SAFETY: the linker script puts both around the note, which is among the image's constants.
    let note = unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) };
    note.get(HEAD..).unwrap_or_default()
}

/// The hypervisor's command line.
static COMMAND_LINE: Once<String> = Once::new();

/// Says what the hypervisor's command line is.
pub fn set_command_line(text: &str) {
    COMMAND_LINE.call_once(|| text.into());
}

/// The feature bits of page 0 for the caller.
fn features(cx: &Caller) -> u32 {
    let mut bits = 1 << feat::MMU_PT_UPDATE_PRESERVE_AD
        | 1 << feat::HIGHMEM_ASSIST
        | 1 << feat::GNTTAB_MAP_AVAIL_BITS
        | 1 << feat::MEMORY_OP_VNODE_SUPPORTED
        | 1 << feat::DIRECT_MAPPED;
    if cx.domain().has_assist(assist::PAE_EXTENDED_CR3) {
        bits |= 1 << feat::PAE_PGDIR_ABOVE_4GB;
    }
    if cx.domain().is_hardware {
        bits |= 1 << feat::DOM0;
    }
    bits
}
