//! What `./tandem bench net` talks to: a sink and a source of datagrams and of TCP streams, a web client, and an answer
//! to pings. images/src/traffic.c is the other side.
//!
//! Its time is given to it, in nanoseconds, with every frame.

use super::frame::{self, Arp, Udp, UdpPath};
use super::tcp::Wire;
use super::{u32_at, u64_at};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::Ipv4Address;

const MAGIC: u32 = 0x444f_4c54;
const SYNC: u32 = 1;
const GENERATE: u32 = 2;
const CREDIT: u32 = 3;
const FETCH: u32 = 4;
const MEET: u32 = 5;

const CONTROL_PORT: u16 = 7010;
const SINK_PORT: u16 = 9;
const TAKES_PORT: u16 = 7020;
const GIVES_PORT: u16 = 7021;

const HEADERS: usize = 42;
/// Generated datagrams under way.
const WINDOW: u64 = 256;
/// Pages fetched at the same time.
const FETCHERS: usize = 8;
/// Connections of each stream port.
const STREAMS: usize = 4;
const BUFFER: usize = 1 << 18;
/// What a stream from the guest may have under way: more than it gets there, so that the guest's CPU is the limit.
const ROOM: usize = 1 << 19;

pub struct Load {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    takers: Vec<SocketHandle>,
    givers: Vec<Giver>,
    fetch: Option<Fetch>,
    fetchers: Vec<Fetcher>,
    next_port: u16,
    /// One for each guest that has asked for datagrams.
    generators: Vec<Generator>,
    /// Guests that wait for others.
    met: Vec<UdpPath>,
    /// Datagrams that the sink got.
    sunk: u64,
}

/// Sends as many bytes as it is asked for, each time.
struct Giver {
    socket: SocketHandle,
    left: Option<u64>,
}

/// Numbered datagrams for a guest, as far as it gave credit.
struct Generator {
    to: UdpPath,
    bytes: usize,
    sent: u64,
    count: u64,
    credit: u64,
    /// With so many guests it takes turns, itself among them.
    guests: u64,
}

impl Generator {
    fn is_done(&self) -> bool {
        self.sent == self.count
    }

    fn next(&mut self) -> Vec<u8> {
        let mut body = vec![0x5a; self.bytes];
        body[..8].copy_from_slice(&self.sent.to_le_bytes());
        self.sent += 1;
        self.to.datagram(&body)
    }
}

/// Pages to be fetched.
struct Fetch {
    asker: UdpPath,
    from: Ipv4Address,
    port: u16,
    path: String,
    begun: u64,
    done: u64,
    failed: u64,
    count: u64,
}

struct Fetcher {
    socket: SocketHandle,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Idle,
    /// Connecting, or connected with nothing sent.
    Asking,
    /// The answer is coming; whether its beginning was right.
    Reading {
        good: bool,
    },
}

impl Load {
    pub fn new() -> Self {
        let mut wire = Wire::default();
        let interface = wire.interface(frame::MAC, frame::IP);
        let mut sockets = SocketSet::new(Vec::new());
        let mut socket = |room| {
            let mut socket = Socket::new(SocketBuffer::new(vec![0; room]), SocketBuffer::new(vec![0; BUFFER]));
            socket.set_ack_delay(Some(Duration::from_millis(1)));
            sockets.add(socket)
        };
        let takers = (0..STREAMS).map(|_| socket(ROOM)).collect();
        let givers = (0..STREAMS).map(|_| Giver { socket: socket(BUFFER), left: None }).collect();
        let fetchers = (0..FETCHERS).map(|_| Fetcher { socket: socket(BUFFER), stage: Stage::Idle }).collect();
        Self {
            wire,
            interface,
            sockets,
            takers,
            givers,
            fetch: None,
            fetchers,
            next_port: 20_000,
            generators: Vec::new(),
            met: Vec::new(),
            sunk: 0,
        }
    }

