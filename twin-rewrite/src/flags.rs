//! Saving the status flags around added code that writes them, where they are in use.

use crate::asm;
use crate::emit::Writer;
use crate::program::Node;
use crate::regs::RegSet;
use twin_abi::layout::ctx;

const RAX: u8 = 0;
const RAX_SLOT: u32 = ctx::SPILL + 8 * 4;
const FLAGS_SLOT: u32 = ctx::SPILL + 8 * 5;
/// Makes the overflow flag again from the byte that `seto` left.
const OVERFLOW_FROM_ONE: u32 = 0x7f;

/// How flags were saved.
#[derive(Debug, Clone, Copy)]
pub struct SavedFlags {
    overflow: bool,
}

impl Writer<'_, '_> {
    /// Saves the flags that are live before `n`, if any. rax is preserved by way of a spill word.
    pub fn save_flags(&mut self, _n: &Node, _used: RegSet) -> Result<Option<SavedFlags>, String> {
        let live = self.live_before() & RegSet::FLAGS;
        if live.is_empty() {
            return Ok(None);
        }
        self.counts.flag_saves += 1;
        let overflow = live.0 >> 21 & 1 != 0;
        self.put(asm::store(asm::context(RAX_SLOT), RAX));
        self.put(asm::lahf());
        if overflow {
            self.put(asm::seto_al());
        }
        self.put(asm::store(asm::context(FLAGS_SLOT), RAX));
        self.reload(RAX, RAX_SLOT);
        Ok(Some(SavedFlags { overflow }))
    }

    /// Restores them.
    pub fn restore_flags(&mut self, saved: Option<SavedFlags>) {
        let Some(saved) = saved else { return };
        self.put(asm::store(asm::context(RAX_SLOT), RAX));
        self.put(asm::load(RAX, asm::context(FLAGS_SLOT)));
        if saved.overflow {
            self.put(asm::add_al(OVERFLOW_FROM_ONE));
        }
        self.put(asm::sahf());
        self.reload(RAX, RAX_SLOT);
    }
}
