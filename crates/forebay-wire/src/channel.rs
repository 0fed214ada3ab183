//! Packets with descriptors over a Unix socket.

use crate::frame;
use crate::message::{Refusal, Reply};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with, sockopt,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Largest packet either side sends. Well below the default socket buffer (208 KiB), which bounds a
/// SEQPACKET message.
pub const MAX_PACKET_BYTES: usize = 64 << 10;

/// Most descriptors in one packet. The kernel allows 253; 64 keeps one batch of `load` well inside
/// a process's limits.
pub const MAX_FDS: usize = 64;

/// How long an answer is looked for before the thread goes to sleep. An agent answers an open in 10
/// to 20 us; a processor that has gone idle meanwhile takes as long again, in a virtual machine
/// three times, to come back.
const SPIN: Duration = Duration::from_micros(30);

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// A decoded packet and the descriptors that came with it.
#[derive(Debug)]
pub struct Received<T> {
    /// The message.
    pub message: T,
    /// Its descriptors, in the order they were sent.
    pub fds: Vec<OwnedFd>,
}

/// A buffer for one packet. One is kept for the next user, because clearing 64 KiB for every answer
/// would cost more than the answer; users at the same time make their own. It is not a thread's
/// own, because the first use of a variable that a thread's end destroys allocates in the C
/// library, which a client in a signal handler must not. Nobody waits for the lock.
struct PacketBuffer(Vec<u8>);

static SPARE_BUFFER: Mutex<Option<Vec<u8>>> = Mutex::new(None);

impl PacketBuffer {
    fn take() -> Self {
        let spare = SPARE_BUFFER.try_lock().ok().and_then(|mut spare| spare.take());
        PacketBuffer(spare.unwrap_or_else(|| vec![0; MAX_PACKET_BYTES]))
    }
}

impl Drop for PacketBuffer {
    fn drop(&mut self) {
        if let Ok(mut spare) = SPARE_BUFFER.try_lock() {
            *spare = Some(std::mem::take(&mut self.0));
        }
    }
}

