//! Loading a vCPU from a `vcpu_guest_context`: VCPUOP_initialise, XEN_DOMCTL_setvcpucontext, the initial domain.

use crate::domain::vcpu::{stop, Callback};
use crate::pv::cpu_policy;
use crate::sched::{self, Held};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use hv_core::control;
use hv_core::mmu::ext::check_ldt;
use x86::addr::is_canonical;
use x86::rflags::{Cr0, Rflags};
use x86::{MachAddr, Mfn};
use xen_abi::assist;
use xen_abi::errno::Errno;
use xen_abi::layout::FIRST_RESERVED_GDT_PAGE;
use xen_abi::trap as ctx;
use xen_abi::trap::VcpuGuestContext;

/// Makes `context` the state of `v`. Takes references to its page tables and GDT pages. Errors: EINVAL for
/// non-canonical entry points or bases, for an LDT where none can be, and for roots and GDT frames that are not fit;
/// ERESTART. After an error about those frames the vCPU has no context, and so does not run. Source:
/// public/arch-x86/xen.h, `vcpu_guest_context`.
pub fn set(v: &Held<'_>, context: &VcpuGuestContext) -> Result<(), Errno> {
    let addresses = [
        context.event_callback_eip,
        context.failsafe_callback_eip,
        context.syscall_callback_eip,
        context.fs_base,
        context.gs_base_kernel,
        context.gs_base_user,
        context.user_regs.rip,
    ];
    if !addresses.iter().all(|a| is_canonical(*a)) || context.gdt_ents > (FIRST_RESERVED_GDT_PAGE * 512) as u64 {
        return Err(Errno::EINVAL);
    }
    let (ldt_base, ldt_entries) = check_ldt(context.ldt_base, context.ldt_ents)?;
    let root = |cr: u64| Mfn::containing(MachAddr::new(cr));
    let (kernel_root, user_root) = (root(context.ctrlreg[3]), root(context.ctrlreg[1]));
    let kernel_mode = context.flags & ctx::VGCF_IN_KERNEL != 0 || context.user_regs.cs & 3 == 0;
    // Frame 0 stands for no table. Without one for user mode a guest can live, as long as it is not in that mode.
    if kernel_root.raw() == 0 || user_root.raw() == 0 && !kernel_mode {
        return Err(Errno::EINVAL);
    }
    #[allow(clippy::cast_possible_truncation, reason = "checked above")]
    let entries = context.gdt_ents as u32;
    crate::pv::address_space::set_context(v, kernel_root, user_root, &context.gdt_frames, entries)?;

    let mut regs = context.user_regs;
    let virtual_iopl = regs.rflags >> 12 & 3;
    v.iopl.set(virtual_iopl as u8);
    regs.rflags &= !(Rflags::IOPL.bits() | Rflags::VM.bits() | Rflags::NT.bits());
    regs.rflags |= Rflags::IF.bits() | Rflags::FIXED.bits();
    regs.cs |= 3;
    regs.ss |= 3;
    regs.entry_vector = 0;
    // SAFETY: the vCPU is held, and so its state the caller's.
    unsafe { *v.saved.get() = regs };

    for (slot, entry) in v.traps.iter().zip(&context.trap_ctxt) {
        let mut entry = *entry;
        entry.cs |= 3;
        slot.set(if is_canonical(entry.address) { entry } else { ctx::TrapInfo { address: 0, ..entry } });
    }
    if context.flags & ctx::VGCF_I387_VALID != 0 {
        v.fpu.set_fxsave(&context.fpu_ctxt);
    } else {
        v.fpu.reset_registers();
    }
    v.kernel_mode.set(kernel_mode);
    let callback = |address, mask_events| Callback { address, mask_events };
    v.callbacks.event.set(callback(context.event_callback_eip, true));
    v.callbacks
        .failsafe
        .set(callback(context.failsafe_callback_eip, context.flags & ctx::VGCF_FAILSAFE_DISABLES_EVENTS != 0));
    v.callbacks
        .syscall
        .set(callback(context.syscall_callback_eip, context.flags & ctx::VGCF_SYSCALL_DISABLES_EVENTS != 0));
    #[allow(clippy::cast_possible_truncation, reason = "a selector")]
    v.kernel_ss.set(context.kernel_ss as u16 | 3);
    v.kernel_sp.set(context.kernel_sp);
    // Of CR0 a guest chooses TS only.
    v.task_switched.set(context.ctrlreg[0] & Cr0::TS.bits() != 0);
    v.cr4.set(cpu_policy::cr4_choice(v, context.ctrlreg[4]));
    v.fs_base.set(context.fs_base);
    v.gs_base_kernel.set(context.gs_base_kernel);
    v.gs_base_user.set(context.gs_base_user);
    v.ldt_base.set(ldt_base);
    v.ldt_entries.set(ldt_entries);
    for (i, value) in context.debugreg.iter().enumerate() {
        // Unfit values leave the defaults.
        let _ = crate::pv::debugreg::store(v, i as u32, *value);
    }
    // It is the domain's: the first vCPU says it.
    if v.id == 0 {
        v.domain().vm_assist.fetch_or(context.vm_assist & assist::VALID, Ordering::Relaxed);
    }
    v.state_changed.store(true, Ordering::Release);
    // Last: whatever else stops it, from now on it has all that it takes to run.
    sched::start(v, stop::NO_CONTEXT);
    Ok(())
}

