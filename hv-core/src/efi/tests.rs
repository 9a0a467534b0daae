//! Tables as firmware writes them, in a small memory.

#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::*;
use alloc::vec;
use alloc::vec::Vec;

const BASE: u64 = 0x3f00_0000;

/// Memory from `BASE` on.
struct Fake(Vec<u8>);

impl Fake {
    fn new() -> Self {
        Self(vec![0; 0x4000])
    }
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = (at - BASE) as usize;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
    fn put_u64(&mut self, at: u64, value: u64) {
        self.put(at, &value.to_le_bytes());
    }
}

impl Memory for Fake {
    fn read(&self, addr: u64, to: &mut [u8]) -> Option<()> {
        let at = usize::try_from(addr.checked_sub(BASE)?).ok()?;
        to.copy_from_slice(self.0.get(at..at.checked_add(to.len())?)?);
        Some(())
    }
}

fn descriptor(kind: u32, start: u64, pages: u64, attributes: u64) -> [u8; 48] {
    let mut out = [0; 48];
    out[..4].copy_from_slice(&kind.to_le_bytes());
    out[8..16].copy_from_slice(&start.to_le_bytes());
    out[24..32].copy_from_slice(&pages.to_le_bytes());
    out[32..40].copy_from_slice(&attributes.to_le_bytes());
    out
}

const SYSTEM: u64 = BASE + 0x100;
const SERVICES: u64 = BASE + 0x200;
const CONFIG: u64 = BASE + 0x400;
const VENDOR: u64 = BASE + 0x600;
const MAT: u64 = BASE + 0x2f00;

/// Firmware with an attributes table of one read-only piece of code at `BASE` + 0x1000.
fn firmware() -> Fake {
    let mut memory = Fake::new();
    memory.put(SYSTEM, b"IBI SYST");
    memory.put(SYSTEM + 8, &0x0002_0046u32.to_le_bytes());
    memory.put(SYSTEM + 32, &7u32.to_le_bytes());
    for (offset, value) in [(24, VENDOR), (88, SERVICES), (104, 2), (112, CONFIG)] {
        memory.put_u64(SYSTEM + offset, value);
    }
    memory.put(VENDOR, b"E\0D\0K\0\0\0");
    memory.put(SERVICES, b"RUNTSERV");
    memory.put(SERVICES + 8, &0x0002_0046u32.to_le_bytes());
    memory.put(SERVICES + 12, &136u32.to_le_bytes());
    for n in 0..14 {
        memory.put_u64(SERVICES + 24 + 8 * n, 0x1000 + n);
    }
    memory.put(CONFIG, &[1; 16]);
    memory.put_u64(CONFIG + 16, BASE + 0x1234);
    memory.put(CONFIG + 24, &MEMORY_ATTRIBUTES);
    memory.put_u64(CONFIG + 40, MAT);
    for (offset, value) in [(0, 1u32), (4, 1), (8, 48)] {
        memory.put(MAT + offset, &value.to_le_bytes());
    }
    memory.put(MAT + 16, &descriptor(RUNTIME_CODE, BASE + 0x1000, 1, RUNTIME | READ_ONLY));
    memory
}

#[test]
fn the_system_table_and_what_it_refers_to() {
    let memory = firmware();
    let tables = Tables::read(&memory, SYSTEM).unwrap();
    assert_eq!((tables.revision, tables.firmware_revision), (0x0002_0046, 7));
    assert_eq!(tables.vendor[..4], [0x45, 0x44, 0x4b, 0]);
    assert_eq!(tables.config_tables, (CONFIG, 2));
    let services = tables.services.unwrap();
    assert_eq!((services.get_time, services.get_variable, services.query_variable_info), (0x1000, 0x1006, 0x100d));
    assert_eq!(tables.config(&memory).next().unwrap(), ([1; 16], BASE + 0x1234));
}

