//! Counting instructions: the plugins for QEMU and how a machine is started with them.

use crate::host;
use crate::images::{cached, fingerprint};
use anyhow::{ensure, Context, Result};
use bench::marks::{Count, Marks};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mark that the first user program makes (images/src/init.c).
pub const USERSPACE: u8 = 1;

/// The marks before and after what the test tools move (images/src): datagrams of nettest.
pub const PACKETS: (u8, u8) = (10, 11);
/// The same: streams of tcptest.
pub const STREAM: (u8, u8) = (12, 13);
/// The same: blocks of disktest.
pub const DISK: (u8, u8) = (14, 15);

/// What was executed between such a pair of marks.
#[derive(Clone, Copy)]
pub struct Span {
    /// Which pair of marks: [`PACKETS`], [`STREAM`] or [`DISK`].
    pub kind: (u8, u8),
    /// Instructions between them.
    pub count: Count,
}

/// Instructions after which it is the next CPU's turn, where several are counted.
const TURN: u64 = 1000;

/// The plugin, compiled.
pub struct Counter(PathBuf);

impl Counter {
    /// Compiles what is not there yet; errors are those of gcc, and of QEMU's version.
    pub fn build() -> Result<Self> {
        compile("count").map(Self)
    }

    /// QEMU's arguments to count into `file`, with all CPUs in one thread; `places` are addresses to mark.
    pub fn accel(&self, file: &Path, places: &[(u64, u8)]) -> Vec<String> {
        let mut plugin = format!("{},out={}", self.0.display(), file.display());
        for (address, number) in places {
            plugin.push_str(&format!(",at={address:x}:{number}"));
        }
        ["-accel", "tcg,thread=single", "-plugin", &plugin].map(String::from).to_vec()
    }
}

/// The plugins that tell where instructions are executed, that connect the NIC to a peer in virtual time, that have
/// the nvme controller work in it, and that tell which memory is touched.
pub struct Profiler {
    profile: PathBuf,
    wire: PathBuf,
    disk: PathBuf,
    touched: PathBuf,
}

impl Profiler {
    /// Compiles what is not there yet; errors are those of gcc, and of QEMU's version.
    pub fn build() -> Result<Self> {
        // All but the first use functions of QEMU that no interface promises.
        let said = host::output(Command::new("qemu-system-x86_64").arg("--version"))?;
        ensure!(said.contains("version 7.2."), "this bench needs Debian 12's QEMU 7.2, not: {}", said.trim());
        let [profile, wire, disk, touched] = ["profile", "wire", "disk", "touched"].map(compile);
        Ok(Self { profile: profile?, wire: wire?, disk: disk?, touched: touched? })
    }

    /// QEMU's arguments to write what ran to `file`, with a network back end `wire` that asks at `socket`.
    pub fn accel(&self, file: &Path, socket: &Path) -> Vec<String> {
        let profile = format!("{},out={}", self.profile.display(), file.display());
        let wire = format!("{},socket={}", self.wire.display(), socket.display());
        ["-accel", "tcg,thread=single", "-plugin", &profile, "-plugin", &wire].map(String::from).to_vec()
    }

    /// The same for several CPUs, which run in turns of about [`TURN`] instructions.
    pub fn accel_in_turns(&self, file: &Path, socket: &Path) -> Vec<String> {
        let mut args = self.accel(file, socket);
        args[3] = format!("{},slice={TURN}", args[3]);
        args
    }

    /// QEMU's arguments for a disk that is `file`, or holds nothing, as the block node `node` for nvme, in virtual
    /// time.
    pub fn disk(&self, node: &str, file: Option<&Path>) -> Vec<String> {
        let plugin = format!("{},node={node}", self.disk.display());
        let block = match file {
            Some(file) => format!(
                "driver=raw,node-name={node},cache.no-flush=on,file.driver=file,file.cache.no-flush=on,file.filename={}",
                file.display()
            ),
            None => format!("driver=null-co,node-name={node},size=1073741824,read-zeroes=on"),
        };
        ["-plugin", &plugin, "-blockdev", &block].map(String::from).to_vec()
    }

