use super::dmar::Dmar;
use super::ivrs::Ivrs;
use super::vtd::{Capabilities, Invalidation, SecondLevel};
use super::*;
use crate::pcicfg::Sbdf;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::vec::Vec;
use x86::Mfn;

/// Frames from 1000 on are tables.
struct Memory {
    tables: RefCell<BTreeMap<u64, Vec<u64>>>,
    next: Cell<u64>,
    left: Cell<u32>,
}

impl Memory {
    fn new(left: u32) -> Self {
        Self { tables: RefCell::default(), next: Cell::new(1000), left: Cell::new(left) }
    }
}

impl TableMem for Memory {
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.borrow()[&table.raw()][index]
    }
    fn write(&self, table: Mfn, index: usize, value: u64) {
        self.tables.borrow_mut().get_mut(&table.raw()).expect("a table that is in use")[index] = value;
    }
    fn alloc(&self) -> Option<Mfn> {
        self.left.set(self.left.get().checked_sub(1)?);
        let mfn = self.next.replace(self.next.get() + 1);
        self.tables.borrow_mut().insert(mfn, std::vec![0; 512]);
        Some(Mfn::new(mfn))
    }
    fn free(&self, table: Mfn) {
        self.tables.borrow_mut().remove(&table.raw()).expect("freed once");
        self.left.set(self.left.get() + 1);
    }
}

const fn mfn(n: u64) -> Mfn {
    Mfn::new(n)
}

fn space(mem: &Memory) -> DmaSpace<SecondLevel> {
    DmaSpace::new(Tables::new(mem, 3, SecondLevel).unwrap())
}

#[test]
fn large_pages_where_they_fit() {
    large_pages(AnyFormat::VtD);
    large_pages(AnyFormat::AmdVi);
}

fn large_pages(format: AnyFormat) {
    let mem = Memory::new(100);
    let tables = Tables::new(&mem, 4, format).unwrap();
    // 1 GiB + 2 MiB + one page, from one page below a gigabyte.
    let (first, end) = ((1 << 18) - 1, (2 << 18) + 512 + 1);
    tables.map(&mem, mfn(first), mfn(end), Access::ReadWrite, 3).unwrap();
    assert_eq!(mem.tables.borrow().len(), 1 + 1 + 2 + 2, "root, one L3, two L2, two L1");
    for (n, access) in [
        (first - 1, Access::None),
        (first, Access::ReadWrite),
        (first + 1, Access::ReadWrite),
        (end - 1, Access::ReadWrite),
        (end, Access::None),
        (1 << 40, Access::None),
    ] {
        assert_eq!(tables.get(&mem, mfn(n)), access, "{n:#x}");
    }
    let small = Tables::new(&mem, 3, format).unwrap();
    small.map(&mem, mfn(512), mfn(1024), Access::Read, 1).unwrap();
    assert_eq!((small.get(&mem, mfn(512)), small.get(&mem, mfn(1023))), (Access::Read, Access::Read));
    small.map(&mem, mfn(small.end() - 1), mfn(u64::MAX >> 12), Access::Read, 3).unwrap();
    assert_eq!(small.get(&mem, mfn(small.end() - 1)), Access::Read, "what cannot be addressed is left out");
    assert_eq!(small.set(&mem, mfn(small.end()), Access::Read), Ok(Access::None));
}

#[test]
fn memory_that_runs_out_leaves_what_is_there() {
    let mem = Memory::new(3);
    let mut s = space(&mem);
    assert_eq!(s.allow_own(&mem, mfn(7)), Ok(Widened(false)));
    assert_eq!(s.allow_own(&mem, mfn(7 << 9)), Err(OutOfMemory));
    assert_eq!(s.grant(&mem, mfn(8 << 9), true), Err(OutOfMemory));
    assert_eq!(s.revoke(&mem, mfn(8 << 9), true), Narrowed(false));
    assert_eq!((s.tables.get(&mem, mfn(7)), s.tables.get(&mem, mfn(7 << 9))), (Access::ReadWrite, Access::None));
    while !s.free_some(&mem, 1) {}
    assert!(s.free_some(&mem, 1) && mem.tables.borrow().is_empty());
}

