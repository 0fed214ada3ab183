//! Plans for several Big Data jobs together.
//!
//! At every event the planner simulates each [`Order`] of service ([`super::together`]). The one
//! with the least sum of ends divides the PFS and what the phases can bear ([`super::share`]) until
//! the next event. The exact forecast over all HPC jobs determines what the phases under way can
//! bear.
//!
//! *Due.* While a job wants anything, it is due [`DUE`] of an even share of all bytes that move. A
//! job that has fallen more than a wave behind its due is served first, whatever the order. So a
//! stream of short jobs does not starve a long one.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use forebay_model::forecast::{Chain, Division, Forecaster, Step};
use forebay_model::profile::{Setting, Strain};

use super::super::eley::MARGIN_S;
use super::super::plan::{ActionKind, Estimate, Plan, PlannedStep};
use super::super::{Board, JobId, PrefetchDistance};
use super::course::SAME_S;
use super::hull::Point;
use super::hull::speed_at;
use super::say::{kind_of, waits};
use super::share::{Curve, Grant, ORDERS, Order};
use super::stock;
use super::together::{Member, Playing, World};
use crate::machine::Nanos;

/// The part of an even share that is due to every job.
pub(super) const DUE: f64 = 0.5;

/// Halvings of the interval in which the excess that phases can bear is sought.
const HALVINGS: u32 = 16;

/// A prefetch that is held to less of its own speed pauses.
const LEAST_RATE: f64 = 0.01;

/// The plans of several jobs until the next event.
pub(super) struct Joint {
    plans: BTreeMap<JobId, Plan>,
    /// Bytes by which each job has fallen behind its due.
    owed: BTreeMap<JobId, f64>,
    /// What was last granted, and when.
    granted: Vec<(JobId, bool, f64)>,
    at: Nanos,
    /// The order in force.
    order: Option<Order>,
    playing: Playing,
    forecaster: Forecaster,
}

/// The settings worth using between phases, and beside those under way.
pub(super) struct Settings<'a> {
    pub(super) fastest: Point,
    pub(super) beside_one: &'a [Point],
    pub(super) beside: &'a [Point],
    pub(super) curves: Vec<Curve>,
}

/// The excess that a point on the hull causes.
fn excess(point: &Point) -> f64 {
    point.cost / (1.0 - point.cost)
}

impl Curve {
    /// The curve of a hull.
    pub(super) fn of(hull: &[Point]) -> Self {
        Curve { points: hull.iter().map(|p| (excess(p), p.speed)).collect() }
    }
}

impl Joint {
    /// Creates a plan of no jobs, beside phases that divide the file system by `division`.
    pub(super) fn new(division: Division) -> Self {
        Joint {
            plans: BTreeMap::new(),
            owed: BTreeMap::new(),
            granted: Vec::new(),
            at: Nanos(0),
            order: None,
            playing: Playing::default(),
            forecaster: Forecaster::dividing_by(division),
        }
    }

    /// Forgets all jobs.
    pub(super) fn clear(&mut self) {
        self.plans.clear();
        self.owed.clear();
        self.granted.clear();
        self.order = None;
    }

    /// Returns the plan for `job`, which was made with those of all others.
    pub(super) fn plan(&self, board: &Board, job: JobId) -> Plan {
        self.plans.get(&job).cloned().unwrap_or_else(|| {
            waits(board, "it has no room for its next wave, or no need of it for long".into())
        })
    }

    /// Makes plans for all jobs on the board.
    pub(super) fn prepare(&mut self, board: &Board, settings: &Settings<'_>) {
        self.account(board);
        let ids: Vec<JobId> = board.jobs().map(|(id, _)| id).collect();
        let world = self.world(board, &ids, settings);
        let phases = board.active_phases();
        let wants = |(&id, m): (&JobId, &Member)| {
            board.next_wave(id, PrefetchDistance::Memory).is_some() && (m.is_begun || !m.is_stocked())
        };
        let wanting: Vec<bool> = ids.iter().zip(&world.members).map(wants).collect();
        let most = settings.beside.last().map_or(0.0, excess) * ids.len() as f64;
        let bearable = if phases > 0 { self.bearable(board, most) } else { 0.0 };
        let (order, grants, candidates) = self.best(&world, phases, bearable, &wanting);
        self.order = Some(order);
        self.granted = (0..ids.len()).map(|i| (ids[i], wanting[i], grants[i].speed)).collect();
        self.plans.clear();
        if phases == 0 {
            for (i, &id) in ids.iter().enumerate().filter(|(i, _)| wanting[*i]) {
                self.plans.insert(id, in_gap(board, id, settings.fastest, grants[i], candidates));
            }
        } else {
            self.beside_phases(board, &ids, &wanting, &grants, (settings.beside, bearable), candidates);
        }
    }

