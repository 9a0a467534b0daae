#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use twin_abi::image::{flags, text_hash, Address, Function, ImageBuilder, Import, Label, Mode, Origin};
use twin_abi::kind::State;
use twin_abi::layout::{constant, ctx, gate, CODE_OFFSET};
use twin_verify::{verify, Policy};

use super::*;
use crate::instance::{Areas, Config, Incomplete};
use crate::limit::Unheard;
use crate::linux::pool::Pool;
use crate::linux::skb::Frame;
use crate::linux::Foreign;
use crate::memory::{Fault, Memory};

const TEXT: u64 = 0xffff_ffff_c020_1000;
const PRINTK: u64 = 0xffff_ffff_8110_0000;

/// An image of two functions, `first` and `second`, which return at once, with two imports: one native, one not.
fn image(mode: Mode) -> Vec<u8> {
    image_with(mode, [("is_vmalloc_addr", PRINTK - 64), ("_printk", PRINTK)])
}

fn image_with(mode: Mode, imports: [(&str, u64); 2]) -> Vec<u8> {
    let mirror = mode == Mode::Mirror;
    let mask_bits = if mirror { 46 } else { 0 };
    let mut b = ImageBuilder { mirror, mask_bits, flags: flags::COUNTED, text: TEXT, ..Default::default() };
    b.text_hash = text_hash(b"text");
    b.code = vec![0xc3; 16];
    b.code[1..8].fill(0xcc);
    b.code[9..].fill(0xcc);
    for (n, name) in ["first", "second"].into_iter().enumerate() {
        let (name, name_len) = b.name(name);
        let start = 8 * n as u32;
        let domain = TEXT + 0x40 * n as u64;
        b.functions.push(Function { start, end: start + 8, name, name_len, domain, ..Default::default() });
        let state = b.state(State::default());
        b.labels.push(Label { offset: start, state });
        b.addresses.push(Address { domain, function: n as u32 });
        b.origins.push(Origin { offset: start, original: 0x44 * n as u32 });
    }
    for (name, domain) in imports {
        let (name, name_len) = b.name(name);
        b.imports.push(Import { name, name_len, domain });
    }
    b.build()
}

fn twin(bytes: &[u8]) -> Twin<'_> {
    let mode = twin_abi::Image::parse(bytes).expect("parses").mode;
    let mask_bits = if mode == Mode::Mirror { 46 } else { 0 };
    let verified = verify(bytes, &Policy { mode, mask_bits, counted: true, bmi: true }).expect("accepted");
    Twin::new(verified, 8, 0x5000).expect("memory")
}

#[derive(Default)]
struct World {
    budget: i64,
    miss: u64,
    result: u64,
    late: bool,
    unheard: Unheard,
    table: Vec<(usize, u64, u64)>,
    upcalls: Vec<(u64, [u64; 6])>,
    is_later: bool,
    pool: Pool,
}

impl Memory for World {
    fn read(&self, address: u64, _: &mut [u8]) -> Result<(), Fault> {
        Err(Fault { address, write: false })
    }
    fn write(&self, address: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault { address, write: true })
    }
    fn exchange_u32(&self, address: u64, _: u32, _: u32) -> Result<u32, Fault> {
        Err(Fault { address, write: true })
    }
    fn exchange_u64(&self, address: u64, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { address, write: true })
    }
}

impl Host for World {
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        work(&mut self.pool)
    }
    fn machine_frame(&self, _: u64) -> Option<u64> {
        None
    }
    fn schedule_poll(&mut self, _: u64) {}
    fn receive(&mut self, _: Frame<'_>) -> bool {
        false
    }
    fn transmitted(&mut self, _: u64, _: u64) {}
    fn free_in_domain(&mut self, _: Foreign) {}
    fn queue_event(&mut self, _: u64) {}
    fn lock_is_busy(&mut self, _: u64, _: u32) -> bool {
        false
    }
    fn note(&mut self, _: Routine, _: &[u64; 6]) {}
}

