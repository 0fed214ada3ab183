//! Mounting, unmounting, and setting how far the kernel is to read ahead.
//!
//! As root we call mount(2) ourselves and hand the descriptor to the FUSE library: then the unmount
//! is ours too, and can be bounded in time. Other users go through `fusermount3`. Ending a mount
//! has three steps, each for a case that occurred: everything that waits is answered (a hang would
//! hold the unmount for its whole length); a plain unmount; and if files are still open, a forced
//! one that aborts the connection, so that their users get ENOTCONN instead of a hang in the
//! kernel.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{MountOption, Session, SessionACL, SessionUnmounter};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use super::fs::SlowFs;
use super::state::State;
use super::{Config, FS_TYPE};
use crate::LabError;
use crate::mountinfo::{self, MountLine};

/// Threads that take requests from the kernel. They never wait, so a few are enough; two copy in
/// parallel while two receive.
const REQUEST_THREADS: usize = 4;
/// How long an orderly end may take before the process ends without it.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// A mounted slow file system. Dropping it unmounts.
pub struct Mounted {
    state: Arc<State>,
    mount: PathBuf,
    helper: Option<SessionUnmounter>,
    session: Option<JoinHandle<io::Result<()>>>,
    /// Becomes readable (end of file) when the session has ended, whoever ended it.
    ended: OwnedFd,
}

