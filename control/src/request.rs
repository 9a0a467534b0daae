//! What can be asked for.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Who carries packets between the card and the hypervisor's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Linux in the driver domain, which bridges them.
    Vm,
    /// The driver's twin in the hypervisor, which masks addresses.
    TwinMirror,
    /// The driver's twin in the hypervisor, which looks addresses up in a table, if the hypervisor was booted with
    /// `twin-stlb`.
    TwinStlb,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Vm, Self::TwinMirror, Self::TwinStlb];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::TwinMirror => "twin-mirror",
            Self::TwinStlb => "twin-stlb",
        }
    }

    /// The mode of this name. Errors: in words.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| format!("there is no mode {name}: there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a driver domain that tandemd looks after is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Another instance takes its place.
    Restart,
    /// It goes, and no other comes.
    Park,
    /// It comes again.
    Unpark,
}

/// What a driver domain is started with instead of what its configuration says; what is left out is as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Image {
    /// File of the kernel, in domain 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// File of the initramfs, in domain 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramdisk: Option<String>,
    /// The kernel's command line, but for `root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
}

impl Image {
    /// What the configuration calls each, and what it is.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Option<&str>); 3] {
        let Self { kernel, ramdisk, extra } = self;
        [("kernel", kernel.as_deref()), ("ramdisk", ramdisk.as_deref()), ("extra", extra.as_deref())]
    }

    /// This one, and where it says nothing, what the other one says.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            kernel: self.kernel.or_else(|| other.kernel.clone()),
            ramdisk: self.ramdisk.or_else(|| other.ramdisk.clone()),
            extra: self.extra.or_else(|| other.extra.clone()),
        }
    }

    /// Lines of a configuration, which come after those of the driver domain's own.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let said = self.parts().into_iter().filter_map(|(key, value)| Some((key, value?)));
        said.map(|(key, value)| format!("{key}=\"{value}\"")).collect()
    }

    /// Whether it can be said in a configuration, which knows no way to write a quote; and files by their whole paths,
    /// since the daemon's directory is another one. Errors: in words.
    pub fn check(&self) -> Result<(), String> {
        for (key, value) in self.parts().into_iter().filter_map(|(key, value)| Some((key, value?))) {
            if value.is_empty() || value.chars().any(|c| c.is_control() || matches!(c, '"' | '\\')) {
                return Err(format!("{key}: `{value}` is empty, or has quotes, backslashes or control characters"));
            }
            if key != "extra" && !value.starts_with('/') {
                return Err(format!("{key}: `{value}` is no whole path: it has to begin with /"));
            }
        }
        Ok(())
    }
}

/// Which of the twins that twind has is meant; all of them may be left out if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// tandemd: name of the service, whose way out it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Name of the interface in the driver domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Number of the driver domain's own interface at the hypervisor's switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vif: Option<u32>,
}

/// A request. tandemd passes those that a driver domain's twind serves on to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What there is.
    Status {
        /// Of all of them, if it is left out.
        #[serde(default)]
        which: Which,
    },
    /// Makes a twin and loads it (again), and gives it the card.
    Load {
        /// Of which one.
        #[serde(default)]
        which: Which,
    },
    /// The twin goes; Linux is the way.
    Unload {
        /// Which one.
        #[serde(default)]
        which: Which,
    },
    /// Says who is to carry packets from now on. A twin is loaded if it is not; for [`Mode::Vm`] it stays loaded.
    Mode {
        /// Whose.
        #[serde(default)]
        which: Which,
        /// Who.
        mode: Mode,
    },
    /// For tandemd alone: a driver domain is to be restarted, or to rest.
    DriverDomain {
        /// That of which service.
        #[serde(default)]
        which: Which,
        /// What it is to do.
        order: Order,
    },
    /// For tandemd alone: a driver domain of another kernel or image takes the place, if it proves to be of use.
    Upgrade {
        /// That of which service.
        #[serde(default)]
        which: Which,
        /// What is new. What it does not say stays as it is.
        #[serde(default)]
        image: Image,
        /// What earlier upgrades have said is forgotten first.
        #[serde(default, rename = "as-configured")]
        as_configured: bool,
    },
    /// For tandemd alone: it reads its configuration again, if nothing is wrong with it.
    Reload {
        /// All of it, always.
        #[serde(default)]
        which: Which,
    },
    /// For tests: damages what a twin that has its card works on, so that it is aborted. The kernel module must allow
    /// it.
    Damage {
        /// Which one.
        #[serde(default)]
        which: Which,
    },
}

