//! Properties of the emulator that hold for any bytes: used by the fuzz target and, for a second, by the unit tests.

use super::decode::{decode, DecodeError, Decoded, Map};
use super::memory_write::MemoryWrite;
use super::privileged::{self, Machine, Outcome, Progress};
use super::{Exception, Fetched, Mode, Segment, MAX_INSTRUCTION_BYTES};
use std::vec::Vec;
use x86::cpuid::CpuidRegs;
use x86::PAGE_SIZE;
use xen_abi::regs::CpuUserRegs;

/// A machine that permits everything, answers everything with numbers derived from the question, and records.
#[derive(Default)]
pub struct Recorder {
    /// What was asked, in order.
    pub calls: Vec<Call>,
    /// Answer of `iopl_permits` and `io_permits`, negated.
    pub refuse_io: bool,
    /// Every fallible operation fails with this.
    pub fail: Option<Exception>,
    /// Writing a control register comes to no end.
    pub cr_is_slow: bool,
    /// All memory, addressed modulo its length.
    pub memory: [u8; 16],
    /// No access to this page succeeds.
    pub absent_page: Option<u64>,
}

/// One operation on a [`Recorder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after the methods of Machine")]
pub enum Call {
    In(u16, u8),
    Out(u16, u8, u32),
    ReadCr(u8),
    WriteCr(u8, u64),
    Clts,
    ReadDr(u8),
    WriteDr(u8, u64),
    Rdmsr(u32),
    Wrmsr(u32, u64),
    Xsetbv(u32, u64),
    Wbinvd,
    Cpuid(u32, u32),
}

impl Recorder {
    fn record<T>(&mut self, call: Call, value: T) -> Result<T, Exception> {
        match self.fail {
            Some(e) => Err(e),
            None => {
                self.calls.push(call);
                Ok(value)
            }
        }
    }
    fn cell(addr: u64, i: usize) -> usize {
        (addr.to_le_bytes()[0] as usize + i) % 16
    }
    /// Does an access of `len` bytes at `addr` fault, and how?
    fn access(&self, addr: u64, len: usize, error_code: u32) -> Result<(), Exception> {
        if let Some(e) = self.fail {
            return Err(e);
        }
        let page = PAGE_SIZE as u64;
        let touched = (0..len as u64).map(|i| addr.wrapping_add(i)).find(|a| Some(a / page) == self.absent_page);
        touched.map_or(Ok(()), |cr2| Err(Exception::page_fault(cr2, error_code)))
    }
}

impl Machine for Recorder {
    fn iopl_permits(&self) -> bool {
        !self.refuse_io
    }
    fn io_permits(&self, _: u16, _: u8) -> bool {
        !self.refuse_io
    }
    fn io_in(&mut self, port: u16, width: u8) -> u32 {
        self.calls.push(Call::In(port, width));
        #[allow(clippy::cast_possible_truncation, reason = "any number does")]
        let nr_before = self.calls.len() as u32 - 1;
        0x8182_8384 ^ nr_before << 3
    }
    fn io_out(&mut self, port: u16, width: u8, value: u32) {
        self.calls.push(Call::Out(port, width, value));
    }
    fn read_cr(&mut self, cr: u8) -> Result<u64, Exception> {
        self.record(Call::ReadCr(cr), 0x8005_0033)
    }
    fn table_selectors(&self) -> (u16, u16) {
        (0xe048, 0xe040)
    }
    fn write_cr(&mut self, cr: u8, value: u64) -> Result<Progress, Exception> {
        let progress = if self.cr_is_slow { Progress::Again } else { Progress::Done };
        self.record(Call::WriteCr(cr, value), progress)
    }
    fn clts(&mut self) {
        self.calls.push(Call::Clts);
    }
    fn read_dr(&mut self, dr: u8) -> Result<u64, Exception> {
        self.record(Call::ReadDr(dr), 0xffff_0ff0)
    }
    fn write_dr(&mut self, dr: u8, value: u64) -> Result<(), Exception> {
        self.record(Call::WriteDr(dr, value), ())
    }
    fn rdmsr(&mut self, msr: u32) -> Result<u64, Exception> {
        self.record(Call::Rdmsr(msr), 0x1234_5678_9abc_def0)
    }
    fn wrmsr(&mut self, msr: u32, value: u64) -> Result<(), Exception> {
        self.record(Call::Wrmsr(msr, value), ())
    }
    fn xsetbv(&mut self, index: u32, value: u64) -> Result<(), Exception> {
        self.record(Call::Xsetbv(index, value), ())
    }
    fn wbinvd(&mut self) {
        self.calls.push(Call::Wbinvd);
    }
    fn rdtsc(&mut self) -> Result<(u64, u32), Exception> {
        self.fail.map_or(Ok((0x11_2222_3333, 5)), Err)
    }
    fn cpuid(&mut self, leaf: u32, subleaf: u32) -> CpuidRegs {
        self.calls.push(Call::Cpuid(leaf, subleaf));
        CpuidRegs::new(leaf, subleaf, 3, 4)
    }
    fn segment_base(&self, _: Segment) -> u64 {
        0
    }
    fn read(&mut self, addr: u64, out: &mut [u8]) -> Result<(), Exception> {
        self.access(addr, out.len(), 0)?;
        for (i, b) in out.iter_mut().enumerate() {
            *b = self.memory[Self::cell(addr, i)];
        }
        Ok(())
    }
    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Exception> {
        self.access(addr, data.len(), 2)?;
        for (i, b) in data.iter().enumerate() {
            self.memory[Self::cell(addr, i)] = *b;
        }
        Ok(())
    }
}

