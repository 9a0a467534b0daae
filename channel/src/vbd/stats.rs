//! What a disk has done.

use super::request::{Kind, Request};
use xen_abi::io::blkif::*;

/// What a disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads that were answered without an error.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes and barriers.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Sectors that were read.
    pub read_sectors: u64,
    /// Sectors that were written.
    pub written_sectors: u64,
    /// Requests that were answered with an error, whoever's it was.
    pub errors: u64,
    /// What back ends were asked for: requests of the guest's that are neighbours go together, long ones go in several.
    pub passed_on: u64,
    /// What they have answered of that.
    pub answered: u64,
    /// Requests that went together with one before them.
    pub merged: u64,
    /// Requests that were passed on once more, to another back end.
    pub repeated: u64,
    /// Answers of back ends that nobody had waited for.
    pub bad_answers: u64,
    /// Back ends that have written into their ring what cannot be.
    pub bad_rings: u64,
    /// Back ends that have said of a read that it is done, which has brought nothing.
    pub empty_reads: u64,
}

impl Stats {
    /// A request is answered with this status.
    pub fn count(&mut self, request: &Request, status: i16) {
        let sectors = u64::from(request.bytes() / SECTOR_BYTES);
        match request.kind {
            _ if status != BLKIF_RSP_OKAY => self.errors += 1,
            Kind::Read => {
                self.reads += 1;
                self.read_sectors += sectors;
            }
            Kind::Write => {
                self.writes += 1;
                self.written_sectors += sectors;
            }
            Kind::Flush | Kind::Barrier => {
                self.flushes += 1;
                self.written_sectors += sectors;
            }
            Kind::Discard => self.discards += 1,
        }
    }
}
