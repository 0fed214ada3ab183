//! One client's connection: a thread that takes packets, answers them in order, and cleans up when
//! the client is gone.
//!
//! A thread a connection costs little and keeps clients apart: one whose PFS hangs waits alone.
//! Whatever the connection holds (loads, pins, staging buffers, its job's files, its ring) goes
//! when it ends, however it ends.

use super::{admin, open, read, scratch, write};
use crate::agent::Shared;
use crate::cache::entry::lock;
use crate::counters::add;
use crate::jobs::book as jobs;
use crate::jobs::book::room_for_told;
use crate::mounts::{Admitted, NoFile, admit, require_writer};
use crate::prefetch::load::LoadJob;
use crate::serve::closer::USER_MAX;
use crate::serve::write::Stage;
use crate::shares::{Kind, Share};
use forebay_pfs::FileVersion;
use forebay_store::ring::{self, RingReader};
use forebay_store::{Class, Reservation};
use forebay_wire::channel::{Limits, MAX_FDS, Peer, decode};
use forebay_wire::counted;
use forebay_wire::{Channel, Hello, MAGIC, MAX_PACKET_BYTES, PROTOCOL, Refusal, Reply, Request, Welcome};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A new client has this long to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// A client that does not take its answers for this long is dropped.
const SEND_TIME: Duration = Duration::from_secs(10);

/// What a connection costs: the part of its thread's stack in use, the packet buffer, and the ring.
const CONNECTION_BYTES: u64 = 144 << 10;

/// Connections the operator may have beyond `agent.connections_max`, so that the agent can always
/// be asked and ended.
const OPERATOR_CONNECTIONS: usize = 8;

/// Stack of a connection's thread; it needs a packet's worth and little more.
const STACK_BYTES: usize = 512 << 10;

/// Packets up to this size are decoded without waiting for each other.
const SMALL_PACKET_BYTES: usize = 2 << 10;

/// A packet may take so many times its length in memory, besides its text: splits of two bytes,
/// that is, and nothing smaller.
const DECODED_SHARE: u64 = 32;

/// A request comes with so many descriptors at most, except on a connection that has begun a load.
const REQUEST_FDS_MAX: usize = 2;

/// Longer than any first packet.
const HELLO_BYTES_MAX: usize = 64;

/// State of one connection.
pub struct Connection {
    /// The agent.
    pub shared: Arc<Shared>,
    /// Its number.
    pub id: u64,
    /// Who is at the other end.
    pub peer: Peer,
    /// The load begun on it.
    pub load: Option<Arc<LoadJob>>,
    /// The file being written through.
    pub stage: Option<Stage>,
    /// Ranges of pages pinned.
    pub pins: Vec<PagePins>,
    /// The job with memory-only files begun on it.
    pub job: Option<String>,
    /// It tells of an analytics job.
    pub tells: bool,
    /// The operator has asked for the agent's end; it comes after the answer.
    pub ends_agent: bool,
    channel: Channel,
    _cost: Reservation,
}

/// Pages that a client maps.
#[derive(Debug)]
pub struct PagePins {
    /// Of which copy.
    pub copy: u64,
    /// Its page size in bytes.
    pub page_bytes: u64,
    /// First page.
    pub first: u32,
    /// Pages.
    pub count: u32,
    /// Of the user's share.
    pub share: Share,
}

/// A reply and the descriptors that go with it; `None` for one-way requests.
pub type Answer = Option<(Reply, Vec<OwnedFd>)>;

/// An answer without descriptors.
pub fn reply(reply: Reply) -> Answer {
    Some((reply, Vec::new()))
}

/// Serves a new connection in a thread of its own.
pub fn start(shared: &Arc<Shared>, socket: OwnedFd) {
    let channel = Channel::from_socket(socket);
    let Ok(peer) = channel.peer() else { return };
    let operator = shared.is_operator(peer.uid);
    let bound = shared.config.connections_max + if operator { OPERATOR_CONNECTIONS } else { 0 };
    let counted = Counted::new(shared);
    let share = shared.share(Kind::Connections, peer.uid, 1);
    let (Ok(share), true, Some(cost)) = (share, counted.all <= bound, room_for(shared, &channel)) else {
        add(&shared.counters.refusals_total, 1);
        return;
    };
    let spawned =
        std::thread::Builder::new().name("client".into()).stack_size(STACK_BYTES).spawn(move || {
            if let Err(e) = serve(&counted.shared, channel, cost) {
                tracing::debug!(error = %e, "connection ended");
            }
            drop(share);
        });
    if let Err(e) = spawned {
        tracing::warn!(error = %e, "no thread for a connection");
    }
}

