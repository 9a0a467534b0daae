//! A network interface by what `/sys/class/net` says of it.

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{bind, socket_with, AddressFamily, SocketFlags, SocketType};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use twin_kernel::net::Interrupts;

/// An interface of a PCI device.
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number, which no other interface gets when this one is renamed.
    pub number: u32,
    /// The modules of the drivers: of the interface's device, and of those on which that stands, up to the PCI device.
    pub drivers: Vec<String>,
    /// The device's interrupts: the message-signalled ones if there are any, else the legacy one.
    pub irqs: Vec<u32>,
    /// They are the message-signalled ones.
    pub are_messages: bool,
}

impl Interface {
    /// Looks at interface `name`. Errors: in words, if it is not there or none of a PCI device with a driver that is a
    /// module.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::below(Path::new("/sys/class/net"), name)
    }

    fn below(folder: &Path, name: &str) -> Result<Self, String> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(format!("`{name}` is no name of an interface"));
        }
        let interface = folder.join(name);
        let no_interface = || format!("there is no interface {name}");
        let number = fs::read_to_string(interface.join("ifindex")).map_err(|_| no_interface())?;
        let number = number.trim().parse().map_err(|_| no_interface())?;
        let last = |link: PathBuf| Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned());
        let no_device = || format!("{name} is not the interface of a PCI device");
        let mut device = fs::canonicalize(interface.join("device")).map_err(|_| no_device())?;
        let mut drivers = Vec::new();
        loop {
            let bus = last(device.join("subsystem")).ok_or_else(no_device)?;
            if let Some(driver) = last(device.join("driver")) {
                drivers.push(last(device.join("driver/module")).ok_or(format!(
                    "driver {driver} of {name} is no module: its text is not known apart from the kernel's"
                ))?);
            }
            if bus == "pci" {
                break;
            }
            device = device.parent().ok_or_else(no_device)?.into();
        }
        if drivers.is_empty() {
            return Err(format!("{name} has no driver"));
        }
        let mut irqs: Vec<u32> = fs::read_dir(device.join("msi_irqs"))
            .map(|entries| entries.flatten().filter_map(|e| e.file_name().to_string_lossy().parse().ok()).collect())
            .unwrap_or_default();
        irqs.sort_unstable();
        let are_messages = !irqs.is_empty();
        if !are_messages {
            let irq = fs::read_to_string(device.join("irq")).ok().and_then(|text| text.trim().parse().ok());
            irqs.push(irq.filter(|irq| *irq != 0).ok_or(format!("{name} has no interrupt"))?);
        }
        Ok(Self { name: name.into(), number, drivers, irqs, are_messages })
    }

    /// The interrupts, for who looks for their handlers.
    pub fn interrupts(&self) -> Interrupts<'_> {
        Interrupts { numbers: &self.irqs, are_messages: self.are_messages, drivers: &self.drivers }
    }
}

/// Waits until there is an interface of this name of a PCI device, with a driver. Errors: in words.
pub fn wait_for(name: &str) -> Result<(), String> {
    let news = link_news().map_err(|error| format!("the kernel does not tell of interfaces: {error}"))?;
    while Interface::named(name).is_err() {
        match poll(&mut [PollFd::new(&news, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("cannot wait for {name}: {error}")),
        }
        // What the news is, is looked at above. More than the socket holds (NOBUFS) is news, too.
        while matches!(rustix::io::read(&news, &mut [0; 4096]), Ok(_) | Err(Errno::NOBUFS)) {}
    }
    Ok(())
}

/// May be read when interfaces come or change.
fn link_news() -> Result<OwnedFd, Errno> {
    /// RTMGRP_LINK (Linux, include/uapi/linux/rtnetlink.h).
    const LINKS: u32 = 1;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol is that of routes and links (NETLINK_ROUTE).
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_interfaces_of_pci_devices_with_a_module_will_do() {
        let root = std::env::temp_dir().join(format!("twind-net-{}", std::process::id()));
        let device = root.join("eth0/device");
        fs::create_dir_all(device.join("driver")).unwrap();
        fs::create_dir_all(root.join("lo")).unwrap();
        for (name, number) in [("eth0", "5\n"), ("lo", "1\n")] {
            fs::write(root.join(name).join("ifindex"), number).unwrap();
        }
        let refused = |name: &str| Interface::below(&root, name).map(|_| ()).expect_err("refused");
        assert!(refused("eth1").contains("no interface eth1") && refused("../x").contains("no name"));
        assert!(refused("lo").contains("not the interface of a PCI device"));
        symlink("/sys/bus/pci", device.join("subsystem")).unwrap();
        assert!(refused("eth0").contains("no driver"));
        fs::remove_dir(device.join("driver")).unwrap();
        fs::create_dir_all(root.join("drivers/e1000")).unwrap();
        symlink(root.join("drivers/e1000"), device.join("driver")).unwrap();
        assert!(refused("eth0").contains("is no module"));
        symlink("/sys/module/e1000", root.join("drivers/e1000/module")).unwrap();
        assert!(refused("eth0").contains("no interrupt"));
        fs::write(device.join("irq"), "28\n").unwrap();
        let legacy = Interface::below(&root, "eth0").unwrap();
        assert_eq!(legacy.number, 5);
        assert_eq!((legacy.drivers, legacy.irqs, legacy.are_messages), (vec!["e1000".into()], vec![28], false));
        fs::create_dir_all(device.join("msi_irqs")).unwrap();
        for irq in ["31", "30"] {
            fs::write(device.join("msi_irqs").join(irq), "msix").unwrap();
        }
        let messages = Interface::below(&root, "eth0").unwrap();
        assert_eq!((messages.irqs, messages.are_messages), (vec![30, 31], true));
        // A device that stands on the PCI device.
        let above = device.join("virtio0");
        fs::create_dir_all(root.join("drivers/virtio_net")).unwrap();
        fs::create_dir_all(root.join("eth2")).unwrap();
        fs::write(root.join("eth2/ifindex"), "6\n").unwrap();
        fs::create_dir_all(&above).unwrap();
        symlink("/sys/bus/virtio", above.join("subsystem")).unwrap();
        symlink(root.join("drivers/virtio_net"), above.join("driver")).unwrap();
        symlink("/sys/module/virtio_net", root.join("drivers/virtio_net/module")).unwrap();
        symlink(&above, root.join("eth2/device")).unwrap();
        let upper = Interface::below(&root, "eth2").unwrap();
        assert_eq!((upper.drivers, upper.irqs), (vec!["virtio_net".into(), "e1000".into()], vec![30, 31]));
        fs::remove_dir_all(&root).unwrap();
    }
}
