//! The support routines on a fake domain.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod bits;
mod copies;
mod dma;
mod foreign;
mod ipv6;
mod locks;
mod pool;
mod queue;
mod receive;
mod transmit;

use super::fake::{domain, Fake, BUFFERS, DEVICE, FRAGMENTS, SKBS, VMEMMAP};
use super::offsets::Offsets;
use super::pool::USERS;
use super::{Routine, Stop, Support};
use crate::abort::Reason;
use crate::memory::Memory;
use alloc::vec;
use alloc::vec::Vec;

fn call(name: &str, s: &Support, f: &mut Fake, args: &[u64]) -> Result<u64, Stop> {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    Routine::by_name(name).expect("native").call(s, f, &all)
}

fn structure(result: Result<u64, Stop>) -> bool {
    matches!(result, Err(Stop::Abort(Reason::Structure { .. })))
}

/// A domain that has lent so many `sk_buff`s, which are located, and nothing else.
fn domain_of_many(count: u64) -> (Fake, Support) {
    let (mut f, s) = domain(0);
    let skbs = SKBS + 0x10_0000;
    f.map(skbs, count);
    for n in 0..count {
        f.pool.lend(skbs + n * 4096, skbs + n * 4096 + 512, 2048).expect("memory");
        f.put_u32(skbs + n * 4096 + s.offsets.skb_users, USERS).expect("mapped");
        f.pool.locate(skbs + n * 4096, 0x7000);
    }
    (f, s)
}

/// So many of `all` the driver gets to receive into; the others are left to send.
fn most_received(all: u64) -> u64 {
    all - (all / 4).min(64)
}

/// The driver gets so many to receive into, and the domain frees them. Which those are.
fn taken_and_freed(f: &mut Fake, s: &Support, count: u64) -> Vec<u64> {
    let take = |_| call("__netdev_alloc_skb", s, f, &[DEVICE, 1000, 0]).expect("allocated");
    let taken: Vec<u64> = (0..count).map(take).collect();
    for skb in &taken {
        f.put_u32(skb + s.offsets.skb_users, 1).expect("mapped");
    }
    taken
}

#[test]
fn every_routine_of_the_hot_paths_is_native() {
    let e1000 = [
        "is_vmalloc_addr",
        "dma_map_page_attrs",
        "skb_clone_tx_timestamp",
        "napi_schedule_prep",
        "__napi_schedule",
        "dma_unmap_page_attrs",
        "napi_consume_skb",
        "dql_completed",
        "napi_complete_done",
        "__napi_alloc_skb",
        "dma_sync_single_for_cpu",
        "skb_put",
        "memcpy",
        "skb_trim",
        "eth_type_trans",
        "napi_gro_receive",
        "napi_build_skb",
        "__netdev_alloc_frag_align",
        "netif_schedule_queue",
        "netif_tx_wake_queue",
        "__dev_kfree_skb_any",
        "__netdev_alloc_skb",
        "__skb_pad",
    ];
    for name in e1000 {
        assert!(Routine::by_name(name).is_some(), "{name}");
    }
    for routine in Routine::ALL {
        assert_eq!(Routine::by_name(routine.name()), Some(*routine));
    }
    assert_eq!(Routine::by_name("_printk"), None);
}

#[test]
fn a_missing_member_is_named() {
    let filled = Offsets::fill(|s, m| (s != "dql" || m != "limit").then_some(0), |_| Some(0));
    assert_eq!(filled.err(), Some(("dql", "limit")));
}

/// Arguments and structures are the driver's: whatever they are, a routine returns, stops, or asks for the domain.
#[test]
fn any_arguments_and_contents_are_survived() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut done, mut stopped) = (0, 0);
    for _ in 0..60 {
        let (mut f, s) = domain(2);
        let mut objects = vec![SKBS, SKBS + 256, BUFFERS, FRAGMENTS, DEVICE, VMEMMAP];
        for _ in 0..120 {
            let routine = Routine::ALL[(random() % Routine::ALL.len() as u64) as usize];
            let args = core::array::from_fn(|_| match random() % 8 {
                0 => random(),
                1 => random() % 4096,
                2 => u64::from(u32::MAX) - random() % 16,
                _ => objects[(random() % objects.len() as u64) as usize] + random() % 3 * 8,
            });
            let at = objects[(random() % objects.len() as u64) as usize] + random() % 32 * 8;
            let value = if random() % 2 == 0 { random() } else { random() % 3000 };
            if random() % 3 == 0 {
                f.put_u64(at & !7, value).unwrap_or(());
            }
            match routine.call(&s, &mut f, &args) {
                Ok(object) if (1 << 32..u64::MAX - 4096).contains(&object) => objects.push(object & !7),
                Ok(_) => done += 1,
                Err(_) => stopped += 1,
            }
        }
    }
    assert!(done > 500 && stopped > 500, "{done} {stopped}");
}
