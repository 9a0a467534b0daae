//! Hypercalls: the table, its dispatcher, and one file for each call, named as Xen names it.

mod batch;
pub mod bitmap;
pub mod callback_op;
pub mod channel_op;
pub mod console_io;
pub mod debugreg;
pub mod domctl;
mod efi;
pub mod event_channel_op;
pub mod foreign;
pub mod fpu_taskswitch;
pub mod grant_table_op;
pub mod iret;
pub mod memory_op;
pub mod mmu_update;
pub mod mmuext_op;
pub mod multicall;
pub mod nmi_op;
pub mod physdev_op;
pub mod platform_op;
pub mod sched_op;
pub mod set_gdt;
pub mod set_segment_base;
pub mod set_trap_table;
pub mod stack_switch;
pub mod sysctl;
mod table;
pub mod twin_op;
pub mod update_descriptor;
pub mod update_va_mapping;
pub mod vcpu_op;
pub mod vm_assist;
pub mod xen_version;
pub mod xenpmu_op;

pub use crate::mem::guest_ptr::{GuestPtr, Plain};

use crate::cpu::percpu::{pending, this_cpu};
use crate::cpu::{self, Interruptible};
use crate::domain::vcpu::OwnedVcpu;
use crate::domain::Domain;
use core::sync::atomic::Ordering;
use hv_core::allowance::Allowance;
use xen_abi::errno::Errno;
use xen_abi::regs::CpuUserRegs;

/// How a hypercall ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// With this value for the guest.
    Return(i64),
    /// Not at all: it is to be executed again with the arguments that [`Caller::arg_mut`] has changed.
    Continue,
    /// The registers are set already (iret).
    NoReturn,
}

/// What every handler returns.
pub type Outcome = Result<Done, Errno>;

/// What the dispatcher makes of that: errors are values, too, except that a preempted call is executed again.
#[inline(always)]
fn settle(outcome: Outcome) -> Done {
    match outcome {
        Ok(done) => done,
        Err(Errno::ERESTART) => Done::Continue,
        Err(errno) => Done::Return(errno.to_ret()),
    }
}

/// Success without a value.
pub const OK: Outcome = Ok(Done::Return(0));

/// Who called, and with what.
pub struct Caller<'a> {
    /// The calling vCPU, running on this CPU, in kernel mode.
    pub vcpu: &'static OwnedVcpu,
    /// Its general registers.
    pub regs: &'a mut CpuUserRegs,
    /// The arguments, if the call is an element of a multicall; else they are in the registers.
    element: Option<&'a mut [u64; 6]>,
    interruptible: Interruptible<'a>,
}

impl Caller<'_> {
    /// The calling domain. Locks that are reached through it cannot be held where interrupts are let in: see
    /// [`Self::preempt_pending`].
    #[inline(always)]
    pub fn domain(&self) -> &Domain {
        self.vcpu.domain()
    }

    /// Argument `n`.
    #[inline(always)]
    fn arg(&self, n: usize) -> u64 {
        match &self.element {
            Some(args) => args[n],
            None => match n {
                0 => self.regs.rdi,
                1 => self.regs.rsi,
                2 => self.regs.rdx,
                3 => self.regs.r10,
                4 => self.regs.r8,
                _ => self.regs.r9,
            },
        }
    }

    /// Argument `n`, where a handler that is going to answer [`Done::Continue`] records its progress.
    fn arg_mut(&mut self, n: usize) -> &mut u64 {
        match &mut self.element {
            Some(args) => &mut args[n],
            None => match n {
                0 => &mut self.regs.rdi,
                1 => &mut self.regs.rsi,
                2 => &mut self.regs.rdx,
                3 => &mut self.regs.r10,
                4 => &mut self.regs.r8,
                _ => &mut self.regs.r9,
            },
        }
    }

    /// Should a long operation stop and be continued later? Lets interrupts in first.
    pub fn preempt_pending(&mut self) -> bool {
        cpu::interrupt_window(self.interruptible());
        this_cpu().allowance.refill();
        this_cpu().pending.load(Ordering::Relaxed) & pending::DUE != 0
    }

    /// Has this CPU done as much as it may before it lets interrupts in? Then it is time for [`Self::preempt_pending`].
    #[inline(always)]
    pub fn is_used_up(&self) -> bool {
        this_cpu().allowance.is_used_up()
    }

    /// This CPU's allowance, if the call is an element of a multicall. What a call does that ends by itself counts only
    /// there: after any other one the guest goes on, and it can be interrupted.
    #[inline(always)]
    pub fn allowance_of_list(&self) -> Option<&'static Allowance> {
        self.element.as_ref().map(|_| &this_cpu().allowance)
    }

    /// For who lets interrupts in.
    #[inline(always)]
    pub fn interruptible(&mut self) -> Interruptible<'_> {
        self.interruptible.again()
    }

    /// EPERM unless the caller is the control domain.
    #[inline]
    pub fn require_privilege(&self) -> Result<(), Errno> {
        if self.domain().is_privileged {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }
}

/// Conversion of a register to an argument. It may refuse.
pub trait FromRegister: Sized {
    /// Takes the register's value.
    fn from_register(raw: u64) -> Result<Self, Errno>;
}

impl FromRegister for u64 {
    #[inline(always)]
    fn from_register(raw: u64) -> Result<Self, Errno> {
        Ok(raw)
    }
}
impl FromRegister for u32 {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the ABI defines 32-bit arguments by the register's low half")]
    fn from_register(raw: u64) -> Result<Self, Errno> {
        Ok(raw as u32)
    }
}
impl<T> FromRegister for GuestPtr<T> {
    #[inline(always)]
    fn from_register(raw: u64) -> Result<Self, Errno> {
        Ok(GuestPtr::new(raw))
    }
}

/// A hypercall by SYSCALL from guest-kernel mode: number in rax, arguments in rdi, rsi, rdx, r10, r8, r9. Returns
/// whether nothing but rax has changed.
#[inline(always)]
pub fn dispatch(vcpu: &'static OwnedVcpu, regs: &mut CpuUserRegs, interruptible: Interruptible<'_>) -> bool {
    let number = regs.rax;
    // The guest could be interrupted until now.
    this_cpu().allowance.refill();
    let mut cx = Caller { vcpu, regs, element: None, interruptible };
    match table::call(&mut cx, number) {
        Done::Return(value) => {
            cx.regs.rax = value as u64;
            true
        }
        Done::Continue => {
            // SYSCALL is two bytes long: it is executed again when the vCPU runs next.
            cx.regs.rip = cx.regs.rip.wrapping_sub(2);
            false
        }
        Done::NoReturn => false,
    }
}