/// One in the count of connections, for as long as it lives, also if the thread panics.
struct Counted {
    shared: Arc<Shared>,
    /// Connections with this one.
    all: usize,
}

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        let all = shared.connections.fetch_add(1, Ordering::AcqRel) + 1;
        Counted { shared: shared.clone(), all }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

fn is_operator(shared: &Shared, channel: &Channel) -> bool {
    channel.peer().is_ok_and(|peer| shared.is_operator(peer.uid))
}

/// Room for a connection. The operator's is counted like any other but never refused: whoever has
/// set the capacity too low must be able to raise it again.
fn room_for(shared: &Shared, channel: &Channel) -> Option<Reservation> {
    let room = shared.cache.reserve(Class::Clients, CONNECTION_BYTES, &shared.counters);
    let always = || shared.budget.reserve_existing(Class::Clients, CONNECTION_BYTES);
    room.or_else(|| is_operator(shared, channel).then(always))
}

fn serve(shared: &Arc<Shared>, channel: Channel, cost: Reservation) -> io::Result<()> {
    channel.set_send_timeout(SEND_TIME)?;
    let peer = channel.peer()?;
    let id = shared.next_connection.fetch_add(1, Ordering::Relaxed);
    greet(shared, &channel, id)?;
    let mut connection = Connection {
        shared: shared.clone(),
        id,
        peer,
        load: None,
        stage: None,
        pins: Vec::new(),
        job: None,
        tells: false,
        ends_agent: false,
        channel,
        _cost: cost,
    };
    let mut buffer = vec![0u8; MAX_PACKET_BYTES];
    loop {
        connection.one_request(&mut buffer)?;
    }
}

/// Exchanges the first packets, and hands out the ring.
fn greet(shared: &Shared, channel: &Channel, id: u64) -> io::Result<()> {
    let mut packet = [0u8; HELLO_BYTES_MAX];
    // No descriptor is taken before it is known who sends it and why.
    let limits = Limits { deadline: Some(Instant::now() + HELLO_TIME), fds: 0 };
    let received = channel.recv_packet(&mut packet, limits, &mut Vec::new());
    let hello = match received.and_then(|len| decode::<Hello>(&packet[..len])) {
        Ok(hello) if hello.magic == MAGIC => hello,
        Ok(_) => return refuse_garbage(shared),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return refuse_garbage(shared),
        Err(e) => return Err(e),
    };
    if hello.protocol != PROTOCOL {
        let message = format!(
            "this agent is forebay {} and speaks protocol {PROTOCOL}, the client protocol {}; install the same version \
             for both",
            env!("CARGO_PKG_VERSION"),
            hello.protocol
        );
        channel.send(&Welcome { protocol: PROTOCOL, protocol_fits: false, message }, &[])?;
        return Err(io::Error::other("another protocol"));
    }
    let ring = if hello.want_ring { make_ring(shared, id) } else { None };
    let welcome = Welcome { protocol: PROTOCOL, protocol_fits: true, message: String::new() };
    match ring {
        None => channel.send(&welcome, &[]),
        Some(fd) => channel.send(&welcome, &[fd.as_fd()]).inspect_err(|_| {
            // There will be no connection whose end takes the ring along.
            lock(&shared.rings).remove(&id);
        }),
    }
}

fn refuse_garbage(shared: &Shared) -> io::Result<()> {
    add(&shared.counters.garbage_total, 1);
    Err(io::Error::new(io::ErrorKind::InvalidData, "not a client of this protocol"))
}

/// A client without a ring is served all the same; its pages just age faster.
fn make_ring(shared: &Shared, id: u64) -> Option<OwnedFd> {
    let reader = RingReader::new(ring::create().ok()?).ok()?;
    let fd = reader.fd().try_clone_to_owned().ok()?;
    lock(&shared.rings).insert(id, reader);
    Some(fd)
}

