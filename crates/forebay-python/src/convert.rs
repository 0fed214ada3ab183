//! Arguments from Python, answers to Python.

use forebay_client::{ReadMode, WriteMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A path as Python's own functions take it: `str` (with surrogates for what is not UTF-8), `bytes`
/// or `os.PathLike`.
pub struct PathArg(pub PathBuf);

impl<'a, 'py> FromPyObject<'a, 'py> for PathArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let path = match object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            true => object.to_owned(),
            false => py.import("os")?.call_method1("fspath", (object,))?,
        };
        let path = match path.cast::<PyBytes>() {
            Ok(bytes) => OsString::from_vec(bytes.as_bytes().to_vec()),
            Err(_) => path.extract::<OsString>()?,
        };
        if path.as_bytes().contains(&0) {
            return Err(PyValueError::new_err("embedded null byte in path"));
        }
        Ok(PathArg(path.into()))
    }
}

/// A path of the PFS as Python's `str`, with surrogates for what is not UTF-8.
pub fn path_text(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}

/// `cached`, `tier` or `pfs`.
pub fn read_mode(name: &str) -> PyResult<ReadMode> {
    match name {
        "cached" => Ok(ReadMode::Cached),
        "tier" => Ok(ReadMode::TierOnly),
        "pfs" => Ok(ReadMode::PfsOnly),
        _ => Err(PyValueError::new_err(format!("read mode {name:?}: write 'cached', 'tier' or 'pfs'"))),
    }
}

/// `bypass`, `through`, `memory` or `back`.
pub fn write_mode(name: &str) -> PyResult<WriteMode> {
    match name {
        "bypass" => Ok(WriteMode::Bypass),
        "through" => Ok(WriteMode::Through),
        "memory" => Ok(WriteMode::MemoryOnly),
        "back" => Ok(WriteMode::Back),
        _ => Err(PyValueError::new_err(format!(
            "write mode {name:?}: write 'bypass', 'through', 'memory' or 'back'"
        ))),
    }
}

/// A dict of named numbers.
pub fn counters<'py>(py: Python<'py>, pairs: &[(String, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in pairs {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
