//! The address map of a running twin.
//!
//! An **instance** is one mapping of an image: one per physical CPU, so that every per-CPU thing is a constant of the
//! instance and the code needs no register for it. The code is position independent; around it, at fixed distances, lie
//! the areas below. The code names them RIP-relative and in no other way. Offsets are from the instance base:
//!
//! | offset     | size    | rights | area                                                              |
//! |------------|---------|--------|-------------------------------------------------------------------|
//! | `0x0_0000` | 4 KiB   | RW     | context words ([`ctx`]); runtime and twin                         |
//! | `0x0_2000` | 4 KiB   | R      | constants and special gates ([`constant`], [`gate`])              |
//! | `0x0_3000` | 8 KiB   | R      | import slots, 8 bytes each, in the order of the image's imports   |
//! | `0x0_5000` | 4 KiB   | R      | call table: 256 entries of (domain address, twin address)         |
//! | `0x1_0000` | 64 KiB  | R      | stlb: 4096 entries of (domain page, mapped page); mode stlb only  |
//! | `0x2_0000` | code    | RX     | the image's code                                                  |
//!
//! What is not listed is unmapped. "R" is the twin's view: the runtime writes these areas through a mapping of its own.
//!
//! **Mirror mode.** A driver-domain address is translated by keeping its low `mask_bits` bits (47 in the hypervisor,
//! where the domain's kernel half appears in the lower half of a private root; the host harness takes 46, so that it
//! can live above the window). A masked value is in `[0, 2^mask_bits)`. The loader guarantees that `[2^mask_bits,
//! 2^mask_bits + WINDOW_GUARD)` and the top 2 GiB of the address space hold nothing that is accessible, so that any
//! 32-bit displacement and a 32-bit index scaled by 8 may be added to a masked value.
//!
//! **Stlb mode.** Entry `(va >> 12) & 4095` holds the page's address in the driver domain and the address at which that
//! page *and the one after it* are mapped for the twin. An invalid entry holds [`STLB_NO_TAG`] and the address of two
//! unmapped pages. All mapped addresses in the table are page aligned.
//!
//! **Stack.** The twin's stack is outside the window (mirror) and in no stlb entry, so only rsp-relative instructions
//! reach it. Below it are [`STACK_GUARD`] bytes unmapped, above it too. The **unsafe area** is as large as the stack,
//! lies inside the window at addresses that masking leaves alone (stlb: the miss path knows them), has [`STACK_GUARD`]
//! bytes of its own on both sides, and is found by adding the constant [`constant::DELTA`] to a stack address.
//! Variables whose address is taken live there.

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;

/// Offset of the context page.
pub const CTX_OFFSET: u32 = 0x0_0000;
/// Offset of the page of constants and special gates.
pub const CONST_OFFSET: u32 = 0x0_2000;
/// Offset of the import slots.
pub const IMPORT_OFFSET: u32 = 0x0_3000;
/// Most imports of one image.
pub const MAX_IMPORTS: u32 = 1024;
/// Offset of the call table.
pub const CALL_TABLE_OFFSET: u32 = 0x0_5000;
/// Entries of the call table, 16 bytes each. Entry of a domain address `a`: bits 4..12 of `a`.
pub const CALL_TABLE_ENTRIES: u32 = 256;
/// Largest byte index into the call table.
pub const CALL_INDEX_MASK: u32 = (CALL_TABLE_ENTRIES - 1) * 16;
/// Offset of the stlb.
pub const STLB_OFFSET: u32 = 0x1_0000;
/// Entries of the stlb, 16 bytes each.
pub const STLB_ENTRIES: u32 = 4096;
/// Largest byte index into the stlb.
pub const STLB_INDEX_MASK: u32 = (STLB_ENTRIES - 1) * 16;
/// Tag of an invalid stlb entry: no page address xor this is below 4096.
pub const STLB_NO_TAG: u64 = 0x0000_8000_0000_0000;
/// Offset of the code.
pub const CODE_OFFSET: u32 = 0x2_0000;
/// Largest code.
pub const MAX_CODE: u32 = 16 << 20;
/// Most bytes of the strings.
pub const MAX_STRINGS: u32 = 1 << 20;
/// Longest name of a function or an import.
pub const MAX_NAME: u32 = 255;
/// So many records a table may have whatever the size of the code; see [`most_functions`] and its neighbours.
const SPARE_RECORDS: u32 = 64;

/// Most functions (and entries of the address table) for `code` bytes of code: one for each four.
#[must_use]
pub const fn most_functions(code: u32) -> u32 {
    SPARE_RECORDS + code / 4
}

