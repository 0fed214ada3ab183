//! How each change is made: with the system calls of ordinary programs, and through the library.

use crate::actor::Actor;
use crate::content::fill;
use crate::record::{How, Op, Style, Way};
use crate::stall;
use forebay_client::{Client, FileWriter, WriteMode, WriteOptions};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes made and written at a time, where the write is not to be a single one.
const BUFFER_BYTES: u64 = 1 << 20;

/// Makes changes.
pub struct Changes {
    client: Client,
}

/// The number of an error; `EIO` if it has none.
pub fn errno_of(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or_else(|| forebay_client::errno(e))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn bytes_of(write: u32, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; (end - start) as usize];
    fill(write, start, &mut bytes);
    bytes
}

impl Changes {
    pub fn new(client: Client) -> Self {
        Changes { client }
    }

    /// Removes the names that an interrupted change may have left, and restores a file's own name.
    pub fn clear_away(&self, path: &Path) -> io::Result<()> {
        let away = beside(path, ".away");
        if away.exists() && !path.exists() {
            std::fs::rename(&away, path)?;
        }
        for ending in [".new", ".link", ".away"] {
            match std::fs::remove_file(beside(path, ending)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn perform(&self, actor: &Actor, op: &Op) -> io::Result<()> {
        let path = actor.path(op.paths()[0]);
        let open = || File::options().read(true).write(true).open(&path);
        match op {
            Op::Rewrite { write, size, how, way, .. } => self.rewrite(&path, *write, *size, *how, *way),
            Op::Overwrite { write, start, end, style, keep_mtime, .. } => {
                let file = open()?;
                let mtime = file.metadata()?;
                overwrite(&file, *write, (*start, *end), *style)?;
                let stamp = Timespec { tv_sec: mtime.mtime(), tv_nsec: mtime.mtime_nsec() as _ };
                if *keep_mtime { set_mtime(&file, stamp) } else { Ok(()) }
            }
            Op::Append { write, start, end, how, .. } => self.append(&path, *write, (*start, *end), *how),
            Op::Truncate { size, .. } => open()?.set_len(*size),
            Op::Regrow { low, high, .. } => {
                let file = open()?;
                file.set_len(*low)?;
                file.set_len(*high)
            }
            Op::Punch { start, end, .. } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(&open()?, how, *start, end - start)?)
            }
            Op::Away { stay_ms, .. } => {
                let away = beside(&path, ".away");
                std::fs::rename(&path, &away)?;
                std::thread::sleep(Duration::from_millis(u64::from(*stay_ms)));
                std::fs::rename(&away, &path)
            }
            Op::Exchange { other, .. } => {
                let other = actor.path(*other);
                Ok(rustix::fs::renameat_with(CWD, &path, CWD, &other, RenameFlags::EXCHANGE)?)
            }
            Op::Link { .. } => {
                let link = beside(&path, ".link");
                std::fs::hard_link(&path, &link)?;
                std::fs::remove_file(&link)
            }
            Op::Chmod { .. } => {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640))?;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))
            }
            Op::Touch { .. } => set_mtime(&open()?, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        }
    }

    fn rewrite(&self, path: &Path, write: u32, size: u64, how: How, way: Way) -> io::Result<()> {
        let to = if way == Way::Rename { beside(path, ".new") } else { path.to_owned() };
        if way == Way::Unlink {
            std::fs::remove_file(path)?;
        }
        match how {
            How::Plain(chunk) => {
                let file = File::options().create(true).truncate(true).write(true).open(&to)?;
                write_chunks(&file, write, (0, size), u64::from(chunk).min(BUFFER_BYTES))?;
            }
            How::Through => write_by(self.client.create(&to, WriteMode::Through)?, write, (0, size))?,
            How::Bypass => write_by(self.client.create(&to, WriteMode::Bypass)?, write, (0, size))?,
        }
        if way == Way::Rename {
            std::fs::rename(&to, path)?;
        }
        Ok(())
    }

    fn append(&self, path: &Path, write: u32, range: (u64, u64), how: How) -> io::Result<()> {
        let mode = match how {
            How::Plain(chunk) => {
                let mut file = File::options().append(true).open(path)?;
                let bytes = bytes_of(write, range.0, range.1);
                return bytes.chunks(chunk as usize).try_for_each(|chunk| file.write_all(chunk));
            }
            How::Through => WriteMode::Through,
            How::Bypass => WriteMode::Bypass,
        };
        let options = WriteOptions { mode, append: true, ..WriteOptions::default() };
        write_by(self.client.create_with(path, options)?, write, range)
    }
}

fn write_by(mut writer: FileWriter, write: u32, (start, end): (u64, u64)) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let next = (at + BUFFER_BYTES * 3 / 2).min(end);
        writer.write_all(&bytes_of(write, at, next))?;
        at = next;
    }
    writer.close()
}

fn write_chunks(file: &File, write: u32, (start, end): (u64, u64), chunk: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let next = (at + chunk).min(end);
        file.write_all_at(&bytes_of(write, at, next), at)?;
        at = next;
    }
    Ok(())
}

fn overwrite(file: &File, write: u32, range: (u64, u64), style: Style) -> io::Result<()> {
    match style {
        Style::Chunks(chunk) => write_chunks(file, write, range, u64::from(chunk)),
        Style::Stalled(ms) => {
            let bytes = bytes_of(write, range.0, range.1);
            stall::write_stalled(file, &bytes, range.0, Duration::from_millis(u64::from(ms)))
        }
        Style::Mapped { touch } => {
            // Stores into a hole of a full file system would raise a signal.
            match rustix::fs::fallocate(file, FallocateFlags::empty(), range.0, range.1 - range.0) {
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                other => other?,
            }
            stall::store_mapped(file, &bytes_of(write, range.0, range.1), range.0)?;
            if touch { set_mtime(file, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }) } else { Ok(()) }
        }
    }
}

fn set_mtime(file: &File, stamp: Timespec) -> io::Result<()> {
    let kept = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: kept, last_modification: stamp };
    Ok(rustix::fs::futimens(file, &times)?)
}
