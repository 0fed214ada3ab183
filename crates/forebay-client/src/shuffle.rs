//! Map outputs of Spark and MapReduce in the tier: written by map tasks, read by reducers of any
//! node.
//!
//! A driver begins an application ([`Client::begin_shuffles`]) and hands its name to the executors,
//! which join it. The tasks of a MapReduce job join one that lives as long as the job's master
//! ([`Client::join_job`]). A [`MapOutput`] is written to memory of this node's agent, which keeps
//! it when this process dies. What has no room is refused with `ENOSPC`, and the caller writes
//! elsewhere; what is read and not there is an error.
//!
//! Requests go over connections of their own: an agent that was late once is not left alone here,
//! as it is for reads of files, since there is no other place to read a map output from. For the
//! same reason reducers wait for an agent that restarts: without it every block would seem lost,
//! and all map tasks would run again in vain.

use crate::error::with_message;
use crate::session::{Client, lock, unexpected};
use forebay_wire::shuffle::{App, Block, BlockPlace, index, output_name};
use forebay_wire::{Channel, Received, Refusal, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{pread, pwrite};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Blocks of another node come within this time, or the reducer counts them as lost. A peer that is
/// gone is noticed sooner.
const FETCH_TIME: Duration = Duration::from_secs(60);

/// How long to wait for an agent that answers from memory and is only slow.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// How long to wait for an agent that restarts, which is back in a second or two. Spark waits as
/// long for its own blocks.
const AWAY_TIME: Duration = Duration::from_secs(15);

/// Pause between attempts to reach it meanwhile.
const AWAY_PAUSE: Duration = Duration::from_millis(100);

/// How often a driver looks whether its agent has restarted. The other nodes wait much longer.
const FOLLOWED_EVERY: Duration = Duration::from_millis(200);

/// How long after an answer a reducer takes the agent to be there. A fetch waits for one that is
/// down in any case.
const THERE_FOR: Duration = Duration::from_secs(1);

/// The room of an output grows by its own size, within these bounds: few requests for large ones,
/// little held in vain by small ones.
const GROW_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=32 << 20;

/// An application in this process.
#[derive(Debug)]
pub struct Shuffles {
    client: Client,
    app: App,
    node: String,
    driver: Option<Mutex<Driver>>,
    idle: Mutex<Vec<Channel>>,
    /// When the agent last answered.
    answered: Mutex<Instant>,
}

/// What the driver's process has of its application.
#[derive(Debug)]
struct Driver {
    /// Its end ends the application.
    channel: Channel,
    /// Shuffles that are not removed yet.
    shuffles: BTreeSet<u32>,
    /// An agent has said that the application has ended.
    has_ended: bool,
}

/// The output of a map task that is being written; removed unless it is committed.
#[derive(Debug)]
pub struct MapOutput {
    shuffles: Arc<Shuffles>,
    file: OwnedFd,
    copy: u64,
    /// The shuffle and the map task's attempt.
    output: (u32, u64),
    name: Vec<u8>,
    len: u64,
    room: u64,
    is_committed: bool,
}

/// Blocks that a reducer asked for, in the order of the request.
#[derive(Debug)]
pub struct Fetched {
    files: Vec<OwnedFd>,
    places: Vec<BlockPlace>,
}

impl Client {
    /// Begins an application, which ends with the answer's last owner or with this process.
    ///
    /// # Errors
    /// No agent on this node, or it refuses.
    pub fn begin_shuffles(&self) -> io::Result<Arc<Shuffles>> {
        let channel = self.session.connect_to_agent()?;
        let answer = ask(&channel, &Request::ShuffleBegin, ANSWER_TIME)?.message;
        let begun =
            self.shuffles_of(answer, Some(Driver { channel, shuffles: BTreeSet::new(), has_ended: false }))?;
        let driver = Arc::downgrade(&begun);
        std::thread::Builder::new().name("forebay-shuffles".into()).spawn(move || follow_agent(&driver))?;
        Ok(begun)
    }

    /// Takes part in an application that a driver has begun. Waits for an agent that is down.
    ///
    /// # Errors
    /// No agent on this node, or the application has ended.
    pub fn join_shuffles(&self, app: App) -> io::Result<Arc<Shuffles>> {
        let request = Request::ShuffleJoin(app);
        let answer = patiently(|| ask(&self.session.connect_to_agent()?, &request, ANSWER_TIME))?;
        self.shuffles_of(answer.message, None)
    }

    /// Takes part in the job `token` of MapReduce, which lives as long as its master listens at
    /// `port` of the node that has one of the names or addresses `hosts`.
    ///
    /// # Errors
    /// No agent on this node or on the master's, or the master does not listen there.
    pub fn join_job(&self, token: &str, hosts: Vec<String>, port: u16) -> io::Result<Arc<Shuffles>> {
        let mut why = with_message(libc::ENOENT, format!("no node of the cluster is {}", hosts.join(", ")));
        let request = Request::NodesAt { hosts, with_second: false };
        let ask = || ask(&self.session.connect_to_agent()?, &request, ANSWER_TIME);
        let answer = match ask() {
            // Jobs also run on nodes without an agent, and do not wait there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
            _ => patiently(ask)?,
        };
        for origin in nodes(answer.message)? {
            match self.join_shuffles(App { token: token.to_owned(), origin, master_port: Some(port) }) {
                Ok(shuffles) => return Ok(shuffles),
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    fn shuffles_of(&self, answer: Reply, driver: Option<Driver>) -> io::Result<Arc<Shuffles>> {
        match answer {
            Reply::ShuffleApp { app, node } => {
                let driver = driver.map(Mutex::new);
                let (idle, answered) = (Mutex::default(), Mutex::new(Instant::now()));
                Ok(Arc::new(Shuffles { client: self.clone(), app, node, driver, idle, answered }))
            }
            reply => Err(unexpected(&reply)),
        }
    }
}

/// Takes the application up again if the driver's agent restarts, as long as the driver has it.
fn follow_agent(shuffles: &Weak<Shuffles>) {
    loop {
        std::thread::sleep(FOLLOWED_EVERY);
        let Some(shuffles) = shuffles.upgrade() else { return };
        // An agent that is not back yet, or refuses for now, is asked again.
        let _next_time = shuffles.resume();
    }
}

/// Whether the agent has closed the connection, or has died.
fn has_hung_up(channel: &Channel) -> bool {
    let mut polled = [PollFd::new(channel, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

fn ask(channel: &Channel, request: &Request, limit: Duration) -> io::Result<Received<Reply>> {
    channel.send(request, &[])?;
    channel.recv_reply(Some(Instant::now() + limit))
}

/// Asks again while the agent is down, or says that it has not heard yet what it needs to know.
fn patiently(mut ask: impl FnMut() -> io::Result<Received<Reply>>) -> io::Result<Received<Reply>> {
    // Counted from the first failure: a fetch that was under way when its agent died may have begun
    // long before.
    let mut until = None;
    loop {
        let answer = ask();
        let is_away = match &answer {
            Ok(answer) => matches!(answer.message, Reply::Failed { errno: libc::EAGAIN, .. }),
            Err(e) => !is_late(e) && e.kind() != io::ErrorKind::PermissionDenied,
        };
        if !is_away || Instant::now() > *until.get_or_insert_with(|| Instant::now() + AWAY_TIME) {
            return answer;
        }
        std::thread::sleep(AWAY_PAUSE);
    }
}

/// The agent has the request, and may answer it yet.
fn is_late(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

impl Shuffles {
    /// The application, for the other processes.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Name of this node, under which other nodes find outputs that are written here.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Reports, at the driver, that the application has a shuffle or has removed it. An agent that
    /// is down hears of it when it is back.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub fn set_lives(&self, shuffle: u32, lives: bool) -> io::Result<()> {
        let Some(driver) = &self.driver else {
            return Err(with_message(libc::EINVAL, "only the driver registers shuffles"));
        };
        let mut driver = lock(driver);
        let _was_known =
            if lives { driver.shuffles.insert(shuffle) } else { driver.shuffles.remove(&shuffle) };
        match ask(&driver.channel, &Request::ShuffleLives { shuffle, lives }, ANSWER_TIME) {
            Ok(answer) => done(answer.message),
            Err(_) if has_hung_up(&driver.channel) && !driver.has_ended => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// At the driver: continues with an agent that has taken the place of the one it began at.
    fn resume(&self) -> io::Result<()> {
        let Some(driver) = &self.driver else { return Ok(()) };
        let mut driver = lock(driver);
        if driver.has_ended || !has_hung_up(&driver.channel) {
            return Ok(());
        }
        let channel = self.client.session.connect_to_agent()?;
        let shuffles = driver.shuffles.iter().copied().collect();
        let request = Request::ShuffleResume { app: self.app.clone(), shuffles };
        match ask(&channel, &request, ANSWER_TIME)?.message {
            Reply::ShuffleApp { .. } => driver.channel = channel,
            Reply::Failed { errno: libc::ENOENT, .. } => driver.has_ended = true,
            reply => return Err(unexpected(&reply)),
        }
        Ok(())
    }

    /// Removes the outputs of a shuffle on this node.
    ///
    /// # Errors
    /// The agent does not answer; it removes them when the driver's says so.
    pub fn remove(&self, shuffle: u32) -> io::Result<()> {
        done(
            self.call(&Request::ShuffleRemove { token: self.app.token.clone(), shuffle }, ANSWER_TIME)?
                .message,
        )
    }

    /// Whether this node's agent answers, or has done so within the last second: many reducers are
    /// shorter than a question.
    ///
    /// # Errors
    /// It does not answer, or the application has ended.
    pub fn check(&self) -> io::Result<()> {
        if lock(&self.answered).elapsed() < THERE_FOR {
            return Ok(());
        }
        self.join()
    }

    /// Registers the application with an agent that has restarted. Waits for one that is down.
    ///
    /// # Errors
    /// It does not answer, or the application has ended.
    fn join(&self) -> io::Result<()> {
        let request = Request::ShuffleJoin(self.app.clone());
        match patiently(|| self.call(&request, ANSWER_TIME))?.message {
            Reply::ShuffleApp { .. } => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Nodes of the host with these names or addresses, and with `with_second` those that may have
    /// second copies of what was written there.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn nodes_at(&self, hosts: Vec<String>, with_second: bool) -> io::Result<Vec<String>> {
        let request = Request::NodesAt { hosts, with_second };
        nodes(patiently(|| self.call(&request, ANSWER_TIME))?.message)
    }

    /// Begins the output of a map task.
    ///
    /// # Errors
    /// No room, no agent, or the application has ended: write it elsewhere.
    pub fn map_output(self: &Arc<Self>, shuffle: u32, map: u64) -> io::Result<MapOutput> {
        let name = output_name(shuffle, map);
        let request =
            Request::ScratchCreate { job: self.app.token.clone(), name: name.clone(), exclusive: false };
        let mut answer = self.call(&request, ANSWER_TIME)?;
        if matches!(answer.message, Reply::Failed { errno: libc::ENOENT, .. }) {
            // The agent has restarted since, and does not know the application.
            self.join()?;
            answer = self.call(&request, ANSWER_TIME)?;
        }
        match (answer.message, answer.fds.into_iter().next()) {
            (Reply::Scratch { copy, .. }, Some(file)) => Ok(MapOutput {
                shuffles: self.clone(),
                file,
                copy,
                output: (shuffle, map),
                name,
                len: 0,
                room: 0,
                is_committed: false,
            }),
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// Blocks of map outputs that each of `nodes` has, at most
    /// [`forebay_wire::shuffle::BLOCKS_MAX`]. Waits for an agent that is down.
    ///
    /// # Errors
    /// `ENOENT`: one of them is not there. The nodes or the agent do not answer.
    pub fn fetch(&self, nodes: Vec<String>, blocks: Vec<Block>) -> io::Result<Fetched> {
        let wanted = blocks.len();
        let request = Request::ShuffleFetch {
            app: self.app.clone(),
            nodes,
            blocks,
            deadline_ms: FETCH_TIME.as_millis() as u32,
        };
        let answer = patiently(|| self.call(&request, FETCH_TIME + ANSWER_TIME))?;
        match answer.message {
            Reply::ShuffleBlocks(places)
                if places.len() == wanted
                    && places.iter().all(|place| (place.file as usize) < answer.fds.len()) =>
            {
                Ok(Fetched { files: answer.fds, places })
            }
            reply => Err(unexpected(&reply)),
        }
    }

    /// Asks on a connection that is kept for the next request; again on a new one if it was closed
    /// meanwhile, for instance by an agent that has restarted.
    fn call(&self, request: &Request, limit: Duration) -> io::Result<Received<Reply>> {
        let kept = lock(&self.idle).pop();
        let answered = kept.map(|channel| ask(&channel, request, limit).map(|answer| (answer, channel)));
        let (answer, channel) = match answered {
            Some(Ok(both)) => both,
            Some(Err(e)) if is_late(&e) => return Err(e),
            _ => {
                let channel = self.client.session.connect_to_agent()?;
                (ask(&channel, request, limit)?, channel)
            }
        };
        lock(&self.idle).push(channel);
        *lock(&self.answered) = Instant::now();
        Ok(answer)
    }
}

fn nodes(reply: Reply) -> io::Result<Vec<String>> {
    match reply {
        Reply::Nodes(names) => Ok(names),
        reply => Err(unexpected(&reply)),
    }
}

fn done(reply: Reply) -> io::Result<()> {
    match reply {
        Reply::Done => Ok(()),
        Reply::Refused(refusal @ Refusal::NoRoom) => Err(with_message(libc::ENOSPC, refusal.to_string())),
        reply => Err(unexpected(&reply)),
    }
}

impl MapOutput {
    /// Appends.
    ///
    /// # Errors
    /// `ENOSPC`: no room in the tier. What was appended before is still there to be read.
    pub fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.make_room(bytes.len() as u64)?;
        let mut at = self.len;
        while !bytes.is_empty() {
            let written = pwrite(&self.file, bytes, at)?;
            bytes = &bytes[written..];
            at += written as u64;
        }
        self.len = at;
        Ok(())
    }

    /// Makes room for `bytes` more; appending them asks the agent nothing then.
    ///
    /// # Errors
    /// As [`MapOutput::append`].
    pub fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let wanted = self.len + bytes;
        if wanted <= self.room {
            return Ok(());
        }
        let ahead = self.len + self.len.clamp(*GROW_BYTES.start(), *GROW_BYTES.end());
        self.reserve(wanted.max(ahead)).or_else(|_| self.reserve(wanted))
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads what was written, for a caller that writes it elsewhere after all.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(pread(&self.file, buffer, offset)?)
    }

    /// Ends the output, whose partitions have these lengths in bytes. From now on it can be read,
    /// and stays when this process ends.
    ///
    /// # Errors
    /// As [`MapOutput::append`].
    ///
    /// # Panics
    /// The lengths are not those of what was written.
    pub fn commit(&mut self, lengths: &[u64]) -> io::Result<()> {
        let data = self.len;
        assert_eq!(lengths.iter().sum::<u64>(), data, "the lengths of the partitions of a map output");
        self.append(&index(lengths)).inspect_err(|_| self.len = data)?;
        // What it does not use is released.
        self.reserve(self.len)?;
        self.is_committed = true;
        Ok(())
    }

    /// Has a second node keep a copy of the output, which is committed; the name of that node.
    ///
    /// # Errors
    /// `ENOSPC`: none takes it; the output is on this node only.
    pub fn copy(&self) -> io::Result<String> {
        let (shuffle, map) = self.output;
        let token = self.shuffles.app.token.clone();
        let answer = self.shuffles.call(&Request::ShuffleCopy { token, shuffle, map }, FETCH_TIME)?.message;
        nodes(answer)?.pop().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let request = Request::ScratchReserve { copy: self.copy, bytes };
        done(self.shuffles.call(&request, ANSWER_TIME)?.message)?;
        self.room = bytes;
        Ok(())
    }
}

impl Drop for MapOutput {
    fn drop(&mut self) {
        if !self.is_committed {
            let (job, name) = (self.shuffles.app.token.clone(), std::mem::take(&mut self.name));
            // Without an agent it is gone already.
            let _ = self.shuffles.call(&Request::ScratchRemove { job, name }, ANSWER_TIME);
        }
    }
}

impl Fetched {
    /// Length of block `number` in bytes.
    pub fn len_of(&self, number: usize) -> Option<u64> {
        self.places.get(number).map(|place| place.len)
    }

    /// Bytes of the partitions of block `number`, of which it may be a part.
    pub fn total_of(&self, number: usize) -> Option<u64> {
        self.places.get(number).map(|place| place.total)
    }

    /// Reads from block `number`.
    ///
    /// # Errors
    /// There is no such block; those of the file. A block that ends too early is one.
    pub fn read_at(&self, number: usize, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let place = self.places.get(number).ok_or(io::ErrorKind::InvalidInput)?;
        let left = place.len.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if left == 0 {
            return Ok(0);
        }
        let file = &self.files[place.file as usize];
        match pread(file, &mut buffer[..left], place.offset + offset)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(read),
        }
    }
}
