//! What administrators write, and what they get told.

use super::*;
use alloc::collections::BTreeSet;
use alloc::vec;
use proptest::prelude::*;

fn parse(line: &str) -> Options {
    let (options, found) = Options::parse(line);
    assert_eq!(found, vec![], "{line}");
    options
}

fn complaints(line: &str) -> Vec<String> {
    Options::parse(line).1.iter().map(ToString::to_string).collect()
}

const MIB: u64 = 256; // pages

#[test]
fn a_usual_line() {
    let o = parse("console=com1,vga com1=115200,8n1 dom0_mem=1024M,max:2G dom0_max_vcpus=1-4 loglvl=all guest_loglvl=error/all noreboot");
    assert_eq!(o.consoles, ["com1", "vga"]);
    assert_eq!(o.com1.as_deref(), Some("115200,8n1"));
    assert_eq!(o.dom0_mem.pages(4096 * MIB), 1024 * MIB);
    assert_eq!(o.dom0_mem.max_pages(4096 * MIB), Some(2048 * MIB));
    assert_eq!(o.dom0_max_vcpus, Some((1, 4)));
    assert_eq!(o.loglvl, Some(LogThresholds { always: LogLevel::All, limited: LogLevel::All }));
    assert_eq!(o.guest_loglvl, Some(LogThresholds { always: LogLevel::Error, limited: LogLevel::All }));
    assert!(o.noreboot && !o.nosmp);
}

#[test]
fn the_line_that_update_grub_writes() {
    assert!(parse("placeholder noreboot").noreboot);
    assert_eq!(complaints("placeholders"), ["unknown option 'placeholders' is ignored"]);
    let (_, found) = Options::parse("placeholder dom0_mem=1024M no-real-mode edd=off");
    assert!(!found.iter().any(Diagnostic::is_warning), "what it adds where firmware is UEFI: {found:?}");
}

/// Options in docs/misc/xen-command-line.pandoc of Xen 4.17.
const OPTIONS_OF_XEN: &str = "\
    acpi acpi_apic_instance acpi_pstate_strict acpi_skip_timer_override acpi_sleep allow_unsafe altp2m apic \
    apic_verbosity apicv arat argo asid async-show-all ats availmem badpage bootscrub bootscrub_chunk cet \
    clocksource cmci-threshold cmos-rtc-probe com1 com2 conring_size console console_timestamps console_to_ring \
    conswitch core_parking cpu_type cpufreq cpuid cpuid_mask_cpu cpuid_mask_ecx cpuid_mask_edx cpuid_mask_ext_ecx \
    cpuid_mask_ext_edx cpuid_mask_l7s0_eax cpuid_mask_l7s0_ebx cpuid_mask_thermal_ecx cpuid_mask_xsave_eax cpuidle \
    cpuinfo crash-debug-debugkey crash-debug-hwdom crash-debug-kexeccmd crash-debug-panic crash-debug-watchdog \
    crashinfo_maxaddr crashkernel credit2_balance_over credit2_balance_under credit2_cap_period_ms \
    credit2_load_precision_shift credit2_load_window_shift credit2_runqueue dbgp debug_stack_lines debugtrace dit \
    dma_bits dom0 dom0-cpuid dom0-iommu dom0_ioports_disable dom0_max_vcpus dom0_mem dom0_nodes dom0_vcpus_pin \
    dtuart e820-mtrr-clip e820-verbose edd edid efi ept ext_regions extra_guest_irqs flask font force-ept gdb \
    global-pages gnttab gnttab_max_frames gnttab_max_maptrack_frames guest_loglvl hap hap_1gb hap_2mb hardware_dom \
    hest_disable highmem-start hmp-unsafe hpet hpetbroadcast hvm_debug hvm_fep hvm_port80 idle_latency_factor \
    invpcid ioapic_ack iommu iommu_dev_iotlb_timeout iommu_inclusive_mapping irq-max-guests irq_ratelimit \
    irq_vector_map ivmd ivrs_hpet ivrs_ioapic lapic lapic_timer_c2_ok ler loglvl low_crashinfo low_mem_virq_limit \
    max_cstate max_gsi_irqs max_lpi_bits maxcpus mce mce_fb mce_verbosity mem memop-max-order mmcfg mmio-relax msi \
    mtrr.show mwait-idle nmi noapic noirqbalance nolapic noreboot nosmp nr_irqs numa pci pci-passthrough pci-phantom \
    pcid pku ple_gap ple_window preferred-cstates psr pv pv-l1tf pv-linear-pt pv-shim rcu-idle-timer-period-ms \
    real-mode reboot rmrr ro-hpet sched sched-gran sched_credit2_max_cpus_runqueue sched_credit2_migrate_resist \
    sched_credit_tslice_ms sched_ratelimit_us sched_smt_power_savings scrub-domheap serial_tx_buffer serrors \
    shim_mem smap smep smt snb_igd_quirk spec-ctrl sync_console tboot tbuf_size tdt tevt_mask tickle_one_idle_cpu \
    timer_slop tsc tsx ucode unrestricted_guest vcpu_migration_delay vesa-ram vga viridian-spinlock-retry-count \
    viridian-version vm-notify-window vpid vpmu vwfi watchdog watchdog_timeout x2apic x2apic-mode x2apic_phys \
    xenheap_megabytes xpti xsave xsm";

