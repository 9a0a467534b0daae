//! The guest's first file system: busybox, the driver with what it depends on, and one script.

use crate::packages::{run, KernelPackage};
use crate::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Printed by the guest when the snapshot may be taken.
pub const READY: &str = "SNAPSHOT-READY";
/// Printed by the guest when something it needs failed.
pub const FAILED: &str = "SNAPSHOT-FAILED";

/// What runs as the first process. Loads the driver, brings the link up, passes traffic both ways, says where things are.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
echo 0 > /proc/sys/kernel/kptr_restrict
driver=$(sed 's/.*driver=\([^ ]*\).*/\1/' /proc/cmdline)
modprobe "$driver" || echo SNAPSHOT-FAILED modprobe
for m in virtio_pci; do [ -f /wants-$m ] && modprobe $m; done
sleep 2
dev=$(ls /sys/class/net | grep -v '^lo$' | head -1)
[ -n "$dev" ] || echo SNAPSHOT-FAILED no interface
ip link set lo up; ip link set "$dev" up; ip addr add 10.0.2.15/24 dev "$dev"
for i in 1 2 3 4 5 6 7 8 9 10; do [ "$(cat /sys/class/net/$dev/carrier)" = 1 ] && break; sleep 1; done
ping -c 3 -q 10.0.2.2 || echo SNAPSHOT-FAILED ping
ping -c 60 -i 0.01 -q -s 1400 10.0.2.2
ping -c 60 -i 0.01 -q -s 40 10.0.2.2
{
 uname -r | sed 's/^/release /'; uname -v | sed 's/^/version /'; nproc | sed 's/^/cpus /'
 echo "driver $driver"; echo "netdev $dev"
 module=$(echo "$driver" | tr - _)
 for m in $(cut -d' ' -f1 /proc/modules); do
  set -- $(grep "^$m " /proc/modules); echo "module $m $6 $2"
  for s in /sys/module/$m/sections/.* /sys/module/$m/sections/*; do [ -f "$s" ] && echo "section $m ${s##*/} $(cat $s)"; done
 done
 pci=$(basename $(readlink -f /sys/class/net/$dev/device)); [ -f /sys/bus/pci/devices/$pci/resource ] || pci=$(basename $(dirname $(readlink -f /sys/class/net/$dev/device)))
 echo "pci $pci $(cat /sys/bus/pci/devices/$pci/vendor) $(cat /sys/bus/pci/devices/$pci/device) $(cat /sys/bus/pci/devices/$pci/irq)"
 while read start end flags; do [ "$start" != 0x0000000000000000 ] && echo "window $start $end $flags"; done < /sys/bus/pci/devices/$pci/resource
 for i in /sys/bus/pci/devices/$pci/msi_irqs/*; do [ -f "$i" ] && echo "msi ${i##*/}"; done
 sed 's/^/sym /' /proc/kallsyms
} > /index
gzip -1 /index
stty -F /dev/ttyS1 raw; cat /index.gz > /dev/ttyS1
sleep 1; sync; echo SNAPSHOT-READY $(wc -c < /index.gz)
while true; do sleep 1000; done
"#;

/// Builds the initramfs for `driver` at `out`.
pub fn build(kernel: &KernelPackage, driver: &str, also: &[&str], scratch: &Path, out: &Path) -> Result<()> {
    let root = scratch.join("root");
    let _ = std::fs::remove_dir_all(&root);
    let modules = root.join("lib/modules").join(&kernel.release);
    for dir in ["bin", "proc", "sys", "dev"] {
        std::fs::create_dir_all(root.join(dir)).map_err(|e| e.to_string())?;
    }
    std::fs::create_dir_all(&modules).map_err(|e| e.to_string())?;
    std::fs::copy(busybox()?, root.join("bin/busybox")).map_err(|e| format!("busybox: {e}"))?;
    for name in ["modules.builtin", "modules.order"] {
        let _ = std::fs::copy(kernel.modules().join(name), modules.join(name));
    }
    let mut wanted: Vec<&str> = vec![driver];
    wanted.extend(also);
    for file in with_dependencies(kernel, &wanted)? {
        let to = modules.join(file.file_name().unwrap_or_default());
        std::fs::copy(&file, to).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    for name in also {
        std::fs::write(root.join(format!("wants-{name}")), "").map_err(|e| e.to_string())?;
    }
    run(Command::new("busybox").args(["depmod", "-b"]).arg(&root).arg(&kernel.release))?;
    std::fs::write(root.join("init"), INIT).map_err(|e| e.to_string())?;
    run(Command::new("sh")
        .arg("-c")
        .arg("chmod 755 init && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet | gzip -1n > \"$1\"")
        .arg("sh")
        .arg(out)
        .current_dir(&root))?;
    Ok(())
}

fn busybox() -> Result<PathBuf> {
    ["/usr/bin/busybox", "/bin/busybox"]
        .iter()
        .map(PathBuf::from)
        .find(|p| p.exists())
        .ok_or("busybox is missing: install the package busybox-static".into())
}

/// The modules and, through their `depends=` lines, all that they need.
fn with_dependencies(kernel: &KernelPackage, wanted: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeMap::new();
    let mut queue: Vec<String> = wanted.iter().map(|w| w.to_string()).collect();
    while let Some(name) = queue.pop() {
        if files.contains_key(&name) {
            continue;
        }
        let file = kernel.module(&name)?;
        let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        queue.extend(depends(&bytes));
        files.insert(name, file);
    }
    Ok(files.into_values().collect())
}

/// The `depends=` list in a module's information section.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|w| w == key) else { return Vec::new() };
    let rest = &module[at + key.len()..];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn dependencies_are_read_from_the_information_section() {
        assert_eq!(depends(b"x\0depends=mii,crc32\0y"), ["mii", "crc32"]);
        assert!(depends(b"x\0depends=\0y").is_empty());
        assert!(depends(b"nothing").is_empty());
    }
}
