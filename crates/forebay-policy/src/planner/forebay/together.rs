//! Simulates several Big Data jobs together, beside all HPC jobs.
//!
//! As in [`super::rollout`], a simulation goes from change to change by the planner's own rules.
//! The rollout follows a single job, with waves in any order. This one follows all jobs, each with
//! its waves in order, and judges an [`Order`] of service by the sum of the ends of all jobs.

use alloc::vec::Vec;

use forebay_model::forecast::{Chain, Division};

use super::share::{Curve, Grant, Order, Scarce, Want, divide};

/// Steps after which a simulation is judged by what is left then.
const MAX_STEPS: usize = 600;

/// Bytes below which a wave counts as fetched.
const SAME_BYTES: f64 = 1.0;

/// Seconds that count as zero: rounding must not make a step of its own.
const SAME_TIME_S: f64 = 1e-9;

/// A Big Data job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) wave_bytes: f64,
    /// Compute of a wave that was read directly, and what reading one from the tier adds.
    pub(super) compute_s: f64,
    pub(super) read_s: f64,
    /// Waves that have not begun to compute, and how many of them, from the first on, are fetched.
    pub(super) waves: u32,
    pub(super) there: u32,
    /// The first missing wave: its missing bytes, the bytes read directly, and whether memory is
    /// kept for it.
    pub(super) left_bytes: f64,
    pub(super) direct_bytes: f64,
    pub(super) is_begun: bool,
    /// When the compute under way ends, in seconds; 0 if tasks wait.
    pub(super) busy_s: f64,
    /// Bytes of the wave in compute in the tier.
    pub(super) computing_bytes: f64,
    /// Bytes by which it has fallen behind its due.
    pub(super) owed_bytes: f64,
    /// With this much compute in hand it begins no further wave; see [`super::stock`].
    pub(super) stock_s: f64,
}

impl Member {
    fn missing(&self) -> u32 {
        self.waves - self.there
    }

    fn is_over(&self) -> bool {
        self.waves == 0 && self.busy_s <= 0.0
    }

    fn tier_bytes(&self) -> f64 {
        let begun = if self.is_begun { self.wave_bytes - self.direct_bytes } else { 0.0 };
        self.computing_bytes + f64::from(self.there) * self.wave_bytes + begun
    }

    /// Returns the bytes that it is entitled to, one wave in compute and the next, and has not
    /// taken.
    fn untaken_bytes(&self) -> f64 {
        let waves = self.waves + u32::from(self.busy_s > 0.0);
        (f64::from(waves.min(2)) * self.wave_bytes - self.tier_bytes()).max(0.0)
    }

    /// Returns the seconds until it has nothing to compute.
    fn hidden_s(&self) -> f64 {
        self.busy_s + f64::from(self.there) * (self.compute_s + self.read_s)
    }

    /// Returns whether its stock keeps it busy long enough to begin no further wave.
    pub(super) fn is_stocked(&self) -> bool {
        self.there > 0 && self.hidden_s() >= self.stock_s
    }

    /// Returns the seconds of compute that are left.
    fn compute_left_s(&self) -> f64 {
        self.busy_s + f64::from(self.waves) * (self.compute_s + self.read_s)
    }

    fn bytes_left(&self) -> f64 {
        match self.missing() {
            0 => 0.0,
            n => self.left_bytes + f64::from(n - 1) * self.wave_bytes,
        }
    }

    /// Returns its priority: smaller keys go first.
    fn key(&self, order: Order, gap_speed: f64) -> f64 {
        match order {
            Order::Soonest => self.hidden_s().max(self.left_bytes / gap_speed),
            Order::Short => {
                // Far behind all that have no wave in hand.
                let stock = if self.there > 0 { 1e12 } else { 0.0 };
                stock + self.compute_left_s().max(self.bytes_left() / gap_speed)
            }
        }
    }

    /// Returns the speed of direct reads if tasks wait and begin sooner by them than through the
    /// tier.
    fn direct_speed(&self, direct_speed: f64, gap_speed: f64) -> f64 {
        let saved_s = self.read_s * self.left_bytes / self.wave_bytes;
        let waits = self.busy_s <= 0.0 && self.there == 0;
        let pays = self.left_bytes / direct_speed < self.left_bytes / gap_speed + saved_s;
        if waits && pays { direct_speed } else { 0.0 }
    }

    /// Begins to compute a fetched wave, if nothing computes.
    fn begin(&mut self) {
        if self.busy_s > 0.0 || self.there == 0 {
            return;
        }
        let direct = core::mem::take(&mut self.direct_bytes).min(self.wave_bytes);
        self.busy_s = self.compute_s + self.read_s * (1.0 - direct / self.wave_bytes);
        self.computing_bytes = self.wave_bytes - direct;
        self.there -= 1;
        self.waves -= 1;
    }

