//! The processor: privileged instructions, each wrapped once, ports, the first serial port, and what each CPU knows of
//! itself.
//!
//! Nothing here needs memory management; everything else stands on it.

pub mod percpu;
pub mod port;
pub mod requests;
pub mod screen;
pub mod serial;

use core::arch::asm;
use core::marker::PhantomData;
use x86::cpuid::CpuidRegs;

/// Model-specific registers that the hypervisor itself programs (SDM vol. 4).
#[allow(missing_docs, reason = "the SDM's names")]
pub mod msr {
    pub const IA32_SYSENTER_CS: u32 = 0x174;
    pub const IA32_SYSENTER_ESP: u32 = 0x175;
    pub const IA32_SYSENTER_EIP: u32 = 0x176;
    pub const IA32_EFER: u32 = 0xc000_0080;
    pub const IA32_STAR: u32 = 0xc000_0081;
    pub const IA32_LSTAR: u32 = 0xc000_0082;
    pub const IA32_CSTAR: u32 = 0xc000_0083;
    pub const IA32_FMASK: u32 = 0xc000_0084;
    pub const IA32_FS_BASE: u32 = 0xc000_0100;
    pub const IA32_GS_BASE: u32 = 0xc000_0101;
    pub const IA32_KERNEL_GS_BASE: u32 = 0xc000_0102;
    pub const IA32_TSC_AUX: u32 = 0xc000_0103;
}

/// `IA32_EFER.SCE`: SYSCALL is enabled.
pub const EFER_SCE: u64 = 1 << 0;
/// `IA32_EFER.NXE`: the NX bit is honoured.
pub const EFER_NXE: u64 = 1 << 11;

/// Control-register bits (SDM vol. 3A, 2.5).
#[allow(missing_docs, reason = "the SDM's names")]
pub mod cr {
    pub const CR0_MP: u64 = 1 << 1;
    pub const CR0_EM: u64 = 1 << 2;
    pub const CR0_TS: u64 = 1 << 3;
    pub const CR0_NE: u64 = 1 << 5;
    pub const CR0_WP: u64 = 1 << 16;
    pub const CR0_AM: u64 = 1 << 18;
    pub const CR4_TSD: u64 = 1 << 2;
    pub const CR4_DE: u64 = 1 << 3;
    pub const CR4_MCE: u64 = 1 << 6;
    pub const CR4_PGE: u64 = 1 << 7;
    pub const CR4_OSFXSR: u64 = 1 << 9;
    pub const CR4_OSXMMEXCPT: u64 = 1 << 10;
    pub const CR4_FSGSBASE: u64 = 1 << 16;
    pub const CR4_OSXSAVE: u64 = 1 << 18;
    pub const CR4_UMIP: u64 = 1 << 11;
    pub const CR4_SMEP: u64 = 1 << 20;
    pub const CR4_SMAP: u64 = 1 << 21;
}

/// Reads model-specific register `msr`, which must exist on this CPU (else #GP, which is fatal).
#[inline(always)]
pub fn rdmsr(msr: u32) -> u64 {
    let (lo, hi): (u32, u32);
    // SAFETY: reading an MSR changes nothing that Rust relies on.
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") lo, out("edx") hi, options(nomem, nostack, preserves_flags)) };
    u64::from(hi) << 32 | u64::from(lo)
}

/// Writes a model-specific register.
///
/// # Safety
/// 1. The CPU has the register and accepts the value. 2. The value keeps the hypervisor's own state intact.
#[inline(always)]
pub unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: (1) and (2).
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
    }
}

/// Reads a register that may not exist; `None` if that raises #GP.
pub fn rdmsr_safe(msr: u32) -> Option<u64> {
    let (lo, hi, bad): (u32, u32, u32);
    // SAFETY: a #GP of the RDMSR is caught by the exception table, which resumes at label 3 with `bad` set.
    unsafe {
        asm!(
            "2: rdmsr",
            "xor {bad:e}, {bad:e}",
            "jmp 4f",
            "3: xor eax, eax",
            "xor edx, edx",
            "mov {bad:e}, 1",
            "4:",
            ".pushsection ex_table, \"a\"",
            ".quad 2b, 3b",
            ".popsection",
            bad = out(reg) bad, in("ecx") msr, out("eax") lo, out("edx") hi, options(nomem, nostack)
        );
    }
    (bad == 0).then_some(u64::from(hi) << 32 | u64::from(lo))
}

/// Writes a register that may not exist, or not take the value. Whether it has not raised #GP.
///
/// # Safety
/// 1. The value keeps the hypervisor's own state intact.
pub unsafe fn wrmsr_safe(msr: u32, value: u64) -> bool {
    let bad: u32;
    // SAFETY: (1). A #GP of the WRMSR is caught by the exception table, which resumes at label 3 with `bad` set.
    unsafe {
        asm!(
            "2: wrmsr",
            "xor {bad:e}, {bad:e}",
            "jmp 4f",
            "3: mov {bad:e}, 1",
            "4:",
            ".pushsection ex_table, \"a\"",
            ".quad 2b, 3b",
            ".popsection",
            bad = out(reg) bad, in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack)
        );
    }
    bad == 0
}

