use super::*;

const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];
const STEP_NS: u64 = 50_000;

/// A datagram from the guest's port 4000.
fn from_guest(port: u16, payload: &[u8]) -> Vec<u8> {
    from(2, port, payload)
}

/// The same from the guest at 10.9.0.`last`.
fn from(last: u8, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [frame::MAC, GUEST_MAC].concat();
    frame.extend([8, 0]);
    let len = u16::try_from(payload.len() + 28).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, last, 10, 9, 0, 1];
    let sum: u32 = ip.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend(4000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(u16::try_from(payload.len() + 8).unwrap().to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// A guest with one TCP socket.
struct Guest {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    load: Load,
    now: u64,
}

impl Guest {
    fn new() -> Self {
        let mut wire = Wire::default();
        let interface = wire.interface(GUEST_MAC, [10, 9, 0, 2]);
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(Socket::new(buffer(), buffer()));
        Self { wire, interface, sockets, socket, load: Load::new(), now: 0 }
    }

    /// Frames go to and fro, and time goes on; gives the peer's datagrams.
    fn exchange(&mut self, datagram: Option<Vec<u8>>) -> Vec<Vec<u8>> {
        self.now += STEP_NS;
        self.interface.poll(time(self.now), &mut self.wire, &mut self.sockets);
        let mut outgoing: Vec<Vec<u8>> = self.wire.outgoing.drain(..).collect();
        outgoing.extend(datagram);
        let mut datagrams = Vec::new();
        for frames in [outgoing, Vec::new()] {
            for answer in self.load.step(self.now, frames) {
                if answer[12..14] == [8, 0] && answer[23] == 17 {
                    datagrams.push(answer[HEADERS..].to_vec());
                } else {
                    self.wire.incoming.push_back(answer);
                }
            }
        }
        datagrams
    }

    fn connect(&mut self, port: u16) {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        socket.connect(self.interface.context(), (Ipv4Address::new(10, 9, 0, 1), port), 4001).unwrap();
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }
}

#[test]
fn datagrams_are_counted_and_generated_as_far_as_there_is_credit() {
    let mut load = Load::new();
    for n in 0..3 {
        assert!(load.step(n, vec![from_guest(SINK_PORT, b"one")]).is_empty());
    }
    let report = load.step(4, vec![from_guest(CONTROL_PORT, &message(SYNC, 0, 0))]);
    assert_eq!(u64_at(&report[0][HEADERS..], 8), 3);
    let first = load.step(5, vec![from_guest(CONTROL_PORT, &message(GENERATE, 1514, 300))]);
    assert_eq!((first.len() as u64, first[0].len()), (WINDOW, 1514));
    assert_eq!(u64_at(&first[255][HEADERS..], 0), 255);
    let more = load.step(6, vec![from_guest(CONTROL_PORT, &message(CREDIT, 10, 0))]);
    assert_eq!(more.len(), 10);
    let rest = load.step(7, vec![from_guest(CONTROL_PORT, &message(CREDIT, 200, 0))]);
    assert_eq!(rest.len(), 300 - 266);
    assert!(load.step(8, vec![from_guest(CONTROL_PORT, b"nonsense")]).is_empty());
}

#[test]
fn guests_that_meet_are_answered_when_all_are_there() {
    let mut load = Load::new();
    let mut meets = |last| load.step(1, vec![from(last, CONTROL_PORT, &message(MEET, 3, 0))]);
    assert!(meets(3).is_empty() && meets(4).is_empty());
    let answers = meets(5);
    assert_eq!(answers.iter().map(|a| a[33]).collect::<Vec<_>>(), [3, 4, 5]);
    assert!(meets(3).is_empty());
}

#[test]
fn datagrams_for_several_guests_take_turns() {
    let mut load = Load::new();
    let mut asks = |last, kind, a: u64, b: u64| {
        let mut said = message(kind, a, b);
        said[24..32].copy_from_slice(&2u64.to_le_bytes());
        let frames = load.step(1, vec![from(last, CONTROL_PORT, &said)]);
        frames.iter().map(|f| (f[33], u64_at(&f[HEADERS..], 0))).collect::<Vec<_>>()
    };
    assert!(asks(3, GENERATE, 60, 300).is_empty());
    let frames = asks(4, GENERATE, 60, 300);
    assert_eq!(frames.len() as u64, 2 * WINDOW);
    assert!(frames.chunks(2).zip(0..).all(|(pair, n)| pair == [(3, n), (4, n)]));
    // Both need credit for the next one.
    assert!(asks(3, CREDIT, 64, 0).is_empty());
    assert_eq!(asks(4, CREDIT, 64, 0).len(), 2 * (300 - 256));
    // A second time, in another order, and with one who wants less.
    assert!(asks(4, GENERATE, 60, 2).is_empty());
    assert_eq!(asks(3, GENERATE, 60, 3), [(4, 0), (3, 0), (4, 1), (3, 1), (3, 2)]);
}

#[test]
fn a_stream_has_the_length_that_was_asked_for() {
    let mut guest = Guest::new();
    let wanted = 1_000_000u64;
    guest.connect(GIVES_PORT);
    let mut got = 0;
    let mut asked = false;
    for _ in 0..5000 {
        guest.exchange(None);
        if !asked && guest.socket().can_send() {
            guest.socket().send_slice(&wanted.to_le_bytes()).unwrap();
            asked = true;
        }
        while guest.socket().can_recv() {
            got += guest.socket().recv(|data| (data.len(), data.len())).unwrap() as u64;
        }
    }
    assert_eq!(got, wanted);
}

#[test]
fn pages_are_fetched_and_those_that_are_wrong_are_counted_apart() {
    let mut guest = Guest::new();
    let servers: Vec<SocketHandle> = (0..2 * FETCHERS)
        .map(|_| {
            let mut socket = Socket::new(SocketBuffer::new(vec![0; 4096]), SocketBuffer::new(vec![0; 4096]));
            socket.listen(81).unwrap();
            guest.sockets.add(socket)
        })
        .collect();
    // By this the peer learns the guest's address: the guest's `Wire` keeps answers about it back.
    guest.connect(TAKES_PORT);
    for _ in 0..10 {
        guest.exchange(None);
    }
    let mut fetch = message(FETCH, 12, 81);
    fetch.extend(b"/1k\0");
    let mut reports = guest.exchange(Some(from_guest(CONTROL_PORT, &fetch)));
    let mut served = 0;
    for _ in 0..2000 {
        for handle in &servers {
            let socket = guest.sockets.get_mut::<Socket<'_>>(*handle);
            if socket.can_recv() {
                let asked = socket.recv(|data| (data.len(), data.to_vec())).unwrap();
                assert!(asked.starts_with(b"GET /1k HTTP/1.0\r\n"));
                let answer: &[u8] = if served == 2 { b"HTTP/1.0 404 No\r\n\r\n" } else { b"HTTP/1.0 200 OK\r\n\r\nx" };
                socket.send_slice(answer).unwrap();
                socket.close();
                served += 1;
            }
        }
        reports.extend(guest.exchange(None));
    }
    assert_eq!((served, reports.len()), (12, 1));
    assert_eq!((u64_at(&reports[0], 8), u64_at(&reports[0], 16)), (11, 1));
}

#[test]
fn segments_that_come_at_once_are_acknowledged_at_once() {
    let mut guest = Guest::new();
    guest.connect(TAKES_PORT);
    for _ in 0..10 {
        guest.exchange(None);
    }
    guest.socket().send_slice(&[0; 12_000]).unwrap();
    // It sends a segment each time.
    for _ in 0..20 {
        guest.interface.poll(time(guest.now), &mut guest.wire, &mut guest.sockets);
    }
    let segments: Vec<_> = guest.wire.outgoing.drain(..).collect();
    assert!(segments.len() > 4, "{} segments", segments.len());
    assert_eq!(guest.load.step(guest.now, segments).len(), 1);
}
