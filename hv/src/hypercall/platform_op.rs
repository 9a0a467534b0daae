//! `platform_op`: what the hardware domain tells and asks about the machine.

use super::{efi, Caller, GuestPtr, Outcome, OK};
use crate::arch::{acpi, reboot};
use crate::cpu::percpu;
use crate::info;
use crate::mem::guest_ptr::plain;
use crate::pv::time;
use xen_abi::errno::Errno;
use xen_abi::platform::{
    EnterAcpiSleep, FirmwareInfo, PcpuInfo, SetTime64, XENPF_EFI_RUNTIME_CALL, XENPF_ENTER_ACPI_SLEEP,
    XENPF_FIRMWARE_INFO, XENPF_GET_CPUINFO, XENPF_GET_CPU_VERSION, XENPF_INTERFACE_VERSION, XENPF_SETTIME32,
    XENPF_SETTIME64, XEN_FW_DISK_INFO, XEN_FW_DISK_MBR_SIGNATURE, XEN_FW_EFI_INFO, XEN_FW_KBD_SHIFT_FLAGS,
    XEN_PCPU_FLAGS_INVALID, XEN_PCPU_FLAGS_ONLINE,
};

/// Head of a request: command and interface version.
type Head = [u32; 2];
/// Where a request's own structure begins.
const PAYLOAD: u64 = 8;
/// The S state that turns the machine off.
const SLEEP_STATE_OFF: u32 = 5;
const NS_PER_S: u64 = 1_000_000_000;

/// `XENPF_SETTIME32`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SetTime32 {
    secs: u32,
    nsecs: u32,
    system_time: u64,
}

/// `XENPF_GET_CPU_VERSION`.
#[derive(Clone, Copy)]
#[repr(C)]
struct CpuVersion {
    xen_cpuid: u32,
    max_present: u32,
    vendor_id: [u8; 12],
    family: u32,
    model: u32,
    stepping: u32,
}
plain!(PcpuInfo, SetTime64, SetTime32, FirmwareInfo, EnterAcpiSleep, CpuVersion);

/// Serves the platform operation at `arg`. Errors: EPERM unless the caller is the control domain; EACCES for another
/// interface version; ENOSYS for operations that are not served. Source: public/platform.h.
pub fn call(cx: &mut Caller, arg: GuestPtr<Head>) -> Outcome {
    cx.require_privilege()?;
    let [cmd, version] = arg.read()?;
    if version != XENPF_INTERFACE_VERSION {
        return Err(Errno::EACCES);
    }
    let payload = GuestPtr::<u8>::new(arg.addr().checked_add(PAYLOAD).ok_or(Errno::EFAULT)?);
    match cmd {
        XENPF_SETTIME32 => {
            let t = payload.cast::<SetTime32>().read()?;
            set_time(t.secs.into(), t.nsecs, t.system_time)
        }
        XENPF_SETTIME64 => {
            let t = payload.cast::<SetTime64>().read()?;
            if t.mbz != 0 {
                return Err(Errno::EINVAL);
            }
            set_time(t.secs, t.nsecs, t.system_time)
        }
        XENPF_FIRMWARE_INFO => firmware_info(payload),
        XENPF_EFI_RUNTIME_CALL => efi::runtime_call(cx, payload.cast()),
        XENPF_GET_CPUINFO => cpu_info(payload.cast()),
        XENPF_GET_CPU_VERSION => cpu_version(payload.cast()),
        XENPF_ENTER_ACPI_SLEEP => enter_sleep(&payload.cast::<EnterAcpiSleep>().read()?),
        _ => Err(Errno::ENOSYS),
    }
}

/// It is `secs` and `nsecs` after 1970 (UTC) at `system_time`.
fn set_time(secs: u64, nsecs: u32, system_time: u64) -> Outcome {
    let utc = secs.checked_mul(NS_PER_S).and_then(|ns| ns.checked_add(nsecs.into())).ok_or(Errno::EINVAL)?;
    time::set_wall_clock(utc, system_time);
    OK
}

/// Facts that only firmware calls at boot could have told: but for UEFI's tables there are none, and none are needed.
fn firmware_info(payload: GuestPtr<u8>) -> Outcome {
    let request: FirmwareInfo = payload.cast().read()?;
    match request.kind {
        // No such disk: ends the enumeration.
        XEN_FW_DISK_INFO | XEN_FW_DISK_MBR_SIGNATURE => Err(Errno::ESRCH),
        XEN_FW_KBD_SHIFT_FLAGS if request.index == 0 => {
            payload.at(8)?.write(&0)?;
            OK
        }
        XEN_FW_KBD_SHIFT_FLAGS => Err(Errno::ESRCH),
        XEN_FW_EFI_INFO => efi::info(request.index, payload.at(8)?),
        _ => Err(Errno::EINVAL),
    }
}

/// Highest number of a CPU that runs.
fn last_cpu() -> u32 {
    percpu::online_mask().checked_ilog2().unwrap_or(0)
}

fn is_online(cpu: u32) -> bool {
    percpu::online_mask().checked_shr(cpu).is_some_and(|mask| mask & 1 != 0)
}

fn cpu_info(payload: GuestPtr<PcpuInfo>) -> Outcome {
    let asked = payload.read()?.xen_cpuid;
    let mut answer = PcpuInfo { xen_cpuid: asked, max_present: last_cpu(), ..PcpuInfo::default() };
    match percpu::cpu(asked as usize).filter(|_| is_online(asked)) {
        Some(cpu) => {
            answer.flags = XEN_PCPU_FLAGS_ONLINE;
            answer.apic_id = cpu.apic_id.get();
            let processors = acpi::tables().madt.iter().flat_map(|madt| &madt.processors);
            let found = processors.into_iter().find(|p| p.apic_id == answer.apic_id);
            answer.acpi_id = found.map_or(answer.apic_id, |p| p.acpi_id);
        }
        None => answer.flags = XEN_PCPU_FLAGS_INVALID,
    }
    payload.write(&answer)?;
    OK
}

fn cpu_version(payload: GuestPtr<CpuVersion>) -> Outcome {
    use crate::cpu::cpuid;
    let asked = payload.read()?.xen_cpuid;
    let mut answer =
        CpuVersion { xen_cpuid: asked, max_present: last_cpu(), vendor_id: [0; 12], family: 0, model: 0, stepping: 0 };
    if is_online(asked) {
        // All CPUs of a machine are alike.
        let (vendor, version) = (cpuid(0, 0), cpuid(1, 0).eax);
        for (to, from) in answer.vendor_id.chunks_exact_mut(4).zip([vendor.ebx, vendor.edx, vendor.ecx]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let (base, extended) = (version >> 8 & 15, version >> 20 & 0xff);
        answer.family = if base == 15 { base + extended } else { base };
        answer.model = version >> 4 & 15 | if base == 6 || base == 15 { version >> 12 & 0xf0 } else { 0 };
        answer.stepping = version & 15;
    }
    payload.write(&answer)?;
    OK
}

/// Turns the machine off with the values that the hardware domain found in the firmware's byte code.
fn enter_sleep(request: &EnterAcpiSleep) -> Outcome {
    if request.flags != 0 || request.sleep_state != SLEEP_STATE_OFF {
        return Err(Errno::EOPNOTSUPP);
    }
    info!("Entering ACPI S5 state");
    reboot::sleep(request.val_a, request.val_b);
    Err(Errno::EIO)
}
