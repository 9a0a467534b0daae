//! What becomes of a group's reports, and what files of checks do in bash on the host.

use super::*;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn dma_that_is_stopped_fails_a_group_that_does_not_provoke_it() {
    const LINE: &str = "(TDM) Warning: IOMMU: d1's device 00:03.0 was stopped reading address 0x1000: no entry";
    let said = ["(TDM) 5 us since the start", LINE, "TANDEM: check ok packets", "TANDEM: group x over"];
    let lines = said.map(String::from).into();
    let outcome = Outcome { ending: Ending::PowerOff, lines, log: "x.log".into() };
    assert!(verdict(&outcome, &Ending::PowerOff, &["crashed"]).unwrap_err().to_string().contains(LINE));
    assert_eq!(verdict(&outcome, &Ending::PowerOff, STOPPED).unwrap(), "1 checks");
}

#[test]
fn a_group_without_a_check_or_whose_shell_has_ended_fails() {
    let said = |lines: &[&str]| {
        let lines = lines.iter().map(|line| format!("TANDEM: {line}")).collect();
        verdict(&Outcome { ending: Ending::PowerOff, lines, log: "x.log".into() }, &Ending::PowerOff, &[])
    };
    const DIED: &str = "group x FAIL its shell has ended before its checks: status 139";
    assert_eq!(said(&["check ok a", "check lacking b: c", "group x over"]).unwrap(), "1 checks, 1 known to be missing");
    assert!(said(&["group x over"]).unwrap_err().to_string().contains("nothing was checked"));
    assert!(said(&["check ok a", DIED]).unwrap_err().to_string().contains(DIED));
}

/// What `job_xl` of `images/xen/dom0.sh` says of a file of checks with these lines.
fn job_xl(checks: &str) -> String {
    let jobs = include_str!("../../../../images/xen/dom0.sh");
    let start = jobs.find("\njob_xl() {\n").unwrap();
    let job = jobs[start..].split_inclusive("\n}\n").next().unwrap();
    let dir = host::target("logs").unwrap().join(format!("job.{}", std::process::id()));
    std::fs::create_dir_all(dir.join("tests")).unwrap();
    std::fs::write(dir.join("lib.sh"), "say() { echo \"$*\"; }\n").unwrap();
    std::fs::write(dir.join("tests/x.sh"), checks).unwrap();
    let job = job.replace("/xen/", &format!("{}/", dir.display()));
    let job = job.replace("/tmp/over", &dir.join("over").display().to_string());
    // The init program's shell has it from another file.
    let text = format!("say() {{ echo \"$*\"; }}\n{job}\ncd '{}' && job_xl x one", dir.display());
    let said = host::output(Command::new("sh").args(["-c", &text])).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    said.split(" uptime=").next().unwrap().trim().into()
}

#[test]
fn a_group_is_over_if_its_shell_has_come_to_the_end() {
    assert_eq!(job_xl("say $1\n"), "one\ngroup x over");
    assert_eq!(job_xl("say $1\nfalse\n"), "one\ngroup x over", "its last command may fail");
    assert_eq!(job_xl("return\nsay $1\n"), "group x over");
    let ended = |status: u32| format!("group x FAIL its shell has ended before its checks: status {status}");
    assert_eq!(job_xl("kill -9 $$\nsay $1\n"), ended(137));
    assert_eq!(job_xl("say $1\nexit\n"), format!("one\n{}", ended(0)));
    assert!(job_xl(": ${nothing:?}\nsay $1\n").contains("x FAIL"));
}

/// All files of bash that run in domain 0, with their paths.
fn files() -> Vec<(PathBuf, String)> {
    let mut dirs = vec![host::root().join("images/xen")];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ext| ext == "sh") {
                let text = std::fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    assert!(files.len() > 50, "{}", files.len());
    files
}

#[test]
fn a_twind_has_ended_if_it_was_killed_and_its_twin_is_not_the_way_out_any_more() {
    let file = include_str!("../../../../images/xen/dying.sh");
    let ends = function(file, "twind_ends");
    // What the guest says of the kill, whether its twin is the way out then, and whether the guest knows another twind.
    let is_so = |killed: &str, by_twin: &str, another: &str| {
        let guest = format!("in_guest() {{ case $3 in pid=*) printf '{killed}' ;; *) {another} ;; esac; }}");
        let wait = format!("by_twin() {{ {by_twin}; }}; wait_for() {{ shift; \"$@\"; }}");
        let text = format!("{guest}\n{wait}\n{ends}\ntwind_ends > /dev/null && echo yes || echo no");
        host::output(Command::new("bash").args(["-c", &text])).unwrap() == "yes\n"
    };
    assert!(is_so("[ 1.0] a line\\nkilled 77\\n", "false", "false"));
    assert!(is_so("killed 77\\n", "true", "true"));
    assert!(!is_so("killed 77\\n", "true", "false"), "the old one is the way out still");
    assert!(!is_so("kill: no such process\\n", "false", "true"));
    assert!(!is_so("no answer from dd\\n", "false", "true"));
}

