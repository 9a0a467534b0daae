use super::*;

fn over_socket(stream: UnixStream, at_once: usize) -> Client {
    Client::over(OwnedFd::from(stream).into(), at_once)
}

/// A store that has everything, makes everything, and refuses requests of this kind with this error. Gives how
/// transactions ended.
fn refusing(refused: u32, error: &'static str, stream: UnixStream) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut client = over_socket(stream, AT_ONCE);
        let mut ends = Vec::new();
        // Who asks closes the connection at the end.
        while let Ok((asked, body)) = client.receive() {
            let (kind, answer) = match asked {
                kind::TRANSACTION_START => (asked, "7"),
                _ if asked == refused => (kind::ERROR, error),
                _ => (asked, "OK"),
            };
            if asked == kind::TRANSACTION_END {
                ends.push(text(&body));
            }
            let body = terminated(&[answer]);
            let head = [kind, 0, 0, u32::try_from(body.len()).unwrap()];
            let message: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).chain(body).collect();
            client.stream.write_all(&message).unwrap();
        }
        ends
    })
}

fn change(refused: u32, error: &'static str, change: Change) -> (Result<bool>, Vec<String>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let store = refusing(refused, error, theirs);
    let mut client = over_socket(ours, AT_ONCE);
    let answer = client.change("/guard", &[change, Change::Write("/a".into(), "b".into())]);
    drop(client);
    (answer, store.join().unwrap())
}

fn make_directory(error: &'static str) -> (Result<bool>, Vec<String>) {
    let directory = Change::Make { path: "/local/domain/5/backend/vbd/1/0".into(), owner: 5, reader: 1 };
    change(kind::SET_RIGHTS, error, directory)
}

#[test]
fn a_domain_that_has_just_gone_gets_nothing_and_nobody_fails() {
    let (answer, ends) = make_directory("ENOENT");
    assert!(!answer.unwrap());
    assert_eq!(ends, ["F"]);
}

#[test]
fn other_refusals_are_errors() {
    let (answer, ends) = make_directory("EACCES");
    assert_eq!(ends, ["F"], "nobody keeps a transaction that fails");
    let said = format!("{:#}", answer.unwrap_err());
    assert_eq!(said, "xenstore refuses /local/domain/5/backend/vbd/1/0 n5 r1: EACCES");
}

#[test]
fn what_is_beside_too_much_to_be_told_can_be_removed() {
    let beside = Change::Remove("/local/domain/5/backend/vbd/1/0".into());
    let (answer, ends) = change(kind::DIRECTORY, "E2BIG", beside);
    assert!(answer.unwrap());
    assert_eq!(ends, ["T"]);
}

#[test]
fn what_only_its_own_domain_can_write_is_not_repeated() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let store = std::thread::spawn(move || {
        let mut store = over_socket(theirs, AT_ONCE);
        let value = vec![b'0'; MAX_BODY - 10];
        for (asked, answer) in [
            (kind::TRANSACTION_START, &b"7"[..]),
            (kind::READ, &value),
            (kind::READ, &value),
            (kind::TRANSACTION_END, b"OK"),
        ] {
            assert_eq!(store.receive().unwrap().0, asked);
            store.send(asked, 0, answer).unwrap();
        }
    });
    let path = "/local/domain/5/backend/vbd/1/0/state".to_string();
    assert!(over_socket(ours, AT_ONCE).change(&path.clone(), &[Change::Repeat(path)]).unwrap());
    store.join().unwrap();
}

#[test]
fn what_is_repeated_is_what_it_was_though_it_is_no_text() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let store = std::thread::spawn(move || {
        let mut store = over_socket(theirs, AT_ONCE);
        for (asked, answer) in [
            (kind::TRANSACTION_START, &b"7"[..]),
            (kind::READ, b"x"),
            (kind::READ, b"\xff\x80\0\0"),
            (kind::WRITE, b"OK"),
            (kind::TRANSACTION_END, b"OK"),
        ] {
            let (kind, body) = store.receive().unwrap();
            assert_eq!(kind, asked);
            assert!(kind != kind::WRITE || body == b"/a\0\xff\x80\0\0", "{body:?}");
            store.send(asked, 0, answer).unwrap();
        }
    });
    assert!(over_socket(ours, AT_ONCE).change("/guard", &[Change::Repeat("/a".into())]).unwrap());
    store.join().unwrap();
}

#[test]
fn one_value_that_needs_no_guard_is_written_at_once() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let store = std::thread::spawn(move || {
        let mut store = over_socket(theirs, AT_ONCE);
        let (kind, body) = store.receive().unwrap();
        assert_eq!((kind, text(&body).as_str()), (kind::WRITE, "/a\x001"));
        store.send(kind::WRITE, 0, &terminated(&["OK"])).unwrap();
    });
    assert!(over_socket(ours, AT_ONCE).change(ALWAYS, &[Change::Write("/a".into(), "1".into())]).unwrap());
    store.join().unwrap();
}

#[test]
fn values_are_written_without_waiting_for_each_and_what_is_refused_leaves_no_answer_behind() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // It answers when it has heard of three, and refuses the second.
    let store = std::thread::spawn(move || {
        let mut store = over_socket(theirs, AT_ONCE);
        for _ in 0..3 {
            assert_eq!(store.receive().unwrap().0, kind::WRITE);
        }
        for (kind, answer) in [(kind::WRITE, "OK"), (kind::ERROR, "EACCES"), (kind::WRITE, "OK")] {
            store.send(kind, 0, &terminated(&[answer])).unwrap();
        }
        assert_eq!(store.receive().unwrap().0, kind::READ);
        store.send(kind::READ, 0, b"value").unwrap();
    });
    let mut client = over_socket(ours, AT_ONCE);
    let said = client.write(7, &[("/a", b"1"), ("/b", b"2"), ("/c", b"3")]).unwrap_err().to_string();
    assert_eq!(said, "xenstore refuses /b: EACCES");
    assert_eq!(client.read("/d").unwrap().as_deref(), Some("value"));
    store.join().unwrap();
}

