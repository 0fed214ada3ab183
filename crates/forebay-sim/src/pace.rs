//! Flows that slow each other down by measured factors rather than by dividing a known bandwidth.
//!
//! The papers on interference do not know the file system's internals: they measure that an I/O
//! phase beside a prefetch takes I times as long. So a flow here is an amount of *work*
//! (nanoseconds alone, or bytes) and has a *pace* in that unit per nanosecond, which falls while
//! another flow disturbs it. The pace of each flow comes from a model (`forebay_model`) and is not
//! decided here; this table only integrates: work left, moment of the end, exact under any sequence
//! of changes.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::machine::Nanos;

/// Id of a flow; the caller chooses it, and it is returned on completion.
pub type PacedId = u64;

struct Paced {
    left: f64,
    pace: f64,
    updated: Nanos,
    scheduled: Option<Nanos>,
}

/// The running flows.
#[derive(Default)]
pub struct Paces {
    flows: BTreeMap<PacedId, Paced>,
    next: BTreeSet<(Nanos, PacedId)>,
}

impl Paces {
    /// Starts with no flows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a flow with `work` to do, at pace 0 until [`Paces::set_pace`] changes that. `id` must
    /// be new.
    pub fn start(&mut self, now: Nanos, id: PacedId, work: f64) {
        let flow = Paced { left: work, pace: 0.0, updated: now, scheduled: None };
        assert!(self.flows.insert(id, flow).is_none(), "flow {id} runs already");
        self.set_pace(now, id, 0.0);
    }

    /// Lets flow `id` do `pace` of its work per nanosecond from `now` on; unknown flows are
    /// ignored.
    pub fn set_pace(&mut self, now: Nanos, id: PacedId, pace: f64) {
        assert!(pace >= 0.0, "flow {id}: pace {pace}");
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.pace == pace && flow.scheduled.is_some() {
            return;
        }
        progress(flow, now);
        flow.pace = pace;
        let wait_ns = if flow.left <= 0.0 { 0.0 } else { (flow.left / pace).ceil() };
        let end = (wait_ns < u64::MAX as f64).then(|| now + wait_ns as u64);
        if end != flow.scheduled {
            if let Some(old) = flow.scheduled {
                self.next.remove(&(old, id));
            }
            if let Some(at) = end {
                self.next.insert((at, id));
            }
            flow.scheduled = end;
        }
    }

    /// Work left of flow `id` at `now`.
    pub fn left(&self, now: Nanos, id: PacedId) -> Option<f64> {
        let flow = self.flows.get(&id)?;
        Some((flow.left - now.saturating_since(flow.updated) as f64 * flow.pace).max(0.0))
    }

    /// Ends a flow early and returns its work left.
    pub fn abort(&mut self, now: Nanos, id: PacedId) -> Option<f64> {
        let left = self.left(now, id)?;
        let flow = self.flows.remove(&id)?;
        if let Some(at) = flow.scheduled {
            self.next.remove(&(at, id));
        }
        Some(left)
    }

    /// When the next flow ends at the current paces.
    pub fn next_end(&self) -> Option<Nanos> {
        self.next.first().map(|&(at, _)| at)
    }

    /// Completes the flow that `next_end` announced. The caller has to renew the paces of the
    /// others.
    pub fn pop_end(&mut self) -> Option<(Nanos, PacedId)> {
        let (at, id) = self.next.pop_first()?;
        self.flows.remove(&id);
        Some((at, id))
    }

    /// The running flows, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = PacedId> + '_ {
        self.flows.keys().copied()
    }
}

fn progress(flow: &mut Paced, now: Nanos) {
    let elapsed_ns = now.saturating_since(flow.updated) as f64;
    flow.left = (flow.left - elapsed_ns * flow.pace).max(0.0);
    flow.updated = now;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_changes_are_integrated_exactly() {
        let mut p = Paces::new();
        p.start(Nanos(0), 1, 100.0);
        assert_eq!(p.next_end(), None);
        p.set_pace(Nanos(10), 1, 0.5);
        assert_eq!(p.next_end(), Some(Nanos(210)));
        p.set_pace(Nanos(110), 1, 1.0);
        assert_eq!(p.left(Nanos(120), 1), Some(40.0));
        assert_eq!(p.pop_end(), Some((Nanos(160), 1)));
        assert_eq!(p.next_end(), None);
    }

    #[test]
    fn an_aborted_flow_leaves_nothing_behind() {
        let mut p = Paces::new();
        p.start(Nanos(0), 1, 100.0);
        p.set_pace(Nanos(0), 1, 1.0);
        assert_eq!(p.abort(Nanos(30), 1), Some(70.0));
        assert_eq!((p.next_end(), p.abort(Nanos(30), 1)), (None, None));
    }

    #[test]
    fn no_work_ends_at_once() {
        let mut p = Paces::new();
        p.start(Nanos(7), 1, 0.0);
        assert_eq!(p.pop_end(), Some((Nanos(7), 1)));
    }
}
