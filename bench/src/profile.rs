//! Where instructions were executed, by component: from the blocks that `plugin/profile.c` counted.
//!
//! A block's machine address tells the domain whose memory its code is in; its virtual address, whether it is the
//! hypervisor's, a kernel's or a program's; and the list of that domain's modules, which of them it belongs to.

use anyhow::{bail, Context, Result};
use std::path::Path;

/// What the work of a packet or request is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The kernel of the system that is measured, without what follows.
    Kernel,
    /// netfront or blkfront.
    FrontEnd,
    /// The kernel of the domain that serves it, without what follows.
    BackEndKernel,
    /// netback or blkback.
    BackEnd,
    /// The bridge that connects NIC and back ends.
    Bridge,
    /// The driver of the NIC or the disk.
    Driver,
    /// Drivers' code that was rewritten to run in the hypervisor.
    Twin,
    /// Xen or Tandem, without twins.
    Hypervisor,
    /// All programs.
    Programs,
}

impl Part {
    /// All, in the order of the tables.
    pub const ALL: [Self; 9] = [
        Self::Kernel,
        Self::FrontEnd,
        Self::BackEndKernel,
        Self::BackEnd,
        Self::Bridge,
        Self::Driver,
        Self::Twin,
        Self::Hypervisor,
        Self::Programs,
    ];

    /// The head of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::FrontEnd => "front end",
            Self::BackEndKernel => "back end's kernel",
            Self::BackEnd => "back end",
            Self::Bridge => "bridge",
            Self::Driver => "driver",
            Self::Twin => "twin",
            Self::Hypervisor => "hypervisor",
            Self::Programs => "programs",
        }
    }
}

/// A block of code and how many instructions ran in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Virtual address.
    pub address: u64,
    /// Machine address.
    pub machine: u64,
    /// Instructions.
    pub count: u64,
}

/// What happens beside instructions, and costs more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A load of CR3.
    Cr3,
    /// Entries of the TLB are flushed one by one.
    Tlb,
    /// A program's system call.
    SystemCall,
    /// A hypercall of the system that is measured.
    Hypercall,
    /// A hypercall of another domain.
    OthersHypercall,
}

impl Event {
    /// All, in the order of the tables.
    pub const ALL: [Self; 5] = [Self::Cr3, Self::Tlb, Self::SystemCall, Self::Hypercall, Self::OthersHypercall];

    /// The head of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cr3 => "CR3 loads",
            Self::Tlb => "TLB flushes",
            Self::SystemCall => "system calls",
            Self::Hypercall => "hypercalls",
            Self::OthersHypercall => "others' hypercalls",
        }
    }
}

/// A kind of instruction, as the plugin calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It loads CR3.
    Cr3,
    /// It flushes an entry of the TLB.
    Tlb,
    /// It makes a system call or a hypercall.
    Syscall,
}

/// What ran between two marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// All blocks that ran.
    pub blocks: Vec<Block>,
    /// Instructions among them that are events; each counts how often it ran.
    pub events: Vec<(Kind, Block)>,
    /// How long it was, in instructions of one CPU, if several CPUs ran in turns; else 0.
    pub time: u64,
    /// What each of them did, those that did anything.
    pub cpus: Vec<Cpu>,
}

/// What a CPU did in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Instructions that it executed.
    pub executed: u64,
    /// How long it waited for locks of the hypervisor's, in instructions of other CPUs.
    pub waited: u64,
}

/// Reads the plugin's file.
pub fn read(path: &Path) -> Result<Vec<Window>> {
    parse(&std::fs::read_to_string(path).with_context(|| format!("no profile at {}", path.display()))?)
}

fn parse(text: &str) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    let mut open: Option<(u64, Window)> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match (&words[..], &mut open) {
            (["window", total], None) => open = Some((total.parse()?, Window::default())),
            (["end"], Some((total, window))) => {
                if window.blocks.iter().map(|b| b.count).sum::<u64>() != *total {
                    bail!("a window's blocks do not add up to its total");
                }
                windows.push(std::mem::take(window));
                open = None;
            }
            (["event", kind, block @ ..], Some((_, window))) => {
                let kind = match *kind {
                    "cr3" => Kind::Cr3,
                    "tlb" => Kind::Tlb,
                    "syscall" => Kind::Syscall,
                    _ => bail!("not a kind of event: `{kind}`"),
                };
                window.events.push((kind, self::block(block)?));
            }
            (["time", time], Some((_, window))) => window.time = time.parse()?,
            (["cpu", number, executed, waited], Some((_, window))) => {
                window.cpus.push(Cpu { number: number.parse()?, executed: executed.parse()?, waited: waited.parse()? })
            }
            (block, Some((_, window))) => window.blocks.push(self::block(block)?),
            _ => bail!("not a line of a profile: `{line}`"),
        }
    }
    Ok(windows)
}

