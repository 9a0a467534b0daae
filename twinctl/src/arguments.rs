//! The command line.

use control::request::Which;
use control::{Image, Mode, Order, Request};
use lexopt::{Arg, Parser, ValueExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const HELP: &str = "\
twinctl - which way guests' packets go, and which they should

usage: twinctl [OPTIONS] COMMAND [WHICH] [ARGUMENTS]

In domain 0, WHICH is a service of tandemd's (net). In a driver domain it is a network interface (eth0). It may be left out
where there is one; without it status and stats are of all.

commands:
  status [WHICH]          what carries packets to the outside: Linux in the driver domain (vm), its driver's twin in the hypervisor
                          (twin-mirror, twin-stlb), or nothing; what its driver domain does, guests' interfaces and disks; if a
                          twin was aborted, why, and at which instruction of the driver
  stats [WHICH]           what was counted: packets, bytes, losses; turns, cycles and upcalls of the twin
  top [WHICH]             the same, a second's worth of it at a time, until q is pressed
  mode [WHICH] MODE       has packets carried so from now on, while they flow
                            vm           by Linux in the driver domain; a twin stays loaded
                            twin-mirror  by the twin, which is loaded if it is not
                            twin-stlb    by a twin that looks addresses up in a table; if the hypervisor
                                         was booted with twin-stlb
  load [WHICH] [INTERFACE]  makes the driver's twin, loads it (again), and gives it the card; in domain 0, of that interface of
                          the driver domain's
  unload [WHICH]          the twin goes; Linux is the way
  restart [SERVICE]       in domain 0: another instance of the driver domain takes its place, if tandemd looks after it
  upgrade [SERVICE] --kernel FILE --ramdisk FILE --extra WORDS
                          in domain 0: one of another kernel, initramfs or command line boots beside the driver domain, and takes its
                          place when it has booted; what is not named stays as it is. One that does not boot, or is of no
                          use afterwards, is refused, and the old one stays or comes back. It waits until that is known.
                          --image is another word for --ramdisk
  upgrade [SERVICE] --as-configured
                          the same with what its configuration says, which may have changed; other options count, too
  park [SERVICE]          in domain 0: the driver domain goes, and no other comes until unpark
  unpark [SERVICE]        in domain 0: it comes again
  reload                  in domain 0: tandemd reads its configuration again; if something is wrong with it, the old one stays. It begins anew
                          for that, and what it tells then is shown

options:
  --json                  what the daemon tells, as JSON
  --every SECONDS         top: from one screen to the next (1)
  --count NUMBER          top: so many screens, one below the other, and no keys
  --vif NUMBER            load, in a driver domain: which interface of its own is plugged into the hypervisor's switch (0)
  --socket FILE           the daemon's, instead of /run/tandem/tandemd.sock (in domain 0) or /run/tandem/twind.sock
  --help
  --version

It ends with 0 if that was done, with 1 if not, and with 2 if the command makes no sense.";

/// What is wanted.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    Help,
    Version,
    /// To ask this and say what there is.
    Ask(Request),
    /// To ask this and say what was counted.
    Stats(Request),
    /// To ask this and wait for how it ends.
    Upgrade(Request),
    /// To ask this and wait until the next daemon answers.
    Reload(Request),
    Top(Top),
}

/// A live screen.
#[derive(Debug, PartialEq, Eq)]
pub struct Top {
    pub request: Request,
    pub every: Duration,
    pub count: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub wanted: Wanted,
    pub socket: PathBuf,
    pub is_json: bool,
}

/// The socket of the daemon of this domain, whether that runs or not.
pub fn place() -> PathBuf {
    place_below(Path::new("/"))
}

/// Linux says which domain is the control domain, if its `/proc/xen` is there.
fn place_below(root: &Path) -> PathBuf {
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    let is_control_domain =
        std::fs::read_to_string(at("/proc/xen/capabilities")).is_ok_and(|said| said.contains("control_d"));
    if is_control_domain || at(control::TANDEMD).exists() { control::TANDEMD } else { control::TWIND }.into()
}

