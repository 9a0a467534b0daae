//! IOMMUs: which device may reach which frame.
//!
//! Every domain with devices has a [`DmaSpace`]: a tree of tables that the hardware walks, in which a frame's address for
//! devices is its machine address, as PV kernels expect. Frames come and go with their type ([`crate::mmu`] says when): a
//! device writes exactly those frames that its domain might write too, and those granted to it. What is specific to one
//! kind of hardware is a [`Format`] for entries ([`vtd`] is Intel's) and the firmware's description ([`dmar`]).

pub mod dmar;
mod space;
mod tables;
pub mod vtd;

pub use space::{DmaSpace, Narrowed};
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

#[cfg(test)]
mod tests;