/// Most labels (and states) for `code` bytes of code: one for each two.
#[must_use]
pub const fn most_labels(code: u32) -> u32 {
    SPARE_RECORDS + code / 2
}

/// Most origins for `code` bytes of code: one for each.
#[must_use]
pub const fn most_origins(code: u32) -> u32 {
    SPARE_RECORDS + code
}

/// Inaccessible bytes above the window: 8 x 4 GiB of index, 2 GiB of displacement, an operand.
pub const WINDOW_GUARD: u64 = 35 << 30;
/// Displacements allowed on a translated stlb address: 0..=this. The largest page offset, this and 8 bytes fit in two
/// pages.
pub const STLB_REACH: u32 = 4088;
/// Bytes that one string instruction may cover. In stlb mode it stays in a pair of pages by that, in both modes it
/// takes a bounded time.
pub const STRING_BYTES: u32 = 4096;

/// Deepest frame of one function in bytes, return address and stack arguments not counted.
pub const FRAME_MAX: u32 = 4080;
/// Unmapped bytes below and above the stack and the unsafe area. More than a frame, a return address and the arguments.
pub const STACK_GUARD: u64 = 8192;
/// Bytes of the stack (and of the unsafe area).
pub const STACK_SIZE: u64 = 32768;

/// Bytes at the stack's end above the return address of an entry: the first function may take them for its stack
/// arguments. They are zero when the instance is loaded, and nobody but the twin writes there.
pub const ENTRY_AREA: u64 = 256;
/// Most words of stack arguments of a call.
pub const MAX_STACK_ARGS: u32 = 16;

/// Words of the context page (offsets from [`CTX_OFFSET`]), readable and writable by the code as said.
pub mod ctx {
    /// i64. Steps left. The code may only decrement it, followed by a jump to `ud2` when negative; gates decrement it
    /// too.
    pub const BUDGET: u32 = 0x00;
    /// Written by the code before it calls [`super::gate::STLB_MISS`]: the domain address to translate.
    pub const MISS_ADDRESS: u32 = 0x08;
    /// Written by that gate: the translated address. Read-only for the code.
    pub const MISS_RESULT: u32 = 0x10;
    /// First of [`SPILL_WORDS`] words that the code may use as it likes (8-byte accesses, aligned). Nothing survives a
    /// call in them but by agreement between caller and callee; they are for spills inside one rewritten instruction.
    pub const SPILL: u32 = 0x40;
    /// Number of spill words.
    pub const SPILL_WORDS: u32 = 32;
}

/// Words of the constant page (offsets from [`CONST_OFFSET`]) that the code may load with `mov r64, [rip+x]`
/// (and use as source operand of `and` and as last operand of `pext` in the case of [`MASK`]).
pub mod constant {
    /// `2^mask_bits - 1`. Kind `Mask`.
    pub const MASK: u32 = 0x00;
    /// `mask_bits`. Kind `Bits`.
    pub const BITS: u32 = 0x08;
    /// Unsafe area minus stack. Kind `Delta`.
    pub const DELTA: u32 = 0x10;
    /// Base of the twin's per-CPU area in the driver domain, to which a gs-relative offset is added. Mirror: already
    /// masked, kind `Masked`. Stlb: the domain address.
    pub const PERCPU: u32 = 0x18;
    /// The same as a domain address, in both modes: what `this_cpu_off` reads as, and what pointers to per-CPU data are
    /// made of.
    pub const PERCPU_ADDRESS: u32 = 0x20;
    /// A value for stack canaries.
    pub const CANARY: u32 = 0x28;
    /// Offset after the last constant.
    pub const END: u32 = 0x30;
}

/// Special gates (offsets from [`CONST_OFFSET`]): addresses of runtime code, used by `call [rip+x]` (and `jmp [rip+x]`
/// for
/// [`ICALL`]) and not readable as data. Like import slots they are filled by the loader.
pub mod gate {
    /// First gate word.
    pub const BASE: u32 = 0x80;
    /// Translates [`super::ctx::MISS_ADDRESS`] into [`super::ctx::MISS_RESULT`] and fills the stlb, or aborts.
    /// Preserves every register; flags are lost.
    pub const STLB_MISS: u32 = 0x80;
    /// Calls what the domain address in **r11** stands for: a function of the twin, an import (native or upcall), or
    /// aborts. Arguments, result and preserved registers as in any call.
    pub const ICALL: u32 = 0x88;
    /// A `WARN` site was reached (its address on the stack tells which). Preserves every register; flags are lost.
    pub const WARN: u32 = 0x90;
    /// Offset after the last gate.
    pub const END: u32 = 0x98;
}
