//! Development aid: rewrites and verifies module files, prints what is refused.
use twin_rewrite::*;
fn main() {
    let mode = if std::env::var("MODE").as_deref() == Ok("stlb") { options::Mode::Stlb } else { options::Mode::Mirror };
    for p in std::env::args().skip(1) {
        let b = std::fs::read(&p).unwrap();
        let m = match ko::load(&b, "x", ko::DEFAULT_BASE, &|_| None) { Ok(m) => m, Err(e) => { println!("{p}: {e}"); continue } };
        let mut o = options::Options::new(mode);
        if std::env::var("NOBMI").is_ok() { o.bmi = false; }
        if std::env::var("BLOCK").is_ok() { o.reuse = options::Reuse::Block; }
        if std::env::var("ACCESS").is_ok() { o.reuse = options::Reuse::Access; }
        let t = std::time::Instant::now();
        let out = match rewrite::rewrite(&m, &o) { Ok(o) => o, Err(e) => { println!("{p}: {e}"); continue } };
        let dt = t.elapsed();
        println!("{p}: {} functions, {} refused, {:?} in {dt:?}, {} bytes", out.functions, out.refused.len(), out.counts, out.image.len());
        for r in &out.refused { println!("   {} {}: {}", r.function, m.describe(r.address), r.reason); }
        let img = twin_abi::Image::parse(&out.image).unwrap();
        let policy = twin_verify::Policy { mode: match mode { options::Mode::Stlb => twin_abi::image::Mode::Stlb, _ => twin_abi::image::Mode::Mirror }, mask_bits: if mode == options::Mode::Mirror {46} else {0}, counted: false, bmi: o.bmi };
        let t = std::time::Instant::now();
        let mut n = 0;
        let v = twin_verify::list(&out.image, &policy, &mut |r| { n += 1; if n < 12 { println!("   REFUSED {r} in {} from {}", img.function_at(r.offset).map(|f| img.name(f.name, f.name_len)).unwrap_or("?"), img.origin_of(r.offset).map(|o| m.describe(img.text + u64::from(o))).unwrap_or_default()); } true });
        println!("   verified: {:?} in {:?} ({n} refusals)", v, t.elapsed());
    }
}
