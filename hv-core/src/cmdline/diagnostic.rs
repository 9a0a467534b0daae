//! What can be said about a command line.

use alloc::string::String;
use core::fmt;

/// One complaint. `Display` gives one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diagnostic {
    /// No option of this name.
    Unknown(String),
    /// An option of Xen that means nothing here.
    Ignored(String),
    /// An option of Xen that would mean something here, but is not done.
    Unsupported(String),
    /// A value that cannot be read; the default holds.
    BadValue {
        /// The option.
        name: String,
        /// The value given.
        value: String,
        /// What it should look like.
        expected: &'static str,
    },
    /// Two options that cannot both hold.
    Contradiction {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// What happens.
        effect: &'static str,
    },
}

impl Diagnostic {
    /// Whether the administrator should look at it; otherwise it is for information.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::Ignored(_))
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown option '{}' is ignored", Printable(name)),
            Self::Ignored(name) => write!(f, "option '{}' has no effect here", Printable(name)),
            Self::Unsupported(name) => write!(f, "option '{}' is not supported here", Printable(name)),
            Self::BadValue { name, value, expected } => {
                write!(f, "option '{}' has the bad value '{}'; expected: {expected}", Printable(name), Printable(value))
            }
            Self::Contradiction { first, second, effect } => {
                write!(f, "options '{first}' and '{second}' contradict each other: {effect}")
            }
        }
    }
}

/// Text from the command line, fit for a console.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| fmt::Write::write_char(f, if c.is_control() { '?' } else { c }))
    }
}
