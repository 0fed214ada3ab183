//! Logs of Darshan, from which a job takes its I/O phases.
//!
//! Reads the text that `darshan-parser` and `darshan-dxt-parser` of Darshan 3 print (log format
//! 3.x); Darshan documents it, and it changes less than the binary format. A segment of DXT is one
//! read or write. Without segments, each record of a file gives two intervals, from its first read
//! to its last and from its first write to its last, and `--total` alone gives two for the job.
//! Intervals closer than a gap make up a phase.
//!
//! POSIX counts before MPI-IO, because most calls of MPI-IO reach POSIX and would count twice.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::logs::{self, Phase};
use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, ns};
use crate::arrivals::Arrivals;
use crate::error::{Error, Result};

pub use super::logs::Job;

/// Each interval costs memory.
const MAX_INTERVALS: usize = 10_000_000;
const MAX_PHASES: usize = 1_000_000;
const MAX_PROCESSES: u64 = 1_000_000_000;
/// Gap between two phases: pauses between two steps of one checkpoint are shorter, and pauses
/// between two checkpoints longer.
const GAP_S: f64 = 1.0;

const READ: usize = 0;
const WRITE: usize = 1;
/// Names of the modules in lines of counters, and before the names of counters and segments.
const MODULES: [&str; 2] = ["POSIX", "MPI-IO"];
const PREFIXES: [&str; 2] = ["POSIX", "MPIIO"];

/// Which bytes make up phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Bytes read and bytes written.
    All,
    /// Bytes written.
    Written,
}

impl Job {
    /// The job of the log that a section names.
    pub fn read(s: &Section<'_>, moved: Moved) -> Result<Self> {
        let path = s.beside(&s.text("darshan", None)?);
        let gap_s = s.number("gap_s", 0.0, MAX_S, Some(GAP_S))?;
        let mount = s.has("mount").then(|| s.text("mount", None)).transpose()?;
        let wanted = Wanted { mount, moved, gap_s };
        logs::job(format!("{path:?} {wanted:?}"), || {
            let file = File::open(&path).map_err(Error::io("read the log", &path))?;
            parse(&path, BufReader::new(file), &wanted)
        })
    }

    /// The job of the log at `path`, with all it reads and writes.
    ///
    /// # Errors
    /// If it is not a log, or has no phases.
    pub fn of_file(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("read the log", path))?;
        parse(path, BufReader::new(file), &Wanted::ALL)
    }

    /// Reads the job of a text, which errors call `name`.
    ///
    /// # Errors
    /// If it is not a log, or has no phases.
    pub fn of_text(name: &str, text: &str) -> Result<Self> {
        parse(Path::new(name), text.as_bytes(), &Wanted::ALL)
    }

    /// Mean bytes of a phase.
    pub fn mean_bytes(&self) -> f64 {
        self.phases.iter().map(|phase| phase.bytes).sum::<f64>() / self.phases.len() as f64
    }

    /// Compute before each phase, in ns.
    pub fn compute_ns(&self) -> Vec<u64> {
        let ends_s = [0.0].into_iter().chain(self.phases.iter().map(|phase| phase.end_s));
        self.phases.iter().zip(ends_s).map(|(phase, end_s)| ns((phase.begin_s - end_s).max(0.0))).collect()
    }

    /// The phases as recorded, each with its I/O time alone at a bandwidth, or without one.
    pub fn arrivals(&self, bytes_per_s: Option<f64>) -> Arrivals {
        let io_ns = |rate: f64| self.phases.iter().map(|p| ns(p.bytes / rate).max(1)).collect();
        Arrivals::Recorded {
            compute_ns: self.compute_ns(),
            io_ns: bytes_per_s.map(io_ns).unwrap_or_default(),
        }
    }

    /// Mean compute before a phase, in ns.
    pub fn mean_compute_ns(&self) -> u64 {
        let all = self.compute_ns();
        (all.iter().map(|ns| *ns as f64).sum::<f64>() / all.len() as f64) as u64
    }
}

/// What to read from a log.
#[derive(Debug)]
struct Wanted {
    /// Only files on this mount point.
    mount: Option<String>,
    moved: Moved,
    gap_s: f64,
}

/// A time in which bytes were read or written; times count from the start of the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// First byte.
    pub begin_s: f64,
    /// Last byte.
    pub end_s: f64,
    /// Bytes.
    pub bytes: f64,
}

