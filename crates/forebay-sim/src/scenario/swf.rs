//! Logs of batch systems in the Standard Workload Format of the Parallel Workloads Archive.
//!
//! A line has 18 numbers, -1 for what is not known; lines that begin with `;` are comments. Of a
//! job its start (submission and wait), its run time and its processors are used. Jobs that never
//! ran, or whose processors are not known, are left out.
//!
//! Some logs have a job that was interrupted in several lines: one of status 0 or 1 for all of it,
//! and one of status 2 to 4 for each part, with the same number. The parts are skipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::ns;
use super::reader::Section;
use crate::error::{Error, Result};

/// Names of the fields, as the format has them.
const FIELDS: [&str; 18] = [
    "job number",
    "submit time",
    "wait time",
    "run time",
    "number of allocated processors",
    "average CPU time used",
    "used memory",
    "requested number of processors",
    "requested time",
    "requested memory",
    "status",
    "user ID",
    "group ID",
    "executable number",
    "queue number",
    "partition number",
    "preceding job number",
    "think time from preceding job",
];
const NUMBER: usize = 0;
const SUBMIT: usize = 1;
const WAIT: usize = 2;
const RUN: usize = 3;
const ALLOCATED: usize = 4;
const REQUESTED: usize = 7;
const STATUS: usize = 10;
/// An upper bound that only catches slips of the pen: 30 years, or as many processors.
const MOST: f64 = 1e9;
/// Each costs memory.
const MAX_JOBS: u64 = 1_000_000;

/// A job of a log that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogJob {
    /// Its number.
    pub number: u64,
    /// When it started, in ns from the first start in the log.
    pub starts_ns: u64,
    /// How long it ran, in ns.
    pub run_ns: u64,
    /// Its processors.
    pub processors: u32,
}

/// The jobs of the log that a section names.
pub fn jobs(s: &Section<'_>) -> Result<Vec<LogJob>> {
    let path = s.beside(&s.text("swf", None)?);
    let most = s.whole("jobs", 1, MAX_JOBS, Some(MAX_JOBS))?;
    let rest = if s.has("jobs") { Rest::Ignored } else { Rest::Refused };
    // Comments may be in any encoding.
    let bytes = fs::read(&path).map_err(Error::io("read the log", &path))?;
    let mut jobs = parse(&path, &String::from_utf8_lossy(&bytes), most as usize, rest)?;
    let first_ns = jobs.iter().map(|job| job.starts_ns).min().unwrap_or(0);
    jobs.iter_mut().for_each(|job| job.starts_ns -= first_ns);
    Ok(jobs)
}

/// What becomes of jobs beyond the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The scenario asks for the first ones.
    Ignored,
    /// The scenario asks for all.
    Refused,
}

/// The first `most` jobs of a log that ran, with starts as the log has them.
fn parse(path: &Path, text: &str, most: usize, rest: Rest) -> Result<Vec<LogJob>> {
    let mut jobs = Vec::new();
    let mut numbers = BTreeSet::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        let problem = |problem| Error::Trace { file: path.into(), line: i + 1, problem };
        let Some(job) = job(line).map_err(problem)? else { continue };
        if !numbers.insert(job.number) {
            return Err(problem(format!("field 1 (job number) = {}: an earlier job has it", job.number)));
        }
        if jobs.len() == most {
            return Err(problem(format!(
                "more than {most} jobs of the log ran: set 'jobs' to take the first ones"
            )));
        }
        jobs.push(job);
        if jobs.len() == most && rest == Rest::Ignored {
            break;
        }
    }
    if jobs.is_empty() {
        let problem = "no job in it ran".into();
        return Err(Error::Trace { file: path.into(), line: 1, problem });
    }
    Ok(jobs)
}

