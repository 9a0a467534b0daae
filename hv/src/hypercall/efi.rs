//! EFI's part of `platform_op`: what the firmware left behind, and calls of its run-time services for the hardware
//! domain.
//!
//! The firmware gets pointers to copies in the hypervisor's memory only, of the lengths that it is told.

use super::{Caller, GuestPtr, Outcome, OK};
use crate::arch::efi::{self, Firmware, Status};
use crate::mem::guest_ptr::plain;
use alloc::vec::Vec;
use hv_core::efi::Services;
use xen_abi::efi as abi;
use xen_abi::errno::Errno;
use xen_abi::platform as xenpf;

plain!(
    abi::EfiConfig,
    abi::EfiVendor,
    abi::EfiMemory,
    abi::RuntimeCall,
    abi::EfiTime,
    abi::EfiVariable,
    abi::EfiNextName
);
plain!(abi::EfiVariableInfo);

/// The firmware does not have the function.
const UNSUPPORTED: Status = 1 << 63 | 3;
/// Highest bit of a status: an error.
const IS_ERROR: Status = 1 << 63;
/// Services of a specification before 2.0 lack the newer functions.
const REVISION_2: u32 = 2 << 16;
/// Longest name of a variable, in bytes with its terminating zero, and most data of one.
const MAX_NAME_BYTES: u64 = 8 << 10;
const MAX_DATA_BYTES: u64 = 1 << 20;
/// Where a request's parameters begin.
const PARAMETERS: u64 = 16;
/// EFI_VARIABLE_NON_VOLATILE, BOOTSERVICE_ACCESS, RUNTIME_ACCESS; and APPEND_WRITE.
const USUAL_ATTRIBUTES: u32 = 7;
const APPEND: u32 = 1 << 6;

/// XEN_FW_EFI_INFO: fact `index` goes to `answer`. Errors: ENOSYS if the machine was not started by UEFI; ESRCH for an
/// address outside the memory map and for option ROMs, which the loader does not pass on; ENODATA for Apple's
/// properties; EOPNOTSUPP without run-time services; EINVAL for an unknown fact.
pub fn info(index: u32, answer: GuestPtr<u8>) -> Outcome {
    let firmware = efi::firmware().ok_or(Errno::ENOSYS)?;
    match index {
        xenpf::XEN_FW_EFI_VERSION => answer.cast().write(&firmware.tables.revision)?,
        xenpf::XEN_FW_EFI_RT_VERSION => {
            answer.cast().write(&efi::services().ok_or(Errno::EOPNOTSUPP)?.revision)?;
        }
        xenpf::XEN_FW_EFI_CONFIG_TABLE => {
            let (addr, nent) = firmware.tables.config_tables;
            answer.cast().write(&abi::EfiConfig { addr, nent, pad: 0 })?;
        }
        xenpf::XEN_FW_EFI_VENDOR => vendor(firmware, answer.cast())?,
        xenpf::XEN_FW_EFI_MEM_INFO => memory(firmware, answer.cast())?,
        xenpf::XEN_FW_EFI_PCI_ROM => return Err(Errno::ESRCH),
        xenpf::XEN_FW_EFI_APPLE_PROPERTIES => return Err(Errno::ENODATA),
        _ => return Err(Errno::EINVAL),
    }
    OK
}

fn vendor(firmware: &Firmware, answer: GuestPtr<abi::EfiVendor>) -> Result<(), Errno> {
    let mut request = answer.read()?;
    let name = &firmware.tables.vendor;
    let length = name.iter().position(|&c| c == 0).map_or(name.len(), |end| end + 1);
    let room = (request.bufsz / 2) as usize;
    GuestPtr::<u16>::new(request.name).write_slice(&name[..length.min(room)])?;
    request.revision = firmware.tables.firmware_revision;
    answer.write(&request)
}

fn memory(firmware: &Firmware, answer: GuestPtr<abi::EfiMemory>) -> Result<(), Errno> {
    let mut request = answer.read()?;
    let region = firmware.map.find(request.addr).ok_or(Errno::ESRCH)?;
    let left = region.range().end - request.addr;
    request.size = request.size.min(left);
    (request.attr, request.kind, request.pad) = (region.attributes, region.kind, 0);
    answer.write(&request)
}

