//! What is to be done next for a guest's disk: a pure function of what xenstore and the hypervisor say.
//!
//! There are two ends. The guest's is as with an interface ([`crate::device`]), but for one thing: what the medium can
//! do is known only when there has been a back end, so the guest is shown state 4 no earlier. Behind it, in the driver
//! domain, is a stock back end, whose front end is played here (its *near* state, and the back end's *far* one). A
//! guest that is connected is never shown 5 or 6, whatever becomes of that, unless it shows 5 itself. A guest keeps its
//! disk, and gets the next back end, until its front end says that it has left it, also if the toolstack wants it back.

use crate::device::{state, Back};

/// A look at a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The guest's back end directory. `None`: it is not there.
    pub back: Option<Back>,
    /// The guest's front end's state.
    pub front: u32,
    /// The hypervisor has its ring.
    pub is_connected: bool,
    /// The hypervisor has a back end for it.
    pub is_attached: bool,
    /// Its front end has left it, and its back end still has something under way. That is let end before the disk is
    /// let go, but not for long.
    pub is_draining: bool,
    /// The hypervisor answers its requests with errors.
    pub has_given_up: bool,
    /// The driver domain is there.
    pub has_driver: bool,
    /// It failed too often, or the operator wants it to rest: none comes.
    pub is_parked: bool,
    /// Its front end's state in the driver domain's eyes; unknown if there is none for this driver domain.
    pub near: u32,
    /// Its back end's.
    pub far: u32,
    /// That back end was told that its front end does not come again, so who runs scripts in the driver domain takes it
    /// away when it has closed.
    pub is_dismissed: bool,
    /// It has closed, and is given time for that: who runs scripts there does nothing for the next disk of that place
    /// before.
    pub is_unplugging: bool,
    /// A script has told that back end which device it is. That is looked at only while the back end waits for it.
    pub has_medium: bool,
    /// The back end that it is attached to says that its medium is larger than the guest was told.
    pub has_grown: bool,
}

/// What is done for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Say what is offered and wait for the front end.
    Offer,
    /// Make both directories between here and the driver domain.
    Introduce,
    /// Make ring, pages and port for the driver domain's back end, and name them.
    Grant,
    /// The hypervisor takes up the guest's ring, and the guest is told what the medium is.
    Connect,
    /// The hypervisor gets the back end.
    Attach,
    /// The guest is told of its medium's size once more.
    TellGrowth,
    /// Its requests are answered with errors from now on; or wait again.
    GiveUp(bool),
    /// Have whoever runs scripts in the driver domain look again.
    Remind,
    /// Let the guest's ring go.
    Disconnect,
    /// Show the driver domain's back end this state.
    ShowFar(u32),
    /// Take it away.
    Dismiss,
    /// Remove both directories between here and the driver domain.
    ForgetFar,
    /// Show the guest this state.
    Show(u32),
    /// Remove the guest's back end directory.
    Forget,
}

/// A front end that shows this uses no disk that it has had. One that is closing does: Linux before 5.15 shows that as
/// long as something is mounted there.
pub fn has_left(front: u32) -> bool {
    matches!(front, state::UNKNOWN | state::INITIALISING | state::CLOSED)
}

/// A disk without a back end whose driver domain is parked answers with errors. Others wait.
fn give_up(seen: &Seen) -> Option<Step> {
    let is_wanted = seen.is_parked && !seen.has_driver;
    (seen.is_connected && !seen.is_attached && is_wanted != seen.has_given_up).then_some(Step::GiveUp(is_wanted))
}

