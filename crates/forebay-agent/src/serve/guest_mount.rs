//! Descriptors for programs that write files of other nodes.
//!
//! A program can do anything with the descriptor that it has opened: pass it on, map it, read by
//! `io_uring`. So one whose file is dirty on another node gets a descriptor of a mount of its own
//! (`forebay mount`), by which the kernel makes requests of whatever it does. There is one mount for
//! each PFS, in a process of its own that outlives this agent, below the state directory, where
//! nobody else looks.

use super::session::Node;
use crate::lock::lock;
use crate::mounts::admit::Admitted;
use crate::mounts::opened_path::opened_path;
use crate::write_back::Opening;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, statfs};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// `f_type` of FUSE file systems.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// See the module.
#[derive(Debug)]
pub struct GuestMounts {
    program: Option<PathBuf>,
    /// By mount; held while a file is opened.
    opening: Vec<Mutex<()>>,
}

impl GuestMounts {
    /// No mounts; `program` makes them.
    pub fn new(program: Option<PathBuf>, mounts: usize) -> Self {
        GuestMounts { program, opening: (0..mounts).map(|_| Mutex::default()).collect() }
    }

    /// Opens a file that is dirty on another node, and that a program has open as `pfs`: the number
    /// of the guest, the descriptor, and what it shares with this agent.
    ///
    /// # Errors
    /// The mount cannot be made; the node does not take the program as a guest.
    pub fn open(
        &self,
        node: &Node,
        file: &Admitted,
        pfs: &OwnedFd,
        opening: &Opening,
    ) -> io::Result<(u64, OwnedFd, OwnedFd)> {
        let _one_at_a_time = lock(&self.opening[file.mount]);
        let root = node.mounts[file.mount].root().canonicalize()?;
        let path = opened_path(pfs.as_fd());
        let below = Path::new(OsStr::from_bytes(&path)).strip_prefix(&root);
        let below = below.map_err(|_| io::Error::other("its path is not below the mount"))?;
        let at = self.mount(node, file.mount, &root)?;
        let (write_back, ino) = (&node.write_back, file.facts.version.ino);
        let before = write_back.guests_of(file.mount, ino);
        let flags = opening.flags & (OFlags::RWMODE | OFlags::APPEND) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let flags = if opening.truncated { flags | OFlags::TRUNC } else { flags };
        let content = openat(CWD, at.join(below), flags, Mode::empty())?;
        if fstat(&content)?.st_ino != ino {
            return Err(io::Error::other("another file has its name by now"));
        }
        let new = write_back.guests_of(file.mount, ino).difference(&before).next().copied();
        let refused = || io::Error::other("the node that has it refuses");
        let guest = new.and_then(|number| write_back.guest_away(number)).ok_or_else(refused)?;
        let words = guest.words.fd().ok_or_else(refused)?.try_clone_to_owned()?;
        Ok((guest.id.number, content, words))
    }

    /// Mounts the PFS for guests, if it is not; where.
    fn mount(&self, node: &Node, mount: usize, root: &Path) -> io::Result<PathBuf> {
        let at = node.config.state_dir.join("guests").join(mount.to_string());
        if statfs(&at).is_ok_and(|stat| stat.f_type == FUSE_SUPER_MAGIC) {
            return Ok(at);
        }
        let no_program = || io::Error::other("this agent does not know its own program");
        let program = self.program.as_ref().ok_or_else(no_program)?;
        // One whose process has died answers nothing; the new one takes its place.
        match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&at) {
            Err(e) if statfs(&at).err() != Some(Errno::NOTCONN) => return Err(e),
            _ => {}
        }
        let mut command = Command::new(program);
        command.arg("--socket").arg(node.config.socket()).arg("mount").arg("--for-guests");
        command.arg("--write-back").arg(root).arg(root).arg(&at);
        let output = command.stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(at),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
}