    /// Takes the frames that came at once, if any did, and gives what is to be sent. Segments of a stream that came at
    /// once are acknowledged at once, as by a receiver that joins them (LRO, GRO).
    pub fn step(&mut self, now_ns: u64, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let is_wake_up = frames.is_empty();
        for frame in frames {
            out.extend(self.take(&frame));
            self.wire.incoming.extend(Some(frame).filter(|f| frame::is_for_tcp(f)));
        }
        if is_wake_up || !self.wire.incoming.is_empty() || self.fetch.is_some() {
            let now = time(now_ns);
            // Twice: what is read makes room that the other side must be told of.
            for _ in 0..2 {
                self.interface.poll(now, &mut self.wire, &mut self.sockets);
                self.serve();
                out.extend(self.web());
            }
            self.interface.poll(now, &mut self.wire, &mut self.sockets);
            out.append(&mut self.wire.outgoing);
        }
        out
    }

    /// When TCP has something to do, if no frame comes.
    pub fn due(&mut self, now_ns: u64) -> Option<u64> {
        let wait = self.interface.poll_delay(time(now_ns), &self.sockets)?;
        Some(now_ns + wait.total_micros().max(1) * 1000)
    }

    fn take(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        if let Some(arp) = Arp::request_for_us(bytes) {
            return vec![arp.answer()];
        }
        if let Some(answer) = frame::answer_ping(bytes) {
            return vec![answer];
        }
        match Udp::parse(bytes) {
            Ok(Some(udp)) if udp.to_port == SINK_PORT => {
                self.sunk += 1;
                Vec::new()
            }
            Ok(Some(udp)) if udp.to_port == CONTROL_PORT => self.control(&udp),
            _ => Vec::new(),
        }
    }