impl Mapper for World {
    fn map_pair(&mut self, page: u64) -> Result<u64, Fault> {
        if page >= 0xffff_8880_0000_0000 {
            Ok(0x7000_0000)
        } else {
            Err(Fault { address: page, write: false })
        }
    }
    fn unmap_pair(&mut self, _: u64) {}
    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
        self.table.push((index, tag, mapped));
    }
}

impl Embedder for World {
    fn budget(&self) -> i64 {
        self.budget
    }
    fn set_budget(&mut self, steps: i64) {
        self.budget = steps;
    }
    fn miss_address(&self) -> u64 {
        self.miss
    }
    fn set_miss_result(&mut self, address: u64) {
        self.result = address;
    }
    fn upcall(&mut self, _: u32, _: &str, domain: u64, args: &[u64; 6], _: u64) -> Result<Upcall, Reason> {
        self.upcalls.push((domain, *args));
        Ok(if self.is_later { Upcall::Later } else { Upcall::Returned(99) })
    }
    fn is_out_of_time(&self) -> bool {
        self.unheard.is_over(|| self.late)
    }
    fn is_twin_stack(&self, address: u64) -> bool {
        (0x100_0000..0x100_8000).contains(&address)
    }
}

fn call(gate: Gate) -> Call {
    Call { gate, registers: Registers::of_args(&[1, 2, 3, 4, 5, 6]), from: 9, stack: 0 }
}

fn reason(answer: Answer) -> Option<Reason> {
    match answer {
        Answer::Abort(abort) => Some(abort.reason),
        _ => None,
    }
}

#[test]
fn imports_are_bound_by_name_and_counted() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { budget: 10, ..World::default() }, Support::default());
    assert_eq!(twin.gate(&call(Gate::Import(0)), &mut world, &support), Answer::Return(0));
    assert_eq!(twin.gate(&call(Gate::Import(1)), &mut world, &support), Answer::Return(99));
    twin.limit_natives(|_| false);
    assert_eq!(twin.gate(&call(Gate::Import(0)), &mut world, &support), Answer::Return(99));
    assert_eq!(world.upcalls, [(PRINTK, [1, 2, 3, 4, 5, 6]), (PRINTK - 64, [1, 2, 3, 4, 5, 6])]);
    let counts: Vec<_> = twin.imports().map(|(name, _, c)| (name.to_string(), c.native, c.upcall)).collect();
    assert_eq!(counts, [("is_vmalloc_addr".into(), 1, 1), ("_printk".into(), 0, 1)]);
    assert_eq!(reason(twin.gate(&call(Gate::Import(2)), &mut world, &support)), Some(Reason::Import(2)));
}

/// The short ways charge and refuse as the gate does, or leave it to the gate.
#[test]
fn short_ways_are_those_of_the_gate() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { budget: 10, ..World::default() }, Support::default());
    let mut running = Invocation { twin: &mut twin };
    assert!(may_begin(&mut world));
    assert_eq!((world.budget, running.enters(TEXT + 0x40, &mut world), world.budget), (9, Some(8), 8));
    // Not served here, and not charged twice.
    assert_eq!([PRINTK, TEXT + 0x41, 0].map(|domain| running.enters(domain, &mut world)), [None; 3]);
    assert_eq!(world.budget, 8);
    world.late = true;
    world.unheard.note();
    assert!(!may_begin(&mut world));
    assert_eq!(running.enters(TEXT + 0x40, &mut world), None);
    // Nor is that forgotten on the way to the gate.
    assert_eq!(reason(running.gate(&call(Gate::Import(0)), &mut world, &support)), Some(Reason::TimeOut));
    (world.late, world.budget) = (false, 0);
    assert!(!may_begin(&mut world));
    assert_eq!(running.enters(TEXT + 0x40, &mut world), None);
    assert_eq!(reason(running.gate(&call(Gate::Import(0)), &mut world, &support)), Some(Reason::Budget));
    // What a routine leaves to the domain.
    world.budget = 10;
    let import = call(Gate::Import(0));
    assert_eq!(running.stopped(0, Stop::Upcall, &import, &mut world), Answer::Return(99));
    let bad = Reason::Lock(7);
    assert_eq!(reason(running.stopped(0, Stop::Abort(bad), &import, &mut world)), Some(bad));
    assert_eq!(world.upcalls, [(PRINTK - 64, [1, 2, 3, 4, 5, 6])]);
    let counts: Vec<_> = twin.imports().map(|(_, _, c)| (c.native, c.upcall)).collect();
    assert_eq!((counts, twin.indirect), (vec![(0, 1), (0, 0)], 1));
}

