//! AMD-Vi: the forms of its structures in memory and registers (AMD I/O virtualization specification, chapters 2 and
//! 3).

use super::tables::{Entry, Format};
use super::{Access, Fault, Forget, Stopped};
use x86::Mfn;

/// Registers, by offset.
pub mod reg {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const DEVICE_TABLE: usize = 0x00;
    pub const COMMANDS: usize = 0x08;
    pub const EVENTS: usize = 0x10;
    pub const CONTROL: usize = 0x18;
    pub const EXCLUSION_BASE: usize = 0x20;
    pub const EXCLUSION_LIMIT: usize = 0x28;
    pub const FEATURES: usize = 0x30;
    pub const COMMAND_HEAD: usize = 0x2000;
    pub const COMMAND_TAIL: usize = 0x2008;
    pub const EVENT_HEAD: usize = 0x2010;
    pub const EVENT_TAIL: usize = 0x2018;
    pub const STATUS: usize = 0x2020;
    /// Bytes of registers.
    pub const END: usize = 0x4000;
}

/// Bits of the control register.
pub mod control {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const TRANSLATION: u64 = 1 << 0;
    pub const EVENT_LOG: u64 = 1 << 2;
    pub const EVENT_INTERRUPT: u64 = 1 << 3;
    pub const COMMANDS: u64 = 1 << 12;
    const TUNNEL: u64 = 1 << 1;
    const PASS_POSTED_WRITES: u64 = 1 << 8;
    const RESPONSES_PASS: u64 = 1 << 9;
    const COHERENT: u64 = 1 << 10;
    const ISOCHRONOUS: u64 = 1 << 11;

    /// What the firmware's flags for a unit ask for.
    pub(crate) fn wanted(flags: u8) -> u64 {
        [(0, TUNNEL), (1, PASS_POSTED_WRITES), (2, RESPONSES_PASS), (3, ISOCHRONOUS), (5, COHERENT)]
            .into_iter()
            .filter(|(flag, _)| flags >> flag & 1 != 0)
            .fold(0, |all, (_, bit)| all | bit)
    }
}

/// Bits of the status register: written to be cleared.
pub mod status {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const EVENT_OVERFLOW: u64 = 1 << 0;
    pub const EVENT_INTERRUPT: u64 = 1 << 1;
    pub const EVENT_LOG_RUNS: u64 = 1 << 3;
    pub const COMMANDS_RUN: u64 = 1 << 4;
}

/// What a unit can do: its register of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// It forgets everything at one command.
    pub const fn has_forget_all(self) -> bool {
        self.0 >> 6 & 1 != 0
    }
    /// The most levels of tables that it walks.
    pub const fn max_levels(self) -> u32 {
        4 + (self.0 >> 10 & 3) as u32
    }
}

/// Levels of tables in use: enough for all memory.
pub const LEVELS: u32 = 4;
/// The highest level of table whose entries may map a page.
pub const LARGEST_PAGE_LEVEL: u32 = 3;
/// Ids of domains have 16 bits.
pub const NR_DOMAIN_IDS: u32 = 1 << 16;

/// Entries of the tables that translate the addresses of hosts' devices.
#[derive(Clone, Copy, Debug)]
pub struct HostTable;

const PRESENT: u64 = 1 << 0;
const NEXT_LEVEL: u32 = 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The access is coherent with the CPUs' caches.
const FORCE_COHERENT: u64 = 1 << 60;
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;