/// What a record, or the totals of a module, say about reads and writes.
#[derive(Clone, Copy, Debug, Default)]
struct Access {
    /// Line of its first counter.
    line: usize,
    bytes: [f64; 2],
    begin_s: [Option<f64>; 2],
    end_s: [Option<f64>; 2],
}

/// A module: POSIX or MPI-IO.
#[derive(Default)]
struct Module {
    segments: Vec<Interval>,
    /// Records by rank and record id.
    records: BTreeMap<String, Access>,
    total: Access,
}

struct Reader<'a> {
    wanted: &'a Wanted,
    version_known: bool,
    processes: u32,
    /// Whether the following segments are of a wanted file.
    is_wanted: bool,
    modules: [Module; 2],
}

type Line<T> = std::result::Result<T, String>;

/// Every read and write of the log at `path`, in the order of their begins: of POSIX, or of MPI-IO
/// if POSIX has none.
///
/// # Errors
/// If it is not such a log, or if it has only counters, which do not say when within a file's life
/// its bytes moved.
pub fn segments(path: &Path) -> Result<Vec<Interval>> {
    let file = File::open(path).map_err(Error::io("read the log", path))?;
    let reader = read(path, BufReader::new(file), &Wanted::ALL)?;
    let mut segments = reader.modules.into_iter().map(|module| module.segments).find(|s| !s.is_empty());
    let Some(segments) = &mut segments else {
        let why = "it lists no reads and writes: run the job with DXT_ENABLE_IO_TRACE=1, and give the output of \
                   darshan-dxt-parser";
        return Err(Error::Trace { file: path.into(), line: 1, problem: why.into() });
    };
    segments.sort_by(|a, b| a.begin_s.total_cmp(&b.begin_s));
    Ok(std::mem::take(segments))
}

fn parse(path: &Path, text: impl BufRead, wanted: &Wanted) -> Result<Job> {
    let problem = |line: usize, problem| Error::Trace { file: path.into(), line, problem };
    let reader = read(path, text, wanted)?;
    let processes = reader.processes;
    let intervals = reader.intervals().map_err(|(line, why)| problem(line, why))?;
    let phases = phases(intervals, wanted.gap_s);
    match phases.len() {
        0 => Err(problem(1, wanted.nothing())),
        n if n > MAX_PHASES => {
            let why =
                format!("it has {n} phases and at most {MAX_PHASES} are allowed: a longer gap_s is needed");
            Err(problem(1, why))
        }
        _ => Ok(Job { processes, phases }),
    }
}

/// All lines of a log.
fn read<'a>(path: &Path, text: impl BufRead, wanted: &'a Wanted) -> Result<Reader<'a>> {
    let problem = |line: usize, problem| Error::Trace { file: path.into(), line, problem };
    let modules = <[Module; 2]>::default();
    let mut reader = Reader { wanted, version_known: false, processes: 1, is_wanted: true, modules };
    for (i, line) in text.split(b'\n').enumerate() {
        let line = line.map_err(Error::io("read the log", path))?;
        // Names of files may be in any encoding.
        let line = String::from_utf8_lossy(&line);
        reader.line(i + 1, line.trim_end_matches('\r')).map_err(|why| problem(i + 1, why))?;
    }
    if !reader.version_known {
        let why =
            "it has no line '# darshan log version': give the output of darshan-parser or darshan-dxt-parser";
        return Err(problem(1, why.into()));
    }
    Ok(reader)
}

impl Wanted {
    const ALL: Self = Wanted { mount: None, moved: Moved::All, gap_s: GAP_S };

    fn nothing(&self) -> String {
        let what = if self.moved == Moved::All { "read or write" } else { "write" };
        let place =
            self.mount.as_ref().map_or(String::new(), |mount| format!(" on the mount point {mount} (mount)"));
        let hint = if self.mount.is_some() { "; the output of --total names no mount points" } else { "" };
        format!("no {what} of POSIX or MPI-IO{place} is in it{hint}")
    }

    fn has_mount(&self, mount: &str) -> bool {
        self.mount.as_ref().is_none_or(|wanted| wanted == mount)
    }

    fn has(&self, direction: usize) -> bool {
        direction == WRITE || self.moved == Moved::All
    }
}

