//! Announced orders of reads.

use crate::client::Client;
use crate::convert::PathArg;
use crate::error::{closed, tier_error};
use forebay_client::{Item, Order as Inner};
use pyo3::prelude::*;
use std::io;
use std::sync::{Mutex, PoisonError};

/// An announced order of reads, as one process reports it. Ends with `close()`, or with the
/// process.
#[pyclass(module = "forebay._core", frozen)]
pub struct Order {
    inner: Mutex<Option<Inner>>,
}

impl Order {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        call: impl FnOnce(&mut Inner) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_mut().map(call)
        })
        .ok_or_else(|| closed("order"))?
        .map_err(|e| tier_error(&e, what, None, None))
    }
}

#[pymethods]
impl Order {
    /// Begins an order over `items`: path, first byte, and length (None: the rest of the file).
    /// OSError: no agent, the agent refuses, or a file cannot be opened.
    #[new]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: &str,
        items: Vec<(PathArg, u64, Option<u64>)>,
    ) -> PyResult<Self> {
        let item = |(path, offset, len): (PathArg, u64, Option<u64>)| Item { path: path.0, offset, len };
        let items: Vec<Item> = items.into_iter().map(item).collect();
        let begun = py.detach(|| client.inner.begin_order(name, &items));
        let inner = begun.map_err(|e| tier_error(&e, "announce an order", None, client.inner.socket()))?;
        Ok(Order { inner: Mutex::new(Some(inner)) })
    }

    /// Announces that the program will read the items with these numbers, in this order, after
    /// those announced before. OSError: the agent is gone, or refuses.
    fn announce(&self, py: Python<'_>, sequence: Vec<u32>) -> PyResult<()> {
        self.call(py, "announce an epoch", |order| order.announce(&sequence))
    }

    /// Notes that the program begins to read this many more items, or hands them to its readers.
    /// OSError: the agent is gone, or has dropped the order.
    #[pyo3(signature = (items = 1))]
    fn read(&self, py: Python<'_>, items: usize) -> PyResult<()> {
        self.call(py, "report a read", |order| order.read(items))
    }

    /// Notes that the program reads no more of the epoch. OSError: the agent is gone.
    fn leave_epoch(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, "leave an epoch", Inner::leave_epoch)
    }

    /// Ends the order. A second call does nothing.
    fn close(&self) {
        drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