/// The state of `v` in the form that `set` takes.
pub fn get(v: &Held<'_>) -> Box<VcpuGuestContext> {
    // SAFETY: the vCPU is held, and so its state the caller's.
    let mut user_regs = unsafe { *v.saved.get() };
    user_regs.rflags |= u64::from(v.iopl.get()) << 12;
    user_regs.error_code = 0;
    user_regs.entry_vector = 0;
    let mut flags = ctx::VGCF_I387_VALID;
    if v.kernel_mode.get() {
        flags |= ctx::VGCF_IN_KERNEL;
    }
    if v.stop.load(Ordering::Relaxed) & stop::DOWN == 0 {
        flags |= ctx::VGCF_ONLINE;
    }
    if v.callbacks.failsafe.get().mask_events {
        flags |= ctx::VGCF_FAILSAFE_DISABLES_EVENTS;
    }
    if v.callbacks.syscall.get().mask_events {
        flags |= ctx::VGCF_SYSCALL_DISABLES_EVENTS;
    }
    let mut gdt_frames = [0; 16];
    for (to, from) in gdt_frames.iter_mut().zip(v.gdt_frames.get()) {
        *to = from.raw();
    }
    let mut ctrlreg = [0; 8];
    ctrlreg[0] = control::read_cr0(v.task_switched.get());
    ctrlreg[1] = v.user_root.get().addr().raw();
    ctrlreg[3] = v.kernel_root.get().addr().raw();
    ctrlreg[4] = v.cr4.get();
    Box::new(VcpuGuestContext {
        fpu_ctxt: v.fpu.fxsave(),
        flags,
        user_regs,
        trap_ctxt: core::array::from_fn(|i| v.traps[i].get()),
        ldt_base: v.ldt_base.get(),
        ldt_ents: v.ldt_entries.get().into(),
        gdt_frames,
        gdt_ents: v.gdt_entries.get().into(),
        kernel_ss: v.kernel_ss.get().into(),
        kernel_sp: v.kernel_sp.get(),
        ctrlreg,
        debugreg: core::array::from_fn(|i| v.debugreg[i].get()),
        event_callback_eip: v.callbacks.event.get().address,
        failsafe_callback_eip: v.callbacks.failsafe.get().address,
        syscall_callback_eip: v.callbacks.syscall.get().address,
        vm_assist: v.domain().vm_assist.load(Ordering::Relaxed),
        fs_base: v.fs_base.get(),
        gs_base_kernel: v.gs_base_kernel.get(),
        gs_base_user: v.gs_base_user.get(),
    })
}
