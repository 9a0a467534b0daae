//! `dom0_mem=`: how much memory domain 0 gets.

use super::values::size;

/// The accepted form, for messages.
pub(super) const FORM: &str = "[SIZE][,min:SIZE][,max:SIZE], SIZE as 1024M, -512M, 25% or 25%+256M";
const PAGE: u64 = 4096;
/// What is left to the hypervisor by default: a sixteenth, but no more than this.
const MAX_RESERVE: u64 = 128 << 20;

/// A size that may depend on the memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// So many hundredths of it.
    percent: u8,
    /// And so many bytes more; fewer if negative.
    bytes: i64,
    /// Whether `bytes` is negative and alone: all but so much.
    is_all_but: bool,
}

impl Amount {
    /// So many bytes.
    pub fn bytes(bytes: u64) -> Self {
        Self { percent: 0, bytes: i64::try_from(bytes).unwrap_or(i64::MAX), is_all_but: false }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('-') {
            return Some(Self { is_all_but: true, ..Self::bytes(size(rest)?) });
        }
        let Some((percent, rest)) = text.split_once('%') else {
            return size(text).map(Self::bytes);
        };
        let percent = percent.parse().ok().filter(|p| *p <= 100)?;
        let bytes = match rest.split_at_checked(1) {
            None => 0,
            Some(("+", more)) => Self::bytes(size(more)?).bytes,
            Some(("-", less)) => -Self::bytes(size(less)?).bytes,
            Some(_) => return None,
        };
        Some(Self { percent, bytes, is_all_but: false })
    }

    /// In pages, when `available` pages are free; never more.
    pub fn pages(&self, available: u64) -> u64 {
        let pages = self.bytes.unsigned_abs() / PAGE;
        let base = if self.is_all_but { available } else { available / 100 * u64::from(self.percent) };
        let sum =
            if self.is_all_but || self.bytes < 0 { base.saturating_sub(pages) } else { base.saturating_add(pages) };
        sum.min(available)
    }
}

/// The whole option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dom0Memory {
    /// The memory it starts with; by default all but a reserve.
    pub amount: Option<Amount>,
    /// At least this, if there is so much.
    pub min: Option<Amount>,
    /// At most this, now and later.
    pub max: Option<Amount>,
}

impl Dom0Memory {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut memory = Self::default();
        for item in text.split(',') {
            let (field, value) = match item.split_once(':') {
                None => (&mut memory.amount, item),
                Some(("min", value)) => (&mut memory.min, value),
                Some(("max", value)) => (&mut memory.max, value),
                Some(_) => return None,
            };
            *field = Some(Amount::parse(value)?);
        }
        Some(memory)
    }

    /// The pages to give when `available` are free.
    pub fn pages(&self, available: u64) -> u64 {
        let reserve = (available / 16).min(MAX_RESERVE / PAGE);
        let amount = self.amount.map_or(available - reserve, |amount| amount.pages(available));
        let at_least = self.min.map_or(0, |min| min.pages(available));
        amount.max(at_least).min(self.max_pages(available).unwrap_or(available))
    }

    /// The most it may ever have; none for no limit.
    pub fn max_pages(&self, available: u64) -> Option<u64> {
        self.max.map(|max| max.pages(available))
    }

    /// Whether the minimum is above the maximum, both being plain sizes.
    pub fn is_inverted(&self) -> bool {
        let plain = |amount: &Amount| !amount.is_all_but && amount.percent == 0;
        self.min.zip(self.max).is_some_and(|(min, max)| plain(&min) && plain(&max) && min.bytes > max.bytes)
    }
}