impl Reader<'_> {
    fn line(&mut self, number: usize, line: &str) -> Line<()> {
        let text = line.trim_start();
        if let Some(comment) = text.strip_prefix('#') {
            return self.comment(comment.trim_start());
        }
        match text {
            "" => Ok(()),
            _ if text.starts_with("X_") => self.segment(text),
            _ if text.starts_with("total_") => self.total(number, text),
            _ if line.contains('\t') => self.counter(number, line),
            _ => Err("this is no line of darshan-parser or darshan-dxt-parser".into()),
        }
    }

    fn comment(&mut self, text: &str) -> Line<()> {
        if let Some(version) = text.strip_prefix("darshan log version: ") {
            if !version.starts_with("3.") {
                return Err(format!(
                    "its log format is {}, and 3.x is needed: darshan-convert converts it",
                    version.trim()
                ));
            }
            self.version_known = true;
        } else if let Some(count) = text.strip_prefix("nprocs: ") {
            let count = count.trim();
            let number = count.parse().ok().filter(|n| (1..=MAX_PROCESSES).contains(n));
            self.processes = number.ok_or_else(|| {
                format!("nprocs = {count}: a whole number from 1 to {MAX_PROCESSES} is needed")
            })? as u32;
        } else if let Some(place) = text.strip_prefix("DXT, mnt_pt: ") {
            self.is_wanted = self.wanted.has_mount(place.split(", fs_type:").next().unwrap_or(place));
        } else if text.starts_with("DXT, file_id:") {
            // Its mount point follows, where Darshan knows it.
            self.is_wanted = self.wanted.mount.is_none();
        }
        Ok(())
    }

    /// `X_POSIX RANK read|write SEGMENT OFFSET LENGTH START END ...`
    fn segment(&mut self, text: &str) -> Line<()> {
        let words: Vec<&str> = text.split_whitespace().take(8).collect();
        let [module, _, direction, _, _, length, begin, end] = words[..] else {
            return Err(format!("a segment of DXT has at least 8 columns, and this one has {}", words.len()));
        };
        let Some(module) = PREFIXES.iter().position(|name| module.strip_prefix("X_") == Some(name)) else {
            return Ok(());
        };
        let direction = match direction {
            "read" => READ,
            "write" => WRITE,
            other => return Err(format!("Wt/Rd = {other}: read or write is needed")),
        };
        let bytes = number("Length", length, 0.0, MAX_GB * GB)?;
        let begin_s = number("Start(s)", begin, 0.0, MAX_S)?;
        let end_s = number("End(s)", end, begin_s, MAX_S)?;
        if self.is_wanted && self.wanted.has(direction) && bytes > 0.0 {
            let segments = &mut self.modules[module].segments;
            segments.push(Interval { begin_s, end_s, bytes });
            if segments.len() > MAX_INTERVALS {
                return Err(format!("it has more than {MAX_INTERVALS} segments"));
            }
        }
        Ok(())
    }

    /// `MODULE, RANK, RECORD, COUNTER, VALUE, FILE, MOUNT, TYPE`, with tabs between.
    fn counter(&mut self, line_number: usize, line: &str) -> Line<()> {
        let words: Vec<&str> = line.splitn(6, '\t').collect();
        let [module, rank, record, counter, value, rest] = words[..] else {
            return Err(format!(
                "a counter of darshan-parser has 8 columns, and this line has {}",
                words.len()
            ));
        };
        let Some(module) = MODULES.iter().position(|name| *name == module) else { return Ok(()) };
        let Some(mount) = rest.rsplit('\t').nth(1) else {
            return Err("a counter of darshan-parser has 8 columns, and this line has fewer".into());
        };
        if !self.wanted.has_mount(mount) {
            return Ok(());
        }
        let Some(name) = counter.strip_prefix(PREFIXES[module]) else { return Ok(()) };
        let records = &mut self.modules[module].records;
        let access = records
            .entry(format!("{rank} {record}"))
            .or_insert(Access { line: line_number, ..Access::default() });
        access.set(counter, name, value)?;
        match records.len() > MAX_INTERVALS {
            true => Err(format!("it has more than {MAX_INTERVALS} records")),
            false => Ok(()),
        }
    }

    /// `total_COUNTER: VALUE`
    fn total(&mut self, line: usize, text: &str) -> Line<()> {
        let (counter, value) = text
            .split_once(':')
            .ok_or("a total of darshan-parser is 'total_COUNTER: VALUE', and this line has no colon")?;
        for (module, prefix) in PREFIXES.iter().enumerate() {
            let name = counter.strip_prefix("total_").and_then(|name| name.strip_prefix(prefix));
            if let Some(name) = name {
                let total = &mut self.modules[module].total;
                total.line = line;
                // Totals do not show where files are.
                if self.wanted.mount.is_none() {
                    total.set(counter, name, value.trim())?;
                }
            }
        }
        Ok(())
    }

    /// The intervals of the most exact source that has any.
    fn intervals(self) -> std::result::Result<Vec<Interval>, (usize, String)> {
        let Reader { wanted, modules, .. } = self;
        let (mut records, mut totals) = (Vec::new(), Vec::new());
        for Module { segments, records: of_files, total } in modules {
            if !segments.is_empty() {
                return Ok(segments);
            }
            records.push(of_files);
            totals.push(total);
        }
        for of_files in records {
            let found = intervals(of_files.into_values(), wanted)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let [first, second] = [totals.remove(0), totals.remove(0)];
        let found = intervals([first], wanted)?;
        if found.is_empty() { intervals([second], wanted) } else { Ok(found) }
    }
}

