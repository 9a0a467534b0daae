//! Packets from one guest to another, for counting instructions: `valgrind --tool=callgrind`, or `perf stat`, of this
//! program with two numbers of packets; the difference is the packets'. Frames and grants cost nothing here: what is
//! counted is the rings, the journal, the switch and the copying of headers.
//!
//! Usage: packets [packets] [bytes of each]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use channel::grants::{Frames, GntStatus, Grants};
use channel::offload::checksum::Eights;
use channel::packet::Packet;
use channel::switch::{Forward, Kind, Port, PortId, Table};
use channel::vif::credit::Credit;
use channel::vif::features::Accepts;
use channel::vif::rx::{Progress, RxQueue};
use channel::vif::tx::{Take, TxQueue};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;

type Page = Arc<hv_core::evtchn::PageWords>;

struct Free;

impl Grants for Free {
    type Frame = u32;
    fn pin(&mut self, gref: u32, _: bool) -> Result<u32, GntStatus> {
        Ok(black_box(gref))
    }
    fn unpin(&mut self, gref: u32, _: bool) {
        black_box(gref);
    }
}

/// Memory that holds the same packet's begin everywhere.
struct Same([u8; 192]);

impl Frames<u32> for Same {
    fn read(&self, _: u32, _: u16, to: &mut [u8]) {
        to.copy_from_slice(&self.0[..to.len()]);
    }
    fn write(&self, _: u32, _: u16, from: &[u8]) {
        black_box(from);
    }
    fn copy(&self, from: u32, _: u16, to: u32, _: u16, len: u16) {
        black_box((from, to, len));
    }
    fn sum(&self, _: u32, _: u16, _: u16) -> Eights {
        Eights::default()
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let (nr_packets, bytes): (u32, u32) = (args.next().unwrap_or(100_000), args.next().unwrap_or(1500));
    let page = || -> Page { Arc::new(std::array::from_fn(|_| AtomicU32::new(0))) };
    let (tx_page, rx_page) = (page(), page());
    let mut tx = TxQueue::attach(tx_page.clone(), Credit::UNLIMITED).expect("fresh");
    let mut rx = RxQueue::attach(rx_page.clone(), Accepts::ALL).expect("fresh");
    let kind = Kind::Guest { any_source: false };
    let ports = [
        Port { id: PortId(0), nr_queues: 1, kind, mac: [2; 6] },
        Port { id: PortId(1), nr_queues: 1, kind, mac: [4; 6] },
    ];
    let table = Table::build(1, &ports).expect("memory");
    let mut frames = Same([0; 192]);
    frames.0[..6].fill(4);
    frames.0[6..12].fill(2);
    frames.0[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    (frames.0[23], frames.0[46]) = (6, 0x50);
    let mut packet = Packet::default();
    const BATCH: u32 = 32;
    for batch in 0..nr_packets / BATCH {
        // A blank checksum, as TCP has it.
        for i in batch * BATCH..(batch + 1) * BATCH {
            let at = 16 + (i % 256) as usize * 3;
            tx_page[at].store(i, Relaxed);
            tx_page[at + 1].store(1 << 16, Relaxed);
            tx_page[at + 2].store((i % 256) | (bytes << 16), Relaxed);
        }
        tx_page[0].store((batch + 1) * BATCH, Relaxed);
        rx_page[0].store((batch + 1) * BATCH, Relaxed);
        let mut nr_done = 0;
        while let Ok(Take::Packet(token)) = tx.take(&mut Free, &frames, 0, &mut packet) {
            let Forward::To(PortId(1)) = table.forward(PortId(0), packet.header()) else { panic!("not to the other") };
            let view = packet.view();
            rx.deliver(&mut Free, &frames, view, &mut Progress::default()).expect("room");
            tx.complete(&mut Free, token, 0).expect("waits");
            nr_done += 1;
        }
        assert_eq!(nr_done, BATCH);
        black_box(rx.push());
        black_box(tx.push());
    }
}
