//! `verify`: compares the cached bytes with those of the PFS. It changes nothing: what is not in
//! this node's tier is reported and not fetched.

use crate::Outcome;
use crate::cli::{Global, PathsArgs};
use crate::files::list_files;
use crate::out::{no_agent, print, with_path};
use crate::served::why_unserved;
use forebay_agent::units::Human;
use forebay_client::{Client, File, ReadMode, errno};
use forebay_wire::MountStatus;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Bytes compared at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// The smallest page. What is missing is missing in whole pages.
const PAGE_BYTES: usize = 64 << 10;

/// How much of a file was compared.
#[derive(Default)]
pub struct Compared {
    /// Bytes that are in the tier, and equal.
    pub bytes: u64,
    /// Bytes that are not in the tier.
    pub absent_bytes: u64,
}

impl std::ops::AddAssign for Compared {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.absent_bytes += other.absent_bytes;
    }
}

/// Compares every byte of `path` that is in this node's tier with the PFS.
///
/// # Errors
/// A sentence: where they differ, or what could not be read.
pub fn compare(client: &Client, path: &Path) -> Result<Compared, String> {
    let io = |e: io::Error| e.to_string();
    let cached = client.open_with(path, ReadMode::TierOnly).map_err(io)?;
    // The descriptor that the agent has seen: where it reads past the kernel's page cache, so does
    // the comparison.
    let direct = cached.pfs_fd().ok_or("it is a memory-only file")?;
    let version = cached.version();
    let mut compared = Compared::default();
    let (mut left, mut right) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let size = cached.size().map_err(io)?;
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(BUFFER_BYTES as u64) as usize;
        // A block of which a part is missing is read page by page.
        let whole = in_tier(&cached, &mut left[..len], offset)?;
        for start in (0..len).step_by(if whole { len } else { PAGE_BYTES }) {
            let end = if whole { len } else { len.min(start + PAGE_BYTES) };
            let (part, at) = (&mut left[start..end], offset + start as u64);
            if whole || in_tier(&cached, part, at)? {
                compare_block(direct, part, &mut right[start..end], at)?;
                compared.bytes += part.len() as u64;
            } else {
                compared.absent_bytes += part.len() as u64;
            }
        }
        offset += len as u64;
    }
    // A file that was changed meanwhile differs rightly.
    let now = client.open(path).map_err(io)?.version();
    if now != version {
        return Err("changed while it was compared; run the command again".into());
    }
    Ok(compared)
}

/// Reads from the tier; false if not all of it is there.
fn in_tier(cached: &File, buffer: &mut [u8], offset: u64) -> Result<bool, String> {
    match cached.read_at(buffer, offset) {
        Ok(n) => Ok(n == buffer.len()),
        Err(e) if errno(&e) == libc::ENODATA => Ok(false),
        Err(e) => Err(e.to_string()),
    }
}

fn compare_block(pfs: BorrowedFd<'_>, cached: &[u8], buffer: &mut [u8], offset: u64) -> Result<(), String> {
    let mut n = 0;
    while n < buffer.len() {
        match rustix::io::pread(pfs, &mut buffer[n..], offset + n as u64) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(format!("cannot read the PFS at byte {offset}: {e}")),
        }
    }
    match cached.iter().zip(&buffer[..n]).position(|(a, b)| a != b) {
        Some(at) => Err(format!("DIFFERS at byte {}: evict it, and report this", offset + at as u64)),
        None if n < cached.len() => Err(format!("the PFS has only {} bytes", offset + n as u64)),
        None => Ok(()),
    }
}

/// The paths that the agent may serve, and the directories that it does not, with the reason.
fn of_agent(mounts: &[MountStatus], paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<(PathBuf, String)>) {
    let (mut served, mut refused) = (Vec::new(), Vec::new());
    for path in paths.iter().cloned() {
        match why_unserved(mounts, &path) {
            None => served.push(path),
            Some(why) => refused.push((path, why)),
        }
    }
    (served, refused)
}

/// Verifies what the user named.
pub fn verify(global: &Global, args: &PathsArgs) -> Outcome {
    let client = global.client();
    let mounts = client.admin().status().map_err(|e| no_agent(global, &e))?.mounts;
    let (served, mut bad) = of_agent(&mounts, &args.paths);
    let (files, failures) = list_files(&served, args.recursive);
    bad.extend(failures.into_iter().map(|(path, e)| (path, e.to_string())));
    let mut all = Compared::default();
    let count = files.len();
    for path in files {
        match compare(&client, &path) {
            Ok(compared) => all += compared,
            Err(e) => bad.push((path, e)),
        }
    }
    let Compared { bytes, absent_bytes } = all;
    let json = serde_json::json!({
        "files": count, "compared_bytes": bytes, "not_in_tier_bytes": absent_bytes, "bad": bad,
    });
    print(global, &json, |out| {
        for (path, e) in &bad {
            writeln!(out, "{}", with_path(path, e))?;
        }
        write!(out, "compared {} of {count} files with the PFS; ", Human(bytes))?;
        writeln!(out, "{} not in the tier; {} bad", Human(absent_bytes), bad.len())
    })?;
    Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
