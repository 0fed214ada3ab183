//! The caller's memory, through the buffer protocol.
//!
//! Any C-contiguous buffer is taken, of whatever element type (`bytearray`, `memoryview`, NumPy,
//! PyArrow): its bytes are what counts. While a `Contiguous` lives the object cannot be resized, so
//! the address stays good while other Python threads run. That one of them may change the bytes
//! meanwhile is the program's affair, as with `io.FileIO`.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// Memory that stays in place.
pub struct Contiguous(PyUntypedBuffer);

impl Contiguous {
    /// Takes memory to read from.
    pub fn source(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if buffer.is_c_contiguous() {
            return Ok(Contiguous(buffer));
        }
        Err(PyBufferError::new_err("the buffer is not C-contiguous; copy it first, such as by bytes(buffer)"))
    }

    /// Takes memory to write to.
    pub fn target(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Self::source(object)?;
        if buffer.0.readonly() {
            return Err(PyTypeError::new_err(
                "the buffer is read-only; give a writable one, such as a bytearray",
            ));
        }
        Ok(buffer)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len_bytes` contiguous bytes at this address until the buffer
        // is released, in drop.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// Its bytes, to be written. Only for a buffer made by [`Contiguous::target`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(!self.0.readonly(), "a read-only buffer as the target of a read");
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; it is writable, as `target` has checked, and `self` is borrowed
        // alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}
