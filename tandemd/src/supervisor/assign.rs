//! Devices that are to be a driver domain's and have a driver in domain 0 still: they are made assignable, where the
//! operator wants that, or are waited for.

use super::openers;
use super::passthrough::BACK_END;
use super::repeated::Repeated;
use super::settings::Claim;
use super::toolstack::run_to_its_end;
use anyhow::{Context, Result};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where Linux lists disks and partitions.
const BLOCK: &str = "sys/class/block";
/// The module that has the PCI back end.
const MODULE: &str = "xen-pciback";
/// What failed is tried again after so long.
const UNTIL_AGAIN: Duration = Duration::from_secs(30);
/// A driver that does not let go of its device is not waited for longer.
const LIMIT: Duration = Duration::from_secs(30);

/// Who makes devices assignable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The daemon.
    Tandemd,
    /// The operator, or xl when it creates the domain. Others are waited for: xl refuses to create a domain with them.
    Operator,
}

/// Sees to it that devices are assignable.
pub struct Assigner {
    service: String,
    by: By,
    /// Where `sys`, `proc` and `dev` are.
    root: PathBuf,
    /// After an attempt in vain, when the next one is.
    next: Duration,
    /// What the operator was asked for.
    asked: Vec<String>,
    /// What cannot be taken, as was said.
    refused: Repeated,
    /// Devices that other domains have, as was said.
    held: String,
}

impl Assigner {
    /// Of a service's driver domain.
    pub fn new(service: &str, by: By) -> Self {
        let (service, next, asked) = (service.into(), Duration::ZERO, Vec::new());
        Self { service, by, root: "/".into(), next, asked, refused: Repeated::default(), held: String::new() }
    }

    /// Whether no other domain has a device of this driver domain's. `held`: those that others have, and words for
    /// these. There is one line in the log for as long as it is the same.
    pub fn are_free(&mut self, held: &[(String, String)]) -> bool {
        if let Some(line) = self.wait_for(held) {
            eprintln!("{}: {line}", self.service);
        }
        held.is_empty()
    }

    fn wait_for(&mut self, held: &[(String, String)]) -> Option<String> {
        let all: Vec<String> = held.iter().map(|(device, by)| format!("{device}, which {by} has")).collect();
        let all = all.join(", and for ");
        let is_said = all.is_empty() || self.held == all;
        self.held = all;
        (!is_said).then(|| format!("waits for {}", self.held))
    }

    /// Whether all of these devices are assignable, or can be taken by xl. What domain 0 has of them is taken from it,
    /// if that is for the daemon to do; that may take seconds, so nobody should wait for something else. `is_named`:
    /// somebody has named the device by its address; one that was chosen is not taken while domain 0 works with it.
    pub fn assign(&mut self, devices: &[Claim], is_named: impl Fn(&str) -> bool, now: Duration) -> bool {
        let others: Vec<&Claim> = devices.iter().filter(|device| !is_assignable(&self.root, &device.name)).collect();
        match self.by {
            By::Tandemd => self.take(&others, is_named, now),
            By::Operator => {
                let awaited: Vec<String> =
                    others.iter().filter(|device| !device.is_seized()).map(|device| device.name.clone()).collect();
                if let Some(line) = self.ask_for(&awaited) {
                    eprintln!("{}: {line}", self.service);
                }
                awaited.is_empty()
            }
        }
    }

    /// What is said of devices that the operator has to make assignable, once.
    fn ask_for(&mut self, awaited: &[String]) -> Option<String> {
        if self.asked == awaited {
            return None;
        }
        self.asked = awaited.to_vec();
        let commands: Vec<String> = awaited.iter().map(|name| format!("`xl pci-assignable-add {name}`")).collect();
        let names = awaited.join(", ");
        (!awaited.is_empty()).then(|| format!("not assignable: {names}; waits for {}", commands.join(" and ")))
    }

    fn take(&mut self, devices: &[&Claim], is_named: impl Fn(&str) -> bool, now: Duration) -> bool {
        if devices.is_empty() {
            return true;
        }
        if now < self.next {
            return false;
        }
        for device in devices {
            let service = &self.service;
            let done = why_not(&self.root, &device.name, is_named(&device.name))
                .and_then(|()| make_assignable(&self.root, service, &device.name));
            match done {
                Ok(()) => eprintln!("{service}: {} is taken from domain 0", device.name),
                Err(error) => {
                    let line = format!("{} cannot be taken from domain 0: {error:#}", device.name);
                    if self.refused.is_due(&line, Instant::now()) {
                        eprintln!("{service}: {line}");
                    }
                    self.next = now + UNTIL_AGAIN;
                    return false;
                }
            }
        }
        true
    }
}

