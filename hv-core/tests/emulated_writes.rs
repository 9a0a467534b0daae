//! The emulated memory writes against an independent decoder, and against the processor itself.
#![allow(unsafe_code, reason = "the second oracle executes the instruction")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "widths are 1 to 8; bit numbers are signed"
)]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use hv_core::emul::gpr::{get, slot};
use hv_core::emul::memory_write::MemoryWrite;
use hv_core::emul::{Fetched, Segment};
use iced_x86::{Decoder, DecoderOptions, MemorySize, OpKind, Register};
use proptest::prelude::*;
use std::arch::global_asm;
use std::cell::Cell;
use std::sync::Mutex;
use xen_abi::regs::CpuUserRegs;

/// An instruction with prefixes, made of parts that the emulator may accept, and registers.
#[derive(Clone, Debug)]
struct Case {
    code: Vec<u8>,
    regs: [u64; 16],
    flags: u64,
    old: u64,
}

fn case() -> impl Strategy<Value = Case> {
    const PRIMARY: &[u8] = &[
        0x00, 0x01, 0x08, 0x09, 0x10, 0x11, 0x18, 0x19, 0x20, 0x21, 0x28, 0x29, 0x30, 0x31, 0x80, 0x81, 0x83, 0x86,
        0x87, 0x88, 0x89, 0xa2, 0xa3, 0xaa, 0xab, 0xc6, 0xc7, 0xf6, 0xf7, 0xfe, 0xff,
    ];
    const SECONDARY: &[u8] = &[0xab, 0xb3, 0xbb, 0xb0, 0xb1, 0xc0, 0xc1, 0xc3, 0xba];
    let opcode = prop_oneof![
        prop::sample::select(PRIMARY).prop_map(|b| vec![b]),
        prop::sample::select(SECONDARY).prop_map(|b| vec![0x0f, b]),
    ];
    let prefix = prop::sample::select(&[0x66u8, 0x67, 0xf0, 0xf2, 0xf3, 0x3e, 0x26, 0x64, 0x65][..]);
    let rex = prop::option::of(0x40u8..=0x4f);
    // Values that make carries, and small ones so that bit numbers and comparisons hit.
    let word = || prop_oneof![any::<u64>(), (0u64..130).prop_map(|x| x.wrapping_sub(65)), Just(0x8000_0000_0000_0000)];
    let bytes = prop::collection::vec(any::<u8>(), 14);
    let regs = prop::array::uniform16(word());
    (prop::collection::vec(prefix, 0..3), rex, opcode, bytes, regs, any::<u64>(), word()).prop_map(
        |(prefixes, rex, opcode, bytes, regs, flags, old)| {
            let code = [&prefixes[..], rex.as_slice(), &opcode, &bytes].concat();
            Case { code: code[..code.len().min(15)].to_vec(), regs, flags: flags & 0x8d5 | 0x202, old }
        },
    )
}

impl Case {
    fn registers(&self, rip: u64) -> CpuUserRegs {
        let mut regs = CpuUserRegs { rip, rflags: self.flags, ..CpuUserRegs::default() };
        for (i, value) in (0..).zip(self.regs) {
            *slot(&mut regs, i) = value;
        }
        regs
    }
}

const FS_BASE: u64 = 0x1000_0000;
const GS_BASE: u64 = 0x2000_0000;

fn base(segment: Segment) -> u64 {
    match segment {
        Segment::Fs => FS_BASE,
        Segment::Gs => GS_BASE,
        _ => 0,
    }
}

/// Decodes `code`, trying the address that the independent decoder computes.
fn decode(case: &Case, regs: &CpuUserRegs, fault: u64) -> Option<MemoryWrite> {
    MemoryWrite::decode(regs, &Fetched::from_bytes(&case.code), fault, base).ok()
}

