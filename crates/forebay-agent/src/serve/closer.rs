//! Closes descriptors of file systems that this agent does not serve, in processes that may hang.
//!
//! Any user can send the agent a descriptor of a file system of their own. The kernel asks that
//! file system's server at each close, and waits for the answer without end, even in a process that
//! is being killed: the agent would never end, and would keep its locks, ports and connections. So
//! a process of its own shares the agent's table of descriptors. It closes what the agent names in
//! a child for each packet; a descriptor that hangs has left the table by then, and holds that
//! child alone. When the agent is gone, however it ended, this process closes what is left:
//! connections and ports first, then locks, so that the next holder of the locks can have the
//! ports.
//!
//! Why not a thread: a thread that hangs keeps its process, and with it the table. Why not a
//! process that is sent the descriptors: the agent would still have to close its own.

use crate::lock::lock;
use crate::mounts::MountState;
use crate::mounts::admit::{Place, device_without_asking};
use forebay_pfs::mount::is_kernels_own;
use forebay_store::Tier;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Children that a user's descriptors keep waiting before that user is served no more until one is
/// done.
pub const USER_MAX: usize = 8;

/// Most children at a time, for all users. Beyond that descriptors stay open, and still count for
/// their users.
const CHILDREN_MAX: usize = 256;

/// After the agent's end: how long one child is waited for before the next one closes what is left.
const ROUND: Duration = Duration::from_millis(200);

/// Most descriptors that may hang after the agent's end. Each round leaves at least one behind.
const ROUNDS_MAX: usize = 256;

/// The agent's end of the closing process.
#[derive(Debug)]
pub struct Closer {
    process: Option<Pid>,
    socket: OwnedFd,
    socket_device: u64,
    /// Packets whose descriptors are not closed yet, by user.
    waiting: Mutex<BTreeMap<u32, usize>>,
}

/// A descriptor that came with a request, and where it leads.
#[derive(Debug)]
pub struct Sent {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Where the file is.
    pub place: Place,
}

impl Closer {
    /// Starts the closing process. Its parent must be the main thread, which lives as long as the
    /// agent does; and the process must have no other thread yet.
    ///
    /// # Errors
    /// There is another thread, or the kernel refuses a process or a socket.
    pub fn start() -> io::Result<Self> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 {
            return Err(io::Error::other("the closing process must be started before any thread"));
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let socket_device = device_without_asking(ours.as_fd())?;
        let agent = rustix::process::getpid();
        let blocked = block_signals()?;
        let child = start_sharing_descriptors(|| serve(&theirs, socket_device, agent));
        blocked.restore();
        let process = child?;
        // The table is shared: the number belongs to the other process now.
        let _ = theirs.into_raw_fd();
        Ok(Closer { process: Some(process), socket: ours, socket_device, waiting: Mutex::default() })
    }

    /// A closer without a process, for an agent among other threads: what the process would close
    /// stays open, and counts for its user.
    ///
    /// # Errors
    /// The kernel refuses a socket.
    pub fn absent() -> io::Result<Self> {
        let (socket, _) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let socket_device = device_without_asking(socket.as_fd())?;
        Ok(Closer { process: None, socket, socket_device, waiting: Mutex::default() })
    }

    /// Whether the process is there to close everything when the agent has ended.
    pub fn is_alive(&self) -> bool {
        self.process.is_some_and(|pid| matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)))
    }

    /// Keeps those of `fds` whose close waits for nobody but this kernel or a served mount. Each
    /// other one is replaced by a socket, which proves nothing; the descriptor itself is closed
    /// elsewhere, and counts for `uid` until then. Also returns how many were replaced.
    ///
    /// # Errors
    /// No descriptor is left for a stand-in.
    pub fn keep_known(
        &self,
        mounts: &[MountState],
        tier: &Tier,
        uid: u32,
        fds: Vec<OwnedFd>,
    ) -> io::Result<(Vec<Sent>, u64)> {
        let (mut kept, mut foreign) = (Vec::with_capacity(fds.len()), Vec::new());
        for fd in fds {
            match Place::of(mounts, fd.as_fd()) {
                Ok(place) if self.closes_at_once(tier, &place) => kept.push(Some(Sent { fd, place })),
                Ok(_) | Err(_) => {
                    foreign.push(fd.into_raw_fd());
                    kept.push(None);
                }
            }
        }
        if !foreign.is_empty() {
            self.close(uid, &foreign);
        }
        let kept = kept.into_iter().map(|sent| sent.map_or_else(|| self.placeholder(), Ok));
        kept.collect::<io::Result<_>>().map(|kept| (kept, foreign.len() as u64))
    }

    fn placeholder(&self) -> io::Result<Sent> {
        let place = Place { device: self.socket_device, ino: 0, mount: None };
        Ok(Sent { fd: self.socket.try_clone()?, place })
    }

    fn closes_at_once(&self, tier: &Tier, place: &Place) -> bool {
        place.mount.is_some()
            || place.device == self.socket_device
            || tier.device().is_ok_and(|tier| tier == place.device)
            || is_kernels_own(place.device)
    }

    fn close(&self, uid: u32, fds: &[RawFd]) {
        *lock(&self.waiting).entry(uid).or_insert(0) += 1;
        let words = [uid].into_iter().chain(fds.iter().map(|fd| fd.unsigned_abs()));
        let packet: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        if let Err(e) = send(&self.socket, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            tracing::warn!(uid, error = %e, "descriptors of a foreign file system stay open");
        }
    }

    /// Packets of user `uid`, or of all, whose descriptors are not closed yet.
    pub fn waiting(&self, uid: Option<u32>) -> usize {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return 0;
        }
        let mut word = [0u8; 4];
        while let Ok((4, _)) = recv(&self.socket, &mut word, RecvFlags::DONTWAIT) {
            let done = u32::from_ne_bytes(word);
            if let Some(count) = waiting.get_mut(&done) {
                *count -= 1;
                if *count == 0 {
                    waiting.remove(&done);
                }
            }
        }
        match uid {
            Some(uid) => waiting.get(&uid).copied().unwrap_or(0),
            None => waiting.values().sum(),
        }
    }
}

