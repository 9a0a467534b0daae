//! A driver domain whose section says itself what it is: `tandemd` writes the configuration that the toolstack is
//! given.

use super::choice::Want;
use super::settings::{Claim, Settings};
use crate::domain::RUN;
use anyhow::{bail, ensure, Context, Result};
use control::Image;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Memory that one has if nothing else is said: enough for Debian's kernel with an initramfs of some 30 MB. Small ones
/// boot in 88 MiB (docs/toolstack.md).
const MEMORY_MIB: u32 = 256;
const LEAST_MIB: u32 = 48;
const MOST_MIB: u32 = 65_536;
/// As many processors as the hypervisor gives a domain.
const MOST_VCPUS: u32 = 32;
/// What a PV kernel needs to drive a device, and to be replaced at once when something is wrong with it.
const EXTRA: &str = "console=hvc0 iommu=soft swiotlb=4096 oops=panic panic=1";
/// Each device's options: the driver may write what the PCI back end does not know.
const OPTIONS: &str = "permissive=1";

/// What a section says of its driver domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// The devices that it is to have.
    pub wants: Vec<Want>,
    image: Image,
    memory_mib: u32,
    vcpus: u32,
    /// Processors that come for its driver's twin.
    has_twin: bool,
}

impl Own {
    /// `None`: a configuration of the toolstack's says it. An error: nothing does, both do, or it cannot be.
    pub fn of(settings: &Settings) -> Result<Option<Self>> {
        let Settings { config, device, kernel, ramdisk, memory_mib, vcpus, extra, .. } = settings;
        let said = [
            ("device", device.is_some()),
            ("kernel", kernel.is_some()),
            ("ramdisk", ramdisk.is_some()),
            ("memory-mib", memory_mib.is_some()),
            ("vcpus", vcpus.is_some()),
            ("extra", extra.is_some()),
        ];
        if let Some(config) = config {
            if let Some((key, _)) = said.iter().find(|(_, is_said)| *is_said) {
                bail!(
                    "`config` and `{key}`: either {} says what the driver domain is, or this section does; one of both has to go",
                    config.display()
                );
            }
            return Ok(None);
        }
        let Some(wants) = device.as_ref().map(|wants| wants.0.clone()) else {
            bail!(
                "there is neither `config`, which names a configuration for `xl create`, nor `device`: say which device the driver domain has, as `device = \
                 \"network\"`, and its `kernel`"
            )
        };
        for (n, want) in wants.iter().enumerate() {
            let is_address = matches!(want, Want::At(_));
            ensure!(!is_address || !wants[..n].contains(want), "`device`: {want} is there twice; once is enough");
        }
        let kernel = kernel.clone().context("there is no `kernel`: name the file of the driver domain's kernel")?;
        let image = Image {
            kernel: Some(kernel),
            ramdisk: ramdisk.clone(),
            extra: Some(extra.clone().unwrap_or(EXTRA.into())),
        };
        image.check().map_err(anyhow::Error::msg)?;
        let memory_mib = memory_mib.unwrap_or(MEMORY_MIB);
        ensure!(
            (LEAST_MIB..=MOST_MIB).contains(&memory_mib),
            "`memory-mib = {memory_mib}`: say {LEAST_MIB} to {MOST_MIB}; a small driver domain boots in 88, and one with Debian's kernel and initramfs in {MEMORY_MIB}"
        );
        let vcpus = vcpus.unwrap_or(1);
        ensure!((1..=MOST_VCPUS).contains(&vcpus), "`vcpus = {vcpus}`: say 1 to {MOST_VCPUS}");
        Ok(Some(Self { wants, image, memory_mib, vcpus, has_twin: settings.twin }))
    }

    /// What it is where nothing is said.
    #[cfg(test)]
    pub fn usual(&self) -> (u32, u32, Option<String>) {
        (self.memory_mib, self.vcpus, self.image.extra.clone())
    }

    /// Its kernel and initramfs are there, but for what is `instead` of them.
    pub fn has_files(&self, instead: &Image) -> Result<()> {
        let all = self.image.parts().into_iter().zip(instead.parts());
        for ((key, value), (_, other)) in all.filter(|((key, _), _)| *key != "extra") {
            let Some(path) = value.filter(|_| other.is_none()) else { continue };
            let bytes =
                std::fs::metadata(path).with_context(|| format!("`{key}`: {path}: name a file that is there"))?.len();
            ensure!(bytes > 0, "`{key}`: {path} is empty");
        }
        Ok(())
    }

    /// What it claims, whatever else the machine has.
    pub fn claims_by_address(&self) -> Vec<Claim> {
        let at = |want: &Want| matches!(want, Want::At(_)).then(|| claim_of(&want.to_string()));
        self.wants.iter().filter_map(at).collect()
    }

    /// The toolstack's configuration for the driver domain of this name, with its own interfaces at these switches, and
    /// these devices. `cpus`: the machine's.
    pub fn text<'a>(
        &self,
        service: &str,
        driver: &str,
        nets: impl IntoIterator<Item = &'a String>,
        devices: &[Claim],
        cpus: u32,
    ) -> String {
        let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "# Made by tandemd of [service.{service}.supervise], and made again: what is changed here is lost.\n\
             type=\"pv\"\nname=\"{driver}\"\nmemory={}\nvcpus={}\n",
            self.memory_mib, self.vcpus
        );
        if self.has_twin {
            let _ = writeln!(text, "maxvcpus={}", self.vcpus + cpus);
        }
        self.image.lines().iter().for_each(|line| text.extend([line.as_str(), "\n"]));
        let _ = writeln!(text, "pci=[{}]", list(&mut devices.iter().map(|claim| format!("\"{}\"", claim.said))));
        let nets = list(&mut nets.into_iter().map(|net| format!("\"backend={net}\"")));
        if !nets.is_empty() {
            let _ = writeln!(text, "vif=[{nets}]");
        }
        // `xl devd` runs in it, if it serves disks or has back ends of its own.
        text.push_str("driver_domain=1\n");
        text
    }
}

/// A device of one, as the toolstack is told of it.
pub fn claim_of(name: &str) -> Claim {
    Claim::of(name.into(), format!("{name},{OPTIONS}"))
}

/// Where the toolstack's configuration for the driver domain of this name is written. A service's own domain has one in
/// the same place, and another name.
pub fn path_of(driver: &str) -> PathBuf {
    Path::new(RUN).join(format!("{driver}.cfg"))
}

/// Writes it if another one is there, or none: who reads finds the old one or this one.
pub fn write(path: &Path, text: &str) -> Result<()> {
    match std::fs::read_to_string(path) {
        Ok(there) if there == text => return Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()))
        }
        _ => {}
    }
    let new = path.with_extension("cfg.new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// How many processors the machine has, as far as domain 0 is told.
pub fn cpus_of_machine() -> u32 {
    let told = std::fs::read_dir("/sys/devices/system/xen_cpu").into_iter().flatten().flatten();
    let is_one = |name: &str| name.strip_prefix("xen_cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    let told = told.filter(|entry| entry.file_name().to_str().is_some_and(is_one)).count();
    let own = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(told.max(own)).unwrap_or(1)
}

#[cfg(test)]
mod tests;
