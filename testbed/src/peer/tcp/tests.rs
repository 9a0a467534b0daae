use super::*;
use crate::peer::Host;

/// A guest that speaks TCP with the peer, by smoltcp too.
struct Guest {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    /// The connections, and the one that `talk` is about.
    connections: Vec<SocketHandle>,
    socket: SocketHandle,
    host: Host,
    peer: Tcp,
    /// Its packets come in fragments.
    fragmenting: bool,
    /// Its packets are lost.
    losing: bool,
    /// Each of its packets comes twice.
    repeating: bool,
    /// With which it asked for its last connection.
    asking: Vec<u8>,
}

impl Guest {
    fn connected_to(port: u16) -> Self {
        Self::connected_times(port, 1)
    }

    /// With so many connections, all asked for at once.
    fn connected_times(port: u16, times: u16) -> Self {
        let mut wire = Wire::default();
        let address = HardwareAddress::Ethernet(EthernetAddress([0x52, 0x54, 0, 1, 2, 3]));
        let mut interface = Interface::new(Config::new(address), &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(Ipv4Address::new(10, 9, 0, 2).into(), 24)).unwrap());
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut sockets = SocketSet::new(Vec::new());
        let mut connect = |own_port| {
            let mut socket = Socket::new(buffer(), buffer());
            socket.connect(interface.context(), (Ipv4Address::new(10, 9, 0, 1), port), own_port).unwrap();
            sockets.add(socket)
        };
        let connections: Vec<_> = (0..times).map(|n| connect(4000 + n)).collect();
        let socket = connections[0];
        Self {
            wire,
            interface,
            sockets,
            connections,
            socket,
            host: Host::default(),
            peer: Tcp::new(None),
            fragmenting: false,
            losing: false,
            repeating: false,
            asking: Vec::new(),
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// Frames go to and fro.
    fn exchange(&mut self) {
        let now = self.peer.clock.at(self.peer.started.elapsed());
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        for frame in std::mem::take(&mut self.wire.outgoing) {
            if self.losing {
                continue;
            }
            if frame::is_for_tcp(&frame) && frame.get(34 + 13).is_some_and(|flags| flags & 2 != 0) {
                self.asking.clone_from(&frame);
            }
            self.wire.incoming.extend(self.host.take(&frame));
            if frame::is_for_tcp(&frame) {
                let times = if self.repeating { 2 } else { 1 };
                let parts = if self.fragmenting { fragments(&frame) } else { vec![frame] };
                for part in vec![parts; times].concat() {
                    self.wire.incoming.extend(self.peer.step(Some(part)));
                }
            }
        }
        self.wire.incoming.extend(self.peer.step(None));
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
    }

    fn exchange_for(&mut self, ms: u64) {
        let until = std::time::Instant::now() + Duration::from_millis(ms);
        while std::time::Instant::now() < until {
            self.exchange();
        }
    }

    /// Sends all of `data` and receives until `wanted` bytes came or the peer closed.
    fn talk(&mut self, mut data: &[u8], wanted: usize) -> Vec<u8> {
        let mut got = Vec::new();
        while self.peer.started.elapsed().as_secs() < 60 {
            self.exchange();
            if self.socket().can_send() {
                let n = self.socket().send_slice(data).unwrap();
                data = &data[n..];
            }
            while self.socket().can_recv() {
                self.socket().recv(|part| (part.len(), got.extend_from_slice(part))).unwrap();
            }
            if got.len() >= wanted {
                break;
            }
        }
        got
    }
}

/// An IPv4 packet in fragments of 512 bytes and a rest; other frames as they are.
fn fragments(frame: &[u8]) -> Vec<Vec<u8>> {
    const LEN: usize = 512;
    let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    if frame[12..14] != [8, 0] || len <= 20 + LEN {
        return vec![frame.to_vec()];
    }
    let parts = frame[34..14 + len].chunks(LEN);
    let more = |n: usize| if (n + 1) * LEN < len - 20 { 0x2000 } else { 0 };
    let fragment = |(n, part): (usize, &[u8])| {
        let mut header = frame[14..34].to_vec();
        header[2..4].copy_from_slice(&u16::try_from(20 + part.len()).unwrap().to_be_bytes());
        header[6..8].copy_from_slice(&u16::try_from(more(n) + n * LEN / 8).unwrap().to_be_bytes());
        header[10..12].fill(0);
        let sum = frame::internet_checksum(0, &header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&frame[..14], &header, part].concat()
    };
    parts.enumerate().map(fragment).collect()
}

fn request(kind: u64, blocks: u64) -> Vec<u8> {
    [kind.to_le_bytes(), blocks.to_le_bytes()].concat()
}

fn block(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; pattern::BLOCK];
    pattern::fill(&mut bytes, n);
    bytes
}