/// While an invocation waits for an upcall nothing else begins on its stack.
#[test]
fn an_invocation_waits_and_goes_on() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { is_later: true, ..World::default() }, Support::default());
    assert!(twin.resume().is_none(), "nothing waits");
    let (mut running, _) = twin.begin(TEXT, &[0; 6], 10, &mut world).expect("begins");
    assert_eq!(running.gate(&call(Gate::Import(1)), &mut world, &support), Answer::Wait);
    assert_eq!(world.upcalls, [(PRINTK, [1, 2, 3, 4, 5, 6])]);
    let second = twin.begin(TEXT, &[0; 6], 10, &mut world).map(|_| ());
    assert_eq!(second.map_err(|abort| abort.reason), Err(Reason::Busy));
    assert!(twin
        .resume()
        .is_some_and(|mut running| running.gate(&call(Gate::Warn), &mut world, &support) == Answer::Resume));
    assert!(twin.resume().is_none(), "it goes on once");
    assert_eq!(world.budget, 8, "the budget is that of the whole invocation");
}

#[test]
fn stack_addresses_do_not_reach_the_domain() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { budget: 10, ..World::default() }, Support::default());
    let registers = Registers::of_args(&[1, 0x100_0040, 0, 0, 0, 0]);
    let leak = Call { registers, ..call(Gate::Import(1)) };
    assert_eq!(reason(twin.gate(&leak, &mut world, &support)), Some(Reason::StackPointer(0x100_0040)));
    assert!(world.upcalls.is_empty());
}

/// What reads into a variable of the twin's is not left to the domain.
#[test]
fn bytes_of_a_packet_reach_a_variable_of_the_twins() {
    let bytes = image_with(Mode::Mirror, [("skb_copy_bits", PRINTK - 64), ("_printk", PRINTK)]);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { budget: 10, ..World::default() }, Support::default());
    let registers = Registers::of_args(&[1, 14, 0x100_0040, 4, 0, 0]);
    let answer = twin.gate(&Call { registers, ..call(Gate::Import(0)) }, &mut world, &support);
    assert_ne!(reason(answer), Some(Reason::StackPointer(0x100_0040)));
    assert!(world.upcalls.is_empty());
}

#[test]
fn indirect_calls_reach_functions_imports_or_nothing() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { budget: 10, ..World::default() }, Support::default());
    let with = |r11| Call { registers: Registers { r11, ..Registers::default() }, ..call(Gate::IndirectCall) };
    let mut to = |r11| twin.gate(&with(r11), &mut world, &support);
    assert_eq!(to(TEXT + 0x40), Answer::Enter(8));
    assert_eq!(to(PRINTK), Answer::Return(99));
    assert_eq!(reason(to(TEXT + 0x41)), Some(Reason::IndirectCall(TEXT + 0x41)));
    assert_eq!(reason(to(0)), Some(Reason::IndirectCall(0)));
}

#[test]
fn a_used_up_budget_ends_it_in_any_gate_and_says_where() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World::default(), Support::default());
    let (mut running, _) = twin.begin(TEXT + 0x40, &[0; 6], 2, &mut world).expect("begins");
    for _ in 0..2 {
        assert_eq!(running.gate(&call(Gate::Warn), &mut world, &support), Answer::Resume);
    }
    let Answer::Abort(abort) = running.gate(&call(Gate::Warn), &mut world, &support) else { panic!("goes on") };
    assert_eq!(abort.to_string(), "Budget at second+0x4 (twin 0x8)");
    assert_eq!(running.twin().warnings, 2);
    assert!(twin.begin(TEXT + 1, &[0; 6], 2, &mut world).is_err());
    (world.budget, world.late) = (100, true);
    world.unheard.note();
    assert_eq!(reason(twin.gate(&call(Gate::Import(0)), &mut world, &support)), Some(Reason::TimeOut));
}

