//! What is told of a twin: counts, functions that it had called, and why and where it was aborted.

use control::told::{Aborted, Upcall};
use std::time::{SystemTime, UNIX_EPOCH};
use twin_abi::op::reason;
use twin_rewrite::module::Module;
use twind::device::Status;

/// Kernel functions that it had called, by name.
pub fn upcalls(module: &Module, status: &Status) -> Vec<Upcall> {
    let name = |(function, count): &(u64, u64)| Upcall { function: name(module, *function), count: *count };
    status.called.iter().map(name).collect()
}

/// A function is called at its beginning, which needs no offset.
fn name(module: &Module, function: u64) -> String {
    match function {
        0 => "others".into(),
        _ => module.describe(function).trim_end_matches("+0x0").into(),
    }
}

/// How it ended, which it has.
pub fn aborted(module: &Module, status: &Status) -> Aborted {
    let stats = &status.stats;
    Aborted {
        reason: words(stats.reason).into(),
        at: if stats.original == 0 { "no instruction of its own".into() } else { module.describe(stats.original) },
        detail: format!("{:#x}", stats.detail),
        time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    }
}

/// An abort's reason.
pub fn words(of: u32) -> &'static str {
    match of {
        reason::MEMORY => "it accessed memory that it may not",
        reason::EXCEPTION => "the processor raised an exception",
        reason::BUG => "it came to a BUG of the driver's",
        reason::BUDGET => "it used up its budget",
        reason::TIME_OUT => "it took too long",
        reason::INDIRECT_CALL => "it called an address that is no function",
        reason::IMPORT => "it called a function that is not served",
        reason::STACK_POINTER => "it handed out an address of its own stack",
        reason::LOCK => "a lock stayed taken",
        reason::STRUCTURE => "a structure was in a state that the driver must not produce",
        reason::STACK => "it used up its stack",
        reason::UPCALL => "this domain did not answer a call in time",
        _ => "for a reason that is not known here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twin_abi::op::TwinStats;
    use twin_rewrite::module::{Function, Section};
    use twind::device::{Call, State};

    fn module() -> Module {
        let mut module = Module { name: "e1000".into(), ..Module::default() };
        module.sections.push(Section {
            name: ".text".into(),
            address: 0x1000,
            bytes: vec![0x90; 0x100],
            executable: true,
            writable: false,
        });
        module.functions.push(Function { address: 0x1000, len: 0x40, name: "probe".into() });
        module.functions.push(Function { address: 0x1040, len: 0xc0, name: "e1000_xmit_frame".into() });
        module.externs.add(0x9000, "netif_carrier_ok");
        module
    }

    #[test]
    fn an_abort_names_symbol_and_offset() {
        let stats = TwinStats { reason: reason::MEMORY, original: 0x105b, detail: 16, ..TwinStats::default() };
        let call = Call { reason: 0, result: 0, detail: 0, original: 0 };
        let mut status = Status {
            state: State::Loaded,
            obstacle: 0,
            is_disabled: true,
            stats,
            areas: 0,
            refused: None,
            lent: 0,
            news: 0,
            call,
            called: vec![(0x9000, 4), (0, 2)],
        };
        let told = aborted(&module(), &status);
        assert_eq!((told.at.as_str(), told.detail.as_str()), ("e1000_xmit_frame+0x1b", "0x10"));
        assert!(told.reason.contains("memory"));
        status.stats.original = 0;
        assert_eq!(aborted(&module(), &status).at, "no instruction of its own");
        let called: Vec<_> = upcalls(&module(), &status).into_iter().map(|call| (call.function, call.count)).collect();
        assert_eq!(called, [("netif_carrier_ok".into(), 4), ("others".into(), 2)]);
    }

    #[test]
    fn each_reason_has_words_of_its_own() {
        let all: std::collections::BTreeSet<&str> = (reason::MEMORY..=reason::UPCALL).map(words).collect();
        assert_eq!(all.len(), reason::UPCALL as usize);
        assert!(!all.contains(words(99)));
    }
}
