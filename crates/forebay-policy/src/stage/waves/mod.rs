//! Keeps the progress of one stage: its waves, what each node has to fetch for them, and how much
//! of it has been fetched.
//!
//! A stage is partitioned once when it is ready and again whenever members or slots change. Waves
//! that have begun by then stay, with the tasks that have started; the others are replaced. So a
//! wave has two numbers: a permanent id for requests, and the planner's number, which counts from
//! the last partition.
//!
//! A node's part of a wave is split into chunks when the wave comes into reach ([`chunk_order`]).
//! Each chunk becomes a request of its own. The part is over when all its chunks are.

mod part;
mod waiting_chunks;

use waiting_chunks::AHEAD_LIMIT;
pub use waiting_chunks::{QueueKey, Rank, Wanted};

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use forebay_model::profile::Setting;

use super::Rules;
use super::event::{Part, Progress, QueueId, RequestId, WaveId, WaveStatus};
use super::nodes::NodeNumber;
use super::partition::Placed;
use super::tiers::Tiers;
use super::waiting_tasks::Held;
use crate::planner::JobId;
use part::{NodePart, Parts, State};
use waiting_chunks::Waiting;

/// See the module.
#[derive(Debug, Default)]
pub struct StageRun {
    rules: Rules,
    /// Identifies it among all stages while it exists; its planner's number for it changes with
    /// each partition.
    pub serial: u32,
    /// Its planner, and its job number there.
    pub planner: Option<(String, JobId)>,
    /// Nodes always fetch waves after the planned one as well, and requests continue when their
    /// tasks have started.
    pub opportunistic: bool,
    /// Whether the planner currently permits prefetches of waves after the planned one.
    is_ahead: bool,
    /// Tasks that have a slot and wait for their input. They have not started.
    pub held: Held,
    /// Tasks that were started on their preferred node, which fetches most of their input.
    pub local: u32,
    /// Waves in the order of their ids.
    waves: Vec<Wave>,
    next_wave: u64,
    /// Place of the planner's first wave.
    base: usize,
    /// Place of each task's wave.
    wave_of: Vec<Option<usize>>,
    /// Number of waves that were reported to the planner as begun.
    started: u32,
    /// Number of the planner's waves, from the first on, that were reported to it as fetched.
    fetched: u32,
    /// Place of the last wave for which the planner has chosen a setting.
    last_planned: usize,
    /// Waves whose prefetch is in progress.
    fetching: Vec<WaveId>,
    /// The waves before this place are finished: of many waves, few others are of interest.
    finished: usize,
    /// The waves before this place are split into chunks.
    split: usize,
    /// The prefetch of the waves from this place on has not begun.
    begun: usize,
    /// Places of the waves for which tasks wait; `None` if they have to be determined again.
    pub awaited: Option<BTreeSet<usize>>,
    waiting: Waiting,
}

#[derive(Debug, Default)]
struct Wave {
    id: WaveId,
    tasks: BTreeMap<u32, WaveTask>,
    started: usize,
    done: usize,
    parts: Parts,
    setting: Option<Setting>,
    /// The speed that the planner expects of all its nodes with this setting, without its rate.
    speed_bytes_per_s: f64,
    status: WaveStatus,
    /// Whether its waiting parts are split into chunks.
    is_split: bool,
    /// Whether its tasks read it by themselves, as its planner has decided.
    is_direct: bool,
    /// Whether its requests were given up for that.
    is_withdrawn: bool,
    /// Bytes fetched before its planner first planned it.
    ahead_bytes: u64,
    /// The part of `ahead_bytes` that was reported to the planner.
    reported_bytes: u64,
    /// Whether the planner was notified that it is fetched.
    is_reported: bool,
}

#[derive(Debug, Default)]
struct WaveTask {
    preferred_node: Option<String>,
    bytes: u64,
    started: bool,
    done: bool,
}

/// The pace of a request at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Pages at a time, 0 to pause.
    pub threads: u32,
    /// Bytes per second, 0 for no limit.
    pub rate_bytes_per_s: u64,
    /// The setting of the wave, if its parts are not split into chunks.
    pub setting: Option<Setting>,
}

