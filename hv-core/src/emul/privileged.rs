//! Privileged instructions of a PV guest, which runs at ring 3 and so gets #GP for them.
//!
//! The guest's kernel relies on I/O, CLI and STI, MSRs, control and debug registers, XSETBV, WBINVD and CLTS. All the
//! rest (HLT, INVD, INVLPG, LGDT, MWAIT, RDPMC, ...) is left alone: the guest gets the #GP. Guest *user* code may do
//! I/O and change the interrupt flag if its IOPL allows, and execute what UMIP forbids to ring 3 ([`Store`]), nothing
//! else. What the effects are is the [`Machine`]'s business; only the operands are here.

use super::decode::{decode, Decoded, Map, Repeat};
use super::gpr::Gpr;
use super::{Exception, Fetched, Mode, Segment};
use x86::cpuid::CpuidRegs;
use x86::error_code;
use x86::rflags::Rflags;
use x86::PAGE_SIZE;
use xen_abi::regs::CpuUserRegs;

/// The vCPU and its domain, as far as privileged instructions reach. `Err` is the exception that the guest gets; the
/// instruction then has had no effect.
#[allow(missing_docs, reason = "the manuals' names")]
pub trait Machine {
    /// May the guest, in its present mode, change the interrupt flag (virtual IOPL)?
    fn iopl_permits(&self) -> bool;
    /// May the guest use `width` ports from `port` on, as far as its own kernel is concerned (IOPL or I/O bitmap)?
    fn io_permits(&self, port: u16, width: u8) -> bool;
    /// Reads a port. Ports that the domain does not own read as all ones.
    fn io_in(&mut self, port: u16, width: u8) -> u32;
    /// Writes a port. Writes to ports that the domain does not own are dropped.
    fn io_out(&mut self, port: u16, width: u8, value: u32);
    /// Fills `data` by reading a port again and again, `width` bytes a time.
    fn io_in_string(&mut self, port: u16, width: u8, data: &mut [u8]) {
        for item in data.chunks_exact_mut(width.into()) {
            item.copy_from_slice(&self.io_in(port, width).to_le_bytes()[..usize::from(width)]);
        }
    }
    /// Writes all of `data` to a port, `width` bytes a time.
    fn io_out_string(&mut self, port: u16, width: u8, data: &[u8]) {
        for item in data.chunks_exact(width.into()) {
            let mut value = [0; 4];
            value[..item.len()].copy_from_slice(item);
            self.io_out(port, width, u32::from_le_bytes(value));
        }
    }
    fn read_cr(&mut self, cr: u8) -> Result<u64, Exception>;
    fn write_cr(&mut self, cr: u8, value: u64) -> Result<Progress, Exception>;
    /// The selectors in LDTR and TR.
    fn table_selectors(&self) -> (u16, u16);
    /// Clears CR0.TS.
    fn clts(&mut self);
    fn read_dr(&mut self, dr: u8) -> Result<u64, Exception>;
    fn write_dr(&mut self, dr: u8, value: u64) -> Result<(), Exception>;
    fn rdmsr(&mut self, msr: u32) -> Result<u64, Exception>;
    fn wrmsr(&mut self, msr: u32, value: u64) -> Result<(), Exception>;
    fn xsetbv(&mut self, index: u32, value: u64) -> Result<(), Exception>;
    fn wbinvd(&mut self);
    /// The time-stamp counter and IA32_TSC_AUX; `Err` if the guest itself forbids reading it in this mode.
    fn rdtsc(&mut self) -> Result<(u64, u32), Exception>;
    fn cpuid(&mut self, leaf: u32, subleaf: u32) -> CpuidRegs;
    fn segment_base(&self, segment: Segment) -> u64;
    /// Reads guest memory at a linear address.
    fn read(&mut self, addr: u64, out: &mut [u8]) -> Result<(), Exception>;
    /// Writes guest memory at a linear address.
    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Exception>;
}

/// How far an instruction has come that may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// To its end.
    Done,
    /// Not there yet. The guest executes it again, so that interrupts have their turn.
    Again,
}

/// What became of a trapped instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Executed; the registers are those after it.
    Done,
    /// Executed, and the guest single-steps: deliver #DB with DR6.BS.
    SingleStep,
    /// Executed in part; the registers are those before it.
    Again,
    /// Not executed: deliver this exception.
    Inject(Exception),
    /// Not ours: deliver the fault as it came.
    Unhandled,
}

/// The `ud2` and signature before an instruction that the guest wants emulated.
pub const FORCED_PREFIX: [u8; 5] = *b"\x0f\x0bxen";
const CPUID: [u8; 2] = [0x0f, 0xa2];

