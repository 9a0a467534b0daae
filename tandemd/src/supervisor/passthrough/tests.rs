//! Devices change hands in a world of nodes, a hypervisor that refuses what it should, and Linux's files.

mod handed_over;
mod introduced;
mod resets;

use super::super::options::Options;
use super::*;
use crate::fake_store::{Asked, Nodes, Shared, World};
use std::collections::BTreeSet;
use std::path::Path;

const NIC: &str = "0000:00:03.0";
const BACK: &str = "/local/domain/0/backend/pci/8/0";

/// It answers at its ports and in its memory, and reports system errors.
const CONFIG: [u8; 8] = [0x86, 0x80, 0xd3, 0x10, 0x03, 0x01, 0x10, 0];
const METHODS: &str = "flr pm\n";
const GIVEN: &str = "/libxl/pci/0000-00-03-0/domid";

/// The store, and a file in which is looked before each change, with what it said then.
struct Looked {
    nodes: Nodes,
    file: PathBuf,
    said: Vec<String>,
}

impl Looked {
    fn in_file(nodes: Nodes, file: &Path) -> Shared<Self> {
        Shared::of(Self { nodes, file: file.into(), said: Vec::new() })
    }
}

impl World for Looked {
    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        if let Asked::Change = what {
            self.said.push(std::fs::read_to_string(&self.file).unwrap().trim().into());
        }
        Ok(())
    }
}

/// Whose the NIC is, and who may use what of it.
#[derive(Default)]
struct Machine {
    owner: Option<u16>,
    permitted: BTreeSet<(u16, String)>,
    wires: BTreeSet<(u16, u32)>,
    /// There is no IOMMU.
    is_unconfined: bool,
    /// So often it was asked to keep a link.
    keeps: u32,
    /// It does not know how the device is reset.
    is_unknown: bool,
    /// Domains, rings, ports and functions of which it was told to answer what is asked.
    answered: Vec<(u16, u32, u32, Vec<ChannelPciFunction>)>,
    /// So many calls more succeed.
    limit: Option<u32>,
}

impl Machine {
    fn call(&mut self) -> Result<(), Errno> {
        match &mut self.limit {
            Some(0) => Err(Errno::NOMEM),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Passthrough for Machine {
    fn permit(&mut self, domain: u16, what: Resource, is_allowed: bool) -> Result<(), Errno> {
        self.call()?;
        if is_allowed && self.owner.is_some_and(|owner| owner != domain) {
            return Err(Errno::BUSY);
        }
        let one = (domain, format!("{what:?}"));
        if is_allowed {
            self.permitted.insert(one);
        } else {
            self.permitted.remove(&one);
        }
        Ok(())
    }

    fn map_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno> {
        self.call()?;
        self.wires.insert((domain, wire));
        Ok(())
    }

    fn unmap_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno> {
        self.call()?;
        if self.wires.remove(&(domain, wire)) {
            Ok(())
        } else {
            Err(Errno::SRCH)
        }
    }

    fn assign(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call()?;
        assert_eq!(function, 3 << 3);
        if self.owner.is_some_and(|owner| owner != domain) {
            return Err(Errno::BUSY);
        }
        self.owner = Some(domain);
        Ok(())
    }

    fn deassign(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call()?;
        assert_eq!(function, 3 << 3);
        if self.owner != Some(domain) {
            return Err(Errno::NODEV);
        }
        self.owner = None;
        Ok(())
    }

    fn is_confined(&mut self, _: u16) -> bool {
        !self.is_unconfined
    }

    fn keep_link(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call()?;
        assert_eq!((function, self.owner), (3 << 3, Some(domain)), "before it is taken");
        self.keeps += 1;
        if self.is_unknown {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    fn answer_front(
        &mut self,
        domain: u16,
        ring: u32,
        port: u32,
        functions: &[ChannelPciFunction],
    ) -> Result<(), Errno> {
        self.call()?;
        assert_eq!(self.owner, Some(domain), "it has its devices by now");
        self.answered.push((domain, ring, port, functions.to_vec()));
        Ok(())
    }

    fn has_reset(&mut self, _: u16) -> bool {
        assert!(self.owner.is_none(), "asked before it is taken");
        !self.is_unknown
    }
}

/// Linux's files, with the NIC in the PCI back end's hands; they go with this.
struct Files(Sysfs);

impl Files {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("tandemd-{test}-{}", std::process::id()));
        let device = root.join("bus/pci/devices").join(NIC);
        let back = root.join("bus/pci/drivers/pciback");
        for folder in [&device, &back.join(NIC)] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let regions =
            "0xfebc0000 0xfebdffff 0x40200\n0xc000 0xc01f 0x40101\n0x0 0x0 0x0\n0xfebf1800 0xfebf1fff 0x200\n";
        std::fs::write(device.join("resource"), regions).unwrap();
        std::fs::write(device.join("irq"), "11\n").unwrap();
        std::fs::write(device.join("config"), CONFIG).unwrap();
        std::fs::write(device.join("reset_method"), METHODS).unwrap();
        for name in ["permissive", "unbind", "bind"] {
            std::fs::write(back.join(name), "").unwrap();
        }
        Self(Sysfs(root))
    }

    fn of_device(&self, name: &str) -> PathBuf {
        self.0 .0.join("bus/pci/devices").join(NIC).join(name)
    }

    fn back_end_heard(&self, of: &str) -> String {
        std::fs::read_to_string(self.0 .0.join("bus/pci/drivers/pciback").join(of)).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0 .0);
    }
}

fn nodes() -> Nodes {
    let mut nodes = Nodes::default();
    for (path, value) in [("/local", ""), ("/local/domain/7/name", "dd"), ("/local/domain/8/name", "dd-standby")] {
        nodes.set(path, value);
    }
    nodes
}

fn claims(said: &str) -> Vec<Claim> {
    vec![Claim { name: NIC.into(), said: said.into(), options: Options::of(said) }]
}

/// One of the domain 7's, as xl has given it.
fn given() -> (Nodes, Machine) {
    let mut nodes = nodes();
    nodes.set("/local/domain/0/backend/pci/7/0/dev-0", NIC);
    nodes.set(GIVEN, "7");
    let mut machine = Machine { owner: Some(7), ..Machine::default() };
    machine.wires.insert((7, 11));
    (nodes, machine)
}
