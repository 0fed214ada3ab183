//! Reports analytics jobs to the cluster, and asks it for locations.
//!
//! A framework's plug-in (Spark's driver, a user's own scheduler) holds a [`Job`] and reports to it
//! what its stages will read and how far they are; the coordinator plans the prefetch from that.
//! Reads do not depend on it: a job that cannot be reported, or a missing agent, costs the prefetch
//! and nothing else. A job lives as long as its connection, so that one whose program dies
//! leaves no prefetch behind.
//!
//! [`Client::locate`] computes where a range is kept from the members and their capacities alone.
//! There is no table to ask, so listing ten thousand files costs one question to the agent.
//! [`Client::preferred_nodes`] answers another question: where to run the tasks that read the
//! range, so that nodes get equal work ([`forebay_policy::preferred_nodes`]). Each client balances
//! its own answers, so a program should ask through one client.

use crate::error::{errno, with_message};
use crate::session::{Client, lock, misfit, unexpected};
use forebay_pfs::FileFacts;
use forebay_policy::placement::{Member, extent_key, node_number, owner};
use forebay_policy::preferred_nodes::{Candidate, PreferredNodes};
use forebay_wire::cluster::{Answer, Question};
use forebay_wire::frame;
use forebay_wire::{
    Channel, ClusterView, FileRef, JobStatus, JobUpdate, MAX_PACKET_BYTES, MountInfo, NodeHealth, NodeInfo,
    Overview, Refusal, Reply, Request, Role, Split,
};
use rustix::fs::{Mode, OFlags, open};
use serde::Serialize;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes of updates in one packet; the rest of it is for what surrounds them.
const PACKET_BYTES: usize = MAX_PACKET_BYTES - (2 << 10);

/// How long a view is believed; a new member is then known to everybody.
const VIEW_LIFE: Duration = Duration::from_secs(1);

/// An analytics job; it ends when this is dropped. Threads may share it.
#[derive(Debug)]
pub struct Job {
    channel: Mutex<Channel>,
    patience: Duration,
}

/// Where a part of a file is, or will be prefetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Nodes by the names that schedulers know, best first.
    pub hosts: Vec<String>,
}

/// A range of a file.
#[derive(Clone, Copy)]
struct Range {
    ino: u64,
    /// Size of the file.
    size: u64,
    offset: u64,
    len: u64,
}

impl Client {
    /// Begins an analytics job called `name` whose prefetch is planned by `planner` (empty: the
    /// cluster's default).
    ///
    /// # Errors
    /// No agent, or it refused; programs continue without.
    pub fn begin_job(&self, name: &str, planner: &str) -> io::Result<Job> {
        let channel = self.session.connect_to_agent()?;
        let job = Job { channel: Mutex::new(channel), patience: self.session.config.deadline };
        job.report(&[JobUpdate::Begin { name: name.to_owned(), planner: planner.to_owned() }])?;
        Ok(job)
    }

    /// The jobs that the coordinator knows.
    ///
    /// # Errors
    /// No agent, or no coordinator that answers.
    pub fn jobs(&self) -> io::Result<Vec<JobStatus>> {
        match self.ask_coordinator(Question::Jobs)? {
            Answer::Jobs(jobs) => Ok(jobs),
            answer => Err(misfit(&answer)),
        }
    }