/// Emulates what raised #UD, if it is CPUID behind the forced-emulation prefix.
#[inline]
pub fn forced<M: Machine>(regs: &mut CpuUserRegs, fetched: &Fetched, machine: &mut M) -> Outcome {
    const LEN: usize = FORCED_PREFIX.len() + CPUID.len();
    let valid = fetched.bytes.get(..fetched.len.min(LEN)).unwrap_or(&[]);
    let expected = FORCED_PREFIX.iter().chain(&CPUID);
    if !valid.iter().eq(expected.take(valid.len())) {
        return Outcome::Unhandled;
    }
    if valid.len() < LEN {
        return Outcome::Inject(Exception::fetch_fault(regs.rip.wrapping_add(valid.len() as u64)));
    }
    cpuid(regs, machine);
    retire(regs, LEN as u64, Mode::Long)
}

/// Is the #GP with `error_code` an `int n` that the guest's own trap table permits?
/// `dpl` looks up the privilege level of a trap-table entry. Returns the vector to deliver; the instruction has two
/// bytes.
pub fn software_interrupt(error_code: u32, guest_ring: u8, dpl: impl FnOnce(u8) -> Option<u8>) -> Option<u8> {
    let vector = error_code::idt_vector(error_code)?;
    (dpl(vector)? >= guest_ring).then_some(vector)
}

/// Emulates what raised #GP(0). `kernel`: the guest's kernel was running.
#[inline]
pub fn emulate<M: Machine>(
    regs: &mut CpuUserRegs,
    mode: Mode,
    kernel: bool,
    fetched: &Fetched,
    machine: &mut M,
) -> Outcome {
    let d = match decode(regs, mode, fetched) {
        Ok(d) => d,
        Err(e) => return e.exception().map_or(Outcome::Unhandled, Outcome::Inject),
    };
    if d.prefixes.lock {
        return Outcome::Unhandled;
    }
    let done = match (d.map, d.opcode) {
        (Map::Primary, 0xe4..=0xe7 | 0xec..=0xef) => port_io(regs, &d, machine),
        (Map::Primary, 0x6c..=0x6f) => match string_io(regs, mode, &d, machine) {
            Ok(Repetition::Again) => return stay(regs),
            Ok(Repetition::Last) => Ok(()),
            Err(e) => Err(e),
        },
        // The interrupt flag of a PV guest is in its shared info; the real one stays set.
        (Map::Primary, 0xfa | 0xfb) if machine.iopl_permits() => Ok(()),
        (Map::Secondary, 0x31) => rdtsc(regs, machine).map(|_| ()),
        (Map::Secondary, 0x01) if d.modrm == 0xf9 => rdtsc(regs, machine).map(|aux| regs.rcx = aux.into()),
        (Map::Secondary, 0xa2) => {
            cpuid(regs, machine);
            Ok(())
        }
        (Map::Secondary, 0x22) if kernel => match machine.write_cr(d.reg(), Gpr::full(d.rm()).read(regs, 8)) {
            Ok(Progress::Again) => return Outcome::Again,
            Ok(Progress::Done) => Ok(()),
            Err(e) => Err(e),
        },
        (Map::Secondary, 0x00 | 0x01) if Store::of(&d).is_some() => store(regs, mode, &d, machine),
        (Map::Secondary, _) if kernel => match system(regs, &d, machine) {
            Some(result) => result,
            None => return Outcome::Unhandled,
        },
        _ => return Outcome::Unhandled,
    };
    match done {
        Ok(()) => retire(regs, d.len.into(), mode),
        Err(e) => Outcome::Inject(e),
    }
}

/// Instructions for kernel mode only; none if it is not one of them.
fn system<M: Machine>(regs: &mut CpuUserRegs, d: &Decoded, machine: &mut M) -> Option<Result<(), Exception>> {
    let rm = Gpr::full(d.rm());
    Some(match d.opcode {
        0x30 => machine.wrmsr(low(regs.rcx), edx_eax(regs)),
        0x32 => machine.rdmsr(low(regs.rcx)).map(|value| set_edx_eax(regs, value)),
        0x20 => machine.read_cr(d.reg()).map(|value| rm.write(regs, 8, value)),
        0x21 => machine.read_dr(d.reg()).map(|value| rm.write(regs, 8, value)),
        0x23 => machine.write_dr(d.reg(), rm.read(regs, 8)),
        0x06 => {
            machine.clts();
            Ok(())
        }
        0x09 if d.prefixes.repeat != Some(Repeat::Rep) => {
            machine.wbinvd();
            Ok(())
        }
        0x01 if d.modrm == 0xd1 => machine.xsetbv(low(regs.rcx), edx_eax(regs)),
        0x01 if d.group() == 6 => lmsw(regs, d, machine),
        _ => return None,
    })
}

