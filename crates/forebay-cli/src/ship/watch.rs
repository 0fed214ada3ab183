//! How the storage daemon of this server fares: what the kernel counts of its threads and disks.
//!
//! Each thread has the time that it ran, the time that it waited for a processor, and how often it
//! got one (`/proc/PID/task/TID/schedstat`), a disk the requests that it has completed and their
//! times (`/proc/diskstats`), and a group of version 2 the time that it was stalled by I/O
//! (`io.pressure`). A sample is what they have grown by since the last one.

use forebay_policy::isolation::{Event, Sample};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often new processes of the daemon are looked for.
const LOOK: Duration = Duration::from_secs(2);

/// A disk that hangs counts as one with at least this many requests: fewer say nothing about a
/// disk.
const HANGING_MIN: u64 = 4;

/// A daemon and its disks.
#[derive(Debug)]
pub struct Watch {
    /// Names of the daemon's processes, as `ps` shows them.
    names: Vec<String>,
    /// Names of disks in `/proc/diskstats`; none for all.
    disks: Vec<String>,
    processes: Vec<u32>,
    looked: Option<Instant>,
    last: Option<(Instant, Counted)>,
}

/// What the kernel has counted.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    /// Nanoseconds run and waited, and number of runs, by process and thread.
    threads: BTreeMap<(u32, u32), [u64; 3]>,
    /// Microseconds of stalls, by group.
    stalls: BTreeMap<PathBuf, u64>,
    disks: BTreeMap<String, Disk>,
}

/// Counters of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Disk {
    requests: u64,
    /// Sum over requests.
    time_ms: u64,
    /// Number of requests in progress (queued or being served) times the time that they were.
    queue_ms: u64,
    /// Requests that are in progress now.
    waiting: u64,
}

impl Watch {
    /// A watch of the daemon whose processes have one of these names.
    pub fn new(names: &[String], disks: &[String]) -> Self {
        // A volume's path in `/dev/mapper` is a link to the disk that is counted.
        let device = |disk: &String| fs::canonicalize(disk).unwrap_or_else(|_| disk.into());
        let disks = disks.iter().filter_map(|disk| Some(device(disk).file_name()?.to_str()?.to_owned()));
        Watch {
            names: names.iter().map(|name| name.chars().take(15).collect()).collect(),
            disks: disks.collect(),
            processes: Vec::new(),
            looked: None,
            last: None,
        }
    }

    /// What the machine is to hear; `None` for the first look, which has nothing to compare with.
    pub fn look(&mut self) -> Option<Event> {
        let now = Instant::now();
        if self.looked.is_none_or(|at| now.duration_since(at) >= LOOK) {
            self.processes = processes_called(&self.names);
            self.looked = Some(now);
        }
        let counted = self.count();
        if counted.threads.is_empty() {
            self.last = None;
            return Some(Event::Unreadable);
        }
        let last = self.last.replace((now, counted));
        let ((before, old), (_, new)) = (last?, self.last.as_ref()?);
        Some(Event::Sample(sample(&old, new, now.duration_since(before))))
    }

    fn count(&self) -> Counted {
        let mut counted = Counted::default();
        for pid in &self.processes {
            for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
                let numbers: Vec<u64> =
                    text.split_whitespace().map_while(|number| number.parse().ok()).collect();
                let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
                if let (Some(thread), Some(counts)) = (thread, numbers.first_chunk()) {
                    counted.threads.insert((*pid, thread), *counts);
                }
            }
            if let Some((group, stall_us)) = stalls_of(*pid) {
                counted.stalls.insert(group, stall_us);
            }
        }
        let disks = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        counted.disks = parse_disks(&disks, |name| match self.disks.is_empty() {
            true => Path::new("/sys/block").join(name).join("device").exists(),
            false => self.disks.iter().any(|disk| disk == name),
        });
        counted
    }
}

fn sample(old: &Counted, new: &Counted, period: Duration) -> Sample {
    let mut sample = Sample { period_ns: period.as_nanos() as u64, ..Sample::default() };
    for (thread, counts) in &new.threads {
        // All that a new thread has run, it has run since the last look.
        let before = old.threads.get(thread).copied().unwrap_or_default();
        sample.ran_ns += counts[0].saturating_sub(before[0]);
        sample.waited_ns += counts[1].saturating_sub(before[1]);
        sample.runs += counts[2].saturating_sub(before[2]);
    }
    for (group, stall_us) in &new.stalls {
        let grown = old.stalls.get(group).map_or(0, |before| stall_us.saturating_sub(*before));
        sample.stalled_ns = sample.stalled_ns.max(grown * 1000);
    }
    let period_ms = period.as_millis() as u64;
    let grown = |name: &String, disk: &Disk| {
        let before = old.disks.get(name).copied().unwrap_or(*disk);
        let requests = disk.requests.saturating_sub(before.requests);
        let waiting = before.waiting.min(disk.waiting);
        if requests == 0 && waiting > 0 {
            // It hangs: it completes nothing, and what it is late with is not counted yet.
            let (requests, time_ms) = (waiting.max(HANGING_MIN), waiting.max(HANGING_MIN) * period_ms);
            return Disk { requests, time_ms, queue_ms: waiting * period_ms, waiting };
        }
        Disk {
            requests,
            time_ms: disk.time_ms.saturating_sub(before.time_ms),
            queue_ms: disk.queue_ms.saturating_sub(before.queue_ms),
            waiting,
        }
    };
    let slowest = new.disks.iter().map(|(name, disk)| grown(name, disk));
    if let Some(disk) = slowest.max_by_key(|disk| (disk.queue_ms, disk.time_ms)) {
        sample.disk_requests = disk.requests;
        sample.disk_time_ns = disk.time_ms * 1_000_000;
        sample.disk_queue = disk.queue_ms as f64 / (period.as_secs_f64() * 1e3).max(1.0);
    }
    sample
}

