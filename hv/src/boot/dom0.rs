//! Domain 0: from the boot modules to a vCPU that is about to execute its first instruction.
//!
//! The kernel is unpacked into the top of the very chunk of memory that becomes the domain's first frames, and its
//! segments are moved down into place: one buffer, one pass. If the plan turns out to need another chunk, they are
//! copied.

mod memory;

use crate::boot::{Module, Options};
use crate::cpu::percpu::this_cpu;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::vcpu::stop;
use crate::domain::{self, life, Domain};
use crate::pv::context;
use crate::{info, sched};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::Ordering;
use hv_core::mmu::MmuError;
use kernel_image::builder::{build, Start, StartOfDay};
use kernel_image::Request;
use memory::{DirectMap, LoadedKernel};
use x86::{Level, Mfn};
use xen_abi::assist;
use xen_abi::dom0::VgaConsoleInfo;
use xen_abi::layout::{DomId, FLAT_RING3_CS64, FLAT_RING3_SS64};
use xen_abi::regs::CpuUserRegs;
use xen_abi::trap::{TrapInfo, VcpuGuestContext, VGCF_IN_KERNEL, VGCF_ONLINE};

/// Its number.
const DOM0: DomId = DomId(0);
/// Frames that stay the hypervisor's whatever `dom0_mem=` says: 16 MiB.
const RESERVE_FRAMES: u64 = 4096;

/// What its limit says when there is none: XENMEM_maximum_reservation has 32 bits in Xen.
const UNLIMITED: u64 = 0xffff_ffff;

/// Why domain 0 cannot be built. `Display` is one line.
enum Failure {
    /// The kernel, or the plan.
    Image(kernel_image::Error),
    /// There is no contiguous memory of this order.
    NoChunk { order: u32 },
    /// Memory ran out.
    OutOfMemory(&'static str),
    /// The finished page tables were refused.
    Mmu(MmuError),
    /// The first vCPU's state was refused.
    Context(xen_abi::errno::Errno),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::NoChunk { order } => write!(f, "no {} MiB of contiguous memory for its start", (1u64 << order) >> 8),
            Self::OutOfMemory(what) => write!(f, "out of memory for {what}"),
            Self::Mmu(error) => write!(f, "its page tables are refused: {error:?}"),
            Self::Context(error) => write!(f, "its first vCPU is refused: {error:?}"),
        }
    }
}

impl From<kernel_image::Error> for Failure {
    fn from(error: kernel_image::Error) -> Self {
        Self::Image(error)
    }
}

/// Builds domain 0 from the modules: the kernel, and its initrd if there is a second one. Its first vCPU is ready to
/// run. Stops the machine with one clear line if that is impossible: there is nothing to do without it.
pub fn start(
    options: &Options,
    modules: &mut alloc::vec::Vec<Module>,
    console: Option<VgaConsoleInfo>,
    nr_cpus: u32,
) -> Arc<Domain> {
    if modules.is_empty() {
        panic!("no kernel for domain 0: pass it to the boot loader as the first module");
    }
    if options.dom0_mem.is_inverted() {
        panic!("cannot build domain 0: the minimum in dom0_mem= is above its maximum");
    }
    let kernel = modules.remove(0);
    let initrd = (!modules.is_empty()).then(|| modules.remove(0));
    match construct(options, kernel, initrd, console, nr_cpus) {
        Ok(domain) => domain,
        Err(failure) => panic!("cannot build domain 0: {failure}"),
    }
}

fn construct(
    options: &Options,
    kernel: Module,
    initrd: Option<Module>,
    console: Option<VgaConsoleInfo>,
    nr_cpus: u32,
) -> Result<Arc<Domain>, Failure> {
    info!("*** Building domain 0 ***");
    let initrd_frames = initrd.as_ref().map_or(0, |initrd| {
        let (start, end) = initrd.frames();
        end.raw() - start.raw()
    });
    let available = (crate::mem::frames::free_count() + initrd_frames).saturating_sub(RESERVE_FRAMES);
    let nr_pages = options.dom0_mem.pages(available);
    let (least, most) = options.dom0_max_vcpus.unwrap_or((1, u32::MAX));
    let nr_vcpus = nr_cpus.clamp(least, most.max(least)).clamp(1, domain::MAX_VCPUS);

    let cmd_line = kernel.command_line.clone();
    let request = Request {
        nr_pages,
        initrd_bytes: initrd.as_ref().map_or(0, |initrd| initrd.len_bytes as u64),
        cmd_line: cmd_line.as_bytes(),
    };
    let loaded = LoadedKernel::load(kernel.bytes(), &request)?;
    kernel.release();
    describe(&loaded, initrd.as_ref());

    let domain = Domain::new(DOM0.0, nr_vcpus, true).ok_or(Failure::OutOfMemory("the domain"))?;
    let max_pages = options.dom0_mem.max_pages(available).unwrap_or(UNLIMITED).max(nr_pages);
    domain.mm.set_max_pages(max_pages);
    if loaded.kernel.notes.has_high_root {
        domain.vm_assist.fetch_or(1 << assist::PAE_EXTENDED_CR3, Ordering::Relaxed);
    }
    let start = populate(&domain, &loaded, initrd, &cmd_line, console)?;
    pin_root(&domain, start.root)?;
    start_vcpus(&domain, &start, nr_vcpus)?;
    domain::insert(domain.clone());
    info!("Dom0 has {nr_vcpus} vCPUs and {} MiB", nr_pages >> 8);
    if let Some(vcpu) = domain.vcpu(0) {
        sched::start(vcpu, stop::DOWN);
    }
    Ok(domain)
}

