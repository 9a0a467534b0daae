use super::*;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use proptest::prelude::*;

const NIC: Sbdf = Sbdf::new(0, 3, 0x20);
const OTHER: Sbdf = Sbdf::new(0, 0, 0x18);
const POWER: u16 = 0xc8;
const EXPRESS: u16 = 0x60;
const ADVANCED: u16 = 0xa0;

/// A function with a region of 128 KiB, one of 32 ports, a 64-bit one of 16 KiB, and a ROM of 256 KiB.
struct Hardware {
    words: RefCell<Vec<u32>>,
    /// It was written to while it answered.
    has_moved: Cell<bool>,
}

const WRITABLE: [(u16, u32); 5] =
    [(0x10, 0xfffe_0000), (0x14, 0xffff_ffe0), (0x18, 0xffff_c000), (0x1c, u32::MAX), (ROM, 0xfffc_0001)];

impl Hardware {
    fn new() -> Self {
        let mut words = vec![0; 1024];
        for (offset, value) in [
            (0x00, 0x100e_8086),
            (COMMAND, 0x0010_0007),
            (0x10, 0xfeb8_0000),
            (0x14, 0xc001),
            (0x18, 0x4000_0004),
            (0x1c, 0x38),
            (ROM, 0),
            (0x34, u32::from(POWER)),
            (INTERRUPT, 0x0000_010b),
            (POWER, 0x0002_0001 | u32::from(EXPRESS) << 8),
            (POWER + 4, 0x2008),
            (EXPRESS, 0x0002_0010 | u32::from(ADVANCED) << 8),
            (EXPRESS + 8, 0x2810),
            (ADVANCED, 0x0306_0013),
        ] {
            words[usize::from(offset) / 4] = value;
        }
        Self { words: RefCell::new(words), has_moved: Cell::new(false) }
    }

    fn bars(&self) -> Bars {
        Bars::read(self, 0)
    }
}

impl Registers for Hardware {
    fn read(&self, offset: u16) -> u32 {
        self.words.borrow()[usize::from(offset) / 4]
    }
}

impl Space for Hardware {
    fn write(&self, offset: u16, value: u32) {
        let is_on = self.read(COMMAND) & DECODE != 0;
        self.has_moved.set(self.has_moved.get() || is_on && offset != COMMAND);
        let mut words = self.words.borrow_mut();
        let word = &mut words[usize::from(offset) / 4];
        match WRITABLE.iter().find(|(at, _)| *at == offset) {
            Some((_, bits)) => *word = value & bits | *word & !bits & 0xf,
            None if offset == COMMAND => *word = value & 0xffff | *word & 0xffff_0000,
            None => {}
        }
    }
}

/// What was asked of the machine, and how many messages it has.
struct Fake {
    is_owned: bool,
    hardware: Hardware,
    written: Vec<(u16, u8, u32)>,
    mapped: Vec<Option<u16>>,
    room: usize,
}

impl Fake {
    fn new() -> Self {
        Self { is_owned: true, hardware: Hardware::new(), written: vec![], mapped: vec![], room: 4 }
    }
}

impl Machine for Fake {
    fn read(&mut self, at: Sbdf, offset: u16, width: u8) -> Option<u32> {
        assert_eq!(at, NIC);
        assert!(offset.is_multiple_of(width.into()) && offset < 4096);
        let word = self.hardware.read(offset & !3) >> (8 * (offset & 3));
        self.is_owned.then_some(if width == 4 { word } else { word & ((1 << (8 * u32::from(width))) - 1) })
    }
    fn write(&mut self, at: Sbdf, offset: u16, width: u8, value: u32) -> Option<()> {
        assert_eq!(at, NIC);
        assert!(offset.is_multiple_of(width.into()) && offset < 4096);
        self.written.push((offset, width, value));
        self.is_owned.then_some(())
    }
    fn map_message(&mut self, at: Sbdf, entry: Option<u16>) -> Result<u32, Errno> {
        assert_eq!(at, NIC);
        if self.mapped.contains(&entry) || self.mapped.len() == self.room {
            return Err(Errno::EEXIST);
        }
        self.mapped.push(entry);
        Ok(100 + u32::from(entry.unwrap_or(0)))
    }
    fn unmap_messages(&mut self, _: Sbdf) {
        self.mapped.clear();
    }
}

fn front(fake: &Fake) -> Front {
    let mut front = Front::default();
    assert!(front.add(Seen::new(NIC, 0, 11, &fake.hardware.bars(), &fake.hardware)));
    front
}

fn ask(front: &mut Front, fake: &mut Fake, asked: PciOp) -> Answer {
    let mut asked = asked;
    front.serve(&mut asked, &mut [], fake);
    if asked.err == 0 {
        Ok(asked.value)
    } else {
        Err(asked.err)
    }
}

fn read(offset: i32, size: i32) -> PciOp {
    PciOp { cmd: op::XEN_PCI_OP_CONF_READ, offset, size, ..PciOp::default() }
}

fn write(offset: i32, size: i32, value: u32) -> PciOp {
    PciOp { cmd: op::XEN_PCI_OP_CONF_WRITE, offset, size, value, ..PciOp::default() }
}