impl Channel {
    /// Takes over a connected SEQPACKET socket.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Channel { socket }
    }

    /// The same connection through the descriptor that `place` makes of its own.
    #[must_use]
    pub fn moved(self, place: impl FnOnce(OwnedFd) -> OwnedFd) -> Self {
        Channel { socket: place(self.socket) }
    }

    /// Connects to the agent's socket at `path`. Waits without bound if its accept queue is full;
    /// see [`Channel::connect_within`].
    ///
    /// # Errors
    /// `ENOENT`: no agent has been here; `ECONNREFUSED`: its socket is left but nobody listens;
    /// `EACCES`: not permitted.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel { socket })
    }

    /// As [`Channel::connect`], for an agent that may hang: once its accept queue is full, the next
    /// connection waits for room. `limit` bounds that wait, and every later send
    /// ([`Channel::set_send_timeout`]).
    ///
    /// # Errors
    /// As [`Channel::connect`]. `TimedOut`: there was no room.
    pub fn connect_within(path: &Path, limit: Duration) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (channel, address) = (Channel { socket }, SocketAddrUnix::new(path)?);
        let deadline = Instant::now() + limit;
        let mut left = limit;
        while !left.is_zero() {
            // On a Unix socket the send timeout bounds connecting too.
            channel.set_send_timeout(left)?;
            match connect(&channel.socket, &address) {
                Ok(()) => {
                    channel.set_send_timeout(limit)?;
                    return Ok(channel);
                }
                // With a timeout set, the kernel does not restart the call after a signal.
                Err(Errno::INTR) => left = deadline.saturating_duration_since(Instant::now()),
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no room for a connection in time"))
    }

    /// Bounds every later send: if the peer no longer takes packets, it fails with `WouldBlock`
    /// after `limit`.
    ///
    /// # Errors
    /// The kernel refused the option.
    pub fn set_send_timeout(&self, limit: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Send, Some(limit))?)
    }

    /// User and process at the other end, as the kernel recorded them when the connection was made.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn peer(&self) -> io::Result<Peer> {
        // Not through `rustix`, whose process ids are never 0.
        let cred = self.option(libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })?;
        Ok(Peer { uid: cred.uid, pid: cred.pid })
    }

    /// Groups of the program at the other end, at the time of the connection; the first one first.
    ///
    /// # Errors
    /// The kernel does not know them.
    pub fn groups(&self) -> io::Result<Vec<u32>> {
        const GROUPS_MAX: usize = 1 << 16;
        let cred = self.option(libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })?;
        let mut groups = vec![0u32; 64];
        loop {
            let mut len = size_of_val(&groups[..]) as libc::socklen_t;
            let socket = self.socket.as_raw_fd();
            // SAFETY: a place for the groups, of the given length.
            let done = unsafe {
                let place = groups.as_mut_ptr().cast();
                libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &mut len)
            };
            let count = len as usize / size_of::<u32>();
            match io::Error::last_os_error() {
                _ if done == 0 => {
                    groups.truncate(count);
                    groups.insert(0, cred.gid);
                    return Ok(groups);
                }
                e if e.raw_os_error() == Some(libc::ERANGE) && count <= GROUPS_MAX => groups.resize(count, 0),
                e => return Err(e),
            }
        }
    }

    /// The process at the other end; the descriptor is readable once the process has ended.
    ///
    /// # Errors
    /// It has ended; or the kernel is older than 6.5 and the process is in a PID namespace that
    /// this process cannot see.
    pub fn peer_process(&self) -> io::Result<OwnedFd> {
        const SO_PEERPIDFD: libc::c_int = 77;
        if let Ok(fd) = self.option(SO_PEERPIDFD, -1) {
            // SAFETY: the kernel has made it for this call.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let pid = Pid::from_raw(self.peer()?.pid).ok_or(Errno::SRCH)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// An option of the socket, of a type for which any bits are valid.
    fn option<T: Copy>(&self, name: libc::c_int, mut value: T) -> io::Result<T> {
        let mut len = size_of::<T>() as libc::socklen_t;
        let (socket, place) = (self.socket.as_raw_fd(), (&raw mut value).cast());
        // SAFETY: a place for the value, of the given length.
        match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, place, &mut len) } {
            0 => Ok(value),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends `message` with `fds`.
    ///
    /// # Errors
    /// `EPIPE` or `ECONNRESET`: the peer is gone. `WouldBlock`: the send timeout passed.
    /// `InvalidInput`: the message is larger than [`MAX_PACKET_BYTES`] or carries more than
    /// [`MAX_FDS`] descriptors.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_flags(message, fds, SendFlags::NOSIGNAL)
    }

    /// As [`Channel::send`], but gives up with `WouldBlock` immediately if the peer is not keeping
    /// up.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn try_send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_flags(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_flags<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let body = postcard::to_stdvec(message).map_err(invalid)?;
        if body.len() > MAX_PACKET_BYTES || fds.len() > MAX_FDS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("message of {} bytes with {} descriptors is over the limit", body.len(), fds.len()),
            ));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("no room for descriptors"));
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&body)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits for the next packet until `deadline` (`None`: for ever).
    ///
    /// # Errors
    /// `TimedOut`: nothing came. `UnexpectedEof`: the peer closed. `InvalidData`: the packet is
    /// garbage or too large. `EMFILE`, `ENFILE`: this process or the machine may open no more
    /// files, so the packet's descriptors are lost.
    pub fn recv<T: DeserializeOwned>(&self, deadline: Option<Instant>) -> io::Result<Received<T>> {
        let mut buffer = PacketBuffer::take();
        let mut fds = Vec::new();
        let len = self.recv_packet(&mut buffer.0, Limits { deadline, fds: MAX_FDS }, &mut fds)?;
        let message = postcard::from_bytes(&buffer.0[..len]).map_err(invalid)?;
        Ok(Received { message, fds })
    }

    /// As [`Channel::recv`], into buffers the caller keeps, and without decoding. What came in
    /// `fds` is the caller's even after an error.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn recv_packet(
        &self,
        buffer: &mut [u8],
        limits: Limits,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        if let Some(deadline) = limits.deadline
            && !self.spin_readable()
        {
            self.wait_readable(deadline)?;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        // Beyond that the kernel drops descriptors without closing them as a process does: nobody
        // is asked.
        let bytes = if limits.fds == 0 { 0 } else { rustix::cmsg_space!(ScmRights(limits.fds)) };
        let mut control = RecvAncillaryBuffer::new(&mut space[..bytes]);
        let received = loop {
            let iov = &mut [IoSliceMut::new(buffer)];
            match recvmsg(&self.socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(r) => break r,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 && fds.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection"));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // The kernel does not say which limit was met; one more descriptor meets the same.
            rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)?;
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet arrived cut off"));
        }
        Ok(received.bytes)
    }

    /// Sends an answer. One that is too long for a packet goes in a file that the packet carries:
    /// `room` makes room for its bytes, or the answer is a refusal instead. The file is returned
    /// with its room, and its memory is free when it is dropped, however long the peer keeps it
    /// open.
    ///
    /// # Errors
    /// As [`Channel::send`]; no memory for the file.
    pub fn send_reply<R>(
        &self,
        reply: &Reply,
        fds: &[BorrowedFd<'_>],
        room: impl FnOnce(u64) -> Result<R, Refusal>,
    ) -> io::Result<Option<(LongAnswer, R)>> {
        match self.send(reply, fds) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput && fds.is_empty() => {
                let frame = frame::encode(reply)?;
                let room = match room(frame.len() as u64) {
                    Ok(room) => room,
                    Err(refusal) => return self.send(&Reply::Refused(refusal), &[]).map(|()| None),
                };
                let file = rustix::fs::memfd_create(c"forebay-answer", rustix::fs::MemfdFlags::CLOEXEC)?;
                let mut answer = LongAnswer(File::from(file));
                answer.0.write_all(&frame)?;
                answer.0.seek(SeekFrom::Start(0))?;
                self.send(&Reply::Attached, &[answer.0.as_fd()])?;
                Ok(Some((answer, room)))
            }
            sent => sent.map(|()| None),
        }
    }

    /// Waits for an answer, as [`Channel::recv`] does, and takes it out of the file if it came in
    /// one.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn recv_reply(&self, deadline: Option<Instant>) -> io::Result<Received<Reply>> {
        let mut received = self.recv::<Reply>(deadline)?;
        if received.message == Reply::Attached {
            let file = received.fds.pop().ok_or_else(|| garbage("an answer without the file it is in"))?;
            received.message = frame::receive(&mut File::from(file))?;
        }
        Ok(received)
    }

    /// Looks for a packet for a moment without going to sleep; returns whether there is one.
    pub fn spin_readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let until = Instant::now() + SPIN;
        loop {
            if matches!(poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)), Ok(1)) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    fn wait_readable(&self, deadline: Instant) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A file with an answer that was sent. It loses its bytes when it is dropped.
