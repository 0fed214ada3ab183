//! Loading files into the tier, with progress reported to a Python function.

use crate::convert::PathArg;
use crate::error::tier_error;
use forebay_client::Load;
use forebay_wire::LoadProgress;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two calls of the progress function, and longest delay of Ctrl-C.
const STEP: Duration = Duration::from_millis(200);

/// Loads every path that `paths` gives. An exception, from the progress function, the iterator or
/// Ctrl-C, drops the load, which cancels it.
pub fn run<'py>(
    client: &forebay_client::Client,
    paths: &Bound<'py, PyAny>,
    rate_bytes_per_s: u64,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = paths.py();
    let started = Instant::now();
    let load = py
        .detach(|| client.load(rate_bytes_per_s))
        .map_err(|e| tier_error(&e, "load", None, client.socket()))?;
    let mut job =
        Job { load, socket: client.socket(), added: 0, bytes: 0, latest: LoadProgress::default(), progress };
    let mut reported = started;
    for path in paths.try_iter()? {
        job.add(py, path?.extract::<PathArg>()?)?;
        if reported.elapsed() >= STEP {
            job.step(py, Duration::ZERO)?;
            reported = Instant::now();
        }
    }
    py.detach(|| job.load.flush()).map_err(|e| tier_error(&e, "load", None, client.socket()))?;
    loop {
        job.step(py, STEP)?;
        if job.latest.idle {
            return job.report(py, started.elapsed());
        }
    }
}

struct Job<'a, 'py> {
    load: Load,
    socket: Option<&'a Path>,
    added: u64,
    bytes: u64,
    latest: LoadProgress,
    progress: Option<&'a Bound<'py, PyAny>>,
}

impl Job<'_, '_> {
    fn add(&mut self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        let load = &mut self.load;
        let added = py.detach(|| -> io::Result<u64> {
            load.add(&path.0)?;
            Ok(std::fs::metadata(&path.0).map_or(0, |m| m.len()))
        });
        self.bytes += added.map_err(|e| tier_error(&e, "load", None, self.socket))?;
        self.added += 1;
        Ok(())
    }

    /// Asks how far it is, reports to the caller, and lets Ctrl-C in.
    fn step(&mut self, py: Python<'_>, wait: Duration) -> PyResult<()> {
        py.check_signals()?;
        let load = &mut self.load;
        self.latest = py.detach(|| load.poll(wait)).map_err(|e| tier_error(&e, "load", None, self.socket))?;
        if let Some(progress) = self.progress {
            progress.call1((self.numbers(py)?,))?;
        }
        Ok(())
    }

    fn numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("files", self.added)?;
        dict.set_item("files_done", self.latest.files_done)?;
        dict.set_item("bytes", self.bytes)?;
        dict.set_item("bytes_fetched", self.latest.bytes_fetched)?;
        dict.set_item("bytes_resident", self.latest.bytes_resident)?;
        dict.set_item("waits_for", &self.latest.waits_for)?;
        Ok(dict)
    }

    fn report<'py>(&self, py: Python<'py>, elapsed: Duration) -> PyResult<Bound<'py, PyDict>> {
        let dict = self.numbers(py)?;
        dict.set_item("seconds", elapsed.as_secs_f64())?;
        let failures = self.load.failures().iter();
        let failures: Vec<_> =
            failures.map(|f| (f.path.clone().into_os_string(), f.errno, f.message.clone())).collect();
        dict.set_item("failures", failures)?;
        Ok(dict)
    }
}
