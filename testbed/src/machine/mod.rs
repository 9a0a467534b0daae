//! A virtual machine to boot: what is in it and how QEMU is told so.

pub mod commands;
mod process;
mod qemu;
mod qmp;
mod stuck;

pub use process::{field, Ending, Outcome, Running};
pub use qemu::Qemu;
pub use qmp::Monitor;

use crate::host;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};

/// What runs below Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hypervisor {
    /// An ELF for Multiboot 1: Tandem or stock Xen.
    Elf(PathBuf),
    /// Linux on the bare machine.
    None,
}

impl Hypervisor {
    /// From `--hypervisor`: a path, `xen`, `none`, or by default Tandem's image.
    pub fn choose(option: Option<&str>) -> Result<Self> {
        match option {
            Some("none") => Ok(Self::None),
            Some("xen") => Ok(Self::Elf(crate::images::packages::stock_xen()?)),
            Some(path) if Path::new(path).is_file() => Ok(Self::Elf(PathBuf::from(path))),
            Some(path) => bail!("no hypervisor at {path}"),
            None => {
                crate::host::provide(crate::host::For::Hypervisor)?;
                crate::progress::step("building the hypervisor", crate::build::build).map(Self::Elf)
            }
        }
    }

    /// A short name for logs and tables: the ELF's, or `native`.
    pub fn name(&self) -> String {
        match self {
            Self::None => "native".into(),
            Self::Elf(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// Whether this is Debian's Xen.
    pub fn is_stock_xen(&self) -> bool {
        matches!(self, Self::Elf(_)) && self.name().starts_with("xen")
    }
}

/// QEMU's VT-d with interrupt remapping, for [`Machine::devices`]; it is in the chipset q35 only.
pub const IOMMU: &str = "intel-iommu,intremap=on";
/// QEMU's AMD-Vi, likewise. It says nothing of accesses to where nothing is mapped. Without `pt=off` that of QEMU 9.2
/// to 10.0 translates nothing, and the I/O APIC's interrupts are lost: native Linux stops with "timer doesn't work"
/// there.
pub const AMD_VI: &str = "amd-iommu,intremap=on,pt=off";

/// The devices of QEMU's that make a driver bind of which a snapshot is taken, by the driver's name.
pub const DEVICES: &[(&str, &str)] = &[
    ("e1000", "e1000"),
    ("e1000e", "e1000e"),
    ("8139cp", "rtl8139"),
    ("vmxnet3", "vmxnet3"),
    ("virtio_net", "virtio-net-pci"),
];

/// The device that is called so: `vtd` or `amd-vi`; `None` for `none`.
pub fn iommu_named(name: &str) -> Result<Option<&'static str>> {
    match name {
        "vtd" => Ok(Some(IOMMU)),
        "amd-vi" => Ok(Some(AMD_VI)),
        "none" => Ok(None),
        _ => bail!("there is no IOMMU `{name}`: vtd, amd-vi or none"),
    }
}

/// A disk of the machine.
#[derive(Clone, Debug)]
pub struct Disk {
    /// QEMU's device: `nvme`, `ahci` or `virtio-blk-pci`.
    pub device: &'static str,
    /// Its contents.
    pub file: PathBuf,
    /// Whether writes reach the file; if not they are lost at the end.
    pub writable: bool,
}

/// A machine and what it boots.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Names the log file.
    pub name: String,
    /// What runs below Linux.
    pub hypervisor: Hypervisor,
    /// Options of the hypervisor, after `console=com1`.
    pub hypervisor_args: String,
    /// The kernel and the initramfs; either may be left out to see how that is refused.
    pub kernel: Option<PathBuf>,
    /// A disc to boot from instead; it brings hypervisor, kernel and options itself.
    pub iso: Option<PathBuf>,
    /// Its firmware is UEFI, with variables of its own, instead of a BIOS.
    pub uefi: bool,
    /// See `kernel`.
    pub initramfs: Option<PathBuf>,
    /// Options of dom0's kernel, after its console.
    pub kernel_args: String,
    /// QEMU's machine: `pc`, or `q35`, which can have an IOMMU.
    pub chipset: &'static str,
    /// Processors.
    pub cpus: u32,
    /// RAM in mebibytes.
    pub memory_mib: u32,
    /// `-cpu`; QEMU's default when `None`.
    pub cpu_model: Option<String>,
    /// QEMU's NIC device; it is connected to the traffic peer at `peer`.
    pub nic: Option<(&'static str, PathBuf)>,
    /// Another one, with a peer of its own.
    pub second_nic: Option<(&'static str, PathBuf)>,
    /// In the order in which the guest finds them.
    pub disks: Vec<Disk>,
    /// QEMU's further devices, as after `-device`; those of the chipset (an IOMMU) come first.
    pub devices: Vec<&'static str>,
    /// `-accel tcg` and more, such as `-icount` or `-plugin`.
    pub accel: Vec<String>,
    /// Seconds after which it is stopped.
    pub timeout_s: u64,
    /// The QEMU that it runs in.
    pub qemu: Qemu,
    /// QEMU says what drivers ask of its devices that makes no sense ([`Running::errors`]), and of commands of AHCI
    /// what they were ([`commands`]).
    pub tells_misuse: bool,
    /// It waits for gdb at [`GDB`] before its first instruction.
    pub waits_for_gdb: bool,
}

/// Where a machine waits for gdb.
pub const GDB: &str = "localhost:1234";

impl Machine {
    /// A machine as most tests want it: dom0 with `cpus` CPUs does `jobs`.
    pub fn new(name: &str, hypervisor: &Hypervisor, images: &crate::images::Images, cpus: u32, jobs: &str) -> Self {
        Self {
            name: name.into(),
            hypervisor: hypervisor.clone(),
            hypervisor_args: format!("dom0_mem=768M,max:768M dom0_max_vcpus={cpus} loglvl=all"),
            kernel: Some(images.kernel.clone()),
            iso: None,
            uefi: false,
            initramfs: Some(images.initramfs.clone()),
            kernel_args: format!("panic=1 tandem.do={jobs}"),
            chipset: "pc",
            cpus,
            memory_mib: 1024,
            cpu_model: None,
            nic: None,
            second_nic: None,
            disks: Vec::new(),
            devices: Vec::new(),
            accel: vec!["-accel".into(), "tcg".into()],
            timeout_s: 300,
            qemu: Qemu::chosen(),
            tells_misuse: false,
            waits_for_gdb: false,
        }
    }

    /// A machine with room for guests beside dom0, which has the toolstack's image.
    pub fn with_guests(
        name: &str,
        hypervisor: &Hypervisor,
        images: &crate::images::Images,
        cpus: u32,
        jobs: &str,
    ) -> Self {
        let mut machine = Self::new(name, hypervisor, images, cpus, jobs);
        machine.hypervisor_args = format!("dom0_mem=1024M,max:1024M dom0_max_vcpus={cpus} loglvl=all");
        machine.memory_mib = 3072;
        machine
    }

    /// Linux, and guests that dom0 configures by `images/xen/lib.sh`, keep every packet until it can be sent. What
    /// Debian's Linux has by default, fq_codel, drops packets that have waited for long, as all do while the host is
    /// slow.
    pub fn keep_packets(&mut self) {
        self.kernel_args.insert_str(0, "sysctl.net.core.default_qdisc=pfifo_fast ");
    }

    /// It waits for gdb, and may then be looked at for a day.
    pub fn wait_for_gdb(&mut self) {
        (self.waits_for_gdb, self.timeout_s) = (true, 24 * 3600);
    }

    /// Debian's Xen 4.17 hangs while it starts the second CPU of QEMU's q35.
    fn nr_cpus(&self) -> u32 {
        if self.hypervisor.is_stock_xen() && self.chipset == "q35" {
            1
        } else {
            self.cpus
        }
    }

    /// QEMU's arguments, except those for the control socket.
    pub fn arguments(&self) -> Result<Vec<String>> {
        let mut args: Vec<String> = self.accel.clone();
        let mut add = |words: &[&str]| args.extend(words.iter().map(ToString::to_string));
        add(&["-machine", self.chipset, "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        add(&["-smp", &self.nr_cpus().to_string(), "-m", &self.memory_mib.to_string()]);
        if let Some(mut model) = self.qemu.processor(self.cpu_model.as_deref()) {
            // While it counts instructions, version 10 ends with "Bad icount read" where an x2APIC is used.
            if self.qemu == Qemu::Ten && self.accel.iter().any(|word| word == "-icount") {
                model += ",-x2apic";
            }
            add(&["-cpu", &model]);
        }
        if self.waits_for_gdb {
            add(&["-gdb", &format!("tcp:{GDB}"), "-S"]);
        }
        if self.tells_misuse {
            add(&["-d", "guest_errors", "-trace", commands::EVENT]);
        }
        for device in &self.devices {
            add(&["-device", device]);
        }
        for (id, mac, nic) in
            [("net0", "52:54:00:74:61:6e", &self.nic), ("net1", "52:54:00:74:61:6f", &self.second_nic)]
        {
            let Some((device, socket)) = nic else { continue };
            add(&["-netdev", &format!("stream,id={id},server=off,addr.type=unix,addr.path={}", text(socket)?)]);
            add(&["-device", &format!("{device},netdev={id},mac={mac},romfile=")]);
        }
        for (n, disk) in self.disks.iter().enumerate() {
            let snapshot = if disk.writable { "off" } else { "on" };
            let file = text(&disk.file)?;
            add(&["-drive", &format!("if=none,id=disk{n},file={file},format=raw,cache=unsafe,snapshot={snapshot}")]);
            match disk.device {
                "nvme" => add(&["-device", &format!("nvme,drive=disk{n},serial=tandem{n}")]),
                "ahci" => {
                    add(&["-device", &format!("ich9-ahci,id=ahci{n}")]);
                    add(&["-device", &format!("ide-hd,bus=ahci{n}.0,drive=disk{n}")]);
                }
                other => add(&["-device", &format!("{other},drive=disk{n}")]),
            }
        }
        self.boot_arguments(&mut args)?;
        Ok(args)
    }

    fn boot_arguments(&self, args: &mut Vec<String>) -> Result<()> {
        let mut add = |words: &[&str]| args.extend(words.iter().map(ToString::to_string));
        if self.uefi {
            let variables = host::target("images")?.join(format!("{}.variables", self.name));
            std::fs::copy("/usr/share/OVMF/OVMF_VARS_4M.fd", &variables)?;
            add(&["-drive", "if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd"]);
            add(&["-drive", &format!("if=pflash,format=raw,file={}", text(&variables)?)]);
        }
        if let Some(iso) = &self.iso {
            add(&["-boot", "d", "-cdrom", text(iso)?]);
            return Ok(());
        }
        match &self.hypervisor {
            Hypervisor::None => {
                add(&["-kernel", text(self.kernel.as_ref().context("a native machine needs a kernel")?)?]);
                if let Some(initramfs) = &self.initramfs {
                    add(&["-initrd", text(initramfs)?]);
                }
                add(&["-append", &format!("console=ttyS0 {}", self.kernel_args)]);
            }
            Hypervisor::Elf(elf) => {
                // Where there is SMAP, Tandem looks whether it leaves guest memory open.
                let check = if self.qemu == Qemu::Ten && !self.hypervisor.is_stock_xen() { " ac-check" } else { "" };
                add(&["-kernel", text(elf)?, "-append", &format!("console=com1 {}{check}", self.hypervisor_args)]);
                // QEMU separates modules by commas, so a kernel's arguments cannot have any.
                anyhow::ensure!(!self.kernel_args.contains(','), "a comma in dom0's command line");
                let mut modules = Vec::new();
                if let Some(kernel) = &self.kernel {
                    modules.push(format!("{} console=hvc0 {}", text(kernel)?, self.kernel_args));
                }
                if let Some(initramfs) = &self.initramfs {
                    modules.push(text(initramfs)?.to_string());
                }
                if !modules.is_empty() {
                    add(&["-initrd", &modules.join(",")]);
                }
            }
        }
        Ok(())
    }

    /// Starts it; the serial console goes to `target/logs/NAME.log`.
    pub fn start(&self) -> Result<Running> {
        Running::start(self)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not a name QEMU can be given", path.display()))
}
