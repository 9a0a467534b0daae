//! Warnings that are limited in rate, which needs a clock.

use crate::arch::tsc;
use crate::console::{is_shown, print_at, Level};
use crate::sync::Mutex;
use core::fmt;
use hv_core::rate::Rate;

/// Warnings of one kind that a device or a guest can cause as often as it likes: ten a second, and how many more there
/// were.
pub struct Limited(Mutex<Rate>);

impl Limited {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Rate::new(10, 1_000_000_000)))
    }

    /// Prints one line, or counts it.
    #[cold]
    pub fn warn(&self, args: fmt::Arguments<'_>) {
        let turn = self.0.lock().count(tsc::now_ns());
        if !is_shown(Level::Warn) {
            return;
        }
        if turn.unsaid != 0 {
            print_at(Level::Warn, format_args!("{} more like the following", turn.unsaid));
        }
        if turn.is_said {
            print_at(Level::Warn, args);
        }
    }
}
