//! Facts that only the initial domain sees: its VGA console description.
