//! Parses a request of the kernel.

use crate::abi::{InHeader, Plain, from_bytes};
use rustix::io::Errno;
use std::ffi::CStr;

/// A request: its header, and the arguments that are not taken yet.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its header: the operation and the caller.
    pub header: InHeader,
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    /// Takes the header; `None` if there is none.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let header = from_bytes(bytes)?;
        Some(Request { header, rest: &bytes[size_of::<InHeader>()..] })
    }

    /// Takes the next argument. A kernel with a shorter one is too old for it.
    ///
    /// # Errors
    /// `EINVAL`: it is not there.
    pub fn arg<T: Plain>(&mut self) -> Result<T, Errno> {
        let value = from_bytes(self.rest).ok_or(Errno::INVAL)?;
        self.rest = &self.rest[size_of::<T>()..];
        Ok(value)
    }

    /// Takes the next name.
    ///
    /// # Errors
    /// `EINVAL`: it is not there.
    pub fn name(&mut self) -> Result<&'a CStr, Errno> {
        let name = CStr::from_bytes_until_nul(self.rest).map_err(|_| Errno::INVAL)?;
        self.rest = &self.rest[name.to_bytes_with_nul().len()..];
        Ok(name)
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// `EINVAL`: there are fewer.
    pub fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.rest.split_at_checked(len as usize).ok_or(Errno::INVAL)?;
        self.rest = rest;
        Ok(taken)
    }
}
