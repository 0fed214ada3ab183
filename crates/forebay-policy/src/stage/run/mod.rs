//! How one stage is carried out: its waves, what each node has to bring for them, and how far that is.
//!
//! A stage is cut once when it is ready and again whenever members or slots change. Waves that have begun by then stay,
//! with the tasks that have started; the others are replaced. So waves have two numbers: an id, under which orders know
//! them for good, and the planner's, which counts from the last cut.

mod requests;

pub use requests::Rank;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use forebay_model::profile::Setting;

use super::event::{File, Part, Progress, RequestId, WaveId, WaveStatus};
use super::partition::{Need, Placed};
use crate::planner::JobId;
use requests::{OrderedPiece, Waiting};

/// Waves after the planned one that are begun at most: enough that every server of the PFS has something to bring, since
/// those of one wave are on some servers by chance and not on others.
const AHEAD_WAVES: usize = 3;

/// A stage has one of these for so many waves, and one at least: what comes of later waves takes from the next, and of few there is no time to
/// make up for it.
const WAVES_FOR_ONE_AHEAD: usize = 5;

/// Pages at a time that a node brings of each of these.
const AHEAD_THREADS: u32 = 1;

/// Of an order, so much is told: half of what a message may have. What is beyond it is given up; a node has seconds of work with it.
const ORDER_BYTES_MAX: usize = 4 << 20;

/// What a part and a file of an order take in a message at most, beside its path.
const PART_BYTES: usize = 24;
const FILE_BYTES: usize = 128;

/// See the module.
#[derive(Debug, Default)]
pub struct StageRun {
    /// Names it among all stages, as long as it is there; its planner's name for it changes with each cut.
    pub serial: u32,
    /// The planner that has it, and as which job.
    pub planner: Option<(String, JobId)>,
    /// Orders go on when their tasks have started, and those of later waves wait for them.
    pub goes_on: bool,
    /// What it reads is brought server by server (see `by_server`), since it is known where it lies. Only together with `goes_on`.
    pub by_server: bool,
    /// Tasks that were started at their home: where most of their input is brought.
    pub local: u32,
    /// In the order of their ids.
    waves: Vec<Wave>,
    next_wave: u64,
    /// Place of the planner's first wave.
    base: usize,
    /// Place of each task's wave.
    wave_of: Vec<Option<usize>>,
    /// Waves that the planner was told have begun.
    started: u32,
    /// Waves that the planner was told are fetched.
    fetched: u32,
    /// Waves whose prefetch is under way.
    fetching: Vec<WaveId>,
    waiting: Waiting,
}

#[derive(Debug, Default)]
struct Wave {
    id: WaveId,
    tasks: BTreeMap<u32, WaveTask>,
    started: usize,
    done: usize,
    parts: BTreeMap<String, NodePart>,
    setting: Option<Setting>,
    status: WaveStatus,
    /// Those of its parts that wait are in pieces.
    is_cut: bool,
}

#[derive(Debug, Default)]
struct WaveTask {
    home: Option<String>,
    bytes: u64,
    started: bool,
    done: bool,
}

/// What one node brings for a wave.
#[derive(Debug, Default)]
struct NodePart {
    needs: BTreeMap<u32, Need>,
    state: PartState,
    /// The order that it was given last; its pages are kept for the wave until the order is cancelled.
    order: Option<u64>,
    /// Tasks that have not started.
    unstarted: usize,
    /// Bytes of the order, and of what became of it.
    ordered_bytes: u64,
    fetched_bytes: u64,
    resident_bytes: u64,
    failed_bytes: u64,
    /// Bytes that were never ordered: no room, or read by their tasks already.
    given_up_bytes: u64,
    /// What is brought server by server, and how many of these have not ended.
    pieces: Vec<OrderedPiece>,
    pieces_left: usize,
}

/// How far a node is with its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PartState {
    /// Not ordered yet.
    #[default]
    Waiting,
    /// Ordered.
    Active,
    /// Nothing more will come of it.
    Ended,
}

impl NodePart {
    fn bytes(&self) -> u64 {
        self.needs.values().map(|n| n.bytes).sum()
    }

    /// All orders that keep something for it.
    fn take_orders(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.order.take().into_iter().chain(self.pieces.iter_mut().filter_map(|piece| piece.order.take()))
    }