#[test]
fn a_device_that_keeps_what_was_written_gets_the_next_when_it_has_answered() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let store = std::thread::spawn(move || {
        let mut store = over_socket(theirs, ONE_BY_ONE);
        for value in ["/a\x001", "/b\x002"] {
            let (kind, body) = store.receive().unwrap();
            assert_eq!((kind, text(&body).as_str()), (kind::WRITE, value));
            assert!(store.next_event(Some(Duration::from_millis(50))).unwrap().is_none());
            store.send(kind, 0, &terminated(&["OK"])).unwrap();
        }
    });
    over_socket(ours, ONE_BY_ONE).write(7, &[("/a", b"1"), ("/b", b"2")]).unwrap();
    store.join().unwrap();
}

/// A store with a directory of so many names that is too long for one answer. When it was asked for so many parts it is
/// in this state, and each state has one name more than that before. Gives how many parts it was asked for.
fn long_directory(stream: UnixStream, nr_names: usize, state: fn(usize) -> usize) -> std::thread::JoinHandle<usize> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    std::thread::spawn(move || {
        let mut store = over_socket(stream, AT_ONCE);
        let mut nr_parts = 0;
        // Who asks closes the connection at the end.
        while let Ok((asked, body)) = store.receive() {
            if asked == kind::DIRECTORY {
                store.send(kind::ERROR, 0, &terminated(&["E2BIG"])).unwrap();
                continue;
            }
            assert_eq!(asked, 22, "XS_DIRECTORY_PART of xs_wire.h");
            let asked_for: Vec<String> = body.split(|byte| *byte == 0).map(text).collect();
            assert_eq!((asked_for.len(), asked_for[0].as_str()), (3, "/local/domain"));
            let state = state(nr_parts);
            let names: Vec<String> = (0..nr_names + state).map(|n| n.to_string()).collect();
            let all = terminated(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let rest = &all[asked_for[1].parse().unwrap()..];
            let mut answer = terminated(&[&state.to_string()]);
            // Whole names, and one NUL more behind the last.
            let room = MAX_BODY - answer.len() - 1;
            let is_last = rest.len() <= room;
            let end = if is_last { rest.len() } else { rest[..room].iter().rposition(|b| *b == 0).unwrap() + 1 };
            answer.extend(&rest[..end]);
            answer.extend(is_last.then_some(0));
            store.send(kind::DIRECTORY_PART, 0, &answer).unwrap();
            nr_parts += 1;
        }
        nr_parts
    })
}

/// What `/local/domain` is told to have, and in how many parts.
fn list_long(nr_names: usize, state: fn(usize) -> usize) -> (Result<Vec<String>>, usize) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let store = long_directory(theirs, nr_names, state);
    let mut client = over_socket(ours, AT_ONCE);
    let listed = client.list("/local/domain");
    drop(client);
    (listed, store.join().unwrap())
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

#[test]
fn a_directory_that_is_too_long_for_an_answer_is_read_in_parts() {
    for (nr_names, parts) in [(0, 1), (1, 1), (1000, 1), (3000, 4)] {
        let (listed, nr_parts) = list_long(nr_names, |_| 0);
        assert_eq!((listed.unwrap(), nr_parts), (numbers(nr_names), parts));
    }
}

#[test]
fn parts_of_a_directory_that_has_changed_meanwhile_are_not_put_together() {
    // Before the last of four parts, and not any more while it is read anew.
    let (listed, nr_parts) = list_long(3000, |nr_parts| usize::from(nr_parts >= 3));
    assert_eq!((listed.unwrap(), nr_parts), (numbers(3001), 8));
    // Before each.
    let (listed, nr_parts) = list_long(3000, |nr_parts| nr_parts);
    assert_eq!(listed.unwrap_err().to_string(), "others always change what is in /local/domain");
    assert_eq!(nr_parts, 2 * TRIES);
}

#[test]
fn events_that_come_before_an_answer_do_not_grow_without_a_bound() {
    const COUNT: usize = 20_000;
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let store = std::thread::spawn(move || {
        let mut store = over_socket(theirs, AT_ONCE);
        assert_eq!(store.receive().unwrap().0, kind::WATCH);
        store.send(kind::WATCH, 0, b"OK").unwrap();
        assert_eq!(store.receive().unwrap().0, kind::READ);
        for n in 0..COUNT {
            store.send(kind::EVENT, 0, &terminated(&[&format!("/a/{n}"), "t"])).unwrap();
        }
        store.send(kind::READ, 0, b"1").unwrap();
    });
    let mut client = over_socket(ours, AT_ONCE);
    client.watch("/a", "t").unwrap();
    assert_eq!(client.read("/a/b").unwrap().as_deref(), Some("1"));
    store.join().unwrap();
    let mut taken = Vec::new();
    while !client.events.is_empty() {
        taken.extend(client.next_event(Some(Duration::ZERO)).unwrap());
    }
    assert!(taken.len() < COUNT / 4, "{}", taken.len());
    assert_eq!(taken[0], Event { path: "/a".into(), token: "t".into() }, "all below it has changed");
}