#[test]
fn a_miss_is_served_in_stlb_mode_only() {
    let bytes = image(Mode::Stlb);
    let mut twin = twin(&bytes);
    let (mut world, support) = (World { budget: 10, ..World::default() }, Support::default());
    world.miss = 0xffff_8880_0001_2345;
    assert_eq!(twin.gate(&call(Gate::StlbMiss), &mut world, &support), Answer::Resume);
    assert_eq!((world.result, &world.table[..]), (0x7000_0345, &[(0x12, 0xffff_8880_0001_2000, 0x7000_0000)][..]));
    world.miss = 0xffff_8300_0000_0000;
    let fault = Fault { address: 0xffff_8300_0000_0000, write: false };
    assert_eq!(reason(twin.gate(&call(Gate::StlbMiss), &mut world, &support)), Some(Reason::Memory(fault)));
    let bytes = image(Mode::Mirror);
    let mut mirror = super::tests::twin(&bytes);
    assert!(reason(mirror.gate(&call(Gate::StlbMiss), &mut world, &support)).is_some());
}

#[test]
fn exceptions_are_told_apart() {
    let bytes = image(Mode::Mirror);
    let image = twin_abi::Image::parse(&bytes).expect("parses");
    let of = |vector, budget, in_guard| Abort::exception(&image, 8, vector, 0x123, budget, in_guard).reason;
    assert_eq!(of(6, 5, false), Reason::Bug);
    assert_eq!(of(6, -1, false), Reason::Budget);
    assert_eq!(of(14, 5, true), Reason::Stack(0x123));
    assert_eq!(of(14, 5, false), Reason::Exception { vector: 14, address: 0x123 });
}

/// Complete stubs.
fn stubs() -> Config {
    Config { icall: 0xabc, warn: 0xdef, stlb_miss: 0x123, imports: vec![0x111, 0x222], ..Config::default() }
}

/// At `ICALL` other rules hold than at an import: it may enter a function that writes stack arguments. An import's call
/// makes no room for these, so at a slot that led there they would be the caller's return address.
#[test]
fn a_slot_without_a_stub_of_its_own_is_an_error() {
    let bytes = image(Mode::Stlb);
    let twin = twin(&bytes);
    let of = |config: Config| Areas::new(twin.verified(), twin.addresses(), &config).map(|_| ());
    assert_eq!(of(stubs()), Ok(()));
    assert_eq!(of(Config { imports: vec![], ..stubs() }), Err(Incomplete::Stubs(0, 2)));
    assert_eq!(of(Config { imports: vec![0x111], ..stubs() }), Err(Incomplete::Stubs(1, 2)));
    assert_eq!(of(Config { imports: vec![0x111, 0x222, 0x333], ..stubs() }), Err(Incomplete::Stubs(3, 2)));
    for wrong in [0, 0xabc, 0xdef, 0x123] {
        assert_eq!(of(Config { imports: vec![0x111, wrong], ..stubs() }), Err(Incomplete::Import(1)), "{wrong:#x}");
    }
    for gates in [(0, 1, 2), (1, 0, 2), (1, 2, 0), (1, 1, 2), (1, 2, 2), (2, 1, 2)] {
        let (icall, warn, stlb_miss) = gates;
        assert_eq!(of(Config { icall, warn, stlb_miss, ..stubs() }), Err(Incomplete::Gate), "{gates:?}");
    }
    let bytes = image(Mode::Mirror);
    let twin = super::tests::twin(&bytes);
    let mirror = Areas::new(twin.verified(), twin.addresses(), &Config { stlb_miss: 0, ..stubs() });
    assert!(mirror.is_ok(), "no image can call that gate in mirror mode");
}

