//! System time: nanoseconds since the hypervisor started, from the time-stamp counter on one linear scale.
//!
//! The counter's frequency is measured against the HPET, the ACPI timer or the PIT. With the HPET nobody waits: `init`
//! notes both counters, `calibrate` compares them some useful work later. The others wrap or cannot be left running, so
//! `init` waits a few milliseconds on them.

use crate::arch::{acpi, lapic};
use crate::cpu::port::{inb, inl, outb};
use crate::cpu::{cpuid, rdtsc};
use crate::mem::device_frames;
use crate::mem::vmap;
use crate::sync::{Mutex, Once};
use crate::{info, warn};
use core::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use x86::{cpuid::feature, MachAddr, Mfn};

/// How guests turn the counter into system time:
/// `ns_base + (((tsc - tsc_base) << shift) * mul >> 32)`, a negative shift being to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "explained together")]
pub struct Scale {
    pub tsc_base: u64,
    pub ns_base: u64,
    pub mul: u32,
    pub shift: i8,
}

const NS_PER_S: u64 = 1_000_000_000;
/// Shortest time between the two looks at the HPET.
const MIN_WINDOW_NS: u64 = 2_000_000;
/// Time waited on the ACPI timer or the PIT.
const WAIT_NS: u64 = 5_000_000;
const PM_TIMER_HZ: u64 = 3_579_545;
const PIT_HZ: u64 = 1_193_182;
/// Looks taken to find one that was not disturbed.
const TRIES: u32 = 5;

/// The running scale, in parts so that `now_ns` is a few loads. Before `calibrate`: eight ticks a
/// nanosecond, more than any CPU has, so that time never goes back when the truth is known.
static BASE: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds for 2^64 ticks that were shifted: the upper half of the product is the time, to the last bit as guests
/// compute it from multiplier and shift.
static MUL: AtomicU64 = AtomicU64::new(1 << 61);
/// By how much ticks are shifted left before.
static SHIFT: AtomicU8 = AtomicU8::new(0);

/// The reference and what it and the others showed at the first look.
struct Start {
    reference: Reference,
    look: Look,
}

static START: Mutex<Option<Start>> = Mutex::new(None);

/// Frequencies found.
#[derive(Clone, Copy, Debug)]
pub struct Frequencies {
    /// Of the time-stamp counter, in Hz.
    pub tsc_hz: u64,
    /// Of the local APIC timers, in Hz.
    pub apic_timer_hz: u64,
}

static FREQUENCIES: Once<Frequencies> = Once::new();

/// A clock of known frequency.
#[derive(Clone, Copy)]
enum Reference {
    Hpet { counter: *const u32, is_64_bit: bool, hz: u64 },
    PmTimer { port: u16 },
    Pit,
}

// SAFETY: the pointer is to a device register that is mapped for ever and only read.
unsafe impl Send for Reference {}

/// Counters at one moment.
#[derive(Clone, Copy)]
struct Look {
    tsc: u64,
    reference: u64,
    apic_left: u32,
}

impl Reference {
    fn hz(self) -> u64 {
        match self {
            Self::Hpet { hz, .. } => hz,
            Self::PmTimer { .. } => PM_TIMER_HZ,
            Self::Pit => PIT_HZ,
        }
    }

    /// The counter, counting up. The PIT's counts down from 65535.
    fn read(self) -> u64 {
        match self {
            // SAFETY: a mapped register of the HPET.
            Self::Hpet { counter, is_64_bit: false, .. } => unsafe { counter.read_volatile() }.into(),
            Self::Hpet { counter, is_64_bit: true, .. } => loop {
                // Half by half, as every machine allows it. 32 bits would do for 43 s at 100 MHz only, and a boot under
                // an emulator that is short of time has taken longer.
                // SAFETY: as above; the upper half is behind the lower one.
                let (before, low, after) = unsafe {
                    let high = counter.add(1);
                    (high.read_volatile(), counter.read_volatile(), high.read_volatile())
                };
                if before == after {
                    return u64::from(after) << 32 | u64::from(low);
                }
            },
            Self::PmTimer { port } => inl(port).into(),
            Self::Pit => {
                // SAFETY: the PIT only counts.
                unsafe { outb(0x43, 0x80) }; // latch channel 2
                let low = inb(0x42);
                0xffff - u64::from(u16::from_le_bytes([low, inb(0x42)]))
            }
        }
    }

