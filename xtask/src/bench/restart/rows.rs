//! Figures of deaths: from reports to a table, and what is aimed at.

use super::choice::{Boot, Cause, Driver, Mode, Way};
use std::fmt::Write;
use testbed::machine::field;

/// One death, as a guest saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    cause: &'static str,
    /// Nothing came for so long, in the guest's clock.
    outage_ms: u64,
    /// And from then on, if it was long enough for the guest to know.
    from_ms: Option<u64>,
    lost_connections: u64,
    pub wrong_bytes: u64,
    io_errors: u64,
    /// Segments of TCP that the guest sent again; of disks none is known.
    resent: Option<u64>,
    /// Of those, as many as had not come the first time.
    lost_segments: Option<u64>,
    /// How long the device took, by the log of the domain's kernel; nothing if it was not started again.
    reinit_ms: u64,
    /// How long nobody knew of it, by the daemon.
    noticed_ms: Option<u64>,
    /// What the daemon calls it.
    ended: String,
}

/// A datagram or a block of a disk, or a block of a stream: what was wrong of it nobody has counted.
const WRONG: u64 = 4096;

impl Crash {
    /// From a report of `restart.sh`; `None` if figures are missing. A guest that has seen no gap was without for less
    /// than `least_ms`, which it is taken for.
    pub fn parse(report: &str, least_ms: u64) -> Option<Self> {
        let (figures, said) = report.split_once('|')?;
        let number = |name: &str| field(figures, name).and_then(|value| value.parse::<u64>().ok());
        let has_gap = field(figures, "outage") != Some("none");
        let word = figures.split_whitespace().next()?;
        let cause = Cause::named(word)?.name();
        let is_twind = cause == Cause::Twind.name();
        Some(Self {
            cause,
            outage_ms: if has_gap { number("outage")? } else { least_ms },
            from_ms: if has_gap { Some(number("from")?) } else { None },
            lost_connections: number("lost")?,
            wrong_bytes: number("wrong")? * WRONG,
            io_errors: number("errors")?,
            resent: number("resent"),
            lost_segments: number("resent"),
            reinit_ms: if is_twind { 0 } else { number("reinit")? },
            ended: said.split_once(':').map_or("", |(ended, _)| ended).trim().into(),
            noticed_ms: said.split_once("noticed ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()),
        })
    }

    /// So many segments of the guest's came at the other end twice: nothing of them had been lost, but the answer was
    /// late.
    pub fn came_again(&mut self, count: u64) {
        self.lost_segments = self.resent.map(|resent| resent.saturating_sub(count));
    }

    /// When it was, for a picture.
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of days are far below 2^52")]
    pub fn begins_s(&self) -> Option<f64> {
        self.from_ms.map(|from| from as f64 / 1000.0)
    }

    /// What it took beside the device.
    fn beyond_ms(&self) -> u64 {
        self.outage_ms.saturating_sub(self.reinit_ms)
    }
}

/// Who runs with interrupts off is noticed after so many ms at most: `wedged-ms` is less.
const WEDGED_MS: u64 = 500;
/// `undrained-ms`, if nothing is said, of interfaces and of disks.
const UNDRAINED_MS: [u64; 2] = [10_000, 60_000];

/// For how many ms at most nobody is to know of what the daemon calls so, where a limit of the configuration decides
/// that, and guests have no answer meanwhile. With `overdue` they have some.
fn limit_ms(ended: &str, is_of_disks: bool) -> Option<u64> {
    match ended {
        "wedged" => Some(WEDGED_MS),
        "undrained" => Some(UNDRAINED_MS[usize::from(is_of_disks)]),
        _ => None,
    }
}

/// What is aimed at in a row, and what came of it.
struct Aim {
    what: &'static str,
    /// Nothing if it is not known.
    figure: Option<u64>,
    is_met: bool,
    aim: u64,
}

/// All deaths by one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    driver: Driver,
    mode: Mode,
    way: Way,
    cause: Cause,
    crashes: Vec<Crash>,
}

impl Row {
    pub fn new(boot: &Boot, cause: Cause, all: &[Crash]) -> Self {
        let crashes = all.iter().filter(|crash| crash.cause == cause.name()).cloned().collect();
        Self { driver: boot.driver, mode: boot.mode, way: boot.way, cause, crashes }
    }

