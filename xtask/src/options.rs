//! The command line: one command, some words, some options.

use anyhow::{bail, Result};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use testbed::cli::{self, number, number_in, Known, Takes};
use testbed::machine::{iommu_named, Qemu};

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub command: String,
    /// Names of the options that were given.
    pub given: Vec<&'static str>,
    /// Words after the command, such as a test level and name.
    pub words: Vec<String>,
    /// `--hypervisor`: a path, `xen` or `none`; the environment's `TANDEM_HYPERVISOR` otherwise.
    pub hypervisor: Option<String>,
    /// `--qemu`: the version that machines run in.
    pub qemu: Option<Qemu>,
    pub cpus: Option<u32>,
    /// Boot tests side by side.
    pub jobs: Option<usize>,
    /// `--turn`: which of the tests run that take turns.
    pub turn: Option<u64>,
    pub mib: Option<u64>,
    pub seconds: Option<u64>,
    /// `--operations` and `--seed`: of the hostile test kernel.
    pub operations: Option<u64>,
    pub seed: Option<u64>,
    /// `--vcpus`: of a test kernel that has several.
    pub vcpus: Option<u64>,
    /// `--iommu`: of the machine that a test kernel runs in.
    pub iommu: Option<&'static str>,
    pub table: bool,
    pub full: bool,
    pub lint: bool,
    pub list: bool,
    pub verbose: bool,
    pub toolstack: bool,
    /// `--gdb`: the machine waits for it.
    pub gdb: bool,
    pub help: bool,
}

/// The hypervisor knows no more.
const MAX_CPUS: u32 = 64;
/// Files of so many are made.
const MAX_MIB: u64 = 1 << 16;
/// A month. To libFuzzer 0 seconds are no limit.
const MAX_SECONDS: u64 = 31 * 24 * 3600;
/// Time limits follow from it. Without any operation nothing would be tested.
const MAX_OPERATIONS: u64 = 1_000_000_000;

/// What each option does.
const KNOWN: &[Known<Options>] = &[
    (
        "hypervisor",
        Takes::Value(|o, value| {
            o.hypervisor = Some(value.into());
            Ok(())
        }),
    ),
    ("qemu", Takes::Value(|o, value| Qemu::parse(value).map(|qemu| o.qemu = Some(qemu)))),
    ("cpus", Takes::Value(|o, value| number_in(value, 1..=MAX_CPUS).map(|n| o.cpus = Some(n)))),
    ("jobs", Takes::Value(|o, value| number::<NonZero<usize>>(value).map(|n| o.jobs = Some(n.get())))),
    ("turn", Takes::Value(|o, value| number(value).map(|n| o.turn = Some(n)))),
    ("mib", Takes::Value(|o, value| number_in(value, 1..=MAX_MIB).map(|n| o.mib = Some(n)))),
    ("seconds", Takes::Value(|o, value| number_in(value, 1..=MAX_SECONDS).map(|n| o.seconds = Some(n)))),
    ("operations", Takes::Value(|o, value| number_in(value, 1..=MAX_OPERATIONS).map(|n| o.operations = Some(n)))),
    ("seed", Takes::Value(|o, value| number(value).map(|n| o.seed = Some(n)))),
    ("vcpus", Takes::Value(|o, value| number::<NonZero<u64>>(value).map(|n| o.vcpus = Some(n.get())))),
    ("iommu", Takes::Value(|o, value| iommu_named(value).map(|unit| o.iommu = unit))),
    ("table", Takes::Nothing(|o| o.table = true)),
    ("full", Takes::Nothing(|o| o.full = true)),
    ("lint", Takes::Nothing(|o| o.lint = true)),
    ("list", Takes::Nothing(|o| o.list = true)),
    ("gdb", Takes::Nothing(|o| o.gdb = true)),
    ("toolstack", Takes::Nothing(|o| o.toolstack = true)),
    ("verbose", Takes::Nothing(|o| o.verbose = true)),
    ("v", Takes::Nothing(|o| o.verbose = true)),
    ("help", Takes::Nothing(|o| o.help = true)),
    ("h", Takes::Nothing(|o| o.help = true)),
];
/// Options of a machine.
macro_rules! machine {
    ($($more:literal),*) => { &["hypervisor", "qemu", $($more),*] };
}

/// Commands, how many words each takes, and which options. Those on the twin are of another program: `twin.rs`.
const COMMANDS: &[(&str, usize, &[&str])] = &[
    ("run", 0, machine!["cpus", "mib", "verbose", "v", "gdb"]),
    ("test", 2, machine!["jobs", "turn", "mib", "seconds", "operations", "seed", "table", "full", "lint", "list"]),
    ("shell", 0, machine!["cpus", "toolstack", "gdb"]),
    ("images", 0, &["full"]),
    ("build", 0, &[]),
    // Each kind looks at its words itself, and none has another QEMU: `dispatch` says why.
    ("bench", usize::MAX, machine!["operations"]),
    ("fuzz", 1, &["seconds", "list"]),
    ("guests", 1, machine!["operations", "seed", "vcpus", "iommu", "table", "list"]),
    ("mutants", 1, &["list"]),
    ("iso", 0, &["hypervisor"]),
    ("screens", 1, machine!["list"]),
    ("abi", 0, &[]),
    ("size", 0, &[]),
    ("floors", 0, &[]),
];

/// A file where the user was when he named it, if there is one: `tandem` goes to the project's folder.
fn from_there(named: String, from: Option<&Path>) -> String {
    let from = from.filter(|_| !["xen", "none"].contains(&named.as_str()));
    let there = from.map(|from| from.join(&named)).filter(|path| path.is_file());
    there.and_then(|path| path.to_str().map(String::from)).unwrap_or(named)
}

