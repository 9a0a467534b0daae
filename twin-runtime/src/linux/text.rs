//! Copying, filling, device registers by function, and calls that can wait.

use super::{bad, Done, Host, Routine, Stop, Support};

/// Nothing that a driver copies at once is larger.
const MOST: u64 = 1 << 20;

/// Addresses below this are port numbers to `ioread32` and its kin.
const PORTS_BELOW: u64 = 0x40000;

/// `memcpy(to, from, len)` and `memmove`.
#[inline(always)]
pub fn copy<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [to, from, len, ..] = *args;
    if len > MOST {
        return Err(bad("copy too long", len));
    }
    if to.wrapping_sub(from) >= len {
        host.copy(to, from, len)?;
        return Ok(to);
    }
    // The target begins inside the source: from the end, in pieces that are read before they are written.
    let mut left = len;
    while left > 0 {
        let now = left.min(256);
        left -= now;
        host.copy(to.wrapping_add(left), from.wrapping_add(left), now)?;
    }
    Ok(to)
}

/// `memset(to, value, len)`.
pub fn fill<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [to, value, len, ..] = *args;
    if len > MOST {
        return Err(bad("fill too long", len));
    }
    host.fill(to, (value & 0xff) as u8, len)?;
    Ok(to)
}

/// `ioread8/16/32(address)`. Ports are the domain's.
pub fn io_read<const BYTES: u32, H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if args[0] < PORTS_BELOW {
        return Err(Stop::Upcall);
    }
    Ok(host.read_device(args[0], BYTES)?)
}

/// `iowrite8/16/32(value, address)`.
pub fn io_write<const BYTES: u32, H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if args[1] < PORTS_BELOW {
        return Err(Stop::Upcall);
    }
    host.write_device(args[1], BYTES, (args[0] & 0xffff_ffff) as u32)?;
    Ok(0)
}

/// `queue_work_on(cpu, queue, work)`: the domain makes the call after the invocation; here it counts as queued.
pub fn note_work<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    host.note(Routine::QueueWork, args);
    Ok(1)
}

/// `queue_delayed_work_on(cpu, queue, work, delay)`, alike.
pub fn note_delayed_work<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    host.note(Routine::QueueDelayedWork, args);
    Ok(1)
}

/// `mod_timer(timer, expires)`, alike; it counts as not having been pending.
pub fn note_timer<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    host.note(Routine::ModTimer, args);
    Ok(0)
}