/// Processes with one of these names: those of this host's network, or, where none is, of the whole
/// machine. A daemon in a container may have a network of its own.
fn processes_called(names: &[String]) -> Vec<u32> {
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network("self");
    let mut found: Vec<(u32, bool)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if names.iter().any(|wanted| wanted == name.trim_end()) {
            found.push((pid, network(&pid.to_string()) == own));
        }
    }
    let here = found.iter().any(|(_, is_here)| *is_here);
    found.into_iter().filter(|(_, is_here)| *is_here || !here).map(|(pid, _)| pid).collect()
}

/// The group of version 2 of a process, unless it is the outermost, and the time for which some of
/// its processes were stalled by I/O.
fn stalls_of(pid: u32) -> Option<(PathBuf, u64)> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let name = groups.lines().find_map(|line| line.strip_prefix("0::/")).filter(|name| !name.is_empty())?;
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let group = roots.iter().map(|root| root.join(name)).find(|group| group.join("io.pressure").exists())?;
    let stalls = fs::read_to_string(group.join("io.pressure")).ok()?;
    Some((group, parse_pressure(&stalls)?))
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`
fn parse_pressure(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("some ")?.rsplit_once("total=")?.1.parse().ok())
}

fn parse_disks(text: &str, is_watched: impl Fn(&str) -> bool) -> BTreeMap<String, Disk> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next()?.to_owned();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let at = |index: usize| numbers.get(index).copied();
        let disk =
            Disk { requests: at(0)? + at(4)?, time_ms: at(3)? + at(7)?, queue_ms: at(10)?, waiting: at(8)? };
        is_watched(&name).then_some((name, disk))
    };
    text.lines().filter_map(of_line).collect()
}

/// Whether the kernel counts the waits of threads.
pub fn is_counted() -> bool {
    fs::read_to_string("/proc/self/schedstat").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::isolation::{Config, Isolation, Reason};
    use forebay_policy::machine::{Machine, Nanos};

    #[test]
    fn a_sample_is_what_the_counters_have_grown_by() {
        let counted = |ran, waited, disk| Counted {
            threads: [((1, 1), [ran, waited, ran / 10]), ((1, 2), [7, 7, 7])].into(),
            stalls: [(PathBuf::from("/g"), waited)].into(),
            disks: [("sda".to_owned(), disk)].into(),
        };
        let old = counted(100, 10, Disk { requests: 5, time_ms: 50, queue_ms: 500, waiting: 2 });
        let mut new = counted(400, 40, Disk { requests: 15, time_ms: 150, queue_ms: 1500, waiting: 2 });
        new.threads.insert((2, 3), [1000, 100, 5]);
        let sample = sample(&old, &new, Duration::from_millis(250));
        let expected = Sample {
            period_ns: 250_000_000,
            ran_ns: 1300,
            waited_ns: 130,
            runs: 35,
            stalled_ns: 30_000,
            disk_requests: 10,
            disk_time_ns: 100_000_000,
            disk_queue: 4.0,
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn a_disk_that_hangs_is_slow() {
        let hung = Disk { requests: 5, time_ms: 50, queue_ms: 500, waiting: 3 };
        let busy = Disk { requests: 7, time_ms: 70, queue_ms: 700, waiting: 0 };
        let new = Disk { requests: 9, time_ms: 80, queue_ms: 701, waiting: 1 };
        let disks = |busy| [("sda".to_owned(), hung), ("sdb".to_owned(), busy)].into();
        let (before, now) = (
            Counted { disks: disks(busy), ..Counted::default() },
            Counted { disks: disks(new), ..Counted::default() },
        );
        let sample = sample(&before, &now, Duration::from_millis(250));
        assert_eq!(sample.disk_queue, 3.0);
        let (mut machine, mut actions) = (Isolation::new(Config::default()), Vec::new());
        let calm = Sample { period_ns: 250_000_000, ran_ns: 100_000_000, ..Sample::default() };
        for turn in 0..20 {
            machine.handle(Nanos(turn * calm.period_ns), Event::Sample(calm), &mut actions);
        }
        machine.handle(Nanos(20 * calm.period_ns), Event::Sample(sample), &mut actions);
        assert_eq!(actions.last().map(|action| action.why), Some(Reason::Disks), "{actions:?}");
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let text = " 254 0 vda 119015 10468 5949802 189499 65740 63224 25088504 119768 3 23964 312569 12483 32 39\n\
                    \x20  7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n   8 0 cut 1 2\n";
        let disks = parse_disks(text, |name| name != "loop0");
        let vda = Disk { requests: 184_755, time_ms: 309_267, queue_ms: 312_569, waiting: 3 };
        assert_eq!(disks, [("vda".to_owned(), vda)].into());
        let pressure = "some avg10=0.00 avg60=0.12 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!((parse_pressure(pressure), parse_pressure("")), (Some(1234), None));
    }

    #[test]
    fn this_process_is_found_by_its_name_and_has_run() {
        let own = fs::read_to_string("/proc/self/comm").unwrap().trim_end().to_owned();
        let mut watch = Watch::new(&[own], &[]);
        assert_eq!(watch.look(), None);
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {}
        match watch.look() {
            Some(Event::Sample(sample)) => assert!(sample.ran_ns > 1_000_000, "{sample:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(Watch::new(&["no-such-daemon".into()], &[]).look(), Some(Event::Unreadable));
    }
}