/// Registers from arbitrary bytes; missing ones are zero.
pub fn registers(data: &[u8]) -> CpuUserRegs {
    let word = |i: usize| {
        let mut w = [0; 8];
        for (to, from) in w.iter_mut().zip(data.iter().skip(8 * i)) {
            *to = *from;
        }
        u64::from_le_bytes(w)
    };
    CpuUserRegs {
        rax: word(0),
        rcx: word(1),
        rdx: word(2),
        rbx: word(3),
        rsp: word(4),
        rbp: word(5),
        rsi: word(6),
        rdi: word(7),
        r8: word(8),
        r12: word(9),
        r13: word(10),
        rip: word(11),
        rflags: word(12) & 0x3f_7fd5 | 2,
        ..Default::default()
    }
}

/// Checks the emulator on `data`: 16 instruction bytes, then registers. Panics if a property is violated.
///
/// - A decoded instruction has 1 to 15 bytes, and with any byte of them missing the missing byte is what faults.
/// - A write stays inside its operand; only the flags of arithmetic change, and rip by no more than the length.
/// - An instruction that injects or is unhandled leaves all registers alone.
/// - Repeated port I/O does what as many single iterations do.
pub fn check(data: &[u8]) {
    let (code, rest) = data.split_at(data.len().min(16));
    let regs = registers(rest);
    let whole = Fetched::from_bytes(code);
    for mode in [Mode::Long, Mode::Compat32] {
        let Ok(d) = decode(&regs, mode, &whole) else { continue };
        let len = usize::from(d.len);
        assert!((1..=MAX_INSTRUCTION_BYTES).contains(&len));
        for cut in 0..len {
            let missing = regs.rip.wrapping_add(cut as u64);
            let result = decode(&regs, mode, &Fetched::from_bytes(&code[..cut]));
            assert_eq!(result.err(), Some(DecodeError::Fetch(missing)), "cut at {cut} of {len}");
        }
    }
    check_write(&regs, &whole);
    check_privileged(&regs, &whole);
    for mode in [Mode::Long, Mode::Compat32] {
        check_string_io(&regs, mode, &whole);
    }
}

/// Executes INS or OUTS to its end or first fault, and iteration by iteration beside it.
fn check_string_io(regs: &CpuUserRegs, mode: Mode, whole: &Fetched) {
    let Ok(d) = decode(regs, mode, whole) else { return };
    if d.map != Map::Primary || !(0x6c..=0x6f).contains(&d.opcode) || d.prefixes.lock {
        return;
    }
    // Somewhere in the next pages, or the previous ones, there is a hole.
    let index = if d.opcode & 2 == 0 { regs.rdi } else { regs.rsi } & d.address_mask(mode);
    let page = (index / PAGE_SIZE as u64).wrapping_add(regs.rbx % 7).wrapping_sub(3);
    let machine = || Recorder { absent_page: Some(page), memory: *b"0123456789abcdef", ..Default::default() };
    let (mut fast, mut slow) = (machine(), machine());
    // The counter is arbitrary: bring it down to something that ends.
    let mut regs = CpuUserRegs { rcx: regs.rcx & !d.address_mask(mode) | regs.rcx & 0x7ff, ..*regs };
    let mut expected = regs;
    for _ in 0..0x1000 {
        let before = regs;
        let outcome = privileged::emulate(&mut regs, mode, true, whole, &mut fast);
        let nr = if d.prefixes.repeat.is_some() { before.rcx.wrapping_sub(regs.rcx) & 0xfff } else { 1 };
        if let Outcome::Inject(e) = outcome {
            assert_eq!(one_iteration(&mut expected, mode, &d, &mut slow), Err(e), "{d:x?}");
            assert_eq!(regs, before);
            return;
        }
        assert!(nr <= privileged::MAX_ITERATIONS && (nr > 0 || before.rcx & d.address_mask(mode) == 0), "{nr}");
        for _ in 0..nr {
            assert_eq!(one_iteration(&mut expected, mode, &d, &mut slow), Ok(()), "{d:x?} at {expected:x?}");
        }
        assert_eq!((regs.rsi, regs.rdi, regs.rcx), (expected.rsi, expected.rdi, expected.rcx), "{d:x?}");
        assert_eq!((&fast.calls, fast.memory), (&slow.calls, slow.memory), "{d:x?}");
        if regs.rip != before.rip {
            assert!(d.prefixes.repeat.is_none() || regs.rcx & d.address_mask(mode) == 0);
            return;
        }
    }
    panic!("no end: {d:x?} with {regs:x?}");
}

