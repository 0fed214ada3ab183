//! How short a map time could be at best: a bound that no prefetching planner can beat.

use forebay_policy::planner::SpeedCurve;

use super::{Arrivals, Setup};

/// A lower bound of the map time of job `job`, in seconds, for any planner that meets every deadline.
///
/// A wave cannot compute before it and all waves before it are there, nor before the wave ahead of it is done. The bytes
/// there by time t are at most
///
/// ```text
/// B(t) = g(t) v0 + p(t) v(S(t) / p(t))
/// ```
///
/// with g(t) the time between phases up to t, p(t) = t - g(t), v0 the fastest setting, v(c) the best mean speed if phases
/// lose the share c of their time, and S(t) what the phases begun by t may lose in all. g is taken from phases that are not
/// stretched, which gives the planner more time between phases than it can have (moving time from p to g never
/// lowers B, since v(c) - c v'(c) <= v0). Memory is taken to be unlimited. With one periodic HPC job this is tight
/// but for the order within a phase; with others, phases are ignored and only v0 counts.
pub fn lower_bound_s(setup: &Setup, job: usize) -> f64 {
    let spec = &setup.jobs[job];
    let to_s = |ns: u64| ns as f64 * 1e-9;
    let compute_s = to_s(spec.compute_ns + spec.tier_read_ns);
    let supply = Supply::new(setup);
    let mut free_s: f64 = 0.0;
    for wave in 1..=spec.waves {
        let ready_s = supply.time_of(f64::from(wave) * spec.wave_bytes as f64);
        free_s = free_s.max(ready_s) + compute_s;
    }
    free_s
}

struct Supply {
    v0: f64,
    beside_one: SpeedCurve,
    /// Begin of the first phase, length alone, compute between, count, slack of each; `None` without such a job.
    phases: Option<(f64, f64, f64, u32, f64)>,
}

impl Supply {
    fn new(setup: &Setup) -> Self {
        let v0 = SpeedCurve::new(&setup.planner, 0).at(0.0);
        let phases = match &setup.hpc[..] {
            [h] if h.arrivals == Arrivals::Periodic && h.starts_ns == 0 && h.phases > 0 => {
                let (io_s, compute_s) = (h.io_ns as f64 * 1e-9, h.compute_ns as f64 * 1e-9);
                let first_s = if h.io_first { 0.0 } else { compute_s };
                Some((first_s, io_s, compute_s, h.phases, h.allowance * io_s))
            }
            _ => None,
        };
        Supply { v0, beside_one: SpeedCurve::new(&setup.planner, 1), phases }
    }

    /// B(t).
    fn bytes_by(&self, t_s: f64) -> f64 {
        let Some((first_s, io_s, compute_s, count, slack_s)) = self.phases else { return t_s * self.v0 };
        let (mut in_phases_s, mut begun) = (0.0, 0u32);
        while begun < count {
            let begin_s = first_s + f64::from(begun) * (io_s + compute_s);
            if begin_s >= t_s {
                break;
            }
            in_phases_s += (t_s - begin_s).min(io_s);
            begun += 1;
        }
        if in_phases_s <= 0.0 {
            return t_s * self.v0;
        }
        let cost = (f64::from(begun) * slack_s / in_phases_s).min(1.0);
        let v = self.beside_one.at(cost);
        (t_s - in_phases_s) * self.v0 + in_phases_s * v
    }

    /// The earliest t with B(t) >= `bytes`, by halving.
    fn time_of(&self, bytes: f64) -> f64 {
        let mut high_s = bytes / self.v0;
        while self.bytes_by(high_s) < bytes {
            high_s *= 2.0;
        }
        let mut low_s = 0.0;
        for _ in 0..50 {
            let middle_s = 0.5 * (low_s + high_s);
            if self.bytes_by(middle_s) < bytes {
                low_s = middle_s;
            } else {
                high_s = middle_s;
            }
        }
        low_s
    }
}
