//! The whole way from a module to an image.

use crate::annotate;
use crate::asm::CODE_BASE;
use crate::budget;
use crate::emit::{self, Context, Counts, FunctionCode, Shared};
use crate::frame::Layout;
use crate::liveness::{self, Liveness};
use crate::module::Module;
use crate::options::{Mode, Options};
use crate::program::{self, Body, Flow, Program, Refusal, Target};
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, BlockEncoderResult, Code, Encoder, Instruction, InstructionBlock, OpKind,
};
use std::collections::{BTreeMap, HashMap};
use twin_abi::image::{
    self, flags, text_hash, Address, Function, ImageBuilder, Import, Label, Origin, Stats, LABEL_CHARGE,
};
use twin_abi::kind::State;

/// A finished image with what there is to say about it.
#[derive(Debug)]
pub struct Output {
    /// The image.
    pub image: Vec<u8>,
    /// Functions of the module.
    pub functions: usize,
    /// Functions that are not in the image, and why.
    pub refused: Vec<Refusal>,
    /// Sums over all functions.
    pub counts: Counts,
    /// Names of imports with their addresses.
    pub imports: Vec<(String, u64)>,
}

/// Says what is not acceptable in an image: for each function that is not, a code offset in it and the reason.
pub type Judge<'j> = dyn FnMut(&[u8]) -> Vec<(u32, String)> + 'j;

/// Rewrites `m`.
pub fn rewrite(m: &Module, options: &Options) -> Result<Output, String> {
    rewrite_judged(m, options, &mut |_| Vec::new())
}

/// Rewrites `m`. A function that `judge` does not accept is left out, as one that cannot be rewritten: calls to it
/// become upcalls.
pub fn rewrite_judged(m: &Module, options: &Options, judge: &mut Judge<'_>) -> Result<Output, String> {
    let mut plan = Plan::of(m)?;
    let functions = plan.program.bodies.len() + plan.program.refused.len();
    loop {
        let written = plan.write(m, options, m.externs.find("this_cpu_off"))?;
        let counts = written.codes.iter().fold(Counts::default(), |sum, c| add(sum, c.counts));
        let mut builder = encode(m, options, &written, 0)?;
        builder.stats = stats(counts);
        let image = finish(builder)?;
        let judged = judge(&image);
        if judged.is_empty() {
            plan.refused.sort_by_key(|r| r.address);
            return Ok(Output { image, functions, refused: plan.refused, counts, imports: written.shared.imports });
        }
        plan.leave_out(&image, judged)?;
    }
}

/// What is known of a module before anything is written.
#[derive(Debug)]
pub(crate) struct Plan {
    pub program: Program,
    pub layouts: BTreeMap<u64, Layout>,
    pub liveness: Liveness,
    pub refused: Vec<Refusal>,
}

/// The new code of all functions, and what to declare at their labels.
#[derive(Debug)]
pub(crate) struct Written {
    pub shared: Shared,
    pub codes: Vec<FunctionCode>,
    pub states: States,
}

/// What to declare at each label, by number.
pub(crate) type States = BTreeMap<u64, State>;

impl Plan {
    pub fn of(m: &Module) -> Result<Self, String> {
        m.check()?;
        let program = program::recover(m);
        let mut layouts = BTreeMap::new();
        let mut refused = program.refused.clone();
        for (entry, body) in &program.bodies {
            match Layout::of(body) {
                Ok(layout) => drop(layouts.insert(*entry, layout)),
                Err((address, reason)) => {
                    refused.push(Refusal { function: body.function.name.clone(), address, reason })
                }
            }
        }
        pass_arguments_on(&program, &mut layouts);
        let liveness = liveness::solve(&program);
        Ok(Self { program, layouts, liveness, refused })
    }

    /// Leaves out the functions at these offsets of an image.
    fn leave_out(&mut self, image: &[u8], judged: Vec<(u32, String)>) -> Result<(), String> {
        let image = image::Image::parse(image).map_err(|e| format!("the image is malformed: {e:?}"))?;
        for (offset, reason) in judged {
            let function = image.function_at(offset).filter(|f| self.layouts.remove(&f.domain).is_some());
            let Some(function) = function else { return Err(format!("the image is not accepted: {reason}")) };
            let address = image.origin_of(offset).map_or(function.domain, |o| image.text + u64::from(o));
            let function = image.name(function.name, function.name_len).into();
            self.refused.push(Refusal { function, address, reason });
        }
        Ok(())
    }

    /// Words of stack arguments by function.
    pub fn stack_args(&self) -> HashMap<u64, u32> {
        self.layouts.iter().map(|(a, l)| (*a, l.stack_args)).collect()
    }

