//! What a device may reach, and what the domain copies for it.

use super::call;
use crate::linux::fake::{domain, BUFFERS, DEVICE, VMEMMAP};
use crate::linux::Stop;

#[test]
fn dma_mapping_gives_machine_addresses_of_contiguous_buffers() {
    let (mut f, mut s) = domain(2);
    let page = VMEMMAP + 7 * 64;
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page, 0x234, 100, 1]), Ok(0x100_7234));
    f.foreign.insert(8);
    assert_eq!(
        call("dma_map_page_attrs", &s, &mut f, &[0, page, 0x800, 0x800, 1]),
        Ok(0x100_7800),
        "ends with the page"
    );
    assert_eq!(
        call("dma_map_page_attrs", &s, &mut f, &[0, page, 0x801, 0x800, 1]),
        Ok(u64::MAX),
        "reaches a foreign page"
    );
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page + 1, 0, 1, 1]), Ok(u64::MAX), "no page structure");
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, 0x1000, 0, 1, 1]), Ok(u64::MAX), "below the map");
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page, 0, u64::MAX, 1]), Ok(u64::MAX));
    s.dma_limit = 0x100_7100;
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page, 0, 0x101, 1]), Ok(u64::MAX), "beyond the device");
    f.can_wait = true;
    for (page, offset, bytes) in [(page, 0, 0x101), (page, 0x801, 0x800)] {
        let asked = call("dma_map_page_attrs", &s, &mut f, &[0, page, offset, bytes, 1]);
        assert_eq!(asked, Err(Stop::Upcall), "the domain copies");
    }
    assert_eq!(call("is_vmalloc_addr", &s, &mut f, &[0xffff_c900_0000_1000]), Ok(1));
    assert_eq!(call("is_vmalloc_addr", &s, &mut f, &[BUFFERS]), Ok(0));
}

#[test]
fn what_the_domain_has_copied_it_copies_back() {
    let (mut f, s) = domain(1);
    f.bounced = Some(0x5000);
    for name in ["dma_unmap_page_attrs", "dma_sync_single_for_cpu", "dma_sync_single_for_device"] {
        assert_eq!(call(name, &s, &mut f, &[DEVICE, 0x5000, 100, 2]), Err(Stop::Upcall), "{name}");
        assert_eq!(call(name, &s, &mut f, &[DEVICE, 0x6000, 100, 2]), Ok(0), "{name}");
    }
}
