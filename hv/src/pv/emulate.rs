//! Privileged instructions of a guest: #GP, and #UD behind the forced-emulation prefix.

use crate::arch::{descriptor, fpu, pci, tsc};
use crate::cpu::{self, msr as live, port};
use crate::domain::iospace::IoSpace;
use crate::domain::vcpu::OwnedVcpu;
use crate::mem::copy;
use crate::pv::{address_space, control_regs, cpu_policy, debugreg, entry, mmio_ro, mode};
use crate::sched::switch;
use hv_core::emul::privileged::{self, Machine, Outcome, Progress};
use hv_core::emul::{Exception, Fetched, Mode, Segment, MAX_INSTRUCTION_BYTES};
use hv_core::ioport::{ConfigAddress, ConfigSpace, Ports};
use hv_core::{control, msr};
use x86::addr::is_canonical;
use x86::cpuid::CpuidRegs;
use x86::descriptor::Descriptor;
use x86::error_code::PageFaultError;
use x86::rflags::{Cr4, Dr6};
use x86::{vector, MachAddr, Mfn, PAGE_SIZE};
use xen_abi::layout::FLAT_RING3_CS64;
use xen_abi::regs::CpuUserRegs;
use xen_abi::trap::TI_DPL_MASK;

/// A #GP with error code in `regs`. Whether it was dealt with (also by delivering something else).
pub fn general_protection(v: &OwnedVcpu, regs: &mut CpuUserRegs) -> bool {
    if regs.error_code != 0 {
        return software_interrupt(v, regs);
    }
    let Some(mode) = code_mode(regs) else { return false };
    let fetched = fetch(regs.rip, mode);
    let outcome = privileged::emulate(regs, mode, v.kernel_mode.get(), &fetched, &mut Guest(v));
    finish(v, regs, outcome)
}

/// A #UD. Whether it was a forced emulation.
pub fn undefined_opcode(v: &OwnedVcpu, regs: &mut CpuUserRegs) -> bool {
    let fetched = fetch(regs.rip, Mode::Long);
    let outcome = privileged::forced(regs, &fetched, &mut Guest(v));
    finish(v, regs, outcome)
}

/// INT n that the IDT refused: the guest's own trap table decides. The instruction has two bytes.
fn software_interrupt(v: &OwnedVcpu, regs: &mut CpuUserRegs) -> bool {
    let ring = match (v.kernel_mode.get(), v.domain().has_architectural_iopl()) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 3,
    };
    let dpl = |vec: u8| {
        let trap = v.traps[usize::from(vec)].get();
        (trap.address != 0).then_some(trap.flags & TI_DPL_MASK)
    };
    let Some(vec) = privileged::software_interrupt(regs.error_code, ring, dpl) else { return false };
    regs.rip = regs.rip.wrapping_add(2);
    entry::inject_software(v, regs, vec);
    true
}

/// Delivers what the emulation ended in.
fn finish(v: &OwnedVcpu, regs: &mut CpuUserRegs, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Done | Outcome::Again => {}
        Outcome::SingleStep => single_step(v, regs),
        Outcome::Inject(e) => inject(v, regs, e),
        Outcome::Unhandled => return false,
    }
    true
}

/// Delivers the #DB of a guest that single-steps, after an emulated instruction.
pub fn single_step(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    v.debugreg[6].set(v.debugreg[6].get() | Dr6::BS.bits());
    entry::inject(v, regs, vector::DB, 0);
}

/// Delivers an exception.
pub fn inject(v: &OwnedVcpu, regs: &mut CpuUserRegs, e: Exception) {
    if e.vector == vector::PF {
        entry::inject_page_fault(v, regs, e.cr2, e.error_code);
    } else {
        entry::inject(v, regs, e.vector, e.error_code);
    }
}

/// Reads the instruction at `rip`.
#[inline]
pub fn fetch(rip: u64, mode: Mode) -> Fetched {
    let rip = if mode == Mode::Long { rip } else { rip & 0xffff_ffff };
    if let (Ok(low), Ok(high)) = (copy::read_u64(rip), copy::read_u64(rip.wrapping_add(8))) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        return Fetched { bytes, len: MAX_INSTRUCTION_BYTES };
    }
    fetch_to_page_end(rip)
}

