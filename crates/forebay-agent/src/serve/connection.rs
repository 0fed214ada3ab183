//! One client's connection: a thread that takes packets, answers them in order, and cleans up when
//! the client is gone.
//!
//! One thread per connection costs little and keeps clients apart: one whose PFS hangs waits alone.
//! Whatever the connection holds (loads, staging buffers, its job's files, its ring) goes when it
//! ends, however it ends.

use super::closer::{Sent, USER_MAX};
use super::jobs::room_for_reported;
use super::session::{Connection, Node, Ring, reply};
use crate::counters::add;
use crate::jobs::job_state::Size;
use crate::lock::lock;
use crate::user_limits::{Kind, Share};
use forebay_store::ring::{self, RingReader};
use forebay_store::{Class, Reservation};
use forebay_wire::channel::{Limits, LongAnswer, MAX_FDS, decode};
use forebay_wire::counted;
use forebay_wire::{Channel, Hello, MAGIC, MAX_PACKET_BYTES, PROTOCOL, Refusal, Reply, Request, Welcome};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a new client has to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// How long a client may leave an answer untaken before it is dropped.
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

/// Memory that a packet may take, as a multiple of its length and besides its text: enough for
/// splits of two bytes, the smallest part.
const DECODED_SHARE: u64 = 32;

/// Most descriptors of a request, except on a connection that has begun a load.
const REQUEST_FDS_MAX: usize = 2;

/// Longer than any first packet.
const HELLO_BYTES_MAX: usize = 64;

/// The clients of this node.
#[derive(Debug)]
pub struct Clients {
    node: Arc<Node>,
    /// Held while a large packet is decoded and not yet counted in the budget.
    decoding: Mutex<()>,
    /// Number of the next connection.
    next_connection: AtomicU64,
}

impl Clients {
    /// Clients of `node`, on which their requests act. Nobody is connected yet.
    pub fn new(node: Arc<Node>) -> Arc<Self> {
        Arc::new(Clients { node, decoding: Mutex::default(), next_connection: AtomicU64::new(1) })
    }

