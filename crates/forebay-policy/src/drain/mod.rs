//! When the files that a tier holds are written to the PFS, in which order, and how fast.
//!
//! A *pass* writes all of a file. The machine is notified which files are dirty, how much room is
//! left, and whether other jobs are in an I/O phase. It begins passes, and lets each write its next
//! chunk. An agent drives it as a part of the node machine; the simulator drives it for steps in
//! burst buffers.
//!
//! **Order.** Files whose writer waits for room and files that have waited too long go first; then
//! the awaited ones; then the others. Within a class the oldest goes first, so that of the steps of
//! one job the oldest is safe first. An open file is left alone unless a caller waits for it: its
//! bytes would be written twice.
//!
//! **Phases.** During the phase of another job nothing is written, except for lack of room and for
//! age ([`Forced`]). Room is short if a writer waits, or if the next burst of its owner, as large
//! as the last ones, would not find room unless the drain begins now. An awaited file does not wait
//! for phases of its own owner: the program may be waiting for it in its phase.
//!
//! **Servers.** A chunk goes to a server that has no other chunk of this drain, if there is one.
//! Passes that wait for a server that hangs do not keep others from beginning.
//!
//! **Jobs with a rate limit.** Their passes wait for their rate. So a job has one at a time, all of
//! them have half of the passes, and none keeps the pass of another job from continuing.

mod bursts;
mod chunks;
mod event;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use bursts::Bursts;
pub use chunks::{GENTLE_BYTES, TRIES, chunks, gentle_bytes, pause_ns};
pub use event::{Action, Config, Event, File, FileId, Forced, Outlook, Owner, POLICIES, Server, Why};

use crate::machine::{Machine, Nanos};
use crate::token_bucket::{FOREVER_NS, TokenBucket};

/// Burst of a limited rate: a chunk.
const BURST_BYTES: u64 = 4 << 20;

/// A write that takes longer may hang: others continue beside it. A busy PFS takes less for a
/// chunk.
const HANGS_NS: u64 = 30_000_000_000;

/// How long a server without space is avoided: as long as a file waits for its last try.
const FULL_NS: u64 = 64_000_000_000;

/// A rate is measured over at least this time.
const MEASURED_NS: u64 = 250_000_000;

/// Priority of a file: the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Urgent,
    Awaited,
    Other,
}

const CLASSES: [Class; 3] = [Class::Urgent, Class::Awaited, Class::Other];

type Rank = (Class, Nanos, FileId);