/// Reads what is left of the page at `rip`: the next one is not readable, or this one is not.
#[cold]
fn fetch_to_page_end(rip: u64) -> Fetched {
    let left = PAGE_SIZE - (rip as usize & (PAGE_SIZE - 1));
    let mut f = Fetched::default();
    let len = left.min(MAX_INSTRUCTION_BYTES);
    if copy::from_guest(&mut f.bytes[..len], rip).is_ok() {
        f.len = len;
    }
    f
}

/// How the CPU decodes the code that `regs` run; none if that is not emulated.
#[inline]
fn code_mode(regs: &CpuUserRegs) -> Option<Mode> {
    if regs.cs == FLAT_RING3_CS64 {
        return Some(Mode::Long);
    }
    let [ds, es, ..] = switch::read_selectors();
    Mode::of(descriptor::read(regs.cs)?, || {
        [ds, es, regs.ss].map(|selector| descriptor::read(selector).unwrap_or(Descriptor::NULL))
    })
}

/// The running vCPU, as instructions reach it.
struct Guest<'a>(&'a OwnedVcpu);

impl Guest<'_> {
    fn view<R>(&self, f: impl FnOnce(&msr::View<'_>) -> R) -> R {
        let v = self.0;
        let domain = v.domain();
        let policy = domain.cpu_policy.read();
        f(&msr::View {
            policy: &policy,
            hardware_domain: domain.is_hardware,
            vcpu_id: v.id,
            tsc_aux: v.tsc_aux.get() as u32,
            has_gp_handler: v.traps[usize::from(vector::GP)].get().address != 0,
        })
    }
}

