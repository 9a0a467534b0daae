//! Many variants of one module, each with a few instructions changed: fault injection needs hundreds of thousands of
//! images.
//!
//! The module is rewritten once, with room left behind each function. For a variant only the functions that contain
//! changed bytes go through the steps again, with the same code as in `rewrite`; the result is put in their place. What
//! other functions were told of them (arguments read, stack arguments) must still hold, and the new code must fit; if
//! not, the whole module has to be rewritten. The image of a variant is a complete one, and nothing here makes it
//! acceptable: the verifier judges it as any other.

use crate::asm::CODE_BASE;
use crate::emit::{Context, FunctionCode, Shared};
use crate::frame::Layout;
use crate::liveness;
use crate::module::Module;
use crate::options::Options;
use crate::program::{self, Refusal};
use crate::rewrite::{
    declare, encode, encode_at, finish, function, import, rewrite, text_of, KnownStates, Plan, States,
};
use iced_x86::{Instruction, OpKind};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use twin_abi::image::{text_hash, ImageBuilder};

/// Bytes left free behind each function, besides two for each of its instructions.
const ROOM: usize = 96;

/// A rewritten module of which variants can be made.
#[derive(Debug)]
pub struct Base {
    options: Options,
    plan: Plan,
    shared: Shared,
    builder: ImageBuilder,
    known: KnownStates,
    entries: BTreeSet<u64>,
    stack_args: HashMap<u64, u32>,
    /// Where each function's first instruction will be, by its number.
    starts: HashMap<u64, u64>,
    this_cpu_off: Option<u64>,
    /// How many variants took a rewrite of the whole module.
    pub whole: u64,
}

impl Base {
    /// Rewrites `m`; every function must be possible.
    pub fn new(m: &Module, options: &Options) -> Result<Self, String> {
        let mut plan = Plan::of(m)?;
        let this_cpu_off = m.externs.find("this_cpu_off");
        let written = plan.write(m, options, this_cpu_off)?;
        if let Some(refused) = plan.refused.first() {
            return Err(format!("{}: {}", refused.function, refused.reason));
        }
        let builder = encode(m, options, &written, ROOM)?;
        let known = builder.states.iter().zip(0..).map(|(s, n)| ((s.regs, s.frame.depth, s.frame.saved), n)).collect();
        let starts = builder.functions.iter().filter_map(|f| {
            written.shared.entries.get(&f.domain).map(|number| (*number, CODE_BASE + u64::from(f.start)))
        });
        let starts = starts.collect();
        Ok(Self {
            options: options.clone(),
            stack_args: plan.stack_args(),
            plan,
            shared: written.shared,
            builder,
            known,
            entries: program::entries(m),
            starts,
            this_cpu_off,
            whole: 0,
        })
    }

    /// The image of the module as it was.
    pub fn image(&self) -> Result<Vec<u8>, String> {
        finish(self.builder.clone())
    }

    /// Names of the imports of the module as it was, with their addresses.
    pub fn imports(&self) -> &[(String, u64)] {
        &self.shared.imports
    }

    /// The image of `m`, which differs from the module as it was in the bytes at `changed`.
    pub fn variant(&mut self, m: &Module, changed: &[Range<u64>]) -> Result<Vec<u8>, Refusal> {
        if let Some(builder) = self.spliced(m, changed)? {
            return finish(builder).map_err(|reason| self.refusal(m, m.functions[0].address, reason));
        }
        self.whole += 1;
        let made = rewrite(m, &self.options).map_err(|reason| self.refusal(m, m.functions[0].address, reason))?;
        made.refused.into_iter().next().map_or(Ok(made.image), Err)
    }

    fn refusal(&self, m: &Module, address: u64, reason: String) -> Refusal {
        Refusal { function: m.describe(address), address, reason }
    }

    /// Functions with an instruction in one of the ranges.
    fn hit(&self, changed: &[Range<u64>]) -> Vec<u64> {
        let overlaps = |node: &program::Node| {
            let (start, end) = (node.instruction.ip(), node.instruction.next_ip());
            changed.iter().any(|c| c.start < end && start < c.end)
        };
        let bodies = self.plan.program.bodies.iter();
        bodies.filter(|(_, body)| body.nodes.values().any(overlaps)).map(|(entry, _)| *entry).collect()
    }

    /// The builder with the functions that were hit replaced; `None` if that is not possible.
    fn spliced(&self, m: &Module, changed: &[Range<u64>]) -> Result<Option<ImageBuilder>, Refusal> {
        let mut shared = self.shared.clone();
        let mut b = self.builder.clone();
        let mut known = self.known.clone();
        for entry in self.hit(changed) {
            let symbol = &self.plan.program.bodies[&entry].function;
            let refused = |(address, reason)| Refusal { function: symbol.name.clone(), address, reason };
            let body = program::recover_function(m, symbol, &self.entries).map_err(refused)?;
            let layout = Layout::of(&body).map_err(refused)?;
            if Some(&layout.stack_args) != self.stack_args.get(&entry) {
                return Ok(None);
            }
            let Some(liveness) = liveness::solve_one(&self.plan.liveness, entry, &body) else { return Ok(None) };
            let cx = Context {
                module: m,
                options: &self.options,
                liveness: &liveness,
                stack_args: &self.stack_args,
                this_cpu_off: self.this_cpu_off,
            };
            let (code, states) = function(&cx, &mut shared, &body, &layout).map_err(refused)?;
            if !self.replace(&mut b, &mut known, &code, &states) {
                return Ok(None);
            }
        }
        for (name, address) in shared.imports.iter().skip(self.shared.imports.len()) {
            import(&mut b, name, *address);
        }
        b.text_hash = text_hash(&text_of(m).1);
        Ok(Some(b))
    }

