//! Bounce frames: how a guest kernel is entered for an exception, event, NMI or system call, and how it leaves again
//! by the `iret` hypercall.
//!
//! Guest kernel and guest user both run at CPL 3, so the CPU cannot build the frame: the hypervisor writes it on the
//! guest's kernel stack. Only the arithmetic is here. The caller chooses the handler, switches the page tables when the
//! origin was user mode, writes [`Frame::words`] at [`Frame::sp`] (a fault there is fatal for the domain) and then
//! calls
//! [`Frame::enter`]. The number of words is a type parameter, so the hot paths compile to straight-line code.
//! Layouts: docs of public/arch-x86/xen-x86_64.h and of Xen's `create_bounce_frame`.

use x86::rflags::{Rflags, IOPL_SHIFT};
use xen_abi::layout::{FLAT_RING3_CS64, FLAT_RING3_SS64, HYPERVISOR_VIRT_END};
use xen_abi::regs::CpuUserRegs;

/// Words of a frame without an error code: rcx, r11, rip, cs, rflags, rsp, ss.
pub const PLAIN: usize = 7;
/// Words of a frame with an error code, which lies between r11 and rip.
pub const WITH_ERROR: usize = 8;
/// Words of a failsafe frame: ds, es, fs, gs lie between r11 and rip.
pub const FAILSAFE: usize = 11;

/// RFLAGS bits that a handler starts with cleared.
pub const CLEARED_ON_ENTRY: u64 =
    Rflags::TF.bits() | Rflags::NT.bits() | Rflags::RF.bits() | Rflags::VM.bits() | Rflags::AC.bits();
/// Set in the flags word of an `iret` frame if the guest came by SYSCALL, so that rcx and r11 need no restoring.
pub const VGCF_IN_SYSCALL: u64 = 0x100;

/// What a frame depends on besides the registers.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Was the guest's kernel running (as opposed to its user code)?
    pub kernel_mode: bool,
    /// Stack for entries from user mode (`stack_switch`).
    pub kernel_sp: u64,
    /// `evtchn_upcall_mask` before this entry.
    pub upcall_mask: u8,
    /// The IOPL that the guest is to see in its frame, 0..=3; 0 unless it asked for `architectural_iopl`.
    pub shown_iopl: u8,
}

/// Where the guest is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// Address; 0 means none registered.
    pub rip: u64,
    /// Set `evtchn_upcall_mask` on entry?
    pub mask_events: bool,
}

/// Why no frame can be built. Each is fatal for the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No handler is registered.
    NoHandler,
    /// The stack lies in the hypervisor's range or is not canonical.
    BadStack(u64),
}

/// A frame ready to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<const N: usize> {
    /// Address of the first word; the handler's stack pointer.
    pub sp: u64,
    /// The words, lowest address first.
    pub words: [u64; N],
}

impl<const N: usize> Frame<N> {
    /// Makes `regs` those of the handler: flat selectors, frame as the stack, single-step and the like off.
    ///
    /// The general registers stay; rcx and r11 are popped by the handler, so the return to the guest may use SYSRET.
    #[inline]
    pub fn enter(&self, regs: &mut CpuUserRegs, handler: Handler) {
        regs.rip = handler.rip;
        regs.cs = FLAT_RING3_CS64;
        regs.ss = FLAT_RING3_SS64;
        regs.rsp = self.sp;
        regs.rflags &= !CLEARED_ON_ENTRY;
    }
}

/// Frame for an event, an NMI, a system call, or an exception without error code.
#[inline]
pub fn plain(regs: &CpuUserRegs, origin: Origin) -> Result<Frame<PLAIN>, Refused> {
    let sp = stack::<PLAIN>(regs, origin)?;
    let [rip, cs, rflags, rsp, ss] = iret_words(regs, origin);
    Ok(Frame { sp, words: [regs.rcx, regs.r11, rip, cs, rflags, rsp, ss] })
}

/// Frame for an exception with `error_code`.
#[inline]
pub fn with_error(regs: &CpuUserRegs, origin: Origin, error_code: u32) -> Result<Frame<WITH_ERROR>, Refused> {
    let sp = stack::<WITH_ERROR>(regs, origin)?;
    let [rip, cs, rflags, rsp, ss] = iret_words(regs, origin);
    Ok(Frame { sp, words: [regs.rcx, regs.r11, error_code.into(), rip, cs, rflags, rsp, ss] })
}

/// Frame for the failsafe callback, after a return to the guest faulted or a selector could not be loaded.
/// `regs.ds`, `es`, `fs` and `gs` must hold what the guest asked for.
#[inline]
pub fn failsafe(regs: &CpuUserRegs, origin: Origin) -> Result<Frame<FAILSAFE>, Refused> {
    let sp = stack::<FAILSAFE>(regs, origin)?;
    let [rip, cs, rflags, rsp, ss] = iret_words(regs, origin);
    let [ds, es, fs, gs] = [regs.ds, regs.es, regs.fs, regs.gs].map(u64::from);
    Ok(Frame { sp, words: [regs.rcx, regs.r11, ds, es, fs, gs, rip, cs, rflags, rsp, ss] })
}

