//! Intel's VT-d: the forms of its structures in memory and registers (architecture specification, chapters 6, 9 and
//! 10).

pub mod faults;

use super::tables::{Entry, Format};
use super::{Access, Fault, Forget, Stopped};
use x86::Mfn;

/// Registers, by offset.
pub mod reg {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const CAP: usize = 0x08;
    pub const ECAP: usize = 0x10;
    pub const GCMD: usize = 0x18;
    pub const GSTS: usize = 0x1c;
    pub const RTADDR: usize = 0x20;
    pub const FSTS: usize = 0x34;
    pub const FECTL: usize = 0x38;
    pub const FEDATA: usize = 0x3c;
    pub const FEADDR: usize = 0x40;
    pub const FEUADDR: usize = 0x44;
    pub const IQH: usize = 0x80;
    pub const IQT: usize = 0x88;
    pub const IQA: usize = 0x90;
    pub const IRTA: usize = 0xb8;
}

/// Bits of the global command and status registers.
pub mod global {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const TRANSLATION: u32 = 1 << 31;
    pub const ROOT_TABLE: u32 = 1 << 30;
    pub const WRITE_BUFFER: u32 = 1 << 27;
    pub const QUEUED_INVALIDATION: u32 = 1 << 26;
    pub const INTERRUPT_REMAPPING: u32 = 1 << 25;
    pub const INTERRUPT_TABLE: u32 = 1 << 24;
    /// Commands that happen once; the others are states, and are written with each command.
    pub const ONE_SHOT: u32 = ROOT_TABLE | WRITE_BUFFER | INTERRUPT_TABLE | 1 << 29;
}

/// Fault status: a record is waiting; the queue of invalidations stopped.
pub const FAULT_PENDING: u32 = 1 << 1;
/// Fault event control: it does not interrupt.
pub const INTERRUPT_MASKED: u32 = 1 << 31;
/// Records were lost.
pub const FAULT_OVERFLOW: u32 = 1 << 0;
/// Errors of the queue of invalidations.
pub const QUEUE_ERRORS: u32 = 7 << 4;
/// Fault event control: no interrupts.
pub const FAULT_MASK: u32 = 1 << 31;

/// What a unit can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// CAP register.
    pub cap: u64,
    /// ECAP register.
    pub ecap: u64,
}

impl Capabilities {
    const fn bit(register: u64, bit: u32) -> bool {
        register >> bit & 1 != 0
    }
    /// Levels of tables that all `units` walk: four if possible, so that all memory can be mapped, or three. `None`:
    /// there are none.
    pub fn levels(units: impl IntoIterator<Item = Self>) -> Option<u32> {
        let common = units.into_iter().fold(u64::MAX, |common, unit| common & unit.cap);
        [(4, 8 + 2), (3, 8 + 1)].into_iter().find(|(_, bit)| Self::bit(common, *bit)).map(|(levels, _)| levels)
    }
    /// The highest level of table whose entries may map a page.
    pub const fn largest_page_level(self) -> u32 {
        match (Self::bit(self.cap, 34), Self::bit(self.cap, 35)) {
            (true, true) => 3,
            (true, false) => 2,
            _ => 1,
        }
    }
    /// Number of domain ids.
    pub const fn nr_domain_ids(self) -> u32 {
        1 << (4 + 2 * (self.cap & 7))
    }
    /// It may remember that something is not mapped.
    pub const fn caches_absence(self) -> bool {
        Self::bit(self.cap, 7)
    }
    /// Its write buffer must be flushed by a command.
    pub const fn needs_write_buffer_flush(self) -> bool {
        Self::bit(self.cap, 4)
    }
    /// It must be told of entries that were not there before: it remembers that there were none, or what was written
    /// waits in its buffer.
    pub const fn is_told_of_additions(self) -> bool {
        self.caches_absence() || self.needs_write_buffer_flush()
    }
    /// It sees memory as the CPUs' caches have it.
    pub const fn is_coherent(self) -> bool {
        Self::bit(self.ecap, 0)
    }
    /// It takes invalidations from a queue.
    pub const fn has_queue(self) -> bool {
        Self::bit(self.ecap, 1)
    }
    /// It can remap interrupts.
    pub const fn can_remap_interrupts(self) -> bool {
        Self::bit(self.ecap, 3)
    }
    /// It can send interrupts to CPUs in x2APIC mode.
    pub const fn has_x2apic_interrupts(self) -> bool {
        Self::bit(self.ecap, 4)
    }
    /// It can invalidate single pages.
    pub const fn has_page_invalidation(self) -> bool {
        Self::bit(self.cap, 39)
    }
    /// Offset of the fault records.
    pub const fn fault_records(self) -> usize {
        (self.cap >> 24 & 0x3ff) as usize * 16
    }
    /// How many there are.
    pub const fn nr_fault_records(self) -> usize {
        (self.cap >> 40 & 0xff) as usize + 1
    }
    /// What an invalidation of translations should wait for: reads and writes under way, as far as it can.
    const fn drain(self) -> u64 {
        (self.cap >> 55 & 1) << 7 | (self.cap >> 54 & 1) << 6
    }
}

