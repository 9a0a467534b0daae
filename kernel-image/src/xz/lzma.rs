//! LZMA: a binary range coder whose every bit has an adaptive probability, over literals and matches.
//!
//! The output buffer is the dictionary. Written for few instructions: the coder's state stays in registers because all
//! of it is inlined into one loop, trees are unrolled, table indices are masked to table sizes that are powers of two
//! so that no bounds check is left, and matches are copied by words.

#![allow(
    clippy::cast_possible_truncation,
    reason = "bytes, slots and probabilities are cut to their width by the tables' sizes"
)]

use alloc::boxed::Box;

/// Probabilities are 11-bit fractions: the chance that the bit is 0.
type Prob = u16;
const PROB_BITS: u32 = 11;
const EVEN: Prob = 1 << (PROB_BITS - 1);
/// Speed of adaptation.
const MOVE_BITS: u32 = 5;
/// Below this range another input byte is needed.
const TOP: u32 = 1 << 24;

/// Number of the states that remember the kinds of the last symbols, rounded up to a power of two. The first seven
/// mean: the last symbol was a literal.
const STATES: usize = 16;
const LITERAL_STATES: usize = 7;
const POS_STATES: usize = 16;
const MIN_MATCH: usize = 2;
/// Distance slots below this one are the distance itself.
const FIRST_SLOT_WITH_BITS: u32 = 4;
/// From this slot on the middle bits of a distance are not modelled.
const FIRST_SLOT_WITH_DIRECT_BITS: u32 = 14;

const OVERRUN: &str = "a coded chunk ends early";
const BAD_DISTANCE: &str = "a match refers to before the start";
const BAD_LENGTH: &str = "a match runs past its chunk";

/// The part of a range decoder that reads bits.
struct RangeDecoder<'a> {
    range: u32,
    code: u32,
    input: core::slice::Iter<'a, u8>,
    is_overrun: bool,
}

impl RangeDecoder<'_> {
    #[inline(always)]
    fn normalize(&mut self) {
        if self.range < TOP {
            let byte = match self.input.next() {
                Some(&byte) => byte,
                None => {
                    self.is_overrun = true;
                    0
                }
            };
            self.code = self.code << 8 | u32::from(byte);
            self.range <<= 8;
        }
    }

    /// Decodes one bit and adapts its probability; gives `zero` or `one`. What follows from the bit is passed in, and
    /// not computed from a `bool`, so that it is computed in the branch that is there already.
    #[inline(always)]
    fn select<T>(&mut self, prob: &mut Prob, zero: T, one: T) -> T {
        self.normalize();
        let p = u32::from(*prob);
        let bound = (self.range >> PROB_BITS) * p;
        if self.code < bound {
            self.range = bound;
            *prob = (p + (((1 << PROB_BITS) - p) >> MOVE_BITS)) as Prob;
            zero
        } else {
            self.range -= bound;
            self.code -= bound;
            *prob = (p - (p >> MOVE_BITS)) as Prob;
            one
        }
    }

    /// Decodes one bit.
    #[inline(always)]
    fn bit(&mut self, prob: &mut Prob) -> bool {
        self.select(prob, false, true)
    }

    /// One step down a bit tree: `node` becomes its left or right child. `N` is a power of two.
    #[inline(always)]
    fn step<const N: usize>(&mut self, probs: &mut [Prob; N], node: &mut usize) {
        let left = *node << 1;
        *node = self.select(&mut probs[*node & (N - 1)], left, left + 1);
    }

    /// A bit tree of log2(`N`) bits, most significant first.
    #[inline(always)]
    fn tree<const N: usize>(&mut self, probs: &mut [Prob; N]) -> usize {
        let mut node = 1;
        // Unrolled; the comparisons are constant.
        macro_rules! steps {
            ($($depth:literal)*) => { $( if N > 1 << $depth { self.step(probs, &mut node); } )* };
        }
        steps!(0 1 2 3 4 5 6 7);
        node & (N - 1)
    }

    /// `count` bits of a tree, least significant first. The node of a tree rooted at `base` is `base` plus its number.
    #[inline(always)]
    fn reverse_tree<const N: usize>(&mut self, probs: &mut [Prob; N], base: usize, count: u32) -> u32 {
        let mut node = 1;
        let mut value = 0;
        for i in 0..count {
            let left = node << 1;
            (node, value) = self.select(&mut probs[(base + node) & (N - 1)], (left, value), (left + 1, value | 1 << i));
        }
        value
    }

    /// `count` bits without a model: each halves the range.
    #[inline(always)]
    fn direct(&mut self, count: u32) -> u32 {
        let mut value = 0;
        for _ in 0..count {
            self.normalize();
            self.range >>= 1;
            let bit = self.code >= self.range;
            if bit {
                self.code -= self.range;
            }
            value = value << 1 | u32::from(bit);
        }
        value
    }
}