/// First word of a frame of `N` words.
#[inline]
fn stack<const N: usize>(regs: &CpuUserRegs, origin: Origin) -> Result<u64, Refused> {
    let top = if origin.kernel_mode { regs.rsp } else { origin.kernel_sp } & !0xf;
    let bottom = top.wrapping_sub(8 * N as u64);
    // Guest ranges are [0, 2^47) and [HYPERVISOR_VIRT_END, 2^64). A frame may end just below, not reach into, the gap.
    if bottom >= HYPERVISOR_VIRT_END || top <= 1 << 47 {
        Ok(bottom)
    } else {
        Err(Refused::BadStack(top))
    }
}

/// rip, cs, rflags, rsp and ss as the guest kernel is to see them.
#[inline]
fn iret_words(regs: &CpuUserRegs, origin: Origin) -> [u64; 5] {
    // A clear RPL is how the guest knows that its kernel was running.
    let rpl = if origin.kernel_mode { 0 } else { regs.cs & 3 };
    let cs = u64::from(regs.cs & !3 | rpl) | u64::from(origin.upcall_mask) << 32;
    let virtual_if = if origin.upcall_mask == 0 { Rflags::IF.bits() } else { 0 };
    let iopl = u64::from(origin.shown_iopl & 3) << IOPL_SHIFT;
    let rflags = regs.rflags & !(Rflags::IF.bits() | Rflags::IOPL.bits()) | virtual_if | iopl;
    [regs.rip, cs, rflags, regs.rsp, regs.ss.into()]
}

/// Turns the registers of a SYSENTER, which saves nothing, into those that the guest is told: null code selector.
#[inline]
pub fn sysenter_origin(regs: &mut CpuUserRegs) {
    regs.rip = 0;
    regs.cs = 3;
    regs.ss = FLAT_RING3_SS64;
    regs.rsp = 0;
    regs.rflags = regs.rflags & !Rflags::NT.bits() | Rflags::IF.bits();
}

/// The #PF error code that the guest is told: the U bit says guest user mode, not CPL 3.
#[inline]
pub const fn page_fault_error(error_code: u32, kernel_mode: bool) -> u32 {
    let u = x86::error_code::PageFaultError::U.bits();
    if kernel_mode {
        error_code & !u
    } else {
        error_code | u
    }
}

/// What the `iret` hypercall asks for besides the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iret {
    /// Continue in guest user mode: switch page tables and GS. The domain dies if it has no user page table.
    pub to_user: bool,
    /// The new `evtchn_upcall_mask`.
    pub upcall_mask: u8,
    /// IOPL in the frame, which counts only with `architectural_iopl`.
    pub iopl: u8,
    /// rcx and r11 were restored from the frame, so SYSRET may not be used.
    pub full: bool,
}

/// Words of the frame that the guest leaves on its stack for `iret`: rax, r11, rcx, flags, rip, cs, rflags, rsp, ss.
pub const IRET_WORDS: usize = 9;

/// Loads `regs` from an `iret` frame.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "selectors and IOPL are cut to their width on purpose")]
pub fn iret(regs: &mut CpuUserRegs, frame: &[u64; IRET_WORDS]) -> Iret {
    let [rax, r11, rcx, flags, rip, cs, rflags, rsp, ss] = *frame;
    let full = flags & VGCF_IN_SYSCALL == 0;
    if full {
        regs.r11 = r11;
        regs.rcx = rcx;
    }
    regs.rax = rax;
    regs.rip = rip;
    regs.cs = cs as u16 | 3;
    regs.rflags = rflags & !(Rflags::IOPL.bits() | Rflags::VM.bits()) | Rflags::IF.bits() | Rflags::FIXED.bits();
    regs.rsp = rsp;
    regs.ss = ss as u16 | 3;
    Iret {
        to_user: cs & 3 == 3,
        upcall_mask: u8::from(rflags & Rflags::IF.bits() == 0),
        iopl: (rflags >> IOPL_SHIFT & 3) as u8,
        full,
    }
}

/// May the hypervisor leave by SYSRET, given that the guest expects rcx and r11 to be lost? SYSRET loads fixed
/// selectors, and more: see [`may_sysret_flat`].
#[inline]
pub const fn may_sysret(regs: &CpuUserRegs) -> bool {
    regs.cs == FLAT_RING3_CS64 && regs.ss == FLAT_RING3_SS64 && may_sysret_flat(regs)
}

/// The same where the selectors are known to be those that SYSRET loads. It takes rip from rcx and rflags from r11, and
/// faults in ring 0 on a non-canonical rip.
#[inline]
pub const fn may_sysret_flat(regs: &CpuUserRegs) -> bool {
    x86::addr::is_canonical(regs.rip) && regs.rflags & (Rflags::TF.bits() | Rflags::RF.bits() | Rflags::VM.bits()) == 0
}

#[cfg(test)]
mod tests;
