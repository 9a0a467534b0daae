//! One AMD-Vi unit: registers, device table, commands, events.

use crate::arch::pci::{self, Sbdf};
use crate::arch::{msi, vectors};
use crate::cpu::percpu;
use crate::iommu::hardware::{wait_until, warn_of_loss, Confined, Strange};
use crate::iommu::memory::{machine_addr, Direct};
use crate::mem::device_frames;
use crate::mem::{frames, phys_to_virt, vmap};
use crate::sync::Mutex;
use crate::warn;
use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hv_core::iommu::amd::{self, control, device, reg, status, Command, Features};
use hv_core::iommu::{ivrs, Fault, Forget, TableMem};
use hv_core::map;
use x86::{MachAddr, Mfn, PAGE_SIZE};

/// Commands, and events, in a page.
const RING: usize = 256;
/// The same as the registers of the rings have it: a power of two.
const RING_LENGTH: u64 = 8 << 56;
/// Bytes of a command, an event.
const ENTRY_BYTES: usize = 16;
/// The capability of a unit's function, and the bit of its header that says that absence is remembered.
const CAP_IOMMU: u8 = 0x0f;
const CAP_REMEMBERS_ABSENCE: u32 = 1 << 26;
/// CPU that takes event interrupts.
const CPU: usize = 0;

/// A unit.
pub struct Unit {
    at: Sbdf,
    registers: usize,
    caches_absence: bool,
    /// What the platform wants in the control register.
    wanted: u64,
    devices: Mfn,
    /// Pages of the device table, as a power of two.
    order: u32,
    commands: Mutex<Commands>,
    /// The log of events, and the number of the next.
    events: Mutex<(Mfn, usize)>,
    /// Tables of interrupts by source id. Taken before `commands`.
    interrupts: Mutex<BTreeMap<u16, Mfn>>,
}

struct Commands {
    ring: Mfn,
    tail: usize,
    /// The word that waits are answered in.
    answer: Mfn,
    sequence: u64,
    is_running: bool,
}

impl Unit {
    /// Maps a unit's registers and makes its tables, in which every function up to the source id `highest` is blocked.
    /// Nothing is enabled yet. `None`: it cannot be used.
    pub fn new(described: &ivrs::Unit, highest: u16) -> Option<Self> {
        let base = MachAddr::new(described.addr);
        let registers = vmap::map_device(base, reg::END)? as usize;
        let [devfn, bus] = described.source_id.to_le_bytes();
        let at = Sbdf::new(described.segment, bus, devfn);
        let cap = pci::find_capability(at, CAP_IOMMU)?;
        let features = Features(read64(registers, reg::FEATURES));
        if features.0 == u64::MAX || !features.has_forget_all() || features.max_levels() < amd::LEVELS {
            return None;
        }
        let first = Mfn::containing(base);
        device_frames::hide(first, first.add((reg::END / PAGE_SIZE - 1) as u64));
        let order = device::table_order(highest);
        let unit = Self {
            at,
            registers,
            caches_absence: pci::read32(at, cap) & CAP_REMEMBERS_ABSENCE != 0,
            wanted: described.control,
            devices: frames::alloc(order, frames::ANYWHERE)?,
            order,
            commands: Mutex::new(Commands {
                ring: Direct.alloc()?,
                tail: 0,
                answer: frames::alloc_zeroed()?,
                sequence: 0,
                is_running: false,
            }),
            events: Mutex::new((Direct.alloc()?, 0)),
            interrupts: Mutex::new(BTreeMap::new()),
        };
        for n in 0..1 << order {
            // SAFETY: one of the 2^`order` frames that were taken for it, which the unit does not know yet.
            unsafe { frames::scrub(unit.devices.add(n)) };
        }
        for id in 0..unit.nr_devices() {
            unit.device(id, device::TRANSLATION).store(device::BLOCKED, Ordering::Relaxed);
        }
        Some(unit)
    }

    /// The function that it is.
    pub const fn at(&self) -> Sbdf {
        self.at
    }

    /// May it remember that something is not mapped?
    pub const fn caches_absence(&self) -> bool {
        self.caches_absence
    }

    fn nr_devices(&self) -> usize {
        device::nr_entries(self.order)
    }

    /// Can what carries `source_id` be confined?
    pub const fn has_entry(&self, source_id: u16) -> bool {
        device::has_entry(self.order, source_id)
    }