impl Format for HostTable {
    fn table(self, next: Mfn, level: u32) -> u64 {
        next.addr().raw() | PRESENT | READ | WRITE | u64::from(level - 1) << NEXT_LEVEL
    }
    fn leaf(self, mfn: Mfn, access: Access, _level: u32) -> u64 {
        let rights = match access {
            Access::None => return 0,
            Access::Read => READ,
            Access::ReadWrite => READ | WRITE,
        };
        mfn.addr().raw() | PRESENT | rights | FORCE_COHERENT
    }
    fn decode(self, entry: u64, _level: u32) -> Option<Entry> {
        if entry & PRESENT == 0 {
            return None;
        }
        let mfn = Mfn::new((entry & ADDRESS) >> 12);
        if entry >> NEXT_LEVEL & 7 != 0 {
            return Some(Entry::Table(mfn));
        }
        match (entry & READ != 0, entry & WRITE != 0) {
            (false, false) => None,
            (_, true) => Some(Entry::Leaf(mfn, Access::ReadWrite)),
            (true, false) => Some(Entry::Leaf(mfn, Access::Read)),
        }
    }
}

/// Entries of the device table: four words for each source id.
pub mod device {
    use super::{Mfn, LEVELS, NEXT_LEVEL, READ, WRITE};

    /// Words of an entry.
    pub const WORDS: usize = 4;
    /// Entries in a page of 4 KiB.
    const PER_PAGE: usize = 4096 / (8 * WORDS);
    const VALID: u64 = 1 << 0;
    const HAS_TABLES: u64 = 1 << 1;
    /// Word that says which tables; with the word after it, which holds the domain id.
    pub const TRANSLATION: usize = 0;
    /// Word that holds the domain id.
    pub const DOMAIN: usize = 1;
    /// Word for interrupts.
    pub const INTERRUPTS: usize = 2;

    /// Bit of the word that holds the domain id: no fault is logged.
    pub const SILENT: u64 = 1 << (98 - 64);

    /// Pages of a table with entries for all source ids up to `highest`, as a power of two: 9 at most.
    pub const fn table_order(highest: u16) -> u32 {
        (highest as usize + 1).div_ceil(PER_PAGE).next_power_of_two().trailing_zeros()
    }

    /// Entries of a table of 2^`order` pages.
    pub const fn nr_entries(order: u32) -> usize {
        PER_PAGE << order
    }

    /// Has a table of 2^`order` pages an entry for the source id? Where it has none no access is let through.
    pub const fn has_entry(order: u32, source_id: u16) -> bool {
        (source_id as usize) < nr_entries(order)
    }

    /// No access is let through. An entry of zeroes would let all of them through.
    pub const BLOCKED: u64 = VALID | HAS_TABLES;

    /// Accesses go through the tables at `root`.
    pub const fn confined(root: Mfn) -> u64 {
        root.addr().raw() | VALID | HAS_TABLES | (LEVELS as u64) << NEXT_LEVEL | READ | WRITE
    }

    /// What an entry's word for interrupts passes, as the firmware's flags.
    pub const fn passes(word: u64) -> u8 {
        (word >> 56 & 7) as u8 | ((word >> 62) as u8) << 6
    }

    /// Interrupts go through a table of 2^`order` entries at `table`, or none is let through. `passes`: what the
    /// platform raises past it, as the firmware's flags.
    pub const fn interrupts(table: Option<Mfn>, order: u32, passes: u8) -> u64 {
        const VALID: u64 = 1 << 0;
        const REMAPPED: u64 = 2 << 60;
        // INIT, external interrupts, NMI; the two local pins.
        let passes = (passes as u64 & 7) << 56 | (passes as u64 >> 6) << 62;
        match table {
            Some(table) => table.addr().raw() | VALID | (order as u64) << 1 | REMAPPED | passes,
            None => VALID | passes,
        }
    }
}

/// Interrupt remapping: every function has a table, an entry of which is named by the vector in its message. So vectors
/// are the same in front of the IOMMU and behind it, as an I/O APIC needs that is told of the end of its interrupts by
/// vector.
pub mod remapping {
    /// Entries of a table, as a power of two: the vectors.
    pub const ORDER: u32 = 8;

    const VALID: u32 = 1;

