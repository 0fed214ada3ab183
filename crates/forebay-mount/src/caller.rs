//! Acts as the caller, so that the PFS decides what a program may do.
//!
//! A thread of this process takes on the caller's user, groups and capabilities before it calls the
//! PFS. The request names user and group. The kernel is asked for the supplementary groups and the
//! capabilities at each request, because a program may change them between requests; while it waits
//! for an answer it cannot ([`crate::credentials`]). A right is granted only if it can be verified:
//! a process in its own user namespace has no capabilities here.
//!
//! A process that is not root serves its own user alone, and acts as itself.

use crate::abi::InHeader;
use crate::credentials::{Credentials, Threads, own_credentials};
use crate::messages;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::cell::{OnceCell, RefCell};
use std::io;
use std::sync::Arc;

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_FSETID: u64 = 1 << 4;

/// A thread has it while it looks at callers ([`crate::credentials`]), and not while it calls the
/// PFS: `/proc` may be mounted below.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// The identity whose rights a call has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User and group for the file system.
    pub uid: u32,
    /// Group for the file system.
    pub gid: u32,
    groups: Arc<[u32]>,
    capabilities: u64,
}

impl Identity {
    /// Whether calls of these two are judged alike when they write.
    pub fn writes_like(&self, other: &Identity) -> bool {
        self.uid == other.uid && self.capabilities == other.capabilities
    }

    /// The same identity, with the right to register a backing file, which only this process has.
    pub fn to_register_backing(&self) -> Identity {
        Identity { capabilities: self.capabilities | CAP_SYS_ADMIN, ..self.clone() }
    }
}

thread_local! {
    /// The identity that this thread acts as; `None` until it acts as one.
    static ACTING: RefCell<Option<Identity>> = const { RefCell::new(None) };
    /// The umask of this thread, if it is not the process's.
    static UMASK: RefCell<Option<u32>> = const { RefCell::new(None) };
}

/// Callers, and this process itself.
#[derive(Debug)]
pub struct Callers {
    /// This process; `None` if it cannot act as others.
    daemon: Option<Identity>,
    threads: Threads,
}

impl Callers {
    /// Callers of this process. `may_switch`: it is root and serves all users.
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
        let own = own_credentials()?;
        let daemon = may_switch.then(|| Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: own.groups,
            capabilities: own.permitted,
        });
        Ok(Callers { daemon, threads: Threads::default() })
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
            (None, uid) => Identity { uid, gid: header.gid, groups: Arc::default(), capabilities: 0 },
        };
        if kill_suidgid {
            writer.capabilities &= !CAP_FSETID;
        }
        act_as(&writer);
    }

    /// The identity that this thread acts as now.
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
        let nobody = Identity { uid, gid, groups: Arc::default(), capabilities: 0 };
        // `/proc` may be closed to the user that this thread last acted as.
        let prepare = || self.act_as_daemon();
        let thread = self.threads.get(pid, prepare)?;
        let found = OnceCell::new();
        let is_own_namespace = || *found.get_or_init(|| thread.is_in_own_namespace(prepare));
        let is = with_right_to_look(|| thread.credentials(uid, is_own_namespace, prepare))?;
        let mine = self.daemon.as_ref().map_or(0, |daemon| daemon.capabilities);
        let is_real = is_real && (is.are_alike_for_access(uid) || thread.asks_for_real_user(prepare));
        let Credentials { fsuid, groups, effective, permitted } = is;
        let capabilities = match (uid, is_real) {
            (0, true) => permitted,
            (_, true) => 0,
            // The kernel acts for a user other than the thread's: overlayfs for its mounter, or a
            // file server.
            (0, false) if fsuid != 0 => return Ok(Identity { capabilities: mine, ..nobody }),
            // Its groups are those of another user.
            (_, false) if fsuid != uid => return Ok(nobody),
            (_, false) => effective,
        };
        let is_trusted = capabilities == 0 || is_own_namespace();
        Ok(Identity { uid, gid, groups, capabilities: if is_trusted { capabilities & mine } else { 0 } })
    }
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
                // The call returns the old value; asking with an impossible one shows whether it is
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

/// Looks at a caller with the right to do so.
fn with_right_to_look<R>(look: impl FnOnce() -> R) -> R {
    let acting = || ACTING.with_borrow(|acting| acting.as_ref().map(|identity| identity.capabilities));
    let Some(own) = acting().filter(|own| own & CAP_SYS_PTRACE == 0) else { return look() };
    set_effective(own | CAP_SYS_PTRACE);
    let result = look();
    // It may act as the daemon by now.
    acting().into_iter().for_each(set_effective);
    result
}

/// Ends the process on a failure: the thread would otherwise act with other rights.
fn give_up_unless(done: bool, what: &str) {
    if !done {
        messages::say(&format!("forebay mount: cannot take over {what}; the mount ends"));
        std::process::abort();
    }
}

/// Makes effective those of this thread's permitted capabilities that are in `wanted`.
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