#[test]
fn regions_tell_their_sizes_and_stay_where_they_are() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    assert!(!fake.hardware.has_moved.get(), "it answered somewhere else");
    assert_eq!(fake.hardware.bars(), Hardware::new().bars());
    assert_eq!(fake.hardware.read(COMMAND), 0x0010_0007);
    for (offset, base, size) in [
        (0x10, 0xfeb8_0000, 0xfffe_0000),
        (0x14, 0xc001, 0xffff_ffe1),
        (0x18, 0x4000_0004, 0xffff_c004),
        (0x1c, 0x38, u32::MAX),
        (0x20, 0, 0),
        (0x30, 0, 0xfffc_0000),
    ] {
        assert_eq!(ask(&mut front, &mut fake, read(offset, 4)), Ok(base), "{offset:#x}");
        let ones = if offset == 0x30 { 0xffff_f800 } else { u32::MAX };
        assert_eq!(ask(&mut front, &mut fake, write(offset, 4, ones)), Ok(ones));
        assert_eq!(ask(&mut front, &mut fake, read(offset, 4)), Ok(size), "{offset:#x}");
        assert_eq!(ask(&mut front, &mut fake, read(offset + 2, 2)), Ok(size >> 16));
        assert_eq!(ask(&mut front, &mut fake, write(offset, 4, 0x1234_0000)), Ok(0x1234_0000));
        assert_eq!(ask(&mut front, &mut fake, read(offset, 4)), Ok(base), "it cannot be moved");
        assert_eq!(ask(&mut front, &mut fake, write(offset, 2, 0xffff)), Ok(0xffff));
        assert_eq!(ask(&mut front, &mut fake, read(offset, 4)), Ok(base), "half of it asks for nothing");
    }
    assert!(fake.written.is_empty());
}

#[test]
fn the_wire_is_that_of_the_machine() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    assert_eq!(ask(&mut front, &mut fake, read(0x3c, 1)), Ok(11));
    assert_eq!(ask(&mut front, &mut fake, read(0x3d, 1)), Ok(1));
    assert_eq!(ask(&mut front, &mut fake, write(0x3c, 1, 5)), Ok(5));
    assert_eq!(ask(&mut front, &mut fake, read(0x3c, 4)), Ok(0x10b));
    assert!(fake.written.is_empty());
}

#[test]
fn all_else_is_its_own_to_read_and_the_filters_to_judge() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    assert_eq!(ask(&mut front, &mut fake, read(0, 4)), Ok(0x100e_8086));
    assert_eq!(ask(&mut front, &mut fake, read(2, 2)), Ok(0x100e));
    assert_eq!(ask(&mut front, &mut fake, write(4, 2, 7)), Ok(7));
    assert_eq!(ask(&mut front, &mut fake, write(0xffc, 4, 9)), Ok(9));
    assert_eq!(fake.written, [(4, 2, 7), (0xffc, 4, 9)]);
}

#[test]
fn it_stays_awake() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    let control = i32::from(POWER + 4);
    for (offset, size, value) in [(control, 2, 0x810b), (control, 4, 0xf0f3), (control, 1, 3), (control + 2, 2, 3)] {
        assert_eq!(ask(&mut front, &mut fake, write(offset, size, value)), Ok(value));
    }
    let control = POWER + 4;
    assert_eq!(fake.written, [(control, 2, 0x8108), (control, 4, 0xf0f0), (control, 1, 0), (control + 2, 2, 3)]);
}

#[test]
fn its_domain_does_not_reset_it() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    let writes = [
        (EXPRESS + 8, 2, 0xa810, 0x2810),
        (EXPRESS + 8, 4, 0x000f_a810, 0x000f_2810),
        (EXPRESS + 9, 1, 0xa8, 0x28),
        (EXPRESS + 8, 1, 0x90, 0x90),
        (ADVANCED + 4, 1, 1, 0),
        (ADVANCED + 4, 2, 0x0101, 0x0100),
        (0x0f, 1, 0x40, 0),
        (0x0c, 4, 0x4000_4010, 0x4010),
    ];
    for (offset, size, value, _) in writes {
        assert_eq!(ask(&mut front, &mut fake, write(i32::from(offset), size, value)), Ok(value));
    }
    let passed = fake.written.iter().map(|(offset, _, value)| (*offset, *value)).collect::<Vec<_>>();
    assert_eq!(passed, writes.map(|(offset, _, _, passed)| (offset, passed)));
}