impl File {
    fn class(&self) -> Class {
        match (self.wants_room, self.is_awaited) {
            (true, _) => Class::Urgent,
            (false, true) => Class::Awaited,
            (false, false) => Class::Other,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    state: State,
    written: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// It neither offers nor writes a chunk: it opens the file, or syncs it.
    Between {
        since: Nanos,
    },
    Offers {
        bytes: u64,
        server: Option<Server>,
    },
    Writes {
        since: Nanos,
        server: Option<Server>,
        forced: Option<Forced>,
    },
}

#[derive(Clone, Debug)]
struct Known {
    facts: File,
    pass: Option<Pass>,
}

#[derive(Clone, Debug, Default)]
struct Room {
    /// `None`: unknown.
    free_bytes: Option<u64>,
    bursts: Bursts,
    open: usize,
    want_room: usize,
}

#[derive(Clone, Debug, Default)]
struct Mount {
    waiting: BTreeSet<Rank>,
    passes: BTreeSet<FileId>,
    /// Servers without space, and until when they are avoided.
    full: BTreeMap<Server, Nanos>,
    rate_bytes_per_s: u64,
    /// Bytes written since the rate was measured.
    written: u64,
    busy_ns: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Drain {
    config: Config,
    files: BTreeMap<FileId, Known>,
    rooms: BTreeMap<Owner, Room>,
    mounts: BTreeMap<usize, Mount>,
    held: bool,
    own: Option<Owner>,
    pace: TokenBucket,
    goes_at: Option<Nanos>,
    now: Nanos,
}

/// When an owner lacks room.
enum Need {
    Never,
    From(Nanos),
    /// It lacks room now, so that its files are written at this rate; 0: no limit.
    Now(u64),
}

impl Drain {
    /// A drain without dirty files.
    pub fn new(config: Config) -> Self {
        Drain {
            config,
            files: BTreeMap::new(),
            rooms: BTreeMap::new(),
            mounts: BTreeMap::new(),
            held: false,
            own: None,
            pace: TokenBucket::new(Nanos(0), config.rate_bytes_per_s, BURST_BYTES),
            goes_at: None,
            now: Nanos(0),
        }
    }

    /// Returns whether nothing is dirty, and no phase or pause is under way ([`Event::Hold`]).
    /// Learned rates and bursts do not count.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty() && !self.held
    }

    /// Returns the last reported hold.
    pub fn hold(&self) -> Event {
        Event::Hold { on: self.held, own: self.own }
    }

    /// Returns whether a pass over this file is under way.
    pub fn is_passing(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.pass.is_some())
    }

    fn note(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Dirty { file, facts } => self.dirty(now, file, facts),
            Event::Clean { file } => self.forget(file),
            Event::Room { owner, free_bytes } => {
                self.rooms.entry(owner).or_default().free_bytes = Some(free_bytes);
            }
            Event::Offer { file, bytes, server } => self.set_state(file, State::Offers { bytes, server }),
            Event::Written { file, bytes } => {
                self.set_state(file, State::Between { since: now });
                let Some(known) = self.files.get_mut(&file) else { return };
                if let (Some(pass), Some(mount)) = (&mut known.pass, self.mounts.get_mut(&known.facts.mount))
                {
                    pass.written += bytes;
                    if known.facts.limited_job.is_none() {
                        mount.written += bytes;
                    }
                }
            }
            Event::Ended { file, full } => {
                let Some(known) = self.files.get_mut(&file) else { return };
                (known.pass, known.facts.is_ready) = (None, false);
                if let Some(mount) = self.mounts.get_mut(&known.facts.mount) {
                    mount.passes.remove(&file);
                    mount.full.extend(full.map(|server| (server, now + FULL_NS)));
                    mount.measure();
                }
            }
            Event::Hold { on, own } => (self.held, self.own) = (on, own),
        }
    }

    fn dirty(&mut self, now: Nanos, id: FileId, facts: File) {
        let nothing = File { bytes: 0, is_open: false, wants_room: false, ..facts };
        let known = self.files.entry(id).or_insert(Known { facts: nothing, pass: None });
        let before = core::mem::replace(&mut known.facts, facts);
        let mount = self.mounts.entry(facts.mount).or_default();
        mount.waiting.remove(&(before.class(), before.since, id));
        if facts.is_ready && known.pass.is_none() {
            mount.waiting.insert((facts.class(), facts.since, id));
        }
        let room = self.rooms.entry(facts.owner).or_default();
        if facts.bytes > before.bytes {
            room.bursts.grow(now, facts.bytes - before.bytes);
        }
        room.count(&before, &facts);
    }

    fn forget(&mut self, id: FileId) {
        let Some(Known { facts, .. }) = self.files.remove(&id) else { return };
        if let Some(mount) = self.mounts.get_mut(&facts.mount) {
            mount.waiting.remove(&(facts.class(), facts.since, id));
            mount.passes.remove(&id);
        }
        let nothing = File { is_open: false, wants_room: false, ..facts };
        self.rooms.entry(facts.owner).or_default().count(&facts, &nothing);
    }

    fn set_state(&mut self, id: FileId, state: State) {
        if let Some(pass) = self.files.get_mut(&id).and_then(|file| file.pass.as_mut()) {
            pass.state = state;
        }
    }

    fn need(&self, owner: Owner) -> Need {
        let Some(room) = self.rooms.get(&owner) else { return Need::Never };
        if room.want_room > 0 {
            return Need::Now(0);
        }
        let Some((bytes, at)) = room.bursts.expected(self.now, room.open > 0) else { return Need::Never };
        let missing = room.free_bytes.map_or(0, |free| bytes.saturating_sub(free));
        if missing == 0 {
            return Need::Never;
        }
        let rate = self.mounts.values().map(|mount| mount.rate_bytes_per_s).max().unwrap_or(0);
        if rate == 0 || at <= self.now {
            return Need::Now(0);
        }
        // Beside a phase the rate is half of what it was alone, and bursts come early: an eighth of
        // the period is kept in hand.
        let takes_ns = per_second(missing.saturating_mul(2), rate);
        let from = at - takes_ns - room.bursts.period_ns() / 8;
        match self.now < from {
            true => Need::From(from),
            false => Need::Now(per_second(missing, at.saturating_since(self.now)).max(1)),
        }
    }