impl Machine for Guest<'_> {
    fn iopl_permits(&self) -> bool {
        let v = self.0;
        let kernel_ring = if v.domain().has_architectural_iopl() { 0 } else { 1 };
        v.iopl.get() >= if v.kernel_mode.get() { kernel_ring } else { 3 }
    }

    fn io_permits(&self, port: u16, width: u8) -> bool {
        self.iopl_permits() || self.bitmap_permits(port, width)
    }

    fn io_in(&mut self, port: u16, width: u8) -> u32 {
        let io = &self.0.domain().io;
        io.emulated.lock().read(port, width, tsc::now_ns(), &mut DomainPorts(io), &mut PciConfig)
    }

    fn io_out(&mut self, port: u16, width: u8, value: u32) {
        let io = &self.0.domain().io;
        io.emulated.lock().write(port, width, value, tsc::now_ns(), &mut DomainPorts(io), &mut PciConfig);
    }

    fn io_in_string(&mut self, port: u16, width: u8, data: &mut [u8]) {
        let io = &self.0.domain().io;
        io.emulated.lock().read_string(port, width, data, tsc::now_ns(), &mut DomainPorts(io), &mut PciConfig);
    }

    fn io_out_string(&mut self, port: u16, width: u8, data: &[u8]) {
        let io = &self.0.domain().io;
        io.emulated.lock().write_string(port, width, data, tsc::now_ns(), &mut DomainPorts(io), &mut PciConfig);
    }

    fn read_cr(&mut self, cr: u8) -> Result<u64, Exception> {
        let v = self.0;
        match cr {
            0 => Ok(control::read_cr0(v.task_switched.get())),
            2 => Ok(v.cr2.get()),
            3 => Ok(v.kernel_root.get().addr().raw()),
            4 => Ok(control::read_cr4(v.cr4.get())),
            _ => Err(Exception::GP),
        }
    }

    fn write_cr(&mut self, cr: u8, value: u64) -> Result<Progress, Exception> {
        let v = self.0;
        match cr {
            0 => {
                let set = control::write_cr0(value).ok_or(Exception::GP)?;
                control_regs::set_task_switched(v, set);
            }
            2 => v.cr2.set(value),
            4 => {
                let chosen = cpu_policy::cr4_choice(v, value);
                v.cr4.set(chosen);
                // SAFETY: the host's bits plus those that the domain's policy let it choose, which are bits that the
                // machine has.
                unsafe { cpu::write_cr4(control_regs::real_cr4(chosen)) };
            }
            3 => return address_space::write_cr3(v, Mfn::containing(MachAddr::new(value))).map_err(|_| Exception::GP),
            _ => return Err(Exception::GP),
        }
        Ok(Progress::Done)
    }

    fn table_selectors(&self) -> (u16, u16) {
        cpu::table_selectors()
    }

    fn clts(&mut self) {
        control_regs::set_task_switched(self.0, false);
    }

    fn read_dr(&mut self, dr: u8) -> Result<u64, Exception> {
        let dr = self.debug_register(dr)?;
        Ok(self.0.debugreg[dr].get())
    }

    fn write_dr(&mut self, dr: u8, value: u64) -> Result<(), Exception> {
        let dr = self.debug_register(dr)?;
        debugreg::store(self.0, dr as u32, value).map_err(|_| Exception::GP)?;
        debugreg::load(self.0);
        Ok(())
    }

    fn rdmsr(&mut self, index: u32) -> Result<u64, Exception> {
        use msr::Read;
        let base = |register| Ok(cpu::rdmsr(register));
        match self.view(|view| msr::read(index, view)) {
            Read::Value(value) => Ok(value),
            Read::FsBase => base(live::IA32_FS_BASE),
            Read::GsBase => base(live::IA32_GS_BASE),
            Read::KernelGsBase => base(live::IA32_KERNEL_GS_BASE),
            Read::Tsc => Ok(cpu::rdtsc()),
            Read::Host { clear, set } => cpu::rdmsr_safe(index).map(|v| v & !clear | set).ok_or(Exception::GP),
            Read::HostOrZero => Ok(cpu::rdmsr_safe(index).unwrap_or(0)),
            Read::Fault => Err(Exception::GP),
        }
    }

    fn wrmsr(&mut self, index: u32, value: u64) -> Result<(), Exception> {
        use msr::Write;
        // SAFETY: the registers exist (the policy offers them); bases are canonical and only the guest's.
        let set = |register, value| unsafe { cpu::wrmsr(register, value) };
        match self.view(|view| msr::write(index, value, view)) {
            Write::Ignore => {}
            Write::FsBase(base) => set(live::IA32_FS_BASE, base),
            Write::GsBase(base) => set(live::IA32_GS_BASE, base),
            Write::KernelGsBase(base) => set(live::IA32_KERNEL_GS_BASE, base),
            Write::TscAux(aux) => {
                self.0.tsc_aux.set(aux.into());
                switch::load_tsc_aux(self.0);
            }
            Write::Ibpb => set(x86::msr::PRED_CMD, 1),
            Write::Fault => return Err(Exception::GP),
        }
        Ok(())
    }

    fn xsetbv(&mut self, index: u32, value: u64) -> Result<(), Exception> {
        let v = self.0;
        if v.cr4.get() & Cr4::OSXSAVE.bits() == 0 {
            return Err(Exception::UD);
        }
        let policy = v.domain().cpu_policy.read();
        let is_ours = |value: &u64| index == 0 && value & !fpu::xcr0_mask() == 0;
        let value = control::write_xcr0(&policy, value).filter(is_ours).ok_or(Exception::GP)?;
        // SAFETY: `control` allows the combination, and the machine has its components: so it has XSAVE, as there is
        // one at least.
        unsafe { v.fpu.write_xcr0(value) };
        Ok(())
    }

    /// A guest cannot make memory incoherent: all its mappings of RAM are write-back, and devices snoop.
    fn wbinvd(&mut self) {}

    fn rdtsc(&mut self) -> Result<(u64, u32), Exception> {
        let v = self.0;
        if v.cr4.get() & Cr4::TSD.bits() != 0 && !v.kernel_mode.get() {
            return Err(Exception::GP);
        }
        Ok((cpu::rdtsc(), v.tsc_aux.get() as u32))
    }

    fn cpuid(&mut self, leaf: u32, subleaf: u32) -> CpuidRegs {
        cpu_policy::lookup(self.0, leaf, subleaf)
    }

    fn segment_base(&self, segment: Segment) -> u64 {
        segment_base(segment)
    }

    fn read(&mut self, addr: u64, out: &mut [u8]) -> Result<(), Exception> {
        copy::from_guest(out, addr).map_err(|_| fault(addr, out.len(), 0))
    }

    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Exception> {
        copy::to_guest(addr, data).map_err(|_| fault(addr, data.len(), PageFaultError::W.bits()))
    }
}