    fn advance(&mut self, dt_s: f64, grant: Grant) {
        if self.busy_s > 0.0 {
            self.busy_s = if self.busy_s - dt_s <= SAME_TIME_S { 0.0 } else { self.busy_s - dt_s };
            if self.busy_s == 0.0 {
                self.computing_bytes = 0.0;
            }
        }
        if grant.speed > 0.0 {
            let bytes = grant.speed * dt_s;
            self.left_bytes -= bytes;
            if grant.direct {
                self.direct_bytes += bytes;
            } else {
                self.is_begun = true;
            }
            if self.left_bytes <= SAME_BYTES {
                self.there += 1;
                self.is_begun = false;
                self.left_bytes = if self.missing() > 0 { self.wave_bytes } else { 0.0 };
            }
        }
        self.begin();
    }
}

/// Everything that a simulation starts from.
pub(super) struct World {
    pub(super) members: Vec<Member>,
    pub(super) chains: Vec<Chain>,
    pub(super) division: Division,
    pub(super) pfs_speed: f64,
    pub(super) ram_bytes: f64,
    pub(super) gap_speed: f64,
    pub(super) direct_speed: f64,
    /// The speed of prefetches over their excess beside one phase, two, and so on; for more, the
    /// last.
    pub(super) curves: Vec<Curve>,
}

/// Buffers of a simulation, kept between simulations.
#[derive(Default)]
pub(super) struct Playing {
    members: Vec<Member>,
    chains: Vec<Chain>,
    wants: Vec<Want>,
    grants: Vec<Grant>,
    stretches: Vec<f64>,
}

impl World {
    /// Returns the excess that phases under way can bear to their ends, by what is known of the
    /// next ones.
    fn bearable(&self, chains: &[Chain], now_s: f64) -> f64 {
        let bears = |(c, mut end_s): (&Chain, f64)| {
            for other in chains.iter().filter(|o| !o.in_phase) {
                let beside_s = (end_s - other.left_s) * other.weight / c.weight;
                end_s += beside_s.clamp(0.0, other.io_s);
            }
            (c.deadline_s - now_s) / end_s - 1.0
        };
        self.division.ends_s(chains).map(bears).fold(f64::INFINITY, f64::min).max(0.0)
    }

    fn curve(&self, phases: usize) -> &Curve {
        &self.curves[phases.clamp(1, self.curves.len()) - 1]
    }

    /// Collects what `members` want into `wants`.
    fn wants(&self, members: &[Member], order: Order, wants: &mut Vec<Want>) {
        let used: f64 = members.iter().map(Member::tier_bytes).sum();
        let untaken: f64 = members.iter().map(Member::untaken_bytes).sum();
        wants.clear();
        for (job, member) in members.iter().enumerate().filter(|(_, m)| m.missing() > 0) {
            let reserved = if member.there > 0 { untaken - member.untaken_bytes() } else { 0.0 };
            let has_room = used + reserved + member.left_bytes <= self.ram_bytes + SAME_BYTES;
            if !member.is_begun && (!has_room || member.is_stocked()) {
                continue;
            }
            wants.push(self.want(job, member, order));
        }
    }

    fn want(&self, job: usize, member: &Member, order: Order) -> Want {
        Want {
            job,
            is_behind: member.owed_bytes > member.wave_bytes,
            has_stock: member.there > 0,
            key: member.key(order, self.gap_speed),
            direct_speed: member.direct_speed(self.direct_speed, self.gap_speed),
        }
    }

    /// Returns what each member gets now, if phases under way bear `bearable` more.
    pub(super) fn grants(
        &self,
        order: Order,
        phases: usize,
        bearable: f64,
        wanting: &[bool],
        playing: &mut Playing,
    ) -> Vec<Grant> {
        playing.grants.clear();
        playing.grants.resize(self.members.len(), Grant::default());
        playing.wants.clear();
        let wants = self.members.iter().enumerate().filter(|(job, _)| wanting[*job]);
        playing.wants.extend(wants.map(|(job, member)| self.want(job, member, order)));
        self.divide(phases, bearable, &mut playing.wants, &mut playing.grants);
        playing.grants.clone()
    }

    fn divide(&self, phases: usize, bearable: f64, wants: &mut [Want], grants: &mut [Grant]) {
        let beside = (phases > 0).then(|| (bearable, self.curve(phases)));
        let scarce = Scarce { pfs_speed: self.pfs_speed, beside, gap_speed: self.gap_speed };
        divide(&scarce, wants, grants);
    }

