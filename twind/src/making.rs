//! From the running kernel to a twin of one of its drivers.

use crate::device::{Device, Load};
use crate::interface::Interface;
use crate::kernel::Running;
use std::time::Instant;
use twin_abi::op::{MODE_MIRROR, MODE_STLB};
use twin_kernel::btf::Btf;
use twin_kernel::driver::{self, Live};
use twin_kernel::{image, net, path, LiveKernel};
use twin_rewrite::module::Module;
use twin_rewrite::options::{Mode, Options};
use twin_rewrite::rewrite::Output;
use twin_runtime::linux::lock::Sleepers;
use twin_runtime::linux::offsets::{NEEDED, SIZED};
use twin_runtime::linux::Routine;

/// Bits of an address that the hypervisor's mirror keeps.
const MASK_BITS: u32 = 47;
/// Buffers of a kind that are lent beside what lies in the card's rings.
const BUFFERS: u32 = 512;
/// Pages for what does not fit into a buffer, of packets to send: of these a whole one needs 16.
const PAGES: u32 = 512;

/// What was found in the running kernel.
pub struct Found {
    /// The kernel.
    pub kernel: Running,
    /// The driver's objects.
    pub live: Live,
    /// Its text.
    pub module: Module,
    /// The modules of which it is.
    names: Vec<String>,
    /// How its twin translates addresses.
    mode: Mode,
    /// Places of members of the kernel's structures, as the hypervisor wants them.
    offsets: Vec<u32>,
}

impl Found {
    /// The driver's modules are where they were, and their text is the same. Errors: in words, if they are not.
    fn is_as_found(&self) -> Result<(), String> {
        self.names.iter().try_for_each(|name| self.kernel.check_place(name))?;
        driver::check_same(&self.kernel, &self.module)
    }
}

