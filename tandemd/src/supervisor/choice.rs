//! Which devices of the machine driver domains get whose sections ask for a kind of device, or for a vendor and a
//! device.
//!
//! All of them are looked at together, so that it does not matter whose turn it is first: who asks for less than others
//! (one kind of card) is served before who is content with more (any disk), and then they are served in the order of
//! their services' names, by ascending addresses. Who has been given a device keeps it.

use super::identity::{place_of, Identity};
use super::settings::address;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// A device that a driver domain is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// The function at this address, as Linux names it.
    At(String),
    /// One of this vendor's and number.
    Id(u16, u16),
    /// One of a kind.
    Kind(Kind),
}

/// Kinds of devices, by PCI's classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Network,
    Nvme,
    Ahci,
    Disk,
}

const KINDS: [(&str, Kind); 4] =
    [("network", Kind::Network), ("nvme", Kind::Nvme), ("ahci", Kind::Ahci), ("disk", Kind::Disk)];

impl Kind {
    /// Whether a function of this class (base class, subclass and interface) is one. A floppy disk's controller is
    /// none, nor one of IDE whose registers are where a PC had them: those are not in its base addresses.
    pub fn has(self, class: u32) -> bool {
        const FLOPPY: u32 = 0x0102;
        const IDE: u32 = 0x0101;
        const IS_NATIVE: u32 = 0b101;
        match self {
            Self::Network => class >> 16 == 0x02,
            Self::Nvme => class >> 8 == 0x0108,
            Self::Ahci => class == 0x01_0601,
            Self::Disk => {
                let is_where_a_pc_has_it = class >> 8 == IDE && class & IS_NATIVE != IS_NATIVE;
                class >> 16 == 0x01 && class >> 8 != FLOPPY && !is_where_a_pc_has_it
            }
        }
    }
}

impl fmt::Display for Want {
    /// As a section says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(name) => f.write_str(name),
            Self::Id(vendor, device) => write!(f, "{vendor:04x}:{device:04x}"),
            Self::Kind(kind) => f.write_str(KINDS.iter().find(|(_, of)| of == kind).map_or("", |(word, _)| word)),
        }
    }
}

impl Want {
    /// As a section says it. The error says what it may say.
    pub fn parse(said: &str) -> Result<Self, String> {
        if let Some((_, kind)) = KINDS.iter().find(|(word, _)| *word == said) {
            return Ok(Self::Kind(*kind));
        }
        let number = |text: &str| u16::from_str_radix(text, 16).ok().filter(|_| text.len() == 4);
        let id = said.split_once(':').and_then(|(vendor, device)| Some(Self::Id(number(vendor)?, number(device)?)));
        let is_bare = said.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'));
        id.or_else(|| address(said).filter(|_| is_bare).map(Self::At)).ok_or_else(|| {
            format!(
                "`{said}` is no device: say where it is (\"0000:03:00.0\", as `lspci -D` lists it), its vendor and device (\"8086:10d3\", as `lspci -n` does), or \
                 \"network\", \"nvme\", \"ahci\" or \"disk\""
            )
        })
    }

    /// Whether this function is one.
    fn has(&self, function: &Function) -> bool {
        match self {
            Self::At(name) => *name == function.name,
            Self::Id(vendor, device) => (*vendor, *device) == (function.vendor, function.device),
            Self::Kind(kind) => !function.is_virtual && kind.has(function.class),
        }
    }

    /// Who asks for less comes first.
    fn width(&self) -> u8 {
        match self {
            Self::At(_) => 0,
            Self::Id(..) => 1,
            Self::Kind(Kind::Disk) => 3,
            Self::Kind(_) => 2,
        }
    }
}

/// One device, or a list of some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants(pub Vec<Want>);

impl<'de> Deserialize<'de> for Wants {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reads;
        impl<'de> Visitor<'de> for Reads {
            type Value = Wants;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device, or a list of devices")
            }

            fn visit_str<E: Error>(self, said: &str) -> Result<Wants, E> {
                Want::parse(said).map(|want| Wants(vec![want])).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Wants, A::Error> {
                let mut wants = Vec::new();
                while let Some(said) = list.next_element::<String>()? {
                    wants.push(Want::parse(&said).map_err(A::Error::custom)?);
                }
                if wants.is_empty() {
                    return Err(A::Error::custom("`device = []`: a driver domain has a device"));
                }
                Ok(Wants(wants))
            }
        }
        from.deserialize_any(Reads)
    }
}

