//! Locks. The hypervisor runs with interrupts off, so none of them masks interrupts; while a CPU waits for one it
//! answers the requests of other CPUs, so that a TLB shoot-down never waits for a lock.

use crate::cpu::requests;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use hv_core::ticket::Tickets;
use spin::RelaxStrategy;

/// What a CPU does while it waits for a lock.
pub struct Relax;

impl RelaxStrategy for Relax {
    #[cold]
    #[inline(never)]
    fn relax() {
        requests::answer();
        core::hint::spin_loop();
    }
}

/// A spinning mutex.
pub type Mutex<T> = spin::mutex::SpinMutex<T, Relax>;
/// Its guard.
pub type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
/// A spinning readers-writer lock.
pub type RwLock<T> = spin::rwlock::RwLock<T, Relax>;
/// Holds an [`RwLock`] with others.
pub type RwLockReadGuard<'a, T> = spin::rwlock::RwLockReadGuard<'a, T>;
/// Holds an [`RwLock`] alone.
pub type RwLockWriteGuard<'a, T> = spin::rwlock::RwLockWriteGuard<'a, T, Relax>;
/// A value that is set once.
pub type Once<T> = spin::once::Once<T, Relax>;

/// A spinning mutex for what all CPUs and all guests want all the time: they get it in the order in which they ask, so
/// nobody keeps others away by asking again and again. Its guard does not carry the ticket, as that of the crate
/// `spin`'s fair lock does.
pub struct FairMutex<T> {
    tickets: Tickets,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and there is one guard at a time: each ticket is given once before
// it comes round again, when all that were given earlier have been served.
unsafe impl<T: Send> Sync for FairMutex<T> {}

impl<T> FairMutex<T> {
    /// Free.
    pub const fn new(value: T) -> Self {
        Self { tickets: Tickets::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> FairGuard<'_, T> {
        self.lock_while(|| ())
    }

    /// The same, and calls `turn` for each turn of the loop in which it waits.
    #[inline]
    pub fn lock_while(&self, mut turn: impl FnMut()) -> FairGuard<'_, T> {
        self.tickets.wait(|| {
            Relax::relax();
            turn();
        });
        FairGuard(self)
    }
}

/// The guard of a [`FairMutex`].
pub struct FairGuard<'a, T>(&'a FairMutex<T>);

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for FairGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.tickets.done();
    }
}
