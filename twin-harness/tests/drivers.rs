//! Drivers that no device is modelled of: what their twins would do, from the package's files alone.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use std::collections::BTreeSet;
use std::io::Write;
use testbed::images::kernel;
use twin_abi::Image;
use twin_harness::rig::{make, Rig};
use twin_kernel::path;
use twin_rewrite::ko;
use twin_rewrite::module::Module;
use twin_rewrite::options::Mode;

const PER_CPU: [&str; 6] =
    ["__preempt_count", "this_cpu_off", "cpu_number", "numa_node", "current_task", "softnet_data"];

/// Modules of the package's kernel; `None`, with a word on the terminal, if there is no package.
fn modules<'n>(test: &str, names: &[&'n str]) -> Option<Vec<(&'n str, Module)>> {
    let kernel = match kernel::debian() {
        Ok(kernel) => kernel,
        Err(e) => {
            // Past the test runner, which keeps what tests print.
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {e:#}");
            return None;
        }
    };
    let load = |name: &&'n str| {
        let bytes = std::fs::read(kernel.module(name).expect("a module")).expect("its file");
        // Of a per-CPU variable the address is an offset.
        let known = |symbol: &str| PER_CPU.contains(&symbol).then_some(0x2_0000);
        (*name, ko::load(&bytes, name, ko::DEFAULT_BASE, &known).expect("loaded"))
    };
    Some(names.iter().map(load).collect())
}

/// Drivers, with the functions where packets and interrupts come to them.
const DRIVERS: [(&str, &[&str]); 17] = [
    ("8139cp", &["cp_start_xmit", "cp_rx_poll", "cp_interrupt"]),
    ("8139too", &["rtl8139_start_xmit", "rtl8139_poll", "rtl8139_interrupt"]),
    ("e1000", &["e1000_xmit_frame", "e1000_clean", "e1000_intr"]),
    (
        "e1000e",
        &[
            "e1000_xmit_frame",
            "e1000e_poll",
            "e1000_intr",
            "e1000_intr_msi",
            "e1000_intr_msix_rx",
            "e1000_intr_msix_tx",
            "e1000_msix_other",
        ],
    ),
    ("igb", &["igb_xmit_frame", "igb_poll", "igb_msix_ring", "igb_msix_other", "igb_intr", "igb_intr_msi"]),
    ("igbvf", &["igbvf_xmit_frame", "igbvf_poll", "igbvf_intr_msix_rx", "igbvf_intr_msix_tx"]),
    ("igc", &["igc_xmit_frame", "igc_poll", "igc_msix_ring", "igc_msix_other", "igc_intr", "igc_intr_msi"]),
    ("ixgbe", &["ixgbe_xmit_frame", "ixgbe_poll", "ixgbe_msix_clean_rings", "ixgbe_msix_other", "ixgbe_intr"]),
    ("ixgbevf", &["ixgbevf_xmit_frame", "ixgbevf_poll", "ixgbevf_msix_clean_rings", "ixgbevf_msix_other"]),
    ("i40e", &["i40e_lan_xmit_frame", "i40e_napi_poll", "i40e_msix_clean_rings", "i40e_intr"]),
    ("iavf", &["iavf_xmit_frame", "iavf_napi_poll", "iavf_msix_clean_rings", "iavf_msix_aq"]),
    ("ice", &["ice_start_xmit", "ice_napi_poll", "ice_msix_clean_rings", "ice_misc_intr"]),
    ("r8169", &["rtl8169_start_xmit", "rtl8169_poll", "rtl8169_interrupt"]),
    (
        "tg3",
        &[
            "tg3_start_xmit",
            "tg3_poll",
            "tg3_poll_msix",
            "tg3_msi",
            "tg3_msi_1shot",
            "tg3_interrupt",
            "tg3_interrupt_tagged",
        ],
    ),
    ("virtio_net", &["start_xmit", "virtnet_poll", "virtnet_poll_tx"]),
    (
        "virtio_ring",
        &[
            "virtqueue_add_outbuf",
            "virtqueue_add_inbuf_ctx",
            "virtqueue_get_buf_ctx",
            "virtqueue_kick_prepare",
            "virtqueue_notify",
            "virtqueue_disable_cb",
            "virtqueue_enable_cb_prepare",
            "virtqueue_enable_cb_delayed",
            "vring_interrupt",
        ],
    ),
    (
        "vmxnet3",
        &[
            "vmxnet3_xmit_frame",
            "vmxnet3_poll",
            "vmxnet3_poll_rx_only",
            "vmxnet3_msix_rx",
            "vmxnet3_msix_tx",
            "vmxnet3_intr",
        ],
    ),
];

