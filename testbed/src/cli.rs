//! Command lines: words and options in any order. A command tells its options as a table.

use anyhow::{bail, ensure, Context, Result};
use lexopt::{Arg, ValueExt};
use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// What an option does to the settings `T`.
pub enum Takes<T> {
    /// It stands alone.
    Nothing(fn(&mut T)),
    /// It has a value. An error says what is wrong with that; the option's name is added.
    Value(fn(&mut T, &str) -> Result<()>),
}

/// An option: its name without dashes (a name of one letter has one dash, others have two), and what it does.
pub type Known<T> = (&'static str, Takes<T>);

/// Applies the options among `args`, which does not begin with the program, to `settings`. Gives the other words.
/// Errors: an option that is not `known`, one without its value or with a value that it does not need, and what a
/// value's own function says.
pub fn parse<T>(args: impl IntoIterator<Item = OsString>, settings: &mut T, known: &[Known<T>]) -> Result<Vec<String>> {
    parse_all(args, settings, known).map(|parsed| parsed.words)
}

/// What a command line consists of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// What is no option and no value of one.
    pub words: Vec<String>,
    /// Names of the options that were given.
    pub options: Vec<&'static str>,
}

/// The same; gives the names of the options, too.
pub fn parse_all<T>(args: impl IntoIterator<Item = OsString>, settings: &mut T, known: &[Known<T>]) -> Result<Parsed> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut parsed = Parsed::default();
    while let Some(arg) = parser.next()? {
        let (name, shown) = match arg {
            Arg::Value(word) => {
                parsed.words.push(word.string()?);
                continue;
            }
            Arg::Long(name) => (name.to_string(), format!("--{name}")),
            Arg::Short(letter) => (letter.to_string(), format!("-{letter}")),
        };
        let found = known.iter().find(|(known, _)| *known == name);
        parsed.options.extend(found.map(|(name, _)| *name));
        match found {
            Some((_, Takes::Nothing(set))) => set(settings),
            Some((_, Takes::Value(set))) => {
                let value = parser.value().with_context(|| format!("{shown} needs a value"))?.string()?;
                set(settings, &value).with_context(|| shown)?;
            }
            None => {
                let names = known.iter().map(|(name, _)| *name).filter(|name| name.len() > 1);
                match meant(&name, names) {
                    Some(other) => bail!("unknown option {shown}; did you mean --{other}?"),
                    None => bail!("unknown option {shown}; ./tandem help lists them"),
                }
            }
        }
    }
    Ok(parsed)
}

/// Where among `args` the first word is, if these options are skipped.
pub fn first_word<T>(args: &[OsString], known: &[Known<T>]) -> Option<usize> {
    let mut at = 0;
    while let Some(option) = args.get(at)?.to_str().filter(|arg| arg.starts_with('-')) {
        let name = option.trim_start_matches('-');
        let has_value = known.iter().any(|(known, takes)| *known == name && matches!(takes, Takes::Value(_)));
        at += 1 + usize::from(has_value);
    }
    Some(at)
}

/// A number, for an option's value.
pub fn number<N: FromStr>(value: &str) -> Result<N> {
    value.parse().ok().with_context(|| format!("`{value}` is not a number that fits"))
}

/// A number in this range.
pub fn number_in<N: FromStr + PartialOrd + Display>(value: &str, range: RangeInclusive<N>) -> Result<N> {
    let number = number(value)?;
    ensure!(range.contains(&number), "it is from {} to {}", range.start(), range.end());
    Ok(number)
}

/// One of `choices` by its name.
pub fn choice<C: Copy>(value: &str, choices: &[(&str, C)]) -> Result<C> {
    match choices.iter().find(|(name, _)| *name == value) {
        Some((_, choice)) => Ok(*choice),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            bail!("there is no `{value}`; there are {}", names.join(", "))
        }
    }
}

/// Which of `names` somebody most likely meant who wrote `name`, if any is like it.
pub fn meant<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const ALIKE: f64 = 0.75;
    let likeness = |known: &&str| strsim::jaro_winkler(name, known);
    names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|known| likeness(known) > ALIKE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Settings {
        count: u32,
        full: bool,
    }

    const KNOWN: [Known<Settings>; 3] = [
        ("count", Takes::Value(|s, value| number(value).map(|n| s.count = n))),
        ("full", Takes::Nothing(|s| s.full = true)),
        ("f", Takes::Nothing(|s| s.full = true)),
    ];

    fn run(line: &str) -> Result<(Settings, Vec<String>)> {
        let mut settings = Settings::default();
        let words = parse(line.split_whitespace().map(OsString::from), &mut settings, &KNOWN)?;
        Ok((settings, words))
    }

    fn refused(line: &str) -> String {
        run(line).map(|_| ()).map_or_else(|error| format!("{error:#}"), |()| "nothing".into())
    }

    #[test]
    fn words_and_options_may_be_mixed() {
        let (settings, words) = run("one --count 5 two -f").unwrap();
        assert_eq!(
            (settings.count, settings.full, words.as_slice()),
            (5, true, ["one".into(), "two".into()].as_slice())
        );
        assert_eq!(run("--count=7").unwrap().0.count, 7);
    }

    #[test]
    fn the_first_word_is_found_behind_options_and_their_values() {
        let at = |line: &str| first_word(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>(), &KNOWN);
        assert_eq!([at("one two"), at("-f one"), at("--count 5 -f one"), at("--count=5 one")], [0, 1, 3, 1].map(Some));
        assert_eq!([at(""), at("-f"), at("--count 5"), at("--count")], [None; 4]);
    }

    #[test]
    fn options_that_were_given_are_told() {
        let mut settings = Settings::default();
        let parsed = parse_all(["-f", "x", "--count", "1"].map(OsString::from), &mut settings, &KNOWN).unwrap();
        assert_eq!(parsed, Parsed { words: vec!["x".into()], options: vec!["f", "count"] });
    }

    #[test]
    fn errors_name_the_option_and_what_was_meant() {
        assert_eq!(refused("--cuont 5"), "unknown option --cuont; did you mean --count?");
        assert_eq!(refused("--frobnicate"), "unknown option --frobnicate; ./tandem help lists them");
        assert_eq!(refused("-x"), "unknown option -x; ./tandem help lists them");
        assert!(refused("--count").starts_with("--count needs a value"));
        assert_eq!(refused("--count two"), "--count: `two` is not a number that fits");
        assert!(refused("--full=yes").contains("--full"));
    }

    #[test]
    fn a_choice_names_the_others() {
        let choices = [("stlb", 1), ("mirror", 2)];
        assert_eq!(choice("mirror", &choices).unwrap(), 2);
        assert_eq!(choice("shadow", &choices).unwrap_err().to_string(), "there is no `shadow`; there are stlb, mirror");
    }
}
