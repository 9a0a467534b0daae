//! `memory_op`: a domain's memory grows, shrinks and is exchanged; the memory maps; the M2P.

use super::foreign::{self, Target};
use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::cpu::percpu::this_cpu;
use crate::domain::memory::claims;
use crate::domain::memory::log_dirty;
use crate::domain::memory::mmu_env::{mmu, Source};
use crate::domain::memory::DomainMm;
use crate::mem::{self, frames};
use crate::sync::Once;
use alloc::vec::Vec;
use hv_core::memory::{self, Account, Exchange, Extents};
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, MACH2PHYS_VIRT_END, MACH2PHYS_VIRT_START};
use xen_abi::memory as op;
use xen_abi::memory::{E820Entry, MemoryExchange, MemoryMap, MemoryReservation, MEMOP_CMD_MASK, MEMOP_EXTENT_SHIFT};

/// The machine's memory map, as the control domain sees it.
static MACHINE_MAP: Once<Vec<E820Entry>> = Once::new();

/// Sets the machine's memory map, once.
pub fn set_machine_map(entries: Vec<E820Entry>) {
    MACHINE_MAP.call_once(|| entries);
}

impl Account for DomainMm {
    fn owner(&self) -> DomId {
        self.id
    }
    fn charge(&self, pages: u64) -> bool {
        Self::charge(self, pages)
    }
    fn uncharge(&self, pages: u64) {
        Self::uncharge(self, pages);
    }
}

/// XENMEM_*; `cmd` holds the operation and the extent at which a preempted call goes on. Operations on reservations
/// return the number of extents done. Errors: EFAULT; EPERM for other domains' memory; ESRCH; EINVAL; ENOSYS for what
/// is not offered. Source: public/memory.h.
pub fn call(cx: &mut Caller, cmd: u64, arg: GuestPtr<u8>) -> Outcome {
    match cmd & MEMOP_CMD_MASK {
        op::XENMEM_INCREASE_RESERVATION => reservation(cx, cmd, arg.cast(), increase),
        op::XENMEM_DECREASE_RESERVATION => reservation(cx, cmd, arg.cast(), decrease),
        op::XENMEM_POPULATE_PHYSMAP => reservation(cx, cmd, arg.cast(), populate),
        op::XENMEM_EXCHANGE => exchange(cx, arg.cast()),
        op::XENMEM_MAXIMUM_RAM_PAGE => value(frames::end().raw()),
        op::XENMEM_CURRENT_RESERVATION => value(named(cx, arg)?.mm.tot_pages()),
        op::XENMEM_MAXIMUM_RESERVATION => value(named(cx, arg)?.mm.max_pages()),
        op::XENMEM_MAXIMUM_GPFN => value(named(cx, arg)?.maximum_pfn()),
        op::XENMEM_MACHPHYS_MFN_LIST => machphys_mfn_list(cx, arg.cast()),
        op::XENMEM_MACHPHYS_MAPPING => machphys_mapping(cx, arg.cast()),
        op::XENMEM_MEMORY_MAP => {
            let map = cx.domain().mm.memory_map.lock();
            if map.is_empty() {
                return Err(Errno::ENOSYS);
            }
            write_map(arg.cast(), &map)
        }
        op::XENMEM_MACHINE_MEMORY_MAP => {
            cx.require_privilege()?;
            write_map(arg.cast(), MACHINE_MAP.get().ok_or(Errno::ENOSYS)?)
        }
        op::XENMEM_SET_MEMORY_MAP => set_memory_map(cx, arg.cast().read()?),
        op::XENMEM_CLAIM_PAGES => claim_pages(cx, arg.cast().read()?),
        op::XENMEM_GET_SHARING_FREED_PAGES | op::XENMEM_GET_SHARING_SHARED_PAGES => {
            cx.require_privilege()?;
            OK
        }
        op::XENMEM_ACQUIRE_RESOURCE => acquire_resource(cx, arg.cast()),
        op::XENMEM_GET_VNUMAINFO => Err(Errno::EOPNOTSUPP),
        op::XENMEM_ADD_TO_PHYSMAP | op::XENMEM_ADD_TO_PHYSMAP_BATCH | op::XENMEM_REMOVE_FROM_PHYSMAP => {
            // Only domains with translated memory have a physmap of the hypervisor's.
            Err(Errno::EINVAL)
        }
        _ => Err(Errno::ENOSYS),
    }
}

#[allow(clippy::cast_possible_wrap, reason = "page counts")]
fn value(n: u64) -> Outcome {
    Ok(Done::Return(n as i64))
}

/// The domain whose id is at `arg`.
fn named(cx: &Caller, arg: GuestPtr<u8>) -> Result<Target, Errno> {
    foreign::target(cx, arg.cast::<u16>().read()?)
}