#[test]
fn an_audit_that_was_not_made_finds_nothing_right() {
    let found = host::target("logs").unwrap().join(format!("audit.{}", std::process::id()));
    let audit = function(include_str!("../../../../images/xen/driving.sh"), "audit");
    let audit = audit.replace("/tmp/audit", &found.display().to_string());
    // What xl answers to `info`, to `debug-keys`, and to `dmesg`.
    let is_right = |info: &str, keys: &str, said: &str| {
        let xl =
            format!("xl() {{ case $1 in info) {info} ;; debug-keys) {keys} ;; dmesg) echo '(TDM) {said}' ;; esac; }}");
        let text = format!("{xl}\n{audit}\naudit > /dev/null && echo yes || echo no");
        host::output(Command::new("bash").args(["-c", &text])).unwrap() == "yes\n"
    };
    const OURS: &str = "echo 'xen_extra              : -tandem'";
    const RIGHT: &str = "Frame audit: 9 frames, 0 wrong, 0 lost";
    assert!(is_right(OURS, "true", RIGHT));
    assert!(!is_right(OURS, "true", "Frame audit: 9 frames, 0 wrong, 1 lost"));
    assert!(!is_right(OURS, "false", RIGHT), "that was said before");
    assert!(!is_right("false", "true", RIGHT), "nobody knows whose this is");
    assert!(is_right("echo 'xen_extra              : .4'", "false", ""), "stock Xen has none");
    std::fs::remove_file(&found).unwrap();
}

#[test]
fn hostile_domains_differ_and_do_what_they_are_to() {
    let file = include_str!("../../../../images/xen/tests/hostile.sh");
    let functions = ["seed_of", "all_operations", "did_enough"].map(|name| function(file, name)).concat();
    let dir = host::target("logs").unwrap().join(format!("hostile.{}", std::process::id()));
    let is_enough = |deaths: u32, logs: &[(&str, u64)]| {
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("deaths"), deaths.to_string()).unwrap();
        for (name, done) in logs {
            let text = format!("  done 10000, accepted 5, all vCPUs 9\r\n  done 1, accepted 5, all vCPUs {done}\r\n");
            std::fs::write(dir.join(format!("guest-{name}")), text).unwrap();
        }
        let functions = functions.replace("/tmp/deaths", "$logs/deaths");
        let text = format!(
            "operations=30000 seed=7 logs='{}'\n{functions}\n[ $(seed_of h1) = 7 ] && [ $(seed_of h2) != 7 ] && did_enough > /dev/null && echo yes || echo no",
            dir.display()
        );
        let said = host::output(Command::new("bash").args(["-c", &text])).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        said == "yes\n"
    };
    assert!(is_enough(0, &[("h1.log", 50_000), ("h2.log", 90_000)]));
    assert!(!is_enough(0, &[("h1.log", 50_000)]), "the other one did nothing");
    assert!(is_enough(1, &[("h1.log", 10_000), ("h2.log", 20_000), ("h2.1", 10_000)]));
    assert!(!is_enough(1, &[("h2.log", 20_000), ("h2.1", 10_000)]));
}

#[test]
fn bash_can_read_every_file_of_checks() {
    for (path, _) in files() {
        host::output(Command::new("bash").arg("-n").arg(&path)).unwrap();
    }
}

#[test]
fn of_several_streams_not_one_is_enough() {
    for (path, text) in files() {
        let has_several = |said: &str| said.matches("tcptest ").count() > 1;
        let doubtful = |line: &&str| line.split("said 'tcp ok'").skip(1).any(has_several);
        assert_eq!(text.lines().find(doubtful), None, "{}: see streams_ok", path.display());
    }
}

