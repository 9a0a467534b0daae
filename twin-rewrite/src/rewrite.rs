//! The whole way from a module to an image.

use crate::annotate;
use crate::asm::CODE_BASE;
use crate::budget;
use crate::emit::{self, Context, Counts, FunctionCode, Shared};
use crate::frame::Layout;
use crate::liveness;
use crate::module::Module;
use crate::options::{Mode, Options};
use crate::program::{self, Refusal};
use iced_x86::{BlockEncoder, BlockEncoderOptions, Instruction, InstructionBlock};
use std::collections::{BTreeMap, HashMap};
use twin_abi::image::{
    self, flags, text_hash, Address, Function, ImageBuilder, Import, Label, Origin, Stats, LABEL_CHARGE,
};

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

/// Rewrites `m`.
pub fn rewrite(m: &Module, options: &Options) -> Result<Output, String> {
    m.check()?;
    let mut program = program::recover(m);
    let functions = program.bodies.len() + program.refused.len();
    let mut layouts: BTreeMap<u64, Layout> = BTreeMap::new();
    let mut refused = std::mem::take(&mut program.refused);
    for (entry, body) in &program.bodies {
        match Layout::of(body) {
            Ok(layout) => drop(layouts.insert(*entry, layout)),
            Err((address, reason)) => refused.push(Refusal { function: body.function.name.clone(), address, reason }),
        }
    }
    let liveness = liveness::solve(&program);
    let this_cpu_off = m.externs.find("this_cpu_off");
    // Whether a function can be written shows only when it is; then its callers must know. So: until nothing changes.
    let (shared, codes, states) = loop {
        let stack_args: HashMap<u64, u32> = layouts.iter().map(|(a, l)| (*a, l.stack_args)).collect();
        let cx = Context { module: m, options, liveness: &liveness, stack_args: &stack_args, this_cpu_off };
        let mut shared = Shared::default();
        let mut codes: Vec<FunctionCode> = Vec::new();
        let mut states = BTreeMap::new();
        let mut failed = Vec::new();
        for (entry, layout) in &layouts {
            let body = &program.bodies[entry];
            let written = emit::function(&cx, &mut shared, body, layout).and_then(|mut code| {
                if options.counted {
                    budget::charge(&mut code, &mut shared);
                }
                let at = annotate::labels(&code.items, options.mode, options.mask_bits).map_err(|e| (*entry, e))?;
                Ok((code, at))
            });
            match written {
                Ok((code, at)) => {
                    states.extend(at);
                    codes.push(code);
                }
                Err((address, reason)) => {
                    refused.push(Refusal { function: body.function.name.clone(), address, reason });
                    failed.push(*entry);
                }
            }
        }
        if failed.is_empty() {
            break (shared, codes, states);
        }
        for entry in failed {
            layouts.remove(&entry);
        }
    };
    if codes.is_empty() {
        let why = refused.first().map_or(String::new(), |r| format!(": {}: {}", r.function, r.reason));
        return Err(format!("no function of {} can be rewritten{why}", m.name));
    }
    let counts = codes.iter().fold(Counts::default(), |sum, c| add(sum, c.counts));
    let image = build(m, options, &shared, &codes, &states, counts)?;
    refused.sort_by_key(|r| r.address);
    Ok(Output { image, functions, refused, counts, imports: shared.imports })
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

fn build(
    m: &Module,
    options: &Options,
    shared: &Shared,
    codes: &[FunctionCode],
    states: &BTreeMap<u64, twin_abi::kind::State>,
    counts: Counts,
) -> Result<Vec<u8>, String> {
    let all: Vec<Instruction> = codes.iter().flat_map(|c| c.items.iter().map(|i| i.instruction)).collect();
    let encoded = BlockEncoder::encode(
        64,
        InstructionBlock::new(&all, CODE_BASE),
        BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS,
    )
    .map_err(|e| format!("cannot encode: {e}"))?;
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
        stats: stats(counts),
        code: encoded.code_buffer,
        ..ImageBuilder::default()
    };
    let end_of_code = u32::try_from(b.code.len()).map_err(|e| e.to_string())?;
    let mut state_index: HashMap<(u64, u16, [u8; 6]), u32> = HashMap::new();
    let mut k = 0;
    for c in codes {
        let start = offsets[k];
        let index = u32::try_from(b.functions.len()).unwrap_or(u32::MAX);
        let mut origin = None;
        for item in &c.items {
            if let Some(state) = states.get(&item.instruction.ip()) {
                let known = state_index.len() as u32;
                let at = *state_index.entry((state.regs, state.frame.depth, state.frame.saved)).or_insert_with(|| {
                    b.states.push(*state);
                    known
                });
                let charge = if options.counted && budget::is_charge(&item.instruction) { LABEL_CHARGE } else { 0 };
                b.labels.push(Label { offset: offsets[k], state: at | charge });
            }
            if origin != Some(item.origin) {
                origin = Some(item.origin);
                b.origins.push(Origin { offset: offsets[k], original: (item.origin - text) as u32 });
            }
            k += 1;
        }
        let end = offsets.get(k).copied().unwrap_or(end_of_code);
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
    for (name, address) in &shared.imports {
        let (name, name_len) = b.name(name);
        b.imports.push(Import { name, name_len, domain: *address });
    }
    let bytes = b.build();
    image::Image::parse(&bytes).map_err(|e| format!("the image is malformed: {e:?}"))?;
    Ok(bytes)
}
