//! Who has a disk of domain 0's open in a way that no list of the kernel's names, and that keeps nobody else from
//! opening it: a back end that serves it to a guest, a loop device, a target of NVMe over fabrics or of SCSI, or a
//! process.
//!
//! Linux' blkback opens its device without a holder (drivers/block/xen-blkback/xenbus.c), so it is in no `holders`, and
//! can be opened with O_EXCL beside. What it serves it tells in sysfs.

use rustix::fs::{major, minor};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A device's number: major and minor.
pub type Number = (u32, u32);

/// Back ends of domain 0's: `TYPE-DOMID-HANDLE`.
const BACK_ENDS: &str = "sys/bus/xen-backend/devices";
/// What loop devices are of: files, or disks.
const LOOP_DEVICES: &str = "sys/class/block";
/// Namespaces of the kernel's NVMe target, and backstores of its SCSI target: where they are, how many directories lead
/// there, and what names the disk.
const TARGETS: [(&str, usize, &str, &str); 2] = [
    ("sys/kernel/config/nvmet/subsystems", 3, "device_path", "exported by NVMe over fabrics"),
    ("sys/kernel/config/target/core", 2, "udev_path", "exported by SCSI"),
];
/// Files of processes that are looked at, at most: a machine with more of them is not to wait for that.
const MOST_FILES: usize = 200_000;
/// What looks at each disk that comes, and has it open for moments.
const PROBES: [&str; 3] = ["(udev-worker)", "systemd-udevd", "udevd"];

