//! Resets by a device's own register.
//!
//! What its last owner told a device must not live on for the next one: a network interface that goes on receiving
//! writes into memory which belongs to somebody else by then, perhaps to the device's next owner. The hardware domain's
//! driver for such devices resets functions that offer a function-level reset. Many offer none, and their way from
//! D3hot back to D0 resets nothing on some machines (QEMU's among them). For the kinds below the register that every
//! driver of theirs uses does it; of disks' controllers also where there is a function-level reset, since the hardware
//! domain may be told to leave that out.
//!
//! A device may take its time, or never answer. So it is asked a few times, and others get their turn before it is
//! asked again ([`Leaving`]).
//!
//! A driver may have put its device to sleep (D3hot), as Linux's do when a machine is powered off. Then the registers
//! do not answer, and what it was told may be in force again as soon as the next owner wakes it. So it is woken first.
//! Of some devices that is a reset, after which they have no base addresses.
//!
//! A wire that is up when the last owner has gone is to be down when the next one comes. QEMU's NVMe controller counts
//! the queues whose completions nobody has acknowledged, and holds the wire up until it has counted down to none. No
//! reset sets that count back, not even a function-level one, and then the next owner's wire never goes down. So what
//! is not acknowledged is acknowledged first ([`Doorbell`]). A controller of hardware forgets all of it in its reset,
//! which comes next.

/// A change of one 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its offset in the base-address region.
    pub offset: u16,
    /// Bits that become 0.
    pub clear: u32,
    /// Bits that become 1.
    pub set: u32,
}

impl Step {
    const fn clear(offset: u16, clear: u32) -> Self {
        Self { offset, clear, set: 0 }
    }
    const fn set(offset: u16, set: u32) -> Self {
        Self { offset, clear: 0, set }
    }

    /// What to write over `held`.
    pub const fn written(self, held: u32) -> u32 {
        held & !self.clear | self.set
    }
}

const PAGE: usize = 4096;

/// How a device is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The base address register of the region that has the registers.
    pub bar: u8,
    /// What to write, in this order.
    pub steps: &'static [Step],
    /// The register and the bits of it that are 0 when the reset has ended.
    pub busy: (u16, u32),
    /// The device's class has this register, so it does no harm to those of the class that have a function-level reset,
    /// too. That takes a tenth of a second, and the hardware domain may be told to leave it out.
    pub is_of_class: bool,
    /// By which its owner acknowledges completions, as long as the device holds its wire up for them.
    pub doorbell: Option<Doorbell>,
}

impl Reset {
    /// Bytes of the region that its registers lie in.
    pub const fn window(&self) -> usize {
        let mut last = match self.doorbell {
            Some(doorbell) => doorbell.first as usize,
            None => 0,
        };
        let mut steps = self.steps;
        while let [step, rest @ ..] = steps {
            if step.offset as usize > last {
                last = step.offset as usize;
            }
            steps = rest;
        }
        (last / PAGE + 1) * PAGE
    }
}

/// A register by which a driver says up to where it has read a queue of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// The register that says how many entries the queue has, and where in it: the lowest bit of 12, which have one
    /// less.
    pub entries: (u16, u32),
    /// The register whose lowest four bits say how far doorbells are apart: 4 bytes, or that many times twice as far.
    pub stride: u16,
    /// The first doorbell. It is another queue's; this one is the next.
    pub first: u16,
}

impl Doorbell {
    /// Acknowledges all up to the `nth` entry: the register, if it lies in the window, and what to write. Whoever does
    /// not know up to where there are completions begins with 0 and goes on: the device counts it when it is right.
    pub fn rung(&self, nth: u32, read: impl Fn(u16) -> u32) -> Option<(u16, u32)> {
        let last = read(self.entries.0) >> self.entries.1 & 0xfff;
        let apart = 4u32 << (read(self.stride) & 0xf);
        let offset = u32::from(self.first).checked_add(apart)?;
        Some((u16::try_from(offset).ok()?, nth % (last + 1)))
    }
}