#[test]
fn streams_are_counted() {
    let library = include_str!("../../../../images/xen/lib.sh");
    let [said, streams] = ["said", "streams_ok"].map(|name| function(library, name));
    let dir = host::target("logs").unwrap().join(format!("streams.{}", std::process::id()));
    let is_so = |put: &str, get: &str| {
        std::fs::create_dir_all(&dir).unwrap();
        // The guest's shell, in a place of its own, where a stream is a word and how it ends.
        let guest =
            format!("in_guest() {{ cd '{}'; shift 2; tcptest() {{ echo \"tcp $*\"; }}; eval \"$*\"; }}", dir.display());
        let text = format!("{guest}\n{said}\n{streams}\nstreams_ok 2 g 1 'tcptest {put}; tcptest {get}' > /dev/null && echo yes || echo no");
        let text = text.replace("/tmp/right", "right");
        let said = host::output(Command::new("bash").args(["-c", &text])).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        said == "yes\n"
    };
    assert!(is_so("ok put blocks=32", "ok get blocks=32"));
    assert!(!is_so("ok put blocks=32", "FAIL not all blocks were right at block 2"));
    assert!(!is_so("FAIL not all blocks were right at block 2", "ok get blocks=32"));
}

/// A function of a file of bash, which may be one line.
fn function<'a>(file: &'a str, name: &str) -> &'a str {
    let text = &file[file.find(&format!("\n{name}() {{")).unwrap()..];
    let line = text[1..].split_inclusive('\n').next().unwrap();
    if line.ends_with("}\n") {
        line
    } else {
        text.split_inclusive("\n}\n").next().unwrap()
    }
}

#[test]
fn a_twin_receives_if_the_streams_came_and_linux_passed_few_on() {
    let file = include_str!("../../../../images/xen/tests/messages.sh");
    let [count, receives] = ["passed_on_by_linux", "the_twin_receives"].map(|name| function(file, name));
    let dir = host::target("logs").unwrap().join(format!("twin.{}", std::process::id()));
    // What is counted before and after the streams, and how they end.
    let is_so = |before: &str, after: &str, streams: &str| {
        std::fs::create_dir_all(&dir).unwrap();
        for (name, said) in [("answer", before), ("next", after)] {
            std::fs::write(dir.join(name), said).unwrap();
        }
        let asked = format!("cd '{}'; in_dd() {{ cat answer; mv next answer; }}", dir.display());
        let text = format!("{asked}\n{count}\n{receives}\nthe_twin_receives {streams} > said && echo yes || echo no");
        let said = host::output(Command::new("bash").args(["-c", &text])).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        said == "yes\n"
    };
    assert!(is_so("700\n40\n", "[ 1.0] a line of the kernel's\n900\n40\n", "true"));
    assert!(!is_so("700\n40\n", "9000\n40\n", "true"), "Linux has passed them on");
    assert!(!is_so("700\n40\n", "700\n40\n", "false"), "the streams failed");
    assert!(!is_so("no answer from dd\n", "700\n", "true"));
    assert!(!is_so("700\n", "", "true"));
    assert!(!is_so("700\n", "30\n", "true"), "it counts something else");
}

/// Functions of `images/xen/lib.sh`, at a guest that says `answer` to everything.
fn in_bash(answer: &str, script: &str) -> String {
    let library = include_str!("../../../../images/xen/lib.sh");
    let dir =
        host::target("logs").unwrap().join(format!("lib.{}.{:?}", std::process::id(), std::thread::current().id()));
    std::fs::create_dir_all(&dir).unwrap();
    let [log, tty] = ["log", "tty"].map(|file| dir.join(file));
    let guest = format!(
        "log_of() {{ echo '{0}'; }}; find_tty() {{ tty='{1}'; : > $tty; }}; nap() {{ printf '{answer}' $number >> '{0}'; }}",
        log.display(),
        tty.display()
    );
    std::fs::write(&log, "").unwrap();
    let text = format!("{guest}\n{}{}{script}", function(library, "in_guest"), function(library, "said"));
    let said = host::output(Command::new("bash").args(["-c", &text])).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    said
}

#[test]
fn a_guest_that_does_not_answer_has_said_nothing() {
    const SAID: &str = "said refused g 1 'write || echo refused' > /dev/null; echo $?";
    assert_eq!(in_bash("refused\\nTANDEM: did %s 0.\\n", SAID), "0\n");
    assert_eq!(in_bash("written\\nTANDEM: did %s 0.\\n", SAID), "1\n");
    // A command that fails may have said it all the same; a guest that hangs after that is none that has done it.
    assert_eq!(in_bash("refused\\nTANDEM: did %s 1.\\n", SAID), "0\n");
    assert_eq!(in_bash("refused\\n", SAID), "1\n");
    let silent = in_bash("", "in_guest g 1 'write || echo refused'; echo $?");
    assert_eq!(silent.lines().collect::<Vec<_>>(), ["no answer from g", "", "2"]);
}
