//! Pages come and go, packed and whole: each is what it was, and no frame is lost.

use super::super::packs::{MOST, UNIT};
use super::*;
use crate::mmu::fake::Machine;
use proptest::prelude::*;
use std::vec::Vec;
use x86::PAGE_SIZE;

/// Pages to keep, and frames for copies.
const SPARE: u64 = 40;
const FIRST: u64 = 8;
const PAGE: Mfn = Mfn::new(3);
const BACK: Mfn = Mfn::new(4);

fn machine() -> Machine {
    let machine = Machine::new(FIRST + SPARE);
    machine.spare.lock().unwrap().extend((FIRST..FIRST + SPARE).map(Mfn::new));
    machine
}

fn free(machine: &Machine) -> usize {
    machine.spare.lock().unwrap().len()
}

/// Bytes without order.
fn noise(mut seed: u64, to: &mut [u8]) {
    for byte in to {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *byte = seed.to_be_bytes()[0];
    }
}

/// A page of which the first part has no order, and the rest repeats itself.
fn page_of(seed: u64, noisy: usize, period: usize) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    let (first, rest) = page.split_at_mut(noisy.min(PAGE_SIZE));
    noise(seed, first);
    for (n, byte) in rest.iter_mut().enumerate() {
        *byte = u8::try_from(n % period % 251).unwrap_or(0) ^ seed.to_le_bytes()[0];
    }
    page
}

fn contents(of: Mfn, machine: &Machine) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    machine.read_bytes(of, 0, &mut page);
    page
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(80) })]
    #[test]
    fn every_page_comes_back(ops in proptest::collection::vec((0u8..8, 0u64..12, 0usize..5000, 1usize..300, any::<bool>()), 1..120)) {
        let machine = machine();
        let mut copies = Copies::new();
        let mut model: Vec<(Kept, [u8; PAGE_SIZE])> = Vec::new();
        for (what, seed, noisy, period, is_packed) in ops {
            if what >= 5 && !model.is_empty() {
                let (kept, _) = model.swap_remove(noisy % model.len());
                copies.give_up(kept, &machine);
                continue;
            }
            // Half of them are few enough to be there already.
            let page = if what & 1 == 0 { page_of(seed, noisy, period) } else { page_of(seed % 3, noisy % 4 * 900, 7) };
            machine.write_bytes(PAGE, 0, &page);
            let was_there = model.iter().any(|(_, kept)| *kept == page);
            let form = if is_packed { Form::Packed } else { Form::Whole };
            let before = free(&machine);
            match copies.keep(PAGE, form, &machine) {
                Some((kept, is_found)) => {
                    // Two pages have the same sum once in four milliards.
                    prop_assert_eq!(is_found, was_there);
                    prop_assert!(!is_found || free(&machine) == before);
                    prop_assert!(is_found || is_packed || kept.packed().is_none());
                    model.push((kept, page));
                }
                None => prop_assert_eq!(free(&machine), 0),
            }
            // However they come and go: each frame has one at least.
            let different = model.iter().enumerate().filter(|(n, (_, page))| model[..*n].iter().all(|(_, other)| other != page));
            prop_assert!(SPARE - (free(&machine) as u64) <= different.count() as u64);
            for (kept, page) in &model {
                machine.clear_page(BACK);
                prop_assert!(copies.write_back(*kept, BACK, &machine));
                prop_assert_eq!(&contents(BACK, &machine)[..], &page[..]);
            }
        }
        model.into_iter().for_each(|(kept, _)| copies.give_up(kept, &machine));
        prop_assert_eq!((copies.count(), copies.nr_packs(), free(&machine) as u64), (0, 0, SPARE));
    }

    /// The pieces of all frames, against a list of what is in use.
    #[test]
    fn pieces_are_apart_and_their_frames_go_back(ops in proptest::collection::vec((any::<bool>(), 1usize..=MOST, any::<u16>()), 1..300)) {
        let machine = machine();
        let mut packs = Packs::new();
        let mut pieces: Vec<Place> = Vec::new();
        for (is_new, len, which) in ops {
            if !is_new && !pieces.is_empty() {
                packs.give_up(pieces.swap_remove(usize::from(which) % pieces.len()), &machine);
            } else if let Some(place) = packs.take(len, &machine) {
                prop_assert_eq!(place.len(), len);
                prop_assert!(place.offset() + len <= PAGE_SIZE);
                pieces.push(place);
            } else {
                prop_assert_eq!(free(&machine), 0);
            }
            let mut used = std::collections::BTreeMap::<Mfn, Vec<bool>>::new();
            for piece in &pieces {
                let units = used.entry(piece.mfn()).or_insert_with(|| std::vec![false; PAGE_SIZE / UNIT]);
                for unit in &mut units[piece.offset() / UNIT..][..piece.len().div_ceil(UNIT)] {
                    prop_assert!(!core::mem::replace(unit, true), "two pieces overlap");
                }
            }
            prop_assert_eq!((packs.nr_frames(), SPARE - packs.nr_frames()), (used.len() as u64, free(&machine) as u64));
        }
        // Another frame is only taken if there is no gap in any.
        let mut all: Vec<Place> = Vec::new();
        let frames = packs.nr_frames();
        while let Some(place) = packs.take(UNIT, &machine).filter(|_| packs.nr_frames() == frames) {
            all.push(place);
        }
        let units: u64 = pieces.iter().map(|piece| piece.takes() / UNIT as u64).sum();
        if frames < SPARE {
            prop_assert_eq!(all.len() as u64 + units, frames * (PAGE_SIZE / UNIT) as u64);
        }
    }
}

