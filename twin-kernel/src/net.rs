//! Finds a network driver's objects by symbols and type information.

use crate::btf::Btf;
use crate::{LiveKernel, Result};
use std::ops::Range;

const PAGE: u64 = 4096;

/// A network interface and what hangs on it.
#[derive(Debug, Clone, Default)]
pub struct NetDevice {
    /// Address of `struct net_device`.
    pub address: u64,
    /// The driver's private part.
    pub private: u64,
    /// Transmit function.
    pub start_xmit: u64,
    /// First transmit queue.
    pub tx_queue: u64,
    /// NAPI contexts: address and poll function.
    pub napi: Vec<(u64, u64)>,
    /// Interrupt handlers: number, handler, its argument.
    pub irqs: Vec<(u32, u64, u64)>,
    /// Station address.
    pub mac: [u8; 6],
}

/// The interrupts of an interface's device.
#[derive(Debug, Clone, Copy)]
pub struct Interrupts<'a> {
    /// Their numbers.
    pub numbers: &'a [u32],
    /// They are messages, which devices do not share.
    pub are_messages: bool,
    /// The modules of the device's drivers: a device may stand on another one, as virtio's do.
    pub drivers: &'a [String],
}

/// The type information of the kernel, with that of the module on top.
pub fn types(s: &impl LiveKernel) -> Result<Btf> {
    const NONE: &str = "the kernel has no type information: it was built without CONFIG_DEBUG_INFO_BTF";
    let start = s.symbol("__start_BTF").ok_or(NONE)?;
    let end = s.symbol("__stop_BTF").ok_or(NONE)?;
    let mut base = vec![0; usize::try_from(end - start).map_err(|e| e.to_string())?];
    s.read(start, &mut base).ok_or("the kernel's type information is not mapped")?;
    Btf::parse(&base, None)
}

/// Finds interface `name`, and the handlers of its interrupts `irqs`.
pub fn net_device(s: &impl LiveKernel, t: &Btf, name: &str, irqs: &Interrupts<'_>) -> Result<NetDevice> {
    let at = |what: &str, address: u64| s.read_int(address, 8).ok_or(format!("{what} at {address:#x} is not mapped"));
    let net = s.symbol("init_net").ok_or("no symbol init_net")?;
    let head = net + t.offset("net", "dev_base_head")?;
    let mut link = at("interface list", head)?;
    for _ in 0..256 {
        if link == head {
            break;
        }
        let dev = link - t.offset("net_device", "dev_list")?;
        if s.read_name(dev + t.offset("net_device", "name")?).as_deref() == Some(name) {
            return describe(s, t, dev, irqs);
        }
        link = at("interface list", link)?;
    }
    Err(format!("the kernel has no interface {name}"))
}

fn describe(s: &impl LiveKernel, t: &Btf, dev: u64, irqs: &Interrupts<'_>) -> Result<NetDevice> {
    let at = |address: u64| s.read_int(address, 8).ok_or(format!("{address:#x} is not mapped"));
    let ops = at(dev + t.offset("net_device", "netdev_ops")?)?;
    let mut out = NetDevice {
        address: dev,
        private: dev + t.size("net_device")?.next_multiple_of(32),
        start_xmit: at(ops + t.offset("net_device_ops", "ndo_start_xmit")?)?,
        tx_queue: at(dev + t.offset("net_device", "_tx")?)?,
        ..NetDevice::default()
    };
    let head = dev + t.offset("net_device", "napi_list")?;
    let mut link = at(head)?;
    while link != head && out.napi.len() < 64 {
        let napi = link - t.offset("napi_struct", "dev_list")?;
        out.napi.push((napi, at(napi + t.offset("napi_struct", "poll")?)?));
        link = at(link)?;
    }
    let mac = at(dev + t.offset("net_device", "dev_addr")?)?;
    s.read(mac, &mut out.mac).ok_or("the station address is not mapped")?;
    // The allocation is of more than half a page, so it has the page in which the private part begins to itself.
    let own = dev..(out.private + 1).next_multiple_of(PAGE);
    for &number in irqs.numbers {
        let actions = irq_actions(s, t, number, irqs)?;
        let chosen = if irqs.are_messages { actions.first().copied() } else { own_action(&actions, number, &own)? };
        if let Some((handler, argument)) = chosen {
            out.irqs.push((number, handler, argument));
        }
    }
    Ok(out)
}

/// Of these handlers of one driver's on line `number`, each with its argument, that of the interface whose driver's
/// data begin at `own`. Cards of one kind may share a line: then it is the one whose argument lies there. Errors: it is
/// none, or several do.
pub(crate) fn own_action(actions: &[(u64, u64)], number: u32, own: &Range<u64>) -> Result<Option<(u64, u64)>> {
    if actions.len() < 2 {
        return Ok(actions.first().copied());
    }
    let mut fitting = actions.iter().filter(|(_, argument)| own.contains(argument));
    match (fitting.next(), fitting.next()) {
        (Some(action), None) => Ok(Some(*action)),
        _ => Err(format!(
            "its driver has {} handlers on interrupt {number}, of several cards, and which of them is this card's is not known",
            actions.len()
        )),
    }
}

/// The handlers of interrupt `number`, with their arguments. That of a message may be in a module that serves many
/// drivers; a line others may share, so there it has to be in a module of the device's own drivers. The kernel keeps
/// its descriptors in a radix tree, where the actions are looked up.
fn irq_actions(s: &impl LiveKernel, t: &Btf, number: u32, irqs: &Interrupts<'_>) -> Result<Vec<(u64, u64)>> {
    let tree = s.symbol("irq_desc_tree").ok_or("no symbol irq_desc_tree")?;
    let read = |address: u64| s.read_int(address, 8).ok_or(format!("{address:#x} is not mapped"));
    let mut node = read(tree + t.offset("xarray", "xa_head")?)?;
    let slots = t.offset("xa_node", "slots")?;
    // An internal node is marked by binary 10 in its low bits; `shift` says which bits of the index it resolves.
    while node & 3 == 2 && node > 4096 {
        let table = node - 2;
        let shift = s.read_int(table, 1).ok_or("radix tree node not mapped")?;
        node = read(table + slots + (u64::from(number) >> shift & 63) * 8)?;
    }
    let mut found = Vec::new();
    if node == 0 {
        return Ok(found);
    }
    let mut action = read(node + t.offset("irq_desc", "action")?)?;
    for _ in 0..MOST_SHARED {
        if action == 0 {
            break;
        }
        let handler = read(action + t.offset("irqaction", "handler")?)?;
        let is_own = |module: &str| irqs.drivers.iter().any(|own| own == module);
        if irqs.are_messages || s.module_of(handler).is_some_and(is_own) {
            found.push((handler, read(action + t.offset("irqaction", "dev_id")?)?));
        }
        action = read(action + t.offset("irqaction", "next")?)?;
    }
    Ok(found)
}

/// More devices do not share an interrupt.
const MOST_SHARED: usize = 64;
