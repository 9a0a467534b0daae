//! Words of a domain's memory at masked addresses, on the mirror: an instruction each, and a look whether it faulted.
//! The pages are the supervisor's there, so nothing has to be said to SMAP.

use core::arch::asm;
use twin_abi::op::MASK_BITS;

/// A masked address: in the window, or nothing is mapped there on the mirror. Nothing else is handed to those who
/// access a domain's memory without another look.
#[derive(Clone, Copy)]
pub struct MaskedAddr(u64);

impl MaskedAddr {
    /// Masks an address.
    #[inline(always)]
    pub fn of(address: u64) -> Self {
        Self(address & ((1 << MASK_BITS) - 1))
    }

    /// The number.
    #[inline(always)]
    pub fn raw(self) -> u64 {
        self.0
    }
}

/// Readers and writers of words of one size. `None` and `false`: the word is not there, or may not be written.
macro_rules! word {
    ($read:ident, $note:ident, $write:ident, $read_member:ident, $note_member:ident, $write_member:ident,
        $word:ty, $load:literal, $value:literal, $class:ident) => {
        /// Reads a word.
        #[inline(always)]
        pub fn $read(masked: MaskedAddr) -> Option<$word> {
            let mut has_faulted = 0;
            let value = $note(masked, &mut has_faulted);
            (has_faulted == 0).then_some(value)
        }

        /// Reads a word; if it faults, notes that, and what it returns says nothing.
        #[inline(always)]
        pub fn $note(masked: MaskedAddr, has_faulted: &mut u32) -> $word {
            let value: u64;
            // SAFETY: a masked address: in the window, or unmapped; a fault is caught.
            unsafe {
                asm!(concat!("2: ", $load, "[{at}]"), "3:",
                    ".pushsection .text.twin_fixup, \"ax\"", "4: mov {faulted:e}, 1", "jmp 3b", ".popsection",
                    ".pushsection ex_table, \"a\"", ".quad 2b, 4b", ".popsection",
                    at = in(reg) masked.0, value = lateout(reg) value, faulted = inout(reg) *has_faulted,
                    options(nostack, readonly, preserves_flags));
            }
            #[allow(clippy::cast_possible_truncation, reason = "the rest is zero")]
            (value as $word)
        }

        /// Writes a word.
        #[inline(always)]
        pub fn $write(masked: MaskedAddr, value: $word) -> bool {
            // SAFETY: as above.
            unsafe {
                asm!(concat!("2: mov [{at}], ", $value),
                    ".pushsection ex_table, \"a\"", ".quad 2b, {faulted}", ".popsection",
                    at = in(reg) masked.0, value = in($class) value, faulted = label { return false },
                    options(nostack, preserves_flags));
            }
            true
        }

        /// Reads a word that is `member` bytes behind a masked address.
        #[inline(always)]
        pub fn $read_member(masked: MaskedAddr, member: u32) -> Option<$word> {
            let mut has_faulted = 0;
            let value = $note_member(masked, member, &mut has_faulted);
            (has_faulted == 0).then_some(value)
        }

        /// The same; if it faults, notes that, and what it returns says nothing.
        #[inline(always)]
        pub fn $note_member(masked: MaskedAddr, member: u32, has_faulted: &mut u32) -> $word {
            let value: u64;
            // SAFETY: less than 4 GiB behind a masked address: in the window, or no address at all; a fault is caught.
            unsafe {
                asm!(concat!("2: ", $load, "[{at} + {member}]"), "3:",
                    ".pushsection .text.twin_fixup, \"ax\"", "4: mov {faulted:e}, 1", "jmp 3b", ".popsection",
                    ".pushsection ex_table, \"a\"", ".quad 2b, 4b", ".popsection",
                    at = in(reg) masked.0, member = in(reg) u64::from(member), value = lateout(reg) value,
                    faulted = inout(reg) *has_faulted, options(nostack, readonly, preserves_flags));
            }
            #[allow(clippy::cast_possible_truncation, reason = "the rest is zero")]
            (value as $word)
        }

        /// Writes a word alike.
        #[inline(always)]
        pub fn $write_member(masked: MaskedAddr, member: u32, value: $word) -> bool {
            // SAFETY: as above.
            unsafe {
                asm!(concat!("2: mov [{at} + {member}], ", $value),
                    ".pushsection ex_table, \"a\"", ".quad 2b, {faulted}", ".popsection",
                    at = in(reg) masked.0, member = in(reg) u64::from(member), value = in($class) value,
                    faulted = label { return false }, options(nostack, preserves_flags));
            }
            true
        }
    };
}

word!(
    u8,
    note_u8,
    put_u8,
    member_u8,
    note_member_u8,
    put_member_u8,
    u8,
    "movzx {value:e}, byte ptr ",
    "{value}",
    reg_byte
);
word!(
    u16,
    note_u16,
    put_u16,
    member_u16,
    note_member_u16,
    put_member_u16,
    u16,
    "movzx {value:e}, word ptr ",
    "{value:x}",
    reg
);
word!(u32, note_u32, put_u32, member_u32, note_member_u32, put_member_u32, u32, "mov {value:e}, ", "{value:e}", reg);
word!(u64, note_u64, put_u64, member_u64, note_member_u64, put_member_u64, u64, "mov {value}, ", "{value}", reg);

/// Writes `value` so often as eight bytes fit into `len`, upwards, and then to the bytes that are left.
#[inline(always)]
pub fn fill(masked: MaskedAddr, value: u8, len: u64) -> bool {
    let word = u64::from_ne_bytes([value; 8]);
    let left: u64;
    // SAFETY: as above. Nothing is mapped behind the window.
    unsafe {
        asm!("2: rep stosq", "mov ecx, {rest:e}", "3: rep stosb", "4:",
            ".pushsection .text.twin_fixup, \"ax\"", "5: mov ecx, 1", "jmp 4b", ".popsection",
            ".pushsection ex_table, \"a\"", ".quad 2b, 5b", ".quad 3b, 5b", ".popsection",
            rest = in(reg) len & 7, inout("rdi") masked.0 => _, inout("rcx") len / 8 => left, in("rax") word,
            options(nostack, preserves_flags));
    }
    left == 0
}
