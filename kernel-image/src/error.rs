//! What can be wrong with a kernel image, as one line for the console.

use core::fmt;

/// Why an image cannot be used. `Display` is one line that names the cause and the numbers involved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The image ends before `what`.
    Truncated(&'static str),
    /// Neither a bzImage nor an ELF file.
    NotAKernel {
        /// The first four bytes found.
        magic: [u8; 4],
    },
    /// A bzImage older than boot protocol 2.08, whose payload cannot be found.
    OldBootProtocol {
        /// The version found, major in the high byte.
        version: u16,
    },
    /// The payload's compression is known, but not supported.
    Unsupported {
        /// Its name.
        compression: &'static str,
    },
    /// The payload starts with a magic number that belongs to no known compression.
    UnknownCompression {
        /// The first four bytes found.
        magic: [u8; 4],
    },
    /// The payload's stated size is zero, or above the limit.
    BadUnpackedSize {
        /// The size that the image states, in bytes.
        stated: u64,
    },
    /// The compressed data is damaged.
    Corrupt {
        /// Name of the compression.
        compression: &'static str,
        /// What was found wrong.
        why: &'static str,
    },
    /// The payload unpacks to another size than stated.
    WrongUnpackedSize {
        /// Size stated by the image.
        stated: usize,
        /// Size found.
        found: usize,
    },
    /// An ELF file, but not one that a 64-bit PV domain can run.
    BadElf(&'static str),
    /// A 32-bit kernel.
    Elf32,
    /// No Xen note: the kernel is not built for paravirtual Xen.
    NoXenNotes,
    /// A note that a PV kernel needs is missing.
    MissingNote(&'static str),
    /// A note has a value that cannot be used.
    BadNote {
        /// The note's name.
        note: &'static str,
        /// Its value.
        value: u64,
    },
    /// The kernel asks for a feature that is not there.
    RequiredFeature {
        /// Number of the feature (`XENFEAT_*`).
        feature: u8,
    },
    /// The kernel can be a guest, but not domain 0.
    NotForDom0,
    /// The initial mapping needs more pages than the domain has.
    TooLittleMemory {
        /// Pages needed.
        needed: u64,
        /// Pages granted.
        granted: u64,
    },
    /// The initial RAM disk does not fit in the domain's memory.
    InitrdTooLarge {
        /// Pages of the RAM disk.
        pages: u64,
        /// Pages of the domain beyond its initial mapping.
        room: u64,
    },
    /// The command line is longer than start_info has room for.
    CommandLineTooLong {
        /// Its length.
        len: usize,
    },
    /// Two of the layout's virtual ranges collide, or one leaves the kernel's address range.
    BadLayout(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Truncated(what) => write!(f, "image is truncated: it ends before {what}"),
            Error::NotAKernel { magic } => {
                write!(f, "neither a bzImage nor an ELF file (starts with {})", Hex(magic))
            }
            Error::OldBootProtocol { version } => {
                write!(f, "bzImage with boot protocol {}.{:02}, 2.08 or later needed", version >> 8, version & 0xff)
            }
            Error::Unsupported { compression } => {
                write!(f, "payload is compressed with {compression}; supported are gzip, xz, zstd and lz4")
            }
            Error::UnknownCompression { magic } => {
                write!(f, "payload has an unknown compression (starts with {})", Hex(magic))
            }
            Error::BadUnpackedSize { stated } => {
                write!(f, "payload states an impossible unpacked size of {stated} bytes")
            }
            Error::Corrupt { compression, why } => write!(f, "{compression} payload is damaged: {why}"),
            Error::WrongUnpackedSize { stated, found } => {
                write!(f, "payload unpacks to {found} bytes instead of the stated {stated}")
            }
            Error::BadElf(why) => write!(f, "unusable ELF file: {why}"),
            Error::Elf32 => write!(f, "32-bit kernel; only 64-bit PV kernels are supported"),
            Error::NoXenNotes => {
                write!(f, "no Xen ELF notes: the kernel is not built for paravirtual Xen (CONFIG_XEN_PV)")
            }
            Error::MissingNote(note) => write!(f, "the kernel's Xen notes lack {note}"),
            Error::BadNote { note, value } => {
                write!(f, "the kernel's Xen note {note} has the unusable value {value:#x}")
            }
            Error::RequiredFeature { feature } => {
                write!(f, "the kernel requires Xen feature {feature}, which is not supported")
            }
            Error::NotForDom0 => write!(f, "the kernel does not support running as domain 0 (CONFIG_XEN_DOM0)"),
            Error::TooLittleMemory { needed, granted } => {
                write!(
                    f,
                    "too little memory: domain 0 starts with {needed} pages, but gets only {granted} (see dom0_mem=)"
                )
            }
            Error::InitrdTooLarge { pages, room } => {
                write!(f, "the initrd takes {pages} pages, but domain 0 has only {room} left for it (see dom0_mem=)")
            }
            Error::CommandLineTooLong { len } => {
                write!(f, "the kernel's command line has {len} bytes, at most 1023 fit")
            }
            Error::BadLayout(why) => write!(f, "impossible memory layout: {why}"),
        }
    }
}

struct Hex([u8; 4]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a:02x} {b:02x} {c:02x} {d:02x}")
    }
}