/// From the words of a line.
fn block(words: &[&str]) -> Result<Block> {
    let [address, machine, count] = words else { bail!("not a line of a profile: `{}`", words.join(" ")) };
    Ok(Block {
        address: u64::from_str_radix(address, 16)?,
        machine: u64::from_str_radix(machine, 16)?,
        count: count.parse()?,
    })
}

/// Which memory and which modules are whose.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// First frame, number of frames, domain.
    frames: Vec<(u64, u64, String)>,
    /// Domain, module, address, bytes.
    modules: Vec<(String, String, u64, u64)>,
}

impl Map {
    /// From the lines `frames DOMAIN FIRST COUNT` and `module DOMAIN NAME BYTES 0xADDRESS` in what domains reported.
    pub fn read<'a>(reports: impl Iterator<Item = &'a str>) -> Self {
        let mut map = Self::default();
        for report in reports {
            let words: Vec<&str> = report.split_whitespace().collect();
            match words[..] {
                ["frames", domain, first, count] => {
                    if let (Ok(first), Ok(count)) = (u64::from_str_radix(first, 16), u64::from_str_radix(count, 16)) {
                        map.frames.push((first, count, domain.into()));
                    }
                }
                ["module", domain, name, bytes, address] => {
                    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
                    if let (Ok(address), Ok(bytes)) = (address, bytes.parse()) {
                        map.modules.push((domain.into(), name.into(), address, bytes));
                    }
                }
                _ => {}
            }
        }
        map.frames.sort();
        map
    }

    /// Whether anything is known of a domain's modules.
    pub fn knows(&self, domain: &str) -> bool {
        self.modules.iter().any(|(d, ..)| d == domain)
    }

    /// Whose memory it is; `None` for memory of no listed domain.
    fn owner(&self, frame: u64) -> Option<&str> {
        let after = self.frames.partition_point(|(first, ..)| *first <= frame);
        let (first, count, domain) = self.frames.get(after.checked_sub(1)?)?;
        (frame - first < *count).then_some(domain)
    }

    fn module(&self, domain: &str, address: u64) -> Option<&str> {
        let inside = |start: u64, bytes: u64| address >= start && address - start < bytes;
        self.modules
            .iter()
            .find(|(d, _, start, bytes)| d == domain && inside(*start, *bytes))
            .map(|(_, name, ..)| name.as_str())
    }

    /// The part that a block belongs to when `measured` is the system under load. Memory that is not listed is dom0's,
    /// or of `measured` where nothing is listed.
    pub fn part(&self, block: &Block, measured: &str) -> Part {
        if is_hypervisor(block.address) {
            return if is_twin(block.address) { Part::Twin } else { Part::Hypervisor };
        }
        if block.address >> 47 == 0 {
            return Part::Programs;
        }
        // dom0 runs its loads before there are other domains.
        let owner = if measured == DOM0 { DOM0 } else { self.owner(block.machine >> 12).unwrap_or(DOM0) };
        match self.module(owner, block.address) {
            Some("xen_netfront" | "xen_blkfront") => Part::FrontEnd,
            Some("xen_netback" | "xen_blkback") => Part::BackEnd,
            Some("bridge" | "stp" | "llc") => Part::Bridge,
            Some("e1000" | "e1000e" | "nvme" | "nvme_core") => Part::Driver,
            _ if owner == measured => Part::Kernel,
            _ => Part::BackEndKernel,
        }
    }

    /// The instructions of a window, divided; in the order of [`Part::ALL`].
    pub fn divide(&self, window: &Window, measured: &str) -> [u64; Part::ALL.len()] {
        let mut sums = [0; Part::ALL.len()];
        for block in &window.blocks {
            let part = self.part(block, measured);
            if let Some(at) = Part::ALL.iter().position(|p| *p == part) {
                sums[at] += block.count;
            }
        }
        sums
    }
}

