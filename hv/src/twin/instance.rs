//! The areas of a twin on one CPU, as `twin_abi::layout` arranges them, with its stack, its stubs and its save page.

use crate::arch::tsc;
use crate::cpu::percpu::MAX_CPUS;
use crate::cpu::requests;
use crate::mem::{layout, paging, vmap};
use crate::sync::{Mutex, MutexGuard};
use crate::twin::common::Common;
use crate::twin::entry;
use crate::twin::frames::Frames;
use crate::twin::run::ToCall;
use crate::twin::space::{unsafe_area, Mirror, DATA};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use twin_abi::layout::{
    ctx, CALL_TABLE_OFFSET, CODE_OFFSET, CONST_OFFSET, CTX_OFFSET, IMPORT_OFFSET, MAX_CODE, STACK_GUARD, STACK_SIZE,
    STLB_OFFSET,
};
use twin_runtime::gate::{Function, Twin};
use twin_runtime::instance::{Areas, Config};
use twin_runtime::stubs::{save, special, Served, Stubs};
use x86::{PteFlags, PAGE_SIZE};

/// Locks that an invocation takes at a time and that are released if it is aborted.
pub const MAX_HELD: usize = 4;
/// Twins at a time, of all domains.
pub const MAX_TWINS: usize = 32;
/// From one instance to the next.
const INSTANCE_BYTES: u64 = 32 << 20;
/// From one twin to the next.
const TWIN_BYTES: u64 = INSTANCE_BYTES * MAX_CPUS as u64;
/// What an L2 table maps: no two twins have one together.
const GIB: u64 = 1 << 30;
/// Such tables of a twin.
const GIBS: usize = (TWIN_BYTES / GIB) as usize;
/// The stack, from the base.
const STACK_OFFSET: u64 = 24 << 20;
/// The save page.
const SAVE_OFFSET: u64 = (28 << 20) - PAGE_SIZE as u64;
/// The stubs.
const STUBS_OFFSET: u64 = 28 << 20;

/// Pieces that only their mapping names: constants, imports, the call table, stubs, the stack.
const OTHERS: usize = 5;

/// Two pages where nothing is mapped: what an entry of the stlb names that shows none.
const HOLE_OFFSET: u64 = 0x8000;

const _: () = assert!(TWIN_BYTES.is_multiple_of(GIB) && layout::TWINS.is_multiple_of(GIB));
const _: () = assert!(CALL_TABLE_OFFSET as u64 + PAGE_SIZE as u64 <= HOLE_OFFSET);
const _: () = assert!(HOLE_OFFSET + 2 * PAGE_SIZE as u64 <= STLB_OFFSET as u64);
const _: () = assert!(CODE_OFFSET as u64 + MAX_CODE as u64 + STACK_GUARD <= STACK_OFFSET);
const _: () = assert!(STACK_OFFSET + STACK_SIZE + STACK_GUARD <= SAVE_OFFSET);
const _: () = assert!(layout::TWINS + TWIN_BYTES * MAX_TWINS as u64 <= layout::TWINS + (1 << 39));

/// As in `paging`, but not global: an unloaded twin's translations go with a complete flush.
const READ_ONLY: PteFlags = paging::READ_ONLY.difference(PteFlags::G);
const EXECUTE: PteFlags = paging::EXECUTE.difference(PteFlags::G);

/// A twin on one CPU.
pub struct Instance {
    base: u64,
    code_bytes: u64,
    config: Config,
    /// The stack pointer of an entry, the stub that it goes through, and the one by which it comes back.
    entry_stack: u64,
    enter: u64,
    leave: u64,
    /// Its stubs.
    pub stubs: Stubs,
    context: Frames,
    save: Frames,
    /// The table, in stlb mode.
    stlb: Option<Frames>,
    /// Locks of the domain's that its invocation has taken; 0: none.
    held: [AtomicU64; MAX_HELD],
    /// The `napi_struct` of a poll that its invocation has taken and not scheduled yet; 0: none.
    taken_poll: AtomicU64,
    /// What else is mapped only for it, and its unsafe stack.
    _others: [Frames; OTHERS],
    _unsafe_stack: Frames,
    /// Does an invocation wait in it? Written by who has the slot. Who looks for a free one leaves those alone in which
    /// something waits.
    has_waiting: AtomicBool,
    /// Its gates. Who runs it holds this: one invocation at a time.
    pub slot: Mutex<Slot>,
}

