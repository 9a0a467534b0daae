//! A virtual 8254 channel 2 and the parts of port 0x61 that belong to it.
//!
//! Kernels measure the processor's frequency with it before they know that they run on a hypervisor. It counts real
//! time, makes no sound and no interrupts. Channels 0 and 1 belong to the hypervisor; commands for them are dropped.
//! Source: Intel 8254 data sheet.

/// Input frequency.
pub const PIT_HZ: u64 = 1_193_182;

/// Bit of port 0x61: the channel counts.
const GATE: u8 = 1 << 0;
/// Bits of port 0x61 that a guest writes and reads back: gate and speaker.
const WRITABLE_61: u8 = 3;
/// Bit of port 0x61 that toggles with memory refresh, every 15 microseconds.
const REFRESH: u8 = 1 << 4;
/// Bit of port 0x61: the channel's output.
const OUT2: u8 = 1 << 5;

/// How bytes of a 16-bit counter are transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Transfer {
    Low,
    High,
    #[default]
    LowThenHigh,
}

/// The state of channel 2.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pit {
    mode: u8,
    transfer: Transfer,
    /// Loaded count; 0 stands for 65536.
    reload: u16,
    /// First byte of a count that is being written.
    partial: Option<u8>,
    /// Counts latched and not read yet: low byte first.
    latched: Option<u16>,
    /// Status byte latched by the read-back command.
    latched_status: Option<u8>,
    /// The next read without latch gives the high byte.
    high_next: bool,
    port_61: u8,
    start_ns: u64,
    /// Has a count been written since the last control word?
    loaded: bool,
}

impl Pit {
    /// IN from 0x42, 0x43 or 0x61.
    pub fn read(&mut self, port: u16, now_ns: u64) -> u8 {
        match port {
            0x42 => self.read_counter(now_ns),
            0x61 => {
                let refresh = if !(now_ns / 15_085).is_multiple_of(2) { REFRESH } else { 0 };
                let out = if self.output(now_ns) { OUT2 } else { 0 };
                self.port_61 | refresh | out
            }
            // The control register cannot be read.
            _ => 0xff,
        }
    }

    /// OUT to 0x42, 0x43 or 0x61.
    pub fn write(&mut self, port: u16, value: u8, now_ns: u64) {
        match port {
            0x42 => self.write_counter(value, now_ns),
            0x43 => self.control(value, now_ns),
            _ => {
                let raised = value & !self.port_61 & GATE != 0;
                if raised {
                    // Modes that are triggered by the gate start again; mode 0 goes on, which starts it if it was held.
                    self.start_ns = now_ns;
                }
                self.port_61 = value & WRITABLE_61;
            }
        }
    }

    fn control(&mut self, value: u8, now_ns: u64) {
        match value >> 6 {
            2 => {}
            // Read-back command; bit 3 selects channel 2, clear bits 5 and 4 latch count and status.
            3 if value & 8 != 0 => {
                if value & 0x20 == 0 {
                    self.latch(now_ns);
                }
                if value & 0x10 == 0 && self.latched_status.is_none() {
                    self.latched_status = Some(self.status(now_ns));
                }
                return;
            }
            _ => return,
        }
        self.transfer = match value >> 4 & 3 {
            0 => return self.latch(now_ns),
            1 => Transfer::Low,
            2 => Transfer::High,
            _ => Transfer::LowThenHigh,
        };
        // Modes 6 and 7 are 2 and 3.
        let mode = value >> 1 & 7;
        self.mode = if mode > 5 { mode - 4 } else { mode };
        (self.partial, self.latched, self.latched_status, self.high_next) = (None, None, None, false);
        self.loaded = false;
    }

    fn latch(&mut self, now_ns: u64) {
        if self.latched.is_none() {
            self.latched = Some(self.count(now_ns));
        }
    }

    fn status(&self, now_ns: u64) -> u8 {
        let access = match self.transfer {
            Transfer::Low => 1,
            Transfer::High => 2,
            Transfer::LowThenHigh => 3,
        };
        u8::from(self.output(now_ns)) << 7 | u8::from(!self.loaded) << 6 | access << 4 | self.mode << 1
    }

    fn write_counter(&mut self, value: u8, now_ns: u64) {
        let reload = match (self.transfer, self.partial.take()) {
            (Transfer::Low, _) => u16::from_le_bytes([value, 0]),
            (Transfer::High, _) => u16::from_le_bytes([0, value]),
            (Transfer::LowThenHigh, Some(low)) => u16::from_le_bytes([low, value]),
            (Transfer::LowThenHigh, None) => {
                self.partial = Some(value);
                return;
            }
        };
        self.reload = reload;
        self.loaded = true;
        self.start_ns = now_ns;
    }

    fn read_counter(&mut self, now_ns: u64) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        let [low, high] = self.latched.unwrap_or_else(|| self.count(now_ns)).to_le_bytes();
        let give_high = match self.transfer {
            Transfer::Low => false,
            Transfer::High => true,
            Transfer::LowThenHigh => self.high_next,
        };
        let last = self.transfer != Transfer::LowThenHigh || self.high_next;
        self.high_next = !last;
        if last {
            self.latched = None;
        }
        if give_high {
            high
        } else {
            low
        }
    }

    /// Ticks since the count was loaded; none while the gate is closed.
    #[allow(clippy::cast_possible_truncation, reason = "wraps after half a million years")]
    fn ticks(&self, now_ns: u64) -> u64 {
        if self.port_61 & GATE == 0 || !self.loaded {
            return 0;
        }
        let elapsed = u128::from(now_ns.saturating_sub(self.start_ns));
        (elapsed * u128::from(PIT_HZ) / 1_000_000_000) as u64
    }

    fn period(&self) -> u64 {
        if self.reload == 0 {
            0x1_0000
        } else {
            self.reload.into()
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the counter has 16 bits and wraps")]
    fn count(&self, now_ns: u64) -> u16 {
        let (ticks, period) = (self.ticks(now_ns), self.period());
        match self.mode {
            2 => (period - ticks % period) as u16,
            // Counts down by two, twice for each period.
            3 => (period - ticks * 2 % period) as u16 & !1,
            _ => period.wrapping_sub(ticks) as u16,
        }
    }

    fn output(&self, now_ns: u64) -> bool {
        let (ticks, period) = (self.ticks(now_ns), self.period());
        match self.mode {
            2 => ticks % period != period - 1,
            3 => ticks % period < period.div_ceil(2),
            _ => self.loaded && ticks >= period,
        }
    }
}
