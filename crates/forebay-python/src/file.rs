//! A file open for reading, and its bytes mapped.

use crate::buffer::Contiguous;
use crate::error::{closed, os_error};
use forebay_client::MappedRange;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};
use std::ffi::OsString;
use std::os::fd::{IntoRawFd, RawFd};
use std::os::raw::c_int;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

/// Reads longer than this look at the file's length first, rather than allocate what the file does
/// not have.
const TRUSTED_LENGTH_BYTES: usize = 1 << 20;

/// A long read lets Ctrl-C in each time it has read this much: a tenth of a second of a slow PFS,
/// and a call of Python that does not count.
const PIECE_BYTES: usize = 16 << 20;

/// A file open for reading at any position. Threads may share it. Made by `Client.open`.
#[pyclass(frozen, module = "forebay._core")]
pub struct File {
    path: PathBuf,
    /// Shared with reads under way, so that `close` need not wait for them.
    inner: RwLock<Option<Arc<forebay_client::File>>>,
}

impl File {
    pub fn new(path: PathBuf, file: forebay_client::File) -> Self {
        File { path, inner: RwLock::new(Some(Arc::new(file))) }
    }

    fn get(&self) -> PyResult<Arc<forebay_client::File>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.clone().ok_or_else(|| closed("file"))
    }

    /// Fills `target` from `offset` on while other Python threads run; fewer bytes only at the end
    /// of the file. An exception of a signal handler ends it, such as that of Ctrl-C.
    fn fill(
        &self,
        py: Python<'_>,
        file: &forebay_client::File,
        target: &mut [u8],
        offset: u64,
    ) -> PyResult<usize> {
        let mut done = 0;
        for piece in target.chunks_mut(PIECE_BYTES) {
            if done > 0 {
                py.check_signals()?;
            }
            let length = piece.len();
            let read = py.detach(|| file.read_at(piece, offset + done as u64));
            let read = read.map_err(|e| os_error(&e, Some(&self.path)))?;
            done += read;
            if read < length {
                break;
            }
        }
        Ok(done)
    }
}

#[pymethods]
impl File {
    /// The path that opened it.
    #[getter]
    fn path(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    /// Length in bytes: of the opened version, or, without an agent, of the current one. OSError:
    /// an error of the PFS.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.get()?;
        py.detach(|| file.size()).map_err(|e| os_error(&e, Some(&self.path)))
    }

    /// The opened version: a dict of `ino`, `size_bytes`, `mtime_ns` and `ctime_ns`; None
    /// if no agent serves it.
    #[getter]
    fn version<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(version) = self.get()?.version() else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("ino", version.ino)?;
        dict.set_item("size_bytes", version.size)?;
        dict.set_item("mtime_ns", version.mtime_ns)?;
        dict.set_item("ctime_ns", version.ctime_ns)?;
        Ok(Some(dict))
    }

    /// Whether an agent serves this file.
    #[getter]
    fn tiered(&self) -> PyResult<bool> {
        Ok(self.get()?.is_tiered())
    }

    /// Bytes of a page in the tier, the least that a miss fetches; None without an agent.
    #[getter]
    fn page_bytes(&self) -> PyResult<Option<u64>> {
        Ok(self.get()?.page_bytes())
    }

    /// Whether it is pinned in the tier.
    #[getter]
    fn pinned(&self) -> PyResult<bool> {
        Ok(self.get()?.is_pinned())
    }

    /// A new file descriptor, which the caller owns. Reads through it bypass the tier and return
    /// the file's current bytes. OSError: an error of the PFS.
    fn descriptor(&self, py: Python<'_>) -> PyResult<RawFd> {
        let file = self.get()?;
        let opened = py.detach(|| file.descriptor());
        opened.map(IntoRawFd::into_raw_fd).map_err(|e| os_error(&e, Some(&self.path)))
    }

    /// Bytes of the file that are in the tier now.
    #[getter]
    fn resident_bytes(&self) -> PyResult<u64> {
        Ok(self.get()?.resident_bytes())
    }

    /// For each extent (`EXTENT_BYTES`) its length and its resident part, in bytes.
    fn extents(&self) -> PyResult<Vec<(u64, u64)>> {
        Ok(self.get()?.extents())
    }

    /// Up to `length` bytes at `offset`, fewer only at the end of the file. One copy.
    ///
    /// OSError: an error of the PFS. ESTALE: the content has changed since the open. ENODATA (read
    /// mode `tier`): not resident.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.get()?;
        let mut length = length;
        if length > TRUSTED_LENGTH_BYTES || file.is_tiered() {
            let size = py.detach(|| file.size()).map_err(|e| os_error(&e, Some(&self.path)))?;
            length = length.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        }
        let mut got = 0;
        let bytes = PyBytes::new_with(py, length, |target| {
            got = self.fill(py, &file, target, offset)?;
            Ok(())
        })?;
        match got == length {
            true => Ok(bytes),
            false => Ok(PyBytes::new(py, &bytes.as_bytes()[..got])),
        }
    }

    /// Fills `buffer`, any writable contiguous one, from `offset` on; returns the bytes read, fewer
    /// only at the end of the file. One copy, out of shared memory into the buffer. OSError: as
    /// `read_at`.
    #[pyo3(signature = (buffer, offset = 0))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.get()?;
        let mut target = Contiguous::target(buffer)?;
        self.fill(py, &file, target.bytes_mut(), offset)
    }

    /// `length` bytes at `offset` (to the end if not given) as a read-only memoryview of the tier
    /// itself, without a copy. None if some of it is not resident, or no more may be held: then
    /// read it. The agent cannot evict this memory until the view is released; do not use it in a
    /// forked child.
    #[pyo3(signature = (offset = 0, length = None))]
    fn map<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let file = self.get()?;
        let range = py.detach(|| -> std::io::Result<_> {
            let length = match length {
                Some(length) => length,
                None => file.size()?.saturating_sub(offset),
            };
            Ok(file.map(offset, length))
        });
        match range.map_err(|e| os_error(&e, Some(&self.path)))? {
            Some(range) => Ok(Some(PyMemoryView::from(Bound::new(py, Mapping { range })?.as_any())?)),
            None => Ok(None),
        }
    }

    /// Closes the file. A read in another thread finishes first; views from `map` stay valid.
    fn close(&self) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { " closed" } else { "" };
        format!("<forebay.File {:?}{state}>", self.path)
    }
}

/// What the memoryviews of `File.map` look into.
#[pyclass(frozen, module = "forebay._core")]
pub struct Mapping {
    range: MappedRange,
}

#[pymethods]
impl Mapping {
    /// Lends the mapped bytes, read-only.
    ///
    /// # Safety
    /// Called by the interpreter, with a view to be filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let range: &[u8] = &slf.get().range;
        let length = ffi::Py_ssize_t::try_from(range.len())
            .map_err(|_| PyValueError::new_err("too long for a memoryview"))?;
        let start = range.as_ptr().cast_mut().cast();
        // SAFETY: `view` is the interpreter's; the view keeps a reference to `slf`, which keeps the
        // bytes mapped, and is read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
