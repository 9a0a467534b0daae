//! A driver domain that serves two networks and has the disks of two services.

use super::*;
use crate::fake_store::Nodes;
use crate::hypercall::{DiskList, Left};
use std::collections::BTreeMap;
use twin_abi::op::TwinStats;
use xen_abi::channel_op::{
    ChannelConnect, ChannelDiskAttach, ChannelDiskConnect, ChannelDiskStatus, ChannelStatus, ChannelWayOut,
    DISK_NO_BACK,
};

const DRIVER: u16 = 7;

/// What is plugged in and attached, by its place.
#[derive(Default)]
struct Machine {
    vifs: BTreeMap<u32, ChannelStatus>,
    disks: BTreeMap<u32, ChannelDiskStatus>,
    /// The list tells of one that has gone meanwhile.
    is_late: bool,
}

impl Machine {
    /// Services' domains are 3 and 4, and those of disks 5 and 6.
    fn new() -> Self {
        let mut machine = Self::default();
        for (vif, guest, backend) in [(0, DRIVER, 3), (1, 8, 3), (2, DRIVER, 4), (3, 8, 4)] {
            let status = ChannelStatus { vif, next: vif + 1, guest, backend, ..ChannelStatus::default() };
            machine.vifs.insert(vif, status);
        }
        for (disk, backend, back) in [(0, 5, DRIVER), (1, 5, 9), (2, 6, DRIVER), (3, 6, DISK_NO_BACK)] {
            let status =
                ChannelDiskStatus { disk, next: disk + 1, guest: 8, backend, back, ..ChannelDiskStatus::default() };
            machine.disks.insert(disk, status);
        }
        machine
    }
}

impl Switches for Machine {
    fn next(&mut self, place: u32) -> Result<ChannelStatus, Errno> {
        self.vifs.range(place..).next().map(|(_, status)| *status).ok_or(Errno::NOENT)
    }
    fn disconnect(&mut self, vif: u32) -> Result<(), Errno> {
        self.vifs.remove(&vif).filter(|_| !self.is_late).map(|_| ()).ok_or(Errno::NOENT)
    }
    fn create(&mut self) -> Result<u32, Errno> {
        unreachable!()
    }
    fn hold(&mut self, _: u32, _: u32) -> Result<(), Errno> {
        unreachable!()
    }
    fn connect(&mut self, _: &ChannelConnect) -> Result<u32, Errno> {
        unreachable!()
    }
    fn status(&mut self, _: u32) -> Result<ChannelStatus, Errno> {
        unreachable!()
    }
    fn way_out(&mut self, _: u32) -> Result<ChannelWayOut, Errno> {
        unreachable!()
    }
    fn next_twin(&mut self, _: u32) -> Result<TwinStats, Errno> {
        unreachable!()
    }
}

impl DiskList for Machine {
    fn next_disk(&mut self, place: u32) -> Result<ChannelDiskStatus, Errno> {
        self.disks.range(place..).next().map(|(_, status)| *status).ok_or(Errno::NOENT)
    }
}

impl Disks for Machine {
    fn give_up_disk(&mut self, disk: u32, is_wanted: bool) -> Result<(), Errno> {
        assert!(!is_wanted, "its requests wait");
        let disk = self.disks.get_mut(&disk).ok_or(Errno::NOENT)?;
        disk.back = DISK_NO_BACK;
        if self.is_late {
            return Err(Errno::NOENT);
        }
        Ok(())
    }
    fn connect_disk(&mut self, _: &ChannelDiskConnect) -> Result<u32, Errno> {
        unreachable!()
    }
    fn disconnect_disk(&mut self, _: u32) -> Result<(), Errno> {
        unreachable!()
    }
    fn attach_disk(&mut self, _: &ChannelDiskAttach) -> Result<(), Errno> {
        unreachable!()
    }
    fn open_port(&mut self, _: u16, _: u16) -> Result<u32, Errno> {
        unreachable!()
    }
    fn close_port(&mut self, _: u16, _: u32) -> Result<(), Errno> {
        unreachable!()
    }
    fn grant(&mut self, _: u16, _: u32, _: u16) -> Result<u32, Errno> {
        unreachable!()
    }
    fn revoke(&mut self, _: u16, _: u32, _: Option<u16>) -> Result<Left, Errno> {
        unreachable!()
    }
}

#[test]
fn nothing_stays_plugged_in_or_attached_of_one_that_has_failed_whichever_service_it_is_of() {
    for is_late in [false, true] {
        let mut machine = Machine { is_late, ..Machine::new() };
        of_disks(DRIVER, &mut machine).unwrap();
        let backs: Vec<u16> = machine.disks.values().map(|disk| disk.back).collect();
        assert_eq!(backs, [DISK_NO_BACK, 9, DISK_NO_BACK, DISK_NO_BACK]);
        assert_eq!(machine.vifs.len(), 4);
        of_interfaces(DRIVER, &mut machine).unwrap();
        let guests: Vec<(u16, u16)> = machine.vifs.values().map(|vif| (vif.guest, vif.backend)).collect();
        assert_eq!(guests, [(8, 3), (8, 4)], "others keep theirs");
    }
}

#[test]
fn who_is_rolled_back_finds_back_ends_of_all_its_services_that_wait() {
    let mut nodes = Nodes::default();
    let back = |served: u16, guest: u16| format!("/local/domain/{served}/backend/vif/{guest}/0");
    for (served, guest) in [(3, DRIVER), (4, DRIVER), (4, 8)] {
        nodes.set(&format!("{}/frontend", back(served, guest)), "x");
        nodes.set(&format!("{}/state", back(served, guest)), "6");
    }
    offer_anew(DRIVER, &[3, 4, 5], &mut nodes).unwrap();
    let state = |served: u16, guest: u16| nodes[&format!("{}/state", back(served, guest))].to_string();
    assert_eq!([state(3, DRIVER), state(4, DRIVER), state(4, 8)], ["2", "2", "6"]);
    assert!(nodes.get("/local/domain/5").is_none());
}
