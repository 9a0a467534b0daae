//! What the operator says of a driver domain that is looked after, and what its own configuration says.

use super::choice::Wants;
use super::driver::{self, Own};
use super::files;
use super::options::{Options, FOR_ALL};
use super::xl_config::value_of;
use anyhow::{bail, ensure, Context, Result};
use control::Image;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Usual limits of what is not taken, for interfaces and for disks, whose drivers have some of their own: half a minute
/// in Linux.
const UNDRAINED_MS: u64 = 10_000;
pub const UNDRAINED_DISK_MS: u64 = 60_000;
/// Usual limit of a disk's request that looks lost. A medium may hold one back while it does others: Linux' SCSI layer
/// tries for three minutes.
const OVERDUE_MS: u64 = 300_000;

/// So long twind may be silent at least: to make a twin takes ten seconds and more, in which it does not answer.
const LEAST_TWIND_S: u64 = 10;
/// Why there can be no second instance that waits, or is tried: it could take over nothing.
const NO_DEVICE: &str = "it has no device (`pci = []`), and what it has of other domains does not change hands";
/// No time is longer: what is counted from now on ends.
const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;
/// Nobody is restarted for its age sooner.
const LEAST_RENEW_S: u64 = 60;

/// `[service.NAME.supervise]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// The driver domain's configuration, as `xl create` takes it. Without it the next six say what the driver domain
    /// is.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// The devices that it has: by address, by vendor and device, or by kind.
    #[serde(default)]
    pub device: Option<Wants>,
    /// Files of its kernel and its initramfs, and its kernel's command line.
    #[serde(default)]
    pub kernel: Option<String>,
    /// See `kernel`.
    #[serde(default)]
    pub ramdisk: Option<String>,
    /// See `kernel`.
    #[serde(default)]
    pub extra: Option<String>,
    /// Its memory, and its processors.
    #[serde(default)]
    pub memory_mib: Option<u32>,
    /// See `memory_mib`.
    #[serde(default)]
    pub vcpus: Option<u32>,
    /// Its devices are taken from domain 0 when it is to be started, and whenever one comes into the machine. If
    /// nothing is said: where this section names them.
    #[serde(default)]
    pub assign: Option<bool>,
    /// Whether it is started again. If not, what is left of it is cleared away, and its service is parked.
    #[serde(default = "yes")]
    pub restart: bool,
    /// So many failures within `within-s` seconds are borne; at the next one its service is parked.
    #[serde(default = "Settings::crashes")]
    pub crashes: u32,
    /// See `crashes`.
    #[serde(default = "Settings::within_s")]
    pub within_s: u64,
    /// The first start after a failure is at once. Before the second within the time it waits so long, then twice as
    /// long each time.
    #[serde(default = "Settings::back_off_ms")]
    pub back_off_ms: u64,
    /// So long after its start its interface has to be there.
    #[serde(default = "Settings::ready_s")]
    pub ready_s: u64,
    /// So long after it got its devices one whose kernel ran by then (it waited, or was rolled back) has to have turned
    /// them on.
    #[serde(default = "Settings::probe_s")]
    pub probe_s: u64,
    /// So long after it said that its link was up the interface of such a one has to be the way out.
    #[serde(default = "Settings::connect_s")]
    pub connect_s: u64,
    /// It fails when one of its processors has run so long without taking an event that waits; 0: never.
    #[serde(default = "Settings::wedged_ms")]
    pub wedged_ms: u64,
    /// It fails when it has taken nothing of what waits for the outside for so long, or has answered nothing of what
    /// disks were asked for; 0: never.
    #[serde(default)]
    pub undrained_ms: Option<u64>,
    /// It fails when a disk's request has looked lost for so long, though others are answered; 0: never.
    #[serde(default)]
    pub overdue_ms: Option<u64>,
    /// It fails when nothing has come from outside for so long, though packets went there and some had come before; 0:
    /// never.
    #[serde(default)]
    pub silent_ms: u64,
    /// It fails when an IOMMU stops a device of its that reaches for memory that is not its own.
    #[serde(default = "yes")]
    pub dma_faults: bool,
    /// One that has been of use for so long is replaced, as by `twinctl restart`; 0: never.
    #[serde(default)]
    pub renew_s: u64,
    /// One that has told of less memory than this for `least-free-s` seconds is replaced so, too; 0: never.
    #[serde(default)]
    pub least_free_kib: u64,
    /// See `least_free_kib`.
    #[serde(default = "Settings::least_free_s")]
    pub least_free_s: u64,
    /// So long after one was replaced for want of memory the next one stays, whatever it tells; twice as long each time
    /// after it.
    #[serde(default = "Settings::renew_pause_s")]
    pub renew_pause_s: u64,
    /// 1: another instance is kept that has booted and waits for the devices, to take its place when it fails.
    #[serde(default, deserialize_with = "at_most_one")]
    pub standby: u8,
    /// Each instance is noted when it has booted, before it gets the devices, and is rolled back to that when it fails.
    #[serde(default)]
    pub snapshot: bool,
    /// What is noted is kept compressed.
    #[serde(default)]
    pub compress: bool,
    /// Who resets its devices when another instance gets them.
    #[serde(default)]
    pub reset: Reset,
    /// Who answers what its kernel asks of its devices' configuration space, and of their messages, when it gets them
    /// from `tandemd`.
    #[serde(default)]
    pub pci_answers: Answers,
    /// The links of its interfaces are kept when another instance gets them.
    #[serde(default)]
    pub keep_link: bool,
    /// Its driver has a twin: the way out is to be its card, and it is said when that does not come.
    #[serde(default)]
    pub twin: bool,
    /// One whose twind has not answered for so long, though it had before, is replaced; 0: never.
    #[serde(default = "Settings::twind_s")]
    pub twind_s: u64,
    /// A twin that was aborted is loaded again, unless that was so often within a minute; 0: none is.
    #[serde(default = "Settings::twin_aborts")]
    pub twin_aborts: u32,
}