    /// Enters what was granted since the last time into the accounts.
    fn account(&mut self, board: &Board) {
        let dt_s = board.now().saturating_since(self.at) as f64 * 1e-9;
        self.at = board.now();
        self.owed.retain(|id, _| board.jobs().any(|(other, _)| other == *id));
        let total: f64 = self.granted.iter().map(|g| g.2).sum();
        let wanting = self.granted.iter().filter(|g| g.1).count();
        for &(id, _, speed) in self.granted.iter().filter(|g| g.1) {
            let owed = self.owed.entry(id).or_insert(0.0);
            // What it got while no other job wanted any is not a debt.
            *owed = (*owed + (DUE * total / wanting as f64 - speed) * dt_s).max(0.0);
        }
    }

    fn world(&self, board: &Board, ids: &[JobId], settings: &Settings<'_>) -> World {
        let direct = board.corrected(board.config.direct.strain()).speed_bytes_per_s;
        World {
            members: ids.iter().map(|&id| self.member(board, id, settings)).collect(),
            chains: board.chains().into_iter().map(|(_, chain)| chain).collect(),
            division: board.config.division,
            pfs_speed: board.pfs_bytes_per_s(),
            ram_bytes: board.ram_bytes(),
            gap_speed: settings.fastest.speed,
            direct_speed: direct.min(board.pfs_bytes_per_s()),
            curves: settings.curves.clone(),
        }
    }

    fn member(&self, board: &Board, id: JobId, settings: &Settings<'_>) -> Member {
        let j = board.job(id);
        let (first, busy_ns) = (j.first_missing(), board.busy_ns(id));
        let part = j.part(first);
        let is_missing = first < j.waves;
        Member {
            wave_bytes: j.wave_bytes as f64,
            compute_s: j.compute_ns.saturating_sub(j.tier_read_ns) as f64 * 1e-9,
            read_s: j.tier_read_ns as f64 * 1e-9,
            waves: j.waves - j.started,
            there: j.buffered(),
            left_bytes: if is_missing { board.left_bytes(id, first) } else { 0.0 },
            direct_bytes: part.direct_bytes,
            is_begun: part.in_tier && is_missing,
            busy_s: busy_ns as f64 * 1e-9,
            computing_bytes: if busy_ns > 0 {
                j.part(j.started.wrapping_sub(1)).tier_bytes(j.wave_bytes)
            } else {
                0.0
            },
            owed_bytes: self.owed.get(&id).copied().unwrap_or(0.0),
            stock_s: stock::enough_s(board, id, settings.fastest.speed, |c| speed_at(settings.beside_one, c)),
        }
    }

