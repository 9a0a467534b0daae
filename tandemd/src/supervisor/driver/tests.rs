use super::*;

fn settings(lines: &str) -> Settings {
    toml::from_str(lines).unwrap()
}

fn own(lines: &str) -> Own {
    Own::of(&settings(lines)).unwrap().unwrap()
}

const CARD: &str = "device = \"network\"\nkernel = \"/boot/vmlinuz\"\n";

#[test]
fn what_a_section_says_is_what_the_toolstack_is_told() {
    let (own, nets) = (own(CARD), ["lab".to_string(), "net".to_string()]);
    let text = own.text("net", "dd", &nets, &[claim_of("0000:03:00.0")], 4);
    let expected = "\
# Made by tandemd of [service.net.supervise], and made again: what is changed here is lost.
type=\"pv\"
name=\"dd\"
memory=256
vcpus=1
kernel=\"/boot/vmlinuz\"
extra=\"console=hvc0 iommu=soft swiotlb=4096 oops=panic panic=1\"
pci=[\"0000:03:00.0,permissive=1\"]
vif=[\"backend=lab\", \"backend=net\"]
driver_domain=1
";
    assert_eq!(text, expected);
    let own = super::tests::own(
        "device = [\"nvme\", \"03:00.1\"]\nkernel = \"/k\"\nramdisk = \"/r\"\nextra = \"quiet\"\nmemory-mib = 88\nvcpus = 2\ntwin = true",
    );
    let text = own.text("disk", "dd-disk", &[], &["0000:02:00.0", "0000:03:00.1"].map(claim_of), 4);
    for line in [
        "name=\"dd-disk\"",
        "memory=88",
        "vcpus=2",
        "maxvcpus=6",
        "ramdisk=\"/r\"",
        "extra=\"quiet\"",
        "pci=[\"0000:02:00.0,permissive=1\", \"0000:03:00.1,permissive=1\"]",
    ] {
        assert!(text.lines().any(|there| there == line), "{line} is not in {text}");
    }
    assert!(!text.contains("vif"), "{text}");
}

#[test]
fn what_the_toolstack_is_told_is_read_back() {
    let text = own(CARD).text("net", "dd", &["net".to_string()], &[claim_of("0000:03:00.0")], 1);
    let path = std::env::temp_dir().join(format!("tandemd-driver-{}.cfg", std::process::id()));
    let _ = std::fs::remove_file(&path);
    write(&path, &text).unwrap();
    let claims = settings(&format!("config = \"{}\"\nstandby = 1", path.display())).claims("dd").unwrap();
    assert_eq!(claims, [claim_of("0000:03:00.0")]);
    assert!(claims[0].options.is_some_and(|options| options.is_permissive), "it changes hands without xl");
    let at = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let before = at(&path);
    write(&path, &text).unwrap();
    assert_eq!(at(&path), before, "it is the same");
    write(&path, "other").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "other");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_section_or_a_configuration_says_it_and_not_both() {
    let said = |lines: &str| format!("{:#}", Own::of(&settings(lines)).unwrap_err());
    for line in
        ["device = \"nvme\"", "kernel = \"/k\"", "ramdisk = \"/r\"", "memory-mib = 88", "vcpus = 1", "extra = \"q\""]
    {
        let key = line.split(' ').next().unwrap();
        let both = said(&format!("config = \"/dd.cfg\"\n{line}"));
        assert!(both.contains(&format!("`config` and `{key}`")) && both.contains("one of both has to go"), "{both}");
    }
    assert!(said("standby = 1").contains("neither `config`") && said("kernel = \"/k\"").contains("nor `device`"));
    assert!(said("device = \"nvme\"").contains("no `kernel`"));
    assert!(said("device = \"nvme\"\nkernel = \"k\"").contains("no whole path"));
    assert!(said("device = \"nvme\"\nkernel = \"/k\"\nextra = 'say \"x\"'").contains("quotes"));
    assert!(said("device = [\"3:0.0\", \"nvme\", \"0000:03:00.0\"]\nkernel = \"/k\"")
        .contains("0000:03:00.0 is there twice"));
    for (line, words) in [
        ("memory-mib = 16", "say 48 to 65536"),
        ("memory-mib = 65537", "88"),
        ("vcpus = 0", "say 1 to 32"),
        ("vcpus = 33", "say 1 to 32"),
    ] {
        assert!(said(&format!("{CARD}{line}")).contains(words), "{line}");
    }
    for right in ["memory-mib = 48", "memory-mib = 65536", "vcpus = 32"] {
        own(&format!("{CARD}{right}"));
    }
    assert!(own("device = [\"nvme\", \"nvme\"]\nkernel = \"/k\"").wants.len() == 2, "two of a kind are two devices");
    assert_eq!(Own::of(&settings("config = \"/dd.cfg\"")).unwrap(), None);
}

#[test]
fn devices_are_taken_from_domain_0_where_the_section_names_them() {
    let assigns = |lines: &str| settings(lines).assigns();
    assert_eq!((assigns(CARD), assigns("config = \"/d\"")), (true, false));
    let said = |lines: &str, is: bool| assigns(&format!("{lines}assign = {is}\n"));
    assert_eq!((said(CARD, false), said("config = \"/d\"\n", true)), (false, true));
}

#[test]
fn files_that_are_not_there_are_named() {
    let path = std::env::temp_dir().join(format!("tandemd-kernel-{}", std::process::id()));
    std::fs::write(&path, "a kernel").unwrap();
    let of = |lines: &str| settings(&format!("device = \"03:00.0\"\n{lines}"));
    let here = format!("kernel = \"{}\"\n", path.display());
    assert_eq!(of(&here).claims("dd").unwrap(), [claim_of("0000:03:00.0")]);
    let has_files = |lines: &str| of(lines).has_files(&Image::default());
    assert!(has_files(&here).is_ok());
    let said = |lines: &str| format!("{:#}", has_files(lines).unwrap_err());
    let kernel = said("kernel = \"/nowhere/vmlinuz\"");
    assert!(kernel.contains("`kernel`: /nowhere/vmlinuz: name a file that is there"), "{kernel}");
    assert!(said(&format!("{here}ramdisk = \"/nowhere/initrd\"")).contains("`ramdisk`: /nowhere/initrd"));
    std::fs::write(&path, "").unwrap();
    assert!(said(&here).contains("is empty"));
    assert!(of(&here).claims("dd").is_ok(), "one that runs does not need it");
    let instead = Image { kernel: Some("/boot/new".into()), ..Image::default() };
    assert!(of(&here).has_files(&instead).is_ok(), "an upgrade has brought another one");
    std::fs::remove_file(&path).unwrap();
}
