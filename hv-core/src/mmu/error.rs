//! Why an operation on page tables was refused.

use xen_abi::errno::Errno;

/// Why an operation was refused. Nothing has changed then, except where a variant says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmuError {
    /// Not a frame of RAM.
    BadFrame,
    /// The frame is not owned by the domain that it should be of.
    NotOwned,
    /// The frame is in use as something else.
    WrongType,
    /// An L1 entry may not map the frame: it is another domain's, or may not be written.
    Unmappable,
    /// Another CPU is half-way through this page table; try again.
    Contended,
    /// Flag bits that are not allowed in an entry of this level.
    BadFlags,
    /// The entry's frame number is the one that Linux writes for "no frame".
    InvalidFrame,
    /// No right to map this I/O frame.
    IoDenied,
    /// The slot belongs to the hypervisor.
    ReservedSlot,
    /// An upper level does not map the address.
    NotMapped,
    /// Pinned already, or not pinned.
    Pinning,
    /// Too many references.
    Overflow,
    /// A descriptor that a guest must not have.
    BadDescriptor,
    /// An argument is out of range or misaligned.
    BadArgument,
    /// No such command.
    UnknownCommand,
    /// A command that is known and not offered.
    Unsupported,
    /// The entry is no longer what the caller saw: read it again.
    Changed,
    /// Preempted; progress is recorded, the operation is to be executed again with the same arguments.
    Preempted,
}

impl From<MmuError> for Errno {
    fn from(e: MmuError) -> Self {
        match e {
            MmuError::BadFrame
            | MmuError::NotOwned
            | MmuError::WrongType
            | MmuError::BadFlags
            | MmuError::InvalidFrame
            | MmuError::ReservedSlot
            | MmuError::NotMapped
            | MmuError::Pinning
            | MmuError::BadDescriptor
            | MmuError::BadArgument => Self::EINVAL,
            MmuError::IoDenied => Self::EPERM,
            MmuError::Overflow | MmuError::Unmappable => Self::EBUSY,
            MmuError::Changed => Self::EAGAIN,
            MmuError::UnknownCommand => Self::ENOSYS,
            MmuError::Unsupported => Self::EOPNOTSUPP,
            MmuError::Contended | MmuError::Preempted => Self::ERESTART,
        }
    }
}
