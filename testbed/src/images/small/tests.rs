//! `plug` beside a store that is made of a map.

use crate::host;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kinds of messages (public/io/xs_wire.h).
const DIRECTORY: u32 = 1;
const READ: u32 = 2;
const WATCH: u32 = 4;
const BEGIN: u32 = 6;
const END: u32 = 7;
const WRITE: u32 = 11;
const REMOVE: u32 = 13;
const EVENT: u32 = 15;
const FAILED: u32 = 16;
/// Who asks nothing for so long has looked at all.
const IDLE: Duration = Duration::from_secs(2);

type Nodes = BTreeMap<String, String>;

/// The store, and what others do to it.
#[derive(Default)]
struct Store {
    nodes: Nodes,
    /// What those see who have a transaction.
    copies: BTreeMap<u32, (Nodes, Nodes)>,
    /// Has too many names for a message.
    is_long: Option<&'static str>,
    /// A node that somebody makes as soon as that directory was told the second number of times.
    comes: Option<(&'static str, u32, &'static str)>,
}

impl Store {
    fn with(nodes: &[&str]) -> Self {
        Self { nodes: nodes.iter().map(|node| (node.to_string(), "1".into())).collect(), ..Self::default() }
    }

    fn answer(&mut self, kind: u32, transaction: u32, body: &str) -> Result<Vec<u8>, &'static str> {
        let words: Vec<&str> = body.split('\0').collect();
        if kind == BEGIN {
            let name = u32::try_from(self.copies.len()).unwrap() + 1;
            self.copies.insert(name, (self.nodes.clone(), self.nodes.clone()));
            return Ok(format!("{name}\0").into_bytes());
        }
        if kind == END {
            let (before, after) = self.copies.remove(&transaction).ok_or("ENOENT")?;
            if before != self.nodes {
                return Err("EAGAIN");
            }
            self.nodes = after;
            return Ok(b"OK\0".to_vec());
        }
        let nodes = match self.copies.get_mut(&transaction) {
            Some((_, copy)) => copy,
            None => &mut self.nodes,
        };
        let below = format!("{}/", words[0]);
        match kind {
            DIRECTORY if self.is_long == Some(words[0]) => Err("E2BIG"),
            DIRECTORY => {
                let mut names: Vec<&str> = nodes.keys().filter_map(|node| node.strip_prefix(&below)).collect();
                names.iter_mut().for_each(|name| *name = name.split('/').next().unwrap());
                names.dedup();
                if names.is_empty() && !nodes.contains_key(words[0]) {
                    return Err("ENOENT");
                }
                let told = names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect();
                if let Some((path, left, node)) = &mut self.comes {
                    *left -= u32::from(*path == words[0]);
                    if *left == 0 {
                        self.nodes.insert(node.to_string(), "1".into());
                        self.comes = None;
                    }
                }
                Ok(told)
            }
            READ => nodes.get(words[0]).map(|value| value.clone().into_bytes()).ok_or("ENOENT"),
            WRITE => {
                nodes.insert(words[0].into(), words[1].into());
                Ok(b"OK\0".to_vec())
            }
            REMOVE => {
                nodes.retain(|node, _| node != words[0] && !node.starts_with(&below));
                Ok(b"OK\0".to_vec())
            }
            _ => Err("EINVAL"),
        }
    }

    /// Until nobody asks any more.
    fn serve(mut self, stream: &mut UnixStream) -> Self {
        stream.set_read_timeout(Some(IDLE)).unwrap();
        let mut head = [0; 16];
        loop {
            match stream.read_exact(&mut head) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self,
                Err(error) => panic!("plug has ended: {error}"),
            }
            let word = |n: usize| u32::from_le_bytes(head[n * 4..n * 4 + 4].try_into().unwrap());
            let (kind, transaction) = (word(0), word(2));
            let mut body = vec![0; usize::try_from(word(3)).unwrap()];
            stream.read_exact(&mut body).unwrap();
            let send = |stream: &mut UnixStream, kind: u32, body: &[u8]| {
                let head = [kind, 0, transaction, u32::try_from(body.len()).unwrap()];
                let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
                stream.write_all(&[&head, body].concat()).unwrap();
            };
            if kind == WATCH {
                send(stream, WATCH, b"OK\0");
                send(stream, EVENT, b"backend\0plug\0");
                continue;
            }
            match self.answer(kind, transaction, &String::from_utf8(body).unwrap()) {
                Ok(answer) => send(stream, kind, &answer),
                Err(error) => send(stream, FAILED, format!("{error}\0").as_bytes()),
            }
        }
    }
}

/// To the program its standard input is the store.
const OPENS: &str = r#"
#include <string.h>
#include <unistd.h>
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	return strcmp(path, "/dev/xen/xenbus") ? __real_open(path, flags) : dup(0);
}
"#;

fn program(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("plug-{}-{test}", std::process::id()));
    let opens = path.with_extension("c");
    std::fs::write(&opens, OPENS).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Werror", "-Wl,--wrap=open", "-o"]).arg(&path);
    gcc.arg(&opens).arg(host::root().join("images/small/plug.c"));
    assert!(gcc.status().unwrap().success());
    std::fs::remove_file(opens).unwrap();
    path
}

/// What is left when plug has looked at all; and how many files it has open.
fn looked_at(test: &str, store: Store) -> (Nodes, usize) {
    let program = program(test);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut plug = Command::new(&program).stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
    let store = store.serve(&mut ours);
    let nr_files = std::fs::read_dir(format!("/proc/{}/fd", plug.id())).unwrap().count();
    plug.kill().unwrap();
    plug.wait().unwrap();
    std::fs::remove_file(program).unwrap();
    (store.nodes, nr_files)
}

#[test]
fn a_directory_that_its_last_back_end_has_left_goes() {
    let (left, _) = looked_at("left", Store::with(&["backend/vbd", "backend/vbd/1", "backend/vbd/2/0/state"]));
    assert_eq!(left.keys().collect::<Vec<_>>(), ["backend/vbd", "backend/vbd/2/0/state"]);
}

#[test]
fn what_cannot_be_told_is_not_taken_for_nothing() {
    let store = Store { is_long: Some("backend/vbd/1"), ..Store::with(&["backend/vbd/1/0/state"]) };
    assert_eq!(looked_at("told", store).0.len(), 1);
}

#[test]
fn a_back_end_that_comes_while_the_directory_is_empty_stays() {
    for told in 1..=2 {
        let comes = Some(("backend/vbd/1", told, "backend/vbd/1/5/state"));
        let (left, _) = looked_at(&format!("comes-{told}"), Store { comes, ..Store::with(&["backend/vbd/1"]) });
        assert!(left.contains_key("backend/vbd/1/5/state"), "{left:?}");
    }
}

#[test]
fn an_interface_whose_bridge_cannot_be_leaves_no_file_open() {
    let mut store = Store::default();
    let (_, without) = looked_at("without", Store::default());
    for (key, value) in [("state", "2"), ("bridge", "a-name-that-no-bridge-can-have")] {
        store.nodes.insert(format!("backend/vif/1/0/{key}"), value.into());
    }
    let (left, with) = looked_at("with", store);
    assert_eq!(left.get("backend/vif/1/0/hotplug-status").map(String::as_str), Some("error"));
    assert_eq!(with, without);
}