/// Reads the command line. Errors: in words.
pub fn parse(mut parser: Parser, place: impl Fn() -> PathBuf) -> Result<Arguments, String> {
    let mut words = Vec::new();
    let (mut socket, mut is_json, mut every, mut count, mut vif) = (None, false, None, None, None);
    let (mut image, mut as_configured) = (Image::default(), false);
    let mut read = || -> Result<Option<Wanted>, lexopt::Error> {
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("help") | Arg::Short('h') => return Ok(Some(Wanted::Help)),
                Arg::Long("version") => return Ok(Some(Wanted::Version)),
                Arg::Long("json") => is_json = true,
                Arg::Long("socket") => socket = Some(PathBuf::from(parser.value()?)),
                Arg::Long("every") => every = Some(parser.value()?.parse::<f64>()?),
                Arg::Long("count") => count = Some(parser.value()?.parse()?),
                Arg::Long("vif") => vif = Some(parser.value()?.parse()?),
                Arg::Long("kernel") => image.kernel = Some(parser.value()?.string()?),
                Arg::Long("ramdisk" | "image") => image.ramdisk = Some(parser.value()?.string()?),
                Arg::Long("extra") => image.extra = Some(parser.value()?.string()?),
                Arg::Long("as-configured") => as_configured = true,
                Arg::Value(word) => words.push(word.string()?),
                other => return Err(other.unexpected()),
            }
        }
        Ok(None)
    };
    let about = read().map_err(|error| format!("{error}; twinctl --help says what there is"))?;
    let socket = socket.unwrap_or_else(place);
    // Its name says which daemon's it is.
    let is_driver_domain = socket.ends_with(Path::new(control::TWIND).file_name().unwrap_or_default());
    let wanted = if let Some(about) = about {
        about
    } else {
        let which = |name: Option<&String>| match (name.cloned(), is_driver_domain) {
            (interface, true) => Which { interface, vif, ..Which::default() },
            (service, false) => Which { service, vif, ..Which::default() },
        };
        let is_top = words.first().is_some_and(|word| word == "top");
        if !is_top && (every.is_some() || count.is_some()) {
            return Err("--every and --count are for top".into());
        }
        if is_top && is_json {
            return Err("--json is not for top: `stats --json` has the same counts".into());
        }
        if count == Some(0) {
            return Err("--count 0: there would be nothing to see".into());
        }
        if vif.is_some() && !is_driver_domain {
            return Err("--vif is for a driver domain's twind".into());
        }
        let every =
            Some(every.unwrap_or(1.0)).filter(|every| (0.1..=3600.0).contains(every)).map(Duration::from_secs_f64);
        let every = every.ok_or("--every wants seconds, from 0.1 to 3600")?;
        let is_new = as_configured || image != Image::default();
        let is_upgrade = words.first().is_some_and(|word| word == "upgrade");
        if is_upgrade != is_new {
            return Err(if is_upgrade {
                "upgrade wants to know what is new: --kernel, --ramdisk, --extra or --as-configured".into()
            } else {
                "--kernel, --ramdisk, --extra and --as-configured are for upgrade".into()
            });
        }
        image.check()?;
        command(&words, which, is_driver_domain, (every, count), (image, as_configured))?
    };
    Ok(Arguments { wanted, socket, is_json })
}

