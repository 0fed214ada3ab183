//! Where the client's descriptors are in a process that belongs to somebody else.

use std::os::fd::OwnedFd;

/// Replaces a descriptor with one of another number, or returns it as it is.
///
/// A library in a program that does not know of it keeps its descriptors at high numbers: POSIX
/// promises the program the lowest free one at each open.
pub type Place = fn(OwnedFd) -> OwnedFd;