impl Connection {
    fn one_request(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let (len, fds) = self.receive(buffer)?;
        let answer = match self.decode(&buffer[..len])? {
            Ok((request, told)) => self.answer(request, fds, told),
            Err(refusal) => reply(Reply::Refused(refusal)),
        };
        let Some((reply, fds)) = answer else { return Ok(()) };
        match &reply {
            Reply::Refused(_) => add(&self.shared.counters.refusals_total, 1),
            Reply::TimedOut => add(&self.shared.counters.timeouts_total, 1),
            _ => {}
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.channel.send_reply(&reply, &borrowed);
        if self.ends_agent {
            self.shared.stop();
        }
        sent?;
        // Opens and fetches come in bursts: whoever has just been answered often asks again at
        // once.
        self.channel.spin_readable();
        Ok(())
    }

    /// Takes a packet. What is not of a mount is never closed by this process:
    /// [`crate::serve::closer`].
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let (shared, uid) = (&self.shared, self.peer.uid);
        if shared.closer.waiting(Some(uid)) >= USER_MAX {
            add(&shared.counters.refusals_total, 1);
            return Err(io::Error::other("too many descriptors of this user wait to be closed"));
        }
        let fds_max = if self.load.is_some() { MAX_FDS } else { REQUEST_FDS_MAX };
        let mut fds = Vec::new();
        let received = self.channel.recv_packet(buffer, Limits { deadline: None, fds: fds_max }, &mut fds);
        let (fds, foreign) = shared.closer.keep_known(&shared.mounts, &shared.cache.tier, uid, fds)?;
        add(&shared.counters.foreign_descriptors_total, foreign);
        Ok((received?, fds))
    }

    /// Decodes a request and reserves room for what it reports about a job. Large packets are
    /// decoded one at a time: unreserved memory is that of one packet, however many clients send.
    fn decode(&self, packet: &[u8]) -> io::Result<Result<(Request, Option<Reservation>), Refusal>> {
        let _one_at_a_time = (packet.len() > SMALL_PACKET_BYTES).then(|| lock(&self.shared.decoding));
        let allowance = packet.len().max(SMALL_PACKET_BYTES) as u64 * DECODED_SHARE;
        let (decoded, too_large) = counted::within(allowance, || decode::<Request>(packet));
        match decoded {
            Ok(Request::JobTell(updates)) => {
                Ok(room_for_told(self, &updates).map(|room| (Request::JobTell(updates), Some(room))))
            }
            Ok(request) => Ok(Ok((request, None))),
            Err(_) if too_large => Ok(Err(Refusal::TooMany(format!(
                "elements in one packet: it would take more than {allowance} bytes; report less at a time"
            )))),
            Err(e) => {
                add(&self.shared.counters.garbage_total, 1);
                Err(e)
            }
        }
    }

