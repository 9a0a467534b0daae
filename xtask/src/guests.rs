//! `./tandem guests`: runs the tiny PV kernels under `guests/` and says what they found.
//!
//! With `--table` all of them run on stock Xen and on Tandem, and `docs/test-guests.md` is written: the peer is the
//! oracle.

use crate::options::Options;
use anyhow::{ensure, Result};
use std::path::PathBuf;
use testbed::guests::{all, complaints, Guest, Verdict, Wishes};
use testbed::host;
use testbed::machine::Hypervisor;

/// The command: all kernels, or those whose name contains the first word.
pub fn run(options: &Options) -> Result<bool> {
    if options.table {
        ensure!(options.words.is_empty(), "the table is of all kernels");
        return table();
    }
    let filter = options.words.first();
    let chosen: Vec<Guest> =
        all()?.into_iter().filter(|guest| filter.is_none_or(|word| guest.name.contains(word.as_str()))).collect();
    ensure!(!chosen.is_empty(), "no test kernel has that name; ./tandem guests --list names them");
    if options.list {
        chosen.iter().for_each(|guest| println!("{}", guest.name));
        return Ok(true);
    }
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    ensure!(hypervisor != Hypervisor::None, "the test kernels need a hypervisor");
    let wishes = Wishes {
        operations: options.operations,
        seed: options.seed,
        vcpus: options.vcpus,
        iommu: options.iommu,
        ..Wishes::default()
    };
    let (mut passed, mut failed) = (0, 0);
    for guest in chosen {
        if guest.accepts(&try_out(&guest, &hypervisor, wishes)?, &hypervisor) {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// Boots it and prints a line about that.
fn try_out(guest: &Guest, hypervisor: &Hypervisor, wishes: Wishes) -> Result<Verdict> {
    let start = std::time::Instant::now();
    let (verdict, outcome) = guest.run(hypervisor, wishes)?;
    let detail = complaints(&outcome.lines).filter(|_| verdict != Verdict::Success).unwrap_or_default();
    let seconds = start.elapsed().as_secs_f32();
    println!("{:<8} {:<26} {:<9} {seconds:>6.1} s  {detail}", verdict.word(), guest.name, hypervisor.name());
    Ok(verdict)
}

/// Runs all kernels on stock Xen and on Tandem and writes the page about them. `false`: one has a bad verdict on
/// Tandem, or another and does not say why.
fn table() -> Result<bool> {
    let hypervisors = [Hypervisor::choose(Some("xen"))?, Hypervisor::choose(None)?];
    let mut rows = Vec::new();
    let mut good = true;
    for guest in all()? {
        let mut verdicts = Vec::new();
        for hypervisor in &hypervisors {
            verdicts.push(try_out(&guest, hypervisor, Wishes::default())?);
        }
        if verdicts[0] != verdicts[1] && guest.differs.is_none() {
            println!("FAIL: {} does not say why its verdicts differ", guest.name);
            good = false;
        }
        good &= guest.accepts(&verdicts[1], &hypervisors[1]);
        rows.push(row(&guest, &verdicts));
    }
    std::fs::write(page(), format!("{INTRODUCTION}{}", rows.concat()))?;
    println!("{}", page().display());
    Ok(good)
}

fn page() -> PathBuf {
    host::root().join("docs/test-guests.md")
}

/// The page about the test kernels, down to the head of the table.
const INTRODUCTION: &str = "\
# Test kernels

Tiny PV kernels, each of which runs as domain 0, tries one behaviour of the hypervisor and says what it found. They run
unchanged on stock Xen and on Tandem: `./tandem guests [NAME] [--hypervisor xen]`. A new one is a folder under `guests/` with a
`main.c` that includes `guest.h`; its first comment says what it tests. SUCCESS is good; SKIP, that there is nothing to test, is on
stock Xen, and on Tandem if that comment says why; ERROR means that the test is broken, FAILURE that the hypervisor is, CRASH that
there was no verdict.

`--operations N` and `--seed N` are for those that do random operations, `random-operations`, `hostile-twins`,
`hostile-front-ends`, `hostile-back-ends` and, deaths, `random-deaths`; `--vcpus N` says on how many vCPUs. With `--iommu vtd` or `amd-vi` domain 0's devices are behind such a unit (`iommu=dom0-strict`); the tests `vtd-guest-*` and `amd-vi-guest-*` of `./tandem test guests` are some kernels that run so. Another hostile one, `hostile-domain`, is no domain 0: `./tandem test xl a-hostile` makes two of it beside one.

This page is written by `./tandem guests --table`, which runs all of them on Debian's Xen 4.17 and on Tandem under QEMU's
software CPU. Where the two differ the kernel's source says why.

| kernel | what it tests | stock Xen | Tandem | why they differ |
|---|---|---|---|---|
";

fn row(guest: &Guest, verdicts: &[Verdict]) -> String {
    let words: Vec<_> = verdicts.iter().map(Verdict::word).collect();
    let differs = guest.differs.as_deref().filter(|_| verdicts.iter().any(|v| *v != verdicts[0])).unwrap_or_default();
    format!("{}{} | {} |\n", head(guest), words.join(" | "), escaped(differs))
}

/// The part of a row that does not depend on verdicts.
fn head(guest: &Guest) -> String {
    format!("| {} | {} | ", guest.name, escaped(&guest.about))
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use testbed::guests::describe;

    #[test]
    fn every_kernel_has_a_purpose_and_the_page_knows_it() {
        let page = std::fs::read_to_string(page()).unwrap();
        let rows: Vec<&str> =
            page.lines().filter(|line| line.starts_with("| ") && !line.contains("what it tests")).collect();
        let guests = all().unwrap();
        for guest in &guests {
            assert!(!guest.about.is_empty(), "{} does not say what it tests", guest.name);
            let is_known = rows.iter().any(|row| row.starts_with(&head(guest)));
            assert!(is_known, "the page does not know {}: run ./tandem guests --table", guest.name);
            let is_skipped =
                rows.iter().any(|row| row.starts_with(&head(guest)) && row.split(" | ").nth(3) == Some("SKIP"));
            assert_eq!(is_skipped, guest.skips.is_some(), "{} says why it is skipped, or is", guest.name);
        }
        assert_eq!(rows.len(), guests.len(), "the page knows kernels that are gone");
    }

    #[test]
    fn a_reason_is_shown_only_where_verdicts_differ() {
        let guest = describe("x".into(), "/* Tests a|b. (differs: so) */");
        assert_eq!(row(&guest, &[Verdict::Success, Verdict::Success]), "| x | Tests a\\|b. | SUCCESS | SUCCESS |  |\n");
        assert_eq!(
            row(&guest, &[Verdict::Failure, Verdict::Success]),
            "| x | Tests a\\|b. | FAILURE | SUCCESS | so |\n"
        );
    }
}
