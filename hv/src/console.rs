//! Messages of the hypervisor: levels, the serial console, and the ring that `xl dmesg` reads.
//!
//! `error!`, `warn!`, `info!` and `debug!` take a format string. `loglvl=` chooses what is shown, with Xen's
//! words: `none`, `error`, `warning`, `info`, `debug` (or `all`). What a guest can cause at will goes through
//! `guest_debug!`, which is limited in rate and shown by `guest_loglvl=`.

use crate::cpu::percpu::{pending, this_cpu};
use crate::cpu::{screen, serial};
use crate::sync::{Mutex, Once};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};
use hv_core::conring::{ConRing, EarlyLog};

/// Importance of a message; a smaller number is more important.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Needs action.
    Error = 1,
    /// Degraded.
    Warn = 2,
    /// Once per boot or domain event.
    Info = 3,
    /// Per operation.
    Debug = 4,
}

/// What is shown of the hypervisor's own messages and of those that guests cause.
static HOST_LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static GUEST_LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// Every line of the hypervisor starts with this.
const PREFIX: &str = "(TDM) ";
/// And then every warning with this, for people and scripts that look for them.
const WARNING: &str = "Warning: ";

/// Would a message of `level` be shown?
#[inline]
pub fn is_shown(level: Level) -> bool {
    level as u8 <= HOST_LEVEL.load(Ordering::Relaxed)
}

/// Would a message of `level` that a guest caused be shown?
#[inline]
pub fn is_guest_shown(level: Level) -> bool {
    level as u8 <= GUEST_LEVEL.load(Ordering::Relaxed)
}

/// So much is kept of what is printed before there is a heap: the longest memory map and command lines, and what is
/// said of them.
pub const EARLY_BYTES: usize = 32 << 10;

static EARLY: Mutex<EarlyLog<EARLY_BYTES>> = Mutex::new(EarlyLog::new());
static RING: Once<Mutex<ConRing>> = Once::new();

/// Makes the ring, of `bytes` (`conring_size=`), once there is a heap.
pub fn init_ring(bytes: u64) {
    let early = EARLY.lock();
    RING.call_once(|| {
        let mut ring = ConRing::new(u32::try_from(bytes).unwrap_or(u32::MAX));
        early.pour(&mut ring, PREFIX);
        Mutex::new(ring)
    });
}

/// The ring, for `XEN_SYSCTL_readconsole`. Nobody may print while it is locked.
pub fn ring() -> Option<&'static Mutex<ConRing>> {
    RING.get()
}

/// Who reads the ring is told when this CPU next has nothing in hand: whoever prints may hold any lock.
fn keep(text: &[u8]) {
    if let Some(ring) = RING.get() {
        ring.lock().write(text);
        return this_cpu().raise(pending::CON_RING);
    }
    EARLY.lock().write(text);
}

/// A line under construction on the stack, so that one message reaches the port in one piece.
struct Line {
    bytes: [u8; 256],
    used: usize,
    to: fn(&[u8]),
}

impl Line {
    fn flush(&mut self) {
        (self.to)(&self.bytes[..self.used]);
        self.used = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        loop {
            let count = rest.len().min(self.bytes.len() - self.used);
            self.bytes[self.used..self.used + count].copy_from_slice(&rest[..count]);
            self.used += count;
            rest = &rest[count..];
            if rest.is_empty() {
                return Ok(());
            }
            self.flush();
        }
    }
}

/// To the port, the screen and the ring.
fn emit(text: &[u8]) {
    serial::write(text);
    screen::write(text);
    keep(text);
}

/// Writes bytes of a guest (console_io) to the port as they are. Not to the ring: `xl dmesg` on the console would read
/// what it prints, for ever.
pub fn write_guest(text: &[u8]) {
    serial::write(text);
    screen::write(text);
}

/// Prints one line. Use the macros.
#[cold]
#[inline(never)]
pub fn print(args: fmt::Arguments<'_>) {
    print_at(Level::Info, args);
}

/// Prints one line; a warning says that it is one. Use the macros.
#[cold]
#[inline(never)]
pub fn print_at(level: Level, args: fmt::Arguments<'_>) {
    print_to(emit, level, args);
}

/// Prints one line of details if messages of each operation are shown. If not, the ring has it all the same: a line
/// takes some seven milliseconds at a serial port, and the CPU does nothing else meanwhile. Use the macros.
#[cold]
#[inline(never)]
pub fn print_detail(args: fmt::Arguments<'_>) {
    print_to(if is_shown(Level::Debug) { emit } else { keep }, Level::Debug, args);
}

