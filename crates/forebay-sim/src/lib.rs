//! A deterministic, event-driven simulator of a cluster that shares storage.
//!
//! It holds the *physics* (who gets how much bandwidth, when a transfer ends) and the *workloads*
//! (when jobs arrive and what they ask for). It decides nothing: every decision comes from a
//! machine of `forebay-policy`, driven here with virtual time exactly as the daemons drive it with
//! the real clock.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`queue`] | the order of events: integer nanoseconds, ties by sequence number |
//! | [`event_loop`] | the loop, and the [`event_loop::World`] that a scenario implements |
//! | [`maxmin`] | weighted max-min sharing of flows over several resources, such as links |
//! | [`pace`] | flows that slow each other down by interference factors |
//! | [`driver`] | drives one policy machine and records what it received and what it decided |
//! | [`trace`] | the record of a run: JSON lines with a schema version |
//! | [`arrivals`] | when the next phase of a job begins |
//! | [`colocate::knowledge`] | what planners know about the phases of HPC jobs |
//! | [`batch`] | a batch queue: who gets nodes and room in burst buffers, and when |
//! | [`broadcast`] | many nodes that read one file at the same time |
//! | [`burst`] | jobs that write their steps to shared burst buffer nodes |
//! | [`cluster`] | nodes that run Spark's tasks before a file system of several servers |
//! | [`colocate`] | HPC jobs beside Big Data jobs whose waves are prefetched |
//! | [`facility`] | thousands of nodes and jobs over weeks, by the phase |
//! | [`memory`] | a node whose tier gives way to compute |
//! | [`waste`] | nodes that fail, and jobs that write checkpoints to survive it |
//! | [`world`] | all of these at the same time, except for the factors of `colocate` |
//! | [`kinds`] | what commands need to know about the kinds of scenarios |
//! | [`study`] | many runs of a scenario: policies, values of keys, seeds |
//! | [`record`] | a record of a run, or of a live daemon, line by line |
//! | [`site`] | a scenario of a site from what was recorded and measured there |
//! | [`random`] | random systems, on which policies are compared |
//! | [`estimate`] | confidence intervals, and whether a difference is significant |
//! | [`parallel`] | independent runs in several threads |
//! | [`cancel`] | stops runs that nobody waits for any more |
//! | [`reproduce`] | the papers' tables and figures, one file per paper |
//! | [`figure`] | a figure and the data behind it |
//! | [`table`], [`csv`] | tables for spreadsheets and programs |
//! | [`report`], [`plot`] | Markdown with every number beside the published one; SVG figures |
//!
//! Why not SimGrid or CODES: they have their own schedulers and their own language, and a policy
//! written twice is two policies. The price is that this simulator has to be validated by itself,
//! which its tests do against queueing theory.

pub mod arrivals;
pub mod batch;
pub mod broadcast;
pub mod burst;
pub mod cancel;
pub mod cli;
pub mod cluster;
pub mod colocate;
pub mod csv;
pub mod driver;
pub mod error;
pub mod estimate;
pub mod event_loop;
pub mod facility;
pub mod figure;
pub mod kinds;
pub mod maxmin;
pub mod memory;
pub mod pace;
pub mod parallel;
pub mod plot;
pub mod queue;
pub mod random;
pub mod record;
pub mod report;
pub mod reproduce;
pub mod scenario;
pub mod site;
pub mod study;
pub mod table;
pub mod waste;
pub mod world;
pub use forebay_trace as trace;

/// How long `bytes` take at `rate_bytes_per_s`, rounded up to whole nanoseconds; `None` if they
/// never arrive.
///
/// Rounding up keeps the promise that no byte moves faster than its bandwidth; the error is below a
/// nanosecond per transfer.
pub fn transfer_ns(bytes: f64, rate_bytes_per_s: f64) -> Option<u64> {
    if bytes <= 0.0 {
        return Some(0);
    }
    let nanos = (bytes / rate_bytes_per_s * 1e9).ceil();
    (nanos.is_finite() && nanos < u64::MAX as f64).then_some(nanos as u64)
}