/// What the independent decoder says: length, address and width of the written operand.
fn independent(code: &[u8], regs: &CpuUserRegs) -> Option<(usize, u64, u8)> {
    let mut decoder = Decoder::with_ip(64, code, regs.rip, DecoderOptions::NONE);
    let insn = decoder.decode();
    let memory = |op: u32| matches!(insn.op_kind(op), OpKind::Memory | OpKind::MemoryESRDI);
    if insn.is_invalid() || insn.op_count() == 0 || !memory(0) {
        return None;
    }
    let mut addr = insn.virtual_address(0, 0, |register, _, _| {
        Some(match register {
            Register::FS => FS_BASE,
            Register::GS => GS_BASE,
            Register::ES | Register::CS | Register::SS | Register::DS => 0,
            Register::RIP => 0,
            r => {
                let value = get(regs, u8::try_from(r.full_register().number()).ok()?);
                if r.is_gpr32() {
                    value & 0xffff_ffff
                } else {
                    value
                }
            }
        })
    })?;
    let width = insn.memory_size().size();
    // A bit number in a register moves the operand; the decoder leaves that to its caller.
    let is_bit = matches!(insn.mnemonic(), iced_x86::Mnemonic::Bts | iced_x86::Mnemonic::Btr | iced_x86::Mnemonic::Btc);
    if is_bit && insn.op_kind(1) == OpKind::Register {
        let bits = 8 * width as u32;
        let number = get(regs, u8::try_from(insn.op1_register().full_register().number()).ok()?);
        let number = (number << (64 - bits)) as i64 >> (64 - bits);
        let moved = number.div_euclid(bits.into()) * width as i64;
        if insn.segment_prefix() != Register::None || code.contains(&0x67) {
            return None;
        }
        addr = addr.wrapping_add(moved as u64);
    }
    assert_ne!(insn.memory_size(), MemorySize::Unknown);
    Some((insn.len(), addr, u8::try_from(width).ok()?))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30_000))]

    #[test]
    fn agrees_with_an_independent_decoder(case in case(), rip in any::<u64>()) {
        let regs = case.registers(rip);
        let Some((len, addr, width)) = independent(&case.code, &regs) else { return Ok(()) };
        if let Some(w) = decode(&case, &regs, addr) {
            prop_assert_eq!((usize::from(w.len), w.addr, w.width), (len, addr, width));
        }
    }
}

/// What the emulator accepts, the independent decoder takes for a valid instruction that writes memory.
#[test]
fn accepts_nothing_that_is_not_a_memory_write() {
    let accepted = Cell::new(0u32);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(30_000));
    let result = runner.run(&case(), |mut case| {
        // Give the operand an aligned address that is known before decoding: every register the same.
        let at = case.old & !0xff;
        case.regs = [at; 16];
        let regs = case.registers(at);
        let candidates = (0..0x100).step_by(8).map(|n| at.wrapping_add(n));
        for fault in candidates.chain([at.wrapping_mul(2), at.wrapping_mul(3)]) {
            let Ok(w) = MemoryWrite::decode(&regs, &Fetched::from_bytes(&case.code), fault, |_| 0) else { continue };
            accepted.set(accepted.get() + 1);
            let mut decoder = Decoder::with_ip(64, &case.code, regs.rip, DecoderOptions::NONE);
            let insn = decoder.decode();
            prop_assert!(!insn.is_invalid(), "{:x?}", case.code);
            prop_assert_eq!(insn.len(), usize::from(w.len), "{:x?}", case.code);
            break;
        }
        Ok(())
    });
    result.unwrap();
    assert!(accepted.get() > 1000, "only {} instructions were tried", accepted.get());
}

/// Registers in instruction order, flags, and the code to call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Context {
    regs: [u64; 16],
    flags: u64,
}

global_asm!(
    // rdi: the context; rsi: code that ends in ret. Loads all registers but rsp, calls, stores them again.
    ".global tandem_test_run",
    "tandem_test_run:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "push rdi",
    "push rsi",
    "push qword ptr [rdi + 128]",
    "popfq",
    "mov rax, [rdi]; mov rcx, [rdi + 8]; mov rdx, [rdi + 16]; mov rbx, [rdi + 24]",
    "mov rbp, [rdi + 40]; mov rsi, [rdi + 48]",
    "mov r8, [rdi + 64]; mov r9, [rdi + 72]; mov r10, [rdi + 80]; mov r11, [rdi + 88]",
    "mov r12, [rdi + 96]; mov r13, [rdi + 104]; mov r14, [rdi + 112]; mov r15, [rdi + 120]",
    "mov rdi, [rdi + 56]",
    "call [rsp]",
    "xchg rdi, [rsp + 8]",
    "mov [rdi], rax; mov [rdi + 8], rcx; mov [rdi + 16], rdx; mov [rdi + 24], rbx",
    "mov [rdi + 40], rbp; mov [rdi + 48], rsi",
    "mov [rdi + 64], r8; mov [rdi + 72], r9; mov [rdi + 80], r10; mov [rdi + 88], r11",
    "mov [rdi + 96], r12; mov [rdi + 104], r13; mov [rdi + 112], r14; mov [rdi + 120], r15",
    "pushfq",
    "pop rax",
    "mov [rdi + 128], rax",
    "mov rax, [rsp + 8]",
    "mov [rdi + 56], rax",
    "cld",
    "add rsp, 16",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
);

