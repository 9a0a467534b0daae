//! The floors of the hypervisor: a file may name files of its own floor and of those below, and no large circle of
//! files is left that can only be understood together.

mod source;

use anyhow::{Context, Result};
use source::{Path, Source};
use std::collections::{BTreeMap, BTreeSet};
use testbed::host;

/// The rooms of each floor, from the ground up. `main` may name everything.
const FLOORS: &[&[&str]] = &[
    // The processor, and what all others speak and wait with.
    &["cpu", "sync", "console"],
    &["mem"],
    // Chips and tables of the machine: they lie in memory.
    &["arch", "panic"],
    &["domain", "irq", "iommu", "sched", "pv"],
    &["channel", "twin"],
    &["audit", "debug_keys"],
    &["hypercall"],
    &["trap"],
    &["boot"],
];

/// Files that may be in one circle.
const LARGEST_CIRCLE: usize = 6;

/// The name of the file with module path `path`.
fn module_name(path: &[String]) -> String {
    if path.is_empty() {
        "main".into()
    } else {
        path.join("::")
    }
}

/// One file names another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    line: usize,
    /// As it is written there.
    what: String,
}

/// All files of the crate.
struct Crate {
    sources: BTreeMap<Vec<String>, Source>,
}

impl Crate {
    /// Takes the files, each with its path below `src`.
    fn new<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let sources = files.into_iter().map(|(path, text)| {
            let module = module_of(path);
            let source = Source::new(&module, text);
            (module, source)
        });
        Self { sources: sources.collect() }
    }

    /// The file that `path`, written in `from`, leads to. `None`: it leads out of the crate, or is not a path to a
    /// file.
    fn target(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut path = path.to_vec();
        // Re-exports and imports are followed; each step takes the path nearer to its end.
        for _ in 0..8 {
            if path.first().is_none_or(|first| first != "crate") {
                let first = path.first()?;
                let child = [from, std::slice::from_ref(first)].concat();
                let start = if let Some(import) = self.sources.get(from)?.imports.get(first) {
                    import.clone()
                } else if self.sources.contains_key(&child) {
                    [&["crate".to_owned()], child.as_slice()].concat()
                } else {
                    return None;
                };
                if start.first() == path.first() && start.len() == 1 {
                    return None;
                }
                path = [start.as_slice(), &path[1..]].concat();
                continue;
            }
            let inside = &path[1..];
            let len = (0..=inside.len()).rev().find(|&len| self.sources.contains_key(&inside[..len]))?;
            let (module, rest) = inside.split_at(len);
            let Some(next) = rest.first() else { return Some(module.to_vec()) };
            // What a module imports, its children may name through it.
            if let Some(import) = self.sources[module].imports.get(next).and_then(|import| self.full(module, import)) {
                path = [import.as_slice(), &rest[1..]].concat();
                continue;
            }
            if module.is_empty() {
                if let Some((owner, _)) = self.sources.iter().find(|(_, s)| s.macros.contains(next)) {
                    return Some(owner.clone());
                }
            }
            return Some(module.to_vec());
        }
        None
    }

    /// `path`, written in `module`, from the crate on.
    fn full(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?;
        if first == "crate" {
            return Some(path.to_vec());
        }
        let child = [module, std::slice::from_ref(first)].concat();
        self.sources.contains_key(&child).then(|| [&["crate".to_owned()], module, path].concat())
    }

    /// Which file names which. With `passed_on`, also what a file brings in or passes on and does not use.
    fn arrows(&self, passed_on: bool) -> BTreeSet<Arrow> {
        let mut arrows = BTreeSet::new();
        for (from, source) in &self.sources {
            let exports = source.exports.values().filter(|(_, is_used)| *is_used || passed_on).map(|(path, _)| path);
            for Path { line, segments } in source.paths.iter().chain(exports) {
                // A module that is brought in is named where something of it is used.
                if !passed_on
                    && segments.first().is_some_and(|s| s == "crate")
                    && self.sources.contains_key(&segments[1..])
                {
                    continue;
                }
                let Some(to) = self.target(from, segments).filter(|to| to != from) else { continue };
                let what = segments.join("::");
                arrows.insert(Arrow { from: module_name(from), to: module_name(&to), line: *line, what });
            }
        }
        arrows
    }

    /// Methods that are given to a type outside its file: who calls them would name a file without a word.
    fn strays(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (from, source) in &self.sources {
            for (line, name) in &source.methods_of {
                let owner = source.imports.get(name).and_then(|_| self.target(from, std::slice::from_ref(name)));
                if owner.is_some_and(|owner| owner != *from) {
                    found.push(format!("{}:{line} has methods of {name}, which belong to its file", module_name(from)));
                }
            }
        }
        found
    }
}

/// Module path of the file at `path`, which is below `src`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "main" {
        return Vec::new();
    }
    path.split('/').map(str::to_owned).collect()
}

/// The floor of a file; the highest is 0 for nobody. An error for a room that has none.
fn floor(module: &str) -> Result<usize, String> {
    if module == "main" {
        return Ok(FLOORS.len());
    }
    let room = module.split("::").next().unwrap_or_default();
    let found = FLOORS.iter().position(|rooms| rooms.contains(&room));
    found.ok_or_else(|| format!("{room} is on no floor; xtask/src/floors/mod.rs says where rooms are"))
}

/// The arrows that look up, in words.
fn upward(arrows: &BTreeSet<Arrow>) -> Vec<String> {
    let mut found = Vec::new();
    for Arrow { from, to, line, what } in arrows {
        match (floor(from), floor(to)) {
            (Ok(below), Ok(above)) if above > below => {
                found.push(format!("{from}:{line} names {what}, which is on a higher floor ({to})"));
            }
            (Err(why), _) | (_, Err(why)) => found.push(why),
            _ => {}
        }
    }
    found
}

