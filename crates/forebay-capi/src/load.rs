//! Loading files into the tier.

use crate::error::{guard, note};
use crate::{invalid, path_of};
use forebay_client::error::with_message;
use forebay_client::{Client, Load};
use std::ffi::c_char;
use std::io;
use std::time::Duration;

/// Loads `count` files and waits; returns how many are wholly in the tier.
///
/// # Safety
/// `paths` points at `count` strings that end in a zero byte; NULL is allowed where `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_load(
    paths: *const *const c_char,
    count: usize,
    rate_bytes_per_s: u64,
) -> i64 {
    guard(-1, || {
        if paths.is_null() && count > 0 {
            return Err(invalid("the list of paths is NULL"));
        }
        let mut load = Client::from_env().load(rate_bytes_per_s)?;
        for index in 0..count {
            // SAFETY: the caller vouches for `count` pointers to strings.
            let path = unsafe { path_of(*paths.add(index)) }?;
            load.add(path)?;
        }
        load.flush()?;
        let failed = wait(&mut load)?;
        if let Some(first) = load.failures().first() {
            let text = format!("{}: {}", first.path.display(), first.message);
            // Not a failure of the call: the text is there for a caller that sees that the number
            // is too small.
            note(&with_message(if first.errno > 0 { first.errno } else { libc::EIO }, text));
        }
        Ok(i64::try_from(count as u64 - failed).unwrap_or(i64::MAX))
    })
}

/// Waits for the end; returns how many files failed.
fn wait(load: &mut Load) -> io::Result<u64> {
    while !load.poll(Duration::from_secs(10))?.idle {}
    Ok(load.failures().len() as u64)
}