/// Whether the PCI back end has it, for whomever.
fn is_assignable(root: &Path, device: &str) -> bool {
    let driver = std::fs::read_link(root.join(format!("sys/bus/pci/devices/{device}/driver")));
    driver.is_ok_and(|driver| driver.file_name() == Path::new(BACK_END).file_name())
}

/// Fails if domain 0 is to keep it.
fn why_not(root: &Path, device: &str, is_named: bool) -> Result<()> {
    let is_network = || if is_named { None } else { is_up(root, device) };
    match in_use(root, device)?.or_else(is_network).or_else(|| is_open(root, device)) {
        Some(use_of) => anyhow::bail!("{use_of}; domain 0 would lose it"),
        None => Ok(()),
    }
}

fn make_assignable(root: &Path, service: &str, device: &str) -> Result<()> {
    if !root.join("sys").join(BACK_END).exists() {
        let status = Command::new("modprobe").arg(MODULE).status().with_context(|| format!("modprobe {MODULE}"))?;
        anyhow::ensure!(status.success(), "there is no PCI back end: modprobe {MODULE} ended with {status}");
    }
    run_to_its_end(service, &["pci-assignable-add", device], LIMIT)?.map_err(anyhow::Error::msg)
}

/// Whether domain 0 works with this device, and how, so that nobody is given it who has not named it by its address: a
/// disk, or an interface that is up. What is not known is no reason to give it away. Processes are not looked at: many
/// have a disk open for a moment, and who is given another one for that keeps it.
pub fn domain_0_works_with(root: &Path, device: &str) -> Option<String> {
    let words = |how: String| format!("domain 0 works with it: {how}");
    in_use(root, device).unwrap_or_else(|error| Some(format!("{error:#}"))).or_else(|| is_up(root, device)).map(words)
}

/// Its interface that is up, if one is.
fn is_up(root: &Path, device: &str) -> Option<String> {
    const IS_UP: u32 = 1 << 0;
    let class = root.join("sys/class/net");
    let names = std::fs::read_dir(&class).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut own = names.filter(|name| {
        let to = std::fs::read_link(class.join(name)).unwrap_or_default();
        to.iter().any(|part| part == device)
    });
    let flags = |name: &str| {
        let said = std::fs::read_to_string(class.join(name).join("flags")).ok()?;
        u32::from_str_radix(said.trim().strip_prefix("0x")?, 16).ok()
    };
    let up = own.find(|name| flags(name).is_some_and(|flags| flags & IS_UP != 0))?;
    Some(format!("its interface {up} is up; `ip link set {up} down`, or name the device by its address"))
}

/// Whether domain 0 works with a disk of this device's, or with virtual functions of it, and how: to take it away would
/// be to pull those out.
fn in_use(root: &Path, device: &str) -> Result<Option<String>> {
    let functions = std::fs::read_to_string(root.join(format!("sys/bus/pci/devices/{device}/sriov_numvfs")));
    if let Some(count) = functions.ok().and_then(|said| said.trim().parse::<u32>().ok()).filter(|count| *count > 0) {
        return Ok(Some(format!(
            "it has {count} virtual functions, which would go with it; `echo 0 > /sys/bus/pci/devices/{device}/sriov_numvfs` ends them"
        )));
    }
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).context("what is mounted is not known")?;
    let swaps = std::fs::read_to_string(root.join("proc/swaps")).unwrap_or_default();
    let class = root.join(BLOCK);
    for name in disks_of(root, device) {
        let place = class.join(&name);
        let number = std::fs::read_to_string(place.join("dev")).unwrap_or_default();
        if let Some(at) = mounts.lines().find_map(|line| mounted_at(line, number.trim(), &name)) {
            return Ok(Some(format!("its disk {name} is mounted at {at}")));
        }
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(&format!("/dev/{name}"))) {
            return Ok(Some(format!("its disk {name} is swapped to")));
        }
        if let Some(holder) = std::fs::read_dir(place.join("holders")).ok().and_then(|mut holders| holders.next()) {
            return Ok(Some(format!("its disk {name} is used by {}", holder?.file_name().to_string_lossy())));
        }
        if let Some(served) = openers::number_in(&number).and_then(|number| openers::guest_of(root, number)) {
            return Ok(Some(format!("its disk {name} {served}")));
        }
        if let Some(used) = openers::kernel_user_of(root, &name) {
            return Ok(Some(format!("its disk {name} {used}")));
        }
        // Whoever else has it for itself alone, as a file system that is in no such list.
        let opened =
            File::options().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(root.join("dev").join(&name));
        if opened.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
            return Ok(Some(format!("its disk {name} is in use")));
        }
    }
    Ok(None)
}

