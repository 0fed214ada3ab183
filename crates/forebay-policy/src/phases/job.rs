//! One HPC job of this node: what it declared, what was learnt of it, and its phase under way.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::bursts::Burst;
use super::predict::{BELIEVED, Predictor, WINDOW};
use super::{Alone, BYTES_MAX, LONGEST_NS, Line};
use crate::machine::Nanos;

/// Longest name of a job in bytes.
const NAME_MAX: usize = 128;

/// Limit on what a phase may take beyond its time alone: a hundred times, in thousandths.
const ALLOWANCE_MAX_PERMILLE: u32 = 100_000;

/// Limit on the processes of a job.
const WEIGHT_MAX: u32 = 10_000_000;

/// Number of phases that are expected of a job with a rhythm.
const PREDICTED_PHASES: u32 = 8;

/// Phases of an earlier run that count; the predictor remembers no more.
pub const EARLIER_MAX: usize = WINDOW;

/// Added to times for the predictor, so that phases of an earlier run have a place before the first
/// one of this run.
const CLOCK_NS: u64 = 2 * LONGEST_NS;

/// Number of predicted phases in a row that do not come, after which nothing is expected any more.
const MISSED_MAX: u8 = 3;

/// What a program declares of its job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    /// For people; programs of one user that declare the same name are one job.
    pub name: String,
    /// User id; the agent fills it in.
    pub user: u32,
    /// How much longer than alone a phase may take, in thousandths.
    pub allowance_permille: u32,
    /// Its weight where phases share the file system: its processes.
    pub weight: u32,
    /// Whether its steps wait for those of other jobs, under `cluster.access`.
    pub shares: bool,
    /// I/O time of a phase alone in ns; 0: to be learnt.
    pub io_ns: u64,
    /// Compute time between phases in ns; the first phase is expected after as long.
    pub compute_ns: u64,
    /// Number of phases that it will have; 0: unknown.
    pub phases: u32,
    /// Phases of an earlier run, in their order; their times are relative to each other only.
    #[serde(deserialize_with = "few")]
    pub earlier: Vec<Burst>,
}

/// Limit on the phases of an earlier run in a message, more than are ever declared, so that it
/// cannot make its reader hold more.
const DECODED_MAX: usize = 16 * EARLIER_MAX;

fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Burst>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Burst>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("phases of an earlier run")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut bursts: A) -> Result<Vec<Burst>, A::Error> {
            let mut few = Vec::new();
            while let Some(burst) = bursts.next_element()? {
                if few.len() == DECODED_MAX {
                    return Err(A::Error::custom("too many phases of an earlier run"));
                }
                few.push(burst);
            }
            Ok(few)
        }
    }
    from.deserialize_seq(Few)
}

/// Why a program's request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The declaration is impossible.
    Invalid(&'static str),
    /// This user, or all users together, have too many jobs.
    TooMany(&'static str),
    /// No job was opened on the connection.
    NoJob,
    /// A phase is under way.
    InPhase,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Invalid(why) | Refused::TooMany(why) => why,
            Refused::NoJob => "no HPC job was opened on this connection",
            Refused::InPhase => "an I/O phase of this job is under way; end it first",
        })
    }
}

impl Declared {
    /// Checks whether the declaration is possible.
    ///
    /// # Errors
    /// If it is not; says what is wrong with it.
    pub fn check(&self) -> Result<(), Refused> {
        let fails = [
            (self.name.is_empty() || self.name.len() > NAME_MAX, "an HPC job needs a name of 1 to 128 bytes"),
            (self.name.chars().any(char::is_control), "the name of an HPC job has no control characters"),
            (
                self.allowance_permille > ALLOWANCE_MAX_PERMILLE,
                "a phase may be allowed at most a hundred times longer",
            ),
            (self.weight > WEIGHT_MAX, "an HPC job has at most ten million processes"),
            (self.io_ns.max(self.compute_ns) > LONGEST_NS, "I/O and compute times are at most 30 days"),
            (self.earlier.len() > EARLIER_MAX, "an HPC job has at most 24 phases of an earlier run"),
            (
                !self.earlier.iter().all(|b| b.start_ns <= b.end_ns && b.end_ns <= LONGEST_NS)
                    || !self.earlier.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns),
                "phases of an earlier run follow each other, within 30 days",
            ),
        ];
        match fails.iter().find(|(fails, _)| *fails) {
            Some((_, why)) => Err(Refused::Invalid(why)),
            None => Ok(()),
        }
    }

    /// Returns whether this is the job `name` of `user`.
    pub(super) fn is_same_job(&self, user: u32, name: &str) -> bool {
        self.user == user && self.name == name
    }

    /// Returns `alone_ns` and what the phase is allowed beyond it.
    pub(super) fn allowed_ns(&self, alone_ns: u64) -> u64 {
        let more = u128::from(alone_ns) * u128::from(self.allowance_permille) / 1000;
        alone_ns.saturating_add(more.min(u128::from(LONGEST_NS)) as u64)
    }

    /// Returns the time alone of a phase that has to be done after `deadline_ns`.
    fn alone_of(&self, deadline_ns: u64) -> u64 {
        (u128::from(deadline_ns) * 1000 / (1000 + u128::from(self.allowance_permille))) as u64
    }
}

/// The expected next phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// When the next begins.
    pub next_at: Nanos,
    /// I/O time alone in ns.
    pub io_ns: u64,
    /// Compute time between phases in ns.
    pub compute_ns: u64,
    /// Number of phases that are expected.
    pub phases: u32,
}