/// Model of a match's length.
struct LengthModel {
    is_long: Prob,
    is_longest: Prob,
    low: [[Prob; 8]; POS_STATES],
    mid: [[Prob; 8]; POS_STATES],
    high: [Prob; 256],
}

impl LengthModel {
    const NEW: Self = Self {
        is_long: EVEN,
        is_longest: EVEN,
        low: [[EVEN; 8]; POS_STATES],
        mid: [[EVEN; 8]; POS_STATES],
        high: [EVEN; 256],
    };

    #[inline(always)]
    fn decode(&mut self, rc: &mut RangeDecoder<'_>, pos_state: usize) -> usize {
        MIN_MATCH
            + if !rc.bit(&mut self.is_long) {
                rc.tree(&mut self.low[pos_state & (POS_STATES - 1)])
            } else if !rc.bit(&mut self.is_longest) {
                8 + rc.tree(&mut self.mid[pos_state & (POS_STATES - 1)])
            } else {
                16 + rc.tree(&mut self.high)
            }
    }
}

/// All adaptive probabilities.
struct Model {
    is_match: [[Prob; POS_STATES]; STATES],
    is_rep: [Prob; STATES],
    is_rep0: [Prob; STATES],
    is_rep1: [Prob; STATES],
    is_rep2: [Prob; STATES],
    is_rep0_long: [[Prob; POS_STATES]; STATES],
    match_len: LengthModel,
    rep_len: LengthModel,
    dist_slot: [[Prob; 64]; 4],
    /// Trees for the low bits of the distances of slots 4 to 13, at `base - slot`.
    dist_low: [Prob; 128],
    dist_align: [Prob; 16],
    /// Per context: the tree of a plain literal, then those of a literal after a match, for a next bit of 0 and of 1 in
    /// the byte that the match would have continued with.
    literal: [[[Prob; 256]; 3]; 16],
}

impl Model {
    const NEW: Self = Self {
        is_match: [[EVEN; POS_STATES]; STATES],
        is_rep: [EVEN; STATES],
        is_rep0: [EVEN; STATES],
        is_rep1: [EVEN; STATES],
        is_rep2: [EVEN; STATES],
        is_rep0_long: [[EVEN; POS_STATES]; STATES],
        match_len: LengthModel::NEW,
        rep_len: LengthModel::NEW,
        dist_slot: [[EVEN; 64]; 4],
        dist_low: [EVEN; 128],
        dist_align: [EVEN; 16],
        literal: [[[EVEN; 256]; 3]; 16],
    };
}

/// What an LZMA coder keeps from chunk to chunk.
pub(super) struct Lzma {
    model: Box<Model>,
    state: usize,
    /// The last four distances, less one.
    reps: [u32; 4],
    /// Number of bits of the previous byte that select a literal's context.
    lc: u32,
    /// Masks for the position bits that select a literal's context, and for those that select `pos_state`.
    lp_mask: usize,
    pb_mask: usize,
}

impl Lzma {
    pub(super) fn new() -> Self {
        Self { model: Box::new(Model::NEW), state: 0, reps: [0; 4], lc: 0, lp_mask: 0, pb_mask: 0 }
    }

    /// Forgets everything learnt.
    pub(super) fn reset_state(&mut self) {
        *self.model = Model::NEW;
        self.state = 0;
        self.reps = [0; 4];
    }

