//! Two flows that slow each other down while they overlap, and the closed forms for this in the
//! Eley paper.
//!
//! Flow A (an I/O phase of an HPC job) needs `alone_s` by itself, flow B (a prefetch) likewise.
//! While both run, each progresses at 1/I of its own pace, I being its interference factor; while
//! alone at pace 1. [`integrate`] follows that piece by piece and is exact for any two starts.
//! Equations (6) to (11) of Yildiz et al., *Improving the Effectiveness of Burst Buffers for Big
//! Data Processing in HPC Systems with Eley* (FGCS 2018), section 5.1, are special cases, kept here
//! so that tests can hold one against the other; policies use the integrator.

/// One of two flows that may overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// When it starts, in seconds from the common origin.
    pub start_s: f64,
    /// How long it takes alone, in seconds.
    pub alone_s: f64,
    /// Its interference factor, at least 1: time of the same I/O beside the other flow over time
    /// alone.
    pub factor: f64,
}

/// When both flows end, in seconds from the common origin: `(end of a, end of b)`.
///
/// Equations (1) and (4): each end is the start, plus the work done alone, plus the work done
/// together times I.
pub fn integrate(a: Flow, b: Flow) -> (f64, f64) {
    let (first, second) = if a.start_s <= b.start_s { (a, b) } else { (b, a) };
    let (end_first, end_second) = integrate_ordered(first, second);
    if a.start_s <= b.start_s { (end_first, end_second) } else { (end_second, end_first) }
}

fn integrate_ordered(first: Flow, second: Flow) -> (f64, f64) {
    let head_s = second.start_s - first.start_s;
    if head_s >= first.alone_s {
        return (first.start_s + first.alone_s, second.start_s + second.alone_s);
    }
    let left_s = first.alone_s - head_s;
    // Time that each would take if the other never ended.
    let (together_first, together_second) = (left_s * first.factor, second.alone_s * second.factor);
    if together_first <= together_second {
        let done_s = together_first / second.factor;
        let end = second.start_s + together_first;
        (end, end + second.alone_s - done_s)
    } else {
        let done_s = together_second / first.factor;
        let end = second.start_s + together_second;
        (end + left_s - done_s, end)
    }
}

/// Equation (5): the part of a prefetch that compute does not hide, in seconds.
pub fn cost_s(prefetch_end_s: f64, compute_s: f64) -> f64 {
    (prefetch_end_s - compute_s).max(0.0)
}

/// *No Action* as published: both flows overlap from beginning to end. The exact value is that of
/// [`scale_up`] or [`scale_down`], depending on which flow ends first.
pub fn no_action_bound(io_s: f64, i_hpc: f64, prefetch_s: f64, i_bd: f64) -> (f64, f64) {
    (io_s * i_hpc, prefetch_s * i_bd)
}

/// *Full Delay*: the prefetch starts when the phase is over.
pub fn full_delay(io_s: f64, prefetch_s: f64) -> (f64, f64) {
    (io_s, io_s + prefetch_s)
}

/// *Partial Delay* by `delay_s`, equations (6) and (7), where the prefetch outlasts the phase. (7)
/// as published counts from the start of the prefetch; here `delay_s` is added, so that both ends
/// count from the request.
pub fn partial_delay(io_s: f64, i_hpc: f64, prefetch_s: f64, i_bd: f64, delay_s: f64) -> (f64, f64) {
    let together_s = (io_s - delay_s) * i_hpc;
    (delay_s + together_s, delay_s + prefetch_s + together_s * (1.0 - 1.0 / i_bd))
}

/// *Scale Up*, equations (8) and (9): factors and time of the new thread count; the prefetch ends
/// first.
pub fn scale_up(io_s: f64, i_hpc: f64, prefetch_s: f64, i_bd: f64) -> (f64, f64) {
    let together_s = prefetch_s * i_bd;
    (io_s + together_s * (1.0 - 1.0 / i_hpc), together_s)
}