#[test]
fn every_option_of_xen_is_known() {
    for name in OPTIONS_OF_XEN.split(' ') {
        for word in [name.to_string(), alloc::format!("{name}=0"), alloc::format!("no-{name}")] {
            let (_, found) = Options::parse(&word);
            assert!(!found.iter().any(|d| matches!(d, Diagnostic::Unknown(_))), "{word}: {found:?}");
        }
    }
    // With an index.
    let (_, found) = Options::parse("ivrs_ioapic[4]=00:14.0 ivrs_hpet[0]=00:14.0 dom0_mem[1]=1G nonsense[1]=2");
    let names = ["ivrs_ioapic", "ivrs_hpet"].map(|name| Diagnostic::Unsupported(name.into()));
    let unknown = ["dom0_mem[1]", "nonsense[1]"].map(|name| Diagnostic::Unknown(name.into()));
    assert_eq!(found, [names, unknown].concat());
    assert!(names::IGNORED.iter().all(|name| !names::UNSUPPORTED.contains(name)));
}

#[test]
fn so_much_is_kept_for_xl_dmesg_as_is_accepted() {
    for size in ["4K", "5000B", "16384B", "64", "1M"] {
        let bytes = parse(&alloc::format!("conring_size={size}")).conring_bytes;
        let mut ring = conring::ConRing::new(u32::try_from(bytes).unwrap());
        ring.write(&vec![b'a'; (2 << 20) + 7]);
        let kept = ring.read(conring::ReadRequest::default(), u32::MAX, |_| Ok::<(), ()>(())).unwrap().0;
        assert_eq!(u64::from(kept), bytes, "{size}");
    }
    for size in ["4095B", "1048577B", "64M"] {
        let (options, found) = Options::parse(&alloc::format!("conring_size={size}"));
        assert_eq!((options.conring_bytes, found.len()), (16 << 10, 1), "{size}");
    }
}

#[test]
fn nothing_at_all() {
    assert_eq!(parse("  "), Options { line: "  ".into(), ..Options::default() });
}