/// A device that was given, and what was asked for.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Given {
    /// As a section says it.
    pub want: String,
    /// As Linux names it.
    pub device: String,
    /// Which card that was; nothing, if an earlier daemon has noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// A function of a device in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Base class, subclass, and interface.
    pub class: u32,
    pub vendor: u16,
    pub device: u16,
    /// One that another function has made, which goes with that.
    pub is_virtual: bool,
    /// Which card it is.
    pub identity: Identity,
}

/// The functions that Linux knows, by ascending addresses; `root` has `sys`.
pub fn functions(root: &Path) -> Vec<Function> {
    let place = root.join("sys/bus/pci/devices");
    let names = std::fs::read_dir(&place).into_iter().flatten().flatten();
    let mut found: Vec<Function> = names
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = |file: &str| {
                let said = std::fs::read_to_string(entry.path().join(file)).ok()?;
                u32::from_str_radix(said.trim().strip_prefix("0x")?, 16).ok()
            };
            let id = |file| number(file).and_then(|id| u16::try_from(id).ok());
            let (class, vendor, device) = (number("class")?, id("vendor")?, id("device")?);
            let (is_virtual, identity) = (entry.path().join("physfn").exists(), Identity::read(root, &name, class));
            Some(Function { class, vendor, device, is_virtual, identity, name })
        })
        .collect();
    // Numbers of the same length, but for segments, of which some are longer.
    found.sort_by(|one, other| (one.name.len(), &one.name).cmp(&(other.name.len(), &other.name)));
    found
}

/// Who asks for devices.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    /// The service.
    pub service: String,
    pub wants: Vec<Want>,
    /// What it was given before.
    pub given: Vec<Given>,
    /// What its driver domain has just now; nobody may remember that it was given.
    pub has: Vec<String>,
    /// A device of its that is not in the machine is gone for good: it may get another one.
    pub may_change: bool,
}

/// What one gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// For each that it asks for.
    pub found: Vec<Option<String>>,
    /// Functions that would do and are not free, and why, if there is one for which nothing was found.
    pub left_out: Vec<(String, String)>,
    /// Which cards those are that it has not named by their addresses, by devices.
    pub identities: BTreeMap<String, Identity>,
}

impl Choice {
    /// Who asks for these, and had been given those.
    pub fn of(wants: &[Want], mut given: Vec<Given>) -> Self {
        let mut identities = BTreeMap::new();
        let mut take = |want: &Want| {
            let at = given.iter().position(|given| given.want == want.to_string())?;
            let Given { device, identity, .. } = given.remove(at);
            identities.extend(identity.map(|identity| (device.clone(), identity)));
            Some(device)
        };
        let found = wants.iter().map(&mut take).collect();
        Self { found, left_out: Vec::new(), identities }
    }

    /// All that was found, and what had been asked for.
    pub fn given(&self, wants: &[Want]) -> Vec<Given> {
        let of = |(want, found): (&Want, &Option<String>)| {
            let device = found.clone()?;
            let identity = self.identities.get(&device).cloned();
            Some(Given { want: want.to_string(), device, identity })
        };
        wants.iter().zip(&self.found).filter_map(of).collect()
    }
}

/// What else there is to know.
pub struct Others<'a> {
    /// Devices that the configuration or a driver domain's own claims by their addresses, and for which services.
    pub claimed: &'a BTreeMap<String, String>,
    /// Devices that domains have.
    pub taken: &'a BTreeSet<String>,
    /// What domain 0 needs a device for, if it does. That is asked of few.
    pub in_use: &'a dyn Fn(&str) -> Option<String>,
}

