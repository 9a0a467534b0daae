//! One driver domain, and what can be wrong with its image.

use super::{BOOT, TICK, WEDGED};
use crate::supervisor::health::Beat;
use crate::supervisor::look::{Domain, Twind};
use control::Image;
use std::time::Duration;

/// What the driver domain does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Does {
    Its,
    Spins,
    /// A device of its was stopped.
    Strays,
    /// It answers disks' requests with errors.
    Errs,
    Boots,
    Hangs,
    /// Its link is up, and nothing comes of that.
    Idles,
    /// It takes what is for the outside, and nothing comes from there.
    IsDeaf,
    /// The same, and it has not turned its devices on.
    IsBlind,
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub id: u16,
    pub age: Duration,
    pub does: Does,
    pub end: Option<(u32, bool)>,
    pub ended_at: Option<Duration>,
    /// Its console says so.
    pub is_out_of_memory: bool,
    /// How much memory it tells of.
    pub available_kib: Option<u64>,
    /// What its twind tells.
    pub twind: Option<Twind>,
    pub is_paused: bool,
    pub beat: Beat,
    /// How long it has taken no event.
    pub spun: Duration,
    pub taken: u64,
    pub came: u64,
    pub is_others: bool,
    pub has_devices: bool,
    /// Others have taken them.
    pub is_bereft: bool,
    /// The hypervisor can roll it back.
    pub is_noted: bool,
    /// What it was started with.
    pub image: Image,
}

impl Instance {
    pub fn seen(&self, now: Duration) -> Domain {
        let ended_for = self.ended_at.map_or(Duration::ZERO, |at| now - at);
        let (is_paused, is_bereft) = (self.is_paused, self.is_bereft);
        let is_out_of_memory = self.is_out_of_memory && self.end.is_some();
        Domain {
            max_pages: 1 << 16,
            id: self.id,
            end: self.end,
            ended_for,
            is_out_of_memory,
            is_dying: false,
            is_paused,
            is_bereft,
            beats: vec![self.beat],
        }
    }

    pub fn get_devices(&mut self) {
        self.has_devices = true;
        match self.image.clone() {
            image if image == with(Some(Flaw::NotReady)) => self.does = Does::Hangs,
            image if image == with(Some(Flaw::NotConnected)) => self.does = Does::Idles,
            _ => {}
        }
    }

    /// What it does when it has booted and has its devices.
    fn comes_to(&self) -> Does {
        match () {
            () if self.image == with(Some(Flaw::NotReceiving)) => Does::IsDeaf,
            () if self.image == with(Some(Flaw::NotProbed)) => Does::IsBlind,
            () => Does::Its,
        }
    }

    /// It is reached by guests.
    pub fn is_way(&self) -> bool {
        let ways = [Does::Its, Does::Spins, Does::Strays, Does::Errs, Does::IsDeaf, Does::IsBlind];
        ways.contains(&self.does) && self.end.is_none()
    }

    pub fn pass(&mut self) {
        if self.end.is_some() || self.is_paused {
            return;
        }
        self.age += TICK;
        if self.does == Does::Boots && self.age >= BOOT {
            if !self.has_devices {
                // It waits for them.
                return;
            }
            self.does = self.comes_to();
        }
        self.beat.run += TICK;
        match self.does {
            Does::Boots => {}
            Does::Spins => {
                self.spun += TICK;
                self.beat.wedged_for = (self.spun >= WEDGED).then_some(self.spun);
            }
            Does::Its | Does::Hangs | Does::Idles | Does::Strays | Does::Errs | Does::IsDeaf | Does::IsBlind => {
                self.beat.upcalls += 1;
                self.taken += u64::from(matches!(self.does, Does::Its | Does::Errs | Does::IsDeaf | Does::IsBlind));
                self.came += u64::from(matches!(self.does, Does::Its | Does::Errs));
                let strayed = self.beat.dma_fault_for.unwrap_or_default() + TICK;
                self.beat.dma_fault_for = (self.does == Does::Strays).then_some(strayed);
            }
        }
    }
}

/// What can be wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flaw {
    /// The toolstack does not take it.
    NotCreated,
    NeverBoots,
    Panics,
    /// It waits for devices, and does nothing with them.
    NotReady,
    /// It drives them, and its interface is connected to nothing.
    NotConnected,
    /// It is the way, and nothing comes by it.
    NotReceiving,
    /// The same, as no driver takes its devices.
    NotProbed,
}

/// An image that is new, with this flaw.
pub fn with(flaw: Option<Flaw>) -> Image {
    Image { kernel: Some(format!("/boot/{flaw:?}")), ..Image::default() }
}

pub fn new() -> Image {
    with(None)
}