impl Pace {
    const PAUSED: Pace = Pace { threads: 0, rate_bytes_per_s: 0, setting: None };
}

/// A request whose pace has changed.
#[derive(Debug)]
pub struct Adjusted {
    /// Its node.
    pub node: String,
    /// The request.
    pub request: RequestId,
    /// Pages at a time and bytes per second.
    pub pace: Pace,
    /// Whether it was paused before.
    pub was_paused: bool,
}

impl Wave {
    /// Returns whether the planner wants it to be fetched.
    fn is_planned(&self) -> bool {
        self.setting.is_some_and(|setting| !setting.is_paused())
    }

    fn is_finished(&self) -> bool {
        self.done == self.tasks.len()
    }

    fn is_over(&self) -> bool {
        self.parts.values().all(|p| p.state == State::Ended)
    }

    /// Returns whether to report it to its planner as fetched: all its requests have ended. Under
    /// an opportunistic planner, a wave that was fetched ahead is reported when it is planned, or
    /// when its tasks have started.
    fn is_fetched(&self, opportunistic: bool) -> bool {
        let is_ahead = opportunistic && self.setting.is_none() && self.status.prefetch_began_ms.is_some();
        let is_unplanned = is_ahead && self.started < self.tasks.len();
        let is_read = self.is_finished() || !self.is_direct && !self.is_withdrawn;
        self.is_over() && !is_unplanned && is_read
    }

    /// Removes and returns all requests that keep bytes for it.
    fn take_requests(&mut self) -> Vec<u64> {
        self.parts.values_mut().flat_map(NodePart::take_requests).collect()
    }

    /// Ends it if every task has ended. Returns the requests that kept bytes for it.
    fn finish(&mut self, since_ms: u64) -> Vec<u64> {
        if !self.is_finished() || self.status.compute_ended_ms.is_some() || self.tasks.is_empty() {
            return Vec::new();
        }
        self.status.compute_ended_ms = Some(since_ms);
        let orders = self.take_requests();
        self.parts.values_mut().for_each(|p| {
            p.state = State::Ended;
            p.asked_bytes = 0;
            p.forget_chunks();
        });
        orders
    }
}

impl StageRun {
    /// Creates a stage without waves.
    pub fn new(serial: u32, rules: Rules) -> Self {
        StageRun { rules, serial, ..StageRun::default() }
    }

    // Partitioning.

    /// Removes the waves that have not begun, and from the others the tasks that have not started.
    /// Returns the requests that are void.
    pub fn drop_waves_not_begun(&mut self, since_ms: u64) -> Vec<u64> {
        let mut void = Vec::new();
        let mut kept = Vec::new();
        for mut wave in self.waves.drain(..) {
            if wave.started == 0 {
                void.extend(wave.take_requests());
                continue;
            }
            let left: BTreeSet<u32> =
                wave.tasks.iter().filter(|(_, t)| !t.started).map(|(n, _)| *n).collect();
            for task in &left {
                let gone = wave.tasks.remove(task);
                let gone_bytes = gone.map_or(0, |t| t.bytes);
                assert!(gone_bytes <= wave.status.bytes, "task {task} has more bytes than its wave");
                wave.status.bytes -= gone_bytes;
                wave.parts.values_mut().for_each(|part| part.forget_need(*task));
            }
            // Its remaining tasks have started, and read by themselves unless requests continue.
            for part in wave.parts.values_mut() {
                part.unstarted = 0;
                part.forget_tasks(&left);
                if !self.opportunistic || part.needs.is_empty() {
                    void.extend(part.withdraw());
                }
            }
            if wave.status.prefetch_began_ms.is_some() && wave.is_over() {
                wave.status.prefetch_ended_ms.get_or_insert(since_ms);
            }
            void.extend(wave.finish(since_ms));
            kept.push(wave);
        }
        self.waves = kept;
        // Its planner has to permit it again.
        self.is_ahead = false;
        (self.finished, self.split) = (0, 0);
        self.note_finished();
        self.forget_waiting_of_others();
        self.base = self.waves.len();
        self.begun = self.base;
        (self.started, self.fetched, self.last_planned) = (0, 0, self.base);
        self.fetching = self.waves.iter().filter(|wave| !wave.is_over()).map(|wave| wave.id).collect();
        void
    }