    /// Takes connections until the agent ends.
    pub fn accept(self: &Arc<Self>, listener: &OwnedFd) {
        while !self.node.stop.is_stopping() {
            match accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
                Ok(socket) => self.start(socket),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(e) => {
                    // Out of descriptors or memory: clients wait in the backlog or read the PFS;
                    // try again shortly.
                    tracing::warn!(error = %e, "cannot accept a connection");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// Serves a new connection in a thread of its own.
    fn start(self: &Arc<Self>, socket: OwnedFd) {
        let (node, channel) = (&self.node, Channel::from_socket(socket));
        let Ok(peer) = channel.peer() else { return };
        let operator = node.shares.is_operator(peer.uid);
        let bound =
            node.live.get(|config| config.connections_max) + if operator { OPERATOR_CONNECTIONS } else { 0 };
        let counted = Counted::new(node);
        let share = node.shares.share(Kind::Connections, peer.uid, 1);
        let (Ok(share), true) = (share, counted.all <= bound) else {
            add(&node.counters.refusals_total, 1);
            return;
        };
        let cost = self.room();
        let clients = self.clone();
        let body = move || {
            if let Err(e) = clients.serve(channel, cost) {
                tracing::debug!(error = %e, "connection ended");
            }
            drop((share, counted));
        };
        let spawned = std::thread::Builder::new().name("client".into()).stack_size(STACK_BYTES).spawn(body);
        if let Err(e) = spawned {
            tracing::warn!(error = %e, "no thread for a connection");
        }
    }

    /// Room for a connection, which is never refused for want of memory: the number of connections
    /// is bounded, an operator who has set the capacity too low must be able to raise it again, and
    /// a tier that gives way to compute must not look like one that is gone.
    fn room(&self) -> Reservation {
        let cache = &self.node.cache;
        let always = || cache.budget.reserve_existing(Class::Clients, CONNECTION_BYTES);
        cache.reserve(Class::Clients, CONNECTION_BYTES).unwrap_or_else(always)
    }

    fn serve(&self, channel: Channel, cost: Reservation) -> io::Result<()> {
        channel.set_send_timeout(SEND_TIME)?;
        let (peer, groups) = (channel.peer()?, channel.groups()?);
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        greet(&self.node, &channel, (id, peer.uid))?;
        let connection = Connection {
            node: self.node.clone(),
            id,
            peer,
            groups,
            account: self.node.fetch.traffic.account(peer.uid, ""),
            load: None,
            stage: None,
            job: None,
            process: None,
            reports_job: false,
            hpc: false,
            listing: None,
            syncing: None,
            syncing_elsewhere: BTreeSet::new(),
            keeping: None,
            coming: None,
            guest: None,
            ends_agent: false,
        };
        let decoding = &self.decoding;
        let mut conversation = Conversation {
            connection,
            channel,
            decoding,
            long_answer: None,
            looks: Looks::default(),
            _cost: cost,
        };
        let mut buffer = vec![0u8; MAX_PACKET_BYTES];
        loop {
            if let Err(e) = conversation.one_request(&mut buffer) {
                conversation.connection.outlive_exec();
                return Err(e);
            }
        }
    }
}

impl Connection {
    /// Waits for the end of the process that has connected, if its job lasts as long. It has closed
    /// the connection, for instance by executing the program that the job is for.
    fn outlive_exec(&self) {
        if let Some(process) = &self.process {
            while let Err(Errno::INTR) = poll(&mut [PollFd::new(process, PollFlags::IN)], None) {}
        }
    }
}

/// Counts as one of the connections for as long as it lives, even if the thread panics.
struct Counted {
    node: Arc<Node>,
    /// Connections with this one.
    all: usize,
}

impl Counted {
    fn new(node: &Arc<Node>) -> Self {
        let all = node.connections.fetch_add(1, Ordering::AcqRel) + 1;
        Counted { node: node.clone(), all }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.node.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Exchanges the first packets, and hands out the ring.
fn greet(node: &Node, channel: &Channel, (id, uid): (u64, u32)) -> io::Result<()> {
    let mut packet = [0u8; HELLO_BYTES_MAX];
    // No descriptor is accepted before it is known who sends it and why.
    let limits = Limits { deadline: Some(Instant::now() + HELLO_TIME), fds: 0 };
    let received = channel.recv_packet(&mut packet, limits, &mut Vec::new());
    let hello = match received.and_then(|len| decode::<Hello>(&packet[..len])) {
        Ok(hello) if hello.magic == MAGIC => hello,
        Ok(_) => return refuse_garbage(node),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return refuse_garbage(node),
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
    let ring = if hello.want_ring { make_ring(node, (id, uid)) } else { None };
    let welcome = Welcome { protocol: PROTOCOL, protocol_fits: true, message: String::new() };
    match ring {
        None => channel.send(&welcome, &[]),
        Some(fd) => channel.send(&welcome, &[fd.as_fd()]).inspect_err(|_| {
            // There will be no connection whose end removes the ring.
            lock(&node.rings).remove(&id);
        }),
    }
}

fn refuse_garbage(node: &Node) -> io::Result<()> {
    add(&node.counters.garbage_total, 1);
    Err(io::Error::new(io::ErrorKind::InvalidData, "not a client of this protocol"))
}

/// A client without a ring is served all the same; its pages only age faster.
fn make_ring(node: &Node, (id, uid): (u64, u32)) -> Option<OwnedFd> {
    let reader = RingReader::new(ring::create().ok()?).ok()?;
    let fd = reader.fd().try_clone_to_owned().ok()?;
    let account = node.fetch.traffic.account(uid, "");
    lock(&node.rings).insert(id, Ring { reader, account });
    Some(fd)
}

/// A request, and if it reports about a job, its size and the room for that.
type Decoded = (Request, Option<(Size, Reservation)>);

/// Packets and answers on one connection.
struct Conversation<'a> {
    connection: Connection,
    channel: Channel,
    decoding: &'a Mutex<()>,
    /// The last answer, if it was too long for a packet. A client has read it when it asks again;
    /// what it keeps open after that is empty.
    long_answer: Option<(LongAnswer, AnswerRoom)>,
    looks: Looks,
    _cost: Reservation,
}

/// When it pays to look for the next request before going to sleep. Opens and fetches come in
/// bursts; for a client that computes between two requests, each look wastes processor time.
#[derive(Default)]
struct Looks {
    /// Answers after which it does not look.
    rests: u32,
    /// The rests that followed the last look; 0 if it found a request.
    last_rests: u32,
}

impl Looks {
    const RESTS_MAX: u32 = 31;

    fn look(&mut self, is_request_there: impl FnOnce() -> bool) {
        if self.rests > 0 {
            self.rests -= 1;
        } else {
            let more = (2 * self.last_rests + 1).min(Self::RESTS_MAX);
            self.last_rests = if is_request_there() { 0 } else { more };
            self.rests = self.last_rests;
        }
    }
}

/// What a long answer takes of its user's share, and of the budget. The operator is answered
/// without room as well.
type AnswerRoom = (Share, Option<Reservation>);

impl Conversation<'_> {
    fn one_request(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let (len, sent) = self.receive(buffer)?;
        self.long_answer = None;
        let answer = match self.decode(&buffer[..len])? {
            Ok((request, reported)) => {
                if matches!(request, Request::JobBegin { outlives_exec: true }) {
                    self.connection.process = self.channel.peer_process().ok();
                }
                self.connection.answer(request, sent, reported)
            }
            Err(refusal) => reply(Reply::Refused(refusal)),
        };
        let Some((reply, fds)) = answer else { return Ok(()) };
        match &reply {
            Reply::Refused(_) => add(&self.connection.node.counters.refusals_total, 1),
            Reply::TimedOut => add(&self.connection.node.counters.timeouts_total, 1),
            _ => {}
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.channel.send_reply(&reply, &borrowed, |bytes| self.room_for_answer(bytes));
        self.connection.listing = None;
        if self.connection.ends_agent {
            self.connection.node.stop.stop();
        }
        self.long_answer = sent?;
        self.looks.look(|| self.channel.spin_readable());
        Ok(())
    }

    fn room_for_answer(&self, bytes: u64) -> Result<AnswerRoom, Refusal> {
        let (node, uid) = (&self.connection.node, self.connection.peer.uid);
        let share = node.shares.share(Kind::Answers, uid, bytes)?;
        match node.cache.reserve(Class::Clients, bytes) {
            None if !node.shares.is_operator(uid) => Err(Refusal::NoRoom),
            room => Ok((share, room)),
        }
    }

    /// Takes a packet. This process never closes what is not of a mount: [`super::closer`].
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<Sent>)> {
        let (node, uid) = (&self.connection.node, self.connection.peer.uid);
        if node.closer.waiting(Some(uid)) >= USER_MAX {
            add(&node.counters.refusals_total, 1);
            return Err(io::Error::other("too many descriptors of this user wait to be closed"));
        }
        let fds_max = if self.connection.load.is_some() { MAX_FDS } else { REQUEST_FDS_MAX };
        let mut fds = Vec::new();
        let received = self.channel.recv_packet(buffer, Limits { deadline: None, fds: fds_max }, &mut fds);
        let (sent, foreign) = node.closer.keep_known(&node.mounts, &node.cache.tier, uid, fds)?;
        add(&node.counters.foreign_descriptors_total, foreign);
        Ok((received?, sent))
    }

    /// Decodes a request and reserves room for what it reports about a job. Large packets are
    /// decoded one at a time: unreserved memory is that of one packet, however many clients send.
    fn decode(&self, packet: &[u8]) -> io::Result<Result<Decoded, Refusal>> {
        let _one_at_a_time = (packet.len() > SMALL_PACKET_BYTES).then(|| lock(self.decoding));
        let allowance = packet.len().max(SMALL_PACKET_BYTES) as u64 * DECODED_SHARE;
        let (decoded, too_large) = counted::within(allowance, || decode::<Request>(packet));
        match decoded {
            Ok(Request::JobUpdates(updates)) => Ok(room_for_reported(&self.connection, &updates)
                .map(|reported| (Request::JobUpdates(updates), Some(reported)))),
            Ok(request) => Ok(Ok((request, None))),
            Err(_) if too_large => Ok(Err(Refusal::TooMany(format!(
                "elements in one packet: it would take more than {allowance} bytes; report less at a time"
            )))),
            Err(e) => {
                add(&self.connection.node.counters.garbage_total, 1);
                Err(e)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_a_request_restores_them() {
        let (mut looks, mut count) = (Looks::default(), 0);
        for _ in 0..1000 {
            looks.look(|| {
                count += 1;
                false
            });
        }
        // After 1, 3, 7, 15 and then 31 answers.
        assert_eq!(count, 35);
        looks.rests = 0;
        for _ in 0..100 {
            looks.look(|| {
                count += 1;
                true
            });
        }
        assert_eq!(count, 135);
    }
}