    /// Bits that count.
    fn mask(self) -> u64 {
        match self {
            Self::Hpet { is_64_bit: true, .. } => u64::MAX,
            Self::Hpet { .. } => u32::MAX.into(),
            Self::PmTimer { .. } => 0xff_ffff,
            Self::Pit => 0xffff,
        }
    }

    /// Reads all counters as close together as can be had.
    fn look(self) -> Look {
        let mut best = Look { tsc: 0, reference: 0, apic_left: 0 };
        let mut shortest = u64::MAX;
        for _ in 0..TRIES {
            let before = rdtsc();
            let (reference, apic_left) = (self.read(), lapic::timer_left());
            let took = rdtsc().wrapping_sub(before);
            if took < shortest {
                shortest = took;
                best = Look { tsc: before.wrapping_add(took / 2), reference, apic_left };
            }
        }
        best
    }

    fn ns_since(self, look: Look) -> u64 {
        let ticks = self.read().wrapping_sub(look.reference) & self.mask();
        u64::try_from(u128::from(ticks) * u128::from(NS_PER_S) / u128::from(self.hz())).unwrap_or(u64::MAX)
    }
}

/// System time starts now.
pub fn start() {
    BASE.store(rdtsc(), Ordering::Relaxed);
}

/// Starts to measure. The local APIC must be up; its timer is in use until [`calibrate`].
pub fn init() {
    let reference = find_hpet().or_else(find_pm_timer).unwrap_or_else(start_pit);
    lapic::start_measuring();
    let look = reference.look();
    *START.lock() = Some(Start { reference, look });
    if !matches!(reference, Reference::Hpet { .. }) {
        calibrate();
    }
}

/// Fixes the scale. Cheap if [`init`] was some milliseconds ago and the machine has an HPET.
pub fn calibrate() {
    let Some(Start { reference, look: first }) = START.lock().take() else { return };
    let wait = if matches!(reference, Reference::Hpet { .. }) { MIN_WINDOW_NS } else { WAIT_NS };
    while reference.ns_since(first) < wait {
        core::hint::spin_loop();
    }
    let last = reference.look();
    lapic::stop_measuring();
    let ticks = u128::from(last.reference.wrapping_sub(first.reference) & reference.mask()).max(1);
    let hz = |counted: u64| u64::try_from(u128::from(counted) * u128::from(reference.hz()) / ticks).unwrap_or(0);
    let tsc_hz = hz(last.tsc.wrapping_sub(first.tsc)).max(1_000_000);
    let apic_ticks = u64::from(first.apic_left.saturating_sub(last.apic_left)) * lapic::MEASURING_DIVISOR;
    let apic_timer_hz = hz(apic_ticks).max(1_000_000);
    let (mul, shift) = scale_of(tsc_hz);
    let (mul, shift) = running_scale(mul, shift);
    MUL.store(mul, Ordering::Relaxed);
    SHIFT.store(shift, Ordering::Relaxed);
    FREQUENCIES.call_once(|| Frequencies { tsc_hz, apic_timer_hz });
    let name = match reference {
        Reference::Hpet { .. } => "HPET",
        Reference::PmTimer { .. } => "ACPI timer",
        Reference::Pit => "PIT",
    };
    let khz = |hz: u64| hz / 1000;
    let rate = if is_invariant() { "" } else { " (not invariant)" };
    info!("Time: TSC {} kHz{rate}, APIC timer {} kHz, measured by the {name}", khz(tsc_hz), khz(apic_timer_hz));
    // Other hypervisors seldom say it of theirs, which is no sign that it stops.
    if !is_invariant() && !has_hypervisor() {
        warn!("the TSC is not invariant: time is wrong if it stops while a CPU sleeps, or changes its rate");
    }
}

/// Multiplier and shift for a counter of `hz`, the multiplier having its top bit set.
fn scale_of(hz: u64) -> (u32, i8) {
    let (mut hz, mut shift) = (hz, 0i8);
    while hz > 2 * NS_PER_S {
        hz /= 2;
        shift -= 1;
    }
    while hz <= NS_PER_S {
        hz *= 2;
        shift += 1;
    }
    let mul = (NS_PER_S << 32) / hz;
    (u32::try_from(mul).unwrap_or(u32::MAX), shift)
}