/// The next step, if there is one. After each another look is taken.
pub fn next(seen: &Seen) -> Option<Step> {
    let release_or = |step: Option<Step>| match seen.is_connected {
        true => (!seen.is_draining).then_some(Step::Disconnect),
        false => step,
    };
    let Some(back) = seen.back else { return release_or(leave_far(seen)) };
    let is_up = matches!(seen.front, state::INITIALISED | state::CONNECTED);
    let show = |wanted: u32| (back.state != wanted).then_some(Step::Show(wanted));
    let keep = || give_up(seen).or_else(|| keep_far(seen));
    match seen.front {
        state::CLOSING if seen.is_connected => return show(state::CLOSING).or_else(keep),
        // Whatever the toolstack wants: the guest uses it.
        front if seen.is_connected && !back.online && !has_left(front) => return keep(),
        _ => {}
    }
    if !back.online {
        return match (is_up, back.state) {
            (true, _) => None,
            (false, state::CLOSED) => release_or(leave_far(seen).or(back.is_seen_closed.then_some(Step::Forget))),
            (false, _) => release_or(show(state::CLOSED)),
        };
    }
    match seen.front {
        state::INITIALISING => {
            release_or((back.state != state::INIT_WAIT).then_some(Step::Offer).or_else(|| keep_far(seen)))
        }
        state::INIT_WAIT if matches!(back.state, state::UNKNOWN | state::INITIALISING) => Some(Step::Offer),
        state::INITIALISED | state::CONNECTED => match back.state {
            state::UNKNOWN | state::INITIALISING => release_or(Some(Step::Offer)),
            state::CLOSING | state::CLOSED if !seen.is_connected => None,
            state::CLOSING | state::CLOSED => keep(),
            // The medium is known when its back end has connected.
            _ if !seen.is_connected && seen.far == state::CONNECTED && seen.near == state::INITIALISED => {
                Some(Step::Connect)
            }
            _ if seen.is_connected && back.state != state::CONNECTED => Some(Step::Show(state::CONNECTED)),
            _ if seen.is_attached && seen.has_grown => Some(Step::TellGrowth),
            _ => keep(),
        },
        state::CLOSING if back.state == state::CLOSED => None,
        state::CLOSING => show(state::CLOSING),
        state::UNKNOWN | state::CLOSED => release_or(show(state::CLOSED)),
        _ => keep_far(seen),
    }
}

/// A back end of the driver domain's is wanted.
fn keep_far(seen: &Seen) -> Option<Step> {
    if !seen.has_driver {
        return None;
    }
    match (seen.near, seen.far) {
        (state::UNKNOWN, _) | (_, state::UNKNOWN) => Some(Step::Introduce),
        (state::INITIALISING, state::INIT_WAIT) => Some(Step::Grant),
        // It may have come after the back end, which it has not seen begin.
        (state::INITIALISED, state::INIT_WAIT) if !seen.has_medium => Some(Step::Remind),
        (state::INITIALISED, state::CONNECTED) if seen.is_connected && !seen.is_attached => Some(Step::Attach),
        // It had a guest, or a hypervisor that it has lied to, or could not connect: both begin again.
        (state::CONNECTED, _) | (state::INITIALISED, state::CLOSING | state::CLOSED) if !seen.is_attached => {
            Some(Step::ShowFar(state::CLOSED))
        }
        (state::CLOSED, state::CLOSED) if seen.is_dismissed => (!seen.is_unplugging).then_some(Step::Introduce),
        (state::CLOSED, state::CLOSED) => Some(Step::ShowFar(state::INITIALISING)),
        _ => None,
    }
}

