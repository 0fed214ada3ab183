//! The planner's state: the HPC jobs and their phases, the Big Data jobs and their waves, and the
//! progress of each.
//!
//! Between events the board advances everything with the same model that makes the forecasts, so
//! that a plan made in the middle of a phase starts from the work that is really left. When an
//! event shows that the model was wrong (a phase ended earlier or later than expected), the error
//! enters [`Correction`]s that scale the model.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use forebay_model::forecast::{Chain, Turn};
use forebay_model::profile::{Correction, Setting, Strain};
use forebay_model::sharing;

use super::{Config, Event, HpcId, JobId, PrefetchDistance};
use crate::bandwidth;
use crate::machine::Nanos;

mod job;

pub use job::{Fetch, Job, Part};

/// The least part of a wave that is worth fetching when memory does not hold more.
pub const LEAST_PART: f64 = 0.02;

/// Time that counts as lost by a phase that has measurably lost none.
const LEAST_LOSS_S: f64 = 1e-9;

/// A difference of fewer bytes counts as none.
pub(super) const LEAST_BYTES: f64 = 1.0;

/// Accounts in bytes are sums of speeds times seconds.
const ROUNDING_BYTES: f64 = 1e-3;

/// An HPC job.
#[derive(Clone, Debug)]
pub struct Hpc {
    io_ns: u64,
    compute_ns: u64,
    allowance: f64,
    weight: f64,
    /// Number of phases that have not begun.
    phases_left: u32,
    next_at: Option<Nanos>,
    phase: Option<Phase>,
}

#[derive(Clone, Debug)]
struct Phase {
    /// Its place in the order in which phases began.
    arrival: u64,
    deadline: Nanos,
    alone_s: f64,
    /// I/O time alone that is left by the model; below zero if the phase lasts longer than the
    /// model predicts.
    left_s: f64,
    /// Time that it has lost to prefetches, by the model.
    lost_s: f64,
    /// Time that it has spent beside prefetches that slow it down.
    beside_s: f64,
    /// By how much reports of its progress have changed `left_s`.
    reported_s: f64,
}

/// A phase is about to end when less than this part of its time alone is left.
const ENDING: f64 = 0.1;

/// The planner's state at one moment.
#[derive(Clone, Debug)]
pub struct Board {
    /// The configuration.
    pub config: Config,
    now: Nanos,
    hpc: BTreeMap<HpcId, Hpc>,
    jobs: BTreeMap<JobId, Job>,
    ram_bytes: u64,
    /// Number of phases that have begun.
    arrivals: u64,
    excess_correction: Option<Correction>,
    speed_correction: Option<Correction>,
    /// The measured speed of prefetches as a share of the profile's, where that was a guess.
    guess_factor: f64,
    speeds: Vec<f64>,
}

impl Board {
    /// Creates a board without jobs.
    pub fn new(config: Config) -> Self {
        let learn = || (config.learning > 0.0).then(|| Correction::new(config.learning.min(1.0)));
        Board {
            now: Nanos(0),
            hpc: BTreeMap::new(),
            jobs: BTreeMap::new(),
            ram_bytes: config.ram_bytes,
            arrivals: 0,
            excess_correction: learn(),
            speed_correction: learn(),
            guess_factor: 1.0,
            speeds: Vec::new(),
            config,
        }
    }

