//! One dirty file as the agent keeps it.

use crate::cache::held::Held;
use crate::traffic::account::Account;
use crate::user_limits::Share;
use forebay_pfs::FileFacts;
use forebay_policy::drain::Outlook;
use forebay_policy::machine::Nanos;
use forebay_store::dirty::{DirtyRecord, Keeper, Words};
use forebay_wire::cluster::DirtyFile;
use forebay_wire::{DirtyState, DirtyStatus, SecondPlace};
use rustix::fs::fstat;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Identifies the content at one moment: a later write changes the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Length in bytes.
    pub size: u64,
    /// Memory that it takes.
    pub bytes: u64,
    /// mtime, nanoseconds since 1970.
    pub mtime_ns: i64,
    ctime_ns: i64,
}

impl Stamp {
    /// The stamp of an open file now.
    ///
    /// # Errors
    /// What `fstat` returns.
    pub fn of(content: &OwnedFd) -> io::Result<Self> {
        let stat = fstat(content)?;
        let nanos = |sec: i64, nsec: u64| sec.saturating_mul(1_000_000_000).saturating_add(nsec as i64);
        Ok(Stamp {
            size: stat.st_size as u64,
            bytes: stat.st_blocks as u64 * 512,
            mtime_ns: nanos(stat.st_mtime, stat.st_mtime_nsec as u64),
            ctime_ns: nanos(stat.st_ctime, stat.st_ctime_nsec as u64),
        })
    }
}

/// What becomes of it next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A program has it open for writing.
    Open,
    /// It waits for its pass.
    Waits,
    /// Its last pass has failed.
    Failed,
    /// It gets no pass before somebody asks.
    Parked,
    /// The PFS has it; the content may become a copy.
    Clean(FileFacts),
}

/// State of the second copy of a dirty file. The record says where that copy is.
#[derive(Debug, Default)]
pub struct Copying {
    /// Where the copy has to be.
    pub place: SecondPlace,
    /// A copy has to be sent.
    pub is_asked: bool,
    /// Until when a requested copy may wait for the content to settle.
    pub rests_until: Nanos,
    /// A copy is being sent.
    pub is_sending: bool,
    /// Number of copies begun, and the number of the last one that succeeded.
    pub sent: (u64, u64),
    /// Stamp of the last copy sent, and whether any later write is certain to change it.
    pub stamp: Option<(Stamp, bool)>,
    /// Nodes that have refused the copy, and until when they are not asked again.
    pub refused: BTreeMap<String, Nanos>,
    /// The place has not accepted the copy: writers wait for the PFS, and the place is tried again
    /// after this time.
    pub missed_until: Option<Nanos>,
    /// Made by an earlier agent: another node may have taken the file over.
    pub is_unconfirmed: bool,
}

impl Copying {
    /// A copy is on its way to another node.
    pub fn is_sent_to_node(&self) -> bool {
        self.is_sending && self.place == SecondPlace::Node
    }
}

/// How far a time may be from the one that was set, on file systems that keep whole seconds.
const WHOLE_SECOND_NS: u64 = 1_000_000_000;

/// Largest difference between the PFS's clock and this node's, including the time of the call.
const CLOCKS_WITHIN_NS: u64 = 5_000_000_000;

/// How many set times are remembered for each file.
const TIMES_SET_MAX: usize = 4;

/// An mtime that a program has set on the PFS, or is about to.
#[derive(Clone, Copy, Debug)]
pub struct TimeSet {
    /// Nanoseconds since 1970.
    pub ns: i64,
    /// How far from it the PFS may show it.
    pub within_ns: u64,
    /// When that was, by this node's clock.
    pub at_ns: i64,
    /// The content at that time: a later write has another time.
    pub stamp: Option<Stamp>,
}

