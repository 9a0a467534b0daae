//! The hypervisor's address map. Guests see only the first window; the rest of the 16 L4 slots is ours to arrange.

pub use xen_abi::layout::{HYPERVISOR_END_SLOT, HYPERVISOR_FIRST_SLOT};

/// Slot 256: machine-to-physical table, readable by guests.
pub const M2P_READ_ONLY: u64 = xen_abi::layout::MACH2PHYS_VIRT_START;
/// Slot 257: the same table, writable by the hypervisor.
pub const M2P: u64 = 0xffff_8080_0000_0000;
/// Slot 258: device memory, uncached.
pub const MMIO: u64 = 0xffff_8100_0000_0000;
/// At its end: the screen's memory, at most 1 GiB.
pub const SCREEN: u64 = 0xffff_817f_c000_0000;
/// End of the rest of the device window.
pub const MMIO_END: u64 = SCREEN;
/// Slot 259: pages mapped at addresses of their own.
pub const VMAP: u64 = 0xffff_8180_0000_0000;
/// In slot 259: descriptor-table windows of the CPUs, 32 pages each.
pub const DESCRIPTORS: u64 = VMAP;
/// In slot 259: entry code of the CPUs, one page each.
pub const SYSCALL_STUBS: u64 = VMAP + (1 << 30);
/// In slot 259: stacks of the CPUs, one block each.
pub const STACKS: u64 = VMAP + (2 << 30);
/// Slot 260: instances of twins, a part for each twin, in it one for each CPU.
pub const TWINS: u64 = 0xffff_8200_0000_0000;
/// Slot 261: the image, linked here and loaded at [`IMAGE_PHYS`].
pub const IMAGE: u64 = 0xffff_82d0_8000_0000;
/// Where the boot loader puts the image.
pub const IMAGE_PHYS: u64 = 0x20_0000;
/// Slot 261: the frame table.
pub const FRAME_TABLE: u64 = 0xffff_82e0_0000_0000;
/// Slots 262-271: all RAM.
pub const DIRECT_MAP: u64 = 0xffff_8300_0000_0000;
/// Bytes of RAM that the direct map can hold.
pub const DIRECT_MAP_BYTES: u64 = 5 << 40;