#[test]
fn tables_that_are_none() {
    let mut memory = firmware();
    assert!(Tables::read(&memory, SYSTEM + 8).is_none(), "no signature");
    assert!(Tables::read(&memory, BASE - 8).is_none(), "not readable");
    memory.put(SERVICES, b"NOTSERVE");
    assert!(Tables::read(&memory, SYSTEM).unwrap().services.is_none());
    memory.put_u64(SYSTEM + 104, u64::MAX);
    memory.put_u64(SYSTEM + 112, u64::MAX - 8);
    memory.put_u64(SYSTEM + 24, u64::MAX);
    let tables = Tables::read(&memory, SYSTEM).unwrap();
    assert_eq!(tables.config(&memory).count(), 0);
    assert_eq!(tables.vendor, [0; VENDOR_CHARS]);
}

#[test]
fn pages_of_configuration_tables_are_kept() {
    let memory = firmware();
    let tables = Tables::read(&memory, SYSTEM).unwrap();
    let kept: Vec<_> = tables.kept_pages(&memory).collect();
    assert_eq!(kept, [BASE + 0x1000..BASE + 0x4000, BASE + 0x2000..BASE + 0x5000]);
}

#[test]
fn alike_neighbours_are_joined() {
    let mut map = MemoryMap::default();
    map.push(&descriptor(7, 0x1000, 2, WRITE_BACK));
    map.push(&descriptor(7, 0x3000, 1, WRITE_BACK));
    map.push(&descriptor(7, 0x4000, 1, WRITE_BACK | RUNTIME));
    map.push(&descriptor(7, 0x4800, 1, 0));
    map.push(&descriptor(7, 0x5000, u64::MAX / 2, 0));
    assert_eq!(map.iter().count(), 2);
    assert_eq!(map.find(0x3fff).unwrap().bytes, 0x3000);
    assert_eq!(map.find(0x4000).unwrap().attributes, WRITE_BACK | RUNTIME);
    assert!(map.find(0x5000).is_none() && !map.is_cut());
}

#[test]
fn a_map_that_is_too_long_is_cut() {
    let mut map = MemoryMap::default();
    for n in 0..1000 {
        map.push(&descriptor(7, n * 0x2000, 1, 0));
    }
    assert!(map.is_cut() && map.iter().count() == 192);
}

#[test]
fn code_that_the_attributes_protect_cannot_be_written() {
    let memory = firmware();
    let attributes = Tables::read(&memory, SYSTEM).unwrap().attributes(&memory);
    let mut map = MemoryMap::default();
    map.push(&descriptor(RUNTIME_CODE, BASE + 0x1000, 2, RUNTIME | WRITE_BACK));
    map.push(&descriptor(RUNTIME_DATA, BASE + 0x8000, 1, RUNTIME | WRITE_BACK));
    map.push(&descriptor(11, 0xffc0_0000, 1, RUNTIME));
    map.push(&descriptor(7, 0x10_0000, 16, WRITE_BACK));
    let pieces: Vec<_> = runtime_pieces(&map, &attributes).collect();
    let rights = |write, execute, cache| Rights { write, execute, cache };
    assert_eq!(
        pieces,
        [
            (BASE + 0x1000..BASE + 0x2000, rights(false, true, true)),
            (BASE + 0x2000..BASE + 0x3000, rights(true, true, true)),
            (BASE + 0x8000..BASE + 0x9000, rights(true, false, true)),
            (0xffc0_0000..0xffc0_1000, rights(true, false, false)),
        ]
    );
}

#[test]
fn nothing_panics_on_garbage() {
    let mut seed = 1u64;
    for _ in 0..2000 {
        let mut memory = firmware();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) % 0x700;
            memory.put(BASE + at, &[(seed >> 24) as u8]);
        }
        if let Some(tables) = Tables::read(&memory, SYSTEM) {
            let _ = (tables.attributes(&memory).iter().count(), tables.kept_pages(&memory).count());
        }
    }
}
