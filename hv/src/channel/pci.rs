//! PCI front ends that the hypervisor answers in their back end's place ([`serve_from_now`]): a question costs no
//! switch to the back end's domain and back, of which a kernel that looks for its devices asks hundreds while guests
//! wait, and a driver may use messages, end that, and use them again.
//!
//! The back end stays connected, and is what the tools talk to; it hears nothing of what is asked. What is answered is
//! decided in `hv_core::passthrough::front`.
//!
//! Lock order: the list, a front; then what follows the channels' locks, and the table of who owns which function:
//! rows 100 and 210 of `docs/architecture.md`.

use super::access::RingPage;
use crate::arch::pci::{self, Width};
use crate::domain::{self, passthrough, Domain};
use crate::irq;
use crate::mem::frames;
use crate::sync::{FairMutex, Mutex};
use alloc::collections::{BTreeMap, TryReserveError};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use hv_core::evtchn::Binding;
use hv_core::grant::audit::Ledger;
use hv_core::map;
use hv_core::passthrough::front::{Front, Machine, Seen};
use hv_core::pcicfg::Sbdf;
use xen_abi::channel_op::{ChannelPci, ChannelPciFunction, PCI_MAX_FUNCTIONS};
use xen_abi::errno::Errno;
use xen_abi::io::pciif::{self as op, MsixEntry, PciOp};

/// In the name of a port, if it is no disk's: it is a PCI front end's, and the rest is its domain.
pub const PCI_EVENT: u32 = 1 << 30;
/// Domains that are answered at one time.
const MAX_FRONTS: usize = 256;

/// A front end, and its ring.
struct Served {
    ring: RingPage,
    front: Front,
}

/// By domain.
static FRONTS: Mutex<BTreeMap<u16, Arc<FairMutex<Served>>>> = Mutex::new(BTreeMap::new());

/// The machine, as far as it is this domain's.
struct Owned<'a>(&'a Domain);

impl Machine for Owned<'_> {
    fn read(&mut self, at: Sbdf, offset: u16, width: u8) -> Option<u32> {
        passthrough::while_owned(at, self.0, |_| Ok(pci::read(at, offset, Width::of(width)))).ok()
    }

    fn write(&mut self, at: Sbdf, offset: u16, width: u8, value: u32) -> Option<()> {
        passthrough::write_owned(at, self.0, offset, width, value).ok()
    }

    fn map_message(&mut self, at: Sbdf, entry: Option<u16>) -> Result<u32, Errno> {
        // The first message of a function maps its table of messages.
        if !frames::has_headroom() {
            return Err(Errno::ENOMEM);
        }
        irq::guest::map_msi(self.0, at, entry, None)
    }

    fn unmap_messages(&mut self, at: Sbdf) {
        let unmap = |_: &_| {
            irq::guest::unmap_messages(at);
            Ok(())
        };
        // Those of another domain's are not its own to take.
        let _ = passthrough::while_owned(at, self.0, unmap);
    }
}

/// Answers a domain's front end from now on. Errors: see [`xen_abi::channel_op::CHANNELOP_PCI_SERVE`].
pub fn serve_from_now(request: &ChannelPci) -> Result<(), Errno> {
    let nr_functions = usize::from(request.nr_functions);
    if nr_functions > PCI_MAX_FUNCTIONS || request.pad != 0 {
        return Err(Errno::EINVAL);
    }
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let mut fronts = FRONTS.lock();
    // Under the lock: whoever destroys it looks for it here later.
    let d = domain::find(request.domain).ok_or(Errno::ESRCH)?;
    if d.is_dying() {
        return Err(Errno::EINVAL);
    }
    if fronts.len() >= MAX_FRONTS && !fronts.contains_key(&d.id) {
        return Err(Errno::ENOSPC);
    }
    let Binding::Interdomain { dom: back, .. } = d.events.lock().binding(request.port)? else {
        return Err(Errno::EINVAL);
    };
    let ring = RingPage::take(&d, back, request.ring).map_err(|_| Errno::EINVAL)?;
    let mut front = Front::default();
    for function in &request.functions[..nr_functions] {
        let seen = look_at(function, &d)?;
        if !front.add(seen) {
            return Err(Errno::EINVAL);
        }
    }
    fronts.insert(d.id, Arc::new(FairMutex::new(Served { ring, front })));
    d.divert(request.port, PCI_EVENT | u32::from(d.id));
    Ok(())
}