#[test]
fn nothing_of_the_hypervisor_is_left_in_registers() {
    let bytes = image(Mode::Mirror);
    let mut twin = twin(&bytes);
    let mut world = World::default();
    let args = [1, 2, 3, 4, 5, 6];
    let (_, entry) = twin.begin(TEXT, &args, 2, &mut world).expect("begins");
    assert_eq!((entry.registers, entry.offset), (Registers::of_args(&args), 0));
    let before = Registers { rax: 7, r10: 8, r11: 9, ..Registers::of_args(&args) };
    assert_eq!(Answer::Return(99).registers(&before), Registers { rax: 99, ..Registers::default() });
    assert_eq!(Answer::Resume.registers(&before), before);
    assert_eq!(Answer::Enter(8).registers(&before), Registers::of_args(&args));
    assert_eq!(Registers::of_args(&args).args(), args);
}

/// A tail call to an import leaves nothing of the twin's above its return address but the entry area.
#[test]
fn stack_arguments_end_with_the_stack() {
    let config = Config { stack: 0x10_0000, ..Config::default() };
    assert_eq!(config.entry_stack(), 0x10_7f00);
    assert_eq!(config.stack_arguments(0x10_0100), 0x10_0108..0x10_0188);
    assert_eq!(config.stack_arguments(0x10_7ef8), 0x10_7f00..0x10_7f80, "of the first function");
    assert_eq!(config.stack_arguments(0x10_7fe8), 0x10_7ff0..0x10_8000);
    for outside in [0x10_7ff8, 0x10_8000, 0xf_fff0, 0, u64::MAX] {
        assert!(config.stack_arguments(outside).is_empty(), "{outside:#x}");
    }
}

#[test]
fn the_areas_hold_what_the_contract_says() {
    let bytes = image(Mode::Stlb);
    let twin = twin(&bytes);
    let config = Config {
        base: 0x10_0000,
        stack: 0x1000,
        unsafe_area: 0x9000,
        percpu: 0xffff_8880_0300_0000,
        hole: 0x5000,
        ..stubs()
    };
    let areas = Areas::new(twin.verified(), twin.addresses(), &config).expect("complete");
    let word = |area: &[u8], at: u32| u64::from_le_bytes(area[at as usize..at as usize + 8].try_into().expect("eight"));
    assert_eq!(word(&areas.constants, constant::DELTA), 0x8000);
    assert_eq!(word(&areas.constants, constant::PERCPU), 0xffff_8880_0300_0000);
    assert_eq!(word(&areas.constants, gate::ICALL), 0xabc);
    assert_eq!((word(&areas.imports, 8), word(&areas.imports, 16)), (0x222, 0));
    let at = (TEXT & 0xff0) as u32;
    assert_eq!(word(&areas.call_table, at), TEXT);
    assert_eq!(word(&areas.call_table, at + 8), 0x10_0000 + u64::from(CODE_OFFSET));
    assert_eq!(word(&areas.call_table, at + 24), 0xabc, "an empty entry leads to the gate");
    assert_eq!(word(&areas.context, ctx::MISS_RESULT), 0x5000);
    assert_eq!((areas.stlb.len(), word(&areas.stlb, 16), word(&areas.stlb, 24)), (65536, 1 << 47, 0x5000));
    let bytes = image(Mode::Mirror);
    let twin = super::tests::twin(&bytes);
    let areas = Areas::new(twin.verified(), twin.addresses(), &config).expect("complete");
    assert_eq!(word(&areas.constants, constant::MASK), (1 << 46) - 1);
    assert_eq!(word(&areas.constants, constant::PERCPU), 0x0880_0300_0000);
    assert!(areas.stlb.is_empty());
}

#[test]
fn stack_and_guards_are_told_apart() {
    let config = Config { stack: 0x10_0000, unsafe_area: 0x20_0000, ..Config::default() };
    let of = |address| (config.is_twin_stack(address), config.is_guard(address));
    assert_eq!((of(0x0f_dfff), of(0x0f_e000), of(0x0f_ffff)), ((false, false), (false, true), (false, true)));
    assert_eq!((of(0x10_0000), of(0x10_7fff)), ((true, false), (true, false)));
    assert_eq!((of(0x10_8000), of(0x10_9fff), of(0x10_a000)), ((false, true), (false, true), (false, false)));
    assert_eq!((of(0x20_0000), of(0x20_8000), of(u64::MAX)), ((true, false), (false, true), (false, false)));
}
