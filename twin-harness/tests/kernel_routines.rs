//! The native support routines against the kernel's own code: both run on the same structures, in the memory of a
//! captured kernel, and must leave the same bytes and results. The kernel's functions run in the interpreter, from the
//! snapshot's text.
//!
//! Needs the snapshot of e1000, which is taken if there is none yet.

mod common;

use std::cell::RefCell;
use std::collections::HashMap;

use twin_capture::snapshot::Snapshot;
use twin_harness::cpu::{Bus, BusFault, CodeSpace, Cpu, Stop};
use twin_harness::lab::Lab;
use twin_harness::rig::Rig;
use twin_harness::world::{Beside, World};
use twin_kernel::LiveKernel;
use twin_runtime::linux::{Routine, Stop as RoutineStop};
use twin_runtime::Memory;

const STACK: u64 = 0xffff_a100_0000_0000;
const RETURN: u64 = 0x7fff_dead_0000;
/// Kernel text is looked at in pieces of this size.
const PIECE: u64 = 0x4000;

struct KernelBus<'w>(&'w World);

impl Bus for KernelBus<'_> {
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault> {
        self.0.read_int(address, size).map_err(|f| BusFault { address: f.address, write: false })
    }
    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault> {
        self.0.write_int(address, size, value).map_err(|f| BusFault { address: f.address, write: true })
    }
}

/// The kernel's own functions.
struct Kernel<'s> {
    snapshot: &'s Snapshot,
    pieces: HashMap<u64, CodeSpace>,
    percpu: u64,
}

impl Kernel<'_> {
    fn call(&mut self, world: &World, name: &str, args: &[u64; 6]) -> Result<u64, String> {
        let mut cpu = Cpu { gs_base: self.percpu, ..Cpu::default() };
        for (register, value) in [7, 6, 2, 1, 8, 9].into_iter().zip(args) {
            cpu.regs[register] = *value;
        }
        cpu.regs[4] = STACK + 0x2000;
        world.write_int(cpu.regs[4], 8, RETURN).expect("stack");
        cpu.rip = self.snapshot.symbol(name).ok_or(format!("no symbol {name}"))?;
        for _ in 0..1000 {
            let start = cpu.rip & !(PIECE - 1);
            let snapshot = self.snapshot;
            let piece = self.pieces.entry(start).or_insert_with(|| {
                // A little more than the piece, for the instruction that straddles its end.
                let mut bytes = vec![0xcc; PIECE as usize + 16];
                let _ = snapshot.read(start, &mut bytes);
                CodeSpace::new(start, bytes)
            });
            match cpu.run(piece, &mut KernelBus(world), 100_000) {
                Stop::Outside(RETURN) => return Ok(cpu.regs[0]),
                Stop::Outside(_) => {}
                other => return Err(format!("{other:x?} at {}", self.snapshot.describe(cpu.rip))),
            }
        }
        Err("does not come back".into())
    }
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 8) % n
    }
}

/// Two copies of the captured world, with scratch memory at the same addresses.
struct Pair<'s> {
    kernel: Kernel<'s>,
    theirs: Lab,
    ours: Lab,
    scratch: u64,
    cases: u32,
}

impl Pair<'_> {
    fn put(&self, at: u64, bytes: &[u8]) {
        for lab in [&self.theirs, &self.ours] {
            lab.world.write(self.scratch + at, bytes).expect("scratch memory");
        }
    }

    fn content(lab: &Lab, from: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        lab.world.read(from, &mut bytes).expect("scratch memory");
        bytes
    }

    /// Calls both; compares the results in `mask` and the first `len` bytes of the scratch memory. A call that the
    /// kernel ends by a trap has to end by an abort here; what is left to the domain counts as agreed.
    fn compare(&mut self, name: &str, args: [u64; 6], mask: u64, len: usize, about: &dyn std::fmt::Debug) {
        let theirs = self.kernel.call(&self.theirs.world, name, &args);
        let routine = Routine::by_name(name).expect("native");
        let ours = routine.call(&self.ours.support, &mut self.ours.world, &args);
        self.cases += 1;
        match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => {
                assert_eq!(ours & mask, theirs & mask, "{name} {about:x?}");
                let (a, b) =
                    (Self::content(&self.ours, self.scratch, len), Self::content(&self.theirs, self.scratch, len));
                let differ: Vec<_> = a.iter().zip(&b).enumerate().filter(|(_, (a, b))| a != b).collect();
                assert!(differ.is_empty(), "{name} {about:x?}: (offset, (ours, theirs)) {differ:x?}");
            }
            (_, Err(RoutineStop::Upcall)) => {}
            (Err(_), Err(_)) => {}
            (theirs, ours) => panic!("{name} {about:x?}: kernel {theirs:x?}, here {ours:x?}"),
        }
    }
}

