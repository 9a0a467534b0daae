//! What a driver domain's back end says of a medium, as far as it can be: guests' kernels divide by it, and shift by
//! it, and ask no questions.

use anyhow::Result;
use std::collections::BTreeMap;

/// What is said of the medium, and passed on to the guest (public/io/blkif.h). All of it is numbers.
pub const ALL: &[&str] = &[FLUSH, DISCARD, GRANULARITY, ALIGNMENT, SECURE, SECTORS, INFO, SECTOR_SIZE, PHYSICAL];
/// What it is known by.
pub const SIZE: &[&str] = &[SECTORS, SECTOR_SIZE];
const FLUSH: &str = "feature-flush-cache";
const DISCARD: &str = "feature-discard";
const GRANULARITY: &str = "discard-granularity";
const ALIGNMENT: &str = "discard-alignment";
const SECURE: &str = "discard-secure";
pub const SECTORS: &str = "sectors";
const INFO: &str = "info";
const SECTOR_SIZE: &str = "sector-size";
const PHYSICAL: &str = "physical-sector-size";

/// What `sectors` counts, and what a sector has if nothing is said.
const UNIT: u64 = 512;
/// The largest sector that Linux takes, and the largest that is written as a whole by any medium.
const MOST: u64 = 4096;
const MOST_PHYSICAL: u64 = 1 << 16;
/// Of discards: guests count in 32 bits.
const MOST_GRANULARITY: u64 = 1 << 31;