    /// Returns the present moment.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the Big Data jobs in ascending order.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.jobs.iter().map(|(&id, job)| (id, job))
    }

    /// Returns one of the Big Data jobs, which must exist.
    pub fn job(&self, id: JobId) -> &Job {
        self.jobs
            .get(&id)
            .unwrap_or_else(|| panic!("the planner was asked about job {id}, which it does not know"))
    }

    /// Returns the number of phases under way.
    pub fn active_phases(&self) -> usize {
        self.hpc.values().filter(|h| h.phase.is_some()).count()
    }

    /// Returns whether a phase should be over, or almost.
    pub fn is_a_phase_ending(&self) -> bool {
        let mut phases = self.hpc.values().filter_map(|h| h.phase.as_ref());
        phases.any(|phase| phase.left_s < ENDING * phase.alone_s)
    }

    /// Returns when the next phase of any job is expected to begin.
    pub fn next_phase_in_s(&self) -> Option<f64> {
        let next = self.hpc.values().filter_map(|h| h.next_at).min()?;
        Some(next.saturating_since(self.now) as f64 * 1e-9)
    }

    /// Returns the interval in which nothing should be fetched, so that the next phase finds the
    /// file system quiet: from the time that nodes take to stop before its expected start until as
    /// long after it, and no longer, as the phase may not come. `None` if nodes stop immediately,
    /// or no phase is expected.
    pub fn rest_before_phase(&self) -> Option<(Nanos, Nanos)> {
        let reaction_ns = (self.config.reaction_s * 1e9) as u64;
        let coming = self.hpc.values().filter_map(|h| h.next_at).filter(|at| *at + reaction_ns > self.now);
        let at = coming.min().filter(|_| reaction_ns > 0)?;
        Some((Nanos(at.0.saturating_sub(reaction_ns)).max(self.now), at + reaction_ns))
    }

    /// Returns the strain of `setting`, as corrected by observations.
    pub fn strain(&self, setting: Setting) -> Strain {
        self.corrected(self.config.profile.strain(setting))
    }

    /// Returns `strain` as corrected by observations; its harm to phases on the cautious side,
    /// since promises depend on it.
    pub fn corrected(&self, mut strain: Strain) -> Strain {
        if let Some(c) = &self.excess_correction {
            strain.i_hpc = 1.0 + (strain.i_hpc - 1.0) * c.cautious();
        }
        strain.speed_bytes_per_s *= self.speed_factor();
        strain
    }

    fn speed_factor(&self) -> f64 {
        self.guess_factor * self.speed_correction.as_ref().map_or(1.0, Correction::factor)
    }

    /// Returns the bandwidth of the file system for all prefetches together, as corrected: what
    /// makes one prefetch slower than its profile makes all of them slower.
    pub fn pfs_bytes_per_s(&self) -> f64 {
        self.config.pfs_bytes_per_s * self.speed_factor()
    }

    /// Returns the factors that scale the profile: of the excess I_hpc - 1 (cautiously), and of the
    /// speed.
    pub fn corrections(&self) -> (f64, f64) {
        let excess = self.excess_correction.as_ref().map_or(1.0, Correction::cautious);
        (excess, self.speed_factor())
    }

    /// Returns the HPC jobs as a forecast sees them, with their ids.
    pub fn chains(&self) -> Vec<(HpcId, Chain)> {
        self.hpc.iter().map(|(&id, h)| (id, self.chain(h))).collect()
    }

    fn chain(&self, h: &Hpc) -> Chain {
        let to_s = |ns: u64| ns as f64 * 1e-9;
        let io_s = to_s(h.io_ns);
        let mut chain = Chain {
            in_phase: false,
            left_s: h.next_at.map_or(f64::INFINITY, |at| to_s(at.saturating_since(self.now))),
            deadline_s: 0.0,
            io_s,
            compute_s: to_s(h.compute_ns),
            allowance: h.allowance,
            phases_after: h.phases_left.saturating_sub(1),
            weight: h.weight,
            turn: Turn {
                set: bandwidth::set_of(h.io_ns.saturating_add(h.compute_ns)),
                arrival: self.arrivals,
            },
        };
        if let Some(phase) = &h.phase {
            chain.in_phase = true;
            chain.turn.arrival = phase.arrival;
            // A phase that lasts longer than the model predicts is assumed to end soon.
            chain.left_s = if phase.left_s > 0.0 { phase.left_s } else { phase.alone_s * 1e-3 };
            chain.deadline_s = (phase.deadline.0 as f64 - self.now.0 as f64) * 1e-9;
            chain.phases_after = h.phases_left;
        }
        chain
    }

    /// Returns the prefetches of other jobs than `job` that are moving.
    pub fn others(&self, job: JobId) -> Vec<Strain> {
        let others = self.jobs.iter().filter(|(id, _)| **id != job);
        others.filter_map(|(_, j)| j.fetch).map(|f| f.strain).filter(|s| s.speed_bytes_per_s > 0.0).collect()
    }

    /// Returns the memory of the tier, in bytes.
    pub fn ram_bytes(&self) -> f64 {
        self.ram_bytes as f64
    }

    /// Returns the time until the compute under way of `job` is over, in ns; 0 if it waits.
    pub fn busy_ns(&self, job: JobId) -> u64 {
        self.job(job).computing_until.map_or(0, |at| at.saturating_since(self.now))
    }

    /// Returns the seconds of compute that hide a prefetch for `job`: until it has nothing left to
    /// do.
    pub fn hidden_s(&self, job: JobId) -> f64 {
        let j = self.job(job);
        let current_ns = j.computing_until.map_or(0, |at| at.saturating_since(self.now));
        (current_ns as f64 + f64::from(j.buffered()) * j.compute_ns as f64) * 1e-9
    }

    /// Returns the bytes of `wave` that are still to be fetched.
    pub fn left_bytes(&self, job: JobId, wave: u32) -> f64 {
        let j = self.job(job);
        let whole = j.wave_bytes as f64;
        // As with phases: what lasts longer than the model predicts is assumed to end soon. So is
        // what was paused with nothing left but rounding: a plan that fetches less than a byte
        // would not be one, and the wave would never be reported as fetched.
        let left = j.part(wave).left_bytes;
        if left > LEAST_BYTES { left } else { (whole * 1e-3).max(2.0 * LEAST_BYTES) }
    }

    /// Returns the bytes that `job` may fetch beside those in the tier now, if the other jobs keep
    /// what they are entitled to once it has its next wave.
    pub fn room_bytes(&self, job: JobId) -> f64 {
        let j = self.job(job);
        let reserved = if j.first_missing() > j.started { self.entitled_bytes_of_others(job) } else { 0.0 };
        (self.ram_bytes as f64 - self.used_bytes() + j.coming_bytes() - reserved).max(0.0)
    }

    fn used_bytes(&self) -> f64 {
        self.jobs.values().map(|j| j.tier_bytes() + j.coming_bytes()).sum()
    }

    /// Returns the first missing wave of `job`, if it may be fetched now at this prefetch distance
    /// and memory allows.
    pub fn next_wave(&self, job: JobId, prefetch_distance: PrefetchDistance) -> Option<u32> {
        let j = self.job(job);
        let wave = j.first_missing();
        if wave >= j.waves {
            return None;
        }
        // A planner that manages memory itself may fetch a part, for a job that is alone.
        let by_parts = self.by_parts(prefetch_distance);
        let is_kept = j.fetch.is_some_and(|f| f.wave == wave) || (by_parts && j.part(wave).in_tier);
        if is_kept || self.must_be_read_directly(job, wave) {
            return Some(wave);
        }
        let near_enough = match prefetch_distance {
            PrefetchDistance::OnDemand => j.computing_until.is_none() && wave == j.started,
            PrefetchDistance::Waves(ahead) => wave < j.started + ahead,
            PrefetchDistance::Memory => true,
        };
        let least = if by_parts { LEAST_PART * j.wave_bytes as f64 } else { f64::INFINITY };
        let fits = prefetch_distance == PrefetchDistance::OnDemand || self.fits(job, wave, least);
        (near_enough && fits).then_some(wave)
    }

    fn by_parts(&self, prefetch_distance: PrefetchDistance) -> bool {
        prefetch_distance == PrefetchDistance::Memory && self.jobs.len() == 1
    }

    /// Returns whether what is missing of `wave`, but no more than `most_bytes`, fits into memory.
    fn fits(&self, job: JobId, wave: u32, most_bytes: f64) -> bool {
        let j = self.job(job);
        // A job that fetches more than one wave ahead leaves the room that the others need to
        // continue.
        let reserved = if wave > j.started { self.entitled_bytes_of_others(job) } else { 0.0 };
        let needed = j.part(wave).left_bytes.clamp(0.0, most_bytes);
        // Fetching it ends the fetch under way of another wave, which needs no more room then.
        let used = self.used_bytes() - j.coming_bytes();
        used + reserved + needed <= self.ram_bytes as f64 + ROUNDING_BYTES
    }

    /// Returns whether memory is kept for `wave`, or there is room for what is missing of it. A
    /// planner that fetches parts is assumed to have ensured it.
    pub fn has_room(&self, job: JobId, wave: u32, prefetch_distance: PrefetchDistance) -> bool {
        let kept = self.job(job).fetch.is_some_and(|f| f.wave == wave && !f.direct);
        kept || self.by_parts(prefetch_distance) || self.fits(job, wave, f64::INFINITY)
    }

    /// Returns whether tasks wait for `wave`, a part of which was lost with a node, and memory has
    /// no room left for that part. It cannot wait for room: what takes the room may be waves that
    /// wait in the same way.
    pub fn must_be_read_directly(&self, job: JobId, wave: u32) -> bool {
        let (j, part) = (self.job(job), self.job(job).part(wave));
        // A wave that never fits into memory cannot wait either.
        let fits_never = part.left_bytes > self.ram_bytes as f64;
        let damaged = (part.damaged || fits_never) && j.fetch.is_none_or(|f| f.wave != wave || f.direct);
        damaged && j.waits() && self.used_bytes() + part.left_bytes > self.ram_bytes as f64 + ROUNDING_BYTES
    }

    /// Every job is entitled to two waves, one in compute and the next; returns what the others
    /// have not taken of this.
    fn entitled_bytes_of_others(&self, job: JobId) -> f64 {
        let missing = |j: &Job| {
            let entitled = f64::from(2.min(j.waves - j.finished())) * j.wave_bytes as f64;
            (entitled - j.tier_bytes() - j.coming_bytes()).max(0.0)
        };
        self.jobs.iter().filter(|(id, _)| **id != job).map(|(_, j)| missing(j)).sum()
    }

    /// Notes that `wave` of `job` is fetched with `strain` from now on, by its own tasks if
    /// `direct`.
    pub fn set_fetch(&mut self, job: JobId, wave: u32, strain: Strain, direct: bool) {
        if let Some(j) = self.jobs.get_mut(&job) {
            j.set_fetch(wave, strain, direct);
        }
    }

    /// Advances everything to `now`.
    pub fn advance(&mut self, now: Nanos) {
        let dt_s = now.saturating_since(self.now) as f64 * 1e-9;
        self.now = now;
        if dt_s <= 0.0 {
            return;
        }
        let phases = self.active_phases();
        let mut speeds = core::mem::take(&mut self.speeds);
        let strains: Vec<Strain> = self.jobs.values().filter_map(|j| j.fetch).map(|f| f.strain).collect();
        let excess = sharing::load(phases, &strains, self.pfs_bytes_per_s(), &mut speeds);
        let chains: Vec<Chain> = self.hpc.values().map(|h| self.chain(h)).collect();
        let mut stretches = Vec::with_capacity(chains.len());
        self.config.division.stretches(&chains, &mut stretches);
        for (h, stretch) in self.hpc.values_mut().zip(stretches) {
            if let Some(phase) = h.phase.as_mut() {
                let alone = 1.0 / stretch;
                phase.left_s -= dt_s * alone / (1.0 + excess);
                phase.lost_s += dt_s * alone * (1.0 - 1.0 / (1.0 + excess));
                phase.beside_s += if excess > 0.0 { dt_s * alone } else { 0.0 };
            }
        }
        let fetching = self.jobs.values_mut().filter(|j| j.fetch.is_some());
        for (job, speed) in fetching.zip(&speeds) {
            job.advance(dt_s * speed);
        }
        self.speeds = speeds;
    }

    /// Applies an event of the present moment.
    pub fn apply(&mut self, event: &Event) {
        match *event {
            Event::HpcJoins { hpc, io_ns, compute_ns, phases, allowance, weight, first_in_ns } => {
                let next_at = (phases > 0).then(|| self.now + first_in_ns);
                let joined =
                    Hpc { io_ns, compute_ns, allowance, weight, phases_left: phases, next_at, phase: None };
                self.hpc.insert(hpc, joined);
            }
            Event::PhaseBegins { hpc, alone_ns, deadline } => self.phase_begins(hpc, alone_ns, deadline),
            Event::PhaseLeft { hpc, left_ns } => {
                if let Some(phase) = self.hpc.get_mut(&hpc).and_then(|h| h.phase.as_mut()) {
                    // Never less than by the model: what prefetches have cost the phase is spent.
                    // Progress comes in steps, and a planner that believed each of them would spend
                    // the same slack again and again.
                    let left_s = (left_ns as f64 * 1e-9).max(phase.left_s - phase.reported_s);
                    phase.reported_s += left_s - phase.left_s;
                    phase.left_s = left_s;
                }
            }
            Event::HpcExpects { hpc, io_ns, compute_ns, phases, next_in_ns } => {
                let now = self.now;
                if let Some(h) = self.hpc.get_mut(&hpc).filter(|h| h.phase.is_none()) {
                    (h.io_ns, h.compute_ns, h.phases_left) = (io_ns, compute_ns, phases);
                    h.next_at = (phases > 0).then(|| now + next_in_ns);
                }
            }
            Event::PhaseEnds { hpc } => self.phase_ends(hpc),
            Event::HpcLeaves { hpc } => {
                self.hpc.remove(&hpc);
            }
            Event::JobJoins { job, waves, wave_bytes, compute_ns, tier_read_ns, computing_ns } => {
                let joined = Job {
                    waves,
                    wave_bytes,
                    compute_ns,
                    tier_read_ns,
                    started: 0,
                    computing_until: computing_ns.map(|ns| self.now + ns),
                    fetch: None,
                    parts: BTreeMap::new(),
                };
                self.jobs.insert(job, joined);
            }
            Event::WaveStarts { job, wave, compute_ns } => {
                let now = self.now;
                if let Some(j) = self.jobs.get_mut(&job) {
                    j.started = wave + 1;
                    j.computing_until = Some(now + compute_ns);
                    j.forget_before(wave);
                }
            }
            Event::WaveWanted { job, .. } => {
                if let Some(j) = self.jobs.get_mut(&job) {
                    j.computing_until = None;
                    j.forget_before(j.started);
                }
            }
            Event::Fetched { job, wave, resident_bytes } => self.fetched(job, wave, resident_bytes),
            Event::FetchedAhead { job, ref waves } => {
                if let Some(j) = self.jobs.get_mut(&job) {
                    j.fetched_ahead(waves);
                }
            }
            Event::JobLeaves { job } => {
                self.jobs.remove(&job);
            }
            Event::Memory { bytes } => self.ram_bytes = bytes,
            Event::Speed { bytes_per_s } => self.speed_is_known(bytes_per_s),
            Event::Lost { job, ref waves } => {
                if let Some(j) = self.jobs.get_mut(&job) {
                    j.lost(waves);
                }
            }
        }
    }

    fn phase_begins(&mut self, hpc: HpcId, alone_ns: u64, deadline: Nanos) {
        if let Some(h) = self.hpc.get_mut(&hpc) {
            let alone_s = alone_ns as f64 * 1e-9;
            self.arrivals += 1;
            h.phase = Some(Phase {
                arrival: self.arrivals,
                deadline,
                alone_s,
                left_s: alone_s,
                lost_s: 0.0,
                beside_s: 0.0,
                reported_s: 0.0,
            });
            h.phases_left = h.phases_left.saturating_sub(1);
            h.next_at = None;
        }
    }

    fn phase_ends(&mut self, hpc: HpcId) {
        let Some(h) = self.hpc.get_mut(&hpc) else { return };
        h.next_at = (h.phases_left > 0).then(|| self.now + h.compute_ns);
        let Some(phase) = h.phase.take() else { return };
        // It lost `lost_s` by the model; in truth it lost less by what the model still had left of
        // it, or more if the model was already beyond its end.
        let enough = phase.lost_s > 0.01 * phase.alone_s;
        let before = self.corrections();
        if let (true, Some(c)) = (enough, self.excess_correction.as_mut()) {
            let left_by_model_s = phase.left_s - phase.reported_s;
            let truly_lost_s = (phase.lost_s - left_by_model_s).max(0.0);
            // Beside prefetches, seconds lost to seconds left are the mean excess I - 1.
            let excess = |lost_s: f64| lost_s / (phase.beside_s - lost_s).max(f64::MIN_POSITIVE);
            // A phase that lost nothing is an observation too: the least possible.
            c.observe(excess(phase.lost_s) / c.cautious(), excess(truly_lost_s.max(LEAST_LOSS_S)));
        }
        self.correct_fetches(before);
    }

    /// Replaces the guessed speed of the profile by the one that prefetches have shown.
    fn speed_is_known(&mut self, bytes_per_s: f64) {
        let before = self.corrections();
        self.guess_factor = bytes_per_s / self.config.pfs_bytes_per_s;
        self.correct_fetches(before);
    }

    /// Applies the difference from the corrections `before`: what is fetched continues as corrected
    /// now, and what it has moved up to now it moved at the corrected speed.
    fn correct_fetches(&mut self, before: (f64, f64)) {
        let now = self.corrections();
        if now != before {
            let (excess, speed) = (now.0 / before.0, now.1 / before.1);
            self.jobs.values_mut().for_each(|job| job.correct_fetch(excess, speed));
        }
    }

    fn fetched(&mut self, job: JobId, wave: u32, resident_bytes: u64) {
        let Some(j) = self.jobs.get_mut(&job) else { return };
        let Some(by_the_model) = j.fetched(wave) else { return };
        let wave_bytes = j.wave_bytes;
        let before = self.corrections();
        if let Some(c) = self.speed_correction.as_mut() {
            c.observe(by_the_model / c.factor(), wave_bytes.saturating_sub(resident_bytes) as f64);
        }
        self.correct_fetches(before);
    }
}
