//! Judges what readers saw by what writers did: the promises of `docs/semantics.md`, and its
//! limits, and nothing else.
//!
//! All times are wide: a change begins before its first system call and ends after its last, and so
//! does an open or a read. Whatever is within an overlap may have come first or last; what is
//! settled before cannot be unseen.
//!
//! - *Close-to-open.* A handle stands for the newest version that was settled when its open began,
//!   or a later one whose change began before its open ended. If no change overlaps the open there
//!   is exactly one. If one does, the handle may see any mixture of these versions, as any plain
//!   program may.
//! - *Within one open.* Reads give bytes of that version or `ESTALE`. Newer bytes are allowed only
//!   as the limits say: direct reads until 50 ms after the change (not from the tier), and a change
//!   on another node that set mtime back beside a change of attributes.
//! - `ESTALE` is right only if the content or its mtime changed after the open, or another node
//!   changed attributes, or any node did and all of the file was in the tier at the open.
//! - Without an agent (and for plain reads) a read sees what is settled when it begins, or newer.

use crate::content::{Part, State, first_foreign};
use crate::history::{History, NOWHERE, Object, Other, Version};
use crate::record::{Got, HandleSeen, Kind, ReadSeen};
use std::ops::AddAssign;

/// What the file system under test does to these rules.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A handle that reads only the PFS looks at the file this often (50 ms), through the node's
    /// attribute cache.
    pub look_ns: u64,
    /// Two changes closer than this may leave the same stamps.
    pub granularity_ns: u64,
    /// Plain reads see every change that has ended before they begin. Where the clients of a file
    /// system do not promise that, neither plain reads are judged nor what the library reads as a
    /// plain program: without an agent, or PFS-only.
    pub plain: bool,
    /// A change by another node is seen within this time, by the file system's own means.
    pub lag_ns: u64,
    /// The same for a change that moved the file's stamps at its end: another length, or times that
    /// the writer set.
    pub stamped_lag_ns: u64,
    /// All nodes share a kernel, which records for every handle which process did what to its file.
    pub one_kernel: bool,
}

/// The library truncates times to milliseconds twice.
const ROUNDING_NS: u64 = 2_000_000;

/// Added to `look_ns` on a mount: how late its kernel may learn of the mount's last look, on a busy
/// machine.
const MOUNT_ROUNDING_NS: u64 = 1_000_000_000;

/// What a handle broke.
#[derive(Clone, Debug)]
pub struct Violation {
    /// One or two words for the table.
    pub kind: &'static str,
    pub what: String,
    pub handle: HandleSeen,
}

/// What was found to be right.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verified {
    pub reads: u64,
    pub bytes: u64,
    /// Reads whose bytes can only be the tier's.
    pub tier_reads: u64,
    pub stale: u64,
    pub torn: u64,
}

impl AddAssign for Verified {
    fn add_assign(&mut self, more: Self) {
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.tier_reads += more.tier_reads;
        self.stale += more.stale;
        self.torn += more.torn;
    }
}