    /// Puts new code in the place of a function's; `false` if there is not enough room.
    fn replace(&self, b: &mut ImageBuilder, known: &mut KnownStates, code: &FunctionCode, states: &States) -> bool {
        let Some(index) = b.functions.iter().position(|f| f.domain == code.address) else { return false };
        let start = b.functions[index].start;
        let end = b.functions.get(index + 1).map_or(b.code.len(), |next| next.start as usize);
        let Ok(encoded) = encode_at(&self.bound(code), CODE_BASE + u64::from(start)) else { return false };
        let place = start as usize..end;
        let (new, len) = (encoded.code_buffer, place.len());
        if new.len() > len {
            return false;
        }
        b.code[place.clone()].fill(0xcc);
        b.code[place.start..place.start + new.len()].copy_from_slice(&new);
        b.labels.retain(|l| !place.contains(&(l.offset as usize)));
        b.origins.retain(|o| !place.contains(&(o.offset as usize)));
        declare(b, known, &self.options, code, states, &encoded.new_instruction_offsets, start);
        let f = &mut b.functions[index];
        f.end = start + u32::try_from(new.len()).unwrap_or(0);
        f.frame = code.frame;
        true
    }

    /// The function's instructions, with jumps and calls to other functions bound to where those are.
    fn bound(&self, code: &FunctionCode) -> Vec<Instruction> {
        let own = code.items.first().map(|i| i.instruction.ip());
        let mut out: Vec<Instruction> = code.items.iter().map(|i| i.instruction).collect();
        for i in &mut out {
            if i.op_count() == 1 && i.op0_kind() == OpKind::NearBranch64 && Some(i.near_branch64()) != own {
                if let Some(start) = self.starts.get(&i.near_branch64()) {
                    i.set_near_branch64(*start);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{Function, Section};
    use crate::options::Mode;
    use twin_verify::{verify, Policy};

    /// `f`: adds 1 to a word and tail-calls `g`, which returns.
    fn module() -> Module {
        let mut bytes = vec![0x48, 0x83, 0x07, 0x01, 0xe9, 0x07, 0, 0, 0];
        bytes.resize(16, 0xcc);
        bytes.extend([0x48, 0x8b, 0x07, 0xc3]);
        let base = 0xffff_ffff_c000_0000;
        let function = |address, len, name: &str| Function { address, len, name: name.into() };
        Module {
            name: "m".into(),
            sections: vec![Section { name: ".text".into(), address: base, bytes, executable: true, writable: false }],
            functions: vec![function(base, 9, "f"), function(base + 16, 4, "g")],
            ..Module::default()
        }
    }

    #[test]
    fn a_variant_is_what_rewriting_the_changed_module_gives_up_to_its_places() {
        let mut m = module();
        let base = m.sections[0].address;
        for (mode, bits) in [(Mode::Mirror, 46), (Mode::Stlb, 0)] {
            let options = Options { counted: true, ..Options::new(mode) };
            let mode = if bits > 0 { twin_abi::image::Mode::Mirror } else { twin_abi::image::Mode::Stlb };
            let policy = Policy { mode, mask_bits: bits, counted: true, bmi: true };
            let mut variants = Base::new(&m, &options).expect("rewritten");
            verify(&variants.image().expect("built"), &policy).expect("accepted");
            m.sections[0].bytes[3] = 7;
            let image = variants.variant(&m, std::slice::from_ref(&(base + 3..base + 4))).expect("rewritten");
            assert_eq!(variants.whole, 0);
            let verified = verify(&image, &policy).expect("accepted");
            let whole = rewrite(&m, &options).expect("rewritten");
            let other = verify(&whole.image, &policy).expect("accepted");
            assert_eq!(verified.instructions(), other.instructions());
            assert_eq!(verified.image().text_hash, other.image().text_hash);
            m.sections[0].bytes[3] = 1;
        }
    }

    #[test]
    fn what_cannot_be_rewritten_is_refused_by_name() {
        let mut m = module();
        let base = m.sections[0].address;
        let mut variants = Base::new(&m, &Options::new(Mode::Mirror)).expect("rewritten");
        m.sections[0].bytes[..2].copy_from_slice(&[0x0f, 0x06]);
        let refusal = variants.variant(&m, std::slice::from_ref(&(base..base + 2))).expect_err("refused");
        assert_eq!((refusal.function.as_str(), refusal.address), ("f", base));
    }
}