    fn is_aged(&self, facts: &File) -> bool {
        self.now.saturating_since(facts.since) >= self.config.age_max_ns
    }

    /// Returns whether a file may be written now, and why beside a phase. An error is what it waits
    /// for.
    fn may_go(&self, facts: &File) -> Result<Option<Forced>, Why> {
        let is_own = facts.is_awaited && self.own == Some(facts.owner);
        if !self.config.yields || !self.held || is_own {
            return Ok(None);
        }
        match self.need(facts.owner) {
            Need::Now(_) => Ok(Some(Forced::Capacity)),
            _ if self.is_aged(facts) => Ok(Some(Forced::Age)),
            Need::Never | Need::From(_) => Err(Why::Phase),
        }
    }

    fn rank(&self, id: FileId) -> Rank {
        let facts = &self.files[&id].facts;
        let class = if self.is_aged(facts) { Class::Urgent } else { facts.class() };
        (class, facts.since, id)
    }

    /// Returns the file whose pass begins next.
    fn next(&self, mount: &Mount) -> Option<FileId> {
        let of = |class| mount.waiting.range((class, Nanos(0), 0)..=(class, Nanos(u64::MAX), u64::MAX));
        let limited = || self.passes(mount).filter_map(|(_, facts, _)| facts.limited_job);
        let may_begin = |job: u64| {
            limited().count() < (self.config.passes / 2).max(1) && limited().all(|other| other != job)
        };
        let may_go = |id: &FileId| {
            let facts = &self.files[id].facts;
            facts.limited_job.is_none_or(may_begin) && self.may_go(facts).is_ok()
        };
        let firsts = CLASSES.into_iter().filter_map(|class| of(class).map(|rank| rank.2).find(may_go));
        let first = firsts.map(|id| self.rank(id)).min()?;
        // One pass is kept for a file that becomes urgent or awaited.
        let passes = self.config.passes - usize::from(first.0 == Class::Other && self.config.passes > 1);
        (mount.passes.len() < passes).then_some(first.2)
    }

