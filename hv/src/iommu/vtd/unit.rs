//! One VT-d unit: registers, context tables, the queue of invalidations.

use super::remap::{Table, ENTRIES_ORDER};
use crate::arch::pci::Sbdf;
use crate::arch::{lapic, msi, vectors};
use crate::cpu::percpu;
use crate::iommu::hardware::{wait_until, warn_of_loss, Confined};
use crate::iommu::memory::{self, machine_addr, write_back, Direct};
use crate::mem::device_frames;
use crate::mem::{frames, phys_to_virt, vmap};
use crate::sync::Mutex;
use crate::warn;
use core::sync::atomic::{AtomicU32, Ordering};
use hv_core::iommu::dmar;
use hv_core::iommu::vtd::faults::{self, Records, Taken};
use hv_core::iommu::vtd::{self, global, reg, Capabilities, Invalidation};
use hv_core::iommu::{Fault, Forget, TableMem};
use x86::{MachAddr, Mfn, PAGE_SIZE};

/// Descriptors in the queue's page.
const QUEUE_LEN: usize = 256;
/// What a loader may have left on.
const STATES: u32 = global::TRANSLATION | global::QUEUED_INVALIDATION | global::INTERRUPT_REMAPPING;
/// CPU that takes fault interrupts.
const CPU: usize = 0;

/// A unit.
pub struct Unit {
    /// Its PCI segment.
    pub segment: u16,
    registers: usize,
    /// What it can do.
    pub capabilities: Capabilities,
    root_table: Mfn,
    state: Mutex<State>,
}

struct State {
    /// Commands that are states.
    command: u32,
    queue: Mfn,
    tail: usize,
    /// The word that waits are answered in.
    answer: Mfn,
    sequence: u32,
}

