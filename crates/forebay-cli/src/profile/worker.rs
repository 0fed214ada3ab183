//! One process of a measurement: it reads or writes until its parent stops it.
//!
//! It prints `ready`, waits for a line, works, and prints how long its first pass took; then it
//! continues, so that what it disturbs is disturbed to the end. It ends when its standard input
//! does, so none outlives the measurement, even if that is killed.

use crate::Outcome;
use crate::cli::{ProfileWorkerArgs, WorkerKind};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write, stdin, stdout};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of one call, as IOR writes.
const TRANSFER_BYTES: usize = 1 << 20;

/// Does what its command line says.
pub fn worker(args: &ProfileWorkerArgs) -> Outcome {
    let fail = |e: io::Error| format!("profile: {e}");
    println!("ready");
    stdout().flush().map_err(fail)?;
    let mut go = String::new();
    stdin().lock().read_line(&mut go).map_err(fail)?;
    let stopped = &*Box::leak(Box::new(AtomicBool::new(false)));
    std::thread::spawn(|| {
        let _ = io::copy(&mut stdin().lock(), &mut io::sink());
        stopped.store(true, Ordering::Relaxed);
    });
    let begin = Instant::now();
    let mut is_first = true;
    while !stopped.load(Ordering::Relaxed) {
        match args.kind {
            WorkerKind::Write => write_pass(&args.files, args.bytes, stopped)?,
            WorkerKind::Read => read_pass(&args.files, args.threads, stopped)?,
        }
        if is_first && !stopped.load(Ordering::Relaxed) {
            println!("{}", begin.elapsed().as_nanos());
            stdout().flush().map_err(fail)?;
        }
        is_first = false;
        if args.once {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tried<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> String + 'a {
    move |e| format!("cannot {what} {}: {e}", path.display())
}

/// Rewrites each file and waits until the storage has it.
fn write_pass(files: &[std::path::PathBuf], bytes: u64, stopped: &AtomicBool) -> Result<(), String> {
    let block = vec![0x5a; TRANSFER_BYTES];
    for path in files {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(tried("create", path))?;
        let mut at = 0;
        while at < bytes && !stopped.load(Ordering::Relaxed) {
            let len = (bytes - at).min(TRANSFER_BYTES as u64);
            file.write_all_at(&block[..len as usize], at).map_err(tried("write", path))?;
            at += len;
        }
        file.sync_data().map_err(tried("write", path))?;
    }
    Ok(())
}

/// Reads all files, each by one of `threads` threads at a time.
fn read_pass(files: &[std::path::PathBuf], threads: u16, stopped: &AtomicBool) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let read_some = || -> Result<(), String> {
        let mut buffer = Aligned::new();
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            read_file(path, buffer.bytes(), stopped).map_err(tried("read", path))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(read_some)).collect();
        all.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a reader has failed".to_owned())?)
    })
}

/// Reads past the page cache: reading through it would measure this node's memory.
fn read_file(path: &Path, buffer: &mut [u8], stopped: &AtomicBool) -> io::Result<()> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    let file = direct.or_else(|_| File::open(path))?;
    // SAFETY: an open descriptor; the advice changes no data.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let mut at = 0;
    while !stopped.load(Ordering::Relaxed) {
        match file.read_at(buffer, at)? {
            0 => break,
            read => at += read as u64,
        }
    }
    Ok(())
}

/// A buffer that direct I/O accepts.
struct Aligned(Vec<u8>);

impl Aligned {
    const ALIGN: usize = 4096;

    fn new() -> Self {
        Aligned(vec![0; TRANSFER_BYTES + Self::ALIGN])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(Self::ALIGN);
        &mut self.0[skip..skip + TRANSFER_BYTES]
    }
}
