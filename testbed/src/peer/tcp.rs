//! The peer's TCP, by smoltcp: the stream of images/src/tcptest.c at port 7001, a page at port 80, and a disk if there
//! is one.

mod disk;

use super::again::Again;
use super::frame;
use super::ident::Idents;
use super::nbd::Export;
use crate::pattern;
use disk::Disk;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};
use std::collections::VecDeque;
use std::time::Duration;

const STREAM_PORT: u16 = 7001;
const PAGE_PORT: u16 = 80;
/// Connections that each port serves at the same time: two of each of eight guests'.
const CONNECTIONS: usize = 16;
const BUFFER: usize = 1 << 18;
/// A connection on which nothing was heard for so long, and nothing is to be repeated, is asked.
const QUIET: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(1);
/// Nothing was heard from anybody for so long, and now something is: the way was interrupted.
const OUTAGE: Duration = Duration::from_secs(2);
/// smoltcp does not wait for longer until it sends something again.
const LONGEST: Duration = Duration::from_secs(10);
const PUT: u64 = 1;
const GET: u64 = 2;

/// What a guest that fetches the page must see.
const PAGE: &str = "a page from outside\n";

/// What went over connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Bytes in blocks that came and were right.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Blocks with wrong contents.
    pub wrong: u64,
    /// Pages that were fetched at port 80.
    pub pages: u64,
    /// Segments that came again although nothing of them was lost.
    pub again: u64,
}

/// Frames to and from smoltcp.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) outgoing: Vec<Vec<u8>>,
    idents: Idents,
}

impl Wire {
    /// An interface on it.
    pub(super) fn interface(&mut self, mac: [u8; 6], ip: [u8; 4]) -> Interface {
        let address = HardwareAddress::Ethernet(EthernetAddress(mac));
        let mut interface = Interface::new(Config::new(address), self, Instant::ZERO);
        let own = IpCidr::new(Ipv4Address::from(ip).into(), 24);
        interface.update_ip_addrs(|all| all.push(own).expect("the first address fits"));
        interface
    }
}

pub struct Tcp {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    disk: Option<Disk>,
    started: std::time::Instant,
    again: Again,
    clock: Clock,
    pub counts: StreamCounts,
}

struct Connection {
    socket: SocketHandle,
    port: u16,
    stage: Stage,
}

enum Stage {
    /// The request is still to come.
    Request,
    Put {
        blocks: u64,
        next: u64,
    },
    Get {
        blocks: u64,
        next: u64,
        block: Vec<u8>,
        sent: usize,
    },
    Over,
}

impl Tcp {
    /// With a disk or without.
    pub fn new(export: Option<Export>) -> Self {
        let mut wire = Wire::default();
        let interface = wire.interface(frame::MAC, frame::IP);
        let mut sockets = SocketSet::new(Vec::new());
        let disk = export.map(|export| Disk::new(export, &mut sockets));
        let mut connections = Vec::new();
        for port in [STREAM_PORT, PAGE_PORT].repeat(CONNECTIONS) {
            let buffer = || SocketBuffer::new(vec![0; BUFFER]);
            let mut socket = Socket::new(buffer(), buffer());
            // smoltcp does not ask a guest without room whether it has some by now, and what the guest said of it may
            // be lost. This asks.
            socket.set_keep_alive(Some(QUIET));
            let socket = sockets.add(socket);
            connections.push(Connection { socket, port, stage: Stage::Request });
        }
        Self {
            wire,
            interface,
            sockets,
            connections,
            disk,
            started: std::time::Instant::now(),
            again: Again::default(),
            clock: Clock::default(),
            counts: StreamCounts::default(),
        }
    }

    /// Takes a frame (if one came), does what is due, and gives the frames to be sent.
    pub fn step(&mut self, incoming: Option<Vec<u8>>) -> Vec<Vec<u8>> {
        if let Some(frame) = incoming {
            self.clock.heard(self.started.elapsed());
            // Another socket that listens would answer it and break the connection. The one that has it repeats its
            // answer by itself.
            let is_asked_for = self.again.take(&frame);
            self.counts.again = self.again.count;
            if !is_asked_for {
                self.wire.incoming.push_back(frame);
            }
        }
        let now = self.clock.at(self.started.elapsed());
        for _ in 0..2 {
            self.interface.poll(now, &mut self.wire, &mut self.sockets);
            for connection in &mut self.connections {
                connection.serve(self.sockets.get_mut::<Socket<'_>>(connection.socket), &mut self.counts);
            }
            self.disk.iter_mut().for_each(|disk| disk.serve(&mut self.sockets));
        }
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        std::mem::take(&mut self.wire.outgoing)
    }

    /// How long nothing is due, if no frame comes.
    pub fn patience(&mut self) -> Duration {
        let now = self.clock.at(self.started.elapsed());
        let due = self.interface.poll_delay(now, &self.sockets);
        due.map_or(Duration::from_secs(1), |d| Duration::from_micros(d.total_micros()).max(Duration::from_millis(1)))
    }
}

/// Time as smoltcp sees it. After an outage it leaps: what is to be sent again is sent now, and no test waits for that
/// as long as it may take.
#[derive(Debug, Default)]
struct Clock {
    last_heard: Duration,
    leapt: Duration,
}

impl Clock {
    fn heard(&mut self, now: Duration) {
        if now - self.last_heard >= OUTAGE {
            self.leapt += LONGEST;
        }
        self.last_heard = now;
    }

