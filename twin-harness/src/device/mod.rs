//! Register-level models of devices, driven by the twin's accesses and by the test.

pub mod e1000;
pub mod rtl8139;

use crate::ram::Ram;

/// How a packet arrives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Error bits that the device reports in the descriptor.
    pub errors: u8,
    /// The packet is reported as not complete in this buffer.
    pub partial: bool,
}

/// A device.
pub trait Device {
    /// A register is read.
    fn read(&mut self, register: u64, size: usize) -> u64;
    /// A register is written.
    fn write(&mut self, register: u64, size: usize, value: u64, ram: &Ram);
    /// A packet arrives; `false` if there was no buffer for it.
    fn arrive(&mut self, frame: &[u8], how: Arrival, ram: &Ram) -> bool;
    /// Stops or goes on with sending; what was queued meanwhile is sent then.
    fn hold(&mut self, hold: bool, ram: &Ram);
    /// Packets sent since the last call.
    fn sent(&mut self) -> Vec<Vec<u8>>;
    /// Which of the driver's interrupt handlers (by position) are to be called.
    fn interrupts(&mut self) -> Vec<usize>;
    /// DMA addresses outside of memory that the device was given.
    fn bad_dma(&self) -> u64;
    /// The state of all registers, for comparison.
    fn registers(&self) -> Vec<u32>;
    /// A copy in the same state.
    fn copy(&self) -> Box<dyn Device>;
}

/// The model for a driver, in the captured state. `window` is the physical address of the first memory window; `member`
/// reads a 32-bit member of a structure that begins at the driver's private data, for what a device knows but does not
/// show.
pub fn for_driver(
    driver: &str,
    window: u64,
    registers: &[(u64, u32)],
    member: &dyn Fn(&str, &str) -> Option<u32>,
) -> Option<Box<dyn Device>> {
    match driver {
        "e1000" => Some(Box::new(e1000::E1000::new(window, registers, e1000::Kind::Legacy))),
        "e1000e" => Some(Box::new(e1000::E1000::new(window, registers, e1000::Kind::MessageSignalled))),
        "8139cp" => {
            let (tx, rx) = (member("cp_private", "tx_head")?, member("cp_private", "rx_tail")?);
            Some(Box::new(rtl8139::Rtl8139::new(window, registers, tx, rx)))
        }
        _ => None,
    }
}
