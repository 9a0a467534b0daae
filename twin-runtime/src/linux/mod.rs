//! Native support routines: what drivers call on their hot paths, done here on Linux's own structures.
//!
//! A routine gets the argument registers as the driver passed them and reaches the structures through [`Memory`]. It
//! either returns what the original would, or says that the domain's own has to run ([`Stop::Upcall`]), or ends the
//! invocation. Nothing in a structure is trusted: each word is read once and each length is bounded before it is used.
//! The places of members come from BTF ([`offsets`]).

pub mod dma;
pub mod inbox;
pub mod irq;
pub mod lanes;
pub mod lock;
pub mod napi;
pub mod offsets;
pub mod pages;
pub mod pool;
pub mod queue;
pub mod sg;
pub mod shares;
pub mod skb;
mod text;

use crate::abort::Reason;
use crate::memory::{Fault, Memory};
use crate::stubs::Inline;
use lock::Sleepers;
use offsets::Offsets;
use pool::Pool;
use skb::Frame;

/// What support routines need of the world.
pub trait Host: Memory {
    /// Does something with the buffers that the domain lent; all its twins do so one after the other.
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R;
    /// The machine frame behind a frame of the driver domain, if it may be used for DMA.
    fn machine_frame(&self, pfn: u64) -> Option<u64>;
    /// Is this DMA address one of the domain's bounce buffers, which hold copies of what a device is to reach?
    fn is_bounced(&self, _address: u64) -> bool {
        false
    }
    /// Does the host run the polls of this `napi_struct`? Else the domain does.
    fn runs_poll(&self, _napi: u64) -> bool {
        true
    }
    /// The poll of this `napi_struct`, which the host runs, is to run (softirq).
    fn schedule_poll(&mut self, napi: u64);
    /// The driver has taken a poll, and schedules it next: if it ends before that, the host gives it back
    /// ([`Support::give_poll_back`]).
    fn has_taken_poll(&mut self, _napi: u64) {}
    /// It schedules a poll, which is the host's or the domain's from now on.
    fn schedules_poll(&mut self, _napi: u64) {}
    /// It has given up a poll that the host runs, which may be another's by now.
    fn has_completed_poll(&mut self, _napi: u64) {}
    /// Does the host take received packets? Else the domain does.
    fn takes_packets(&self) -> bool {
        true
    }
    /// A packet was received; its data is valid until this returns. The buffer is taken back afterwards, unless the
    /// answer is `true`: the host keeps it, in an [`inbox::Inbox`].
    fn receive(&mut self, frame: Frame<'_>) -> bool;
    /// A buffer is wanted, and the pool is empty. Gives back those of packets that were received and are kept; `true`:
    /// there were some.
    fn relieve(&mut self) -> bool {
        false
    }
    /// The driver is done with a packet that was prepared by [`Support::prepare`].
    fn transmitted(&mut self, skb: u64, cookie: u64);
    /// The domain has to free something of its own, later.
    fn free_in_domain(&mut self, what: Foreign);
    /// A lock was released for which a processor of the domain's sleeps, or is about to: those that sleep look again.
    fn wake_sleepers(&mut self) {}
    /// The domain's queue (`netdev_queue`) may go on.
    fn queue_event(&mut self, queue: u64);
    /// A lock is taken by someone else. `tries` counts from 1. Whether to try again.
    fn lock_is_busy(&mut self, lock: u64, tries: u32) -> bool;
    /// The driver has taken a lock of the domain's: if it ends before it releases that, the host does
    /// ([`lock::release`]).
    fn has_taken(&mut self, _lock: u64) {}
    /// It has released one.
    fn has_released(&mut self, _lock: u64) {}
    /// A routine that copies, fills or looks at much comes here after each piece: what others on the machine want of
    /// this CPU can be done. Is there time left?
    fn goes_on(&mut self) -> bool {
        true
    }
    /// Can the invocation wait for a lock, and the domain release one when it comes to it? Then a lock that stays taken
    /// is an upcall, and one for which a processor sleeps that is put down nowhere is [`Foreign::Lock`].
    fn may_wait(&self) -> bool {
        false
    }
    /// A call that the domain is to make after the invocation (timers, work queues).
    fn note(&mut self, routine: Routine, args: &[u64; 6]);
}

/// Something of the driver domain's that only its own kernel can let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// A spinlock that was taken for it and for which one of its processors sleeps, which only its kernel can find.
    Lock(u64),
    /// An `sk_buff`, for `kfree_skb`.
    Skb(u64),
    /// Data of a page fragment, for `page_frag_free`.
    Fragment(u64),
}

