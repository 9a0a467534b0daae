//! The guest's first file system: busybox, the driver with what it depends on, and one script.

use crate::{words, Result};
use std::path::Path;
use testbed::images::cpio::Archive;
use testbed::images::kernel::Kernel;
use testbed::images::{initramfs, packages};

/// Printed by the guest when the snapshot may be taken.
pub const READY: &str = "SNAPSHOT-READY";
/// Printed by the guest when something it needs failed.
pub const FAILED: &str = "SNAPSHOT-FAILED";

/// What runs as the first process. Loads the driver, brings the link up, passes traffic both ways, says where things
/// are.
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

/// Builds the initramfs for `driver`, with the modules `also` beside it, at `out`.
pub fn build(kernel: &Kernel, driver: &str, also: &[&str], out: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["proc", "sys", "dev"] {
        archive.dir(dir);
    }
    let busybox = packages::unpacked("busybox-static").map_err(words)?.join("bin/busybox");
    archive.file("bin/busybox", initramfs::read(&busybox).map_err(words)?, 0o755);
    initramfs::add_modules(&mut archive, kernel, &[&[driver], also].concat()).map_err(words)?;
    for name in also {
        archive.file(&format!("wants-{name}"), Vec::new(), 0o644);
    }
    archive.file("init", INIT.into(), 0o755);
    std::fs::write(out, archive.bytes()).map_err(|e| format!("{}: {e}", out.display()))
}