/// Second-level entries.
#[derive(Clone, Copy, Debug)]
pub struct SecondLevel;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const PAGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl Format for SecondLevel {
    fn table(self, next: Mfn, _level: u32) -> u64 {
        next.addr().raw() | READ | WRITE
    }
    fn leaf(self, mfn: Mfn, access: Access, level: u32) -> u64 {
        let rights = match access {
            Access::None => 0,
            Access::Read => READ,
            Access::ReadWrite => READ | WRITE,
        };
        mfn.addr().raw() | rights | if level > 1 { PAGE } else { 0 }
    }
    fn decode(self, entry: u64, level: u32) -> Option<Entry> {
        let access = match (entry & READ != 0, entry & WRITE != 0) {
            (false, false) => return None,
            (_, true) => Access::ReadWrite,
            (true, false) => Access::Read,
        };
        let mfn = Mfn::new((entry & ADDRESS) >> 12);
        Some(if level == 1 || entry & PAGE != 0 { Entry::Leaf(mfn, access) } else { Entry::Table(mfn) })
    }
}

/// The entry of the root table for a bus.
pub const fn root_entry(context_table: Mfn) -> [u64; 2] {
    [context_table.addr().raw() | 1, 0]
}

/// Bit of the first word of a context entry, also of one that is not present: what is stopped is not recorded.
pub const NOT_RECORDED: u64 = 1 << 1;

/// The entry of a context table for a function that is confined to the tables at `root`, of `levels` levels.
pub const fn context_entry(root: Mfn, levels: u32, domain_id: u16) -> [u64; 2] {
    // Address width: 1 for three levels, 2 for four.
    [root.addr().raw() | 1, (domain_id as u64) << 8 | (levels - 2) as u64]
}

/// What is to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// All context entries.
    Contexts,
    /// That of a function, which had this domain id.
    Context {
        /// The function.
        source_id: u16,
        /// The id.
        domain_id: u16,
    },
    /// Translations.
    Translations(Forget),
    /// All entries of the interrupt-remapping table.
    Interrupts,
    /// Nothing: when all before is done, `value` is written to the address.
    Wait {
        /// Where.
        at: u64,
        /// What.
        value: u32,
    },
}

impl Invalidation {
    /// The descriptor for the queue.
    pub const fn encode(self, capabilities: Capabilities) -> [u64; 2] {
        const CONTEXT: u64 = 1;
        const IOTLB: u64 = 2;
        const INTERRUPTS: u64 = 4;
        const WAIT: u64 = 5;
        const STATUS_WRITE: u64 = 1 << 5;
        const GLOBAL: u64 = 1 << 4;
        const BY_DOMAIN: u64 = 2 << 4;
        const BY_DEVICE: u64 = 3 << 4;
        let drain = capabilities.drain();
        match self {
            Self::Contexts => [CONTEXT | GLOBAL, 0],
            Self::Context { source_id, domain_id } => {
                [CONTEXT | BY_DEVICE | (domain_id as u64) << 16 | (source_id as u64) << 32, 0]
            }
            Self::Interrupts => [INTERRUPTS, 0],
            Self::Translations(Forget::All) => [IOTLB | GLOBAL | drain, 0],
            Self::Translations(Forget::Page(id, mfn)) if capabilities.has_page_invalidation() => {
                [IOTLB | BY_DEVICE | drain | (id as u64) << 16, mfn.addr().raw()]
            }
            Self::Translations(Forget::Domain(id) | Forget::Page(id, _)) => {
                [IOTLB | BY_DOMAIN | drain | (id as u64) << 16, 0]
            }
            Self::Wait { at, value } => [WAIT | STATUS_WRITE | (value as u64) << 32, at],
        }
    }
}

/// Interrupt remapping: a device names an entry of a table, and the entry says which CPU gets which vector, and who may
/// name it (VT-d specification, chapter 5). So no device can raise what it was not given.
pub mod remapping {
    /// Bit of a message's address and of an I/O APIC entry's upper half that says "remapped".
    const FORMAT: u32 = 1 << 4;

    const PRESENT: u64 = 1;

