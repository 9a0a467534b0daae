//! Pages with segment descriptors: nobody writes to them but the hypervisor, which checks each descriptor.

use super::{Mmu, MmuEnv, MmuError, Slot};
use crate::frame::{Frame, FrameType, Usage, UsageState};
use x86::{Mfn, Pte};
use xen_abi::layout::{DomId, FIRST_RESERVED_GDT_PAGE};

/// Descriptors in a page.
const PER_PAGE: usize = 512;

const PRESENT: u64 = 1 << 47;
const DPL: u64 = 3 << 45;
const NON_SYSTEM: u64 = 1 << 44;
const SYSTEM_TYPE: u64 = 0xf << 40;

/// The descriptor as it may be used by a guest, with DPL 3; `None` if it may not.
///
/// Code and data of any base and limit are harmless: in 64-bit mode they protect nothing. Of the system descriptors
/// only empty ones pass: a TSS or an LDT would be the CPU's own, and a gate could lead to the hypervisor's code.
///
/// Differs from Xen: call gates are refused. No 64-bit kernel that is known uses one.
pub const fn check_descriptor(raw: u64) -> Option<u64> {
    if raw & PRESENT == 0 {
        Some(raw)
    } else if raw & NON_SYSTEM != 0 || raw & SYSTEM_TYPE == 0 {
        Some(raw | DPL)
    } else {
        None
    }
}

/// The descriptor-table frames of a vCPU, each with a general and a type reference; frame 0 is none.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "descriptor frames hold references"]
pub struct GdtFrames {
    frames: [Mfn; FIRST_RESERVED_GDT_PAGE],
}

const NONE: Mfn = Mfn::new(0);

impl GdtFrames {
    /// No frames.
    pub const fn new() -> Self {
        Self { frames: [NONE; FIRST_RESERVED_GDT_PAGE] }
    }
    /// The frames.
    pub const fn frames(&self) -> &[Mfn; FIRST_RESERVED_GDT_PAGE] {
        &self.frames
    }
    /// Gives up the value and keeps the counts.
    pub const fn keep(self) -> [Mfn; FIRST_RESERVED_GDT_PAGE] {
        self.frames
    }
    /// Takes back what was kept. The counts must really be held.
    pub const fn from_kept(frames: [Mfn; FIRST_RESERVED_GDT_PAGE]) -> Self {
        Self { frames }
    }
}

impl Default for GdtFrames {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Takes the frames of a new descriptor table of `dom`; all or none. The shell maps them, then drops the old ones.
    pub fn take_gdt(&self, dom: DomId, frames: &[Mfn]) -> Result<GdtFrames, MmuError> {
        let mut taken = GdtFrames::new();
        if frames.len() > taken.frames.len() {
            return Err(MmuError::BadArgument);
        }
        for (place, &mfn) in taken.frames.iter_mut().zip(frames) {
            if let Err(why) = self.take_segdesc(dom, mfn) {
                self.drop_gdt(&mut taken);
                return Err(why);
            }
            *place = mfn;
        }
        Ok(taken)
    }

    /// Drops all frames of a descriptor table that is no longer mapped.
    pub fn drop_gdt(&self, gdt: &mut GdtFrames) {
        for mfn in core::mem::replace(&mut gdt.frames, [NONE; FIRST_RESERVED_GDT_PAGE]) {
            if mfn != NONE {
                self.drop_segdesc(mfn);
            }
        }
    }

    /// Takes a reference on a descriptor page of `dom`, checking all its descriptors if it was none. It rewrites them
    /// with DPL 3.
    pub fn take_segdesc(&self, dom: DomId, mfn: Mfn) -> Result<(), MmuError> {
        let frame = self.ram(mfn)?;
        if !frame.get(dom) {
            return Err(MmuError::NotOwned);
        }
        self.take_segdesc_type(mfn, frame, dom).inspect_err(|_| self.put_frame(mfn, frame))
    }

    fn take_segdesc_type(&self, mfn: Mfn, frame: &Frame, dom: DomId) -> Result<(), MmuError> {
        loop {
            let usage = frame.usage();
            if usage.is_valid_as(FrameType::SegDesc) {
                let new = usage.plus_one().ok_or(MmuError::Overflow)?;
                if frame.change_usage(usage, new) {
                    return Ok(());
                }
            } else if usage.state() == UsageState::Idle {
                if usage.needs_flush_for(FrameType::SegDesc) {
                    self.env.flush_since(usage.stamp(), usage.knowers(dom));
                }
                if frame.change_usage(usage, Usage::busy(FrameType::SegDesc)) {
                    if usage.ty() == FrameType::Writable {
                        self.env.dma_forbid(dom, mfn);
                    }
                    let result = self.check_page(mfn);
                    frame.set_usage(match result {
                        Ok(()) => Usage::valid(FrameType::SegDesc, 1),
                        Err(_) => Usage::idle(FrameType::SegDesc, self.env.tlb_clock()),
                    });
                    return result;
                }
            } else if usage.state() == UsageState::Busy && usage.ty() == FrameType::SegDesc {
                return Err(MmuError::Contended);
            } else {
                return Err(MmuError::WrongType);
            }
        }
    }

    fn check_page(&self, mfn: Mfn) -> Result<(), MmuError> {
        self.env.step();
        for index in 0..PER_PAGE {
            let slot = Slot::new(mfn, index);
            let raw = self.env.read(slot).0;
            let fixed = check_descriptor(raw).ok_or(MmuError::BadDescriptor)?;
            if fixed != raw {
                self.env.write(slot, Pte(fixed));
            }
        }
        Ok(())
    }

    /// Drops a reference taken by [`Self::take_segdesc`].
    pub fn drop_segdesc(&self, mfn: Mfn) {
        let Some(frame) = self.frame(mfn) else { return };
        self.put_simple_type(frame, FrameType::SegDesc);
        self.put_frame(mfn, frame);
    }

    /// `update_descriptor`: writes a descriptor at machine address `addr`, in a descriptor page or in plain memory of
    /// `dom`.
    pub fn update_descriptor(&self, dom: DomId, addr: u64, raw: u64) -> Result<(), MmuError> {
        if addr & 7 != 0 {
            return Err(MmuError::BadArgument);
        }
        let fixed = check_descriptor(raw).ok_or(MmuError::BadDescriptor)?;
        let slot = Slot::at(addr);
        let mfn = slot.page();
        let frame = self.ram(mfn)?;
        if frame.usage().is_valid_as(FrameType::SegDesc) {
            self.take_segdesc(dom, mfn)?;
            self.env.write(slot, Pte(fixed));
            self.drop_segdesc(mfn);
        } else {
            self.get_frame_writable(mfn, frame, dom)?;
            self.env.write(slot, Pte(fixed));
            self.put_frame_writable(mfn, frame);
        }
        Ok(())
    }
}
