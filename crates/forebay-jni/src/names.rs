//! What Java's own library cannot do with names on the PFS.

use crate::client::{CLIENTS, path};
use crate::env::{Failure, Jni, Outcome};
use jni_sys::{jboolean, jbyteArray, jint, jlong};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Renames without replacing anything, in one step of the file system. Returns 0, or the error
/// number: `EEXIST` if something has that name, `EINVAL` or `ENOSYS` where the file system cannot
/// do it in one step.
pub fn rename_new(jni: &Jni, from: jbyteArray, to: jbyteArray) -> Outcome<jint> {
    let (from, to) = (path(jni, from)?, path(jni, to)?);
    let renamed = renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE);
    Ok(renamed.map_or_else(|e| e.raw_os_error(), |()| 0))
}

/// Whether two names lead to one file, even if one is a name on a mount of Forebay's. A name that
/// leads nowhere leads to no other name's file.
pub fn same_file(jni: &Jni, a: jbyteArray, b: jbyteArray) -> Outcome<jboolean> {
    let (a, b) = (path(jni, a)?, path(jni, b)?);
    Ok(forebay_client::same_file(&a, &b).unwrap_or(false))
}

/// Removes a file: the memory-only one of that path if this job has one, else the one on the PFS.
pub fn remove(jni: &Jni, client: jlong, file: jbyteArray) -> Outcome<()> {
    let file = path(jni, file)?;
    CLIENTS.get(client)?.remove(&file).map_err(Failure::about(&file))
}
