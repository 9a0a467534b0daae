//! The machine at the other end of the wire: a host at 10.9.0.1 that answers ARP and ping and that takes part in
//! images/src/nettest.c, checking every frame. TCP is in `tcp`. In every VLAN there is another such host, but for TCP.
//!
//! It speaks Ethernet frames over a local socket with QEMU, which loses nothing; so a frame that is missing was lost
//! by the guest, its driver, or the hypervisor.

mod again;
mod frame;
mod ident;
mod ipv6;
mod load;
mod nbd;
mod tcp;
mod wire;

use crate::machine::Monitor;
use crate::pattern;
use anyhow::{Context, Result};
use frame::{Arp, Udp};
use nbd::Export;
use std::collections::HashMap;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, OnceLock};
pub use tcp::StreamCounts;
use tcp::Tcp;
pub use wire::Wire;

const PUSH: u32 = 1;
const ACK: u32 = 2;
const SYNC: u32 = 3;
const PULL: u32 = 4;
const DATA: u32 = 5;
/// Type of a frame with a VLAN tag.
const VLAN: [u8; 2] = [0x81, 0];
const PORT: u16 = 7000;
const MAGIC: u32 = 0x4d44_4e54;
const HEAD: usize = 24;
/// No frame of QEMU's is longer: the longest that its models of cards put together, and some more.
const MOST_BYTES: usize = 4096 + (1 << 16);
/// Acknowledge after that many datagrams.
const ACK_EVERY: u64 = 16;

/// What went over the wire, as the peer saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams from the guest with the right number and checksum.
    pub received: u64,
    /// Bytes in those.
    pub received_bytes: u64,
    /// Frames with a wrong checksum, IP's, UDP's or ours, and frames of a type that nobody here sends.
    pub damaged: u64,
    /// Datagrams that never came or came out of order.
    pub missing: u64,
    /// The first time that happened: the number that was due, and the one that came.
    pub first_gap: Option<(u64, u64)>,
    /// Datagrams sent to the guest.
    pub sent: u64,
    /// Bytes in those.
    pub sent_bytes: u64,
    /// Echo requests that were answered.
    pub pings: u64,
    /// What went over TCP.
    pub streams: StreamCounts,
}

/// The peer, serving in a thread of its own.
pub struct Peer {
    socket: PathBuf,
    counts: Arc<Mutex<Counts>>,
    monitor: Arc<OnceLock<Monitor>>,
}

impl Peer {
    /// Starts it for the machine `name`.
    pub fn start(name: &str) -> Result<Self> {
        Self::begin(name, None)
    }

    /// The same, with a disk that is this file, for whoever asks for it by NBD.
    pub fn with_disk(name: &str, file: &Path) -> Result<Self> {
        Self::begin(name, Some(Export::open(file)?))
    }