fn max_order(cx: &Caller) -> u32 {
    memory::max_order(cx.domain().is_privileged, cx.domain().io.has_io())
}

/// Does one extent; `element` is its place in the list. `Ok(false)`: no more can be done.
type OneExtent = fn(&DomainMm, &Extents, GuestPtr<u64>) -> Result<bool, Errno>;

/// Does the extents of a reservation, from the one that `cmd` names. Returns how many are done, also if one fails.
fn reservation(cx: &mut Caller, cmd: u64, arg: GuestPtr<MemoryReservation>, one: OneExtent) -> Outcome {
    let start = cmd >> MEMOP_EXTENT_SHIFT;
    #[allow(clippy::cast_possible_wrap, reason = "at most 26 bits")]
    let done = |n: u64| Ok(Done::Return(n as i64));
    let request = arg.read()?;
    let Ok(extents) = Extents::new(&request, max_order(cx)) else { return done(start) };
    if start > extents.count {
        return Err(Errno::EINVAL);
    }
    let target = foreign::target(cx, request.domid)?;
    let mut next = start;
    while next < extents.count {
        if next != start && (next.is_multiple_of(32) || cx.is_used_up()) && cx.preempt_pending() {
            *cx.arg_mut(0) = cmd & MEMOP_CMD_MASK | next << MEMOP_EXTENT_SHIFT;
            return Ok(Done::Continue);
        }
        match GuestPtr::new(extents.list).at(next).and_then(|element| one(&target.mm, &extents, element)) {
            Ok(true) => next += 1,
            Ok(false) | Err(_) => break,
        }
    }
    done(next)
}

fn increase(mm: &DomainMm, extents: &Extents, element: GuestPtr<u64>) -> Result<bool, Errno> {
    let _admitted = mm.admit().ok_or(Errno::ESRCH)?;
    let first = memory::populate(mmu(), &Source(mm), mm, extents, None)?;
    if extents.list != 0 {
        element.write(&first.raw())?;
    }
    Ok(true)
}

fn populate(mm: &DomainMm, extents: &Extents, element: GuestPtr<u64>) -> Result<bool, Errno> {
    let pfn = element.read()?;
    let _admitted = mm.admit().ok_or(Errno::ESRCH)?;
    let first = memory::populate(mmu(), &Source(mm), mm, extents, Some(pfn))?;
    log_new(first, extents.pages());
    element.write(&first.raw())?;
    Ok(true)
}

fn decrease(mm: &DomainMm, extents: &Extents, element: GuestPtr<u64>) -> Result<bool, Errno> {
    // What goes counts where it goes. What is still mapped is only looked at.
    this_cpu().allowance.spend_each(extents.pages(), 1);
    memory::decrease(mmu(), mm.id, extents, Mfn::new(element.read()?))?;
    Ok(true)
}

/// XENMEM_exchange. Returns 0 exactly if all extents were exchanged; `nr_exchanged` says how many were.
fn exchange(cx: &mut Caller, arg: GuestPtr<MemoryExchange>) -> Outcome {
    let mut request = arg.read()?;
    let target = foreign::target(cx, request.input.domid)?;
    let plan = Exchange::new(&request, max_order(cx))?;
    let mut result = OK;
    let mut chunk = plan.first_chunk;
    while chunk < plan.chunks {
        if chunk != plan.first_chunk && cx.preempt_pending() {
            result = Ok(Done::Continue);
            break;
        }
        if let Err(errno) = exchange_chunk(&target.mm, &plan, chunk) {
            result = Err(errno);
            break;
        }
        chunk += 1;
    }
    request.nr_exchanged = chunk * plan.inputs_per_chunk;
    arg.write(&request)?;
    result
}

fn exchange_chunk(mm: &DomainMm, plan: &Exchange, chunk: u64) -> Result<(), Errno> {
    let inputs: Vec<Mfn> = read_list(plan.input.list, chunk * plan.inputs_per_chunk, plan.inputs_per_chunk, Mfn::new)?;
    let first_output = chunk * plan.outputs_per_chunk;
    let pfns = read_list(plan.output.list, first_output, plan.outputs_per_chunk, |pfn| pfn)?;
    let _admitted = mm.admit().ok_or(Errno::ESRCH)?;
    let new = plan.chunk(mmu(), &Source(mm), mm.id, &inputs, &pfns)?;
    for (n, mfn) in new.iter().enumerate() {
        log_new(*mfn, plan.output.pages());
        GuestPtr::<u64>::new(plan.output.list).at(first_output + n as u64)?.write(&mfn.raw())?;
    }
    Ok(())
}

/// Pages that are new to a domain have other contents than those that had their numbers before.
fn log_new(first: Mfn, pages: u64) {
    if log_dirty::any() {
        (0..pages).for_each(|n| log_dirty::mark(first.add(n)));
    }
}