    /// It ends before it was done; what has not come is given up. Returns the orders to cancel.
    fn withdraw(&mut self) -> Vec<u64> {
        if self.state == PartState::Ended {
            return Vec::new();
        }
        let came = self.fetched_bytes + self.resident_bytes + self.failed_bytes;
        self.given_up_bytes = self.bytes().saturating_sub(came);
        self.ordered_bytes = came;
        self.state = PartState::Ended;
        let orders = self.take_orders().collect();
        (self.pieces, self.pieces_left) = (Vec::new(), 0);
        orders
    }
}

impl Wave {
    /// Whether the planner wants it to be fetched.
    fn is_planned(&self) -> bool {
        self.setting.is_some_and(|setting| !setting.is_paused())
    }

    fn is_finished(&self) -> bool {
        self.done == self.tasks.len()
    }

    fn is_over(&self) -> bool {
        self.parts.values().all(|p| p.state == PartState::Ended)
    }

    fn active(&self) -> usize {
        self.parts.values().filter(|p| p.state == PartState::Active).count()
    }

    fn is_brought_by(&self, node: &str) -> bool {
        self.parts.get(node).is_some_and(|part| part.state == PartState::Active)
    }

    /// All orders that keep something for it.
    fn take_orders(&mut self) -> Vec<u64> {
        self.parts.values_mut().flat_map(NodePart::take_orders).collect()
    }

    /// Every task has ended: nothing is kept for it any more.
    fn finish(&mut self, since_ms: u64) -> Vec<u64> {
        if !self.is_finished() || self.status.compute_ended_ms.is_some() || self.tasks.is_empty() {
            return Vec::new();
        }
        self.status.compute_ended_ms = Some(since_ms);
        let orders = self.take_orders();
        self.parts.values_mut().for_each(|p| {
            p.state = PartState::Ended;
            p.ordered_bytes = 0;
            (p.pieces, p.pieces_left) = (Vec::new(), 0);
        });
        orders
    }
}

impl StageRun {
    /// A stage without waves.
    pub fn new(serial: u32) -> Self {
        StageRun { serial, ..StageRun::default() }
    }

    // Cutting.

