//! Layouts that only a tool of the PFS can give to a file.

use super::session::{Answer, Connection, refuse, reply};
use crate::mounts::admit::Admitted;
use crate::mounts::opened_path::opened_path;
use forebay_pfs::Traits;
use forebay_wire::{Refusal, Reply};
use rustix::fs::fstat;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the tool may take.
const TOOL_TIME: Duration = Duration::from_secs(10);

/// Gives the empty file, open for writing as `writing`, a storage class of MooseFS, with its user's
/// rights: the path is the user's.
pub fn set_class(connection: &Connection, file: &Admitted, writing: &OwnedFd, class: &str) -> Answer {
    let path = opened_path(writing.as_fd());
    let path = Path::new(OsStr::from_bytes(&path));
    if !Traits::of(path).storage_classes || file.facts.version.size > 0 {
        return refuse(Refusal::Invalid("only an empty file of MooseFS gets a storage class".into()));
    }
    let uid = connection.peer.uid;
    let is_own = rustix::process::geteuid().as_raw() == uid;
    let of_file = fstat(writing).map_or(uid, |stat| stat.st_gid);
    let first = connection.groups.first().copied().unwrap_or(uid);
    let gid = if connection.groups.contains(&of_file) { of_file } else { first };
    let rights = (!is_own).then_some((uid, gid));
    match forebay_pfs::layout::set_class(path, class, rights, Instant::now() + TOOL_TIME) {
        Ok(()) => reply(Reply::Done),
        Err(e) => {
            reply(Reply::Failed { errno: e.raw_os_error().unwrap_or(libc::EINVAL), message: e.to_string() })
        }
    }
}
