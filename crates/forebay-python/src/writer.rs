//! A file open for writing.

use crate::buffer::Contiguous;
use crate::error::{closed, os_error};
use forebay_client::FileWriter;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Sets the times of a file that was overwritten through this descriptor to now, if its file system
/// is one on which other nodes would see the change only some time after the close (MooseFS).
/// OSError: an error of the PFS.
#[pyfunction]
pub fn stamp_written(py: Python<'_>, descriptor: RawFd) -> PyResult<()> {
    if descriptor < 0 {
        return Err(closed("file"));
    }
    // SAFETY: the caller, a file object, has it open and closes it only after this call; it is not
    // -1.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    py.detach(|| forebay_client::stamp_written(file)).map_err(|e| os_error(&e, None))
}

/// A file open for writing, at its end. Made by `Client.create`.
#[pyclass(frozen, module = "forebay._core")]
pub struct Writer {
    path: PathBuf,
    inner: Mutex<Option<FileWriter>>,
}

impl Writer {
    pub fn new(path: PathBuf, writer: FileWriter) -> Self {
        Writer { path, inner: Mutex::new(Some(writer)) }
    }

    /// Runs `work` on the writer while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut FileWriter) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_mut().map(work)
        });
        done.ok_or_else(|| closed("file"))?.map_err(|e| os_error(&e, Some(&self.path)))
    }
}

#[pymethods]
impl Writer {
    /// The path it was opened by.
    #[getter]
    fn path(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    /// Bytes written so far; for an appended file, counted from its beginning.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |writer| Ok(writer.position()))
    }

    /// Writes all of `data`, any contiguous buffer, and returns its bytes. Small writes are
    /// gathered to 1 MiB; large ones leave without a copy. OSError: an error of the PFS; in write
    /// mode `memory` ENOSPC: no room in the tier.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = Contiguous::source(data)?;
        let bytes = data.bytes();
        self.with(py, |writer| writer.write_all(bytes))?;
        Ok(bytes.len())
    }

    /// Hands what was gathered to the PFS. OSError: an error of the PFS.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Write::flush)
    }

    /// Hands what was gathered to the PFS and returns a new file descriptor, which the caller owns,
    /// to continue with by itself; the tier keeps nothing of the file then. OSError: an error of
    /// the PFS; EINVAL: a memory-only file has none.
    fn descriptor(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.with(py, |writer| Ok(writer.descriptor()?.into_raw_fd()))
    }

    /// Makes what was written durable, as the PFS promises for fsync. OSError: an error of the PFS.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, FileWriter::sync)
    }

    /// Writes what is left and closes; a second time does nothing. Only a file closed without an
    /// error is surely complete. OSError: an error of the PFS.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let ended = py.detach(|| {
            let writer = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
            writer.map_or(Ok(()), FileWriter::close)
        });
        ended.map_err(|e| os_error(&e, Some(&self.path)))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}
