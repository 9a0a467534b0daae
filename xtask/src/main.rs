//! The project's own build, image, test and bench commands: one file per subcommand.
//!
//! `./tandem COMMAND` is `cargo xtask COMMAND` after a check that there is a cargo at all.

mod abi;
mod bench;
#[cfg(test)]
mod docs;
mod floors;
mod fuzz;
mod guests;
mod iso;
mod mutants;
mod options;
mod run;
mod screens;
mod shell;
mod size;
mod suite;
mod twin;

use anyhow::Result;
use options::Options;
use std::ffi::OsString;
use std::process::ExitCode;
use testbed::{build, cli, host, images};

const HELP: &str = "\
usage: ./tandem COMMAND [OPTIONS]

  run                  boot the hypervisor with Debian as dom0 in QEMU and show that it works; PASS or FAIL
  test [LEVEL [NAME]]  tests; LEVEL is unit, twin, boot, guests, linux or xl; NAME selects by part of a name;
                       test xl --table runs on stock Xen too and writes docs/toolstack-checks.md; --operations N and --seed N are for
                       tests of many deaths, faults and hostile domains (of a-busy-*: so many seconds)
  shell                a console in dom0; with --toolstack one that has xl and images of guests
  build                the hypervisor's ELF image, target/tandem.elf
  bench boot|lmbench   instruction counts beside stock Xen and native Linux
  bench memory         RAM that the hypervisor keeps, beside stock Xen
  bench net|disk       instructions for a packet, page or request in dom0 and in a guest, by component; --operations N
                       (`bench disk vm`: only through a driver domain, with a device channel and without it)
  bench files          the same for C files that are compiled on a disk and for files there that are written and read; `vm` as above
  bench twin-net       the same for packets that go through the hypervisor's switch, with a driver domain or its driver's twin
                       (`bench twin-net mirror`: only through the twin; `stlb`: through twins of both modes;
                       `vm`: through a driver domain, with the switch and without it)
  bench scaling        packets of 1 to 8 guests through a twin on 1, 2 and 4 CPUs: instructions each, packets in a time, waiting for locks
                       (`bench scaling 2`: on two CPUs); --operations N for each guest
  bench drivers        memory of small driver domains and how much of it they work in, and what 1 to 8 of them execute while they are idle
  bench restart        driver domains die in a row and come back: what guests lose; words choose drivers, ways and causes;
                       --operations N deaths by each cause
  capture DRIVER       a snapshot of the live driver, taken once
  twin DRIVER          rewrite the driver, verify it, report; --mode stlb|mirror
  equivalence DRIVER   original and twin on generated cases; --count N
  traffic DRIVER       packets through the twin on this processor; --count N
  faults DRIVER        fault injection; --class text|data|code|image --count N --seed S --from N
  show DRIVER FUNCTION one function of the driver before and after
                       these five of a twin also take --mode, --no-bmi, --counted, --reuse access|block|flow: docs/twin.md
  bench twin           instructions and cycles of twins: target/bench/twin.csv and plots
  guests [NAME]        the tiny PV kernels under guests/, a verdict for each; --table writes docs/test-guests.md;
                       --operations N, --seed N and --vcpus N are for random-* and hostile-*; --iommu vtd|amd-vi|none
  fuzz [NAME]          fuzz targets, a minute each or --seconds N
  mutants [NAME]       each rule of the twin's verifier made wrong, one at a time: does a test notice?
  size                 lines of code and unsafe blocks of the trusted part; lines of glue for stock drivers
  floors               which files of the hypervisor name higher floors, and which form circles
  iso                  a bootable ISO image with GRUB
  screens [NAME]       pictures of a machine's screen while it boots, and stock Xen's beside them: docs/screens
  abi                  docs/abi.md, made from the hypercall table
  images               only build or fetch what boots; --full: what the long tests need, too

options:
  --hypervisor ELF|xen|none   boot this instead of target/tandem.elf (xen: Debian's Xen 4.17; none: native Linux);
                              if nothing is said, what the environment has as TANDEM_HYPERVISOR
  --qemu 7.2|10               run machines in the QEMU that is installed (Debian 12: 7.2), or in version 10 from Debian's
                              backports, with every processor feature that it has, SMEP, SMAP and UMIP among them
  --cpus N                    CPUs of the machine (run, shell)
  --jobs N                    test: boot tests side by side; by default one for each CPU and 4 GiB of free memory, at most 4
  --turn N                    test: of the tests that take turns, those of this turn (1 to 4); if nothing is said the commit chooses
  --mib N                     data per device and direction in mebibytes
  --seconds N                 how long to fuzz each target, or to run each of stress-ng's stressors
  --full                      the long tests: 1 GiB per device, stress-ng, xz, gcc
  --lint                      test: formatting and clippy's remarks, on the hypervisor too, count as failures
  --list                      only name the tests (test, guests, fuzz, mutants, screens)
  -v                          run: show the serial console meanwhile
  --gdb                       run, shell: wait for gdb before the first instruction
";

fn dispatch(options: &Options) -> Result<bool> {
    options.fit()?;
    if let Some(qemu) = options.qemu {
        anyhow::ensure!(
            options.command != "bench",
            "--qemu is not for the bench, whose plugins are made for one version"
        );
        qemu.choose();
    }
    match options.command.as_str() {
        "run" => run::run(options),
        "test" => suite::run(options),
        "shell" => shell::run(options).map(|()| true),
        "images" => prepare(options).map(|()| true),
        "build" => {
            host::provide(host::For::Hypervisor)?;
            build::build().map(|path| println!("{}", run::relative(&path))).map(|()| true)
        }
        "bench" => bench::run(options),
        "abi" => abi::run(false),
        "fuzz" => fuzz::run(options).map(|()| true),
        "guests" => guests::run(options),
        "mutants" => mutants::run(options),
        "iso" => iso::run(options).map(|()| true),
        "screens" => screens::run(options).map(|()| true),
        "size" => size::run().map(|()| true),
        "floors" => floors::run().map(|()| true),
        "help" | "" => {
            print!("{HELP}");
            Ok(true)
        }
        other => match cli::meant(other, commands()) {
            Some(meant) => anyhow::bail!("unknown command `{other}`; did you mean {meant}?"),
            None => anyhow::bail!("unknown command `{other}`; ./tandem help lists them"),
        },
    }
}

/// The commands that the help names.
fn commands() -> impl Iterator<Item = &'static str> {
    let list = HELP.split("options:").next().unwrap_or_default();
    list.lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
}

/// `./tandem images`: only what boots.
fn prepare(options: &Options) -> Result<()> {
    let images = images::basic()?;
    println!("kernel     {}\ninitramfs  {}", images.kernel.display(), images.initramfs.display());
    println!("toolstack  {}", images::toolstack()?.initramfs.display());
    println!("stock Xen  {}", images::packages::stock_xen()?.display());
    if options.full {
        println!("tree       {}", images::tree::build()?.display());
    }
    Ok(())
}

/// Where nobody reads what is printed any more (`| head`), there is an end, without a word. It unwinds as any panic
/// does: machines end.
fn end_quietly_when_nobody_reads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let why = info.payload().downcast_ref::<String>();
        if !why.is_some_and(|why| why.starts_with("failed printing to stdout: Broken pipe")) {
            usual(info);
        }
    }));
}

fn main() -> ExitCode {
    end_quietly_when_nobody_reads();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match twin::run(&args) {
        Ok(None) => Options::parse(args).and_then(|options| dispatch(&options)),
        Ok(Some(done)) => Ok(done),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAIL: {error:#}");
            ExitCode::FAILURE
        }
    }
}
