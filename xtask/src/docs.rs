//! What README and `docs/` name is there: files, links, commands, and the tests that hold findings.

use crate::commands;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use testbed::host;

/// Endings of sources. What else is named in the docs may be made when it is needed.
const SOURCES: &[&str] = &["rs", "c", "h", "S", "sh"];

/// All files of the project below `dir`.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the project").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_ours = !name.to_string_lossy().starts_with('.') && name != "target";
        match entry.file_type().expect("what it is") {
            kind if kind.is_dir() && is_ours => files(&path, found),
            kind if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}

/// README and the docs, as lines with the place of each.
fn lines() -> Vec<(PathBuf, usize, String)> {
    let root = host::root();
    let mut pages = vec![root.join("README.md")];
    files(&root.join("docs"), &mut pages);
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
    let of = |page: PathBuf| {
        let text = fs::read_to_string(&page).expect("a page");
        text.lines().enumerate().map(|(i, line)| (page.clone(), i + 1, line.to_owned())).collect::<Vec<_>>()
    };
    pages.into_iter().flat_map(of).collect()
}

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// What `wrong` finds in each line, with its place.
fn all(wrong: impl Fn(&Path, &str) -> Vec<String>) -> Vec<String> {
    let place = |page: &Path, line| format!("{}:{line}", page.strip_prefix(host::root()).unwrap_or(page).display());
    let of = |(page, line, text): (PathBuf, usize, String)| {
        wrong(&page, &text).into_iter().map(move |what| format!("{}: {what}", place(&page, line))).collect::<Vec<_>>()
    };
    lines().into_iter().flat_map(of).collect()
}

#[test]
fn sources_that_are_named_are_there() {
    let mut found = Vec::new();
    files(&host::root(), &mut found);
    let is_there = |named: &str| found.iter().any(|path| path.ends_with(named));
    let is_source = |word: &&str| {
        let ending = Path::new(word).extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| SOURCES.contains(&ending)) && !word.contains([' ', '*'])
    };
    let missing =
        all(|_, line| quoted(line).filter(is_source).filter(|word| !is_there(word)).map(String::from).collect());
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let broken = all(|page, line| {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let to_file = links.filter(|link| !link.contains("://")).map(|link| link.split('#').next().unwrap_or(link));
        let is_broken = |file: &&str| !page.parent().is_some_and(|dir| dir.join(file).exists());
        to_file.filter(is_broken).map(String::from).collect()
    });
    assert!(broken.is_empty(), "they lead nowhere:\n{}", broken.join("\n"));
}

/// What links call a heading.
fn anchor(heading: &str) -> String {
    let of = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => Some(c).filter(|c| c.is_alphanumeric()),
    };
    heading.trim().to_lowercase().chars().filter_map(of).collect()
}

#[test]
fn links_lead_to_headings() {
    assert_eq!(anchor(" Who answers: `a_b`, twice "), "who-answers-a_b-twice");
    let has = |page: &Path, wanted: &str| {
        let text = fs::read_to_string(page).unwrap_or_default();
        text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line.trim_start_matches('#')) == wanted)
    };
    let broken = all(|page, line| {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let to_heading = links.filter(|link| !link.contains("://")).filter_map(|link| link.split_once('#'));
        let is_broken = |(file, heading): &(&str, &str)| {
            let to = if file.is_empty() { page.to_path_buf() } else { page.with_file_name(file) };
            to.extension().is_some_and(|ending| ending == "md") && !has(&to, heading)
        };
        to_heading.filter(is_broken).map(|(file, heading)| format!("{file}#{heading}")).collect()
    });
    assert!(broken.is_empty(), "they lead to no heading:\n{}", broken.join("\n"));
}

#[test]
fn commands_that_are_named_are_there() {
    let known: BTreeSet<&str> = commands().chain(["help"]).collect();
    let unknown = all(|_, line| {
        let named =
            line.split("./tandem ").skip(1).filter_map(|rest| rest.split([' ', '`', ',', '.', ')', '|']).next());
        named
            .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()) && !known.contains(word))
            .map(String::from)
            .collect()
    });
    assert!(unknown.is_empty(), "no such command:\n{}", unknown.join("\n"));
}