type Fault = (&'static str, String);

/// Judges one handle.
pub fn judge(history: &History, rules: &Rules, handle: &HandleSeen) -> Result<Verified, Box<Violation>> {
    let violation = |(kind, what): Fault| Box::new(Violation { kind, what, handle: handle.clone() });
    if let Err(errno) = handle.opened {
        return match open_may_fail(history, handle, errno) {
            true => Ok(Verified::default()),
            false => Err(violation(("unexpected error", format!("open: errno {errno}")))),
        };
    }
    if sees_the_pfs(handle) && !rules.plain {
        return Ok(Verified::default());
    }
    let bindings = history.bindings.get(&handle.path).map_or(&[][..], |b| &b[..]);
    let mut first: Option<Fault> = None;
    for binding in bindings.iter().filter(|b| b.from <= handle.end && b.until >= handle.begin) {
        let object = &history.objects[binding.object];
        match (Judge { object, rules, handle }).judge() {
            Ok(verified) => return Ok(verified),
            Err(fault) => {
                first.get_or_insert(fault);
            }
        }
    }
    Err(violation(first.unwrap_or(("wrong", "opened a file whose name led nowhere".into()))))
}

/// Returns whether the handle reads as a plain program does.
fn sees_the_pfs(handle: &HandleSeen) -> bool {
    matches!(handle.kind, Kind::Plain | Kind::PfsOnly)
        || (matches!(handle.kind, Kind::Cached | Kind::Cat) && !handle.tiered)
}

fn open_may_fail(history: &History, handle: &HandleSeen, errno: i32) -> bool {
    match errno {
        libc::ENOENT => {
            let gaps = history.gaps.get(&handle.path).map_or(&[][..], |g| &g[..]);
            let nowhere =
                |bindings: &Vec<_>| !bindings.iter().any(|b: &crate::history::Binding| b.until == u64::MAX);
            gaps.iter().any(|(begin, end)| *begin <= handle.end && *end >= handle.begin)
                || history.bindings.get(&handle.path).is_none_or(nowhere)
        }
        libc::ENOTCONN => handle.kind == Kind::TierOnly,
        _ => false,
    }
}

struct Judge<'a> {
    object: &'a Object,
    rules: &'a Rules,
    handle: &'a HandleSeen,
}

