//! The tier of a job's nodes: steps that it holds, and their way to the PFS.
//!
//! All amounts are for one node, as its agent sees them.

use std::collections::VecDeque;

use forebay_policy::drain::{Action, Config, Drain, Event, File, FileId, Owner};
use forebay_policy::machine::Nanos;

use super::{DRAIN, Tier};
use crate::driver::{Driver, Record};

/// The job among the owners of a node.
const OWNER: Owner = 0;

struct Step {
    file: FileId,
    bytes: u64,
    is_whole: bool,
    is_dirty: bool,
    since: Nanos,
    /// Bytes that have been written, and bytes of the chunk that is pending.
    written: u64,
    chunk: u64,
}

/// What holds drains up: phases on the PFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phases {
    /// There are none.
    #[default]
    Nobody,
    /// Phases of one job.
    Of(usize),
    /// Phases of several jobs.
    Several,
}

/// See the module.
pub struct Node {
    tier: Tier,
    job: usize,
    pub driver: Driver<Drain>,
    steps: VecDeque<Step>,
}

/// A chunk in transit to the PFS.
pub struct Chunk {
    pub file: FileId,
    pub bytes: u64,
}

impl Node {
    /// An empty tier.
    pub fn new(job: usize, tier: Tier, config: Config) -> Self {
        let driver = Driver::new(format!("{DRAIN}/{job}"), Drain::new(config));
        Node { tier, job, driver, steps: VecDeque::new() }
    }

