//! What Python's own library cannot do with names on the PFS.

use crate::convert::PathArg;
use crate::error::os_error;
use pyo3::prelude::*;

/// Whether two names lead to one file, links followed, even if one is a name on a mount of
/// Forebay's, which has a device number of its own. OSError: one leads nowhere.
#[pyfunction]
pub fn same_file(py: Python<'_>, a: PathArg, b: PathArg) -> PyResult<bool> {
    py.detach(|| forebay_client::same_file(&a.0, &b.0)).map_err(|e| os_error(&e, None))
}
