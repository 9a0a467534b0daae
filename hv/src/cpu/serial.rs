//! The first serial port (16550A), polled.

use crate::cpu::port::{inb, outb};
use crate::sync::Mutex;
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use hv_core::uart;

/// Registers, as offsets from the base port.
const DATA: u16 = 0;
const INTERRUPT_ENABLE: u16 = 1;
const FIFO_CONTROL: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;

const LINE_STATUS_DATA_READY: u8 = 1 << 0;
const LINE_STATUS_THR_EMPTY: u8 = 1 << 5;
const LINE_8N1: u8 = 3;
const LINE_DIVISOR_LATCH: u8 = 1 << 7;
/// The transmit FIFO takes this much once it is empty, so status is read once for as many bytes.
const FIFO_BYTES: usize = 16;
/// Clock of the divisor.
const BASE_BAUD: u32 = 115_200;
/// Status reads before a stuck port is given up.
const MAX_POLLS: u32 = 1 << 20;

/// The first port's usual address.
pub const COM1: u16 = 0x3f8;

/// Parameters of `com1=<baud>[,8n1[,<port>[,<irq>]]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bits per second; `None` keeps what the firmware set.
    pub baud: Option<u32>,
    /// First I/O port.
    pub port: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self { baud: Some(BASE_BAUD), port: COM1 }
    }
}

impl Config {
    /// Parses the value of `com1=`. What it cannot read keeps its default; parity other than 8n1 is not supported.
    pub fn parse(value: &str) -> Self {
        let mut config = Self::default();
        for (position, field) in value.split(',').enumerate() {
            match (position, field) {
                (0, "auto") => config.baud = None,
                (0, _) => {
                    let rate = field.split('/').next().unwrap_or(field);
                    config.baud = rate.parse().ok().filter(|&b| (2..=BASE_BAUD).contains(&b)).or(config.baud);
                }
                (2, _) => {
                    let digits = field.strip_prefix("0x").unwrap_or(field);
                    config.port = u16::from_str_radix(digits, 16).ok().filter(|&p| p >= 0x100).unwrap_or(config.port);
                }
                _ => {}
            }
        }
        config
    }
}

static PORT: AtomicU16 = AtomicU16::new(0);
/// A port that stopped taking bytes is not waited for again.
static STUCK: AtomicBool = AtomicBool::new(false);
static TRANSMIT: Mutex<()> = Mutex::new(());

/// The registers of the port whose first one this is.
struct At(u16);

impl uart::Registers for At {
    fn read(&mut self, offset: u16) -> u8 {
        inb(self.0 + offset)
    }

    fn write(&mut self, offset: u16, value: u8) {
        // SAFETY: what `uart` writes turns interrupts off and looks whether a scratch register keeps a value.
        unsafe { outb(self.0 + offset, value) };
    }
}

/// Sets the port up and makes it the one `write` uses. Whether there is one.
pub fn init(config: Config) -> bool {
    let port = config.port;
    if !uart::is_present(&mut At(port)) {
        return false;
    }
    if let Some(baud) = config.baud {
        let [low, high, ..] = (BASE_BAUD / baud).to_le_bytes();
        // SAFETY: a UART only sends and receives.
        unsafe {
            outb(port + LINE_CONTROL, LINE_DIVISOR_LATCH | LINE_8N1);
            outb(port + DATA, low);
            outb(port + INTERRUPT_ENABLE, high);
            outb(port + LINE_CONTROL, LINE_8N1);
        }
    }
    // SAFETY: as above.
    unsafe {
        outb(port + FIFO_CONTROL, 0x07); // on, both cleared
        outb(port + MODEM_CONTROL, 0x0b); // DTR, RTS, OUT2
    }
    PORT.store(port, Ordering::Relaxed);
    true
}

/// The port in use (its eight registers belong to the hypervisor), if any.
pub fn port() -> Option<u16> {
    Some(PORT.load(Ordering::Relaxed)).filter(|&p| p != 0)
}

/// Sends `text`, a carriage return before each line feed.
pub fn write(text: &[u8]) {
    let port = PORT.load(Ordering::Relaxed);
    if port == 0 {
        return;
    }
    let _one_at_a_time = TRANSMIT.lock();
    transmit(port, text);
}

/// Sends `text` even if another CPU is in the middle of a line: for a panic.
pub fn write_unlocked(text: &[u8]) {
    let port = PORT.load(Ordering::Relaxed);
    if port != 0 {
        transmit(port, text);
    }
}

fn transmit(port: u16, text: &[u8]) {
    let mut room = 0;
    let mut put = |byte| {
        if room == 0 {
            room = if wait_for_room(port) { FIFO_BYTES } else { return };
        }
        room -= 1;
        // SAFETY: a UART sends it.
        unsafe { outb(port + DATA, byte) };
    };
    for &byte in text {
        if byte == b'\n' {
            put(b'\r');
        }
        put(byte);
    }
}

fn wait_for_room(port: u16) -> bool {
    if STUCK.load(Ordering::Relaxed) {
        return inb(port + LINE_STATUS) & LINE_STATUS_THR_EMPTY != 0;
    }
    for _ in 0..MAX_POLLS {
        if inb(port + LINE_STATUS) & LINE_STATUS_THR_EMPTY != 0 {
            return true;
        }
        core::hint::spin_loop();
    }
    STUCK.store(true, Ordering::Relaxed);
    false
}

/// Raises an interrupt when a byte arrives; the line falls when all were read.
pub fn enable_receive_interrupt() {
    if let Some(port) = port() {
        // SAFETY: a UART's interrupt, which has a handler.
        unsafe { outb(port + INTERRUPT_ENABLE, 1) };
    }
}

/// Takes one received byte, if there is one.
pub fn read() -> Option<u8> {
    let port = port()?;
    (inb(port + LINE_STATUS) & LINE_STATUS_DATA_READY != 0).then(|| inb(port + DATA))
}