/// Whether a process has a disk of this device's open, and which.
fn is_open(root: &Path, device: &str) -> Option<String> {
    let number = |name: String| {
        let said = std::fs::read_to_string(root.join(BLOCK).join(&name).join("dev")).ok()?;
        Some((name, openers::number_in(&said)?))
    };
    let (names, numbers): (Vec<String>, Vec<_>) = disks_of(root, device).into_iter().filter_map(number).unzip();
    if numbers.is_empty() {
        return None;
    }
    let (which, how) = openers::process_of(root, &numbers)?;
    Some(format!("its disk {} {how}", names.get(which)?))
}

/// The names of this device's disks, and of their partitions.
fn disks_of(root: &Path, device: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root.join(BLOCK)) else { return Vec::new() };
    let links: Vec<(String, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, std::fs::read_link(entry.path()).ok()?)))
        .collect();
    let is_below = |to: &Path, place: &str| to.iter().any(|part| part == place);
    let own = || links.iter().filter(|(_, to)| is_below(to, device));
    let heads: Vec<String> = own().filter_map(|(name, _)| head_of(name)).collect();
    let others = links.iter().filter(|(_, to)| heads.iter().any(|head| is_below(to, head)));
    own().chain(others).map(|(name, _)| name.clone()).collect()
}