/// None is wanted.
fn leave_far(seen: &Seen) -> Option<Step> {
    match (seen.near, seen.far) {
        (state::UNKNOWN, state::UNKNOWN) => None,
        (_, state::UNKNOWN) => Some(Step::ForgetFar),
        (_, state::CLOSED) if seen.is_dismissed => (!seen.is_unplugging).then_some(Step::ForgetFar),
        (state::CLOSED, _) if seen.is_dismissed => None,
        _ => Some(Step::Dismiss),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONLINE: Back = Back { state: state::INIT_WAIT, online: true, is_seen_closed: false };
    const START: Seen = Seen {
        back: Some(Back { state: state::INITIALISING, ..ONLINE }),
        front: state::INITIALISING,
        is_connected: false,
        is_attached: false,
        is_draining: false,
        has_given_up: false,
        has_driver: true,
        is_parked: false,
        near: state::UNKNOWN,
        far: state::UNKNOWN,
        is_dismissed: false,
        is_unplugging: false,
        has_medium: true,
        has_grown: false,
    };

    /// Takes steps until there is none, as a store, a stock back end that answers at once, and the hypervisor would
    /// have them.
    fn settle(mut seen: Seen) -> (Seen, Vec<Step>) {
        let mut steps = Vec::new();
        while let Some(step) = next(&seen) {
            assert!(steps.len() < 20, "it never rests: {steps:?}");
            steps.push(step);
            let back = seen.back.get_or_insert(ONLINE);
            match step {
                Step::Offer => back.state = state::INIT_WAIT,
                Step::Show(shown) => back.state = shown,
                Step::Introduce => {
                    (seen.near, seen.far, seen.is_dismissed) = (state::INITIALISING, state::INIT_WAIT, false);
                }
                Step::Grant => (seen.near, seen.far) = (state::INITIALISED, state::CONNECTED),
                Step::Remind => seen.has_medium = true,
                Step::Connect => seen.is_connected = true,
                Step::Attach => (seen.is_attached, seen.has_given_up, seen.near) = (true, false, state::CONNECTED),
                Step::TellGrowth => seen.has_grown = false,
                Step::GiveUp(is_wanted) => seen.has_given_up = is_wanted,
                Step::Disconnect => (seen.is_connected, seen.is_attached) = (false, false),
                Step::ShowFar(state::CLOSED) => (seen.near, seen.far) = (state::CLOSED, state::CLOSED),
                Step::Dismiss => (seen.near, seen.far, seen.is_dismissed) = (state::CLOSED, state::CLOSED, true),
                Step::ShowFar(_) => (seen.near, seen.far) = (state::INITIALISING, state::INIT_WAIT),
                Step::ForgetFar => (seen.near, seen.far) = (state::UNKNOWN, state::UNKNOWN),
                Step::Forget => seen.back = None,
            }
            if seen.back.is_none() {
                break;
            }
        }
        (seen, steps)
    }

    #[test]
    fn a_disk_is_connected_as_stock_front_ends_expect_it() {
        let (waiting, _) = settle(START);
        assert_eq!(waiting.back.map(|back| back.state), Some(state::INIT_WAIT));
        let (up, steps) = settle(Seen { front: state::INITIALISED, ..waiting });
        assert_eq!(steps, [Step::Connect, Step::Show(state::CONNECTED), Step::Attach]);
        assert!(up.is_attached);
    }

    #[test]
    fn without_a_driver_domain_the_guest_waits() {
        let (waiting, _) = settle(Seen { has_driver: false, ..START });
        let (still, steps) = settle(Seen { front: state::INITIALISED, ..waiting });
        assert_eq!((still.back.map(|back| back.state), steps), (Some(state::INIT_WAIT), vec![]));
    }

    #[test]
    fn a_connected_guest_is_shown_nothing_when_its_driver_domain_goes_and_another_comes() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let up = Seen { front: state::CONNECTED, ..up };
        let none = Seen { is_attached: false, has_driver: false, near: state::UNKNOWN, far: state::UNKNOWN, ..up };
        assert_eq!(next(&none), None);
        let (again, steps) = settle(Seen { has_driver: true, ..none });
        assert_eq!(steps, [Step::Introduce, Step::Grant, Step::Attach]);
        assert_eq!(again.back.map(|back| back.state), Some(state::CONNECTED));
    }

    #[test]
    fn requests_wait_for_a_driver_domain_unless_it_is_parked() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let none = Seen { is_attached: false, has_driver: false, near: state::UNKNOWN, far: state::UNKNOWN, ..up };
        let (parked, steps) = settle(Seen { is_parked: true, ..none });
        assert_eq!((steps, parked.has_given_up), (vec![Step::GiveUp(true)], true));
        let (waits, steps) = settle(Seen { is_parked: false, ..parked });
        assert_eq!((steps, waits.has_given_up), (vec![Step::GiveUp(false)], false));
        // Somebody has started it in spite of that.
        let (again, _) = settle(Seen { has_driver: true, ..parked });
        assert!(again.is_attached && !again.has_given_up);
    }

    #[test]
    fn a_guest_is_told_of_growth_after_it_was_shown_that_it_is_connected() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let back = up.back.map(|back| Back { state: state::INIT_WAIT, ..back });
        let (_, steps) = settle(Seen { back, has_grown: true, ..up });
        assert_eq!(steps, [Step::Show(state::CONNECTED), Step::TellGrowth]);
        assert_eq!(next(&Seen { is_attached: false, has_driver: false, has_grown: true, ..up }), None);
    }

    #[test]
    fn no_look_at_a_connected_guest_shows_it_that_it_closes() {
        let all = 0..=8;
        for (near, far) in all.clone().flat_map(|near| all.clone().map(move |far| (near, far))) {
            for bits in 0..4 {
                let (is_attached, has_driver) = (bits & 1 != 0, bits & 2 != 0);
                let back = Some(Back { state: state::CONNECTED, ..ONLINE });
                let seen = Seen {
                    back,
                    front: state::CONNECTED,
                    is_connected: true,
                    is_attached,
                    has_driver,
                    near,
                    far,
                    ..START
                };
                let step = next(&seen);
                assert!(!matches!(step, Some(Step::Show(_) | Step::Disconnect | Step::Forget)), "{seen:?}: {step:?}");
            }
        }
    }

    #[test]
    fn a_front_end_that_begins_again_gets_a_fresh_back_end() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let (closed, _) = settle(Seen { front: state::CLOSED, ..up });
        assert_eq!((closed.is_connected, closed.back.map(|back| back.state)), (false, Some(state::CLOSED)));
        let (waiting, steps) = settle(Seen { front: state::INITIALISING, ..closed });
        assert_eq!(steps.first(), Some(&Step::Offer));
        let (again, _) = settle(Seen { front: state::INITIALISED, ..waiting });
        assert!(again.is_attached);
    }

    #[test]
    fn a_back_end_that_gives_up_before_it_is_connected_begins_again() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        for far in [state::CLOSING, state::CLOSED] {
            let seen = Seen { is_attached: false, near: state::INITIALISED, far, ..up };
            let (again, steps) = settle(seen);
            assert_eq!(steps.first(), Some(&Step::ShowFar(state::CLOSED)));
            assert!(again.is_attached);
        }
    }

    /// Of a guest that has something mounted there, or does not run.
    #[test]
    fn a_guest_keeps_its_disk_until_it_says_that_it_has_left_it() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let fronts = [state::INITIALISED, state::CONNECTED, state::CLOSING];
        for (front, online) in fronts.into_iter().flat_map(|front| [(front, true), (front, false)]) {
            let back = Some(Back { state: state::CLOSING, online, is_seen_closed: false });
            let none = Seen { is_attached: false, has_driver: false, near: state::UNKNOWN, far: state::UNKNOWN, ..up };
            let waits = Seen { back, front, ..none };
            assert_eq!(next(&waits), None, "{waits:?}");
            let (again, steps) = settle(Seen { has_driver: true, ..waits });
            assert_eq!(steps, [Step::Introduce, Step::Grant, Step::Attach]);
            assert_eq!(settle(Seen { is_parked: true, ..waits }).1, [Step::GiveUp(true)]);
            assert_eq!(next(&again), None);
            assert_eq!(next(&Seen { front: state::CLOSED, ..again }), Some(Step::Disconnect));
        }
        // As a stock back end does.
        let closing = Seen { front: state::CLOSING, back: up.back.map(|back| Back { online: false, ..back }), ..up };
        assert_eq!(settle(closing).1, [Step::Show(state::CLOSING)]);
        // Who was never connected uses nothing.
        let never = Seen { is_connected: false, is_attached: false, ..closing };
        assert_eq!(next(&never), Some(Step::Show(state::CLOSED)));
    }

    #[test]
    fn a_back_end_is_forgotten_when_who_runs_scripts_has_taken_it_away() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let left = Seen { is_connected: false, is_attached: false, back: None, ..up };
        assert_eq!(next(&left), Some(Step::Dismiss));
        // One that had closed by itself is told, too.
        assert_eq!(next(&Seen { near: state::CLOSED, far: state::CLOSED, ..left }), Some(Step::Dismiss));
        let told = Seen { is_dismissed: true, is_unplugging: true, near: state::CLOSED, ..left };
        assert_eq!((next(&told), next(&Seen { far: state::CLOSED, ..told })), (None, None));
        assert_eq!(next(&Seen { far: state::UNKNOWN, ..told }), Some(Step::ForgetFar));
        let over = Seen { is_unplugging: false, far: state::CLOSED, ..told };
        assert_eq!(next(&over), Some(Step::ForgetFar));
        // It may be wanted again meanwhile.
        let wanted = |seen: Seen| next(&Seen { back: Some(ONLINE), front: state::INITIALISING, ..seen });
        assert_eq!(wanted(Seen { far: state::CLOSED, ..told }), None);
        assert_eq!(
            (wanted(over), wanted(Seen { far: state::UNKNOWN, ..told })),
            (Some(Step::Introduce), Some(Step::Introduce))
        );
    }

    #[test]
    fn a_disk_is_let_go_when_nothing_is_under_way_any_more() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        for front in [state::UNKNOWN, state::INITIALISING, state::CLOSED] {
            for online in [true, false] {
                let back = Some(Back { state: state::CONNECTED, online, is_seen_closed: true });
                let seen = Seen { back, front, is_draining: true, ..up };
                assert_eq!(next(&seen), None, "{front}");
                assert_eq!(next(&Seen { is_draining: false, ..seen }), Some(Step::Disconnect), "{front}");
            }
        }
    }

    #[test]
    fn nothing_stays_of_a_disk_that_is_taken_away() {
        let (up, _) = settle(Seen { front: state::INITIALISED, ..settle(START).0 });
        let back = Some(Back { state: state::CONNECTED, online: false, is_seen_closed: true });
        let (gone, steps) = settle(Seen { back, front: state::CLOSED, ..up });
        assert_eq!(steps.last(), Some(&Step::Forget));
        assert_eq!((gone.is_connected, gone.near, gone.far), (false, state::UNKNOWN, state::UNKNOWN));
        let back = None;
        assert_eq!(next(&Seen { back, ..up }), Some(Step::Disconnect));
        assert_eq!(next(&Seen { back, is_connected: false, is_attached: false, ..up }), Some(Step::Dismiss));
    }
}