/// Where the driver domain's kernel has its address ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `page_offset_base`.
    pub page_offset: u64,
    /// First byte of vmalloc space.
    pub vmalloc_start: u64,
    /// First byte after it.
    pub vmalloc_end: u64,
    /// `vmemmap_base`.
    pub vmemmap: u64,
    /// Address of the variable `jiffies`.
    pub jiffies: u64,
    /// Where vCPUs are put down that sleep until a lock is released.
    pub sleepers: Sleepers,
}

/// Why a routine did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The domain's own routine has to run; nothing was changed.
    Upcall,
    /// The invocation ends.
    Abort(Reason),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Abort(Reason::Memory(fault))
    }
}

pub(crate) fn bad(what: &'static str, value: u64) -> Stop {
    Stop::Abort(Reason::Structure { what, value })
}

/// The result of a routine.
pub type Done = Result<u64, Stop>;

/// What the support routines know of one driver domain. It does not change.
#[derive(Clone, Debug, Default)]
pub struct Support {
    /// Places of members.
    pub offsets: Offsets,
    /// Address ranges.
    pub kernel: Kernel,
    /// `struct device *` to bus address limit (exclusive); devices that are not listed have none.
    pub dma_limit: u64,
}

/// A routine as a type: [`Routine::made`] has one for each.
pub trait Native {
    /// Calls it.
    ///
    /// # Errors
    /// See [`Stop`].
    fn call<H: Host>(support: &Support, host: &mut H, args: &[u64; 6]) -> Done;
}

/// What is made of each routine by whoever calls them often: something that can do just one.
pub trait Maker {
    /// What it makes.
    type Made;
    /// Makes it.
    fn make<N: Native>() -> Self::Made;
}

macro_rules! routines {
    ($($variant:ident = $($name:literal)|+ => $function:path;)*) => {
        /// A native routine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is named as the kernel function that it stands for")]
        pub enum Routine { $($variant,)* }

        impl Routine {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The routine that stands for a kernel function.
            #[must_use]
            pub fn by_name(name: &str) -> Option<Self> {
                match name { $($($name)|+ => Some(Self::$variant),)* _ => None }
            }

            /// The first name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => [$($name),+][0],)* }
            }

            /// What `M` makes of it.
            #[must_use]
            pub fn made<M: Maker>(self) -> M::Made {
                match self {
                    $(Self::$variant => {
                        struct It;
                        impl Native for It {
                            #[inline(always)]
                            fn call<H: Host>(support: &Support, host: &mut H, args: &[u64; 6]) -> Done {
                                $function(support, host, args)
                            }
                        }
                        M::make::<It>()
                    })*
                }
            }

            /// Calls it.
            ///
            /// # Errors
            /// See [`Stop`].
            #[inline]
            pub fn call<H: Host>(self, support: &Support, host: &mut H, args: &[u64; 6]) -> Done {
                match self {
                    $(Self::$variant => {
                        // Each saves the registers that it needs, and not those of all.
                        #[inline(never)]
                        fn apart<H: Host>(support: &Support, host: &mut H, args: &[u64; 6]) -> Done {
                            $function(support, host, args)
                        }
                        apart(support, host, args)
                    })*
                }
            }
        }
    };
}