/// Reads of a device between two looks at what else there is to do: a quarter of a millisecond on a slow bus.
pub const READS_AT_ONCE: u32 = 256;
/// Reads of its status that a pending transaction may take to end.
const PENDING_READS: u32 = 10_000;
/// Reads of a register until a reset must have ended.
const BUSY_READS: u32 = 100_000;
/// A function that was woken is left alone for so long (PCI Power Management 1.2, 5.6.1).
pub const WAKING_NS: u64 = 10_000_000;
/// Entries that are acknowledged at most: all of a few queues as long as Linux makes them.
const ACKNOWLEDGED: u32 = 1_000;

/// A function that is no bus master any more, as long as its owner is losing it.
pub trait Device {
    /// Wakes it, if it sleeps. `true`: it slept.
    fn wake(&mut self) -> bool;
    /// Lets its registers answer, for a turn.
    fn open(&mut self);
    /// The turn is over: its registers answer as before, and it is no bus master, whatever it has made of its reset.
    fn close(&mut self);
    /// Now that it is awake: does it know where its registers are?
    fn knows_its_place(&mut self) -> bool;
    /// The time, in ns.
    fn now_ns(&mut self) -> u64;
    /// Is there an access to memory that it has not ended? Reads it once.
    fn is_pending(&mut self) -> bool;
    /// It does not end them.
    fn has_stuck(&mut self);
    /// If it holds its wire up and its [`Reset`] says how: acknowledges the `nth` entry. `false`: there is nothing to
    /// acknowledge.
    fn acknowledge(&mut self, nth: u32) -> bool;
    /// Does what its [`Reset`] says. `false`: it has none.
    fn begin(&mut self) -> bool;
    /// Is the reset under way? Reads it once. `None`: nobody answers.
    fn is_busy(&mut self) -> Option<bool>;
}

/// How a function was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It was reset.
    Reset,
    /// How it is reset is not known.
    AsItWas,
    /// It did not come back from its reset.
    Lost,
}

impl Left {
    /// Is it as new after this, and after its function-level reset if it `has_function_reset`? Else it may go on with
    /// what it was told.
    pub const fn is_as_new(self, has_function_reset: bool) -> bool {
        matches!(self, Self::Reset) || has_function_reset
    }
}

/// How far a function has come that is reset, most often on its way from an owner into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// It was woken, if it slept.
    was_called: bool,
    /// It is left alone until then.
    awake_at: Option<u64>,
    has_begun: bool,
    reads_left: u32,
    acknowledged: u32,
    left: Option<Left>,
}

impl Leaving {
    /// At the beginning.
    pub const NEW: Self = Self {
        was_called: false,
        awake_at: None,
        has_begun: false,
        reads_left: PENDING_READS,
        acknowledged: 0,
        left: None,
    };

    /// Goes on, for [`READS_AT_ONCE`] reads at most. `None`: there is more to do.
    pub fn go_on(&mut self, device: &mut impl Device) -> Option<Left> {
        if self.left.is_none() {
            self.left = self.go_on_leaving(device);
        }
        self.left
    }

    fn go_on_leaving(&mut self, device: &mut impl Device) -> Option<Left> {
        if !core::mem::replace(&mut self.was_called, true) && device.wake() {
            self.awake_at = Some(device.now_ns().saturating_add(WAKING_NS));
        }
        if let Some(at) = self.awake_at {
            if device.now_ns() < at {
                return None;
            }
            self.awake_at = None;
            if !device.knows_its_place() {
                device.close();
                return Some(Left::Reset);
            }
        }
        // Not before: of one that wakes up nobody reads or writes anything.
        device.open();
        let left = self.go_on_awake(device);
        device.close();
        left
    }