impl Mounted {
    /// Mounts. When this returns, the file system can be used.
    ///
    /// # Errors
    /// If something prevents the mount, with the remedy: no `/dev/fuse`, no right to mount, an
    /// existing mount there. A dead mount (its server was killed) is removed, not complained about.
    pub fn start(config: &Config) -> Result<Self, LabError> {
        let mount = prepare_mount_point(&config.mount)?;
        raise_descriptor_limit();
        let state = Arc::new(State::new(config)?);
        let (mut session, direct) = open_session(&state, config, &mount)?;
        let helper = (!direct).then(|| session.unmount_callable());
        let (ended, ends) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| LabError::io("cannot make a pipe", error))?;
        let run = move || {
            let _closed_at_the_end = ends;
            session.run()
        };
        let thread = std::thread::Builder::new().name("slowfs-session".into());
        let session = thread.spawn(run).map_err(|error| LabError::io("cannot start a thread", error))?;
        let mounted = Self { state, mount, helper, session: Some(session), ended };
        mounted.set_read_ahead(config.read_ahead_or_default());
        Ok(mounted)
    }

    /// Where it is mounted, as a canonical path.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Readable as soon as the file system has gone, through [`Mounted::stop`] or an `umount` from
    /// outside.
    pub fn ended(&self) -> &OwnedFd {
        &self.ended
    }

    /// Unmounts and waits for the end, within seconds whatever hangs or is open.
    ///
    /// # Errors
    /// If the kernel refuses even the forced unmount, or a thread does not end.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), LabError> {
        let Some(session) = self.session.take() else { return Ok(()) };
        self.state.timer.drain();
        if !session.is_finished() {
            self.unmount().map_err(|error| {
                LabError::io(format!("cannot unmount {0}; try `umount -l {0}`", self.mount.display()), error)
            })?;
        }
        let deadline = Instant::now() + END_DEADLINE;
        while !session.is_finished() {
            if Instant::now() > deadline {
                return Err(LabError::new(format!(
                    "the session of {} did not end within {END_DEADLINE:?} of its unmount",
                    self.mount.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.state.timer.stop();
        match session.join() {
            Ok(Ok(())) => Ok(()),
            // A request was being received at the moment of the unmount; the kernel has ended it.
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            Ok(Err(error)) => Err(LabError::io("the FUSE session failed", error)),
            Err(_) => Err(LabError::new("a FUSE thread panicked; its message is above")),
        }
    }

    fn unmount(&mut self) -> io::Result<()> {
        if let Some(helper) = &mut self.helper {
            return helper.unmount();
        }
        match unmount(&self.mount, UnmountFlags::empty()) {
            // Not a mount point: an `umount` from outside was faster, and the session is about to
            // end.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(_) => match unmount(&self.mount, UnmountFlags::FORCE | UnmountFlags::DETACH) {
                Ok(()) | Err(Errno::INVAL) => Ok(()),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// FUSE cannot request more read-ahead than the default of 128 KiB; the mount's sysfs entry
    /// can. Without the right to write it, one stream reaches less than the whole bandwidth and
    /// everything else works, so that is not an error.
    fn set_read_ahead(&self, bytes: u64) {
        let ours = |line: &MountLine| line.mount_point == self.mount && line.fs_type == FS_TYPE;
        let Some(line) = mountinfo::read().into_iter().rev().find(ours) else { return };
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", line.device);
        let _ = std::fs::write(path, (bytes / 1024).to_string());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nobody is left to report to; `stop` is the way to learn of errors.
        let _ = self.end();
    }
}

fn open_session(
    state: &Arc<State>,
    config: &Config,
    mount: &Path,
) -> Result<(Session<SlowFs>, bool), LabError> {
    let mut options = fuser::Config::default();
    options.acl = if config.allow_other { SessionACL::All } else { SessionACL::Owner };
    options.n_threads = Some(REQUEST_THREADS);
    options.clone_fd = true;
    let fs = SlowFs(state.clone());
    let failed = |error| LabError::io(format!("cannot mount on {}", mount.display()), error);
    if rustix::process::geteuid().is_root() {
        let fuse = mount_directly(config, mount)?;
        let session = Session::from_fd(fs, fuse, options.acl, options.clone());
        return session.map(|session| (session, true)).map_err(|error| {
            let _ = unmount(mount, UnmountFlags::DETACH);
            failed(error)
        });
    }
    options.mount_options = vec![
        MountOption::FSName("forebay-slowfs".into()),
        MountOption::Subtype("forebay-slowfs".into()),
        MountOption::DefaultPermissions,
    ];
    let session = Session::new(fs, mount, &options);
    session.map(|session| (session, false)).map_err(|error| {
        LabError::io(
            format!(
                "cannot mount on {} without root; that needs fusermount3 (package fuse3) and access to /dev/fuse",
                mount.display()
            ),
            error,
        )
    })
}

fn mount_directly(config: &Config, mount: &Path) -> Result<OwnedFd, LabError> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|error| {
        LabError::io("cannot open /dev/fuse (in a container, pass it with --device /dev/fuse)", error)
    })?;
    let other = if config.allow_other { ",allow_other" } else { "" };
    let fd = device.as_raw_fd();
    let data = format!("fd={fd},rootmode=40755,user_id=0,group_id=0,default_permissions{other}");
    let data = CString::new(data).map_err(|error| LabError::io("mount options", io::Error::from(error)))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("forebay-slowfs", mount, FS_TYPE, flags, data.as_c_str()).map_err(|error| {
        LabError::io(
            format!("cannot mount on {} (in a container, CAP_SYS_ADMIN is needed)", mount.display()),
            error,
        )
    })?;
    Ok(device.into())
}

/// The canonical mount point, free of dead mounts.
fn prepare_mount_point(path: &Path) -> Result<PathBuf, LabError> {
    match path.metadata() {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            unmount(path, UnmountFlags::DETACH).map_err(|error| {
                let shown = path.display();
                LabError::io(
                    format!("{shown} is a dead mount (its server was killed); try `umount -l {shown}`"),
                    error,
                )
            })?;
        }
        Err(error) => {
            return Err(LabError::io(format!("cannot use {} as a mount point", path.display()), error));
        }
        Ok(meta) if !meta.is_dir() => {
            return Err(LabError::new(format!("{} is not a directory; mount on one", path.display())));
        }
        Ok(_) => {}
    }
    let path = path
        .canonicalize()
        .map_err(|error| LabError::io(format!("cannot use {} as a mount point", path.display()), error))?;
    if mountinfo::read().iter().any(|line| line.mount_point == path && line.fs_type == FS_TYPE) {
        let shown = path.display();
        return Err(LabError::new(format!(
            "a slow file system is mounted on {shown} already; `umount {shown}` ends it"
        )));
    }
    Ok(path)
}

/// Each open file costs a descriptor here and one in its program: take what the system allows, as
/// 10,000 open files are normal.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
