#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use core::cell::RefCell;

const ALL: Offers = Offers { write: true, flush: true, barrier: true, discard: true };

/// A request with `nr` segments of whole pages.
fn slot(operation: u8, nr: u8) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    words[0] = u32::from(operation) | u32::from(nr) << 8;
    words[2..6].copy_from_slice(&[0x89ab_cdef, 0x0123_4567, 1000, 0]);
    for (n, pair) in words[6..].chunks_exact_mut(2).take(nr.into()).enumerate() {
        pair.copy_from_slice(&[50 + n as u32, 7 << 8]);
    }
    words
}

/// Each word is read once at most.
fn decode(request: &mut Request, words: &[u32; WORDS], offers: Offers) -> Slot {
    let read = RefCell::new([false; WORDS]);
    let word = |at: usize| {
        assert!(!core::mem::replace(&mut read.borrow_mut()[at], true), "word {at} is read twice");
        words[at]
    };
    request.decode(word, offers)
}

fn whole_of(words: &[u32; WORDS], offers: Offers) -> Result<Request, Answer> {
    let mut request = Request::default();
    match decode(&mut request, words, offers) {
        Slot::Whole => Ok(request),
        Slot::Refused(answer) => Err(answer),
        Slot::Indirect(_) => panic!("not an indirect one"),
    }
}

#[test]
fn a_read_is_what_the_words_say() {
    let request = whole_of(&slot(BLKIF_OP_READ, 11), Offers::default()).expect("a good one");
    assert_eq!((request.kind, request.id, request.sector), (Kind::Read, 0x0123_4567_89ab_cdef, 1000));
    assert_eq!((request.segments().len(), request.bytes(), request.is_write()), (11, 11 * 4096, false));
    assert_eq!(request.segments()[10], Segment { gref: 60, first: 0, last: 7 });
}

#[test]
fn what_was_not_offered_is_refused() {
    let refused = |operation, offers| whole_of(&slot(operation, 1), offers).expect_err("not offered");
    let answer = |operation, status| Answer { id: 0x0123_4567_89ab_cdef, operation, status };
    for (operation, offers, status) in [
        (BLKIF_OP_WRITE, Offers { write: false, ..ALL }, BLKIF_RSP_ERROR),
        (BLKIF_OP_FLUSH_DISKCACHE, Offers { flush: false, ..ALL }, BLKIF_RSP_EOPNOTSUPP),
        (BLKIF_OP_WRITE_BARRIER, Offers { barrier: false, ..ALL }, BLKIF_RSP_EOPNOTSUPP),
        (BLKIF_OP_DISCARD, Offers { discard: false, ..ALL }, BLKIF_RSP_EOPNOTSUPP),
        (BLKIF_OP_DISCARD, Offers { write: false, ..ALL }, BLKIF_RSP_EOPNOTSUPP),
        // A flush that writes, on a disk that is not written.
        (BLKIF_OP_FLUSH_DISKCACHE, Offers { write: false, ..ALL }, BLKIF_RSP_ERROR),
        (4, ALL, BLKIF_RSP_EOPNOTSUPP),
        (7, ALL, BLKIF_RSP_EOPNOTSUPP),
        (255, ALL, BLKIF_RSP_EOPNOTSUPP),
    ] {
        assert_eq!(refused(operation, offers), answer(operation, status));
    }
    // But one without segments writes nothing.
    let read_only = Offers { write: false, ..ALL };
    assert!(whole_of(&slot(BLKIF_OP_FLUSH_DISKCACHE, 0), read_only).is_ok());
}

#[test]
fn segments_that_cannot_be_are_refused() {
    for nr in [0u32, 12, 255] {
        let mut words = slot(BLKIF_OP_WRITE, 11);
        words[0] = u32::from(BLKIF_OP_WRITE) | nr << 8;
        assert!(whole_of(&words, ALL).is_err(), "{nr} segments");
    }
    for place in [8 << 8, 0xff << 8, 1, 7 | 6 << 8, 8 | 8 << 8] {
        let mut words = slot(BLKIF_OP_READ, 3);
        words[7 + 2 * 2] = place;
        assert!(whole_of(&words, ALL).is_err(), "sectors {place:#x}");
    }
    let mut words = slot(BLKIF_OP_READ, 2);
    words[4..6].copy_from_slice(&[u32::MAX - 15, u32::MAX]);
    assert!(whole_of(&words, ALL).is_err(), "beyond the last sector that there could be");
    words[4] -= 1;
    assert!(whole_of(&words, ALL).is_ok());
}

#[test]
fn an_indirect_request_has_its_segments_elsewhere() {
    let mut words = slot(BLKIF_OP_INDIRECT, 0);
    words[0] = u32::from(BLKIF_OP_INDIRECT) | u32::from(BLKIF_OP_WRITE) << 8 | 32 << 16;
    words[7] = 99;
    let mut request = Request::default();
    let Slot::Indirect(indirect) = decode(&mut request, &words, ALL) else { panic!("an indirect one") };
    assert_eq!((indirect.gref, indirect.bytes()), (99, 256));
    let mut list: std::vec::Vec<u8> = (0..32u32).flat_map(|n| [n as u8, 1, 0, 0, 1, 2, 9, 9]).collect();
    assert!(request.set_list(&list));
    assert_eq!((request.kind, request.segments().len(), request.bytes()), (Kind::Write, 32, 32 * 1024));
    assert_eq!(request.segments()[31], Segment { gref: 256 + 31, first: 1, last: 2 });
    list[31 * 8 + 5] = 8;
    assert!(!request.set_list(&list) && request.refused().operation == BLKIF_OP_WRITE);
    for bad in [
        u32::from(BLKIF_OP_WRITE) << 8 | 33 << 16,
        u32::from(BLKIF_OP_WRITE) << 8,
        u32::from(BLKIF_OP_WRITE) << 8 | 0x0120 << 16,
        u32::from(BLKIF_OP_FLUSH_DISKCACHE) << 8 | 1 << 16,
        u32::from(BLKIF_OP_INDIRECT) << 8 | 1 << 16,
    ] {
        words[0] = u32::from(BLKIF_OP_INDIRECT) | bad;
        assert!(matches!(decode(&mut Request::default(), &words, ALL), Slot::Refused(_)), "{bad:#x}");
    }
}

#[test]
fn a_discard_has_a_length_and_one_flag() {
    let mut words = slot(BLKIF_OP_DISCARD, 0xff);
    words[6..8].copy_from_slice(&[5, 1]);
    let request = whole_of(&words, ALL).expect("a good one");
    assert_eq!((request.discard_sectors, request.discard_flag, request.segments().len()), (5 | 1 << 32, 1, 0));
    assert!(request.is_write());
    words[6..8].copy_from_slice(&[u32::MAX, u32::MAX]);
    assert!(whole_of(&words, ALL).is_err());
}

#[test]
fn answers_are_what_they_were() {
    let answer = Answer { id: u64::MAX - 5, operation: 3, status: BLKIF_RSP_EOPNOTSUPP };
    assert_eq!(Answer::decode(answer.encode()), answer);
}
