//! The groups and capabilities of a thread that has called.
//!
//! Only `/proc/PID/status` shows the groups, and the kernel takes 5 to 10 microseconds to write it:
//! as long as a request takes otherwise. So the groups are remembered as long as they cannot have
//! changed. A thread may change them only
//! - with `CAP_SETGID`. The kernel is asked for the capabilities at each request, which is cheap; a
//!   thread that had this one when its groups were read may have used it since. For a thread whose
//!   capabilities open all files, groups decide nothing on this node.
//! - by executing another program, such as `newgrp`. Then the list of robust futexes, which the
//!   C library has registered, is another one: its address is random. Without a list (a program
//!   without the C library, or a process that has just been forked), or where the kernel does not
//!   choose addresses at random, nothing is remembered.
//!
//! A program could register a list at the address that its predecessor had, but gains nothing: it
//! would keep the groups that this process had, which it could have kept anyway.

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Threads whose descriptors are kept.
const THREADS_MAX: usize = 128;

const CAP_SETGID: u64 = 1 << 6;

/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER` and `CAP_FSETID`.
const ALL_FILES: u64 = 0x1f;

/// `PIDFD_THREAD`, of Linux 6.9.
const PIDFD_THREAD: u32 = libc::O_EXCL as u32;

/// `PIDFD_GET_USER_NAMESPACE`, of Linux 6.11.
const GET_USER_NAMESPACE: libc::Ioctl = 0xff09;

/// What decides about a thread's rights, besides what a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The user for the file system.
    pub fsuid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// Capabilities that it uses now.
    pub effective: u64,
    /// Capabilities that it may use.
    pub permitted: u64,
}

impl Credentials {
    /// Whether `access` and other calls of this thread have the same capabilities.
    pub fn are_alike_for_access(&self, uid: u32) -> bool {
        self.effective == self.permitted && (uid == 0 || self.effective == 0)
    }
}

/// A thread that has called.
#[derive(Debug)]
pub struct Thread {
    number: u32,
    /// Both refer to this thread, even if its number is reused. `None` before Linux 6.9, if it is
    /// not the first thread of its process.
    pidfd: Option<OwnedFd>,
    status: OwnedFd,
    known: Mutex<Option<Known>>,
}

/// What was read, and of which program.
#[derive(Clone, Debug)]
struct Known {
    program: usize,
    credentials: Credentials,
}

/// Threads that have called, by their numbers.
#[derive(Debug, Default)]
pub struct Threads(Mutex<HashMap<u32, Arc<Thread>>>);

impl Threads {
    /// The thread of this number. `prepare` gives this thread the right to look.
    ///
    /// # Errors
    /// `EACCES`: it is in a PID namespace that this process does not see. `ESRCH`: it is gone, and
    /// waits for no answer. Without its groups, a caller would lose rights, or gain those that a
    /// mode gives to others and denies to its group.
    pub fn get(&self, number: u32, prepare: impl Fn()) -> Result<Arc<Thread>, Errno> {
        if number == 0 {
            return Err(Errno::ACCESS);
        }
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&number).cloned();
        if let Some(thread) = known.filter(|thread| thread.lives()) {
            return Ok(thread);
        }
        prepare();
        let thread = match Thread::new(number) {
            Err(Errno::MFILE | Errno::NFILE) => {
                lock().clear();
                Thread::new(number)
            }
            result => result,
        };
        let thread = Arc::new(thread?);
        let mut threads = lock();
        if threads.len() >= THREADS_MAX {
            threads.clear();
        }
        threads.insert(number, thread.clone());
        Ok(thread)
    }
}

impl Thread {
    fn new(number: u32) -> Result<Self, Errno> {
        let pidfd = pidfd_of(number, PIDFD_THREAD).or_else(|| pidfd_of(number, 0));
        let path = format!("/proc/{number}/status");
        let status = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let status = status.map_err(|e| if e == Errno::NOENT { Errno::SRCH } else { e })?;
        Ok(Thread { number, pidfd, status, known: Mutex::default() })
    }

    /// Whether the number still is that of this thread. Without a descriptor for it, a thread is
    /// looked up again each time.
    fn lives(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        // SAFETY: signal 0 is not sent, and there is nothing to say about it.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, std::ptr::null::<u8>(), 0)
        };
        sent == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }

    /// Its credentials. A caller waits for the answer, so this thread lives, and has its number.
    /// `is_own_namespace` is asked if that matters.
    ///
    /// # Errors
    /// `EIO`: `/proc` does not have what the kernel is known to write.
    pub fn credentials(
        &self,
        uid: u32,
        is_own_namespace: impl Fn() -> bool,
        prepare: impl FnOnce(),
    ) -> Result<Credentials, Errno> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| known.credentials.fsuid == uid)
            && let Some((effective, permitted)) = capabilities_of(self.number)
        {
            let may_change = (permitted | known.credentials.permitted) & CAP_SETGID != 0;
            let opens_all = || effective & ALL_FILES == ALL_FILES && is_own_namespace();
            if (!may_change || opens_all()) && program_of(self.number) == Some(known.program) {
                return Ok(Credentials { effective, permitted, ..known.credentials });
            }
        }
        prepare();
        let program = program_of(self.number);
        let credentials = read_status(&self.status)?;
        let known = program.map(|program| Known { program, credentials: credentials.clone() });
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(credentials)
    }

    /// Whether it is in the user namespace of this process.
    pub fn is_in_own_namespace(&self, prepare: impl FnOnce()) -> bool {
        static OWN: OnceLock<Option<u64>> = OnceLock::new();
        let of_path = |path: &str| {
            rustix::fs::statat(rustix::fs::CWD, path, AtFlags::empty()).ok().map(|stat| stat.st_ino)
        };
        let own = *OWN.get_or_init(|| of_path("/proc/self/ns/user"));
        let of_thread = self.namespace().or_else(|| {
            prepare();
            of_path(&format!("/proc/{}/ns/user", self.number))
        });
        own.is_some() && own == of_thread
    }

    /// Whether the thread asks for the rights of its real user, as `access` does. `chdir` and
    /// `access` with `AT_EACCESS`, which ask in the same way, mean the effective rights.
    pub fn asks_for_real_user(&self, prepare: impl FnOnce()) -> bool {
        prepare();
        let bytes = std::fs::read(format!("/proc/{}/syscall", self.number)).unwrap_or_default();
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

    fn namespace(&self) -> Option<u64> {
        let pidfd = self.pidfd.as_ref()?;
        // SAFETY: the request takes no argument; the descriptor is new.
        let namespace = unsafe {
            let fd = libc::ioctl(pidfd.as_raw_fd(), GET_USER_NAMESPACE, 0);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        rustix::fs::fstat(namespace?).ok().map(|stat| stat.st_ino)
    }
}

fn pidfd_of(number: u32, flags: u32) -> Option<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, number, flags);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}

/// The effective and the permitted capabilities of a thread.
fn capabilities_of(number: u32) -> Option<(u64, u64)> {
    let header = [0x2008_0522, number];
    let mut data = [[0_u32; 3]; 2];
    // SAFETY: the header of version 3 goes with two elements of three words.
    let done = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
    let word = |at: usize| u64::from(data[0][at]) | u64::from(data[1][at]) << 32;
    (done == 0).then(|| (word(0), word(1)))
}

/// The address of the list of robust futexes of a thread, if it has one.
fn program_of(number: u32) -> Option<usize> {
    static IS_RANDOM: OnceLock<bool> = OnceLock::new();
    let setting = || std::fs::read("/proc/sys/kernel/randomize_va_space").unwrap_or_default();
    if !*IS_RANDOM.get_or_init(|| [&b"1\n"[..], b"2\n"].contains(&&*setting())) {
        return None;
    }
    let (mut head, mut len) = (0_usize, 0_usize);
    // SAFETY: the call sets two words.
    let done = unsafe { libc::syscall(libc::SYS_get_robust_list, number, &raw mut head, &raw mut len) };
    (done == 0 && head != 0).then_some(head)
}

/// The credentials of this thread.
///
/// # Errors
/// They cannot be read.
pub fn own_credentials() -> Result<Credentials, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    read_status(&rustix::fs::open("/proc/thread-self/status", flags, Mode::empty())?)
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
fn read_status(fd: &OwnedFd) -> Result<Credentials, Errno> {
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

fn parse_status(text: &[u8]) -> Option<Credentials> {
    let groups = field(text, "Groups:")?.split_whitespace();
    Some(Credentials {
        fsuid: field(text, "Uid:")?.split_whitespace().nth(3)?.parse().ok()?,
        groups: groups.map(|group| group.parse().ok()).collect::<Option<_>>()?,
        effective: hex(field(text, "CapEff:")?)?,
        permitted: hex(field(text, "CapPrm:")?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_this_thread_is_read() {
        let status = own_credentials().unwrap();
        assert_eq!(status.fsuid, rustix::process::geteuid().as_raw());
        assert_eq!(status.effective & status.permitted, status.effective);
        assert!(!is_dying(std::process::id()));
    }

    #[test]
    fn a_programs_name_is_no_field() {
        let rest = "\nUid:\t1\t1\t1\t7\nGroups:\t4 5 \nCapPrm:\t3\nCapEff:\t1\n";
        for name in [&b"\xff"[..], b"a\\nGroups:\t0", b"Groups: 0", b") Uid: 0"] {
            let status = parse_status(&[b"Name:\t", name, rest.as_bytes()].concat()).unwrap();
            assert_eq!((status.fsuid, &*status.groups, status.effective), (7, &[4, 5][..], 1));
        }
        assert_eq!(parse_status(b"Name:\tx\nUid:\t1\t1\t1\t1\n"), None);
    }

    #[test]
    fn a_process_that_is_gone_is_dying() {
        assert!(is_dying(u32::MAX));
    }
}
