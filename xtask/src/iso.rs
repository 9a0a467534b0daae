//! `./tandem iso`: a disc image that GRUB boots by Multiboot 2, with the hypervisor, Debian's kernel and the initramfs.

use crate::options::Options;
use anyhow::{bail, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::host;
use testbed::images::{self, Images};
use testbed::machine::Hypervisor;
use testbed::progress::step;

pub fn run(options: &Options) -> Result<()> {
    let images = images::basic()?;
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    let out = host::target("")?.join("tandem.iso");
    build(&out, &hypervisor, &images, "loglvl=all", "shell")?;
    println!("{}", crate::account::relative(&out));
    Ok(())
}

/// Makes `out`, which boots `hypervisor` with its `args`, and dom0 to do `jobs`. Messages go to the serial line.
pub fn build(out: &Path, hypervisor: &Hypervisor, images: &Images, args: &str, jobs: &str) -> Result<()> {
    host::provide(host::For::Iso)?;
    let Hypervisor::Elf(elf) = hypervisor else { bail!("an ISO needs a hypervisor") };
    step("making the ISO image", || {
        let tree: PathBuf = host::target("images/iso")?;
        std::fs::create_dir_all(tree.join("boot/grub"))?;
        std::fs::copy(elf, tree.join("boot/hypervisor.elf"))?;
        std::fs::copy(&images.kernel, tree.join("boot/vmlinuz"))?;
        std::fs::copy(&images.initramfs, tree.join("boot/initramfs"))?;
        std::fs::write(tree.join("boot/grub/grub.cfg"), menu(args, jobs))?;
        host::run(Command::new("grub-mkrescue").arg("-o").arg(out).arg(&tree))
    })
}

fn menu(args: &str, jobs: &str) -> String {
    format!(
        "set timeout=1\n\
         serial --unit=0 --speed=115200\n\
         terminal_output serial\n\
         menuentry \"Tandem and Debian\" {{\n\
         \tmultiboot2 /boot/hypervisor.elf console=com1 {args}\n\
         \tmodule2 /boot/vmlinuz console=hvc0 panic=1 tandem.do={jobs}\n\
         \tmodule2 --nounzip /boot/initramfs\n\
         }}\n"
    )
}