/// *Scale Down*, equations (10) and (11): factors and time of the new thread count; the phase ends
/// first.
pub fn scale_down(io_s: f64, i_hpc: f64, prefetch_s: f64, i_bd: f64) -> (f64, f64) {
    let together_s = io_s * i_hpc;
    (together_s, prefetch_s + together_s * (1.0 - 1.0 / i_bd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(start_s: f64, alone_s: f64, factor: f64) -> Flow {
        Flow { start_s, alone_s, factor }
    }

    fn near(a: (f64, f64), b: (f64, f64)) -> bool {
        (a.0 - b.0).abs() <= 1e-9 * a.0.abs().max(1.0) && (a.1 - b.1).abs() <= 1e-9 * a.1.abs().max(1.0)
    }

    /// Worked by hand: a phase of 10 s (I = 2), a prefetch of 6 s (I = 1.5) that starts 4 s later.
    /// Together for 9 s the prefetch is done (4 + 9 = 13 s); the phase has done 4 + 4.5 s and needs
    /// 1.5 s more.
    #[test]
    fn by_hand() {
        assert!(near(integrate(flow(0.0, 10.0, 2.0), flow(4.0, 6.0, 1.5)), (14.5, 13.0)));
    }

    proptest! {
        #[test]
        fn closed_forms_equal_the_integrator(
            io in 0.1f64..500.0, pref in 0.1f64..500.0, ih in 1.0f64..4.0, ib in 1.0f64..4.0, part in 0.0f64..1.0
        ) {
            let delay = part * io;
            let exact = integrate(flow(0.0, io, ih), flow(0.0, pref, ib));
            let up_applies = pref * ib <= io * ih;
            let closed = if up_applies { scale_up(io, ih, pref, ib) } else { scale_down(io, ih, pref, ib) };
            prop_assert!(near(exact, closed), "{exact:?} {closed:?}");

            prop_assert!(near(integrate(flow(0.0, io, ih), flow(io, pref, ib)), full_delay(io, pref)));
            let bound = no_action_bound(io, ih, pref, ib);
            prop_assert!(exact.0 <= bound.0 + 1e-9 && exact.1 <= bound.1 + 1e-9);

            if (io - delay) * ih <= pref * ib {
                let exact = integrate(flow(0.0, io, ih), flow(delay, pref, ib));
                prop_assert!(near(exact, partial_delay(io, ih, pref, ib, delay)), "{exact:?}");
            }
        }

        /// (1) and (4): the end is the work alone plus the work together times I, whichever starts
        /// first.
        #[test]
        fn work_is_conserved(
            sa in 0.0f64..100.0, sb in 0.0f64..100.0, a in 0.1f64..100.0, b in 0.1f64..100.0,
            ia in 1.0f64..4.0, ib in 1.0f64..4.0
        ) {
            let (ea, eb) = integrate(flow(sa, a, ia), flow(sb, b, ib));
            let together = (ea.min(eb) - sa.max(sb)).max(0.0);
            prop_assert!((ea - sa - together + together / ia - a).abs() < 1e-8);
            prop_assert!((eb - sb - together + together / ib - b).abs() < 1e-8);
            prop_assert!((cost_s(eb, sb) - (eb - sb)).abs() < 1e-12);
        }

        /// Delaying the prefetch never makes the phase end later.
        #[test]
        fn a_later_prefetch_never_hurts_the_phase_more(
            a in 0.1f64..100.0, b in 0.1f64..100.0, ia in 1.0f64..4.0, ib in 1.0f64..4.0, s in 0.0f64..100.0, d in 0.0f64..50.0
        ) {
            let early = integrate(flow(0.0, a, ia), flow(s, b, ib)).0;
            let late = integrate(flow(0.0, a, ia), flow(s + d, b, ib)).0;
            prop_assert!(late <= early + 1e-9);
        }
    }
}
