//! In how much of its memory a small driver domain works, idle and under load, and what could be had of the rest: the
//! figures 3 and 4 of the paper on driver reuse in virtual machines, for those of Tandem.

use anyhow::{ensure, Context, Result};
use bench::lines::{self, Line};
use bench::reclaim::{Page, Pages, PAGE};
use bench::working::{owned, Frames, Window, Working};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use testbed::machine::field;

/// A load's domain, when all are meant.
const ALL: &str = "all";

/// In how much memory a driver domain worked under a load.
struct Row {
    kind: String,
    load: String,
    working: Working,
}

/// What could be had of a driver domain's memory, or of that of all together.
struct Stack {
    kind: String,
    /// What it held when it was made, and what it holds now, in KiB.
    at_boot: u64,
    held: u64,
    /// Pages that only the MMU reads, as it worked.
    tables: u64,
    pages: Pages,
}

/// What was found.
pub struct Sets {
    rows: Vec<Row>,
    stacks: Vec<Stack>,
}

impl Sets {
    /// From what was reported, with the windows of the loads and of the idle domains, both in their order; and from
    /// what the machine's memory held.
    pub fn read(reports: &[&str], windows: &[Window], contents: &Path) -> Result<Self> {
        let domains = owned(reports.iter().copied());
        let rows = rows(reports, windows, &domains)?;
        let file = File::open(contents).with_context(|| format!("no contents at {}", contents.display()))?;
        let mut stacks = Vec::new();
        let mut everything = Vec::new();
        let mut sums = (0, 0, 0);
        for report in reports.iter().filter_map(|report| report.strip_prefix("beside ")) {
            let kind = report.split(' ').next().unwrap_or_default();
            let number = |key: &str| {
                field(report, key).and_then(|v| v.parse::<u64>().ok()).with_context(|| format!("no {key} in: {report}"))
            };
            let frames = domains.get(kind).with_context(|| format!("nobody said which memory {kind} has"))?;
            let pages = pages(frames, &active(frames, kind, &rows), &file)?;
            let tables = frames.tables.len() as u64;
            stacks.push(Stack {
                kind: kind.into(),
                at_boot: number("boot_kib")?,
                held: number("held_kib")?,
                tables,
                pages: count(&pages),
            });
            sums = (sums.0 + number("boot_kib")?, sums.1 + number("held_kib")?, sums.2 + tables);
            everything.extend(pages);
        }
        ensure!(!stacks.is_empty(), "no driver domains were there beside each other");
        let (at_boot, held, tables) = sums;
        stacks.push(Stack { kind: ALL.into(), at_boot, held, tables, pages: count(&everything) });
        Ok(Self { rows, stacks })
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<10}{:<16}{:>9}{:>9}{:>9}{:>9}{:>12}{:>9}{:>12}\n",
            "works in", "load", "samples", "median", "mean", "largest", "all of it", "awake", "median then"
        );
        for row in &self.rows {
            let w = &row.working;
            let _ = writeln!(
                out,
                "{:<10}{:<16}{:>9}{:>9}{:>9}{:>9}{:>12}{:>9}{:>12}",
                row.kind,
                row.load,
                w.over_time.len(),
                w.median_kib(),
                w.mean_kib(),
                w.largest_kib(),
                w.union_kib(),
                w.awake(),
                w.awake_median_kib()
            );
        }
        let _ = write!(out, "\n{:<34}", "KiB of");
        for stack in &self.stacks {
            let _ = write!(out, "{:>10}", stack.kind);
        }
        let names: Vec<&str> = self.stacks.first().map_or(Vec::new(), |s| s.lines().map(|(name, _)| name).to_vec());
        for (n, name) in names.iter().enumerate() {
            let _ = write!(out, "\n{name:<34}");
            for stack in &self.stacks {
                let _ = write!(out, "{:>10}", stack.lines()[n].1);
            }
        }
        let _ = write!(out, "\n{:<34}", "of what there was could be had, %");
        for stack in &self.stacks {
            let _ = write!(out, "{:>10.1}", stack.had());
        }
        out.push('\n');
        out
    }

    /// Lines of the file of all figures.
    pub fn csv(&self) -> String {
        let mut out = String::new();
        for Row { kind, load, working } in &self.rows {
            for (what, figure) in [
                ("median", working.median_kib()),
                ("mean", working.mean_kib()),
                ("largest", working.largest_kib()),
                ("all of it", working.union_kib()),
                ("median when awake", working.awake_median_kib()),
            ] {
                let _ = writeln!(out, "works in {what} KiB,{kind} {load},{figure}");
            }
        }
        for stack in &self.stacks {
            for (what, figure) in stack.lines() {
                let _ = writeln!(out, "{what} KiB,{},{figure}", stack.kind);
            }
        }
        out
    }

    /// A picture for each load, in this folder.
    pub fn draw(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let mut loads: BTreeMap<&str, Vec<Line<'_>>> = BTreeMap::new();
        for row in &self.rows {
            loads.entry(&row.load).or_default().push((&row.kind, row.working.line()));
        }
        loads
            .into_iter()
            .map(|(load, drawn)| {
                let path = folder.join(format!("drivers-{load}.svg"));
                lines::draw(&format!("What small driver domains work in: {load}"), "KiB in 90 ms", &drawn, &path)?;
                Ok(path)
            })
            .collect()
    }
}

