//! What is done for a disk: each of the steps that [`device`](super::device) names.

use super::{state, Device, DiskService, Disks, Far, Step};
use crate::hypercall::NR_PAGES;
use crate::store::{Change, Store};
use anyhow::{Context, Result};
use rustix::io::Errno;
use xen_abi::channel_op::{ChannelDiskAttach, DISK_GIVEN_UP};

impl DiskService {
    /// `false`: it is to be tried again later.
    pub(super) fn take(
        &mut self,
        step: Step,
        device: Device,
        far: Option<Far>,
        driver: Option<u16>,
        store: &mut impl Store,
        disks: &mut impl Disks,
    ) -> Result<bool> {
        let path = self.back(device);
        let guard = format!("{path}/frontend");
        let write = |path: &str, key: &str, value: &str| Change::Write(format!("{path}/{key}"), value.into());
        let show = |path: &str, state: u32| write(path, "state", &state.to_string());
        match (step, far) {
            (Step::Offer, _) => {
                let offer = write(&path, "feature-max-indirect-segments", "32");
                let changes = [offer, write(&path, "hotplug-status", "connected"), show(&path, state::INIT_WAIT)];
                store.change(&guard, &changes)?;
            }
            (Step::Show(state), _) => {
                store.change(&guard, &[show(&path, state)])?;
            }
            (Step::Introduce, far) => match driver {
                Some(driver) => {
                    if let Some(far) = &far {
                        self.close_port(far, store, disks)?;
                    }
                    return self.introduce(device, far, driver, store, disks);
                }
                None => return Ok(false),
            },
            (Step::Remind, Some(far)) => {
                let state = format!("{}/state", far.far);
                store.change(&state, &[Change::Repeat(state.clone())])?;
                return Ok(false);
            }
            (Step::Grant, Some(far)) => match disks.grant(self.domain, far.slot, far.driver) {
                Ok(ring) => {
                    self.close_port(&far, store, disks)?;
                    let port = disks.open_port(self.domain, far.driver).context("no port for a disk")?;
                    let changes = [
                        write(&far.near, "ring-ref", &ring.to_string()),
                        write(&far.near, "event-channel", &port.to_string()),
                        write(&far.near, "protocol", "x86_64-abi"),
                        write(&far.near, "feature-persistent", "1"),
                        show(&far.near, state::INITIALISED),
                    ];
                    return store.change(&format!("{}/backend", far.near), &changes);
                }
                // The two driver domains before, or their devices, may still use pages.
                Err(Errno::BUSY) => return Ok(false),
                Err(error) => return Err(error).context("the service's domain gets no pages"),
            },
            (Step::Connect, Some(far)) => return self.connect(device, &far, store, disks),
            (Step::Attach, Some(far)) => {
                let Some(disk) = self.connected.get(&device).map(|disk| disk.disk) else { return Ok(false) };
                if self.medium(device, &far, store)?.is_none() {
                    return Ok(false);
                }
                let mut number =
                    |key| Ok(store.read(&format!("{}/{key}", far.near))?.and_then(|number| number.parse().ok()));
                let (ring, port): (Result<Option<u32>>, _) = (number("ring-ref"), number("event-channel"));
                let indirect = store.read(&format!("{}/feature-max-indirect-segments", far.far))?;
                let ring = ring?.context("a front end without a ring")?;
                let request = ChannelDiskAttach {
                    disk,
                    back: far.driver,
                    max_segments: indirect.and_then(|number| number.parse().ok()).unwrap_or(0),
                    ring,
                    port: port?.context("a front end without a port")?,
                    first_page: ring + 1,
                    nr_pages: NR_PAGES,
                };
                let near = format!("{}/backend", far.near);
                match disks.attach_disk(&request) {
                    Ok(()) => {
                        if let Some(disk) = self.connected.get_mut(&device) {
                            (disk.back, disk.state) = (far.driver, disk.state & !DISK_GIVEN_UP);
                        }
                        self.say(device, &format!("domain {} is its back end", far.driver));
                        // The port is closed now, and its number may be another's soon.
                        let port = Change::Clear(format!("{}/event-channel", far.near));
                        store.change(&near, &[port, show(&far.near, state::CONNECTED)])?;
                    }
                    // Its guest is suspended, say: it is taken when that goes on, as it is.
                    Err(Errno::AGAIN) => return Ok(false),
                    Err(error) => {
                        self.say(device, &format!("domain {} cannot be its back end: {error}", far.driver));
                        // It begins again.
                        store.change(&near, &[show(&far.near, state::CONNECTED)])?;
                        return Ok(false);
                    }
                }
            }
            (Step::TellGrowth, Some(far)) => {
                // It may say something else by now.
                if let Some(medium) = self.grown(device, &far, store)? {
                    self.tell_growth(device, &medium, store)?;
                }
            }
            (Step::Disconnect, _) => {
                let Some(disk) = self.connected.remove(&device) else { return Ok(true) };
                match disks.disconnect_disk(disk.disk) {
                    Ok(()) | Err(Errno::NOENT) => self.say(device, "disconnected"),
                    Err(error) => return Err(error).context("a disk cannot be let go"),
                }
            }
            (Step::GiveUp(is_wanted), _) => {
                let Some(disk) = self.connected.get_mut(&device) else { return Ok(true) };
                match disks.give_up_disk(disk.disk, is_wanted) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error).context("what waits for a disk"),
                }
                disk.state = if is_wanted { disk.state | DISK_GIVEN_UP } else { disk.state & !DISK_GIVEN_UP };
                let told = if is_wanted { "its requests are answered with errors" } else { "its requests wait" };
                self.warn(device, &format!("no back end: {told}"));
            }
            (Step::ShowFar(state), Some(far)) => {
                store.change(&format!("{}/backend", far.near), &[show(&far.near, state)])?;
            }
            (Step::Dismiss, Some(far)) => {
                let offline = write(&far.far, "online", "0");
                store.change(&format!("{}/frontend", far.far), &[offline, show(&far.near, state::CLOSED)])?;
            }
            (Step::ForgetFar, Some(far)) => {
                self.close_port(&far, store, disks)?;
                // As long as the directories are there, somebody comes to this again.
                self.revoke(far.slot, None, disks)?;
                store.change("/local", &[Change::Remove(far.near), Change::Remove(far.far)])?;
            }
            (Step::Forget, _) => {
                store.change(&guard, &[Change::Remove(path.clone()), Change::Remove(self.error(device))])?;
            }
            // They are not asked for without one.
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    /// The port that was opened for a back end that was not attached is closed. Who was killed just when one was
    /// attached has left a number that is another disk's by now.
    pub(super) fn close_port(&self, far: &Far, store: &mut impl Store, disks: &mut impl Disks) -> Result<()> {
        let key_of = |slot: u32| format!("{}/event-channel", self.at(slot, far.driver).near);
        let key = key_of(far.slot);
        let Some(number) = store.read(&key)? else { return Ok(()) };
        let mut is_others = false;
        for (slot, _) in self.slots(store)? {
            is_others |= slot != far.slot && store.read(&key_of(slot))?.as_ref() == Some(&number);
        }
        store.change(&key, &[Change::Remove(key.clone())])?;
        if let (false, Ok(port)) = (is_others, number.parse()) {
            disks.close_port(self.domain, port).context("a port of a disk's cannot be closed")?;
        }
        Ok(())
    }
}
