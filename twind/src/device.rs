//! `/dev/tandem`, the file of the kernel module: an open file is a twin, a request is one write, its state is read.
//! The structures are those of `linux/include/tandem.h`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use twin_abi::op::TwinStats;
use twin_verify::Rule;

/// Its name.
pub const PATH: &str = "/dev/tandem";

const LOAD: u32 = 0;
const UNLOAD: u32 = 1;
const ATTACH: u32 = 2;
const DETACH: u32 = 3;
const CALL: u32 = 4;
const LOOK: u32 = 5;
const DAMAGE: u32 = 6;

const O_NONBLOCK: i32 = 0o4000;

/// Interrupts in an attachment.
const MAX_IRQS: usize = 16;
/// Bytes of a status.
const STATUS_BYTES: usize = CALLED + 16 * FUNCTIONS;
/// Where the statistics begin, and the list of functions.
const STATS: usize = 64;
const CALLED: usize = STATS + 120;
const FUNCTIONS: usize = 32;

/// An interrupt of a card: its number, its handler, and that one's argument.
pub type Irq = (u32, u64, u64);

/// What is loaded.
pub struct Load<'a> {
    /// Name of the interface.
    pub interface: &'a str,
    /// Address of `init_top_pgt`.
    pub root: u64,
    /// How the image translates addresses (`twin_abi::op::MODE_*`).
    pub mode: u32,
    /// Places of structure members and sizes.
    pub offsets: &'a [u32],
    /// The image.
    pub image: &'a [u8],
    /// Table of vCPUs that sleep until a spinlock is released: address, elements, bytes of one.
    pub sleepers: (u64, u32, u32),
    /// Buffers to lend: `sk_buff`s with buffers, without, page fragments.
    pub buffers: [u32; 3],
}

/// Where the module is with its twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// None is loaded.
    Empty,
    /// One is loaded.
    Loaded,
    /// It has the card.
    Attached,
}

/// What a read gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Where it is.
    pub state: State,
    /// What keeps a twin that is loaded from the card just now, as the module numbers errors; 0: nothing that is seen
    /// without trying.
    pub obstacle: i32,
    /// The twin, as the hypervisor tells: `flags` apart.
    pub stats: TwinStats,
    /// It is disabled.
    pub is_disabled: bool,
    /// Per-CPU areas that are needed, if a load found too few.
    pub areas: u32,
    /// The rule that a refused image breaks, and where.
    pub refused: Option<(u32, u32)>,
    /// Buffers that are lent.
    pub lent: u32,
    /// Another number than before if something has happened, but for what was asked for.
    pub news: u32,
    /// How the last call ended.
    pub call: Call,
    /// Kernel functions that it had called, and how often; 0 stands for all that are not listed.
    pub called: Vec<(u64, u64)>,
}

impl Status {
    /// The interface is down.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.obstacle == ENETDOWN
    }

    /// Its card has no link.
    #[must_use]
    pub fn has_no_link(&self) -> bool {
        self.obstacle == ENOLINK
    }

    /// What keeps a twin from the card of this interface, in words. `None`: nothing that is seen without trying.
    #[must_use]
    pub fn obstacle(&self, interface: &str) -> Option<String> {
        match self.obstacle {
            0 => None,
            ENETDOWN => Some(format!("{interface} is down")),
            ENOLINK => Some(format!("{interface} has no link")),
            errno => Some(not_attached(&io::Error::from_raw_os_error(errno), 0).why),
        }
    }
}

/// Why the card is not attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// In words.
    pub why: String,
    /// It may pass without the module hearing of it. Else it tells of what may make it pass, but for a few things that
    /// seldom change.
    pub passes: bool,
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(why: T) -> Self {
        Self { why: why.into(), passes: false }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The reason (`twin_abi::op::reason`).
    pub reason: u32,
    /// What it returned.
    pub result: u64,
    /// What the reason speaks of.
    pub detail: u64,
    /// The driver's instruction.
    pub original: u64,
}

/// The open file.
pub struct Device(File);

impl Device {
    /// Opens it. Errors: in words.
    pub fn open() -> Result<Self, String> {
        File::options().read(true).write(true).custom_flags(O_NONBLOCK).open(PATH).map(Self).map_err(|e| {
            match e.kind() {
                io::ErrorKind::NotFound => format!("{PATH} is not there: load the kernel module tandem"),
                _ if e.raw_os_error() == Some(ENOSYS) => "this hypervisor is not Tandem".into(),
                _ => format!("{PATH}: {e}"),
            }
        })
    }