#[test]
fn booleans_in_all_spellings() {
    for (line, smap) in [
        ("smap", true),
        ("smap=1", true),
        ("smap=off", false),
        ("no-smap", false),
        ("smap=false", false),
        ("smap=", true),
        ("smap=hvm", false),
    ] {
        assert_eq!(parse(line).smap, smap, "{line}");
    }
    assert!(!parse("smap=hvm").smap && parse("smap=hvm").smep);
    assert!(!parse("smep=hvm").smep && parse("smep=hvm").smap);
    assert!(parse("").umip && !parse("umip=0").umip && !parse("no-umip").umip);
    assert!(parse("ac-check").ac_check && !parse("").ac_check);
    assert!(parse("twin-stlb").twin_stlb && !parse("").twin_stlb && !parse("twin-stlb=no").twin_stlb);
    assert_eq!(parse("preempt-delay-us=0").preempt_delay_us, 0);
    assert_eq!(parse("preempt-delay-us=1000").preempt_delay_us, 1000);
    assert_eq!((parse("").twin_limit_ms, parse("twin-limit-ms=2000").twin_limit_ms), (100, 2000));
    assert!(!parse("noreboot=no").noreboot);
    assert!(!parse("no-x2apic").x2apic);
    assert!(parse("acpi=off").noacpi && parse("noacpi").noacpi);
}

#[test]
fn sizes_of_domain_0() {
    let pages = |value: &str, available: u64| parse(&alloc::format!("dom0_mem={value}")).dom0_mem.pages(available);
    assert_eq!(pages("524288", 1024 * MIB), 512 * MIB, "without a unit: KiB");
    assert_eq!(pages("1g", 4096 * MIB), 1024 * MIB);
    assert_eq!(pages("1T", 4096 * MIB), 4096 * MIB, "no more than there is");
    assert_eq!(pages("-512M", 4096 * MIB), 3584 * MIB);
    assert_eq!(pages("-8G", 4096 * MIB), 0);
    assert_eq!(pages("25%", 4000 * MIB), 1000 * MIB);
    assert_eq!(pages("25%+100M", 4000 * MIB), 1100 * MIB);
    assert_eq!(pages("25%-100M", 4000 * MIB), 900 * MIB);
    assert_eq!(pages("min:512M,max:1G", 4096 * MIB), 1024 * MIB);
    assert_eq!(pages("256M,min:512M", 4096 * MIB), 512 * MIB);
    assert_eq!(pages("max:1G", 512 * MIB), 480 * MIB, "a sixteenth stays");
    assert_eq!(parse("").dom0_mem.pages(8192 * MIB), 8064 * MIB, "128 MiB stay");
}

#[test]
fn iommu_lists() {
    let iommu = parse("iommu=force,verbose,no-intremap,dom0-strict,quarantine=scratch-page").iommu;
    assert!(iommu.is_enabled && iommu.is_required && !iommu.has_intremap && iommu.is_dom0_strict);
    assert!(!parse("iommu=off").iommu.is_enabled);
    assert!(!parse("iommu=0").iommu.is_enabled);
    assert!(parse("iommu").iommu.is_enabled);
}

#[test]
fn unknown_options_are_named() {
    assert_eq!(complaints("dom_mem=512M"), ["unknown option 'dom_mem' is ignored"]);
    assert_eq!(complaints("no-such"), ["unknown option 'no-such' is ignored"]);
    assert_eq!(complaints("nosm\u{7}p"), ["unknown option 'nosm?p' is ignored"]);
    // Options of Xen that mean nothing here are told apart.
    let (_, found) = Options::parse("ucode=scan vesa-ram=16");
    assert_eq!(found, [Diagnostic::Unsupported("ucode".into()), Diagnostic::Ignored("vesa-ram".into())]);
    assert_eq!([true, false], [0, 1].map(|n| found[n].is_warning()));
}

#[test]
fn what_is_not_done_is_said() {
    let (_, found) = Options::parse("mem=2G watchdog no-xpti nolapic");
    assert_eq!(found, ["mem", "watchdog", "xpti", "nolapic"].map(|name| Diagnostic::Unsupported(name.into())));
    assert!(found.iter().all(Diagnostic::is_warning));
    assert_eq!(complaints("mem=2G"), ["option 'mem' is not supported here"]);
}

