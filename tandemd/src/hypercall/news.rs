//! News of the hypervisor's: VIRQ_SUPERVISOR, by the kernel's event channel device.
//!
//! A virtual interrupt has one port in a domain, so one thread waits for it, and wakes all who want to know. What the
//! news is they find out themselves (CHANNELOP_BEAT).

use anyhow::{Context, Result};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Direction, Ioctl, IoctlOutput, Opcode};
use std::ffi::c_void;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use xen_abi::event::VIRQ_SUPERVISOR;

const EVENTS: &str = "/dev/xen/evtchn";

/// Argument of IOCTL_EVTCHN_BIND_VIRQ (Linux, include/uapi/xen/evtchn.h); the answer is the port.
#[repr(C)]
struct BindVirq {
    virq: u32,
}

// SAFETY: the opcode is that of IOCTL_EVTCHN_BIND_VIRQ, whose argument is a `BindVirq` that the kernel only reads.
unsafe impl Ioctl for BindVirq {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::from_components(Direction::None, b'E', 0, size_of::<BindVirq>())
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// Somebody who wants to know.
pub struct News(Arc<OwnedFd>);

/// All of them.
static LISTENERS: Mutex<Vec<Weak<OwnedFd>>> = Mutex::new(Vec::new());

impl News {
    /// Hears of news from now on, if the daemon listens ([`begin`]).
    pub fn open() -> Result<Self> {
        let own = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("no event to wait for")?);
        LISTENERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&own));
        Ok(Self(own))
    }

    /// Whether there was news since the last time.
    pub fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for News {
    /// May be read when there is news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Has a thread wait for the interrupt from now on. Without it nobody would learn of an end: if it fails, so does the
/// daemon.
pub fn begin() -> Result<()> {
    let open = File::options().read(true).write(true).open(EVENTS);
    let mut events = open.with_context(|| format!("cannot open {EVENTS}"))?;
    // SAFETY: see `BindVirq`.
    unsafe { ioctl(&events, BindVirq { virq: VIRQ_SUPERVISOR }) }.context("the hypervisor's news cannot be heard")?;
    let wait = move || loop {
        let mut port = [0; 4];
        // Read, it is masked; written, it may come again. It is, before anybody looks: nothing that happens later is
        // missed.
        if let Err(error) = events.read_exact(&mut port).and_then(|()| events.write_all(&port)) {
            eprintln!("tandemd: {EVENTS}: {error}");
            std::process::exit(1);
        }
        tell_all();
    };
    std::thread::Builder::new().name("news".into()).spawn(wait).context("no thread")?;
    Ok(())
}

fn tell_all() {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|listener| {
        let Some(listener) = listener.upgrade() else { return false };
        // One that has not looked for so long that its count is full knows that there is news.
        !matches!(rustix::io::write(&listener, &1_u64.to_ne_bytes()), Err(error) if error != Errno::AGAIN)
    });
}
