//! The command line: one command, some words, some options.

use anyhow::{bail, Context, Result};
use testbed::machine::Qemu;

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub command: String,
    /// Words after the command, such as a test level and name.
    pub words: Vec<String>,
    /// `--hypervisor`: a path, `xen` or `none`; the environment's `TANDEM_HYPERVISOR` otherwise.
    pub hypervisor: Option<String>,
    /// `--qemu`: the version that machines run in.
    pub qemu: Option<Qemu>,
    pub cpus: Option<u32>,
    /// Boot tests side by side.
    pub jobs: Option<usize>,
    pub mib: Option<u64>,
    pub seconds: Option<u64>,
    /// `--operations` and `--seed`: of the hostile test kernel.
    pub operations: Option<u64>,
    pub seed: Option<u64>,
    pub table: bool,
    pub full: bool,
    pub lint: bool,
    pub list: bool,
    pub verbose: bool,
    pub toolstack: bool,
}

impl Options {
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options =
            Self { hypervisor: std::env::var("TANDEM_HYPERVISOR").ok().filter(|v| !v.is_empty()), ..Self::default() };
        let mut words = Vec::new();
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--hypervisor" => options.hypervisor = Some(value()?),
                "--qemu" => options.qemu = Some(Qemu::parse(&value()?)?),
                "--cpus" => options.cpus = Some(value()?.parse().context("--cpus needs a number")?),
                "--jobs" => {
                    let jobs = value()?.parse().ok().filter(|n| *n > 0);
                    options.jobs = Some(jobs.context("--jobs needs a number above nothing")?);
                }
                "--mib" => options.mib = Some(value()?.parse().context("--mib needs a number")?),
                "--seconds" => options.seconds = Some(value()?.parse().context("--seconds needs a number")?),
                "--operations" => options.operations = Some(value()?.parse().context("--operations needs a number")?),
                "--seed" => options.seed = Some(value()?.parse().context("--seed needs a number")?),
                "--table" => options.table = true,
                "--full" => options.full = true,
                "--lint" => options.lint = true,
                "--toolstack" => options.toolstack = true,
                "--list" => options.list = true,
                "-v" | "--verbose" => options.verbose = true,
                "--help" | "-h" => words.insert(0, "help".into()),
                other if other.starts_with('-') => bail!("unknown option `{other}`; ./tandem help lists them"),
                _ => words.push(arg),
            }
        }
        if !words.is_empty() {
            options.command = words.remove(0);
        }
        options.words = words;
        Ok(options)
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

    fn parse(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(String::from))
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
    fn surplus_words_are_errors() {
        let o = parse("test xl one two").unwrap();
        assert!(o.takes_words(3).is_ok());
        assert!(o.takes_words(2).unwrap_err().to_string().contains("`two`"));
    }

    #[test]
    fn an_unknown_option_and_a_missing_value_are_errors() {
        assert!(parse("run --frobnicate").is_err());
        assert!(parse("run --cpus").is_err());
        assert!(parse("run --cpus two").is_err());
        assert!(parse("run --qemu 9").is_err());
        assert!(parse("test --jobs 0").is_err());
        assert_eq!(parse("test --jobs 3").unwrap().jobs, Some(3));
    }
}
