//! `./tandem size`: how large the trusted part is, that is, all that cargo links into the image; and what had to be
//! written for stock drivers to be used ([`glue`]).

mod glue;

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::host;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    comments: usize,
    tests: usize,
    unsafe_blocks: usize,
    unsafe_functions: usize,
}

impl Lines {
    fn add(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
        self.tests += other.tests;
        self.unsafe_blocks += other.unsafe_blocks;
        self.unsafe_functions += other.unsafe_functions;
    }
}

pub fn run() -> Result<()> {
    println!(
        "{:<22} {:>6} {:>8} {:>9} {:>7} {:>14} {:>17}",
        "crate", "files", "code", "comments", "tests", "unsafe blocks", "unsafe functions"
    );
    let Linked { own, foreign } = linked()?;
    part("the image", own)?;
    part("from crates.io, in it", foreign)?;
    print!("{}", glue::table(&host::root())?);
    Ok(())
}

/// The crates that cargo links into the image.
struct Linked {
    /// Name, and where the sources are.
    own: Vec<(String, PathBuf)>,
    /// Name and version, and where the sources are.
    foreign: Vec<(String, PathBuf)>,
}

fn linked() -> Result<Linked> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["tree", "--offline", "-p", "hv", "-e", "normal", "--target", "x86_64-unknown-none"]);
    let output = cargo.args(["--prefix", "none", "--no-dedupe"]).current_dir(host::root()).output()?;
    anyhow::ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registry = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    let registries: Vec<_> = std::fs::read_dir(&registry)?.flatten().map(|e| e.path()).collect();
    let mut linked = Linked { own: Vec::new(), foreign: Vec::new() };
    for (name, version, path) in packages(&String::from_utf8(output.stdout)?) {
        if let Some(path) = path {
            linked.own.push((name, path));
            continue;
        }
        let folder = format!("{name}-{version}");
        let found = registries.iter().map(|r| r.join(&folder).join("src")).find(|path| path.is_dir());
        linked
            .foreign
            .push((folder, found.with_context(|| format!("{name} {version} is not in {}", registry.display()))?));
    }
    Ok(linked)
}

/// Name, version and, if it is the workspace's, folder of each package in `cargo tree`'s list. Macros run on the host.
fn packages(tree: &str) -> BTreeSet<(String, String, Option<PathBuf>)> {
    let lines = tree.lines().filter(|line| !line.contains("(proc-macro)"));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
            let path = line.split_once("(/").and_then(|(_, rest)| rest.split(')').next());
            Some((name.to_owned(), version.to_owned(), path.map(|rest| PathBuf::from(format!("/{rest}")))))
        })
        .collect()
}

/// The rows of some crates and their sum.
fn part(what: &str, crates: impl IntoIterator<Item = (String, PathBuf)>) -> Result<()> {
    let mut all = Lines::default();
    let mut all_files = 0;
    for (name, path) in crates {
        let mut files = Vec::new();
        sources(&path, &["rs", "S"], &mut files)?;
        let mut lines = Lines::default();
        for file in &files {
            let counted = count(&std::fs::read_to_string(file)?);
            lines.add(if is_tests(file.strip_prefix(&path)?) {
                Lines { tests: counted.code + counted.tests, ..Lines::default() }
            } else {
                counted
            });
        }
        row(&name, files.len(), lines);
        all.add(lines);
        all_files += files.len();
    }
    row(what, all_files, all);
    println!();
    Ok(())
}

/// Whether all of the file is for tests and fuzzing only.
fn is_tests(path: &Path) -> bool {
    path.components().any(|c| {
        let c = c.as_os_str().to_string_lossy();
        let names = ["tests", "tests.rs", "fuzzing", "fuzzing.rs", "oracle", "oracle.rs", "fake.rs", "fake_store.rs"];
        names.contains(&&*c) || c.ends_with("_tests.rs")
    })
}

fn row(name: &str, files: usize, l: Lines) {
    println!(
        "{name:<22} {files:>6} {:>8} {:>9} {:>7} {:>14} {:>17}",
        l.code, l.comments, l.tests, l.unsafe_blocks, l.unsafe_functions
    );
}

/// Files below a folder whose names end so.
fn sources(dir: &Path, ends: &[&str], found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                sources(&path, ends, found)?;
            }
        } else if path.extension().is_some_and(|e| ends.iter().any(|end| e == *end)) {
            found.push(path);
        }
    }
    Ok(())
}

/// Counts the lines of one file: code, comments, tests (from `#[cfg(test)]` to the end of what it applies to).
fn count(text: &str) -> Lines {
    let mut lines = Lines::default();
    let mut in_block_comment = false;
    let mut test = TestItem::Outside;
    for line in text.lines().map(str::trim) {
        if in_block_comment || line.starts_with("/*") {
            in_block_comment = !line.contains("*/");
            lines.comments += 1;
        } else if line.is_empty() {
        } else if line.starts_with("//") {
            lines.comments += 1;
        } else if test.takes(line) {
            lines.tests += 1;
        } else {
            lines.code += 1;
            lines.unsafe_blocks += line.matches("unsafe {").count();
            lines.unsafe_functions += line.matches("unsafe fn").count() + line.matches("unsafe extern").count();
        }
    }
    lines
}

/// Where we are with respect to an item under `#[cfg(test)]`.
#[derive(Clone, Copy)]
enum TestItem {
    Outside,
    /// The attribute was seen; the item's first brace or semicolon was not.
    Head,
    /// So many braces are open.
    Inside(usize),
}

impl TestItem {
    fn takes(&mut self, line: &str) -> bool {
        if matches!(self, Self::Outside) {
            let attributes = ["#[cfg(test)]", "#[cfg(all(test", "#[cfg(any(test"];
            if !attributes.iter().any(|a| line.starts_with(a)) {
                return false;
            }
            *self = Self::Head;
        }
        let mut depth = if let Self::Inside(depth) = *self { depth } else { 0 };
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        *self = Self::Outside;
                        return true;
                    }
                }
                ';' if depth == 0 => {
                    *self = Self::Outside;
                    return true;
                }
                _ => {}
            }
        }
        if depth > 0 {
            *self = Self::Inside(depth);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_told_apart_by_where_they_are() {
        let tree = "hv v0.1.0 (/work/hv)\nspin v0.9.8\nspin v0.9.8\nmacros v1.0.0 (proc-macro)\n\n";
        let found: Vec<_> = packages(tree).into_iter().collect();
        assert_eq!(
            found,
            [("hv".into(), "0.1.0".into(), Some("/work/hv".into())), ("spin".into(), "0.9.8".into(), None)]
        );
    }

    #[test]
    fn code_comments_tests_and_unsafe_are_told_apart() {
        let text = "//! doc\n\nfn a() {\n    // why\n    unsafe { b() }\n}\n/* long\n comment */\nunsafe fn b() {}\n\
                    #[cfg(test)]\nmod tests;\nfn c() {}\n#[cfg(test)]\nmod t {\n    fn x() {\n    }\n}\nfn d() {}\n";
        let l = count(text);
        assert_eq!(l, Lines { code: 6, comments: 4, tests: 7, unsafe_blocks: 1, unsafe_functions: 1 });
    }
}