    /// Bytes of steps in it.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.bytes).sum()
    }

    /// Returns whether the PFS lacks a step.
    pub fn is_dirty(&self) -> bool {
        self.steps.iter().any(|step| step.is_dirty)
    }

    /// Removes clean steps but for the newest whole ones, `keeps` of them.
    fn trim(&mut self, keeps: usize) {
        let mut newer = 0;
        for index in (0..self.steps.len()).rev() {
            let step = &self.steps[index];
            newer += usize::from(step.is_whole);
            let stays = step.is_dirty || step.is_whole && newer <= keeps;
            if !stays {
                self.steps.remove(index);
            }
        }
    }

    /// Returns whether a step of `bytes` has room now; an error if it never will have. Old
    /// checkpoints give way, but not the newest.
    pub fn has_room(&mut self, bytes: u64) -> Result<bool, ()> {
        let is_full = |node: &Node| node.bytes().saturating_add(bytes) > node.tier.bytes;
        let mut keeps = self.tier.keeps;
        while is_full(self) && keeps > 1 {
            keeps -= 1;
            self.trim(keeps);
        }
        match is_full(self) {
            false => Ok(true),
            true if self.is_dirty() => Ok(false),
            true => Err(()),
        }
    }

    /// A step has room, and will be absorbed.
    pub fn reserve(&mut self, now: Nanos, file: FileId, bytes: u64, is_whole: bool) {
        let (written, chunk) = (0, 0);
        self.steps.push_back(Step { file, bytes, is_whole, is_dirty: true, since: now, written, chunk });
    }

    /// The step that was reserved last is absorbed from now on.
    pub fn absorbed(&mut self, now: Nanos, phases: Phases, record: &Record<'_>) -> Vec<Chunk> {
        let mut chunks = self.hold(now, phases, record);
        chunks.extend(self.report_room(now, record));
        let Some(step) = self.steps.back_mut() else { return chunks };
        step.since = now;
        let event = Event::Dirty { file: step.file, facts: step.facts(false, false) };
        chunks.extend(self.handle(now, event, record));
        chunks
    }

    /// A step has no room: its job waits for the oldest one.
    pub fn wants_room(&mut self, now: Nanos, record: &Record<'_>) -> Vec<Chunk> {
        let Some(oldest) = self.steps.iter().find(|step| step.is_dirty) else { return Vec::new() };
        let event = Event::Dirty { file: oldest.file, facts: oldest.facts(true, true) };
        self.handle(now, event, record)
    }

    /// The job waits until the PFS has all of its steps.
    pub fn awaited(&mut self, now: Nanos, record: &Record<'_>) -> Vec<Chunk> {
        let dirty = self.steps.iter().filter(|step| step.is_dirty);
        let events: Vec<Event> =
            dirty.map(|step| Event::Dirty { file: step.file, facts: step.facts(true, false) }).collect();
        events.into_iter().flat_map(|event| self.handle(now, event, record)).collect()
    }

    /// The chunk of a step is on the PFS. Returns the next ones, and the bytes of the step if the
    /// PFS has all of it.
    pub fn landed(&mut self, now: Nanos, file: FileId, record: &Record<'_>) -> (Vec<Chunk>, Option<u64>) {
        let Some(step) = self.steps.iter_mut().find(|step| step.file == file) else { return (vec![], None) };
        step.written += step.chunk;
        let (bytes, is_over) = (step.chunk, step.written >= step.bytes);
        let mut chunks = self.handle(now, Event::Written { file, bytes }, record);
        if !is_over {
            chunks.extend(self.offer(now, file, record));
            return (chunks, None);
        }
        let clean = self.steps.iter_mut().find(|step| step.file == file).map(|step| {
            step.is_dirty = false;
            step.bytes
        });
        self.trim(self.tier.keeps);
        chunks.extend(self.handle(now, Event::Ended { file, full: None }, record));
        chunks.extend(self.handle(now, Event::Clean { file }, record));
        chunks.extend(self.report_room(now, record));
        (chunks, clean)
    }

    /// Phases of others hold drains up.
    pub fn hold(&mut self, now: Nanos, phases: Phases, record: &Record<'_>) -> Vec<Chunk> {
        let own = (phases == Phases::Of(self.job)).then_some(OWNER);
        let hold = Event::Hold { on: phases != Phases::Nobody, own };
        match self.driver.machine().hold() == hold {
            true => Vec::new(),
            false => self.handle(now, hold, record),
        }
    }

    /// The moment that the machine has requested has come.
    pub fn wake(&mut self, now: Nanos, record: &Record<'_>) -> Vec<Chunk> {
        let actions = self.driver.wake(now, record);
        self.obey(now, actions, record)
    }

    fn report_room(&mut self, now: Nanos, record: &Record<'_>) -> Vec<Chunk> {
        let free_bytes = self.tier.bytes.saturating_sub(self.bytes());
        self.handle(now, Event::Room { owner: OWNER, free_bytes }, record)
    }

    fn handle(&mut self, now: Nanos, event: Event, record: &Record<'_>) -> Vec<Chunk> {
        let actions = self.driver.handle(now, event, record);
        self.obey(now, actions, record)
    }

    fn obey(&mut self, now: Nanos, actions: Vec<Action>, record: &Record<'_>) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        for action in actions {
            match action {
                Action::Begin { file, .. } => chunks.extend(self.offer(now, file, record)),
                Action::Send { file, .. } => {
                    let Some(step) = self.steps.iter().find(|step| step.file == file) else { continue };
                    chunks.push(Chunk { file, bytes: step.chunk });
                }
            }
        }
        chunks
    }

    fn offer(&mut self, now: Nanos, file: FileId, record: &Record<'_>) -> Vec<Chunk> {
        let Some(step) = self.steps.iter_mut().find(|step| step.file == file) else { return Vec::new() };
        step.chunk = (step.bytes - step.written).min(self.tier.chunk_bytes);
        let bytes = step.chunk;
        self.handle(now, Event::Offer { file, bytes, server: None }, record)
    }
}

impl Step {
    fn facts(&self, is_awaited: bool, wants_room: bool) -> File {
        let (bytes, since) = (self.bytes, self.since);
        File { owner: OWNER, bytes, since, is_ready: true, is_awaited, wants_room, ..File::default() }
    }
}
