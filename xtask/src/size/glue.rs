//! What had to be written so that stock drivers can be used from outside their domain: lines of code by device and by
//! where they run, as the paper on driver reuse in virtual machines (figure 10) has them. Back ends, front ends and
//! drivers are Linux's own, and are not counted; nor is what a hypervisor has anyway.

use super::{count, is_tests, sources};
use anyhow::{ensure, Context, Result};
use std::fmt::Write;
use std::path::Path;

const DRIVER: usize = 0;
const HYPERVISOR: usize = 1;
const DOM0: usize = 2;
/// Where it runs. Guests have stock front ends.
const PLACES: [&str; 3] = ["driver domain", "hypervisor", "domain 0"];
const NETWORK: usize = 0;
const DISK: usize = 1;
const PCI: usize = 2;
const ALL: usize = 3;
const TWIN: usize = 4;
const RETURN: usize = 5;
/// What it is for.
const PURPOSES: [&str; 6] = ["network", "disk", "PCI", "all of these", "the driver's twin", "dies and comes back"];

/// A file or folder: where what is in it runs, and what it is for. The longest that a file is below says it.
const GLUE: [(&str, usize, usize); 40] = [
    ("channel/src", HYPERVISOR, ALL),
    ("channel/src/card", HYPERVISOR, TWIN),
    ("channel/src/flow.rs", HYPERVISOR, NETWORK),
    ("channel/src/offload", HYPERVISOR, NETWORK),
    ("channel/src/packet.rs", HYPERVISOR, NETWORK),
    ("channel/src/switch", HYPERVISOR, NETWORK),
    ("channel/src/switch.rs", HYPERVISOR, NETWORK),
    ("channel/src/vbd", HYPERVISOR, DISK),
    ("channel/src/vif", HYPERVISOR, NETWORK),
    ("control/src", DOM0, ALL),
    ("hv/src/channel", HYPERVISOR, ALL),
    ("hv/src/channel/cards.rs", HYPERVISOR, TWIN),
    ("hv/src/channel/connect.rs", HYPERVISOR, NETWORK),
    ("hv/src/channel/disk", HYPERVISOR, DISK),
    ("hv/src/channel/held.rs", HYPERVISOR, NETWORK),
    ("hv/src/channel/inlet.rs", HYPERVISOR, TWIN),
    ("hv/src/channel/look.rs", HYPERVISOR, NETWORK),
    ("hv/src/channel/pci.rs", HYPERVISOR, PCI),
    ("hv/src/channel/status.rs", HYPERVISOR, NETWORK),
    ("hv/src/channel/switch.rs", HYPERVISOR, NETWORK),
    ("hv/src/channel/traffic.rs", HYPERVISOR, NETWORK),
    ("hv/src/channel/tray.rs", HYPERVISOR, TWIN),
    ("hv/src/channel/uplink.rs", HYPERVISOR, TWIN),
    ("hv/src/channel/vif.rs", HYPERVISOR, NETWORK),
    ("images/small", DRIVER, ALL),
    ("linux", DRIVER, TWIN),
    ("tandemd/src", DOM0, ALL),
    ("tandemd/src/device.rs", DOM0, NETWORK),
    ("tandemd/src/disk", DOM0, DISK),
    ("tandemd/src/hypercall/devices.rs", DOM0, PCI),
    ("tandemd/src/hypercall/disks.rs", DOM0, DISK),
    ("tandemd/src/hypercall/domains.rs", DOM0, RETURN),
    ("tandemd/src/hypercall/snapshots.rs", DOM0, RETURN),
    ("tandemd/src/service/plug.rs", DOM0, NETWORK),
    ("tandemd/src/supervisor", DOM0, RETURN),
    ("tandemd/src/supervisor/passthrough", DOM0, PCI),
    ("tandemd/src/supervisor/passthrough.rs", DOM0, PCI),
    ("tandemd/src/supervisor/pci.rs", DOM0, PCI),
    ("twinctl/src", DOM0, ALL),
    ("twind/src", DRIVER, TWIN),
];

/// Lines of code by purpose and place.
type Table = [[usize; PLACES.len()]; PURPOSES.len()];

/// The table, in words.
pub fn table(root: &Path) -> Result<String> {
    Ok(shown(&counted(root)?))
}

