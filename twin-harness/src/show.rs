//! Shows one function before and after, as addresses and mnemonics.

use crate::rig::Made;
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use std::fmt::Write;
use twin_abi::layout::{constant, ctx, gate, CODE_OFFSET, CONST_OFFSET, CTX_OFFSET, IMPORT_OFFSET, STLB_OFFSET};
use twin_abi::Image;
use twin_rewrite::module::Module;

/// The function `name` of `module`, and what became of it.
pub fn function(module: &Module, made: &Made, name: &str) -> Result<String, String> {
    let f = module.functions.iter().find(|f| f.name == name).ok_or(format!("no function {name}"))?;
    let section = module.section(f.address).ok_or("the function is outside of the text")?;
    let start = (f.address - section.address) as usize;
    let mut out = format!("{name} before:\n");
    for i in decode(&section.bytes[start..start + f.len as usize], f.address) {
        let target = if i.near_branch_target() != 0 {
            format!("  ; {}", module.describe(i.near_branch_target()))
        } else {
            String::new()
        };
        let _ = writeln!(out, "  {:+6x}  {}{target}", i.ip() - f.address, spell(&i));
    }
    let image = Image::parse(&made.output.image).map_err(|e| format!("{e:?}"))?;
    let twin = image.functions().iter().find(|t| t.domain == f.address).ok_or(format!("{name} was refused"))?;
    let _ = writeln!(out, "{name} after:");
    let base = u64::from(CODE_OFFSET);
    let mut origin = None;
    for i in decode(&image.code()[twin.start as usize..twin.end as usize], base + u64::from(twin.start)) {
        let offset = (i.ip() - base) as u32;
        let from = image.origin_of(offset).map(|o| image.text + u64::from(o));
        let mark = match from {
            Some(a) if from != origin => format!("{:+6x}", a.wrapping_sub(f.address)),
            _ => "      ".into(),
        };
        origin = from;
        let _ = writeln!(out, "  {mark}  {:6x}  {}{}", offset - twin.start, spell(&i), word(&i, &image));
    }
    Ok(out)
}

fn decode(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).iter().take_while(|i| !i.is_invalid()).collect()
}

fn spell(i: &Instruction) -> String {
    let mut text = String::new();
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.format(i, &mut text);
    text
}

/// What a word around the code is.
fn word(i: &Instruction, image: &Image<'_>) -> String {
    if !i.is_ip_rel_memory_operand() {
        return String::new();
    }
    let at = i.memory_displacement64() as u32;
    let name = match at {
        _ if at == CONST_OFFSET + constant::MASK => "the mask".into(),
        _ if at == CONST_OFFSET + constant::DELTA => "distance to the unsafe area".into(),
        _ if at == CONST_OFFSET + constant::PERCPU => "per-CPU area".into(),
        _ if at == CONST_OFFSET + gate::STLB_MISS => "gate: stlb miss".into(),
        _ if at == CONST_OFFSET + gate::ICALL => "gate: indirect call".into(),
        _ if at == CONST_OFFSET + gate::WARN => "gate: warning".into(),
        STLB_OFFSET => "the stlb".into(),
        _ if at == CTX_OFFSET + ctx::MISS_ADDRESS => "miss address".into(),
        _ if at == CTX_OFFSET + ctx::MISS_RESULT => "miss result".into(),
        _ if at >= IMPORT_OFFSET => {
            let import = image.imports().get(((at - IMPORT_OFFSET) / 8) as usize);
            import.map_or("?".into(), |i| image.name(i.name, i.name_len).to_owned())
        }
        _ => "a spill word".into(),
    };
    format!("  ; {name}")
}