macro_rules! control_register {
    ($reg:literal, $read:ident $(, $write:ident)?) => {
        #[doc = concat!("Reads ", $reg, ".")]
        #[inline(always)]
        pub fn $read() -> u64 {
            let v: u64;
            // SAFETY: reading a control register has no effect.
            unsafe { asm!(concat!("mov {}, ", $reg), out(reg) v, options(nomem, nostack, preserves_flags)) };
            v
        }
        $(
            #[doc = concat!("Writes ", $reg, ".")]
            ///
            /// # Safety
            /// 1. The value keeps the hypervisor running: mapped, protected, with the features it relies on.
            #[inline(always)]
            pub unsafe fn $write(v: u64) {
                // SAFETY: (1).
                unsafe { asm!(concat!("mov ", $reg, ", {}"), in(reg) v, options(nostack, preserves_flags)) };
            }
        )?
    };
}
control_register!("cr0", read_cr0, write_cr0);
control_register!("cr2", read_cr2);
control_register!("cr3", read_cr3, write_cr3);
control_register!("cr4", read_cr4, write_cr4);

/// Clears CR0.TS.
#[inline(always)]
pub fn clts() {
    // SAFETY: only enables the FPU.
    unsafe { asm!("clts", options(nomem, nostack, preserves_flags)) };
}

/// Sets CR0.TS.
#[inline(always)]
pub fn stts() {
    // SAFETY: only disables the FPU, which the hypervisor does not use.
    unsafe { write_cr0(read_cr0() | cr::CR0_TS) };
}

/// The selectors in LDTR and TR.
pub fn table_selectors() -> (u16, u16) {
    let (ldt, task): (u16, u16);
    // SAFETY: they read registers.
    unsafe {
        core::arch::asm!("sldt {0:x}", "str {1:x}", out(reg) ldt, out(reg) task, options(nomem, nostack, preserves_flags));
    }
    (ldt, task)
}

/// Drops the TLB entries of one page, global or not, from this CPU.
#[inline(always)]
pub fn invlpg(va: u64) {
    // SAFETY: dropping cached translations is always allowed. INVLPG ignores non-canonical addresses (SDM vol. 2A).
    unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) };
}

/// CPUID of `leaf` and `subleaf`.
#[inline]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidRegs {
    let r = core::arch::x86_64::__cpuid_count(leaf, subleaf);
    CpuidRegs::new(r.eax, r.ebx, r.ecx, r.edx)
}

/// Copies 8-byte words upwards.
///
/// # Safety
/// 1. `from` may be read and `to` written, `count` words; neither need be aligned.
#[inline(always)]
pub unsafe fn copy_words(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: (1); DF is clear everywhere in the hypervisor.
    unsafe {
        asm!("rep movsq", inout("rcx") count => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

/// The sum of 8-byte words modulo 2^64 - 1: what carries goes round. Somebody else may write some of them meanwhile.
///
/// # Safety
/// 1. `from` may be read, `count` words; it need not be aligned.
#[inline(always)]
pub unsafe fn sum_words(from: *const u8, count: usize) -> u64 {
    let sum: u64;
    // SAFETY: (1). In between nothing but ADC changes the carry: not LEA, DEC, JRCXZ or MOV.
    unsafe {
        asm!(
            "xor {sum:e}, {sum:e}",
            "jrcxz 3f",
            "2:",
            "adc {sum}, [{at}]",
            "adc {sum}, [{at} + 8]",
            "adc {sum}, [{at} + 16]",
            "adc {sum}, [{at} + 24]",
            "adc {sum}, [{at} + 32]",
            "adc {sum}, [{at} + 40]",
            "adc {sum}, [{at} + 48]",
            "adc {sum}, [{at} + 56]",
            "lea {at}, [{at} + 64]",
            "dec rcx",
            "jnz 2b",
            "3:",
            "mov rcx, {rest}",
            "jrcxz 5f",
            "4:",
            "adc {sum}, [{at}]",
            "lea {at}, [{at} + 8]",
            "dec rcx",
            "jnz 4b",
            "5:",
            "adc {sum}, 0",
            "adc {sum}, 0",
            sum = out(reg) sum,
            at = inout(reg) from => _,
            rest = in(reg) count % 8,
            inout("rcx") count / 8 => _,
            options(nostack, readonly));
    }
    sum
}

/// Copies bytes upwards.
///
/// # Safety
/// 1. `from` may be read and `to` written, `count` bytes.
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: (1); DF is clear everywhere in the hypervisor.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

/// Copies bytes of which somebody else may write some meanwhile. Where the two overlap it is not said what comes out.
///
/// One string instruction, to an aligned address, with the first and the last word apart: a copy of headers is too
/// short for more of them.
///
/// # Safety
/// 1. `from` may be read and `to` written, `len` bytes.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    // SAFETY: (1). The words at the ends are inside, and so are the whole words between an aligned address in the first
    // and the end.
    unsafe {
        let Some(end) = len.checked_sub(WORD) else { return copy_bytes(from, to, len) };
        let last = from.add(end).cast::<u64>().read_unaligned();
        to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned());
        let skipped = WORD - to as usize % WORD;
        copy_words(from.wrapping_add(skipped), to.wrapping_add(skipped), (len - skipped) / WORD);
        to.add(end).cast::<u64>().write_unaligned(last);
    }
}

/// The time-stamp counter, not ordered against other instructions.
#[inline(always)]
pub fn rdtsc() -> u64 {
    // SAFETY: RDTSC has no effect; ring 0 may always execute it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The time-stamp counter, read after all that is before it is done. What depends on it is after it anyway.
pub fn rdtsc_ordered() -> u64 {
    // SAFETY: fences have no effect on memory. MFENCE orders it on AMD where LFENCE does not, LFENCE on Intel.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
    rdtsc()
}

/// Interrupts may be let in here: this CPU holds no lock that interrupt handlers take, and no reference to per-CPU data
/// that they use. It takes no room. The entry code makes one and hands it down to those who may let interrupts in;
/// there is no other way to do that, so whoever is not given one is never interrupted.
pub struct Interruptible<'a>(PhantomData<&'a mut *mut ()>);

impl Interruptible<'_> {
    /// For the entry code, and for nobody else.
    ///
    /// # Safety
    /// 1. This CPU has just begun to run the hypervisor: it holds no lock and no such reference. 2. Whoever gets the
    ///    result, or what
    ///    [`Self::again`] makes of it, holds none of those locks when it uses it.
    #[inline(always)]
    pub const unsafe fn on_entry() -> Self {
        Self(PhantomData)
    }

    /// The same for a function that is called.
    #[inline(always)]
    pub const fn again(&mut self) -> Interruptible<'_> {
        Interruptible(PhantomData)
    }
}

