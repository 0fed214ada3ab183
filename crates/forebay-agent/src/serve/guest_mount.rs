//! Descriptors for programs that write files of other nodes.
//!
//! A program can do anything with the descriptor that it has opened: pass it on, map it, read by
//! `io_uring`. So one whose file is dirty on another node gets a descriptor of a mount of its own
//! (`forebay mount`), through which the kernel turns whatever it does into requests. There is one
//! mount for each PFS, in a process of its own that outlives this agent, below the state directory,
//! where nobody else looks.

use crate::lock::lock;
use crate::mounts::admit::Admitted;
use crate::mounts::opened_path::opened_path;
use crate::write_back::{Opening, WriteBack};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, statfs};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// `f_type` of FUSE file systems.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// How long a mount may take to be ready before it is given up.
const START_MAX: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug)]
pub struct GuestMounts {
    program: Option<PathBuf>,
    /// The agent's state directory.
    state_dir: PathBuf,
    socket: PathBuf,
    /// By mount; held while it is mounted.
    mounting: Vec<Mutex<()>>,
}

impl GuestMounts {
    /// No mounts yet; `program` makes them, for the agent with this state directory and socket.
    pub fn new(program: Option<PathBuf>, (state_dir, socket): (PathBuf, PathBuf), mounts: usize) -> Self {
        GuestMounts { program, state_dir, socket, mounting: (0..mounts).map(|_| Mutex::default()).collect() }
    }

    /// Opens a file that is dirty on another node, and that a program has open as `pfs`; returns
    /// the number of the guest, the descriptor, and what it shares with this agent.
    ///
    /// # Errors
    /// The mount cannot be made; the node does not take the program as a guest.
    pub fn open(
        &self,
        (write_back, root): (&WriteBack, &Path),
        file: &Admitted,
        pfs: &OwnedFd,
        opening: &Opening,
    ) -> io::Result<(u64, OwnedFd, OwnedFd)> {
        let root = root.canonicalize()?;
        let path = opened_path(pfs.as_fd());
        let below = Path::new(OsStr::from_bytes(&path)).strip_prefix(&root);
        let below = below.map_err(|_| io::Error::other("its path is not below the mount"))?;
        let at = self.mount(file.mount, &root)?;
        let mut flags =
            opening.flags & (OFlags::RWMODE | OFlags::APPEND) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        flags.set(OFlags::TRUNC, opening.truncated);
        let content = openat(CWD, at.join(below), flags, Mode::empty())?;
        if fstat(&content)?.st_ino != file.facts.version.ino {
            return Err(io::Error::other("another file has its name by now"));
        }
        // The mount has reported whose open it was.
        let caller = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let refused = || io::Error::other("the node that has it refuses");
        let guest = write_back.take_guest_of(caller).ok_or_else(refused)?;
        let words = guest.words.fd().ok_or_else(refused)?.try_clone_to_owned()?;
        Ok((guest.id.number, content, words))
    }

    /// Mounts the PFS for guests, if it is not mounted yet; returns where.
    fn mount(&self, mount: usize, root: &Path) -> io::Result<PathBuf> {
        let at = self.state_dir.join("guests").join(mount.to_string());
        let is_mounted = || statfs(&at).is_ok_and(|stat| stat.f_type == FUSE_SUPER_MAGIC);
        if is_mounted() {
            return Ok(at);
        }
        let _one_at_a_time = lock(&self.mounting[mount]);
        if is_mounted() {
            return Ok(at);
        }
        let no_program = || io::Error::other("this agent does not know its own program");
        let program = self.program.as_ref().ok_or_else(no_program)?;
        // A mount whose process has died answers nothing; the new one takes its place.
        match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&at) {
            Err(e) if statfs(&at).err() != Some(Errno::NOTCONN) => return Err(e),
            _ => {}
        }
        let mut command = Command::new(program);
        command.arg("--socket").arg(&self.socket).arg("mount").arg("--for-guests");
        command.arg("--write-back").arg(root).arg(root).arg(&at);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        wait_for_start(started).map(|()| at)
    }
}

/// Waits until a mount is ready, which a PFS that hangs may keep from it.
fn wait_for_start(mut started: Child) -> io::Result<()> {
    let until = Instant::now() + START_MAX;
    while started.try_wait()?.is_none() {
        if Instant::now() >= until {
            started.kill()?;
            started.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its mount is not ready in time"));
        }
        std::thread::sleep(LOOK);
    }
    let output = started.wait_with_output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