/// What changes while an instance runs.
pub struct Slot {
    /// Its gates.
    pub twin: Twin<'static>,
    /// The invocation that waits for a function of the domain.
    pub waiting: Option<Waiting>,
}

/// An invocation that waits.
pub struct Waiting {
    /// Its registers.
    pub kept: entry::Kept,
    /// Steps that it had at first.
    pub budget: i64,
    /// Since when it waits.
    pub since_ns: u64,
    /// Code offset of the function that was called.
    pub function: u32,
    /// What it waits for, until the domain fetches it. `None` if the domain knows.
    pub to_fetch: Option<ToCall>,
    /// When the domain fetched it.
    pub fetched_ns: u64,
    /// What it waits for may be called with interrupts off.
    pub is_atomic: bool,
    /// The lane of a card's that it is of.
    pub lane: Option<usize>,
}

impl Waiting {
    /// What it waits for, if the domain does not know yet. Now it does.
    pub fn fetch(&mut self) -> Option<ToCall> {
        let to_call = self.to_fetch.take()?;
        self.fetched_ns = tsc::now_ns();
        Some(to_call)
    }
}

/// What an instance is made of.
pub struct Plan<'a> {
    /// Which of the [`MAX_TWINS`] the twin is.
    pub place: usize,
    /// The CPU.
    pub cpu: usize,
    /// Domain address of its per-CPU area.
    pub percpu: u64,
    /// The code, which all instances share.
    pub code: &'a Frames,
    /// Bytes of it.
    pub code_bytes: u64,
    /// What it shares with others.
    pub common: &'a Common,
}

/// Where the instance of CPU `cpu` of twin `place` begins.
const fn base_of(place: usize, cpu: usize) -> u64 {
    layout::TWINS + place as u64 * TWIN_BYTES + cpu as u64 * INSTANCE_BYTES
}

/// Two pages of the instance of CPU `cpu` of twin `place` where nothing is mapped.
pub const fn hole(place: usize, cpu: usize) -> u64 {
    base_of(place, cpu) + HOLE_OFFSET
}

impl Instance {
    /// Makes and maps it. `None` when out of memory: then no instance of the twin is mapped any more.
    pub fn new(plan: &Plan<'_>, twin: Twin<'static>, mirror: &mut Mirror) -> Option<Self> {
        let base = base_of(plan.place, plan.cpu);
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_IMPORTS")]
        let imports = twin.verified().image().imports().len() as u32;
        let stubs = Stubs::new(base + STUBS_OFFSET, base + SAVE_OFFSET, imports);
        let config = Config {
            base,
            stack: base + STACK_OFFSET,
            unsafe_area: unsafe_area(plan.cpu),
            percpu: plan.percpu,
            canary: plan.percpu ^ base.rotate_left(17),
            stlb_miss: stubs.special(special::STLB_MISS),
            icall: stubs.special(special::INDIRECT_CALL),
            warn: stubs.special(special::WARN),
            imports: stubs.addresses().ok()?,
            hole: hole(plan.place, plan.cpu),
        };
        let areas = Areas::new(twin.verified(), twin.addresses(), &config).ok()?;
        let targets = entry::targets(base + u64::from(CTX_OFFSET) + u64::from(ctx::BUDGET));
        let served = |n| {
            let routine = twin.native(n);
            let inline = routine.and_then(|routine| plan.common.inline(routine));
            Served { inline, by: entry::server(routine) }
        };
        let others: [(u64, Frames, PteFlags); OTHERS] = [
            (CONST_OFFSET.into(), Frames::with(&areas.constants)?, READ_ONLY),
            (IMPORT_OFFSET.into(), Frames::with(&areas.imports)?, READ_ONLY),
            (CALL_TABLE_OFFSET.into(), Frames::with(&areas.call_table)?, READ_ONLY),
            (STUBS_OFFSET, Frames::with(&stubs.code(&targets, served).ok()?)?, EXECUTE),
            (STACK_OFFSET, Frames::new(STACK_SIZE as usize / PAGE_SIZE)?, DATA),
        ];
        let unsafe_stack = Frames::new(STACK_SIZE as usize / PAGE_SIZE)?;
        let stlb = match &areas.stlb[..] {
            [] => None,
            bytes => Some(Frames::with(bytes)?),
        };
        let (context, save) = (Frames::with(&areas.context)?, Frames::new(1)?);
        let is_mapped = {
            let own = [
                (CTX_OFFSET.into(), &context, DATA),
                (SAVE_OFFSET, &save, DATA),
                (CODE_OFFSET.into(), plan.code, EXECUTE),
            ];
            let table = stlb.iter().map(|table| (STLB_OFFSET.into(), table, READ_ONLY));
            let all = others.iter().map(|(offset, frames, flags)| (*offset, frames, *flags)).chain(own).chain(table);
            all.map(|(offset, frames, flags)| vmap::map_for_domain(base + offset, frames.all(), flags))
                .collect::<Option<()>>()
                .and_then(|()| mirror.map_unsafe_area(plan.cpu, unsafe_stack.all()))
                .is_some()
        };
        if !is_mapped {
            // Its frames go back now. No CPU has ever been in the mirror, nor will be.
            unmap(plan.place);
            return None;
        }
        let code_bytes = plan.code_bytes;
        let entry_stack = config.entry_stack() - 8;
        Some(Self {
            base,
            code_bytes,
            config,
            entry_stack,
            enter: stubs.enter(),
            leave: stubs.leave(),
            stubs,
            context,
            save,
            stlb,
            held: [const { AtomicU64::new(0) }; MAX_HELD],
            taken_poll: AtomicU64::new(0),
            _others: others.map(|(_, frames, _)| frames),
            _unsafe_stack: unsafe_stack,
            has_waiting: AtomicBool::new(false),
            slot: Mutex::new(Slot { twin, waiting: None }),
        })
    }