    /// It died as often as was asked for, and nobody lost anything.
    pub fn is_whole(&self, wanted: u64) -> bool {
        self.crashes.len() as u64 == wanted && [self.lost(), self.wrong(), self.errors()] == [0; 3]
    }

    fn lost(&self) -> u64 {
        self.crashes.iter().map(|c| c.lost_connections).sum()
    }

    fn wrong(&self) -> u64 {
        self.crashes.iter().map(|c| c.wrong_bytes).sum()
    }

    fn errors(&self) -> u64 {
        self.crashes.iter().map(|c| c.io_errors).sum()
    }

    /// Of all deaths, if of each it is known.
    fn resent(&self) -> Option<u64> {
        self.crashes.iter().map(|c| c.resent).sum()
    }

    fn lost_segments(&self) -> Option<u64> {
        self.crashes.iter().map(|c| c.lost_segments).sum()
    }

    fn median(&self, figure: impl Fn(&Crash) -> u64) -> u64 {
        let mut all: Vec<u64> = self.crashes.iter().map(figure).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    }

    fn most(&self, figure: impl Fn(&Crash) -> u64) -> u64 {
        self.crashes.iter().map(figure).max().unwrap_or(0)
    }

    /// In the order of [`HEADER`].
    fn cells(&self) -> [String; 14] {
        [
            self.driver.device().into(),
            self.driver.name().into(),
            self.mode.name().into(),
            self.way.name().into(),
            self.cause.name().into(),
            self.crashes.len().to_string(),
            self.lost().to_string(),
            self.wrong().to_string(),
            self.errors().to_string(),
            self.median(|c| c.outage_ms).to_string(),
            self.most(|c| c.outage_ms).to_string(),
            self.median(|c| c.reinit_ms).to_string(),
            self.median(Crash::beyond_ms).to_string(),
            self.most(Crash::beyond_ms).to_string(),
        ]
    }

    /// Those that the guest's TCP has sent again, and of these the lost ones; nothing where that is not known.
    fn segments(&self) -> [String; 2] {
        [self.resent(), self.lost_segments()].map(|count| count.map_or(String::new(), |count| count.to_string()))
    }

    /// For so long, of the time beyond the device's own, a limit of the configuration let nobody know of it. Nothing
    /// where a twin is the way out: it may go on meanwhile, and nothing where the outage is shorter, so that this was
    /// no part of it.
    fn unknown_ms(&self, crash: &Crash) -> Option<u64> {
        let limit = limit_ms(&crash.ended, self.driver.disk().is_some()).filter(|_| self.mode == Mode::Vm)?;
        let noticed = crash.noticed_ms.filter(|noticed| *noticed <= crash.outage_ms)?;
        Some(noticed.min(limit))
    }

    /// What is beyond the device's own time, without the time that a limit of the configuration takes: that has an aim
    /// of its own.
    fn known_ms(&self, crash: &Crash) -> u64 {
        crash.beyond_ms().saturating_sub(self.unknown_ms(crash).unwrap_or(0))
    }

    /// The longest that is to be beyond the device's own time, if there is such an aim. Of disks it is the same
    /// whatever the way is.
    fn beyond_aim_ms(&self) -> Option<u64> {
        match (self.driver.disk().is_some(), self.way) {
            (_, Way::Kept) => None,
            (true, _) => Some(30),
            (false, Way::Standby | Way::Snapshot | Way::Turns) => Some(27),
            (false, Way::Fresh) => Some(3000),
        }
    }

    /// The longest that it is to be at all.
    fn outage_aim_ms(&self) -> Option<u64> {
        (self.way == Way::Kept).then_some(275)
    }

    /// The longest that nobody is to know of it.
    fn notice_aim_ms(&self) -> Option<u64> {
        match self.cause {
            Cause::Panic => Some(5),
            Cause::Wedged => Some(WEDGED_MS),
            _ => None,
        }
    }

