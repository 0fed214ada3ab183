//! Acts as the caller, so that the PFS decides what a program may do.
//!
//! A thread of this process takes on the caller's user, groups and capabilities before it calls the
//! PFS. The request names user and group. The supplementary groups and the capabilities are read
//! from `/proc` for each request, because a program may change them between requests; while it
//! waits for an answer it cannot. A right is granted only if it can be verified: a process in its
//! own user namespace has no capabilities here.
//!
//! A process that is not root serves its own user alone, and acts as itself.

use crate::abi::InHeader;
use crate::messages;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Files of `/proc` that are kept open.
const STATUS_MAX: usize = 128;

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_FSETID: u64 = 1 << 4;

/// Whose rights a call has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User and group for the file system.
    pub uid: u32,
    /// Group for the file system.
    pub gid: u32,
    groups: Vec<u32>,
    capabilities: u64,
}

impl Identity {
    /// Whether calls of these two are judged alike when they write.
    pub fn writes_like(&self, other: &Identity) -> bool {
        self.uid == other.uid && self.capabilities == other.capabilities
    }

    /// With the right to register a backing file, which only this process has.
    pub fn to_register_backing(&self) -> Identity {
        Identity { capabilities: self.capabilities | CAP_SYS_ADMIN, ..self.clone() }
    }
}

thread_local! {
    /// Whom this thread acts as; `None` until it acts as somebody.
    static ACTING: RefCell<Option<Identity>> = const { RefCell::new(None) };
    /// The umask of this thread, if it is not the process's.
    static UMASK: RefCell<Option<u32>> = const { RefCell::new(None) };
}

/// Callers, and this process itself.
#[derive(Debug)]
pub struct Callers {
    /// This process; `None` if it cannot act as others.
    daemon: Option<Identity>,
    user_namespace: u64,
    statuses: Mutex<HashMap<u32, Arc<OwnedFd>>>,
}

/// The part of a thread's `/proc/PID/status` that is needed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    fsuid: u32,
    groups: Vec<u32>,
    effective: u64,
    permitted: u64,
}

impl Status {
    /// Whether `access` and other calls of this thread have the same capabilities.
    fn is_alike_for_access(&self, uid: u32) -> bool {
        self.effective == self.permitted && (uid == 0 || self.effective == 0)
    }
}

