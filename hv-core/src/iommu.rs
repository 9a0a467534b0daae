//! IOMMUs: which device may reach which frame.
//!
//! Every domain with devices has a [`DmaSpace`]: a tree of tables that the hardware walks, in which a frame's address
//! for devices is its machine address, as PV kernels expect. Frames come and go with their type ([`crate::mmu`] says
//! when): a device writes exactly those frames that its domain might write too, and those granted to it. What is
//! specific to one kind of hardware is a [`Format`] for entries ([`vtd`] is Intel's, [`amd`] AMD's) and the firmware's
//! description ([`dmar`], [`ivrs`]).

pub mod amd;
pub mod brake;
pub mod dmar;
pub mod ivrs;
mod space;
mod tables;
pub mod vtd;

use x86::Mfn;

pub use space::{DmaSpace, Narrowed, Widened};
pub use tables::{Format, OutOfMemory, TableMem, Tables};

/// What devices may do with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing.
    #[default]
    None,
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// The form of entries, as the machine's hardware has it.
#[derive(Clone, Copy, Debug)]
pub enum AnyFormat {
    /// Intel's.
    VtD,
    /// AMD's.
    AmdVi,
}

impl Format for AnyFormat {
    fn table(self, next: Mfn, level: u32) -> u64 {
        match self {
            Self::VtD => vtd::SecondLevel.table(next, level),
            Self::AmdVi => amd::HostTable.table(next, level),
        }
    }
    fn leaf(self, mfn: Mfn, access: Access, level: u32) -> u64 {
        match self {
            Self::VtD => vtd::SecondLevel.leaf(mfn, access, level),
            Self::AmdVi => amd::HostTable.leaf(mfn, access, level),
        }
    }
    fn decode(self, entry: u64, level: u32) -> Option<tables::Entry> {
        match self {
            Self::VtD => vtd::SecondLevel.decode(entry, level),
            Self::AmdVi => amd::HostTable.decode(entry, level),
        }
    }
}

/// An I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Its id, as the MADT has it.
    pub id: u8,
    /// What its accesses look like on the bus.
    pub source_id: u16,
}

/// Translations that the hardware is to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// All.
    All,
    /// Those of a domain id.
    Domain(u16),
    /// Those of one page of a domain id.
    Page(u16, Mfn),
}

/// An access that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Bus, device and function.
    pub source_id: u16,
    /// Address.
    pub addr: u64,
    /// What it was.
    pub stopped: Stopped,
    /// Why, in words.
    pub why: &'static str,
}

/// What was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A read.
    Read,
    /// A write.
    Write,
    /// An interrupt; by this entry of the table, if the hardware says which.
    Interrupt(Option<u16>),
}

/// How an interrupt that is remapped is programmed at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remapped {
    /// It names an entry of the one table of a VT-d unit.
    Index(u16),
    /// It names its vector, as without remapping; AMD-Vi looks it up in the source's own table.
    Vector(u8),
}

impl Remapped {
    /// Address and data of a message.
    pub const fn message(self) -> (u64, u32) {
        match self {
            Self::Index(index) => (vtd::remapping::message_address(index), 0),
            Self::Vector(vector) => (0xfee0_0000, vector as u32),
        }
    }

    /// Upper half of an I/O APIC's entry, and the bits that its lower half gets besides vector and form of the wire.
    pub const fn wire(self) -> (u32, u32) {
        match self {
            Self::Index(index) => vtd::remapping::wire(index),
            Self::Vector(_) => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests;