/// Where among `args` the command is.
pub fn command_at(args: &[OsString]) -> Option<usize> {
    cli::first_word(args, KNOWN)
}

impl Options {
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut options =
            Self { hypervisor: std::env::var("TANDEM_HYPERVISOR").ok().filter(|v| !v.is_empty()), ..Self::default() };
        let parsed = cli::parse_all(args, &mut options, KNOWN)?;
        let mut words = parsed.words.into_iter();
        options.given = parsed.options;
        let from = std::env::var_os("TANDEM_FROM").map(PathBuf::from);
        options.hypervisor = options.hypervisor.map(|named| from_there(named, from.as_deref()));
        options.command = if options.help { "help".into() } else { words.next().unwrap_or_default() };
        options.words = words.collect();
        Ok(options)
    }

    /// An error if there are more words, or other options, than the command takes.
    pub fn fit(&self) -> Result<()> {
        let Some((name, most, options)) = COMMANDS.iter().find(|(name, ..)| *name == self.command) else {
            return Ok(());
        };
        self.takes_words(*most)?;
        match self.given.iter().find(|given| !options.contains(given)) {
            Some(other) => {
                let dashes = if other.len() > 1 { "--" } else { "-" };
                bail!("{dashes}{other} is not for `{name}`; ./tandem help says what {name} takes")
            }
            None => Ok(()),
        }
    }

    /// An error if there are more than so many words after the command.
    pub fn takes_words(&self, most: usize) -> Result<()> {
        let surplus = self.words.get(most);
        surplus.map_or(Ok(()), |word| bail!("what is `{word}` for? ./tandem help says what {} takes", self.command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn words_and_options_may_be_mixed() {
        let o = parse("test --full linux e1000 --mib 8").unwrap();
        assert_eq!(
            (o.command.as_str(), o.words, o.full, o.mib),
            ("test", vec!["linux".into(), "e1000".into()], true, Some(8))
        );
    }

    #[test]
    fn a_file_is_looked_for_where_the_user_is() {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"));
        let there = from.join("Cargo.toml").to_str().unwrap().to_string();
        assert_eq!(from_there("Cargo.toml".into(), Some(from)), there);
        assert_eq!(from_there(there.clone(), Some(from)), there);
        for (named, from) in [("xen", Some(from)), ("target/tandem.elf", Some(from)), ("Cargo.toml", None)] {
            assert_eq!(from_there(named.into(), from), named);
        }
    }

    #[test]
    fn surplus_words_are_errors() {
        let o = parse("test xl one two").unwrap();
        assert!(o.takes_words(3).is_ok());
        assert!(o.takes_words(2).unwrap_err().to_string().contains("`two`"));
    }

    #[test]
    fn options_of_other_commands_are_errors() {
        let said = |line| parse(line).unwrap().fit().map_or_else(|error| error.to_string(), |()| "nothing".into());
        assert_eq!(said("test --cpus 8"), "--cpus is not for `test`; ./tandem help says what test takes");
        assert_eq!(said("build -v"), "-v is not for `build`; ./tandem help says what build takes");
        assert!(said("test --gdb").starts_with("--gdb") && said("run --jobs 4").starts_with("--jobs"));
        assert!(said("shell --iommu vtd").starts_with("--iommu"));
        assert!(said("guests one two").contains("`two`"));
        for line in
            ["test xl --full --jobs 2", "run -v --mib 4 --gdb", "guests x --list", "bench net xen", "nosuch --full"]
        {
            assert_eq!(said(line), "nothing", "{line}");
        }
    }

    #[test]
    fn each_command_of_the_help_but_the_twins_says_what_it_takes() {
        let named: BTreeSet<&str> = crate::commands().filter(|name| !crate::twin::COMMANDS.contains(name)).collect();
        assert_eq!(COMMANDS.iter().map(|(name, ..)| *name).collect::<BTreeSet<_>>(), named);
        for (_, _, options) in COMMANDS {
            options.iter().for_each(|option| assert!(KNOWN.iter().any(|(known, _)| known == option), "{option}"));
        }
    }

    #[test]
    fn an_unknown_option_and_a_missing_value_are_errors() {
        let said = |line| parse(line).unwrap_err().to_string();
        assert_eq!(said("run --hypervizor x"), "unknown option --hypervizor; did you mean --hypervisor?");
        assert_eq!(said("run --frobnicate"), "unknown option --frobnicate; ./tandem help lists them");
        let why = format!("{:#}", parse("guests --iommu sparc").unwrap_err());
        assert_eq!(why, "--iommu: there is no IOMMU `sparc`: vtd, amd-vi or none");
        assert!(parse("run --cpus").is_err());
        assert!(parse("run --cpus two").is_err());
        for option in ["cpus", "mib", "seconds", "operations", "jobs", "vcpus"] {
            assert!(parse(&format!("test --{option} 0")).is_err(), "{option}");
            assert!(parse(&format!("test --{option} 1")).is_ok(), "{option}");
        }
        let why = format!("{:#}", parse("run --mib 1000000").unwrap_err());
        assert_eq!(why, "--mib: it is from 1 to 65536");
        assert!(parse("run --cpus 65").is_err());
        assert!(parse("run --qemu 9").is_err());
        assert!(parse("test --jobs 0").is_err());
        assert_eq!(parse("test --jobs 3").unwrap().jobs, Some(3));
    }
}
