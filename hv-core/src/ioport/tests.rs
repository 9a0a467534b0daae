use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

#[derive(Debug, PartialEq, Eq)]
enum Access {
    In(u16, u8),
    Out(u16, u8, u32),
    Ins(u16, u8, usize),
    Outs(u16, u8, Vec<u8>),
    ConfigRead(ConfigAddress, u8),
    ConfigWrite(ConfigAddress, u8, u32),
}

/// Hardware that records and answers 0x5a5a5a5a, and the ports that the domain owns.
#[derive(Default)]
struct Bus(Vec<Access>, RangeSet);
#[derive(Default)]
struct Pci(Vec<Access>);

impl Ports for Bus {
    fn owns(&self, port: u16, width: u8) -> bool {
        self.1.contains_all(port.into(), u64::from(port) + u64::from(width) - 1)
    }
    fn read(&mut self, port: u16, width: u8) -> u32 {
        self.0.push(Access::In(port, width));
        0x5a5a_5a5a
    }
    fn write(&mut self, port: u16, width: u8, value: u32) {
        self.0.push(Access::Out(port, width, value));
    }
    fn read_string(&mut self, port: u16, width: u8, data: &mut [u8]) {
        self.0.push(Access::Ins(port, width, data.len()));
        data.fill(0x5a);
    }
    fn write_string(&mut self, port: u16, width: u8, data: &[u8]) {
        self.0.push(Access::Outs(port, width, data.to_vec()));
    }
}
impl ConfigSpace for Pci {
    fn read(&mut self, address: ConfigAddress, width: u8) -> u32 {
        self.0.push(Access::ConfigRead(address, width));
        0x1237_8086
    }
    fn write(&mut self, address: ConfigAddress, width: u8, value: u32) {
        self.0.push(Access::ConfigWrite(address, width, value));
    }
}

struct Setup {
    io: EmulatedPorts,
    bus: Bus,
    pci: Pci,
}

impl Setup {
    fn dom0() -> Self {
        let owned = hardware_domain_ports(Some(0x608), Some(0x3f8)).unwrap();
        Self { io: EmulatedPorts::new(true), bus: Bus(vec![], owned), pci: Pci::default() }
    }
    fn guest() -> Self {
        Self { io: EmulatedPorts::new(false), bus: Bus::default(), pci: Pci::default() }
    }
    fn read(&mut self, port: u16, width: u8, now_ns: u64) -> u32 {
        self.io.read(port, width, now_ns, &mut self.bus, &mut self.pci)
    }
    fn write(&mut self, port: u16, width: u8, value: u32, now_ns: u64) {
        self.io.write(port, width, value, now_ns, &mut self.bus, &mut self.pci);
    }
}

#[test]
fn what_it_does_not_get_is_in_no_range_that_it_passes_on() {
    let owned = hardware_domain_ports(Some(0x608), Some(0x3f8)).unwrap();
    for (first, last) in
        [(0xcf8, 0xcff), (0xcf8, 0xcf8), (0xcff, 0xd00), (0x1f, 0x20), (0x3e8, 0x3f8), (0x600, 0x608), (0, 0xffff)]
    {
        assert!(!owned.contains_all(first, last), "{first:#x}..={last:#x}");
    }
    for (first, last) in
        [(0x2f8, 0x2ff), (0x3f0, 0x3f7), (0x400, 0x607), (0x60c, 0x60f), (0x1000, 0xffff), (0x80, 0x80)]
    {
        assert!(owned.contains_all(first, last), "{first:#x}..={last:#x}");
    }
}

#[test]
fn ports_that_the_hardware_domain_does_not_get() {
    let mut s = Setup::dom0();
    for port in [0x20, 0x21, 0xa0, 0xa1, 0x40, 0x41, 0x608, 0x60b, 0xcf8, 0xcfc, 0xcff, 0x3f8, 0x3ff] {
        assert_eq!(s.read(port, 1, 0), 0xff, "{port:#x}");
        s.write(port, 1, 0, 0);
    }
    assert_eq!(s.read(0x608, 4, 0), 0xffff_ffff);
    assert_eq!(s.bus.0, []);
    for port in [0x60, 0x64, 0x3d4, 0x604, 0x60c, 0xb2, 0xffff] {
        assert_eq!(s.read(port, 1, 0) & 0xff, 0x5a, "{port:#x}");
    }
    s.write(0x3d4, 2, 0x1234, 0);
    assert_eq!(s.bus.0.last(), Some(&Access::Out(0x3d4, 2, 0x1234)));
}

