//! The driver of an interface as it runs here, and the kernel module's file, which has its twin.

use crate::tell;
use crate::twin::Driver;
use control::request::Mode;
use control::told::{Aborted, Upcall};
use std::os::fd::{AsFd, BorrowedFd};
use twin_kernel::driver;
use twin_rewrite::options::Mode as Translation;
use twin_rewrite::rewrite::Output;
use twind::device::{Device, Irq, Refusal, Status};
use twind::interface::Interface;
use twind::making::{self, Ahead, Found};

/// How a twin of this mode translates addresses.
pub fn translation(mode: Mode) -> Translation {
    if mode == Mode::TwinStlb {
        Translation::Stlb
    } else {
        Translation::Mirror
    }
}

/// See the module.
pub struct Live {
    /// Name of the interface.
    name: String,
    /// Its number when its interrupts were looked for.
    number: u32,
    /// The modules of its drivers, if it was there when it was looked at.
    drivers: Vec<String>,
    device: Device,
    found: Option<Found>,
    /// A twin that was made before the interface was there.
    ahead: Option<Ahead>,
}

impl Live {
    /// Of an interface that is there. Errors: in words, if there is none that will do, or no module.
    pub fn of(name: &str) -> Result<Self, String> {
        let drivers = Interface::named(name)?.drivers;
        Ok(Self { drivers, ..Self::of_any(name, None)? })
    }

    /// Of an interface that may not be there yet, whose driver's twin may have been made before. Errors: in words, if
    /// there is no module.
    pub fn of_any(name: &str, ahead: Option<Ahead>) -> Result<Self, String> {
        Ok(Self { name: name.into(), number: 0, drivers: Vec::new(), device: Device::open()?, found: None, ahead })
    }

    /// Finds the driver, and has its twin made if it was not. Errors: in words.
    fn make(&mut self, interface: &Interface, mode: Translation) -> Result<(Found, Output), String> {
        let ahead = self.ahead.take().filter(|ahead| ahead.mode() == mode);
        match ahead.map(|ahead| ahead.find(interface)) {
            Some(Ok(both)) => return Ok(both),
            Some(Err(why)) => println!("twind: what was made before is of no use: {why}"),
            None => {}
        }
        let found = making::find(interface, mode)?;
        let output = making::make(&found, &interface.name)?;
        Ok((found, output))
    }

    /// What was found of the driver, when its twin is loaded.
    pub fn loaded(&mut self) -> Option<(&mut Device, &Found)> {
        self.found.as_ref().map(|found| (&mut self.device, found))
    }
}

impl AsFd for Live {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Driver for Live {
    fn module(&self) -> &str {
        self.drivers.first().map_or("", String::as_str)
    }

    fn is_there(&self) -> bool {
        Interface::named(&self.name).is_ok()
    }

    fn status(&mut self) -> Result<Status, String> {
        self.device.status()
    }

    fn load(&mut self, mode: Mode) -> Result<Status, String> {
        // The driver may be another one by now, and have other interrupts.
        let interface = Interface::named(&self.name)?;
        self.drivers.clone_from(&interface.drivers);
        let (found, output) = self.make(&interface, translation(mode))?;
        making::load_image(&mut self.device, &self.name, &found, &output.image, &output.imports)?;
        self.found = Some(found);
        self.device.status()
    }

    fn unload(&mut self) -> Result<(), String> {
        self.found = None;
        self.device.unload()
    }

    fn interrupts(&mut self) -> Result<Vec<Irq>, String> {
        let found = self.found.as_mut().ok_or("no twin is loaded")?;
        // They are asked for when an interface comes up.
        let interface = Interface::named(&self.name)?;
        self.number = interface.number;
        found.live = driver::live(&found.kernel, &self.name, &interface.interrupts())?;
        Ok(found.live.net.irqs.clone())
    }

    fn attach(&mut self, vif: u32, irqs: &[Irq]) -> Result<(), Refusal> {
        self.device.attach(vif, self.number, irqs)
    }

    fn detach(&mut self) -> Result<(), String> {
        self.device.detach()
    }

    fn damage(&mut self) -> Result<(), String> {
        self.device.damage()
    }

    fn upcalls(&self, status: &Status) -> Vec<Upcall> {
        self.found.as_ref().map_or_else(Vec::new, |found| tell::upcalls(&found.module, status))
    }

    fn aborted(&self, status: &Status) -> Option<Aborted> {
        self.found.as_ref().map(|found| tell::aborted(&found.module, status))
    }
}