fn pair(rig: &Rig) -> Pair<'_> {
    let lab = || {
        let mut world = rig.world().expect("a world");
        world.beside.push(Beside { address: STACK, bytes: RefCell::new(vec![0; 0x4000]), at: None });
        Lab::new(world, &rig.live).expect("a lab")
    };
    let kernel = Kernel { snapshot: &rig.snapshot, pieces: HashMap::new(), percpu: rig.live.percpu };
    let (theirs, ours) = (lab(), lab());
    let scratch = theirs.pages[0].1;
    assert_eq!(scratch, ours.pages[0].1);
    Pair { kernel, theirs, ours, scratch, cases: 0 }
}

#[test]
fn queue_limits_move_as_the_kernels() {
    let Some(rig) = common::rig("queue_limits_move_as_the_kernels") else { return };
    let (mut p, mut dice) = (pair(&rig), Dice(1));
    let o = rig.live.offsets;
    let now = p.ours.world.u64(rig.live.kernel.jiffies).expect("jiffies");
    for case in 0..3000 {
        p.put(0, &[0; 256]);
        let small = [0, 1, 60, 1500, 3000, 100_000];
        let word = |at: u64, dice: &mut Dice| {
            let value = small[dice.below(6) as usize] + dice.below(3);
            p.put(at, &(value as u32).to_le_bytes());
            value
        };
        let completed = word(o.dql_num_completed, &mut dice);
        let pending = word(o.dql_num_queued, &mut dice);
        let earlier = word(o.dql_prev_num_queued, &mut dice);
        for at in [o.dql_last_obj_cnt, o.dql_limit, o.dql_prev_ovlimit, o.dql_prev_last_obj_cnt, o.dql_lowest_slack] {
            word(at, &mut dice);
        }
        for at in [o.dql_min_limit, o.dql_slack_hold_time] {
            word(at, &mut dice);
        }
        p.put(o.dql_max_limit, &(1_879_048_192u32).to_le_bytes());
        let base = if case % 2 == 0 { 0 } else { u64::from(u32::MAX) - 1000 };
        let put = |at: u64, value: u64| p.put(at, &((base + value) as u32).to_le_bytes());
        put(o.dql_num_completed, completed);
        put(o.dql_num_queued, completed + pending);
        put(o.dql_prev_num_queued, completed + earlier.min(pending));
        p.put(o.dql_slack_start_time, &(now.wrapping_sub(dice.below(3000))).to_le_bytes());
        let count = if dice.below(10) == 0 { pending + 1 } else { dice.below(pending + 1) };
        let dql = p.scratch;
        p.compare("dql_completed", [dql, count, 0, 0, 0, 0], 0, 256, &(case, completed, pending, earlier, count));
    }
    println!("{} cases", p.cases);
}

/// Puts an `sk_buff` with `len` bytes at `data` of a buffer of `end` bytes into the scratch memory; the buffer is
/// at 1024.
fn put_skb(p: &Pair<'_>, rig: &Rig, data: u64, len: u64, end: u64) {
    let o = rig.live.offsets;
    let head = p.scratch + 1024;
    p.put(0, &[0; 256]);
    p.put(o.skb_head, &head.to_le_bytes());
    p.put(o.skb_data, &(head + data).to_le_bytes());
    for (at, value) in [(o.skb_tail, data + len), (o.skb_end, end), (o.skb_len, len), (o.skb_users, 1)] {
        p.put(at, &(value as u32).to_le_bytes());
    }
}