impl Map {
    /// The events of a window when `measured` is the system under load, in the order of [`Event::ALL`].
    pub fn events(&self, window: &Window, measured: &str) -> [u64; Event::ALL.len()] {
        let mut sums = [0; Event::ALL.len()];
        for (kind, block) in &window.events {
            let event = match (kind, self.part(block, measured)) {
                (Kind::Cr3, _) => Event::Cr3,
                (Kind::Tlb, _) => Event::Tlb,
                (Kind::Syscall, Part::Programs) => Event::SystemCall,
                (Kind::Syscall, Part::Kernel | Part::FrontEnd) => Event::Hypercall,
                (Kind::Syscall, _) => Event::OthersHypercall,
            };
            if let Some(at) = Event::ALL.iter().position(|e| *e == event) {
                sums[at] += block.count;
            }
        }
        sums
    }
}

/// Names of functions, to divide by them.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Addresses and names in the hypervisor, sorted.
    pub hypervisor: Vec<(u64, String)>,
    /// The same in all domains' kernel, without modules.
    pub kernel: Vec<(u64, String)>,
}

/// Instructions of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// What it is a part of.
    pub part: Part,
    /// Its name; of what has no names, the module's or the part's.
    pub name: String,
    /// Instructions.
    pub count: u64,
}

impl Map {
    /// The instructions of a window by function when `measured` is the system under load, those of most instructions
    /// first. What is inlined counts as its caller's.
    pub fn functions(&self, window: &Window, measured: &str, names: &Names) -> Vec<Function> {
        let mut sums = std::collections::BTreeMap::<(usize, &str), u64>::new();
        for block in &window.blocks {
            let part = self.part(block, measured);
            let at = Part::ALL.iter().position(|p| *p == part).unwrap_or_default();
            *sums.entry((at, self.name(block, part, measured, names))).or_default() += block.count;
        }
        let function =
            |((at, name), count): ((usize, &str), u64)| Function { part: Part::ALL[at], name: name.into(), count };
        let mut found: Vec<Function> = sums.into_iter().map(function).collect();
        found.sort_by_key(|f| std::cmp::Reverse(f.count));
        found
    }

    fn name<'a>(&'a self, block: &Block, part: Part, measured: &str, names: &'a Names) -> &'a str {
        let known = match part {
            Part::Hypervisor => &names.hypervisor,
            Part::Twin | Part::Programs => return part.name(),
            _ => {
                let owner = if measured == DOM0 { DOM0 } else { self.owner(block.machine >> 12).unwrap_or(DOM0) };
                if let Some(module) = self.module(owner, block.address) {
                    return module;
                }
                &names.kernel
            }
        };
        let after = known.partition_point(|(address, _)| *address <= block.address);
        after.checked_sub(1).map_or(part.name(), |at| known[at].1.as_str())
    }
}

/// The domain that has all memory that no other is said to have; the bare machine's Linux has the same name.
pub const DOM0: &str = "dom0";

/// The part of the address space that the PV ABI gives to the hypervisor.
fn is_hypervisor(address: u64) -> bool {
    address >> 43 == 0xffff_8000_0000_0000 >> 43
}

