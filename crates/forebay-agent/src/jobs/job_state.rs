//! Analytics jobs of local programs: what they have reported, kept so that it can be repeated.
//!
//! A coordinator's memory ends with its process, so each agent keeps the jobs of its own clients,
//! as long as their connections live, and reports them from the beginning whenever it has joined
//! (again). What is reported twice changes nothing there. Only what a new coordinator needs is
//! kept: nothing of stages that have ended, and the last report of slots. The state is bounded in
//! jobs and bytes, and what it takes is counted in the agent's budget.

use crate::lock::lock;
use crate::user_limits::{JOBS_MAX, Share};
use forebay_store::Reservation;
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{JobUpdate, Refusal};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What one job may report, as it is in memory: a hundred thousand files of a hundred bytes, and as
/// many splits.
const JOB_BYTES_MAX: u64 = 64 << 20;

/// Longest name of a job and of a planner: a list of all jobs must fit a message.
const NAME_BYTES_MAX: usize = 1 << 10;

/// Most bytes of layouts that are kept of one job. Further ones are reported once; a coordinator
/// that comes later knows less.
const LAYOUT_BYTES_MAX: u64 = 32 << 20;

/// A kept update may also be in a message that repeats it to a new coordinator, and in a
/// coordinator in this process.
const COPIES: u64 = 3;

/// A new update is also in the message that sends it, even after its stage has ended.
pub const NEW_COPIES: u64 = COPIES + 1;

/// Share of the capacity that all jobs of one user may take, copies included: one in eight. The
/// operator is not bound by it.
const USER_SHARE: u64 = 8;

/// Share that the jobs of all users may take: one in four.
const ALL_SHARE: u64 = 4;

/// Bytes of updates in one message to the coordinator, as they are in memory.
const MESSAGE_BYTES: u64 = 4 << 20;

/// The jobs of local clients, by connection.
#[derive(Debug, Default)]
pub struct JobState {
    jobs: Mutex<BTreeMap<u64, Kept>>,
    unsent: UnsentBytes,
}

/// Bytes of each user's updates that the coordinator has not been sent yet.
type UnsentBytes = Arc<Mutex<BTreeMap<u32, u64>>>;

/// The memory of updates that wait to be sent to the coordinator; dropped when they have been.
#[derive(Debug)]
pub struct Unsent {
    bytes: UnsentBytes,
    uid: u32,
    room: Reservation,
}

impl Unsent {
    fn new(bytes: &UnsentBytes, uid: u32, room: Reservation) -> Self {
        *lock(bytes).entry(uid).or_default() += room.bytes();
        Unsent { bytes: bytes.clone(), uid, room }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let mut all = lock(&self.bytes);
        if let Some(bytes) = all.get_mut(&self.uid) {
            *bytes = bytes.saturating_sub(self.room.bytes());
            if *bytes == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

/// What a job reports, and the memory for it.
#[derive(Debug)]
pub struct Report {
    /// The updates.
    pub updates: Vec<JobUpdate>,
    /// What one copy of them takes.
    pub size: Size,
    /// Reserved for [`NEW_COPIES`] of them.
    pub room: Reservation,
    /// Its place among the user's jobs, for a report that begins one.
    pub place: Option<Share>,
}

impl Report {
    /// Goes without the layouts that the agent has added, which are not worth a refusal.
    pub fn drop_layouts(&mut self) {
        self.updates.retain(|update| !is_layouts(update));
        let over = (self.size.layouts * NEW_COPIES).min(self.room.bytes());
        self.room.shrink(over);
        self.size.layouts = 0;
    }
}

/// Memory of one copy of some updates. Computing it walks each of them, so that is done once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// What programs report, in bytes.
    pub reported: u64,
    /// The layouts that the agent has added, in bytes.
    pub layouts: u64,
}

impl Size {
    /// The size of `updates`.
    pub fn of(updates: &[JobUpdate]) -> Self {
        let mut size = Size::default();
        for update in updates {
            let part = if is_layouts(update) { &mut size.layouts } else { &mut size.reported };
            *part += update.held_bytes();
        }
        size
    }

    /// The sum of both parts.
    pub fn bytes(self) -> u64 {
        self.reported + self.layouts
    }
}

/// Whose a job is, and how much the jobs of one user and of all may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    uid: u32,
    user_bytes: u64,
    all_bytes: u64,
}

impl Bounds {
    /// The bounds of user `uid`, as shares of a capacity in bytes.
    pub fn of(uid: u32, is_operator: bool, capacity: u64) -> Self {
        let all_bytes = capacity / ALL_SHARE;
        let user_bytes = if is_operator { all_bytes } else { capacity / USER_SHARE };
        Bounds { uid, user_bytes, all_bytes }
    }
}

#[derive(Debug, Default)]
struct Kept {
    uid: u32,
    /// The updates, each with the memory that it takes.
    updates: Vec<(JobUpdate, u64)>,
    bytes: u64,
    /// The bytes of layouts among them.
    layout_bytes: u64,
    room: Option<Reservation>,
    _place: Option<Share>,
}

impl JobState {
    /// Whether job `job` may report `updates`, of which one copy takes `size`: looked at before
    /// room is made for them.
    ///
    /// # Errors
    /// Too many jobs, too much reported, or not begun by [`JobUpdate::Begin`].
    pub fn may_report(
        &self,
        job: u64,
        updates: &[JobUpdate],
        size: Size,
        bounds: Bounds,
    ) -> Result<(), Refusal> {
        self.check(&lock(&self.jobs), job, updates, size, bounds)
    }

