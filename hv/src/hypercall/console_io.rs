//! `console_io`: the machine's console, for domain 0.

use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::cpu::serial;
use xen_abi::console::{CONSOLEIO_READ, CONSOLEIO_WRITE};
use xen_abi::errno::Errno;

/// Bytes handled at a time.
const CHUNK: usize = 128;

/// Writes to or reads from the console. A read returns the number of bytes, 0 if there is no input. Errors: EPERM for
/// other domains, EFAULT, ENOSYS, E2BIG for more than 2^31 bytes. Source: public/xen.h, CONSOLEIO_*.
pub fn call(cx: &mut Caller, cmd: u32, count: u32, buffer: GuestPtr<u8>) -> Outcome {
    cx.require_privilege()?;
    if count > i32::MAX as u32 {
        return Err(Errno::E2BIG);
    }
    match cmd {
        CONSOLEIO_WRITE => write(cx, count, buffer),
        CONSOLEIO_READ => read(count, buffer),
        _ => Err(Errno::ENOSYS),
    }
}

fn write(cx: &mut Caller, count: u32, buffer: GuestPtr<u8>) -> Outcome {
    let mut done = 0;
    let mut chunk = [0u8; CHUNK];
    while done < count {
        let len = (count - done).min(CHUNK as u32) as usize;
        buffer.at(u64::from(done))?.read_slice(&mut chunk[..len])?;
        crate::console::write_guest(&chunk[..len]);
        done += len as u32;
        if done < count && cx.preempt_pending() {
            *cx.arg_mut(1) = u64::from(count - done);
            *cx.arg_mut(2) = buffer.at(u64::from(done))?.addr();
            return Ok(Done::Continue);
        }
    }
    OK
}

fn read(count: u32, buffer: GuestPtr<u8>) -> Outcome {
    let mut chunk = [0u8; CHUNK];
    let mut len = 0;
    while len < CHUNK.min(count as usize) {
        let Some(byte) = serial::read() else { break };
        chunk[len] = byte;
        len += 1;
    }
    buffer.write_slice(&chunk[..len])?;
    Ok(Done::Return(len as i64))
}
