//! The memory pressure protocol of service managers, as systemd defines it: a service finds in its
//! environment which file reports that memory is short, and what has to be written to it first.
//!
//! `MEMORY_PRESSURE_WATCH` names a file of stalls, a FIFO or a socket; `/dev/null` asks the service
//! not to watch stalls at all. `MEMORY_PRESSURE_WRITE` is what to write, in Base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FileType, OFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What the service manager asks for.
#[derive(Debug)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// Not to watch stalls.
    Off,
    /// To watch this.
    Watch(Source),
}

/// A file that a service manager has named.
#[derive(Debug)]
pub struct Source {
    /// Where.
    pub path: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Reports stalls by itself.
    Stalls(File),
    /// Each byte is a report.
    Fifo(File),
    Socket(UnixStream),
}

/// What the environment of this process asks for.
///
/// # Errors
/// What it names cannot be used, and why.
pub fn asked() -> Result<Asked, String> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(path) = variable("MEMORY_PRESSURE_WATCH") else { return Ok(Asked::Nothing) };
    asked_by(path.into(), variable("MEMORY_PRESSURE_WRITE"))
}

fn asked_by(path: PathBuf, write: Option<OsString>) -> Result<Asked, String> {
    if path == Path::new("/dev/null") {
        return Ok(Asked::Off);
    }
    let failed = |e: &dyn std::fmt::Display| format!("MEMORY_PRESSURE_WATCH={}: {e}", path.display());
    if !path.is_absolute() {
        return Err(failed(&"the path is not absolute"));
    }
    let write = write.map(|text| {
        let text = text.into_encoded_bytes();
        STANDARD.decode(text).map_err(|e| format!("MEMORY_PRESSURE_WRITE is not Base64: {e}"))
    });
    let first = write.transpose()?.unwrap_or_default();
    let kind = open(&path, &first).map_err(|e| failed(&e))?;
    Ok(Asked::Watch(Source { path, kind }))
}

fn open(path: &Path, first: &[u8]) -> io::Result<Kind> {
    let mode = std::fs::metadata(path)?.mode();
    let kind = FileType::from_raw_mode(mode);
    if kind == FileType::Socket {
        let mut socket = UnixStream::connect(path)?;
        socket.set_nonblocking(true)?;
        socket.write_all(first)?;
        return Ok(Kind::Socket(socket));
    }
    if !matches!(kind, FileType::Fifo | FileType::RegularFile) {
        return Err(io::Error::other("it is no file of stalls, no FIFO and no socket"));
    }
    // A FIFO that is also open for writing does not end when its writers come and go.
    let writes = kind == FileType::Fifo || !first.is_empty();
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).write(writes).custom_flags(nonblock).open(path)?;
    file.write_all(first)?;
    Ok(if kind == FileType::Fifo { Kind::Fifo(file) } else { Kind::Stalls(file) })
}

impl Source {
    /// The file, and whether it has to be read to wait for the next report.
    pub fn fd(&self) -> (BorrowedFd<'_>, bool) {
        match &self.kind {
            Kind::Stalls(file) => (file.as_fd(), false),
            Kind::Fifo(file) => (file.as_fd(), true),
            Kind::Socket(socket) => (socket.as_fd(), true),
        }
    }

    /// Reads what has come; `false` if nothing will come any more.
    pub fn drain(&mut self) -> bool {
        let mut buffer = [0; 512];
        loop {
            let read = match &mut self.kind {
                Kind::Stalls(_) => return true,
                Kind::Fifo(file) => file.read(&mut buffer),
                Kind::Socket(socket) => socket.read(&mut buffer),
            };
            match read {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn why(path: &str, write: Option<&str>) -> String {
        asked_by(path.into(), write.map(Into::into)).unwrap_err()
    }

    #[test]
    fn what_cannot_be_watched_is_refused_with_its_reason() {
        assert!(why("pressure", None).contains("not absolute"));
        assert!(why("/tmp", None).contains("no FIFO"));
        assert!(why("/no/such/file", None).contains("No such file"));
        assert!(why("/proc/pressure", Some("c29t*")).contains("MEMORY_PRESSURE_WRITE is not Base64"));
        assert!(matches!(asked_by("/dev/null".into(), None), Ok(Asked::Off)));
    }

    #[test]
    fn a_socket_hears_what_was_to_be_written_and_its_end_is_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let manager = UnixListener::bind(&path).unwrap();
        let Asked::Watch(mut source) = asked_by(path, Some("aGVsbG8K".into())).unwrap() else { panic!() };
        let (mut peer, _) = manager.accept().unwrap();
        let mut said = [0; 6];
        peer.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"hello\n");
        assert!(source.drain(), "nothing has come");
        peer.write_all(b"x").unwrap();
        assert!(source.drain());
        drop(peer);
        assert!(!source.drain());
    }
}
