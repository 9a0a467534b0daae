//! The commands on the twin: see `docs/twin.md`.
use twin_harness::rig::{make, Rig};
use twin_harness::*;
use twin_rewrite::options::Mode;

fn main() {
    let driver = std::env::args().nth(1).unwrap();
    let mode = if std::env::args().nth(2).as_deref() == Some("stlb") { Mode::Stlb } else { Mode::Mirror };
    let cases: u64 = std::env::args().nth(3).and_then(|n| n.parse().ok()).unwrap_or(100);
    let rig = Rig::open(&driver).unwrap();
    let made = make(&rig.module, &Rig::options(mode)).unwrap();
    println!("{driver} {}: {:?} {:?}", mode.name(), made.output.refused, made.rewriting);
    let t = std::time::Instant::now();
    if std::env::args().nth(4).as_deref() == Some("native") {
        let (mut lab, mut native) = rig.native(made.verified().unwrap()).unwrap();
        println!("{:?} {:?}", traffic::run(&mut lab, &mut native, cases, 1), t.elapsed());
    } else {
        println!("{:?} {:?}", equivalence::run(&rig, &made, cases, 1), t.elapsed());
    }
}