    fn check(
        &self,
        jobs: &BTreeMap<u64, Kept>,
        job: u64,
        updates: &[JobUpdate],
        size: Size,
        bounds: Bounds,
    ) -> Result<(), Refusal> {
        let begins = matches!(updates.first(), Some(JobUpdate::Begin { .. }));
        if begins == jobs.contains_key(&job) {
            return Err(Refusal::Invalid("a job begins once, and first of all".into()));
        }
        if let Some(len) = updates.iter().map(name_len).max().filter(|len| *len > NAME_BYTES_MAX) {
            let why = format!("the name of a job or planner has {len} bytes, and may have {NAME_BYTES_MAX}");
            return Err(Refusal::Invalid(why));
        }
        if begins && jobs.len() >= JOBS_MAX {
            return Err(Refusal::TooMany("analytics jobs at this node".into()));
        }
        if jobs.get(&job).map_or(0, |kept| kept.bytes - kept.layout_bytes) + size.reported > JOB_BYTES_MAX {
            return Err(Refusal::TooMany("files and splits in one analytics job".into()));
        }
        let more = size.bytes() * NEW_COPIES;
        let unsent = lock(&self.unsent);
        let mut all = more + unsent.values().sum::<u64>();
        let mut own = more + unsent.get(&bounds.uid).copied().unwrap_or(0);
        for kept in jobs.values() {
            all += kept.bytes * COPIES;
            own += if kept.uid == bounds.uid { kept.bytes * COPIES } else { 0 };
        }
        if own > bounds.user_bytes || all > bounds.all_bytes {
            let whose = if all > bounds.all_bytes { "all users" } else { "this user" };
            return Err(Refusal::TooMany(format!(
                "files and splits in the analytics jobs of {whose} for this capacity"
            )));
        }
        Ok(())
    }

    /// Adds what job `job` reports, and sends it through `say`, in the order in which it is kept.
    /// If there is no room for its layouts, it goes without them.
    ///
    /// # Errors
    /// As [`JobState::may_report`].
    pub fn report(
        &self,
        job: u64,
        mut report: Report,
        bounds: Bounds,
        say: impl FnOnce(ToCoordinator, Unsent),
    ) -> Result<(), Refusal> {
        let mut jobs = lock(&self.jobs);
        let mut checked = self.check(&jobs, job, &report.updates, report.size, bounds);
        if checked.is_err() && report.size.layouts > 0 {
            report.drop_layouts();
            checked = self.check(&jobs, job, &report.updates, report.size, bounds);
        }
        checked?;
        let Report { updates, size, mut room, place } = report;
        let message = room.split(size.bytes().min(room.bytes()));
        let kept = jobs.entry(job).or_default();
        kept.uid = bounds.uid;
        kept._place = kept._place.take().or(place);
        match &mut kept.room {
            Some(kept) => kept.merge(room),
            none => *none = Some(room),
        }
        for update in &updates {
            kept.take(update);
        }
        kept.give_back();
        say(
            ToCoordinator::Job { job, uid: bounds.uid, updates },
            Unsent::new(&self.unsent, bounds.uid, message),
        );
        Ok(())
    }

    /// Ends the job. If there was one, reports that through `say`.
    pub fn end(&self, job: u64, say: impl FnOnce(ToCoordinator)) {
        let mut jobs = lock(&self.jobs);
        if let Some(Kept { uid, .. }) = jobs.remove(&job) {
            say(ToCoordinator::Job { job, uid, updates: vec![JobUpdate::End] });
        }
    }

