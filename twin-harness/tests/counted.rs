//! A twin that charges itself to the budget does what the original does. Needs the snapshot of e1000.

use twin_harness::equivalence;
use twin_harness::rig::{cache, make, Rig};
use twin_rewrite::options::{Mode, Options};

#[test]
fn a_counted_twin_does_what_the_original_does() {
    let dir = cache().join("snapshots").join("e1000");
    if !dir.join("index").exists() {
        eprintln!("no snapshot of e1000: nothing compared");
        return;
    }
    let rig = Rig::from_dir(&dir).expect("the snapshot opens");
    for mode in [Mode::Mirror, Mode::Stlb] {
        let made = make(&rig.module, &Options { counted: true, ..Rig::options(mode) }).expect("rewritten");
        let out = equivalence::run(&rig, &made, 100, 3).expect("no difference");
        assert!(out.cases == 100 && out.packets.0 > 0 && out.packets.1 > 0);
        println!("{} cases, {} deeds", out.cases, out.deeds);
    }
}