extern "C" {
    fn tandem_test_run(context: *mut Context, code: *const u8);
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
}

const PAGE: usize = 4096;

/// A page that is readable, writable and executable.
fn page() -> *mut u8 {
    // SAFETY: an anonymous private mapping (3 | 4: read, write, execute; 0x22: private, anonymous) at an address of the
    // kernel's choice.
    let p = unsafe { mmap(core::ptr::null_mut(), PAGE, 7, 0x22, -1, 0) };
    assert!(!p.is_null() && p as isize != -1);
    p
}

struct Bench {
    code: *mut u8,
    data: *mut u8,
}
// SAFETY: used under the mutex only.
unsafe impl Send for Bench {}

static BENCH: Mutex<Option<Bench>> = Mutex::new(None);

/// Points the instruction at `target` by changing a register that only addresses memory. None if there is no such
/// register, or the instruction uses rsp, rip or a segment, which the harness does not set.
fn aim(case: &mut Case, target: u64) -> Option<MemoryWrite> {
    let mut decoder = Decoder::with_ip(64, &case.code, 0, DecoderOptions::NONE);
    let insn = decoder.decode();
    let written = independent(&case.code, &case.registers(0))?;
    let mut used = iced_x86::InstructionInfoFactory::new();
    let info = used.info(&insn);
    if info.used_registers().iter().any(|u| matches!(u.register().full_register(), Register::RSP | Register::RIP)) {
        return None;
    }
    if insn.has_segment_prefix() || case.code[..insn.len()].contains(&0x67) || insn.memory_base() == Register::RIP {
        return None;
    }
    let base = if insn.op_kind(0) == OpKind::MemoryESRDI { Register::RDI } else { insn.memory_base() };
    if base == Register::None {
        return None;
    }
    let index = base.full_register().number();
    case.regs[index] = case.regs[index].wrapping_add(target.wrapping_sub(written.1));
    let regs = case.registers(0);
    // The base may be source or index too: then the operand moved elsewhere.
    let (_, addr, _) = independent(&case.code, &regs)?;
    (addr == target).then_some(())?;
    let write = decode(case, &regs, target)?;
    // A repeated store would go on natively.
    (!insn.has_rep_prefix() && !insn.has_repne_prefix()).then_some(write)
}

/// Executes the case natively with the operand at `bench.data`: registers and memory afterwards.
fn run_natively(case: &Case, len: usize, bench: &Bench) -> (Context, u64) {
    let mut context = Context { regs: case.regs, flags: case.flags };
    // SAFETY: both pages are ours; the code is one instruction, decoded to write only its operand inside `data`, and a
    // return. The trampoline keeps the calling convention.
    unsafe {
        core::ptr::copy_nonoverlapping(case.code.as_ptr(), bench.code, len);
        bench.code.add(len).write(0xc3);
        bench.data.cast::<u64>().write(case.old);
        tandem_test_run(&mut context, bench.code);
        (context, bench.data.cast::<u64>().read())
    }
}

#[test]
fn the_processor_does_the_same() {
    let executed = Cell::new(0u32);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(40_000));
    let result = runner.run(&case(), |mut case| {
        let mut bench = BENCH.lock().unwrap();
        let bench = bench.get_or_insert_with(|| Bench { code: page(), data: page() });
        let Some(w) = aim(&mut case, bench.data as u64) else { return Ok(()) };
        let mut regs = case.registers(0);
        let effect = w.evaluate(&regs, case.old);
        let field = hv_core::emul::gpr::mask(w.width);
        let memory = effect.new.map_or(case.old, |new| case.old & !field | new & field);
        w.retire(&mut regs, &effect);
        let (native, native_memory) = run_natively(&case, w.len.into(), bench);
        executed.set(executed.get() + 1);
        prop_assert_eq!(memory, native_memory, "memory after {:x?}", case.code);
        for i in (0..16u8).filter(|&i| i != 4) {
            prop_assert_eq!(get(&regs, i), native.regs[usize::from(i)], "register {} after {:x?}", i, case.code);
        }
        // AF is undefined after logic; processors differ.
        prop_assert_eq!(regs.rflags & 0x8c5, native.flags & 0x8c5, "flags after {:x?}", case.code);
        Ok(())
    });
    result.unwrap();
    assert!(executed.get() > 2000, "only {} instructions were executed", executed.get());
}