    /// Adds waves of tasks, each with the bytes that nodes fetch for it.
    pub fn add_waves(
        &mut self,
        tasks: usize,
        waves: &[Vec<u32>],
        placed: Vec<(u32, Placed)>,
        tiers: &mut Tiers,
    ) {
        // A vector by number: with 100,000 tasks a map takes several times as long, and all events
        // wait for it.
        let mut by_task: Vec<Option<Placed>> = vec![None; tasks];
        for (task, found) in placed {
            if let Some(slot) = by_task.get_mut(task as usize) {
                *slot = Some(found);
            }
        }
        for members in waves {
            let mut wave = Wave { id: self.next_wave, ..Wave::default() };
            self.next_wave += 1;
            for &task in members {
                let Some(found) = by_task.get_mut(task as usize).and_then(Option::take) else { continue };
                let bytes = found.needs.values().map(|n| n.bytes).sum();
                wave.status.bytes += bytes;
                let of_wave = WaveTask { preferred_node: found.preferred_node, bytes, ..WaveTask::default() };
                wave.tasks.insert(task, of_wave);
                for (node, need) in found.needs {
                    let (name, number) = tiers.number(&node);
                    let part = wave.parts.of(name, number);
                    part.unstarted += 1;
                    part.bytes += need.bytes;
                    part.needs.insert(task, need);
                }
            }
            self.waves.push(wave);
        }
        self.awaited = None;
        self.wave_of = vec![None; tasks];
        for (place, wave) in self.waves.iter().enumerate() {
            for task in wave.tasks.keys() {
                if let Some(of) = self.wave_of.get_mut(*task as usize) {
                    *of = Some(place);
                }
            }
        }
    }

    /// Returns the number of waves that the planner has to know.
    pub fn planned_waves(&self) -> u32 {
        (self.waves.len() - self.base) as u32
    }

    /// Returns when the wave before the planner's first one began, if it still computes.
    pub fn computes_since_ms(&self) -> Option<u64> {
        let wave = self.waves[..self.base].last().filter(|wave| !wave.is_finished())?;
        wave.status.compute_began_ms
    }

    /// Returns whether one of its tasks has started.
    pub fn has_begun(&self) -> bool {
        self.base + self.started as usize > 0
    }

    /// Returns the number of waves that are not computed.
    pub fn waves_left(&self) -> u64 {
        self.unfinished().len() as u64
    }

    /// Returns whether a wave is not fetched.
    pub fn has_to_fetch(&self) -> bool {
        self.begun < self.waves.len() || !self.fetching.is_empty()
    }

    /// Returns whether its first wave has neither begun to compute nor been fetched.
    pub fn is_first_open(&self) -> bool {
        !self.has_begun() && self.waves.first().is_some_and(|wave| !wave.is_over())
    }

    /// Returns the bytes of the largest wave that the planner knows.
    pub fn largest_wave_bytes(&self) -> u64 {
        self.waves[self.base..].iter().map(|w| w.status.bytes).max().unwrap_or(0)
    }

    // Requests.

    /// Returns the nodes on which its tasks should run.
    #[cfg(test)]
    pub fn preferred_nodes(&self) -> impl Iterator<Item = &str> {
        self.waves
            .iter()
            .flat_map(|wave| wave.tasks.values().filter_map(|task| task.preferred_node.as_deref()))
    }

    /// Returns the first wave that is not finished, and those after it.
    fn unfinished(&self) -> &[Wave] {
        &self.waves[self.finished..]
    }

    fn note_finished(&mut self) {
        self.finished += self.unfinished().iter().take_while(|wave| wave.is_finished()).count();
    }

    /// Returns the place of the last wave that the planner wants to be fetched. It has chosen no
    /// setting for any wave after [`StageRun::last_planned`].
    fn last_wanted(&self) -> Option<usize> {
        let end = self.waves.len().min(self.last_planned + 1);
        self.waves[..end].iter().rposition(Wave::is_planned)
    }

    /// Returns the place of a wave.
    fn place(&self, id: WaveId) -> Option<usize> {
        self.waves.binary_search_by_key(&id, |w| w.id).ok()
    }