    fn at(&self, now: Duration) -> Instant {
        Instant::from_micros(i64::try_from((now + self.leapt).as_micros()).unwrap_or(i64::MAX))
    }
}

impl Connection {
    fn serve(&mut self, socket: &mut Socket, counts: &mut StreamCounts) {
        if !socket.is_open() {
            self.stage = Stage::Request;
            // It was open for another connection before; a closed one can always listen again.
            let _ = socket.listen(self.port);
            return;
        }
        if self.port == PAGE_PORT {
            self.page(socket, counts);
        } else {
            self.stream(socket, counts);
        }
        if matches!(self.stage, Stage::Over) || (socket.may_send() && !socket.may_recv() && !socket.can_recv()) {
            socket.close();
        }
    }

    fn page(&mut self, socket: &mut Socket, counts: &mut StreamCounts) {
        if !matches!(self.stage, Stage::Request) || !socket.can_recv() {
            return;
        }
        let asked = socket.recv(|data| {
            let whole = data.windows(4).any(|w| w == b"\r\n\r\n");
            (if whole { data.len() } else { 0 }, whole)
        });
        if asked == Ok(true) {
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", PAGE.len());
            let _ = socket.send_slice(&[head.as_bytes(), PAGE.as_bytes()].concat());
            counts.pages += 1;
            self.stage = Stage::Over;
        }
    }

    fn stream(&mut self, socket: &mut Socket, counts: &mut StreamCounts) {
        if matches!(self.stage, Stage::Request) && socket.recv_queue() >= 16 {
            let mut head = [0; 16];
            let _ = socket.recv_slice(&mut head);
            let (kind, blocks) = (super::u64_at(&head, 0), super::u64_at(&head, 8));
            self.stage = match kind {
                PUT => Stage::Put { blocks, next: 0 },
                GET => Stage::Get { blocks, next: 0, block: Vec::new(), sent: 0 },
                _ => Stage::Over,
            };
        }
        match &mut self.stage {
            Stage::Put { blocks, next } => {
                let mut block = vec![0; pattern::BLOCK];
                let mut wanted = block.clone();
                while next < blocks && socket.recv_queue() >= pattern::BLOCK {
                    let _ = socket.recv_slice(&mut block);
                    pattern::fill(&mut wanted, *next);
                    if block != wanted {
                        counts.wrong += 1;
                        self.stage = Stage::Over;
                        return;
                    }
                    counts.received += block.len() as u64;
                    *next += 1;
                }
                if next == blocks {
                    let _ = socket.send_slice(&blocks.to_le_bytes());
                    self.stage = Stage::Over;
                }
            }
            Stage::Get { blocks, next, block, sent } => {
                while socket.can_send() {
                    if *sent == block.len() {
                        if next == blocks {
                            self.stage = Stage::Over;
                            return;
                        }
                        block.resize(pattern::BLOCK, 0);
                        pattern::fill(block, *next);
                        *sent = 0;
                        *next += 1;
                    }
                    let part = socket.send_slice(block.get(*sent..).unwrap_or_default()).unwrap_or(0);
                    *sent += part;
                    counts.sent += part as u64;
                }
            }
            Stage::Request | Stage::Over => {}
        }
    }
}

impl Device for Wire {
    type RxToken<'a> = Incoming;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Incoming, Outgoing<'_>)> {
        self.incoming.pop_front().map(|frame| (Incoming(frame), Outgoing(&mut self.outgoing, &mut self.idents)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outgoing<'_>> {
        Some(Outgoing(&mut self.outgoing, &mut self.idents))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        caps
    }
}

pub(super) struct Incoming(Vec<u8>);

impl RxToken for Incoming {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

pub(super) struct Outgoing<'a>(&'a mut Vec<Vec<u8>>, &'a mut Idents);

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        // Questions for our address are answered elsewhere.
        if !frame::is_arp_answer(&frame) {
            self.1.number(&mut frame);
            frame.resize(frame.len().max(60), 0);
            self.0.push(frame);
        }
        result
    }
}

#[cfg(test)]
mod tests;