/// Slot 260 of the address space, where Tandem has its twins (`docs/architecture.md`) and Xen only its own tables.
fn is_twin(address: u64) -> bool {
    address >> 39 == 0xffff_8200_0000_0000 >> 39
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_and_their_sums_checked() {
        let good = "window 5\nffffffff81000000 1000000 2\n401000 2000 3\nend\nwindow 0\nend\n";
        let windows = parse(good).unwrap();
        assert_eq!(windows.len(), 2);
        assert_eq!(windows[0].blocks[1], Block { address: 0x40_1000, machine: 0x2000, count: 3 });
        assert!(parse("window 6\n401000 2000 3\nend\n").is_err());
        assert!(parse("401000 2000 3\n").is_err());
    }

    #[test]
    fn events_are_told_apart_by_whose_they_are() {
        let text = "window 9\nffffffff81000000 8010000 9\nevent syscall ffffffff81000008 8010008 2\n\
                    event syscall 401000 8020000 3\nevent syscall ffffffff81000008 1000008 5\n\
                    event cr3 ffff82d080200000 200000 7\nevent tlb ffff82d080200010 200010 1\nend\n";
        let windows = parse(text).unwrap();
        let map = Map::read(["frames guest 8000 200"].into_iter());
        assert_eq!(map.events(&windows[0], "guest"), [7, 1, 3, 2, 5]);
        assert!(parse("window 0\nevent other 1 2 3\nend\n").is_err());
        assert!(parse("window 0\nevent cr3 1 2\nend\n").is_err());
        assert!(parse("window 0\n1 2\nend\n").is_err());
    }

    #[test]
    fn what_each_cpu_did_is_read() {
        let windows = parse("window 9\n401000 2000 9\ntime 7\ncpu 0 6 0\ncpu 3 3 2\nend\nwindow 0\nend\n").unwrap();
        assert_eq!(windows[0].time, 7);
        let cpu = |number, executed, waited| Cpu { number, executed, waited };
        assert_eq!(windows[0].cpus, [cpu(0, 6, 0), cpu(3, 3, 2)]);
        assert_eq!((windows[1].time, windows[1].cpus.len()), (0, 0));
        assert!(parse("window 0\ncpu 1 2\nend\n").is_err());
    }

    #[test]
    fn the_same_address_in_two_domains_is_told_apart() {
        let reports = [
            "frames guest 8000 200",
            "module dom0 xen_netback 4096 0xffffffffc0100000",
            "module guest xen_netfront 4096 0xffffffffc0100000",
            "module dom0 e1000 8192 0xffffffffc0200000",
        ];
        let map = Map::read(reports.into_iter());
        let part = |address, frame: u64, measured| {
            map.part(&Block { address, machine: frame << 12 | 0x123, count: 1 }, measured)
        };
        assert_eq!(part(0xffff_ffff_c010_0010, 0x8010, "guest"), Part::FrontEnd);
        assert_eq!(part(0xffff_ffff_c010_0010, 0x8200, "guest"), Part::BackEnd);
        assert_eq!(part(0xffff_ffff_c020_1fff, 0x10, "guest"), Part::Driver);
        assert_eq!(part(0xffff_ffff_8100_0000, 0x81ff, "guest"), Part::Kernel);
        assert_eq!(part(0xffff_ffff_8100_0000, 0x7fff, "guest"), Part::BackEndKernel);
        assert_eq!(part(0xffff_ffff_8100_0000, 0x8010, "dom0"), Part::Kernel);
        assert_eq!(part(0xffff_82d0_8020_0000, 0x8010, "guest"), Part::Hypervisor);
        assert_eq!(part(0xffff_8200_0200_0000, 0x8010, "guest"), Part::Twin);
        assert_eq!(part(0x40_1000, 0x8010, "guest"), Part::Programs);
        let window = Window {
            blocks: vec![
                Block { address: 0x40_1000, machine: 0, count: 3 },
                Block { address: 0xffff_82d0_8020_0000, machine: 0, count: 4 },
            ],
            ..Window::default()
        };
        assert_eq!(map.divide(&window, "guest"), [0, 0, 0, 0, 0, 0, 0, 4, 3]);
    }

    #[test]
    fn functions_are_named_by_what_lies_before_an_address() {
        let map = Map::read(["frames guest 8000 200", "module guest xen_netfront 4096 0xffffffffc0100000"].into_iter());
        let at = |address: u64, frame: u64, count| Block { address, machine: frame << 12, count };
        let blocks = vec![
            at(0xffff_82d0_8020_0000, 1, 4),
            at(0xffff_82d0_8020_0018, 1, 5),
            at(0xffff_82d0_8020_0020, 1, 1),
            at(0xffff_ffff_8100_0010, 0x8000, 20),
            at(0xffff_ffff_8100_0010, 0x7fff, 3),
            at(0xffff_ffff_c010_0010, 0x8001, 2),
            at(0xffff_8200_0200_0000, 1, 7),
            at(0x40_1000, 0x8002, 6),
        ];
        let window = Window { blocks, ..Window::default() };
        let name = |address: u64, name: &str| (address, name.to_string());
        let names = Names {
            hypervisor: vec![name(0xffff_82d0_8020_0000, "transmit"), name(0xffff_82d0_8020_0020, "work")],
            kernel: vec![name(0xffff_ffff_8100_0000, "memset")],
        };
        let found = map.functions(&window, "guest", &names);
        let short: Vec<_> = found.iter().map(|f| (f.part, f.name.as_str(), f.count)).collect();
        let expected = [
            (Part::Kernel, "memset", 20),
            (Part::Hypervisor, "transmit", 9),
            (Part::Twin, "twin", 7),
            (Part::Programs, "programs", 6),
            (Part::BackEndKernel, "memset", 3),
            (Part::FrontEnd, "xen_netfront", 2),
            (Part::Hypervisor, "work", 1),
        ];
        assert_eq!(short, expected);
        // Without names it is the parts.
        let found = map.functions(&window, "guest", &Names::default());
        assert!(found.contains(&Function { part: Part::Hypervisor, name: "hypervisor".into(), count: 10 }));
    }
}