/// The job of a line, if it ran.
fn job(line: &str) -> std::result::Result<Option<LogJob>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.len() != FIELDS.len() {
        return Err(format!(
            "a job has 18 fields in the Standard Workload Format, and this line has {}",
            words.len()
        ));
    }
    let mut fields = [0.0; FIELDS.len()];
    for (i, word) in words.iter().enumerate() {
        let number = word.parse::<f64>().ok().filter(|n| (-1.0..=f64::MAX).contains(n));
        fields[i] = number.ok_or_else(|| wrong(i, word, "a number from 0, or -1, is needed"))?;
    }
    for i in [NUMBER, SUBMIT, WAIT, RUN, ALLOCATED, REQUESTED] {
        if fields[i] > MOST {
            return Err(wrong(i, words[i], "at most 1000000000 is allowed"));
        }
    }
    for i in [NUMBER, SUBMIT] {
        if fields[i] < 0.0 {
            return Err(wrong(i, words[i], "it has to be known"));
        }
    }
    let processors = if fields[ALLOCATED] > 0.0 { fields[ALLOCATED] } else { fields[REQUESTED] };
    let is_part = (2.0..=4.0).contains(&fields[STATUS]);
    let run_ns = ns(fields[RUN].max(0.0));
    let did_run = run_ns > 0 && processors >= 1.0 && !is_part;
    Ok(did_run.then(|| LogJob {
        number: fields[NUMBER] as u64,
        starts_ns: ns(fields[SUBMIT] + fields[WAIT].max(0.0)),
        run_ns,
        processors: processors as u32,
    }))
}

