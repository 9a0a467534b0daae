//! Runs a verified twin: invocation, budget, abort, address table, translation, imports. `no_std`, behind a trait.