    /// QEMU's arguments to write to `samples` which memory is touched, of a machine with so much, and to `contents`
    /// what it holds.
    pub fn touched(&self, samples: &Path, contents: &Path, memory_mib: u32) -> Vec<String> {
        let (plugin, samples, contents) = (self.touched.display(), samples.display(), contents.display());
        vec!["-plugin".into(), format!("{plugin},out={samples},contents={contents},memory={memory_mib}")]
    }
}

fn compile(name: &str) -> Result<PathBuf> {
    let folder = host::root().join("bench/plugin");
    let sources = [folder.join(format!("{name}.c")), folder.join("interface.h")];
    let out = host::target("images")?.join(format!("{name}.so"));
    cached(&format!("compiling the plugin {name}"), &out, &fingerprint(&sources)?, |path| {
        host::run(Command::new("gcc").args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]).arg(path).arg(&sources[0]))
    })?;
    Ok(out)
}

/// Instructions from power-on to the first user program.
pub fn to_userspace(file: &Path) -> Result<u64> {
    let marks = Marks::read(file)?;
    Ok(marks.first(USERSPACE).context("no mark from the first user program")?.total())
}

/// What was executed between the pairs of marks, in the order of their ends.
pub fn spans(file: &Path) -> Result<Vec<Span>> {
    pairs(&Marks::read(file)?)
}

fn pairs(marks: &Marks) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    for (n, (end, after)) in marks.0.iter().enumerate() {
        let Some(kind) = [PACKETS, STREAM, DISK].into_iter().find(|kind| kind.1 == *end) else { continue };
        let before = marks.0[..n].iter().rev().find(|(number, _)| *number == kind.0);
        let (_, before) = before.with_context(|| format!("mark {end} without one before it"))?;
        spans.push(Span { kind, count: after.since(before) });
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiler() -> Profiler {
        let [profile, wire, disk, touched] = ["profile.so", "wire.so", "disk.so", "touched.so"].map(PathBuf::from);
        Profiler { profile, wire, disk, touched }
    }

    #[test]
    fn the_plugin_knows_how_much_memory_there_is() {
        let args = profiler().touched(Path::new("s"), Path::new("c"), 2800);
        assert_eq!(args, ["-plugin", "touched.so,out=s,contents=c,memory=2800"]);
    }

    #[test]
    fn the_disk_and_its_plugin_are_of_the_same_node() {
        let args = profiler().disk("d", None);
        assert_eq!(args[..3], ["-plugin", "disk.so,node=d", "-blockdev"]);
        assert!(args[3].contains("node-name=d,"), "{args:?}");
        let args = profiler().disk("d", Some(Path::new("f")));
        assert!(args[3].contains("node-name=d,") && args[3].ends_with(",file.filename=f"), "{args:?}");
    }

    #[test]
    fn turns_are_an_option_of_the_profile() {
        let args = profiler().accel_in_turns(Path::new("p"), Path::new("s"));
        assert_eq!(args[3..], ["profile.so,out=p,slice=1000", "-plugin", "wire.so,socket=s"]);
    }

    #[test]
    fn a_span_is_from_the_latest_first_mark_to_its_second() {
        let marks = Marks::parse("1 5 0 0\n10 10 1 1\n11 30 2 3\n14 31 2 3\n10 40 5 5\n11 41 7 9\n").unwrap();
        let spans = pairs(&marks).unwrap();
        let figures = |s: &Span| (s.kind, s.count.low, s.count.hypervisor, s.count.kernel);
        assert_eq!(spans.iter().map(figures).collect::<Vec<_>>(), [(PACKETS, 20, 1, 2), (PACKETS, 1, 2, 4)]);
        assert!(pairs(&Marks::parse("13 1 1 1\n").unwrap()).is_err());
    }
}
