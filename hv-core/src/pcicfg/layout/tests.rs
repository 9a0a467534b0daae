use super::*;
use crate::rangeset::RangeSet;
use std::cell::Cell;
use std::vec;
use std::vec::Vec;

/// Configuration space in memory, which counts what is read.
struct Space(Vec<u8>, Cell<u32>);

impl Space {
    fn new() -> Self {
        let space = Self(vec![0; 4096], Cell::new(0));
        space.with(0, 0x1572_8086).with(4, 0x0010_0007).with(8, 0x0200_0002).with(0x0c, 0x0080_0000)
    }
    fn with(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }
}

impl Registers for Space {
    fn read(&self, offset: u16) -> u32 {
        assert_eq!(offset % 4, 0);
        self.1.set(self.1.get() + 1);
        let at = usize::from(offset);
        self.0.get(at..at + 4).map_or(u32::MAX, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// Memory below frame 0x8_0000, configuration space from 0xb_0000 to 0xb_ffff.
#[test]
fn a_table_of_messages_is_neither_in_memory_nor_in_configuration_space() {
    let place = |frame| match frame {
        ..0x8_0000 => Place::Ram,
        0xb_0000..=0xb_ffff => Place::Ours,
        _ => Place::Other,
    };
    assert!(may_be_registers(0xf_ebc0, 0xf_ebc3, place));
    assert!(may_be_registers(0xa_ffff, 0xa_ffff, place));
    assert!(!may_be_registers(0xa_ffff, 0xb_0000, place), "it reaches into configuration space");
    assert!(!may_be_registers(0xb_1234, 0xb_1234, place));
    assert!(!may_be_registers(0x7_ffff, 0x8_0000, place), "it begins in memory");
    assert!(!may_be_registers(0xff, 0x100, |_| Place::Other), "the first megabyte is no device's");
}

#[test]
fn a_frame_that_another_table_is_in_is_watched_all_the_time() {
    let mut watched = RangeSet::new();
    let tables = [(0xf_ebc0, 0xf_ebc3), (0xf_ebc3, 0xf_ebc4), (0xf_ebc1, 0xf_ebc1)];
    tables.iter().for_each(|(first, last)| watched.insert(*first, *last).unwrap());
    let left = || tables[1..].iter().copied();
    for frame in unshared(tables[0], left) {
        watched.remove(frame, frame).unwrap();
        assert!(left().all(|(first, last)| watched.contains_all(first, last)), "{frame:#x}");
    }
    assert_eq!([0xf_ebc0, 0xf_ebc2].map(|frame| watched.contains(frame)), [false; 2]);
    assert_eq!(unshared((5, 6), core::iter::empty).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn a_network_card() {
    let space = Space::new()
        .with(0x34, 0x40)
        .with(0x40, 0x0180_5005)
        .with(0x50, 0x0042_7011)
        .with(0x54, 0x2003)
        .with(0x70, 0x0002_8010)
        .with(0x74, 1 << 28)
        .with(0x80, 0xc803_0001)
        .with(0x100, 0x1402_000d)
        .with(0x140, 0x2001_0010)
        .with(0x200, 0x0001_0015);
    let l = Layout::read(&space).unwrap();
    assert_eq!((l.vendor, l.device, l.class, l.header, l.is_multi), (0x8086, 0x1572, 0x02_0000, 0, true));
    assert_eq!(l.msi, Some(Msi { cap: 0x40, is_64_bit: true, is_maskable: true }));
    let msix = l.msix.unwrap();
    assert_eq!(msix, Msix { cap: 0x50, bar: 3, offset: 0x2000, count: 0x43 });
    assert_eq!((l.express, l.has_reset), (Some(Express { cap: 0x70, kind: 0 }), true));
    assert_eq!(l.power, Some(0x80));
    assert_eq!((l.acs, l.moving), (Some(0x100), [Some((0x200, 0xfff)), None, Some((0x140, 0x1ff))]));
    let bars = Bars { words: [0, 0, 0, 0xfe00_000c, 0x1, 0], rom: 0 };
    assert_eq!(msix.table(&bars), Some((0x1_fe00_2000, 0x1_fe00_2000 + 0x43 * 16 - 1)));
    assert_eq!(msix.table(&Bars::default()), None, "no address");
    let last = Bars { words: [0, 0, 0, 0xffff_f00c, u32::MAX, 0], rom: 0 };
    assert_eq!(msix.table(&last), None, "it would wrap");
}

#[test]
fn a_conventional_device_has_no_extended_capabilities() {
    let space = Space::new().with(0x34, 0xdc).with(0xdc, 0x0206_0013).with(0x100, 0x0001_0010);
    let l = Layout::read(&space).unwrap();
    assert!(l.has_reset, "by advanced features");
    assert_eq!((l.msi, l.msix, l.express, l.power, l.moving), (None, None, None, None, [None; 3]));
}

#[test]
fn nobody_there_and_no_list() {
    assert_eq!(Layout::read(&Space::new().with(0, u32::MAX)), None);
    let l = Layout::read(&Space::new().with(4, 7).with(0x34, 0x40).with(0x40, 5)).unwrap();
    assert_eq!(l.msi, None, "the status says that there is no list");
}

#[test]
fn circles_end_and_tables_in_no_region_are_none() {
    let space = Space::new().with(0x34, 0x40).with(0x40, 0x4050).with(0x48, 5).with(0x70, 0x10);
    Layout::read(&space).unwrap();
    assert!(space.1.get() < 1000, "{} reads", space.1.get());
    let circle = Space::new().with(0x34, 0x70).with(0x70, 0x0010).with(0x100, 0x1001_0099);
    Layout::read(&circle).unwrap();
    assert!(circle.1.get() < 3000, "{} reads", circle.1.get());
    let nowhere = Space::new().with(0x34, 0x50).with(0x50, 0x11).with(0x54, 0x2007);
    assert_eq!(Layout::read(&nowhere).unwrap().msix, None);
}

#[test]
fn parts_of_a_message_capability() {
    let m = |is_64_bit, is_maskable| Msi { cap: 0x50, is_64_bit, is_maskable };
    let all = [m(false, false), m(true, false), m(false, true), m(true, true)];
    assert_eq!(all.map(Msi::data), [0x58, 0x5c, 0x58, 0x5c]);
    assert_eq!(all.map(Msi::mask), [None, None, Some(0x5c), Some(0x60)]);
    assert_eq!(all.map(Msi::len_bytes), [10, 14, 20, 24]);
}