    /// Each row has those that nothing is lost and that all deaths came to their end. What did not happen meets none.
    fn aims(&self, wanted: u64) -> Vec<Aim> {
        let count = self.crashes.len() as u64;
        let most = |what, figure, aim| Aim { what, figure: Some(figure), is_met: figure <= aim && count > 0, aim };
        let mut all = vec![
            Aim { what: "came back", figure: Some(count), is_met: count == wanted, aim: wanted },
            most("lost connections", self.lost(), 0),
            most("wrong bytes", self.wrong(), 0),
            most("I/O errors", self.errors(), 0),
        ];
        if let Some(aim) = self.beyond_aim_ms() {
            let is_limited = self.crashes.iter().any(|crash| self.unknown_ms(crash).is_some());
            let what = match is_limited {
                true => "ms beyond the device's own, after it was noticed",
                false => "ms beyond the device's own",
            };
            all.push(most(what, self.most(|crash| self.known_ms(crash)), aim));
        }
        if let Some(aim) = self.outage_aim_ms() {
            all.push(most("ms without an answer", self.most(|c| c.outage_ms), aim));
        }
        if self.cause == Cause::Planned && self.driver.disk().is_none() {
            let lost = self.lost_segments();
            all.push(Aim { what: "segments lost", figure: lost, is_met: lost == Some(0) && count > 0, aim: 0 });
        }
        if let Some(aim) = self.notice_aim_ms() {
            let known: Vec<u64> = self.crashes.iter().filter_map(|c| c.noticed_ms).collect();
            let figure = known.iter().copied().max();
            let is_met = known.len() == self.crashes.len() && figure.is_some_and(|figure| figure <= aim);
            all.push(Aim { what: "ms until it was noticed", figure, is_met, aim });
        }
        all
    }
}

const HEADER: &str =
    "device,driver,mode,way,cause,count,lost_connections,wrong_bytes,io_errors,outage_ms_median,outage_ms_max,\
                      reinit_ms_median,beyond_ms_median,beyond_ms_max";
/// Columns of [`HEADER`] that say which row it is.
const NAMES: usize = 5;

pub fn as_csv(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| row.cells().join(",") + "\n");
    std::iter::once(format!("{HEADER}\n")).chain(lines).collect()
}

/// Segments of TCP, in a file of their own.
pub fn segments_csv(rows: &[Row]) -> String {
    let line = |row: &Row| [&row.cells()[..NAMES], &row.segments()].concat().join(",") + "\n";
    let names: Vec<&str> = HEADER.split(',').take(NAMES).collect();
    let header = format!("{},resent_segments,lost_segments\n", names.join(","));
    std::iter::once(header).chain(rows.iter().map(line)).collect()
}

/// For people, with how long nobody knew, and how many of each row's aims are met. `known` is what is beyond without
/// the time that a limit of the configuration takes until it is noticed, where there is one.
pub fn as_text(rows: &[Row], wanted: u64) -> String {
    let mut out = String::from(
        "                                                         lost                        outage, ms     device  beyond, ms    noticed, ms   known, ms     segments      aims\n\
         device driver mode        way     cause     count  connections  bytes  I/O errors  median    most  median  median    most  median  most  median  most  resent  lost   met\n",
    );
    for row in rows {
        let [device, driver, mode, way, cause, count, lost, wrong, errors, outage, worst, reinit, beyond, furthest] =
            row.cells();
        let [resent, lost_segments] = row.segments();
        let dash = |figure: &String| if figure.is_empty() { "-".into() } else { figure.clone() };
        let two = |figure: &dyn Fn(&Crash) -> u64, is_known: bool| match is_known {
            true => [row.median(figure).to_string(), row.most(figure).to_string()],
            false => ["-".into(), "-".into()],
        };
        let has = |figure: &dyn Fn(&Crash) -> Option<u64>| row.crashes.iter().any(|crash| figure(crash).is_some());
        let [noticed, latest] = two(&|crash| crash.noticed_ms.unwrap_or(0), has(&|crash| crash.noticed_ms));
        let [known, longest] = two(&|crash| row.known_ms(crash), has(&|crash| row.unknown_ms(crash)));
        let aims = row.aims(wanted);
        let met = aims.iter().filter(|aim| aim.is_met).count();
        let _ = writeln!(
            out,
            "{device:6} {driver:6} {mode:11} {way:7} {cause:9} {count:>5}  {lost:>11}  {wrong:>5}  {errors:>10}  {outage:>6}  {worst:>6}  {reinit:>6}  {beyond:>6}  {furthest:>6}  {noticed:>6}  {latest:>4}  {known:>6}  {longest:>4}  {:>6}  {:>4}  {met:>2}/{}",
            dash(&resent),
            dash(&lost_segments),
            aims.len()
        );
    }
    out.push_str(
        "known: beyond, without the time until it was noticed, where a limit of the configuration decides that\n",
    );
    out
}

