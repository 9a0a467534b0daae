//! A driver domain's devices change hands, as `xl pci-detach` and `xl pci-attach` do it, without their processes: a
//! driver domain that has died loses them while what is left of it still has to be destroyed, and the one that waited
//! gets them, in milliseconds.
//!
//! Both may be done again from the beginning wherever somebody was killed: what has been done already is no error. The
//! toolstack finds what it would have written itself: a domain's devices are those in its PCI back end's directory,
//! which comes and goes at once, and whom a device was given to is in `/libxl/pci`. The domain's saved configuration,
//! which xl keeps in a file, is not changed.

use super::options::Options;
use super::pci;
use super::settings::{Claim, Reset};
use crate::device::state;
use crate::hypercall::{Passthrough, Resource};
use crate::service::name_of;
use crate::store::{Change, Store};
use anyhow::{bail, ensure, Context, Result};
use control::told::tamed;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xen_abi::channel_op::ChannelPciFunction;

/// So long the PCI back end is given to let devices go: it may have to reset each, and that takes a tenth of a second.
const LETS_GO: Duration = Duration::from_secs(3);
const A_MOMENT: Duration = Duration::from_micros(200);
/// Where Linux says how it resets a device: words, of which the first is tried first. Without one it does not;
/// `DEFAULT` brings them back.
const RESET_METHOD: &str = "reset_method";
const DEFAULT: &str = "default";
/// Linux's driver that is the PCI back end.
pub const BACK_END: &str = "bus/pci/drivers/pciback";
/// The command register, and its bits that let a function answer at its ports and in its memory (PCI, 6.2.2).
const COMMAND: u64 = 4;
const DECODE: u8 = 3;
/// The status register's low byte, and the bit in it that says that the function asks for an interrupt by its wire
/// (PCI, 6.2.3). While it may not do so it says it all the same.
const STATUS: u64 = 6;
const INTERRUPT: u8 = 1 << 3;
/// Bytes of a frame.
const FRAME: u64 = 4096;
/// A region of ports, in Linux's flags of a resource.
const IS_PORTS: u64 = 1 << 0;

/// Where Linux tells of devices, and is told.
pub struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

