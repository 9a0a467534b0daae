//! Resets functions by their own registers, as `hv_core::passthrough::reset` describes them.

use crate::arch::pci::{self, command, reg, Sbdf};
use crate::mem::device_frames;
use crate::sync::Mutex;
use crate::{info, warn};
use alloc::vec::Vec;
use hv_core::passthrough::reset::{self, Reset};
use hv_core::pcicfg::Bars;
use x86::MachAddr;

/// Reads of a register until a reset must have ended.
const BUSY_READS: u32 = 100_000;
/// What a register reads that nobody answers for.
const NOBODY: u32 = u32::MAX;

/// Windows of registers that are mapped already. There is room for one of each function from the boot on, so that a domain's
/// use of a device leaves nothing behind in the heap.
static WINDOWS: Mutex<Vec<(MachAddr, Window)>> = Mutex::new(Vec::new());

/// Makes room for the windows of all functions that were found.
pub fn init() {
    WINDOWS.lock().reserve_exact(pci::functions().len());
}

/// The first registers of a device, mapped for ever.
#[derive(Clone, Copy)]
struct Window(usize);

impl Window {
    fn map(addr: MachAddr) -> Option<Self> {
        let mut windows = WINDOWS.lock();
        if let Some((_, window)) = windows.iter().find(|(mapped, _)| *mapped == addr) {
            return Some(*window);
        }
        // The hardware domain may have moved the region over and over: no more than fits.
        if windows.len() == windows.capacity() {
            return None;
        }
        let window = Self(device_frames::map_registers(addr, reset::WINDOW)? as usize);
        windows.push((addr, window));
        Some(window)
    }

    fn register(self, offset: u16) -> Option<*mut u32> {
        let offset = usize::from(offset);
        (offset % 4 == 0 && offset + 4 <= reset::WINDOW).then_some((self.0 + offset) as *mut u32)
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

/// Resets the function, which is no bus master and must stay none meanwhile, if its kind is known and it has no
/// function-level reset: with that, the hardware domain resets it. `bars`: where its registers are.
pub fn reset(at: Sbdf, bars: &Bars) {
    let Some(layout) = pci::function(at).map(|f| &f.layout).filter(|l| l.header == 0 && !l.has_reset) else { return };
    let Some(method) = reset::method(layout.vendor, layout.device, layout.class) else {
        info!("{at} has no function-level reset, and its own is not known: what it was told may live on");
        return;
    };
    let was = pci::read16(at, reg::COMMAND);
    pci::write16(at, reg::COMMAND, was | command::MEMORY);
    match bars.memory(method.bar).map(MachAddr::new).and_then(Window::map) {
        Some(window) if has_ended(window, method) => {}
        _ => warn!("{at}: it could not be reset"),
    }
    pci::write16(at, reg::COMMAND, was);
}

/// Follows the steps; has the reset ended then?
fn has_ended(window: Window, method: &Reset) -> bool {
    for step in method.steps {
        let held = window.read(step.offset);
        window.write(step.offset, step.written(held));
    }
    let (offset, busy) = method.busy;
    (0..BUSY_READS).map(|_| window.read(offset)).take_while(|&held| held != NOBODY).any(|held| held & busy == 0)
}