impl Access {
    /// Sets what the counter says, if it is one of bytes or moments; `name` is the part after the
    /// module's name.
    fn set(&mut self, counter: &str, name: &str, value: &str) -> Line<()> {
        // -1 marks what Darshan could not measure.
        let known = |most: f64| number(counter, value, -1.0, most).map(|n| (n >= 0.0).then_some(n));
        let moment = |place: &mut Option<f64>| known(MAX_S).map(|moment| *place = moment);
        match name {
            "_BYTES_READ" => self.bytes[READ] = known(MAX_GB * GB)?.unwrap_or(0.0),
            "_BYTES_WRITTEN" => self.bytes[WRITE] = known(MAX_GB * GB)?.unwrap_or(0.0),
            "_F_READ_START_TIMESTAMP" => moment(&mut self.begin_s[READ])?,
            "_F_READ_END_TIMESTAMP" => moment(&mut self.end_s[READ])?,
            "_F_WRITE_START_TIMESTAMP" => moment(&mut self.begin_s[WRITE])?,
            "_F_WRITE_END_TIMESTAMP" => moment(&mut self.end_s[WRITE])?,
            _ => {}
        }
        Ok(())
    }
}

/// Intervals of the reads and of the writes of each.
fn intervals(
    all: impl IntoIterator<Item = Access>,
    wanted: &Wanted,
) -> std::result::Result<Vec<Interval>, (usize, String)> {
    let mut intervals = Vec::new();
    for access in all {
        for direction in [READ, WRITE].into_iter().filter(|d| wanted.has(*d)) {
            let bytes = access.bytes[direction];
            if bytes <= 0.0 {
                continue;
            }
            let times = access.begin_s[direction].zip(access.end_s[direction]);
            let Some((begin_s, end_s)) = times.filter(|(begin_s, end_s)| begin_s <= end_s) else {
                let what = ["READ", "WRITE"][direction];
                let why = format!(
                    "the record that begins here moved {bytes} bytes, and its F_{what}_START_TIMESTAMP and F_{what}_END_TIMESTAMP do not say when"
                );
                return Err((access.line, why));
            };
            intervals.push(Interval { begin_s, end_s, bytes });
        }
    }
    Ok(intervals)
}

/// Intervals that overlap, or are closer than the gap, as one phase.
fn phases(mut intervals: Vec<Interval>, gap_s: f64) -> Vec<Phase> {
    intervals.sort_by(|a, b| a.begin_s.total_cmp(&b.begin_s));
    let mut phases: Vec<Phase> = Vec::new();
    for Interval { begin_s, end_s, bytes } in intervals {
        match phases.last_mut().filter(|phase| begin_s <= phase.end_s + gap_s) {
            Some(phase) => {
                phase.end_s = phase.end_s.max(end_s);
                phase.bytes += bytes;
            }
            None => phases.push(Phase { begin_s, end_s, bytes }),
        }
    }
    phases
}