    /// Whether the task of the job called `job` may read: under planners that delay a prefetch for
    /// an I/O phase it waits for its input. `false` after about a second: ask again. Call it in the
    /// task, before it reads, if the job has reported [`JobUpdate::TasksAsk`].
    ///
    /// # Errors
    /// No agent, or it does not answer; the task continues.
    pub fn task_may_read(&self, job: &str, stage: u32, partition: u32) -> io::Result<bool> {
        match self.ask_aside(&Request::TaskAsks { job: job.to_owned(), stage, partition })? {
            Reply::Done => Ok(true),
            Reply::Waits => Ok(false),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The nodes that the coordinator knows, and what they hold.
    ///
    /// # Errors
    /// No agent, or no coordinator that answers.
    pub fn overview(&self) -> io::Result<Overview> {
        match self.ask_coordinator(Question::Overview)? {
            Answer::Overview(overview) => Ok(overview),
            answer => Err(misfit(&answer)),
        }
    }

    /// How the nodes are, as they have reported themselves.
    ///
    /// # Errors
    /// No agent, or no coordinator that answers.
    pub fn health(&self) -> io::Result<Vec<NodeHealth>> {
        let mut nodes: Vec<NodeHealth> = Vec::new();
        loop {
            let after = nodes.last().map_or_else(String::new, |node| node.name.clone());
            match self.ask_coordinator(Question::Health { after })? {
                Answer::Health(more) if more.is_empty() => return Ok(nodes),
                Answer::Health(more) => nodes.extend(more),
                answer => return Err(misfit(&answer)),
            }
        }
    }

    /// The members of the cluster; empty while there is no coordinator yet.
    ///
    /// # Errors
    /// No agent.
    pub fn members(&self) -> io::Result<ClusterView> {
        view_in(self.ask_aside(&Request::Members)?)
    }

    /// The name of a file by which every node finds it, in the version that it has now. The file is
    /// opened with the program's own rights.
    ///
    /// # Errors
    /// It cannot be opened, is not a regular file, or is on no mount that the agent serves; no
    /// agent.
    pub fn file_ref(&self, path: impl AsRef<Path>) -> io::Result<FileRef> {
        self.named(path.as_ref()).map(|(file, _)| file)
    }

    /// Where `len` bytes from `offset` of the file are kept, extent by extent; ranges beyond its
    /// end are left out. Without members the hosts are empty.
    ///
    /// # Errors
    /// As [`Client::file_ref`].
    pub fn locate(&self, path: impl AsRef<Path>, offset: u64, len: u64) -> io::Result<Vec<Location>> {
        let (file, mount) = self.named(path.as_ref())?;
        self.owners_of(&mount, range(&file, offset, len))
    }

    /// As [`Client::locate`], for a file that has been named already.
    ///
    /// # Errors
    /// The mount is not served any more; no agent.
    pub fn locate_ref(&self, file: &FileRef, offset: u64, len: u64) -> io::Result<Vec<Location>> {
        self.owners_of(&self.mount_called(&file.mount)?, range(file, offset, len))
    }

    /// Where tasks that read `len` bytes from `offset` of the file should run, extent by extent: at
    /// the owner, or, where that has been named for more bytes than the next in the ranking, at the
    /// next. As [`Client::locate`] otherwise. The same extent has the same preferred node while the
    /// members are the same.
    ///
    /// # Errors
    /// As [`Client::file_ref`].
    pub fn preferred_nodes(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        len: u64,
    ) -> io::Result<Vec<Location>> {
        let (file, mount) = self.named(path.as_ref())?;
        self.preferred_nodes_of(&mount, range(&file, offset, len))
    }

    /// As [`Client::preferred_nodes`], for a file that has been named already.
    ///
    /// # Errors
    /// The mount is not served any more; no agent.
    pub fn preferred_nodes_ref(&self, file: &FileRef, offset: u64, len: u64) -> io::Result<Vec<Location>> {
        self.preferred_nodes_of(&self.mount_called(&file.mount)?, range(file, offset, len))
    }

    fn owners_of(&self, mount: &MountInfo, range: Range) -> io::Result<Vec<Location>> {
        self.with_view(|view| owners(view, mount, range))
    }

    fn preferred_nodes_of(&self, mount: &MountInfo, range: Range) -> io::Result<Vec<Location>> {
        let mut given = lock(&self.session.preferred_nodes.0);
        let given = given.entry(mount.label.clone()).or_default();
        self.with_view(|view| preferred_nodes(view, mount, range, given))
    }

    pub(crate) fn mount_called(&self, label: &str) -> io::Result<MountInfo> {
        let mounts = self.session.mounts()?;
        mounts.iter().find(|m| m.label == label).cloned().ok_or_else(|| {
            with_message(libc::ENOENT, format!("no mount is labelled {label:?} at this node's agent"))
        })
    }

    fn named(&self, path: &Path) -> io::Result<(FileRef, MountInfo)> {
        let in_words = |e: io::Error| with_message(errno(&e), format!("{}: {e}", path.display()));
        let absolute = path.canonicalize().map_err(in_words)?;
        let mount = self.session.mount_of(&absolute).ok_or_else(|| {
            with_message(
                libc::EXDEV,
                format!("{}: not on a file system that the agent serves", path.display()),
            )
        })?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = open(&absolute, flags, Mode::empty()).map_err(|e| in_words(e.into()))?;
        let facts = FileFacts::of(fd.as_fd(), mount.revalidate).map_err(in_words)?;
        if !facts.is_regular() {
            return Err(with_message(libc::EINVAL, format!("{}: not a regular file", path.display())));
        }
        let below = absolute.as_os_str().as_bytes()[mount.root.len()..].iter().skip_while(|b| **b == b'/');
        let file =
            FileRef { mount: mount.label.clone(), path: below.copied().collect(), version: facts.version };
        Ok((file, mount))
    }

    /// A request for the view delays all others, so the client avoids an agent that hangs, as it
    /// is for reads.
    pub(crate) fn with_view<T>(&self, use_it: impl FnOnce(&ClusterView) -> T) -> io::Result<T> {
        let mut known = lock(&self.session.view.0);
        if !matches!(&*known, Some((at, _)) if at.elapsed() < VIEW_LIFE) {
            let asked = Instant::now();
            let reply = self.session.unless_left_alone(|| self.ask_aside(&Request::Members))?;
            *known = Some((asked, view_in(reply)?));
        }
        match &*known {
            Some((_, view)) => Ok(use_it(view)),
            None => Ok(use_it(&ClusterView::default())),
        }
    }

    /// Asks the coordinator through the agent.
    pub(crate) fn ask_coordinator(&self, question: Question) -> io::Result<Answer> {
        match self.ask_aside(&Request::AskCoordinator(question))? {
            Reply::Answered(answer) => Ok(*answer),
            reply => Err(unexpected(&reply)),
        }
    }

    /// On a connection of its own: neither delayed by an earlier failure nor, by itself, a reason
    /// to leave the agent alone.
    pub(crate) fn ask_aside(&self, request: &Request) -> io::Result<Reply> {
        let channel = self.session.connect_to_agent()?;
        channel.send(request, &[])?;
        channel.recv_reply(Some(Instant::now() + self.session.config.deadline)).map(|answer| answer.message)
    }
}

/// Why the agent takes no more of a job: `ENOSPC` says that there is too much of it, `ENOMEM` that
/// there is no memory for it now.
fn refused(reply: &Reply) -> io::Error {
    match reply {
        Reply::Refused(Refusal::NoRoom) => with_message(libc::ENOMEM, Refusal::NoRoom.to_string()),
        reply => unexpected(reply),
    }
}

fn view_in(reply: Reply) -> io::Result<ClusterView> {
    match reply {
        Reply::Members(view) => Ok(view),
        reply => Err(unexpected(&reply)),
    }
}

fn range(file: &FileRef, offset: u64, len: u64) -> Range {
    Range { ino: file.version.ino, size: file.version.size, offset, len }
}

fn member(node: &NodeInfo) -> Member {
    Member { node: node_number(&node.name), weight: node.capacity_bytes as f64 }
}

/// The owner of each extent in the range.
fn owners(view: &ClusterView, mount: &MountInfo, range: Range) -> Vec<Location> {
    let serving = view.serving(&mount.label);
    let members: Vec<Member> = serving.iter().map(|n| member(n)).collect();
    by_extent(mount, &serving, range, |key, _| {
        let number = owner(key, &members);
        members.iter().position(|m| Some(m.node) == number)
    })
}

/// The preferred node of each extent in the range.
fn preferred_nodes(
    view: &ClusterView,
    mount: &MountInfo,
    range: Range,
    given: &mut PreferredNodes,
) -> Vec<Location> {
    let serving = view.serving(&mount.label);
    let candidate = |n: &&NodeInfo| Candidate { member: member(n), runs_tasks: n.role == Role::CoLocated };
    let candidates: Vec<Candidate> = serving.iter().map(candidate).collect();
    by_extent(mount, &serving, range, |key, bytes| given.choose(&candidates, key, bytes))
}

/// The host of the node that `choose` finds for each extent, given its key and the bytes that the
/// file has of it.
fn by_extent(
    mount: &MountInfo,
    serving: &[&NodeInfo],
    range: Range,
    mut choose: impl FnMut(u64, u64) -> Option<usize>,
) -> Vec<Location> {
    let mut found = Vec::new();
    let end = range.offset.saturating_add(range.len).min(range.size);
    let mut at = range.offset;
    while at < end {
        let extent = at / mount.extent_bytes;
        let extent_end = (extent + 1).saturating_mul(mount.extent_bytes);
        let bytes = extent_end.min(range.size) - extent * mount.extent_bytes;
        let place = choose(extent_key(&mount.label, range.ino, extent), bytes);
        let hosts = place.map(|place| serving[place].host.clone()).into_iter().collect();
        let next = extent_end.min(end);
        found.push(Location { offset: at, len: next - at, hosts });
        at = next;
    }
    found
}

impl Job {
    /// Reports what has happened, in order; lists of any length, in as many packets as they need.
    ///
    /// # Errors
    /// The agent is gone or refuses; one update does not fit a packet (a list of slots of thousands
    /// of hosts). The job then gets no prefetch, and reads continue as before.
    pub fn report(&self, updates: &[JobUpdate]) -> io::Result<()> {
        let mut packet = Vec::new();
        let mut bytes = 0;
        for update in updates {
            for piece in pieces(update)? {
                let len = encoded_len(&piece)?;
                if bytes + len > PACKET_BYTES && !packet.is_empty() {
                    self.send(std::mem::take(&mut packet))?;
                    bytes = 0;
                }
                bytes += len;
                packet.push(piece);
            }
        }
        if packet.is_empty() { Ok(()) } else { self.send(packet) }
    }

    fn send(&self, updates: Vec<JobUpdate>) -> io::Result<()> {
        let channel = lock(&self.channel);
        channel.send(&Request::JobUpdates(updates), &[])?;
        match channel.recv_reply(Some(Instant::now() + self.patience))?.message {
            Reply::Done => Ok(()),
            reply => Err(refused(&reply)),
        }
    }
}

fn encoded_len<T: Serialize>(value: &T) -> io::Result<usize> {
    frame::encode(value).map(|bytes| bytes.len())
}

/// `update` in parts that each fit a packet.
fn pieces(update: &JobUpdate) -> io::Result<Vec<JobUpdate>> {
    Ok(match update {
        JobUpdate::Files(files) => chunks(files)?.into_iter().map(JobUpdate::Files).collect(),
        JobUpdate::Splits { stage, splits } => {
            let cut: Vec<Split> = splits.iter().map(cut_split).collect::<io::Result<_>>()?;
            let reported = |splits| JobUpdate::Splits { stage: *stage, splits };
            chunks(&cut)?.into_iter().map(reported).collect()
        }
        other => vec![other.clone()],
    })
}

/// A split of so many parts that it does not fit is reported by its first parts: the rest is not
/// prefetched.
fn cut_split(split: &Split) -> io::Result<Split> {
    let mut parts = split.parts.clone();
    while encoded_len(&parts)? > PACKET_BYTES / 2 {
        parts.truncate(parts.len() / 2);
    }
    Ok(Split { parts, preferred_node: split.preferred_node.clone() })
}

fn chunks<T: Serialize + Clone>(all: &[T]) -> io::Result<Vec<Vec<T>>> {
    let mut out: Vec<Vec<T>> = Vec::new();
    let mut bytes = PACKET_BYTES;
    for one in all {
        let len = encoded_len(one)?;
        if bytes + len > PACKET_BYTES / 2 {
            out.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        if let Some(last) = out.last_mut() {
            last.push(one.clone());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{assert_left_alone, connections, hung_agent};
    use forebay_pfs::{FileVersion, Revalidate};
    use forebay_wire::{Epoch, NodeInfo, Part};

    fn mount() -> MountInfo {
        MountInfo {
            label: "pfs".into(),
            root: b"/pfs".to_vec(),
            page_bytes: 1 << 16,
            read_ahead_bytes: 0,
            revalidate: Revalidate::Force,
            stamp_granularity_ns: 0,
            extent_bytes: 1 << 20,
        }
    }

    fn node(name: &str, address: &str) -> NodeInfo {
        NodeInfo {
            name: name.into(),
            host: format!("{name}.host"),
            address: address.into(),
            capacity_bytes: 1 << 30,
            mounts: vec!["pfs".into()],
            ..NodeInfo::default()
        }
    }

    #[test]
    fn ranges_are_located_extent_by_extent_at_nodes_that_serve() {
        let nodes = vec![node("a", "127.0.0.1:1"), node("b", "127.0.0.1:2"), node("c", "")];
        let view = ClusterView { epoch: Epoch::default(), nodes };
        let range = Range { ino: 7, size: 40 << 20, offset: 1 << 19, len: 99 << 20 };
        let found = owners(&view, &mount(), range);
        assert_eq!((found[0].offset, found[0].len), (1 << 19, 1 << 19));
        assert_eq!(found.iter().map(|l| l.len).sum::<u64>(), (40 << 20) - (1 << 19));
        let on = |host: &str| found.iter().filter(|l| l.hosts == [host]).count();
        assert!(on("a.host") > 5 && on("b.host") > 5 && on("c.host") == 0);
        assert!(owners(&ClusterView::default(), &mount(), range)[0].hosts.is_empty());
    }

    #[test]
    fn preferred_nodes_are_even_over_all_files_and_a_dedicated_node_is_only_an_owner() {
        let mut nodes = vec![node("a", "127.0.0.1:1"), node("b", "127.0.0.1:2"), node("c", "127.0.0.1:3")];
        nodes[2].role = Role::Dedicated;
        nodes[2].capacity_bytes = 1 << 28;
        let view = ClusterView { epoch: Epoch::default(), nodes };
        let mut given = PreferredNodes::default();
        // Files of one extent, as they are written by a job: what is within a file cannot be evened
        // out.
        let file = |ino| Range { ino, size: 1 << 20, offset: 0, len: 1 << 20 };
        let reported: Vec<String> = (0..60)
            .map(|ino| preferred_nodes(&view, &mount(), file(ino), &mut given)[0].hosts[0].clone())
            .collect();
        let on = |host: &str| reported.iter().filter(|h| *h == host).count();
        assert!(on("a.host").abs_diff(on("b.host")) <= 1, "{reported:?}");
        for (ino, host) in (0..60).zip(&reported) {
            let owner = owners(&view, &mount(), file(ino))[0].hosts[0].clone();
            assert_eq!(host == "c.host", owner == "c.host");
            assert_eq!(
                preferred_nodes(&view, &mount(), file(ino), &mut given)[0].hosts[0],
                *host,
                "asked again"
            );
        }
        assert!(on("c.host") > 0);
        // A part of an extent has the preferred node of the whole.
        let half = Range { len: 1 << 19, ..file(5) };
        assert_eq!(preferred_nodes(&view, &mount(), half, &mut given)[0].hosts[0], reported[5]);
    }

    #[test]
    fn an_agent_that_hangs_is_not_asked_for_each_location() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, client) = hung_agent(dir.path());
        let range = Range { ino: 7, size: 1 << 20, offset: 0, len: 1 << 20 };
        let late = client.owners_of(&mount(), range).unwrap_err();
        assert_eq!((late.kind(), connections(&socket)), (io::ErrorKind::TimedOut, 1));
        assert_left_alone(&client);
        for again in [client.owners_of(&mount(), range), client.preferred_nodes_of(&mount(), range)] {
            assert_eq!(again.unwrap_err().kind(), io::ErrorKind::NotConnected);
        }
        assert_eq!(connections(&socket), 0, "it was asked again");
    }

    #[test]
    fn too_much_of_a_job_and_no_memory_for_it_now_differ() {
        // The first one shows the Spark plug-in that it must not report the stage again.
        let too_much = Refusal::TooMany("files and splits in one analytics job".into());
        for (refusal, number) in [(too_much, libc::ENOSPC), (Refusal::NoRoom, libc::ENOMEM)] {
            assert_eq!(errno(&refused(&Reply::Refused(refusal))), number);
        }
    }

    #[test]
    fn long_lists_are_reported_in_messages_that_fit() {
        let version = FileVersion { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        let file = |i: u32| FileRef { mount: "pfs".into(), path: format!("part-{i}").into(), version };
        let files: Vec<_> = (0..10_000).map(file).collect();
        let reported = pieces(&JobUpdate::Files(files.clone())).unwrap();
        let mut again = Vec::new();
        for piece in &reported {
            assert!(encoded_len(piece).unwrap() <= PACKET_BYTES);
            let JobUpdate::Files(some) = piece else { panic!("{piece:?}") };
            again.extend(some.clone());
        }
        assert!(reported.len() > 2);
        assert_eq!(again, files);

        let parts = vec![Part { file: 9, offset: u64::MAX, len: u64::MAX }; 100_000];
        let reported = pieces(&JobUpdate::Splits {
            stage: 1,
            splits: vec![Split { parts, preferred_node: "h".into() }],
        })
        .unwrap();
        assert!(reported.len() == 1 && encoded_len(&reported[0]).unwrap() <= PACKET_BYTES);
    }
}