#[test]
fn blocks_that_come_are_counted_and_answered() {
    let mut guest = Guest::connected_to(STREAM_PORT);
    let data = [request(PUT, 3), block(0), block(1), block(2)].concat();
    assert_eq!(guest.talk(&data, 8), 3u64.to_le_bytes());
    assert_eq!((guest.peer.counts.received, guest.peer.counts.wrong), (3 * pattern::BLOCK as u64, 0));
}

/// QEMU's e1000e segments large packets so when the driver leaves that to the device.
#[test]
fn blocks_that_come_in_fragments_are_right_too() {
    let mut guest = Guest::connected_to(STREAM_PORT);
    guest.fragmenting = true;
    let data = [request(PUT, 2), block(0), block(1)].concat();
    assert_eq!(guest.talk(&data, 8), 2u64.to_le_bytes());
    assert_eq!((guest.peer.counts.received, guest.peer.counts.wrong), (2 * pattern::BLOCK as u64, 0));
}

/// In fragments or whole; what comes once does not come again.
#[test]
fn segments_that_come_twice_are_counted() {
    for (fragmenting, repeating) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut guest = Guest::connected_to(STREAM_PORT);
        (guest.fragmenting, guest.repeating) = (fragmenting, repeating);
        let data = [request(PUT, 1), block(0)].concat();
        assert_eq!(guest.talk(&data, 8), 1u64.to_le_bytes());
        let again = guest.peer.counts.again;
        // As many as are needed for the data at least.
        let fewest = if repeating { data.len() as u64 / 1460 } else { 0 };
        assert!(again >= fewest && (repeating || again == 0), "{again} of {fewest}");
    }
}

#[test]
fn a_wrong_block_is_noticed() {
    let mut guest = Guest::connected_to(STREAM_PORT);
    let mut data = [request(PUT, 2), block(0), block(1)].concat();
    data[70_000] ^= 1;
    // Acknowledgements wait for the clock, so it is time that is limited, not the number of exchanges.
    while !data.is_empty() || guest.peer.counts.wrong == 0 {
        guest.exchange();
        if guest.socket().can_send() {
            let n = guest.socket().send_slice(&data).unwrap();
            data.drain(..n);
        }
        assert!(guest.peer.started.elapsed().as_secs() < 60, "the peer says nothing of the wrong block");
    }
    assert_eq!(guest.peer.counts.wrong, 1);
}

#[test]
fn blocks_that_are_asked_for_are_right() {
    let mut guest = Guest::connected_to(STREAM_PORT);
    let got = guest.talk(&request(GET, 4), 4 * pattern::BLOCK);
    assert!(got == [block(0), block(1), block(2), block(3)].concat());
}

/// It says once that it has room again. When that is lost nobody says more, unless he is asked.
#[test]
fn a_guest_that_has_room_again_and_is_not_heard_gets_the_rest() {
    let mut guest = Guest::connected_to(STREAM_PORT);
    while !guest.socket().can_send() {
        guest.exchange();
    }
    assert_eq!(guest.socket().send_slice(&request(GET, 8)), Ok(16));
    while guest.socket().recv_queue() + 4096 < BUFFER {
        guest.exchange();
    }
    // The peer hears that there is no room.
    guest.exchange_for(100);
    guest.losing = true;
    let mut got = vec![0; BUFFER];
    let came = guest.socket().recv_slice(&mut got).unwrap();
    got.truncate(came);
    guest.exchange_for(100);
    guest.losing = false;
    got.extend(guest.talk(&[], 8 * pattern::BLOCK - came));
    assert!(got == (0..8).map(block).collect::<Vec<_>>().concat(), "{} bytes came", got.len());
}

