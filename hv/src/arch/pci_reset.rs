//! Resets functions by their own registers, as `hv_core::passthrough::reset` describes them.

use crate::arch::pci::{self, command, reg, status, Sbdf};
use crate::arch::tsc;
use crate::mem::device_frames;
use crate::sync::Mutex;
use crate::{info, warn};
use alloc::vec::Vec;
use hv_core::passthrough::reset::{self, Device, Kind, Leaving, Left, Reset};
use hv_core::pcicfg::layout::Layout;
use hv_core::pcicfg::{self, Bars};
use x86::MachAddr;

/// Status register of a PCI Express function, from its capability, and its bit for pending transactions.
const EXPRESS_STATUS: u16 = 10;
const TRANSACTIONS_PENDING: u16 = 1 << 5;
/// Register of a function that can sleep, from its capability: its state, of which 0 is awake, and a bit that a 1
/// clears.
const POWER_CONTROL: u16 = 4;
const POWER_STATE: u16 = 3;
const POWER_EVENT: u16 = 1 << 15;
/// What a register reads that nobody answers for.
const NOBODY: u32 = u32::MAX;

/// Windows of registers that are mapped already. There is room for one of each function from the boot on, so that a
/// domain's use of a device leaves nothing behind in the heap.
static WINDOWS: Mutex<Vec<(MachAddr, Window)>> = Mutex::new(Vec::new());

/// Makes room for the windows of all functions that were found.
pub fn init() {
    WINDOWS.lock().reserve_exact(pci::functions().len());
}

/// The first registers of a device, mapped for ever.
#[derive(Clone, Copy)]
struct Window {
    start: usize,
    bytes: usize,
}

impl Window {
    fn map(addr: MachAddr, bytes: usize) -> Option<Self> {
        let mut windows = WINDOWS.lock();
        let known = windows.iter().position(|(mapped, _)| *mapped == addr);
        // Another device may have come in the place of the one that was there, of which more has to be mapped.
        if let Some((_, window)) = known.map(|n| windows[n]).filter(|(_, window)| window.bytes >= bytes) {
            return Some(window);
        }
        // The hardware domain may have moved the region over and over: no more than fits.
        if known.is_none() && windows.len() == windows.capacity() {
            return None;
        }
        let window = Self { start: device_frames::map_registers(addr, bytes)? as usize, bytes };
        match known {
            Some(n) => windows[n] = (addr, window),
            None => windows.push((addr, window)),
        }
        Some(window)
    }

    fn register(self, offset: u16) -> Option<*mut u32> {
        let offset = usize::from(offset);
        (offset % 4 == 0 && offset + 4 <= self.bytes).then_some((self.start + offset) as *mut u32)
    }
    fn read(self, offset: u16) -> u32 {
        // SAFETY: an aligned register inside the window, which stays mapped.
        self.register(offset).map_or(NOBODY, |r| unsafe { r.read_volatile() })
    }
    fn write(self, offset: u16, value: u32) {
        if let Some(register) = self.register(offset) {
            // SAFETY: as for `read`; the device reaches no memory: whoever resets it has seen to that.
            unsafe { register.write_volatile(value) };
        }
    }
}

/// Puts the function at `at` on its way, which is no bus master and must stay none meanwhile: what it has sent arrives,
/// then it is reset by its own registers, as far as they are known. By its function-level reset, if it has that, the
/// hardware domain resets it. `bars`: where its registers are. `None`: to be called again.
pub fn go_on(at: Sbdf, bars: &Bars, leaving: &mut Leaving) -> Option<Left> {
    let method = method(at);
    let window = method.and_then(|m| window(m, bars));
    let left = leaving.go_on(&mut Registers { at, bars, method, window, command: None });
    if left == Some(Left::Lost) {
        warn!("{at}: it could not be reset");
    }
    left
}

/// The registers of a function of which it is known how it is reset. `None`: it is not known, or where they should be
/// are no registers of a device.
pub fn registers(at: Sbdf, bars: &Bars) -> Option<Known> {
    method(at).and_then(|m| window(m, bars)).map(Known)
}

fn window(method: &Reset, bars: &Bars) -> Option<Window> {
    Window::map(MachAddr::new(bars.memory(method.bar)?), method.window())
}

/// See [`registers`]. Registers of 4 bytes, at multiples of that.
pub struct Known(Window);

impl Known {
    /// Nobody's answer is all ones.
    pub fn read(&self, offset: u16) -> u32 {
        self.0.read(offset)
    }

    /// The caller sees to it that the function reaches only memory that its owner may have it reach.
    pub fn write(&self, offset: u16, value: u32) {
        self.0.write(offset, value);
    }
}

/// What kind of function it is; `None`: a bridge, or there is none.
pub fn kind(at: Sbdf) -> Option<Kind> {
    let Layout { vendor, device, class, has_reset, .. } = pci::function(at).filter(|f| f.layout.header == 0)?.layout;
    Some(Kind { vendor, device, class, has_function_reset: has_reset })
}