/// XENPF_EFI_RUNTIME_CALL. Errors: ENOSYS if the machine was not started by UEFI, and for capsules; EOPNOTSUPP without
/// run-time services, also after one of them has failed; EINVAL for flags that do not exist; ENOMEM for more data than
/// is reasonable; EIO for a name that changes meanwhile; EFAULT. What the firmware says is in the status.
pub fn runtime_call(cx: &mut Caller, request: GuestPtr<abi::RuntimeCall>) -> Outcome {
    efi::firmware().ok_or(Errno::ENOSYS)?;
    let services = efi::services().ok_or(Errno::EOPNOTSUPP)?;
    let mut call = request.read()?;
    let parameters = GuestPtr::<u8>::new(request.addr().checked_add(PARAMETERS).ok_or(Errno::EFAULT)?);
    let flags = match call.function {
        abi::XEN_EFI_SET_VARIABLE => u32::MAX,
        abi::XEN_EFI_SET_WAKEUP_TIME => abi::XEN_EFI_SET_WAKEUP_TIME_ENABLE | abi::XEN_EFI_SET_WAKEUP_TIME_ENABLE_ONLY,
        abi::XEN_EFI_QUERY_VARIABLE_INFO => abi::XEN_EFI_VARINFO_BOOT_SNAPSHOT,
        _ => 0,
    };
    if call.misc & !flags != 0 {
        return Err(Errno::EINVAL);
    }
    let mut firmware = Runtime { cx, services };
    match call.function {
        abi::XEN_EFI_GET_TIME => firmware.get_time(&mut call, parameters.cast())?,
        abi::XEN_EFI_SET_TIME => firmware.set_time(&mut call, parameters.cast())?,
        abi::XEN_EFI_GET_WAKEUP_TIME => firmware.get_wakeup_time(&mut call, parameters.cast())?,
        abi::XEN_EFI_SET_WAKEUP_TIME => firmware.set_wakeup_time(&mut call, parameters.cast())?,
        abi::XEN_EFI_GET_NEXT_HIGH_MONOTONIC_COUNT => {
            let count = &raw mut call.misc;
            call.status = firmware.call(services.get_next_high_monotonic_count, [count as u64, 0, 0, 0, 0])?;
        }
        abi::XEN_EFI_GET_VARIABLE => firmware.get_variable(&mut call, parameters.cast())?,
        abi::XEN_EFI_SET_VARIABLE => firmware.set_variable(&mut call, parameters.cast())?,
        abi::XEN_EFI_GET_NEXT_VARIABLE_NAME => firmware.next_name(&mut call, parameters.cast())?,
        abi::XEN_EFI_QUERY_VARIABLE_INFO => firmware.query(&mut call, parameters.cast())?,
        _ => return Err(Errno::ENOSYS),
    }
    request.write(&call)?;
    OK
}

