//! I/O ports of a PV guest. Every IN and OUT traps; a port is then passed through, emulated, or not there.
//!
//! A domain owns ports by its range set. Ports that it does not own read as all ones and swallow writes, except a few
//! that are emulated for everybody who might want to calibrate a clock (PIT channel 2) and for the hardware domain (RTC
//! index, PCI configuration). The guest's own view, whether its code may do I/O at all, is decided before this.

mod pit;

pub use pit::{Pit, PIT_HZ};

use crate::rangeset::{RangeError, RangeSet};

/// A domain's share of the hardware ports.
pub trait Ports {
    /// Does the domain own all `width` ports from `port` on?
    fn owns(&self, port: u16, width: u8) -> bool;
    /// IN of `width` bytes.
    fn read(&mut self, port: u16, width: u8) -> u32;
    /// OUT of `width` bytes: to ports that the domain owns, or to the RTC's.
    fn write(&mut self, port: u16, width: u8, value: u32);
    /// INS: fills `data`, `width` bytes a time.
    fn read_string(&mut self, port: u16, width: u8, data: &mut [u8]);
    /// OUTS, to ports that the domain owns: writes all of `data`, `width` bytes a time.
    fn write_string(&mut self, port: u16, width: u8, data: &[u8]);
}

/// PCI configuration space as the hardware domain reaches it through 0xcf8 and 0xcfc.
pub trait ConfigSpace {
    /// Reads `width` bytes at `address`.
    fn read(&mut self, address: ConfigAddress, width: u8) -> u32;
    /// Writes `width` bytes at `address`; what may not be written is filtered there.
    fn write(&mut self, address: ConfigAddress, width: u8, value: u32);
}

/// A place in the first segment's configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigAddress {
    /// Bus number.
    pub bus: u8,
    /// Device and function, 5 and 3 bits.
    pub devfn: u8,
    /// Byte offset.
    pub offset: u16,
}

const CF8: u16 = 0xcf8;
const CFC: u16 = 0xcfc;
const CF8_ENABLE: u32 = 1 << 31;
const RTC_INDEX: u16 = 0x70;
const RTC_DATA: u16 = 0x71;
/// The RTC's index has seven bits; the eighth masks NMIs, which is not a guest's business.
const RTC_INDEX_MASK: u8 = 0x7f;

/// Ports that the hardware domain does not get, as inclusive ranges, besides the ACPI timer and the console's UART:
/// interrupt controllers, timers, NMI control, PCI configuration data.
const NEVER_OWNED: [(u16, u16); 7] =
    [(0x20, 0x21), (0xa0, 0xa1), (0x40, 0x43), (0x61, 0x61), (RTC_INDEX, RTC_DATA), (CF8, CF8), (CFC, CFC + 3)];

/// The ports of the hardware domain: all but those that the hypervisor uses or emulates.
/// `hypervisor_uart` is the base of the UART that carries its console.
pub fn hardware_domain_ports(pm_timer: Option<u16>, hypervisor_uart: Option<u16>) -> Result<RangeSet, RangeError> {
    let mut owned = RangeSet::new();
    owned.insert(0, 0xffff)?;
    for (first, last) in NEVER_OWNED {
        owned.remove(first.into(), last.into())?;
    }
    if let Some(port) = pm_timer {
        owned.remove(port.into(), u64::from(port) + 3)?;
    }
    if let Some(port) = hypervisor_uart {
        owned.remove(port.into(), u64::from(port) + 7)?;
    }
    Ok(owned)
}

/// The state of a domain's emulated ports.
#[derive(Debug, Default)]
pub struct EmulatedPorts {
    /// Does the domain get the RTC and PCI configuration space?
    hardware_domain: bool,
    cf8: u32,
    rtc_index: u8,
    pit: Pit,
}

impl EmulatedPorts {
    /// As after reset. `hardware_domain`: with RTC and PCI configuration space.
    pub fn new(hardware_domain: bool) -> Self {
        Self { hardware_domain, ..Self::default() }
    }

    /// IN of `width` (1, 2 or 4) bytes at `now_ns`.
    pub fn read(
        &mut self,
        port: u16,
        width: u8,
        now_ns: u64,
        ports: &mut impl Ports,
        config: &mut impl ConfigSpace,
    ) -> u32 {
        if let Some(address) = self.config_address(port, width) {
            return config.read(address, width);
        }
        if self.hardware_domain && port == CF8 && width == 4 {
            return self.cf8;
        }
        if ports.owns(port, width) {
            return ports.read(port, width);
        }
        (0..width).fold(0, |value, i| {
            let byte = port.checked_add(i.into()).map_or(0xff, |p| self.read_byte(p, now_ns, ports));
            value | u32::from(byte) << (8 * i)
        })
    }

