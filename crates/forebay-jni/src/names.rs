//! What Java's own library cannot do with names on the PFS.

use crate::client::{CLIENTS, path};
use crate::env::{Failure, Jni};
use jni_sys::{JNI_FALSE, JNIEnv, jboolean, jbyteArray, jclass, jint, jlong};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Renames without replacing anything, in one step of the file system. Returns 0, or the error
/// number: `EEXIST` if there is something of that name, `EINVAL` or `ENOSYS` where the file system
/// cannot do it in one step.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_renameNew(
    env: *mut JNIEnv,
    class: jclass,
    from: jbyteArray,
    to: jbyteArray,
) -> jint {
    let body = |jni: &Jni| {
        let (from, to) = (path(jni, from)?, path(jni, to)?);
        let renamed = renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE);
        Ok(renamed.map_or_else(|e| e.raw_os_error(), |()| 0))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, 0, body) }
}

/// Whether two names lead to one file, also if one is a name on a mount of Forebay's. A name that
/// leads nowhere is no other's file.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_sameFile(
    env: *mut JNIEnv,
    class: jclass,
    a: jbyteArray,
    b: jbyteArray,
) -> jboolean {
    let body = |jni: &Jni| {
        let (a, b) = (path(jni, a)?, path(jni, b)?);
        Ok(forebay_client::same_file(&a, &b).unwrap_or(false))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, JNI_FALSE, body) }
}

/// Removes a file: the memory-only one of that path if this job has one, else the one on the PFS.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_remove(
    env: *mut JNIEnv,
    class: jclass,
    client: jlong,
    file: jbyteArray,
) {
    let body = |jni: &Jni| {
        let file = path(jni, file)?;
        CLIENTS.get(client)?.remove(&file).map_err(Failure::about(&file))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}
