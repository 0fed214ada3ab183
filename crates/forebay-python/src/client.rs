//! A program's access to Forebay.

use crate::convert::{PathArg, counters, path_text, read_mode, write_mode};
use crate::error::{os_error, tier_error};
use crate::file::File;
use crate::load;
use crate::writer::Writer;
use forebay_client::{ClientConfig, Hint, WriteOptions};
use forebay_wire::{CachedFile, MountStatus, Status};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A program's access to Forebay: one session with the agent on this node, shared by threads and by
/// forked children.
///
/// `socket`: the agent's socket, or "none" to read the PFS only. `deadline_s`: seconds a read waits
/// for the agent before it reads the PFS itself. `trusted_uids`: users whose agents the client
/// trusts, besides root and the process's own. `quiet`: print nothing on stderr. Other values come
/// from the environment (FOREBAY_SOCKET, FOREBAY_DEADLINE_MS, FOREBAY_TRUST_UID, FOREBAY_QUIET) or
/// are the defaults. The client connects at its first request.
#[pyclass(frozen, module = "forebay._core")]
pub struct Client {
    pub(crate) inner: forebay_client::Client,
}

impl Client {
    /// Makes a request about one file, while other Python threads run.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        path: Option<&Path>,
        request: impl FnOnce(&forebay_client::Client) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| request(&self.inner)).map_err(|e| os_error(&e, path))
    }

    /// Makes a request that only the agent can serve. `what` completes "cannot ...".
    fn ask_agent<T: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        path: Option<&Path>,
        request: impl FnOnce(&forebay_client::Client) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| request(&self.inner)).map_err(|e| tier_error(&e, what, path, self.inner.socket()))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (socket = None, *, deadline_s = None, trusted_uids = None, quiet = None))]
    fn new(
        socket: Option<PathArg>,
        deadline_s: Option<f64>,
        trusted_uids: Option<Vec<u32>>,
        quiet: Option<bool>,
    ) -> PyResult<Self> {
        let mut config = ClientConfig::from_env();
        if let Some(PathArg(socket)) = socket {
            if socket.as_os_str().is_empty() {
                return Err(PyValueError::new_err(
                    "socket='': give the path of an agent's socket, or 'none'",
                ));
            }
            config.socket = (socket != Path::new("none")).then_some(socket);
        }
        if let Some(seconds) = deadline_s {
            config.deadline = deadline(seconds)?;
        }
        config.trusted_uids.extend(trusted_uids.unwrap_or_default());
        config.quiet = quiet.unwrap_or(config.quiet);
        Ok(Client { inner: forebay_client::Client::new(config) })
    }

    /// The agent's socket; None if the client reads only the PFS.
    #[getter]
    fn socket(&self) -> Option<OsString> {
        self.inner.socket().map(|path| path.as_os_str().to_owned())
    }

    /// Opens `path` for reading. `mode`: "cached" (the tier, otherwise the PFS, and cached),
    /// "tier" (the tier only) or "pfs" (the PFS only). OSError: an error of the PFS; for "tier"
    /// ENOTCONN without an agent.
    #[pyo3(signature = (path, mode = "cached"))]
    fn open(&self, py: Python<'_>, path: PathArg, mode: &str) -> PyResult<File> {
        let mode = read_mode(mode)?;
        let file = self.ask(py, Some(&path.0), |client| client.open_with(&path.0, mode))?;
        Ok(File::new(path.0, file))
    }

    /// Creates or truncates `path` for writing. `mode`: "through" (the PFS and the tier), "bypass"
    /// (the PFS only) or "memory" (this node's memory, until the job ends). `exclusive`: fail if it
    /// exists. `append`: keep the content. `permissions`: bits of a new file, before the umask.
    /// `layout`: how the servers are to hold a new file, such as "stripes:8,size:4MiB"; what the
    /// PFS does not take costs one line on stderr. OSError: an error of the PFS; for "memory"
    /// ENOTCONN without an agent.
    #[pyo3(signature = (path, mode = "through", *, exclusive = false, append = false, permissions = 0o666, layout = None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn create(
        &self,
        py: Python<'_>,
        path: PathArg,
        mode: &str,
        exclusive: bool,
        append: bool,
        permissions: u32,
        layout: Option<&str>,
    ) -> PyResult<Writer> {
        let options = WriteOptions { mode: write_mode(mode)?, exclusive, append, permissions };
        let hint = layout.map(str::parse::<Hint>).transpose().map_err(PyValueError::new_err)?;
        let writer = self.ask(py, Some(&path.0), |client| match &hint {
            Some(hint) => client.create_laid_out(&path.0, options, hint),
            None => client.create_with(&path.0, options),
        })?;
        Ok(Writer::new(path.0, writer))
    }

    /// Removes the memory-only file of that path if this job has one, otherwise the file on the
    /// PFS. OSError: an error of the PFS.
    fn remove(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.ask(py, Some(&path.0), |client| client.remove(&path.0))
    }

    /// Path and length in bytes of each memory-only file of this job. OSError: the agent does not
    /// answer.
    fn scratch_files(&self, py: Python<'_>) -> PyResult<Vec<(OsString, u64)>> {
        let files =
            self.ask_agent(py, "list the memory-only files", None, |client| client.scratch_files())?;
        Ok(files.into_iter().map(|(path, bytes)| (path.into_os_string(), bytes)).collect())
    }

    /// Begins a job for this process, which ends with it; returns the token that its children find
    /// in the environment variable FOREBAY_JOB. OSError: no agent, or the agent refuses.
    fn begin_job(&self, py: Python<'_>) -> PyResult<String> {
        self.ask_agent(py, "begin a job", None, |client| client.begin_scratch_job())
    }

    /// Loads files into the tier, at most `rate_bytes_per_s` (0: no limit), and returns when they
    /// are resident or have failed. `paths`: any iterable of files. `progress`: called about five
    /// times a second with a dict of `files`, `files_done`, `bytes`, `bytes_fetched` and
    /// `bytes_resident`; if it raises, the load is cancelled. Returns that dict with `seconds` and
    /// `failures`, a list of (path, errno, message). OSError: no agent.
    #[pyo3(signature = (paths, *, rate_bytes_per_s = 0, progress = None))]
    fn load<'py>(
        &self,
        paths: &Bound<'py, PyAny>,
        rate_bytes_per_s: u64,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        load::run(&self.inner, paths, rate_bytes_per_s, progress)
    }

    /// Releases the memory of one file; returns the bytes. OSError: no agent; the file is pinned;
    /// an error of the PFS.
    fn evict(&self, py: Python<'_>, path: PathArg) -> PyResult<u64> {
        self.ask_agent(py, "evict", Some(&path.0), |client| client.admin().evict(&path.0))
    }

    /// Releases the memory of all files that are not pinned; returns the bytes. OSError: no agent;
    /// EPERM: not the operator.
    fn evict_all(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask_agent(py, "evict", None, |client| client.admin().evict_all())
    }

    /// Keeps a file in the tier once it is there. OSError: no agent; ENOSPC: too much is pinned; an
    /// error of the PFS.
    fn pin(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.ask_agent(py, "pin", Some(&path.0), |client| client.admin().pin(&path.0, true))
    }

    /// Unpins a file, so that it can be evicted again. OSError: no agent; an error of the PFS.
    fn unpin(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.ask_agent(py, "unpin", Some(&path.0), |client| client.admin().pin(&path.0, false))
    }

    /// The agent's state and counters, a dict; names carry units. OSError: no agent.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        status_dict(
            py,
            &self.ask_agent(py, "read the agent's status", None, |client| client.admin().status())?,
        )
    }

    /// The cached files, a list of dicts; those of other users for the operator only. OSError: no
    /// agent.
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let files = self.ask_agent(py, "list the cached files", None, |client| client.admin().list())?;
        let rows = files.iter().map(|file| file_dict(py, file)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, rows)
    }

    /// Label and root of each mount the agent serves; empty without an agent.
    fn mounts(&self, py: Python<'_>) -> Vec<(String, OsString)> {
        let mounts = py.detach(|| self.inner.mounts());
        mounts.into_iter().map(|m| (m.label, path_text(&m.root))).collect()
    }
}

