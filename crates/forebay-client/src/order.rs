//! Announces what a program will read, in order: the files of a training run, epoch by epoch.
//!
//! An [`Order`] is an analytics job whose tasks are groups of consecutive reads, one slot, one wave
//! each. So the coordinator's planner fetches the next groups, the brake stops that while an I/O
//! phase of an HPC job is behind, and a node gets a page of another node from that page's owner.
//! This node's agent also keeps what is read soonest (decision 0074). The order ends when this is
//! dropped, or with the program.
//!
//! The program calls [`Order::read`] when it begins a read, or hands it to a reader; nothing else
//! advances the order. Readers may lag behind by [`GROUPS_BEHIND`] groups.

use crate::error::with_message;
use crate::job::Job;
use crate::session::Client;
use forebay_wire::{FileRef, JobUpdate, Part, Split};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A group is this part of the tier. The planner fetches four to seven groups ahead, and up to
/// three are being read: a twelfth of the tier, which keeps nothing from epoch to epoch.
const GROUPS_IN_TIER: u64 = 128;

/// Groups that have been handed to readers and may still be read.
const GROUPS_BEHIND: usize = 2;

/// Threads that look up files: each look-up is a round trip or two to the PFS.
const NAMING_THREADS: usize = 8;

/// How long to wait until this node is a member of its cluster, of which it may be the only one.
const MEMBER_TIME: Duration = Duration::from_secs(5);

/// Something that a program reads in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The file.
    pub path: PathBuf,
    /// First byte.
    pub offset: u64,
    /// Bytes; `None` for the rest of the file.
    pub len: Option<u64>,
}

impl From<&Path> for Item {
    /// A whole file.
    fn from(path: &Path) -> Self {
        Item { path: path.to_owned(), offset: 0, len: None }
    }
}

/// An announced order. Threads may share it behind a lock.
#[derive(Debug)]
pub struct Order {
    job: Job,
    host: String,
    /// Parts by number of the item.
    parts: Vec<Part>,
    group_bytes: u64,
    next_stage: u32,
    waiting: VecDeque<Group>,
    running: VecDeque<(Group, Instant)>,
}

/// Consecutive items of one epoch: a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    stage: u32,
    task: u32,
    /// Not handed out yet.
    items: usize,
    has_started: bool,
    ends_stage: bool,
}

impl Client {
    /// Begins an order over `items`, called `name`. Announces nothing yet.
    ///
    /// # Errors
    /// No agent; a file cannot be opened or is on no mount that the agent serves; too many files
    /// for this user. Reads do not depend on it.
    pub fn begin_order(&self, name: &str, items: &[Item]) -> io::Result<Order> {
        let (files, parts) = self.named_items(items)?;
        let (host, capacity_bytes) = self.own_host()?;
        let job = self.begin_job(name, "")?;
        job.report(&[JobUpdate::InOrder])?;
        job.report(&[JobUpdate::Slots(vec![(host.clone(), 1)]), JobUpdate::Files(files)])?;
        Ok(Order {
            job,
            host,
            parts,
            group_bytes: (capacity_bytes / GROUPS_IN_TIER).max(1),
            next_stage: 0,
            waiting: VecDeque::new(),
            running: VecDeque::new(),
        })
    }