    fn wave(&self, id: WaveId) -> Option<&Wave> {
        self.place(id).map(|place| &self.waves[place])
    }

    fn wave_mut(&mut self, id: WaveId) -> Option<&mut Wave> {
        self.place(id).map(|place| &mut self.waves[place])
    }

    /// Returns the tasks of the planner's wave.
    pub fn tasks_of(&self, wave: u32) -> impl Iterator<Item = u32> + '_ {
        let wave = self.waves.get(self.base + wave as usize);
        wave.into_iter().flat_map(|wave| wave.tasks.keys().copied())
    }

    /// Returns whether the planner wants the wave to be fetched.
    pub fn is_planned(&self, id: WaveId) -> bool {
        self.wave(id).is_some_and(Wave::is_planned)
    }

    /// Sets the setting with which the planner wants its wave `wave` to be fetched, and the
    /// `speed_bytes_per_s` that it expects. Returns the wave's id, and whether its tasks might read
    /// it by themselves until now.
    pub fn set_setting(
        &mut self,
        wave: u32,
        setting: Setting,
        speed_bytes_per_s: f64,
        since_ms: u64,
    ) -> Option<(WaveId, bool)> {
        let place = self.base + wave as usize;
        let found = self.waves.get_mut(place)?;
        if found.setting.replace(setting).is_none() {
            found.ahead_bytes = found.parts.values().map(|part| part.fetched_bytes).sum();
        }
        found.speed_bytes_per_s = speed_bytes_per_s;
        self.last_planned = self.last_planned.max(place);
        let was_direct = core::mem::take(&mut found.is_direct);
        if !setting.is_paused() && core::mem::take(&mut found.is_withdrawn) {
            // What was given up for its tasks is fetched after all. Parts that were complete by
            // then stay, with their requests.
            let given_up = found.parts.values_mut().filter(|part| part.chunks.is_empty());
            given_up.for_each(|part| part.restart(part.unstarted > 0));
            found.is_split = false;
            self.split = self.split.min(place);
        }
        if !setting.is_paused() && found.status.prefetch_began_ms.is_none() && !found.is_over() {
            found.status.prefetch_began_ms = Some(since_ms);
            self.fetching.push(found.id);
            self.begun = self.begun.max(place + 1);
        }
        Some((found.id, was_direct))
    }

    /// Pauses the other waves that have not begun to compute, and returns them: a planner that
    /// considers phases fetches one wave of a job at a time.
    pub fn pause_others(&mut self, id: WaveId) -> Vec<WaveId> {
        let first = self.base + self.started as usize;
        let end = if self.opportunistic { first } else { self.waves.len().min(self.last_planned + 1) };
        let waves = self.waves.get_mut(first..end).into_iter().flatten();
        let others = waves.filter(|wave| wave.id != id && wave.is_planned());
        others
            .map(|wave| {
                wave.setting = Some(Setting::PAUSED);
                wave.id
            })
            .collect()
    }

    /// Begins a part of the wave, perhaps before the planner has requested the wave.
    fn begin(&mut self, id: WaveId, since_ms: u64) {
        let Some(place) = self.place(id) else { return };
        let wave = &mut self.waves[place];
        if wave.status.prefetch_began_ms.is_none() {
            wave.status.prefetch_began_ms = Some(since_ms);
            self.fetching.push(id);
            self.begun = self.begun.max(place + 1);
        }
    }

    /// Lets the tasks of a wave read by themselves, as its planner has decided. Returns the
    /// requests to release.
    pub fn read_directly(&mut self, wave: u32) -> Vec<RequestId> {
        let Some(found) = self.waves.get_mut(self.base + wave as usize) else { return Vec::new() };
        found.is_direct = true;
        let was_wanted = found.setting.replace(Setting::PAUSED).is_some();
        found.is_withdrawn |= was_wanted;
        let parts = found.parts.values_mut().filter(|_| was_wanted);
        parts.flat_map(NodePart::withdraw).collect()
    }

    /// Handles the loss of a node. Returns the bytes that it held, by wave, for waves that the
    /// planner knows and that have not begun. These waves will be reported as fetched again.
    pub fn lose(&mut self, node: &str) -> Vec<(u32, u64)> {
        let (base, first) = (self.base, self.base + self.started as usize);
        let waves = self.waves.iter_mut().enumerate().skip(first);
        let lost: Vec<(u32, u64)> = waves
            .filter_map(|(place, wave)| {
                let part = wave.parts.get(node)?;
                let bytes = part.fetched_bytes + part.resident_bytes;
                wave.is_reported &= bytes == 0;
                (bytes > 0).then_some(((place - base) as u32, bytes))
            })
            .collect();
        if let Some((first, _)) = lost.first() {
            self.fetched = self.fetched.min(*first);
        }
        lost
    }

    /// Returns the pace of each request of the wave: pages at a time and bytes per second, 0 for no
    /// limit.
    ///
    /// A rate is a share of the speed that the planner expects of the setting. The speed that
    /// prefetches have reached would be the wrong measure: a limit lowers it, which would lower the
    /// next limit.
    fn pace(&self, wave: &Wave) -> Pace {
        let limit = |setting: Setting| {
            let nodes = wave.parts.len().min(setting.nodes.into()).max(1) as f64;
            let requests = nodes * f64::from(setting.threads.max(1));
            ((wave.speed_bytes_per_s * setting.rate / requests) as u64).max(1)
        };
        match wave.setting {
            Some(setting) if self.rules.whole_parts => {
                Pace { threads: setting.threads.into(), rate_bytes_per_s: 0, setting: Some(setting) }
            }
            Some(setting) if setting.rate < 1.0 && !setting.is_paused() => {
                Pace { threads: 1, rate_bytes_per_s: limit(setting), setting: None }
            }
            _ => Pace { threads: 1, ..Pace::default() },
        }
    }

    /// Permits or forbids prefetches of waves after the planned one. Returns the waves whose
    /// requests this resumes or pauses.
    pub fn set_ahead(&mut self, may: bool) -> Vec<WaveId> {
        self.is_ahead = may;
        let is_unplanned = |id: &&WaveId| self.wave(**id).is_some_and(|wave| wave.setting.is_none());
        self.fetching.iter().filter(is_unplanned).copied().collect()
    }

    /// Returns the waves that were not planned yet and of which bytes were fetched since the last
    /// call: the planner's number and all bytes fetched up to now.
    pub fn take_fetched_ahead(&mut self) -> Vec<(u32, u64)> {
        if self.opportunistic {
            return Vec::new();
        }
        let first = self.finished.max(self.base);
        let begun = self.waves.iter_mut().enumerate().take(self.begun).skip(first);
        let mut came = Vec::new();
        for (place, wave) in begun.filter(|(_, wave)| wave.setting.is_none()) {
            let bytes = wave.parts.values().map(|part| part.fetched_bytes + part.resident_bytes).sum();
            if core::mem::replace(&mut wave.reported_bytes, bytes) < bytes {
                came.push(((place - self.base) as u32, bytes));
            }
        }
        came
    }

    /// Returns the requests of the wave whose pace has changed with its setting, with their nodes
    /// and new paces. If a node has more requests than the new setting allows, the last ones pause.
    pub fn adjust(&mut self, id: WaveId) -> Vec<Adjusted> {
        let Some(wave) = self.wave(id).filter(|_| !self.opportunistic) else { return Vec::new() };
        let pace = self.pace(wave);
        let setting = match wave.setting {
            Some(setting) => setting,
            None if self.is_ahead => Setting::new(u16::MAX, AHEAD_LIMIT as u16),
            None => Setting::PAUSED,
        };
        let whole_parts = self.rules.whole_parts;
        let Some(wave) = self.wave_mut(id) else { return Vec::new() };
        let mut changed = Vec::new();
        let mut nodes_left = match setting {
            setting if setting.is_paused() => 0,
            _ if whole_parts => usize::MAX,
            setting => usize::from(setting.nodes),
        };
        for (node, part) in wave.parts.iter_mut().filter(|(_, part)| !part.active.is_empty()) {
            let allowed = if nodes_left > 0 { usize::from(setting.threads.max(1)) } else { 0 };
            nodes_left = nodes_left.saturating_sub(1);
            // In the order in which tasks need them.
            for (place, number) in part.active.iter().enumerate() {
                let asked = &mut part.chunks[*number];
                let pace = if place < allowed { pace } else { Pace::PAUSED };
                if let Some(request) = asked.request.filter(|_| asked.pace != pace) {
                    let was_paused = asked.pace.threads == 0;
                    asked.pace = pace;
                    changed.push(Adjusted { node: node.to_string(), request, pace, was_paused });
                }
            }
        }
        changed
    }

    /// Requests a chunk of [`StageRun::next_chunk`] as `request`; returns what to fetch, and the
    /// pace.
    pub fn ask(
        &mut self,
        queue: QueueId,
        rank: &Rank,
        request: RequestId,
        since_ms: u64,
    ) -> (Vec<Part>, Pace) {
        self.waiting.remove(queue, rank);
        self.begin(rank.wave, since_ms);
        let pace = self.wave(rank.wave).map_or(Pace::PAUSED, |wave| self.pace(wave));
        let Some(part) = self.part(rank.wave, &rank.node) else { return (Vec::new(), pace) };
        part.ask(rank.number, request, pace);
        (part.chunks.get(rank.number).map(|asked| asked.chunk.parts.clone()).unwrap_or_default(), pace)
    }

    /// Gives up the rest of a node's part.
    pub fn part_ended(&mut self, id: WaveId, node: &str) {
        if let Some(part) = self.part(id, node) {
            part.state = State::Ended;
        }
    }

    /// Handles a node's loss of its requests. They must be sent again if a task still waits for
    /// them.
    pub fn part_lost(&mut self, id: WaveId, node: &str) {
        let opportunistic = self.opportunistic;
        let Some(place) = self.place(id) else { return };
        self.split = self.split.min(place);
        let wave = &mut self.waves[place];
        let is_finished = wave.is_finished();
        wave.is_split = false;
        if let Some(part) = wave.parts.get_mut(node) {
            part.restart(part.unstarted > 0 || opportunistic && !is_finished);
        }
    }

    /// Records the progress of a request; returns the bytes fetched since the last call.
    pub fn progress(
        &mut self,
        wave: WaveId,
        node: &str,
        number: usize,
        request: RequestId,
        progress: &Progress,
    ) -> u64 {
        self.part(wave, node).map_or(0, |part| part.progress(number, request, progress))
    }

    /// Adds the bytes requested from nodes, by their numbers, for waves that are not over.
    pub fn add_held(&self, held: &mut [u64]) {
        let begun = |wave: &&Wave| wave.status.prefetch_began_ms.is_some() && !wave.is_finished();
        let end = self.begun.max(self.finished);
        for wave in self.waves[self.finished..end].iter().filter(begun) {
            for part in wave.parts.values().filter(|part| !part.chunks.is_empty()) {
                held[part.node] += part.asked_bytes.saturating_sub(part.failed_bytes);
            }
        }
    }

    fn part(&mut self, id: WaveId, node: &str) -> Option<&mut NodePart> {
        self.wave_mut(id)?.parts.get_mut(node)
    }

    // Tasks.

    /// Records that a task runs on `node`. Returns the requests that end with it: those whose tasks
    /// have all started, unless requests continue.
    pub fn task_started(&mut self, number: u32, node: Option<&str>, since_ms: u64) -> Vec<u64> {
        let Some(wave) = self.wave_of.get(number as usize).copied().flatten() else { return Vec::new() };
        let wave = &mut self.waves[wave];
        let Some(task) = wave.tasks.get_mut(&number).filter(|t| !t.started) else { return Vec::new() };
        task.started = true;
        self.local += u32::from(task.preferred_node.is_some() && task.preferred_node.as_deref() == node);
        wave.started += 1;
        wave.status.compute_began_ms.get_or_insert(since_ms);
        let mut withdrawn = Vec::new();
        for part in wave.parts.values_mut().filter(|p| p.needs.contains_key(&number)) {
            assert!(part.unstarted > 0, "task {number} starts, and all of its wave have started");
            part.unstarted -= 1;
            if part.unstarted == 0 && !self.opportunistic {
                withdrawn.extend(part.withdraw());
            }
        }
        withdrawn
    }

    /// Returns the tasks of `tasks` that need not wait for their input, and the places of the waves
    /// for which the others wait: such a wave has not begun, and a part of it is still to be
    /// fetched. To planners a wave begins as a whole.
    ///
    /// No task waits for a wave of which a node has more to fetch than it `may_hold`: the rest
    /// would only have room when the wave has been computed.
    pub fn may_read(
        &self,
        may_hold: impl Fn(&str, NodeNumber) -> u64,
        tasks: impl IntoIterator<Item = u32>,
    ) -> (Vec<u32>, BTreeSet<usize>) {
        // There may be thousands of tasks, of few waves.
        let mut waves: BTreeMap<usize, bool> = BTreeMap::new();
        let mut waits = |task: &u32| {
            let place = self.wave_of.get(*task as usize).copied().flatten();
            let place = place.filter(|place| self.waves[*place].tasks.contains_key(task));
            place.is_some_and(|p| *waves.entry(p).or_insert_with(|| self.is_awaited(&may_hold, p)))
        };
        let may = tasks.into_iter().filter(|task| !waits(task)).collect();
        (may, waves.into_iter().filter_map(|(place, is_awaited)| is_awaited.then_some(place)).collect())
    }

    fn is_awaited(&self, may_hold: impl Fn(&str, NodeNumber) -> u64, place: usize) -> bool {
        let wave = &self.waves[place];
        let fits = || wave.parts.iter().all(|(node, part)| part.bytes <= may_hold(node, part.node));
        self.planner.is_some() && wave.started == 0 && !wave.is_direct && !wave.is_over() && fits()
    }

    /// Returns whether all waiting tasks continue to wait, as their waves show without examining
    /// each task.
    pub fn all_wait(&self, may_hold: impl Fn(&str, NodeNumber) -> u64) -> bool {
        self.awaited.as_ref().is_some_and(|waves| waves.iter().all(|wave| self.is_awaited(&may_hold, *wave)))
    }

    /// Returns whether examining the awaited waves includes this task, which waits.
    #[cfg(test)]
    pub fn is_looked_at(&self, task: u32) -> bool {
        let wave = self.wave_of.get(task as usize).copied().flatten();
        self.awaited.as_ref().is_none_or(|awaited| wave.is_some_and(|wave| awaited.contains(&wave)))
    }

    /// Notes that a task waits from now on.
    pub fn note_waits(&mut self, task: u32) {
        let wave = self.wave_of.get(task as usize).copied().flatten();
        self.awaited.iter_mut().for_each(|awaited| awaited.extend(wave));
    }

    /// Returns the planner's number of the task's wave, if that wave begins with it.
    pub fn begins(&mut self, task: u32) -> Option<u32> {
        let place = self.wave_of.get(task as usize).copied().flatten()?;
        let wave = place.checked_sub(self.base)? as u32;
        if wave < self.started {
            return None;
        }
        self.started = wave + 1;
        Some(wave)
    }

    /// Records that a task has succeeded. Returns the requests of its wave if the wave is over with
    /// it.
    pub fn task_done(&mut self, number: u32, since_ms: u64) -> Vec<u64> {
        let Some(wave) = self.wave_of.get(number as usize).copied().flatten() else { return Vec::new() };
        let wave = &mut self.waves[wave];
        let Some(task) = wave.tasks.get_mut(&number).filter(|t| !t.done) else { return Vec::new() };
        task.done = true;
        wave.done += 1;
        let requests = wave.finish(since_ms);
        self.note_finished();
        requests
    }

    /// Returns the wave that the job waits for, given that none of its tasks runs.
    pub fn wanted(&self) -> Option<u32> {
        let last = (self.base + self.started as usize).checked_sub(1)?;
        let wave = self.waves.get(last + 1)?;
        (self.waves[last].is_finished() && !wave.is_reported).then_some(self.started)
    }

    /// Returns the share of the wave's input that is in tiers.
    pub fn tier_share(&self, wave: u32) -> f64 {
        let Some(wave) = self.waves.get(self.base + wave as usize) else { return 0.0 };
        let there: u64 = wave.parts.values().map(|part| part.fetched_bytes + part.resident_bytes).sum();
        (there as f64 / wave.status.bytes.max(1) as f64).min(1.0)
    }

    /// Returns the bytes of the wave that were in tiers before its planner requested it.
    pub fn resident_bytes(&self, wave: u32) -> u64 {
        let wave = self.waves.get(self.base + wave as usize);
        wave.map_or(0, |wave| {
            wave.ahead_bytes + wave.parts.values().map(|part| part.resident_bytes).sum::<u64>()
        })
    }

    /// Returns whether the task's wave was partitioned before those that the planner knows.
    pub fn is_before_cut(&self, task: u32) -> bool {
        self.wave_of.get(task as usize).copied().flatten().is_some_and(|place| place < self.base)
    }

    /// Returns what nodes hold for waves that were partitioned before those that the planner knows;
    /// the nodes of `gone` hold nothing.
    pub fn held_before_bytes(&self, gone: &BTreeSet<String>) -> u64 {
        let waves = self.waves[..self.base].iter().filter(|wave| !wave.is_finished());
        let parts = waves.flat_map(|wave| wave.parts.iter());
        let held = parts.filter(|(node, _)| !gone.contains(&***node)).map(|(_, part)| part);
        held.map(|part| part.asked_bytes.saturating_sub(part.failed_bytes)).sum()
    }

    // Fetched waves, reported to the planner in order, except for those that it planned earlier.

    /// Returns the next wave to report as fetched, if all its requests have ended.
    pub fn next_fetched(&mut self, since_ms: u64) -> Option<u32> {
        self.note_ends(since_ms);
        let first = self.base + self.fetched as usize;
        let end = if self.opportunistic { first } else { self.last_planned } + 1;
        let is_next = |(place, wave): &(usize, &Wave)| {
            let is_due = *place == first || wave.setting.is_some();
            is_due && !wave.is_reported && wave.is_fetched(self.opportunistic)
        };
        let mut waves = self.waves.iter().enumerate().take(end.max(first + 1)).skip(first);
        let (place, _) = waves.find(is_next)?;
        self.mark_reported(place)
    }

    /// Returns the next wave before `wave` that was not reported as fetched; it counts as reported
    /// now, whatever its progress.
    pub fn force_fetched(&mut self, wave: u32) -> Option<u32> {
        if self.fetched >= wave {
            return None;
        }
        self.mark_reported(self.base + self.fetched as usize)
    }

    fn mark_reported(&mut self, place: usize) -> Option<u32> {
        self.waves.get_mut(place)?.is_reported = true;
        while self.waves.get(self.base + self.fetched as usize).is_some_and(|wave| wave.is_reported) {
            self.fetched += 1;
        }
        Some((place - self.base) as u32)
    }

    fn note_ends(&mut self, since_ms: u64) {
        let waves = &mut self.waves;
        self.fetching.retain(|id| {
            let Ok(place) = waves.binary_search_by_key(id, |w| w.id) else { return false };
            let wave = &mut waves[place];
            if wave.is_over() {
                wave.status.prefetch_ended_ms = Some(since_ms);
            }
            !wave.is_over()
        });
    }

    /// Ends the stage; returns all its requests.
    pub fn end(&mut self) -> Vec<u64> {
        self.waiting = Waiting::default();
        let mut orders = Vec::new();
        for wave in &mut self.waves {
            orders.extend(wave.take_requests());
            for part in wave.parts.values_mut() {
                part.withdraw();
            }
        }
        orders
    }

    /// Returns the waves for people.
    pub fn statuses(&self) -> Vec<WaveStatus> {
        let status = |wave: &Wave| {
            let sum = |of: fn(&NodePart) -> u64| wave.parts.values().map(of).sum();
            WaveStatus {
                tasks: wave.tasks.len() as u32,
                tasks_done: wave.done as u32,
                fetched_bytes: sum(|p| p.fetched_bytes),
                resident_bytes: sum(|p| p.resident_bytes),
                failed_bytes: sum(|p| p.failed_bytes + p.given_up_bytes),
                ..wave.status.clone()
            }
        };
        self.waves.iter().map(status).collect()
    }
}