#[test]
fn what_is_not_there_is_not_there() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    let not_found = Err(op::XEN_PCI_ERR_DEV_NOT_FOUND);
    for (domain, bus, devfn) in [(0, 0, 1), (0, 0, 0x100), (0, 3, 0x20), (1, 0, 0), (0, u32::MAX, 0)] {
        let asked = PciOp { domain, bus, devfn, ..read(0, 4) };
        assert_eq!(ask(&mut front, &mut fake, asked), not_found, "{domain} {bus} {devfn}");
    }
    for (offset, size) in [(-4, 4), (4096, 4), (2, 4), (1, 2), (0, 3), (0, 8), (0, 0), (0, -1), (i32::MIN, 4)] {
        let invalid = Err(op::XEN_PCI_ERR_INVALID_OFFSET);
        assert_eq!(ask(&mut front, &mut fake, read(offset, size)), invalid, "{offset} {size}");
        assert_eq!(ask(&mut front, &mut fake, write(offset, size, 1)), invalid);
    }
    let asked = PciOp { cmd: 6, ..PciOp::default() };
    assert_eq!(ask(&mut front, &mut fake, asked), Err(op::XEN_PCI_ERR_NOT_IMPLEMENTED));
    fake.is_owned = false;
    assert_eq!(ask(&mut front, &mut fake, read(0, 4)), not_found);
    assert_eq!(ask(&mut front, &mut fake, write(4, 2, 1)), not_found);
    assert_eq!(ask(&mut front, &mut fake, read(0x3c, 1)), not_found);
}

fn enable(front: &mut Front, fake: &mut Fake, entries: &[u16], value: u32) -> Result<Vec<u16>, i32> {
    let mut messages: Vec<_> = entries.iter().map(|entry| MsixEntry { vector: 9, entry: *entry }).collect();
    let mut asked = PciOp { cmd: op::XEN_PCI_OP_ENABLE_MSIX, value, ..PciOp::default() };
    front.serve(&mut asked, &mut messages, fake);
    assert_eq!(asked.value, 0);
    (asked.err == 0).then(|| messages.iter().map(|message| message.vector).collect()).ok_or(asked.err)
}

#[test]
fn messages_can_be_used_again_and_again() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    let msi = |cmd| PciOp { cmd, ..PciOp::default() };
    assert_eq!(ask(&mut front, &mut fake, msi(op::XEN_PCI_OP_ENABLE_MSI)), Ok(100));
    assert_eq!(enable(&mut front, &mut fake, &[0], 1), Ok(vec![100]));
    assert_eq!(ask(&mut front, &mut fake, msi(op::XEN_PCI_OP_DISABLE_MSI)), Ok(0));
    assert!(fake.mapped.is_empty(), "as Linux ends MSI-X");
    assert_eq!(enable(&mut front, &mut fake, &[0, 2, 1], 3), Ok(vec![100, 102, 101]));
    // Without an end in between.
    assert_eq!(enable(&mut front, &mut fake, &[1, 2], 2), Ok(vec![101, 102]));
    assert_eq!(ask(&mut front, &mut fake, msi(op::XEN_PCI_OP_DISABLE_MSIX)), Ok(0));
    assert!(fake.mapped.is_empty());
}

#[test]
fn all_messages_or_none() {
    let mut fake = Fake::new();
    let mut front = front(&fake);
    let failed = Err(op::XEN_PCI_ERR_OP_FAILED);
    assert_eq!(enable(&mut front, &mut fake, &[0, 1, 2, 3, 4], 5), failed, "there are four");
    assert_eq!(enable(&mut front, &mut fake, &[0, 0], 2), failed, "one twice");
    assert_eq!(enable(&mut front, &mut fake, &[0, 1], 3), failed, "more than there are");
    assert_eq!(enable(&mut front, &mut fake, &[], 0), failed);
    assert!(fake.mapped.is_empty());
    fake.room = 0;
    let asked = PciOp { cmd: op::XEN_PCI_OP_ENABLE_MSI, ..PciOp::default() };
    assert_eq!(ask(&mut front, &mut fake, asked), Err(op::XEN_PCI_ERR_OP_FAILED));
}

#[test]
fn functions_have_places_of_their_own() {
    let hardware = Hardware::new();
    let seen = |at, devfn| Seen::new(at, devfn, 0, &hardware.bars(), &hardware);
    let mut front = Front::default();
    assert!(front.add(seen(NIC, 0)));
    assert!(!front.add(seen(OTHER, 0)) && !front.add(seen(NIC, 8)));
    for n in 1..8 {
        assert!(front.add(seen(Sbdf::new(0, n, 0), n << 3)));
    }
    assert!(!front.add(seen(OTHER, 0x48)), "there are eight");
}

proptest! {
    /// Whatever is asked: an answer, and the machine is asked for nothing that cannot be (the fake looks), nor are its
    /// base addresses written.
    #[test]
    fn any_request_has_an_answer(
        requests in prop::collection::vec((0u32..8, 0u32..3, 0u32..3, 0u32..9, -8i32..4104, -1i32..6, any::<u32>()), 1..64)
    ) {
        let mut fake = Fake::new();
        let mut front = front(&fake);
        for (cmd, domain, bus, devfn, offset, size, value) in requests {
            let mut asked = PciOp { cmd, domain: domain / 2, bus: bus / 2, devfn, offset, size, value, ..PciOp::default() };
            let mut messages = vec![MsixEntry::default(); value as usize % 8];
            front.serve(&mut asked, &mut messages, &mut fake);
            prop_assert!((-5..=0).contains(&asked.err));
        }
        prop_assert!(fake.written.iter().all(|(offset, ..)| region_at(offset & !3).is_none() && offset & !3 != INTERRUPT));
    }
}