/// A dirty file. Its number is that of the copy that it may become.
#[derive(Debug)]
pub struct Dirty {
    /// Its number.
    pub copy: u64,
    /// Where it belongs.
    pub record: DirtyRecord,
    /// Index of its mount.
    pub mount: usize,
    /// Device of its file there, as this node has it.
    pub dev: u64,
    /// The file, open for writing at any offset; `None` if it could not be opened again.
    pub pfs: Option<Arc<OwnedFd>>,
    /// The content, open for reading: a lease shows whether anybody has it open for writing.
    pub content: Arc<OwnedFd>,
    /// `None` for one of an earlier agent until somebody opens it.
    pub words: Option<Words>,
    /// Users who have got the content to write.
    pub uids: BTreeSet<u32>,
    /// How often it was given out to be written.
    pub joins: u64,
    /// A program on this node writes the file on the PFS meanwhile.
    pub is_foreign: bool,
    /// Programs of another node write it, so it goes to the PFS.
    pub is_shared: bool,
    /// Memory reserved.
    pub room: Held,
    /// Descriptors, counted in the user's share.
    pub _descriptors: Share,
    /// See [`Phase`].
    pub phase: Phase,
    /// A pass is under way.
    pub is_draining: bool,
    /// Bytes that it has written.
    pub drained_bytes: u64,
    /// Passes that have begun, and the number of the last one that has succeeded.
    pub passes: (u64, u64),
    /// Stamp of the content that the last pass wrote, and whether nobody could write to the content
    /// since that pass began: stores through a mapping move no time stamp.
    pub drained: Option<(Stamp, bool)>,
    /// The last few mtimes that programs on this node have set on the PFS, or are about to set:
    /// a call may fail, and two calls may take effect in the opposite order.
    pub times_set: VecDeque<TimeSet>,
    /// Until when somebody waits for it: each waiter renews its request every second.
    pub awaited_until: Nanos,
    /// When it was closed, or became awaited.
    pub since: Nanos,
    /// When it was opened for writing.
    pub opened: Nanos,
    /// No pass begins before this.
    pub not_before: Nanos,
    /// Passes that have failed in succession.
    pub failures: u32,
    /// Error number of the last failed pass.
    pub errno: i32,
    /// Message of the last failed pass.
    pub error: String,
    /// See [`Copying`].
    pub copying: Copying,
    /// Programs find it by its inode: the PFS does not have the newest of it.
    pub is_listed: bool,
    /// Account of the job that writes it.
    pub account: Arc<Account>,
}

impl Dirty {
    /// A file that waits for its pass, with `room` reserved for its user; it is not listed yet.
    pub fn new(
        copy: u64,
        (record, mount): (DirtyRecord, usize),
        content: OwnedFd,
        (room, descriptors, account): (Held, Share, Arc<Account>),
        now: Nanos,
    ) -> Self {
        Dirty {
            copy,
            mount,
            dev: record.dev,
            pfs: None,
            content: Arc::new(content),
            words: None,
            uids: [record.uid].into(),
            joins: 0,
            is_foreign: false,
            is_shared: false,
            room,
            _descriptors: descriptors,
            phase: Phase::Waits,
            is_draining: false,
            drained_bytes: 0,
            passes: (0, 0),
            drained: None,
            times_set: VecDeque::new(),
            awaited_until: Nanos(0),
            since: now,
            opened: now,
            not_before: Nanos(0),
            failures: 0,
            errno: 0,
            error: String::new(),
            copying: Copying::default(),
            is_listed: false,
            account,
            record,
        }
    }

    /// Its name, as all nodes know it.
    pub fn name(&self) -> DirtyFile {
        DirtyFile { mount: self.record.mount.clone(), ino: self.record.ino }
    }

    /// Whether the PFS does not have all of it.
    pub fn is_dirty(&self) -> bool {
        !matches!(self.phase, Phase::Clean(_))
    }

    /// Whether somebody waits for it.
    pub fn is_awaited(&self, now: Nanos) -> bool {
        now < self.awaited_until
    }

    /// Whether the last pass failed, and either began after the first `begun` passes or will not be
    /// followed by another.
    pub fn has_failed_since(&self, begun: u64) -> bool {
        let is_last = self.passes.0 > begun || self.phase == Phase::Parked;
        self.failures > 0 && !self.is_draining && is_last
    }

    /// Allows another pass immediately if the caller began to wait while the failed pass was under
    /// way. Returns whether that is so.
    pub fn try_again(&mut self, begun: u64) -> bool {
        let is_early = self.failures > 0 && !self.is_draining && !self.has_failed_since(begun);
        if is_early {
            (self.failures, self.not_before) = (0, Nanos(0));
        }
        is_early
    }

    /// Whether the last pass has written all of the current content.
    pub fn is_all_drained(&self) -> bool {
        self.drained.is_some_and(|(stamp, _)| Stamp::of(&self.content).ok() == Some(stamp))
    }

