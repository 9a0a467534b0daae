//! Network cards that twins drive, as their domains attach them: which switch each is the way out of.
//!
//! A card belongs to an interface of its domain's, and follows it: where that is plugged in as the way out, the card is
//! the way out instead. It stays attached while the interface is away.

use super::connect::{Config, Plugged, CONFIG};
use super::held;
use super::uplink::{self, Uplink};
use crate::arch::tsc;
use crate::domain;
use crate::mem::frames;
use crate::twin::net::{Card, Takes};
use hv_core::map;
use xen_abi::errno::Errno;

/// A card, and the interface that it belongs to.
pub struct Attached {
    card: Card,
    domain: u16,
    device: u32,
}

impl Attached {
    fn is_of(&self, plugged: &Plugged) -> bool {
        plugged.is_uplink() && (plugged.request.guest, plugged.request.device) == (self.domain, self.device)
    }
}

/// The card that is the way out of a switch.
pub fn card_of(config: &Config, switch: u32) -> Option<Card> {
    let plugged = config.way_out(switch)?;
    config.cards.values().find(|a| a.is_of(plugged)).map(|a| a.card)
}

/// An interface is unplugged, and its card, if it has one, without a switch.
pub fn unlink(config: &Config, plugged: &Plugged) {
    if let Some(attached) = config.cards.values().find(|a| a.is_of(plugged)) {
        uplink::unlink(attached.card);
    }
}

/// A card is the way out instead of interface `device` of `domain`, whose own it becomes. ENODEV: that one is not the
/// way out of a switch.
/// EBUSY: it has a card. ENOMEM.
pub fn attached(card: Card, domain: u16, device: u32, takes: &Takes) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    // What others take who have asked before is taken by now. Many queues' share is as much as the reserve has.
    if !frames::has_headroom() || !frames::has_beside_reserve(Uplink::frames(takes.nr_queues)) {
        return Err(Errno::ENOMEM);
    }
    let attached = Attached { card, domain, device };
    let (interface, plugged) = config.vifs.iter().find(|(_, p)| attached.is_of(p)).ok_or(Errno::ENODEV)?;
    let (switch, receiver) = (plugged.request.switch, plugged.handle);
    if card_of(&config, switch).is_some() || config.cards.contains_key(&card.place()) {
        return Err(Errno::EBUSY);
    }
    let owner = domain::find(domain).ok_or(Errno::ENODEV)?;
    uplink::put(card, Uplink::new(card, &owner, *interface, (takes, plugged.leaves_sums()))?);
    config.cards.insert(card.place(), attached);
    let new = match config.build(switch) {
        Ok(new) => new,
        Err(errno) => {
            map::take(&mut config.cards, &card.place());
            uplink::take_out(card);
            return Err(errno);
        }
    };
    // What waits for the interface goes by the card, but for what is its domain's; and before what comes later.
    config.close_way_out(switch);
    let now = tsc::now_ns();
    held::put_all(receiver, now);
    config.put(switch, new);
    held::go_on(switch, now);
    Ok(())
}

/// A card is gone: its interface is the way out again, also for what waited for the card and what `give_back` gives
/// back. What comes later goes behind that.
pub fn detached(card: Card, give_back: &mut dyn FnMut()) {
    let mut config = CONFIG.lock();
    let is_there = config.cards.get(&card.place()).is_some_and(|a| a.card == card);
    let attached = is_there.then(|| map::take(&mut config.cards, &card.place())).flatten();
    let Some(attached) = attached else { return give_back() };
    let switch = config.vifs.values().find(|p| attached.is_of(p)).map(|p| p.request.switch);
    if let Some(switch) = switch {
        config.close_way_out(switch);
    }
    uplink::take_out(card);
    give_back();
    if let Some(switch) = switch {
        config.publish_loss(switch);
        held::go_on(switch, tsc::now_ns());
    }
}