    /// The files of `items`, each once, and the part of them that each item is.
    fn named_items(&self, items: &[Item]) -> io::Result<(Vec<FileRef>, Vec<Part>)> {
        let mut numbers: HashMap<&Path, u32> = HashMap::new();
        let mut paths: Vec<&Path> = Vec::new();
        for item in items {
            numbers.entry(&item.path).or_insert_with(|| {
                paths.push(&item.path);
                paths.len() as u32 - 1
            });
        }
        let name =
            |paths: &[&Path]| paths.iter().map(|path| self.file_ref(path)).collect::<io::Result<Vec<_>>>();
        let each = paths.len().div_ceil(NAMING_THREADS).max(1);
        let named: Vec<io::Result<Vec<FileRef>>> = std::thread::scope(|threads| {
            let named: Vec<_> = paths.chunks(each).map(|some| threads.spawn(move || name(some))).collect();
            let panicked = || io::Error::other("a thread that looked up files has failed");
            named.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        let files = named.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
        let part = |item: &Item| {
            let file = numbers[item.path.as_path()];
            let left = files[file as usize].version.size.saturating_sub(item.offset);
            Part { file, offset: item.offset, len: item.len.map_or(left, |len| len.min(left)) }
        };
        let parts = items.iter().map(part).collect();
        Ok((files, parts))
    }

    /// The name by which schedulers know this node, and the size of its tier.
    fn own_host(&self) -> io::Result<(String, u64)> {
        let until = Instant::now() + MEMBER_TIME;
        loop {
            let status = self.admin().status()?;
            let own = status.cluster.view.nodes.iter().find(|node| node.name == status.cluster.node);
            if let Some(own) = own {
                return Ok((own.host.clone(), status.capacity_bytes));
            }
            if Instant::now() >= until {
                // Without a coordinator nothing is fetched ahead, and the agent keeps what is next.
                return Ok((status.cluster.node, status.capacity_bytes));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Order {
    /// Announces that the program will read these items, by their numbers, after those announced
    /// before: an epoch. The sooner it is announced the better: at the end of an epoch the next one
    /// should be known.
    ///
    /// # Errors
    /// There is no such item; the agent is gone, or refuses: too much is announced, or the program
    /// reads in another order than it has announced.
    pub fn announce(&mut self, sequence: &[u32]) -> io::Result<()> {
        if let Some(item) = sequence.iter().find(|item| **item as usize >= self.parts.len()) {
            let count = self.parts.len();
            return Err(with_message(
                libc::EINVAL,
                format!("item {item} is announced, and the order has {count} items, numbered from 0"),
            ));
        }
        let stage = self.next_stage;
        let splits = self.splits(sequence);
        let groups = splits.len();
        for (task, split) in splits.iter().enumerate() {
            self.waiting.push_back(Group {
                stage,
                task: task as u32,
                items: split.parts.len(),
                has_started: false,
                ends_stage: task + 1 == groups,
            });
        }
        self.next_stage += 1;
        let reported =
            self.job.report(&[JobUpdate::Splits { stage, splits }, JobUpdate::StageReady { stage }]);
        if reported.is_err() {
            self.waiting.retain(|group| group.stage != stage);
        }
        reported
    }

    fn splits(&self, sequence: &[u32]) -> Vec<Split> {
        let mut splits: Vec<Split> = Vec::new();
        let mut bytes = self.group_bytes;
        for item in sequence {
            let part = self.parts[*item as usize];
            if bytes >= self.group_bytes {
                splits.push(Split { parts: Vec::new(), preferred_node: self.host.clone() });
                bytes = 0;
            }
            bytes = bytes.saturating_add(part.len);
            if let Some(last) = splits.last_mut() {
                last.parts.push(part);
            }
        }
        splits
    }

    /// Reports that the program begins to read `items` more items, in the announced order, or hands
    /// them to its readers.
    ///
    /// # Errors
    /// As [`Order::announce`].
    pub fn read(&mut self, items: usize) -> io::Result<()> {
        let mut updates = Vec::new();
        for _ in 0..items {
            self.read_one(&mut updates);
        }
        if updates.is_empty() { Ok(()) } else { self.job.report(&updates) }
    }

    fn read_one(&mut self, updates: &mut Vec<JobUpdate>) {
        let Some(group) = self.waiting.front_mut() else { return };
        if !group.has_started {
            group.has_started = true;
            let Group { stage, task, .. } = *group;
            updates.push(JobUpdate::TaskStarted { stage, task, host: self.host.clone() });
            self.running.push_back((*group, Instant::now()));
        }
        group.items -= 1;
        if group.items == 0 {
            self.waiting.pop_front();
        }
        while self.running.len() > GROUPS_BEHIND + 1 {
            self.end_oldest(updates);
        }
    }

    fn end_oldest(&mut self, updates: &mut Vec<JobUpdate>) {
        let Some((Group { stage, task, ends_stage, .. }, since)) = self.running.pop_front() else { return };
        let run_ms = since.elapsed().as_millis() as u64;
        updates.push(JobUpdate::TaskEnded { stage, task, ok: true, run_ms });
        if ends_stage {
            updates.push(JobUpdate::StageEnded { stage });
        }
    }

    /// Reports that the program reads no more of the epoch that it is in, or of the next one if it
    /// is in none.
    ///
    /// # Errors
    /// As [`Order::announce`].
    pub fn leave_epoch(&mut self) -> io::Result<()> {
        let Some(stage) = self.waiting.front().map(|group| group.stage) else { return Ok(()) };
        self.waiting.retain(|group| group.stage != stage);
        self.running.retain(|(group, _)| group.stage != stage);
        self.job.report(&[JobUpdate::StageEnded { stage }])
    }

    /// Items that are announced and not read.
    pub fn items_left(&self) -> usize {
        self.waiting.iter().map(|group| group.items).sum()
    }
}
