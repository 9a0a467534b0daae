//! Processes that nobody has a handle of any more: they are waited for, or each would stay in Linux's list when it has
//! ended.

use rustix::process::{getpid, waitpid, Pid, WaitOptions};

/// Waits for those that were started before this program took the place of another one (`twinctl reload`), whose
/// children they are still. To be called before there are others.
pub fn await_earlier() {
    of(getpid()).into_iter().for_each(wait);
}

/// Waits for one, however long that takes.
pub fn wait(child: Pid) {
    let waits = move || {
        let _ = waitpid(Some(child), WaitOptions::empty());
    };
    let _ = std::thread::Builder::new().name("xl".into()).spawn(waits);
}

/// A process's children.
fn of(parent: Pid) -> Vec<Pid> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |process: &i32| {
        let said = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        parent_in(&said) == Some(parent.as_raw_nonzero().get())
    };
    processes.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// The one that has started this process, or waits for it now.
pub fn parent_of(process: u32) -> Option<u32> {
    let said = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    parent_in(&String::from_utf8_lossy(&said))?.try_into().ok()
}

/// Of `NUMBER (NAME) STATE PARENT …`, where the name may be anything.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::process::Running;
    use super::*;
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, Instant};

    /// It is soon in no list any more.
    fn assert_gone(child: u32) {
        let until = Instant::now() + Duration::from_secs(60);
        while Path::new(&format!("/proc/{child}")).exists() {
            assert!(Instant::now() < until, "it is there still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn nothing_stays_of_one_whose_handle_is_lost() {
        assert_eq!(parent_in("12 (xl) S 7 12 0"), Some(7));
        assert_eq!(parent_in("12 (a) b) 9) Z 8 12 0"), Some(8));
        assert_eq!(parent_in(""), None);
        let child = Command::new("true").spawn().unwrap().id();
        let own = Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
        assert!(of(getpid()).contains(&own));
        wait(own);
        assert_gone(child);
        // The same of one whose supervisor has begun anew.
        let said = std::env::temp_dir().join(format!("tandemd-children-{}", std::process::id()));
        let mut sleep = Command::new("sleep");
        sleep.arg("0.1");
        let running = Running::start_as("sleep", sleep, &said).unwrap();
        let child = running.child.as_ref().unwrap().id();
        drop(running);
        assert_gone(child);
        std::fs::remove_file(said).unwrap();
    }
}
