//! Extended attributes: the ones of the files, and the virtual ones through which the file system
//! is observed and controlled.
//!
//! Virtual attributes are not listed (a `cp -a` would try to copy them), are never stored, are not
//! charged any latency and are beyond the reach of faults. The kernel lets them be written only by
//! users that may write the root directory.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno as FuseErrno, ReplyXattr};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::backing::self_path;
use super::fault::FaultSet;
use super::nodes::ROOT;
use super::state::State;
use super::stats::server_name;
use super::{FAULT_XATTR, LAYOUT_XATTR, RATE_XATTR, RESET_XATTR, STATS_XATTR};
use crate::quantity::parse_rate;

/// On which server each byte of a file is: byte `b` is on
/// `servers[(b / stripe_bytes + first_server) % servers.len()]`. The JSON value of
/// [`LAYOUT_XATTR`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Unit of striping.
    pub stripe_bytes: u64,
    /// Names of the servers, in order.
    pub servers: Vec<String>,
    /// Index of the server of the first stripe.
    pub first_server: usize,
}

/// The largest value of an attribute (Linux' XATTR_SIZE_MAX).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The value of a virtual attribute; `None` if the name is not one of ours on this inode.
pub fn virtual_get(state: &State, ino: u64, name: &OsStr) -> Option<Result<Vec<u8>, Errno>> {
    let json = |value: serde_json::Result<Vec<u8>>| value.map_err(|_| Errno::IO);
    match name.to_str()? {
        LAYOUT_XATTR => Some(layout(state, ino).and_then(|layout| json(serde_json::to_vec(&layout)))),
        STATS_XATTR if ino == ROOT => Some(json(serde_json::to_vec(&state.stats()))),
        RATE_XATTR if ino == ROOT => Some(Ok(match state.rate_bytes_per_s() {
            Some(rate) => format!("{rate}B/s").into_bytes(),
            None => b"unlimited".to_vec(),
        })),
        // Requested by the kernel before each write. Such capabilities mean nothing on a nosuid
        // mount.
        "security.capability" => Some(Err(Errno::NODATA)),
        _ => None,
    }
}

fn layout(state: &State, ino: u64) -> Result<Layout, Errno> {
    let stat = rustix::fs::fstat(state.locate(ino)?)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::NODATA);
    }
    Ok(Layout {
        stripe_bytes: state.striping.stripe_bytes(),
        servers: (0..state.striping.servers()).map(server_name).collect(),
        first_server: state.striping.first_server(ino),
    })
}

/// Sets a virtual attribute; `None` if the name is not one of ours on this inode.
pub fn virtual_set(state: &State, ino: u64, name: &OsStr, value: &[u8]) -> Option<Result<(), Errno>> {
    match name.to_str()? {
        LAYOUT_XATTR => Some(Err(Errno::PERM)),
        FAULT_XATTR if ino == ROOT => Some(set_fault(state, value)),
        RATE_XATTR if ino == ROOT => Some(set_rate(state, value)),
        RESET_XATTR if ino == ROOT => {
            state.counters.reset();
            Some(Ok(()))
        }
        STATS_XATTR if ino == ROOT => Some(Err(Errno::PERM)),
        _ => None,
    }
}

fn set_fault(state: &State, value: &[u8]) -> Result<(), Errno> {
    // An errno is all that a setxattr can return; `remote::set_fault` parses first and says what is
    // wrong.
    let text = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
    state.set_faults(FaultSet::parse(text).map_err(|_| Errno::INVAL)?);
    Ok(())
}

fn set_rate(state: &State, value: &[u8]) -> Result<(), Errno> {
    let text = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
    state.set_rate(parse_rate(text).map_err(|_| Errno::INVAL)?.bytes_per_s);
    Ok(())
}

/// A stored attribute's value.
pub fn get(state: &State, ino: u64, name: &OsStr) -> Result<Vec<u8>, Errno> {
    let at = state.locate(ino)?;
    let mut value = vec![0; XATTR_BYTES_MAX];
    let len = rustix::fs::getxattr(self_path(at.as_fd()), name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// The names of the stored attributes, each followed by a zero byte.
pub fn list(state: &State, ino: u64) -> Result<Vec<u8>, Errno> {
    let at = state.locate(ino)?;
    let mut names = vec![0; XATTR_BYTES_MAX];
    let len = rustix::fs::listxattr(self_path(at.as_fd()), &mut names[..])?;
    names.truncate(len);
    Ok(names)
}

/// Stores an attribute.
pub fn set(state: &State, ino: u64, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
    let at = state.locate(ino)?;
    let flags = XattrFlags::from_bits_truncate(flags as u32);
    rustix::fs::setxattr(self_path(at.as_fd()), name, value, flags)
}

/// Removes a stored attribute.
pub fn remove(state: &State, ino: u64, name: &OsStr) -> Result<(), Errno> {
    let at = state.locate(ino)?;
    rustix::fs::removexattr(self_path(at.as_fd()), name)
}

/// Whether a query for an attribute costs no time: the kernel makes such queries on its own before
/// each write or access.
pub fn is_kernel_chatter(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"security.") || name.as_bytes().starts_with(b"system.")
}

/// Answers a request for a value or a list, which may be a request for its size only.
pub fn answer(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(FuseErrno::ERANGE);
    } else {
        reply.data(value);
    }
}