/// It costs nothing to ask for it where it does not help.
#[test]
fn what_does_not_shrink_is_whole() {
    let machine = machine();
    let mut copies = Copies::new();
    let mut page = page_of(1, PAGE_SIZE, 1);
    machine.write_bytes(PAGE, 0, &page);
    let (noise, _) = copies.keep(PAGE, Form::Packed, &machine).unwrap();
    assert_eq!((noise.packed(), copies.nr_packs()), (None, 0));
    // Three quarters of it are, and a little says what the rest is.
    page[MOST - 8 * UNIT..].fill(7);
    machine.write_bytes(PAGE, 0, &page);
    let (shrunk, _) = copies.keep(PAGE, Form::Packed, &machine).unwrap();
    assert!(shrunk.packed().is_some_and(|takes| (2560..2816).contains(&takes)), "{shrunk:?}");
    page[..MOST + 8].copy_from_slice(&page_of(2, PAGE_SIZE, 1)[..MOST + 8]);
    machine.write_bytes(PAGE, 0, &page);
    let (too_large, _) = copies.keep(PAGE, Form::Packed, &machine).unwrap();
    assert_eq!((too_large.packed(), copies.nr_packs()), (None, 1));
    [noise, shrunk, too_large].into_iter().for_each(|kept| copies.give_up(kept, &machine));
    assert_eq!(free(&machine) as u64, SPARE);
}

/// What goes between others makes room for what is as large.
#[test]
fn gaps_are_used_again() {
    let machine = machine();
    let mut packs = Packs::new();
    let four: Vec<Place> = (0..4).map(|_| packs.take(1024, &machine).unwrap()).collect();
    let other = packs.take(MOST, &machine).unwrap();
    packs.give_up(four[1], &machine);
    packs.give_up(four[2], &machine);
    assert_eq!(packs.take(1000, &machine).unwrap().mfn(), other.mfn(), "it leaves the larger gap to others");
    let between = packs.take(2048, &machine).unwrap();
    assert_eq!((between.mfn(), between.offset()), (four[0].mfn(), 1024));
    assert_eq!(packs.nr_frames(), 2);
}

/// Piece after piece of what an LZ4 decoder may be told: errors, and no panic.
#[test]
fn anything_may_be_unpacked() {
    let machine = machine();
    let mut copies = Copies::new();
    machine.write_bytes(PAGE, 0, &page_of(5, 1000, 9));
    let (kept, _) = copies.keep(PAGE, Form::Packed, &machine).unwrap();
    let mut bytes = [0; MOST];
    for seed in 0..3000 {
        machine.read_bytes(kept.place.mfn(), 0, &mut bytes);
        if seed % 3 == 0 {
            noise(seed, &mut bytes);
        } else {
            let at = usize::try_from(seed).unwrap() * 7 % 1100;
            bytes[at] ^= seed.to_le_bytes()[0] | 1;
        }
        machine.write_bytes(kept.place.mfn(), 0, &bytes);
        copies.write_back(kept, BACK, &machine);
    }
    copies.give_up(kept, &machine);
}
