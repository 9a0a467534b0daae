//! Orders, and whether they are heard.

use super::super::{
    ask, desks, forgive, look, open_desks, told_of, until_mended, until_read, Desk, Place, Record, Tell, Wanted,
};
use super::*;
use std::sync::mpsc;

fn order(service: &str) -> Result<(), String> {
    ask(service, Wanted::Order(Order::Restart))
}

#[test]
fn an_order_that_is_not_heard_is_not_carried_out_later() {
    assert!(order("nobodys").unwrap_err().contains("nobody looks after"));
    desks().insert("deaf".into(), Desk::default());
    assert!(order("deaf").unwrap_err().contains("nothing is done"));
    assert!(desks()["deaf"].wishes.is_empty());
}

#[test]
fn who_orders_something_before_all_is_looked_at_is_heard() {
    let config = "[service.early]\ndriver-domain = \"dd\"\n[service.early.supervise]\nconfig = \"/etc/xen/dd.cfg\"\n";
    open_desks(&crate::config::Config::parse(&format!("{config}[service.alone]\n")).unwrap());
    assert!(order("alone").unwrap_err().contains("nobody looks after"));
    // Nobody has begun to look after it; who does takes what waits there.
    assert!(order("early").unwrap_err().contains("nothing is done"));
    let desk = |name| desks().get(name).map(|desk| (desk.driver.clone(), desk.nr_wishes, desk.has_begun));
    assert_eq!(desk("early"), Some(("dd".into(), 1, false)));
    assert_eq!(look("early").unwrap().state, "unknown");
}

#[test]
fn an_order_that_is_heard_late_is_answered_all_the_same() {
    for said in [Ok(()), Err("it is parked".to_string())] {
        desks().insert("slow".into(), Desk::default());
        let asks = std::thread::spawn(|| order("slow"));
        let (_, tell) = loop {
            if let Some(wish) = desks().get_mut("slow").unwrap().wishes.pop() {
                break wish;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        std::thread::sleep(3 * super::super::PATIENCE);
        tell.send(said.clone()).unwrap();
        assert_eq!(asks.join().unwrap(), said);
    }
    // The supervisor begins anew in the middle of it.
    desks().insert("anew".into(), Desk::default());
    let asks = std::thread::spawn(|| order("anew"));
    while desks().get_mut("anew").unwrap().wishes.pop().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(asks.join().unwrap().unwrap_err().contains("has heard it"));
}

/// Several wishes at once, and where the answers come.
fn wish(service: &str, orders: &[Order]) -> Vec<mpsc::Receiver<Result<(), String>>> {
    let mut answers = Vec::new();
    for (order, number) in orders.iter().zip(1..) {
        let (to, answer) = mpsc::channel();
        let wish = (Wanted::Order(*order), Tell { number, to });
        desks().get_mut(service).unwrap().wishes.push(wish);
        answers.push(answer);
    }
    answers
}

#[test]
fn one_that_cannot_be_started_is_parked_until_that_is_mended() {
    desks().insert("unmended".into(), Desk::default());
    let answers = wish("unmended", &[Order::Restart, Order::Park, Order::Unpark, Order::Park]);
    let mut troubles = vec!["it is mended soon".to_string()];
    let tell = until_mended("unmended", "dd", "no file".into(), |_| troubles.pop(), || Ok(()));
    let told = look("unmended").unwrap();
    assert_eq!((told.state.as_str(), told.why.as_deref()), ("parked", Some("no file")));
    assert_eq!(answers[0].try_recv().unwrap(), Err("it is mended soon".into()));
    assert_eq!(answers[1].try_recv().unwrap(), Ok(()));
    assert!(answers[2].try_recv().is_err(), "who looks after it answers that");
    tell.send(Ok(())).unwrap();
    assert_eq!(answers[2].try_recv().unwrap(), Ok(()));
    // The last one is heard by who looks after it.
    assert_eq!((desks()["unmended"].wishes.len(), answers[3].try_recv()), (1, Err(mpsc::TryRecvError::Empty)));
}

#[test]
fn who_lets_it_run_again_forgives_what_it_did_before() {
    let disk = std::env::temp_dir().join(format!("tandemd-forgiven-{}.toml", std::process::id()));
    let place = Place { memory: disk.with_extension("record"), disk };
    let failed = Record {
        mode: Mode::Parked,
        why: "it failed".into(),
        boot: "one".into(),
        failures: vec![5, 9],
        ..Record::default()
    };
    place.write(&failed).unwrap();
    forgive(&place, "one").unwrap();
    assert_eq!(place.read("one").unwrap(), Record { boot: "one".into(), ..Record::default() });
    std::fs::remove_file(&place.disk).unwrap();
}

#[test]
fn one_whose_record_cannot_be_read_is_parked_until_there_is_a_new_one() {
    let dir = std::env::temp_dir().join(format!("tandemd-unread-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let (path, aside) = (dir.join("unread.toml"), dir.join("unread.unread"));
    let place = Place { disk: path.clone(), memory: dir.join("unread.record") };
    // Of another tandemd, say.
    std::fs::write(&path, "mode = \"rests\"\n").unwrap();
    desks().insert("unread".into(), Desk::default());
    let answers = wish("unread", &[Order::Restart, Order::Unpark]);
    until_read("unread", "dd", &place, "one").unwrap();
    let why = look("unread").unwrap().why.unwrap();
    assert!(why.contains("unread.toml") && why.contains("twinctl unpark unread"), "{why}");
    assert_eq!(answers[0].try_recv().unwrap(), Err(why));
    assert_eq!(answers[1].try_recv().unwrap(), Ok(()));
    assert_eq!(place.read("one").unwrap(), Record { boot: "one".into(), ..Record::default() });
    assert_eq!(std::fs::read_to_string(&aside).unwrap(), "mode = \"rests\"\n");
    until_read("unread", "dd", &place, "one").unwrap();
    // Nor is one that is no file. What cannot be set aside, since something is there, is said.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let answers = wish("unread", &[Order::Unpark, Order::Unpark]);
    let parked = std::thread::spawn(move || until_read("unread", "dd", &place, "one").unwrap());
    assert!(answers[0].recv().unwrap().unwrap_err().contains("cannot rename"));
    assert!(answers[1].recv().unwrap().is_err());
    // The operator has mended it by other means.
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(wish("unread", &[Order::Restart])[0].recv().unwrap(), Ok(()));
    parked.join().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_was_counted_before_is_told_before_anything_was_looked_at() {
    let mut record = Record { outage: 670, last_outage: Some(70), upgrades: 2, ..Record::default() };
    record.refused = "it panics".into();
    record.count("panicked");
    record.last.push("panicked: interface 70 ms".into());
    let told = told_of(&record);
    assert_eq!((told.counts["panicked"], told.upgrades), (1, 2));
    assert_eq!((told.outage_ms, told.last_outage_ms), (670, Some(70)));
    assert_eq!((told.recoveries, told.refused.as_deref()), (record.last, Some("it panics")));
    assert_eq!((told.state.as_str(), told.standby), ("", None), "what is now nobody knows");
}