    /// A word of a device-table entry. Source ids beyond the table's end, which it refuses, share the last entry.
    fn device(&self, id: usize, word: usize) -> &'static AtomicU64 {
        let index = id.min(self.nr_devices() - 1) * device::WORDS + word % device::WORDS;
        // SAFETY: inside the table's frames, which are ours for ever and only accessed as atomics.
        unsafe { AtomicU64::from_ptr(phys_to_virt(self.devices.addr()).cast::<u64>().add(index)) }
    }

    fn write64(&self, offset: usize, value: u64) {
        // SAFETY: an aligned register inside the mapped unit; what is written where is this module's business.
        unsafe { ((self.registers + offset) as *mut u64).write_volatile(value) };
    }

    /// Switches translation on; every function is confined or blocked before. With `remaps_interrupts` none can raise
    /// any until [`Self::set_interrupt`] lets it.
    pub fn enable(&self, remaps_interrupts: bool) {
        let mut commands = self.commands.lock();
        // A loader may have left it on.
        self.write64(reg::CONTROL, 0);
        let runs = status::COMMANDS_RUN | status::EVENT_LOG_RUNS;
        wait_until("switching off", || read64(self.registers, reg::STATUS) & runs == 0);
        if remaps_interrupts {
            for id in 0..self.nr_devices() {
                let word = self.device(id, device::INTERRUPTS);
                if word.load(Ordering::Relaxed) == 0 {
                    word.store(device::interrupts(None, amd::remapping::ORDER, 0), Ordering::Relaxed);
                }
            }
        }
        self.write64(reg::DEVICE_TABLE, self.devices.addr().raw() | ((1 << self.order) - 1));
        self.write64(reg::EXCLUSION_BASE, 0);
        self.write64(reg::EXCLUSION_LIMIT, 0);
        self.write64(reg::COMMANDS, commands.ring.addr().raw() | RING_LENGTH);
        self.write64(reg::COMMAND_HEAD, 0);
        self.write64(reg::COMMAND_TAIL, 0);
        self.write64(reg::EVENTS, self.events.lock().0.addr().raw() | RING_LENGTH);
        let logs = if self.enable_event_interrupt() { control::EVENT_INTERRUPT } else { 0 };
        self.write64(reg::CONTROL, self.wanted | control::COMMANDS | logs);
        self.start_log();
        self.write64(reg::CONTROL, read64(self.registers, reg::CONTROL) | control::TRANSLATION);
        commands.is_running = true;
        self.submit_locked(&mut commands, &[Command::Translations(Forget::All)]);
    }

    /// Empties the log and lets the unit write to it.
    fn start_log(&self) {
        let was = read64(self.registers, reg::CONTROL);
        self.write64(reg::CONTROL, was & !control::EVENT_LOG);
        wait_until("stopping its log", || read64(self.registers, reg::STATUS) & status::EVENT_LOG_RUNS == 0);
        self.write64(reg::EVENT_HEAD, 0);
        self.write64(reg::EVENT_TAIL, 0);
        self.write64(reg::STATUS, status::EVENT_OVERFLOW | status::EVENT_INTERRUPT);
        self.write64(reg::CONTROL, was | control::EVENT_LOG);
    }

    /// Lets it interrupt when it stops an access.
    fn enable_event_interrupt(&self) -> bool {
        let msi = pci::function(self.at).and_then(|f| f.layout.msi);
        let Some((msi, vector)) = msi.zip(vectors::allocate(vectors::Owner::Iommu)) else {
            warn!("IOMMU: no interrupt for unit {}: what it stops is not reported", self.at);
            return false;
        };
        let apic_id = percpu::cpu(CPU).map_or(0, |c| c.apic_id.get());
        let was = pci::read16(self.at, pci::reg::COMMAND);
        pci::write16(self.at, pci::reg::COMMAND, was | pci::command::BUS_MASTER);
        msi::enable_msi(self.at, msi, msi::Message::new(apic_id, vector));
        true
    }

    /// Takes the accesses that were stopped since the last time.
    pub fn take_faults(&self, mut tell: impl FnMut(Result<Fault, Strange>)) {
        self.write64(reg::STATUS, status::EVENT_INTERRUPT);
        self.take_events(&mut tell);
        if read64(self.registers, reg::STATUS) & status::EVENT_OVERFLOW != 0 {
            // It writes no more: this is all that came before.
            self.take_events(&mut tell);
            warn_of_loss(self.at.segment);
            let mut events = self.events.lock();
            (0..RING * 2).for_each(|word| Direct.write(events.0, word, 0));
            events.1 = 0;
            self.start_log();
        }
    }

    /// As many as there is room for.
    fn take_events(&self, tell: &mut impl FnMut(Result<Fault, Strange>)) {
        for _ in 0..RING {
            let Some(event) = self.take_event() else { break };
            tell(amd::decode_event(event).map_err(|code| Strange { code, words: event }));
        }
    }

    /// Whether one was stopped since, and its interrupt is on its way.
    pub fn has_faults(&self) -> bool {
        let events = self.events.lock();
        let next = [0, 1].map(|word| Direct.read(events.0, events.1 * 2 + word));
        amd::code(next) != 0 && read64(self.registers, reg::CONTROL) & control::EVENT_INTERRUPT != 0
    }

    /// The next event. It counts once it is in memory: what a unit's registers say of its log may be early or late.
    fn take_event(&self) -> Option<[u64; 2]> {
        let mut events = self.events.lock();
        let (log, next) = *events;
        let event = [0, 1].map(|word| Direct.read(log, next * 2 + word));
        if amd::code(event) == 0 {
            return None;
        }
        (0..2).for_each(|word| Direct.write(log, next * 2 + word, 0));
        events.1 = (next + 1) % RING;
        self.write64(reg::EVENT_HEAD, (events.1 * ENTRY_BYTES) as u64);
        Some(event)
    }

    /// Confines what carries `source_id`, or blocks it, and forgets what the unit remembers of it.
    pub fn confine(&self, source_id: u16, to: Option<Confined>) {
        let id = usize::from(source_id);
        if id >= self.nr_devices() {
            return;
        }
        let mut commands = self.commands.lock();
        let domain = self.device(id, device::DOMAIN);
        let old_id = domain.load(Ordering::Relaxed) as u16;
        let translation = self.device(id, device::TRANSLATION);
        translation.store(device::BLOCKED, Ordering::Release);
        let forget = [Command::Device(source_id), Command::Translations(Forget::Domain(old_id))];
        self.submit_locked(&mut commands, &forget);
        if let Some(c) = to {
            domain.store(c.id.into(), Ordering::Release);
            translation.store(device::confined(c.root), Ordering::Release);
            let forget = [Command::Device(source_id), Command::Translations(Forget::Domain(c.id))];
            self.submit_locked(&mut commands, &forget);
        }
    }

    /// What `source_id` is stopped from is not reported any more, until [`Self::confine`] confines it.
    pub fn silence(&self, source_id: u16) {
        let id = usize::from(source_id);
        if id < self.nr_devices() {
            self.device(id, device::DOMAIN).fetch_or(device::SILENT, Ordering::AcqRel);
            self.submit(&[Command::Device(source_id)]);
        }
    }

    /// Sets what `source_id` may raise past its table, which it may be without.
    pub fn set_passes(&self, source_id: u16, passes: u8) {
        if usize::from(source_id) >= self.nr_devices() {
            return;
        }
        let tables = self.interrupts.lock();
        let table = tables.get(&source_id).copied();
        let word = self.device(source_id.into(), device::INTERRUPTS);
        word.store(device::interrupts(table, amd::remapping::ORDER, passes), Ordering::Release);
        self.submit(&[Command::Device(source_id)]);
    }

    /// Sets what `vector` raises when it comes from `source_id`: `entry`, or nothing if that is 0.
    pub fn set_interrupt(&self, source_id: u16, vector: u8, entry: u32) {
        let id = usize::from(source_id);
        if id >= self.nr_devices() {
            return;
        }
        let mut tables = self.interrupts.lock();
        let table = match tables.get(&source_id) {
            Some(table) => *table,
            None if entry == 0 => return,
            None => {
                let Some(table) = Direct.alloc() else {
                    return warn!("IOMMU: out of memory: source {source_id:#06x} cannot raise interrupts");
                };
                tables.insert(source_id, table);
                table
            }
        };
        let word = |n: usize| {
            // SAFETY: an aligned word of the table's frame, which is ours while `interrupts` has it, and only accessed
            // as an atomic.
            unsafe { AtomicU32::from_ptr(phys_to_virt(table.addr()).cast::<u32>().add(n)) }
        };
        word(vector.into()).store(entry, Ordering::Release);
        let is_empty = (0..1 << amd::remapping::ORDER).all(|n| word(n).load(Ordering::Relaxed) == 0);
        let device = self.device(id, device::INTERRUPTS);
        let passes = device::passes(device.load(Ordering::Relaxed));
        let now = device::interrupts((!is_empty).then_some(table), amd::remapping::ORDER, passes);
        if device.swap(now, Ordering::AcqRel) != now {
            self.submit(&[Command::Device(source_id)]);
        }
        self.submit(&[Command::Interrupts(source_id)]);
        if is_empty {
            map::take(&mut tables, &source_id);
            Direct.free(table);
        }
    }

    /// Gives the unit commands; when this returns, they are carried out.
    pub fn submit(&self, commands: &[Command]) {
        self.submit_locked(&mut self.commands.lock(), commands);
    }

    /// There is always room: the ring is empty afterwards. A unit that does not answer stops the machine, for its
    /// devices can no longer be kept from memory that is to get another use. Before it is enabled it remembers nothing.
    fn submit_locked(&self, state: &mut Commands, commands: &[Command]) {
        debug_assert!(commands.len() < RING - 1);
        if !state.is_running {
            return;
        }
        state.sequence += 1;
        let sequence = state.sequence;
        let wait = Command::Wait { at: machine_addr(state.answer, 0), value: sequence };
        for command in commands.iter().chain([&wait]) {
            for (word, value) in command.encode().into_iter().enumerate() {
                Direct.write(state.ring, state.tail * 2 + word, value);
            }
            state.tail = (state.tail + 1) % RING;
        }
        self.write64(reg::COMMAND_TAIL, (state.tail * ENTRY_BYTES) as u64);
        wait_until("a command", || Direct.read(state.answer, 0) == sequence);
    }
}

fn read64(registers: usize, offset: usize) -> u64 {
    // SAFETY: an aligned register inside a mapped unit.
    unsafe { ((registers + offset) as *const u64).read_volatile() }
}
