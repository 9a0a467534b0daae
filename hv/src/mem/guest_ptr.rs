//! Pointers that a guest claims, and the plain data that may cross through them.

use crate::mem::copy;
use core::marker::PhantomData;
use core::mem::{size_of, MaybeUninit};
use xen_abi::errno::Errno;

/// Data without padding and without invalid bit patterns: it may be copied from and to guests as bytes.
///
/// # Safety
/// 1. Every bit pattern is a valid value. 2. There is no padding, so no hypervisor memory leaks into a guest.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($t:ty),* $(,)?) => {
        $(
            // SAFETY: integers, or `repr(C)` structs of integers whose padding is explicit fields (xen-abi's layout
            // asserts).
            unsafe impl $crate::mem::guest_ptr::Plain for $t {}
        )*
    };
}
pub(crate) use plain;

plain!(u8, u16, u32, u64, i8, i16, i32, i64);
plain!(
    xen_abi::trap::TrapInfo,
    xen_abi::trap::VcpuGuestContext,
    xen_abi::callback::CallbackRegister,
    xen_abi::callback::CallbackUnregister,
    xen_abi::vcpu::VcpuRegisterMemoryArea,
    xen_abi::vcpu::VcpuSetPeriodicTimer,
    xen_abi::vcpu::VcpuSetSingleshotTimer,
    xen_abi::vcpu::VcpuRegisterVcpuInfo,
    xen_abi::vcpu::VcpuGetPhysid,
    xen_abi::shared::VcpuRunstateInfo,
    xen_abi::shared::VcpuTimeInfo,
    xen_abi::sched::SchedShutdown,
    xen_abi::sched::SchedPoll,
    xen_abi::sched::SchedRemoteShutdown,
    xen_abi::sched::SchedWatchdog,
    xen_abi::sched::SchedPinOverride,
);
plain!(
    xen_abi::mmu::MmuUpdate,
    xen_abi::mmu::MmuextOp,
    xen_abi::memory::MemoryReservation,
    xen_abi::memory::MemoryExchange,
    xen_abi::memory::MachphysMfnList,
    xen_abi::memory::MachphysMapping,
    xen_abi::memory::MemoryMap,
    xen_abi::memory::ForeignMemoryMap,
    xen_abi::memory::E820Entry,
    xen_abi::memory::AcquireResource,
);
// SAFETY: an array of plain data has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A guest virtual address at which the guest says there is a `T` (or an array of them).
pub struct GuestPtr<T> {
    addr: u64,
    kind: PhantomData<*const T>,
}

impl<T> Clone for GuestPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for GuestPtr<T> {}

impl<T> GuestPtr<T> {
    /// Takes a raw address.
    #[inline(always)]
    pub const fn new(addr: u64) -> Self {
        Self { addr, kind: PhantomData }
    }
    /// The raw address.
    #[inline(always)]
    pub const fn addr(self) -> u64 {
        self.addr
    }
    /// Null?
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.addr == 0
    }
    /// The same address as a pointer to something else.
    #[inline(always)]
    pub const fn cast<U>(self) -> GuestPtr<U> {
        GuestPtr::new(self.addr)
    }
    /// Element `n` of the array. EFAULT if the address wraps.
    #[inline(always)]
    pub fn at(self, n: u64) -> Result<Self, Errno> {
        let offset = n.checked_mul(size_of::<T>() as u64).ok_or(Errno::EFAULT)?;
        Ok(Self::new(self.addr.checked_add(offset).ok_or(Errno::EFAULT)?))
    }
}

impl<T: Plain> GuestPtr<T> {
    /// Copies the value in, once.
    #[inline(always)]
    pub fn read(self) -> Result<T, Errno> {
        if size_of::<T>() == 8 {
            let word = copy::read_u64(self.addr)?;
            // SAFETY: same size; every bit pattern is valid (`Plain`).
            return Ok(unsafe { core::mem::transmute_copy(&word) });
        }
        if size_of::<T>() == 4 {
            let word = copy::read_u32(self.addr)?;
            // SAFETY: as above.
            return Ok(unsafe { core::mem::transmute_copy(&word) });
        }
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the buffer has the size of T; after a full copy every byte is set and every pattern valid (`Plain`).
        unsafe {
            copy::from_guest_raw(value.as_mut_ptr().cast(), self.addr, size_of::<T>())?;
            Ok(value.assume_init())
        }
    }

    /// Copies the value out.
    #[inline(always)]
    pub fn write(self, value: &T) -> Result<(), Errno> {
        // SAFETY: `value` is valid for its size and has no padding (`Plain`).
        unsafe { copy::to_guest_raw(self.addr, core::ptr::from_ref(value).cast(), size_of::<T>())? };
        Ok(())
    }

    /// Copies `out.len()` elements in.
    pub fn read_slice(self, out: &mut [T]) -> Result<(), Errno> {
        // SAFETY: the slice is valid for its size; any pattern is a valid T.
        unsafe { copy::from_guest_raw(out.as_mut_ptr().cast(), self.addr, size_of_val(out))? };
        Ok(())
    }

    /// Copies a slice out.
    pub fn write_slice(self, values: &[T]) -> Result<(), Errno> {
        // SAFETY: the slice is valid for its size and has no padding.
        unsafe { copy::to_guest_raw(self.addr, values.as_ptr().cast(), size_of_val(values))? };
        Ok(())
    }
}