/// Longest wait for the agent that can be asked for: a day. Without a bound, the end of a wait has
/// no place on the clock.
const LONGEST_DEADLINE_S: f64 = 86_400.0;

fn deadline(seconds: f64) -> PyResult<Duration> {
    if (0.0..=LONGEST_DEADLINE_S).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let why = format!("deadline_s={seconds}: give seconds from 0 to {LONGEST_DEADLINE_S}");
    Err(PyValueError::new_err(why))
}

fn file_dict<'py>(py: Python<'py>, file: &CachedFile) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("path", path_text(&file.path))?;
    dict.set_item("mount", &file.mount)?;
    dict.set_item("size_bytes", file.version.size)?;
    dict.set_item("resident_bytes", file.resident_bytes.min(file.version.size))?;
    dict.set_item("pinned", file.pinned)?;
    dict.set_item("stale", file.stale)?;
    Ok(dict)
}

fn mount_dict<'py>(py: Python<'py>, mount: &MountStatus) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("label", &mount.label)?;
    dict.set_item("root", path_text(&mount.root))?;
    dict.set_item("mounted", mount.mounted)?;
    dict.set_item("fetched_bytes", mount.fetched_bytes)?;
    dict.set_item("fetch_errors", mount.fetch_errors)?;
    dict.set_item("fetches_pending", mount.fetches_pending)?;
    dict.set_item("cached", mount.cached)?;
    dict.set_item("stamps", &mount.stamps)?;
    Ok(dict)
}

fn status_dict<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyDict>> {
    let mounts = status.mounts.iter().map(|m| mount_dict(py, m)).collect::<PyResult<Vec<_>>>()?;
    let dict = PyDict::new(py);
    dict.set_item("version", &status.version)?;
    dict.set_item("pid", status.pid)?;
    dict.set_item("uptime_ms", status.uptime_ms)?;
    dict.set_item("tier", &status.tier)?;
    dict.set_item("huge_pages", &status.huge_pages)?;
    dict.set_item("eviction", &status.eviction)?;
    dict.set_item("capacity_bytes", status.capacity_bytes)?;
    dict.set_item("used_bytes", counters(py, &status.used_bytes)?)?;
    dict.set_item("resident_bytes", status.resident_bytes)?;
    dict.set_item("pinned_bytes", status.pinned_bytes)?;
    dict.set_item("files", status.files)?;
    dict.set_item("scratch_files", status.scratch_files)?;
    dict.set_item("connections", status.connections)?;
    dict.set_item("counters", counters(py, &status.counters)?)?;
    dict.set_item("mounts", mounts)?;
    Ok(dict)
}
