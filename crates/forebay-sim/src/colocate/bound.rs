//! How short a map time could be at best: a bound that no planner can beat.

use forebay_policy::planner::SpeedCurve;

use super::{Arrivals, Setup};

/// A lower bound of the map time of job `job`, in seconds, for any planner that meets every
/// deadline.
///
/// Let the tasks have waited S seconds in all when wave k begins to compute, so that waves 0 to k
/// end at
///
/// ```text
/// E_k(S) = (k + 1) C + R max(0, k + 1 - D / W) + S,    D = d min(S, g) + d / I_bd max(0, S - g)
/// ```
///
/// with C the compute of a wave, W its bytes, d the speed of direct reads, g the time between
/// phases, and R the time to read a wave from the tier, which direct reads (at most D bytes, since
/// tasks read only while they wait, and beside a phase at d / I_bd) need not. All k + 1 waves are
/// there by E_k - C, and no more bytes than
///
/// ```text
/// B(E_k - C) + (d - v0) min(S, g),    B(t) = g(t) v0 + p(t) v(S_p(t) / p(t))
/// ```
///
/// can be. g(t) is the time between phases up to t, p(t) = t - g(t), v0 the fastest setting between
/// phases, v(c) the best mean speed of prefetching and direct reads within phases that lose the
/// share c of their time, and S_p(t) what the phases begun by t may lose in all. Between phases
/// direct reads add d - v0 to prefetching, but only while tasks wait. g is taken from phases that
/// are not stretched, which gives more time between phases than there can be (moving time from p to
/// g never lowers B, since v(c) - c v'(c) <= v0). The least S that allows all bytes gives E_k; each
/// later wave needs C and the lesser of R and W / d more; the bound is the greatest over k. Memory
/// is assumed to be unlimited. With other than one periodic HPC job, phases are ignored.
pub fn lower_bound_s(setup: &Setup, job: usize) -> f64 {
    let spec = &setup.jobs[job];
    let to_s = |ns: u64| ns as f64 * 1e-9;
    let (compute_s, read_s) = (to_s(spec.compute_ns), to_s(spec.tier_read_ns));
    let (wave_bytes, direct) = (spec.wave_bytes as f64, setup.planner.direct.speed_bytes_per_s);
    let supply = Supply::new(setup);
    let end_s = |waves: f64, stall_s: f64| {
        // The time between phases up to the latest that it can be.
        let gaps_s = supply.gaps_by(waves * (compute_s + read_s) + stall_s).0;
        let in_gaps_s = stall_s.min(gaps_s);
        let direct_bytes = direct * (in_gaps_s + (stall_s - in_gaps_s) / setup.planner.direct.i_bd);
        waves * compute_s + read_s * (waves - direct_bytes / wave_bytes).max(0.0) + stall_s
    };
    let enough = |waves: f64, stall_s: f64| {
        let by_s = (end_s(waves, stall_s) - compute_s).max(0.0);
        supply.bytes_by(by_s, stall_s) >= waves * wave_bytes
    };
    let mut bound_s: f64 = 0.0;
    for waves in 1..=spec.waves {
        let n = f64::from(waves);
        let (mut low_s, mut high_s) = (0.0, 1.0);
        while !enough(n, high_s) {
            (low_s, high_s) = (high_s, 2.0 * high_s);
        }
        if enough(n, 0.0) {
            high_s = 0.0;
        }
        for _ in 0..40 {
            let middle_s = 0.5 * (low_s + high_s);
            if enough(n, middle_s) { high_s = middle_s } else { low_s = middle_s }
        }
        let rest = f64::from(spec.waves - waves) * (compute_s + read_s.min(wave_bytes / direct));
        bound_s = bound_s.max(end_s(n, low_s.min(high_s)) + rest);
    }
    bound_s
}

struct Supply {
    v0: f64,
    /// What a second of direct reads fetches beyond prefetching, between phases.
    extra: f64,
    beside_one: SpeedCurve,
    phases: Option<Phases>,
}

/// The phases of one periodic HPC job.
struct Phases {
    first_s: f64,
    io_s: f64,
    compute_s: f64,
    count: u32,
    slack_s: f64,
}

impl Supply {
    fn new(setup: &Setup) -> Self {
        let v0 = SpeedCurve::between_phases(&setup.planner).at(0.0);
        let beside_one = SpeedCurve::beside_one_phase(&setup.planner);
        let extra = (setup.planner.direct.speed_bytes_per_s - v0).max(0.0);
        let phases = match &setup.hpc[..] {
            [h] if h.arrivals == Arrivals::Periodic && h.starts_ns == 0 && h.phases > 0 => {
                let (io_s, compute_s) = (h.io_ns as f64 * 1e-9, h.compute_ns as f64 * 1e-9);
                let first_s = if h.io_first { 0.0 } else { compute_s };
                Some(Phases { first_s, io_s, compute_s, count: h.phases, slack_s: h.allowance * io_s })
            }
            _ => None,
        };
        Supply { v0, extra, beside_one, phases }
    }

    /// Time between phases up to `t_s` if none is stretched, and the phases begun by then.
    fn gaps_by(&self, t_s: f64) -> (f64, u32) {
        let Some(p) = &self.phases else { return (t_s, 0) };
        let (mut in_phases_s, mut begun) = (0.0, 0u32);
        while begun < p.count {
            let begin_s = p.first_s + f64::from(begun) * (p.io_s + p.compute_s);
            if begin_s >= t_s {
                break;
            }
            in_phases_s += (t_s - begin_s).min(p.io_s);
            begun += 1;
        }
        (t_s - in_phases_s, begun)
    }

    /// The most bytes by `t_s` if tasks have waited for `stall_s` of it.
    fn bytes_by(&self, t_s: f64, stall_s: f64) -> f64 {
        let (gaps_s, begun) = self.gaps_by(t_s);
        let between = gaps_s * self.v0 + self.extra * stall_s.min(gaps_s);
        let in_phases_s = t_s - gaps_s;
        let slack_s = self.phases.as_ref().map_or(0.0, |p| f64::from(begun) * p.slack_s);
        if in_phases_s <= 0.0 {
            return between;
        }
        between + in_phases_s * self.beside_one.at((slack_s / in_phases_s).min(1.0))
    }
}