/// Who resets devices that change hands.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Reset {
    /// The hypervisor, by the device's own registers; if it does not know how, or they are not enough, the PCI back
    /// end.
    #[default]
    IfNeeded,
    /// Domain 0's PCI back end, when it lets go of one: a function-level reset takes a tenth of a second.
    BackEnd,
    /// The driver of the next instance, before the device is told anything else.
    Driver,
}

/// Who answers a domain's PCI front end.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// The hypervisor, where it can.
    #[default]
    Hypervisor,
    /// Domain 0's PCI back end.
    BackEnd,
}

fn yes() -> bool {
    true
}

fn at_most_one<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    let count = u8::deserialize(from)?;
    if count > 1 {
        return Err(serde::de::Error::custom("`standby` is 0 or 1"));
    }
    Ok(count)
}

/// A device that a driver domain claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As Linux names it.
    pub name: String,
    /// As its configuration says it, with options; those for all devices, too.
    pub said: String,
    /// Those; `None`: for xl to understand.
    pub options: Option<Options>,
}

impl Claim {
    /// The device of this name, as a configuration says it.
    pub fn of(name: String, said: String) -> Self {
        let options = Options::of(&said);
        Self { name, said, options }
    }

    /// Whether xl takes it from domain 0 itself when it creates the domain (`seize`, xl-pci-configuration(5)). Of
    /// several the last counts.
    pub fn is_seized(&self) -> bool {
        let words = self.said.split(',').skip(1).filter_map(|word| word.split_once('='));
        let said = words.filter(|(key, _)| key.trim() == "seize").last();
        said.and_then(|(_, value)| value.trim().parse::<i32>().ok()).is_some_and(|number| number != 0)
    }
}

impl Settings {
    fn crashes() -> u32 {
        5
    }

    fn within_s() -> u64 {
        600
    }

    fn back_off_ms() -> u64 {
        1000
    }

    fn ready_s() -> u64 {
        120
    }

    fn probe_s() -> u64 {
        30
    }

    fn connect_s() -> u64 {
        10
    }

    /// Somewhat less than half a second, so that it is over when guests hear of it.
    fn wedged_ms() -> u64 {
        450
    }

    /// How long nothing is taken until it fails, in ms; 0: any time.
    pub fn undrained_ms(&self) -> u64 {
        self.undrained_ms.unwrap_or(UNDRAINED_MS)
    }

    /// How long a disk's request looks lost until it fails, in ms; 0: any time.
    pub fn overdue_ms(&self) -> u64 {
        self.overdue_ms.unwrap_or(OVERDUE_MS)
    }

    fn least_free_s() -> u64 {
        10
    }

    fn renew_pause_s() -> u64 {
        600
    }

