//! Realtek's 8139C+: descriptor rings whose positions only the device knows, byte- and word-sized registers.

use super::{Arrival, Device};
use crate::ram::Ram;

const TX_RING: usize = 0x20;
const INTR_MASK: usize = 0x3c;
const INTR_STATUS: usize = 0x3e;
const TX_POLL: usize = 0xd9;
const RX_RING: usize = 0xe4;

const RX_OK: u16 = 1 << 0;
const TX_OK: u16 = 1 << 2;
const RX_EMPTY: u16 = 1 << 4;
const TX_EMPTY: u16 = 1 << 7;

const OWN: u32 = 1 << 31;
const RING_END: u32 = 1 << 30;
const FIRST: u32 = 1 << 29;
const LAST: u32 = 1 << 28;
const RX_ERROR: u32 = 1 << 20;
const TX_LENGTH: u32 = 0xffff;
const RX_LENGTH: u32 = 0x1fff;
const DESCRIPTOR: u64 = 16;
const MOST: u32 = 64;
const SHORTEST: usize = 60;

/// The model.
#[derive(Debug, Clone)]
pub struct Rtl8139 {
    window: u64,
    regs: [u8; 256],
    tx: u32,
    rx: u32,
    packet: Vec<u8>,
    sent: Vec<Vec<u8>>,
    hold: bool,
    bad_dma: u64,
}

impl Rtl8139 {
    /// A device in the captured state. `tx` and `rx` are the next descriptors to be looked at.
    pub fn new(window: u64, registers: &[(u64, u32)], tx: u32, rx: u32) -> Self {
        let mut regs = [0; 256];
        for (address, value) in registers {
            let at = address.wrapping_sub(window) as usize;
            if let Some(r) = regs.get_mut(at..at.saturating_add(4)) {
                r.copy_from_slice(&value.to_le_bytes());
            }
        }
        let mut out = Self { window, regs, tx, rx, packet: Vec::new(), sent: Vec::new(), hold: false, bad_dma: 0 };
        out.put16(INTR_STATUS, 0);
        if out.get16(INTR_MASK) == 0 {
            // The emulator does not show the mask to a monitor; a driver that is up has everything enabled.
            out.put16(INTR_MASK, u16::MAX);
        }
        out
    }

    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.regs[at], self.regs[at + 1]])
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.regs[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn get64(&self, at: usize) -> u64 {
        let mut b = [0; 8];
        b.copy_from_slice(&self.regs[at..at + 8]);
        u64::from_le_bytes(b)
    }

    fn cause(&mut self, bits: u16) {
        self.put16(INTR_STATUS, self.get16(INTR_STATUS) | bits);
    }

    fn next(at: u32, options: u32) -> u32 {
        if options & RING_END != 0 || at + 1 >= MOST {
            0
        } else {
            at + 1
        }
    }

    fn transmit(&mut self, ram: &Ram) {
        for _ in 0..MOST {
            let at = self.get64(TX_RING).wrapping_add(u64::from(self.tx) * DESCRIPTOR);
            let (Some(options), Some(address)) = (ram.int(at, 4), ram.int(at.wrapping_add(8), 8)) else {
                self.bad_dma += 1;
                return;
            };
            let options = options as u32;
            if options & OWN == 0 {
                return;
            }
            let old = self.packet.len().min(0x2_0000);
            self.packet.resize(old + (options & TX_LENGTH) as usize, 0);
            if !ram.read(address, &mut self.packet[old..]) {
                self.bad_dma += 1;
            }
            if options & LAST != 0 {
                self.sent.push(std::mem::take(&mut self.packet));
            }
            ram.write(at, &(options & !OWN).to_le_bytes());
            self.tx = Self::next(self.tx, options);
            self.cause(TX_OK | TX_EMPTY);
        }
    }
}

impl Device for Rtl8139 {
    fn read(&mut self, register: u64, size: usize) -> u64 {
        let at = register.wrapping_sub(self.window) as usize & 0xff;
        let mut b = [0; 8];
        let size = size.min(256 - at).min(8);
        b[..size].copy_from_slice(&self.regs[at..at + size]);
        u64::from_le_bytes(b)
    }

    fn write(&mut self, register: u64, size: usize, value: u64, ram: &Ram) {
        let at = register.wrapping_sub(self.window) as usize & 0xff;
        match at {
            INTR_STATUS => self.put16(INTR_STATUS, self.get16(INTR_STATUS) & !(value as u16)),
            TX_POLL => {
                if !self.hold {
                    self.transmit(ram);
                }
            }
            _ => {
                let size = size.min(256 - at).min(8);
                self.regs[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
        }
    }

    fn arrive(&mut self, frame: &[u8], how: Arrival, ram: &Ram) -> bool {
        let at = self.get64(RX_RING).wrapping_add(u64::from(self.rx) * DESCRIPTOR);
        let (Some(options), Some(buffer)) = (ram.int(at, 4), ram.int(at.wrapping_add(8), 8)) else {
            self.bad_dma += 1;
            return false;
        };
        let options = options as u32;
        let mut bytes = frame.to_vec();
        bytes.resize(bytes.len().max(SHORTEST), 0);
        bytes.extend([0xfc; 4]);
        if options & OWN == 0 || bytes.len() > (options & RX_LENGTH) as usize {
            self.cause(RX_EMPTY);
            return false;
        }
        if !ram.write(buffer, &bytes) {
            self.bad_dma += 1;
        }
        let error = if how.errors != 0 { RX_ERROR } else { 0 };
        let last = if how.partial { 0 } else { LAST };
        let done = options & RING_END | FIRST | last | error | bytes.len() as u32;
        ram.write(at, &done.to_le_bytes());
        self.rx = Self::next(self.rx, options);
        self.cause(RX_OK);
        true
    }

    fn hold(&mut self, hold: bool, ram: &Ram) {
        self.hold = hold;
        if !hold {
            self.transmit(ram);
        }
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    fn interrupts(&mut self) -> Vec<usize> {
        Vec::from_iter((self.get16(INTR_STATUS) & self.get16(INTR_MASK) != 0).then_some(0))
    }

    fn bad_dma(&self) -> u64 {
        self.bad_dma
    }

    fn registers(&self) -> Vec<u32> {
        let mut out: Vec<u32> = self.regs.chunks(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        out.extend([self.tx, self.rx]);
        out
    }

    fn copy(&self) -> Box<dyn Device> {
        Box::new(self.clone())
    }
}
