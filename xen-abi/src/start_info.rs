//! `start_info`, the page that a PV kernel finds at `rsi` (public/xen.h).

/// 1168 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "documented in the header")]
pub struct StartInfo {
    pub magic: [u8; 32],
    pub nr_pages: u64,
    /// Machine address of the shared-info frame.
    pub shared_info: u64,
    pub flags: u32,
    pub pad0: u32,
    pub store_mfn: u64,
    pub store_evtchn: u32,
    pub pad1: u32,
    /// A guest's console: frame number. For domain 0: `info_off` (low half) and `info_size` (high half).
    pub console_mfn: u64,
    pub console_evtchn: u32,
    pub pad2: u32,
    pub pt_base: u64,
    pub nr_pt_frames: u64,
    pub mfn_list: u64,
    pub mod_start: u64,
    pub mod_len: u64,
    pub cmd_line: [u8; 1024],
    pub first_p2m_pfn: u64,
    pub nr_p2m_frames: u64,
}
/// Is the domain privileged?
pub const SIF_PRIVILEGED: u32 = 1;
/// Is this the initial control domain?
pub const SIF_INITDOMAIN: u32 = 2;
/// Is `mod_start` a multiboot module list?
pub const SIF_MULTIBOOT_MOD: u32 = 4;
/// Is `mod_start` a pfn?
pub const SIF_MOD_START_PFN: u32 = 8;
/// Do the tools understand the linear p2m?
pub const SIF_VIRT_P2M_4TOOLS: u32 = 16;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<StartInfo>() == 1168);
    assert!(offset_of!(StartInfo, console_mfn) == 72);
    assert!(offset_of!(StartInfo, pt_base) == 88);
    assert!(offset_of!(StartInfo, cmd_line) == 128);
    assert!(offset_of!(StartInfo, first_p2m_pfn) == 1152);
};
