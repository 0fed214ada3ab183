//! What a log says about its job, read once for the many scenarios that name the log: each point of
//! a sweep is a scenario of its own, and reading a log takes up to a minute.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::error::Result;

/// An I/O phase of the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Begin, from the job's start.
    pub begin_s: f64,
    /// End, from the job's start.
    pub end_s: f64,
    /// Bytes of all processes.
    pub bytes: f64,
}

/// What a log says about its job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Number of processes.
    pub processes: u32,
    /// Phases in order, without overlap; at least one.
    pub phases: Vec<Phase>,
}

thread_local! {
    /// Jobs by log and what is wanted of it, while this thread reads one scenario after the other.
    static READ: RefCell<Option<BTreeMap<String, Job>>> = const { RefCell::new(None) };
}

/// Does `work`; the scenarios that it reads in this thread read each log once.
pub fn once<T>(work: impl FnOnce() -> T) -> T {
    /// Forgets the logs, even if `work` panics.
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            READ.set(None);
        }
    }
    let _forget = Forget;
    READ.set(Some(BTreeMap::new()));
    work()
}

/// The job of a log, which `key` names.
///
/// # Errors
/// The errors of `read`.
pub fn job(key: String, read: impl FnOnce() -> Result<Job>) -> Result<Job> {
    if let Some(job) = READ.with_borrow(|read| read.as_ref()?.get(&key).cloned()) {
        return Ok(job);
    }
    let job = read()?;
    READ.with_borrow_mut(|read| read.as_mut().map(|read| read.insert(key, job.clone())));
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many times the log was read.
    fn reads() -> u32 {
        let mut reads = 0;
        for _ in 0..3 {
            let read = || {
                reads += 1;
                Ok(Job { processes: 4, phases: Vec::new() })
            };
            assert_eq!(job("a".into(), read).expect("it is read").processes, 4);
        }
        reads
    }

    #[test]
    fn a_log_is_read_once_while_many_scenarios_are() {
        assert_eq!((once(reads), reads()), (1, 3));
    }
}