/// What was lost is sent again when somebody is heard, not when smoltcp would come to it.
#[test]
fn after_an_outage_what_waits_is_sent_at_once() {
    let mut clock = Clock::default();
    let seconds = Duration::from_secs;
    for second in 1..20 {
        clock.heard(seconds(second));
        assert_eq!(clock.at(seconds(second)), Instant::from_secs(i64::try_from(second).unwrap()), "it goes on");
    }
    clock.heard(seconds(30));
    assert_eq!(clock.at(seconds(30)), Instant::from_secs(40));
    clock.heard(seconds(31));
    assert_eq!(clock.at(seconds(31)), Instant::from_secs(41));
}

#[test]
fn the_page_is_served() {
    let mut guest = Guest::connected_to(PAGE_PORT);
    let got = guest.talk(b"GET / HTTP/1.0\r\n\r\n", 1);
    let text = String::from_utf8_lossy(&got);
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n") && text.ends_with(PAGE), "{text}");
    assert_eq!(guest.peer.counts.pages, 1);
}

/// A guest that waits for a second asks again for its connection. Meanwhile a socket before the one that has it may
/// listen again.
#[test]
fn a_connection_that_is_asked_for_twice_is_one() {
    let mut guest = Guest::connected_times(STREAM_PORT, 2);
    let (first, second) = (guest.connections[0], guest.connections[1]);
    guest.socket = first;
    assert!(guest.talk(&request(GET, 1), pattern::BLOCK) == block(0));
    guest.socket().close();
    // The first connection is over for the peer too.
    guest.exchange();
    guest.peer.clock.leapt += 2 * LONGEST;
    guest.exchange();
    guest.socket = second;
    let answers = guest.peer.step(Some(guest.asking.clone()));
    guest.wire.incoming.extend(answers);
    let got = guest.talk(&request(GET, 1), pattern::BLOCK);
    assert!(got == block(0), "{} bytes came, then: {}", got.len(), guest.socket().state());
}

#[test]
fn eight_guests_with_two_connections_each_are_served_at_once() {
    let mut guest = Guest::connected_times(STREAM_PORT, 16);
    for n in 0..guest.connections.len() {
        guest.socket = guest.connections[n];
        let got = guest.talk(&request(GET, 1), pattern::BLOCK);
        assert!(got == block(0), "connection {n} got {} bytes", got.len());
    }
}

/// The other one may have died. A write of its that is still under way is not done.
#[test]
fn who_gets_the_disk_last_has_it_alone() {
    let path = std::env::temp_dir().join(format!("tandem-peer-disk-{}", std::process::id()));
    std::fs::write(&path, [7; 4096]).unwrap();
    let mut guest = Guest::connected_times(super::super::nbd::PORT, 2);
    guest.peer = Tcp::new(Some(Export::open(&path).unwrap()));
    // Flags, and the option of an export's name.
    let wants = [&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    let asks = |kind: u8| [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind][..], &[1; 8], &[0; 8], &[0, 0, 2, 0]].concat();
    let (first, second) = (guest.connections[0], guest.connections[1]);
    guest.socket = first;
    // It is greeted, and told how long the disk is and what it can.
    assert!(guest.talk(&wants, 28).ends_with(&[0, 0, 0x10, 0, 0, 5]));
    assert_eq!(guest.talk(&asks(0), 16 + 512)[16..], [7; 512]);
    guest.talk(&[asks(1), vec![9; 100]].concat(), 0);
    guest.exchange_for(20);
    guest.socket = second;
    assert_eq!(guest.talk(&wants, 28).len(), 28);
    assert_eq!(guest.talk(&asks(0), 16 + 512)[16..], [7; 512]);
    guest.socket = first;
    guest.exchange_for(20);
    assert!(!guest.socket().is_open(), "{}", guest.socket().state());
    std::fs::remove_file(path).unwrap();
}