    /// Loads a twin and lends it buffers.
    pub fn load(&mut self, load: &Load<'_>) -> Result<(), String> {
        let request = load_request(load).ok_or("the image is too large, or the interface's name too long")?;
        let Err(error) = self.write(&request) else { return Ok(()) };
        let status = self.status()?;
        Err(match (error.raw_os_error(), status.refused) {
            (_, Some((rule, at))) => format!("the hypervisor refuses the image: {}", broken(rule, at)),
            (Some(EDOM), _) => format!(
                "there are too few CPUs that the domain may have but has not: the machine has {}; give the domain so many more by maxvcpus",
                status.areas
            ),
            (Some(ENODEV), _) => format!("there is no interface {}", load.interface),
            (Some(EOPNOTSUPP), _) => format!("{} is not the interface of a PCI device", load.interface),
            (Some(EACCES), _) => {
                "the machine's hypervisor was booted without twin-stlb, so it has no twins of mode twin-stlb: their checks of addresses \
                 hold only for what is executed, not for what the processor guesses"
                    .into()
            }
            (Some(EEXIST), _) => "a twin is loaded already".into(),
            (Some(EPERM), _) => "this domain drives no device".into(),
            (Some(ENOSPC), _) => "this domain, or the hypervisor, has as many twins as it can have".into(),
            (Some(ENOMEM), _) => "there is not enough memory, here or in the hypervisor, for the twin and its buffers".into(),
            _ => format!("loading the twin: {error}"),
        })
    }

    /// Gives the twin the card, whose interrupts these are, of the interface of this number.
    pub fn attach(&mut self, vif: u32, interface: u32, irqs: &[Irq]) -> Result<(), Refusal> {
        let request = attach_request(vif, interface, irqs).ok_or("the card has too many interrupts")?;
        self.write(&request).map_err(|error| not_attached(&error, vif))
    }

    /// The twin goes, if it is not gone already, as with its interface.
    pub fn unload(&mut self) -> Result<(), String> {
        self.write(&UNLOAD.to_le_bytes()).or_else(|error| match error.raw_os_error() {
            Some(ENOENT) => Ok(()),
            _ => Err(format!("unloading the twin: {error}")),
        })
    }

    /// For tests: damages what the twin works on, until it is aborted.
    pub fn damage(&mut self) -> Result<(), String> {
        self.write(&DAMAGE.to_le_bytes()).map_err(|error| match error.raw_os_error() {
            Some(EPERM) => "the kernel module was not loaded with damage=1".into(),
            Some(ENOENT) => "no twin has the card".into(),
            Some(ETIMEDOUT) => "the twin did not notice".into(),
            _ => format!("damaging: {error}"),
        })
    }

    /// Takes the card away.
    pub fn detach(&mut self) -> Result<(), String> {
        self.write(&DETACH.to_le_bytes()).map_err(|error| format!("detaching the card: {error}"))
    }

    /// Calls a function of the twin while interrupt `irq` is off.
    pub fn call(&mut self, function: u64, irq: u32, args: [u64; 6]) -> Result<(), String> {
        let mut request = [CALL.to_le_bytes(), irq.to_le_bytes()].concat();
        request.extend([function].iter().chain(&args).flat_map(|word| word.to_le_bytes()));
        self.write(&request).map_err(|error| format!("calling {function:#x}: {error}"))
    }

    /// What there is to know now.
    pub fn status(&mut self) -> Result<Status, String> {
        self.write(&LOOK.to_le_bytes()).map_err(|error| format!("{PATH}: {error}"))?;
        let mut bytes = [0; STATUS_BYTES];
        match self.0.read(&mut bytes) {
            Ok(len) if len == bytes.len() => parse_status(&bytes).ok_or(format!("{PATH} speaks of something unknown")),
            Ok(len) => Err(format!("{PATH} gives {len} bytes")),
            Err(error) => Err(format!("{PATH}: {error}")),
        }
    }