/// The calls of the domain's functions with variables' addresses in what these reach.
fn lent(module: &Module, entries: &[&str]) -> BTreeSet<(String, String)> {
    let find = |name: &&str| module.functions.iter().find(|f| f.name == **name);
    let address = |name| find(name).unwrap_or_else(|| panic!("{name}")).address;
    let found = path::lent(module, &entries.iter().map(address).collect::<Vec<_>>());
    found.into_iter().map(|lent| (lent.import, lent.function)).collect()
}

/// What drivers lend variables to, and where no packet of a guest's leads: programs of XDP, which a switch's card has
/// none of, clocks of PTP, what a card says that reports an error of the bus, and packets that a virtio device has not
/// cut and whose headers it does not name. The first three are in the twin: in another of its modules.
const ELSEWHERE: [&str; 13] = [
    "virtqueue_get_buf",
    "virtqueue_get_buf_ctx",
    "virtqueue_detach_unused_buf",
    "__skb_flow_dissect",
    "bpf_dispatcher_xdp_func",
    "xdp_do_redirect",
    "xdp_convert_zc_to_xdp_frame",
    "xdp_warn",
    "xsk_tx_peek_desc",
    "ptp_clock_event",
    "set_normalized_timespec64",
    "pci_read_config_word",
    "pci_read_config_dword",
];

#[test]
fn variables_are_lent_to_routines_only() {
    let names = DRIVERS.map(|(name, _)| name);
    let Some(modules) = modules("variables_are_lent_to_routines_only", &names) else { return };
    for ((name, module), (_, entries)) in modules.iter().zip(DRIVERS) {
        let unknown = |found: &(String, String)| !ELSEWHERE.contains(&found.0.as_str());
        let found: Vec<_> = lent(module, entries).into_iter().filter(unknown).collect();
        assert_eq!(found, [], "{name}");
        // A twin that lends one where packets are sent is not loaded.
        let in_other_module = |found: &(String, String)| *name == "virtio_net" && found.0.starts_with("virtqueue_");
        let found: Vec<_> = lent(module, &entries[..1]).into_iter().filter(|found| !in_other_module(found)).collect();
        assert_eq!(found, [], "{name}");
    }
}

/// Operands with 16 MiB or more added to a register, other than those of `lea`.
fn far(i: Instruction) -> Option<(u64, i64)> {
    let added = i.memory_displacement64() as i64;
    let has_base = !matches!(i.memory_base(), Register::None | Register::RIP);
    (i.mnemonic() != Mnemonic::Lea && has_base && added.unsigned_abs() >= 1 << 24).then_some((i.ip(), added))
}

#[test]
fn no_table_is_added_to_a_masked_index() {
    let names = ["8139cp", "8139too", "e1000", "igb", "r8169", "atl1e"];
    let Some(modules) = modules("no_table_is_added_to_a_masked_index", &names) else { return };
    let mut tables = 0;
    for (name, module) in modules {
        let text = module.sections.iter().filter(|s| s.executable);
        let originals =
            |bytes, ip| Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).into_iter().filter_map(far).count();
        tables += text.map(|s| originals(&s.bytes, s.address)).sum::<usize>();
        let made = make(&module, &Rig::options(Mode::Mirror)).expect("made");
        let image = Image::parse(&made.output.image).expect("an image");
        let found: Vec<_> =
            Decoder::with_ip(64, image.code(), 0, DecoderOptions::NONE).into_iter().filter_map(far).collect();
        assert_eq!(found, [], "{name}");
        println!("{name}: {} instructions of {}", made.output.counts.insns_out, made.output.counts.insns_in);
    }
    assert!(tables > 10, "{tables}");
}
