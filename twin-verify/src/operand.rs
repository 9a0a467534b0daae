//! Which memory an operand may name: rules M1, M4 and S2.

use twin_abi::image::{Image, Mode};
use twin_abi::kind::Kind;
use twin_abi::layout::{
    constant, ctx, gate, CALL_TABLE_OFFSET, CODE_OFFSET, CONST_OFFSET, CTX_OFFSET, IMPORT_OFFSET, STLB_OFFSET,
    STLB_REACH,
};

use crate::decode::instruction::{Base, Memory};
use crate::value::{State, RSP};
use crate::Rule;

/// What an instruction does with its memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// What a memory operand turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The function's own frame or stack arguments.
    Frame,
    /// Driver-domain memory, or the unsafe area.
    Domain,
    /// Second word of an stlb entry: the mapped address.
    Mapped,
    /// First word of an stlb or call table entry.
    Tag,
    /// Second word of a call table entry: the address to call.
    Entry,
    /// A word named RIP-relative.
    Word(Word),
}

/// A word around the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Budget,
    MissAddress,
    MissResult,
    Spill,
    Constant(u32),
    Gate(u32),
    Import(u32),
    StlbTable,
    CallTable,
}

type Fault = (Rule, &'static str, i64);

/// What an address consists of.
pub struct Address {
    pub base: Option<usize>,
    pub index: Option<usize>,
    pub scale: u32,
    pub displacement: i64,
}

impl Address {
    /// The parts of a memory operand that is not RIP-relative.
    pub fn of(memory: &Memory) -> Self {
        let base = match memory.base {
            Base::Register(number) => Some(usize::from(number)),
            Base::Zero | Base::Rip => None,
        };
        Self { base, index: memory.index.map(usize::from), scale: memory.scale, displacement: memory.displacement }
    }

    /// Whether this is `[rsp + Delta + x]` (M1, unsafe) with `x` inside the frame.
    pub fn is_unsafe_area(&self, state: &State, size: i64, stack_args: u32) -> bool {
        let (depth, args) = extent(state, stack_args);
        self.base == Some(RSP)
            && self.scale == 1
            && self.index.is_some_and(|index| state.get(index).implies(Kind::Delta))
            && self.displacement >= 0
            && self.displacement + size <= depth + 8 + args
    }
}

/// Bytes of the frame and of the stack arguments.
fn extent(state: &State, stack_args: u32) -> (i64, i64) {
    (i64::from(state.frame.depth) * 8, i64::from(stack_args) * 8)
}

/// Checks a memory operand.
pub fn place(
    memory: &Memory,
    state: &State,
    image: &Image<'_>,
    stack_args: u32,
    access: Access,
) -> Result<Place, Fault> {
    let bytes = i64::from(memory.size);
    if !(1..=8).contains(&bytes) {
        return Err((Rule::M1, "operand size", bytes));
    }
    if memory.base == Base::Rip {
        let target = memory.displacement;
        let word = word(target, image).ok_or((Rule::M4, "no such word", target))?;
        return if bytes == 8 { Ok(Place::Word(word)) } else { Err((Rule::M4, "not all of a word", target)) };
    }
    let address = Address::of(memory);
    if address.base == Some(RSP) || address.index == Some(RSP) {
        if address.is_unsafe_area(state, bytes, stack_args) {
            return Ok(Place::Domain);
        }
        if address.index.is_some() {
            return Err((Rule::M1, "rsp with an index", address.displacement));
        }
        frame(address.displacement, bytes, state, stack_args, access)?;
        return Ok(Place::Frame);
    }
    if let Some(place) = table(&address, state, access, bytes) {
        return Ok(place);
    }
    match image.mode {
        Mode::Mirror if masked(&address, state) => Ok(Place::Domain),
        Mode::Mirror => Err((Rule::M1, "address not masked", address.displacement)),
        Mode::Stlb => window(&address, state),
    }
}

/// The word at code offset `target`, if there is one.
pub fn word(target: i64, image: &Image<'_>) -> Option<Word> {
    let at = u32::try_from(target + i64::from(CODE_OFFSET)).ok()?;
    let imports = u32::try_from(image.imports().len()).unwrap_or(0);
    let spills = ctx::SPILL..ctx::SPILL + 8 * ctx::SPILL_WORDS;
    match at {
        STLB_OFFSET if image.mode == Mode::Stlb => Some(Word::StlbTable),
        CALL_TABLE_OFFSET => Some(Word::CallTable),
        _ if at % 8 != 0 => None,
        CONST_OFFSET..IMPORT_OFFSET => match at - CONST_OFFSET {
            offset @ 0..constant::END => Some(Word::Constant(offset)),
            offset @ gate::BASE..gate::END => Some(Word::Gate(offset)),
            _ => None,
        },
        IMPORT_OFFSET..CALL_TABLE_OFFSET => Some((at - IMPORT_OFFSET) / 8).filter(|n| *n < imports).map(Word::Import),
        _ => match at - CTX_OFFSET {
            ctx::BUDGET => Some(Word::Budget),
            ctx::MISS_ADDRESS => Some(Word::MissAddress),
            ctx::MISS_RESULT => Some(Word::MissResult),
            offset if spills.contains(&offset) => Some(Word::Spill),
            _ => None,
        },
    }
}

/// S2: `[rsp + at]`, `bytes` wide.
fn frame(at: i64, bytes: i64, state: &State, stack_args: u32, access: Access) -> Result<(), Fault> {
    let (depth, args) = extent(state, stack_args);
    let own = at >= 0 && at + bytes <= depth;
    let argument = at >= depth + 8 && at + bytes <= depth + 8 + args;
    if !own && !argument {
        return Err((Rule::S2, "outside the frame", at));
    }
    let hits = |slot: u8| {
        let low = depth - 8 * i64::from(slot);
        slot != 0 && at < low + 8 && low < at + bytes
    };
    if access == Access::Write && state.frame.saved.iter().any(|slot| hits(*slot)) {
        return Err((Rule::S3, "saved slot is written", at));
    }
    Ok(())
}

/// The table forms of M1.
fn table(address: &Address, state: &State, access: Access, bytes: i64) -> Option<Place> {
    let (base, index) = (state.get(address.base?), state.get(address.index?));
    if access != Access::Read || bytes != 8 || address.scale != 1 {
        return None;
    }
    let stlb = base.implies(Kind::StlbBase) && index.implies(Kind::StlbIndex);
    let call = base.implies(Kind::CallBase) && index.implies(Kind::CallIndex);
    match address.displacement {
        0 if stlb || call => Some(Place::Tag),
        8 if stlb => Some(Place::Mapped),
        8 if call => Some(Place::Entry),
        _ => None,
    }
}

/// The masked form of M1: a masked part that is not scaled, and a part below 2^32. What is absent counts as zero.
fn masked(address: &Address, state: &State) -> bool {
    let fits = |register: Option<usize>, kind| register.is_none_or(|register| state.get(register).implies(kind));
    let base_masked = fits(address.base, Kind::Masked) && fits(address.index, Kind::U32);
    let index_masked = address.scale == 1 && fits(address.index, Kind::Masked) && fits(address.base, Kind::U32);
    base_masked || index_masked
}

/// The window form of M1.
fn window(address: &Address, state: &State) -> Result<Place, Fault> {
    let reach = (0..=i64::from(STLB_REACH)).contains(&address.displacement);
    match address.base {
        Some(base) if address.index.is_none() && state.get(base).implies(Kind::Window) => {
            if reach {
                Ok(Place::Domain)
            } else {
                Err((Rule::M1, "too far from a translated address", address.displacement))
            }
        }
        _ => Err((Rule::M1, "address not translated", address.displacement)),
    }
}
