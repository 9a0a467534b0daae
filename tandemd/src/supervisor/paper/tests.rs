use super::super::record::{Mode, TimeLine, Upgrade};
use super::*;
use crate::device::Device;
use crate::supervisor::record::Stage;
use std::time::{Duration, Instant};

/// An empty folder, and a place for a record in it.
fn place(name: &str) -> (PathBuf, Place) {
    let dir = std::env::temp_dir().join(format!("tandemd-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    (dir.clone(), Place { disk: dir.join("net.toml"), memory: dir.join("net.record") })
}

fn counted(what: &str) -> Record {
    let mut record = Record { boot: "one".into(), ..Record::default() };
    record.count(what);
    record
}

/// Looks until that is on the disk.
fn comes(place: &Place, paper: &mut Paper, record: &Record) -> Vec<String> {
    let (begin, mut said) = (Instant::now(), Vec::new());
    while std::fs::read_to_string(&place.disk).unwrap_or_default() != text(record).unwrap()
        || desk().is_busy(&place.disk)
    {
        said.extend(paper.keep(record));
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not come: {said:?}");
        std::thread::yield_now();
    }
    said.extend(paper.keep(record));
    said
}

#[test]
fn what_is_written_was_said_before() {
    let (dir, place) = place("said");
    let mut paper = Paper::new(place.clone(), Record::default());
    let mut heard = Vec::new();
    let mut say = |line: &str| heard.push((line.to_string(), place.memory.exists()));
    paper.say_and_keep(["recovered, at last".to_string()], &counted("recovered"), &mut say);
    assert_eq!(heard, [("recovered, at last".to_string(), false)]);
    assert!(place.memory.exists());
    comes(&place, &mut paper, &counted("recovered"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_is_written_is_read_until_the_machine_starts_anew() {
    let (dir, place) = place("record");
    assert_eq!(place.read("one").unwrap(), Record { boot: "one".into(), ..Record::default() });
    let mut record = Record { mode: Mode::Parked, failures: vec![5, 9], ..counted("panicked") };
    record.why = "it \"fails\"".into();
    record.with_all = true;
    record.going = Some(77);
    (record.snapshots, record.noting, record.rolling) = ([77, 76].into(), Some(78), Some(77));
    record.under_way = Some(TimeLine::new("panicked", Duration::from_secs(3)));
    record.image.kernel = Some("/boot/kept".into());
    let disks = vec![Device { guest: 7, number: 51712 }, Device { guest: 9, number: 51728 }];
    record.upgrade = Some(Upgrade { stage: Stage::Takes, domain: Some(8), disks, ..Upgrade::default() });
    for in_memory in [false, true] {
        if in_memory {
            let newer = Newer { of: vec![mark(&text_of(&place.disk).unwrap())], record: record.clone() };
            std::fs::write(&place.memory, toml::to_string(&newer).unwrap()).unwrap();
        } else {
            place.write(&record).unwrap();
        }
        assert_eq!(place.read("one").unwrap(), record);
        let later = place.read("two").unwrap();
        assert_eq!((&later.image, &later.upgrade, later.upgrades), (&record.image, &None, 1));
        assert!(later.refused.contains("anew"));
        assert_eq!((later.mode, later.counts["panicked"]), (Mode::Parked, 1));
        assert_eq!((later.failures, later.going, later.under_way), (vec![], None, None));
        assert_eq!((later.snapshots.len(), later.noting, later.rolling), (0, None, None));
    }
    place.write(&Record { mode: Mode::Off, why: String::new(), ..record }).unwrap();
    let modes = ["one", "two"].map(|boot| place.read(boot).unwrap().mode);
    assert_eq!(modes, [Mode::Off, Mode::Run], "it was shut down, and then the machine was");
    std::fs::write(&place.disk, "mode = 7").unwrap();
    assert!(format!("{:#}", place.read("one").unwrap_err()).contains("net.toml"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_is_in_memory_counts_as_long_as_it_is_of_what_is_on_the_disk() {
    let (dir, place) = place("newer");
    place.write(&counted("before")).unwrap();
    let mut paper = Paper::new(place.clone(), counted("before"));
    // The disk takes long.
    desk().under_way.insert(place.disk.clone(), "another".into());
    assert!(paper.keep(&counted("now")).is_empty());
    assert_eq!(place.read("one").unwrap(), counted("now"));
    // The next daemon looks before that has come, and behind it.
    let next = Paper::new(place.clone(), counted("now"));
    assert_eq!((next.is_newer, next.of), (true, vec![mark(&text(&counted("before")).unwrap()), mark("another")]));
    desk().under_way.remove(&place.disk);
    comes(&place, &mut paper, &counted("now"));
    assert_eq!(place.read("one").unwrap(), counted("now"));
    // Somebody knows better.
    std::fs::write(&place.disk, text(&counted("by hand")).unwrap()).unwrap();
    assert_eq!(place.read("one").unwrap(), counted("by hand"));
    std::fs::remove_file(&place.disk).unwrap();
    assert_eq!(place.read("one").unwrap(), Record { boot: "one".into(), ..Record::default() });
    // One that was torn counts for nothing.
    place.write(&counted("by hand")).unwrap();
    std::fs::write(&place.memory, "of = [").unwrap();
    assert_eq!(place.read("one").unwrap(), counted("by hand"));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A daemon is killed between any two writes, and its last ones come to the disk or do not.
#[test]
fn the_next_daemon_reads_what_the_last_one_has_kept() {
    let (dir, place) = place("killed");
    let mut record = place.read("one").unwrap();
    for life in 0..20 {
        let mut paper = Paper::new(place.clone(), record.clone());
        for change in 0..life % 4 {
            record.count(["panicked", "destroyed", "wedged"][change % 3]);
            assert!(paper.keep(&record).is_empty());
            if life % 3 == 0 {
                comes(&place, &mut paper, &record);
            }
            assert_eq!(place.read("one").unwrap(), record);
        }
        drop(paper);
        assert_eq!(place.read("one").unwrap(), record);
    }
    let mut paper = Paper::new(place.clone(), record.clone());
    comes(&place, &mut paper, &record);
    std::fs::remove_file(&place.memory).unwrap();
    assert_eq!(place.read("one").unwrap(), record);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_cannot_be_written_is_said_once_and_written_as_soon_as_it_can_be() {
    let (dir, place) = place("paper");
    let mut paper = Paper::new(place.clone(), Record::default());
    comes(&place, &mut paper, &Record::default());
    // The new file cannot be made.
    let new = new_of(&place.disk);
    std::fs::create_dir_all(new.join("x")).unwrap();
    let mut said = Vec::new();
    for n in 0..4 {
        said.extend(paper.keep(&Record { outage: n, ..Record::default() }));
        while desk().is_busy(&place.disk) {
            std::thread::yield_now();
        }
        assert_eq!(place.read("").unwrap().outage, n, "memory has it");
    }
    assert!(said.len() == 1 && said[0].contains("cannot write") && said[0].contains("net.toml"), "{said:?}");
    assert!(paper.of.len() <= 2, "{:?}", paper.of);
    std::fs::remove_dir_all(&new).unwrap();
    let said = comes(&place, &mut paper, &counted("panicked"));
    assert!(said.len() == 1 && said[0].contains("written again"), "{said:?}");
    assert_eq!(place.read("one").unwrap(), counted("panicked"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_directory_that_somebody_has_removed_is_made_again() {
    let (dir, mut place) = place("removed");
    place.disk = dir.join("lib").join("net.toml");
    std::fs::create_dir(dir.join("lib")).unwrap();
    let mut paper = Paper::new(place.clone(), Record::default());
    comes(&place, &mut paper, &Record::default());
    std::fs::remove_dir_all(dir.join("lib")).unwrap();
    assert!(comes(&place, &mut paper, &counted("panicked")).is_empty());
    assert_eq!(place.read("one").unwrap(), counted("panicked"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn without_memory_all_goes_on_and_it_is_said_once() {
    let (dir, mut place) = place("lost");
    place.memory = dir.join("nowhere").join("net.record");
    let mut paper = Paper::new(place.clone(), Record::default());
    let mut said = Vec::new();
    for n in 0..3 {
        let record = Record { outage: n, ..Record::default() };
        said.extend(comes(&place, &mut paper, &record));
        assert_eq!(place.read("").unwrap(), record);
    }
    assert_eq!(said.iter().filter(|line| line.contains("net.record")).count(), 1, "{said:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}