    /// Repeats all of it from the beginning through `say`, as messages to a coordinator that knows
    /// nothing. Later reports follow these messages.
    pub fn repeat(&self, say: impl FnOnce(Vec<ToCoordinator>)) {
        let jobs = lock(&self.jobs);
        let mut messages = Vec::new();
        for (&job, kept) in &*jobs {
            let uid = kept.uid;
            let mut updates = Vec::new();
            let mut bytes = 0u64;
            for (update, len) in &kept.updates {
                if bytes + len > MESSAGE_BYTES && !updates.is_empty() {
                    messages.push(ToCoordinator::Job { job, uid, updates: std::mem::take(&mut updates) });
                    bytes = 0;
                }
                updates.push(update.clone());
                bytes += len;
            }
            messages.push(ToCoordinator::Job { job, uid, updates });
        }
        say(messages);
    }
}

impl Kept {
    fn take(&mut self, update: &JobUpdate) {
        match update {
            JobUpdate::Slots(_) => self.forget(|u| matches!(u, JobUpdate::Slots(_))),
            JobUpdate::StageEnded { stage } => self.forget(|u| u.stage() == Some(*stage)),
            _ => {}
        }
        if matches!(update, JobUpdate::StageEnded { .. }) {
            return;
        }
        let len = update.held_bytes();
        if is_layouts(update) {
            if self.layout_bytes + len > LAYOUT_BYTES_MAX {
                return;
            }
            self.layout_bytes += len;
        }
        self.updates.push((update.clone(), len));
        self.bytes += len;
    }

    fn forget(&mut self, needless: impl Fn(&JobUpdate) -> bool) {
        self.updates.retain(|(update, _)| !needless(update));
        self.bytes = self.updates.iter().map(|(_, len)| *len).sum();
    }

