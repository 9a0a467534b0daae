//! Debug keys (`xl debug-keys`): each prints something about the machine to the console and its ring. They print
//! whatever the log level is, and change nothing but `R`, which is asked for by name.

mod in_use;
mod interfaces;
mod interrupts;

use crate::arch::tsc;
use crate::cpu::percpu;
use crate::domain::memory::limbo;
use crate::domain::vcpu::{stop, Glimpse, Vcpu};
use crate::domain::{self, Domain, Section};
use crate::mem::{frames, heap};
use crate::sched::timers::{self, Kind};
use crate::{audit, sched};
use core::sync::atomic::Ordering;
use hv_core::evtchn::Binding;
use hv_core::sched::{Delays, Wakes};

macro_rules! say {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*)) };
}
use say;

/// A key, what it prints, and how.
struct Key(u8, &'static str, fn());

const KEYS: &[Key] = &[
    Key(b'*', "all of these but R", all),
    Key(b'a', "timers of all vCPUs", || each_domain(|d| d.vcpus().for_each(timers_of))),
    Key(b'd', "registers of all vCPUs", || each_domain(|d| d.vcpus().for_each(registers))),
    Key(b'e', "event channels", || each_domain(event_channels)),
    Key(audit::KEY, "a recount of all frames", recount),
    Key(b'g', "grants in use", || each_domain(grants)),
    Key(b'h', "this list", help),
    Key(b'i', "interrupts of domains", interrupts::print),
    Key(b'm', "memory", memory),
    Key(b'n', "rings of network interfaces", interfaces::print),
    Key(b'p', "counters", counters),
    Key(b'q', "domains and their vCPUs", || each_domain(about)),
    Key(b'r', "run times and who runs where", run_queue),
    Key(b't', "clocks", clocks),
    Key(b'u', "what is in use", in_use::print),
    Key(b'R', "reboot the machine", || crate::arch::reboot::reboot()),
];

/// Does what `key` means. A key without a meaning is not an error: the list of keys may grow.
pub fn handle(key: u8) {
    match KEYS.iter().find(|k| k.0 == key) {
        Some(k) => {
            say!("'{}' pressed -> {}", k.0 as char, k.1);
            k.2();
        }
        None => say!("key {key:#x} means nothing; 'h' lists those that do"),
    }
}

fn help() {
    KEYS.iter().for_each(|k| say!(" key '{}': {}", k.0 as char, k.1));
}

fn all() {
    for k in KEYS.iter().filter(|k| !matches!(k.0, b'*' | b'R' | b'h')) {
        say!("[{}: {}]", k.0 as char, k.1);
        k.2();
    }
}

/// Calls `f` for every domain, without the list's lock: `f` may take those of domains, which come before it.
fn each_domain(mut f: impl FnMut(&Domain)) {
    let mut from = 0;
    while let Some(d) = domain::find_from(from) {
        f(&d);
        from = d.id + 1;
    }
}

fn about(d: &Domain) {
    let code = d.shutdown_code.load(Ordering::Relaxed);
    say!(
        "d{}: {} of {} pages, weight {}, cap {}, pauses {}, {}{}",
        d.id,
        d.mm.tot_pages(),
        d.mm.max_pages(),
        d.weight.load(Ordering::Relaxed),
        d.cap.load(Ordering::Relaxed),
        d.pause_count(),
        if code == domain::RUNNING { "not shut down" } else { "shut down" },
        if d.is_dead() {
            ", dead"
        } else if d.is_dying() {
            ", dying"
        } else {
            ""
        }
    );
    for v in d.vcpus() {
        say!(
            "  {v}: CPU {}{}, stopped by {}, affinity {:#x}, upcall pending {} masked {}",
            v.processor.load(Ordering::Relaxed),
            if v.loaded.load(Ordering::Relaxed) { " (on it)" } else { "" },
            Reasons(v.stop.load(Ordering::Relaxed)),
            v.affinity.load(Ordering::Relaxed),
            u8::from(v.upcall_pending()),
            v.upcall_mask()
        );
    }
}

/// The bits of [`Vcpu::stop`] in words.
struct Reasons(u32);

impl core::fmt::Display for Reasons {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const NAMES: [(u32, &str); 9] = [
            (stop::DOWN, "down "),
            (stop::BLOCKED, "blocked "),
            (stop::POLLING, "polling "),
            (stop::PAUSED, "paused "),
            (stop::SHUTDOWN, "shutdown "),
            (stop::HELD, "held "),
            (stop::NO_CONTEXT, "no context "),
            (stop::SNAPSHOT, "snapshot "),
            (stop::LOG, "log "),
        ];
        if self.0 == 0 {
            return f.write_str("nothing");
        }
        NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).try_for_each(|(_, name)| f.write_str(name))
    }
}

/// Registers of a vCPU as they were when it last left a CPU; of one that is on a CPU, that CPU holds later ones.
fn registers(v: &Vcpu) {
    if v.stop.load(Ordering::Relaxed) & stop::DOWN != 0 {
        return;
    }
    let Glimpse { regs, fs_base, gs_base_kernel, gs_base_user } = v.glimpse();
    let when = if v.loaded.load(Ordering::Relaxed) { "when it was last switched" } else { "now" };
    say!("{v} ({when}): rip {:04x}:{:016x} rflags {:08x}", regs.cs, regs.rip, regs.rflags);
    say!("  rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}", regs.rax, regs.rbx, regs.rcx, regs.rdx);
    say!("  rsi {:016x} rdi {:016x} rbp {:016x} rsp {:016x}", regs.rsi, regs.rdi, regs.rbp, regs.rsp);
    say!("  r8  {:016x} r9  {:016x} r10 {:016x} r11 {:016x}", regs.r8, regs.r9, regs.r10, regs.r11);
    say!("  r12 {:016x} r13 {:016x} r14 {:016x} r15 {:016x}", regs.r12, regs.r13, regs.r14, regs.r15);
    say!("  fs {fs_base:016x} gs {gs_base_kernel:016x} {gs_base_user:016x}");
}

