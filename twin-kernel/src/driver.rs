//! What the rewriter and the support routines need of a kernel.

use crate::btf::Btf;
use crate::net::{self, Interrupts, NetDevice};
use crate::symbols::Symbol;
use crate::{LiveKernel, Result};
use twin_rewrite::module::{bound_functions, Externs, Function, Module, Section};
use twin_runtime::linux::lock::Sleepers;
use twin_runtime::linux::offsets::Offsets;
use twin_runtime::linux::Kernel;

/// The module `name` as it lies in memory.
pub fn module(s: &impl LiveKernel, name: &str) -> Result<Module> {
    modules(s, &[name])
}

/// The modules of these names as they lie in memory, as one.
pub fn modules(s: &impl LiveKernel, names: &[&str]) -> Result<Module> {
    let parts = names.iter().map(|name| part(s, name)).collect::<Result<Vec<_>>>()?;
    let m = Module::join(parts, externs(s, names));
    m.check()?;
    check_locks(&m)?;
    Ok(m)
}

/// What twins are made of is as it was found: the module's text, and what text reads that nobody writes. Errors: what
/// has changed, in words.
pub fn check_same(s: &impl LiveKernel, m: &Module) -> Result<()> {
    for section in m.sections.iter().filter(|section| !section.writable) {
        let mut now = vec![0; section.bytes.len()];
        if s.read(section.address, &mut now).is_none() || now != section.bytes {
            return Err(format!("{} of {} has changed", section.name, m.name));
        }
    }
    Ok(())
}