/// The instructions that UMIP forbids to ring 3, where every guest runs. They tell what they always told, but for the
/// addresses of the hypervisor's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Sldt,
    Str,
    Sgdt,
    Sidt,
    Smsw,
}

impl Store {
    fn of(d: &Decoded) -> Option<Self> {
        Some(match (d.opcode, d.group()) {
            (0x00, 0) => Self::Sldt,
            (0x00, 1) => Self::Str,
            (0x01, 0) if d.offset.is_some() => Self::Sgdt,
            (0x01, 1) if d.offset.is_some() => Self::Sidt,
            (0x01, 4) => Self::Smsw,
            _ => return None,
        })
    }
}

/// Where guests are told that the tables are: what Linux tells programs on a processor with UMIP. The limits are 0.
pub const GDT_SHOWN: u64 = 0xffff_ffff_fffe_0000;
/// See [`GDT_SHOWN`].
pub const IDT_SHOWN: u64 = 0xffff_ffff_ffff_0000;

/// Executes a [`Store`].
#[cold]
fn store<M: Machine>(regs: &mut CpuUserRegs, mode: Mode, d: &Decoded, machine: &mut M) -> Result<(), Exception> {
    let (ldt, task) = machine.table_selectors();
    let word = match Store::of(d) {
        Some(Store::Sldt) => ldt.into(),
        Some(Store::Str) => task.into(),
        Some(Store::Smsw) => machine.read_cr(0)?,
        table => {
            let base = if table == Some(Store::Sgdt) { GDT_SHOWN } else { IDT_SHOWN };
            let mut pointer = [0; 10];
            pointer[2..].copy_from_slice(&base.to_le_bytes());
            let bytes = if mode == Mode::Long { 10 } else { 6 };
            return put(d, machine, &pointer[..bytes]);
        }
    };
    if d.offset.is_some() {
        return put(d, machine, &word.to_le_bytes()[..2]);
    }
    Gpr::full(d.rm()).write(regs, d.full_width(), word);
    Ok(())
}

/// Writes to the memory operand.
fn put<M: Machine>(d: &Decoded, machine: &mut M, data: &[u8]) -> Result<(), Exception> {
    let base = d.segment.map_or(0, |s| machine.segment_base(s));
    machine.write(base.wrapping_add(d.offset.unwrap_or(0)), data)
}

/// LMSW: loads PE (set only), MP, EM and TS of CR0.
fn lmsw<M: Machine>(regs: &mut CpuUserRegs, d: &Decoded, machine: &mut M) -> Result<(), Exception> {
    let source = match d.offset {
        None => Gpr::full(d.rm()).read(regs, 2),
        Some(offset) => {
            let mut word = [0; 2];
            let base = d.segment.map_or(0, |s| machine.segment_base(s));
            machine.read(base.wrapping_add(offset), &mut word)?;
            u16::from_le_bytes(word).into()
        }
    };
    let cr0 = machine.read_cr(0)?;
    machine.write_cr(0, cr0 & !0xe | source & 0xf).map(|_| ())
}

/// IN and OUT with immediate or dx port.
#[inline]
fn port_io<M: Machine>(regs: &mut CpuUserRegs, d: &Decoded, machine: &mut M) -> Result<(), Exception> {
    let width = io_width(d);
    // Immediate ports have eight bits; the immediate was sign-extended.
    let port = if d.opcode & 8 == 0 { low_port(d.imm & 0xff) } else { low_port(regs.rdx) };
    if !machine.io_permits(port, width) {
        return Err(Exception::GP);
    }
    if d.opcode & 2 == 0 {
        Gpr::RAX.write(regs, width, machine.io_in(port, width).into());
    } else {
        machine.io_out(port, width, low(Gpr::RAX.read(regs, width)));
    }
    Ok(())
}

/// Is a repeated string instruction to be executed again?
enum Repetition {
    Last,
    Again,
}

/// Bytes of a repeated INS or OUTS that are moved at a time.
const STRING_BYTES: usize = 1024;
/// Iterations that are done at a time. A port access takes about a microsecond on a real machine, and interrupts wait.
pub const MAX_ITERATIONS: u64 = 256;

