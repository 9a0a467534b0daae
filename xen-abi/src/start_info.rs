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
/// `magic` of a 64-bit guest.
pub const MAGIC: &[u8] = b"xen-3.0-x86_64";
/// `magic` of 64-bit domain 0: the trailing "p" is a habit of the domain builder inside the hypervisor.
pub const MAGIC_DOM0: &[u8] = b"xen-3.0-x86_64p";
/// Longest command line, without its terminating zero.
pub const MAX_CMD_LINE: usize = 1023;

impl StartInfo {
    /// All zero.
    pub const ZERO: Self = Self {
        magic: [0; 32],
        nr_pages: 0,
        shared_info: 0,
        flags: 0,
        pad0: 0,
        store_mfn: 0,
        store_evtchn: 0,
        pad1: 0,
        console_mfn: 0,
        console_evtchn: 0,
        pad2: 0,
        pt_base: 0,
        nr_pt_frames: 0,
        mfn_list: 0,
        mod_start: 0,
        mod_len: 0,
        cmd_line: [0; 1024],
        first_p2m_pfn: 0,
        nr_p2m_frames: 0,
    };

    /// The structure as it lies in memory.
    pub fn to_bytes(&self) -> [u8; core::mem::size_of::<Self>()] {
        let mut out = [0; core::mem::size_of::<Self>()];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&self.magic);
        put(&self.nr_pages.to_le_bytes());
        put(&self.shared_info.to_le_bytes());
        put(&self.flags.to_le_bytes());
        put(&self.pad0.to_le_bytes());
        put(&self.store_mfn.to_le_bytes());
        put(&self.store_evtchn.to_le_bytes());
        put(&self.pad1.to_le_bytes());
        put(&self.console_mfn.to_le_bytes());
        put(&self.console_evtchn.to_le_bytes());
        put(&self.pad2.to_le_bytes());
        put(&self.pt_base.to_le_bytes());
        put(&self.nr_pt_frames.to_le_bytes());
        put(&self.mfn_list.to_le_bytes());
        put(&self.mod_start.to_le_bytes());
        put(&self.mod_len.to_le_bytes());
        put(&self.cmd_line);
        put(&self.first_p2m_pfn.to_le_bytes());
        put(&self.nr_p2m_frames.to_le_bytes());
        out
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_layout() {
        let mut info = StartInfo::ZERO;
        info.nr_pages = 1;
        info.shared_info = 2;
        info.flags = 3;
        info.store_mfn = 4;
        info.console_mfn = 5;
        info.pt_base = 6;
        info.nr_pt_frames = 7;
        info.mfn_list = 8;
        info.mod_start = 9;
        info.mod_len = 10;
        info.cmd_line[0] = 11;
        info.first_p2m_pfn = 12;
        info.nr_p2m_frames = 13;
        let bytes = info.to_bytes();
        let at = [32, 40, 48, 56, 72, 88, 96, 104, 112, 120, 128, 1152, 1160];
        for (offset, expected) in at.into_iter().zip(1..) {
            assert_eq!(bytes[offset], expected, "offset {offset}");
        }
        assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), at.len());
    }
}