impl Request {
    /// Which twin it is about.
    #[must_use]
    pub fn which(&self) -> &Which {
        match self {
            Self::Status { which }
            | Self::Load { which }
            | Self::Unload { which }
            | Self::Mode { which, .. }
            | Self::DriverDomain { which, .. }
            | Self::Upgrade { which, .. }
            | Self::Reload { which }
            | Self::Damage { which } => which,
        }
    }

    /// The same about another one.
    #[must_use]
    pub fn about(mut self, new: Which) -> Self {
        match &mut self {
            Self::Status { which }
            | Self::Load { which }
            | Self::Unload { which }
            | Self::Mode { which, .. }
            | Self::DriverDomain { which, .. }
            | Self::Upgrade { which, .. }
            | Self::Reload { which }
            | Self::Damage { which } => *which = new,
        }
        self
    }

    /// From a line of JSON. Errors: in words.
    pub fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("not a request: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_that_people_can_write() {
        let status = Request::Status { which: Which::default() };
        assert_eq!(Request::parse(r#"{"command":"status"}"#), Ok(status.clone()));
        let mode = Request::parse(r#"{"command":"mode","mode":"twin-mirror","which":{"service":"net"}}"#).unwrap();
        let which = Which { service: Some("net".into()), ..Which::default() };
        assert_eq!(mode, Request::Mode { which: which.clone(), mode: Mode::TwinMirror });
        let park = Request::parse(r#"{"command":"driver-domain","order":"park"}"#);
        assert_eq!(park, Ok(Request::DriverDomain { which: Which::default(), order: Order::Park }));
        for request in [status, mode.clone(), Request::Damage { which: which.clone() }] {
            assert_eq!(Request::parse(&serde_json::to_string(&request).unwrap()), Ok(request));
        }
        let other = Which { vif: Some(2), ..Which::default() };
        assert_eq!(mode.about(other.clone()).which(), &other);
    }

    #[test]
    fn an_image_is_said_as_a_configuration_says_it() {
        let old = Image { kernel: Some("/boot/old".into()), extra: Some("quiet".into()), ..Image::default() };
        let line = r#"{"command":"upgrade","image":{"kernel":"/boot/new"},"which":{"service":"net"}}"#;
        let Ok(Request::Upgrade { image, as_configured: false, .. }) = Request::parse(line) else { panic!("{line}") };
        let new = image.or(&old);
        assert_eq!(new.lines(), [r#"kernel="/boot/new""#, r#"extra="quiet""#]);
        assert_eq!(Image::default().lines(), [""; 0]);
        assert_eq!(new.check(), Ok(()));
        let said = |kernel: &str| Image { kernel: Some(kernel.into()), ..Image::default() }.check().unwrap_err();
        for wrong in ["", "boot/new", "/boot/\"", "/boot/\n", "/boot/\\"] {
            assert!(said(wrong).starts_with("kernel: "), "{wrong}");
        }
        let line = r#"{"command":"upgrade","as-configured":true}"#;
        let request = Request::Upgrade { which: Which::default(), image: Image::default(), as_configured: true };
        assert_eq!(Request::parse(line), Ok(request));
        assert!(Request::parse(r#"{"command":"upgrade","image":{"initrd":"/x"}}"#).unwrap_err().contains("initrd"));
    }

    #[test]
    fn what_is_no_request_is_refused_in_words() {
        let said = |line: &str| Request::parse(line).unwrap_err();
        assert!(said("").contains("not a request"));
        assert!(said(r#"{"command":"fly"}"#).contains("fly") && said(r#"{"command":"fly"}"#).contains("status"));
        assert!(said(r#"{"command":"mode"}"#).contains("mode"));
        assert!(said(r#"{"command":"mode","mode":"fast"}"#).contains("twin-mirror"));
        assert!(said(r#"{"command":"driver-domain","order":"rest"}"#).contains("unpark"));
        assert!(said(r#"{"command":"status","of":1}"#).contains("of"));
        assert!(said(r#"{"command":"load","which":{"vifs":1}}"#).contains("vifs"));
        assert!(Mode::named("stlb").unwrap_err().contains("vm, twin-mirror, twin-stlb"));
    }
}