/// Gives devices to all who ask: to nobody one that another one has.
pub fn choose(askers: &[Asker], functions: &[Function], others: &Others) -> BTreeMap<String, Choice> {
    let mut found: Vec<Vec<Option<String>>> = askers.iter().map(|asker| vec![None; asker.wants.len()]).collect();
    let mut owners: BTreeMap<String, String> = others.claimed.clone();
    let places = || askers.iter().enumerate().flat_map(|(n, asker)| (0..asker.wants.len()).map(move |m| (n, m)));
    for (n, m) in places() {
        if let Want::At(name) = &askers[n].wants[m] {
            found[n][m] = Some(name.clone());
            owners.insert(name.clone(), askers[n].service.clone());
        }
    }
    // What was given stays so.
    let (mut gone, mut replaced) = (Vec::new(), BTreeMap::new());
    let mut known: Vec<BTreeMap<String, Identity>> = Vec::new();
    for (n, asker) in askers.iter().enumerate() {
        let had = Choice::of(&asker.wants, asker.given.clone());
        known.push(had.identities.clone());
        for (m, want) in asker.wants.iter().enumerate() {
            if found[n][m].is_some() {
                continue;
            }
            let Some(device) = had.found[m].clone() else { continue };
            let is_taken_up = functions.iter().any(|function| function.name == device);
            let fitting: Vec<&Function> = functions.iter().filter(|function| want.has(function)).collect();
            let identity = had.identities.get(&device).filter(|_| !asker.has.contains(&device));
            let there = place_of(identity, &device, &fitting);
            if there.is_none() && is_taken_up {
                // Another one has come to its place, and may be put there for it.
                replaced.insert((n, m), device);
                continue;
            }
            let device = there.map_or(device, |there| there.name.clone());
            if owners.contains_key(&device) {
                continue;
            }
            owners.insert(device.clone(), asker.service.clone());
            if let (Some(identity), Some(there)) = (identity, there) {
                known[n].insert(there.name.clone(), identity.clone());
            }
            match there {
                None if asker.may_change => gone.push((n, m, device)),
                _ => found[n][m] = Some(device),
            }
        }
    }
    let mut open: Vec<(usize, usize)> = places().filter(|(n, m)| found[*n][*m].is_none()).collect();
    open.sort_by_key(|(n, m)| askers[*n].wants[*m].width());
    let mut left_out = vec![Vec::new(); askers.len()];
    for (n, m) in open {
        let asker = &askers[n];
        let mut fitting: Vec<&Function> = functions.iter().filter(|one| asker.wants[m].has(one)).collect();
        let place = replaced.get(&(n, m));
        fitting.sort_by_key(|one| (!asker.has.contains(&one.name), place != Some(&one.name)));
        let mut refused = Vec::new();
        let free = fitting.into_iter().find(|one| match why_not(&one.name, asker, &owners, others) {
            Some(why) => {
                refused.push((one.name.clone(), why));
                false
            }
            None => true,
        });
        if let Some(free) = free {
            owners.insert(free.name.clone(), asker.service.clone());
            found[n][m] = Some(free.name.clone());
        } else if let Some((.., device)) = gone.iter().find(|(of, at, _)| (*of, *at) == (n, m)) {
            // It may come back.
            found[n][m] = Some(device.clone());
        } else {
            // In whichever order they were asked for.
            refused.sort();
            left_out[n].extend(refused);
        }
    }
    for (asker, found) in askers.iter().zip(&mut found) {
        fill_in_order(&asker.wants, found);
    }
    let choices =
        found.into_iter().zip(left_out).zip(askers.iter().zip(known)).map(|((found, left_out), (asker, known))| {
            let identities = identities_of(asker, &found, &known, functions);
            Choice { found, left_out, identities }
        });
    askers.iter().map(|asker| asker.service.clone()).zip(choices).collect()
}

/// Which cards one has been given, by what is seen of them, and what was known before.
fn identities_of(
    asker: &Asker,
    found: &[Option<String>],
    known: &BTreeMap<String, Identity>,
    functions: &[Function],
) -> BTreeMap<String, Identity> {
    let chosen = asker.wants.iter().zip(found).filter(|(want, _)| !matches!(want, Want::At(_)));
    let of = |name: &String| {
        let known = known.get(name);
        let seen = functions.iter().find(|one| one.name == *name).map(|one| one.identity.clone());
        let Some(seen) = seen else { return known.cloned() };
        Some(match known.filter(|known| !known.is_refuted(&seen)) {
            Some(known) => seen.with(known),
            None => seen,
        })
    };
    chosen.filter_map(|(_, found)| found.as_ref()).filter_map(|name| Some((name.clone(), of(name)?))).collect()
}

/// Of several that ask for the same, the first ones have something: who was given one device of two is found in the
/// same place when he asks again.
fn fill_in_order(wants: &[Want], found: &mut [Option<String>]) {
    for (n, want) in wants.iter().enumerate() {
        if found[n].is_none() {
            if let Some(later) = (n + 1..wants.len()).find(|later| wants[*later] == *want && found[*later].is_some()) {
                found.swap(n, later);
            }
        }
    }
}

/// Why a function that would do is not given to this one.
fn why_not(name: &str, asker: &Asker, owners: &BTreeMap<String, String>, others: &Others) -> Option<String> {
    if let Some(owner) = owners.get(name) {
        return Some(if *owner == asker.service { "it has it already".into() } else { format!("it is `{owner}`'s") });
    }
    if asker.has.iter().any(|has| has == name) {
        return None;
    }
    if others.taken.contains(name) {
        return Some("another domain has it".into());
    }
    (others.in_use)(name)
}

#[cfg(test)]
mod tests;