    fn passes<'a>(&'a self, mount: &'a Mount) -> impl Iterator<Item = (FileId, &'a File, &'a Pass)> + Clone {
        mount.passes.iter().filter_map(|id| {
            let known = &self.files[id];
            Some((*id, &known.facts, known.pass.as_ref()?))
        })
    }

    /// Returns the chunks under way to a server, and whether one of them hangs.
    fn queue_of(&self, mount: &Mount, wanted: Option<Server>) -> (usize, bool) {
        let sinces = self.passes(mount).filter_map(|(_, _, pass)| match pass.state {
            State::Writes { since, server, .. } if server == wanted && wanted.is_some() => Some(since),
            _ => None,
        });
        let hangs = |since: Nanos| self.now.saturating_since(since) >= HANGS_NS;
        sinces.fold((0, false), |(count, hung), since| (count + 1, hung || hangs(since)))
    }

    /// Returns whether a pass leaves others free to continue: it hangs, or waits for what may take
    /// long.
    fn is_stuck(&self, mount: &Mount, facts: &File, pass: &Pass) -> bool {
        match pass.state {
            _ if facts.limited_job.is_some() => true,
            State::Between { since } | State::Writes { since, .. } => {
                self.now.saturating_since(since) >= HANGS_NS
            }
            State::Offers { server, .. } => self.may_go(facts).is_err() || self.queue_of(mount, server).1,
        }
    }

    fn begin(&mut self, number: usize, out: &mut Vec<Action>) {
        loop {
            let mount = &self.mounts[&number];
            let active = self.passes(mount).filter(|(_, facts, pass)| !self.is_stuck(mount, facts, pass));
            if active.count() >= self.config.writes {
                return;
            }
            let Some(file) = self.next(mount) else { return };
            let (Some(known), Some(mount)) = (self.files.get_mut(&file), self.mounts.get_mut(&number)) else {
                return;
            };
            known.pass = Some(Pass { state: State::Between { since: self.now }, written: 0 });
            mount.waiting.remove(&(known.facts.class(), known.facts.since, file));
            mount.passes.insert(file);
            out.push(Action::Begin { mount: number, file });
        }
    }

    /// Sends chunks. A pass between two chunks keeps its place: files are not interleaved more than
    /// necessary.
    fn send(&mut self, number: usize, out: &mut Vec<Action>) {
        let mut ranks: Vec<Rank> = self.mounts[&number].passes.iter().map(|id| self.rank(*id)).collect();
        ranks.sort_unstable();
        for may_be_crowded in [false, true] {
            for (_, _, file) in &ranks {
                let mount = &self.mounts[&number];
                let holds_place = |(_, facts, pass): &(FileId, &File, &Pass)| {
                    !matches!(pass.state, State::Offers { .. }) && !self.is_stuck(mount, facts, pass)
                };
                if self.passes(mount).filter(holds_place).count() >= self.config.writes {
                    return;
                }
                let Known { facts, pass: Some(Pass { state: State::Offers { bytes, server }, .. }) } =
                    self.files[file]
                else {
                    continue;
                };
                let (queued, hangs) = self.queue_of(mount, server);
                let is_full = server.is_some_and(|server| mount.full.get(&server) > Some(&self.now));
                let is_crowded = queued > 0 || is_full;
                let Ok(forced) = self.may_go(&facts) else { continue };
                if hangs || is_crowded && !may_be_crowded {
                    continue;
                }
                if !self.is_paid(&facts, bytes, forced) {
                    return;
                }
                self.set_state(*file, State::Writes { since: self.now, server, forced });
                out.push(Action::Send { file: *file, forced });
            }
        }
    }

    /// Returns whether the rate has room for a chunk. A file that is written for lack of room goes
    /// no faster than is needed.
    fn is_paid(&mut self, facts: &File, bytes: u64, forced: Option<Forced>) -> bool {
        let needed = match (forced, self.need(facts.owner)) {
            (Some(Forced::Capacity), Need::Now(rate)) => rate,
            _ => 0,
        };
        let rate = [self.config.rate_bytes_per_s, needed].into_iter().filter(|rate| *rate > 0).min();
        let Some(rate) = rate else { return true };
        if self.pace.rate_bytes_per_s() != rate {
            self.pace.set_rate(self.now, rate);
        }
        let wait_ns = self.pace.take(self.now, bytes);
        self.goes_at = (wait_ns != 0 && wait_ns != FOREVER_NS).then(|| self.now + wait_ns);
        wait_ns == 0
    }

    fn decide(&mut self, out: &mut Vec<Action>) {
        let mounts: Vec<usize> = self.mounts.keys().copied().collect();
        for mount in mounts {
            self.begin(mount, out);
            self.send(mount, out);
        }
    }

    /// Advances to `now`, and counts the time for which mounts were busy.
    fn go_on(&mut self, now: Nanos) {
        let is_busy = |mount: &Mount| {
            self.passes(mount).filter(|(_, facts, _)| facts.limited_job.is_none()).any(|(_, facts, pass)| {
                !matches!(pass.state, State::Offers { .. }) || self.may_go(facts).is_ok()
            })
        };
        let busy: Vec<usize> = self.mounts.iter().filter(|(_, m)| is_busy(m)).map(|(n, _)| *n).collect();
        let passed_ns = now.saturating_since(self.now);
        for number in busy {
            if let Some(mount) = self.mounts.get_mut(&number) {
                mount.busy_ns += passed_ns;
            }
        }
        self.now = now;
    }

    /// Returns the outlook of each file.
    pub fn outlooks(&self) -> BTreeMap<FileId, Outlook> {
        let mut outlooks = BTreeMap::new();
        for (number, mount) in &self.mounts {
            let of_mount = self.files.iter().filter(|(_, file)| file.facts.mount == *number);
            let mut ranks: Vec<Rank> = of_mount.map(|(id, _)| self.rank(*id)).collect();
            ranks.sort_unstable_by_key(|rank| (!mount.passes.contains(&rank.2), *rank));
            let (mut files, mut bytes) = (0, 0);
            for (_, _, id) in ranks {
                let Known { facts, pass } = &self.files[&id];
                let why = match (self.may_go(facts), pass.map(|pass| pass.state)) {
                    (_, Some(State::Writes { forced, .. })) => forced.map_or(Why::Writes, Why::Forced),
                    (_, None) if !facts.is_ready => Why::NotReady,
                    (Err(why), _) => why,
                    (Ok(_), Some(State::Between { .. })) => Why::Writes,
                    (Ok(_), Some(State::Offers { server, .. })) => match self.queue_of(mount, server).0 {
                        0 => Why::Turn(files),
                        _ => Why::Server,
                    },
                    (Ok(_), None) => Why::Turn(files),
                };
                if facts.is_ready || pass.is_some() {
                    files += 1;
                    bytes += facts.bytes.saturating_sub(pass.map_or(0, |pass| pass.written));
                }
                let rate = mount.rate();
                let is_known = rate > 0 && !matches!(why, Why::NotReady | Why::Phase);
                let is_under_way = matches!(why, Why::Writes | Why::Forced(_));
                let outlook = Outlook {
                    why,
                    rate_bytes_per_s: if is_under_way { rate } else { 0 },
                    safe_in_ns: is_known.then(|| per_second(bytes, rate)),
                };
                outlooks.insert(id, outlook);
            }
        }
        outlooks
    }
}