    /// Takes the properties byte, (pb * 5 + lp) * 9 + lc, and resets the state.
    pub(super) fn set_properties(&mut self, byte: u8) -> Result<(), &'static str> {
        let (lc, lp, pb) = (byte % 9, byte / 9 % 5, byte / 45);
        if pb > 4 || lc + lp > 4 {
            return Err("bad LZMA properties");
        }
        self.lc = lc.into();
        self.lp_mask = (1 << lp) - 1;
        self.pb_mask = (1 << pb) - 1;
        self.reset_state();
        Ok(())
    }

    /// Decodes one chunk, all of `input`, into `out[pos..]`; `out[..pos]` is what matches may refer to.
    #[inline(never)]
    pub(super) fn chunk(&mut self, input: &[u8], out: &mut [u8], mut pos: usize) -> Result<(), &'static str> {
        let (&[0, a, b, c, d], rest) = input.split_first_chunk::<5>().ok_or(OVERRUN)? else {
            return Err("bad start of a coded chunk");
        };
        // Built here, not by a function that can fail: then all of it gets registers of its own.
        let rc = &mut RangeDecoder {
            range: !0,
            code: u32::from_be_bytes([a, b, c, d]),
            input: rest.iter(),
            is_overrun: false,
        };
        let model = &mut *self.model;
        let mut state = self.state;
        let [mut rep0, mut rep1, mut rep2, mut rep3] = self.reps;
        let (lc, lp_mask, pb_mask) = (self.lc, self.lp_mask, self.pb_mask);
        let mut previous = pos.checked_sub(1).and_then(|at| out.get(at).copied()).unwrap_or(0);

        while pos < out.len() {
            let pos_state = pos & pb_mask;
            state &= STATES - 1;
            if !rc.bit(&mut model.is_match[state][pos_state & (POS_STATES - 1)]) {
                let context = ((pos & lp_mask) << lc) + (usize::from(previous) << lc >> 8);
                let probs = &mut model.literal[context & 15];
                previous = if state < LITERAL_STATES {
                    rc.tree(&mut probs[0]) as u8
                } else {
                    let expected =
                        *pos.checked_sub(rep0 as usize + 1).and_then(|at| out.get(at)).ok_or(BAD_DISTANCE)?;
                    literal_after_match(rc, probs, expected)
                };
                out[pos] = previous;
                pos += 1;
                state = match state {
                    0..4 => 0,
                    4..10 => state - 3,
                    _ => state - 6,
                };
                continue;
            }
            let was_literal = state < LITERAL_STATES;
            let len;
            if !rc.bit(&mut model.is_rep[state]) {
                (rep3, rep2, rep1) = (rep2, rep1, rep0);
                len = model.match_len.decode(rc, pos_state);
                let slot = rc.tree(&mut model.dist_slot[(len - MIN_MATCH).min(3)]) as u32;
                rep0 = distance(rc, &mut model.dist_low, &mut model.dist_align, slot);
                state = if was_literal { 7 } else { 10 };
            } else {
                if !rc.bit(&mut model.is_rep0[state]) {
                    if !rc.bit(&mut model.is_rep0_long[state][pos_state & (POS_STATES - 1)]) {
                        previous =
                            *pos.checked_sub(rep0 as usize + 1).and_then(|at| out.get(at)).ok_or(BAD_DISTANCE)?;
                        out[pos] = previous;
                        pos += 1;
                        state = if was_literal { 9 } else { 11 };
                        continue;
                    }
                } else if !rc.bit(&mut model.is_rep1[state]) {
                    (rep0, rep1) = (rep1, rep0);
                } else if !rc.bit(&mut model.is_rep2[state]) {
                    (rep0, rep1, rep2) = (rep2, rep0, rep1);
                } else {
                    (rep0, rep1, rep2, rep3) = (rep3, rep0, rep1, rep2);
                }
                len = model.rep_len.decode(rc, pos_state);
                state = if was_literal { 8 } else { 11 };
            }
            copy_match(out, pos, rep0 as usize + 1, len)?;
            pos += len;
            previous = out[pos - 1];
        }

        rc.normalize();
        if rc.is_overrun || rc.input.len() != 0 || rc.code != 0 {
            return Err("a coded chunk does not end where it should");
        }
        self.state = state;
        self.reps = [rep0, rep1, rep2, rep3];
        Ok(())
    }
}