/// Bit of a PCI Express function's capabilities, and of its control register: its own reset.
const EXPRESS_HAS_RESET: u32 = 1 << 28;
const EXPRESS_RESET: u16 = 1 << 15;
const EXPRESS_CAPABILITIES: u16 = 4;
const EXPRESS_CONTROL: u16 = 8;
/// So long a function may take for its reset (PCI Express 5.0, 6.6.2).
pub const FUNCTION_RESET_NS: u64 = 100_000_000;

/// Can the function be reset here, without the hardware domain's help?
pub fn can_reset(at: Sbdf) -> bool {
    method(at).is_some() || has_function_reset(at)
}

/// Has it a function-level reset, which [`begin_function_reset`] begins?
pub fn has_function_reset(at: Sbdf) -> bool {
    function_reset(at).is_some()
}

/// The control register of a function that can reset itself by it.
fn function_reset(at: Sbdf) -> Option<u16> {
    let express = pci::function(at)?.layout.express?;
    let offers = pci::read(at, express.cap + EXPRESS_CAPABILITIES, pci::Width::W32) & EXPRESS_HAS_RESET != 0;
    offers.then_some(express.cap + EXPRESS_CONTROL)
}

/// Begins the function-level reset of a function that has one, for [`FUNCTION_RESET_NS`]. `false`: it has none.
pub fn begin_function_reset(at: Sbdf) -> bool {
    let Some(control) = function_reset(at) else { return false };
    pci::write16(at, control, pci::read16(at, control) | EXPRESS_RESET);
    true
}

/// How the function is reset here, if it is.
fn method(at: Sbdf) -> Option<&'static Reset> {
    reset::method(kind(at)?)
}

/// A function as its reset sees it.
struct Registers<'a> {
    at: Sbdf,
    bars: &'a Bars,
    method: Option<&'static Reset>,
    /// `None`: where they should be are no registers of a device.
    window: Option<Window>,
    /// Its command register while it is open; `None`: it is not, or nobody answers.
    command: Option<u16>,
}

impl Device for Registers<'_> {
    fn wake(&mut self) -> bool {
        let Some(cap) = pci::function(self.at).and_then(|f| f.layout.power) else { return false };
        let held = pci::read16(self.at, cap + POWER_CONTROL);
        if held == u16::MAX || held & POWER_STATE == 0 {
            return false;
        }
        pci::write16(self.at, cap + POWER_CONTROL, held & !(POWER_STATE | POWER_EVENT));
        true
    }
    fn open(&mut self) {
        self.command = Some(pci::read16(self.at, reg::COMMAND)).filter(|was| *was != u16::MAX);
        if let (Some(was), Some(_)) = (self.command, self.method) {
            pci::write16(self.at, reg::COMMAND, was | command::MEMORY);
        }
    }
    fn close(&mut self) {
        let held = || Some(pci::read16(self.at, reg::COMMAND)).filter(|held| *held != u16::MAX);
        if let Some(was) = self.command.take().or_else(held) {
            pci::write16(self.at, reg::COMMAND, pcicfg::silent(was));
        }
    }
    fn knows_its_place(&mut self) -> bool {
        pci::function(self.at).is_some_and(|f| Bars::read(&pci::Space(self.at), f.layout.header) == *self.bars)
    }
    fn now_ns(&mut self) -> u64 {
        tsc::now_ns()
    }
    fn is_pending(&mut self) -> bool {
        let express = pci::function(self.at).and_then(|f| f.layout.express);
        express.is_some_and(|e| pci::read16(self.at, e.cap + EXPRESS_STATUS) & TRANSACTIONS_PENDING != 0)
    }
    fn has_stuck(&mut self) {
        warn!("{}: transactions do not end", self.at);
    }
    fn acknowledge(&mut self, nth: u32) -> bool {
        let doorbell = self.method.and_then(|m| m.doorbell);
        let (Some(doorbell), Some(window)) = (doorbell, self.window) else { return false };
        if pci::read16(self.at, reg::STATUS) & status::INTERRUPT == 0 {
            return false;
        }
        let Some((offset, value)) = doorbell.rung(nth, |register| window.read(register)) else { return false };
        if nth == 0 {
            info!("{}: its owner has left completions that it had not read", self.at);
        }
        window.write(offset, value);
        true
    }
    fn begin(&mut self) -> bool {
        // A read pushes what the device has posted ahead of it.
        let _ = pci::read16(self.at, reg::COMMAND);
        let Some(method) = self.method else {
            if pci::function(self.at).is_some_and(|f| f.layout.header == 0 && !f.layout.has_reset) {
                info!(
                    "{} has no function-level reset, and its own is not known: what it was told may live on",
                    self.at
                );
            }
            return false;
        };
        if let Some(window) = self.window {
            method.steps.iter().for_each(|step| window.write(step.offset, step.written(window.read(step.offset))));
        }
        true
    }
    fn is_busy(&mut self) -> Option<bool> {
        let (offset, busy) = self.method?.busy;
        let held = self.window?.read(offset);
        (held != NOBODY).then_some(held & busy != 0)
    }
}
