//! The service beside a store, a hypervisor, a driver domain with a stock back end, and a guest that are all made of
//! maps.

mod driver;
mod guest;
mod lives;
mod media;
mod others;
mod waiting;
mod world;

use super::*;
use crate::store::Change;
use rustix::io::Errno;
use world::{Shared, World};
use xen_abi::channel_op::ChannelDiskAttach;

const DOMAIN: u16 = 3;
const BACK: &str = "/local/domain/3/backend/vbd/7/51712";
const FRONT: &str = "/local/domain/7/device/vbd/51712";
const NEAR: &str = "/local/domain/3/device/vbd/0";

/// A daemon, and the world in which it serves.
struct Bench {
    service: DiskService,
    world: Shared,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let mut world = Shared::default();
        world.0.borrow_mut().create_guest();
        let service = DiskService::start("disk", DOMAIN, Some("dd".into()), &mut world).unwrap();
        Self { service, world, now: Instant::now() }
    }

    /// Time passes. Then no page is granted to anybody who is to have it no more, unless he uses it.
    fn run(&mut self) {
        (0..60).for_each(|_| self.step());
        assert_eq!(self.world().granted_in_vain(), []);
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(300);
        let fate = self.service.handle(&[], self.now, &mut self.world.clone(), &mut self.world.clone());
        assert_eq!(fate.unwrap(), Fate::Lives);
        self.world.0.borrow_mut().others();
    }

    fn world(&self) -> std::cell::RefMut<'_, World> {
        self.world.0.borrow_mut()
    }

    /// What is between here and driver domains.
    fn places(&self) -> Vec<String> {
        let is_one = |path: &String| path.contains("/vbd/") && path.ends_with("/state");
        let ends = [format!("{BACK}/state"), format!("{FRONT}/state")];
        self.world().nodes.paths().map(String::from).filter(is_one).filter(|path| !ends.contains(path)).collect()
    }

    /// Domain of the back end, if the disk is connected.
    fn back(&self) -> Option<u16> {
        self.world().disk().map(|disk| disk.back)
    }
}

/// Another guest's, which never comes up. Its front end's directory here.
fn create_other(bench: &Bench) {
    let other = "/local/domain/3/backend/vbd/9/51712";
    for (key, value) in [("frontend", "/local/domain/9/device/vbd/51712"), ("online", "1"), ("state", "1")] {
        bench.world().set(&format!("{other}/{key}"), value);
    }
    bench.world().set("/local/domain/9/device/vbd/51712/state", "1");
}