/// Enables interrupts, waits for one, disables them.
#[inline(always)]
pub fn sti_hlt_cli(_: Interruptible<'_>) {
    // SAFETY: the interrupt handlers may run here, as the caller shows.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Lets pending interrupts in for a moment.
#[inline(always)]
pub fn interrupt_window(_: Interruptible<'_>) {
    // SAFETY: as `sti_hlt_cli`.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
}

/// Writes the cache line of `at` back and empties it.
#[inline]
pub fn clflush(at: *const u8) {
    // SAFETY: contents do not change; every mapped address of ours may be flushed.
    unsafe { asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)) };
}

/// Writes back and empties all caches.
pub fn wbinvd() {
    // SAFETY: nothing depends on what is cached.
    unsafe { asm!("wbinvd", options(nostack, preserves_flags)) };
}

/// Swaps the live GS base with `IA32_KERNEL_GS_BASE`.
#[inline(always)]
pub fn swapgs() {
    // SAFETY: the hypervisor does not use GS.
    unsafe { asm!("swapgs", options(nomem, nostack, preserves_flags)) };
}

/// Stops this CPU for good.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: interrupts stay off; only NMI, #MC and SMI get in.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// Writes extended control register 0.
///
/// # Safety
/// 1. CR4.OSXSAVE is set and the CPU accepts the value.
#[inline(always)]
pub unsafe fn xsetbv0(value: u64) {
    // SAFETY: (1).
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nomem, nostack, preserves_flags));
    }
}

macro_rules! debug_register {
    ($write:ident, $reg:literal) => {
        #[doc = concat!("Writes ", $reg, ".")]
        ///
        /// # Safety
        /// 1. Breakpoints that it enables lie outside the hypervisor.
        #[inline]
        pub unsafe fn $write(v: u64) {
            // SAFETY: (1).
            unsafe { asm!(concat!("mov ", $reg, ", {}"), in(reg) v, options(nomem, nostack, preserves_flags)) };
        }
    };
}
debug_register!(write_dr0, "dr0");
debug_register!(write_dr1, "dr1");
debug_register!(write_dr2, "dr2");
debug_register!(write_dr3, "dr3");
debug_register!(write_dr6, "dr6");
debug_register!(write_dr7, "dr7");

/// Reads DR6.
#[inline]
pub fn read_dr6() -> u64 {
    let v: u64;
    // SAFETY: reading has no effect (DR7.GD is never set).
    unsafe { asm!("mov {}, dr6", out(reg) v, options(nomem, nostack, preserves_flags)) };
    v
}

/// Reads DR7.
#[inline]
pub fn read_dr7() -> u64 {
    let v: u64;
    // SAFETY: as `read_dr6`.
    unsafe { asm!("mov {}, dr7", out(reg) v, options(nomem, nostack, preserves_flags)) };
    v
}
