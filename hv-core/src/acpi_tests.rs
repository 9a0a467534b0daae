use super::*;
use proptest::prelude::*;
use std::vec;

fn with_checksum(mut bytes: Vec<u8>, at: usize, range: core::ops::Range<usize>) -> Vec<u8> {
    bytes[at] = 0;
    let sum = bytes[range].iter().fold(0u8, |s, b| s.wrapping_add(*b));
    bytes[at] = sum.wrapping_neg();
    bytes
}

#[test]
fn root_pointer_old_and_new() {
    let mut rsdp = vec![0u8; 36];
    rsdp[..8].copy_from_slice(b"RSD PTR ");
    rsdp[16..20].copy_from_slice(&0x7ffe_1234u32.to_le_bytes());
    let old = with_checksum(rsdp.clone(), 8, 0..20);
    let mut memory = vec![0u8; 64];
    memory.extend(&old);
    assert_eq!(find_root(&memory), Some((0x7ffe_1234, false)));

    rsdp[15] = 2;
    rsdp[24..32].copy_from_slice(&0x1_0000_5678u64.to_le_bytes());
    let new = with_checksum(with_checksum(rsdp, 8, 0..20), 32, 0..36);
    assert_eq!(root(&new), Some((0x1_0000_5678, true)));
    let mut broken = new.clone();
    broken[9] ^= 1;
    assert_eq!(root(&broken), None);
}

#[test]
fn a_bios_may_have_no_extended_data_area_and_no_word_of_it() {
    assert_eq!(extended_bios_data(&[0xc0, 0x9f]), Some(0x9_fc00));
    for nowhere in [&[0, 0][..], &[0x3f, 0], &[0xc0], &[]] {
        assert_eq!(extended_bios_data(nowhere), None, "{nowhere:?}");
    }
}

#[test]
fn madt_entries() {
    let mut table = vec![0u8; 44];
    table[36..40].copy_from_slice(&0xfee0_0000u32.to_le_bytes());
    table.extend([0, 8, 5, 7, 1, 0, 0, 0]);
    table.extend([1, 12, 3, 0, 0, 0, 0xc0, 0xfe, 24, 0, 0, 0]);
    table.extend([2, 10, 0, 9, 20, 0, 0, 0, 0x0f, 0]);
    table.extend([9, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0]);
    table.extend([1, 4, 0, 0]); // cut short: left out
    table.extend([0, 0]); // a length of zero ends the list
    let madt = Madt::parse(&table).unwrap();
    assert_eq!(madt.local_apic, 0xfee0_0000);
    assert_eq!(madt.processors[0], Processor { apic_id: 7, acpi_id: 5, enabled: true });
    assert_eq!(madt.processors[1], Processor { apic_id: 256, acpi_id: 6, enabled: false });
    assert_eq!(madt.io_apics, [IoApic { id: 3, addr: 0xfec0_0000, gsi_base: 24 }]);
    assert_eq!(madt.overrides, [Override { irq: 9, gsi: 20, level: true, active_low: true }]);
}

#[test]
fn a_processor_that_is_listed_again_is_started_once() {
    let listed = [(4, true), (0, true), (2, false), (4, true), (2, true), (0, true), (300, true)];
    let processors = listed.map(|(apic_id, enabled)| Processor { apic_id, acpi_id: 0, enabled }).to_vec();
    let madt = Madt { processors, ..Madt::default() };
    assert_eq!(madt.others(0), (vec![4, 2, 300], vec![4, 0]));
}

#[test]
fn s5_package_forms() {
    let bytes = [b"..._S5_".as_slice(), &[0x12, 0x06, 0x04, 0x0a, 0x05, 0x01, 0x00, 0x00]].concat();
    assert_eq!(s5_sleep_types(&bytes), Some((5, 1)));
    let long = [b"_S5_".as_slice(), &[0x12, 0x46, 0x00, 0x04, 0x00, 0x00, 0x00]].concat();
    assert_eq!(s5_sleep_types(&long), Some((0, 0)));
    assert_eq!(s5_sleep_types(b"_S5_"), None);
}

#[test]
fn configuration_space_in_memory_is_counted_from_bus_0() {
    let part = Ecam { addr: 0xe000_0000, segment: 0, first_bus: 0x40, last_bus: 0x7f };
    assert_eq!(part.bus(0, 0x40), Some(0xe400_0000));
    assert_eq!((part.bus(0, 0x3f), part.bus(0, 0x80), part.bus(1, 0x40)), (None, None, None));
    assert_eq!(part.span(), Some((0xe400_0000, 0xe7ff_ffff)));
    for (addr, function) in [
        (0xe3ff_ffff, None),
        (0xe400_0000, Some(Sbdf::new(0, 0x40, 0))),
        (0xe40f_ffff, Some(Sbdf::new(0, 0x40, 0xff))),
        (0xe7f0_1004, Some(Sbdf::new(0, 0x7f, 1))),
        (0xe800_0000, None),
        (0xdfff_ffff, None),
    ] {
        assert_eq!(part.function_at(addr), function, "{addr:#x}");
    }
    let whole = Ecam { first_bus: 0, last_bus: 0xff, ..part };
    assert_eq!((whole.bus(0, 0), whole.span()), (Some(0xe000_0000), Some((0xe000_0000, 0xefff_ffff))));
    assert_eq!(whole.function_at(0xefff_f000), Some(Sbdf::new(0, 0xff, 0xff)));
    let wrong = [Ecam { first_bus: 8, last_bus: 7, ..part }, Ecam { addr: u64::MAX - 0xfff, ..part }];
    assert_eq!(wrong.map(|range| range.span()), [None, None]);
}

proptest! {
    #[test]
    fn no_table_makes_the_parser_fail_badly(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Madt::parse(&bytes), Fadt::parse(&bytes), hpet_address(&bytes), ecam_ranges(&bytes), header(&bytes));
        let _ = (find_root(&bytes), listed_tables(&bytes, true), listed_tables(&bytes, false), s5_sleep_types(&bytes));
        let aml = [b"_S5_\x12".as_slice(), &bytes].concat();
        let _ = s5_sleep_types(&aml);
    }
}