/// A job of this node.
pub(super) struct Job {
    pub declared: Declared,
    pub alone: Alone,
    pub phase: Option<Phase>,
    pub expected: Option<Expected>,
    predictor: Predictor,
    /// Whether the predictor knows an earlier run, and no phase of this one.
    resumes: bool,
    /// Until when the predicted phase should have begun, and how many did not come.
    pub overdue_at: Option<Nanos>,
    missed: u8,
    /// Whether it reports progress.
    pub reports: bool,
    /// Phases that have ended, and of those: in time, late, cut off.
    pub ended: u32,
    pub in_time: u32,
    pub late: u32,
    pub cut_off: u32,
    /// Bytes that the last phase that ended has moved.
    pub last_bytes: u64,
}

/// A phase under way.
pub(super) struct Phase {
    pub line: Line,
    pub is_behind: bool,
    /// Whether other nodes and the coordinator are notified of it.
    pub counts: bool,
    /// Whether the program has declared it; otherwise it was observed.
    pub is_declared: bool,
    /// Whether it was cut off; later reports of it change nothing.
    pub is_over: bool,
    /// Whether another job's phase has slowed it down.
    pub is_disturbed: bool,
    /// Bytes that agents have read from the file system meanwhile.
    pub beside_bytes: u64,
    /// When its progress was last reported to the coordinator.
    pub reported: Nanos,
}

impl Job {
    pub fn new(declared: Declared) -> Self {
        let mut alone = Alone::default();
        if let Some(usual) = usual(&declared.earlier) {
            alone.observe(usual.bytes.min(BYTES_MAX), usual.length_ns(), true);
        }
        Job {
            alone,
            predictor: Predictor::from_bursts(&declared.earlier),
            resumes: !declared.earlier.is_empty(),
            declared,
            phase: None,
            expected: None,
            overdue_at: None,
            missed: 0,
            reports: false,
            ended: 0,
            in_time: 0,
            late: 0,
            cut_off: 0,
            last_bytes: 0,
        }
    }

    /// Predicts the next phase after one has ended, unless the program has declared them.
    pub fn predict_after(&mut self, began: Nanos, ended: Nanos, bytes: u64) -> Option<Expected> {
        let burst = Burst { start_ns: began.0 + CLOCK_NS, end_ns: ended.0 + CLOCK_NS, bytes };
        if core::mem::take(&mut self.resumes) {
            self.predictor.resume(burst.start_ns);
        }
        self.predictor.burst(&burst);
        self.missed = 0;
        self.predict(ended)
    }

    /// Returns what is expected after a predicted phase has not come: nothing, once several have
    /// not come.
    pub fn predict_again(&mut self, now: Nanos) -> Expected {
        self.missed += 1;
        let again = (self.missed < MISSED_MAX).then(|| self.predict(now)).flatten();
        if again.is_none() {
            self.overdue_at = None;
        }
        again.unwrap_or(Expected { next_at: now, io_ns: 0, compute_ns: 0, phases: 0 })
    }

    fn predict(&mut self, now: Nanos) -> Option<Expected> {
        if self.declared.phases > 0 {
            return None;
        }
        let next = self.predictor.next(now.0 + CLOCK_NS).filter(|next| next.confidence >= BELIEVED)?;
        let (start_ns, earliest_ns) = (next.start_ns - CLOCK_NS, next.earliest_ns - CLOCK_NS);
        let io_ns = self.alone.time_ns(next.bytes).unwrap_or(next.length_ns);
        // It may come as much later as it may come earlier, and a moment is left for the report.
        let guard_ns = start_ns.saturating_sub(earliest_ns);
        self.overdue_at = Some(Nanos(start_ns) + guard_ns + next.period_ns / 10);
        Some(Expected {
            next_at: Nanos(earliest_ns),
            io_ns,
            compute_ns: next.period_ns.saturating_sub(next.length_ns),
            phases: PREDICTED_PHASES,
        })
    }

    /// Returns the line of a phase of `bytes` (0: unknown) with `deadline_ns` (0: as the job
    /// allows).
    pub fn line(&self, now: Nanos, bytes: u64, deadline_ns: u64) -> Line {
        let bytes = bytes.min(BYTES_MAX);
        let declared = Some(self.declared.io_ns).filter(|ns| *ns > 0);
        let learnt = self.alone.time_ns(bytes);
        // A bound promises nothing: prefetches beside the phase would hide its time alone.
        let is_bound = self.alone.is_bound() && declared.is_none();
        let known = if self.alone.is_bound() { declared.or(learnt) } else { learnt.or(declared) };
        let given = Some(deadline_ns.min(LONGEST_NS)).filter(|ns| *ns > 0);
        // A deadline implies the time alone, if nothing else does.
        let alone_ns = known.or(given.map(|ns| self.declared.alone_of(ns)));
        let allowed_ns = |ns| if is_bound { ns } else { self.declared.allowed_ns(ns) };
        let lasts_ns = given.or(alone_ns.map(allowed_ns));
        Line::new(now, bytes, alone_ns, lasts_ns.map(|ns| now + ns), self.reports)
    }
}

/// Returns the phase of median speed: a disturbed one is too slow, and one absorbed by a cache is
/// too fast.
fn usual(earlier: &[Burst]) -> Option<Burst> {
    let mut phases: Vec<Burst> = earlier.iter().copied().filter(|b| b.length_ns() > 0).collect();
    let rate = |burst: &Burst| burst.bytes as f64 / burst.length_ns() as f64;
    phases.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    phases.get(phases.len() / 2).copied()
}

impl Phase {
    /// Returns whether it is under way, and others have to heed it.
    pub fn is_live(&self) -> bool {
        self.counts && !self.is_over
    }
}