impl Stack {
    /// What is what, in KiB.
    fn lines(&self) -> [(&'static str, u64); 13] {
        let p = &self.pages;
        let kib = |pages: u64| pages * (PAGE as u64 / 1024);
        [
            ("held when made", self.at_boot),
            ("held", self.held),
            ("page tables", kib(self.tables)),
            ("active", kib(p.active + p.active_same)),
            ("active, the same as such", kib(p.active_same)),
            ("not active: zero", kib(p.zero)),
            ("not active: the same as active", kib(p.same_as_active)),
            ("not active: the same as others", kib(p.same)),
            ("not active: shrinks", kib(p.packed)),
            ("not active: into", p.packed_bytes.div_ceil(1024)),
            ("not active: whole", kib(p.whole)),
            ("left, packed", p.packed_kib()),
            ("left, packed and shared", p.shared_kib()),
        ]
    }

    /// How much of what it held at first could be had, in percent.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn had(&self) -> f64 {
        100.0 - 100.0 * self.pages.shared_kib() as f64 / self.at_boot.max(1) as f64
    }
}

/// A load `KIND/NAME` is that of one driver domain, `all/NAME` of each.
fn rows(reports: &[&str], windows: &[Window], domains: &BTreeMap<String, Frames>) -> Result<Vec<Row>> {
    let mut windows = windows.iter();
    let mut rows = Vec::new();
    for report in reports {
        let load = report.strip_prefix("load ");
        if load.is_none() && !report.starts_with("idle ") {
            continue;
        }
        let window = windows.next().context("a load without samples")?;
        let Some((whose, load)) = load.and_then(|load| load.split(' ').next()?.split_once('/')) else { continue };
        let those = domains.iter().filter(|(kind, _)| whose == ALL || *kind == whose);
        let found =
            those.map(|(kind, frames)| Row { kind: kind.clone(), load: load.into(), working: window.of(&frames.all) });
        let before = rows.len();
        rows.extend(found);
        ensure!(rows.len() > before, "nobody said which memory {whose} has");
        ensure!(!window.0.is_empty(), "{whose}/{load} was over before there was a sample");
    }
    ensure!(windows.next().is_none(), "samples without a load");
    Ok(rows)
}

/// What a domain worked in under any load, and its page tables.
fn active(frames: &Frames, kind: &str, rows: &[Row]) -> BTreeSet<u64> {
    let own = rows.iter().filter(|row| row.kind == kind);
    own.flat_map(|row| &row.working.union).chain(&frames.tables).copied().collect()
}

/// The domain's pages, and whether they are active.
fn pages(frames: &Frames, active: &BTreeSet<u64>, contents: &File) -> Result<Vec<(Box<[u8; PAGE]>, bool)>> {
    let read = |frame: &u64| {
        let mut bytes = Box::new([0; PAGE]);
        contents.read_exact_at(&mut *bytes, frame * PAGE as u64)?;
        Ok((bytes, active.contains(frame)))
    };
    frames.all.iter().map(read).collect()
}