/// Which aims are missed, and how many there are.
pub fn aims(rows: &[Row], wanted: u64) -> String {
    let mut out = String::new();
    let (mut met, mut all) = (0, 0);
    for row in rows {
        for Aim { what, figure, is_met, aim } in row.aims(wanted) {
            all += 1;
            met += u64::from(is_met);
            if !is_met {
                let [_, driver, mode, way, cause, ..] = row.cells();
                let figure = figure.map_or("not known".into(), |figure| figure.to_string());
                let _ = writeln!(out, "missed: {driver} {mode} {way} {cause}, {what}: {figure}, aim {aim}");
            }
        }
    }
    let _ = writeln!(out, "{met} of {all} aims met");
    out
}

/// Seconds, and how many came in the tenth of a second from then on: lines of a start in ms and of counts.
pub fn arrivals<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for line in lines {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse::<f64>().ok());
        let Some(from) = numbers.next() else { continue };
        all.extend(numbers.zip(0..).map(|(count, n)| (from / 1000.0 + 0.1 * f64::from(n), count)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::choice::chosen;
    use super::*;

    const REPORT: &str =
        "panic outage=4100 from=12000 lost=0 wrong=0 errors=0 resent=5 reinit=2040 | panicked: noticed 4 ms, quarantined 9 ms";

    const LEAST: u64 = 10;

    fn row(words: &[&str], reports: &[&str]) -> Row {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let boot = chosen(&words).unwrap().remove(0);
        let crashes: Vec<Crash> = reports.iter().map(|report| Crash::parse(report, LEAST).unwrap()).collect();
        Row::new(&boot, boot.causes[0], &crashes)
    }

    #[test]
    fn a_report_has_all_figures_or_is_none() {
        let crash = Crash::parse(REPORT, LEAST).unwrap();
        assert_eq!((crash.outage_ms, crash.beyond_ms(), crash.noticed_ms), (4100, 2060, Some(4)));
        for bad in [
            "panic outage= from= lost=0 wrong=0 errors=0 reinit=2040 | x",
            "panic outage=1 from=none lost=0 wrong=0 errors=0 reinit=1 | x",
            "panic outage=1 from=1 lost=0 wrong=0 errors=0 reinit= | x",
            "burnt outage=1 from=1 lost=0 wrong=0 errors=0 reinit=1 | x",
            "panic outage=1 from=1 lost=0 wrong=0 errors=0 reinit=1",
        ] {
            assert_eq!(Crash::parse(bad, LEAST), None, "{bad}");
        }
        let twind = Crash::parse("twind outage=90 from=1 lost=0 wrong=0 errors=0 reinit= |", LEAST).unwrap();
        assert_eq!((twind.beyond_ms(), twind.noticed_ms), (90, None));
    }

    #[test]
    fn what_was_too_short_to_be_seen_is_taken_for_the_shortest_that_is() {
        let report = REPORT.replace("outage=4100 from=12000", "outage=none from=none").replace("errors=0", "errors=3");
        let crash = Crash::parse(&report, LEAST).unwrap();
        assert_eq!((crash.outage_ms, crash.begins_s(), crash.io_errors), (LEAST, None, 3));
        assert_eq!(Crash::parse(REPORT, LEAST).unwrap().begins_s(), Some(12.0));
    }

    #[test]
    fn the_csv_has_median_and_maximum() {
        let other = REPORT.replace("4100", "2000");
        let third = REPORT.replace("4100", "9000");
        let text = as_csv(&[row(&["e1000", "vm", "fresh", "panic"], &[REPORT, &other, &third])]);
        let (header, line) = text.split_once('\n').unwrap();
        assert_eq!(
            header,
            "device,driver,mode,way,cause,count,lost_connections,wrong_bytes,io_errors,outage_ms_median,outage_ms_max,\
             reinit_ms_median,beyond_ms_median,beyond_ms_max"
        );
        assert_eq!(line, "net,e1000,vm,fresh,panic,3,0,0,0,4100,9000,2040,2060,6960\n");
    }

    #[test]
    fn segments_are_in_a_file_of_their_own() {
        let mut net = row(&["e1000", "vm", "fresh", "panic"], &[REPORT, REPORT]);
        net.crashes[0].came_again(2);
        let disk = row(&["nvme", "fresh", "panic"], &[&REPORT.replace("resent=5", "resent=")]);
        assert_eq!(
            segments_csv(&[net, disk]),
            "device,driver,mode,way,cause,resent_segments,lost_segments\n\
             net,e1000,vm,fresh,panic,10,8\n\
             disk,nvme,vm,fresh,panic,,\n"
        );
    }

    #[test]
    fn aims_say_what_is_missed() {
        let fresh = row(&["e1000", "vm", "fresh", "panic"], &[REPORT]);
        assert_eq!(aims(std::slice::from_ref(&fresh), 1), "6 of 6 aims met\n");
        assert!(fresh.is_whole(1) && !fresh.is_whole(2), "all that was asked for");
        let standby =
            row(&["e1000", "vm", "standby", "panic"], &[&REPORT.replace("lost=0", "lost=2").replace("4 ms", "6 ms")]);
        assert!(!standby.is_whole(1));
        assert_eq!(
            aims(&[standby], 2),
            "missed: e1000 vm standby panic, came back: 1, aim 2\n\
             missed: e1000 vm standby panic, lost connections: 2, aim 0\n\
             missed: e1000 vm standby panic, ms beyond the device's own: 2060, aim 27\n\
             missed: e1000 vm standby panic, ms until it was noticed: 6, aim 5\n\
             2 of 6 aims met\n"
        );
        let report = REPORT.replace("panic", "planned");
        let mut planned = row(&["e1000", "vm", "fresh", "planned"], &[&report]);
        planned.crashes[0].came_again(3);
        assert_eq!(planned.lost_segments(), Some(2), "five were sent again, three of them had come");
        assert_eq!(
            aims(std::slice::from_ref(&planned), 1),
            "missed: e1000 vm fresh planned, segments lost: 2, aim 0\n5 of 6 aims met\n"
        );
        planned.crashes[0].came_again(6);
        assert_eq!(aims(&[planned], 1), "6 of 6 aims met\n");
        let unknown = row(&["e1000", "vm", "fresh", "planned"], &[&report.replace("resent=5", "resent=")]);
        assert_eq!(
            aims(&[unknown], 1),
            "missed: e1000 vm fresh planned, segments lost: not known, aim 0\n5 of 6 aims met\n"
        );
        let disk =
            row(&["nvme", "standby", "planned"], &[&report.replace("resent=5", "resent=").replace("4100", "2050")]);
        assert_eq!(aims(&[disk], 1), "5 of 5 aims met\n", "a disk has no segments");
        let kept = row(&["e1000", "vm", "kept", "panic"], &[REPORT]);
        assert_eq!(
            aims(&[kept], 1),
            "missed: e1000 vm kept panic, ms without an answer: 4100, aim 275\n5 of 6 aims met\n"
        );
        let none = row(&["nvme", "destroyed"], &[]);
        assert!(!none.is_whole(1));
        assert!(aims(&[none], 1).ends_with("0 of 5 aims met\n"), "what did not happen meets no aim");
        let none = row(&["e1000", "vm", "fresh", "panic"], &[]);
        assert!(aims(&[none], 1).contains("until it was noticed: not known, aim 5\n"));
    }

    const WEDGED: &str =
        "wedged outage=517 from=12000 lost=0 wrong=0 errors=0 resent= reinit=30 | wedged: noticed 465 ms, released 470 ms";

    #[test]
    fn what_a_limit_of_the_configuration_takes_until_it_is_noticed_has_an_aim_of_its_own() {
        let beyond = |report: &str| row(&["nvme", "turns", "wedged"], &[report]);
        assert_eq!(aims(&[beyond(WEDGED)], 1), "6 of 6 aims met\n", "517 - 30 - 465");
        let slow = beyond(&WEDGED.replace("517", "526"));
        assert_eq!(
            aims(std::slice::from_ref(&slow), 1),
            "missed: nvme vm turns wedged, ms beyond the device's own, after it was noticed: 31, aim 30\n5 of 6 aims met\n"
        );
        assert_eq!(slow.most(Crash::beyond_ms), 496, "what is in the file of figures is all of it");
        let late = beyond(&WEDGED.replace("465", "510").replace("517", "560"));
        assert_eq!(
            aims(&[late], 1),
            "missed: nvme vm turns wedged, ms until it was noticed: 510, aim 500\n5 of 6 aims met\n",
            "and what is over the limit is not taken off: 560 - 30 - 500"
        );
        let later = beyond(&WEDGED.replace("465", "510").replace("517", "561"));
        assert!(aims(&[later], 1).contains("after it was noticed: 31, aim 30\n"));
        let apart = beyond(&WEDGED.replace("outage=517", "outage=464"));
        assert!(
            aims(&[apart], 1).contains("ms beyond the device's own: 434, aim 30\n"),
            "it was no part of the outage"
        );
    }

    #[test]
    fn what_no_limit_decides_or_no_guest_has_waited_for_counts() {
        let said = |words: &[&str], report: &str| aims(&[row(words, &[report])], 1);
        let twin = said(&["e1000e", "twin-mirror", "turns", "wedged"], &WEDGED.replace("resent=", "resent=0"));
        assert!(twin.starts_with("missed: e1000e twin-mirror turns wedged, ms beyond the device's own: 487, aim 27\n"));
        for ended in ["panicked", "overdue", "dma-fault", "silent"] {
            let report = WEDGED.replace("wedged:", &format!("{ended}:")).replace("wedged outage", "wild outage");
            let said = said(&["nvme", "turns", "wild"], &report);
            assert!(
                said.starts_with("missed: nvme vm turns wild, ms beyond the device's own: 487, aim 30\n"),
                "{said}"
            );
        }
        let undrained =
            "wild outage=60065 from=1 lost=0 wrong=0 errors=0 resent= reinit=30 | undrained: noticed 60012 ms";
        assert!(said(&["nvme", "turns", "wild"], undrained).contains("after it was noticed: 35, aim 30\n"));
        let undrained =
            "wild outage=10037 from=1 lost=0 wrong=0 errors=0 resent=0 reinit=10 | undrained: noticed 10012 ms";
        assert_eq!(said(&["e1000e", "vm", "turns", "wild"], undrained), "5 of 5 aims met\n");
    }

    #[test]
    fn limits_are_the_daemons() {
        let usual = include_str!("../../../../tandemd/tandemd.toml");
        let of = |key: &str| -> u64 {
            let rest = usual.split_once(&format!("\n#{key} = ")).unwrap().1;
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        assert!(of("wedged-ms") < WEDGED_MS);
        assert_eq!(of("undrained-ms"), UNDRAINED_MS[0]);
        assert!(
            usual.contains("undrained-ms: so long it may answer nothing of what waits; a minute if nothing is said")
        );
    }

    #[test]
    fn each_way_of_a_disk_has_the_same_aim_and_kept_links_another() {
        let aim = |words: &[&str]| row(words, &[]).beyond_aim_ms();
        for way in ["fresh", "standby", "snapshot", "turns"] {
            for disk in ["nvme", "ahci"] {
                assert_eq!(aim(&[disk, way, "panic"]), Some(30), "{disk} {way}");
            }
            let net = if way == "fresh" { 3000 } else { 27 };
            assert_eq!(aim(&["e1000e", "vm", way, "panic"]), Some(net), "{way}");
        }
        assert_eq!(aim(&["e1000e", "vm", "kept", "panic"]), None);
        assert_eq!(row(&["e1000e", "vm", "kept", "panic"], &[]).outage_aim_ms(), Some(275));
    }

    #[test]
    fn the_table_says_how_many_aims_of_each_row_are_met() {
        let slow = row(&["nvme", "snapshot", "panic"], &[&REPORT.replace("resent=5", "resent=")]);
        let text = as_text(&[row(&["nvme", "turns", "wedged"], &[WEDGED]), slow], 1);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2][9..], ["517", "517", "30", "487", "487", "465", "465", "22", "22", "-", "-", "6/6"]);
        assert_eq!(lines[3][9..], ["4100", "4100", "2040", "2060", "2060", "4", "4", "-", "-", "-", "-", "5/6"]);
        assert_eq!(lines[1].len(), 22, "a word for each column: {:?}", lines[1]);
        assert!(text
            .lines()
            .skip(1)
            .take(3)
            .map(str::len)
            .all(|width| width.abs_diff(text.lines().next().unwrap().len()) < 3));
    }

    #[test]
    fn arrivals_are_in_seconds() {
        let all = arrivals(["4000 5 0 2", "nothing", "8000 7"].into_iter());
        let told: Vec<String> = all.iter().map(|(s, n)| format!("{s:.1} {n}")).collect();
        assert_eq!(told, ["4.0 5", "4.1 0", "4.2 2", "8.0 7"]);
    }
}