    /// Returns what was paid for updates that are not kept any more.
    fn give_back(&mut self) {
        if let Some(room) = &mut self.room {
            let over = room.bytes().saturating_sub(self.bytes * COPIES);
            room.shrink(over);
        }
    }
}

/// Bytes of the longest name in it that people are shown.
fn name_len(update: &JobUpdate) -> usize {
    match update {
        JobUpdate::Begin { name, planner } => name.len().max(planner.len()),
        _ => 0,
    }
}

/// Whether the agent has added it.
pub fn is_layouts(update: &JobUpdate) -> bool {
    matches!(update, JobUpdate::Layouts { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::{Budget, Class};
    use forebay_wire::{FileLayout, Split};

    const FREE: Bounds = Bounds { uid: 0, user_bytes: u64::MAX, all_bytes: u64::MAX };

    fn begin() -> JobUpdate {
        JobUpdate::Begin { name: "app".into(), planner: String::new() }
    }

    /// Reports for job `job`; the message is sent immediately.
    fn report(state: &JobState, job: u64, updates: &[JobUpdate], room: Reservation) -> Result<(), Refusal> {
        let report = Report { updates: updates.to_vec(), size: Size::of(updates), room, place: None };
        state.report(job, report, FREE, |_, unsent| drop(unsent))
    }

    fn again(state: &JobState) -> Vec<ToCoordinator> {
        let mut all = Vec::new();
        state.repeat(|messages| all = messages);
        all
    }

    fn ends(state: &JobState, job: u64) -> bool {
        let mut ended = false;
        state.end(job, |_| ended = true);
        ended
    }

    fn splits(stage: u32) -> JobUpdate {
        JobUpdate::Splits { stage, splits: vec![Split::default(); 10] }
    }

    #[test]
    fn what_is_reported_again_is_what_a_new_coordinator_needs() {
        let budget = Budget::new(1 << 20);
        let room = |bytes| budget.reserve_existing(Class::Clients, bytes);
        let state = JobState::default();
        assert!(report(&state, 1, &[splits(0)], room(100)).is_err(), "not begun");
        report(&state, 1, &[begin(), JobUpdate::Slots(vec![("a".into(), 1)]), splits(0)], room(100)).unwrap();
        assert!(report(&state, 1, &[begin()], room(10)).is_err(), "begun twice");
        let slots = JobUpdate::Slots(vec![("a".into(), 2)]);
        report(&state, 1, &[JobUpdate::StageEnded { stage: 0 }, slots.clone(), splits(1)], room(100))
            .unwrap();
        assert_eq!(
            again(&state),
            [ToCoordinator::Job { job: 1, uid: 0, updates: vec![begin(), slots, splits(1)] }]
        );
        assert!(budget.class_bytes(Class::Clients) <= 200, "what is not kept is not paid for");
        assert!(ends(&state, 1) && !ends(&state, 1));
        assert_eq!((again(&state), budget.class_bytes(Class::Clients)), (vec![], 0));
    }

    #[test]
    fn the_state_is_bounded() {
        let budget = Budget::new(1 << 30);
        let room = || budget.reserve_existing(Class::Clients, 0);
        let state = JobState::default();
        for job in 0..JOBS_MAX as u64 {
            report(&state, job, &[begin()], room()).unwrap();
        }
        assert!(matches!(report(&state, 1000, &[begin()], room()), Err(Refusal::TooMany(_))));
        let long_name = JobUpdate::Begin { name: "x".repeat(NAME_BYTES_MAX + 1), planner: String::new() };
        assert!(ends(&state, 1));
        assert!(matches!(report(&state, 1001, &[long_name], room()), Err(Refusal::Invalid(_))));
        let long = JobUpdate::Splits { stage: 0, splits: vec![Split::default(); 150_000] };
        let reported: Vec<_> =
            (0..5).map(|_| report(&state, 0, std::slice::from_ref(&long), room())).collect();
        assert!(reported[0].is_ok() && matches!(reported[4], Err(Refusal::TooMany(_))));
    }

    #[test]
    fn what_waits_to_be_sent_counts_for_its_user_and_layouts_go_before_a_job_is_refused() {
        let budget = Budget::new(1 << 30);
        let state = JobState::default();
        let layouts = JobUpdate::Layouts { servers: vec!["pfs:s".into()], files: Vec::new() };
        let bounded = |job, updates: &[JobUpdate], user_bytes, held: &mut Vec<_>| {
            let size = Size::of(updates);
            let room = budget.reserve_existing(Class::Clients, size.bytes() * NEW_COPIES);
            let bounds = Bounds { user_bytes, ..FREE };
            let report = Report { updates: updates.to_vec(), size, room, place: None };
            state.report(job, report, bounds, |message, unsent| held.push((message, unsent)))
        };
        let size = Size::of(&[begin()]).bytes();
        let mut held = Vec::new();
        bounded(1, &[begin()], size * NEW_COPIES, &mut held).unwrap();
        let both = size * (COPIES + NEW_COPIES);
        assert!(bounded(2, &[begin()], both, &mut held).is_err(), "the first is still to be sent");
        held.clear();
        bounded(2, &[begin(), layouts], both, &mut held).unwrap();
        assert_eq!(held[0].0, ToCoordinator::Job { job: 2, uid: 0, updates: vec![begin()] });
        held.clear();
        assert_eq!(budget.class_bytes(Class::Clients), 2 * size * COPIES, "what is sent is not paid for");
    }

    #[test]
    fn layouts_are_kept_behind_their_files_and_never_fail_a_job() {
        let budget = Budget::new(1 << 30);
        let room = |bytes| budget.reserve_existing(Class::Clients, bytes);
        let files = JobUpdate::Files(Vec::new());
        let layouts = |stripes: usize| JobUpdate::Layouts {
            servers: vec!["pfs:s".into()],
            files: vec![FileLayout { stripe_bytes: 1, servers: vec![0; stripes] }],
        };
        let reported = [begin(), files.clone(), layouts(1), splits(0), files, layouts(2), splits(1)];
        let state = JobState::default();
        report(&state, 1, &reported, room(10_000)).unwrap();
        assert_eq!(again(&state), [ToCoordinator::Job { job: 1, uid: 0, updates: reported.to_vec() }]);
        report(&state, 1, &[JobUpdate::StageEnded { stage: 0 }], room(0)).unwrap();
        let left = [&reported[..3], &reported[4..]].concat();
        assert_eq!(again(&state), [ToCoordinator::Job { job: 1, uid: 0, updates: left }]);

        let (each, times) = (2 << 20, 10);
        assert!(4 * each as u64 * times > JOB_BYTES_MAX.max(LAYOUT_BYTES_MAX), "more than all bounds");
        for _ in 0..times {
            report(&state, 1, &[layouts(each)], room(COPIES * 5 * each as u64)).unwrap();
        }
        report(&state, 1, &[splits(2)], room(10_000)).unwrap();
        let jobs = lock(&state.jobs);
        let kept = &jobs[&1];
        assert!(kept.layout_bytes > LAYOUT_BYTES_MAX / 2 && kept.layout_bytes <= LAYOUT_BYTES_MAX);
        assert_eq!(kept.bytes, kept.updates.iter().map(|(_, len)| *len).sum::<u64>());
        assert!(kept.updates.iter().any(|(update, _)| *update == splits(2)));
        assert_eq!(
            budget.class_bytes(Class::Clients),
            COPIES * kept.bytes,
            "what is not kept is not paid for"
        );
    }
}