/// Whether the thread asks for the rights of its real user, as `access` does. `chdir` and `access`
/// with `AT_EACCESS`, which ask in the same way, mean the effective rights.
fn asks_for_real_user(pid: u32) -> bool {
    let bytes = std::fs::read(format!("/proc/{pid}/syscall")).unwrap_or_default();
    // NUMBER ARGUMENT..., of which all but the number are hexadecimal.
    let line = String::from_utf8_lossy(&bytes);
    let mut words = line.split_whitespace();
    let number = words.next().and_then(|word| word.parse().ok());
    let flags = words.nth(3).and_then(|word| i64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    #[cfg(target_arch = "x86_64")]
    if number == Some(libc::SYS_access) {
        return true;
    }
    number == Some(libc::SYS_faccessat)
        || number == Some(libc::SYS_faccessat2)
            && flags.is_some_and(|flags| flags & i64::from(libc::AT_EACCESS) == 0)
}

impl Callers {
    /// Of this process. `may_switch`: it is root and serves all users.
    ///
    /// # Errors
    /// `/proc` says nothing about the callers of this process.
    pub fn new(may_switch: bool) -> io::Result<Self> {
        let own_number = rustix::process::getpid().as_raw_nonzero().to_string();
        if may_switch && std::fs::read_link("/proc/self")?.as_os_str() != own_number.as_str() {
            return Err(io::Error::other(
                "/proc is that of another PID namespace, so the groups of callers cannot be read; mount it anew \
                 in this namespace (`mount -t proc proc /proc`), or mount with --private",
            ));
        }
        let status = rustix::fs::open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let own = read_status(&status)?;
        let daemon = may_switch.then(|| Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: own.groups,
            capabilities: own.permitted,
        });
        Ok(Callers {
            daemon,
            user_namespace: user_namespace_of("/proc/self/ns/user").unwrap_or(0),
            statuses: Mutex::default(),
        })
    }

    /// Whether calls are made with the rights of other users.
    pub fn switches(&self) -> bool {
        self.daemon.is_some()
    }

    /// Acts as this process from now on, in this thread.
    pub fn act_as_daemon(&self) {
        if let Some(daemon) = &self.daemon {
            act_as(daemon);
        }
    }

    /// Acts as the caller from now on, in this thread.
    ///
    /// # Errors
    /// The groups and capabilities of the caller cannot be read, for example `EMFILE`.
    pub fn act_as_caller(&self, header: &InHeader) -> Result<(), Errno> {
        if self.daemon.is_some() {
            act_as(&self.identity(header, false)?);
        }
        Ok(())
    }

    /// As [`Callers::act_as_caller`], for `access`, which asks about the real user.
    ///
    /// # Errors
    /// As for [`Callers::act_as_caller`].
    pub fn act_as_real_caller(&self, header: &InHeader) -> Result<(), Errno> {
        if self.daemon.is_some() {
            act_as(&self.identity(header, true)?);
        }
        Ok(())
    }

    /// Acts as the writer of data. Pages that the kernel writes later name no user: `opener` has
    /// opened the file that they are written through.
    pub fn act_as_writer(&self, header: &InHeader, opener: Option<&Identity>, kill_suidgid: bool) {
        let Some(daemon) = &self.daemon else { return };
        let mut writer = match (opener, header.uid) {
            (Some(opener), _) => opener.clone(),
            (None, 0) => daemon.clone(),
            (None, uid) => Identity { uid, gid: header.gid, groups: Vec::new(), capabilities: 0 },
        };
        if kill_suidgid {
            writer.capabilities &= !CAP_FSETID;
        }
        act_as(&writer);
    }

    /// Whom this thread acts as now.
    pub fn acting(&self) -> Option<Identity> {
        ACTING.with_borrow(Clone::clone).or_else(|| self.daemon.clone())
    }

    /// Acts as `identity` from now on.
    pub fn act_as(&self, identity: &Identity) {
        if self.daemon.is_some() {
            act_as(identity);
        }
    }

    fn identity(&self, header: &InHeader, is_real: bool) -> Result<Identity, Errno> {
        let InHeader { uid, gid, pid, .. } = *header;
        let nobody = Identity { uid, gid, groups: Vec::new(), capabilities: 0 };
        let status = self.status(pid)?;
        let mine = self.daemon.as_ref().map_or(0, |daemon| daemon.capabilities);
        let is_real = is_real && (status.is_alike_for_access(uid) || asks_for_real_user(pid));
        let groups = status.groups;
        let capabilities = match (uid, is_real) {
            (0, true) => status.permitted,
            (_, true) => 0,
            // The kernel acts for a user other than the thread's: overlayfs for its mounter, or a
            // file server.
            (0, false) if status.fsuid != 0 => return Ok(Identity { capabilities: mine, ..nobody }),
            // Its groups are those of another user.
            (_, false) if status.fsuid != uid => return Ok(nobody),
            (_, false) => status.effective,
        };
        let is_trusted = capabilities == 0
            || user_namespace_of(&format!("/proc/{pid}/ns/user")) == Some(self.user_namespace);
        Ok(Identity { uid, gid, groups, capabilities: if is_trusted { capabilities & mine } else { 0 } })
    }

    /// What is not known is refused: without its groups, a caller would lose rights, or gain those
    /// that a mode gives to others and denies to its group.
    fn status(&self, pid: u32) -> Result<Status, Errno> {
        if pid == 0 {
            // The caller is in a PID namespace that this process does not see.
            return Err(Errno::ACCESS);
        }
        // `/proc` may be closed to the user as whom this thread acted last.
        self.act_as_daemon();
        let mut statuses = self.statuses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = statuses.get(&pid).cloned() {
            drop(statuses);
            // The descriptor refers to this thread, even if its number is reused.
            match read_status(&fd) {
                Err(Errno::SRCH) => {}
                result => return result,
            }
            statuses = self.statuses.lock().unwrap_or_else(PoisonError::into_inner);
            statuses.remove(&pid);
        }
        if statuses.len() >= STATUS_MAX {
            statuses.clear();
        }
        let path = format!("/proc/{pid}/status");
        let open = || rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let opened = match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                statuses.clear();
                open()
            }
            opened => opened,
        };
        // A caller that is gone waits for no answer.
        let fd = opened.map_err(|e| if e == Errno::NOENT { Errno::SRCH } else { e })?;
        let status = read_status(&fd)?;
        statuses.insert(pid, Arc::new(fd));
        Ok(status)
    }
}

/// Whether the thread `pid` is about to die, or is gone: nobody waits for its request. What cannot
/// be found out counts as alive.
pub fn is_dying(pid: u32) -> bool {
    if pid == 0 {
        // The thread is in another PID namespace: nothing is known about it.
        return false;
    }
    let text = match std::fs::read(format!("/proc/{pid}/status")) {
        Ok(text) => text,
        Err(e) => return matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    };
    let kill = 1_u64 << (libc::SIGKILL - 1);
    let pends = |name: &str| field(&text, name).and_then(hex).is_some_and(|set| set & kill != 0);
    pends("SigPnd:")
        || pends("ShdPnd:")
        || field(&text, "State:").is_some_and(|state| state.starts_with(['Z', 'X']))
}

fn user_namespace_of(path: &str) -> Option<u64> {
    rustix::fs::statat(rustix::fs::CWD, path, AtFlags::empty()).ok().map(|stat| stat.st_ino)
}

/// The value of a field of `/proc/PID/status`. The first line is the program's name, which may be
/// any bytes; the kernel writes a line break in it as `\\n`.
fn field<'a>(text: &'a [u8], name: &str) -> Option<&'a str> {
    let lines = text.split(|byte| *byte == b'\n').skip(1);
    let value = lines.filter_map(|line| line.strip_prefix(name.as_bytes())).next()?;
    std::str::from_utf8(value).ok().map(str::trim)
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