/// Finds the driver of the interface, for a twin of this mode. Errors: in words.
pub fn find(interface: &Interface, mode: Mode) -> Result<Found, String> {
    let mut kernel = Running::open()?;
    let types = net::types(&kernel)?;
    let live = driver::live_of(&kernel, &types, &interface.name, &interface.interrupts())?;
    let names: Vec<String> = driver::modules_of(&kernel, &path::entries(&live))?.into_iter().map(Into::into).collect();
    for name in &names {
        kernel.look_up(name)?;
    }
    let module = driver::modules(&kernel, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let offsets = offsets(&types)?;
    Ok(Found { kernel, live, module, names, mode, offsets })
}

/// Makes the twin of the driver that was found. Errors: in words.
pub fn make(found: &Found, interface: &str) -> Result<Output, String> {
    let begun = Instant::now();
    let output = image::make(&found.module, &options(found.mode))?;
    check_path(found, &output)?;
    // Making it has taken a while, in which somebody may have loaded the driver anew.
    found.is_as_found()?;
    println!("twind: {} of {interface}: {}", found.module.name, told(&output, begun));
    Ok(output)
}

/// What was made, since then.
fn told(output: &Output, begun: Instant) -> String {
    let (functions, bytes) = (output.functions - output.refused.len(), output.image.len());
    format!("{functions} functions, {bytes} bytes of image, {} ms", begun.elapsed().as_millis())
}

/// Nothing that could not be rewritten is on the way of packets; and where they are sent nothing that would end the
/// twin.
fn check_path(found: &Found, output: &Output) -> Result<(), String> {
    let module = &found.module;
    if let Some(lent) = path::lent(module, &[found.live.net.start_xmit]).first() {
        return Err(format!(
            "{} is on the way of packets and lends a variable to {}, which the domain would do for the twin, and the domain does not reach it: {}",
            lent.function,
            lent.import,
            module.describe(lent.address)
        ));
    }
    if output.refused.is_empty() {
        return Ok(());
    }
    let reached = path::reached(module, &path::entries(&found.live));
    match output.refused.iter().find(|refused| path::is_among(module, refused, &reached)) {
        None => Ok(()),
        Some(refused) => Err(format!(
            "{} is on the way of packets and cannot be rewritten: {}: {}",
            refused.function,
            module.describe(refused.address),
            refused.reason
        )),
    }
}

/// A twin that was made before the interface was there.
pub struct Ahead {
    kernel: Running,
    types: Btf,
    module: Module,
    /// The driver's modules.
    names: Vec<String>,
    mode: Mode,
    output: Output,
}

impl Ahead {
    /// Makes the twin of a driver that these modules are, which are loaded. Errors: in words.
    pub fn of(names: &[String], mode: Mode) -> Result<Self, String> {
        let begun = Instant::now();
        let mut kernel = Running::open()?;
        let types = net::types(&kernel)?;
        for name in names {
            kernel.look_up(name)?;
        }
        let module = driver::modules(&kernel, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let output = image::make(&module, &options(mode))?;
        println!("twind: {}, before its interface is there: {}", module.name, told(&output, begun));
        Ok(Self { kernel, types, module, names: names.to_vec(), mode, output })
    }

    /// How the twin translates addresses.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Finds the driver of the interface, and that it is this one and the same as then. Errors: in words.
    pub fn find(self, interface: &Interface) -> Result<(Found, Output), String> {
        for name in &self.names {
            self.kernel.check_place(name)?;
        }
        let live = driver::live_of(&self.kernel, &self.types, &interface.name, &interface.interrupts())?;
        let entries = path::entries(&live);
        let names = driver::modules_of(&self.kernel, &entries)?;
        if names.len() != self.names.len() || names.iter().any(|name| self.names.iter().all(|own| own != name)) {
            return Err(format!("{} is driven by {}", interface.name, names.join(", ")));
        }
        driver::check_same(&self.kernel, &self.module)?;
        let offsets = offsets(&self.types)?;
        let found =
            Found { kernel: self.kernel, live, module: self.module, names: self.names, mode: self.mode, offsets };
        check_path(&found, &self.output)?;
        Ok((found, self.output))
    }
}

/// How twins of this mode are made for the hypervisor on this processor.
pub fn options(mode: Mode) -> Options {
    Options { mask_bits: MASK_BITS, bmi: has_bmi(), ..Options::new(mode) }
}

/// The processor has BMI1 and BMI2, and all that run this domain as well.
fn has_bmi() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = text.lines().filter(|line| line.starts_with("flags")).peekable();
    let has = |line: &str, flag| line.split_whitespace().any(|word| word == flag);
    flags.peek().is_some() && flags.all(|line| has(line, "bmi1") && has(line, "bmi2"))
}

/// Places of members and sizes, in the order in which the hypervisor wants them.
fn offsets(types: &Btf) -> Result<Vec<u32>, String> {
    let members = NEEDED.iter().map(|(structure, member)| types.offset(structure, member));
    let sizes = SIZED.iter().map(|structure| types.size(structure));
    let narrow = |place: u64| u32::try_from(place).map_err(|e| e.to_string());
    members.chain(sizes).map(|place| narrow(place?)).collect()
}

/// Buffers to lend: for packets to send, for the driver to build received ones around its own, and to receive into or
/// to send what is longer. What the driver never asks for is not lent.
fn buffers(imports: &[(String, u64)]) -> [u32; 3] {
    let imports = |routine| imports.iter().any(|(name, _)| Routine::by_name(name) == Some(routine));
    let count = |is_wanted: bool| if is_wanted { BUFFERS } else { 0 };
    [BUFFERS, count(imports(Routine::BuildSkb)), count(imports(Routine::AllocFragment)) + PAGES]
}

/// Loads this image, of a twin of the driver that was found and that imports these functions, and lends it buffers.
/// Errors: in words.
pub fn load_image(
    device: &mut Device,
    interface: &str,
    found: &Found,
    image: &[u8],
    imports: &[(String, u64)],
) -> Result<(), String> {
    let root = found.kernel.symbol("init_top_pgt").ok_or("the kernel has no symbol init_top_pgt")?;
    let Sleepers { table, count, stride } = found.live.kernel.sleepers;
    let load = Load {
        interface,
        root,
        mode: if found.mode == Mode::Mirror { MODE_MIRROR } else { MODE_STLB },
        offsets: &found.offsets,
        image,
        sleepers: (table, count, stride),
        buffers: buffers(imports),
    };
    device.load(&load)
}
