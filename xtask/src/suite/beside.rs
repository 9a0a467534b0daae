//! The checks of stock `xl` beside stock Xen: `./tandem test xl [NAME] --table` runs them on both and writes the page.
//! The sections of groups that were not run stay as they are.

use super::{Bed, Score, Test};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use testbed::host;

const INTRODUCTION: &str = "\
# The toolstack's checks, beside stock Xen

Each check is a command of Debian's stock `xl`, or what became of it; `docs/toolstack.md` says what the groups are. They run
unchanged on Debian's Xen 4.17 and on Tandem, with the same images under QEMU's software CPU. This page is written by
`./tandem test xl [NAME] --table`, which runs the groups on both. It has the groups that were run so, each as of then: later checks
are missing. A dash: the check was not reached there.
";

/// What a check came to, by its name.
type Results = Vec<(String, String)>;

/// Runs `tests` on both hypervisors. False if one fails on Tandem, or stock Xen came to no check of it; then its
/// section stays as it is.
pub fn table(tests: &[Test], xen: &Bed, tandem: &Bed, score: &mut Score) -> Result<bool> {
    let mut sections = sections(&std::fs::read_to_string(page()).unwrap_or_default());
    let mut good = true;
    for test in tests {
        let [(theirs, _), (ours, has_passed)] = [xen, tandem].map(|bed| on(test, bed, score));
        good &= is_good(&theirs, &ours, has_passed);
        if theirs.is_empty() || ours.is_empty() {
            println!("FAIL: {}: there is nothing to compare", test.name);
            continue;
        }
        sections.insert(test.name.clone(), section(&theirs, &ours));
    }
    let text: String = sections.iter().map(|(name, body)| format!("\n## {name}\n{body}")).collect();
    std::fs::write(page(), format!("{INTRODUCTION}{text}"))?;
    println!("{}", page().display());
    Ok(good)
}

fn page() -> PathBuf {
    host::root().join("docs/toolstack-checks.md")
}

/// Whether what passes on stock Xen, of which there is something, passes on Tandem, and the test as a whole.
fn is_good(theirs: &Results, ours: &Results, has_passed: bool) -> bool {
    let passes = |(name, result): &(String, String)| result != "ok" || find(ours, name) == Some("ok");
    has_passed && !theirs.is_empty() && theirs.iter().all(passes)
}

/// One test on one hypervisor, and whether it passed.
fn on(test: &Test, bed: &Bed, score: &mut Score) -> (Results, bool) {
    let start = Instant::now();
    checks(bed);
    let result = (test.run)(bed);
    score.note(&bed.hypervisor.name(), &test.name, start.elapsed().as_secs_f32(), &result);
    (checks(bed), result.is_ok())
}

/// What was noted since it was last asked for.
fn checks(bed: &Bed) -> Results {
    bed.checks.lock().map(|mut checks| std::mem::take(&mut *checks)).unwrap_or_default()
}

/// What a line of dom0's says about a check: `check ok NAME`, `check FAIL NAME: why`, `check lacking NAME: why`.
pub fn result(report: &str) -> Option<(String, String)> {
    let (result, rest) = report.strip_prefix("check ")?.split_once(' ')?;
    let name = rest.split(':').next()?.trim();
    Some((name.into(), result.into()))
}

fn find<'a>(results: &'a Results, name: &str) -> Option<&'a str> {
    results.iter().find(|(n, _)| n == name).map(|(_, result)| result.as_str())
}

/// The rows, in the order in which the checks ran; those of Xen alone at the end.
fn section(theirs: &Results, ours: &Results) -> String {
    let only_theirs = theirs.iter().filter(|(name, _)| find(ours, name).is_none());
    let row = |(name, _): &(String, String)| {
        let word = |results| find(results, name).unwrap_or("-");
        format!("| {name} | {} | {} |\n", word(theirs), word(ours))
    };
    let rows: String = ours.iter().chain(only_theirs).map(row).collect();
    format!("\n| check | stock Xen | Tandem |\n|---|---|---|\n{rows}")
}

/// The page's sections by their titles.
fn sections(page: &str) -> BTreeMap<String, String> {
    let section = |text: &str| text.split_once('\n').map(|(name, body)| (name.to_string(), body.to_string()));
    page.split("\n## ")
        .skip(1)
        .filter_map(section)
        .map(|(name, body)| (name, body.trim_end().to_string() + "\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(list: &[(&str, &str)]) -> Results {
        list.iter().map(|(n, r)| (n.to_string(), r.to_string())).collect()
    }

    #[test]
    fn a_report_names_a_check_and_what_it_came_to() {
        assert_eq!(result("check ok pause"), Some(("pause".into(), "ok".into())));
        assert_eq!(result("check FAIL pause: status 1: it ran: on|"), Some(("pause".into(), "FAIL".into())));
        assert_eq!(result("group many over uptime=3"), None);
    }

    #[test]
    fn a_comparison_is_good_if_tandem_passes_and_there_is_something_to_compare() {
        let [ok, bad] = ["ok", "FAIL"].map(|result| results(&[("a", result)]));
        assert!(is_good(&ok, &ok, true) && is_good(&bad, &ok, true));
        assert!(!is_good(&ok, &bad, true) && !is_good(&ok, &results(&[]), true));
        // Fails on both; stock Xen does not boot; what follows after the checks fails.
        assert!(!is_good(&bad, &bad, false) && !is_good(&results(&[]), &ok, true) && !is_good(&ok, &ok, false));
    }

    #[test]
    fn a_page_that_was_written_is_read_back() {
        let body = section(&results(&[("a", "ok"), ("z", "ok")]), &results(&[("a", "FAIL"), ("b", "ok")]));
        assert!(body.contains("| a | ok | FAIL |\n| b | - | ok |\n| z | ok | - |\n"), "{body}");
        let page = format!("{INTRODUCTION}\n## one\n{body}\n## two\n{body}");
        let read = sections(&page);
        assert_eq!(read.keys().collect::<Vec<_>>(), ["one", "two"]);
        assert!(read.values().all(|b| *b == body), "{read:?}");
    }
}