/// Elements `first..first + count` of the list at `list`. A chunk has at most 2^18 of them.
fn read_list<T>(list: u64, first: u64, count: u64, make: impl Fn(u64) -> T) -> Result<Vec<T>, Errno> {
    let mut values = Vec::new();
    let room = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    values.try_reserve_exact(room).map_err(|_| Errno::ENOMEM)?;
    for n in first..first + count {
        values.push(make(GuestPtr::<u64>::new(list).at(n)?.read()?));
    }
    Ok(values)
}

/// Where the M2P is and how far it goes. The control domain only sees as much as there is memory.
fn machphys_mapping(cx: &Caller, arg: GuestPtr<op::MachphysMapping>) -> Outcome {
    let max_mfn = if cx.domain().is_hardware {
        frames::end().raw() - 1
    } else {
        (MACH2PHYS_VIRT_END - MACH2PHYS_VIRT_START) / 8 - 1
    };
    arg.write(&op::MachphysMapping { v_start: MACH2PHYS_VIRT_START, v_end: MACH2PHYS_VIRT_END, max_mfn })?;
    OK
}

/// The first machine frame of each 2 MiB of the M2P, for the tools to map. A part without memory repeats the one before
/// it.
fn machphys_mfn_list(cx: &Caller, arg: GuestPtr<op::MachphysMfnList>) -> Outcome {
    cx.require_privilege()?;
    let mut request = arg.read()?;
    let list = GuestPtr::<u64>::new(request.extent_start);
    let extents = mem::m2p_extents();
    request.nr_extents = 0;
    for first in extents.iter().take(request.max_extents as usize) {
        list.at(request.nr_extents.into())?.write(&first.raw())?;
        request.nr_extents += 1;
    }
    arg.write(&request)?;
    OK
}

fn write_map(arg: GuestPtr<MemoryMap>, map: &[E820Entry]) -> Outcome {
    let mut request = arg.read()?;
    let count = map.len().min(request.nr_entries as usize);
    GuestPtr::new(request.buffer).write_slice(&map[..count])?;
    #[allow(clippy::cast_possible_truncation, reason = "not more than nr_entries")]
    let entries = count as u32;
    request.nr_entries = entries;
    arg.write(&request)?;
    OK
}

fn set_memory_map(cx: &Caller, request: op::ForeignMemoryMap) -> Outcome {
    cx.require_privilege()?;
    let target = foreign::target(cx, request.domid)?;
    if request.map.nr_entries > op::E820_MAX {
        return Err(Errno::EINVAL);
    }
    let mut map = alloc::vec::Vec::new();
    map.try_reserve_exact(request.map.nr_entries as usize).map_err(|_| Errno::ENOMEM)?;
    map.resize(request.map.nr_entries as usize, E820Entry::default());
    GuestPtr::new(request.map.buffer).read_slice(&mut map)?;
    *target.mm.memory_map.lock() = map;
    OK
}

/// Sets free memory aside for a domain that is about to be built.
fn claim_pages(cx: &Caller, request: MemoryReservation) -> Outcome {
    cx.require_privilege()?;
    let target = foreign::target(cx, request.domid)?;
    if request.extent_start != 0 || request.extent_order != 0 || request.mem_flags != 0 {
        return Err(Errno::EINVAL);
    }
    claims::claim(&target.mm, || target.is_dying(), request.nr_extents)?;
    OK
}

/// Names the frames of a domain's grant table, so that the tools can fill in its first entries. Without a list it says
/// how many there may be.
fn acquire_resource(cx: &Caller, arg: GuestPtr<op::AcquireResource>) -> Outcome {
    cx.require_privilege()?;
    let mut request = arg.read()?;
    let target = foreign::target(cx, request.domid)?;
    if request.pad != 0 {
        return Err(Errno::EINVAL);
    }
    if (request.kind, request.id) != (op::RESOURCE_GRANT_TABLE, op::RESOURCE_GRANT_TABLE_ID_SHARED) {
        // Neither I/O request servers nor status frames exist here: no translated guests, grant table version 1.
        return Err(Errno::EOPNOTSUPP);
    }
    let most = target.grants.table().max_frames();
    if request.frame_list == 0 {
        if request.nr_frames != 0 {
            return Err(Errno::EINVAL);
        }
        request.nr_frames = most;
        arg.write(&request)?;
        return OK;
    }
    if request.nr_frames > most || request.frame >= u64::from(most) {
        return Err(Errno::EINVAL);
    }
    for n in 0..u64::from(request.nr_frames) {
        let index = u32::try_from(request.frame + n).map_err(|_| Errno::EINVAL)?;
        let mfn = target.grants.frame(&target, index).ok_or(Errno::EINVAL)?;
        GuestPtr::<u64>::new(request.frame_list).at(n)?.write(&mfn.raw())?;
    }
    OK
}