    /// Returns the greatest excess, up to `most`, that the phases under way can bear to their ends
    /// without being late; none if one is late anyway.
    fn bearable(&mut self, board: &Board, most: f64) -> f64 {
        let chains: Vec<Chain> = board.chains().into_iter().map(|(_, c)| c).collect();
        let mut is_borne = |excess: f64| self.late_s(&chains, &[(f64::INFINITY, excess)]) <= -2.0 * MARGIN_S;
        if !is_borne(0.0) {
            return 0.0;
        }
        if is_borne(most) {
            return most;
        }
        let (mut low, mut high) = (0.0, most);
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if is_borne(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Returns how late phases under way get if prefetches cause these excesses for these times.
    fn late_s(&mut self, chains: &[Chain], excesses: &[(f64, f64)]) -> f64 {
        let step = |&(for_s, excess): &(f64, f64)| {
            let strain = Strain { speed_bytes_per_s: 1.0, rate: 1.0, i_hpc: 1.0 + excess, i_bd: 1.0 };
            Step { for_s, strain, yields: false }
        };
        let steps: Vec<Step> = excesses.iter().map(step).collect();
        self.forecaster.run_present(chains, &[], &steps, f64::INFINITY, f64::INFINITY).late_s
    }

    /// Returns the best order and what it grants. The one in force goes first, so that another has
    /// to be better.
    fn best(
        &mut self,
        world: &World,
        phases: usize,
        bearable: f64,
        wanting: &[bool],
    ) -> (Order, Vec<Grant>, u32) {
        let mut all = ORDERS;
        all.sort_by_key(|order| Some(*order) != self.order);
        let grants = all.map(|order| world.grants(order, phases, bearable, wanting, &mut self.playing));
        let (mut best, mut seen) = (0, 1);
        if grants.iter().any(|g| *g != grants[0]) {
            let mut best_s = f64::INFINITY;
            for (at, &order) in all.iter().enumerate() {
                let sum_s = world.play(order, DUE, best_s, &mut self.playing);
                seen += 1;
                if sum_s < best_s - SAME_S {
                    (best, best_s) = (at, sum_s);
                }
            }
        }
        (all[best], grants[best].clone(), seen)
    }

    /// Assigns settings for what was granted beside phases. Each job gets the last point of the
    /// hull within its grant and what those before it have left over; the first that can use it
    /// continues at the next point for as long as the rest allows.
    fn beside_phases(
        &mut self,
        board: &Board,
        ids: &[JobId],
        wanting: &[bool],
        grants: &[Grant],
        (hull, bearable): (&[Point], f64),
        candidates: u32,
    ) {
        let mut left = 0.0;
        let mut chosen: Vec<(JobId, usize)> = Vec::new();
        for (i, &id) in ids.iter().enumerate().filter(|(i, _)| wanting[*i]) {
            left += grants[i].excess;
            let limit = if grants[i].excess > 0.0 { left * (1.0 + 1e-9) } else { 0.0 };
            let at = hull.partition_point(|p| excess(p) <= limit).max(1) - 1;
            left = (left - excess(&hull[at])).max(0.0);
            chosen.push((id, at));
        }
        let total: f64 = chosen.iter().map(|c| excess(&hull[c.1])).sum();
        let granted =
            |id: JobId| ids.iter().position(|other| *other == id).is_some_and(|i| grants[i].excess > 0.0);
        let more = chosen.iter().position(|&(id, at)| at + 1 < hull.len() && granted(id));
        let more = more
            .and_then(|i| self.stepped(board, hull, chosen[i].1, (total, bearable)).map(|for_s| (i, for_s)));
        for (i, &(id, at)) in chosen.iter().enumerate() {
            let first = more.filter(|m| m.0 == i).map(|(_, for_s)| (hull[at + 1].setting, for_s));
            self.plans.insert(id, beside(board, id, hull[at], first, bearable, candidates));
        }
    }

    /// Returns for how long one job may use the point after `at` if all together cause `total` and
    /// phases can bear `bearable`.
    fn stepped(
        &mut self,
        board: &Board,
        hull: &[Point],
        at: usize,
        (total, bearable): (f64, f64),
    ) -> Option<f64> {
        let chains: Vec<Chain> = board.chains().into_iter().map(|(_, c)| c).collect();
        let ends = chains.iter().filter(|c| c.in_phase).map(|c| c.deadline_s);
        let end_s = ends.fold(f64::INFINITY, f64::min);
        let step = excess(&hull[at + 1]) - excess(&hull[at]);
        let for_s = end_s * ((bearable - total) / step).min(1.0);
        let excesses = [(for_s, total + step), (f64::INFINITY, total)];
        (for_s > SAME_S && self.late_s(&chains, &excesses) <= -2.0 * MARGIN_S).then_some(for_s)
    }
}

/// The plan between phases: at the granted speed.
fn in_gap(board: &Board, job: JobId, fastest: Point, grant: Grant, candidates: u32) -> Plan {
    let in_s = board.left_bytes(job, board.job(job).first_missing()) / grant.speed;
    if grant.direct {
        let estimate = Estimate { fetched_in_s: Some(in_s), cost_s: Some(in_s), margin_s: None };
        let reason =
            "tasks wait, no phase is under way, and the file system has room for their own reads".into();
        return Plan { kind: ActionKind::Direct, skips: 0, steps: Vec::new(), estimate, candidates, reason };
    }
    let rate = (grant.speed / fastest.speed).min(1.0);
    if rate < LEAST_RATE {
        return waits(board, "other jobs use all of the file system, and their bytes help sooner".into());
    }
    let setting = Setting { rate: fastest.setting.rate * rate, ..fastest.setting };
    Plan {
        kind: kind_of(board, setting, 0.0),
        skips: 0,
        steps: [PlannedStep { at: board.now(), setting, yields: false }].to_vec(),
        estimate: Estimate {
            fetched_in_s: Some(in_s),
            cost_s: Some((in_s - board.hidden_s(job)).max(0.0)),
            margin_s: None,
        },
        candidates,
        reason: alloc::format!(
            "no phase is under way: {:.0} % of the fastest setting beside the other jobs",
            100.0 * rate
        ),
    }
}

/// The plan beside phases: at `point`, after `first` for its time.
fn beside(
    board: &Board,
    job: JobId,
    point: Point,
    first: Option<(Setting, f64)>,
    bearable: f64,
    candidates: u32,
) -> Plan {
    let now = board.now();
    let step = |at, setting| PlannedStep { at, setting, yields: false };
    let mut steps = Vec::new();
    if let Some((setting, for_s)) = first {
        steps.push(step(now, setting));
        steps.push(step(now + (for_s * 1e9) as u64, point.setting));
    } else {
        steps.push(step(now, point.setting));
    }
    let main = first.map_or(point.setting, |(setting, _)| setting);
    let in_s = board.left_bytes(job, board.job(job).first_missing()) / point.speed;
    Plan {
        kind: kind_of(board, main, 0.0),
        skips: 0,
        steps,
        estimate: Estimate {
            fetched_in_s: in_s.is_finite().then_some(in_s),
            cost_s: in_s.is_finite().then(|| (in_s - board.hidden_s(job)).max(0.0)),
            margin_s: None,
        },
        candidates,
        reason: alloc::format!(
            "its share of the {:.1} % by which all prefetches together may stretch the phases",
            100.0 * bearable
        ),
    }
}
