use super::*;
use proptest::prelude::*;
use xen_abi::layout::HYPERVISOR_VIRT_START;

const KERNEL_STACK: u64 = 0xffff_c900_0010_3ff8;

fn user_regs() -> CpuUserRegs {
    CpuUserRegs {
        rcx: 0xc0ffee,
        r11: 0x11,
        rip: 0x7f00_0000_1000,
        cs: 0x33,
        rflags: 0x10346, // RF, TF, IF and PF, ZF
        rsp: 0x7ffe_0000_1234,
        ss: 0x2b,
        ..Default::default()
    }
}

fn from_user() -> Origin {
    Origin { kernel_mode: false, kernel_sp: KERNEL_STACK, upcall_mask: 0, shown_iopl: 0 }
}

#[test]
fn exception_from_user_mode() {
    let mut regs = user_regs();
    let f = with_error(&regs, from_user(), 6).unwrap();
    assert_eq!(f.sp, 0xffff_c900_0010_3ff0 - 64, "aligned to 16, then eight words");
    assert_eq!(f.words, [0xc0ffee, 0x11, 6, 0x7f00_0000_1000, 0x33, 0x10346, 0x7ffe_0000_1234, 0x2b]);
    f.enter(&mut regs, Handler { rip: 0xffff_ffff_8100_0000, mask_events: true });
    assert_eq!((regs.rip, regs.cs, regs.ss, regs.rsp), (0xffff_ffff_8100_0000, 0xe033, 0xe02b, f.sp));
    assert_eq!(regs.rflags, 0x246, "TF and RF cleared, IF stays");
}

#[test]
fn event_from_kernel_mode_shows_ring_0_and_virtual_if() {
    let regs = CpuUserRegs { cs: 0xe033, ss: 0xe02b, rflags: 0x3202, rsp: KERNEL_STACK, ..user_regs() };
    let origin = Origin { kernel_mode: true, kernel_sp: 0, upcall_mask: 1, shown_iopl: 0 };
    let f = plain(&regs, origin).unwrap();
    assert_eq!(f.sp, 0xffff_c900_0010_3ff0 - 56);
    assert_eq!(f.words[3], 0x1_0000_e030, "as measured on Xen");
    assert_eq!(f.words[4], 0x002, "masked events read as IF clear; IOPL hidden");
    assert_eq!(plain(&regs, Origin { upcall_mask: 0, shown_iopl: 1, ..origin }).unwrap().words[4], 0x1202);
}

#[test]
fn failsafe_lists_selectors_before_the_iret_words() {
    let regs = CpuUserRegs { ds: 1, es: 2, fs: 3, gs: 4, ..user_regs() };
    let f = failsafe(&regs, from_user()).unwrap();
    assert_eq!(f.words[..7], [0xc0ffee, 0x11, 1, 2, 3, 4, 0x7f00_0000_1000]);
}

#[test]
fn stacks_in_the_hypervisor_are_refused() {
    let regs = user_regs();
    for sp in [HYPERVISOR_VIRT_START + 64, HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_END + 48, 1 << 63, (1 << 47) + 16] {
        let o = Origin { kernel_sp: sp, ..from_user() };
        assert_eq!(plain(&regs, o), Err(Refused::BadStack(sp)), "{sp:#x}");
    }
    for sp in [HYPERVISOR_VIRT_END + 64, 1 << 47, 0x1000, 0, !0] {
        assert!(plain(&regs, Origin { kernel_sp: sp, ..from_user() }).is_ok(), "{sp:#x}");
    }
}

#[test]
fn sysenter_frames() {
    let mut regs = CpuUserRegs { cs: 0xe008, ss: 0xe010, rflags: 0x4002, ..user_regs() };
    sysenter_origin(&mut regs);
    let f = plain(&regs, from_user()).unwrap();
    assert_eq!(f.words[2..], [0, 3, 0x202, 0, 0xe02b]);
}

#[test]
fn page_fault_error_follows_the_guest_mode() {
    assert_eq!(page_fault_error(7, true), 3);
    assert_eq!(page_fault_error(7, false), 7);
    assert_eq!(page_fault_error(2, false), 6);
}

#[test]
fn iret_to_user_and_kernel() {
    let mut regs = CpuUserRegs::default();
    let r = iret(&mut regs, &[1, 2, 3, 0, 0x1000, 0x33, 0x23202, 0x2000, 0x2b]);
    assert_eq!(r, Iret { to_user: true, upcall_mask: 0, iopl: 3, full: true });
    assert_eq!((regs.rax, regs.r11, regs.rcx), (1, 2, 3));
    assert_eq!((regs.rip, regs.cs, regs.rflags, regs.rsp, regs.ss), (0x1000, 0x33, 0x202, 0x2000, 0x2b));

    let mut regs = CpuUserRegs { rcx: 7, r11: 8, ..Default::default() };
    let r = iret(&mut regs, &[1, 2, 3, VGCF_IN_SYSCALL, 0x1000, 0xe030, 0, 0x2000, 0xe02b]);
    assert_eq!(r, Iret { to_user: false, upcall_mask: 1, iopl: 0, full: false });
    assert_eq!((regs.cs, regs.rcx, regs.r11, regs.rflags), (0xe033, 7, 8, 0x202), "ring 3 and IF forced");
}

#[test]
fn sysret_only_to_canonical_flat_code() {
    let ok = CpuUserRegs { cs: 0xe033, ss: 0xe02b, rip: 0x1000, rflags: 0x202, ..Default::default() };
    assert!(may_sysret(&ok));
    assert!(!may_sysret(&CpuUserRegs { rip: 1 << 47, ..ok }));
    assert!(!may_sysret(&CpuUserRegs { cs: 0x33, ..ok }));
    assert!(!may_sysret(&CpuUserRegs { rflags: 0x302, ..ok }));
}

proptest! {
    /// What a handler gets on its stack is what `iret` needs to resume the interrupted code.
    #[test]
    fn bounce_then_iret_resumes(
        rip: u64, rsp: u64, flags: u64, rax: u64, rcx: u64, r11: u64, kernel: bool, mask in 0u8..2,
    ) {
        let rflags = flags & 0x20_0dd5 | 0x202;
        let before = CpuUserRegs {
            rax, rcx, r11, rip, rflags, rsp: if kernel { KERNEL_STACK } else { rsp },
            cs: if kernel { 0xe033 } else { 0x33 }, ss: 0xe02b, ..Default::default()
        };
        let origin = Origin { kernel_mode: kernel, kernel_sp: KERNEL_STACK, upcall_mask: mask, shown_iopl: 0 };
        let f = plain(&before, origin).unwrap();
        let mut regs = before;
        f.enter(&mut regs, Handler { rip: 0xffff_ffff_8000_0000, mask_events: true });
        let [rcx, r11, rip, cs, rflags, rsp, ss] = f.words;
        let back = iret(&mut regs, &[rax, r11, rcx, 0, rip, cs & 0xffff, rflags, rsp, ss]);
        prop_assert_eq!(regs, before);
        prop_assert_eq!(back.to_user, !kernel);
        prop_assert_eq!(back.upcall_mask, mask);
    }

    /// A frame never touches the hypervisor's range, whatever the stack pointer.
    #[test]
    fn frames_stay_in_guest_ranges(sp: u64) {
        if let Ok(f) = failsafe(&user_regs(), Origin { kernel_sp: sp, ..from_user() }) {
            for i in 0..FAILSAFE as u64 {
                let a = f.sp.wrapping_add(8 * i);
                prop_assert!(!(1 << 47..HYPERVISOR_VIRT_END).contains(&a));
            }
        }
    }
}