fn command(
    words: &[String],
    which: impl Fn(Option<&String>) -> Which,
    is_driver_domain: bool,
    (every, count): (Duration, Option<u32>),
    (image, as_configured): (Image, bool),
) -> Result<Wanted, String> {
    let (command, rest) = words.split_first().ok_or("there is no command; twinctl --help says which there are")?;
    let most = match command.as_str() {
        "reload" => 0,
        "mode" => 2,
        "load" if !is_driver_domain => 2,
        _ => 1,
    };
    let status = |which| Request::Status { which };
    let order = |order| Request::DriverDomain { which: which(rest.first()), order };
    let wanted = match (command.as_str(), rest) {
        ("status", _) => Wanted::Ask(status(which(rest.first()))),
        ("stats", _) => Wanted::Stats(status(which(rest.first()))),
        ("top", _) => Wanted::Top(Top { request: status(which(rest.first())), every, count }),
        ("load", _) => Wanted::Ask(Request::Load {
            which: match rest.get(1) {
                Some(interface) => Which { interface: Some(interface.clone()), ..which(rest.first()) },
                None => which(rest.first()),
            },
        }),
        ("unload", _) => Wanted::Ask(Request::Unload { which: which(rest.first()) }),
        ("restart" | "upgrade" | "park" | "unpark" | "reload", _) if is_driver_domain => {
            return Err(format!("{command} is for tandemd, in domain 0"));
        }
        ("reload", _) => Wanted::Reload(Request::Reload { which: Which::default() }),
        ("upgrade", _) => Wanted::Upgrade(Request::Upgrade { which: which(rest.first()), image, as_configured }),
        ("restart", _) => Wanted::Ask(order(Order::Restart)),
        ("park", _) => Wanted::Ask(order(Order::Park)),
        ("unpark", _) => Wanted::Ask(order(Order::Unpark)),
        ("damage", _) => Wanted::Ask(Request::Damage { which: which(rest.first()) }),
        ("mode", [.., mode]) => {
            let name = rest.first().filter(|_| rest.len() > 1);
            Wanted::Ask(Request::Mode { which: which(name), mode: Mode::named(mode)? })
        }
        ("mode", []) => return Err(format!("mode wants one: {}", Mode::ALL.map(Mode::name).join(", "))),
        (other, _) => return Err(format!("there is no command {other}; twinctl --help says which there are")),
    };
    match rest.get(most) {
        Some(word) => Err(format!("{command} does not know what to do with {word}")),
        None => Ok(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        parse(Parser::from_args(line.split_whitespace()), || control::TANDEMD.into())
    }

    fn asked(line: &str) -> Request {
        match parsed(line).map(|arguments| arguments.wanted) {
            Ok(
                Wanted::Ask(request)
                | Wanted::Stats(request)
                | Wanted::Upgrade(request)
                | Wanted::Reload(request)
                | Wanted::Top(Top { request, .. }),
            ) => request,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn what_is_named_is_a_service_or_an_interface() {
        let service = |name: &str| Which { service: Some(name.into()), ..Which::default() };
        assert_eq!(asked("mode net vm"), Request::Mode { which: service("net"), mode: Mode::Vm });
        assert_eq!(asked("mode net twin-stlb"), Request::Mode { which: service("net"), mode: Mode::TwinStlb });
        assert_eq!(asked("mode twin-mirror"), Request::Mode { which: Which::default(), mode: Mode::TwinMirror });
        assert_eq!(asked("park net"), Request::DriverDomain { which: service("net"), order: Order::Park });
        assert!(parsed("--socket /tmp/twind.sock restart").unwrap_err().contains("domain 0"));
        let image = Image { kernel: Some("/k".into()), ramdisk: Some("/r".into()), ..Image::default() };
        let upgrade = Request::Upgrade { which: service("net"), image, as_configured: false };
        assert_eq!(asked("upgrade net --kernel /k --image /r"), upgrade);
        let as_configured = Request::Upgrade { which: Which::default(), image: Image::default(), as_configured: true };
        assert_eq!(asked("upgrade --as-configured"), as_configured);
        assert_eq!(asked("reload"), Request::Reload { which: Which::default() });
        assert_eq!(asked("status"), Request::Status { which: Which::default() });
        assert_eq!(asked("top net --every 2"), Request::Status { which: service("net") });
        let of_eth1 = Which { interface: Some("eth1".into()), ..service("net") };
        assert_eq!(asked("load net eth1"), Request::Load { which: of_eth1 });
        let eth0 = Which { interface: Some("eth0".into()), vif: Some(2), ..Which::default() };
        assert_eq!(asked("--socket /tmp/twind.sock load eth0 --vif 2"), Request::Load { which: eth0 });
    }

    #[test]
    fn domain_0_is_known_though_its_daemon_does_not_run() {
        let root = std::env::temp_dir().join(format!("twinctl-place-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(place_below(&root), Path::new(control::TWIND));
        write("proc/xen/capabilities", "");
        assert_eq!(place_below(&root), Path::new(control::TWIND), "a driver domain");
        write("proc/xen/capabilities", "control_d\n");
        assert_eq!(place_below(&root), Path::new(control::TANDEMD));
        std::fs::remove_dir_all(root.join("proc")).unwrap();
        write("run/tandem/tandemd.sock", "");
        assert_eq!(place_below(&root), Path::new(control::TANDEMD), "who needs no /proc/xen");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let refused = |line: &str, words: &str| {
            let why = parsed(line).expect_err(line);
            assert!(why.contains(words), "{line}: {why}");
        };
        refused("", "there is no command");
        refused("fly", "no command fly");
        refused("mode", "twin-mirror");
        refused("mode net fast", "no mode fast");
        refused("mode net stlb", "vm, twin-mirror, twin-stlb");
        refused("mode net eth0 vm", "vm");
        refused("status net eth0", "eth0");
        refused("load net eth0 eth1", "eth1");
        refused("--socket twind.sock load eth0 eth1", "eth1");
        refused("--every 0 top", "seconds");
        refused("--every soon top", "soon");
        refused("--count -1 top", "-1");
        refused("--count 0 top", "nothing to see");
        refused("stats --count 3", "for top");
        refused("top --json", "stats --json");
        refused("status --every 5", "for top");
        refused("status --vif 7", "twind");
        refused("upgrade net", "--as-configured");
        refused("restart net --kernel /k", "for upgrade");
        refused("upgrade net --kernel k", "whole path");
        refused("--socket twind.sock upgrade --kernel /k", "domain 0");
        refused("upgrade net lab --kernel /k", "lab");
        refused("--fast", "--fast");
        assert_eq!(parsed("--help").unwrap().wanted, Wanted::Help);
        assert_eq!(parsed("status --version").unwrap().wanted, Wanted::Version);
    }
}