/// The disk of which this is one way (`nvme0c1n1`): that one is no device's.
fn head_of(name: &str) -> Option<String> {
    let (subsystem, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (_, namespace) = rest.split_once('n')?;
    Some(format!("nvme{subsystem}n{namespace}"))
}

/// Where a line of mountinfo (proc(5)) says that a disk is mounted: by its number, or by its name, since some file
/// systems have numbers of their own.
fn mounted_at(line: &str, number: &str, name: &str) -> Option<String> {
    let (mount, of) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    let (its, _root, at) = (mount.next()?, mount.next()?, mount.next()?);
    let source = of.split(' ').nth(1)?;
    (its == number || source == format!("/dev/{name}")).then(|| at.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const NVME: &str = "0000:00:03.0";

    /// A machine with a disk controller, its disk, and a partition of that.
    struct Machine(PathBuf);

    impl Machine {
        fn new(of: &str) -> Self {
            let root = std::env::temp_dir().join(format!("tandemd-assign-{of}-{}", std::process::id()));
            let machine = Self(root);
            for (name, number) in [("nvme0n1", "259:0"), ("nvme0n1p1", "259:1")] {
                machine.write(&format!("sys/devices/pci0000:00/{NVME}/nvme/{name}/dev"), &format!("{number}\n"));
                machine
                    .link(&format!("sys/class/block/{name}"), &format!("../../devices/pci0000:00/{NVME}/nvme/{name}"));
            }
            machine.write("sys/devices/virtual/block/loop0/dev", "7:0\n");
            machine.link("sys/class/block/loop0", "../../devices/virtual/block/loop0");
            machine.write(
                "proc/self/mountinfo",
                "22 1 0:2 / / rw - rootfs rootfs rw\n40 22 7:0 / /mnt rw - ext4 /dev/loop0 rw\n",
            );
            machine.write("proc/swaps", "Filename Type Size Used Priority\n");
            machine.is_driven_by("nvme");
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = std::fs::remove_file(&path);
            symlink(to, path).unwrap();
        }

        fn is_driven_by(&self, driver: &str) {
            self.link(&format!("sys/bus/pci/devices/{NVME}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        }

        fn in_use(&self) -> Option<String> {
            in_use(&self.0, NVME).unwrap()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_disk_that_has_several_ways_is_found() {
        assert_eq!(head_of("nvme0c1n2").as_deref(), Some("nvme0n2"));
        assert_eq!([head_of("nvme0n1"), head_of("sdc1"), head_of("nvme0")], [None, None, None]);
        let machine = Machine::new("ways");
        machine.link("sys/class/block/nvme0c0n1", &format!("../../devices/pci0000:00/{NVME}/nvme/nvme0/nvme0c0n1"));
        let head = "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1";
        machine.write(&format!("sys/{head}/nvme0n1p2/dev"), "259:2\n");
        machine.link("sys/class/block/nvme0n1p2", &format!("../../{head}/nvme0n1p2"));
        machine.write("proc/self/mountinfo", "41 22 259:2 / /var rw - ext4 /dev/nvme0n1p2 rw\n");
        assert_eq!(machine.in_use().as_deref(), Some("its disk nvme0n1p2 is mounted at /var"));
    }

    #[test]
    fn what_the_back_end_has_is_assignable() {
        let machine = Machine::new("has");
        assert!(!is_assignable(&machine.0, NVME));
        machine.is_driven_by("pciback");
        assert!(is_assignable(&machine.0, NVME) && !is_assignable(&machine.0, "0000:00:04.0"));
        let claim = Claim { name: NVME.into(), said: NVME.into(), options: None };
        let mut assigner = Assigner { root: machine.0.clone(), ..Assigner::new("disk", By::Tandemd) };
        assert!(assigner.assign(&[claim], |_| true, Duration::ZERO));
    }

    #[test]
    fn what_nobody_takes_from_domain_0_is_waited_for_and_asked_for_once() {
        let machine = Machine::new("waits");
        let claim = |said: &str| Claim::of(NVME.into(), said.into());
        let mut waits = Assigner { root: machine.0.clone(), ..Assigner::new("disk", By::Operator) };
        assert!(
            !waits.assign(&[claim("00:03.0,permissive=1")], |_| true, Duration::ZERO),
            "xl would not create the domain"
        );
        assert_eq!((waits.asked.as_slice(), waits.next), (&[NVME.to_string()][..], Duration::ZERO));
        assert!(!waits.assign(&[claim("00:03.0,seize=1,seize=0")], |_| true, Duration::ZERO));
        assert!(waits.assign(&[claim("00:03.0,seize=1")], |_| true, Duration::ZERO), "xl takes it itself");
        assert!(waits.assign(&[], |_| true, Duration::ZERO) && waits.asked.is_empty());
        machine.is_driven_by("pciback");
        assert!(waits.assign(&[claim("00:03.0")], |_| true, Duration::ZERO), "the back end has it");

        let [one, other] = ["0000:00:03.0", "0000:00:04.0"].map(String::from);
        let said = waits.ask_for(&[one.clone(), other.clone()]).unwrap();
        assert_eq!(
            said,
            "not assignable: 0000:00:03.0, 0000:00:04.0; waits for `xl pci-assignable-add 0000:00:03.0` and `xl pci-assignable-add 0000:00:04.0`"
        );
        assert_eq!(waits.ask_for(&[one.clone(), other]), None);
        assert!(waits.ask_for(std::slice::from_ref(&one)).unwrap().starts_with("not assignable: 0000:00:03.0; "));
        assert_eq!(waits.ask_for(&[]), None);
        assert!(waits.ask_for(&[one]).is_some(), "domain 0 has taken it again");
    }

    #[test]
    fn a_disk_that_domain_0_works_with_is_not_taken_from_it() {
        let machine = Machine::new("use");
        assert_eq!(machine.in_use(), None);
        let claim = Claim { name: NVME.into(), said: NVME.into(), options: None };
        let mounted = "41 22 259:1 / /home rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n";
        machine.write("proc/self/mountinfo", mounted);
        assert_eq!(machine.in_use().as_deref(), Some("its disk nvme0n1p1 is mounted at /home"));
        let mut assigner = Assigner { root: machine.0.clone(), ..Assigner::new("disk", By::Tandemd) };
        assert!(!assigner.assign(std::slice::from_ref(&claim), |_| true, Duration::from_secs(5)));
        assert_eq!(assigner.next, Duration::from_secs(5) + UNTIL_AGAIN);
        // It is not looked again before.
        machine.write("proc/self/mountinfo", "");
        assert!(!assigner.assign(std::slice::from_ref(&claim), |_| true, Duration::from_secs(6)));
        assert_eq!(assigner.next, Duration::from_secs(5) + UNTIL_AGAIN);
        machine.write("proc/self/mountinfo", "42 22 0:31 /@ /srv rw - btrfs /dev/nvme0n1 rw\n");
        assert_eq!(machine.in_use().as_deref(), Some("its disk nvme0n1 is mounted at /srv"));
        machine.write("proc/self/mountinfo", "");
        machine.write("proc/swaps", "Filename Type\n/dev/nvme0n1p1 partition 4 0 -2\n");
        assert_eq!(machine.in_use().as_deref(), Some("its disk nvme0n1p1 is swapped to"));
        machine.write("proc/swaps", "");
        machine.write(&format!("sys/devices/pci0000:00/{NVME}/nvme/nvme0n1p1/holders/dm-0"), "");
        assert_eq!(machine.in_use().as_deref(), Some("its disk nvme0n1p1 is used by dm-0"));
    }

    #[test]
    fn a_disk_under_a_loop_device_is_in_use() {
        let machine = Machine::new("loop");
        let backing_file = "sys/devices/virtual/block/loop0/loop/backing_file";
        machine.write(backing_file, "/srv/dev/nvme0n1p1\n");
        assert_eq!(machine.in_use(), None, "it is of a file");
        machine.write(backing_file, "/dev/nvme0n1p1\n");
        let why = "its disk nvme0n1p1 is the loop device loop0";
        assert_eq!(machine.in_use().as_deref(), Some(why));
        assert!(why_not(&machine.0, NVME, true).unwrap_err().to_string().starts_with(why));
    }

    #[test]
    fn a_disk_that_domain_0_serves_to_a_guest_is_not_taken_from_it() {
        let machine = Machine::new("serves");
        machine.write("sys/bus/xen-backend/devices/vbd-7-51712/physical_device", "8:1\n");
        assert_eq!(machine.in_use(), None, "it is another disk");
        // 259:1, as blkback says it.
        machine.write("sys/bus/xen-backend/devices/vbd-12-51728/physical_device", "103:1\n");
        let why = "its disk nvme0n1p1 is served to domain 12 by domain 0, as its vbd 51728";
        assert_eq!(machine.in_use().as_deref(), Some(why));
        assert_eq!(domain_0_works_with(&machine.0, NVME), Some(format!("domain 0 works with it: {why}")));
        let claim = Claim::of(NVME.into(), NVME.into());
        let mut assigner = Assigner { root: machine.0.clone(), ..Assigner::new("disk", By::Tandemd) };
        assert!(!assigner.assign(&[claim], |_| true, Duration::ZERO));
    }

    #[test]
    fn a_chosen_card_that_has_come_up_meanwhile_is_not_taken() {
        let machine = Machine::new("up");
        const CARD: &str = "0000:00:04.0";
        let flags = format!("sys/devices/pci0000:00/{CARD}/net/eth0/flags");
        machine.write(&flags, "0x1002\n");
        machine.link("sys/class/net/eth0", &format!("../../devices/pci0000:00/{CARD}/net/eth0"));
        assert!(why_not(&machine.0, CARD, false).is_ok(), "it is down");
        machine.write(&flags, "0x1003\n");
        let why = why_not(&machine.0, CARD, false).unwrap_err().to_string();
        assert!(why.contains("its interface eth0 is up; `ip link set eth0 down`"), "{why}");
        assert!(why_not(&machine.0, CARD, true).is_ok(), "who has named it means it");
        let claim = Claim::of(CARD.into(), CARD.into());
        let mut assigner = Assigner { root: machine.0.clone(), ..Assigner::new("net", By::Tandemd) };
        assert!(!assigner.assign(&[claim], |_| false, Duration::ZERO));
        assert_eq!(assigner.next, UNTIL_AGAIN);
        let said = format!("{CARD} cannot be taken from domain 0: {why}");
        assert!(!assigner.refused.is_due(&said, Instant::now()), "it was said, and is not said every time");
    }

    #[test]
    fn a_device_that_another_domain_has_is_waited_for_and_that_is_said_once() {
        let mut assigner = Assigner::new("net", By::Tandemd);
        let held = |devices: &[&str]| -> Vec<(String, String)> {
            devices.iter().map(|device| ((*device).to_string(), "domain 7 (`test`)".to_string())).collect()
        };
        assert_eq!(assigner.wait_for(&[]), None);
        let one = held(&[NVME]);
        assert!(!assigner.are_free(&one));
        assert_eq!(assigner.wait_for(&one), None);
        let said = assigner.wait_for(&held(&[NVME, "0000:00:04.0"])).unwrap();
        assert_eq!(
            said,
            "waits for 0000:00:03.0, which domain 7 (`test`) has, and for 0000:00:04.0, which domain 7 (`test`) has"
        );
        assert!(assigner.are_free(&[]) && assigner.wait_for(&one).is_some(), "it has it again");
    }

    #[test]
    fn a_function_that_has_virtual_ones_is_not_taken() {
        let machine = Machine::new("functions");
        let place = format!("sys/bus/pci/devices/{NVME}/sriov_numvfs");
        machine.write(&place, "0\n");
        assert_eq!(machine.in_use(), None);
        machine.write(&place, "4\n");
        let why = machine.in_use().unwrap();
        assert!(
            why.starts_with("it has 4 virtual functions") && why.contains(&format!("/{NVME}/sriov_numvfs")),
            "{why}"
        );
    }
}
