//! `XENVER_*`: sub-operations of `xen_version` and the sizes of their answers (public/version.h).

/// Returns major << 16 | minor; no argument.
pub const XENVER_VERSION: u32 = 0;
/// Fills an `ExtraVersion`.
pub const XENVER_EXTRAVERSION: u32 = 1;
/// Fills a `CompileInfo`.
pub const XENVER_COMPILE_INFO: u32 = 2;
/// Fills a `CapabilitiesInfo`.
pub const XENVER_CAPABILITIES: u32 = 3;
/// Fills a `ChangesetInfo`.
pub const XENVER_CHANGESET: u32 = 4;
/// Fills a `u64`: the lowest address that the hypervisor keeps for itself.
pub const XENVER_PLATFORM_PARAMETERS: u32 = 5;
/// Fills a `FeatureInfo`.
pub const XENVER_GET_FEATURES: u32 = 6;
/// Returns the page size; no argument.
pub const XENVER_PAGESIZE: u32 = 7;
/// Fills a `DomainHandle`.
pub const XENVER_GUEST_HANDLE: u32 = 8;
/// Fills a `Commandline`.
pub const XENVER_COMMANDLINE: u32 = 9;
/// Fills a `BuildIdHeader` and the bytes behind it.
pub const XENVER_BUILD_ID: u32 = 10;

/// Text after "4.17", with its terminating zero.
pub type ExtraVersion = [u8; 16];
/// Names of the kinds of guest that can run, separated by blanks.
pub type CapabilitiesInfo = [u8; 1024];
/// Source revision.
pub type ChangesetInfo = [u8; 64];
/// A domain's UUID.
pub type DomainHandle = [u8; 16];
/// The hypervisor's command line.
pub type Commandline = [u8; 1024];

/// How the hypervisor was built.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "documented in the header")]
pub struct CompileInfo {
    pub compiler: [u8; 64],
    pub compile_by: [u8; 16],
    pub compile_domain: [u8; 32],
    pub compile_date: [u8; 32],
}

/// 32 feature bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FeatureInfo {
    /// In: which 32 bits; only 0 has any.
    pub submap_idx: u32,
    /// Out: the bits.
    pub submap: u32,
}

/// Head of the answer to `XENVER_BUILD_ID`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BuildIdHeader {
    /// In: room for the id in bytes. Out: its length.
    pub len: u32,
}

const _: () = {
    use core::mem::size_of;
    assert!(size_of::<CompileInfo>() == 144);
    assert!(size_of::<FeatureInfo>() == 8);
};
