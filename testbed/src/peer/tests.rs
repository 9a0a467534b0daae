use super::*;

const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// A datagram from the guest to the peer, as a frame: built by turning round an answer of the peer's.
fn from_guest(kind: u32, seq: u64, body: &[u8]) -> Vec<u8> {
    datagram(&with_head(kind, seq, body))
}

fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![];
    frame.extend([0x52, 0x54, 0, 0x70, 0x65, 0x72]);
    frame.extend(GUEST_MAC);
    frame.extend([8, 0]);
    let len = u16::try_from(payload.len() + 28).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    let mut sum: u32 = ip.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from(sum).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend(4000u16.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(u16::try_from(payload.len() + 8).unwrap().to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn body_of(seq: u64) -> Vec<u8> {
    let mut body = vec![0; pattern::datagram_len(seq)];
    pattern::fill(&mut body, seq);
    body
}

#[test]
fn an_answer_is_in_the_vlan_of_its_request() {
    let mut host = Host::default();
    let plain = from_guest(SYNC, 0, &[]);
    let tagged = [&plain[..12], &[0x81, 0, 0x20, 5], &plain[12..]].concat();
    let answers = [host.take(&plain), host.take(&tagged)].concat();
    let [first, second] = answers.as_slice() else { panic!("{} answers", answers.len()) };
    assert_eq!((&second[..12], &second[12..16]), (&first[..12], &[0x81, 0, 0x20, 5][..]));
    assert_eq!((&second[16..], host.counts.damaged), (&first[12..], 0));
}

#[test]
fn a_full_exchange_counts_every_datagram() {
    let mut host = Host::default();
    let mut answers = Vec::new();
    for seq in 0..40 {
        answers.extend(host.take(&from_guest(PUSH, seq, &body_of(seq))));
    }
    assert_eq!(answers.len(), 2, "an acknowledgement for every 16");
    assert_eq!((host.counts.received, host.counts.damaged, host.counts.missing), (40, 0, 0));
    assert_eq!(host.take(&from_guest(SYNC, 40, &[])).len(), 1);
    let data = host.take(&from_guest(PULL, 3, &5u64.to_le_bytes()));
    assert_eq!((data.len(), host.counts.sent), (5, 5));
    // Frame, IP, UDP header, then ours.
    let at = 14 + 20 + 8;
    assert_eq!(u64_at(&data[2], at + 8), 5);
    assert_eq!(&data[2][at + HEAD..at + HEAD + pattern::datagram_len(5)], body_of(5));
}

#[test]
fn a_lost_a_damaged_and_a_forged_datagram_are_noticed() {
    let mut host = Host::default();
    host.take(&from_guest(PUSH, 0, &body_of(0)));
    host.take(&from_guest(PUSH, 3, &body_of(3)));
    assert_eq!((host.counts.missing, host.counts.first_gap), (2, Some((1, 3))));
    let mut frame = from_guest(PUSH, 4, &body_of(4));
    frame[200] ^= 0x10;
    host.take(&frame);
    assert_eq!(host.counts.damaged, 1);
    host.take(&from_guest(PUSH, 4, &body_of(5)));
    assert_eq!(host.counts.damaged, 2, "right checksum, wrong contents");
    let mut frame = from_guest(PUSH, 4, &body_of(4));
    frame[20] ^= 1;
    host.take(&frame);
    assert_eq!(host.counts.damaged, 3, "the IP header's checksum");
}

#[test]
fn a_frame_of_zeroes_is_damage() {
    let mut host = Host::default();
    let mut frame = from_guest(PUSH, 0, &body_of(0));
    frame.fill(0);
    host.take(&frame);
    assert_eq!(host.counts.damaged, 1);
    // The NIC makes the UDP checksum, of whatever it is given.
    host.take(&datagram(&[0; HEAD + 8]));
    assert_eq!(host.counts.damaged, 2);
}

#[test]
fn a_greeting_starts_anew_on_a_port_that_another_had() {
    let mut host = Host::default();
    for _ in 0..2 {
        host.take(&from_guest(SYNC, 0, &[]));
        (0..20).for_each(|seq| drop(host.take(&from_guest(PUSH, seq, &body_of(seq)))));
        assert_eq!(host.take(&from_guest(SYNC, 20, &[])).len(), 1);
    }
    assert_eq!((host.counts.received, host.counts.missing), (40, 0));
}

#[test]
fn a_wrong_udp_checksum_is_damage() {
    let mut host = Host::default();
    let mut frame = from_guest(SYNC, 0, &[]);
    frame[14 + 20 + 6] = 0x12;
    assert!(host.take(&frame).is_empty());
    assert_eq!(host.counts.damaged, 1);
}

#[test]
fn arp_is_answered_only_for_our_address() {
    let mut ask = vec![0xff; 6];
    ask.extend(GUEST_MAC);
    ask.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    ask.extend(GUEST_MAC);
    ask.extend([10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1]);
    let mut host = Host::default();
    let answer = host.take(&ask);
    assert_eq!(answer.len(), 1);
    assert_eq!(answer[0][..6], GUEST_MAC);
    assert_eq!(answer[0][20..22], [0, 2]);
    *ask.last_mut().unwrap() = 7;
    assert!(host.take(&ask).is_empty());
}

#[test]
fn short_and_odd_frames_do_no_harm() {
    let mut host = Host::default();
    let whole = from_guest(PUSH, 0, &body_of(0));
    for len in 0..whole.len() {
        host.take(&whole[..len]);
    }
    assert_eq!(host.counts.received, 0);
}

#[test]
fn a_long_frame_is_not_taken_for_several() {
    let (mut qemu, peer) = UnixStream::pair().unwrap();
    let frames = read_frames(peer);
    let long = vec![1; 65_540];
    for frame in [&long[..], &[2; 60]] {
        qemu.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
        qemu.write_all(frame).unwrap();
    }
    assert_eq!(frames.recv().unwrap(), long);
    assert_eq!(frames.recv().unwrap(), [2; 60]);
    // What is no frame ends it.
    qemu.write_all(&u32::MAX.to_be_bytes()).unwrap();
    assert!(frames.recv().is_err());
}
