//! `./tandem iso`: a disc image that GRUB boots by Multiboot 2, from a BIOS or from UEFI, with the hypervisor, Debian's
//! kernel and the initramfs.

use crate::options::Options;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::host;
use testbed::images;
use testbed::machine::{Hypervisor, Machine};
use testbed::progress::step;

pub fn run(options: &Options) -> Result<()> {
    let images = images::basic()?;
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    let out = host::target("")?.join("tandem.iso");
    let mut machine = Machine::new("iso", &hypervisor, &images, 1, "shell");
    machine.hypervisor_args = "loglvl=all".into();
    build(&out, &machine, Screen::Serial)?;
    println!("{}", crate::run::relative(&out));
    Ok(())
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// To the serial line: the loader's, the hypervisor's and dom0's, the last by way of the hypervisor.
    Serial,
    /// To the screen, as if there were no serial line: nobody is told anything about consoles.
    Only,
    /// The same, in a BIOS's text mode; otherwise the loader sets up a frame buffer.
    Text,
}

/// Makes `out`, which boots what `machine` would boot without a disc.
pub fn build(out: &Path, machine: &Machine, screen: Screen) -> Result<()> {
    host::provide(host::For::Iso)?;
    let Hypervisor::Elf(elf) = &machine.hypervisor else { bail!("an ISO needs a hypervisor") };
    let name = out.file_stem().context("the disc has no name")?.to_string_lossy().into_owned();
    step("making the ISO image", || {
        let tree: PathBuf = host::target("images/iso")?.join(name);
        if tree.exists() {
            std::fs::remove_dir_all(&tree)?;
        }
        std::fs::create_dir_all(tree.join("boot/grub"))?;
        std::fs::copy(elf, tree.join("boot/hypervisor.elf"))?;
        for (file, name) in [(&machine.kernel, "vmlinuz"), (&machine.initramfs, "initramfs")] {
            if let Some(file) = file {
                std::fs::copy(file, tree.join("boot").join(name))?;
            }
        }
        std::fs::write(tree.join("boot/grub/grub.cfg"), menu(machine, screen))?;
        host::run(Command::new("grub-mkrescue").arg("-o").arg(out).arg(&tree))
    })
}

fn menu(machine: &Machine, screen: Screen) -> String {
    let (terminal, console, kernel_console) = match screen {
        Screen::Serial => {
            ("serial --unit=0 --speed=115200\nterminal_output serial\n", "console=com1 ", "console=hvc0 ")
        }
        Screen::Only | Screen::Text => ("", "", ""),
    };
    let mut lines = format!("\tmultiboot2 /boot/hypervisor.elf {console}{}\n", machine.hypervisor_args);
    if machine.kernel.is_some() {
        lines += &format!("\tmodule2 /boot/vmlinuz {kernel_console}{}\n", machine.kernel_args);
    }
    if machine.initramfs.is_some() {
        lines += "\tmodule2 --nounzip /boot/initramfs\n";
    }
    if screen == Screen::Text {
        // Last, because the loader sets it to what the hypervisor's header asks for.
        lines += "\tset gfxpayload=text\n";
    }
    format!("set timeout=1\ninsmod all_video\n{terminal}menuentry \"Tandem and Debian\" {{\n{lines}}}\n")
}