/// INS or OUTS: as many iterations as [`iterations`] allows. The guest executes the instruction again for the rest, so
/// that interrupts have their turn.
fn string_io<M: Machine>(
    regs: &mut CpuUserRegs,
    mode: Mode,
    d: &Decoded,
    machine: &mut M,
) -> Result<Repetition, Exception> {
    let width = io_width(d);
    let port = low_port(regs.rdx);
    if !machine.io_permits(port, width) {
        return Err(Exception::GP);
    }
    let addresses = d.address_mask(mode);
    let repeated = d.prefixes.repeat.is_some();
    if repeated && regs.rcx & addresses == 0 {
        return Ok(Repetition::Last);
    }
    let is_input = d.opcode & 2 == 0;
    let (segment, index) =
        if is_input { (Segment::Es, &mut regs.rdi) } else { (d.segment.unwrap_or(Segment::Ds), &mut regs.rsi) };
    let offset = *index & addresses;
    let addr = machine.segment_base(segment).wrapping_add(offset);
    let down = regs.rflags & Rflags::DF.bits() != 0;
    let one_by_one = !repeated || down || regs.rflags & Rflags::TF.bits() != 0;
    let n = if one_by_one { 1 } else { iterations(regs.rcx & addresses, addr, addresses - offset, width) };
    let len = n * u64::from(width);
    let mut buffer = [0; STRING_BYTES];
    #[allow(clippy::cast_possible_truncation, reason = "at most STRING_BYTES")]
    let data = &mut buffer[..len as usize];
    if is_input {
        // A fault must come before the port is read, which may have an effect. More than one item is within one page,
        // so that the first tells for all.
        machine.write(addr, &data[..usize::from(width)])?;
        machine.io_in_string(port, width, data);
        machine.write(addr, data)?;
    } else {
        machine.read(addr, data)?;
        machine.io_out_string(port, width, data);
    }
    *index = cut(*index, if down { index.wrapping_sub(len) } else { index.wrapping_add(len) }, addresses);
    if repeated {
        regs.rcx = cut(regs.rcx, regs.rcx.wrapping_sub(n), addresses);
    }
    Ok(if repeated && regs.rcx & addresses != 0 { Repetition::Again } else { Repetition::Last })
}

/// How many of `count` iterations upwards from `addr` are done at once: what stays within its page and before the
/// address wraps around, `to_wrap` bytes behind `addr`; at least one.
fn iterations(count: u64, addr: u64, to_wrap: u64, width: u8) -> u64 {
    let page = PAGE_SIZE as u64;
    let bytes = (page - addr % page).min(to_wrap.saturating_add(1)).min(STRING_BYTES as u64);
    count.min(bytes / u64::from(width)).clamp(1, MAX_ITERATIONS)
}

/// `new` in a register that held `old`, by address size: 16 bits keep the rest, 32 bits clear it.
fn cut(old: u64, new: u64, addresses: u64) -> u64 {
    if addresses == 0xffff {
        old & !addresses | new & addresses
    } else {
        new & addresses
    }
}

/// Operand width of an I/O instruction: 1, 2 or 4.
#[inline]
fn io_width(d: &Decoded) -> u8 {
    d.width().min(4)
}

#[inline]
fn rdtsc<M: Machine>(regs: &mut CpuUserRegs, machine: &mut M) -> Result<u32, Exception> {
    let (tsc, aux) = machine.rdtsc()?;
    set_edx_eax(regs, tsc);
    Ok(aux)
}

#[inline]
fn cpuid<M: Machine>(regs: &mut CpuUserRegs, machine: &mut M) {
    let r = machine.cpuid(low(regs.rax), low(regs.rcx));
    [regs.rax, regs.rbx, regs.rcx, regs.rdx] = [r.eax, r.ebx, r.ecx, r.edx].map(u64::from);
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "32-bit register halves")]
const fn low(value: u64) -> u32 {
    value as u32
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "dx")]
const fn low_port(value: u64) -> u16 {
    value as u16
}

#[inline]
const fn edx_eax(regs: &CpuUserRegs) -> u64 {
    regs.rdx << 32 | regs.rax & 0xffff_ffff
}

#[inline]
fn set_edx_eax(regs: &mut CpuUserRegs, value: u64) {
    regs.rax = value & 0xffff_ffff;
    regs.rdx = value >> 32;
}

/// Moves on by `len` bytes.
#[inline]
fn retire(regs: &mut CpuUserRegs, len: u64, mode: Mode) -> Outcome {
    let rip = regs.rip.wrapping_add(len);
    regs.rip = if mode == Mode::Long { rip } else { rip & 0xffff_ffff };
    stay(regs)
}

/// The end of an instruction, or of one iteration of a repeated one.
#[inline]
fn stay(regs: &mut CpuUserRegs) -> Outcome {
    regs.rflags &= !Rflags::RF.bits();
    if regs.rflags & Rflags::TF.bits() != 0 {
        Outcome::SingleStep
    } else {
        Outcome::Done
    }
}

#[cfg(test)]
mod tests;