impl Sysfs {
    fn read(&self, place: &str) -> Result<String> {
        let path = self.0.join(place);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The PCI back end has the device, for whomever.
    fn is_backs(&self, device: &str) -> bool {
        self.0.join(BACK_END).join(device).exists()
    }

    /// The PCI back end has something for this domain.
    fn has_back(&self, domain: u16) -> bool {
        self.0.join(format!("devices/pci-{domain}-0")).exists()
    }

    /// The PCI back end puts devices where they are in the machine.
    fn has_real_places(&self) -> bool {
        self.read("module/xen_pciback/parameters/passthrough").is_ok_and(|said| said.trim() == "Y")
    }

    /// The PCI back end lets the device's domain write all of its configuration space that the hypervisor does.
    fn set_permissive(&self, device: &str) -> Result<()> {
        self.tell_back_end("permissive", device)
    }

    fn tell_back_end(&self, what: &str, words: &str) -> Result<()> {
        let path = self.0.join(BACK_END).join(what);
        let write = |path: &Path| {
            let mut file = File::options().write(true).open(path)?;
            std::io::Write::write_all(&mut file, words.as_bytes())
        };
        write(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Its registers, its ports, and its wire.
    fn resources(&self, device: &str) -> Result<Vec<Resource>> {
        let mut found = Vec::new();
        for line in self.read(&format!("bus/pci/devices/{device}/resource"))?.lines() {
            found.extend(region(line));
        }
        found.extend(self.wire(device)?.map(Resource::Interrupt));
        Ok(found)
    }

    fn of_device(&self, device: &str, name: &str) -> PathBuf {
        self.0.join("bus/pci/devices").join(device).join(name)
    }

    /// How Linux resets the device; `None`: it never could.
    fn reset_methods(&self, device: &str) -> Option<String> {
        std::fs::read_to_string(self.of_device(device, RESET_METHOD)).ok().map(|said| said.trim().to_string())
    }

    /// Linux resets the device so from now on.
    fn set_reset_methods(&self, device: &str, methods: &str) -> Result<()> {
        let path = self.of_device(device, RESET_METHOD);
        std::fs::write(&path, format!("{methods}\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Linux can reset the device again, if a daemon was killed while it was told not to.
    pub fn let_reset(&self, device: &str) -> Result<()> {
        match self.reset_methods(device) {
            Some(methods) if methods.is_empty() => self.set_reset_methods(device, DEFAULT),
            _ => Ok(()),
        }
    }

    /// The device, which nobody has and which has been reset by its own registers, does not ask for an interrupt. What
    /// cannot be read does.
    fn is_silent(&self, device: &str) -> bool {
        let mut status = [INTERRUPT];
        let read = File::open(self.of_device(device, "config")).and_then(|it| it.read_exact_at(&mut status, STATUS));
        read.is_ok() && status[0] & INTERRUPT == 0
    }

    /// The PCI back end takes a device up anew that nobody has, and that answers nowhere. What it tells a domain of
    /// that is what it has found then, or what the last owner has written. One whose kernel finds a device on turns it
    /// off and on again for each base address while it looks how long the region is, and each time the back end enables
    /// the device: 2 ms for ACPI's routing.
    fn take_up_closed(&self, device: &str) -> Result<()> {
        self.tell_back_end("unbind", device)?;
        let is_closed = self.close(device).context("its command register cannot be written");
        self.take_up(device)?;
        is_closed
    }

    fn take_up(&self, device: &str) -> Result<()> {
        self.tell_back_end("bind", device)
    }

    /// The PCI back end has the device again, if a daemon was killed while it had let go of it.
    pub fn let_take_up(&self, device: &str) -> Result<()> {
        if self.of_device(device, "config").exists() && !self.of_device(device, "driver").exists() {
            self.take_up(device)?;
        }
        Ok(())
    }

    fn close(&self, device: &str) -> Result<()> {
        let path = self.of_device(device, "config");
        let config = File::options().read(true).write(true).open(&path)?;
        let mut command = [0; 2];
        config.read_exact_at(&mut command, COMMAND)?;
        command[0] &= !DECODE;
        Ok(config.write_all_at(&command, COMMAND)?)
    }

    fn wire(&self, device: &str) -> Result<Option<u32>> {
        let said = self.read(&format!("bus/pci/devices/{device}/irq"))?;
        Ok(said.trim().parse().ok().filter(|wire| *wire != 0))
    }
}

/// Linux resets none of these devices as long as this is there, but those that hold their wire up: their next owner's
/// would not go down.
struct Unreset<'a> {
    sysfs: &'a Sysfs,
    /// And how it did.
    devices: Vec<(&'a str, String)>,
}

impl<'a> Unreset<'a> {
    fn new(sysfs: &'a Sysfs, devices: &[&'a str]) -> Self {
        let mut unreset = Self { sysfs, devices: Vec::new() };
        for device in devices.iter().copied() {
            let Some(methods) = sysfs.reset_methods(device) else { continue };
            if !sysfs.is_silent(device) {
                eprintln!("{device}: it asks for an interrupt although its owner has gone, so Linux is to reset it");
                continue;
            }
            // Of an earlier daemon's, that was killed.
            let methods = if methods.is_empty() { DEFAULT.into() } else { methods };
            unreset.devices.push((device, methods));
            if let Err(error) = sysfs.set_reset_methods(device, "") {
                eprintln!("{device}: it is reset once more: {error:#}");
            }
        }
        unreset
    }
}

impl Unreset<'_> {
    /// The PCI back end has let go of them, and may take them up anew without a reset.
    fn take_up_closed(&self) {
        for (device, _) in &self.devices {
            // What it costs not to is time.
            if let Err(error) = self.sysfs.take_up_closed(device) {
                eprintln!("{device}: the PCI back end does not take it up anew: {error:#}");
            }
        }
    }
}

impl Drop for Unreset<'_> {
    fn drop(&mut self) {
        for (device, methods) in &self.devices {
            let done = self.sysfs.set_reset_methods(device, methods);
            if let Err(error) = done.or_else(|_| self.sysfs.set_reset_methods(device, DEFAULT)) {
                eprintln!("{device}: Linux does not reset it any more: {error:#}");
            }
        }
    }
}

/// `FIRST LAST FLAGS`, in hex; all zero: there is none.
fn region(line: &str) -> Option<Resource> {
    let mut numbers = line.split_whitespace().map(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).ok());
    let (first, last, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let bytes = last.checked_sub(first)?.checked_add(1)?;
    if first == 0 {
        return None;
    }
    if flags & IS_PORTS != 0 {
        return Some(Resource::Ports { first: u32::try_from(first).ok()?, count: u32::try_from(bytes).ok()? });
    }
    Some(Resource::Frames { first: first / FRAME, count: bytes.div_ceil(FRAME) })
}

/// `DDDD:BB:SS.F` as the hypervisor has it.
fn function(device: &str) -> Option<u32> {
    let (rest, function) = device.rsplit_once('.')?;
    let mut parts = rest.split(':').map(|part| u32::from_str_radix(part, 16).ok());
    let (segment, bus, slot) = (parts.next()??, parts.next()??, parts.next()??);
    Some(segment << 16 | bus << 8 | slot << 3 | function.parse::<u32>().ok()?)
}

/// Where the toolstack notes whom a device was given to.
fn given(device: &str) -> String {
    format!("/libxl/pci/{}/domid", device.replace([':', '.'], "-"))
}

/// The domain that has this device, by what the toolstack has noted and by its PCI back end.
pub fn holder(device: &str, store: &mut impl Store) -> Result<Option<u16>> {
    let noted = store.read(&given(device))?.and_then(|domain| domain.parse().ok());
    let Some(domain) = noted else { return Ok(None) };
    Ok(pci::devices_of(domain, store)?.iter().any(|one| one == device).then_some(domain))
}

/// A domain that loses devices, or gets some.
pub struct Party {
    domain: u16,
    /// What else changes in xenstore, at once with that.
    with: Vec<Change>,
    /// What is said of its devices is in its PCI back end's directory ([`announce`]), but for how many they are.
    is_announced: bool,
    /// It gets devices only if it knows the PCI back end by now.
    has_to_know: bool,
    /// The hypervisor answers what it asks of them, or the next one that gets them, if it can.
    is_answered: bool,
}

impl Party {
    /// With these changes.
    pub fn new(domain: u16, with: Vec<Change>) -> Self {
        Self { domain, with, is_announced: false, has_to_know: false, is_answered: false }
    }

    /// Only if it knows the PCI back end by now.
    pub fn if_known(self) -> Self {
        Self { has_to_know: true, ..self }
    }

    /// The hypervisor answers what it asks of its devices, or who gets them next, in the PCI back end's place, if it
    /// can.
    pub fn answered(self, is_answered: bool) -> Self {
        Self { is_answered, ..self }
    }

    /// Which.
    pub fn domain(&self) -> u16 {
        self.domain
    }

    /// The devices that it gets were announced.
    pub fn announced(self, is_announced: bool) -> Self {
        Self { is_announced, ..self }
    }
}

impl From<u16> for Party {
    fn from(domain: u16) -> Self {
        Self::new(domain, Vec::new())
    }
}

/// The links of a domain's interfaces, which does not run any more, are kept for whoever gets them next, or it is said
/// why not.
pub fn keep_links(domain: u16, devices: &[String], hypervisor: &mut impl Passthrough) {
    for device in devices {
        let Some(number) = function(device) else { continue };
        match hypervisor.keep_link(domain, number) {
            // It may not have had it any more.
            Ok(()) | Err(Errno::NODEV) => {}
            Err(Errno::OPNOTSUPP) => eprintln!("{device}: its link is not kept: it is not known how"),
            Err(Errno::NOTCONN) => eprintln!("{device}: its link is not kept: it is down already"),
            Err(error) => eprintln!("{device}: its link is not kept: {error}"),
        }
    }
}

/// Takes the devices from a domain that does not run any more: they are reset and nobody's, and the PCI back end knows
/// nothing of the domain. The PCI back end resets them as `reset` says, and always if no IOMMU keeps them from all
/// memory until their next driver does. An error says what went wrong; then all or some of them are the domain's still,
/// or the PCI back end has them for it, and the other changes are made or not.
pub fn take(
    from: impl Into<Party>,
    devices: &[String],
    reset: Reset,
    sysfs: &Sysfs,
    store: &mut impl Store,
    hypervisor: &mut impl Passthrough,
) -> Result<()> {
    let Party { domain, with, is_answered, .. } = from.into();
    // A domain has one such directory, in one of its own.
    let mut changes = vec![Change::Clear(pci::backs(domain))];
    let mut free = Vec::new();
    for device in devices {
        let number = function(device).with_context(|| format!("{device} is no PCI function"))?;
        for resource in sysfs.resources(device)? {
            if let Resource::Interrupt(wire) = resource {
                // It may never have had it.
                let _ = hypervisor.unmap_wire(domain, wire);
            }
            hypervisor.permit(domain, resource, false).with_context(|| format!("{device}: {resource:?}"))?;
        }
        let had_it = match hypervisor.deassign(domain, number) {
            Ok(()) => true,
            // It has not had it any more: an earlier daemon has taken it, or the operator has given it to another
            // domain.
            Err(Errno::NODEV) => false,
            Err(error) => return Err(error).with_context(|| format!("{device} does not leave domain {domain}")),
        };
        let to = store.read(&given(device))?;
        let is_its = to.as_ref().is_some_and(|to| *to == domain.to_string());
        if is_its {
            changes.push(Change::Remove(given(device)));
        }
        if had_it || is_its || to.is_none() {
            free.push(device.as_str());
        }
    }
    let is_left_out = match reset {
        Reset::BackEnd => false,
        Reset::Driver => hypervisor.is_confined(domain),
        Reset::IfNeeded => hypervisor.is_confined(domain) && hypervisor.has_reset(domain),
    };
    let unreset = is_left_out.then(|| Unreset::new(sysfs, &free));
    // Whoever destroys the domain may have removed its directory.
    let whole: Vec<Change> = changes.iter().cloned().chain(with).collect();
    if !store.change(&name_of(domain), &whole)? {
        store.change("/local", &changes)?;
    }
    until_gone(domain, sysfs)?;
    // What the next one asks of them the back end does not hear.
    if let Some(unreset) = unreset.as_ref().filter(|_| !is_answered) {
        unreset.take_up_closed();
    }
    Ok(())
}

/// Hands the devices to a domain that has none. An error says what went wrong; then the toolstack may do it: the
/// domain's back end has nothing of them, and nothing was changed in xenstore.
pub fn hand_over(
    to: impl Into<Party>,
    claims: &[Claim],
    sysfs: &Sysfs,
    store: &mut impl Store,
    hypervisor: &mut impl Passthrough,
) -> Result<()> {
    let Party { domain, with, is_announced, has_to_know, is_answered } = to.into();
    let back = pci::back(domain);
    let is_introduced = are_connected(domain, store)?;
    ensure!(is_introduced || !has_to_know, "it does not know the PCI back end");
    if !is_introduced {
        if has_none(domain, store)? {
            eprintln!("domain {domain} and the PCI back end do not know each other yet, and begin again");
        }
        forget(domain, store)?;
        until_gone(domain, sysfs)?;
    }
    let mut nodes = Vec::new();
    for (n, claim) in claims.iter().enumerate() {
        let device = &claim.name;
        let number = function(device).with_context(|| format!("{device} is no PCI function"))?;
        let Some(options) = claim.options else { bail!("`{}` is for xl to understand", claim.said) };
        ensure!(sysfs.is_backs(device), "{device} is not the PCI back end's");
        for resource in sysfs.resources(device)? {
            let what = || format!("{device}: {resource:?}");
            if let Resource::Interrupt(wire) = resource {
                hypervisor.map_wire(domain, wire).with_context(what)?;
            }
            hypervisor.permit(domain, resource, true).with_context(what)?;
        }
        if options.is_permissive {
            sysfs.set_permissive(device)?;
        }
        hypervisor.assign(domain, number).with_context(|| format!("{device} does not become domain {domain}'s"))?;
        if !(is_introduced && is_announced) {
            nodes.extend(told(&back, n, device, options));
        }
        nodes.push((given(device), domain.to_string()));
    }
    if is_answered && is_introduced {
        let devices: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
        if let Err(error) = answer(domain, &devices, sysfs, store, hypervisor) {
            eprintln!("domain {domain}: the PCI back end answers it itself: {error:#}");
        }
    }
    nodes.push((format!("{back}/num_devs"), claims.len().to_string()));
    let mut changes = if is_introduced {
        nodes.push((format!("{back}/state"), pci::RECONFIGURING.into()));
        Vec::new()
    } else {
        introduction(domain, store)?
    };
    changes.extend(with);
    changes.extend(nodes.into_iter().map(|(path, value)| Change::Write(path, value)));
    let is_done = store.change(&name_of(domain), &changes)?;
    ensure!(is_done, "it has gone");
    Ok(())
}

/// The hypervisor answers the PCI front end of a domain that knows its back end, and has got these devices.
fn answer(
    domain: u16,
    devices: &[&str],
    sysfs: &Sysfs,
    store: &mut impl Store,
    hypervisor: &mut impl Passthrough,
) -> Result<()> {
    ensure!(!sysfs.has_real_places(), "xen_pciback.passthrough is set");
    let mut number = |key: &str| -> Result<u32> {
        let path = format!("{}/{key}", front(domain));
        let said = store.read(&path)?.with_context(|| format!("there is no {path}"))?;
        said.parse().with_context(|| format!("{path} is {}", tamed(&said)))
    };
    let (ring, port) = (number("pci-op-ref")?, number("event-channel")?);
    let mut functions = Vec::new();
    for (device, devfn) in devices.iter().zip(places(devices)) {
        let function = function(device).with_context(|| format!("{device} is no PCI function"))?;
        let wire = sysfs.wire(device)?.and_then(|wire| u8::try_from(wire).ok()).unwrap_or(0);
        functions.push(ChannelPciFunction { function, devfn, wire, pad: [0; 2] });
    }
    hypervisor.answer_front(domain, ring, port, &functions).context("the hypervisor does not answer it")
}

/// Where Linux's PCI back end puts these functions on a domain's bus: each device in the next free slot.
fn places(devices: &[&str]) -> Vec<u8> {
    let mut slots = Vec::new();
    let mut found = Vec::new();
    for device in devices {
        let (slot, function) = device.rsplit_once('.').unwrap_or((device, "0"));
        let known = slots.iter().position(|other| *other == slot);
        let number = known.unwrap_or(slots.len());
        if known.is_none() {
            slots.push(slot);
        }
        found.push(u8::try_from(number).unwrap_or(u8::MAX) << 3 | function.parse::<u8>().unwrap_or(0) & 7);
    }
    found
}

/// What a PCI back end's directory says of its device of this number.
fn told(back: &str, n: usize, device: &str, options: Options) -> [(String, String); 4] {
    [
        (format!("{back}/key-{n}"), device.into()),
        (format!("{back}/dev-{n}"), device.into()),
        (format!("{back}/opts-{n}"), options.to_string()),
        (format!("{back}/state-{n}"), state::INITIALISING.to_string()),
    ]
}

/// All that is said of devices is said before a domain that knows the PCI back end gets them, but that it has any:
/// whatever is written there later both kernels look at, one node after the other, while guests wait. `false`: it is
/// not said, since xl has to say it.
pub fn announce(domain: u16, claims: &[Claim], store: &mut impl Store) -> Result<bool> {
    let back = pci::back(domain);
    let mut changes = Vec::new();
    for (n, claim) in claims.iter().enumerate() {
        let Some(options) = claim.options else { return Ok(false) };
        changes.extend(told(&back, n, &claim.name, options).map(|(path, value)| Change::Write(path, value)));
    }
    Ok(has_none(domain, store)? && store.change(&format!("{back}/num_devs"), &changes)?)
}

/// The domain and the PCI back end get to know each other, if they do not: rings and ports are made, and the domain's
/// kernel has looked at a bus without devices. One that comes then is there sooner.
pub fn introduce(domain: u16, store: &mut impl Store) -> Result<()> {
    let back = pci::back(domain);
    if store.read(&format!("{back}/state"))?.is_some() {
        return Ok(());
    }
    let mut changes = introduction(domain, store)?;
    changes.push(Change::Write(format!("{back}/num_devs"), "0".into()));
    store.change(&name_of(domain), &changes).map(|_| ())
}

/// Domains that know the PCI back end and have no device of its.
pub fn introduced(store: &mut impl Store) -> Result<BTreeSet<u16>> {
    let mut found = BTreeSet::new();
    for domain in store.list("/local/domain/0/backend/pci")? {
        let Ok(domain) = domain.parse() else { continue };
        if has_none(domain, store)? {
            found.insert(domain);
        }
    }
    Ok(found)
}

/// A domain and the PCI back end that get to know each other just now. Nothing of that can be taken back: the domain's
/// kernel may have read it, and would not read it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The domain has not answered yet, or has just done so; it may never do.
    Begins,
    /// Its kernel asks the back end for all functions that there may be. It uses this back end from now on, and would
    /// wait in vain if there was another one.
    Asks,
}

/// How far they have come; `None`: they know each other, or do not get to.
pub fn meeting(domain: u16, store: &mut impl Store) -> Result<Option<Meeting>> {
    if !has_none(domain, store)? || are_connected(domain, store)? {
        return Ok(None);
    }
    let back = store.read(&format!("{}/state", pci::back(domain)))?;
    let has_answered = back.as_deref() == Some(state::CONNECTED.to_string().as_str());
    Ok(Some(if has_answered { Meeting::Asks } else { Meeting::Begins }))
}

/// A domain that has no device, or has gone, and the PCI back end do not know each other any more.
pub fn forget(domain: u16, store: &mut impl Store) -> Result<()> {
    if has_none(domain, store)? {
        store.change("/local", &[Change::Remove(pci::back(domain))])?;
    }
    Ok(())
}

/// It knows the PCI back end, which has no device for it.
fn has_none(domain: u16, store: &mut impl Store) -> Result<bool> {
    Ok(store.read(&format!("{}/num_devs", pci::back(domain)))?.as_deref() == Some("0"))
}

/// Both are connected, and there is no device. An error: there is one.
fn are_connected(domain: u16, store: &mut impl Store) -> Result<bool> {
    let back = store.read(&format!("{}/state", pci::back(domain)))?;
    let front = store.read(&format!("{}/state", front(domain)))?;
    let is_connected =
        [&back, &front].into_iter().all(|said| said.as_deref() == Some(state::CONNECTED.to_string().as_str()));
    ensure!(back.is_none() || has_none(domain, store)?, "it has a PCI back end already");
    Ok(is_connected)
}

fn front(domain: u16) -> String {
    format!("/local/domain/{domain}/device/pci/0")
}

/// Both ends' directories, as xl makes them, without devices.
fn introduction(domain: u16, store: &mut impl Store) -> Result<Vec<Change>> {
    let (back, front) = (pci::back(domain), front(domain));
    let name = store.read(&name_of(domain))?.unwrap_or_default();
    let (own, first) = (domain.to_string(), state::INITIALISING.to_string());
    let of_back = [("frontend", &front), ("frontend-id", &own), ("domain", &name), ("online", &"1".into())];
    let of_front = [("backend", &back), ("backend-id", &"0".into())];
    let mut changes = vec![
        Change::Remove(front.clone()),
        Change::Make { path: back.clone(), owner: 0, reader: domain },
        Change::Make { path: front.clone(), owner: domain, reader: 0 },
    ];
    let mut write =
        |end: &str, key: &str, value: &str| changes.push(Change::Write(format!("{end}/{key}"), value.into()));
    of_back.iter().for_each(|(key, value)| write(&back, key, value));
    of_front.iter().for_each(|(key, value)| write(&front, key, value));
    [&back, &front].iter().for_each(|end| write(end, "state", &first));
    Ok(changes)
}

/// Waits until the PCI back end has nothing for the domain any more.
pub fn until_gone(domain: u16, sysfs: &Sysfs) -> Result<()> {
    let until = Instant::now() + LETS_GO;
    while sysfs.has_back(domain) {
        ensure!(Instant::now() < until, "the PCI back end does not let go of the devices");
        std::thread::sleep(A_MOMENT);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