/// A zeroed buffer of `bytes`. ENOMEM if that is more than `most`, or than there is.
fn buffer(bytes: u64, most: u64) -> Result<Vec<u8>, Errno> {
    let bytes = usize::try_from(bytes.min(most + 1)).map_err(|_| Errno::ENOMEM)?;
    if bytes as u64 > most {
        return Err(Errno::ENOMEM);
    }
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

/// The zero-terminated name of a variable at `addr`.
fn name(addr: u64) -> Result<Vec<u16>, Errno> {
    let from = GuestPtr::<u16>::new(addr);
    let mut name = Vec::new();
    for n in 0..MAX_NAME_BYTES / 2 {
        let character = from.at(n)?.read()?;
        name.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        name.push(character);
        if character == 0 {
            return Ok(name);
        }
    }
    Err(Errno::ENOMEM)
}

const fn is_good(status: Status) -> bool {
    status & IS_ERROR == 0
}

/// What the clock can, as EFI_TIME_CAPABILITIES.
#[derive(Default)]
#[repr(C)]
struct Capabilities {
    resolution: u32,
    accuracy: u32,
    sets_to_zero: u8,
}

/// The services, called for somebody.
struct Runtime<'a, 'b> {
    cx: &'a mut Caller<'b>,
    services: &'static Services,
}

impl Runtime<'_, '_> {
    /// Calls `function`. The firmware's clock is the hardware domain's too, register by register: not at the same time.
    fn call(&mut self, function: u64, arguments: [u64; 5]) -> Result<Status, Errno> {
        let vcpu = self.cx.vcpu;
        let _clock = vcpu.domain().io.emulated.lock();
        // SAFETY: the callers pass what the service of this name expects: pointers to locals and buffers of theirs that
        // are as long as it is told.
        unsafe { efi::call(&vcpu.fpu, function, arguments) }.map_err(|efi::Unavailable| Errno::EOPNOTSUPP)
    }

    fn get_time(&mut self, call: &mut abi::RuntimeCall, parameters: GuestPtr<abi::EfiTime>) -> Result<(), Errno> {
        let mut time = parameters.read()?;
        let mut can = Capabilities::default();
        let arguments = [&raw mut time as u64, &raw mut can as u64, 0, 0, 0];
        call.status = self.call(self.services.get_time, arguments)?;
        if is_good(call.status) {
            (time.resolution, time.accuracy) = (can.resolution, can.accuracy);
            call.misc = if can.sets_to_zero != 0 { abi::XEN_EFI_GET_TIME_SET_CLEARS_NS } else { 0 };
        }
        parameters.write(&time)
    }

    fn set_time(&mut self, call: &mut abi::RuntimeCall, parameters: GuestPtr<abi::EfiTime>) -> Result<(), Errno> {
        let mut time = parameters.read()?;
        call.status = self.call(self.services.set_time, [&raw mut time as u64, 0, 0, 0, 0])?;
        Ok(())
    }

    fn get_wakeup_time(
        &mut self,
        call: &mut abi::RuntimeCall,
        parameters: GuestPtr<abi::EfiTime>,
    ) -> Result<(), Errno> {
        let mut time = parameters.read()?;
        let (mut enabled, mut pending) = (0u8, 0u8);
        let arguments = [&raw mut enabled as u64, &raw mut pending as u64, &raw mut time as u64, 0, 0];
        call.status = self.call(self.services.get_wakeup_time, arguments)?;
        if is_good(call.status) {
            let flag = |value: u8, flag| if value != 0 { flag } else { 0 };
            call.misc = flag(enabled, abi::XEN_EFI_GET_WAKEUP_TIME_ENABLED)
                | flag(pending, abi::XEN_EFI_GET_WAKEUP_TIME_PENDING);
        }
        parameters.write(&time)
    }

    fn set_wakeup_time(
        &mut self,
        call: &mut abi::RuntimeCall,
        parameters: GuestPtr<abi::EfiTime>,
    ) -> Result<(), Errno> {
        let mut time = parameters.read()?;
        let enable = u64::from(call.misc & abi::XEN_EFI_SET_WAKEUP_TIME_ENABLE != 0);
        let has_time = call.misc & abi::XEN_EFI_SET_WAKEUP_TIME_ENABLE_ONLY == 0;
        let when = if has_time { &raw mut time as u64 } else { 0 };
        call.status = self.call(self.services.set_wakeup_time, [enable, when, 0, 0, 0])?;
        call.misc = 0;
        Ok(())
    }

    fn get_variable(
        &mut self,
        call: &mut abi::RuntimeCall,
        parameters: GuestPtr<abi::EfiVariable>,
    ) -> Result<(), Errno> {
        let mut variable = parameters.read()?;
        let name = name(variable.name)?;
        let mut data = buffer(variable.size, MAX_DATA_BYTES)?;
        let to = if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 };
        let mut attributes = 0u32;
        let guid = &raw mut variable.guid as u64;
        let (attributes_at, size_at) = (&raw mut attributes as u64, &raw mut variable.size as u64);
        call.status =
            self.call(self.services.get_variable, [name.as_ptr() as u64, guid, attributes_at, size_at, to])?;
        call.misc = attributes;
        if is_good(call.status) {
            let length = usize::try_from(variable.size).unwrap_or(usize::MAX).min(data.len());
            GuestPtr::<u8>::new(variable.data).write_slice(&data[..length])?;
        }
        parameters.write(&variable)
    }

    fn set_variable(
        &mut self,
        call: &mut abi::RuntimeCall,
        parameters: GuestPtr<abi::EfiVariable>,
    ) -> Result<(), Errno> {
        let mut variable = parameters.read()?;
        let name = name(variable.name)?;
        let mut data = buffer(variable.size, MAX_DATA_BYTES)?;
        GuestPtr::<u8>::new(variable.data).read_slice(&mut data)?;
        let guid = &raw mut variable.guid as u64;
        let arguments = [name.as_ptr() as u64, guid, call.misc.into(), data.len() as u64, data.as_mut_ptr() as u64];
        call.status = self.call(self.services.set_variable, arguments)?;
        Ok(())
    }

    fn next_name(&mut self, call: &mut abi::RuntimeCall, parameters: GuestPtr<abi::EfiNextName>) -> Result<(), Errno> {
        let mut next = parameters.read()?;
        let mut name = buffer(next.size, MAX_NAME_BYTES)?;
        GuestPtr::<u8>::new(next.name).read_slice(&mut name)?;
        let arguments = [&raw mut next.size as u64, name.as_mut_ptr() as u64, &raw mut next.guid as u64, 0, 0];
        call.status = self.call(self.services.get_next_variable_name, arguments)?;
        if is_good(call.status) {
            GuestPtr::<u8>::new(next.name).write_slice(&name)?;
        }
        parameters.write(&next)
    }

    fn query(&mut self, call: &mut abi::RuntimeCall, parameters: GuestPtr<abi::EfiVariableInfo>) -> Result<(), Errno> {
        let mut info = parameters.read()?;
        (info.max_store_size, info.remain_store_size, info.max_size) = (0, 0, 0);
        if call.misc & abi::XEN_EFI_VARINFO_BOOT_SNAPSHOT != 0 {
            if info.attr & !APPEND != USUAL_ATTRIBUTES {
                return Err(Errno::EINVAL);
            }
            // The loader has left the boot services before we came.
            call.status = UNSUPPORTED;
        } else if self.services.revision < REVISION_2 {
            return Err(Errno::EOPNOTSUPP);
        } else {
            let (most, left, largest) =
                (&raw mut info.max_store_size, &raw mut info.remain_store_size, &raw mut info.max_size);
            let arguments = [info.attr.into(), most as u64, left as u64, largest as u64, 0];
            call.status = self.call(self.services.query_variable_info, arguments)?;
        }
        parameters.write(&info)
    }
}