    fn control(&mut self, udp: &Udp) -> Vec<Vec<u8>> {
        if u32_at(udp.body, 0) != MAGIC {
            return Vec::new();
        }
        let (kind, a, b) = (u32_at(udp.body, 4), u64_at(udp.body, 8), u64_at(udp.body, 16));
        match kind {
            SYNC => vec![udp.path().datagram(&message(kind, self.sunk, 0))],
            GENERATE => {
                let bytes = usize::try_from(a).unwrap_or(0).clamp(HEADERS + 8, 1514) - HEADERS;
                let guests = u64_at(udp.body, 24).max(1);
                self.generators.retain(|generator| !generator.is_done() && generator.to.to() != udp.path().to());
                self.generators.push(Generator { to: udp.path(), bytes, sent: 0, count: b, credit: 0, guests });
                self.generate()
            }
            CREDIT => {
                for generator in self.generators.iter_mut().filter(|generator| generator.to == udp.path()) {
                    generator.credit = a;
                }
                self.generate()
            }
            MEET => {
                self.met.push(udp.path());
                if (self.met.len() as u64) < a {
                    return Vec::new();
                }
                self.met.drain(..).map(|to| to.datagram(&message(kind, a, 0))).collect()
            }
            FETCH => {
                let path = udp.body.get(32..).unwrap_or_default().split(|b| *b == 0).next().unwrap_or_default();
                let [w, x, y, z] = udp.sender().0;
                self.fetch = Some(Fetch {
                    asker: udp.path(),
                    from: Ipv4Address::new(w, x, y, z),
                    port: u16::try_from(b).unwrap_or(80),
                    path: String::from_utf8_lossy(path).into_owned(),
                    begun: 0,
                    done: 0,
                    failed: 0,
                    count: a,
                });
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The guests' datagrams, in turns: none goes before everybody who wants more can have one.
    fn generate(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let nr = self.generators.len() as u64;
        if self.generators.iter().any(|generator| generator.guests > nr) {
            return frames;
        }
        let has_credit = |g: &Generator| g.is_done() || g.sent < g.credit + WINDOW;
        while self.generators.iter().any(|g| !g.is_done()) && self.generators.iter().all(has_credit) {
            frames.extend(self.generators.iter_mut().filter(|g| !g.is_done()).map(Generator::next));
        }
        frames
    }

    /// The streams.
    fn serve(&mut self) {
        for handle in &self.takers {
            let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
            if listening(socket, TAKES_PORT) {
                let _ = socket.recv(|data| (data.len(), ()));
                close_when_closed(socket);
            }
        }
        for giver in &mut self.givers {
            let socket = self.sockets.get_mut::<Socket<'_>>(giver.socket);
            if !listening(socket, GIVES_PORT) {
                giver.left = None;
                continue;
            }
            if giver.left.is_none_or(|left| left == 0) && socket.recv_queue() >= 8 {
                let mut bytes = [0; 8];
                let _ = socket.recv_slice(&mut bytes);
                giver.left = Some(u64::from_le_bytes(bytes));
            }
            if let Some(left) = &mut giver.left {
                while *left > 0 && socket.can_send() {
                    let room = socket.send(|data| {
                        let some = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                        data[..some].fill(0xa5);
                        (some, some)
                    });
                    *left -= room.unwrap_or(0) as u64;
                }
            }
            close_when_closed(socket);
        }
    }

    /// The web client; its report when all pages have come.
    fn web(&mut self) -> Option<Vec<u8>> {
        let fetch = self.fetch.as_mut()?;
        for fetcher in &mut self.fetchers {
            let socket = self.sockets.get_mut::<Socket<'_>>(fetcher.socket);
            fetcher.advance(socket, fetch);
            if fetcher.stage == Stage::Idle && !socket.is_open() && fetch.begun < fetch.count {
                self.next_port = if self.next_port < 60_000 { self.next_port + 1 } else { 20_000 };
                if socket.connect(self.interface.context(), (fetch.from, fetch.port), self.next_port).is_ok() {
                    fetch.begun += 1;
                    fetcher.stage = Stage::Asking;
                }
            }
        }
        if fetch.done + fetch.failed < fetch.count {
            return None;
        }
        let report = fetch.asker.datagram(&message(FETCH, fetch.done, fetch.failed));
        self.fetch = None;
        Some(report)
    }
}

impl Fetcher {
    fn advance(&mut self, socket: &mut Socket, fetch: &mut Fetch) {
        if self.stage == Stage::Idle {
            return;
        }
        if self.stage == Stage::Asking && socket.may_send() {
            let _ = socket.send_slice(format!("GET {} HTTP/1.0\r\n\r\n", fetch.path).as_bytes());
            self.stage = Stage::Reading { good: false };
        }
        if let Stage::Reading { good } = &mut self.stage {
            while socket.can_recv() {
                let ok = |data: &[u8]| data.starts_with(b"HTTP/1.") && data.get(9..12) == Some(b"200");
                *good |= socket.recv(|data| (data.len(), ok(data))) == Ok(true);
            }
        }
        let over = match self.stage {
            Stage::Reading { .. } => !socket.may_recv(),
            _ => !socket.is_open(),
        };
        if over {
            match self.stage {
                Stage::Reading { good: true } => fetch.done += 1,
                _ => fetch.failed += 1,
            }
            socket.close();
            self.stage = Stage::Idle;
        }
    }
}

/// Whether there is a connection; without one, the socket waits for it.
fn listening(socket: &mut Socket, port: u16) -> bool {
    if !socket.is_open() {
        // It was open for another connection before; a closed one can always listen again.
        let _ = socket.listen(port);
        return false;
    }
    true
}

fn close_when_closed(socket: &mut Socket) {
    if socket.may_send() && !socket.may_recv() && !socket.can_recv() {
        socket.close();
    }
}

fn message(kind: u32, a: u64, b: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(MAGIC.to_le_bytes());
    out.extend(kind.to_le_bytes());
    for word in [a, b, 0] {
        out.extend(word.to_le_bytes());
    }
    out
}

fn time(ns: u64) -> Instant {
    Instant::from_micros(i64::try_from(ns / 1000).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