/// What the domain will see of a function of its own.
fn look_at(function: &ChannelPciFunction, d: &Domain) -> Result<Seen, Errno> {
    let &ChannelPciFunction { function, devfn, wire, pad } = function;
    if pad != [0; 2] {
        return Err(Errno::EINVAL);
    }
    let at = Sbdf::from_machine(function);
    passthrough::while_owned(at, d, |bars| Ok(Seen::new(at, devfn, wire, bars, &pci::Space(at))))
}

/// The back end answers the domain's front end again, if it did not.
pub fn forget(d: &Domain) {
    let mut fronts = FRONTS.lock();
    let gone = map::take(&mut fronts, &d.id);
    if gone.is_some() {
        d.divert_nothing();
    }
    drop(fronts);
}

/// Answers what is asked, by the front end whose port has this name. `false`: none is answered here by that name any
/// more.
pub fn serve(cookie: u32) -> bool {
    let Ok(id) = u16::try_from(cookie & !PCI_EVENT) else { return false };
    let found = FRONTS.lock().get(&id).cloned();
    let (Some(served), Some(d)) = (found, domain::find(id)) else { return false };
    served.lock().answer(&d);
    true
}

impl Served {
    fn answer(&mut self, d: &Domain) {
        let page = self.ring.as_ref();
        let word = |offset: u16| &page[usize::from(offset) / size_of::<u32>()];
        if word(op::FLAGS).load(Ordering::Acquire) & op::FLAG_ACTIVE == 0 {
            return;
        }
        let mut asked = read(|n| word(op::OP + 4 * n));
        let mut messages = [MsixEntry::default(); op::MAX_MESSAGES];
        let is_for_messages = asked.cmd == op::XEN_PCI_OP_ENABLE_MSIX;
        let nr = if is_for_messages { (asked.value as usize).min(op::MAX_MESSAGES) } else { 0 };
        let messages = &mut messages[..nr];
        for (place, message) in (op::MESSAGES..).step_by(size_of::<MsixEntry>()).zip(messages.iter_mut()) {
            let [_, _, low, high] = word(place).load(Ordering::Relaxed).to_le_bytes();
            message.entry = u16::from_le_bytes([low, high]);
        }
        self.front.serve(&mut asked, messages, &mut Owned(d));
        if is_for_messages && asked.err == op::XEN_PCI_ERR_SUCCESS {
            for (place, message) in (op::MESSAGES..).step_by(size_of::<MsixEntry>()).zip(messages) {
                let both = u32::from(message.entry) << 16 | u32::from(message.vector);
                word(place).store(both, Ordering::Relaxed);
            }
        }
        word(op::ERR).store(asked.err.cast_unsigned(), Ordering::Relaxed);
        word(op::VALUE).store(asked.value, Ordering::Relaxed);
        // It waits for this, and the hypercall by which it has told of its question ends now: no event is needed.
        word(op::FLAGS).fetch_and(!op::FLAG_ACTIVE, Ordering::Release);
    }
}

/// A request, each word of it read once.
fn read<'a>(word: impl Fn(u16) -> &'a AtomicU32) -> PciOp {
    let get = |n| word(n).load(Ordering::Relaxed);
    PciOp {
        cmd: get(0),
        err: 0,
        domain: get(2),
        bus: get(3),
        devfn: get(4),
        offset: get(5).cast_signed(),
        size: get(6).cast_signed(),
        value: get(7),
        info: 0,
    }
}

/// Names every grant that is in use here, for the audit. Errors: no memory.
pub fn tell(ledger: &mut Ledger) -> Result<(), TryReserveError> {
    let fronts = FRONTS.lock();
    fronts.values().try_for_each(|served| ledger.own_use(served.lock().ring.named(), true))
}
