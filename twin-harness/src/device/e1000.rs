//! Intel's gigabit controllers 8254x and 82574: descriptor rings, interrupt cause and mask. Register names as in the
//! manual.

use super::{Arrival, Device};
use crate::ram::Ram;

/// Which family, which decides how interrupts are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One interrupt line.
    Legacy,
    /// A vector each for receive and transmit.
    MessageSignalled,
}

const ICR: usize = 0x00c0;
const ICS: usize = 0x00c8;
const IMS: usize = 0x00d0;
const IMC: usize = 0x00d8;
const RCTL: usize = 0x0100;
const RDBAL: usize = 0x2800;
const RDBAH: usize = 0x2804;
const RDLEN: usize = 0x2808;
const RDH: usize = 0x2810;
const RDT: usize = 0x2818;
const TDBAL: usize = 0x3800;
const TDBAH: usize = 0x3804;
const TDLEN: usize = 0x3808;
const TDH: usize = 0x3810;
const TDT: usize = 0x3818;
const RFCTL: usize = 0x5008;

const RCTL_STRIP_CRC: u32 = 1 << 26;
const RFCTL_EXTENDED: u32 = 1 << 15;
const CAUSE_TX_DONE: u32 = 1 << 0;
const CAUSE_TX_EMPTY: u32 = 1 << 1;
const CAUSE_RX_TIMER: u32 = 1 << 7;
const CAUSE_RX_QUEUE: u32 = 1 << 20;
const CAUSE_TX_QUEUE: u32 = 1 << 22;

const DESCRIPTOR: u64 = 16;
const CMD_EOP: u32 = 1 << 24;
const CMD_RS: u32 = 1 << 27;
const CMD_DEXT: u32 = 1 << 29;
const STATUS_DONE: u32 = 1;
const STATUS_EOP: u32 = 2;
/// The largest descriptor ring that is walked, against tails that make no sense.
const MAX_RING: u32 = 4096;
const SHORTEST: usize = 60;

/// The model.
#[derive(Debug, Clone)]
pub struct E1000 {
    kind: Kind,
    window: u64,
    regs: Vec<u32>,
    packet: Vec<u8>,
    sent: Vec<Vec<u8>>,
    hold: bool,
    bad_dma: u64,
    rx_event: bool,
    tx_event: bool,
}

impl E1000 {
    /// A device in the captured state.
    pub fn new(window: u64, registers: &[(u64, u32)], kind: Kind) -> Self {
        const WORDS: usize = 0x2_0000 / 4;
        let mut regs = vec![0; WORDS];
        for (address, value) in registers {
            if let Some(r) = address.checked_sub(window).and_then(|o| regs.get_mut((o / 4) as usize)) {
                *r = *value;
            }
        }
        regs[ICR / 4] = 0;
        Self {
            kind,
            window,
            regs,
            packet: Vec::new(),
            sent: Vec::new(),
            hold: false,
            bad_dma: 0,
            rx_event: false,
            tx_event: false,
        }
    }

    fn reg(&self, at: usize) -> u32 {
        self.regs[at / 4]
    }

    fn set(&mut self, at: usize, value: u32) {
        self.regs[at / 4] = value;
    }

    fn ring(&self, low: usize, high: usize, len: usize) -> (u64, u32) {
        (u64::from(self.reg(low)) | u64::from(self.reg(high)) << 32, self.reg(len) / DESCRIPTOR as u32)
    }

    fn cause(&mut self, bits: u32) {
        let now = self.reg(ICR) | bits;
        self.set(ICR, now);
    }

    fn transmit(&mut self, ram: &Ram) {
        let (base, count) = self.ring(TDBAL, TDBAH, TDLEN);
        if count == 0 || count > MAX_RING {
            return;
        }
        let (mut head, tail) = (self.reg(TDH), self.reg(TDT));
        if head >= count || tail >= count {
            self.bad_dma += 1;
            return;
        }
        let mut did = false;
        while head != tail {
            let at = base.wrapping_add(u64::from(head) * DESCRIPTOR);
            let (Some(address), Some(command)) = (ram.int(at, 8), ram.int(at.wrapping_add(8), 4)) else {
                self.bad_dma += 1;
                break;
            };
            self.descriptor(address, command as u32, ram);
            if command as u32 & CMD_RS != 0 {
                let status = ram.int(at + 12, 4).unwrap_or(0) as u32 | STATUS_DONE;
                ram.write(at + 12, &status.to_le_bytes());
            }
            head = (head + 1) % count;
            did = true;
        }
        self.set(TDH, head);
        if did {
            self.tx_event = true;
            self.cause(CAUSE_TX_DONE | CAUSE_TX_EMPTY | CAUSE_TX_QUEUE);
        }
    }

