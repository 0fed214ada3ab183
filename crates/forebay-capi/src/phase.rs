//! HPC jobs and their I/O phases.

use crate::error::guard;
use crate::{handle, invalid};
use forebay_client::{Client, HpcJob, HpcJobOptions};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// An HPC job.
#[derive(Debug)]
pub struct ForebayJob {
    job: HpcJob,
}

const SHARES: c_uint = 1;

/// Opens an HPC job.
///
/// # Safety
/// `name` is NULL or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_job_open(
    name: *const c_char,
    allowance_permille: c_uint,
    processes: c_uint,
    flags: c_uint,
) -> *mut ForebayJob {
    guard(ptr::null_mut(), || {
        if name.is_null() {
            return Err(invalid("the name is NULL"));
        }
        if flags & !SHARES != 0 {
            return Err(invalid(&format!("flags {flags:#x}: only FOREBAY_JOB_SHARES is known")));
        }
        // SAFETY: not NULL, and the caller vouches for the rest.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| invalid("the name is not UTF-8"))?;
        let shares = flags & SHARES != 0;
        let options = HpcJobOptions { allowance_permille, processes, shares, ..HpcJobOptions::named(name) };
        let job = Client::from_env().open_hpc_job(&options)?;
        Ok(Box::into_raw(Box::new(ForebayJob { job })))
    })
}

/// Notes that the next phases write to these `count` files, `bytes[i]` bytes to each.
///
/// # Safety
/// `job` is NULL or open; `paths` has `count` strings that end in a zero byte, and `bytes` as many
/// numbers or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_job_writes_to(
    job: *const ForebayJob,
    paths: *const *const c_char,
    bytes: *const u64,
    count: usize,
) -> c_int {
    guard(-1, || {
        if paths.is_null() && count > 0 {
            return Err(invalid("paths is NULL"));
        }
        let mut files = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: the caller's promise.
            let path = unsafe { *paths.add(i) };
            if path.is_null() {
                return Err(invalid("a path is NULL"));
            }
            // SAFETY: as above.
            let (path, bytes) =
                unsafe { (CStr::from_ptr(path), if bytes.is_null() { 0 } else { *bytes.add(i) }) };
            files.push((Path::new(OsStr::from_bytes(path.to_bytes())), bytes));
        }
        // SAFETY: the caller's promise.
        unsafe { handle(job) }?.job.writes_to(&files).map(|()| 0)
    })
}

/// Begins a phase of `bytes`; 0 is unknown.
///
/// # Safety
/// `job` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_phase_begin(job: *const ForebayJob, bytes: u64, deadline_ms: u64) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        unsafe { handle(job) }?.job.phase_begin(bytes, Duration::from_millis(deadline_ms)).map(|()| 0)
    })
}

/// Reports that the phase has moved `bytes` since it began.
///
/// # Safety
/// `job` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_phase_progress(job: *const ForebayJob, bytes: u64) -> c_int {
    // SAFETY: the caller's promise.
    guard(-1, || unsafe { handle(job) }?.job.phase_progress(bytes).map(|()| 0))
}

/// Ends the phase.
///
/// # Safety
/// `job` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_phase_end(job: *const ForebayJob) -> c_int {
    // SAFETY: the caller's promise.
    guard(-1, || unsafe { handle(job) }?.job.phase_end().map(|()| 0))
}

/// Closes the job; a phase under way ends with it.
///
/// # Safety
/// `job` is NULL, or open and used by nobody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_job_close(job: *mut ForebayJob) -> c_int {
    guard(-1, || {
        if !job.is_null() {
            // SAFETY: made by `forebay_job_open`, and the caller gives it back once.
            drop(unsafe { Box::from_raw(job) });
        }
        Ok(0)
    })
}
