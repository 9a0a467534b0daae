//! A twin that charges itself to the budget does what the original does. Needs the snapshot of e1000.

mod common;

use twin_harness::equivalence;
use twin_harness::rig::{make, Rig};
use twin_rewrite::options::{Mode, Options};

#[test]
fn a_counted_twin_does_what_the_original_does() {
    let Some(rig) = common::rig("a_counted_twin_does_what_the_original_does") else { return };
    for mode in [Mode::Mirror, Mode::Stlb] {
        let made = make(&rig.module, &Options { counted: true, ..Rig::options(mode) }).expect("rewritten");
        let out = equivalence::run(&rig, &made, 100, 3).expect("no difference");
        assert!(out.cases == 125 && out.packets.0 > 0 && out.packets.1 > 0);
        println!("{} cases, {} deeds", out.cases, out.deeds);
    }
}