    /// A request is one write.
    fn write(&mut self, request: &[u8]) -> io::Result<()> {
        self.0.write(request).map(|_| ())
    }
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENODEV: i32 = 19;
const ENOSPC: i32 = 28;
const EDOM: i32 = 33;
const ENOMEM: i32 = 12;
const ENOSYS: i32 = 38;
/// One whose card has no link.
pub const ENOLINK: i32 = 67;
const EUSERS: i32 = 87;
const EMSGSIZE: i32 = 90;
const EOPNOTSUPP: i32 = 95;
const EADDRINUSE: i32 = 98;
/// An interface that is down.
pub const ENETDOWN: i32 = 100;
const ETIMEDOUT: i32 = 110;

impl AsFd for Device {
    /// It can be read when there may be something new.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn load_request(load: &Load<'_>) -> Option<Vec<u8>> {
    let mut name = [0; 16];
    name.get_mut(..load.interface.len())?.copy_from_slice(load.interface.as_bytes());
    let counts = [u32::try_from(load.offsets.len()).ok()?, u32::try_from(load.image.len()).ok()?];
    let mut request = [LOAD.to_le_bytes(), [0; 4]].concat();
    request.extend(name);
    request.extend([load.root, 0].iter().flat_map(|word| word.to_le_bytes()));
    request.extend(counts.iter().chain(&load.buffers).chain(&[load.mode]).flat_map(|word| word.to_le_bytes()));
    let (table, count, bytes) = load.sleepers;
    request.extend(table.to_le_bytes());
    request.extend([count, bytes].iter().chain(load.offsets).flat_map(|word| word.to_le_bytes()));
    request.extend(load.image);
    Some(request)
}

fn attach_request(vif: u32, interface: u32, irqs: &[Irq]) -> Option<Vec<u8>> {
    let mut request: Vec<u8> =
        [ATTACH, vif, u32::try_from(irqs.len()).ok()?, interface].iter().flat_map(|word| word.to_le_bytes()).collect();
    for (number, handler, argument) in irqs {
        request.extend([*handler, *argument, u64::from(*number)].iter().flat_map(|word| word.to_le_bytes()));
    }
    let len = 16 + 24 * MAX_IRQS;
    (request.len() <= len).then(|| {
        request.resize(len, 0);
        request
    })
}

/// Why the module does not attach the card, with the switch at this interface of the domain's own.
fn not_attached(error: &io::Error, vif: u32) -> Refusal {
    let passes = matches!(error.raw_os_error(), Some(ENETDOWN | ENOLINK | EAGAIN | ENODEV | EBUSY | ENOMEM));
    let why = match error.raw_os_error() {
        Some(ENETDOWN) => "the interface is down".into(),
        Some(ENOLINK) => "the interface has no link".into(),
        Some(ENXIO) => "the interface has the name that another one had when the twin was loaded; `twinctl load` loads its".into(),
        Some(EAGAIN) => "its driver was given other interrupts just now".into(),
        Some(ENODEV) => format!("interface {vif} of this domain's is not the way out of the hypervisor's switch"),
        Some(ENOSYS) => "this hypervisor has no cards for twins".into(),
        Some(EMSGSIZE) => {
            "the interface's MTU is more than the twin's buffers have room for, and its card does not take packets in pieces (NETIF_F_SG)".into()
        }
        Some(EADDRINUSE) => "a console sends by the interface (netconsole), and has its driver poll while the twin does".into(),
        Some(EOPNOTSUPP) => "a program of this domain's is to see what the interface receives (XDP), and would not see a twin's packets".into(),
        Some(EUSERS) => "something else of this domain's has the interface: a bond, a macvlan or Open vSwitch".into(),
        Some(EXDEV) => "the interface is part of a bridge that filters VLANs, and would not come back into those in which it is".into(),
        Some(EBUSY) => {
            "the switch has another card, or something else of this domain's uses the twin or the bridge".into()
        }
        _ => format!("attaching the card: {error}"),
    };
    Refusal { why, passes }
}

/// Which rule an image breaks, and where.
fn broken(number: u32, at: u32) -> String {
    match Rule::of_number(number) {
        // Of a rule about the file the place is a record.
        Some(rule) if rule < Rule::D1 => format!("rule {rule:?} (docs/sandbox.md) at record {at}"),
        Some(rule) => format!("rule {rule:?} (docs/sandbox.md) at {at:#x}"),
        None => format!("rule {number}, counted from 0, which this twind does not know, at {at:#x}"),
    }
}

fn parse_status(bytes: &[u8; STATUS_BYTES]) -> Option<Status> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let state = *[State::Empty, State::Loaded, State::Attached].get(word(0)? as usize)?;
    let rule = word(16)?;
    let mut called = Vec::new();
    for n in 0..FUNCTIONS {
        let (function, count) = (long(CALLED + 16 * n)?, long(CALLED + 8 + 16 * n)?);
        if count != 0 {
            called.push((function, count));
        }
    }
    let (narrow, wide) = (|n: usize| word(STATS + 4 * n), |n: usize| long(STATS + 32 + 8 * n));
    let stats = TwinStats {
        twin: narrow(0)?,
        flags: narrow(1)?,
        domain: narrow(2)?,
        functions: narrow(3)?,
        disabled: narrow(4)?,
        has_card: narrow(5)?,
        reason: narrow(6)?,
        offset: narrow(7)?,
        detail: wide(0)?,
        original: wide(1)?,
        calls: wide(2)?,
        handlers: wide(3)?,
        polls: wide(4)?,
        packets: wide(5)?,
        upcalls: wide(6)?,
        lock_waits: wide(7)?,
        turns: wide(8)?,
        ticks: wide(9)?,
        aborts: wide(10)?,
    };
    Some(Status {
        state,
        obstacle: i32::try_from(word(4)?).ok()?,
        is_disabled: stats.disabled != 0,
        areas: word(8)?,
        lent: word(12)?,
        news: word(60)?,
        refused: (rule != u32::MAX).then_some((rule, word(20)?)),
        call: Call { reason: word(24)?, result: long(32)?, detail: long(40)?, original: long(48)? },
        stats,
        called,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_load_is_laid_out_as_the_module_wants_it() {
        let (sleepers, buffers) = ((0x3344, 256, 16), [1, 2, 3]);
        let load =
            Load { interface: "eth0", root: 0x1122, mode: 2, offsets: &[7, 8], image: b"image", sleepers, buffers };
        let request = load_request(&load).expect("fits");
        assert_eq!(request.len(), 80 + 8 + 5);
        assert_eq!((&request[8..13], request[24], request[25]), (&b"eth0\0"[..], 0x22, 0x11));
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        assert_eq!([40, 44, 48, 52, 56, 60].map(word), [2, 5, 1, 2, 3, 2]);
        assert_eq!([64, 68, 72, 76, 80, 84].map(word), [0x3344, 0, 256, 16, 7, 8]);
        assert_eq!(&request[88..], b"image");
        assert!(load_request(&Load { interface: "a-name-that-is-too-long", ..load }).is_none());
    }

    #[test]
    fn a_request_to_attach_has_room_for_sixteen_interrupts() {
        let request = attach_request(2, 7, &[(30, 0x1000, 0x2000)]).expect("fits");
        assert_eq!((request.len(), &request[..13]), (400, &[2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7][..]));
        assert_eq!((request[17], request[25], request[32]), (0x10, 0x20, 30));
        assert!(attach_request(0, 0, &[(0, 0, 0); 17]).is_none());
    }

    #[test]
    fn why_a_card_is_not_attached_is_said_in_words() {
        let refused = |errno| not_attached(&io::Error::from_raw_os_error(errno), 3);
        let said = |errno| refused(errno).why;
        assert_eq!([ENETDOWN, ENOLINK].map(said), ["the interface is down", "the interface has no link"]);
        assert!(said(ENXIO).contains("the name that another one had"));
        assert!(said(EAGAIN).contains("other interrupts"));
        assert!(said(ENODEV).contains("interface 3 of this domain's"));
        assert!(said(EOPNOTSUPP).contains("XDP"));
        assert!(said(EPERM).starts_with("attaching the card: "));
        let all = [ENODEV, EBUSY, EMSGSIZE, EUSERS, EOPNOTSUPP];
        assert_eq!(all.map(|errno| refused(errno).passes), [true, true, false, false, false]);
    }

    #[test]
    fn a_broken_rule_is_named_as_the_page_names_it() {
        assert_eq!(broken(Rule::S3 as u32, 0x1b3), "rule S3 (docs/sandbox.md) at 0x1b3");
        assert_eq!(broken(Rule::F6 as u32, 12), "rule F6 (docs/sandbox.md) at record 12");
        assert_eq!(broken(99, 16), "rule 99, counted from 0, which this twind does not know, at 0x10");
    }

    #[test]
    fn a_status_is_read() {
        let mut bytes = [0; STATUS_BYTES];
        (bytes[0], bytes[4], bytes[12], bytes[24], bytes[32]) = (1, 1, 9, 3, 5);
        bytes[16..20].copy_from_slice(&[0xff; 4]);
        bytes[60] = 6;
        (bytes[STATS], bytes[STATS + 12], bytes[STATS + 16], bytes[STATS + 112]) = (7, 158, 1, 2);
        (bytes[CALLED], bytes[CALLED + 8]) = (0x42, 3);
        let status = parse_status(&bytes).expect("known");
        assert_eq!((status.state, status.lent, status.refused, status.news), (State::Loaded, 9, None, 6));
        let TwinStats { twin, functions, disabled, aborts, .. } = status.stats;
        assert_eq!((twin, functions, disabled, aborts), (7, 158, 1, 2));
        assert_eq!((status.call.reason, status.call.result, status.called), (3, 5, vec![(0x42, 3)]));
        let obstacle = |status: Option<Status>| status.and_then(|status| status.obstacle("eth0"));
        for (errno, words) in [(0, None), (ENETDOWN, Some("eth0 is down")), (ENOLINK, Some("eth0 has no link"))] {
            bytes[4] = u8::try_from(errno).unwrap();
            assert_eq!(obstacle(parse_status(&bytes)).as_deref(), words);
        }
        bytes[4] = u8::try_from(EXDEV).unwrap();
        assert!(obstacle(parse_status(&bytes)).unwrap().contains("filters VLANs"));
        (bytes[0], bytes[4]) = (3, 0);
        assert_eq!(parse_status(&bytes), None);
    }
}