/// The signals that were not blocked before.
struct Blocked(libc::sigset_t);

/// Blocks all signals: a terminal's Ctrl-C, or a manager that ends all processes of a service, must
/// not end the closing process before the agent.
fn block_signals() -> io::Result<Blocked> {
    // SAFETY: sigset_t is plain data; both sets live on this stack and are initialised by the
    // calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) {
            0 => Ok(Blocked(before)),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }
}

impl Blocked {
    fn restore(self) {
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Runs `act` in a child that shares this process's table of descriptors and copies its memory.
fn start_sharing_descriptors(act: impl FnOnce()) -> io::Result<Pid> {
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with no stack given this is fork, in a process of one thread;
    // the child never returns.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) } {
        0 => {
            act();
            // SAFETY: ends this process alone, without what the parent has registered for its own
            // exit.
            unsafe { libc::_exit(0) }
        }
        pid => Pid::from_raw(pid as i32).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error),
    }
}

/// The closing process: does as asked until the agent is gone, and then closes everything.
fn serve(socket: &OwnedFd, socket_device: u64, agent: Pid) {
    let _ = rustix::thread::set_name(c"forebay-closer");
    let prepared = set_parent_process_death_signal(Some(Signal::USR1)).map_err(io::Error::from);
    let Ok(signals) = prepared.and_then(|()| signals()) else { return };
    if rustix::process::getppid() == Some(agent) {
        serve_until_the_end(socket, &signals);
    }
    close_everything(socket_device);
}

/// Wakes this process when a child or the agent has ended.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is plain data on this stack; the descriptor is new and nobody else's.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn serve_until_the_end(socket: &OwnedFd, signals: &OwnedFd) {
    let mut children = Vec::new();
    let mut packet = [0u8; 4096];
    loop {
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN), PollFd::new(signals, PollFlags::IN)], None);
        if agent_has_ended(signals) {
            return;
        }
        while let Ok(Some((pid, _))) = waitpid(None, WaitOptions::NOHANG) {
            if let Some(i) = children.iter().position(|(child, _)| *child == pid) {
                let (_, uid): (Pid, [u8; 4]) = children.swap_remove(i);
                let _ = send(socket, &uid, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
        let Ok((len @ 4.., _)) = recv(socket, &mut packet, RecvFlags::DONTWAIT) else { continue };
        let (words, _) = packet[..len].as_chunks::<4>();
        if children.len() < CHILDREN_MAX
            && let Ok(pid) = start_sharing_descriptors(|| words[1..].iter().for_each(close_word))
        {
            children.push((pid, words[0]));
        }
    }
}

fn agent_has_ended(signals: &OwnedFd) -> bool {
    let mut ended = false;
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    while let Ok(128..) = rustix::io::read(signals, &mut info) {
        // The number of the signal comes first.
        ended |= info[..4] == (libc::SIGUSR1 as u32).to_ne_bytes();
    }
    ended
}

fn close_word(word: &[u8; 4]) {
    close(i32::from_ne_bytes(*word));
}

fn close(fd: RawFd) {
    // SAFETY: the former owner of this number has given it up, or is gone.
    unsafe { libc::close(fd) };
}

fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let mut all: Vec<RawFd> = entries.filter_map(number).collect();
    all.sort_unstable();
    all
}

/// Closes all that is in the table, and leaves children behind with what hangs.
fn close_everything(socket_device: u64) {
    let is_socket = |device| device == socket_device;
    for closes_at_once in [&is_socket as &dyn Fn(u64) -> bool, &is_kernels_own] {
        for fd in open_descriptors() {
            // SAFETY: the number is in the table, or the call fails.
            let device = device_without_asking(unsafe { BorrowedFd::borrow_raw(fd) });
            if device.is_ok_and(closes_at_once) {
                close(fd);
            }
        }
    }
    for _ in 0..ROUNDS_MAX {
        let started = start_sharing_descriptors(|| open_descriptors().into_iter().for_each(close));
        let Ok(child) = started else { return };
        let deadline = Instant::now() + ROUND;
        while let Ok(None) = waitpid(Some(child), WaitOptions::NOHANG) {
            if Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if open_descriptors().len() <= 1 {
            return;
        }
    }
}