/// A literal that follows a match. It is known to differ from `expected`, the byte that would have continued the match,
/// so that byte's bits select the tree for as long as they agree.
#[inline(always)]
fn literal_after_match(rc: &mut RangeDecoder<'_>, probs: &mut [[Prob; 256]; 3], expected: u8) -> u8 {
    let [plain, after_0, after_1] = probs;
    let mut node = 1;
    let mut expected = usize::from(expected);
    loop {
        let expected_bit = expected & 0x80 != 0;
        expected <<= 1;
        let tree = if expected_bit { &mut *after_1 } else { &mut *after_0 };
        let left = node << 1;
        let bit;
        (node, bit) = rc.select(&mut tree[node & 0xff], (left, false), (left + 1, true));
        if bit != expected_bit {
            break;
        }
        if node > 0xff {
            return node as u8;
        }
    }
    while node <= 0xff {
        rc.step(plain, &mut node);
    }
    node as u8
}

/// The rest of a match's distance, less one, after its slot.
#[inline(always)]
fn distance(rc: &mut RangeDecoder<'_>, low: &mut [Prob; 128], align: &mut [Prob; 16], slot: u32) -> u32 {
    if slot < FIRST_SLOT_WITH_BITS {
        return slot;
    }
    let nr_bits = (slot >> 1) - 1;
    let base = (2 | slot & 1) << nr_bits;
    if slot < FIRST_SLOT_WITH_DIRECT_BITS {
        return base + rc.reverse_tree(low, (base - slot) as usize, nr_bits);
    }
    let middle = rc.direct(nr_bits - 4) << 4;
    // At most 0xffffffff, the end marker of plain LZMA; here it is a distance like any other, and too large.
    base + middle + rc.reverse_tree(align, 0, 4)
}

/// Copies `len` bytes from `distance` bytes before `pos`. The source may overlap the target: then the bytes repeat.
#[inline(always)]
fn copy_match(out: &mut [u8], pos: usize, distance: usize, len: usize) -> Result<(), &'static str> {
    let from = pos.checked_sub(distance).ok_or(BAD_DISTANCE)?;
    let (done, free) = out.split_at_mut_checked(pos).ok_or(BAD_LENGTH)?;
    // Whole words, up to seven bytes too many: what lies behind is written later anyway.
    let rounded = len.next_multiple_of(8);
    if distance >= rounded && free.len() >= rounded {
        let source = done[from..].chunks_exact(8);
        for (to, from) in free[..rounded].chunks_exact_mut(8).zip(source) {
            to.copy_from_slice(from);
        }
        return Ok(());
    }
    copy_overlapping(out, pos, from, len)
}

#[inline(never)]
fn copy_overlapping(out: &mut [u8], pos: usize, from: usize, len: usize) -> Result<(), &'static str> {
    let window = out.get_mut(from..pos + len).ok_or(BAD_LENGTH)?;
    let distance = pos - from;
    if distance == 1 {
        let (byte, run) = window.split_first_mut().ok_or(BAD_DISTANCE)?;
        run.fill(*byte);
        return Ok(());
    }
    // Each turn copies what there is, so that the pattern doubles.
    let mut filled = distance;
    while filled < window.len() {
        let (pattern, free) = window.split_at_mut(filled);
        let len = free.len().min(pattern.len());
        copy_bytes(&mut free[..len], &pattern[..len]);
        filled += len;
    }
    Ok(())
}

/// Copies a few bytes, without the set-up cost of `memcpy`.
#[inline(always)]
fn copy_bytes(to: &mut [u8], from: &[u8]) {
    let mut words = to.chunks_exact_mut(8).zip(from.chunks_exact(8));
    for (to, from) in words.by_ref() {
        to.copy_from_slice(from);
    }
    let odd = to.len() - to.len() % 8;
    for (to, from) in to[odd..].iter_mut().zip(&from[odd..]) {
        *to = *from;
    }
}