    fn go_on_awake(&mut self, device: &mut impl Device) -> Option<Left> {
        for _ in 0..READS_AT_ONCE {
            if self.has_begun {
                match device.is_busy() {
                    Some(true) if self.reads_left > 0 => self.reads_left -= 1,
                    Some(false) => return Some(Left::Reset),
                    _ => return Some(Left::Lost),
                }
                continue;
            }
            if self.acknowledged == 0 && device.is_pending() {
                self.reads_left -= 1;
                if self.reads_left > 0 {
                    continue;
                }
                device.has_stuck();
            }
            if self.acknowledged < ACKNOWLEDGED && device.acknowledge(self.acknowledged) {
                self.acknowledged += 1;
                continue;
            }
            (self.has_begun, self.reads_left) = (true, BUSY_READS);
            if !device.begin() {
                return Some(Left::AsItWas);
            }
        }
        None
    }
}

const INTEL: u16 = 0x8086;
const CLASS_ETHERNET: u32 = 0x02_0000;
const CLASS_AHCI: u32 = 0x01_0601;
const CLASS_NVME: u32 = 0x01_0802;

/// Intel's gigabit controllers (8254x, 8257x; software developer's manuals, section "Software Initialization"): all
/// interrupts off, receiver and transmitter off, then CTRL.RST. Intel's faster ones have a function-level reset.
///
/// Before CTRL.RST the rings (RDLEN, RDH and RDT, TDLEN, TDH and TDT, of two queues) get a length of 0. It does that
/// too, but not on QEMU; and Linux's e1000e has its interface receive a moment before it says where the ring is, so
/// where the link is up by then the old one was used.
pub(super) const GIGABIT: Reset = Reset {
    bar: 0,
    steps: &[
        Step::set(0xd8, !0),
        Step::clear(0x100, !0),
        Step::clear(0x400, !0),
        Step::clear(0x2808, !0),
        Step::clear(0x2810, !0),
        Step::clear(0x2818, !0),
        Step::clear(0x2908, !0),
        Step::clear(0x2910, !0),
        Step::clear(0x2918, !0),
        Step::clear(0x3808, !0),
        Step::clear(0x3810, !0),
        Step::clear(0x3818, !0),
        Step::clear(0x3908, !0),
        Step::clear(0x3910, !0),
        Step::clear(0x3918, !0),
        Step::set(0, 1 << 26),
    ],
    busy: (0, 1 << 26),
    is_of_class: false,
    doorbell: None,
};
/// Intel's 100 Mbit/s controllers (8255x open source software developer manual, "PORT"): a software reset, after which
/// command and receive unit are idle.
const FAST_ETHERNET: Reset =
    Reset { bar: 0, steps: &[Step::clear(8, !0)], busy: (0, 0xfc), is_of_class: false, doorbell: None };
/// GHC.IE off, then GHC.HR (AHCI 1.3.1, 10.4.3).
const AHCI: Reset = Reset {
    bar: 5,
    steps: &[Step::clear(4, 1 << 1), Step::set(4, 1)],
    busy: (4, 1),
    is_of_class: true,
    doorbell: None,
};
/// CC.EN off; CSTS.RDY follows (NVM Express 1.4, 7.3.2). Before that the administrative queue's doorbell for
/// completions (3.1: AQA.ACQS, CAP.DSTRD, CQ0HDBL).
const NVME: Reset = Reset {
    bar: 0,
    steps: &[Step::clear(0x14, 1)],
    busy: (0x1c, 1),
    is_of_class: true,
    doorbell: Some(Doorbell { entries: (0x24, 16), stride: 4, first: 0x1000 }),
};

/// How a function is reset: by its own registers, or by a function-level reset, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Vendor, device and class (24 bits).
    pub vendor: u16,
    /// See `vendor`.
    pub device: u16,
    /// See `vendor`.
    pub class: u32,
    /// It has a function-level reset.
    pub has_function_reset: bool,
}