    fn begin(name: &str, export: Option<Export>) -> Result<Self> {
        let socket = std::env::temp_dir().join(format!("tandem-{}-{name}.net", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let counts = Arc::new(Mutex::new(Counts::default()));
        let monitor = Arc::<OnceLock<Monitor>>::default();
        let (shared, its_monitor) = (Arc::clone(&counts), Arc::clone(&monitor));
        std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                // An error here is the guest's machine going away.
                let _ = serve(stream, export, &shared, &its_monitor);
            }
        });
        Ok(Self { socket, counts, monitor })
    }

    /// Where QEMU's network back end connects.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A frame without a byte, as only a faulty driver sends it, does not end the wire: QEMU's end of the socket takes
    /// that nothing was written of it for a socket that is full, and waits for ever. It forgets the frame when the
    /// machine is stopped for a moment, by `monitor`.
    pub fn outlives_empty_frames(&self, monitor: Monitor) {
        let _ = self.monitor.set(monitor);
    }

    /// What went over the wire so far.
    pub fn counts(&self) -> Counts {
        self.counts.lock().map(|c| *c).unwrap_or_default()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Answers frames until QEMU closes the socket. On the wire each has its length before it.
fn serve(
    stream: UnixStream,
    export: Option<Export>,
    shared: &Mutex<Counts>,
    monitor: &OnceLock<Monitor>,
) -> Result<()> {
    let frames = read_frames(stream.try_clone()?);
    let mut output = BufWriter::with_capacity(1 << 16, stream);
    let mut host = Host::default();
    let mut tcp = Tcp::new(export);
    loop {
        let frame = match frames.try_recv() {
            Ok(frame) => Some(frame),
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {
                output.flush()?;
                match frames.recv_timeout(tcp.patience()) {
                    Ok(frame) => Some(frame),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        };
        if let Some(monitor) = monitor.get().filter(|_| frame.as_ref().is_some_and(Vec::is_empty)) {
            monitor.send("stop")?;
            monitor.send("cont")?;
        }
        let mut answers = frame.as_ref().map_or_else(Vec::new, |f| host.take(f));
        if frame.as_ref().is_none_or(|f| frame::is_for_tcp(f)) {
            answers.extend(tcp.step(frame));
        }
        for answer in answers {
            output.write_all(&u32::try_from(answer.len())?.to_be_bytes())?;
            output.write_all(&answer)?;
        }
        if let Ok(mut counts) = shared.lock() {
            *counts = Counts { streams: tcp.counts, ..host.counts };
        }
    }
}

/// Reads frames in a thread of its own, so that TCP's timers run while none comes.
fn read_frames(stream: UnixStream) -> Receiver<Vec<u8>> {
    // A full channel holds QEMU back, as the socket alone would.
    let (sender, receiver) = sync_channel(256);
    std::thread::spawn(move || {
        let mut input = BufReader::with_capacity(1 << 16, stream);
        let mut len = [0; 4];
        while input.read_exact(&mut len).is_ok() {
            let len = u32::from_be_bytes(len) as usize;
            if len > MOST_BYTES {
                return;
            }
            let mut frame = vec![0; len];
            if input.read_exact(&mut frame).is_err() || sender.send(frame).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The protocol without the sockets: frames in, frames out.
#[derive(Default)]
struct Host {
    counts: Counts,
    /// By the sender's address and port.
    flows: HashMap<([u8; 4], u16), Flow>,
}

/// Where a sender is with its datagrams.
#[derive(Default)]
struct Flow {
    next: u64,
    unacknowledged: u64,
}

impl Host {
    fn take(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        if bytes.get(12..14) == Some(&VLAN) && bytes.len() >= 18 {
            // The answer gets the tag of the request.
            let inner = [&bytes[..12], &bytes[16..]].concat();
            let tagged = |answer: Vec<u8>| [&answer[..12], &bytes[12..16], &answer[12..]].concat();
            return self.take(&inner).into_iter().map(tagged).collect();
        }
        if let Some((answer, is_echo)) = ipv6::answer(bytes) {
            self.counts.pings += u64::from(is_echo);
            return vec![answer];
        }
        if let Some(arp) = Arp::request_for_us(bytes) {
            return vec![arp.answer()];
        }
        if let Some(answer) = frame::answer_ping(bytes) {
            self.counts.pings += 1;
            return vec![answer];
        }
        match Udp::parse(bytes) {
            Ok(Some(udp)) if udp.to_port == PORT => self.datagram(&udp),
            Ok(_) if frame::is_known(bytes) => Vec::new(),
            Ok(_) | Err(frame::Damaged) => {
                self.counts.damaged += 1;
                Vec::new()
            }
        }
    }

    fn datagram(&mut self, udp: &Udp) -> Vec<Vec<u8>> {
        let (head, body) = udp.body.split_at_checked(HEAD).unwrap_or_default();
        let (magic, kind, seq, sum) = (u32_at(head, 0), u32_at(head, 4), u64_at(head, 8), u64_at(head, 16));
        if magic != MAGIC || pattern::checksum(body) != sum {
            self.counts.damaged += 1;
            return Vec::new();
        }
        match kind {
            PUSH => self.push(udp, seq, body),
            SYNC => {
                if seq == 0 {
                    // A greeting. Who had this port before it may have been another.
                    self.flows.insert(udp.sender(), Flow::default());
                }
                vec![self.acknowledge(udp)]
            }
            PULL => self.pull(udp, seq, if body.len() >= 8 { u64_at(body, 0) } else { 0 }),
            _ => Vec::new(),
        }
    }

    fn push(&mut self, udp: &Udp, seq: u64, body: &[u8]) -> Vec<Vec<u8>> {
        let mut wanted = vec![0; pattern::datagram_len(seq)];
        pattern::fill(&mut wanted, seq);
        let flow = self.flows.entry(udp.sender()).or_default();
        if body != wanted {
            self.counts.damaged += 1;
        } else if seq != flow.next {
            self.counts.missing += seq.abs_diff(flow.next);
            self.counts.first_gap.get_or_insert((flow.next, seq));
            flow.next = seq + 1;
        } else {
            self.counts.received += 1;
            self.counts.received_bytes += body.len() as u64;
            flow.next = seq + 1;
        }
        flow.unacknowledged += 1;
        if flow.unacknowledged >= ACK_EVERY {
            vec![self.acknowledge(udp)]
        } else {
            Vec::new()
        }
    }

    fn acknowledge(&mut self, udp: &Udp) -> Vec<u8> {
        let flow = self.flows.entry(udp.sender()).or_default();
        flow.unacknowledged = 0;
        let next = flow.next;
        let mut body = Vec::new();
        let (due, came) = self.counts.first_gap.unwrap_or_default();
        for value in [self.counts.received, self.counts.damaged, self.counts.missing, due, came] {
            body.extend(value.to_le_bytes());
        }
        udp.answer(&with_head(ACK, next, &body))
    }

    fn pull(&mut self, udp: &Udp, first: u64, count: u64) -> Vec<Vec<u8>> {
        (first..first.saturating_add(count.min(4096)))
            .map(|seq| {
                let mut body = vec![0; pattern::datagram_len(seq)];
                pattern::fill(&mut body, seq);
                self.counts.sent += 1;
                self.counts.sent_bytes += body.len() as u64;
                udp.answer(&with_head(DATA, seq, &body))
            })
            .collect()
    }
}

fn with_head(kind: u32, seq: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + body.len());
    out.extend(MAGIC.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(seq.to_le_bytes());
    out.extend(pattern::checksum(body).to_le_bytes());
    out.extend(body);
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