/// Circles of two files and more, the largest first.
fn circles(arrows: &BTreeSet<Arrow>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().insert(&arrow.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|&from| (from, reached_from(from, &next))).collect();
    let mut found = BTreeSet::new();
    for (from, reach) in reached.iter().filter(|(from, reach)| reach.contains(*from)) {
        let back = |to: &&&str| reached.get(**to).is_some_and(|there| there.contains(from));
        found.insert(reach.iter().filter(back).map(|name| (*name).to_owned()).collect::<Vec<_>>());
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// The files that `from` leads to, over any number of arrows.
fn reached_from<'a>(from: &'a str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(next.get(at).into_iter().flatten().copied().filter(|&to| seen.insert(to)));
    }
    seen
}

/// The hypervisor's files.
fn hypervisor() -> Result<Crate> {
    let src = host::root().join("hv/src");
    let (mut open, mut files) = (vec![src.clone()], Vec::new());
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path)?;
                files.push((path.strip_prefix(&src)?.to_string_lossy().into_owned(), text));
            }
        }
    }
    Ok(Crate::new(files.iter().map(|(path, text)| (path.as_str(), text.as_str()))))
}

/// `cargo xtask floors`: the arrows that look up and the circles, in words.
pub fn run() -> Result<()> {
    let hypervisor = hypervisor()?;
    for line in upward(&hypervisor.arrows(true)).into_iter().chain(hypervisor.strays()) {
        println!("{line}");
    }
    let arrows = hypervisor.arrows(false);
    for circle in circles(&arrows) {
        println!("{} files in a circle (at most {LARGEST_CIRCLE} may be):", circle.len());
        for Arrow { from, to, line, what } in
            arrows.iter().filter(|a| circle.contains(&a.from) && circle.contains(&a.to))
        {
            println!("  {from}:{line} -> {to} ({what})");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upward_of(files: &[(&str, &str)]) -> Vec<String> {
        upward(&Crate::new(files.iter().copied()).arrows(true))
    }

    #[test]
    fn the_hypervisor_keeps_its_floors() {
        let hypervisor = hypervisor().unwrap();
        let found = [upward(&hypervisor.arrows(true)), hypervisor.strays()].concat();
        assert!(found.is_empty(), "arrows that look up:\n{}", found.join("\n"));
    }

    #[test]
    fn the_hypervisor_has_no_large_circle() {
        let hypervisor = hypervisor().unwrap();
        assert!(hypervisor.sources.len() > 100 && hypervisor.arrows(false).len() > 500, "files or arrows are not seen");
        let circles = circles(&hypervisor.arrows(false));
        let largest = circles.first().map_or(0, Vec::len);
        assert!(largest <= LARGEST_CIRCLE, "{largest} files in a circle: {:?}", circles[0]);
    }

    #[test]
    fn an_arrow_that_looks_up_is_named_with_its_line() {
        let found = upward_of(&[("mem/heap.rs", "\nfn f() { crate::domain::list::find() }"), ("domain/list.rs", "")]);
        assert_eq!(found, ["mem::heap:2 names crate::domain::list::find, which is on a higher floor (domain::list)"]);
        let within = [("domain/list.rs", "use super::x::A;"), ("domain/x.rs", "use crate::mem::y;"), ("mem/y.rs", "")];
        assert!(upward_of(&within).is_empty());
    }

    #[test]
    fn an_arrow_is_seen_through_an_import_an_alias_and_a_re_export() {
        let through =
            |text| upward_of(&[("mem/a.rs", text), ("sched/mod.rs", "pub use timers::arm;"), ("sched/timers.rs", "")]);
        assert_eq!(through("use crate::sched as s;").len(), 1);
        assert_eq!(through("use crate::sched::{self}; fn f() { sched::timers::arm() }").len(), 2);
        let crate_of = Crate::new([
            ("mem/a.rs", "use crate::sched::arm;"),
            ("sched/mod.rs", "pub use timers::arm;"),
            ("sched/timers.rs", ""),
        ]);
        let to: Vec<_> = crate_of.arrows(false).into_iter().map(|a| a.to).collect();
        assert_eq!(to, ["sched::timers"]);
    }

    #[test]
    fn passing_something_on_from_above_is_an_arrow() {
        assert_eq!(upward_of(&[("cpu/mod.rs", "pub use crate::pv::x;"), ("pv/mod.rs", "")]).len(), 1);
    }

    #[test]
    fn macros_lead_to_where_they_are_defined() {
        let files = [
            ("main.rs", ""),
            ("console.rs", "#[macro_export]\nmacro_rules! info { () => {} }"),
            ("cpu/mod.rs", "use crate::info;"),
        ];
        assert!(upward_of(&files).is_empty());
    }

    #[test]
    fn a_room_without_a_floor_is_refused() {
        assert_eq!(upward_of(&[("attic.rs", "use crate::cpu;"), ("cpu/mod.rs", "")]).len(), 1);
    }

    #[test]
    fn circles_are_found_whole() {
        let files = [
            ("irq/a.rs", "use super::b::B;"),
            ("irq/b.rs", "use super::c::C;"),
            ("irq/c.rs", "use super::a::A; use super::d::D;"),
            ("irq/d.rs", ""),
        ];
        assert_eq!(circles(&Crate::new(files).arrows(false)), [["irq::a", "irq::b", "irq::c"]]);
    }

    #[test]
    fn methods_stay_with_their_type() {
        let files = [("pv/a.rs", "use crate::pv::b::B;\nimpl B {}"), ("pv/b.rs", "pub struct B; impl B {}")];
        assert_eq!(Crate::new(files).strays().len(), 1);
    }
}
