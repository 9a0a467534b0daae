//! What is changed in the code of entry.S at boot, before it is used: copies of guest memory that open it for
//! themselves where there is SMAP, and checks that it was closed.

use crate::arch::smap;
use crate::cpu::{self, cr};
use hv_core::cmdline::Options;

extern "C" {
    static guest_accessors: [*const u8; 2];
    static guest_accessors_end: [*const u8; 2];
    static call_syscall_from_guest: u8;
    static checked_syscall_from_guest: u8;
    static call_exit_work: u8;
    static checked_exit_work: u8;
}

/// Fits the code to this processor and to `options`.
///
/// # Safety
/// 1. No other CPU runs. 2. No guest has run, nor has anybody called a copy.
pub unsafe fn apply(options: &Options) {
    if smap::is_on() {
        use_accessors();
        if options.ac_check {
            check_ac();
        }
    }
}

/// Has the copies of guest memory open it for themselves.
fn use_accessors() {
    const JMP: u8 = 0xe9;
    let (start, end) = (&raw const guest_accessors, &raw const guest_accessors_end);
    let count = (end as usize - start as usize) / size_of::<[*const u8; 2]>();
    // SAFETY: entry.S has the table between the two symbols. The first of each pair is a function of at least five
    // bytes that nobody has called yet; both do the same.
    unsafe {
        for [plain, smap] in core::slice::from_raw_parts(start, count) {
            write_branch(*plain, JMP, *smap);
        }
    }
}

/// Has every way back to a guest look whether AC is clear (`ac-check`).
fn check_ac() {
    let calls = [
        (&raw const call_syscall_from_guest, &raw const checked_syscall_from_guest),
        (&raw const call_exit_work, &raw const checked_exit_work),
    ];
    for (call, checked) in calls {
        const CALL: u8 = 0xe8;
        // SAFETY: each label is in front of a CALL, which has five bytes; what is called instead calls the same
        // function.
        unsafe {
            assert_eq!(*call, CALL, "entry.S has another instruction there");
            write_branch(call, CALL, checked);
        }
    }
}

/// AC was set at the end of the hypervisor's work for a guest.
pub extern "C" fn ac_left_set() -> ! {
    panic!("EFLAGS.AC was left set: guest memory could be touched without notice");
}

/// Writes a near branch to `target`, opcode and 32-bit distance, over the code at `at`.
///
/// # Safety
/// 1. `at` is the hypervisor's code; what is there is five bytes long and may be replaced. 2. No other CPU runs.
unsafe fn write_branch(at: *const u8, opcode: u8, target: *const u8) {
    const BYTES: usize = 5;
    let distance = (target as u64).wrapping_sub(at as u64 + BYTES as u64) as i64;
    let distance = i32::try_from(distance).expect("the image is smaller than 2 GiB");
    let mut code = [opcode; BYTES];
    code[1..].copy_from_slice(&distance.to_le_bytes());
    let cr0 = cpu::read_cr0();
    // SAFETY: (1) and (2). The code is mapped read-only, which ring 0 heeds while CR0.WP is set; writing to CR0 makes
    // this CPU fetch anew.
    unsafe {
        cpu::write_cr0(cr0 & !cr::CR0_WP);
        core::ptr::copy_nonoverlapping(code.as_ptr(), at.cast_mut(), BYTES);
        cpu::write_cr0(cr0);
    }
}