    /// Writes all functions. Whether one can be written shows only when it is; then its callers must know. So: until
    /// nothing changes.
    pub fn write(&mut self, m: &Module, options: &Options, this_cpu_off: Option<u64>) -> Result<Written, String> {
        loop {
            let stack_args = self.stack_args();
            let cx = Context { module: m, options, liveness: &self.liveness, stack_args: &stack_args, this_cpu_off };
            let mut out = Written { shared: Shared::default(), codes: Vec::new(), states: BTreeMap::new() };
            let mut failed = Vec::new();
            for (entry, layout) in &self.layouts {
                let body = &self.program.bodies[entry];
                match function(&cx, &mut out.shared, body, layout) {
                    Ok((code, at)) => {
                        out.states.extend(at);
                        out.codes.push(code);
                    }
                    Err((address, reason)) => {
                        self.refused.push(Refusal { function: body.function.name.clone(), address, reason });
                        failed.push(*entry);
                    }
                }
            }
            if failed.is_empty() && !out.codes.is_empty() {
                return Ok(out);
            }
            for entry in failed {
                self.layouts.remove(&entry);
            }
            if self.layouts.is_empty() {
                let why = self.refused.first().map_or(String::new(), |r| format!(": {}: {}", r.function, r.reason));
                return Err(format!("no function of {} can be rewritten{why}", m.name));
            }
        }
    }
}