/// As sysfs says it of a disk (`dev`), in decimal.
pub fn number_in(said: &str) -> Option<Number> {
    let (major, minor) = said.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The guest to which domain 0 serves the device of this number, in words; `root` has `sys`.
pub fn guest_of(root: &Path, number: Number) -> Option<String> {
    let all = std::fs::read_dir(root.join(BACK_ENDS)).ok()?.flatten();
    let mut served = all.filter(|back| {
        let said = std::fs::read_to_string(back.path().join("physical_device"));
        said.is_ok_and(|said| number_of_back(&said) == Some(number))
    });
    let name = served.next()?.file_name().into_string().ok()?;
    let mut parts = name.rsplitn(3, '-');
    Some(match (parts.next(), parts.next()) {
        (Some(handle), Some(domain)) => format!("is served to domain {domain} by domain 0, as its vbd {handle}"),
        _ => format!("is served to a guest by domain 0 ({name})"),
    })
}

/// What of domain 0's kernel has the disk of this name open without being a holder of it, in words; `root` has `sys`
/// and `dev`.
pub fn kernel_user_of(root: &Path, disk: &str) -> Option<String> {
    let is_it = |file: PathBuf| {
        let said = std::fs::read_to_string(file).unwrap_or_default();
        is_disk(root, said.trim_end_matches('\n'), disk)
    };
    let own_name = |place: &PathBuf| place.file_name().map(|name| name.to_string_lossy().into_owned());
    let looped = entries(&root.join(LOOP_DEVICES)).into_iter().find(|place| is_it(place.join("loop/backing_file")));
    if let Some(name) = looped.as_ref().and_then(own_name) {
        return Some(format!("is the loop device {name}"));
    }
    TARGETS.into_iter().find_map(|(top, levels, file, how)| {
        let places = (0..levels)
            .fold(vec![root.join(top)], |places, _| places.iter().flat_map(|place| entries(place)).collect());
        let place = places.into_iter().find(|place| is_it(place.join(file)))?;
        let below = place.strip_prefix(root.join(top)).ok()?.display().to_string();
        Some(format!("is {how} ({below})"))
    })
}

fn entries(place: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Whether this path, or what it leads to, is the disk of this name.
fn is_disk(root: &Path, path: &str, disk: &str) -> bool {
    let Some(below) = path.strip_prefix("/dev/") else { return false };
    let dev = root.join("dev");
    below == disk || std::fs::canonicalize(dev.join(below)).is_ok_and(|to| to.ends_with(Path::new("dev").join(disk)))
}

/// As blkback says it, in hex.
fn number_of_back(said: &str) -> Option<Number> {
    let (major, minor) = said.trim().split_once(':')?;
    let hex = |text| u32::from_str_radix(text, 16).ok();
    Some((hex(major)?, hex(minor)?))
}

/// The first other process that has one of these devices open, and which of them; `root` has `proc`. What cannot be
/// read is nobody's.
pub fn process_of(root: &Path, numbers: &[Number]) -> Option<(usize, String)> {
    find(root, numbers, |file| {
        let told = std::fs::metadata(file).ok().filter(|told| told.file_type().is_block_device())?;
        Some((major(told.rdev()), minor(told.rdev())))
    })
}

/// `number_of` gives the number of the disk that an open file is.
fn find(root: &Path, numbers: &[Number], number_of: impl Fn(&Path) -> Option<Number>) -> Option<(usize, String)> {
    let own = std::process::id();
    let mut nr_files = 0;
    for process in std::fs::read_dir(root.join("proc")).ok()?.flatten() {
        let id = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(id) = id.filter(|id| *id != own) else { continue };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            nr_files += 1;
            if nr_files > MOST_FILES {
                return None;
            }
            // Nothing else is asked for: a file may be on a server that does not answer.
            if !std::fs::read_link(file.path()).is_ok_and(|to| to.starts_with("/dev")) {
                continue;
            }
            let which = number_of(&file.path()).and_then(|number| numbers.iter().position(|one| *one == number));
            let Some(which) = which else { continue };
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            if !PROBES.contains(&name.trim()) {
                return Some((which, format!("is open in {} (process {id})", name.trim())));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Root(PathBuf);

    impl Root {
        fn new(of: &str) -> Self {
            Self(std::env::temp_dir().join(format!("tandemd-openers-{of}-{}", std::process::id())))
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// A process of this name that has these files open.
        fn runs(&self, process: u32, name: &str, files: &[&str]) {
            self.write(&format!("proc/{process}/comm"), &format!("{name}\n"));
            let place = self.0.join(format!("proc/{process}/fd"));
            std::fs::create_dir_all(&place).unwrap();
            files.iter().enumerate().for_each(|(n, file)| symlink(file, place.join(n.to_string())).unwrap());
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn numbers_are_in_decimal_and_in_hex() {
        assert_eq!((number_in("8:16\n"), number_of_back("8:10\n")), (Some((8, 16)), Some((8, 16))));
        assert_eq!((number_in("259:0"), number_of_back("103:0")), (Some((259, 0)), Some((259, 0))));
        assert_eq!((number_in(""), number_of_back("x:y")), (None, None));
    }

    #[test]
    fn who_serves_a_disk_to_a_guest_is_found() {
        let root = Root::new("serves");
        assert_eq!(guest_of(&root.0, (8, 16)), None, "there is no back end");
        root.write("sys/bus/xen-backend/devices/vif-5-0/devtype", "vif");
        root.write("sys/bus/xen-backend/devices/vbd-5-51712/physical_device", "8:10\n");
        assert_eq!(guest_of(&root.0, (8, 16)).unwrap(), "is served to domain 5 by domain 0, as its vbd 51712");
        assert_eq!(guest_of(&root.0, (8, 10)), None, "that would be it in decimal");
    }

    #[test]
    fn a_disk_that_the_kernel_exports_is_found() {
        let root = Root::new("exports");
        let found = || kernel_user_of(&root.0, "sda1");
        assert_eq!(found(), None, "there is nothing of that");
        root.write("dev/sda1", "");
        std::fs::create_dir_all(root.0.join("dev/disk/by-id")).unwrap();
        symlink("../../sda1", root.0.join("dev/disk/by-id/ata-x")).unwrap();
        let nvme = "sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1/device_path";
        root.write(nvme, "/dev/sda\n");
        root.write("sys/kernel/config/target/core/fileio_0/file/udev_path", "/srv/sda1\n");
        root.write("sys/kernel/config/target/core/iblock_0/hba_info", "");
        assert_eq!(found(), None, "they are others");
        root.write(nvme, "/dev/disk/by-id/ata-x\n");
        assert_eq!(found().unwrap(), "is exported by NVMe over fabrics (nqn.x/namespaces/1)");
        root.write(nvme, "(null)\n");
        root.write("sys/kernel/config/target/core/iblock_0/one/udev_path", "/dev/sda1\n");
        assert_eq!(found().unwrap(), "is exported by SCSI (iblock_0/one)");
    }

    #[test]
    fn a_process_that_has_a_disk_open_is_found() {
        let root = Root::new("open");
        // By where their links lead.
        let number = |file: &Path| {
            let to = std::fs::read_link(file).unwrap();
            assert!(to.starts_with("/dev"), "{} is not asked for", to.display());
            [("/dev/sda", (8, 0)), ("/dev/sda1", (8, 1))]
                .into_iter()
                .find(|(name, _)| to == Path::new(name))
                .map(|o| o.1)
        };
        let found = || find(&root.0, &[(8, 0), (8, 1)], number);
        assert_eq!(found(), None);
        root.write("proc/self/comm", "us");
        root.runs(std::process::id(), "tandemd", &["/dev/sda"]);
        root.runs(7, "bash", &["/dev/null", "/srv/sda1"]);
        root.runs(8, "(udev-worker)", &["/dev/sda"]);
        assert_eq!(found(), None, "it looks at it for a moment");
        root.runs(9, "qemu-system-i38", &["/dev/null", "/dev/sda1"]);
        assert_eq!(found(), Some((1, "is open in qemu-system-i38 (process 9)".into())));
    }
}
