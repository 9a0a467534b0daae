//! Buffers and pages of the domain's own.

use super::call;
use crate::linux::fake::{domain, Event, DEVICE, VMEMMAP};
use crate::linux::skb::MOST_FOREIGN;
use crate::linux::{Foreign, Stop};
use crate::memory::Memory;
use alloc::vec;

#[test]
fn buffers_of_the_domain_are_left_to_it() {
    let (mut f, s) = domain(1);
    let skb = call("napi_build_skb", &s, &mut f, &[DEVICE + 0x1000, 1024]).expect("built");
    call("napi_consume_skb", &s, &mut f, &[skb, 1]).expect("freed");
    call("__dev_kfree_skb_any", &s, &mut f, &[DEVICE, 1]).expect("handed over");
    assert_eq!(f.events, [Event::Free(Foreign::Fragment(DEVICE + 0x1000)), Event::Free(Foreign::Skb(DEVICE))]);
    assert_eq!(f.pool.free(), (1, 1, 1), "the bare sk_buff is home");
}

#[test]
fn references_to_pages_of_the_domain_are_given_up_but_for_the_last() {
    let (mut f, s) = domain(1);
    let page = VMEMMAP + 6 * 64;
    let data = s.kernel.page_offset + 6 * 4096;
    f.put_u32(page + 52, 3).expect("mapped");
    // The next page is a part of the same allocation.
    f.put_u64(page + 64 + 8, page + 1).expect("mapped");
    call("page_frag_free", &s, &mut f, &[data + 2048]).expect("given up");
    assert_eq!((f.u32(page + 52), f.events.len()), (Ok(2), 0));
    call("page_frag_free", &s, &mut f, &[data + 4096]).expect("given up");
    assert_eq!((f.u32(page + 52), f.events.len()), (Ok(1), 0));
    call("page_frag_free", &s, &mut f, &[data]).expect("left to the domain");
    assert_eq!((f.u32(page + 52), f.events), (Ok(1), vec![Event::Free(Foreign::Fragment(data))]));
}

#[test]
fn pieces_of_a_packet_are_given_up_with_it() {
    let (mut f, s) = domain(1);
    let page = VMEMMAP + 5 * 64;
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
    f.put_u8(info + 2, 2).expect("mapped");
    f.put_u64(info + 48, page).expect("mapped");
    f.put_u64(info + 64, VMEMMAP).expect("mapped");
    f.put_u32(page + 52, 2).expect("mapped");
    f.put_u32(VMEMMAP + 52, 1).expect("mapped");
    call("__dev_kfree_skb_any", &s, &mut f, &[skb, 1]).expect("freed");
    assert_eq!((f.u32(page + 52), f.u32(VMEMMAP + 52)), (Ok(1), Ok(1)));
    assert_eq!(f.events, [Event::Free(Foreign::Fragment(s.kernel.page_offset))]);
    assert_eq!(f.pool.free(), (1, 1, 1));
}

/// The host has room for so much.
#[test]
fn no_packet_leaves_more_to_the_domain() {
    for name in ["__dev_kfree_skb_any", "netif_receive_skb"] {
        let (mut f, s) = domain(1);
        let page = VMEMMAP + 5 * 64;
        f.put_u32(page + 52, 1).expect("mapped");
        f.map(s.kernel.page_offset + 5 * 4096, 1);
        let skb = call("napi_build_skb", &s, &mut f, &[s.kernel.page_offset + 5 * 4096, 2048]).expect("built");
        call("skb_put", &s, &mut f, &[skb, 100]).expect("room");
        call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
        let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
        f.put_u8(info + 2, 17).expect("mapped");
        (0..17).for_each(|n| f.put_u64(info + 48 + 16 * n, page).expect("mapped"));
        call(name, &s, &mut f, &[skb, 1]).expect("done");
        let left = f.events.iter().filter(|event| matches!(event, Event::Free(_))).count();
        assert_eq!(left, MOST_FOREIGN, "{name}");
    }
}

#[test]
fn a_page_that_is_cut_up_is_used_to_its_end() {
    let (mut f, s) = domain(1);
    let (fragment, page) = (DEVICE + 0xa00, VMEMMAP + 3 * 64);
    assert_eq!(call("skb_page_frag_refill", &s, &mut f, &[1500, fragment, 0]), Err(Stop::Upcall), "no page");
    f.put_u64(fragment, page).expect("mapped");
    f.put_u32(fragment + 12, 4096).expect("mapped");
    f.put_u32(page + 52, 2).expect("mapped");
    for (offset, wanted) in [(0, Ok(1)), (2596, Ok(1)), (2597, Err(Stop::Upcall)), (u32::MAX, Err(Stop::Upcall))] {
        f.put_u32(fragment + 8, offset).expect("mapped");
        assert_eq!(call("skb_page_frag_refill", &s, &mut f, &[1500, fragment, 0]), wanted, "{offset}");
    }
    f.put_u32(page + 52, 1).expect("mapped");
    assert_eq!(call("skb_page_frag_refill", &s, &mut f, &[1500, fragment, 0]), Ok(1));
    assert_eq!(f.u32(fragment + 8), Ok(0), "nobody else has it: from the start");
}
