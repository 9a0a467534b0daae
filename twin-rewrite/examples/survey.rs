use twin_rewrite::*;
use std::collections::*;
fn main() {
    for p in std::env::args().skip(1) {
        let b = std::fs::read(&p).unwrap();
        let m = match ko::load(&b, "x", ko::DEFAULT_BASE, &|_| None) { Ok(m) => m, Err(e) => { println!("{p}: {e}"); continue } };
        let prog = program::recover(&m);
        let n: usize = prog.bodies.values().map(|b| b.nodes.len()).sum();
        println!("{p}: {} functions, {} insns, refused {}", prog.bodies.len(), n, prog.refused.len());
        for r in &prog.refused { println!("   {} {}: {}", r.function, m.describe(r.address), r.reason); }
        let l = liveness::solve(&prog);
        let mut mn: BTreeMap<String, usize> = BTreeMap::new();
        let mut gs: BTreeMap<String, usize> = BTreeMap::new();
        let mut dead=0; let mut mem=0;
        for (f, b) in &prog.bodies { for (a, n) in &b.nodes {
            *mn.entry(format!("{:?}", n.instruction.mnemonic())).or_default() += 1;
            let i=&n.instruction;
            if i.segment_prefix()==iced_x86::Register::GS { *gs.entry(format!("{} {:?} {}", i, i.memory_base(), m.externs.below(i.memory_displacement64()).map(|x|x.0.to_string()).unwrap_or_default())).or_default()+=1; }
            if (0..i.op_count()).any(|k| i.op_kind(k)==iced_x86::OpKind::Memory) && i.memory_base().is_gpr() && i.memory_base()!=iced_x86::Register::RSP { mem+=1; if !(l.after(*f,*a)|l.before(*f,*a)).has(11) {dead+=1;} }
        } }
        println!("  mem {mem} r11 dead {dead}");
        println!("  {}", mn.iter().map(|(k,v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" "));
        let gl: usize = gs.len(); println!("  gs forms {gl}: {:?}", gs.iter().take(12).collect::<Vec<_>>());
    }
}