/// Nanoseconds for `bytes` at a rate, or the rate for `bytes` in a time of nanoseconds.
fn per_second(bytes: u64, by: u64) -> u64 {
    let scaled = u128::from(bytes) * 1_000_000_000 / u128::from(by.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl Room {
    /// Updates the counts after a file of its owner has changed.
    fn count(&mut self, before: &File, now: &File) {
        self.open = self.open + usize::from(now.is_open) - usize::from(before.is_open);
        self.want_room = self.want_room + usize::from(now.wants_room) - usize::from(before.wants_room);
    }
}

impl Mount {
    /// Returns the last measured rate, or that of the measurement under way if there is none.
    fn rate(&self) -> u64 {
        match self.rate_bytes_per_s {
            0 if self.written > 0 && self.busy_ns > 0 => per_second(self.written, self.busy_ns),
            rate => rate,
        }
    }

    /// Measures the rate after a pass: its `fsync` is in the time that its bytes have taken.
    fn measure(&mut self) {
        if self.busy_ns >= MEASURED_NS && self.written > 0 {
            let now = per_second(self.written, self.busy_ns);
            self.rate_bytes_per_s =
                if self.rate_bytes_per_s == 0 { now } else { self.rate_bytes_per_s / 2 + now / 2 };
            (self.written, self.busy_ns) = (0, 0);
        }
    }
}

impl Machine for Drain {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.go_on(now);
        self.note(now, event);
        self.decide(out);
    }

    /// The next time when a rate lets a chunk go, room becomes short, a file is too old, or a pass
    /// seems to hang.
    fn next_deadline(&self) -> Option<Nanos> {
        // Nothing was ever dirty, as on most nodes.
        if self.mounts.is_empty() {
            return None;
        }
        let is_held = self.held && self.config.yields;
        let needs = self.rooms.keys().filter(|_| is_held).filter_map(|owner| match self.need(*owner) {
            Need::From(at) => Some(at),
            Need::Never | Need::Now(_) => None,
        });
        let passes = self.mounts.values().flat_map(|mount| self.passes(mount));
        let hangs = passes.clone().filter_map(|(_, _, pass)| match pass.state {
            State::Between { since } | State::Writes { since, .. } => Some(since + HANGS_NS),
            State::Offers { .. } => None,
        });
        let age_ns = self.config.age_max_ns;
        let first = |(mount, class): (&Mount, Class)| {
            let not_yet = (class, self.now - age_ns + 1, 0)..=(class, Nanos(u64::MAX), u64::MAX);
            mount.waiting.range(not_yet).next().map(|rank| rank.1)
        };
        let mounts = self.mounts.values().filter(|_| is_held);
        let waiting = mounts.flat_map(|mount| CLASSES.map(|class| (mount, class))).filter_map(first);
        let under_way = passes.filter(|_| is_held).map(|(_, facts, _)| facts.since);
        let aged = waiting.chain(under_way).map(|since| since + age_ns);
        let later = aged.chain(hangs).filter(|at| *at > self.now);
        needs.chain(later).chain(self.goes_at).min()
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.go_on(now);
        self.goes_at.take_if(|at| *at <= now);
        self.decide(out);
    }
}