/// # Errors
/// `ESRCH`: the thread is gone. `EIO`: this is not what the kernel is known to write.
fn read_status(fd: &OwnedFd) -> Result<Status, Errno> {
    let mut room = [0; 4096];
    let n = rustix::io::pread(fd, &mut room[..], 0)?;
    if n < room.len() {
        return parse_status(&room[..n]).ok_or(Errno::IO);
    }
    // Thousands of groups.
    let mut room = vec![0; 1 << 20];
    let n = rustix::io::pread(fd, &mut room[..], 0)?;
    parse_status(&room[..n]).ok_or(Errno::IO)
}

fn parse_status(text: &[u8]) -> Option<Status> {
    let groups = field(text, "Groups:")?.split_whitespace();
    Some(Status {
        fsuid: field(text, "Uid:")?.split_whitespace().nth(3)?.parse().ok()?,
        groups: groups.map(|group| group.parse().ok()).collect::<Option<_>>()?,
        effective: hex(field(text, "CapEff:")?)?,
        permitted: hex(field(text, "CapPrm:")?)?,
    })
}

/// The three raw calls change this thread alone; those of the C library change all threads.
fn act_as(identity: &Identity) {
    ACTING.with_borrow_mut(|acting| {
        if acting.as_ref() == Some(identity) {
            return;
        }
        let is_other = acting
            .as_ref()
            .is_none_or(|a| (a.uid, a.gid, &a.groups) != (identity.uid, identity.gid, &identity.groups));
        if is_other {
            set_effective(u64::MAX);
            // SAFETY: the list has as many elements; the other calls take no pointers.
            let done = unsafe {
                let groups =
                    libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr());
                libc::syscall(libc::SYS_setfsgid, identity.gid);
                libc::syscall(libc::SYS_setfsuid, identity.uid);
                // The call returns the old value; asking with an impossible one tells whether it is
                // set.
                groups == 0
                    && libc::syscall(libc::SYS_setfsuid, -1_i32) == libc::c_long::from(identity.uid)
                    && libc::syscall(libc::SYS_setfsgid, -1_i32) == libc::c_long::from(identity.gid)
            };
            give_up_unless(done, "the user and groups of a caller");
        }
        set_effective(identity.capabilities);
        *acting = Some(identity.clone());
    });
}

/// Ends the process on a failure: the thread would otherwise act with other rights.
fn give_up_unless(done: bool, what: &str) {
    if !done {
        messages::say(&format!("forebay mount: cannot take over {what}; the mount ends"));
        std::process::abort();
    }
}

/// Makes those of this thread's permitted capabilities effective that are in `wanted`.
fn set_effective(wanted: u64) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: the header of version 3 goes with two elements.
    let done = unsafe {
        libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) == 0 && {
            for (part, data) in data.iter_mut().enumerate() {
                data.effective = (wanted >> (32 * part)) as u32 & data.permitted;
            }
            libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) == 0
        }
    };
    give_up_unless(done, "the capabilities of a caller");
}

/// Drops the capabilities that this process has in its own user namespace, so that the PFS treats
/// it as its user.
pub fn drop_capabilities() {
    set_effective(0);
}

/// Gives this thread its own umask, working directory and root.
///
/// # Errors
/// What `unshare` returns.
pub fn own_umask() -> std::io::Result<()> {
    // SAFETY: no pointers; the files of this process stay shared.
    let done = unsafe { libc::unshare(libc::CLONE_FS) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Creates files with the caller's umask from now on; the PFS applies it, or not where a directory
/// has a default ACL.
pub fn use_umask(umask: u32) {
    UMASK.with_borrow_mut(|current| {
        if current.replace(umask) != Some(umask) {
            rustix::process::umask(Mode::from_raw_mode(umask));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_this_thread_is_read() {
        let fd = rustix::fs::open("/proc/self/status", OFlags::RDONLY, Mode::empty()).unwrap();
        let status = read_status(&fd).unwrap();
        assert_eq!(status.fsuid, rustix::process::geteuid().as_raw());
        assert_eq!(status.effective & status.permitted, status.effective);
        assert!(!is_dying(std::process::id()));
    }

    #[test]
    fn a_programs_name_is_no_field() {
        let rest = "\nUid:\t1\t1\t1\t7\nGroups:\t4 5 \nCapPrm:\t3\nCapEff:\t1\n";
        for name in [&b"\xff"[..], b"a\\nGroups:\t0", b"Groups: 0", b") Uid: 0"] {
            let status = parse_status(&[b"Name:\t", name, rest.as_bytes()].concat()).unwrap();
            assert_eq!((status.fsuid, status.groups, status.effective), (7, vec![4, 5], 1));
        }
        assert_eq!(parse_status(b"Name:\tx\nUid:\t1\t1\t1\t1\n"), None);
    }

    #[test]
    fn a_process_that_is_gone_is_dying() {
        assert!(is_dying(u32::MAX));
    }
}