    /// Forgets the waves that have not begun, and takes the tasks that have not started out of the others. Returns the
    /// orders that are void.
    pub fn drop_waves_not_begun(&mut self, since_ms: u64) -> Vec<u64> {
        let mut void = Vec::new();
        let mut kept = Vec::new();
        for mut wave in self.waves.drain(..) {
            if wave.started == 0 {
                void.extend(wave.take_orders());
                continue;
            }
            let left: BTreeSet<u32> =
                wave.tasks.iter().filter(|(_, t)| !t.started).map(|(n, _)| *n).collect();
            for task in &left {
                let gone = wave.tasks.remove(task);
                wave.status.bytes -= gone.map_or(0, |t| t.bytes);
                wave.parts.values_mut().for_each(|p| drop(p.needs.remove(task)));
            }
            // All that is left of it has started, and reads by itself unless its orders go on.
            for part in wave.parts.values_mut() {
                part.unstarted = 0;
                part.forget_tasks(&left);
                let is_coming =
                    part.state == PartState::Active || self.by_server && part.state == PartState::Waiting;
                if !(self.goes_on && is_coming && !part.needs.is_empty()) {
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
        self.forget_waiting_of_others();
        self.base = self.waves.len();
        (self.started, self.fetched) = (0, 0);
        self.fetching = self.waves.iter().filter(|wave| !wave.is_over()).map(|wave| wave.id).collect();
        void
    }

    /// Adds waves of tasks, each with what nodes bring for it.
    pub fn add_waves(&mut self, tasks: usize, waves: &[Vec<u32>], placed: Vec<(u32, Placed)>) {
        // By number: with 100,000 tasks a map takes several times as long, and all wait for it.
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
                let of_wave = WaveTask { home: found.home, bytes, ..WaveTask::default() };
                wave.tasks.insert(task, of_wave);
                for (node, need) in found.needs {
                    let part = wave.parts.entry(node).or_default();
                    part.unstarted += 1;
                    part.needs.insert(task, need);
                }
            }
            self.waves.push(wave);
        }
        self.wave_of = vec![None; tasks];
        for (place, wave) in self.waves.iter().enumerate() {
            for task in wave.tasks.keys() {
                if let Some(of) = self.wave_of.get_mut(*task as usize) {
                    *of = Some(place);
                }
            }
        }
    }

    /// Waves that the planner has to know of.
    pub fn planned_waves(&self) -> u32 {
        (self.waves.len() - self.base) as u32
    }

    /// Bytes of the largest of them.
    pub fn largest_wave_bytes(&self) -> u64 {
        self.waves[self.base..].iter().map(|w| w.status.bytes).max().unwrap_or(0)
    }

    // Orders.

    /// Where its tasks are to run.
    #[cfg(test)]
    pub fn homes(&self) -> impl Iterator<Item = &str> {
        self.waves.iter().flat_map(|wave| wave.tasks.values().filter_map(|task| task.home.as_deref()))
    }

    fn wave(&self, id: WaveId) -> Option<&Wave> {
        self.waves.binary_search_by_key(&id, |w| w.id).ok().map(|place| &self.waves[place])
    }

    fn wave_mut(&mut self, id: WaveId) -> Option<&mut Wave> {
        self.waves.binary_search_by_key(&id, |w| w.id).ok().map(|place| &mut self.waves[place])
    }

    /// Whether the planner wants the wave to be fetched.
    pub fn is_planned(&self, id: WaveId) -> bool {
        self.wave(id).is_some_and(Wave::is_planned)
    }

    /// The planner wants its wave `wave` to be fetched with `setting`; gives the wave's id.
    pub fn set_setting(&mut self, wave: u32, setting: Setting, since_ms: u64) -> Option<WaveId> {
        let place = self.base + wave as usize;
        let found = self.waves.get_mut(place)?;
        found.setting = Some(setting);
        if !setting.is_paused() && found.status.prefetch_began_ms.is_none() && !found.is_over() {
            found.status.prefetch_began_ms = Some(since_ms);
            self.fetching.push(found.id);
        }
        Some(found.id)
    }

    /// Pages at a time and bytes per second (0: no limit) of each node, if all together reach `speed_bytes_per_s`. Of a wave that
    /// is not planned yet it is the pace of what is brought ahead.
    /// And so it is where the node still brings what started tasks wait for.
    pub fn pace(&self, id: WaveId, node: &str, speed_bytes_per_s: f64) -> (u32, u64) {
        let Some(wave) = self.wave(id) else { return (0, 0) };
        match wave.setting {
            Some(setting) if !setting.is_paused() && self.is_behind(id, node) => (AHEAD_THREADS, 0),
            Some(setting) if !setting.is_paused() => {
                let nodes = wave.parts.len().min(setting.nodes.into()).max(1) as f64;
                let limited = speed_bytes_per_s * setting.rate / nodes;
                let rate = if setting.rate >= 1.0 { 0 } else { (limited as u64).max(1) };
                (setting.threads.max(1).into(), rate)
            }
            None => (AHEAD_THREADS, 0),
            _ => (0, 0),
        }
    }

    /// Whether the node is at an order of an earlier wave of which tasks have started.
    fn is_behind(&self, id: WaveId, node: &str) -> bool {
        let comes_first = |wave: &Wave| wave.started > 0 && wave.is_brought_by(node);
        self.goes_on && self.waves.iter().take_while(|wave| wave.id < id).any(comes_first)
    }

    /// Whether the node is at its order of the first wave, and `id` is a later one.
    fn is_behind_first(&self, id: WaveId, node: &str) -> bool {
        let first = self.waves.first().filter(|wave| wave.id < id);
        self.goes_on && first.is_some_and(|wave| wave.is_brought_by(node))
    }

    /// Waves that the planner wants and of which the node has something left to bring.
    pub fn planned_on(&self, node: &str) -> Vec<WaveId> {
        let is_left = |wave: &&Wave| wave.parts.get(node).is_some_and(|part| part.state != PartState::Ended);
        self.waves.iter().filter(|wave| wave.is_planned()).filter(is_left).map(|wave| wave.id).collect()
    }

    /// Parts of the waves after the one planned last that have not been begun, wave by wave: the wave, the node, and the bytes. None
    /// of nodes whose part of the planned wave waits, and none while the first wave comes, behind which nothing computes.
    pub fn parts_ahead(&self) -> Vec<(WaveId, String, u64)> {
        let Some(planned) = self.waves.iter().rposition(Wave::is_planned) else { return Vec::new() };
        if self.by_server || !self.waves[0].is_over() {
            return Vec::new();
        }
        let ahead = (self.waves.len() / WAVES_FOR_ONE_AHEAD).clamp(1, AHEAD_WAVES);
        let later = self.waves[planned + 1..].iter().take(ahead).filter(|wave| wave.setting.is_none());
        let begins = |node: &str| {
            !self.waves[planned].parts.get(node).is_some_and(|part| part.state == PartState::Waiting)
        };
        let parts = later.flat_map(|wave| wave.parts.iter().map(move |(node, part)| (wave.id, node, part)));
        let waiting = parts
            .filter(|(_, node, part)| part.state == PartState::Waiting && part.unstarted > 0 && begins(node));
        waiting.map(|(wave, node, part)| (wave, node.clone(), part.bytes())).collect()
    }

    /// A part of the wave is begun before the planner has asked for the wave.
    pub fn begin_ahead(&mut self, id: WaveId, since_ms: u64) {
        let Some(wave) = self.wave_mut(id) else { return };
        if wave.status.prefetch_began_ms.is_none() {
            wave.status.prefetch_began_ms = Some(since_ms);
            self.fetching.push(id);
        }
    }

    /// Orders under way, each with its node.
    pub fn active_orders(&self, id: WaveId) -> Vec<(String, u64)> {
        let parts = self.wave(id).into_iter().flat_map(|w| &w.parts);
        let active = parts.filter(|(_, p)| p.state == PartState::Active);
        active.filter_map(|(node, p)| Some((node.clone(), p.order?))).collect()
    }

    /// Nodes that are to be given their orders now.
    pub fn nodes_to_start(&self, id: WaveId) -> Vec<String> {
        let Some(wave) = self.wave(id) else { return Vec::new() };
        let allowed = match wave.setting {
            Some(setting) if !setting.is_paused() && !self.by_server => usize::from(setting.nodes),
            _ => 0,
        };
        let waiting = wave
            .parts
            .iter()
            .filter(|(node, p)| p.state == PartState::Waiting && !self.is_behind_first(id, node));
        waiting.take(allowed.saturating_sub(wave.active())).map(|(node, _)| node.clone()).collect()
    }

    /// What to order of a node that has `room_bytes`: files, and parts of them, in the order of the tasks. Tasks that have
    /// started read by themselves; what does not fit is given up.
    pub fn take_parts(&mut self, id: WaveId, node: &str, room_bytes: u64, files: &[File]) -> Vec<Part> {
        let Some(wave) = self.wave_mut(id) else { return Vec::new() };
        let Some(part) = wave.parts.get_mut(node) else { return Vec::new() };
        let mut named: BTreeSet<u32> = BTreeSet::new();
        let mut parts = Vec::new();
        let (mut bytes, mut message_bytes) = (0, 0);
        let unstarted =
            part.needs.iter().filter(|(task, _)| wave.tasks.get(task).is_some_and(|t| !t.started));
        for piece in unstarted.flat_map(|(_, need)| &need.parts) {
            let Some(file) = files.get(piece.file as usize) else { continue };
            message_bytes += PART_BYTES;
            if named.insert(piece.file) {
                message_bytes += FILE_BYTES + file.name_bytes as usize;
            }
            if bytes + piece.len > room_bytes || message_bytes > ORDER_BYTES_MAX {
                break;
            }
            bytes += piece.len;
            parts.push(*piece);
        }
        part.ordered_bytes = bytes;
        part.given_up_bytes = part.bytes() - bytes;
        parts
    }

    /// Nothing (more) comes of a node's part.
    pub fn part_ended(&mut self, id: WaveId, node: &str) {
        if let Some(part) = self.part(id, node) {
            part.state = PartState::Ended;
        }
    }

    /// A node was given this order for what [`StageRun::take_parts`] told.
    pub fn ordered(&mut self, id: WaveId, node: &str, order: u64) {
        if let Some(part) = self.part(id, node) {
            part.order = Some(order);
            part.state = PartState::Active;
        }
    }

    /// The node has forgotten its order: it has to be given anew, if anybody still waits for it.
    pub fn order_lost(&mut self, id: WaveId, node: &str) {
        let by_server = self.by_server;
        let Some(wave) = self.wave_mut(id) else { return };
        let is_finished = wave.is_finished();
        wave.is_cut = false;
        if let Some(part) = wave.parts.get_mut(node) {
            let waits = part.unstarted > 0 || by_server && !is_finished;
            let state = if waits { PartState::Waiting } else { PartState::Ended };
            *part = NodePart {
                needs: core::mem::take(&mut part.needs),
                unstarted: part.unstarted,
                state,
                ..NodePart::default()
            };
        }
    }

    /// Notes how far an order is; returns the bytes fetched since the last time.
    pub fn progress(&mut self, id: WaveId, node: &str, order: RequestId, progress: &Progress) -> u64 {
        let Some(part) = self.part(id, node).filter(|p| p.order == Some(order)) else { return 0 };
        let before = part.fetched_bytes;
        part.fetched_bytes = progress.fetched_bytes;
        part.resident_bytes = progress.resident_bytes;
        part.failed_bytes = progress.failed_bytes;
        if progress.done {
            part.state = PartState::Ended;
        }
        progress.fetched_bytes.saturating_sub(before)
    }

    /// Adds what nodes were ordered to hold for waves that are not over.
    pub fn add_held(&self, held: &mut BTreeMap<String, u64>) {
        for wave in self.waves.iter().filter(|w| w.status.prefetch_began_ms.is_some() && !w.is_finished()) {
            for (node, part) in wave.parts.iter().filter(|(_, p)| p.order.is_some() || !p.pieces.is_empty()) {
                *held.entry(node.clone()).or_default() +=
                    part.ordered_bytes.saturating_sub(part.failed_bytes);
            }
        }
    }

    fn part(&mut self, id: WaveId, node: &str) -> Option<&mut NodePart> {
        self.wave_mut(id)?.parts.get_mut(node)
    }

    // Tasks.

    /// A task runs on `node`. Returns the orders that end with it: those whose tasks have all started, unless orders go on.
    pub fn task_started(&mut self, number: u32, node: Option<&str>, since_ms: u64) -> Vec<u64> {
        let Some(wave) = self.wave_of.get(number as usize).copied().flatten() else { return Vec::new() };
        let wave = &mut self.waves[wave];
        let Some(task) = wave.tasks.get_mut(&number).filter(|t| !t.started) else { return Vec::new() };
        task.started = true;
        self.local += u32::from(task.home.is_some() && task.home.as_deref() == node);
        wave.started += 1;
        wave.status.compute_began_ms.get_or_insert(since_ms);
        let mut withdrawn = Vec::new();
        for part in wave.parts.values_mut().filter(|p| p.needs.contains_key(&number)) {
            part.unstarted -= 1;
            // What was never ordered is read by the task; by server it is still given out, as what is waited for.
            let is_coming = part.state == PartState::Active || self.by_server;
            if part.unstarted == 0 && !(self.goes_on && is_coming) {
                withdrawn.extend(part.withdraw());
            }
        }
        withdrawn
    }

    /// The planner's number of the task's wave, if that wave begins with it.
    pub fn begins(&mut self, task: u32) -> Option<u32> {
        let place = self.wave_of.get(task as usize).copied().flatten()?;
        let wave = place.checked_sub(self.base)? as u32;
        if wave < self.started {
            return None;
        }
        self.started = wave + 1;
        Some(wave)
    }

    /// A task's result stands. Returns the orders of its wave if the wave is over with it.
    pub fn task_done(&mut self, number: u32, since_ms: u64) -> Vec<u64> {
        let Some(wave) = self.wave_of.get(number as usize).copied().flatten() else { return Vec::new() };
        let wave = &mut self.waves[wave];
        let Some(task) = wave.tasks.get_mut(&number).filter(|t| !t.done) else { return Vec::new() };
        task.done = true;
        wave.done += 1;
        wave.finish(since_ms)
    }

    /// The wave that the job waits for, given that none of its tasks runs.
    pub fn wanted(&self) -> Option<u32> {
        let last = self.base + (self.started.checked_sub(1)?) as usize;
        (self.started < self.planned_waves() && self.waves[last].is_finished()).then_some(self.started)
    }

    // Fetched waves, told to the planner in order.

    /// The next wave to tell as fetched, if all that was ordered for it has ended.
    pub fn next_fetched(&mut self, since_ms: u64) -> Option<u32> {
        self.note_ends(since_ms);
        let wave = self.waves.get(self.base + self.fetched as usize)?;
        // One that was brought ahead has its turn later, unless its tasks could not wait for it.
        let ahead = wave.setting.is_none() && wave.status.prefetch_began_ms.is_some();
        let unplanned = ahead && wave.started < wave.tasks.len();
        if !wave.is_over() || unplanned {
            return None;
        }
        self.fetched += 1;
        Some(self.fetched - 1)
    }

    /// The next wave before `wave` that was not told as fetched; it is told now, however far it is.
    pub fn force_fetched(&mut self, wave: u32) -> Option<u32> {
        if self.fetched >= wave {
            return None;
        }
        self.fetched += 1;
        Some(self.fetched - 1)
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

    /// The stage has ended; returns all its orders.
    pub fn end(&mut self) -> Vec<u64> {
        self.forget_all_waiting();
        let mut orders = Vec::new();
        for wave in &mut self.waves {
            orders.extend(wave.take_orders());
            for part in wave.parts.values_mut() {
                part.withdraw();
            }
        }
        orders
    }

    /// The waves for people.
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