fn number(what: &str, text: &str, min: f64, max: f64) -> Line<f64> {
    let number = text.parse::<f64>().ok().filter(|n| (min..=max).contains(n));
    number.ok_or_else(|| format!("{what} = {text}: a number from {min} to {max} is needed"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "# darshan log version: 3.41\n# exe: ./ior -t 1m\n# nprocs: 4\n# run time: 61.0000\n";

    fn job(text: &str, mount: Option<&str>, moved: Moved) -> Result<Job> {
        let wanted = Wanted { mount: mount.map(String::from), moved, gap_s: 1.0 };
        parse(Path::new("a.txt"), text.as_bytes(), &wanted)
    }

    fn phases_of(text: &str) -> Vec<(f64, f64, f64)> {
        let job = job(text, None, Moved::All).expect("it is well formed");
        job.phases.iter().map(|p| (p.begin_s, p.end_s, p.bytes)).collect()
    }

    fn message(text: &str) -> String {
        job(text, None, Moved::All).expect_err("it is wrong").to_string()
    }

    /// The counters of one record, as `darshan-parser` prints them.
    fn record(module: &str, id: u32, mount: &str, written: (u64, f64, f64)) -> String {
        let prefix = module.replace('-', "");
        let counter = |name: &str, value: String| {
            format!("{module}\t0\t{id}\t{prefix}_{name}\t{value}\t{mount}/file {id}\t{mount}\tlustre\n")
        };
        let (bytes, begin_s, end_s) = written;
        [
            counter("OPENS", "1".into()),
            counter("BYTES_READ", "0".into()),
            counter("BYTES_WRITTEN", bytes.to_string()),
            counter("F_READ_START_TIMESTAMP", "0.000000".into()),
            counter("F_WRITE_START_TIMESTAMP", format!("{begin_s:.6}")),
            counter("F_READ_END_TIMESTAMP", "0.000000".into()),
            counter("F_WRITE_END_TIMESTAMP", format!("{end_s:.6}")),
        ]
        .concat()
    }

    #[test]
    fn segments_closer_than_the_gap_are_one_phase() {
        let text = format!(
            "{HEAD}
# DXT, file_id: 1, file_name: /scratch/a
# DXT, rank: 0, hostname: n0
# DXT, mnt_pt: /scratch, fs_type: lustre
# Module    Rank  Wt/Rd  Segment          Offset          Length    Start(s)      End(s)   [OST]   Pthread-ID
 X_POSIX       0  write        0               0             100     10.0000     12.0000   [1] [2]   7
 X_POSIX       0  write        1             100             100     30.0000     31.0000   [1]   7
 X_POSIX       0   read        0               0               0      5.0000      5.0000   [1]   7
 X_POSIX       1   read        0               0              50     12.9000     14.0000
 X_MPIIO       1  write        0               0            4000      1.0000     40.0000
"
        );
        assert_eq!(phases_of(&text), [(10.0, 14.0, 150.0), (30.0, 31.0, 100.0)]);
        let written = job(&text, Some("/scratch"), Moved::Written).expect("it is well formed");
        assert_eq!(written.processes, 4);
        assert_eq!(written.phases[0], Phase { begin_s: 10.0, end_s: 12.0, bytes: 100.0 });
        assert_eq!(written.compute_ns(), [10_000_000_000, 18_000_000_000]);
        let elsewhere = job(&text, Some("/home"), Moved::All).expect_err("nothing is there");
        assert_eq!(
            elsewhere.to_string(),
            "a.txt:1: no read or write of POSIX or MPI-IO on the mount point /home (mount) is in it; the output of \
             --total names no mount points"
        );
    }

    #[test]
    fn without_segments_records_show_when_bytes_moved() {
        let posix =
            record("POSIX", 1, "/scratch", (800, 20.0, 22.5)) + &record("POSIX", 2, "/home", (5, 1.0, 2.0));
        let mpi = record("MPI-IO", 1, "/scratch", (800, 19.0, 23.0));
        let text = format!(
            "{HEAD}{posix}{mpi}LUSTRE\t-1\t1\tLUSTRE_STRIPE_SIZE\t1048576\t/scratch/a\t/scratch\tlustre\n"
        );
        assert_eq!(phases_of(&text), [(1.0, 2.0, 5.0), (20.0, 22.5, 800.0)]);
        let scratch = job(&text, Some("/scratch"), Moved::All).expect("it is well formed");
        assert_eq!(scratch.phases.len(), 1);
        assert_eq!(phases_of(&format!("{HEAD}{mpi}")), [(19.0, 23.0, 800.0)]);
    }

    #[test]
    fn totals_alone_give_one_phase_of_each_kind() {
        let text = format!(
            "{HEAD}total_POSIX_OPENS: 5\ntotal_POSIX_BYTES_READ: 10\ntotal_POSIX_BYTES_WRITTEN: 20\n\
             total_POSIX_F_READ_START_TIMESTAMP: 1.5\ntotal_POSIX_F_READ_END_TIMESTAMP: 2.0\n\
             total_POSIX_F_WRITE_START_TIMESTAMP: 50.0\ntotal_POSIX_F_WRITE_END_TIMESTAMP: 60.0\n\
             total_STDIO_BYTES_WRITTEN: 7\n"
        );
        assert_eq!(phases_of(&text), [(1.5, 2.0, 10.0), (50.0, 60.0, 20.0)]);
    }

    #[test]
    fn refusals_name_the_line_and_what_is_needed() {
        let segment = |words: &str| message(&format!("{HEAD} X_POSIX {words}\n"));
        assert_eq!(
            segment("0 write 0 0"),
            "a.txt:5: a segment of DXT has at least 8 columns, and this one has 5"
        );
        assert_eq!(segment("0 append 0 0 1 1 2"), "a.txt:5: Wt/Rd = append: read or write is needed");
        assert_eq!(segment("0 read 0 0 1 3 2"), "a.txt:5: End(s) = 2: a number from 3 to 1000000 is needed");
        assert_eq!(
            segment("0 read 0 0 -5 1 2"),
            "a.txt:5: Length = -5: a number from 0 to 1000000000000000000 is needed"
        );
        assert_eq!(
            message("# darshan log version: 2.06\n"),
            "a.txt:1: its log format is 2.06, and 3.x is needed: darshan-convert converts it"
        );
        assert!(message("# nprocs: 4\n").starts_with("a.txt:1: it has no line '# darshan log version'"));
        assert_eq!(
            message(&HEAD.replace("nprocs: 4", "nprocs: many")),
            "a.txt:3: nprocs = many: a whole number from 1 to 1000000000 is needed"
        );
        assert_eq!(message(HEAD), "a.txt:1: no read or write of POSIX or MPI-IO is in it");
        assert_eq!(
            message(&format!("{HEAD}POSIX\t0\t1\tPOSIX_OPENS\n")),
            "a.txt:5: a counter of darshan-parser has 8 columns, and this line has 4"
        );
        assert_eq!(
            message(&format!("{HEAD}hello\n")),
            "a.txt:5: this is no line of darshan-parser or darshan-dxt-parser"
        );
        let unknown = record("POSIX", 1, "/scratch", (800, 20.0, 22.5)).replace("20.000000", "-1");
        assert!(
            message(&format!("{HEAD}{unknown}"))
                .starts_with("a.txt:5: the record that begins here moved 800 bytes")
        );
    }

    proptest! {
        /// Whatever the file is: phases in their order, or one line that names it.
        #[test]
        fn any_text_is_read_or_refused(
            lines in prop::collection::vec(prop_oneof![
                "[ -~\t]{0,40}",
                "# (darshan log version: 3\\.[0-9]|nprocs: [0-9]{1,3}|DXT, mnt_pt: /[a-z], fs_type: x)",
                "X_(POSIX|MPIIO) [0-9] (read|write) 0 0 [0-9]{1,9} [0-9]{1,3}\\.[0-9] [0-9]{1,4}(\\.[0-9])?",
                "(POSIX|MPI-IO)\t-?[0-9]\t[0-9]\t(POSIX|MPIIO)_(BYTES_READ|BYTES_WRITTEN|F_READ_START_TIMESTAMP|F_READ_END_TIMESTAMP)\t[0-9.e-]{1,6}\tf\t/m\tx",
                "total_POSIX_(BYTES_READ|F_READ_START_TIMESTAMP|F_READ_END_TIMESTAMP)[: ]{1,2}[0-9.-]{1,5}",
            ], 0..12),
            has_version in any::<bool>(),
        ) {
            let head = if has_version { HEAD } else { "" };
            match job(&(head.to_owned() + &lines.join("\n")), None, Moved::All) {
                Ok(job) => {
                    prop_assert!(!job.phases.is_empty() && job.processes > 0);
                    prop_assert!(job.phases.iter().all(|p| p.bytes > 0.0 && p.begin_s <= p.end_s));
                    prop_assert!(job.phases.windows(2).all(|p| p[0].end_s < p[1].begin_s));
                }
                Err(e) => {
                    let text = e.to_string();
                    prop_assert!(text.starts_with("a.txt:") && !text.contains('\n'), "{}", text);
                }
            }
        }
    }
}
