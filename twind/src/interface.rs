//! A network interface by what `/sys/class/net` says of it.

use std::fs;
use std::path::{Path, PathBuf};

/// An interface of a PCI device.
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The driver's module.
    pub module: String,
    /// The device's interrupts: the message-signalled ones if there are any, else the legacy one.
    pub irqs: Vec<u32>,
}

impl Interface {
    /// Looks at interface `name`. Errors: in words, if it is not there or none of a PCI device with a driver that is a module.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::below(Path::new("/sys/class/net"), name)
    }

    fn below(folder: &Path, name: &str) -> Result<Self, String> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(format!("`{name}` is no name of an interface"));
        }
        let interface = folder.join(name);
        if !interface.exists() {
            return Err(format!("there is no interface {name}"));
        }
        let device = interface.join("device");
        let last = |link: PathBuf| Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned());
        if last(device.join("subsystem")).as_deref() != Some("pci") {
            return Err(format!("{name} is not the interface of a PCI device"));
        }
        let driver = last(device.join("driver")).ok_or(format!("{name} has no driver"))?;
        let module = last(device.join("driver/module"))
            .ok_or(format!("driver {driver} of {name} is no module: its text is not known apart from the kernel's"))?;
        let mut irqs: Vec<u32> = fs::read_dir(device.join("msi_irqs"))
            .map(|entries| entries.flatten().filter_map(|e| e.file_name().to_string_lossy().parse().ok()).collect())
            .unwrap_or_default();
        irqs.sort_unstable();
        if irqs.is_empty() {
            let irq = fs::read_to_string(device.join("irq")).ok().and_then(|text| text.trim().parse().ok());
            irqs.push(irq.filter(|irq| *irq != 0).ok_or(format!("{name} has no interrupt"))?);
        }
        Ok(Self { name: name.into(), module, irqs })
    }
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
        assert_eq!((legacy.module.as_str(), legacy.irqs), ("e1000", vec![28]));
        fs::create_dir_all(device.join("msi_irqs")).unwrap();
        for irq in ["31", "30"] {
            fs::write(device.join("msi_irqs").join(irq), "msix").unwrap();
        }
        assert_eq!(Interface::below(&root, "eth0").unwrap().irqs, [30, 31]);
        fs::remove_dir_all(&root).unwrap();
    }
}
