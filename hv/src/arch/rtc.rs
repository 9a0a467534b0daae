//! The battery-backed clock (MC146818), read once for the wall clock.

use crate::cpu::port::{inb, outb};

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;
const REG_A: u8 = 10;
const REG_B: u8 = 11;
const UPDATE_IN_PROGRESS: u8 = 1 << 7;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;
const PM: u8 = 1 << 7;
/// Reads until two agree.
const MAX_READS: usize = 8;

fn register(index: u8) -> u8 {
    // SAFETY: selects a register of the clock.
    unsafe { outb(INDEX, index) };
    inb(DATA)
}

/// Seconds, minutes, hours, day, month, year in the century, as the registers hold them.
fn registers() -> [u8; 6] {
    for _ in 0..10_000 {
        if register(REG_A) & UPDATE_IN_PROGRESS == 0 {
            break;
        }
    }
    [0, 2, 4, 7, 8, 9].map(register)
}

/// Seconds since 1970 (UTC). Nonsense in the clock gives a date in 2000-2099 all the same.
pub fn seconds_since_1970() -> u64 {
    let mut fields = registers();
    for _ in 0..MAX_READS {
        let again = registers();
        if again == fields {
            break;
        }
        fields = again;
    }
    let mode = register(REG_B);
    let binary = |value: u8| match mode & BINARY {
        0 => (value & 15) + (value >> 4) * 10,
        _ => value,
    };
    let [seconds, minutes, hours, day, month, year] = fields;
    let hour = match mode & HOURS_24 {
        0 => binary(hours & !PM) % 12 + if hours & PM != 0 { 12 } else { 0 },
        _ => binary(hours),
    };
    let days = days_since_1970(2000 + u64::from(binary(year)), binary(month).into(), binary(day).into());
    ((days * 24 + u64::from(hour)) * 60 + u64::from(binary(minutes))) * 60 + u64::from(binary(seconds))
}

/// Days from 1970-01-01 to the given date of the Gregorian calendar.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    // Years start in March here, so that the leap day is the last.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days_before_1970 = 719_468;
    (365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day.max(1) - 1).saturating_sub(days_before_1970)
}
