//! Which boot tests a plain `./tandem test` runs: the list `expected.txt`.
//!
//! Some of the long ones differ in a device or in a way of dying, and all of them together would take longer than
//! anybody waits for before a change lands. Such ones take turns. The commit says whose turn it is: its hash is as good
//! as a die, and one commit has one turn, whoever tests it. Where no commit is known, all of them run.

use anyhow::{ensure, Result};
use std::process::Command;
use testbed::host;

/// Of tests that take turns each is in one of so many.
pub const TURNS: u64 = 4;
/// What a line of tests that take turns starts with.
const IN_TURNS: &str = "in turns:";
/// And one of tests that do not run: their name, and why.
#[cfg(test)]
const NEVER: &str = "never:";

/// When a plain `./tandem test` runs a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// From 1 on.
    InTurn(u64),
    Never,
}

impl When {
    /// As the list of tests says it.
    pub fn words(self) -> String {
        match self {
            Self::InTurn(turn) => format!("  in turn {turn} of {TURNS}"),
            Self::Always | Self::Never => String::new(),
        }
    }
}

/// Whose turn it is: `chosen`, or what the commit says.
pub fn turn(chosen: Option<u64>) -> Result<Option<u64>> {
    if let Some(turn) = chosen {
        ensure!((1..=TURNS).contains(&turn), "--turn is 1 to {TURNS}");
        return Ok(chosen);
    }
    let git = Command::new("git").args(["rev-parse", "--verify", "--quiet", "HEAD"]).current_dir(host::root()).output();
    Ok(git.ok().filter(|out| out.status.success()).and_then(|out| of_commit(&String::from_utf8_lossy(&out.stdout))))
}

/// By the first 32 bits of its hash.
fn of_commit(hash: &str) -> Option<u64> {
    u64::from_str_radix(hash.trim().get(..8)?, 16).ok().map(|number| number % TURNS + 1)
}

/// When the test of this name runs.
pub fn when(name: &str) -> When {
    in_list(include_str!("expected.txt"), name)
}

/// The same, by a list: a line names a test, or the beginning of several with a `*` at its end; or tests that take
/// turns.
fn in_list(list: &str, name: &str) -> When {
    let lines = || list.lines().map(str::trim).filter(|line| !line.starts_with('#') && !line.is_empty());
    for names in lines().filter_map(|line| line.strip_prefix(IN_TURNS)) {
        if let Some(turn) = (1..).zip(names.split_whitespace()).find_map(|(turn, n)| (n == name).then_some(turn)) {
            return When::InTurn(turn);
        }
    }
    if lines().any(|line| is_named(line, name)) {
        When::Always
    } else {
        When::Never
    }
}

fn is_named(line: &str, name: &str) -> bool {
    line.strip_suffix('*').map_or(line == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;

    const LIST: &str = "# a comment\nalone\nmany-*\n\nin turns: many-a b c\n  in turns: d";

    #[test]
    fn a_test_runs_always_or_in_its_turn_or_not_at_all() {
        let whens = [("alone", When::Always), ("many-x", When::Always), ("many-a", When::InTurn(1))];
        for (name, when) in whens.into_iter().chain([("c", When::InTurn(3)), ("d", When::InTurn(1))]) {
            assert_eq!(in_list(LIST, name), when, "{name}");
        }
        for name in ["", "alon", "alone-", "in", "in turns:", "# a comment", "turns:"] {
            assert_eq!(in_list(LIST, name), When::Never, "{name}");
        }
    }

    #[test]
    fn a_commit_has_one_turn_and_each_turn_has_commits() {
        let of = |hash: &str| of_commit(hash);
        assert_eq!(of("00000000ffff\n"), Some(1));
        assert_eq!([of("00000001"), of("00000003"), of("00000004")], [Some(2), Some(4), Some(1)]);
        for hash in ["", "fatal: not a git repository", "0000000"] {
            assert_eq!(of(hash), None, "{hash}");
        }
    }

    #[test]
    fn a_turn_that_is_chosen_is_one_of_them() {
        assert_eq!(turn(Some(TURNS)).unwrap(), Some(TURNS));
        assert!(turn(Some(0)).is_err() && turn(Some(TURNS + 1)).is_err());
    }

    #[test]
    fn the_help_says_how_many_turns_there_are() {
        assert!(crate::HELP.contains(&format!("(1 to {TURNS})")));
    }

    #[test]
    fn every_line_of_the_list_names_tests_and_each_turn_has_as_many() {
        let tests: Vec<String> = suite::all().into_iter().map(|test| test.name).collect();
        for line in lines() {
            if line.starts_with(IN_TURNS) {
                assert_eq!(names(line).len() as u64, TURNS, "{line}");
            } else if line.starts_with(NEVER) {
                assert!(line.split_whitespace().count() > 2, "it does not say why: {line}");
            }
            for name in names(line) {
                assert!(tests.iter().any(|test| is_named(name, test)), "there is no test {name}");
            }
        }
    }

    #[test]
    fn every_test_is_on_one_line_of_the_list() {
        for test in suite::all() {
            let its = lines().flat_map(names).filter(|name| is_named(name, &test.name)).count();
            assert_eq!(its, 1, "{} is on so many lines of expected.txt; what does not run is on one, too", test.name);
        }
    }

    fn lines() -> impl Iterator<Item = &'static str> {
        include_str!("expected.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty())
    }

    /// The tests of a line, of which the last letter may be a `*`.
    fn names(line: &'static str) -> Vec<&'static str> {
        if let Some(names) = line.strip_prefix(IN_TURNS) {
            return names.split_whitespace().collect();
        }
        let name = line.strip_prefix(NEVER).map_or(Some(line), |rest| rest.split_whitespace().next());
        name.into_iter().collect()
    }
}