    /// The mtime that a program on this node has set, if the PFS shows it and, where ctime is
    /// known, shows a ctime from the time of that call: a later write would have moved ctime.
    pub fn time_set(&self, mtime_ns: i64, ctime_ns: Option<i64>) -> Option<TimeSet> {
        let is_it = |set: &&TimeSet| {
            mtime_ns.abs_diff(set.ns) <= set.within_ns
                && ctime_ns.is_none_or(|ctime_ns| ctime_ns.abs_diff(set.at_ns) <= CLOCKS_WITHIN_NS)
        };
        self.times_set.iter().rev().find(is_it).copied()
    }

    /// Records that a program is about to set the mtime: to `mtime_ns`, or to now.
    pub fn note_time_set(&mut self, mtime_ns: Option<i64>, at_ns: i64) {
        let (ns, within_ns) = mtime_ns.map_or((at_ns, CLOCKS_WITHIN_NS), |ns| (ns, WHOLE_SECOND_NS));
        // Since Linux 6.13, reading the time stamp gives the next write a different one.
        let stamp = Stamp::of(&self.content).ok();
        self.times_set.push_back(TimeSet { ns, within_ns, at_ns, stamp });
        if self.times_set.len() > TIMES_SET_MAX {
            self.times_set.pop_front();
        }
    }

    /// Whether the second copy equals the current content.
    pub fn is_copied(&self) -> bool {
        let is_mapped = self.words.as_ref().is_some_and(Words::is_mapped);
        let is_same = |(stamp, is_settled)| is_settled && Stamp::of(&self.content).ok() == Some(stamp);
        let is_there = match (&self.record.second.kept_by, self.copying.place) {
            (Some(Keeper::Node(_)), SecondPlace::Node) | (Some(Keeper::Disk(_)), SecondPlace::Disk) => true,
            (Some(_), _) | (None, _) => false,
        };
        is_there && !is_mapped && self.copying.stamp.is_some_and(is_same)
    }

    /// Whether writers have to continue on the PFS.
    pub fn is_called_in(&self) -> bool {
        self.words.as_ref().is_some_and(Words::is_called_in)
    }

    fn why(&self, outlook: Option<&Outlook>) -> String {
        let copy = match &self.record.second.kept_by {
            _ if self.copying.missed_until.is_some() => match self.copying.place {
                SecondPlace::Node => "no node takes a second copy".to_owned(),
                SecondPlace::Disk => "the log takes no copy".to_owned(),
            },
            Some(Keeper::Node(_)) if self.copying.sent.1 == 0 => String::new(),
            Some(keeper) => {
                let (now, copied) = (Stamp::of(&self.content).ok(), self.copying.stamp);
                let of = if now == copied.map(|copied| copied.0) { "" } else { " of earlier content" };
                match keeper {
                    Keeper::Node(node) => format!("second copy{of} on node {node}"),
                    Keeper::Disk(_) => format!("second copy{of} in the log"),
                }
            }
            None => String::new(),
        };
        let outlook = outlook.map_or(String::new(), |outlook| outlook.why.to_string());
        if copy.is_empty() || outlook.is_empty() { copy + &outlook } else { format!("{copy}; {outlook}") }
    }

    /// What `forebay dirty` prints.
    pub fn status(&self, copy: u64, now: Nanos, outlook: Option<&Outlook>) -> DirtyStatus {
        let state = match self.phase {
            _ if self.is_draining => DirtyState::Drains,
            Phase::Open => DirtyState::Open,
            Phase::Waits | Phase::Clean(_) => DirtyState::Waits,
            Phase::Failed => DirtyState::Failed,
            Phase::Parked => DirtyState::Parked,
        };
        DirtyStatus {
            copy,
            mount: self.record.mount.clone(),
            path: self.record.path.clone(),
            uid: self.record.uid,
            bytes: Stamp::of(&self.content).map_or(0, |stamp| stamp.size),
            drained_bytes: if self.is_draining { self.drained_bytes } else { 0 },
            age_ms: now.saturating_since(self.opened) / 1_000_000,
            state,
            error: self.error.clone(),
            rate_bytes_per_s: outlook.map_or(0, |outlook| outlook.rate_bytes_per_s),
            safe_in_ms: outlook.and_then(|outlook| outlook.safe_in_ns).map(|ns| ns / 1_000_000),
            why: self.why(outlook),
        }
    }
}