impl Unit {
    /// Maps a unit's registers and makes its tables. Nothing is enabled yet. `None`: it cannot be used.
    pub fn new(described: &dmar::Unit) -> Option<Self> {
        let base = MachAddr::new(described.addr);
        let probe = vmap::map_device(base, PAGE_SIZE)? as usize;
        let capabilities = Capabilities { cap: read64(probe, reg::CAP), ecap: read64(probe, reg::ECAP) };
        if capabilities.cap == u64::MAX || !capabilities.has_queue() || Capabilities::levels([capabilities]).is_none() {
            return None;
        }
        if !capabilities.is_coherent() {
            memory::NEEDS_WRITE_BACK.store(true, Ordering::Relaxed);
        }
        let bytes = (capabilities.fault_records() + 16 * capabilities.nr_fault_records()).max(PAGE_SIZE);
        let registers = if bytes > PAGE_SIZE { vmap::map_device(base, bytes)? as usize } else { probe };
        let first = Mfn::containing(base);
        device_frames::hide(first, first.add((bytes.div_ceil(PAGE_SIZE) - 1) as u64));
        let state = State { command: 0, queue: Direct.alloc()?, tail: 0, answer: frames::alloc_zeroed()?, sequence: 0 };
        Some(Self {
            segment: described.segment,
            registers,
            capabilities,
            root_table: Direct.alloc()?,
            state: Mutex::new(state),
        })
    }

    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: an aligned register inside the mapped unit.
        unsafe { ((self.registers + offset) as *const u32).read_volatile() }
    }
    fn write32(&self, offset: usize, value: u32) {
        // SAFETY: as for `read32`; what is written where is this module's business.
        unsafe { ((self.registers + offset) as *mut u32).write_volatile(value) };
    }
    fn write64(&self, offset: usize, value: u64) {
        // SAFETY: as for `read32`.
        unsafe { ((self.registers + offset) as *mut u64).write_volatile(value) };
    }

    /// Sets a command bit and waits until the status shows it.
    fn command(&self, state: &mut State, bit: u32) {
        if bit & global::ONE_SHOT == 0 {
            state.command |= bit;
        }
        self.write32(reg::GCMD, state.command | bit);
        let is_pending_while_set = bit == global::WRITE_BUFFER;
        wait_until("a command", || (self.read32(reg::GSTS) & bit != 0) != is_pending_while_set);
    }

    /// Switches translation on, and the remapping of interrupts if there is a table. Context entries are set before.
    pub fn enable(&self, remapping: Option<&Table>) {
        let mut state = self.state.lock();
        // A loader may have left it on.
        self.write32(reg::GCMD, 0);
        wait_until("switching off", || self.read32(reg::GSTS) & STATES == 0);
        self.write64(reg::RTADDR, self.root_table.addr().raw());
        self.command(&mut state, global::ROOT_TABLE);
        self.write64(reg::IQT, 0);
        self.write64(reg::IQA, state.queue.addr().raw());
        state.tail = 0;
        self.command(&mut state, global::QUEUED_INVALIDATION);
        self.submit(&mut state, &[Invalidation::Contexts, Invalidation::Translations(Forget::All)]);
        self.enable_faults();
        if let Some(table) = remapping {
            let register = vtd::remapping::table_register(table.first.addr().raw(), ENTRIES_ORDER, table.mode);
            self.write64(reg::IRTA, register);
            self.command(&mut state, global::INTERRUPT_TABLE);
            self.submit(&mut state, &[Invalidation::Interrupts]);
            self.command(&mut state, global::INTERRUPT_REMAPPING);
        }
        self.command(&mut state, global::TRANSLATION);
    }

    /// Lets it interrupt when it stops an access.
    fn enable_faults(&self) {
        for n in 0..self.capabilities.nr_fault_records() {
            self.empty(n);
        }
        self.write32(reg::FSTS, vtd::FAULT_OVERFLOW);
        let Some(vector) = vectors::allocate(vectors::Owner::Iommu) else {
            return warn!("IOMMU: no interrupt vector: what it stops is not reported");
        };
        let message = msi::Message::new(percpu::cpu(CPU).map_or(0, |c| c.apic_id.get()), vector);
        let [low, high] = [message.addr as u32, (message.addr >> 32) as u32];
        self.write32(reg::FEDATA, message.data);
        self.write32(reg::FEADDR, low);
        self.write32(reg::FEUADDR, high);
        self.write32(reg::FECTL, 0);
    }

    /// Takes the accesses that were stopped since the last time.
    pub fn take_faults(&self, tell: impl FnMut(Fault)) {
        if faults::take(self, tell) == Taken::NotAll {
            // The interrupt is raised once more, so that others get their turn first.
            let [vector, ..] = self.read32(reg::FEDATA).to_le_bytes();
            lapic::send(percpu::cpu(CPU).map_or(0, |c| c.apic_id.get()), vector);
        }
    }

    /// Whether one was stopped since, and its interrupt is on its way.
    pub fn has_faults(&self) -> bool {
        self.is_pending() && self.read32(reg::FECTL) & vtd::INTERRUPT_MASKED == 0
    }

    fn fault_record(&self, n: usize) -> usize {
        self.capabilities.fault_records() + 16 * n
    }

    /// What the function is stopped from is not recorded any more, until [`Self::set_context`].
    pub fn silence(&self, at: Sbdf) {
        let mut state = self.state.lock();
        let Some(table) = self.context_table(at.bus, true) else { return };
        let index = usize::from(at.devfn) * 2;
        let old_id = (Direct.read(table, index + 1) >> 8) as u16;
        Direct.write(table, index, Direct.read(table, index) | vtd::NOT_RECORDED);
        let context = |domain_id| Invalidation::Context { source_id: at.source_id(), domain_id };
        self.submit(&mut state, &[context(old_id), context(0)]);
    }

    /// Confines a function, or blocks it, and forgets what the unit remembers of it.
    pub fn set_context(&self, at: Sbdf, to: Option<Confined>) {
        let mut state = self.state.lock();
        let table = match self.context_table(at.bus, to.is_some()) {
            Some(table) => table,
            None if to.is_none() => return,
            None => return warn!("IOMMU: out of memory: {at} stays blocked"),
        };
        let index = usize::from(at.devfn) * 2;
        let old_id = (Direct.read(table, index + 1) >> 8) as u16;
        let was_present = Direct.read(table, index) & 1 != 0;
        Direct.write(table, index, 0);
        let is_running = state.command & global::TRANSLATION != 0;
        if was_present && is_running {
            let context = Invalidation::Context { source_id: at.source_id(), domain_id: old_id };
            self.submit(&mut state, &[context, Invalidation::Translations(Forget::Domain(old_id))]);
        }
        if let Some(c) = to {
            let [low, high] = vtd::context_entry(c.root, c.levels, c.id);
            Direct.write(table, index + 1, high);
            Direct.write(table, index, low);
            if self.capabilities.is_told_of_additions() && is_running {
                // What is not present is remembered under id 0.
                let context = Invalidation::Context { source_id: at.source_id(), domain_id: 0 };
                self.submit(&mut state, &[context, Invalidation::Translations(Forget::Domain(c.id))]);
            }
        }
    }

    /// The table of a bus's functions.
    fn context_table(&self, bus: u8, make: bool) -> Option<Mfn> {
        let index = usize::from(bus) * 2;
        let entry = Direct.read(self.root_table, index);
        if entry & 1 != 0 {
            return Some(Mfn::containing(MachAddr::new(entry)));
        }
        let table = if make { Direct.alloc()? } else { return None };
        let [low, high] = vtd::root_entry(table);
        Direct.write(self.root_table, index + 1, high);
        Direct.write(self.root_table, index, low);
        Some(table)
    }

    /// Lets the unit forget; when this returns, it has.
    pub fn invalidate(&self, what: &[Invalidation]) {
        self.submit(&mut self.state.lock(), what);
    }

    /// Queues invalidations and waits for them. There is always room: the queue is empty afterwards. A unit that does
    /// not answer stops the machine, for its devices can no longer be kept from memory that is to get another use.
    fn submit(&self, state: &mut State, what: &[Invalidation]) {
        debug_assert!(what.len() < QUEUE_LEN - 1);
        if self.capabilities.needs_write_buffer_flush() {
            self.command(state, global::WRITE_BUFFER);
        }
        state.sequence = state.sequence.wrapping_add(1);
        let sequence = state.sequence;
        let wait = Invalidation::Wait { at: machine_addr(state.answer, 0), value: sequence };
        for item in what.iter().chain([&wait]) {
            let [low, high] = item.encode(self.capabilities);
            Direct.write(state.queue, state.tail * 2, low);
            Direct.write(state.queue, state.tail * 2 + 1, high);
            state.tail = (state.tail + 1) % QUEUE_LEN;
        }
        self.write64(reg::IQT, (state.tail * 16) as u64);
        let answer = phys_to_virt(state.answer.addr()).cast::<u32>();
        // SAFETY: an aligned word of a frame that is ours for ever; the unit writes it, so it is met by atomics only.
        let answer = unsafe { AtomicU32::from_ptr(answer) };
        wait_until("an invalidation", || {
            if answer.load(Ordering::Acquire) == sequence {
                return true;
            }
            write_back(answer.as_ptr().cast_const().cast(), 4);
            let errors = self.read32(reg::FSTS) & vtd::QUEUE_ERRORS;
            assert!(errors == 0, "IOMMU: its queue stopped, fault status {errors:#x}");
            false
        });
    }
}

impl Records for Unit {
    fn count(&self) -> usize {
        self.capabilities.nr_fault_records()
    }
    fn read(&self, n: usize) -> [u64; 2] {
        let at = self.fault_record(n);
        [read64(self.registers, at), read64(self.registers, at + 8)]
    }
    fn empty(&self, n: usize) {
        self.write32(self.fault_record(n) + 12, 1 << 31);
    }
    fn forget_overflow(&self) {
        if self.read32(reg::FSTS) & vtd::FAULT_OVERFLOW != 0 {
            self.write32(reg::FSTS, vtd::FAULT_OVERFLOW);
            warn_of_loss(self.segment);
        }
    }
    fn is_pending(&self) -> bool {
        self.read32(reg::FSTS) & vtd::FAULT_PENDING != 0
    }
}

fn read64(registers: usize, offset: usize) -> u64 {
    // SAFETY: an aligned register inside a mapped unit.
    unsafe { ((registers + offset) as *const u64).read_volatile() }
}
