//! The original text on the host's own processor, to compare with.
//!
//! A kernel's addresses are no process's. So the captured domain moves: every pointer in its memory that names one of
//! its pages loses its high bits, as masking would make it, and memory, text and structures are mapped there. The text
//! is the original's, byte for byte, but for the distances of calls that leave the module, which are bound to stubs
//! nearby. What the text finds relative to gs lies at two places: where the base says, and where distances from the
//! moved text lead.

use super::arena::{map, protect, Arena, Mapped, Watch};
use super::entry::{enter, stub, tandem_twin_gate, Callee, Entry, Running, STUB};
use super::faults::{RUNNING, TICKS};
use super::quiet::Quiet;
use crate::lab::{Class, Ended, Executor, Lab};
use crate::rig::Rig;
use crate::world::{World, MASK_BITS, PAGE};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use twin_abi::image::Mode;
use twin_kernel::driver::Live;
use twin_kernel::LiveKernel;
use twin_rewrite::module::Module;
use twin_rewrite::program;
use twin_runtime::gate::Registers;
use twin_runtime::linux::Support;

const MASK: u64 = (1 << MASK_BITS) - 1;
/// Bytes of a per-CPU area that may be used.
const PERCPU_BYTES: u64 = 0x40000;

/// The original text, moved.
pub struct NativeOriginal {
    arena: Box<Arena>,
    names: Vec<String>,
    _mapped: Vec<Mapped>,
}

/// The moved world with the original in it, ready to run.
pub fn moved(rig: &Rig) -> Result<(Lab, NativeOriginal, Rc<Quiet>), String> {
    let mut world = rig.world()?;
    move_pointers(&world);
    for name in ["page_offset_base", "vmemmap_base", "vmalloc_base"] {
        let at = rig.snapshot.symbol(name).and_then(|a| rig.snapshot.translate(a)).ok_or(format!("no {name}"))?;
        let value = world.ram.int(at, 8).unwrap_or(0) & MASK;
        world.ram.write(at, &value.to_le_bytes());
    }
    world.pages = world.masked.clone();
    let mut live = rig.live.clone();
    move_live(&mut live);
    let quiet = Quiet::new(&world)?;
    let (names, stubs) = bind(rig, &world)?;
    let arena = Arena::new(Mode::Mirror, PAGE, &mut world, live.percpu, Watch::Quiet(quiet.clone()))?;
    for s in rig.module.sections.iter().filter(|s| s.executable) {
        let start = s.address & MASK & !(PAGE - 1);
        let end = ((s.address & MASK) + s.bytes.len() as u64).next_multiple_of(PAGE);
        protect(start, end - start, libc::PROT_READ | libc::PROT_EXEC)?;
    }
    let mut mapped = vec![stubs];
    // Distances from the moved text to per-CPU variables come out higher by what the text moved.
    for offset in (0..PERCPU_BYTES).step_by(PAGE as usize) {
        let Some((pa, _)) = world.masked.get((live.percpu + offset) / PAGE) else { continue };
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        mapped.push(map(Some(live.percpu + offset + MASK + 1), PAGE, rw, Some((world.ram.file(), pa)))?);
    }
    const ARCH_SET_GS: libc::c_int = 0x1001;
    // SAFETY: nothing else in this process uses gs.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, live.percpu) };
    let original = NativeOriginal { arena, names, _mapped: mapped };
    Ok((Lab::new(world, &live)?, original, quiet))
}

/// Every word of memory that is the address of a page of the domain.
fn move_pointers(world: &World) {
    let mut moved = Vec::new();
    for (at, word) in (0u64..).step_by(8).zip(world.ram.bytes().chunks_exact(8)) {
        let value = u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        if value >> 47 == 0x1_ffff && world.pages.get(value / PAGE).is_some() {
            moved.push((at, value & MASK));
        }
    }
    for (at, value) in moved {
        world.ram.write(at, &value.to_le_bytes());
    }
}

fn move_live(live: &mut Live) {
    let net = &mut live.net;
    for a in [&mut net.address, &mut net.private, &mut net.start_xmit, &mut net.tx_queue, &mut live.percpu] {
        *a &= MASK;
    }
    for (napi, poll) in &mut net.napi {
        (*napi, *poll) = (*napi & MASK, *poll & MASK);
    }
    for (_, handler, argument) in &mut net.irqs {
        (*handler, *argument) = (*handler & MASK, *argument & MASK);
    }
    let k = &mut live.kernel;
    let vmalloc = k.vmalloc_end - k.vmalloc_start;
    for a in [&mut k.page_offset, &mut k.vmalloc_start, &mut k.vmemmap, &mut k.jiffies, &mut k.sleepers.table] {
        *a &= MASK;
    }
    k.vmalloc_end = k.vmalloc_start + vmalloc;
}

