//! Whether a target, as a guest's configuration has it, names a medium, or only a place where a driver domain's kernel
//! finds one.
//!
//! What lies at a place may be another medium after each boot: a kernel counts disks and controllers in the order in
//! which it finds them.

/// Names of udev's that come from what is on the medium, or from its serial number.
const BY: &[&str] = &["by-id/", "by-uuid/", "by-partuuid/", "by-label/", "by-partlabel/"];

/// As the driver domain's script reads it: below `/dev`, if it is no whole path.
pub fn names_its_medium(target: &str) -> bool {
    let name = match target.strip_prefix("/dev/") {
        Some(name) => name,
        // A file.
        None if target.starts_with('/') => return true,
        None => target,
    };
    match name.split_once('/') {
        // The kernel's own name.
        None => false,
        Some(("disk", name)) => BY.iter().any(|by| name.starts_with(by)),
        // By number; or where a network has it.
        Some(("block" | "etherd", _)) => false,
        // Those of multipath's own choice are in the order of coming, too.
        Some(("mapper", name)) => !name.starts_with("mpath"),
        // A volume group's.
        Some(_) => true,
    }
}

/// Whether a target is a file, which a driver domain's script has a loop device for; or such a device.
pub fn is_file(target: &str) -> bool {
    let is_loop = |name: &str| name.strip_prefix("loop").is_some_and(|number| number.parse::<u32>().is_ok());
    match target.strip_prefix("/dev/") {
        Some(name) => is_loop(name),
        None => target.starts_with('/') || is_loop(target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_apart_from_a_device() {
        for file in ["/srv/images/u1.img", "/dev.img", "/dev/loop3", "loop0"] {
            assert!(is_file(file), "{file}");
        }
        for device in ["/dev/sda", "vg/lv", "/dev/loops/1", "loopy", "/dev/disk/by-id/x", ""] {
            assert!(!is_file(device), "{device}");
        }
    }

    #[test]
    fn what_a_kernel_counts_names_a_place() {
        for place in [
            "/dev/sda",
            "sda",
            "/dev/nvme0n1p2",
            "/dev/dm-3",
            "/dev/md127",
            "/dev/block/8:0",
            "/dev/etherd/e0.0",
            "/dev/disk/by-path/pci-0000:00:03.0-nvme-1",
            "/dev/disk/by-diskseq/4",
            "/dev/mapper/mpatha",
            "",
        ] {
            assert!(!names_its_medium(place), "{place}");
        }
        for medium in [
            "/dev/vg/lv",
            "vg/lv",
            "/dev/mapper/vg-lv",
            "/dev/md/home",
            "/dev/disk/by-id/nvme-QEMU_1",
            "/dev/disk/by-uuid/0d6f7a52",
            "/srv/images/u1.img",
        ] {
            assert!(names_its_medium(medium), "{medium}");
        }
    }
}
