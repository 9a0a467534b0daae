//! Linux's own driver takes the card back after a twin: does it, and what if not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const NETS: &str = "/sys/class/net";
/// How long the link may take, and an interface until it is there.
const LINK: Duration = Duration::from_secs(6);
/// So long nothing may come from outside, though guests ask all the time.
const SILENCE: Duration = Duration::from_secs(2);
/// One packet may be of this domain's own.
const FEW: u64 = 2;
const LOOK: Duration = Duration::from_millis(5);

/// A card's interface, and the one by which its packets go to the switch.
#[derive(Debug)]
pub struct Way {
    card: String,
    uplink: String,
}

impl Way {
    /// From interface `card` to the domain's own at the switch, number `vif`. Errors: in words.
    pub fn new(card: &str, vif: u32) -> Result<Self, String> {
        let wanted = format!("vif-{vif}");
        let is_it = |net: &PathBuf| fs::canonicalize(net.join("device")).is_ok_and(|device| device.ends_with(&wanted));
        let nets = fs::read_dir(NETS).map_err(|e| format!("{NETS}: {e}"))?;
        let uplink =
            nets.flatten().map(|net| net.path()).find(is_it).ok_or(format!("there is no interface {wanted}"))?;
        let uplink = uplink.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { card: card.into(), uplink })
    }

    /// Waits until what comes from outside goes to the switch by Linux. Its driver begins anew if that cannot be
    /// otherwise, or if it `must`: says whether it did. Errors: not even then.
    pub fn comes_back(&self, must: bool) -> Result<bool, String> {
        if !must && self.has_link() && self.passes() {
            return Ok(false);
        }
        println!("faults: its driver begins anew");
        self.bind_anew()?;
        match self.has_link() && self.passes() {
            true => Ok(true),
            false => Err(format!("nothing comes by {} any more", self.card)),
        }
    }

    /// After an abort, which takes the interface down and up, the link may take a while.
    fn has_link(&self) -> bool {
        soon(LINK, || read(&format!("{NETS}/{}/carrier", self.card)).as_deref() == Some("1"))
    }

    /// Does something go to the switch that came by the card?
    fn passes(&self) -> bool {
        let sent = || {
            let count = read(&format!("{NETS}/{}/statistics/tx_packets", self.uplink));
            count.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
        };
        let before = sent();
        soon(SILENCE, || sent() >= before + FEW)
    }

    /// The PCI device gets its driver anew, and the bridge its interface.
    fn bind_anew(&self) -> Result<(), String> {
        let net = PathBuf::from(format!("{NETS}/{}", self.card));
        let bridge = fs::canonicalize(net.join("master")).map_err(|e| format!("{} is in no bridge: {e}", self.card))?;
        let bridge = bridge.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let device = fs::canonicalize(net.join("device")).map_err(|e| e.to_string())?;
        let (address, driver) = pci(&device).ok_or(format!("{} has no PCI device", self.card))?;
        for order in ["unbind", "bind"] {
            let file = driver.join(order);
            fs::write(&file, &address).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        if !soon(LINK, || net.exists()) {
            return Err(format!("{} does not come back", self.card));
        }
        let ended = Command::new("ip").args(["link", "set", &self.card, "master", &bridge, "up"]).status();
        let is_done = ended.map_err(|e| format!("ip link set: {e}"))?.success();
        is_done.then_some(()).ok_or(format!("{} does not go into {bridge}", self.card))
    }
}

/// Address and driver of the PCI device that this one is, or stands on.
fn pci(device: &Path) -> Option<(String, PathBuf)> {
    let is_pci = |at: &&Path| fs::canonicalize(at.join("subsystem")).is_ok_and(|bus| bus.ends_with("pci"));
    let at = device.ancestors().find(is_pci)?;
    let driver = fs::canonicalize(at.join("driver")).ok()?;
    Some((at.file_name()?.to_string_lossy().into_owned(), driver))
}

fn read(file: &str) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().into())
}

/// Is that so within this time?
fn soon(within: Duration, is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + within;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        sleep(LOOK);
    }
}
