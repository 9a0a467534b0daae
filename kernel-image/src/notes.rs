//! The Xen notes of a kernel: what it wants from whoever builds its domain.

use crate::bytes::{u32_at, u64_at};
use crate::elf::Elf;
use crate::error::Error;
use xen_abi::{elfnote, features};

/// Features that the kernel may require, because PV domains here have them.
const OFFERED: u32 = 1 << features::WRITABLE_PAGE_TABLES
    | 1 << features::WRITABLE_DESCRIPTOR_TABLES
    | 1 << features::PAE_PGDIR_ABOVE_4GB
    | 1 << features::MMU_PT_UPDATE_PRESERVE_AD
    | 1 << features::GNTTAB_MAP_AVAIL_BITS
    | 1 << features::DOM0
    | 1 << features::LINUX_RSDP_UNRESTRICTED;

/// The notes that matter for building a PV domain. Absent ones are `None`, or the default that Xen documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// First instruction.
    pub entry: Option<u64>,
    /// Page to fill with hypercall entry points.
    pub hypercall_page: Option<u64>,
    /// Virtual address of pseudo-physical address 0.
    pub virt_base: Option<u64>,
    /// What to subtract from the segments' physical addresses.
    pub paddr_offset: Option<u64>,
    /// Where the list of machine frames is to be mapped; without it, it follows the kernel.
    pub init_p2m: Option<u64>,
    /// Whether the initrd may be given by frame number.
    pub has_mod_start_pfn: bool,
    /// Whether the kernel states an ABI that this hypervisor has.
    pub has_xen_version: bool,
    /// Features the kernel knows: bit n for `XENFEAT_` n. From the feature string or the bit mask.
    pub supported: u32,
    /// Features it cannot do without.
    pub required: u32,
    /// Whether the kernel said what it knows in a bit mask; older ones do not.
    pub has_feature_mask: bool,
    /// Whether the page-table root may lie above 4 GiB.
    pub has_high_root: bool,
}

impl Notes {
    /// Collects the Xen notes of `file`. Errors if there are none, or if one is unusable.
    pub(crate) fn read(elf: &Elf, file: &[u8]) -> Result<Self, Error> {
        let mut notes = Self::default();
        let mut nr_found = 0;
        for range in &elf.notes {
            let mut rest = file.get(range.clone()).unwrap_or_default();
            while let Some(((name, kind, value), after)) = next_note(rest) {
                if name == elfnote::NAME {
                    notes.take(kind, value);
                    nr_found += 1;
                }
                rest = after;
            }
            // The section and the segment hold the same notes.
            if nr_found != 0 {
                break;
            }
        }
        if nr_found == 0 {
            return Err(Error::NoXenNotes);
        }
        notes.check()?;
        Ok(notes)
    }

    fn take(&mut self, kind: u32, value: &[u8]) {
        match kind {
            elfnote::ENTRY => self.entry = number(value),
            elfnote::HYPERCALL_PAGE => self.hypercall_page = number(value),
            elfnote::VIRT_BASE => self.virt_base = number(value),
            elfnote::PADDR_OFFSET => self.paddr_offset = number(value),
            elfnote::INIT_P2M => self.init_p2m = number(value),
            elfnote::MOD_START_PFN => self.has_mod_start_pfn = number(value).is_some_and(|n| n != 0),
            elfnote::XEN_VERSION => self.has_xen_version = text(value) == b"xen-3.0",
            elfnote::PAE_MODE => self.has_high_root |= text(value).starts_with(b"yes"),
            elfnote::FEATURES => self.take_feature_names(text(value)),
            elfnote::SUPPORTED_FEATURES => {
                self.has_feature_mask = true;
                // Bits beyond the first 32 do not exist.
                self.supported |= u32_at(value, 0).unwrap_or(0);
            }
            _ => {}
        }
    }

    fn take_feature_names(&mut self, names: &[u8]) {
        for name in names.split(|&b| b == b'|') {
            let (is_required, name) = name.strip_prefix(b"!").map_or((false, name), |name| (true, name));
            let Some((_, feature)) = features::NAMES.iter().find(|(known, _)| known.as_bytes() == name) else {
                continue;
            };
            self.supported |= 1 << feature;
            if is_required {
                self.required |= 1 << feature;
            }
            self.has_high_root |= *feature == features::PAE_PGDIR_ABOVE_4GB;
        }
    }

    fn check(&self) -> Result<(), Error> {
        if !self.has_xen_version {
            return Err(Error::MissingNote("XEN_VERSION \"xen-3.0\""));
        }
        // "Requires writable_page_tables" is how Linux says that it can live with either kind.
        let missing = self.required & !OFFERED;
        match (0..32).find(|feature| missing & 1 << feature != 0) {
            Some(feature) => Err(Error::RequiredFeature { feature }),
            None => Ok(()),
        }
    }
}

/// One note: its owner's name with a terminating zero, its type, its value.
type RawNote<'a> = (&'a [u8], u32, &'a [u8]);

/// Splits the first note off.
fn next_note(data: &[u8]) -> Option<(RawNote<'_>, &[u8])> {
    let name_len = u32_at(data, 0)? as usize;
    let value_len = u32_at(data, 4)? as usize;
    let kind = u32_at(data, 8)?;
    let (name, rest) = split_padded(&data[12..], name_len)?;
    let (value, rest) = split_padded(rest, value_len)?;
    Some(((name, kind, value), rest))
}

/// Splits `len` bytes off and skips what pads them to four; the padding may be missing at the very end.
fn split_padded(data: &[u8], len: usize) -> Option<(&[u8], &[u8])> {
    let item = data.get(..len)?;
    Some((item, data.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// A number of four or eight bytes.
fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        4 => u32_at(value, 0).map(u64::from),
        8.. => u64_at(value, 0),
        _ => None,
    }
}

/// Text up to the terminating zero.
fn text(value: &[u8]) -> &[u8] {
    value.split(|&b| b == 0).next().unwrap_or_default()
}