/// The last but one column of the table has them, a long name perhaps cut (`…`).
#[test]
fn tests_that_hold_findings_are_there() {
    let mut found = Vec::new();
    files(&host::root(), &mut found);
    found.retain(|path| !path.starts_with(host::root().join("docs")));
    let sources: Vec<String> = found.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let is_name = |word: &&str| {
        word.len() >= 20 && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let missing = all(|page, line| {
        let names = quoted(line).filter(|_| page.ends_with("findings.md")).map(|word| word.trim_end_matches('…'));
        names
            .filter(is_name)
            .filter(|name| !sources.iter().any(|text| text.contains(*name)))
            .map(String::from)
            .collect()
    });
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn each_group_of_checks_is_described() {
    let mut scripts = Vec::new();
    files(&host::root().join("images/xen/tests"), &mut scripts);
    let page = fs::read_to_string(host::root().join("docs/toolstack.md")).expect("a page");
    let group = |script: &PathBuf| script.file_stem().map(|name| name.to_string_lossy().into_owned());
    let missing: Vec<_> =
        scripts.iter().filter_map(group).filter(|name| !page.contains(&format!("\n| `{name}` |"))).collect();
    assert!(missing.is_empty(), "docs/toolstack.md has no row for {missing:?}");
}

/// What looks up a floor without naming it.
#[test]
fn what_is_installed_from_above_is_listed() {
    let mut found = Vec::new();
    files(&host::root().join("hv/src"), &mut found);
    let page = fs::read_to_string(host::root().join("docs/changing.md")).expect("a page");
    let of = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let name = |line: &str| {
            let (name, of) = line.strip_prefix("static ")?.split_once(": Once<")?;
            ["fn(", "&'static dyn", "Hooks"].iter().any(|what| of.starts_with(what)).then(|| format!("`{name}`"))
        };
        text.lines().filter_map(name).collect::<Vec<_>>()
    };
    let installed: Vec<_> = found.into_iter().flat_map(of).collect();
    assert!(installed.len() > 5, "{installed:?}");
    let missing: Vec<_> = installed.iter().filter(|name| !page.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/changing.md does not have {missing:?}");
}

/// Operators look for what is Breaking at the start of lines.
#[test]
fn each_entry_of_the_changelog_has_one_mark_at_its_start() {
    const MARKS: [&str; 4] = ["New: ", "Changed: ", "Fixed: ", "Breaking: "];
    let text = fs::read_to_string(host::root().join("CHANGELOG.md")).expect("the changelog");
    let entries = text.split("\n- ").skip(1).map(|entry| entry.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_wrong = |entry: &String| {
        let rest = MARKS.iter().find_map(|mark| entry.strip_prefix(mark));
        rest.is_none_or(|rest| MARKS.iter().any(|mark| rest.contains(&format!(" {mark}"))))
    };
    let wrong: Vec<_> = entries.filter(is_wrong).collect();
    assert!(wrong.is_empty(), "no mark at the start, or another one behind it:\n{}", wrong.join("\n"));
}

/// Numbers of `row 10 of PAGE`, `rows 10, 20 and 30 of PAGE` in the comments of a file.
fn rows_of(text: &str) -> Vec<u32> {
    let text: Vec<_> = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!']).trim()).collect();
    let text = text.join(" ");
    let mut before: Vec<_> = text.split(" of `docs/architecture.md`").collect();
    before.pop();
    let named = |part: &str| part.rsplit_once("row").map_or("", |(_, named)| named.trim_start_matches('s')).to_owned();
    let is_list =
        |named: &String| named.split([' ', ',']).all(|word| word == "and" || word.bytes().all(|b| b.is_ascii_digit()));
    let lists = before.into_iter().map(named).filter(is_list);
    lists.flat_map(|list| list.split([' ', ',']).filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The table of locks is in order, and files that say which locks they take name rows of it.
#[test]
fn rows_of_locks_that_are_named_are_there() {
    assert_eq!(rows_of("//! locks: rows 10, 20\n//! and 30 of `docs/architecture.md`.\n/// row 7, a lock of `docs/architecture.md`"), [10, 20, 30]);
    let page = fs::read_to_string(host::root().join("docs/architecture.md")).expect("a page");
    let table = page.split("\n## ").find(|part| part.starts_with("Locks\n")).expect("the chapter");
    let row = |line: &str| line.strip_prefix("| ")?.split_once(" |")?.0.parse::<u32>().ok();
    let rows: Vec<u32> = table.lines().filter_map(row).collect();
    assert!(rows.len() > 20 && rows.is_sorted_by(|a, b| a < b), "{rows:?}");
    let mut found = Vec::new();
    files(&host::root().join("hv/src"), &mut found);
    let named = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_default();
        rows_of(&text).into_iter().map(|row| (path.clone(), row)).collect::<Vec<_>>()
    };
    let named: Vec<_> = found.into_iter().flat_map(named).collect();
    assert!(named.len() > 20, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|(_, row)| !rows.contains(row)).collect();
    assert!(missing.is_empty(), "docs/architecture.md has no such row of locks: {missing:?}");
}

/// The formatter breaks code, but leaves comments as they are. Tables of Markdown cannot be broken.
#[test]
fn comments_are_no_wider_than_code() {
    let settings = fs::read_to_string(host::root().join("rustfmt.toml")).expect("the formatter's settings");
    let width = settings.lines().find_map(|line| line.strip_prefix("max_width = ")?.parse::<usize>().ok());
    let width = width.expect("the width of code");
    let mut found = Vec::new();
    files(&host::root(), &mut found);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    assert!(found.len() > 500, "{}", found.len());
    let is_wide = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!', ' ']));
        comment.is_some_and(|text| !text.starts_with('|')) && line.chars().count() > width
    };
    let of = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source");
        let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line));
        wide.map(|(i, line)| format!("{}:{}: {line}", path.display(), i + 1)).collect::<Vec<_>>()
    };
    let wide: Vec<_> = found.iter().flat_map(of).collect();
    assert!(wide.is_empty(), "comments wider than {width} columns:\n{}", wide.join("\n"));
}