/// [`MUL`] and [`SHIFT`] for a scale. Shifting right, for a fast counter, is part of the multiplier.
fn running_scale(mul: u32, shift: i8) -> (u64, u8) {
    (u64::from(mul) << (32 - u32::from(shift.min(0).unsigned_abs())), shift.max(0).unsigned_abs())
}

/// Nanoseconds since the hypervisor started. The same on all CPUs.
#[inline]
pub fn now_ns() -> u64 {
    to_ns(rdtsc())
}

/// System time at `tsc`.
#[inline]
pub fn to_ns(tsc: u64) -> u64 {
    let delta = tsc.wrapping_sub(BASE.load(Ordering::Relaxed));
    let shifted = delta.wrapping_shl(SHIFT.load(Ordering::Relaxed).into());
    ((u128::from(shifted) * u128::from(MUL.load(Ordering::Relaxed))) >> 64) as u64
}

/// The scale for guests. It never changes after [`calibrate`].
pub fn scale() -> Scale {
    let (mul, shift) = scale_of(frequencies().tsc_hz);
    Scale { tsc_base: BASE.load(Ordering::Relaxed), ns_base: 0, mul, shift }
}

/// Is the scale known?
pub fn is_calibrated() -> bool {
    FREQUENCIES.get().is_some()
}

/// The frequencies found.
pub fn frequencies() -> Frequencies {
    *FREQUENCIES.get().expect("time is calibrated before any guest or timer starts")
}

/// Does the counter run at one rate in all power states (CPUID 0x80000007)? Guests then rely on it.
pub fn is_invariant() -> bool {
    cpuid(0x8000_0007, 0).edx & 1 << 8 != 0
}

/// Is this machine another hypervisor's?
fn has_hypervisor() -> bool {
    cpuid(1, 0).ecx & feature::HYPERVISOR.mask() != 0
}

fn find_hpet() -> Option<Reference> {
    const CAPABILITIES: usize = 0;
    const CONFIGURATION: usize = 0x10;
    const COUNTER: usize = 0xf0;
    const COUNTER_64_BIT: u32 = 1 << 13;
    let addr = MachAddr::new(acpi::tables().hpet?);
    // It can send messages to any CPU, so domains do not write it. They may read it: some firmware's AML does.
    device_frames::watch(Mfn::containing(addr), Mfn::containing(addr)).ok()?;
    let registers = vmap::map_device(addr, 0x400)?;
    // SAFETY: the registers are mapped; they are aligned words.
    let period_fs = unsafe { registers.add(CAPABILITIES + 4).cast::<u32>().read_volatile() };
    // The specification allows 100 ns at most.
    if !(1..=100_000_000).contains(&period_fs) {
        return None;
    }
    // SAFETY: as above; bit 0 lets the counter run, the other bits stay.
    unsafe {
        let configuration = registers.add(CONFIGURATION).cast::<u32>();
        configuration.write_volatile(configuration.read_volatile() | 1);
    }
    // SAFETY: as above.
    let is_64_bit = unsafe { registers.add(CAPABILITIES).cast::<u32>().read_volatile() } & COUNTER_64_BIT != 0;
    let hz = NS_PER_S * 1_000_000 / u64::from(period_fs);
    Some(Reference::Hpet { counter: registers.wrapping_add(COUNTER).cast(), is_64_bit, hz })
}

fn find_pm_timer() -> Option<Reference> {
    let port = acpi::tables().fadt?.pm_timer;
    let reference = Reference::PmTimer { port };
    // A port where nothing counts reads all ones.
    (port != 0 && reference.read() & 0xff_ffff != 0xff_ffff).then_some(reference)
}

/// Lets channel 2 count down from 65535 with the speaker off: 54 ms.
fn start_pit() -> Reference {
    // SAFETY: the PIT only counts; bits 0 and 1 of port 0x61 are its gate and the speaker.
    unsafe {
        outb(0x61, inb(0x61) & !2 | 1);
        outb(0x43, 0xb0); // channel 2, both bytes, one-shot
        outb(0x42, 0xff);
        outb(0x42, 0xff);
    }
    Reference::Pit
}
