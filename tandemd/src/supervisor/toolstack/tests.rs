use super::*;
use crate::fake_store::Nodes;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn an_earlier_daemons_processes_are_known_by_their_arguments() {
    let claim = Claim { name: "0000:00:03.0".into(), said: "00:03.0,permissive=1".into(), options: None };
    let earlier = Earlier { config: "/etc/xen/dd.cfg".into(), devices: vec![claim], going: Some(7) };
    for own in [
        "xl create -q -e /etc/xen/dd.cfg",
        "/usr/sbin/xl create -q -e /etc/xen/dd.cfg kernel=\"/boot/new\"",
        "xl pci-attach 8 00:03.0,permissive=1",
        "xl destroy 7",
    ] {
        assert!(earlier.is_one(own.replace(' ', "\0").as_bytes()), "{own}");
    }
    // Which does not keep the driver domain.
    let beside = "xl create -q -e /etc/xen/dd.cfg name=\"dd-standby\"".replace(' ', "\0");
    assert!(earlier.is_beside(beside.as_bytes()) && !earlier.is_one(beside.as_bytes()));
    for other in ["xl create /etc/xen/dd.cfg", "xl destroy 8", "xl pci-attach 8 00:04.0", "vi xl destroy 7", ""] {
        assert!(!earlier.is_one(other.replace(' ', "\0").as_bytes()), "{other}");
    }
}

/// A toolstack at rest, and a process of its that does not end, as one that waits for what does not come.
fn toolstack(test: &str) -> (Toolstack, Running) {
    let earlier = Earlier { config: "/dd.cfg".into(), devices: Vec::new(), going: None };
    let process = Process::Rests;
    let service = format!("test-{}-{test}", std::process::id());
    let said = std::env::temp_dir().join(format!("{service}.xl"));
    let mut sleeps = Command::new("sleep");
    sleeps.arg("1000");
    let running = Running::start_as("xl", sleeps, &said).unwrap();
    running.forget_said();
    (
        Toolstack {
            service,
            earlier,
            process,
            side: Process::Rests,
            clearing: Vec::new(),
            nr_cleared: 0,
            destroyed: None,
        },
        running,
    )
}

#[test]
fn nobody_waits_for_one_that_clears_a_domain_away_that_is_gone() {
    let (mut toolstack, mut process) = toolstack("clears");
    assert_eq!(process.end(), None);
    toolstack.clearing.push(Clearing { domain: 7, is_dismissed: false, process });
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::None);
    assert!(toolstack.clears(7) && toolstack.clearing(|domain| domain == 7) == [7]);
    assert!(toolstack.clears(7) && toolstack.clearing(|_| false).is_empty(), "its memory is back");
    toolstack.clearing[0].process.clock = Clock::new(Instant::now() - LONGEST);
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::None);
    assert!(!toolstack.clears(7), "it is ended");
}

#[test]
fn two_that_would_write_to_a_disk_are_not_created_though_the_configuration_was_another_one() {
    let config = std::env::temp_dir().join(format!("tandemd-beside-{}.cfg", std::process::id()));
    let (mut toolstack, _process) = toolstack("beside");
    let mut created = |text: &str| {
        std::fs::write(&config, text).unwrap();
        toolstack.create_beside(&config, &["no-command-of-xl"]);
        loop {
            match toolstack.side() {
                Errand::Done(result) => return result.unwrap_err(),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    let said = created("name='dd'\ndisk=['/dd.img,raw,xvda,w']");
    assert!(said.contains("two domains would write") && said.contains("tandemd-beside"), "{said}");
    assert!(!created("name='dd'\ndisk=['/dd.img,raw,xvda,r']").contains("two domains"), "xl is asked");
    std::fs::remove_file(config).unwrap();
}

#[test]
fn one_that_destroys_has_done_that_when_the_domain_is_gone() {
    let (mut toolstack, process) = toolstack("destroys");
    (toolstack.process, toolstack.destroyed) = (Process::Ours(process), Some(7));
    assert_eq!(toolstack.errand(&mut Nodes::default(), |domain| domain == 7).unwrap(), Errand::ClearsAway);
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| false).unwrap(), Errand::Done(Ok(())));
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| false).unwrap(), Errand::None);
    assert!(toolstack.clears(7));
}

#[test]
fn who_is_dismissed_keeps_nobody() {
    let (mut toolstack, process) = toolstack("dismisses");
    toolstack.clearing.push(Clearing { domain: 7, is_dismissed: true, process });
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::None);
    assert_eq!(
        (toolstack.side(), toolstack.dismissing(), toolstack.clearing(|_| true)),
        (Errand::None, vec![7], vec![])
    );
    let (_, process) = self::toolstack("makes-beside");
    toolstack.side = Process::Ours(process);
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::None);
    assert_eq!(toolstack.side(), Errand::Runs);
}

#[test]
fn one_that_cannot_be_started_has_ended_in_vain() {
    let (mut toolstack, _) = toolstack("fails");
    // There is no such place.
    toolstack.service = "nowhere/net".into();
    type Begin = fn(&mut Toolstack);
    let all: [Begin; 2] = [|toolstack| toolstack.start(CREATE), |toolstack| toolstack.destroy(7)];
    for begin in all {
        begin(&mut toolstack);
        assert_eq!(toolstack.destroys(), None);
        let Errand::Done(Err(why)) = toolstack.errand(&mut Nodes::default(), |_| true).unwrap() else { panic!() };
        assert!(why.contains("cannot make") && why.contains("nowhere"), "{why}");
        assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::None);
    }
    toolstack.clear_away(7);
    assert!(!toolstack.clears(7));
}

#[test]
fn one_of_an_earlier_daemons_is_not_waited_for_for_ever() {
    let (mut toolstack, _) = toolstack("inherits");
    toolstack.earlier.going = Some(7);
    let place = std::env::temp_dir().join(&toolstack.service);
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("destroy"), "while :; do sleep 1; done").unwrap();
    let mut process = Command::new("sh").arg0("xl").args(["destroy", "7"]).current_dir(&place).spawn().unwrap();
    let began = Instant::now();
    while toolstack.earlier.find(Earlier::is_one).unwrap() != Some(process.id()) {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    toolstack.process = Process::Inherited(process.id(), Clock::new(began));
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::Runs);
    toolstack.process = Process::Inherited(process.id(), Clock::new(began - LONGEST));
    let done = toolstack.errand(&mut Nodes::default(), |_| true).unwrap();
    assert!(matches!(done, Errand::Done(Err(_))), "{done:?}");
    toolstack.process = Process::Inherited(process.id(), Clock::new(began));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::Done(Ok(())));
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn one_that_takes_too_long_is_ended() {
    let (mut toolstack, process) = toolstack("creates");
    toolstack.process = Process::Ours(process);
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::Runs);
    if let Process::Ours(process) = &mut toolstack.process {
        process.clock = Clock::new(Instant::now() - LONGEST);
    }
    let ended = toolstack.errand(&mut Nodes::default(), |_| true).unwrap();
    assert!(matches!(&ended, Errand::Done(Err(why)) if why.contains("is ended")), "{ended:?}");
    assert_eq!(toolstack.errand(&mut Nodes::default(), |_| true).unwrap(), Errand::None);
}

#[test]
fn one_that_has_less_time_is_ended_earlier() {
    let (toolstack, process) = toolstack("makes");
    let mut process = process.within(Duration::from_millis(50));
    let began = Instant::now();
    let ended = loop {
        if let Some(ended) = process.end() {
            break ended;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{} waits for it", toolstack.service);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(ended.unwrap_err().contains("is ended") && began.elapsed() >= Duration::from_millis(50));
}
