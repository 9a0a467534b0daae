//! A disk that three guests share, a partition each, while driver domains die; and what the host finds on it
//! afterwards.
//!
//! Two have blocks of images/src/diskload.c, each in a half of its partition: its sum is what the guest wants them to
//! be. The third has a file system with a journal, with files of images/src/fileload.c.

use crate::{host, pattern};
use anyhow::{bail, ensure, Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Partitions: where they begin, and how long they are.
const PARTITIONS: [(u64, u64); 3] = [(MIB, 16 * MIB), (17 * MIB, 16 * MIB), (33 * MIB, 64 * MIB)];
/// Bytes of a block of `diskload`.
const BLOCK: usize = 4096;

/// Where on the medium the blocks lie that `diskload` writes to a partition (from 1) after the first `first_mib`, in
/// blocks.
pub fn first_block(partition: usize, first_mib: u64) -> u64 {
    (PARTITIONS[partition - 1].0 + first_mib * MIB) / BLOCK as u64
}

/// Makes it, with empty partitions and an empty file system in the last one.
pub fn make(path: &Path) -> Result<()> {
    let (start, length) = PARTITIONS[2];
    let file = File::create(path)?;
    file.set_len(start + length)?;
    file.write_all_at(&table()?, 0)?;
    let mke2fs = host::find_program("mke2fs").context("mke2fs is not there")?;
    let offset = format!("offset={start}");
    host::run(Command::new(mke2fs).args(["-q", "-F", "-t", "ext4", "-E", &offset]).arg(path).arg("64M"))
}

/// The first sector: a master boot record.
fn table() -> Result<[u8; 512]> {
    const LINUX: u8 = 0x83;
    let mut sector = [0; 512];
    for (n, (start, length)) in PARTITIONS.iter().enumerate() {
        let entry = &mut sector[446 + 16 * n..][..16];
        entry[4] = LINUX;
        entry[8..12].copy_from_slice(&u32::try_from(start / SECTOR)?.to_le_bytes());
        entry[12..16].copy_from_slice(&u32::try_from(length / SECTOR)?.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    Ok(sector)
}

/// Checks that a partition (from 1) holds what `diskload` says: in `mib` mebibytes after the first `first_mib` blocks
/// with this sum, and nothing elsewhere.
pub fn verify_blocks(path: &Path, partition: usize, first_mib: u64, mib: u64, sum: u64) -> Result<()> {
    let (start, length) = PARTITIONS[partition - 1];
    let file = File::open(path)?;
    let mut found = 0_u64;
    let mut block = [0; BLOCK];
    for at in (0..length).step_by(BLOCK) {
        file.read_exact_at(&mut block, start + at)?;
        if (first_mib * MIB..(first_mib + mib) * MIB).contains(&at) {
            found = found.wrapping_mul(0x0100_0000_01b3).wrapping_add(pattern::checksum(&block));
        } else {
            ensure!(block == [0; BLOCK], "partition {partition}: at {at} something was written that nobody has sent");
        }
    }
    ensure!(found == sum, "partition {partition}: the sum of its blocks is {found:x}, the guest says {sum:x}");
    Ok(())
}

/// Checks that the file system is whole and holds these files of `fileload`, by name and generation, and no others.
pub fn verify_files(path: &Path, files: &[(u64, u64)]) -> Result<()> {
    let (start, length) = PARTITIONS[2];
    let part = path.with_extension("part");
    let mut bytes = vec![0; usize::try_from(length)?];
    File::open(path)?.read_exact_at(&mut bytes, start)?;
    std::fs::write(&part, bytes)?;
    let e2fsck = host::find_program("e2fsck").context("e2fsck is not there")?;
    host::output(Command::new(e2fsck).arg("-fn").arg(&part)).context("the file system")?;
    let debugfs = host::find_program("debugfs").context("debugfs is not there")?;
    let ask = |what: &str| -> Result<Vec<u8>> {
        let out = Command::new(&debugfs).args(["-R", what]).arg(&part).output()?;
        ensure!(out.status.success(), "debugfs cannot {what}");
        Ok(out.stdout)
    };
    for (name, generation) in files {
        let mut wanted = vec![0; pattern::file_len(*generation)];
        pattern::fill(&mut wanted, *generation);
        ensure!(ask(&format!("cat /{name}"))? == wanted, "file {name} holds wrong data, seen from the host");
    }
    let listed = String::from_utf8(ask("ls -p /")?)?;
    // `/inode/mode/uid/gid/name/size/` each.
    let names = listed.lines().filter_map(|line| line.split('/').nth(5)).filter(|n| !n.is_empty());
    if let Some(other) = names
        .filter(|n| ![".", "..", "lost+found"].contains(n))
        .find(|n| !files.iter().any(|(name, _)| name.to_string() == *n))
    {
        bail!("the file {other} is there, seen from the host, and should not");
    }
    Ok(std::fs::remove_file(&part)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn made(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tandem-medium-{}-{name}", std::process::id()));
        make(&path).unwrap();
        path
    }

    /// What `diskload` sums up for `count` blocks that all hold generation 1.
    fn sum_of(count: u64, first: u64) -> (Vec<u8>, u64) {
        let (mut all, mut sum) = (Vec::new(), 0_u64);
        for block in first..first + count {
            let mut bytes = [0; BLOCK];
            pattern::fill(&mut bytes, (1 << 32) + block);
            sum = sum.wrapping_mul(0x0100_0000_01b3).wrapping_add(pattern::checksum(&bytes));
            all.extend(bytes);
        }
        (all, sum)
    }

    #[test]
    fn a_lost_write_and_one_that_went_elsewhere_are_found() {
        let path = made("blocks");
        let (blocks, sum) = sum_of(256, 256);
        let file = File::options().write(true).open(&path).unwrap();
        assert!(verify_blocks(&path, 2, 1, 1, sum).is_err(), "nothing was written");
        file.write_all_at(&blocks, 18 * MIB).unwrap();
        verify_blocks(&path, 2, 1, 1, sum).unwrap();
        file.write_all_at(&[1], 20 * MIB).unwrap();
        assert!(verify_blocks(&path, 2, 1, 1, sum).is_err(), "something is where nothing was sent to");
        file.write_all_at(&[0], 20 * MIB).unwrap();
        file.write_all_at(&blocks[4096..8192], 18 * MIB).unwrap();
        assert!(verify_blocks(&path, 2, 1, 1, sum).is_err(), "another block's bytes");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn files_are_found_and_others_too() {
        let path = made("files");
        verify_files(&path, &[]).unwrap();
        assert!(verify_files(&path, &[(3, 9)]).is_err(), "the file is not there");
        let (start, length) = PARTITIONS[2];
        let (part, content) = (path.with_extension("tried"), path.with_extension("content"));
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        File::open(&path).unwrap().read_exact_at(&mut bytes, start).unwrap();
        std::fs::write(&part, &bytes).unwrap();
        let mut wanted = vec![0; pattern::file_len(9)];
        pattern::fill(&mut wanted, 9);
        std::fs::write(&content, wanted).unwrap();
        let debugfs = host::find_program("debugfs").unwrap();
        let write = format!("write {} 3", content.display());
        assert!(Command::new(debugfs).args(["-w", "-R", &write]).arg(&part).output().unwrap().status.success());
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&std::fs::read(&part).unwrap(), start).unwrap();
        verify_files(&path, &[(3, 9)]).unwrap();
        assert!(verify_files(&path, &[(3, 8)]).is_err(), "another generation");
        assert!(verify_files(&path, &[]).is_err(), "one that was removed");
        // The superblock's count of free blocks.
        file.write_all_at(&[0xff; 4], start + 1024 + 12).unwrap();
        assert!(verify_files(&path, &[(3, 9)]).is_err(), "a file system that is not whole");
        for each in [&path, &part, &content, &path.with_extension("part")] {
            std::fs::remove_file(each).unwrap();
        }
    }
}