#[derive(Debug)]
pub struct LongAnswer(File);

impl Drop for LongAnswer {
    fn drop(&mut self) {
        // It cannot fail for a memfd without seals; if it did, the peer would keep the memory.
        let _ = self.0.set_len(0);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What [`Channel::recv_packet`] takes and waits for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// It waits until then; `None`: for ever.
    pub deadline: Option<Instant>,
    /// A packet with more descriptors is truncated, which is an error; [`MAX_FDS`] at most.
    pub fds: usize,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user at the time of the connection.
    pub uid: u32,
    /// Process at the time of the connection.
    pub pid: i32,
}

/// Decodes one packet.
///
/// # Errors
/// `InvalidData`: not a message of this type.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> io::Result<T> {
    postcard::from_bytes(packet).map_err(invalid)
}

fn invalid(e: postcard::Error) -> io::Error {
    garbage(&e.to_string())
}

fn garbage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a message of this protocol: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen, socketpair};
    use std::io::Read;

    fn pair() -> (Channel, Channel) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Channel::from_socket(a), Channel::from_socket(b))
    }

    #[test]
    fn a_descriptor_arrives_with_its_packet() {
        let (a, b) = pair();
        let (mut reader, writer) = std::io::pipe().unwrap();
        a.send(&"first", &[]).unwrap();
        a.send(&"with", &[writer.as_fd()]).unwrap();
        drop(writer);
        assert!(b.recv::<String>(None).unwrap().fds.is_empty());
        let mut got = b.recv::<String>(None).unwrap();
        assert_eq!((got.message.as_str(), got.fds.len()), ("with", 1));
        std::fs::File::from(got.fds.remove(0)).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn silence_ends_at_the_deadline_and_a_closed_peer_is_distinguished() {
        let (a, b) = pair();
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(b.recv::<String>(Some(soon)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(a);
        assert_eq!(b.recv::<String>(None).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn where_nobody_accepts_connecting_ends_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let (sender, reported) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut waiting = Vec::new();
            let full = loop {
                match Channel::connect_within(&path, Duration::from_millis(50)) {
                    Ok(channel) => waiting.push(channel),
                    Err(e) => break e.kind(),
                }
            };
            sender.send((waiting.len(), full)).unwrap();
        });
        // Long enough for any machine.
        let (waiting, full) = reported.recv_timeout(Duration::from_secs(60)).expect("connecting ends");
        assert!(waiting > 0, "none was let in while there was room");
        assert_eq!(full, io::ErrorKind::TimedOut);
    }

    #[test]
    fn an_answer_that_is_too_long_for_a_packet_arrives_all_the_same() {
        let (a, b) = pair();
        let long = Reply::Job { token: "x".repeat(MAX_PACKET_BYTES * 2), outlives_exec: true };
        for reply in [Reply::Done, long] {
            let sent = a.send_reply(&reply, &[], Ok).unwrap();
            assert_eq!(
                sent.is_some_and(|(_, bytes)| bytes as usize > MAX_PACKET_BYTES),
                reply != Reply::Done
            );
        }
        assert!(b.recv_reply(None).unwrap().message == Reply::Done);
        assert!(b.recv_reply(None).is_err(), "the file was dropped before it was read");
        let long = Reply::Job { token: "x".repeat(MAX_PACKET_BYTES * 2), outlives_exec: true };
        let _kept = a.send_reply(&long, &[], Ok).unwrap();
        let got = b.recv_reply(None).unwrap();
        assert_eq!((got.message, got.fds.len()), (long.clone(), 0));
        let none = a.send_reply(&long, &[], |_| Err::<(), _>(Refusal::NoRoom)).unwrap();
        assert!(none.is_none() && b.recv_reply(None).unwrap().message == Reply::Refused(Refusal::NoRoom));
    }

    #[test]
    fn oversized_messages_are_refused_before_they_are_sent() {
        let (a, _b) = pair();
        let large = vec![0u8; MAX_PACKET_BYTES + 1];
        assert_eq!(a.send(&large, &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