    /// How long its twind may be silent; 0: any time.
    pub fn silent_twind_s(&self) -> u64 {
        if self.twin {
            self.twind_s
        } else {
            0
        }
    }

    /// How many aborts of its twin within a minute are too many; 0: it is not loaded again.
    pub fn most_aborts(&self) -> u32 {
        if self.twin {
            self.twin_aborts
        } else {
            0
        }
    }

    fn twind_s() -> u64 {
        60
    }

    fn twin_aborts() -> u32 {
        3
    }

    /// Whether what it says of the driver domain can be, wherever that is.
    pub fn check(&self) -> Result<()> {
        Own::of(self).map(|_| ())
    }

    /// Whether what is not said there is here as it is usual, but for devices and files.
    #[cfg(test)]
    pub fn is_as(&self, usual: &Self) -> bool {
        let of = |settings: &Self| {
            let own = Own::of(settings).unwrap().unwrap();
            (own.usual(), settings.assigns())
        };
        of(self) == of(usual)
    }

    /// Its devices are taken from domain 0.
    pub fn assigns(&self) -> bool {
        self.assign.unwrap_or(self.config.is_none())
    }

    /// The driver domain's configuration for the toolstack, whoever has written it.
    pub fn config_of(&self, driver: &str) -> PathBuf {
        self.config.clone().unwrap_or_else(|| driver::path_of(driver))
    }

    /// Looks at what the driver domain is, whose name is to be `driver`: the devices that it claims by their addresses.
    pub fn claims(&self, driver: &str) -> Result<Vec<Claim>> {
        ensure!(self.ready_s > 0, "`ready-s = 0`: it could never be ready");
        ensure!(self.probe_s > 0, "`probe-s = 0`: no driver would ever be fast enough");
        ensure!(self.connect_s > 0, "`connect-s = 0`: no interface would ever be fast enough");
        ensure!(self.within_s > 0, "`within-s = 0`: no failure would count");
        ensure!(
            self.renew_s == 0 || self.renew_s >= LEAST_RENEW_S,
            "`renew-s = {}`: it would be restarted before it is of use; {LEAST_RENEW_S} is the least, and 0 is never",
            self.renew_s
        );
        ensure!(
            self.renew_pause_s > 0,
            "`renew-pause-s = 0`: one that always has too little memory would be restarted without an end"
        );
        ensure!(
            self.twind_s == 0 || self.twind_s >= LEAST_TWIND_S,
            "`twind-s = {}`: it makes twins meanwhile, which takes longer; {LEAST_TWIND_S} is the least, and 0 is never",
            self.twind_s
        );
        for (key, said, unit_ms) in self.times() {
            ensure!(said <= YEAR_MS / unit_ms, "`{key} = {said}`: that is longer than a year");
        }
        if let Some(own) = Own::of(self)? {
            return Ok(own.claims_by_address());
        }
        let Some((config, text)) = self.text()? else { return Ok(Vec::new()) };
        let place = config.display();
        if self.standby > 0 {
            may_be_two(&text).with_context(|| format!("`standby = {}`: {place}", self.standby))?;
        }
        let devices = devices_in(&text, driver, config)?;
        for (key, is_said) in [("standby", self.standby > 0), ("snapshot", self.snapshot)] {
            ensure!(!is_said || !devices.is_empty(), "`{key}`: {place}: {NO_DEVICE}");
        }
        Ok(devices)
    }