/// A function that ends with a jump to another one hands its own stack arguments on, so it has at least as many.
fn pass_arguments_on(program: &Program, layouts: &mut BTreeMap<u64, Layout>) {
    let mut tails = Vec::new();
    for (entry, body) in &program.bodies {
        tails.extend(body.nodes.values().filter_map(|n| match n.flow {
            Flow::Tail(Target::Function(to)) | Flow::BranchTail(Target::Function(to)) => Some((*entry, to)),
            _ => None,
        }));
    }
    loop {
        let mut changed = false;
        for (from, to) in &tails {
            let needed = layouts.get(to).map_or(0, |l| l.stack_args);
            if let Some(layout) = layouts.get_mut(from).filter(|l| l.stack_args < needed) {
                layout.stack_args = needed;
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

/// The first instruction that has no encoding, with the reason. Branches always have one.
fn check_encodings(code: &FunctionCode) -> Result<(), (u64, String)> {
    let mut encoder = Encoder::new(64);
    for item in &code.items {
        let i = &item.instruction;
        if i.op_count() == 0 || i.op0_kind() != OpKind::NearBranch64 {
            encoder.encode(i, CODE_BASE).map_err(|e| (item.origin, format!("cannot encode {i}: {e}")))?;
        }
    }
    Ok(())
}

/// Writes one function and finds what to declare at its labels.
pub(crate) fn function(
    cx: &Context<'_>,
    shared: &mut Shared,
    body: &Body,
    layout: &Layout,
) -> Result<(FunctionCode, States), (u64, String)> {
    let mut code = emit::function(cx, shared, body, layout)?;
    check_encodings(&code)?;
    if cx.options.counted {
        budget::charge(&mut code, shared);
    }
    let at =
        annotate::labels(&code.items, cx.options.mode, cx.options.mask_bits).map_err(|e| (body.function.address, e))?;
    Ok((code, at))
}

fn add(a: Counts, b: Counts) -> Counts {
    Counts {
        insns_in: a.insns_in + b.insns_in,
        insns_out: a.insns_out + b.insns_out,
        dropped: a.dropped + b.dropped,
        memory_operands: a.memory_operands + b.memory_operands,
        stack_operands: a.stack_operands + b.stack_operands,
        translated: a.translated + b.translated,
        masks_emitted: a.masks_emitted + b.masks_emitted,
        masks_elided: a.masks_elided + b.masks_elided,
        spills: a.spills + b.spills,
        flag_saves: a.flag_saves + b.flag_saves,
        percpu_sites: a.percpu_sites + b.percpu_sites,
        string_sites: a.string_sites + b.string_sites,
        locked_sites: a.locked_sites + b.locked_sites,
        indirect_sites: a.indirect_sites + b.indirect_sites,
        bug_sites: a.bug_sites + b.bug_sites,
        warn_sites: a.warn_sites + b.warn_sites,
        unsafe_slots: a.unsafe_slots + b.unsafe_slots,
    }
}

fn stats(c: Counts) -> Stats {
    Stats {
        insns_in: c.insns_in,
        insns_out: c.insns_out,
        memory_operands: c.memory_operands,
        stack_operands: c.stack_operands,
        translated_operands: c.translated,
        masks_emitted: c.masks_emitted,
        masks_elided: c.masks_elided,
        spills: c.spills,
        flag_saves: c.flag_saves,
        percpu_sites: c.percpu_sites,
        string_sites: c.string_sites,
        locked_sites: c.locked_sites,
        indirect_sites: c.indirect_sites,
        bug_sites: c.bug_sites,
        warn_sites: c.warn_sites,
        unsafe_slots: c.unsafe_slots,
    }
}

/// The module's original text as one range, from its first to its last executable byte.
pub fn text_of(m: &Module) -> (u64, Vec<u8>) {
    let text: Vec<_> = m.sections.iter().filter(|s| s.executable).collect();
    let start = text.first().map_or(0, |s| s.address);
    let mut bytes = Vec::new();
    for s in text {
        bytes.resize((s.address - start) as usize, 0);
        bytes.extend(&s.bytes);
    }
    (start, bytes)
}

/// Encodes everything. Behind each function `room` bytes and as many as half its length are left free if `room` is
/// not 0.
pub(crate) fn encode(m: &Module, options: &Options, written: &Written, room: usize) -> Result<ImageBuilder, String> {
    let free = |c: &FunctionCode| if room == 0 { 0 } else { room + c.items.len() * 2 };
    let mut all: Vec<Instruction> = Vec::new();
    for c in &written.codes {
        all.extend(c.items.iter().map(|i| i.instruction));
        all.extend(std::iter::repeat_n(Instruction::with(Code::Int3), free(c)));
    }
    let encoded = encode_at(&all, CODE_BASE)?;
    let offsets = &encoded.new_instruction_offsets;
    let (text, original) = text_of(m);
    let mut b = ImageBuilder {
        mirror: options.mode == Mode::Mirror,
        flags: if options.bmi && options.mode == Mode::Mirror { flags::BMI } else { 0 }
            | if options.counted { flags::COUNTED } else { 0 },
        mask_bits: if options.mode == Mode::Mirror { options.mask_bits } else { 0 },
        text,
        text_bytes: original.len() as u64,
        text_hash: text_hash(&original),
        code: encoded.code_buffer,
        ..ImageBuilder::default()
    };
    let end_of_code = u32::try_from(b.code.len()).map_err(|e| e.to_string())?;
    let mut known = HashMap::new();
    let mut k = 0;
    for c in &written.codes {
        let start = offsets[k];
        declare(&mut b, &mut known, options, c, &written.states, &offsets[k..], 0);
        k += c.items.len();
        let end = offsets.get(k).copied().unwrap_or(end_of_code);
        k += free(c);
        let index = u32::try_from(b.functions.len()).unwrap_or(u32::MAX);
        let (name, name_len) = b.name(&c.name);
        if c.stack_args <= b.indirect_args {
            b.addresses.push(Address { domain: c.address, function: index });
        }
        b.functions.push(Function {
            start,
            end,
            name,
            name_len,
            domain: c.address,
            frame: c.frame,
            stack_args: c.stack_args,
        });
    }
    for (name, address) in &written.shared.imports {
        import(&mut b, name, *address);
    }
    Ok(b)
}

/// Encodes instructions in a row, with the offset of each.
pub(crate) fn encode_at(all: &[Instruction], address: u64) -> Result<BlockEncoderResult, String> {
    let block = InstructionBlock::new(all, address);
    BlockEncoder::encode(64, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
        .map_err(|e| format!("cannot encode: {e}"))
}

/// States that have a record, by content.
pub(crate) type KnownStates = HashMap<(u64, u16, [u8; 6]), u32>;

/// Adds labels and origins of a function whose instructions have these offsets, counted from `start`.
pub(crate) fn declare(
    b: &mut ImageBuilder,
    known: &mut KnownStates,
    options: &Options,
    code: &FunctionCode,
    states: &States,
    offsets: &[u32],
    start: u32,
) {
    let text = b.text;
    let mut origin = None;
    for (item, offset) in code.items.iter().zip(offsets) {
        let offset = start + offset;
        if let Some(state) = states.get(&item.instruction.ip()) {
            let next = u32::try_from(b.states.len()).unwrap_or(u32::MAX);
            let at = *known.entry((state.regs, state.frame.depth, state.frame.saved)).or_insert_with(|| {
                b.states.push(*state);
                next
            });
            let charge = if options.counted && budget::is_charge(&item.instruction) { LABEL_CHARGE } else { 0 };
            b.labels.push(Label { offset, state: at | charge });
        }
        if origin != Some(item.origin) {
            origin = Some(item.origin);
            b.origins.push(Origin { offset, original: (item.origin - text) as u32 });
        }
    }
}

/// Adds an import.
pub(crate) fn import(b: &mut ImageBuilder, name: &str, address: u64) {
    let (name, name_len) = b.name(name);
    b.imports.push(Import { name, name_len, domain: address });
}

/// The file.
pub(crate) fn finish(b: ImageBuilder) -> Result<Vec<u8>, String> {
    let bytes = b.build();
    image::Image::parse(&bytes).map_err(|e| format!("the image is malformed: {e:?}"))?;
    Ok(bytes)
}