/// What the manual says about one iteration of INS or OUTS.
fn one_iteration(regs: &mut CpuUserRegs, mode: Mode, d: &Decoded, machine: &mut Recorder) -> Result<(), Exception> {
    let width = d.width().min(4);
    let mask = d.address_mask(mode);
    let [low, high, ..] = regs.rdx.to_le_bytes();
    let port = u16::from_le_bytes([low, high]);
    let is_input = d.opcode & 2 == 0;
    let addr = if is_input { regs.rdi } else { regs.rsi } & mask;
    let mut item = [0; 4];
    let data = &mut item[..usize::from(width)];
    if is_input {
        machine.access(addr, data.len(), 2)?;
        data.copy_from_slice(&machine.io_in(port, width).to_le_bytes()[..usize::from(width)]);
        machine.write(addr, data)?;
    } else {
        machine.read(addr, data)?;
        machine.io_out(port, width, u32::from_le_bytes(item));
    }
    let advance = |register: &mut u64, by: i64| {
        let new = register.wrapping_add_signed(by) & mask;
        *register = if mask == 0xffff { *register & !mask | new } else { new };
    };
    let step = if regs.rflags & 0x400 == 0 { i64::from(width) } else { -i64::from(width) };
    advance(if is_input { &mut regs.rdi } else { &mut regs.rsi }, step);
    if d.prefixes.repeat.is_some() {
        advance(&mut regs.rcx, -1);
    }
    Ok(())
}

fn check_write(regs: &CpuUserRegs, whole: &Fetched) {
    let fault_addr = decode(regs, Mode::Long, whole).ok().and_then(|d| d.offset).unwrap_or(regs.rdi);
    let Ok(w) = MemoryWrite::decode(regs, whole, fault_addr, |_| 0) else { return };
    assert!([1, 2, 4, 8].contains(&w.width) && w.addr % u64::from(w.width) == 0);
    for old in [0, u64::MAX, regs.rax, regs.rbx] {
        let effect = w.evaluate(regs, old);
        if let Some(new) = effect.new {
            assert!(w.width == 8 || new >> (8 * w.width) == 0, "{new:#x} wider than {}", w.width);
            assert!(w.reads_memory() || w.evaluate(regs, !old).new == Some(new));
        }
        let mut after = *regs;
        w.retire(&mut after, &effect);
        assert!(after.rip == regs.rip || after.rip == regs.rip.wrapping_add(w.len.into()));
        assert_eq!((after.rflags ^ regs.rflags) & !(0x8d5 | 1 << 16), 0);
    }
}

fn check_privileged(regs: &CpuUserRegs, whole: &Fetched) {
    for (mode, kernel) in [(Mode::Long, true), (Mode::Long, false), (Mode::Compat32, false)] {
        for fail in [None, Some(Exception::GP)] {
            let mut machine = Recorder { fail, ..Default::default() };
            let mut after = *regs;
            let outcome = privileged::emulate(&mut after, mode, kernel, whole, &mut machine);
            match outcome {
                Outcome::Done | Outcome::SingleStep => {
                    let moved = after.rip.wrapping_sub(regs.rip);
                    assert!(moved <= 15 || mode == Mode::Compat32, "moved by {moved}");
                }
                Outcome::Again | Outcome::Inject(_) | Outcome::Unhandled => assert_eq!(after, *regs),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    /// An interesting opcode with prefixes in front of it, so that random bytes are not wasted on refusals.
    fn instruction() -> impl Strategy<Value = Vec<u8>> {
        let prefix =
            prop::sample::select(&[0x66u8, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x3e, 0x64, 0x65, 0x48, 0x41, 0x4f][..]);
        let tail = prop::collection::vec(any::<u8>(), 13 + 8 * 13);
        (prop::collection::vec(prefix, 0..4), any::<bool>(), tail).prop_map(|(mut code, secondary, tail)| {
            code.extend(secondary.then_some(0x0f));
            code.extend(&tail[..13]);
            code.truncate(16);
            code.resize(16, 0);
            code.extend(&tail[13..]);
            code
        })
    }

    /// INS or OUTS with prefixes, and registers near the borders of pages and of the address space.
    fn string_io() -> impl Strategy<Value = Vec<u8>> {
        let prefix = prop::sample::select(&[0x66u8, 0x67, 0xf2, 0xf3, 0x2e, 0x48][..]);
        let edge =
            (prop::sample::select(&[0u64, 0x1000, 0x1_0000, 1 << 32, 1 << 47, 0x1234_0000_f000][..]), -40i64..40);
        let edges = prop::collection::vec(edge.prop_map(|(at, by)| at.wrapping_add_signed(by)), 13);
        (prop::collection::vec(prefix, 0..4), 0x6cu8..0x70, edges).prop_map(|(mut code, opcode, edges)| {
            code.push(opcode);
            code.resize(16, 0);
            code.extend(edges.iter().flat_map(|word| word.to_le_bytes()));
            code
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn any_bytes(data in instruction()) {
            super::check(&data);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn strings(data in string_io()) {
            super::check(&data);
        }
    }
}
