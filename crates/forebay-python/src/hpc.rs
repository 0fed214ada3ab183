//! HPC jobs and their I/O phases.

use crate::client::Client;
use crate::error::{closed, tier_error};
use forebay_client::{HpcJob as Inner, HpcJobOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An HPC job, as one process of it reports it. Ends with `close()`, or with the process.
#[pyclass(module = "forebay._core", frozen)]
pub struct HpcJob {
    inner: Mutex<Option<Arc<Inner>>>,
}

/// A file, and perhaps the bytes that are written to it.
#[derive(FromPyObject)]
enum Target {
    Sized(PathBuf, u64),
    Whole(PathBuf),
}

impl Target {
    fn pair(self) -> (PathBuf, u64) {
        match self {
            Target::Sized(path, bytes) => (path, bytes),
            Target::Whole(path) => (path, 0),
        }
    }
}

/// Seconds of Python as a duration.
fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name}={value}: give seconds, 0 or more")))
}

impl HpcJob {
    fn call(
        &self,
        py: Python<'_>,
        what: &str,
        call: impl FnOnce(&Inner) -> io::Result<()> + Send,
    ) -> PyResult<()> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(inner) = inner else { return Err(closed("HPC job")) };
        py.detach(|| call(&inner)).map_err(|e| tier_error(&e, what, None, None))
    }
}

#[pymethods]
impl HpcJob {
    /// Opens the job `name` at this node's agent. `qos`: how much longer than alone a phase may
    /// take, 0.05 for 5 %. `processes`: its weight relative to other jobs. `share`: its phases wait
    /// for those of other jobs that share, as `cluster.access` says. `io_s`, `compute_s` and
    /// `phases`: what is known of its phases, 0 if nothing. OSError: no agent, or the agent
    /// refuses.
    #[new]
    #[pyo3(signature = (client, name, *, qos = 0.05, processes = 1, share = false, io_s = 0.0, compute_s = 0.0, phases = 0))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: &str,
        qos: f64,
        processes: u32,
        share: bool,
        io_s: f64,
        compute_s: f64,
        phases: u32,
    ) -> PyResult<Self> {
        if !(0.0..=100.0).contains(&qos) {
            return Err(PyValueError::new_err(format!("qos={qos}: give a share, 0.05 for 5 %")));
        }
        let options = HpcJobOptions {
            name: name.to_owned(),
            allowance_permille: (qos * 1000.0).round() as u32,
            processes,
            shares: share,
            io: seconds("io_s", io_s)?,
            compute: seconds("compute_s", compute_s)?,
            phases,
            earlier: Vec::new(),
        };
        let opened = py.detach(|| client.inner.open_hpc_job(&options));
        let inner = opened.map_err(|e| tier_error(&e, "open an HPC job", None, client.inner.socket()))?;
        Ok(HpcJob { inner: Mutex::new(Some(Arc::new(inner))) })
    }

    /// Notes that the next phases write to `files`, which exist: paths, or pairs of a path and the
    /// bytes that are written to it. A job that shares then waits only for jobs that write to the
    /// same servers; without files, or if the PFS does not report servers, for all. OSError: a file
    /// cannot be opened, or no agent.
    #[pyo3(signature = (files))]
    fn writes_to(&self, py: Python<'_>, files: Vec<Target>) -> PyResult<()> {
        let files: Vec<(PathBuf, u64)> = files.into_iter().map(Target::pair).collect();
        let files: Vec<(&Path, u64)> = files.iter().map(|(path, bytes)| (path.as_path(), *bytes)).collect();
        self.call(py, "report where an I/O phase writes", |job| job.writes_to(&files))
    }

    /// Begins a phase of `bytes` (0: unknown), to be over after `deadline_s` seconds (0: from the
    /// job's allowance and its earlier phases). OSError: a phase is under way, or no agent.
    #[pyo3(signature = (bytes = 0, deadline_s = 0.0))]
    fn phase_begin(&self, py: Python<'_>, bytes: u64, deadline_s: f64) -> PyResult<()> {
        let deadline = seconds("deadline_s", deadline_s)?;
        self.call(py, "begin an I/O phase", |job| job.phase_begin(bytes, deadline))
    }

    /// Reports that the phase has moved `bytes` since it began. OSError: the agent is gone.
    fn phase_progress(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.call(py, "report an I/O phase", |job| job.phase_progress(bytes))
    }

    /// Ends the phase. OSError: the agent is gone.
    fn phase_end(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, "end an I/O phase", Inner::phase_end)
    }

    /// Ends the job, and its phase. A second call does nothing.
    fn close(&self) {
        drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