/// One that nobody reads would be taken, and do nothing, without a word.
#[test]
fn every_option_is_read_by_the_hypervisor() {
    // Where messages go is read before there is a heap.
    const READ_AS_WORDS: [&str; 2] = ["consoles", "com1"];
    let mut hypervisor = std::string::String::new();
    read_all(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../hv/src"), &mut hypervisor);
    let source = include_str!("../cmdline.rs");
    let names = source.lines().filter_map(|line| Some(line.strip_prefix("    pub ")?.split_once(": ")?.0));
    let fields: Vec<&str> = names.filter(|name| !name.contains(' ') && !READ_AS_WORDS.contains(name)).collect();
    assert!(fields.contains(&"dom0_mem") && fields.contains(&"is_dom0_strict"));
    for field in fields {
        let is_read = hypervisor.match_indices(&alloc::format!(".{field}")).any(|(at, read)| {
            !hypervisor[at + read.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_')
        });
        assert!(is_read, "nobody reads {field}");
    }
}

#[test]
fn the_page_on_installing_has_every_option() {
    let source = include_str!("../cmdline.rs");
    // The arms in which options are told apart.
    let arms = source.lines().filter_map(|line| line.strip_prefix("            \"")?.split_once("\" =>"));
    let known: BTreeSet<&str> = arms.map(|(name, _)| name).collect();
    let page = include_str!("../../../docs/install.md");
    let (_, rest) = page.split_once("\n## Options\n").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).map(|(cell, _)| cell);
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(|word| word.split('=').next().unwrap());
    // `MIN-MAX` is another form of a value.
    let described: BTreeSet<&str> = words.filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    assert!(known.contains("noreboot") && known.contains("console"));
    assert_eq!(described, known);
}

fn read_all(dir: &std::path::Path, text: &mut std::string::String) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn bad_values_are_explained() {
    assert_eq!(
        complaints("dom0_mem=lots"),
        ["option 'dom0_mem' has the bad value 'lots'; expected: [SIZE][,min:SIZE][,max:SIZE], SIZE as 1024M, -512M, 25% or 25%+256M"]
    );
    for (line, value) in [
        ("dom0_mem=", ""),
        ("dom0_mem=512X", "512X"),
        ("dom0_mem=mid:5M", "mid:5M"),
        ("dom0_mem=110%", "110%"),
        ("dom0_mem=99999999999999G", "99999999999999G"),
        ("dom0_max_vcpus=3-2", "3-2"),
        ("dom0_max_vcpus=0", "0"),
        ("maxcpus=many", "many"),
        ("loglvl=loud", "loud"),
        ("loglvl=all/loud", "all/loud"),
        ("sched=best", "best"),
        ("iommu=force,maybe", "maybe"),
        ("com1=fast", "fast"),
        ("com1=115200,7e2", "115200,7e2"),
        ("com1=115200,8n1,zz", "115200,8n1,zz"),
        ("smap=perhaps", "perhaps"),
        ("noreboot=perhaps", "perhaps"),
        ("dom0=pvh", "pvh"),
        ("preempt-delay-us=1001", "1001"),
        ("no-preempt-delay-us", "no"),
        ("twin-limit-ms=9", "9"),
        ("twin-limit-ms=10001", "10001"),
    ] {
        let (options, found) = Options::parse(line);
        assert!(matches!(&found[..], [Diagnostic::BadValue { value: v, .. }] if v == value), "{line}: {found:?}");
        assert_eq!(Options { line: String::new(), iommu: Iommu::default(), ..options }, Options::default(), "{line}");
    }
}

#[test]
fn what_is_wrong_in_a_list_says_nothing_of_the_rest() {
    let (options, found) = Options::parse("iommu=typo,force,no-intremap vga=gfx-1024x768x32,keep");
    assert!(options.iommu.is_required && !options.iommu.has_intremap && options.is_screen_kept);
    let values: Vec<&str> = found
        .iter()
        .filter_map(|d| if let Diagnostic::BadValue { value, .. } = d { Some(value.as_str()) } else { None })
        .collect();
    assert_eq!(values, ["typo", "gfx-1024x768x32"]);
}

#[test]
fn messages_go_somewhere_unless_they_are_to_go_nowhere() {
    let cases = [
        ("com1", (true, false)),
        ("vga", (false, true)),
        ("com1,vga", (true, true)),
        ("com1H, vga", (true, true)),
        ("none", (false, false)),
        ("com2", (true, true)),
        ("", (true, true)),
        ("com2,vga", (false, true)),
        ("com12", (true, true)),
    ];
    for (list, (serial, screen)) in cases {
        assert_eq!(Consoles::named(list), Consoles { serial, screen }, "{list}");
    }
    assert_eq!(
        complaints("console=vga,com2"),
        ["option 'console' has the bad value 'com2'; expected: a list of com1, vga or none"]
    );
}

#[test]
fn contradictions_are_reported() {
    assert_eq!(complaints("nosmp maxcpus=4"), ["options 'nosmp' and 'maxcpus' contradict each other: one CPU is used"]);
    for line in [
        "dom0_mem=min:2G,max:1G",
        "maxcpus=2 dom0_max_vcpus=4",
        "iommu=off,force",
        "iommu=dom0-strict,dom0-passthrough",
    ] {
        assert_eq!(complaints(line).len(), 1, "{line}");
    }
    assert_eq!(Options::parse("dom0_mem=min:2G,max:1G").0.dom0_mem.pages(4096 * MIB), 1024 * MIB);
}

#[test]
fn quotes_keep_blanks_and_the_last_one_wins() {
    assert_eq!(parse("console=\"com1, vga\"").consoles, ["com1", " vga"]);
    assert_eq!(parse("maxcpus=2 maxcpus=3").maxcpus, Some(3));
}

#[test]
fn what_follows_two_dashes_is_the_kernels() {
    let line = "com1=115200 --  console=hvc0 \"a  b\" ";
    assert_eq!(words(line).collect::<Vec<_>>(), [("com1", Some("115200"))]);
    assert_eq!(parts(line), ("com1=115200", "console=hvc0 \"a  b\""));
    assert_eq!(kernel_line("root=/dev/sda1 ro", parts(line).1), "root=/dev/sda1 ro console=hvc0 \"a  b\"");
    assert_eq!((kernel_line("", "quiet"), kernel_line("ro", "")), ("quiet".into(), "ro".into()));
    assert_eq!(complaints("maxcpus=2 -- whatever follows"), Vec::<String>::new());
    assert_eq!(parse("maxcpus=2 -- maxcpus=3").maxcpus, Some(2));
    // They are a word of their own, the first one counts, and there need not be anything around them.
    for (line, split) in [
        ("a --b c", ("a --b c", "")),
        ("-- a", ("", "a")),
        ("a --", ("a", "")),
        ("a -- b -- c", ("a", "b -- c")),
        ("a=\"x -- y\" -- b", ("a=\"x -- y\"", "b")),
        ("a\t--\tb", ("a", "b")),
        ("", ("", "")),
    ] {
        assert_eq!(parts(line), split, "{line}");
    }
}

/// Lines made of real names with odd values, and of rubbish.
fn lines() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "dom0_mem",
        "dom0_max_vcpus",
        "loglvl",
        "iommu",
        "com1",
        "console",
        "sched",
        "spec-ctrl",
        "no-smap",
        "conring_size",
        "reboot",
        "mem",
        "acpi",
        "dom0",
        "watchdog_timeout",
        "preempt-delay-us",
        "twin-limit-ms",
        "gnttab_max_frames",
    ]);
    let value = prop_oneof![
        "[-0-9%+,:/minaxGMKT]{0,20}",
        "\\PC{0,12}",
        Just("0x".into()),
        Just("18446744073709551615T".into())
    ];
    let word = prop_oneof![3 => (name, value).prop_map(|(n, v)| alloc::format!("{n}={v}")), 1 => "\\PC{0,12}"];
    prop::collection::vec(word, 0..8).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(line in lines()) {
        check_line(&line);
    }
}
