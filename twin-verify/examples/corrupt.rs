//! Damages an accepted image many times: `corrupt IMAGE [COUNT [SEED]]`. Each result is refused or stays inside in the emulator.

use std::time::Instant;

use twin_abi::image::{flags, Image};
use twin_verify::{fuzzing, verify, Policy};

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: corrupt IMAGE [COUNT [SEED]]");
    let number = |arg: Option<String>, default| arg.map_or(default, |a| a.parse().expect("a number"));
    let (count, seed) = (number(args.next(), 1_000_000), number(args.next(), 1));
    let mut bytes = std::fs::read(&path).expect("readable");
    let image = Image::parse(&bytes).expect("an image");
    let counted = image.flags & flags::COUNTED != 0;
    let policy = Policy { mode: image.mode, mask_bits: image.mask_bits, counted, bmi: true };
    let start = Instant::now();
    let verified = verify(&bytes, &policy).unwrap_or_else(|refusal| panic!("not accepted: {refusal}"));
    println!("{path}: {} instructions verified in {:?}", verified.instructions(), start.elapsed());
    match fuzzing::corrupt(&mut bytes, &policy, seed, count) {
        Ok(sum) => println!("{path}: {sum:?}, 0 escapes in {:?}", start.elapsed()),
        Err((escape, offset, bytes)) => panic!("escape at {offset:#x} {bytes:02x?}: {escape:x?}"),
    }
}