    /// The entry that sends `vector` to CPU `apic_id` (fixed, physical destination).
    pub const fn entry(vector: u8, apic_id: u32) -> u32 {
        VALID | (apic_id & 0xff) << 8 | (vector as u32) << 16
    }

    /// `entry`, which is not sent for now and whose users are not reported.
    pub const fn held(entry: u32) -> u32 {
        const NOT_LOGGED: u32 = 1 << 1;
        entry & !VALID | NOT_LOGGED
    }
}

/// A command for a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Forget the device-table entry of a source id.
    Device(u16),
    /// Forget the interrupt table of a source id.
    Interrupts(u16),
    /// Forget translations.
    Translations(Forget),
    /// Nothing: when all before is done, `value` is written to the address.
    Wait {
        /// Where: a multiple of eight.
        at: u64,
        /// What.
        value: u64,
    },
}

impl Command {
    /// Its two words.
    pub const fn encode(self) -> [u64; 2] {
        const WAIT: u64 = 1 << 60;
        const STORE: u64 = 1;
        const DEVICE: u64 = 2 << 60;
        const PAGES: u64 = 3 << 60;
        const INTERRUPTS: u64 = 5 << 60;
        const ALL: u64 = 8 << 60;
        /// The address says how much is meant: here, all of it.
        const SEVERAL: u64 = 1 << 0;
        /// Entries for tables, too.
        const WITH_TABLES: u64 = 1 << 1;
        const WHOLE_SPACE: u64 = 0x7fff_ffff_ffff_f000;
        match self {
            Self::Device(id) => [DEVICE | id as u64, 0],
            Self::Interrupts(id) => [INTERRUPTS | id as u64, 0],
            Self::Translations(Forget::All) => [ALL, 0],
            Self::Translations(Forget::Domain(id)) => [PAGES | (id as u64) << 32, WHOLE_SPACE | SEVERAL | WITH_TABLES],
            Self::Translations(Forget::Page(id, mfn)) => [PAGES | (id as u64) << 32, mfn.addr().raw() | WITH_TABLES],
            Self::Wait { at, value } => [WAIT | at | STORE, value],
        }
    }
}

/// Reads an entry of the event log: an access that was stopped. `None`: something else, by its number.
pub const fn decode_event(event: [u64; 2]) -> Result<Fault, u8> {
    const ILLEGAL_ENTRY: u8 = 1;
    const PAGE_FAULT: u8 = 2;
    const INVALID_REQUEST: u8 = 8;
    const IS_INTERRUPT: u64 = 1 << 51;
    const IS_WRITE: u64 = 1 << 53;
    const IS_PRESENT: u64 = 1 << 52;
    let [low, addr] = event;
    let [id_low, id_high, ..] = low.to_le_bytes();
    let source_id = u16::from_le_bytes([id_low, id_high]);
    let code = code(event);
    let is_interrupt = low & IS_INTERRUPT != 0 && matches!(addr >> 20, 0xfee | 0xfd_f80..=0xfd_f8f);
    let (stopped, why) = match code {
        PAGE_FAULT if is_interrupt => (Stopped::Interrupt(None), "it has no such interrupt"),
        PAGE_FAULT if low & IS_PRESENT != 0 => (access(low & IS_WRITE != 0), "it may not do that there"),
        PAGE_FAULT => (access(low & IS_WRITE != 0), "nothing is there for it"),
        ILLEGAL_ENTRY => (access(low & IS_WRITE != 0), "the hypervisor's table is wrong"),
        INVALID_REQUEST => (access(low & IS_WRITE != 0), "it asked for what it may not"),
        _ => return Err(code),
    };
    Ok(Fault { source_id, addr, stopped, why })
}

const fn access(is_write: bool) -> Stopped {
    if is_write {
        Stopped::Write
    } else {
        Stopped::Read
    }
}

/// The number that says what an event is; 0 for none.
pub const fn code(event: [u64; 2]) -> u8 {
    event[0].to_le_bytes()[7] >> 4
}