    /// Returns the sum of the ends of all members, in seconds from now; infinite if it is certain
    /// to be more than `limit_s`. `due` is the part of an even share that is due to every job.
    pub(super) fn play(&self, order: Order, due: f64, limit_s: f64, playing: &mut Playing) -> f64 {
        let Playing { members, chains, wants, grants, stretches } = playing;
        members.clone_from(&self.members);
        chains.clone_from(&self.chains);
        members.iter_mut().for_each(Member::begin);
        let (mut now_s, mut sum_s, mut over) = (0.0, 0.0, members.iter().filter(|m| m.is_over()).count());
        for _ in 0..MAX_STEPS {
            if over == members.len() {
                return sum_s;
            }
            let phases = chains.iter().filter(|c| c.in_phase).count();
            let bearable = if phases > 0 { self.bearable(chains, now_s) } else { 0.0 };
            self.wants(members, order, wants);
            grants.clear();
            grants.resize(members.len(), Grant::default());
            self.divide(phases, bearable, wants, grants);
            let excess: f64 = grants.iter().map(|g| g.excess).sum();
            self.division.stretches(chains, stretches);
            let dt_s = until_change(members, grants).min(until_turn(chains, stretches, excess));
            if dt_s.is_infinite() {
                return f64::INFINITY;
            }
            now_s += dt_s;
            owe(members, wants, grants, due, dt_s);
            turn(chains, stretches, now_s, dt_s, excess);
            let mut least_s = sum_s;
            for (member, grant) in members.iter_mut().zip(grants.iter()).filter(|(m, _)| !m.is_over()) {
                member.advance(dt_s, *grant);
                if member.is_over() {
                    sum_s += now_s;
                    over += 1;
                }
                least_s += now_s + member.compute_left_s();
            }
            if least_s > limit_s {
                return f64::INFINITY;
            }
        }
        let rest = members.iter().filter(|m| !m.is_over());
        let speed = self.pfs_speed / (members.len() - over).max(1) as f64;
        sum_s + rest.map(|m| now_s + m.compute_left_s().max(m.bytes_left() / speed)).sum::<f64>()
    }
}

/// Updates what is due to each job: a part of an even share of all that moves while it wants
/// anything.
pub(super) fn owe(members: &mut [Member], wants: &[Want], grants: &[Grant], due: f64, dt_s: f64) {
    let total: f64 = grants.iter().map(|g| g.speed).sum();
    let part = due * total / wants.len().max(1) as f64;
    for want in wants {
        let owed = &mut members[want.job].owed_bytes;
        *owed = (*owed + (part - grants[want.job].speed) * dt_s).max(0.0);
    }
}

fn until_change(members: &[Member], grants: &[Grant]) -> f64 {
    let one = |(m, g): (&Member, &Grant)| {
        let fetch_s = if g.speed > 0.0 { m.left_bytes / g.speed } else { f64::INFINITY };
        let busy_s = if m.busy_s > 0.0 { m.busy_s } else { f64::INFINITY };
        fetch_s.min(busy_s)
    };
    members.iter().zip(grants).map(one).fold(f64::INFINITY, f64::min)
}

fn until_turn(chains: &[Chain], stretches: &[f64], excess: f64) -> f64 {
    let turn_s = |(c, stretch): (&Chain, &f64)| {
        if c.in_phase { c.left_s * stretch * (1.0 + excess) } else { c.left_s }
    };
    chains.iter().zip(stretches).map(turn_s).fold(f64::INFINITY, f64::min)
}

/// Advances the HPC jobs.
fn turn(chains: &mut [Chain], stretches: &[f64], now_s: f64, dt_s: f64, excess: f64) {
    let mut arrivals = chains.iter().map(|c| c.turn.arrival).max().unwrap_or(0);
    for (chain, stretch) in chains.iter_mut().zip(stretches) {
        let stretch = if chain.in_phase { stretch * (1.0 + excess) } else { 1.0 };
        if chain.left_s * stretch > dt_s + SAME_TIME_S {
            chain.left_s -= dt_s / stretch;
        } else if chain.in_phase {
            chain.in_phase = false;
            chain.left_s = if chain.phases_after > 0 { chain.compute_s } else { f64::INFINITY };
            chain.phases_after = chain.phases_after.saturating_sub(1);
        } else {
            arrivals += 1;
            chain.turn.arrival = arrivals;
            chain.in_phase = true;
            chain.left_s = chain.io_s;
            chain.deadline_s = now_s + chain.io_s * (1.0 + chain.allowance);
        }
    }
}
