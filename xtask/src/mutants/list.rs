//! The mutants: each is one rule of the verifier made wrong, as a replacement of text that stands once in a file. They
//! are from an audit that found which of them no test noticed; a rule that is added gets one.
//!
//! Left out is `PageOffset <= 4096`: an access from there is within the pair of pages as well.

/// One rule made wrong.
pub struct Mutant {
    /// The rule, and what the mutant thinks of it.
    pub name: &'static str,
    /// Replacements: file, what stands there, what is put in its place.
    pub changes: &'static [(&'static str, &'static str, &'static str)],
}

const DECODE: &str = "twin-verify/src/decode/mod.rs";
const OPCODES: &str = "twin-verify/src/decode/opcodes.rs";
const FLOW: &str = "twin-verify/src/flow.rs";
const LAYOUT: &str = "twin-abi/src/layout.rs";
const OPERAND: &str = "twin-verify/src/operand.rs";
const STEP: &str = "twin-verify/src/step.rs";
const SWEEP: &str = "twin-verify/src/sweep.rs";
const TABLES: &str = "twin-verify/src/tables.rs";
const VALUE: &str = "twin-verify/src/value.rs";

/// All of them.
#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    Mutant { name: "D3: a REX before other prefixes", changes: &[
        (DECODE,
            r#"            if matches!(self.peek()?, 0x26"#,
            r#"            if false && matches!(self.peek()?, 0x26"#),
    ] },
    Mutant { name: "D3: operand size on branches and stack", changes: &[
        (DECODE,
            r#"if p.operand_size && matches!(class, Class::Flow"#,
            r#"if false && p.operand_size && matches!(class, Class::Flow"#),
    ] },
    Mutant { name: "D2: encodings that decoders take differently", changes: &[
        (DECODE,
            r#"            if reader.len != 2 {"#,
            r#"            if false && reader.len != 2 {"#),
    ] },
    Mutant { name: "D3: repeat prefix on anything", changes: &[
        (DECODE,
            r#"if p.repeat != 0 && !repeat_belongs {"#,
            r#"if false && p.repeat != 0 && !repeat_belongs {"#),
    ] },
    Mutant { name: "M1: a masked index may be scaled", changes: &[
        (OPERAND,
            r#"let index_masked = address.scale == 1 && "#,
            r#"let index_masked = "#),
    ] },
    Mutant { name: "S3: saved slots are written", changes: &[
        (OPERAND,
            r#"if access == Access::Write && state"#,
            r#"if false && access == Access::Write && state"#),
    ] },
    Mutant { name: "S2: the return address is part of the frame", changes: &[
        (OPERAND,
            r#"let own = at >= 0 && at + bytes <= depth;"#,
            r#"let own = at >= 0 && at + bytes <= depth + 8;"#),
    ] },
    Mutant { name: "M1: a window reaches 8 bytes further", changes: &[
        (OPERAND,
            r#"(0..=i64::from(STLB_REACH)).contains"#,
            r#"(0..=i64::from(STLB_REACH)+8).contains"#),
    ] },
    Mutant { name: "M1: a window reaches 8 bytes back", changes: &[
        (OPERAND,
            r#"(0..=i64::from(STLB_REACH)).contains"#,
            r#"(-8..=i64::from(STLB_REACH)).contains"#),
    ] },
    Mutant { name: "M5: the bit behind the operand", changes: &[
        (STEP,
            r#"Some(max) if max < bits => Ok(()),"#,
            r#"Some(max) if max <= bits => Ok(()),"#),
    ] },
    Mutant { name: "M3: strings of two pages", changes: &[
        (STEP,
            r#"let most = STRING_BYTES / u32"#,
            r#"let most = 2 * STRING_BYTES / u32"#),
    ] },
    Mutant { name: "M2: cmpxchg leaves rax", changes: &[
        (STEP,
            r#"            write(Some(RAX), Value::Any)
        }
        Class::Multiplies if"#,
            r#"            Ok(())
        }
        Class::Multiplies if"#),
    ] },
    Mutant { name: "M2: xadd exchanges", changes: &[
        (STEP,
            r#"let swapped = full && instruction.op == Op::Xchg;"#,
            r#"let swapped = full;"#),
    ] },
    Mutant { name: "M2: every 32-bit result is below 2^32", changes: &[
        (STEP,
            r#"=> below,
        _ => Value::Any,
    }
}

/// The value of a register and-ed"#,
            r#"=> below,
        _ => below,
    }
}

/// The value of a register and-ed"#),
    ] },
    Mutant { name: "M3: lods leaves rax", changes: &[
        (STEP,
            r#"if instruction.op == Op::Lods {"#,
            r#"if false && instruction.op == Op::Lods {"#),
    ] },
    Mutant { name: "S3: saved values are popped elsewhere", changes: &[
        (STEP,
            r#"if CALLEE_SAVED.get(owner).copied().map(usize::from) != Some(register) {"#,
            r#"if false && CALLEE_SAVED.get(owner).copied().map(usize::from) != Some(register) {"#),
    ] },
    Mutant { name: "S4: callee-saved registers are written", changes: &[
        (VALUE,
            r#"if self.frame.saved.get(n) == Some(&0) {"#,
            r#"if false && self.frame.saved.get(n) == Some(&0) {"#),
    ] },
    Mutant { name: "C2: a call leaves all kinds", changes: &[
        (FLOW,
            r#"arguments(state, function.stack_args)?;
    state.forget_caller_saved();"#,
            r#"arguments(state, function.stack_args)?;"#),
    ] },
    Mutant { name: "C3: a gate leaves all kinds", changes: &[
        (FLOW,
            r#"    state.forget_caller_saved();
    state.charged = place"#,
            r#"    state.charged = place"#),
    ] },
    Mutant { name: "C2: saved slots as arguments", changes: &[
        (FLOW,
            r#"if words > depth || saved {"#,
            r#"let _ = saved; if words > depth {"#),
    ] },
    Mutant { name: "C2: arguments beyond the frame", changes: &[
        (FLOW,
            r#"if words > depth || saved {"#,
            r#"if saved {"#),
    ] },
    Mutant { name: "C5: tail calls with more arguments", changes: &[
        (FLOW,
            r#"if function.stack_args > own.stack_args {"#,
            r#"if false && function.stack_args > own.stack_args {"#),
    ] },
    Mutant { name: "C5: tail calls with a frame", changes: &[
        (FLOW,
            r#"    empty(state, Rule::C5)?;
    if function"#,
            r#"    if function"#),
    ] },
    Mutant { name: "B1: a loop of one instruction", changes: &[
        (FLOW,
            r#"&& to <= instruction.at as u64 && !is_charge"#,
            r#"&& to < instruction.at as u64 && !is_charge"#),
    ] },
    Mutant { name: "B2: calls without a charge", changes: &[
        (FLOW,
            r#"if context.policy.counted && !context.charged_entry {"#,
            r#"if false && context.policy.counted && !context.charged_entry {"#),
    ] },
    Mutant { name: "M2: jae leaves its bound", changes: &[
        (FLOW,
            r#"Op::Jcc(ABOVE_OR_EQUAL) => limit.checked_sub(1),"#,
            r#"Op::Jcc(ABOVE_OR_EQUAL) => Some(limit),"#),
    ] },
    Mutant { name: "C2: kinds of the callee", changes: &[
        (FLOW,
            r#"let (declared, _) = label_state(context.image, function.start).ok_or((Rule::C2, "no label", 0))?;
    kinds(state, &declared)"#,
            r#"let (declared, _) = label_state(context.image, function.start).ok_or((Rule::C2, "no label", 0))?;
    let _ = (state, declared); Ok(())"#),
    ] },
    Mutant { name: "C1: falling into a label", changes: &[
        (SWEEP,
            r#"flow::implies(state, &declared)?;"#,
            r#"let _ = state;"#),
    ] },
    Mutant { name: "C1: only the depth of frames", changes: &[
        (FLOW,
            r#"if state.frame != declared.frame {"#,
            r#"if state.frame.depth != declared.frame.depth {"#),
    ] },
    Mutant { name: "C7: over the end", changes: &[
        (SWEEP,
            r#"Some(_) => Err(refuse(code, end, 0, (Rule::C7, "runs over the end of the function", 0))),"#,
            r#"Some(_) => Ok(()),"#),
    ] },
    Mutant { name: "F5: kinds at entries", changes: &[
        (TABLES,
            r#"if !free || function"#,
            r#"let _ = free; if function"#),
    ] },
    Mutant { name: "M2: indexes need not be aligned", changes: &[
        (VALUE,
            r#"Kind::StlbIndex => matches!(self, Self::Step16(max) if max <= STLB_INDEX_MASK)"#,
            r#"Kind::StlbIndex => self.bound().is_some_and(|max| max <= STLB_INDEX_MASK)"#),
    ] },
    Mutant { name: "M2: comparisons last", changes: &[
        (STEP,
            r#"let compared = state.compared.take();"#,
            r#"let compared = state.compared;"#),
    ] },
    Mutant { name: "M2: implicit results", changes: &[
        (STEP,
            r#"Class::Implicit(register) => write(Some(usize::from(register)).filter(|r| *r < 16), Value::Any),"#,
            r#"Class::Implicit(_) => Ok(()),"#),
    ] },
    Mutant { name: "M2: mul leaves rdx", changes: &[
        (STEP,
            r#"            write(Some(RAX), Value::Any)?;
            write(Some(RDX), Value::Any)"#,
            r#"            write(Some(RAX), Value::Any)"#),
    ] },
    Mutant { name: "M1: addresses of the stack", changes: &[
        (STEP,
            r#"if uses_stack && !operand"#,
            r#"if false && uses_stack && !operand"#),
    ] },
    Mutant { name: "S5: frames of 16 KiB", changes: &[
        (LAYOUT,
            r#"FRAME_MAX: u32 = 4080"#,
            r#"FRAME_MAX: u32 = 16320"#),
    ] },
    Mutant { name: "M2: shr by 31", changes: &[
        (STEP,
            r#"Some(by @ 32..=63) =>"#,
            r#"Some(by @ 31..=63) =>"#),
    ] },
    Mutant { name: "M2: constants above the window", changes: &[
        (VALUE,
            r#"value >> policy.mask_bits == 0"#,
            r#"value >> (policy.mask_bits + 2) == 0"#),
    ] },
    Mutant { name: "M4: mapped addresses as data", changes: &[
        (STEP,
            r#"Some(Place::Mapped) => value == Value::Window,"#,
            r#"Some(Place::Mapped) => true,"#),
    ] },
    Mutant { name: "M2: cmov takes the kind of its source", changes: &[
        (STEP,
            r#"Op::Cmov if known(1) == state.get(destination) => known(1),"#,
            r#"Op::Cmov => known(1),"#),
    ] },
    Mutant { name: "M3: unbounded strings in mirror mode", changes: &[
        (STEP,
            r#"if instruction.repeat && !is_short"#,
            r#"if context.image.mode == Mode::Stlb && instruction.repeat && !is_short"#),
    ] },
    Mutant { name: "M3: any register's bound counts", changes: &[
        (FLOW,
            r#"Some(most).filter(|_| register == RCX)"#,
            r#"Some(most)"#),
    ] },
    Mutant { name: "M3: counts last", changes: &[
        (STEP,
            r#"let counted = state.counted.take();"#,
            r#"let counted = state.counted;"#),
    ] },
    Mutant { name: "M2: branches make kinds in mirror mode", changes: &[
        (FLOW,
            r#"Mode::Mirror => state.counted = Some(most).filter(|_| register == RCX),"#,
            r#"Mode::Mirror => state.set(register, Value::AtMost(most)),"#),
    ] },
    Mutant { name: "D2: breakpoints", changes: &[
        (OPCODES,
            r#"0xc3 => (Op::Ret, S::Bare),"#,
            r#"0xc3 => (Op::Ret, S::Bare),
        0xcc => (Op::Ud2, S::Bare),"#),
    ] },
    Mutant { name: "F1: tables of any size", changes: &[
        (TABLES,
            r#"find(|(_, have, most)| have > most)"#,
            r#"find(|(_, have, most)| have > most && *have > usize::MAX / 2)"#),
    ] },
    Mutant { name: "F2: anything between functions", changes: &[
        (TABLES,
            r#"if !filled(image, *at, stretch_end) {"#,
            r#"if false && !filled(image, *at, stretch_end) {"#),
    ] },
    Mutant { name: "F6: names outside the strings", changes: &[
        (TABLES,
            r#"if len > MAX_NAME || !inside {"#,
            r#"let _ = inside;
    if len > MAX_NAME {"#),
    ] },
    Mutant { name: "F6: names of any bytes", changes: &[
        (TABLES,
            r#"find(|byte| !byte.is_ascii_graphic())"#,
            r#"find(|byte| false && !byte.is_ascii_graphic())"#),
    ] },
    Mutant { name: "D2: movsxd into 32 bits", changes: &[
        (DECODE,
            r#"S::GqEd if v == 8 =>"#,
            r#"S::GqEd =>"#),
    ] },
    Mutant { name: "D2: the long form of push", changes: &[
        (DECODE,
            r#"S::Eq if e != Operand::Memory && i.op == Op::Push =>"#,
            r#"S::Eq if false && e != Operand::Memory && i.op == Op::Push =>"#),
    ] },
    Mutant { name: "D2: BMI with a vector length", changes: &[
        (DECODE,
            r#".filter(|_| first == 0xc4 && third & 4 == 0)"#,
            r#".filter(|_| first == 0xc4)"#),
    ] },
];