#[test]
fn a_guest_without_ports_reaches_no_hardware() {
    let mut s = Setup::guest();
    for port in 0..=0xffffu16 {
        if !matches!(port, 0x42 | 0x61) {
            assert_eq!(s.read(port, 1, 0), 0xff, "{port:#x}");
        }
        s.write(port, 4, 0x8000_0000, 0);
    }
    assert_eq!((s.bus.0, s.pci.0), (vec![], vec![]));
}

#[test]
fn an_access_that_is_only_partly_owned_goes_byte_by_byte() {
    let mut s = Setup::guest();
    s.bus.1.insert(0x100, 0x101).unwrap();
    assert_eq!(s.read(0x100, 2, 0), 0x5a5a_5a5a);
    assert_eq!(s.read(0x100, 4, 0), 0xffff_5a5a);
    s.write(0xff, 2, 0x2211, 0);
    assert_eq!(
        s.bus.0,
        [Access::In(0x100, 2), Access::In(0x100, 1), Access::In(0x101, 1), Access::Out(0x100, 1, 0x22)]
    );
    assert_eq!(s.read(0xffff, 4, 0), 0xffff_ffff, "no wrap to port 0");
}

#[test]
fn configuration_space_needs_the_enable_bit() {
    let mut s = Setup::dom0();
    assert_eq!(s.read(0xcfc, 4, 0), 0xffff_ffff);
    s.write(0xcf8, 4, 0x8001_1840, 0);
    assert_eq!(s.read(0xcf8, 4, 0), 0x8001_1840);
    let at = |offset| ConfigAddress { bus: 1, devfn: 0x18, offset };
    assert_eq!(s.read(0xcfc, 4, 0), 0x1237_8086);
    s.read(0xcfe, 2, 0);
    s.write(0xcff, 1, 7, 0);
    assert_eq!(s.read(0xcfe, 4, 0), 0x5a5a_ffff, "beyond the double word");
    assert_eq!(
        s.pci.0,
        [Access::ConfigRead(at(0x40), 4), Access::ConfigRead(at(0x42), 2), Access::ConfigWrite(at(0x43), 1, 7)]
    );
    assert_eq!(s.bus.0, [Access::In(0xd00, 1), Access::In(0xd01, 1)]);
}

#[test]
fn the_rtc_index_is_kept_and_never_masks_nmis() {
    let mut s = Setup::dom0();
    s.write(0x70, 1, 0x8a, 0);
    assert_eq!(s.bus.0, []);
    assert_eq!((s.read(0x70, 1, 0), s.read(0x71, 1, 0)), (0x8a, 0x5a));
    s.write(0x71, 1, 0x26, 0);
    let index = || Access::Out(0x70, 1, 0x0a);
    assert_eq!(s.bus.0, [index(), Access::In(0x71, 1), index(), Access::Out(0x71, 1, 0x26)]);
}

/// Nanoseconds of `ticks`, and a little more so that rounding does not matter.
fn after(ticks: u64) -> u64 {
    ticks * 1_000_000_000 / PIT_HZ + 400
}

#[test]
fn linux_calibrates_its_clock() {
    let mut s = Setup::dom0();
    let gate = s.read(0x61, 1, 0) & !2 | 1;
    s.write(0x61, 1, gate, 0);
    s.write(0x43, 1, 0xb0, 0);
    s.write(0x42, 1, 0xff, 0);
    s.write(0x42, 1, 0xff, 0);
    s.read(0x42, 1, 0);
    s.read(0x42, 1, 0);
    for high in (0x80..=0xff).rev() {
        let now = after((0xff - high) * 256);
        let low = s.read(0x42, 1, now);
        assert_eq!((u64::from(s.read(0x42, 1, now)), low), (high, 0xff), "at {now} ns");
    }
    assert_eq!(s.read(0x61, 1, after(0xfffe)) & 0x20, 0);
    assert_eq!(s.read(0x61, 1, after(0xffff)) & 0x20, 0x20, "the output rises at zero");
}