/// The exception of an access to the `len` bytes at `addr` that has just faulted, or was not tried because it would
/// have reached into the hypervisor's range. Whether the page is present is not told; a kernel looks for itself.
#[cold]
fn fault(addr: u64, len: usize, error_code: u32) -> Exception {
    if !copy::is_guest_range(addr, len as u64) {
        return Exception::page_fault(addr, error_code);
    }
    if !is_canonical(addr) {
        return Exception::GP;
    }
    // The bytes may lie in two pages, of which the second one faulted.
    let cr2 = cpu::read_cr2();
    let within = cr2.wrapping_sub(addr) < len as u64;
    Exception::page_fault(if within { cr2 } else { addr }, error_code)
}

impl Guest<'_> {
    /// DR4 and DR5 are DR6 and DR7 unless CR4.DE is set; there are no others.
    fn debug_register(&self, dr: u8) -> Result<usize, Exception> {
        match dr {
            0..=3 | 6 | 7 => Ok(dr.into()),
            4 | 5 if self.0.cr4.get() & Cr4::DE.bits() == 0 => Ok(usize::from(dr) + 2),
            _ => Err(Exception::UD),
        }
    }
}

impl Guest<'_> {
    /// Does the guest's I/O bitmap, as it is now, permit `width` ports from `port` on?
    fn bitmap_permits(&self, port: u16, width: u8) -> bool {
        let v = self.0;
        let map = v.io_bitmap.get();
        if u32::from(port) + u32::from(width) > map.nr_ports {
            return false;
        }
        let at = map.address.wrapping_add(u64::from(port / 8));
        // Two bytes always, as the processor reads its own map: there must be one behind the last.
        let mut bits = [0; 2];
        let read = mode::in_kernel_space(v, || copy::from_guest(&mut bits, at));
        read.is_ok() && u16::from_le_bytes(bits) >> (port % 8) & ((1 << width) - 1) == 0
    }
}

/// Base of a segment in the running code: in 64-bit mode only FS and GS have one, and 32-bit code is flat.
#[inline]
pub fn segment_base(segment: Segment) -> u64 {
    let register = match segment {
        Segment::Fs => live::IA32_FS_BASE,
        Segment::Gs => live::IA32_GS_BASE,
        _ => return 0,
    };
    cpu::rdmsr(register)
}

/// The ports of a domain.
struct DomainPorts<'a>(&'a IoSpace);

impl Ports for DomainPorts<'_> {
    #[inline]
    fn owns(&self, port: u16, width: u8) -> bool {
        self.0.allows_ports(port, width)
    }

    #[inline]
    fn read(&mut self, port: u16, width: u8) -> u32 {
        match width {
            1 => port::inb(port).into(),
            2 => port::inw(port).into(),
            _ => port::inl(port),
        }
    }

    #[inline]
    fn write(&mut self, port: u16, width: u8, value: u32) {
        // SAFETY: as `Ports::write` says, the clock's port or one that the domain `owns`: a device of its own, which
        // reaches what the IOMMU lets it reach; where there is none, whoever gave the domain the port trusts it with
        // the machine.
        unsafe {
            match width {
                1 => port::outb(port, value as u8),
                2 => port::outw(port, value as u16),
                _ => port::outl(port, value),
            }
        }
    }

    fn read_string(&mut self, port: u16, width: u8, data: &mut [u8]) {
        port::ins(port, width, data);
    }

    fn write_string(&mut self, port: u16, width: u8, data: &[u8]) {
        // SAFETY: as for `write`.
        unsafe { port::outs(port, width, data) };
    }
}

/// Configuration space of segment 0.
struct PciConfig;

impl PciConfig {
    fn place(address: ConfigAddress) -> pci::Sbdf {
        pci::Sbdf::new(0, address.bus, address.devfn)
    }
}

impl ConfigSpace for PciConfig {
    fn read(&mut self, address: ConfigAddress, width: u8) -> u32 {
        pci::read(Self::place(address), address.offset, pci::Width::of(width))
    }

    fn write(&mut self, address: ConfigAddress, width: u8, value: u32) {
        mmio_ro::write_config(Self::place(address), address.offset, width, value.into());
    }
}