fn describe(loaded: &LoadedKernel, initrd: Option<&Module>) {
    let kernel = &loaded.kernel;
    let paddr = |virt: u64| virt.wrapping_sub(kernel.virt_base);
    info!(" Dom0 kernel: 64-bit, paddr {:#x} -> {:#x}", paddr(kernel.virt.start), paddr(kernel.virt.end));
    if let Some(initrd) = initrd {
        let start = initrd.start.raw();
        info!(" Init. ramdisk: {start:016x}->{:016x}", start + initrd.len_bytes as u64);
    }
    loaded.layout.describe(loaded.chunk.addr().raw(), |line| info!("{line}"));
}

/// Gives the domain all of its memory, writes its contents, and enters it in the machine-to-physical table.
fn populate(
    domain: &Domain,
    loaded: &LoadedKernel,
    initrd: Option<Module>,
    cmd_line: &str,
    console: Option<VgaConsoleInfo>,
) -> Result<Start, Failure> {
    let layout = &loaded.layout;
    let is_mapped = layout.initrd_virt.is_some();
    let own_initrd = initrd.as_ref().filter(|_| !is_mapped);
    let frames = memory::collect(layout, loaded.chunk, own_initrd)?;
    for (first_pfn, extent) in frames.iter() {
        memory::assign(domain, first_pfn, extent)?;
    }
    let start_of_day = StartOfDay {
        shared_info: domain.shared_info,
        cmd_line: cmd_line.as_bytes(),
        console,
        initrd: initrd.as_ref().map_or(&[], Module::bytes),
    };
    let start = build(&loaded.kernel, layout, &frames, &start_of_day, &mut DirectMap)?;
    if let Some(initrd) = initrd {
        // Mapped means copied; otherwise its frames are the domain's now.
        if is_mapped {
            initrd.release();
        }
    }
    Ok(start)
}

/// Makes the tree below `root` page tables, with all checks that a guest's own pin undergoes.
fn pin_root(domain: &Domain, root: Mfn) -> Result<(), Failure> {
    loop {
        this_cpu().allowance.refill();
        match mmu().pin(DOM0, root, Level::L4, &mut domain.mm.lock()) {
            Ok(()) => return Ok(()),
            Err(MmuError::Preempted) => {}
            Err(error) => return Err(Failure::Mmu(error)),
        }
    }
}

/// Makes all vCPUs; the first gets the state of public/xen.h's start of day.
fn start_vcpus(domain: &Domain, start: &Start, nr_vcpus: u32) -> Result<(), Failure> {
    for id in 0..nr_vcpus {
        life::add_vcpu(domain, id).ok_or(Failure::OutOfMemory("a vCPU"))?;
    }
    let vcpu = domain.vcpu(0).ok_or(Failure::OutOfMemory("the first vCPU"))?;
    let vcpu = sched::hold(vcpu).map_err(Failure::Context)?;
    context::set(&vcpu, &initial_context(start)).map_err(Failure::Context)
}

fn initial_context(start: &Start) -> Box<VcpuGuestContext> {
    let user_regs = CpuUserRegs {
        rip: start.rip,
        rsp: start.rsp,
        rsi: start.rsi,
        cs: FLAT_RING3_CS64,
        ss: FLAT_RING3_SS64,
        ..CpuUserRegs::default()
    };
    let mut context = Box::new(VcpuGuestContext {
        fpu_ctxt: [0; 512],
        flags: VGCF_IN_KERNEL | VGCF_ONLINE,
        user_regs,
        trap_ctxt: [TrapInfo::default(); 256],
        ldt_base: 0,
        ldt_ents: 0,
        gdt_frames: [0; 16],
        gdt_ents: 0,
        kernel_ss: FLAT_RING3_SS64.into(),
        kernel_sp: start.rsp,
        ctrlreg: [0; 8],
        debugreg: [0; 8],
        event_callback_eip: 0,
        failsafe_callback_eip: 0,
        syscall_callback_eip: 0,
        vm_assist: 0,
        fs_base: 0,
        gs_base_kernel: 0,
        gs_base_user: 0,
    });
    context.ctrlreg[3] = start.root.addr().raw();
    context.debugreg[6] = x86::rflags::DR6_DEFAULT;
    context.debugreg[7] = x86::rflags::DR7_DEFAULT;
    context
}