#[test]
fn what_there_is_room_for_is_reached_without_memory() {
    let mem = Memory::new(100);
    let mut space = space(&mem);
    let (first, count) = (510, 512 + 4);
    space.make_room(&mem, mfn(first), count).unwrap();
    assert_eq!(mem.tables.borrow().len(), 1 + 1 + 3, "a table for each 512 frames");
    mem.left.set(0);
    for n in first..first + count {
        assert_eq!(space.tables.get(&mem, mfn(n)), Access::None);
        let widened = match n % 2 {
            0 => space.allow_own(&mem, mfn(n)),
            _ => space.grant(&mem, mfn(n), false),
        };
        assert_eq!(widened, Ok(Widened(false)), "nothing was reached");
    }
    assert_eq!(space.make_room(&mem, mfn(4096), 1), Err(OutOfMemory));
    assert_eq!(space.make_room(&mem, mfn(1535), 2), Err(OutOfMemory), "all of it, or it is an error");
    assert_eq!(space.make_room(&mem, mfn(space.tables.end()), 1), Ok(()), "what cannot be addressed needs none");
    mem.left.set(1);
    space.make_room(&mem, mfn(1535), 2).unwrap();
}

#[test]
fn tables_are_freed_in_steps() {
    let mem = Memory::new(1000);
    let mut s = space(&mem);
    for n in 0..300 {
        assert_eq!(s.allow_own(&mem, mfn(n << 9)), Ok(Widened(false)));
    }
    let mut steps = 0;
    while !s.free_some(&mem, 50) {
        steps += 1;
        assert!(steps < 20);
    }
    assert!(steps >= 5 && mem.tables.borrow().is_empty());
}

#[test]
fn what_was_granted_is_forgotten_in_steps() {
    let mem = Memory::new(1000);
    let mut s = space(&mem);
    for n in 0..500 {
        assert_eq!(s.grant(&mem, mfn(n), n % 2 == 0), Ok(Widened(false)));
    }
    let mut steps = 0;
    while !s.free_some(&mem, 50) {
        steps += 1;
        assert!(steps < 20);
    }
    assert!(steps >= 10 && mem.tables.borrow().is_empty(), "{steps}");
}

/// A unit may remember that a frame can only be read, and stop a write that is allowed by now.
#[test]
fn who_may_write_what_it_could_only_read_is_told_of() {
    let mem = Memory::new(100);
    let mut s = space(&mem);
    assert_eq!(s.grant(&mem, mfn(7), false), Ok(Widened(false)), "nothing is remembered of it");
    assert_eq!(s.grant(&mem, mfn(7), false), Ok(Widened(false)), "no more than before");
    assert_eq!(s.grant(&mem, mfn(7), true), Ok(Widened(true)));
    assert_eq!(s.grant(&mem, mfn(7), true), Ok(Widened(false)));
    assert_eq!(s.grant(&mem, mfn(8), true), Ok(Widened(false)));
    assert_eq!(s.grant(&mem, mfn(9), false), Ok(Widened(false)));
    assert_eq!(s.allow_own(&mem, mfn(9)), Ok(Widened(true)), "one of its own");
}