fn count(pages: &[(Box<[u8; PAGE]>, bool)]) -> Pages {
    Pages::count(&pages.iter().map(|(bytes, is_active)| Page { bytes, is_active: *is_active }).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORTS: [&str; 9] = [
        "idle domains=1 seconds=10 timer_seconds=20 timer=10",
        "load all/idle units=20",
        "load nvme/random-read units=10",
        "frames nvme 1 3",
        "frames e1000e 4 2",
        "tables e1000e 4 1",
        "beside nvme boot_kib=24 held_kib=12",
        "beside e1000e boot_kib=24 held_kib=8",
        "noted ahci takes_mib=60 found_mib=90",
    ];

    fn windows() -> Vec<Window> {
        [vec![vec![1, 4]], vec![vec![1, 2, 9], vec![]], vec![vec![1, 2, 5], vec![1]]].map(Window).to_vec()
    }

    /// Frame 1 is of ones, 3 and 5 are of threes, the others of zeros.
    fn sets(name: &str, reports: &[&str], windows: &[Window]) -> Result<Sets> {
        let path = std::env::temp_dir().join(format!("tandem-contents-{name}-{}", std::process::id()));
        let mut bytes = vec![0; 6 * PAGE];
        for (frame, value) in [(1, 1), (3, 3), (5, 3)] {
            bytes[frame * PAGE..(frame + 1) * PAGE].fill(value);
        }
        std::fs::write(&path, bytes).unwrap();
        let sets = Sets::read(reports, windows, &path);
        std::fs::remove_file(&path).unwrap();
        sets
    }

    #[test]
    fn a_load_is_of_one_domain_or_of_all() {
        let sets = sets("rows", &REPORTS, &windows()).unwrap();
        let rows: Vec<_> =
            sets.rows.iter().map(|r| (r.kind.as_str(), r.load.as_str(), r.working.union_kib())).collect();
        assert_eq!(rows, [("e1000e", "idle", 0), ("nvme", "idle", 8), ("nvme", "random-read", 8)]);
        assert!(sets.csv().contains("\nworks in mean KiB,nvme random-read,6\n"), "{}", sets.csv());
        assert!(sets.csv().starts_with("works in median KiB,e1000e idle,0\n"), "{}", sets.csv());
    }

    #[test]
    fn what_could_be_had_is_of_each_and_of_all_together() {
        let sets = sets("stacks", &REPORTS, &windows()).unwrap();
        let [nvme, e1000e, all] = &sets.stacks[..] else { panic!("there are two and their sum") };
        // Frames 1 and 2 are worked in; 4 is a page table.
        assert_eq!((nvme.pages.active, nvme.pages.packed, nvme.pages.all()), (2, 1, 3));
        assert_eq!((e1000e.pages.active, e1000e.pages.packed, e1000e.tables), (1, 1, 1));
        // The page of zeros of nvme and the page table are the same, and so are the threes.
        assert_eq!((all.pages.active, all.pages.active_same, all.pages.packed, all.pages.same), (2, 1, 1, 1));
        assert_eq!((all.at_boot, all.held), (48, 20));
        assert!((all.had() - (100.0 - 900.0 / 48.0)).abs() < 1e-9, "{}", all.had());
        assert!(sets.csv().contains("\nactive, the same as such KiB,all,4\n"), "{}", sets.csv());
        let table = sets.table();
        assert!(table.contains("held when made                            24        24        48\n"), "{table}");
    }

    #[test]
    fn pictures_are_of_loads() {
        let folder = std::env::temp_dir().join(format!("tandem-sets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let drawn = sets("drawn", &REPORTS, &windows()).unwrap().draw(&folder).unwrap();
        let names: Vec<_> = drawn.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["drivers-idle.svg", "drivers-random-read.svg"]);
        let idle = std::fs::read_to_string(&drawn[0]).unwrap();
        assert!(idle.contains("e1000e") && idle.contains("nvme"), "{idle}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn windows_and_loads_are_as_many_and_of_those_that_are_there() {
        assert!(sets("few", &REPORTS, &windows()[..2]).is_err());
        assert!(sets("many", &REPORTS, &[windows(), windows()].concat()).is_err());
        let other = ["load ahci/random-read units=1"];
        assert!(
            sets("other", &[&REPORTS[..], &other].concat(), &[windows(), windows()[2..].to_vec()].concat()).is_err()
        );
        let short = [windows()[..2].to_vec(), vec![Window::default()]].concat();
        assert!(sets("short", &REPORTS, &short).is_err());
        assert!(sets("alone", &REPORTS[..6], &windows()).is_err());
    }
}