    fn answer(&mut self, request: Request, mut fds: Vec<OwnedFd>, told: Option<Reservation>) -> Answer {
        match request {
            Request::Mounts => reply(Reply::Mounts(self.shared.mounts.iter().map(|m| m.info()).collect())),
            Request::Open => self.with_file(fds, |c, file, fd| open::open(c, file, &fd)),
            Request::Fetch { version, copy, offset, len, deadline_ms } => {
                let deadline = Instant::now() + Duration::from_millis(deadline_ms.into());
                let wanted = read::Wanted { version, copy, offset, len, deadline };
                self.with_file(fds, |c, file, fd| read::fetch(c, file, fd, &wanted))
            }
            Request::Prefetch { version, first_page, pages } => {
                self.one_way(fds, |c, file, fd| read::prefetch(c, file, fd, &version, first_page, pages))
            }
            Request::Missed { version, page, bytes } => {
                if let (Some(fd), true) = (fds.pop(), fds.is_empty()) {
                    read::missed(self, fd, &version, page, bytes);
                }
                None
            }
            Request::PinPages { copy, first_page, pages } => {
                read::pin_pages(self, &fds, copy, first_page, pages)
            }
            Request::UnpinPages { copy, first_page, pages } => {
                read::unpin_pages(self, copy, first_page, pages);
                None
            }
            Request::PinFile(on) => self.with_file(fds, |c, file, fd| admin::pin_file(c, file, &fd, on)),
            Request::UnpinCopy(copy) => admin::unpin_copy(self, copy),
            Request::EvictFile => self.with_file(fds, |c, file, _| admin::evict_file(c, file)),
            Request::EvictAll => admin::evict_all(self),
            Request::LoadBegin { rate_bytes_per_s } => admin::load_begin(self, rate_bytes_per_s),
            Request::LoadFiles { first_index } => admin::load_files(self, first_index, fds),
            Request::LoadPoll { wait_ms } => admin::load_poll(self, wait_ms),
            Request::LoadCancel => admin::load_cancel(self),
            Request::StageBegin => write::begin(self),
            Request::StagePage { slot, page, len } => {
                write::page(self, slot, page, len);
                None
            }
            Request::StageCommit { version } => {
                let answer = self.commit(fds, &version);
                self.stage = None;
                answer
            }
            Request::StageAbort => {
                self.stage = None;
                reply(Reply::Done)
            }
            Request::JobBegin => scratch::begin(self),
            Request::ScratchCreate { job, name, exclusive } => scratch::create(self, &job, name, exclusive),
            Request::ScratchReserve { copy, bytes } => scratch::reserve(self, copy, bytes),
            Request::ScratchOpen { job, name } => scratch::open(self, &job, &name),
            Request::ScratchRemove { job, name } => scratch::remove(self, &job, &name),
            Request::ScratchList { job, after } => scratch::list(self, &job, &after),
            Request::List { after } => admin::list(self, after),
            Request::Status => reply(Reply::Status(Box::new(admin::status(&self.shared)))),
            Request::SetCapacity { bytes } => admin::set_capacity(self, bytes),
            Request::Shutdown => admin::shutdown(self),
            Request::Members => reply(Reply::Members(self.shared.cluster.view().cluster.clone())),
            Request::Jobs => jobs::list(&self.shared),
            Request::JobTell(updates) => match told {
                Some(room) => jobs::tell(self, updates, room),
                None => reply(Reply::Refused(Refusal::NoRoom)),
            },
        }
    }

    /// Admits the one descriptor that came with a request and goes on with it.
    fn with_file(
        &mut self,
        mut fds: Vec<OwnedFd>,
        go_on: impl FnOnce(&mut Self, Admitted, OwnedFd) -> Answer,
    ) -> Answer {
        let (Some(fd), true) = (fds.pop(), fds.is_empty()) else {
            return reply(Reply::Refused(Refusal::NoDescriptor));
        };
        match admit(&self.shared.mounts, fd.as_fd()) {
            Ok(file) => go_on(self, file, fd),
            Err(NoFile::Refused(refusal)) => reply(Reply::Refused(refusal)),
            Err(NoFile::Pfs(e)) => reply(Reply::Failed {
                errno: e.raw_os_error().unwrap_or(libc::EIO),
                message: format!("the file system did not return the file's attributes: {e}"),
            }),
        }
    }

    /// A commit comes with two descriptors: who may only read a file must not say what is in it.
    fn commit(&mut self, mut fds: Vec<OwnedFd>, version: &FileVersion) -> Answer {
        let (Some(writing), 1) = (fds.pop(), fds.len()) else {
            return reply(Reply::Refused(Refusal::NoDescriptor));
        };
        self.with_file(fds, |c, file, fd| match require_writer(writing.as_fd(), &file.facts) {
            Ok(()) => write::commit(c, file, &fd, version),
            Err(refusal) => reply(Reply::Refused(refusal)),
        })
    }

    fn one_way(&mut self, fds: Vec<OwnedFd>, go_on: impl FnOnce(&mut Self, Admitted, OwnedFd)) -> Answer {
        self.with_file(fds, |c, file, fd| {
            go_on(c, file, fd);
            None
        });
        None
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(load) = self.load.take() {
            load.cancel();
        }
        for pins in self.pins.drain(..) {
            self.shared.cache.unpin_pages(pins.copy, pins.page_bytes, pins.first, pins.count);
        }
        if let Some(job) = self.job.take() {
            self.shared.jobs.end(&job);
        }
        if self.tells {
            self.shared.link.end_job(self.id);
        }
        // What it has used last is not lost with it: many programs are gone before the ring is
        // looked at.
        let ring = lock(&self.shared.rings).remove(&self.id);
        if let Some(mut ring) = ring {
            let mut keys = Vec::new();
            ring.drain(&mut keys);
            add(&self.shared.counters.touches_total, keys.len() as u64);
            self.shared.cache.touch(&keys);
        }
    }
}