impl Judge<'_> {
    fn judge(&self) -> Result<Verified, Fault> {
        let mut verified = Verified::default();
        let (low, high) = self.opened();
        self.size_reported(low, high)?;
        for read in &self.handle.reads {
            match &read.got {
                Got::Error(errno) => {
                    self.error(low, read, *errno)?;
                    verified.stale += u64::from(*errno == libc::ESTALE);
                }
                Got::Bytes(parts) => {
                    verified.torn += u64::from(self.bytes(low, high, read, parts)?);
                    verified.reads += 1;
                    verified.bytes += read.len;
                    let tier = matches!(self.handle.kind, Kind::TierOnly | Kind::Mapped) && read.len > 0;
                    verified.tier_reads += u64::from(tier);
                }
            }
        }
        Ok(verified)
    }

    fn versions(&self) -> &[Version] {
        &self.object.versions
    }

    /// The newest version settled at `at`, as the handle's node sees it.
    fn settled(&self, at: u64) -> usize {
        self.versions().iter().rposition(|v| v.end + self.lag_ns(v) <= at).unwrap_or(0)
    }

    /// How much later than its end the handle's node may see a change.
    fn lag_ns(&self, version: &Version) -> u64 {
        match version.node {
            node if node == self.handle.node || node == NOWHERE => 0,
            _ if version.stamped => self.rules.stamped_lag_ns,
            _ => self.rules.lag_ns,
        }
    }

    /// The newest version that had begun at `at`.
    fn begun(&self, at: u64) -> usize {
        self.versions().iter().rposition(|v| v.begin <= at).unwrap_or(0)
    }

    /// The versions the handle may stand for.
    fn opened(&self) -> (usize, usize) {
        let low = self.settled(self.handle.begin);
        let mut high = self.begun(self.handle.end).max(low);
        // A second change within the granularity of stamps cannot be distinguished from the first,
        // nor from the creation of the file.
        while let Some(next) = self.versions().get(high + 1)
            && self.versions()[high].node != NOWHERE
            && next.begin < self.versions()[high].end + self.rules.granularity_ns
        {
            high += 1;
        }
        (low, high)
    }

    fn sees_the_pfs(&self) -> bool {
        sees_the_pfs(self.handle)
    }

    /// Programs that know nothing of Forebay do not get `ESTALE`.
    fn may_be_stale(&self) -> bool {
        !self.sees_the_pfs() && !matches!(self.handle.kind, Kind::Mount | Kind::Run)
    }

    fn size_reported(&self, low: usize, high: usize) -> Result<(), Fault> {
        let Ok(size) = self.handle.opened else { return Ok(()) };
        // On a mount it is the size after the open.
        if self.sees_the_pfs()
            || matches!(self.handle.kind, Kind::Cat | Kind::Run | Kind::Mount)
            || high > low
        {
            return Ok(());
        }
        let wanted = self.versions()[low].state.size();
        match size == wanted {
            true => Ok(()),
            false => Err((
                stale_or("wrong", self, low, |s| s.size() == size),
                format!("size {size} reported, {wanted} wanted"),
            )),
        }
    }

    fn error(&self, low: usize, read: &ReadSeen, errno: i32) -> Result<(), Fault> {
        // Stamps may follow a change after the lag of the file system, even on the writer's node.
        let stamped = |v: &Version| v.begin <= read.end && v.end + self.rules.lag_ns >= self.handle.begin;
        let changed = self.begun(read.end) > low
            || self.touched_elsewhere(read.end)
            || self.touched_unseen(read.end)
            || (self.rules.lag_ns > 0 && self.versions().iter().any(stamped));
        match errno {
            // `cat` says that it reads directly, once, wherever it does: it may have begun in the
            // tier.
            libc::ESTALE if changed && (self.handle.kind == Kind::Cat || self.may_be_stale()) => Ok(()),
            libc::ESTALE => {
                Err(("spurious ESTALE", "the content has not changed since the open began".into()))
            }
            libc::ENODATA | libc::ENOTCONN if self.handle.kind == Kind::TierOnly => Ok(()),
            _ => Err(("unexpected error", format!("read: errno {errno}"))),
        }
    }

    /// Returns whether several versions were allowed, so that the bytes were judged as a mixture of
    /// them; an error if the bytes are wrong.
    fn bytes(&self, low: usize, high: usize, read: &ReadSeen, parts: &[Part]) -> Result<bool, Fault> {
        let (from, to) = self.allowed(low, high, read);
        if from == to {
            let Err(fault) = exactly(&self.versions()[from].state, read, parts) else { return Ok(false) };
            return Err(self.name(fault, from, read, parts));
        }
        match self.mixture(from, to, read, parts) {
            None => Ok(true),
            Some(fault) => Err(self.name(fault, from, read, parts)),
        }
    }

    /// The versions from which this read may return bytes.
    fn allowed(&self, low: usize, high: usize, read: &ReadSeen) -> (usize, usize) {
        if self.sees_the_pfs() {
            let from = if self.rules.plain { self.settled(read.begin) } else { low };
            return (from, self.begun(read.end).max(high));
        }
        if matches!(self.handle.kind, Kind::Cat | Kind::Run) {
            return (low, self.begun(read.end).max(high));
        }
        if self.handle.kind == Kind::Mount {
            // Current bytes, as of a look that may be a little older, or the bytes of the opened
            // version.
            let looked = read.begin.saturating_sub(self.rules.look_ns + MOUNT_ROUNDING_NS);
            return (low.max(self.settled(looked)), self.begun(read.end).max(high));
        }
        let newest = self.begun(read.end);
        let newer = newest > high && (self.within_a_look(high, read) || self.hidden(high, newest, read));
        (low, if newer { newest } else { high.max(self.fetched_late(high, newest)) })
    }

    /// The newest version of which a page may be in the tier under the stamps of version `high`:
    /// the stamps of another node's change come late, and a page that is fetched until then has
    /// bytes of whatever has begun by then.
    fn fetched_late(&self, high: usize, newest: usize) -> usize {
        let Some(next) = self.versions().get(high + 1) else { return high };
        let lag_ns = self.lag_ns(next);
        if lag_ns <= self.rules.stamped_lag_ns {
            return high;
        }
        self.begun(next.end.saturating_add(lag_ns)).min(newest)
    }

    /// Direct reads before the next look at the file may give newer bytes; bytes of the tier never.
    fn within_a_look(&self, high: usize, read: &ReadSeen) -> bool {
        let next = &self.versions()[high + 1];
        let patience_ns = self.lag_ns(next) + self.rules.look_ns + ROUNDING_NS;
        self.handle.kind == Kind::Cached && read.begin <= next.end.saturating_add(patience_ns)
    }

    /// Returns whether another node changed links, owner, mode or name since the open: its effect
    /// on ctime is treated as a write.
    fn touched_elsewhere(&self, until: u64) -> bool {
        let (begin, node) = (self.handle.begin, self.handle.node);
        let since = |o: &Other| o.end >= begin && o.begin <= until && o.node != node;
        !self.rules.one_kernel && self.object.others.iter().any(since)
    }

    /// The file was small and wholly in the tier when it was opened, so the handle watched nothing:
    /// a change of attributes or of the name since then invalidates the handle when it misses.
    fn touched_unseen(&self, until: u64) -> bool {
        let since = |o: &Other| o.end >= self.handle.begin && o.begin <= until;
        self.handle.whole && self.object.others.iter().any(since)
    }

    /// Returns whether all changes after version `high` set mtime back, and another node changed
    /// links, owner, mode or name since the open.
    fn hidden(&self, high: usize, newest: usize, read: &ReadSeen) -> bool {
        self.handle.kind == Kind::Cached
            && self.versions()[high + 1..=newest].iter().all(|v| v.keeps_stamp)
            && self.touched_elsewhere(read.end)
    }

    /// Returns what is wrong with the read as a mixture of these versions and what the file passed
    /// through between them.
    fn mixture(&self, from: usize, to: usize, read: &ReadSeen, parts: &[Part]) -> Option<Fault> {
        let versions = &self.versions()[from..=to];
        let mut states: Vec<&State> = versions.iter().map(|v| &v.state).collect();
        states.extend(versions[1..].iter().flat_map(|v| v.passed.iter()));
        let sizes = || states.iter().map(|s| s.size());
        let grows = sizes().min() != sizes().max();
        let longest = sizes().max().unwrap_or(0);
        let shortest = sizes().min().unwrap_or(0);
        let most = longest.saturating_sub(read.offset).min(read.wanted);
        let least = shortest.saturating_sub(read.offset).min(read.wanted);
        if read.len > most || read.len < least {
            return Some(("wrong", format!("{} bytes read, {least} to {most} are possible", read.len)));
        }
        let foreign = parts.iter().find_map(|part| first_foreign(part, &states, grows))?;
        Some(("wrong", format!("byte {foreign} is of none of the versions {from} to {to}")))
    }

    /// Finds the best name for what is wrong.
    fn name(&self, fault: Fault, from: usize, read: &ReadSeen, parts: &[Part]) -> Fault {
        let all: Vec<&State> =
            self.versions().iter().flat_map(|v| v.passed.iter().chain([&v.state])).collect();
        let known = parts.iter().all(|part| first_foreign(part, &all, true).is_none());
        let kind = match known {
            false => "wrong",
            true => stale_or("mixed", self, from, |s| exactly(s, read, parts).is_ok()),
        };
        (kind, fault.1)
    }
}

/// "Stale" if an older version fits, "newer" if a later one does.
fn stale_or(
    other: &'static str,
    judge: &Judge<'_>,
    low: usize,
    fits: impl Fn(&State) -> bool,
) -> &'static str {
    let versions = judge.versions();
    if versions[..low].iter().any(|v| fits(&v.state)) {
        "stale"
    } else if versions[low + 1..].iter().any(|v| fits(&v.state)) {
        "newer within one open"
    } else {
        other
    }
}

/// Returns what is wrong with the read if exactly this content was expected.
fn exactly(state: &State, read: &ReadSeen, parts: &[Part]) -> Result<(), Fault> {
    let wanted = state.size().saturating_sub(read.offset).min(read.wanted);
    if read.len != wanted {
        return Err(("wrong", format!("{} bytes read at {}, {wanted} wanted", read.len, read.offset)));
    }
    match parts.iter().find_map(|part| first_foreign(part, &[state], false)) {
        None => Ok(()),
        Some(at) => Err(("wrong", format!("byte {at} is not of the version opened"))),
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
