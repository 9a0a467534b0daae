//! IPv6, as little of it as the peer needs: it says its MAC address, and answers echo requests at fd09::1.

use super::frame::{ethernet, internet_checksum, sum_words, MAC};

/// Our own address.
const IP: [u8; 16] = [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ICMP: u8 = 58;
const ECHO_REQUEST: u8 = 128;
const ECHO_ANSWER: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The answer to a request for our MAC address, or to an echo request to us; whether it is the latter.
pub fn answer(frame: &[u8]) -> Option<(Vec<u8>, bool)> {
    let header = frame.get(14..54).filter(|_| frame[12..14] == [0x86, 0xdd])?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let body = frame.get(54..54 + len).filter(|_| header[6] == ICMP)?;
    let (from, to) = (header[8..24].try_into().ok()?, &header[24..40]);
    let mac = frame[6..12].try_into().ok()?;
    if sum(from, to, body) != 0 {
        return None;
    }
    let mut out = body.to_vec();
    let is_echo = match (body.first()?, body.get(8..24)) {
        (&SOLICITATION, Some(target)) if target == IP => {
            // Solicited, and it overrides what was known; then the address.
            out = vec![ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0];
            out.extend(IP);
            out.extend([2, 1]);
            out.extend(MAC);
            false
        }
        (&ECHO_REQUEST, _) if to == IP => {
            out[0] = ECHO_ANSWER;
            true
        }
        _ => return None,
    };
    Some((packet(mac, from, out), is_echo))
}

fn packet(mac: [u8; 6], to: &[u8; 16], mut body: Vec<u8>) -> Vec<u8> {
    body[2..4].fill(0);
    let checksum = sum(&IP, to, &body);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut out = ethernet(mac, [0x86, 0xdd]);
    out.extend([0x60, 0, 0, 0]);
    out.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend([ICMP, 255]);
    out.extend(IP);
    out.extend(to);
    out.extend(body);
    out
}

/// The checksum of a body; 0 over one that includes a right one.
fn sum(from: &[u8; 16], to: &[u8], body: &[u8]) -> u16 {
    let start = [from, to].iter().fold(body.len() as u64 + u64::from(ICMP), |sum, part| sum_words(sum, part));
    internet_checksum(start, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: [u8; 16] = [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];

    /// From a guest, to an address of ours.
    fn request(to: &[u8; 16], mut body: Vec<u8>) -> Vec<u8> {
        let checksum = sum(&GUEST, to, &body);
        body[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut out = vec![0x33, 0x33, 0xff, 0, 0, 1, 2, 2, 2, 2, 2, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
        out.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        out.extend([ICMP, 255]);
        out.extend(GUEST);
        out.extend(to);
        out.extend(body);
        out
    }

    #[test]
    fn an_echo_comes_back_with_its_data() {
        let asked = request(&IP, vec![ECHO_REQUEST, 0, 0, 0, 1, 2, 0, 7, b'x', b'y', b'z']);
        let (answer, is_echo) = super::answer(&asked).expect("answered");
        assert!(is_echo);
        assert_eq!((&answer[..6], &answer[38..54], &answer[58..]), (&[2; 6][..], &GUEST[..], &asked[58..]));
        assert_eq!((answer[54], sum(&IP, &GUEST, &answer[54..])), (ECHO_ANSWER, 0));
        let mut damaged = asked;
        *damaged.last_mut().unwrap() ^= 1;
        assert!(super::answer(&damaged).is_none());
    }

    #[test]
    fn our_mac_address_is_told_to_who_asks_for_ours() {
        let ask = |target: &[u8; 16]| {
            let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
            body.extend(target);
            super::answer(&request(&IP, body))
        };
        let (answer, is_echo) = ask(&IP).expect("answered");
        assert!(!is_echo && answer.ends_with(&MAC));
        assert!(ask(&GUEST).is_none());
    }
}