/// Binds calls out of the module to stubs near the text; returns the names by stub.
fn bind(rig: &Rig, world: &World) -> Result<(Vec<String>, Mapped), String> {
    const ROOM: u64 = 1 << 18;
    let m = &rig.module;
    let calls = calls_out(m);
    let text = m.sections.iter().find(|s| s.executable).map_or(0, |s| s.address & MASK);
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let near = (1..64).find_map(|k| map(Some((text & !(PAGE - 1)) + (k << 24)), ROOM, rw, None).ok());
    let stubs = near.ok_or("no room for stubs near the text")?;
    let mut names = Vec::new();
    let mut code = vec![0xcc; STUB];
    code[..8].copy_from_slice(&(tandem_twin_gate as *const () as u64).to_le_bytes());
    let mut at: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, target) in &calls {
        if at.contains_key(target) {
            continue;
        }
        let place = code.len();
        at.insert(*target, stubs.at + place as u64);
        let known = m.externs.names(*target);
        let mut stub = match stand_in(&known) {
            Some(bytes) => bytes,
            None => {
                let name = program::import_name(m, *target).ok_or(format!("no name for {target:#x}"))?;
                // The common part is named by the first word.
                let bytes = stub(names.len() as u64, (place as u32).wrapping_neg());
                names.push(name);
                bytes.to_vec()
            }
        };
        stub.resize(STUB, 0xcc);
        code.extend(stub);
    }
    if code.len() as u64 > ROOM {
        return Err("too many stubs".into());
    }
    // SAFETY: the mapping is new, writable and long enough.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), stubs.at as *mut u8, code.len()) };
    protect(stubs.at, ROOM, libc::PROT_READ | libc::PROT_EXEC)?;
    for (end, target) in &calls {
        // The distance is the last four bytes of the instruction.
        let distance = at[target].wrapping_sub(end & MASK) as i64;
        let distance = i32::try_from(distance).map_err(|_| "a stub is too far away")?;
        for (k, byte) in (0u64..).zip(distance.to_le_bytes()) {
            let pa = rig.snapshot.translate(end - 4 + k).ok_or("text that is not mapped")?;
            world.ram.write(pa, &[byte]);
        }
    }
    Ok((names, stubs))
}

/// What stands for a thunk or a hook of the kernel.
fn stand_in(names: &[&str]) -> Option<Vec<u8>> {
    if program::is_return_thunk(names) || program::has_no_effect(names) {
        return Some(vec![0xc3]);
    }
    let n = program::thunk_register(names)?;
    let mut bytes = if n >= 8 { vec![0x41] } else { Vec::new() };
    bytes.extend([0xff, 0xe0 + n % 8]);
    Some(bytes)
}

/// Ends and targets of all calls and jumps with 32-bit distances that leave the module's text.
fn calls_out(m: &Module) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    for body in program::recover(m).bodies.values() {
        for node in body.nodes.values() {
            let i = node.instruction;
            let leaves = i.is_call_near() || i.is_jmp_near() || i.is_jcc_near();
            if leaves && !m.is_text(i.near_branch_target()) {
                out.push((i.next_ip(), i.near_branch_target()));
            }
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

impl Executor for NativeOriginal {
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        let entry = Entry { stack: self.arena.stack_top(), target: function, registers: Registers::of_args(args) };
        let callee = Callee::Original(&self.names);
        let mut running = Running { callee, arena: &mut *self.arena, world, support, abort: None };
        TICKS.store(0, Ordering::Relaxed);
        RUNNING.store(&mut running, Ordering::SeqCst);
        // SAFETY: the target is a function of the original text, which was seen to do this work in the interpreter; a
        // fault ends the process. What `running` points to is borrowed exclusively until it returns.
        let (value, broken) = unsafe { enter(&entry) };
        RUNNING.store(std::ptr::null_mut(), Ordering::SeqCst);
        if broken {
            let reason = "returned with other registers".into();
            return Err(Ended { class: Class::Other, reason, at: format!("{function:#x}") });
        }
        Ok(value)
    }

    fn instructions(&self) -> u64 {
        0
    }
}
