//! Mounting and unmounting.
//!
//! Root mounts directly; other users mount through `fusermount3`, which is set-user-ID root. A
//! mount whose process has died answers every call with `ENOTCONN`. It is detached before a new
//! mount is made.

use crate::device::DATA_BYTES;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Type of the file system in the kernel's mount table.
pub const FS_TYPE: &str = forebay_pfs::mount::FOREBAY;

/// How to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// All users may use the mount, each with its own rights.
    pub for_all: bool,
    /// Read-only.
    pub read_only: bool,
    /// Set-user-ID programs work.
    pub suid: bool,
    /// Device files work.
    pub dev: bool,
    /// Programs cannot be started from it.
    pub noexec: bool,
    /// The kernel checks modes and owners as well.
    pub kernel_checks: bool,
}

/// Mounts; the descriptor is the connection to the kernel.
///
/// # Errors
/// What the kernel or `fusermount3` says.
pub fn mount(source: &Path, at: &Path, how: How) -> io::Result<OwnedFd> {
    match mount_directly(source, at, how) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !is_root() => {
            mount_by_helper(source, at, how)
        }
        result => result,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mount_directly(source: &Path, at: &Path, how: How) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("cannot open /dev/fuse: {e}")))?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={DATA_BYTES}",
        device.as_raw_fd()
    );
    if how.for_all {
        options += ",allow_other";
    }
    if how.kernel_checks {
        options += ",default_permissions";
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NOSUID, !how.suid);
    flags.set(MountFlags::NODEV, !how.dev);
    flags.set(MountFlags::NOEXEC, how.noexec);
    if how.read_only {
        flags |= MountFlags::RDONLY;
    }
    let options = CString::new(options)?;
    rustix::mount::mount(source, at, FS_TYPE, flags, options.as_c_str())?;
    Ok(device)
}

fn mount_by_helper(source: &Path, at: &Path, how: How) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut options = OsString::from("subtype=forebay,fsname=");
    // A comma or a backslash would end the option.
    let name: Vec<u8> = source
        .as_os_str()
        .as_bytes()
        .iter()
        .flat_map(|b| match b {
            b',' | b'\\' => vec![b'\\', *b],
            b => vec![*b],
        })
        .collect();
    options.push(std::ffi::OsStr::from_bytes(&name));
    options.push(format!(",max_read={DATA_BYTES}"));
    options.push(if how.read_only { ",nosuid,nodev,ro" } else { ",nosuid,nodev" });
    if how.noexec {
        options.push(",noexec");
    }
    if how.kernel_checks {
        options.push(",default_permissions");
    }
    // The helper gets the socket by its number.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let output = Command::new("fusermount3")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(at)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| {
            io::Error::new(e.kind(), format!("cannot run fusermount3 ({e}); install fuse3, or mount as root"))
        })?;
    drop(theirs);
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    receive_descriptor(&ours)
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::Error::other("fusermount3 has sent no descriptor"))
}

/// How far the kernel reads ahead of programs that read through its page cache: as much as two
/// answers hold.
const READ_AHEAD_KIB: usize = (2 * DATA_BYTES) >> 10;

/// Sets how far the kernel reads ahead. Only root may; the kernel's own choice is 128 KiB.
pub fn set_read_ahead(at: &Path) {
    // From what the kernel knows: the process that would answer asks for this.
    let how = AtFlags::STATX_DONT_SYNC;
    if let Ok(stat) = rustix::fs::statx(rustix::fs::CWD, at, how, StatxFlags::TYPE) {
        let device = format!("/sys/class/bdi/{}:{}/read_ahead_kb", stat.stx_dev_major, stat.stx_dev_minor);
        // Without it, reads of mapped files take more requests.
        let _ = std::fs::write(device, READ_AHEAD_KIB.to_string());
    }
}

/// Detaches mounts at `at` whose processes have died.
///
/// # Errors
/// What the kernel or `fusermount3` says.
pub fn detach_dead(at: &Path) -> io::Result<()> {
    while rustix::fs::stat(at).err() == Some(Errno::NOTCONN) {
        unmount(at, true)?;
    }
    Ok(())
}

/// Unmounts. `lazily` detaches the mount now, and it ends when no program uses it any more.
///
/// # Errors
/// `EBUSY`: a program has a file open, or its current directory there. `EINVAL`: nothing is
/// mounted there.
pub fn unmount(at: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) if !is_root() => unmount_by_helper(at, lazily),
        result => result.map_err(Into::into),
    }
}

fn unmount_by_helper(at: &Path, lazily: bool) -> io::Result<()> {
    let how = if lazily { "-uz" } else { "-u" };
    let output = Command::new("fusermount3").arg(how).arg("--").arg(at).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