fn wrong(field: usize, value: &str, needed: &str) -> String {
    format!("field {} ({}) = {value}: {needed}", field + 1, FIELDS[field])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: &str = "7 100 20 3600 16 -1 -1 32 -1 -1 1 3 1 -1 1 -1 -1 -1";

    fn message(text: &str) -> String {
        parse(Path::new("a.swf"), text, 10, Rest::Ignored).expect_err("it is wrong").to_string()
    }

    #[test]
    fn jobs_that_ran_are_read() {
        let never_ran = "8 110 -1 -1 -1 -1 -1 4 -1 -1 5 3 1 -1 1 -1 -1 -1";
        let as_requested = "9 130 -1 60.5 -1 -1 -1 4 -1 -1 1 3 1 -1 1 -1 -1 -1";
        let text = format!("; Version: 2.2\n\n{LINE}\n{never_ran}\n  {as_requested}\n");
        let s = 1_000_000_000;
        let job = |number, starts_s: u64, run_ns, processors| LogJob {
            number,
            starts_ns: starts_s * s,
            run_ns,
            processors,
        };
        let jobs = [job(7, 120, 3600 * s, 16), job(9, 130, 60_500_000_000, 4)];
        let parse = |most, rest| parse(Path::new("a.swf"), &text, most, rest);
        assert_eq!(parse(10, Rest::Refused).expect("it is well formed"), jobs);
        assert_eq!(parse(2, Rest::Refused).expect("it is well formed"), jobs);
        assert_eq!(parse(1, Rest::Ignored).expect("it is well formed"), jobs[..1]);
        assert_eq!(
            parse(1, Rest::Refused).expect_err("there are two").to_string(),
            "a.swf:5: more than 1 jobs of the log ran: set 'jobs' to take the first ones"
        );
    }

    /// A job of two parts, as logs of systems that suspend jobs have it.
    #[test]
    fn parts_of_a_job_are_skipped() {
        let of = |status: &str| LINE.replacen(" 1 3 1 -1 1", &format!(" {status} 3 1 -1 1"), 1);
        let text = ["1", "2", "3", "2", "4"].map(of).join("\n");
        let jobs = parse(Path::new("a.swf"), &text, 10, Rest::Refused).expect("it is well formed");
        assert_eq!(jobs.iter().map(|job| job.run_ns).collect::<Vec<_>>(), [3600 * 1_000_000_000]);
        assert_eq!(message(&of("3")), "a.swf:1: no job in it ran");
        for status in ["0", "1", "5", "-1"] {
            let jobs = parse(Path::new("a.swf"), &of(status), 10, Rest::Refused);
            assert_eq!(jobs.expect("it is well formed").len(), 1, "{status}");
        }
    }

    /// 0.4 ns are no time that the simulator has.
    #[test]
    fn a_job_that_ran_for_less_than_a_nanosecond_did_not_run() {
        assert_eq!(message(&LINE.replace("3600", "4e-10")), "a.swf:1: no job in it ran");
        let text = LINE.replace("3600", "1e-9");
        let jobs = parse(Path::new("a.swf"), &text, 10, Rest::Refused).expect("it is well formed");
        assert_eq!(jobs[0].run_ns, 1);
    }

    #[test]
    fn refusals_name_line_and_field() {
        assert_eq!(
            message("; c\n1 2 3"),
            "a.swf:2: a job has 18 fields in the Standard Workload Format, and this line has 3"
        );
        assert_eq!(
            message(&LINE.replace("3600", "1h")),
            "a.swf:1: field 4 (run time) = 1h: a number from 0, or -1, is needed"
        );
        for wrong in ["nan", "inf", "-2", "1e999"] {
            let got = message(&LINE.replace("3600", wrong));
            assert!(got.starts_with("a.swf:1: field 4 (run time)"), "{got}");
        }
        assert_eq!(
            message(&LINE.replace(" 100 ", " -1 ")),
            "a.swf:1: field 2 (submit time) = -1: it has to be known"
        );
        assert_eq!(
            message(&LINE.replace(" 16 ", " 1e10 ")),
            "a.swf:1: field 5 (number of allocated processors) = 1e10: at most 1000000000 is allowed"
        );
        assert_eq!(
            message(&format!("{LINE}\n{LINE}")),
            "a.swf:2: field 1 (job number) = 7: an earlier job has it"
        );
        assert_eq!(message("; nothing\n"), "a.swf:1: no job in it ran");
    }

    /// A line as logs have them, and the job that it is if it ran.
    fn line() -> impl Strategy<Value = (String, Option<LogJob>)> {
        let time = || prop_oneof![1 => Just(-1i64), 1 => Just(0i64), 6 => 1i64..1_000_000];
        let processors = || prop_oneof![Just(-1i64), 1i64..10_000];
        let fields = (1u64..1_000_000_000, 0i64..1_000_000_000, time(), time(), processors(), processors());
        (fields, -1i64..=5).prop_map(|((number, submit, wait, run, allocated, requested), status)| {
            let words = [submit, wait, run, allocated, -1, -1, requested, -1, -1, status];
            let words: Vec<String> = words.iter().map(i64::to_string).collect();
            let processors = if allocated > 0 { allocated } else { requested };
            let ran = run > 0 && processors > 0 && !(2..=4).contains(&status);
            let job = LogJob {
                number,
                starts_ns: (submit + wait.max(0)) as u64 * 1_000_000_000,
                run_ns: run.max(0) as u64 * 1_000_000_000,
                processors: processors.max(0) as u32,
            };
            (format!("{number} {} 3 1 -1 1 -1 -1 -1", words.join(" ")), ran.then_some(job))
        })
    }

    proptest! {
        /// Every job that ran, in the order of the log.
        #[test]
        fn a_log_is_read_as_it_is_written(lines in prop::collection::vec(line(), 0..20)) {
            let text: Vec<&str> = lines.iter().map(|(text, _)| text.as_str()).collect();
            let jobs: Vec<LogJob> = lines.iter().filter_map(|(_, job)| *job).collect();
            let numbers: BTreeSet<u64> = jobs.iter().map(|job| job.number).collect();
            let got = parse(Path::new("a.swf"), &text.join("\n"), 20, Rest::Refused);
            match jobs.is_empty() || numbers.len() < jobs.len() {
                true => prop_assert!(got.is_err()),
                false => prop_assert_eq!(got.expect("it is well formed"), jobs),
            }
        }

        /// Whatever the file is: jobs, or one line that names it.
        #[test]
        fn any_text_is_read_or_refused(
            lines in prop::collection::vec(prop_oneof![
                8 => line().prop_map(|(text, _)| text),
                1 => "[ -~]{0,40}",
                1 => prop::collection::vec(prop_oneof![Just("-1".to_owned()), "[0-9]{1,12}", "[0-9.e+-]{1,6}"], 17..20)
                    .prop_map(|words| words.join(" ")),
            ], 0..6)
        ) {
            match parse(Path::new("a.swf"), &lines.join("\n"), 10, Rest::Refused) {
                Ok(jobs) => prop_assert!(jobs.iter().all(|job| job.run_ns > 0 && job.processors > 0)),
                Err(e) => {
                    let text = e.to_string();
                    prop_assert!(text.starts_with("a.swf:") && !text.contains('\n'), "{}", text);
                }
            }
        }
    }
}