/// Names of the modules in which these functions are. Errors: one is in none, or is not there.
pub fn modules_of<'s>(s: &'s impl LiveKernel, functions: &[u64]) -> Result<Vec<&'s str>> {
    let mut names = Vec::new();
    for &function in functions {
        let name = s.module_of(function).ok_or_else(|| {
            let name = s.symbols().iter().find(|y| y.address == function).map_or("a function", |y| y.name);
            format!("{name} is in no module: its text is not known apart from the kernel's")
        })?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn part(s: &impl LiveKernel, name: &str) -> Result<Module> {
    let info = s.module(name).ok_or(format!("no module {name} is loaded"))?;
    let end = info.base + info.len_bytes;
    let mut places: Vec<(u64, &str)> = info
        .sections
        .iter()
        .filter(|(n, a)| (info.base..end).contains(a) && !n.starts_with(".init"))
        .map(|(n, a)| (*a, n.as_str()))
        .collect();
    places.sort();
    let mut m = Module { name: name.to_owned(), ..Module::default() };
    for (k, (address, section)) in places.iter().enumerate() {
        let next = places.get(k + 1).map_or(end, |p| p.0);
        // What lies in pages that are gone (initialisation) is not the module's any more.
        let mut bytes = vec![0; usize::try_from(next - address).map_err(|_| format!("{name} is too large"))?];
        while !bytes.is_empty() && s.read(*address, &mut bytes).is_none() {
            let shorter = (address + bytes.len() as u64 - 1) / 4096 * 4096;
            bytes.truncate(usize::try_from(shorter.saturating_sub(*address)).unwrap_or(0));
        }
        if bytes.is_empty() {
            continue;
        }
        m.sections.push(Section {
            name: (*section).to_owned(),
            address: *address,
            bytes,
            executable: section.contains("text"),
            writable: s.is_writable(*address),
        });
    }
    for y in s.symbols().iter() {
        let own = y.module == Some(name);
        if own && matches!(y.kind, b't' | b'T') && m.is_text(y.address) {
            m.functions.push(Function { address: y.address, len: 0, name: y.name.into() });
        }
    }
    bound_functions(&mut m.functions, &m.sections);
    Ok(m)
}

/// Checks that LOCK prefixes are where the module's table of them says. A kernel that believes that it has one CPU for
/// ever takes them away (a DS prefix stands there then), and the twin runs on a CPU of its own.
pub(crate) fn check_locks(m: &Module) -> Result<()> {
    const LOCK: u8 = 0xf0;
    for table in m.named(".smp_locks") {
        for (place, distance) in (table.address..).step_by(4).zip(table.bytes.chunks_exact(4)) {
            let distance = i32::from_le_bytes([distance[0], distance[1], distance[2], distance[3]]);
            let address = place.wrapping_add_signed(distance.into());
            // What follows the table's end is something else.
            let text = m.section(address).filter(|section| section.executable);
            let byte = text.and_then(|s| s.bytes.get(usize::try_from(address - s.address).ok()?));
            if byte.is_some_and(|byte| *byte != LOCK) {
                return Err(format!(
                    "the kernel took the LOCK prefix away at {}, because it started with one CPU: give the domain more with maxvcpus",
                    m.describe(address)
                ));
            }
        }
    }
    Ok(())
}

fn externs(s: &impl LiveKernel, own: &[&str]) -> Externs {
    let mut out = Externs::default();
    let is_own = |y: &Symbol<'_>| y.module.is_some_and(|module| own.contains(&module));
    for y in s.symbols().iter().filter(|y| !is_own(y)) {
        out.add(y.address, y.name);
    }
    out
}

/// The type information of a module, whose file is `file`, on top of that of its kernel, which is `release`.
pub fn module_types(s: &impl LiveKernel, file: &[u8], release: &str) -> Result<Btf> {
    let base = net::types(s)?;
    twin_rewrite::ko::check_release(file, release)?;
    match twin_rewrite::ko::section(file, ".BTF") {
        Some(bytes) => Btf::parse(&bytes, Some(&base)),
        None => Ok(base),
    }
}

/// What was found in a running kernel.
#[derive(Debug, Clone)]
pub struct Live {
    /// The interface.
    pub net: NetDevice,
    /// Places of structure members.
    pub offsets: Offsets,
    /// Address ranges of the kernel.
    pub kernel: Kernel,
    /// Base of a per-CPU area.
    pub percpu: u64,
    /// Offsets in `struct page` of its type and private word.
    pub page_type: u64,
    /// See `page_type`.
    pub page_private: u64,
}

/// Finds the objects of the driver of interface `name`, whose interrupts are `irqs`.
pub fn live(s: &impl LiveKernel, name: &str, irqs: &Interrupts<'_>) -> Result<Live> {
    live_of(s, &net::types(s)?, name, irqs)
}

/// The same for who has the kernel's types, which are long to read.
pub fn live_of(s: &impl LiveKernel, t: &Btf, name: &str, irqs: &Interrupts<'_>) -> Result<Live> {
    let net = net::net_device(s, t, name, irqs)?;
    let offsets = Offsets::fill(|a, b| t.offset(a, b).ok(), |a| t.size(a).ok())
        .map_err(|(a, b)| format!("no type information for {a}.{b}"))?;
    let word = |name: &str| {
        let at = s.symbol(name).ok_or(format!("no symbol {name}"))?;
        s.read_int(at, 8).ok_or(format!("{name} is not mapped"))
    };
    let vmalloc_start = word("vmalloc_base")?;
    /// Bytes of the kernel's vmalloc range with four-level page tables.
    const VMALLOC_BYTES: u64 = 32 << 40;
    let kernel = Kernel {
        page_offset: word("page_offset_base")?,
        vmalloc_start,
        vmalloc_end: vmalloc_start + VMALLOC_BYTES,
        vmemmap: word("vmemmap_base")?,
        jiffies: s.symbol("jiffies").ok_or("no symbol jiffies")?,
        sleepers: sleepers(s, t)?,
    };
    Ok(Live { net, offsets, kernel, percpu: word("__per_cpu_offset")?, ..page_words(t)? })
}

/// The table of vCPUs that sleep until a spinlock is released. A kernel without paravirtual spinlocks has none.
fn sleepers(s: &impl LiveKernel, t: &Btf) -> Result<Sleepers> {
    let (Some(table), Some(bits)) = (s.symbol("pv_lock_hash"), s.symbol("pv_lock_hash_bits")) else {
        return Ok(Sleepers::default());
    };
    let table = s.read_int(table, 8).ok_or("pv_lock_hash is not mapped")?;
    let bits = s.read_int(bits, 4).ok_or("pv_lock_hash_bits is not mapped")?;
    let stride = u32::try_from(t.size("pv_hash_entry")?).map_err(|e| e.to_string())?;
    if table == 0 || bits > Sleepers::MOST.ilog2().into() || t.offset("pv_hash_entry", "lock")? != 0 {
        return Ok(Sleepers::default());
    }
    Ok(Sleepers { table, count: 1 << bits, stride })
}

fn page_words(t: &Btf) -> Result<Live> {
    Ok(Live {
        net: NetDevice::default(),
        offsets: Offsets::default(),
        kernel: Kernel::default(),
        percpu: 0,
        page_type: t.offset("page", "page_type")?,
        page_private: t.offset("page", "private")?,
    })
}
