//! `./tandem size`: how large the trusted part is.

use anyhow::Result;
use std::path::{Path, PathBuf};
use testbed::host;

/// The crates that must be trusted, by folder.
const TRUSTED: &[&str] = &["hv", "hv-core", "channel", "xen-abi", "x86", "twin-abi", "twin-verify", "twin-runtime"];

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
        "{:<12} {:>6} {:>8} {:>9} {:>7} {:>14} {:>17}",
        "crate", "files", "code", "comments", "tests", "unsafe blocks", "unsafe functions"
    );
    let mut all = Lines::default();
    let mut all_files = 0;
    for name in TRUSTED {
        let mut files = Vec::new();
        sources(&host::root().join(name), &mut files)?;
        let mut lines = Lines::default();
        for file in &files {
            let test_file = file.components().any(|c| {
                let c = c.as_os_str().to_string_lossy();
                c == "tests" || c == "tests.rs" || c.ends_with("_tests.rs") || c == "fuzzing" || c == "fake.rs"
            });
            let counted = count(&std::fs::read_to_string(file)?);
            lines.add(if test_file {
                Lines { tests: counted.code + counted.tests, ..Lines::default() }
            } else {
                counted
            });
        }
        row(name, files.len(), lines);
        all.add(lines);
        all_files += files.len();
    }
    row("all", all_files, all);
    Ok(())
}

fn row(name: &str, files: usize, l: Lines) {
    println!(
        "{name:<12} {files:>6} {:>8} {:>9} {:>7} {:>14} {:>17}",
        l.code, l.comments, l.tests, l.unsafe_blocks, l.unsafe_functions
    );
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                sources(&path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs" || e == "S") {
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
    fn code_comments_tests_and_unsafe_are_told_apart() {
        let text = "//! doc\n\nfn a() {\n    // why\n    unsafe { b() }\n}\n/* long\n comment */\nunsafe fn b() {}\n\
                    #[cfg(test)]\nmod tests;\nfn c() {}\n#[cfg(test)]\nmod t {\n    fn x() {\n    }\n}\nfn d() {}\n";
        let l = count(text);
        assert_eq!(l, Lines { code: 6, comments: 4, tests: 7, unsafe_blocks: 1, unsafe_functions: 1 });
    }
}
