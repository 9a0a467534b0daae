//! Copying, filling, device registers by function, and calls that can wait.

use super::{bad, Done, Host, Routine, Stop, Support};
use crate::Reason;

/// Nothing that a driver copies or fills at once is larger.
const MOST: u64 = 1 << 20;
/// So much is copied or filled between two questions whether to go on: a device answers a read in a microsecond or so.
const PIECE: u64 = 4096;

/// Addresses below this are port numbers to `ioread32` and its kin.
const PORTS_BELOW: u64 = 0x40000;

/// `memcpy(to, from, len)` and `memmove`.
#[inline(always)]
pub fn copy<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [to, from, len, ..] = *args;
    if len <= PIECE && to.wrapping_sub(from) >= len {
        host.copy(to, from, len)?;
    } else {
        copy_pieces(host, to, from, len)?;
    }
    Ok(to)
}

#[cold]
#[inline(never)]
fn copy_pieces<H: Host>(host: &mut H, to: u64, from: u64, len: u64) -> Result<(), Stop> {
    if len > MOST {
        return Err(bad("copy too long", len));
    }
    // The target begins inside the source: from the end, in pieces that are read before they are written.
    let is_backwards = to.wrapping_sub(from) < len;
    let most = if is_backwards { 256 } else { PIECE };
    let mut done = 0;
    while done < len {
        let now = most.min(len - done);
        let at = if is_backwards { len - done - now } else { done };
        host.copy(to.wrapping_add(at), from.wrapping_add(at), now)?;
        done += now;
        if done.is_multiple_of(PIECE) {
            go_on(host)?;
        }
    }
    Ok(())
}

/// Fills `len` bytes, in pieces.
pub(super) fn fill_bytes<H: Host>(host: &mut H, to: u64, value: u8, len: u64) -> Result<(), Stop> {
    if len <= PIECE {
        return Ok(host.fill(to, value, len)?);
    }
    fill_pieces(host, to, value, len)
}

#[cold]
#[inline(never)]
fn fill_pieces<H: Host>(host: &mut H, to: u64, value: u8, len: u64) -> Result<(), Stop> {
    if len > MOST {
        return Err(bad("fill too long", len));
    }
    let mut done = 0;
    while done < len {
        let now = PIECE.min(len - done);
        host.fill(to.wrapping_add(done), value, now)?;
        done += now;
        go_on(host)?;
    }
    Ok(())
}

/// Others are answered between two pieces. An error: the time is over.
pub(super) fn go_on<H: Host>(host: &mut H) -> Result<(), Stop> {
    if host.goes_on() {
        Ok(())
    } else {
        Err(Stop::Abort(Reason::TimeOut))
    }
}

/// `memset(to, value, len)`.
pub fn fill<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [to, value, len, ..] = *args;
    fill_bytes(host, to, (value & 0xff) as u8, len)?;
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