/// How to reset a function of this kind by its own registers; `None` if that is not known.
pub fn method(kind: Kind) -> Option<&'static Reset> {
    let known = match (kind.vendor, kind.class) {
        (INTEL, CLASS_ETHERNET) if is_fast_ethernet(kind.device) => &FAST_ETHERNET,
        (INTEL, CLASS_ETHERNET) => &GIGABIT,
        (_, CLASS_AHCI) => &AHCI,
        (_, CLASS_NVME) => &NVME,
        _ => return None,
    };
    (known.is_of_class || !kind.has_function_reset).then_some(known)
}

/// The 8255x and those in Intel's chipsets. There will be no more of them.
const fn is_fast_ethernet(device: u16) -> bool {
    matches!(
        device,
        0x1029..=0x103e | 0x1050..=0x1059 | 0x1064..=0x106b | 0x1091..=0x1095 | 0x10fe | 0x1209 | 0x1229 | 0x2449 | 0x2459 | 0x245d
            | 0x27dc
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    fn after(reset: &Reset, mut registers: BTreeMap<u16, u32>) -> Vec<(u16, u32)> {
        let mut written = Vec::new();
        for step in reset.steps {
            let register = registers.entry(step.offset).or_insert(0);
            *register = step.written(*register);
            written.push((step.offset, *register));
        }
        written
    }

    #[test]
    fn kinds_are_told_by_class_and_network_interfaces_by_vendor_and_device_too() {
        let of = |vendor, device, class| method(Kind { vendor, device, class, has_function_reset: false });
        assert_eq!(of(0x8086, 0x100e, 0x02_0000), Some(&GIGABIT));
        assert_eq!(of(0x8086, 0x1209, 0x02_0000), Some(&FAST_ETHERNET));
        assert_eq!(of(0x8086, 0x105e, 0x02_0000), Some(&GIGABIT), "between two of 100 Mbit/s");
        assert_eq!(of(0x10ec, 0x8139, 0x02_0000), None);
        assert_eq!(of(0x1b36, 0x0010, 0x01_0802), Some(&NVME));
        assert_eq!(of(0x8086, 0x2922, 0x01_0601), Some(&AHCI));
        assert_eq!(of(0x8086, 0x7010, 0x01_0101), None, "IDE");
    }

    #[test]
    fn with_a_function_level_reset_only_what_the_whole_class_has_is_used() {
        let of = |vendor, device, class| method(Kind { vendor, device, class, has_function_reset: true });
        assert_eq!(of(0x1b36, 0x0010, 0x01_0802), Some(&NVME));
        assert_eq!(of(0x8086, 0x2922, 0x01_0601), Some(&AHCI));
        assert_eq!(of(0x8086, 0x10fb, 0x02_0000), None, "one of 10 Gbit/s has other registers");
    }

    /// A device that has transactions for `pending` reads, holds its wire up until `unseen` entries are acknowledged,
    /// and is busy for `busy`.
    struct Slow {
        pending: u32,
        unseen: u32,
        acknowledged: u32,
        busy: u32,
        reads: u32,
        has_begun: bool,
        has_stuck: bool,
        is_known: bool,
        is_asleep: bool,
        forgets_in_sleep: bool,
        now: u64,
        woken_at: Option<u64>,
        is_open: bool,
        is_silent: bool,
    }

    impl Slow {
        fn new(pending: u32, busy: u32) -> Self {
            Self {
                pending,
                unseen: 0,
                acknowledged: 0,
                busy,
                reads: 0,
                has_begun: false,
                has_stuck: false,
                is_known: true,
                is_asleep: false,
                forgets_in_sleep: false,
                now: 7,
                woken_at: None,
                is_open: false,
                is_silent: false,
            }
        }

        fn is_touched(&self) {
            assert!(!self.is_asleep, "nobody answers");
            assert!(self.woken_at.is_none_or(|at| self.now >= at + 10_000_000), "too early");
        }
    }

    impl Device for Slow {
        fn wake(&mut self) -> bool {
            let slept = core::mem::replace(&mut self.is_asleep, false);
            self.woken_at = slept.then_some(self.now);
            slept
        }
        fn open(&mut self) {
            self.is_touched();
            assert!(!core::mem::replace(&mut self.is_open, true), "twice");
        }
        fn close(&mut self) {
            self.is_touched();
            (self.is_open, self.is_silent) = (false, true);
        }
        fn knows_its_place(&mut self) -> bool {
            self.is_touched();
            !self.forgets_in_sleep
        }
        fn now_ns(&mut self) -> u64 {
            self.now
        }
        fn is_pending(&mut self) -> bool {
            assert!(self.is_open);
            self.reads += 1;
            self.pending = self.pending.saturating_sub(1);
            self.pending > 0
        }
        fn has_stuck(&mut self) {
            self.has_stuck = true;
        }
        fn acknowledge(&mut self, nth: u32) -> bool {
            self.is_touched();
            assert!(!self.has_begun && (self.pending == 0 || self.has_stuck), "not in order");
            assert_eq!(nth, self.acknowledged);
            self.reads += 1;
            let is_up = self.unseen > nth;
            self.acknowledged += u32::from(is_up);
            is_up
        }
        fn begin(&mut self) -> bool {
            self.is_touched();
            assert!(self.is_open);
            assert!(!self.has_begun, "twice");
            self.has_begun = true;
            self.is_known
        }
        fn is_busy(&mut self) -> Option<bool> {
            assert!(self.is_known, "what of it says so?");
            self.reads += 1;
            self.busy = self.busy.saturating_sub(1);
            Some(self.busy > 0)
        }
    }

    /// How it ends; each turn is short.
    fn until_left(device: &mut Slow) -> Left {
        let mut leaving = Leaving::NEW;
        loop {
            device.reads = 0;
            device.now += 1_000_000;
            let left = leaving.go_on(device);
            assert!(!device.is_open, "after the turn");
            // The turn in which the last transaction has ended looks at the wire, too.
            assert!(device.reads <= READS_AT_ONCE + 2, "{} reads in one turn", device.reads);
            if let Some(left) = left {
                assert_eq!(leaving.go_on(device), Some(left), "it has left");
                assert!(device.is_silent, "at the end");
                return left;
            }
        }
    }

    #[test]
    fn who_sleeps_is_woken_and_left_alone_before_it_is_reset() {
        let mut asleep = Slow { is_asleep: true, ..Slow::new(100, 3) };
        assert_eq!(until_left(&mut asleep), Left::Reset);
        assert!(asleep.has_begun && asleep.now >= 10_000_000);
        let mut forgetful = Slow { is_asleep: true, forgets_in_sleep: true, ..Slow::new(100, 3) };
        assert_eq!(until_left(&mut forgetful), Left::Reset, "by its waking");
        assert!(!forgetful.has_begun);
        let mut awake = Slow { forgets_in_sleep: true, ..Slow::new(1, 1) };
        assert_eq!(until_left(&mut awake), Left::Reset);
        assert!(awake.has_begun && awake.now < 10_000_000);
    }

    #[test]
    fn a_slow_device_is_asked_a_few_times_at_once() {
        let mut slow = Slow::new(1_000, 50_000);
        assert_eq!(until_left(&mut slow), Left::Reset);
        assert!(slow.has_begun && !slow.has_stuck && slow.pending == 0 && slow.busy == 0);
    }

    #[test]
    fn a_device_that_never_ends_is_given_up() {
        let mut stuck = Slow::new(u32::MAX, 0);
        assert_eq!(until_left(&mut stuck), Left::Reset);
        assert!(stuck.has_stuck && stuck.has_begun);
        assert_eq!(until_left(&mut Slow::new(0, u32::MAX)), Left::Lost);
    }

    #[test]
    fn a_device_of_which_no_reset_is_known_is_left_as_it_was() {
        let mut unknown = Slow { is_known: false, ..Slow::new(100, u32::MAX) };
        assert_eq!(until_left(&mut unknown), Left::AsItWas);
        assert_eq!(unknown.pending, 0, "what it had sent arrives all the same");
    }

    #[test]
    fn who_is_rolled_back_keeps_only_functions_that_are_as_new() {
        assert!(Left::Reset.is_as_new(false) && Left::Reset.is_as_new(true));
        assert!(Left::AsItWas.is_as_new(true), "its function-level reset follows");
        assert!(Left::Lost.is_as_new(true), "and resets also one that its own register does not");
        assert!(!Left::Lost.is_as_new(false), "it may go on with its old rings");
        assert!(!Left::AsItWas.is_as_new(false));
    }

    #[test]
    fn what_nobody_has_seen_is_acknowledged_before_the_reset_and_not_for_ever() {
        for unseen in [0, 1, 700, u32::MAX] {
            let mut device = Slow { unseen, ..Slow::new(100, 3) };
            assert_eq!(until_left(&mut device), Left::Reset);
            assert!(device.has_begun && !device.has_stuck);
            assert_eq!(device.acknowledged, unseen.min(ACKNOWLEDGED));
        }
    }

    #[test]
    fn a_doorbell_lies_where_the_controller_says_and_goes_round() {
        let doorbell = NVME.doorbell.unwrap();
        let rung = |nth, acqs: u32, stride: u32| {
            doorbell.rung(nth, |offset| match offset {
                0x24 => acqs << 16 | 0x1f,
                4 => 0x30 | stride,
                _ => panic!("{offset:#x} was read"),
            })
        };
        assert_eq!(rung(0, 31, 0), Some((0x1004, 0)));
        assert_eq!(rung(31, 31, 0), Some((0x1004, 31)));
        assert_eq!(rung(32, 31, 0), Some((0x1004, 0)));
        assert_eq!(rung(70, 0, 0), Some((0x1004, 0)), "of one entry");
        assert_eq!(rung(4095, 0xfff, 2), Some((0x1010, 4095)), "one for each 16 bytes");
        assert_eq!(rung(1, 31, 15), None, "far away");
    }

    #[test]
    fn a_network_interface_is_silent_before_it_is_reset() {
        let running =
            BTreeMap::from([(0x100, 0x0400_8002), (0x400, 0x0103_f0fa), (0, 0x0018_0241), (0x2808, 4096), (0x3918, 7)]);
        let written = after(&GIGABIT, running);
        assert_eq!(written[..3], [(0xd8, !0), (0x100, 0), (0x400, 0)]);
        assert_eq!(written.last(), Some(&(0, 0x0418_0241)));
        assert!(written[3..15].iter().all(|&(offset, value)| offset >= 0x2800 && value == 0), "{written:x?}");
    }

    #[test]
    fn other_bits_of_a_disk_controller_stay() {
        assert_eq!(after(&NVME, BTreeMap::from([(0x14, 0x0046_0001)])), [(0x14, 0x0046_0000)]);
        assert_eq!(after(&AHCI, BTreeMap::from([(4, 0x8000_0002)])), [(4, 0x8000_0000), (4, 0x8000_0001)]);
    }

    #[test]
    fn all_registers_lie_in_the_window() {
        for reset in [GIGABIT, FAST_ETHERNET, AHCI, NVME] {
            let mut offsets = reset.steps.iter().map(|s| s.offset).chain([reset.busy.0]);
            assert!(offsets.all(|o| o % 4 == 0 && usize::from(o) + 4 <= reset.window()));
        }
        assert_eq!([GIGABIT, FAST_ETHERNET, AHCI, NVME].map(|reset| reset.window()), [16384, 4096, 4096, 8192]);
    }
}