    /// How an entry names a CPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Mode {
        /// By eight bits.
        Xapic,
        /// By 32 bits.
        X2apic,
    }

    impl Mode {
        /// The one to use. Units that do not know x2APIC's ids reach CPUs in that mode by eight bits all the same, as
        /// messages do that are not remapped: devices interrupt no CPUs with larger ids.
        pub const fn of(cpus_use_x2apic: bool, units_know_x2apic: bool) -> Self {
            if cpus_use_x2apic && units_know_x2apic {
                Self::X2apic
            } else {
                Self::Xapic
            }
        }

        const fn destination(self, apic_id: u32) -> u64 {
            match self {
                Self::Xapic => (apic_id as u64 & 0xff) << 40,
                Self::X2apic => (apic_id as u64) << 32,
            }
        }
    }

    /// Who may name an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Named {
        /// This source id.
        By(u16),
        /// Those of these buses, first and last: what lies behind a bridge that takes its own bus's number or that of
        /// the bus behind it.
        OnBuses(u8, u8),
    }

    /// A bridge that puts an identity of its own on what the functions behind it do.
    #[derive(Clone, Copy, Debug)]
    pub struct Hiding {
        /// Its own source id.
        pub source_id: u16,
        /// It leads to PCI Express.
        pub is_express: bool,
        /// The bus behind it.
        pub secondary: u8,
    }

    impl Named {
        /// Under which names messages of `source_id` are seen.
        pub const fn of(source_id: u16, bridge: Option<Hiding>) -> Self {
            match bridge {
                None => Self::By(source_id),
                // A conventional bridge uses its own name, one to PCI Express the number of the bus behind it.
                Some(Hiding { is_express: false, source_id, .. }) => Self::By(source_id),
                Some(Hiding { secondary, .. }) => Self::OnBuses(secondary, secondary),
            }
        }
    }

    /// A table entry for `vector` of CPU `apic_id`, for those that may name it.
    pub const fn entry(vector: u8, apic_id: u32, mode: Mode, is_level: bool, named: Named) -> [u64; 2] {
        const VERIFY_ID: u64 = 1 << 18;
        const VERIFY_BUS: u64 = 2 << 18;
        let low = PRESENT | (is_level as u64) << 4 | (vector as u64) << 16 | mode.destination(apic_id);
        let high = match named {
            Named::By(id) => VERIFY_ID | id as u64,
            Named::OnBuses(first, last) => VERIFY_BUS | (first as u64) << 8 | last as u64,
        };
        [low, high]
    }

    /// The lower half of `entry`, sent to another CPU.
    pub const fn steered(low: u64, apic_id: u32, mode: Mode) -> u64 {
        low & 0xffff_ffff | mode.destination(apic_id)
    }

    /// The APIC id of the CPU that the lower half of `entry` sends to, also while nobody can raise it. `None`: it is
    /// empty.
    pub const fn destination(low: u64, mode: Mode) -> Option<u32> {
        match (low, mode) {
            (0, _) => None,
            (_, Mode::Xapic) => Some((low >> 40 & 0xff) as u32),
            (_, Mode::X2apic) => Some((low >> 32) as u32),
        }
    }

    /// The lower half of `entry`, which nobody can raise for now and whose users are not reported; or as it was before.
    /// An empty one stays so.
    pub const fn held(low: u64, held: bool) -> u64 {
        const NOT_RECORDED: u64 = 1 << 1;
        match (low, held) {
            (0, _) => 0,
            (_, true) => low & !PRESENT | NOT_RECORDED,
            (_, false) => low & !NOT_RECORDED | PRESENT,
        }
    }

    /// The address that a device writes to, with data 0, to name entry `index`.
    pub const fn message_address(index: u16) -> u64 {
        let index = index as u32;
        (0xfee0_0000 | (index & 0x7fff) << 5 | FORMAT | (index >> 15) << 2) as u64
    }

    /// Upper half of an I/O APIC entry that names entry `index`, and the bits that its lower half gets for that.
    pub const fn wire(index: u16) -> (u32, u32) {
        let index = index as u32;
        ((index & 0x7fff) << 17 | 1 << 16, (index >> 15) << 11)
    }

    /// The register that says where the table of 2^`order` entries is.
    pub const fn table_register(addr: u64, order: u32, mode: Mode) -> u64 {
        const X2APIC: u64 = 1 << 11;
        addr | if matches!(mode, Mode::X2apic) { X2APIC } else { 0 } | (order - 1) as u64
    }
}

/// Reads a fault record: an access that was stopped. `None` if it is empty.
pub const fn decode_fault(record: [u64; 2]) -> Option<Fault> {
    let [low, high] = record;
    if high >> 63 == 0 {
        return None;
    }
    let [source_low, source_high, _, _, reason, ..] = high.to_le_bytes();
    let stopped = match reason {
        0x20..=0x28 => Stopped::Interrupt(Some((low >> 48) as u16)),
        _ if high >> 62 & 1 != 0 => Stopped::Read,
        _ => Stopped::Write,
    };
    let why = match reason {
        1..=3 => "nobody has the device",
        4 => "the address is too large",
        5 => "it may not write there",
        6 => "it may not read there",
        7..=0xc => "the hypervisor's tables are wrong",
        0xd => "it asked for translated accesses",
        0x20..=0x28 => "it has no such interrupt",
        _ => "no reason known",
    };
    Some(Fault { source_id: u16::from_le_bytes([source_low, source_high]), addr: low & !0xfff, stopped, why })
}
