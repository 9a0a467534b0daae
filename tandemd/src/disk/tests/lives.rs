//! A driver domain that is rolled back has the number of the one that died, and knows nothing of that one's back ends.

use super::*;
use proptest::prelude::*;

const DRIVER: u16 = 5;

/// What happens to the daemon or beside it, before it does its next operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happens {
    /// The driver domain dies; or what is left of it becomes what it was; or that gets the name.
    Goes,
    /// The daemon is killed.
    Killed,
}

impl World {
    /// Before each operation of the daemon's.
    pub fn spend(&mut self) -> Result<(), Errno> {
        let due = self.happens.take_if(|(left, _)| *left == 0);
        if let Some((left, _)) = &mut self.happens {
            *left -= 1;
        }
        match due {
            Some((_, Happens::Goes)) => self.go_on(),
            Some((_, Happens::Killed)) => self.is_killed = true,
            None => {}
        }
        if self.is_killed {
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// The next thing that its supervisor does.
    fn go_on(&mut self) {
        let name = name_of(DRIVER);
        // Who serves them is told by its name; the hypervisor is at the other end no longer.
        let unplug = |world: &mut Self| world.disks.values_mut().for_each(|disk| disk.back = DISK_NO_BACK);
        match self.get(&name) {
            Some("dd") => {
                unplug(self);
                self.set(&name, "dd-remains");
            }
            Some("dd-remains") => {
                unplug(self);
                let back_ends = format!("/local/domain/{DRIVER}/backend");
                self.nodes.remove(&back_ends);
                self.life += 1;
                self.known.clear();
                self.plugged.clear();
                self.set(&name, "dd-standby");
            }
            _ => {
                self.set(&name, "dd");
                self.set(&taken_by("disk"), &DRIVER.to_string());
            }
        }
    }
}

impl Bench {
    /// One step; a daemon that is killed in it is followed by another one.
    fn step_or_end(&mut self) {
        self.now += Duration::from_millis(300);
        let _ = self.service.handle(&[], self.now, &mut self.world.clone(), &mut self.world.clone());
        let is_killed = std::mem::take(&mut self.world().is_killed);
        if is_killed {
            self.world().nodes.connect_again();
            let mut store = self.world.clone();
            self.service = DiskService::start("disk", DOMAIN, Some("dd".into()), &mut store).unwrap();
        }
        self.world().others();
    }
}

/// What becomes of a disk whose driver domain goes, step by step, while the daemon does its operations, and is killed
/// between any two of them.
fn lives(events: &[(usize, usize, Happens)]) {
    let mut bench = Bench::new();
    bench.world().create_driver(DRIVER);
    for (steps, operations, what) in events {
        (0..*steps).for_each(|_| bench.step_or_end());
        bench.world().happens = Some((*operations, *what));
    }
    bench.step_or_end();
    bench.world().happens = None;
    while bench.world().get(&name_of(DRIVER)) != Some("dd") {
        bench.world().go_on();
    }
    bench.run();
    assert_eq!(bench.back(), Some(DRIVER));
    let world = bench.world();
    assert_eq!((world.attached, world.get(&format!("{NEAR}/state"))), (world.life, Some("4")));
    // Who is killed between opening one and writing that down leaves it.
    let killed = events.iter().filter(|(.., what)| *what == Happens::Killed).count();
    assert!(world.ports.len() <= killed, "{:?}", world.ports);
    drop(world);
    // And when the disk goes, nothing of it stays granted.
    bench.world().happens = events.first().map(|(_, operations, _)| (*operations, Happens::Killed));
    bench.world().set(&format!("{BACK}/online"), "0");
    bench.world().set(&format!("{BACK}/state"), "5");
    bench.world().set(&format!("{FRONT}/state"), "6");
    (0..10).for_each(|_| bench.step_or_end());
    bench.world().happens = None;
    bench.run();
    assert_eq!((bench.back(), bench.places(), bench.world().granted.len()), (None, vec![], 0));
}

#[test]
fn one_that_is_rolled_back_gets_back_ends_of_its_own() {
    lives(&[(20, 0, Happens::Goes), (1, 0, Happens::Goes), (1, 0, Happens::Goes), (20, 0, Happens::Goes)]);
}

/// A guest is shown that its disk is connected when it can read what that is.
#[test]
fn a_daemon_that_is_killed_while_it_connects_a_disk_has_told_of_the_medium() {
    for operations in 0..60 {
        lives(&[(3, operations, Happens::Killed)]);
    }
    lives(&[(7, 44, Happens::Goes), (3, 41, Happens::Killed), (2, 0, Happens::Goes)]);
}

proptest! {
    #[test]
    fn whenever_it_is_rolled_back_and_whoever_is_killed_a_disk_is_never_the_former_lifes(
        events in proptest::collection::vec(
            (0..8_usize, 0..60_usize, prop_oneof![3 => Just(Happens::Goes), 1 => Just(Happens::Killed)]),
            0..12,
        )
    ) {
        lives(&events);
    }
}