#[derive(Clone, Debug)]
enum Step {
    Allow(u64),
    Forbid(u64),
    Grant(u64, bool),
    Revoke(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let frame = || prop_oneof![0u64..4, 510u64..514, (1u64 << 18) - 1..(1 << 18) + 1];
    prop_oneof![
        frame().prop_map(Step::Allow),
        frame().prop_map(Step::Forbid),
        (frame(), any::<bool>()).prop_map(|(f, w)| Step::Grant(f, w)),
        any::<usize>().prop_map(Step::Revoke),
    ]
}

proptest! {
    /// Devices reach what is the domain's own and writable, and what is granted; every loss of a right is reported, and
    /// what is added to one.
    #[test]
    fn a_space_is_what_its_history_says(steps in prop::collection::vec(step(), 1..120)) {
        let mem = Memory::new(1000);
        let mut s = space(&mem);
        let mut own = std::collections::BTreeSet::new();
        let mut grants: Vec<(u64, bool)> = Vec::new();
        let naive = |own: &std::collections::BTreeSet<u64>, grants: &[(u64, bool)], f: u64| {
            if own.contains(&f) || grants.contains(&(f, true)) {
                Access::ReadWrite
            } else if grants.contains(&(f, false)) {
                Access::Read
            } else {
                Access::None
            }
        };
        let frames = [0, 1, 2, 3, 510, 511, 512, 513, (1 << 18) - 1, 1 << 18];
        for step in steps {
            let before = frames.map(|f| naive(&own, &grants, f));
            let mut reported = Narrowed(false);
            let mut widened = Widened(false);
            match step {
                // A frame of its own that becomes writable again is not mapped, unless it is granted.
                Step::Allow(f) => { own.insert(f); widened = s.allow_own(&mem, mfn(f)).unwrap(); }
                // The type of a frame that is granted for writing does not change.
                Step::Forbid(f) => { own.remove(&f); reported = s.forbid_own(&mem, mfn(f)); }
                Step::Grant(f, w) => { grants.push((f, w)); widened = s.grant(&mem, mfn(f), w).unwrap(); }
                Step::Revoke(n) if !grants.is_empty() => {
                    let (f, w) = grants.swap_remove(n % grants.len());
                    reported = s.revoke(&mem, mfn(f), w);
                }
                Step::Revoke(_) => {}
            }
            let after = frames.map(|f| naive(&own, &grants, f));
            for ((f, before), after) in frames.iter().zip(before).zip(after) {
                prop_assert_eq!(s.tables.get(&mem, mfn(*f)), after, "frame {}", f);
                prop_assert!(after >= before || reported == Narrowed(true));
                prop_assert!(after <= before || before == Access::None || widened == Widened(true));
            }
        }
    }

    /// Whatever the firmware says, reading it ends and gives nothing that is not in it.
    #[test]
    fn any_table_is_read(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        dmar::check_table(&bytes);
        ivrs::check_table(&bytes);
    }

    /// The same, for what looks more like a table.
    #[test]
    fn any_list_of_structures_is_read(list in prop::collection::vec((0u16..3, prop::collection::vec(0u8..40, 0..40)), 0..8)) {
        let mut table = std::vec![0; 48];
        for (kind, body) in list {
            table.extend(structure(kind, &body));
        }
        dmar::check_table(&table);
    }
}

fn structure(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(kind.to_le_bytes());
    out.extend(u16::try_from(body.len() + 4).unwrap().to_le_bytes());
    out.extend(body);
    out
}

fn unit(flags: u8, addr: u64, scopes: &[&[u8]]) -> Vec<u8> {
    let mut body = std::vec![flags, 0, 0, 0];
    body.extend(addr.to_le_bytes());
    body.extend(scopes.concat());
    structure(0, &body)
}

#[test]
fn which_unit_a_function_is_behind() {
    let mut table = std::vec![0; 48];
    // A device on bus 0; the bridge 0:1c.0 with all behind; an I/O APIC, which is none of ours.
    let device: &[u8] = &[1, 8, 0, 0, 0, 0, 2, 0];
    let bridge: &[u8] = &[2, 8, 0, 0, 0, 0, 0x1c, 0];
    let nested: &[u8] = &[1, 10, 0, 0, 0, 0, 0x1d, 0, 3, 1];
    let apic: &[u8] = &[3, 8, 0, 0, 2, 0xf0, 0x1f, 0];
    table.extend(unit(0, 0xfed9_0000, &[device, bridge]));
    table.extend(unit(0, 0xfed9_2000, &[nested]));
    table.extend(unit(1, 0xfed9_1000, &[apic]));
    table.extend(unit(1, 0xfed9_1008, &[]));
    let mut reserved = std::vec![0, 0, 0, 0];
    reserved.extend(0x7000_0000u64.to_le_bytes());
    reserved.extend(0x7000_ffffu64.to_le_bytes());
    reserved.extend(device);
    table.extend(structure(1, &reserved));
    table.extend([9, 9, 0, 0]);
    let dmar = Dmar::parse(&table).unwrap();
    assert_eq!(dmar.units.iter().map(|u| u.addr & 0xf000).collect::<Vec<_>>(), [0, 0x2000, 0x1000], "misaligned: out");
    assert_eq!(dmar.nr_misfits, 2, "that one, and whatever the end of the list is");
    let secondary = |bus, devfn| match (bus, devfn) {
        (0, 0xe0) => Some(1),
        (0, 0xe8) => Some(4),
        (1, 0) => Some(2),
        _ => None,
    };
    let at = |bus, device: u8, function: u8| Sbdf::new(0, bus, device << 3 | function);
    assert_eq!(dmar.units[2].io_apics, [IoApic { id: 2, source_id: 0xf0f8 }]);
    let behind = |chain: &[Sbdf]| dmar.unit_of(chain, secondary);
    assert_eq!(behind(&[at(0, 2, 0)]), Some(0));
    assert_eq!(behind(&[at(0, 3, 0)]), Some(2), "the rest");
    assert_eq!(behind(&[at(2, 5, 0), at(1, 0, 0), at(0, 0x1c, 0)]), Some(0), "two bridges down");
    assert_eq!(behind(&[at(4, 3, 1), at(0, 0x1d, 0)]), Some(1));
    assert_eq!(behind(&[at(4, 3, 0), at(0, 0x1d, 0)]), Some(2));
    assert_eq!(behind(&[Sbdf::new(1, 0, 0x10)]), None, "another segment");
    assert!(dmar.has_reserved(&[at(0, 2, 0)], secondary) && !dmar.has_reserved(&[at(0, 3, 0)], secondary));
    assert_eq!(dmar.reserved[0].last, 0x7000_ffff);
}

/// Functions behind a unit whose description does not fit would be taken for those of the unit that has the rest.
#[test]
fn a_unit_that_does_not_fit_is_noticed_beside_one_that_does() {
    let device: &[u8] = &[1, 8, 0, 0, 0, 0, 2, 0];
    let misfits = |other: &[u8]| {
        let table = [&[0; 48], other, &unit(1, 0xfed9_1000, &[])].concat();
        dmar::check_table(&table);
        let dmar = Dmar::parse(&table).unwrap();
        (dmar.units.len(), dmar.nr_misfits)
    };
    assert_eq!(misfits(&unit(0, 0xfed9_0000, &[device])), (2, 0));
    assert_eq!(misfits(&unit(0, 0xfed9_0000, &[device, &[0, 0]])), (2, 0), "padding");
    assert_eq!(misfits(&structure(4, &[0; 30])), (1, 0), "something else");
    assert_eq!(misfits(&structure(1, &[0; 3])), (1, 0), "something else that does not fit");
    assert_eq!(misfits(&unit(0, 0xfed9_0800, &[device])), (1, 1), "misaligned");
    assert_eq!(misfits(&unit(0, 0, &[device])), (1, 1), "no registers");
    assert_eq!(misfits(&structure(0, &[0; 8])), (1, 1), "too short");
    assert_eq!(misfits(&unit(0, 0xfed9_0000, &[device, &[1, 10, 0, 0, 0, 0, 2, 0]])), (1, 1), "longer than the unit");
    assert_eq!(misfits(&unit(0, 0xfed9_0000, &[&[1, 6, 0, 0, 0, 0]])), (1, 1), "a way to nowhere");
    assert_eq!(misfits(&unit(0, 0xfed9_0000, &[&[1, 9, 0, 0, 0, 0, 2, 0, 3]])), (1, 1), "half a step");
    assert_eq!(misfits(&[0, 0, 0, 0]), (0, 1), "the list ends before its end");
    assert_eq!(misfits(&[0, 0, 0xff, 0xff]), (0, 1), "a structure ends behind the table");
}

#[test]
fn all_units_walk_tables_of_as_many_levels() {
    let [three, four] = [1u64 << 9, 1 << 10].map(|cap| Capabilities { cap, ecap: 0 });
    let both = Capabilities { cap: three.cap | four.cap | 3 << 34 | 6, ecap: 0 };
    let levels = |units: &[Capabilities]| Capabilities::levels(units.iter().copied());
    assert_eq!([levels(&[both]), levels(&[four]), levels(&[both, four])], [Some(4); 3]);
    assert_eq!([levels(&[three]), levels(&[both, three])], [Some(3); 2]);
    assert_eq!(levels(&[four, three]), None, "neither walks the other's");
    assert_eq!(levels(&[both, Capabilities { cap: 0, ecap: 0 }]), None);
}

#[test]
fn a_unit_with_a_write_buffer_is_told_of_new_entries_too() {
    let told = |cap| Capabilities { cap, ecap: 0 }.is_told_of_additions();
    assert_eq!([told(0), told(1 << 7), told(1 << 4), told(1 << 4 | 1 << 7)], [false, true, true, true]);
}

#[test]
fn what_the_hardware_is_told() {
    let all = Capabilities { cap: 1 << 55 | 1 << 54 | 1 << 39 | 1 << 10, ecap: 3 };
    assert_eq!((all.largest_page_level(), all.nr_domain_ids()), (1, 16));
    assert_eq!(Capabilities { cap: 1 << 9 | 3 << 34 | 6, ecap: 0 }.largest_page_level(), 3);
    assert_eq!(vtd::root_entry(mfn(5)), [0x5001, 0]);
    assert_eq!(vtd::context_entry(mfn(5), 3, 7), [0x5001, 0x701]);
    assert_eq!(Invalidation::Translations(Forget::Domain(7)).encode(all), [2 | 2 << 4 | 3 << 6 | 7 << 16, 0]);
    assert_eq!(
        Invalidation::Translations(Forget::Page(7, mfn(9))).encode(all),
        [2 | 3 << 4 | 3 << 6 | 7 << 16, 0x9000]
    );
    let old = Capabilities { cap: 0, ecap: 0 };
    assert_eq!(
        Invalidation::Translations(Forget::Page(7, mfn(9))).encode(old),
        Invalidation::Translations(Forget::Domain(7)).encode(old),
        "no single pages"
    );
    let device = Invalidation::Context { source_id: 0x18, domain_id: 2 };
    assert_eq!(device.encode(old), [1 | 3 << 4 | 2 << 16 | 0x18 << 32, 0]);
    assert_eq!(Invalidation::Wait { at: 0x1000, value: 1 }.encode(old), [5 | 1 << 5 | 1 << 32, 0x1000]);
}

/// Whoever could name an entry without a check could raise another device's interrupts.
#[test]
fn who_may_name_an_entry_is_always_checked() {
    use super::vtd::remapping::{entry, Hiding, Mode, Named};
    let conventional = Hiding { source_id: 0x00f0, is_express: false, secondary: 3 };
    let express = Hiding { is_express: true, ..conventional };
    let cases = [
        (None, Named::By(0x0310), 1 << 18 | 0x0310),
        (Some(conventional), Named::By(0x00f0), 1 << 18 | 0x00f0),
        (Some(express), Named::OnBuses(3, 3), 2 << 18 | 0x0303),
    ];
    for (bridge, named, high) in cases {
        assert_eq!(Named::of(0x0310, bridge), named);
        assert_eq!(entry(0x31, 3, Mode::Xapic, false, named)[1], high, "{named:?}");
    }
}

#[test]
fn interrupts_name_entries() {
    use super::vtd::remapping as ir;
    use ir::Mode::{self, X2apic, Xapic};
    assert_eq!(
        ir::entry(0x31, 3, Xapic, true, ir::Named::By(0x18)),
        [1 | 1 << 4 | 0x31 << 16 | 3 << 40, 1 << 18 | 0x18]
    );
    assert_eq!(
        ir::entry(0x31, 3, Xapic, false, ir::Named::OnBuses(2, 5)),
        [1 | 0x31 << 16 | 3 << 40, 2 << 18 | 0x0205]
    );
    assert_eq!(ir::entry(0x31, 0x103, X2apic, false, ir::Named::By(0)), [1 | 0x31 << 16 | 0x103 << 32, 1 << 18]);
    assert_eq!([Mode::of(false, true), Mode::of(true, false), Mode::of(true, true)], [Xapic, Xapic, X2apic]);
    for mode in [Xapic, X2apic] {
        let [low, _] = ir::entry(0x31, 3, mode, true, ir::Named::By(8));
        assert_eq!(ir::steered(low, 1, mode), ir::entry(0x31, 1, mode, true, ir::Named::By(8))[0]);
    }
    for (mode, apic_id) in [(Xapic, 0xfe), (X2apic, 0x103)] {
        let [low, _] = ir::entry(0x31, apic_id, mode, true, ir::Named::By(8));
        assert_eq!([low, ir::held(low, true)].map(|low| ir::destination(low, mode)), [Some(apic_id); 2]);
        assert_eq!(ir::destination(ir::steered(low, 0, mode), mode), Some(0));
        assert_eq!(ir::destination(0, mode), None, "an empty entry sends nowhere");
    }
    assert_eq!(ir::message_address(1), 0xfee0_0030);
    assert_eq!(ir::message_address(0x8001), 0xfee0_0034);
    assert_eq!(ir::wire(1), (3 << 16, 0));
    assert_eq!(ir::wire(0x8000), (1 << 16, 1 << 11));
    assert_eq!(ir::table_register(0x7000, 11, Xapic), 0x700a);
    assert_eq!(ir::table_register(0x7000, 11, X2apic), 0x780a);
    assert_eq!(Invalidation::Interrupts.encode(Capabilities { cap: 0, ecap: 0 }), [4, 0]);
    let fault = vtd::decode_fault([5 << 48, 1 << 63 | 0x22 << 32 | 0x18]).unwrap();
    assert_eq!(fault.stopped, Stopped::Interrupt(Some(5)));
}

#[test]
fn what_the_hardware_says() {
    assert_eq!(vtd::decode_fault([0x1234_5000, 0x18]), None, "an empty record");
    let fault = vtd::decode_fault([0x1234_5fff, 1 << 63 | 5 << 32 | 0x18]).unwrap();
    assert_eq!((fault.source_id, fault.addr, fault.stopped), (0x18, 0x1234_5000, Stopped::Write));
    assert_eq!(fault.why, "it may not write there");
    for reason in 0..=255 {
        assert!(!vtd::decode_fault([0, 1 << 63 | reason << 32]).unwrap().why.is_empty());
    }
}

#[test]
fn what_amds_hardware_is_told_and_says() {
    use amd::{decode_event, device, Command};
    assert_eq!(amd::HostTable.table(mfn(5), 3), 0x5001 | 2 << 9 | 3 << 61);
    assert_eq!(amd::HostTable.leaf(mfn(5), Access::Read, 1), 0x5001 | 1 << 60 | 1 << 61);
    assert_eq!(amd::HostTable.decode(0x5001, 1), None, "present, but without any right");
    assert_eq!(device::BLOCKED, 3);
    assert_eq!(device::confined(mfn(5)), 0x5003 | 4 << 9 | 3 << 61);
    assert_eq!(device::interrupts(Some(mfn(5)), 8, 0), 0x5001 | 8 << 1 | 2 << 60);
    assert_eq!(device::interrupts(None, 8, 0b1100_0101), 1 | 5 << 56 | 3 << 62);
    assert_eq!(device::passes(device::interrupts(Some(mfn(5)), 8, 0xc5)), 0xc5);
    assert_eq!(amd::remapping::entry(0x31, 3), 1 | 3 << 8 | 0x31 << 16);
    assert_eq!(amd::remapping::held(0x31_0301), 0x31_0302, "not valid, and not logged");
    assert_eq!(Command::Device(0x18).encode(), [2 << 60 | 0x18, 0]);
    assert_eq!(Command::Translations(Forget::Page(7, mfn(9))).encode(), [3 << 60 | 7 << 32, 0x9002]);
    assert_eq!(Command::Translations(Forget::Domain(7)).encode(), [3 << 60 | 7 << 32, 0x7fff_ffff_ffff_f003]);
    assert_eq!(Command::Wait { at: 0x1008, value: 9 }.encode(), [1 << 60 | 0x1009, 9]);
    assert_eq!(decode_event([0, 0]), Err(0));
    let fault = decode_event([2 << 60 | 1 << 53 | 0x18, 0x1234_5678]).unwrap();
    assert_eq!((fault.source_id, fault.addr, fault.stopped), (0x18, 0x1234_5678, Stopped::Write));
    let fault = decode_event([2 << 60 | 1 << 51 | 0x18, 0xfee0_0000]).unwrap();
    assert_eq!(fault.stopped, Stopped::Interrupt(None));
    assert_eq!(amd::Features(1 << 6 | 2 << 10).max_levels(), 6);
}

fn ivhd(kind: u8, id: u16, addr: u64, entries: &[&[u8]]) -> Vec<u8> {
    let mut block = std::vec![kind, 0x21, 0, 0];
    block.extend(id.to_le_bytes());
    block.extend([0x40, 0]);
    block.extend(addr.to_le_bytes());
    block.extend([0; 8]);
    if kind != 0x10 {
        block.extend([0; 16]);
    }
    block.extend(entries.concat());
    let length = u16::try_from(block.len()).unwrap();
    block[2..4].copy_from_slice(&length.to_le_bytes());
    block
}

#[test]
fn which_of_amds_units_a_function_is_behind() {
    let mut table = std::vec![0; 48];
    let one: &[u8] = &[2, 0x10, 0, 7];
    let range: [&[u8]; 2] = [&[3, 0, 1, 0], &[4, 0xff, 1, 0]];
    let alias: &[u8] = &[0x42, 0, 3, 0, 0, 0x20, 0, 0];
    let acpi: &[u8] = &[&[0xf0][..], &[0; 20], &[3, 1, 2, 3]].concat();
    let io_apic: &[u8] = &[0x48, 0, 0, 0xd7, 9, 0xa0, 0, 1];
    let timer: &[u8] = &[0x48, 0, 0, 0, 0, 0xa0, 0, 2];
    table.extend(ivhd(0x10, 2, 0xfed8_0000, &[]));
    table.extend(ivhd(0x11, 2, 0xfed8_0000, &[one, range[0], range[1], alias, acpi, io_apic, timer]));
    table.extend(ivhd(0x10, 2, 0xfeb8_0000, &[&[1, 0, 0, 0]]));
    table.extend(ivhd(0x10, 0x4002, 0xfe00_0800, &[]));
    table.extend(ivhd(0x10, 0x4002, 0xfe00_4000, &[&[1, 0, 0, 0]]));
    let mut reserved = std::vec![0x22, 1, 32, 0, 0x08, 0, 0x0f, 0];
    reserved.extend([0; 8]);
    reserved.extend(0x7000_0000u64.to_le_bytes());
    reserved.extend(0x1_0000u64.to_le_bytes());
    table.extend(&reserved);
    let ivrs = Ivrs::parse(&table).unwrap();
    ivrs::check_table(&table);
    assert_eq!(ivrs.units.iter().map(|u| u.addr).collect::<Vec<_>>(), [0xfed8_0000, 0xfe00_4000]);
    assert_eq!(ivrs.nr_misfits, 1, "a misaligned one");
    assert_eq!(ivrs.units[0].control, 1 << 1 | 1 << 10, "the fullest description of a unit counts");
    let unit = |id| ivrs.unit_of(0, id).map(|(n, scope)| (n, scope.alias, scope.passes));
    assert_eq!(unit(0x10), Some((0, None, 7)));
    assert_eq!(unit(0x1ff), Some((0, None, 0)));
    assert_eq!(unit(0x300), Some((0, Some(0x20), 0)));
    assert_eq!(unit(0x200), Some((1, None, 0)), "all that no other has");
    assert_eq!(ivrs.unit_of(1, 0x10), None, "another segment");
    let shares = |id| ivrs.shares_identity(0, id);
    assert!(shares(0x300) && shares(0x20), "one carries the other's identity");
    assert!(!shares(0x10) && !shares(0x1ff) && !ivrs.shares_identity(1, 0x300));
    assert_eq!(ivrs.units[0].io_apics, [IoApic { id: 9, source_id: 0xa0 }]);
    assert_eq!(ivrs.highest_named(0), 0xffff, "one unit has all");
    let range_only = [&[0; 48][..], &ivhd(0x11, 2, 0xfed8_0000, &[one, range[0], range[1], io_apic])].concat();
    let ivrs_of_range = Ivrs::parse(&range_only).unwrap();
    assert_eq!(ivrs_of_range.highest_named(0), 0x1ff, "where nothing is plugged in yet");
    assert_eq!(ivrs_of_range.highest_named(1), 0);
    assert!(ivrs.has_reserved(0x0f) && !ivrs.has_reserved(0x10));
    assert_eq!(ivrs.reserved[0].last, 0x7000_ffff);
}

#[test]
fn a_device_table_has_an_entry_for_every_function_that_is_let_through() {
    use amd::device::{has_entry, table_order};
    for highest in [0, 0x7f, 0x80, 0xff, 0x1ff, 0x1234, 0x7fff, u16::MAX] {
        let order = table_order(highest);
        assert!(order <= 9 && (0..=highest).all(|id| has_entry(order, id)), "{highest:#x}");
        let end = 128u32 << order;
        assert!(end < 2 * (u32::from(highest) + 128), "no more than twice as many");
        assert!((end..=0xffff).all(|id| !has_entry(order, u16::try_from(id).unwrap())), "{highest:#x}");
    }
}

#[test]
fn a_unit_of_amds_that_does_not_fit_is_noticed_beside_one_that_does() {
    let misfits = |other: &[u8]| {
        let table = [&[0; 48], other, &ivhd(0x11, 0x4002, 0xfe00_4000, &[&[1, 0, 0, 0]])].concat();
        ivrs::check_table(&table);
        let ivrs = Ivrs::parse(&table).unwrap();
        (ivrs.units.len(), ivrs.nr_misfits)
    };
    let first = |entries: &[&[u8]]| ivhd(0x11, 2, 0xfed8_0000, entries);
    let (start, end): (&[u8], &[u8]) = (&[3, 0, 1, 0], &[4, 0xff, 1, 0]);
    assert_eq!(misfits(&first(&[start, end])), (2, 0));
    assert_eq!(misfits(&first(&[start, end, &[0, 0]])), (2, 0), "padding");
    assert_eq!(misfits(&ivhd(0x21, 2, 0, &[])), (1, 0), "something else");
    assert_eq!(misfits(&ivhd(0x11, 2, 0xfed8_0800, &[start, end])), (1, 1), "misaligned");
    assert_eq!(misfits(&[0x11, 0, 8, 0, 2, 0, 0x40, 0]), (1, 1), "too short");
    assert_eq!(misfits(&first(&[start])), (1, 1), "a range without an end");
    assert_eq!(misfits(&first(&[end])), (1, 1), "one without a start");
    assert_eq!(misfits(&first(&[start, start, end])), (1, 1), "one in another");
    assert_eq!(misfits(&first(&[&[3, 0, 2, 0], end])), (1, 1), "one that ends before it starts");
    assert_eq!(misfits(&first(&[&[0x42, 0, 3, 0, 0, 0x20]])), (1, 1), "longer than the unit");
    assert_eq!(misfits(&[0x11, 0, 0, 0]), (0, 1), "the list ends before its end");
    assert_eq!(misfits(&[0x11, 0, 0xff, 0xff]), (0, 1), "a structure ends behind the table");
}

#[test]
fn a_held_entry_is_not_present_and_comes_back_as_it_was() {
    use vtd::remapping::{entry, held, steered, Mode};
    let [low, _] = entry(0x51, 2, Mode::Xapic, false, vtd::remapping::Named::By(0x18));
    let while_held = held(low, true);
    assert_eq!(while_held & 3, 2, "not present, and who names it is not recorded");
    assert_eq!(held(while_held, true), while_held);
    assert_eq!(held(while_held, false), low);
    let moved = steered(while_held, 3, Mode::Xapic);
    assert_eq!((moved & 3, held(moved, false)), (2, steered(low, 3, Mode::Xapic)), "it moves while it is held");
    assert_eq!((held(0, true), held(0, false)), (0, 0), "nothing is not held");
}
