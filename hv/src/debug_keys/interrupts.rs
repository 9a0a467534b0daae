//! Key `i`: lines and messages that domains are told of, how often each has fired, and who is waited for.

use super::say;
use crate::arch::tsc;
use crate::irq::guest;
use core::fmt::{self, Display, Formatter};
use hv_core::pirq::{Look, Sharer};

pub(super) fn print() {
    let mut from = 0;
    // The lock is not held while it is printed.
    while let Some(look) = { guest::lock().look(from) } {
        from = look.irq + 1;
        say!("  {}", Line(&look));
        look.sharers().for_each(|sharer| say!("    {}", Told(&sharer)));
    }
}

struct Line<'a>(&'a Look);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match (self.0.is_message, self.0.is_level) {
            (true, _) => "message",
            (false, true) => "wire, level",
            (false, false) => "wire, edge",
        };
        write!(f, "{}: {kind}, fired {} times", self.0.irq, self.0.fired)?;
        if let Some(until) = self.0.held_until {
            write!(f, ", held for another {} ns", until.saturating_sub(tsc::now_ns()))?;
        }
        f.write_str(if self.0.is_abandoned { ", watched since a sharer left" } else { "" })
    }
}

struct Told<'a>(&'a Sharer);

impl Display for Told<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Sharer { to, is_waited_for, is_late, is_alone } = self.0;
        write!(f, "d{} pirq {}, port {}", to.dom, to.pirq, to.port)?;
        for (is, what) in
            [(is_waited_for, "its EOI is waited for"), (is_late, "it does not answer"), (is_alone, "told alone")]
        {
            if *is {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}