#[test]
fn a_closed_gate_stops_the_count() {
    let mut p = Pit::default();
    p.write(0x43, 0xb0, 0);
    p.write(0x42, 0x00, 0);
    p.write(0x42, 0x10, 0);
    assert_eq!((p.read(0x42, 1_000_000_000), p.read(0x42, 1_000_000_000)), (0, 0x10));
    assert_eq!(p.read(0x61, 1_000_000_000) & 0x20, 0);
}

#[test]
fn latched_counts_and_status() {
    let mut p = Pit::default();
    p.write(0x61, 1, 0);
    p.write(0x43, 0xb6, 0); // mode 3
    p.write(0x42, 0x00, 0);
    p.write(0x42, 0x10, 0);
    p.write(0x43, 0x80, after(0x10)); // latch
    assert_eq!((p.read(0x42, after(0x100)), p.read(0x42, after(0x200))), (0xe0, 0x0f));
    p.write(0x43, 0xe8, after(0x10)); // read back status
    assert_eq!(p.read(0x42, after(0x10)), 0xb6);
    p.write(0x43, 0x36, 0); // channel 0: not ours
    p.write(0x43, 0xe8, after(0x10));
    assert_eq!(p.read(0x42, after(0x10)), 0xb6);
}

proptest! {
    /// No sequence of accesses reaches hardware that the domain does not own.
    #[test]
    fn only_owned_ports_are_touched(
        accesses in prop::collection::vec((any::<bool>(), any::<u16>(), 0u32..3, any::<u32>(), any::<u64>()), 1..50),
        special in prop::collection::vec(prop::sample::select(&[0x42u16, 0x43, 0x61, 0x70, 0x71, 0xcf8, 0xcfc, 0xffff][..]), 50),
    ) {
        let mut s = Setup::guest();
        s.bus.1.insert(0x1000, 0x1007).unwrap();
        for ((write, port, log, value, now), special) in accesses.into_iter().zip(special) {
            let port = if value % 3 == 0 { special } else if value % 3 == 1 { 0x1000 | port & 0xf } else { port };
            let width = 1 << log;
            if write {
                s.write(port, width, value, now);
            } else {
                s.read(port, width, now);
            }
        }
        prop_assert!(s.pci.0.is_empty());
        for access in s.bus.0 {
            let (Access::In(port, width) | Access::Out(port, width, _)) = access else { panic!("{access:?}") };
            prop_assert!(port >= 0x1000 && port + u16::from(width) <= 0x1008);
        }
    }
}

#[test]
fn strings_go_to_owned_ports_as_a_whole_and_to_emulated_ones_one_by_one() {
    let mut s = Setup::dom0();
    let mut data = [0; 6];
    s.io.read_string(0x300, 2, &mut data, 0, &mut s.bus, &mut s.pci);
    assert_eq!(data, [0x5a; 6]);
    s.io.write_string(0x300, 1, b"abc", 0, &mut s.bus, &mut s.pci);
    assert_eq!(s.bus.0, [Access::Ins(0x300, 2, 6), Access::Outs(0x300, 1, b"abc".to_vec())]);
    s.io.write_string(0xcf8, 4, &0x8000_1004u32.to_le_bytes(), 0, &mut s.bus, &mut s.pci);
    s.io.read_string(0xcfe, 2, &mut data[..4], 0, &mut s.bus, &mut s.pci);
    assert_eq!(s.pci.0.len(), 2);
    s.bus.0.clear();
    s.io.read_string(0x3f8, 1, &mut data, 0, &mut s.bus, &mut s.pci);
    s.io.write_string(0x20, 1, b"xyz", 0, &mut s.bus, &mut s.pci);
    assert_eq!((data, s.bus.0), ([0xff; 6], vec![]), "the hypervisor's own ports");
}