    /// All times that are said, and their units in ms.
    fn times(&self) -> [(&'static str, u64, u64); 13] {
        [
            ("within-s", self.within_s, 1000),
            ("back-off-ms", self.back_off_ms, 1),
            ("ready-s", self.ready_s, 1000),
            ("probe-s", self.probe_s, 1000),
            ("connect-s", self.connect_s, 1000),
            ("wedged-ms", self.wedged_ms, 1),
            ("undrained-ms", self.undrained_ms(), 1),
            ("overdue-ms", self.overdue_ms(), 1),
            ("silent-ms", self.silent_ms, 1),
            ("renew-s", self.renew_s, 1000),
            ("least-free-s", self.least_free_s, 1000),
            ("renew-pause-s", self.renew_pause_s, 1000),
            ("twind-s", self.twind_s, 1000),
        ]
    }

    /// Whether the files are there of which it is made, but for those that the image has instead. One that runs needs
    /// none of them, so this is no matter of [`Self::claims`].
    pub fn has_files(&self, image: &Image) -> Result<()> {
        match (Own::of(self)?, &self.config) {
            (Some(own), _) => own.has_files(image),
            (None, Some(config)) => files::missing(config, image).config.map_or(Ok(()), |why| bail!("{why}")),
            (None, None) => Ok(()),
        }
    }

    /// Domains that are to serve it, by the names that its configuration has for the back ends of its interfaces and
    /// disks.
    pub fn back_ends(&self) -> Result<BTreeSet<String>> {
        Ok(self.text()?.map(|(_, text)| back_ends_in(&text)).unwrap_or_default())
    }

    /// The operator's configuration of the driver domain, if there is one.
    fn text(&self) -> Result<Option<(&Path, String)>> {
        let Some(config) = self.config.as_deref() else { return Ok(None) };
        let place = config.display();
        ensure!(config.is_absolute(), "`config`: `{place}` is no whole path: it has to begin with /");
        let text =
            std::fs::read_to_string(config).with_context(|| format!("the driver domain's configuration {place}"))?;
        Ok(Some((config, text)))
    }

    /// Whether one with this image can be tried: it runs beside the one that is there, and the toolstack heeds all that
    /// the image says beside the driver domain's configuration.
    pub fn can_be_tried(&self, image: &Image) -> Result<()> {
        // What is written here names no disk, and nothing for which xl ignores an image.
        let Some((config, text)) = self.text()? else { return Ok(()) };
        let has_device = || {
            ensure!(!strings_of(&text, "pci").is_empty(), "{NO_DEVICE}: say it there, and then `twinctl restart`");
            Ok(())
        };
        let may_be = may_be_two(&text).and_then(|()| has_device()).and_then(|()| heeds(&text, image));
        may_be.with_context(|| config.display().to_string())
    }
}

/// Whether one of this configuration may run beside another one of it, by what it says now.
pub fn may_run_beside(config: &Path) -> Result<()> {
    let text = std::fs::read_to_string(config).with_context(|| format!("cannot read {}", config.display()))?;
    may_be_two(&text).with_context(|| config.display().to_string())
}

/// Two domains of this configuration may run at a time: they write to no disk. The file system of one that both have
/// mounted is lost, and not all of xl's scripts see to that (xl-disk-configuration(5)).
fn may_be_two(text: &str) -> Result<()> {
    let is_read_only = |disk: &String| {
        // What is behind that is the file's name, commas and all (xl-disk-configuration(5)).
        let words = || disk.split(',').map(str::trim).take_while(|word| !word.starts_with("target="));
        words().any(|word| matches!(word, "access=r" | "access=ro" | "devtype=cdrom" | "cdrom"))
            || words().skip(1).any(|word| matches!(word, "r" | "ro") || word.ends_with(":cdrom"))
    };
    match strings_of(text, "disk").into_iter().find(|disk| !is_read_only(disk)) {
        Some(disk) => bail!(
            "two domains would write to the disk `{disk}`, which destroys what is on it: give it without the right to write (`r`), and a root in memory"
        ),
        None => Ok(()),
    }
}

/// The lines of an image come after those of the configuration, and so count; unless xl does not look at them
/// (xl.cfg(5), `bootloader`, `cmdline`).
fn heeds(text: &str, image: &Image) -> Result<()> {
    let is_said = |key: &str| value_of(text, key).is_some();
    for (key, value) in image.parts() {
        let by = if key == "extra" { "cmdline" } else { "bootloader" };
        ensure!(value.is_none() || !is_said(by), "it says `{by}`, for which xl ignores `{key}`");
    }
    Ok(())
}

fn devices_in(text: &str, driver: &str, path: &Path) -> Result<Vec<Claim>> {
    let place = path.display();
    match strings_of(text, "name").as_slice() {
        [name] if name == driver => {}
        [name] => bail!("{place}: the domain's name is `{name}`, not `{driver}`"),
        _ => bail!("{place}: there is no `name = \"{driver}\"`"),
    }
    let claimed = value_of(text, "pci").map(|value| value.strings).with_context(|| {
        format!(
            "{place}: there is no `pci = [...]`: a driver domain has a device; one that works without says `pci = []`"
        )
    })?;
    let is_set = |key: &str| value_of(text, key).and_then(|value| value.number).is_some_and(|number| number != 0);
    let for_all: Vec<String> = FOR_ALL.iter().filter(|(key, _)| is_set(key)).map(|(_, one)| (*one).into()).collect();
    let claim = |mut said: String| {
        let name = address(&said).with_context(|| format!("{place}: `{said}` is no PCI device"))?;
        for option in for_all.iter().filter(|option| !has_option(&said, option)).collect::<Vec<_>>() {
            said.push_str(&format!(",{option}=1"));
        }
        Ok(Claim::of(name, said))
    };
    claimed.into_iter().map(claim).collect()
}

fn back_ends_in(text: &str) -> BTreeSet<String> {
    let said = ["vif", "disk"].into_iter().flat_map(|key| strings_of(text, key));
    let named = |said: String| {
        // What is behind that is a file's name, commas and all (xl-disk-configuration(5)).
        let words = said.split(',').map(str::trim).take_while(|word| !word.starts_with("target="));
        words.filter_map(|word| word.strip_prefix("backend=")).map(|name| name.trim().to_string()).collect::<Vec<_>>()
    };
    said.flat_map(named).collect()
}

/// Whether one of a device's options is that.
fn has_option(said: &str, option: &str) -> bool {
    said.split(',')
        .any(|word| word.trim_start().strip_prefix(option).is_some_and(|rest| rest.trim_start().starts_with('=')))
}

/// The strings that are said of a key.
fn strings_of(text: &str, key: &str) -> Vec<String> {
    value_of(text, key).unwrap_or_default().strings
}

/// `[DDDD:]BB:SS.F`, with `bdf=` before it, `@SLOT` or `,OPTION` behind it or without; as Linux names it.
pub(super) fn address(said: &str) -> Option<String> {
    let said = said.strip_prefix("bdf=").unwrap_or(said);
    let name = said.split([',', '@', '=']).next()?.trim().to_ascii_lowercase();
    let (rest, function) = name.rsplit_once('.')?;
    let (rest, slot) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let number = |text: &str, limit: u32| u32::from_str_radix(text, 16).ok().filter(|n| *n < limit);
    let (domain, bus) = (number(domain, 1 << 16)?, number(bus, 1 << 8)?);
    Some(format!("{domain:04x}:{bus:02x}:{:02x}.{}", number(slot, 32)?, number(function, 8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "type=\"pv\"\nname = 'dd' # not \"x\"\n#pci=['00:01.0']\npci = [ '00:03.0,permissive=1',\n \"0000:0A:1f.7@5\" ]\nvif=['backend=net']\n";

    fn devices(text: &str) -> Result<Vec<String>> {
        let claims = devices_in(text, "dd", Path::new("/etc/xen/dd.cfg"))?;
        Ok(claims.into_iter().map(|claim| claim.name).collect())
    }

    #[test]
    fn the_devices_are_found() {
        assert_eq!(devices(TEXT).unwrap(), ["0000:00:03.0", "0000:0a:1f.7"]);
        assert_eq!(address("bdf=01:00.0,permissive=1").as_deref(), Some("0000:01:00.0"));
    }

    #[test]
    fn statements_are_parted_by_lines_and_by_semicolons_and_may_add_to_others() {
        let text = "name='dd'; pci=['00:03.0'] ; memory = 256\npci += [ '00:04.0' ]; pci_permissive=1";
        assert_eq!(devices(text).unwrap(), ["0000:00:03.0", "0000:00:04.0"]);
        let image = Image { extra: Some("quiet".into()), ..Image::default() };
        assert!(heeds("memory=1; cmdline='x'", &image).is_err());
    }

    #[test]
    fn what_is_said_for_all_devices_is_said_for_each() {
        let said = |text: &str| -> Vec<String> {
            let claims = devices_in(text, "dd", Path::new("/etc/xen/dd.cfg")).unwrap();
            claims.into_iter().map(|claim| claim.said).collect()
        };
        assert_eq!(said(TEXT), ["00:03.0,permissive=1", "0000:0A:1f.7@5"]);
        let text =
            format!("pci_permissive=1\npci_msitranslate = \"0\"\n{}", TEXT.replace("permissive=1", "permissive=0"));
        assert_eq!(said(&text), ["00:03.0,permissive=0", "0000:0A:1f.7@5,permissive=1"]);
        let seized = |text: &str| {
            let claims = devices_in(text, "dd", Path::new("/etc/xen/dd.cfg")).unwrap();
            claims.iter().map(Claim::is_seized).collect::<Vec<_>>()
        };
        assert_eq!(seized(TEXT), [false, false]);
        assert_eq!(
            seized("name='dd'; pci_seize=1; pci=['00:03.0', '00:04.0,seize=0', '00:05.0@5']"),
            [true, false, true]
        );
    }

    #[test]
    fn an_image_that_xl_would_not_look_at_is_refused() {
        let image = |kernel: bool, ramdisk: bool, extra: bool| {
            let said = |is_said: bool| is_said.then(|| "/x".to_string());
            Image { kernel: said(kernel), ramdisk: said(ramdisk), extra: said(extra) }
        };
        let refused = |text: &str, image: &Image| heeds(text, image).err().map(|error| error.to_string());
        assert_eq!(refused("kernel='/k'\nextra='quiet'\nroot='/dev/xvda1'", &image(true, true, true)), None);
        let boots = "#cmdline='x'\nbootloader = 'pygrub'\nbootloader_args=['-q']";
        assert_eq!(refused(boots, &image(false, false, true)), None, "it is told of that");
        assert!(refused(boots, &image(true, false, false))
            .unwrap()
            .contains("`bootloader`, for which xl ignores `kernel`"));
        assert!(refused(boots, &image(false, true, false)).unwrap().contains("`ramdisk`"));
        assert!(refused("cmdline=''", &image(true, false, true))
            .unwrap()
            .contains("`cmdline`, for which xl ignores `extra`"));
        assert_eq!(refused("cmdline=''", &image(true, true, false)), None);
        assert_eq!(refused(&format!("{boots}\ncmdline='x'"), &Image::default()), None, "as configured");
        let nowhere = Settings { config: Some("/nowhere/dd.cfg".into()), ..settings() };
        assert!(format!("{:#}", nowhere.can_be_tried(&Image::default()).unwrap_err()).contains("/nowhere/dd.cfg"));
    }

    #[test]
    fn two_domains_do_not_write_to_one_disk() {
        let of = |disks: &str| may_be_two(&format!("name='dd'\ndisk = [{disks}]\n"));
        for disk in [
            "'/var/lib/xen/dd.img,raw,xvda,r'",
            "'/dev/vg/dd, , xvda, ro'",
            "'format=raw, vdev=xvda, access=ro, target=/dev/vg/dd'",
            "'access=r,vdev=xvda,target=/dev/vg/dd'",
            "'/iso,,hdc,cdrom'",
            "'file:/iso,hdc:cdrom,r'",
            "",
        ] {
            of(disk).unwrap_or_else(|error| panic!("{disk}: {error}"));
        }
        for disk in [
            "'/var/lib/xen/dd.img,raw,xvda,w'",
            "'/var/lib/xen/dd.img,raw,xvda'",
            "'format=raw, vdev=xvda, access=rw, target=/dev/vg/r'",
            "'r,raw,xvda,rw'",
            "'/a,raw,xvda,r', 'phy:/dev/vg/dd,xvdb,w'",
        ] {
            assert!(of(disk).unwrap_err().to_string().contains("two domains would write"), "{disk}");
        }
        may_be_two("name='dd'").unwrap();
        for two in [
            "disk += ['/a,raw,xvda,w']",
            "disk = ['/b,raw,xvdb,r']\ndisk += ['/a,raw,xvda,w']",
            "disk = ['/a,raw,xvda,w']\ndisk += ['/b,raw,xvdb,r']",
            "disk+=['/b,raw,xvdb,r']; disk+=['/a,raw,xvda,w']",
            "memory = 256; disk = ['/a,raw,xvda,w']",
            "memory=256;vcpus=1;disk=['/a,raw,xvda,w'];",
            "name = 'a;b'; disk = [ '/iso,,hdc,cdrom', # ]\n '/a,raw,xvda,w' ]",
            "disk = ['/b]#,raw,xvdb,r', '/a,raw,xvda,w']",
            "disk =\n\n[ '/a,raw,xvda,w' ]",
            "disk = ['/it\\'s,raw,xvdb,r', '/a,raw,xvda,w']",
            "disk = ['format=raw,vdev=xvda,target=/dev/vg/a,access=r']",
        ] {
            assert!(may_be_two(two).is_err(), "{two}");
        }
        for one in [
            "disk = ['/a,raw,xvda,w']; disk = ['/b,raw,xvdb,r']",
            "disk = ['/b,raw,xvdb,r']; disk += []",
            "# disk += ['/a,raw,xvda,w']",
            "extra = \"disk = ['/a,raw,xvda,w']\"",
            "extra = 'x; disk += y'; disk = ['/b,raw,xvdb,r']",
            "mydisk = ['/a,raw,xvda,w']",
        ] {
            may_be_two(one).unwrap_or_else(|error| panic!("{one}: {error}"));
        }
        // Of one that runs alone it is no matter.
        let path = std::env::temp_dir().join(format!("tandemd-two-{}.cfg", std::process::id()));
        std::fs::write(&path, "name='dd'\npci=['00:03.0']\ndisk=['/dd.img,raw,xvda,w']").unwrap();
        let alone = Settings { config: Some(path.clone()), ..settings() };
        assert_eq!(alone.claims("dd").unwrap().len(), 1);
        let said = format!("{:#}", Settings { standby: 1, ..alone.clone() }.claims("dd").unwrap_err());
        assert!(said.starts_with("`standby = 1`: ") && said.contains("/dd.img"), "{said}");
        assert!(alone.can_be_tried(&Image::default()).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_may_work_without_a_device_if_it_says_so() {
        assert_eq!(devices("name='dd'\npci=[]\nvif=['backend=net']").unwrap(), [""; 0]);
        let path = std::env::temp_dir().join(format!("tandemd-bare-{}.cfg", std::process::id()));
        std::fs::write(&path, "name='dd'\npci=[]\nvif=['backend=net']").unwrap();
        let bare = Settings { config: Some(path.clone()), ..settings() };
        assert!(bare.claims("dd").unwrap().is_empty());
        for beside in [Settings { standby: 1, ..bare.clone() }, Settings { snapshot: true, ..bare.clone() }] {
            let said = format!("{:#}", beside.claims("dd").unwrap_err());
            assert!(said.contains("it has no device"), "{said}");
        }
        let said = format!("{:#}", bare.can_be_tried(&Image::default()).unwrap_err());
        assert!(said.contains("it has no device") && said.contains("twinctl restart"), "{said}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_serves_it_is_found() {
        let of = |text: &str| back_ends_in(text).into_iter().collect::<Vec<_>>();
        let text = "vif = ['mac=00:16:3e:00:00:02,backend=net', 'backend=lab, bridge=x', 'bridge=xenbr0']\n\
            disk = ['format=raw,vdev=xvda,access=r,backend=disk,target=/a,backend=none', '/b,raw,xvdb,r']";
        assert_eq!(of(text), ["disk", "lab", "net"]);
        assert!(of("name='dd'\npci=['00:03.0']").is_empty());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |text: &str| format!("{:#}", devices(text).unwrap_err());
        assert!(said(&TEXT.replace("'dd'", "'other'")).contains("`other`, not `dd`"));
        assert!(said("pci=['00:03.0']").contains("no `name"));
        assert!(said("name='dd'").contains("one that works without says `pci = []`"));
        for wrong in ["", "3.0", "00:03", "00:03.8", "00:20.0", "100:03.0", "rdm_strategy=host", "0:0:0:0.0"] {
            assert!(said(&format!("name='dd'\npci=['{wrong}']")).contains("no PCI device"), "{wrong}");
        }
        let nowhere = Settings { config: Some("/nowhere/dd.cfg".into()), ..settings() };
        assert!(format!("{:#}", nowhere.claims("dd").unwrap_err()).contains("/nowhere/dd.cfg"));
    }

    fn settings() -> Settings {
        toml::from_str("config = \"/etc/xen/dd.cfg\"").unwrap()
    }

    #[test]
    fn what_is_not_said_is_usual() {
        let settings = settings();
        assert!(
            settings.restart && !settings.twin && settings.standby == 0 && !settings.snapshot && settings.dma_faults
        );
        assert!(toml::from_str::<Settings>("config = \"/d\"\nstandby = 2").unwrap_err().to_string().contains("0 or 1"));
        assert_eq!((settings.crashes, settings.within_s, settings.wedged_ms), (5, 600, 450));
        assert_eq!(settings.reset, Reset::IfNeeded);
        for (word, reset) in [("if-needed", Reset::IfNeeded), ("back-end", Reset::BackEnd), ("driver", Reset::Driver)] {
            assert_eq!(
                toml::from_str::<Settings>(&format!("config = \"/d\"\nreset = \"{word}\"")).unwrap().reset,
                reset
            );
        }
        assert!(toml::from_str::<Settings>("config = \"/d\"\nreset = \"none\"").is_err());
    }
}