fn print_to(to: fn(&[u8]), level: Level, args: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 256], used: 0, to };
    // `Line` never fails.
    let _ = line.write_str(PREFIX);
    if level == Level::Warn {
        let _ = line.write_str(WARNING);
    }
    let _ = line.write_fmt(args);
    let _ = line.write_str("\n");
    line.flush();
}

/// Where a line goes without waiting for a lock, and without the ring.
struct Unlocked {
    screen: fn(&[u8]),
}

impl Unlocked {
    fn print(mut self, args: fmt::Arguments<'_>) {
        let _ = self.write_str(PREFIX);
        let _ = self.write_fmt(args);
        let _ = self.write_str("\n");
    }
}

impl Write for Unlocked {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        serial::write_unlocked(text.as_bytes());
        (self.screen)(text.as_bytes());
        Ok(())
    }
}

/// Prints one line without taking any lock and without the ring: for a panic, in which all other CPUs are stopped.
pub fn print_unlocked(args: fmt::Arguments<'_>) {
    Unlocked { screen: screen::write_unlocked }.print(args);
}

/// The same while other CPUs go on, and this one with what it was interrupted in, which may be printing: then the
/// screen lacks the line.
pub fn print_interrupting(args: fmt::Arguments<'_>) {
    Unlocked { screen: screen::try_write }.print(args);
}

/// Messages that guests may cause: a bucket of lines, refilled with time.
const BURST: u32 = 64;
const REFILL_TICKS: u64 = 1 << 27;
static LEFT: AtomicU32 = AtomicU32::new(BURST);
static DROPPED: AtomicU32 = AtomicU32::new(0);
static REFILLED_AT: AtomicU64 = AtomicU64::new(0);

/// Prints one line that a guest caused, unless too many came lately. Use the macros.
#[cold]
#[inline(never)]
pub fn print_limited(level: Level, args: fmt::Arguments<'_>) {
    let now = crate::cpu::rdtsc();
    if now.wrapping_sub(REFILLED_AT.load(Ordering::Relaxed)) > REFILL_TICKS {
        REFILLED_AT.store(now, Ordering::Relaxed);
        LEFT.store(BURST, Ordering::Relaxed);
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped != 0 {
            print(format_args!("{dropped} messages about guests were dropped"));
        }
    }
    if LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        print_at(level, args);
    } else {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Prints a line if `$level` is shown.
#[macro_export]
macro_rules! log_at {
    ($level:ident, $($arg:tt)*) => {
        if $crate::console::is_shown($crate::console::Level::$level) {
            $crate::console::print_at($crate::console::Level::$level, format_args!($($arg)*));
        }
    };
}
/// Prints a line about a guest's doing if `$level` is shown for guests, limited in rate.
#[macro_export]
macro_rules! guest_log_at {
    ($level:ident, $($arg:tt)*) => {
        if $crate::console::is_guest_shown($crate::console::Level::$level) {
            $crate::console::print_limited($crate::console::Level::$level, format_args!($($arg)*));
        }
    };
}
/// Needs action.
#[macro_export]
macro_rules! error { ($($arg:tt)*) => { $crate::log_at!(Error, $($arg)*) }; }
/// Degraded.
#[macro_export]
macro_rules! warn { ($($arg:tt)*) => { $crate::log_at!(Warn, $($arg)*) }; }
/// Once per boot or domain event.
#[macro_export]
macro_rules! info { ($($arg:tt)*) => { $crate::log_at!(Info, $($arg)*) }; }
/// Per operation.
#[macro_export]
macro_rules! debug { ($($arg:tt)*) => { $crate::log_at!(Debug, $($arg)*) }; }
/// Details of an error: shown as per operation, and in the ring in any case.
#[macro_export]
macro_rules! detail { ($($arg:tt)*) => { $crate::console::print_detail(format_args!($($arg)*)) }; }
/// A guest's doing left something degraded.
#[macro_export]
macro_rules! guest_warn { ($($arg:tt)*) => { $crate::guest_log_at!(Warn, $($arg)*) }; }
/// A guest did something worth a line when debugging it.
#[macro_export]
macro_rules! guest_debug { ($($arg:tt)*) => { $crate::guest_log_at!(Debug, $($arg)*) }; }

/// Applies `loglvl=` and `guest_loglvl=`. What Xen would limit in rate is shown like the rest.
pub fn set_levels(options: &hv_core::cmdline::Options) {
    for (thresholds, level) in [(options.loglvl, &HOST_LEVEL), (options.guest_loglvl, &GUEST_LEVEL)] {
        if let Some(thresholds) = thresholds {
            level.store(thresholds.limited as u8, Ordering::Relaxed);
        }
    }
}