/// What can be.
#[derive(Debug)]
pub struct Medium(BTreeMap<&'static str, u64>);

/// What is said that cannot be.
const BAD_SIZE: &str = "a size of sectors that cannot be";
const BAD_NUMBER: &str = "a number of sectors that cannot be";
/// What can be, and is not what was said before.
pub const OTHER_SIZE: &str = "another size than the guest was told";
pub const LARGER: &str = "a larger size than the guest was told, and where it looks may be another medium by now";

impl Medium {
    /// By what is said of each of these keys. The inner error: what of that cannot be. What it may be without is left
    /// out then.
    pub fn read(
        keys: &[&'static str],
        mut said: impl FnMut(&str) -> Result<Option<String>>,
    ) -> Result<Result<Self, &'static str>> {
        let mut numbers = BTreeMap::new();
        for key in keys {
            match said(key)?.map(|said| said.parse::<u64>()) {
                Some(Ok(number)) => {
                    numbers.insert(*key, number);
                }
                // It would be taken for the usual one.
                Some(Err(_)) if *key == SECTOR_SIZE => return Ok(Err(BAD_SIZE)),
                Some(Err(_)) | None => {}
            }
        }
        Ok(Self::of(numbers))
    }

    /// By how much it has grown if this may be the medium of which the other was said. `None`: it is another one. What
    /// it can do besides is said with each request's answer.
    pub fn growth_since(&self, told: &Self) -> Option<u64> {
        let size = |of: &Self| of.0.get(SECTOR_SIZE).copied().unwrap_or(UNIT);
        if size(self) != size(told) {
            return None;
        }
        self.sectors().checked_sub(told.sectors())
    }

    /// Of 512 bytes, whatever its own have.
    pub fn sectors(&self) -> u64 {
        self.0.get(SECTORS).copied().unwrap_or(0)
    }

    fn of(mut numbers: BTreeMap<&'static str, u64>) -> Result<Self, &'static str> {
        let size = numbers.get(SECTOR_SIZE).copied().unwrap_or(UNIT);
        if !size.is_power_of_two() || !(UNIT..=MOST).contains(&size) {
            return Err(BAD_SIZE);
        }
        // Guests count bytes by signed numbers. Stock back ends say 0 when their device has gone.
        if !numbers.get(SECTORS).is_some_and(|sectors| (1..=i64::MAX.unsigned_abs() / UNIT).contains(sectors)) {
            return Err(BAD_NUMBER);
        }
        // None is what is usual.
        let granularity = numbers.get(GRANULARITY).copied().filter(|bytes| *bytes != 0).unwrap_or(size);
        let alignment = numbers.get(ALIGNMENT).copied().unwrap_or(0);
        let discards = granularity % UNIT == 0 && granularity <= MOST_GRANULARITY && alignment < granularity;
        numbers.retain(|key, number| match *key {
            PHYSICAL => number.is_power_of_two() && (size..=MOST_PHYSICAL).contains(number),
            INFO => u32::try_from(*number).is_ok(),
            FLUSH => *number <= 1,
            DISCARD | SECURE => *number <= 1 && discards,
            GRANULARITY | ALIGNMENT => discards,
            _ => true,
        });
        Ok(Self(numbers))
    }

    /// What the guest is told.
    pub fn told(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(key, number)| (*key, *number))
    }

    /// Whether requests of this kind are passed on.
    pub fn flushes(&self) -> bool {
        self.0.get(FLUSH) == Some(&1)
    }

    /// See `flushes`.
    pub fn discards(&self) -> bool {
        self.0.get(DISCARD) == Some(&1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What guests are told of a medium of which this is said beside its size.
    fn told(said: &[(&'static str, u64)]) -> Result<Vec<(&'static str, u64)>, &'static str> {
        let numbers = said.iter().copied().chain([(SECTORS, 4096)]).collect();
        Medium::of(numbers).map(|medium| medium.told().filter(|(key, _)| *key != SECTORS).collect())
    }

    #[test]
    fn sectors_are_such_as_there_are() {
        for size in [512, 1024, 2048, 4096] {
            assert_eq!(told(&[(SECTOR_SIZE, size)]), Ok(vec![(SECTOR_SIZE, size)]));
        }
        for size in [0, 1, 256, 513, 520, 1536, 8192, 1 << 32, 1 << 40, u64::MAX] {
            assert_eq!(told(&[(SECTOR_SIZE, size)]), Err(BAD_SIZE), "{size}");
        }
        let most = i64::MAX.unsigned_abs() / 512;
        for (sectors, can_be) in [(0, false), (1, true), (most, true), (most + 1, false), (u64::MAX, false)] {
            assert_eq!(Medium::of([(SECTORS, sectors)].into()).is_ok(), can_be, "{sectors}");
        }
        assert_eq!(Medium::of(BTreeMap::new()).err(), Some(BAD_NUMBER));
        let read =
            |size: &str| Medium::read(ALL, |key| Ok((key == SECTOR_SIZE).then(|| size.to_string()))).unwrap().err();
        assert_eq!((read("x"), read("512")), (Some(BAD_SIZE), Some(BAD_NUMBER)));
    }

    #[test]
    fn a_medium_is_known_by_its_size() {
        let of = |said: &[(&'static str, u64)]| Medium::of(said.iter().copied().collect()).unwrap();
        let usual = of(&[(SECTORS, 4096), (FLUSH, 1)]);
        for same in [&[(SECTORS, 4096)][..], &[(SECTORS, 4096), (SECTOR_SIZE, 512), (DISCARD, 1)]] {
            assert_eq!((of(same).growth_since(&usual), usual.growth_since(&of(same))), (Some(0), Some(0)), "{same:?}");
        }
        for other in [&[(SECTORS, 4095)][..], &[(SECTORS, 8192), (SECTOR_SIZE, 4096)]] {
            assert_eq!(of(other).growth_since(&usual), None, "{other:?}");
        }
        assert_eq!(of(&[(SECTORS, 4104)]).growth_since(&usual), Some(8));
    }

    #[test]
    fn what_it_may_be_without_is_told_if_it_can_be() {
        let can_be = [
            (SECTOR_SIZE, 4096),
            (PHYSICAL, 16384),
            (INFO, 4),
            (FLUSH, 1),
            (DISCARD, 1),
            (GRANULARITY, 3 << 16),
            (ALIGNMENT, 512),
        ];
        let mut all = can_be.to_vec();
        all.sort_unstable();
        assert_eq!(told(&can_be), Ok(all));
        let cannot =
            [(PHYSICAL, 0), (PHYSICAL, 256), (PHYSICAL, 1536), (PHYSICAL, 1 << 40), (INFO, 1 << 32), (FLUSH, 2)];
        for number in cannot {
            assert_eq!(told(&[number]), Ok(vec![]), "{number:?}");
        }
        for (key, number) in [(GRANULARITY, 1), (GRANULARITY, 513), (GRANULARITY, 0xffff_fe00), (ALIGNMENT, 512)] {
            assert_eq!(told(&[(DISCARD, 1), (SECURE, 1), (key, number)]), Ok(vec![]), "{key} {number}");
        }
        assert_eq!(told(&[(DISCARD, 1), (GRANULARITY, 0)]), Ok(vec![(GRANULARITY, 0), (DISCARD, 1)]));
    }
}