routines! {
    IsVmallocAddr = "is_vmalloc_addr" => dma::is_vmalloc_addr;
    DmaMapPage = "dma_map_page_attrs" => dma::map_page;
    DmaUnmapPage = "dma_unmap_page_attrs" => dma::end_access;
    DmaSyncForCpu = "dma_sync_single_for_cpu" => dma::end_access;
    DmaSyncForDevice = "dma_sync_single_for_device" => dma::end_access;
    SkbCloneTxTimestamp = "skb_clone_tx_timestamp" | "skb_tstamp_tx" => dma::nothing;
    NapiConsumeSkb = "napi_consume_skb" => skb::alloc::consume;
    DevKfreeSkb = "__dev_kfree_skb_any" | "__dev_kfree_skb_irq" | "consume_skb" | "kfree_skb_reason" => skb::alloc::consume;
    NetdevAllocSkb = "__netdev_alloc_skb" => skb::alloc::allocate;
    NapiAllocSkb = "__napi_alloc_skb" => skb::alloc::napi_allocate;
    BuildSkb = "napi_build_skb" | "build_skb" => skb::alloc::build;
    AllocFragment = "__netdev_alloc_frag_align" | "__napi_alloc_frag_align" => skb::alloc::allocate_fragment;
    PageFragFree = "page_frag_free" => skb::alloc::free_fragment;
    PageFragRefill = "skb_page_frag_refill" => skb::alloc::refill_fragment;
    SgInitTable = "sg_init_table" => sg::init_table;
    SgInitOne = "sg_init_one" => sg::init_one;
    SgNext = "sg_next" => sg::next;
    SkbToSgvec = "skb_to_sgvec" => sg::of_skb;
    SkbPut = "skb_put" => skb::put;
    SkbTrim = "skb_trim" => skb::trim;
    SkbPad = "__skb_pad" => skb::pad;
    SkbCopyBits = "skb_copy_bits" => skb::bits::copy;
    SkipExtensions = "ipv6_skip_exthdr" => skb::ipv6::skip_extensions;
    FindHeader = "ipv6_find_hdr" => skb::ipv6::find_header;
    EthTypeTrans = "eth_type_trans" => skb::receive::eth_type_trans;
    GroReceive = "napi_gro_receive" => skb::receive::gro_receive;
    GetFrags = "napi_get_frags" => skb::receive::get_frags;
    GroFrags = "napi_gro_frags" => skb::receive::gro_frags;
    Receive = "netif_receive_skb" | "netif_rx" => skb::receive::receive;
    NapiSchedulePrep = "napi_schedule_prep" => napi::schedule_prep;
    NapiSchedule = "__napi_schedule" | "__napi_schedule_irqoff" => napi::schedule;
    NapiCompleteDone = "napi_complete_done" => napi::complete_done;
    DqlCompleted = "dql_completed" => queue::dql_completed;
    ScheduleQueue = "netif_schedule_queue" => queue::schedule;
    WakeQueue = "netif_tx_wake_queue" => queue::wake;
    SpinLock = "_raw_spin_lock" | "_raw_spin_lock_bh" | "_raw_spin_lock_irq" | "_raw_spin_lock_irqsave" => lock::lock;
    SpinTrylock = "_raw_spin_trylock" => lock::try_lock;
    SpinUnlock = "_raw_spin_unlock" | "_raw_spin_unlock_bh" | "_raw_spin_unlock_irq" | "_raw_spin_unlock_irqrestore"
        => lock::unlock;
    Memcpy = "memcpy" | "__memcpy" | "memmove" => text::copy;
    Memset = "memset" | "__memset" => text::fill;
    IoRead8 = "ioread8" => text::io_read::<1, _>;
    IoRead16 = "ioread16" => text::io_read::<2, _>;
    IoRead32 = "ioread32" => text::io_read::<4, _>;
    IoWrite8 = "iowrite8" => text::io_write::<1, _>;
    IoWrite16 = "iowrite16" => text::io_write::<2, _>;
    IoWrite32 = "iowrite32" => text::io_write::<4, _>;
    NetRatelimit = "net_ratelimit" => dma::nothing;
    QueueWork = "queue_work_on" => text::note_work;
    QueueDelayedWork = "queue_delayed_work_on" => text::note_delayed_work;
    ModTimer = "mod_timer" => text::note_timer;
}

impl Routine {
    /// What a stub can do instead of it, with the same result: for a device that has no bounce buffers
    /// ([`Host::is_bounced`]).
    #[must_use]
    pub fn inline(self, support: &Support) -> Option<Inline> {
        let Kernel { vmalloc_start: start, vmalloc_end: end, .. } = support.kernel;
        match self {
            Self::DmaUnmapPage
            | Self::DmaSyncForCpu
            | Self::DmaSyncForDevice
            | Self::SkbCloneTxTimestamp
            | Self::NetRatelimit => Some(Inline::Nothing),
            Self::IsVmallocAddr => Some(Inline::IsWithin { start, end }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod card_tests;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod several_tests;
#[cfg(test)]
mod tests;