#[test]
fn socket_buffers_change_as_the_kernels() {
    let Some(rig) = common::rig("socket_buffers_change_as_the_kernels") else { return };
    let (mut p, mut dice) = (pair(&rig), Dice(2));
    let skb = p.scratch;
    for case in 0..3000u64 {
        let (data, len) = (dice.below(200), dice.below(600));
        let end = data + len + dice.below(300);
        put_skb(&p, &rig, data, len, end);
        let more = dice.below(330);
        let about = (case, data, len, end, more);
        match case % 4 {
            0 => p.compare("skb_put", [skb, more, 0, 0, 0, 0], u64::MAX, 256, &about),
            1 => p.compare("skb_trim", [skb, more * 2, 0, 0, 0, 0], 0, 256, &about),
            2 => {
                // At the end, or a little beyond it, every other time.
                let wanted = dice.below(40);
                let offset = if dice.below(2) == 0 { (len + dice.below(3)).saturating_sub(wanted) } else { more };
                let bytes: Vec<u8> = (0..3072).map(|_| dice.next() as u8).collect();
                p.put(1024, &bytes);
                let args = [skb, offset, skb + 3072, wanted, 0, 0];
                p.compare("skb_copy_bits", args, u64::from(u32::MAX), 4096, &(about, offset, wanted));
            }
            _ => {
                p.put(1024, &[0xee; 2048]);
                p.compare("__skb_pad", [skb, more % 64, 0, 0, 0, 0], u64::from(u32::MAX), 3072, &about);
            }
        }
    }
    println!("{} cases", p.cases);
}

#[test]
fn ethernet_headers_are_read_as_by_the_kernel() {
    let Some(rig) = common::rig("ethernet_headers_are_read_as_by_the_kernel") else { return };
    let (mut p, mut dice) = (pair(&rig), Dice(3));
    let (skb, mac) = (p.scratch, rig.live.net.mac);
    for case in 0..3000u64 {
        let len = if dice.below(20) == 0 { dice.below(14) } else { 14 + dice.below(200) };
        put_skb(&p, &rig, dice.below(100), len, 512);
        let mut frame: Vec<u8> = (0..600).map(|_| dice.next() as u8).collect();
        let at = p.ours.world.u64(skb + rig.live.offsets.skb_data).expect("scratch") - p.scratch;
        match dice.below(4) {
            0 => frame[..6].copy_from_slice(&mac),
            1 => frame[..6].fill(0xff),
            2 => frame[0] |= 1,
            _ => {}
        }
        if dice.below(3) == 0 {
            (frame[12], frame[13]) = (dice.below(7) as u8, dice.next() as u8);
        }
        if dice.below(3) == 0 {
            frame[14..16].fill(0xff);
        }
        p.put(at, &frame);
        p.compare("eth_type_trans", [skb, rig.live.net.address, 0, 0, 0, 0], 0xffff, 256, &(case, len, &frame[..16]));
    }
    println!("{} cases", p.cases);
}