fn counted(root: &Path) -> Result<Table> {
    let mut lines = Table::default();
    let folders = GLUE.iter().map(|(path, ..)| *path);
    for path in folders.clone() {
        ensure!(root.join(path).exists(), "{path}, whose lines are to be counted, is not there");
    }
    for folder in folders.clone().filter(|path| !folders.clone().any(|other| is_below(path, other))) {
        let mut files = Vec::new();
        sources(&root.join(folder), &["rs", "c", "h", "sh"], &mut files)?;
        ensure!(!files.is_empty(), "{folder} has no files with code");
        for file in files {
            let path = file.strip_prefix(root)?;
            let (place, purpose) = what(&path.to_string_lossy()).context("a file of no folder's")?;
            if !is_tests(path) {
                lines[purpose][place] += code(&file)?;
            }
        }
    }
    Ok(lines)
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Where it runs, and what it is for, if it is counted.
fn what(path: &str) -> Option<(usize, usize)> {
    let fits = GLUE.iter().filter(|(each, ..)| *each == path || is_below(path, each));
    let longest = fits.max_by_key(|(each, ..)| each.len())?;
    Some((longest.1, longest.2))
}

fn code(file: &Path) -> Result<usize> {
    let text = std::fs::read_to_string(file)?;
    let is_shell = file.extension().is_some_and(|extension| extension == "sh");
    Ok(if is_shell { of_shell(&text) } else { count(&text).code })
}

/// Lines that are neither empty nor a comment.
fn of_shell(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}

fn shown(lines: &Table) -> String {
    let row = |name: &str, cells: [usize; PLACES.len()]| {
        let mut out = format!("{name:<22}");
        for (place, cell) in PLACES.iter().zip(cells) {
            let width = place.len().max(6) + 2;
            let _ = write!(out, "{cell:>width$}");
        }
        out + &format!("{:>8}\n", cells.iter().sum::<usize>())
    };
    let mut out = format!("{:<22}", "lines of glue");
    for place in PLACES {
        let width = place.len().max(6) + 2;
        let _ = write!(out, "{place:>width$}");
    }
    out += &format!("{:>8}\n", "all");
    for (purpose, cells) in PURPOSES.iter().zip(lines) {
        out += &row(purpose, *cells);
    }
    let all = std::array::from_fn(|place| lines.iter().map(|cells| cells[place]).sum());
    out + &row("all", all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use testbed::host;

    #[test]
    fn each_file_is_of_the_longest_folder_that_it_is_below() {
        let named = |path| {
            let (place, purpose) = what(path).unwrap();
            (PLACES[place], PURPOSES[purpose])
        };
        assert_eq!(named("channel/src/vbd/disk.rs"), ("hypervisor", "disk"));
        assert_eq!(named("channel/src/ring.rs"), ("hypervisor", "all of these"));
        assert_eq!(named("channel/src/switch/hold.rs"), ("hypervisor", "network"));
        assert_eq!(named("hv/src/channel/pci.rs"), ("hypervisor", "PCI"));
        assert_eq!(named("tandemd/src/supervisor/health.rs"), ("domain 0", "dies and comes back"));
        assert_eq!(named("tandemd/src/supervisor/passthrough.rs"), ("domain 0", "PCI"));
        assert_eq!(named("tandemd/src/main.rs"), ("domain 0", "all of these"));
        assert_eq!(named("linux/include/tandem.h"), ("driver domain", "the driver's twin"));
        assert_eq!((what("linux2/main.c"), what("hv-core/src/lib.rs")), (None, None));
    }

    #[test]
    fn tests_comments_and_empty_lines_are_no_glue() {
        let root = std::env::temp_dir().join(format!("glue-{}", std::process::id()));
        for (path, ..) in GLUE {
            let path = root.join(path);
            if path.extension().is_some() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "//! doc\n\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn x() {}\n}\n").unwrap();
            } else {
                fs::create_dir_all(&path).unwrap();
            }
        }
        let write = |path: &str, text: &str| {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        };
        write("channel/src/vbd/tests.rs", "fn a() {}\n");
        write("channel/src/oracle/disk.rs", "fn a() {}\n");
        write("tandemd/src/fake_store.rs", "fn a() {}\n");
        write("images/small/init.sh", "#!/bin/sh\n# doc\n\nsay() { echo; }\nsay\n");
        write("images/small/plug.c", "/*\n * doc\n */\nint main(void)\n{\n\treturn 0;\n}\n");
        write("images/small/notes.txt", "no code\n");
        for path in ["linux/main.c", "twind/src/main.rs", "control/src/lib.rs", "twinctl/src/main.rs"] {
            write(path, "int a;\n");
        }
        let lines = counted(&root).unwrap();
        fs::remove_dir_all(root.join("linux")).unwrap();
        let missing = counted(&root).unwrap_err().to_string();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(lines[ALL][DRIVER], 2 + 4, "the script's and the program's");
        assert_eq!((lines[TWIN][DRIVER], lines[PCI][HYPERVISOR], lines[DISK][HYPERVISOR]), (2, 1, 0));
        assert_eq!((lines[ALL][DOM0], lines[PCI][DOM0]), (2, 3));
        let files = GLUE.iter().filter(|(path, ..)| path.ends_with(".rs")).count();
        assert_eq!(lines.iter().flatten().sum::<usize>(), files + 6 + 4);
        assert_eq!(missing, "linux, whose lines are to be counted, is not there");
    }

    #[test]
    fn all_that_is_counted_is_there() {
        let lines = counted(&host::root()).unwrap();
        for (purpose, place) in [
            (NETWORK, HYPERVISOR),
            (DISK, HYPERVISOR),
            (PCI, HYPERVISOR),
            (ALL, DRIVER),
            (ALL, DOM0),
            (TWIN, DRIVER),
            (TWIN, HYPERVISOR),
            (RETURN, DOM0),
        ] {
            assert!(lines[purpose][place] > 50, "{} in {}", PURPOSES[purpose], PLACES[place]);
        }
        let text = shown(&lines);
        let last: Vec<usize> =
            text.lines().last().unwrap().split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
        assert_eq!(last[3], last[..3].iter().sum::<usize>(), "{text}");
        assert!(text.lines().all(|line| line.len() == text.lines().next().unwrap().len()), "{text}");
    }
}
