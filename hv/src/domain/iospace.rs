//! What a domain may touch of the machine besides its memory: I/O frames, ports, interrupts.
//!
//! A device is given as a whole by permitting its parts. The hardware domain starts with everything that is not the
//! hypervisor's own; any other domain with nothing.

use crate::arch::acpi;
use crate::cpu::{cpuid, serial};
use crate::mem::device_frames;
use crate::sync::{Mutex, RwLock};
use core::sync::atomic::{AtomicBool, Ordering};
use hv_core::ioport::{hardware_domain_ports, EmulatedPorts};
use hv_core::mmu::{IoAccess, Withdrawal};
use hv_core::rangeset::RangeSet;
use x86::Mfn;
use xen_abi::errno::Errno;

/// Permissions of one domain.
pub struct IoSpace {
    frames: RwLock<RangeSet>,
    ports: RwLock<RangeSet>,
    irqs: RwLock<RangeSet>,
    has_io: AtomicBool,
    /// Frames that were permitted and are not, and may be mapped still.
    pub withdrawn: Withdrawn,
    /// Ports that are emulated.
    pub emulated: Mutex<EmulatedPorts>,
}

/// Whether entries of I/O memory that a domain may not map any more can be in its page tables.
pub struct Withdrawn {
    /// Changes under the lock below; who looks at it may hold any.
    is_due: AtomicBool,
    /// Lock order: before the MMU lock, rows 130 and 160 of `docs/architecture.md`.
    state: Mutex<Withdrawing>,
}

/// What is done about them.
pub struct Withdrawing {
    /// How far the pass has come.
    pub progress: Withdrawal,
    /// The page, lent to the domain, that it has in the place of such memory.
    pub absent: Option<Mfn>,
}

impl Withdrawn {
    /// They cannot.
    const fn new() -> Self {
        let state = Withdrawing { progress: Withdrawal::new(), absent: None };
        Self { is_due: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// From now on they can: it may not map some of what it could.
    fn begin(&self) {
        let mut state = self.state.lock();
        state.progress = Withdrawal::new();
        self.is_due.store(true, Ordering::SeqCst);
    }

    /// Is there something to be done?
    pub fn is_due(&self) -> bool {
        self.is_due.load(Ordering::SeqCst)
    }

    /// Goes on with the pass, if there is something to be done. `pass` has come to its end when it succeeds.
    pub fn go_on(&self, pass: impl FnOnce(&mut Withdrawing) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if self.is_due() {
            pass(&mut state)?;
            self.is_due.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// None of the domain's frames stays a page table, and whatever it maps afterwards it will have been asked for.
    pub fn settle(&self) {
        let _state = self.state.lock();
        self.is_due.store(false, Ordering::SeqCst);
    }

    /// The page that the domain has in the place of such memory.
    pub fn absent(&self) -> Option<Mfn> {
        self.state.lock().absent
    }
}

/// The last frame that the processor can address: an entry with more address bits would fault on reserved bits.
fn last_frame() -> u64 {
    const ADDRESS_SIZES: u32 = 0x8000_0008;
    let has_leaf = cpuid(0x8000_0000, 0).eax >= ADDRESS_SIZES;
    let bits = if has_leaf { cpuid(ADDRESS_SIZES, 0).eax & 0xff } else { 36 };
    (x86::pte::PTE_ADDR_MASK >> x86::PAGE_SHIFT).min((1 << (bits.clamp(32, 52) - x86::PAGE_SHIFT)) - 1)
}

/// The last port that exists.
pub const LAST_PORT: u32 = 0xffff;

impl IoSpace {
    /// No permissions, or for the hardware domain all that is not the hypervisor's. `None` when out of memory.
    pub fn new(is_hardware: bool) -> Option<Self> {
        let mut frames = RangeSet::new();
        let mut ports = RangeSet::new();
        let mut irqs = RangeSet::new();
        if is_hardware {
            frames.insert(0, last_frame()).ok()?;
            let pm_timer = acpi::tables().fadt.map(|f| f.pm_timer).filter(|&port| port != 0);
            ports = hardware_domain_ports(pm_timer, serial::port()).ok()?;
            irqs.insert(0, u64::from(u32::MAX)).ok()?;
        }
        Some(Self {
            frames: RwLock::new(frames),
            ports: RwLock::new(ports),
            irqs: RwLock::new(irqs),
            has_io: AtomicBool::new(is_hardware),
            withdrawn: Withdrawn::new(),
            emulated: Mutex::new(EmulatedPorts::new(is_hardware)),
        })
    }

    /// May the domain map I/O frame `mfn`? The caller knows that it is no RAM.
    pub fn frame_access(&self, mfn: Mfn) -> IoAccess {
        if !self.frames.read().contains(mfn.raw()) || device_frames::is_hidden(mfn) {
            IoAccess::Denied
        } else if device_frames::is_watched(mfn) {
            IoAccess::ReadOnly
        } else {
            IoAccess::Allowed
        }
    }

    /// Has it any I/O permission, so that it may choose cache attributes?
    #[inline]
    pub fn has_io(&self) -> bool {
        self.has_io.load(Ordering::Relaxed)
    }

    /// May it use all of the `width` ports from `port` on?
    pub fn allows_ports(&self, port: u16, width: u8) -> bool {
        let first = u64::from(port);
        self.ports.read().contains_all(first, first + u64::from(width.max(1)) - 1)
    }

    /// May it bind physical interrupt `irq`?
    pub fn allows_irq(&self, irq: u32) -> bool {
        self.irqs.read().contains(irq.into())
    }

    /// Are frames `first ..= last` all its own to pass on? Not if the hypervisor keeps one of them to itself.
    pub fn owns_frames(&self, first: Mfn, last: Mfn) -> bool {
        self.frames.read().contains_all(first.raw(), last.raw()) && !device_frames::is_any_hidden(first, last)
    }

    /// Are ports `first ..= last` all its own to pass on?
    pub fn owns_ports(&self, first: u32, last: u32) -> bool {
        self.ports.read().contains_all(first.into(), last.into())
    }

    /// Permits or forbids frames `first ..= last`. What is forbidden is mapped until [`super::withdrawal::finish`].
    pub fn set_frames(&self, first: Mfn, last: Mfn, allow: bool) -> Result<(), Errno> {
        let is_loss = self.change(&self.frames, first.raw(), last.raw(), allow)?;
        if is_loss {
            self.withdrawn.begin();
        }
        Ok(())
    }

    /// Permits or forbids ports `first ..= last`.
    pub fn set_ports(&self, first: u32, last: u32, allow: bool) -> Result<(), Errno> {
        if last > LAST_PORT {
            return Err(Errno::EINVAL);
        }
        self.change(&self.ports, first.into(), last.into(), allow).map(|_| ())
    }

    /// Permits or forbids physical interrupt `irq`.
    pub fn set_irq(&self, irq: u32, allow: bool) -> Result<(), Errno> {
        self.change(&self.irqs, irq.into(), irq.into(), allow).map(|_| ())
    }

    /// `true`: it may not use something now that it could.
    fn change(&self, set: &RwLock<RangeSet>, first: u64, last: u64, allow: bool) -> Result<bool, Errno> {
        if first > last {
            return Err(Errno::EINVAL);
        }
        let mut set = set.write();
        if allow {
            set.insert(first, last).map_err(|_| Errno::ENOMEM)?;
            self.has_io.store(true, Ordering::Relaxed);
            return Ok(false);
        }
        let is_loss = set.overlaps(first, last);
        set.remove(first, last).map_err(|_| Errno::ENOMEM)?;
        Ok(is_loss)
    }
}