#[test]
fn headers_of_ipv6_are_found_as_by_the_kernel() {
    let Some(rig) = common::rig("headers_of_ipv6_are_found_as_by_the_kernel") else { return };
    let (mut p, mut dice) = (pair(&rig), Dice(6));
    let (skb, o) = (p.scratch, rig.live.offsets);
    /// Extension headers, TCP and UDP.
    const KINDS: [u8; 8] = [0, 43, 44, 51, 59, 60, 6, 17];
    for case in 0..6000u64 {
        let (data, len) = (dice.below(64), 54 + dice.below(120));
        put_skb(&p, &rig, data, len, 1024);
        let mut frame: Vec<u8> = (0..len).map(|_| dice.next() as u8).collect();
        (frame[14], frame[20]) = (0x60, KINDS[dice.below(8) as usize]);
        for header in frame[54..].chunks_exact_mut(8) {
            (header[0], header[1]) = (KINDS[dice.below(8) as usize], dice.below(3) as u8);
            if dice.below(2) == 0 {
                header[2..4].fill(0);
            }
        }
        p.put(1024 + data, &frame);
        p.put(o.skb_network_header, &(data as u16 + 14).to_le_bytes());
        let inner = [0, 0, 0, 14, 15, 400][dice.below(6) as usize];
        p.put(
            3072,
            &[u32::to_le_bytes(inner), [0xee; 4], (dice.below(8) as u32).to_le_bytes(), [frame[20]; 4]].concat(),
        );
        let [offset, fragment, flags, next] = [0, 4, 8, 12].map(|n| p.scratch + 3072 + n);
        let target = [u64::from(u32::MAX), 0, 6, 17, 43, 44, 51, 59, 60][dice.below(9) as usize];
        let about = (case, len, inner, target, &frame[54..]);
        if case % 3 == 0 {
            let start = 54 + dice.below(4) / 3 * dice.below(20);
            p.compare("ipv6_skip_exthdr", [skb, start, next, fragment, 0, 0], u32::MAX.into(), 3200, &about);
        } else {
            let or_null = |at: u64, dice: &mut Dice| if dice.below(8) == 0 { 0 } else { at };
            let (fragment, flags) = (or_null(fragment, &mut dice), or_null(flags, &mut dice));
            p.compare("ipv6_find_hdr", [skb, offset, target, fragment, flags, 0], u32::MAX.into(), 3200, &about);
        }
    }
    println!("{} cases", p.cases);
}

#[test]
fn polls_and_locks_change_hands_as_in_the_kernel() {
    let Some(rig) = common::rig("polls_and_locks_change_hands_as_in_the_kernel") else { return };
    let (mut p, mut dice) = (pair(&rig), Dice(4));
    let o = rig.live.offsets;
    for case in 0..2000u64 {
        p.put(0, &[0; 1024]);
        // The poll list of a napi_struct is its first member: empty.
        let own = p.scratch;
        p.put(0, &[own.to_le_bytes(), own.to_le_bytes()].concat());
        p.put(o.napi_device, &rig.live.net.address.to_le_bytes());
        // MISSED (bit 1) is left out: the kernel's way to run again goes through its softirqs.
        // Completing a poll that nobody owns is a WARN there.
        let state = if case % 2 == 0 { dice.below(1 << 10) } else { dice.below(1 << 10) & !2 | 1 };
        p.put(o.napi_state, &state.to_le_bytes());
        let about = (case, state);
        if case % 2 == 0 {
            p.compare("napi_schedule_prep", [own, 0, 0, 0, 0, 0], 0xff, 1024, &about);
        } else {
            p.compare(
                "napi_complete_done",
                [own, dice.below(2), 0, 0, 0, 0],
                0xff,
                (o.napi_state + 8) as usize,
                &about,
            );
        }
        p.put(0, &(dice.below(3) as u32).to_le_bytes());
        p.compare("_raw_spin_trylock", [own, 0, 0, 0, 0, 0], 0xff, 4, &about);
        let address = [dice.next(), rig.live.kernel.vmalloc_start + dice.next() % (1 << 40), own][case as usize % 3];
        p.compare("is_vmalloc_addr", [address, 0, 0, 0, 0, 0], 0xff, 4, &address);
    }
    println!("{} cases", p.cases);
}

#[test]
fn bytes_move_as_in_the_kernel() {
    let Some(rig) = common::rig("bytes_move_as_in_the_kernel") else { return };
    let (mut p, mut dice) = (pair(&rig), Dice(5));
    let scratch = p.scratch;
    for case in 0..1000u64 {
        let bytes: Vec<u8> = (0..4096).map(|_| dice.next() as u8).collect();
        p.put(0, &bytes);
        let (to, from, len) = (dice.below(1800), dice.below(1800), dice.below(2000));
        let args = [scratch + to, scratch + from, len, 0, 0, 0];
        match case % 3 {
            0 => p.compare("memmove", args, u64::MAX, 4096, &(to, from, len)),
            1 => p.compare("memset", [args[0], from & 0xff, len, 0, 0, 0], u64::MAX, 4096, &(to, from, len)),
            _ => p.compare(
                "memcpy",
                [args[0], scratch + 4096 - len.min(250), len.min(250), 0, 0, 0],
                u64::MAX,
                4096,
                &len,
            ),
        }
    }
    println!("{} cases", p.cases);
}