    /// OUT of `width` (1, 2 or 4) bytes at `now_ns`.
    pub fn write(
        &mut self,
        port: u16,
        width: u8,
        value: u32,
        now_ns: u64,
        ports: &mut impl Ports,
        config: &mut impl ConfigSpace,
    ) {
        if let Some(address) = self.config_address(port, width) {
            return config.write(address, width, value);
        }
        if self.hardware_domain && port == CF8 && width == 4 {
            self.cf8 = value;
            return;
        }
        if ports.owns(port, width) {
            return ports.write(port, width, value);
        }
        for (i, byte) in (0..u16::from(width)).zip(value.to_le_bytes()) {
            if let Some(p) = port.checked_add(i) {
                self.write_byte(p, byte, now_ns, ports);
            }
        }
    }

    /// INS: fills `data`, `width` (1, 2 or 4) bytes a time.
    pub fn read_string(
        &mut self,
        port: u16,
        width: u8,
        data: &mut [u8],
        now_ns: u64,
        ports: &mut impl Ports,
        config: &mut impl ConfigSpace,
    ) {
        if !self.emulates(port, width) && ports.owns(port, width) {
            return ports.read_string(port, width, data);
        }
        for item in data.chunks_exact_mut(width.into()) {
            let value = self.read(port, width, now_ns, ports, config);
            item.copy_from_slice(&value.to_le_bytes()[..usize::from(width)]);
        }
    }

    /// OUTS: writes all of `data`, `width` (1, 2 or 4) bytes a time.
    pub fn write_string(
        &mut self,
        port: u16,
        width: u8,
        data: &[u8],
        now_ns: u64,
        ports: &mut impl Ports,
        config: &mut impl ConfigSpace,
    ) {
        if !self.emulates(port, width) && ports.owns(port, width) {
            return ports.write_string(port, width, data);
        }
        for item in data.chunks_exact(width.into()) {
            let mut value = [0; 4];
            value[..item.len()].copy_from_slice(item);
            self.write(port, width, u32::from_le_bytes(value), now_ns, ports, config);
        }
    }

    /// Is it a register that is emulated even if the domain owns the port?
    fn emulates(&self, port: u16, width: u8) -> bool {
        self.config_address(port, width).is_some() || self.hardware_domain && port == CF8 && width == 4
    }

    fn read_byte(&mut self, port: u16, now_ns: u64, ports: &mut impl Ports) -> u8 {
        match port {
            0x42 | 0x43 | 0x61 => self.pit.read(port, now_ns),
            RTC_INDEX if self.hardware_domain => self.rtc_index,
            RTC_DATA if self.hardware_domain => {
                ports.write(RTC_INDEX, 1, (self.rtc_index & RTC_INDEX_MASK).into());
                ports.read(RTC_DATA, 1).to_le_bytes()[0]
            }
            _ if ports.owns(port, 1) => ports.read(port, 1).to_le_bytes()[0],
            _ => 0xff,
        }
    }

    fn write_byte(&mut self, port: u16, value: u8, now_ns: u64, ports: &mut impl Ports) {
        match port {
            0x42 | 0x43 | 0x61 => self.pit.write(port, value, now_ns),
            RTC_INDEX if self.hardware_domain => self.rtc_index = value,
            RTC_DATA if self.hardware_domain => {
                ports.write(RTC_INDEX, 1, (self.rtc_index & RTC_INDEX_MASK).into());
                ports.write(RTC_DATA, 1, value.into());
            }
            _ if ports.owns(port, 1) => ports.write(port, 1, value.into()),
            _ => {}
        }
    }

    /// The configuration register behind an access to 0xcfc-0xcff, if it is one, inside one double word, and enabled.
    #[inline]
    fn config_address(&self, port: u16, width: u8) -> Option<ConfigAddress> {
        let within = port.checked_sub(CFC)?;
        if within + u16::from(width) > 4 || !self.hardware_domain || self.cf8 & CF8_ENABLE == 0 {
            return None;
        }
        let [register, devfn, bus, _] = self.cf8.to_le_bytes();
        Some(ConfigAddress { bus, devfn, offset: u16::from(register & 0xfc) + within })
    }
}

#[cfg(test)]
mod tests;