    fn descriptor(&mut self, address: u64, command: u32, ram: &Ram) {
        let extended = command & CMD_DEXT != 0;
        if extended && command >> 20 & 15 == 0 {
            return; // a context: checksum and segmentation parameters
        }
        let len = (command & if extended { 0xf_ffff } else { 0xffff }) as usize;
        let old = self.packet.len();
        if len > 0x1_0000 || old > 0x2_0000 {
            self.bad_dma += 1;
            return;
        }
        self.packet.resize(old + len, 0);
        if !ram.read(address, &mut self.packet[old..]) {
            self.bad_dma += 1;
        }
        if command & CMD_EOP != 0 {
            self.sent.push(std::mem::take(&mut self.packet));
        }
    }
}

impl Device for E1000 {
    fn read(&mut self, register: u64, _size: usize) -> u64 {
        let at = (register.wrapping_sub(self.window) & 0x1_ffff) as usize & !3;
        let value = self.reg(at);
        if at == ICR {
            self.set(ICR, 0);
            // The top bit says that the cause is this device's.
            return u64::from(if value & self.reg(IMS) != 0 { value | 1 << 31 } else { value });
        }
        u64::from(value)
    }

    fn write(&mut self, register: u64, _size: usize, value: u64, ram: &Ram) {
        let at = (register.wrapping_sub(self.window) & 0x1_ffff) as usize & !3;
        let value = value as u32;
        match at {
            ICR => {
                let left = self.reg(ICR) & !value;
                self.set(ICR, left);
            }
            ICS => self.cause(value),
            IMS => {
                let now = self.reg(IMS) | value;
                self.set(IMS, now);
            }
            IMC => {
                let now = self.reg(IMS) & !value;
                self.set(IMS, now);
            }
            TDT => {
                self.set(TDT, value);
                if !self.hold {
                    self.transmit(ram);
                }
            }
            _ => self.set(at, value),
        }
    }

    fn arrive(&mut self, frame: &[u8], how: Arrival, ram: &Ram) -> bool {
        let (base, count) = self.ring(RDBAL, RDBAH, RDLEN);
        let (head, tail) = (self.reg(RDH), self.reg(RDT));
        if count == 0 || count > MAX_RING || head >= count || tail >= count || head == tail {
            return false;
        }
        let at = base.wrapping_add(u64::from(head) * DESCRIPTOR);
        let Some(buffer) = ram.int(at, 8) else {
            self.bad_dma += 1;
            return false;
        };
        let mut bytes = frame.to_vec();
        bytes.resize(bytes.len().max(SHORTEST), 0);
        if self.reg(RCTL) & RCTL_STRIP_CRC == 0 {
            bytes.extend([0xfc; 4]);
        }
        if !ram.write(buffer, &bytes) {
            self.bad_dma += 1;
        }
        let len = bytes.len() as u16;
        let status = STATUS_DONE | if how.partial { 0 } else { STATUS_EOP };
        if self.reg(RFCTL) & RFCTL_EXTENDED != 0 {
            let mut d = [0; 16];
            d[8..12].copy_from_slice(&(status | u32::from(how.errors) << 24).to_le_bytes());
            d[12..14].copy_from_slice(&len.to_le_bytes());
            ram.write(at, &d);
        } else {
            let mut d = [0; 8];
            d[0..2].copy_from_slice(&len.to_le_bytes());
            d[4] = status as u8;
            d[5] = how.errors;
            ram.write(at + 8, &d);
        }
        self.set(RDH, (head + 1) % count);
        self.rx_event = true;
        self.cause(CAUSE_RX_TIMER | CAUSE_RX_QUEUE);
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
        let (rx, tx) = (std::mem::take(&mut self.rx_event), std::mem::take(&mut self.tx_event));
        match self.kind {
            Kind::Legacy => Vec::from_iter((self.reg(ICR) & self.reg(IMS) != 0).then_some(0)),
            Kind::MessageSignalled => [(rx, 0), (tx, 1)].into_iter().filter(|(on, _)| *on).map(|(_, n)| n).collect(),
        }
    }

    fn bad_dma(&self) -> u64 {
        self.bad_dma
    }

    fn registers(&self) -> Vec<u32> {
        self.regs.clone()
    }

    fn copy(&self) -> Box<dyn Device> {
        Box::new(self.clone())
    }
}
