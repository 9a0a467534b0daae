//! Tests that run side by side: most of a boot test is one busy CPU, so several fit on the host's.
//!
//! Each worker takes the next test that nobody has. What a test came to is told in the caller's thread, as each ends,
//! so what is printed is whole; a test that panics has failed, and the others go on.

use anyhow::{anyhow, Result};
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

/// What is run side by side at most if nothing else is asked for: more has not been tried.
const MOST: usize = 4;
/// What QEMU takes for one of the larger machines (3 GiB), and a little.
const MEMORY_KIB: usize = 4 << 20;

/// How many tests run side by side on this host: one for each CPU, as long as their machines fit into its memory.
pub fn fitting() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_kib(&text));
    for_host(cpus, memory)
}

fn for_host(cpus: usize, available_kib: Option<usize>) -> usize {
    let room = available_kib.map_or(MOST, |kib| kib / MEMORY_KIB);
    cpus.min(room).clamp(1, MOST)
}

fn available_kib(meminfo: &str) -> Option<usize> {
    meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

/// Runs `work` on each of `list`, in its order, by `workers` threads; `ended` hears of each what it came to and its
/// seconds.
pub fn run<T: Sync>(
    list: &[T],
    workers: usize,
    work: impl Fn(&T) -> Result<String> + Sync,
    mut ended: impl FnMut(&T, f32, &Result<String>),
) {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, list.len().max(1)) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(item) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let result =
                        catch_unwind(AssertUnwindSafe(|| work(item))).unwrap_or_else(|panic| Err(reason(&*panic)));
                    if sender.send((item, start.elapsed().as_secs_f32(), result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (item, seconds, result) in results {
            ended(item, seconds, &result);
        }
    });
}

fn reason(panic: &(dyn Any + Send)) -> anyhow::Error {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    anyhow!("the test panicked: {}", said.unwrap_or("for no reason given"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, Mutex};

    #[test]
    fn one_worker_takes_them_in_their_order() {
        let started = Mutex::new(Vec::new());
        let mut ended = Vec::new();
        let work = |n: &u32| {
            started.lock().unwrap().push(*n);
            Ok(n.to_string())
        };
        run(&[3, 1, 2], 1, work, |n, _, result| ended.push((*n, result.as_ref().unwrap().clone())));
        assert_eq!(started.into_inner().unwrap(), [3, 1, 2]);
        assert_eq!(ended, [(3, "3".into()), (1, "1".into()), (2, "2".into())]);
    }

    #[test]
    fn as_many_run_at_once_as_there_are_workers_and_the_first_start_first() {
        // Each waits until three are there: with fewer workers this would not end.
        let together = Barrier::new(3);
        let (at_work, most) = (Mutex::new(0), Mutex::new(0));
        let started = Mutex::new(Vec::new());
        let work = |n: &u32| {
            started.lock().unwrap().push(*n);
            {
                let mut at_work = at_work.lock().unwrap();
                *at_work += 1;
                let mut most = most.lock().unwrap();
                *most = (*most).max(*at_work);
            }
            together.wait();
            *at_work.lock().unwrap() -= 1;
            Ok(String::new())
        };
        let mut count = 0;
        run(&[0, 1, 2, 3, 4, 5], 3, work, |_, _, _| count += 1);
        assert_eq!((count, most.into_inner().unwrap()), (6, 3));
        let mut first = started.into_inner().unwrap()[..3].to_vec();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
    }

    #[test]
    fn each_is_heard_of_once_also_with_more_workers_than_tests() {
        for (tests, workers) in [(100u32, 7), (3, 16), (1, 0), (0, 4)] {
            let list: Vec<u32> = (0..tests).collect();
            let mut seen = Vec::new();
            run(&list, workers, |_| Ok(String::new()), |n, _, _| seen.push(*n));
            seen.sort_unstable();
            assert_eq!(seen, list);
        }
    }

    #[test]
    fn what_panics_has_failed_and_the_others_go_on() {
        let work = |n: &u32| match n {
            1 => panic!("number {n}"),
            2 => Err(anyhow!("an error")),
            _ => Ok("fine".into()),
        };
        let mut said = Vec::new();
        let note = |n: &u32, _: f32, result: &Result<String>| {
            said.push((*n, result.as_ref().map_or_else(ToString::to_string, Clone::clone)));
        };
        run(&[0, 1, 2, 3], 1, work, note);
        let said: Vec<_> = said.iter().map(|(n, text)| (*n, text.as_str())).collect();
        assert_eq!(said, [(0, "fine"), (1, "the test panicked: number 1"), (2, "an error"), (3, "fine")]);
    }

    #[test]
    fn a_host_is_not_given_more_than_it_has_cpus_or_memory_for() {
        let gib = |n: usize| Some(n << 20);
        assert_eq!([1, 2, 4, 64].map(|cpus| for_host(cpus, gib(64))), [1, 2, 4, 4]);
        assert_eq!([1, 7, 8, 12].map(|n| for_host(4, gib(n))), [1, 1, 2, 3]);
        assert_eq!(for_host(2, None), 2);
        assert_eq!(available_kib("MemTotal:  9 kB\nMemAvailable:   17287880 kB\n"), Some(17_287_880));
        assert_eq!(available_kib("MemTotal:  9 kB\n"), None);
    }
}