    /// Its slot, if nobody uses it and nothing waits in it.
    #[inline]
    pub fn lock_free(&self) -> Option<MutexGuard<'_, Slot>> {
        if self.has_waiting.load(Ordering::Relaxed) {
            return None;
        }
        self.slot.try_lock().filter(|slot| slot.waiting.is_none())
    }

    /// What waits in it from now on. The caller has its `slot`.
    pub fn set_waiting(&self, slot: &mut Slot, waiting: Option<Waiting>) {
        self.has_waiting.store(waiting.is_some(), Ordering::Release);
        slot.waiting = waiting;
    }

    /// What has waited in it, and does not any more. The caller has its `slot`.
    pub fn take_waiting(&self, slot: &mut Slot) -> Option<Waiting> {
        let waited = slot.waiting.take();
        self.has_waiting.store(false, Ordering::Release);
        waited
    }

    /// Its slot, if something waits in it. Whoever has it meanwhile is waited for, until nothing does any more.
    pub fn lock_waiting(&self) -> Option<MutexGuard<'_, Slot>> {
        while self.has_waiting.load(Ordering::Acquire) {
            match self.slot.try_lock() {
                Some(slot) => return Some(slot).filter(|slot| slot.waiting.is_some()),
                None => requests::answer(),
            }
        }
        None
    }

    /// The same, if nobody has it.
    pub fn try_lock_waiting(&self) -> Option<MutexGuard<'_, Slot>> {
        if !self.has_waiting.load(Ordering::SeqCst) {
            return None;
        }
        self.slot.try_lock().filter(|slot| slot.waiting.is_some())
    }

    /// A word of the context page.
    pub fn context(&self, offset: u32) -> u64 {
        self.context.word(u64::from(offset) / 8).load(Ordering::Relaxed)
    }

    /// Writes a word of the context page.
    pub fn set_context(&self, offset: u32, value: u64) {
        self.context.word(u64::from(offset) / 8).store(value, Ordering::Relaxed);
    }

    /// Writes entry `index` of the stlb; the tag last.
    pub fn set_stlb(&self, index: usize, tag: u64, mapped: u64) {
        if let Some(table) = &self.stlb {
            table.set_word(2 * index + 1, mapped);
            table.set_word(2 * index, tag);
        }
    }

    /// Its invocation has taken `lock`. A driver holds one or two at a time; more are not kept.
    pub fn hold(&self, lock: u64) {
        if let Some(free) = self.held.iter().find(|held| held.load(Ordering::Relaxed) == 0) {
            free.store(lock, Ordering::Relaxed);
        }
    }

    /// It has released `lock`. The others stay side by side: the first says whether there are any.
    pub fn let_go(&self, lock: u64) {
        let own = self.held.iter().find(|held| held.load(Ordering::Relaxed) == lock);
        let last = self.held.iter().rev().find(|held| held.load(Ordering::Relaxed) != 0);
        if let (Some(own), Some(last)) = (own, last) {
            own.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
            last.store(0, Ordering::Relaxed);
        }
    }

    /// A lock that it has taken and not released.
    pub fn holds(&self) -> Option<u64> {
        Some(self.held[0].load(Ordering::Relaxed)).filter(|lock| *lock != 0)
    }

    /// The locks that it has taken, which are its no more.
    pub fn take_held(&self) -> impl Iterator<Item = u64> + '_ {
        self.held.iter().map(|held| held.swap(0, Ordering::Relaxed)).filter(|lock| *lock != 0)
    }

    /// Its invocation has taken the poll of this `napi_struct`, to schedule it next. 0: it has, or has none.
    #[inline(always)]
    pub fn set_taken_poll(&self, napi: u64) {
        self.taken_poll.store(napi, Ordering::Relaxed);
    }

    /// The poll that it has taken and not scheduled; 0: none.
    pub fn taken_poll(&self) -> u64 {
        self.taken_poll.load(Ordering::Relaxed)
    }

    /// The word of the context page that holds the budget.
    pub fn budget(&self) -> &AtomicU64 {
        self.context.word(u64::from(ctx::BUDGET) / 8)
    }

    /// A word of the save page.
    pub fn saved(&self, offset: u64) -> u64 {
        self.save.word(offset / 8).load(Ordering::Relaxed)
    }

    /// Writes a word of the save page.
    pub fn set_saved(&self, offset: u64, value: u64) {
        self.save.word(offset / 8).store(value, Ordering::Relaxed);
    }

    /// Is `rip` in the twin's code?
    pub fn is_code(&self, rip: u64) -> bool {
        rip.wrapping_sub(self.code_address(0)) < self.code_bytes
    }

    /// Where code offset `offset` is.
    pub fn code_address(&self, offset: u32) -> u64 {
        self.base + u64::from(CODE_OFFSET) + u64::from(offset)
    }

    /// What it was arranged by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The word of the twin's stack at `address`; 0 if it is not there.
    pub fn stack_word(&self, address: u64) -> u64 {
        let offset = address.wrapping_sub(self.config.stack);
        if offset > STACK_SIZE - 8 {
            return 0;
        }
        // SAFETY: inside the stack, which is mapped while the instance lives; the twin that writes it does not run now.
        unsafe { (address as *const u64).read_unaligned() }
    }

    /// The entry of an invocation of a function with these arguments.
    #[inline(always)]
    pub fn entry(&self, function: Function, args: &[u64; 6]) -> entry::Entry {
        let stack = self.entry_stack;
        self.set_saved(save::TARGET, self.code_address(function.offset()));
        // SAFETY: inside the stack; nothing runs on it, for the caller holds `slot`.
        unsafe { (stack as *mut u64).write(self.leave) };
        entry::Entry { save: self.save.start(), stack, stub: self.enter, args: args.as_ptr() }
    }

    /// How an invocation goes on that has `kept` these registers and gets `value`.
    pub fn resume(&self, kept: entry::Kept, value: u64) -> entry::Resume {
        entry::Resume { save: self.save.start(), value, kept }
    }

    /// Words of the twin's stack that are arguments of the function that it calls with this stack pointer. How many
    /// arguments that has nobody knows; what else lies there and names a place of the instance is 0, for the domain is
    /// not to see it.
    pub fn stack_arguments<const N: usize>(&self, stack: u64) -> [u64; N] {
        let range = self.config.stack_arguments(stack);
        core::array::from_fn(|n| {
            let address = range.start.saturating_add(8 * n as u64);
            let word = if range.contains(&address) { self.stack_word(address) } else { 0 };
            let is_own = word.wrapping_sub(self.base) < INSTANCE_BYTES || self.config.is_twin_stack(word);
            if is_own {
                0
            } else {
                word
            }
        })
    }
}

/// Takes the mappings of all instances of twin `place` away, on all CPUs, and their tables. No twin runs there, nor
/// will.
pub fn unmap(place: usize) {
    let first = base_of(place, 0);
    let cut: [_; GIBS] = core::array::from_fn(|n| vmap::unmap_gib(first + n as u64 * GIB));
    crate::arch::tlb::flush_every_cpu();
    cut.into_iter().flatten().for_each(vmap::free);
}