/// The timers that a vCPU has armed, and when they are due.
fn timers_of(v: &Vcpu) {
    let now = tsc::now_ns();
    let cpu = |kind: Kind| v.timer_cpu[kind as usize].load(Ordering::Relaxed);
    for (kind, name) in [
        (Kind::SingleShot, "single shot"),
        (Kind::Periodic, "periodic"),
        (Kind::Poll, "poll"),
        (Kind::Watchdog, "watchdog"),
    ] {
        let Some(at) = timers::deadline(v, kind) else { continue };
        match at.checked_sub(now) {
            Some(left) => say!("{v}: {name} in {left} ns, by CPU {}", cpu(kind)),
            None => say!("{v}: {name} was due {} ns ago, by CPU {}", now - at, cpu(kind)),
        }
    }
}

/// Most ports of a domain that are listed.
const MAX_PORTS: usize = 256;

fn event_channels(d: &Domain) {
    let channels = d.events.lock();
    say!("d{}: {} ports, {}", d.id, channels.nr_open(), if channels.is_fifo() { "FIFO" } else { "2-level" });
    let mut from = 0;
    for _ in 0..MAX_PORTS {
        let Some(port) = channels.next_open(from) else { return };
        from = port + 1;
        let (Ok(binding), Ok(status)) = (channels.binding(port), channels.status(port)) else { continue };
        let (vcpu, news) = (status.vcpu, if channels.pending(d, port) { ", pending" } else { "" });
        match binding {
            Binding::Free => {}
            Binding::Unbound { remote } => say!("  {port:4} v{vcpu} unbound, for d{remote}{news}"),
            Binding::Interdomain { dom, port: peer } => say!("  {port:4} v{vcpu} to d{dom} port {peer}{news}"),
            Binding::Pirq(pirq) => say!("  {port:4} v{vcpu} pirq {pirq}{news}"),
            Binding::Virq(virq) => say!("  {port:4} v{vcpu} virq {virq}{news}"),
            Binding::Ipi => say!("  {port:4} v{vcpu} ipi{news}"),
            Binding::Hypervisor { dom, .. } => say!("  {port:4} v{vcpu} to the hypervisor for d{dom}{news}"),
        }
    }
    say!("  and more");
}

fn grants(d: &Domain) {
    let (frames, used) = {
        let table = d.grants.table();
        (table.frames().len(), table.nr_used())
    };
    let (handles, room) = d.grants.track().sizes();
    say!("d{}: {frames} frames of grants, {used} in use; {handles} handles for others' in use, room for {room}", d.id);
}

fn memory() {
    say!(
        "{} frames of RAM, {} free (largest order {:?}), {} on their way, {} heap, {} claimed",
        frames::total(),
        frames::free_count(),
        frames::largest_order(),
        limbo::count(),
        heap::frames_used(),
        crate::domain::memory::claims::outstanding()
    );
    let mut small = 0;
    heap::for_each_class(|class| {
        let heap::Use { size, pages, objects, room } = class;
        small += pages;
        if pages != 0 {
            say!("  heap: {pages} pages of objects of {size} bytes, {objects} of {room} in use");
        }
    });
    say!("  heap: {} frames of larger ones", heap::frames_used().saturating_sub(small));
    say!("  {} tables of the hypervisor's and the IOMMU's", frames::table_count());
    each_domain(|d| say!("  d{}: {} of {} pages", d.id, d.mm.tot_pages(), d.mm.max_pages()));
}

fn run_queue() {
    let now = tsc::now_ns();
    for cpu in 0..percpu::MAX_CPUS {
        if percpu::online_mask() >> cpu & 1 == 0 {
            continue;
        }
        let (idle, current) = sched::with(|s, _| (s.idle_time(cpu, now), s.current(cpu)));
        let section = Section::begin();
        match current.and_then(|id| sched::vcpu_in_slot(id.index(), &section)) {
            Some(v) => say!("CPU {cpu}: {v}, idle for {idle} ns so far"),
            None => say!("CPU {cpu}: idle, for {idle} ns so far"),
        }
    }
    each_domain(|d| {
        for v in d.vcpus() {
            let (ran, warped) = sched::with(|s, now| (s.run_time(v.sched_id, now), s.warped_time(v.sched_id)));
            let (wakes, delays) = sched::with(|s, _| (s.wakes(v.sched_id), s.delays(v.sched_id)));
            let weight = d.weight.load(Ordering::Relaxed);
            say!("  {v}: weight {weight}, ran {ran} ns, {warped} of them borrowed");
            let Wakes { count, late, behind_sender, worst_ns } = wakes;
            say!("  {v}: {count} wakes, {late} of them late, the longest wait {worst_ns} ns; {behind_sender} after their sender");
            if delays.count != 0 {
                let Delays { count, to_bound, cut_off } = delays;
                say!("  {v}: {count} preemptions delayed, {to_bound} of them up to the bound, {cut_off} with events off still");
            }
        }
    });
}

fn counters() {
    let (calls, called) = crate::arch::ipi::counts();
    say!("{calls} calls from a CPU to others, {called} CPUs interrupted for them");
}

fn clocks() {
    let f = tsc::frequencies();
    say!("system time {} ns, TSC {} Hz, read {:#x}", tsc::now_ns(), f.tsc_hz, crate::cpu::rdtsc());
}

/// The audit says itself what it found; a key has nobody else to tell.
fn recount() {
    if let Err(errno) = audit::run() {
        say!("The audit ends with {errno:?}");
    }
}
