//! Locks. The hypervisor runs with interrupts off, so none of them masks interrupts; while a CPU waits for one it
//! answers the requests of other CPUs, so that a TLB shoot-down never waits for a lock.

use crate::cpu::requests;

/// What a CPU does while it waits for a lock.
pub struct Relax;

impl spin::RelaxStrategy for Relax {
    #[cold]
    #[inline(never)]
    fn relax() {
        requests::answer();
        core::hint::spin_loop();
    }
}

/// A spinning mutex.
pub type Mutex<T> = spin::mutex::SpinMutex<T, Relax>;
/// The same for what all CPUs and all guests want all the time: they get it in the order in which they come, so nobody keeps
/// others away by asking again and again.
pub type FairMutex<T> = spin::mutex::TicketMutex<T, Relax>;
/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
/// A spinning readers-writer lock.
pub type RwLock<T> = spin::rwlock::RwLock<T, Relax>;
/// A value that is set once.
pub type Once<T> = spin::once::Once<T, Relax>;
