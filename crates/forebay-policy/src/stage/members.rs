//! Members that come, go, or change.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use super::event::{Node, RequestId};
use super::{RequestState, Requested, Stages};
use crate::machine::Nanos;
use crate::planner::Event;

impl Stages {
    /// Replaces the members. Everything that has not begun is partitioned again.
    pub(super) fn set_members(&mut self, now: Nanos, nodes: Vec<Node>) {
        self.nodes = nodes;
        self.tiers.set_members(&self.nodes);
        self.gone.clear();
        self.report_memory(now);
        for running in self.jobs.values_mut() {
            running.to_cut.extend(running.stages.keys());
            // A stage that is placed for the first time continues, and is placed again afterwards:
            // it has no waves yet, and where members come and go it might never have any.
            let is_first = |stage: &u32| !running.stages.contains_key(stage);
            let first = running.placing.iter_mut().filter(|(stage, _)| is_first(stage));
            first.for_each(|(_, placing)| placing.is_stale = true);
        }
    }

    /// Changes the size of a node's tier. Its requests stay; later ones have to fit.
    pub(super) fn capacity(&mut self, now: Nanos, node: &str, bytes: u64) {
        self.tiers.report(node, bytes);
        self.has_changed = true;
        self.report_memory(now);
    }

    /// Notifies the planners of the current size of the tier.
    pub(super) fn report_memory(&mut self, now: Nanos) {
        let bytes = self.memory_bytes();
        if core::mem::replace(&mut self.memory_reported, bytes) == bytes {
            return;
        }
        let planners: Vec<_> = self.planners.keys().cloned().collect();
        for name in planners {
            self.notify(now, &name, Event::Memory { bytes });
        }
    }

    /// Returns the memory that planners may fill: all tiers. If planners keep the account of
    /// memory, it excludes what is held for waves that no planner knows any more; otherwise
    /// requests wait for room anyway.
    pub(super) fn memory_bytes(&self) -> u64 {
        let all = self.tiers.sum_bytes();
        if !self.config.rules.whole_parts {
            return all;
        }
        let runs = self.jobs.values().flat_map(|running| running.stages.values());
        all.saturating_sub(runs.map(|run| run.held_before_bytes(&self.gone)).sum())
    }

    /// Notifies the planners of the part of the waiting waves that was lost with a node.
    fn report_lost(&mut self, now: Nanos, node: &str) {
        let runs = self.jobs.iter_mut().flat_map(|(_, running)| running.stages.values_mut());
        let lost: Vec<_> = runs
            .filter_map(|run| {
                let (name, job) = run.planner.clone()?;
                let waves = run.lose(node);
                (!waves.is_empty()).then_some((name, Event::Lost { job, waves }))
            })
            .collect();
        for (name, event) in lost {
            self.notify(now, &name, event);
        }
    }

    /// Adds a node that has joined (again): it has none of its requests.
    pub(super) fn node_came(&mut self, now: Nanos, node: &str) {
        self.gone.remove(node);
        self.pace_limits.forget(node);
        self.tiers.came(node, self.nodes.iter().find(|member| member.name == node));
        for lost in self.lose_requests(now, node) {
            if let Some(run) = self.run_mut(lost.job, lost.stage) {
                run.part_lost(lost.wave, node);
            }
            self.settle(now, lost.job, lost.stage);
        }
    }

    /// Removes a node: its requests yield nothing more.
    pub(super) fn node_went(&mut self, now: Nanos, node: &str) {
        self.gone.insert(node.to_owned());
        self.tiers.went(node);
        for lost in self.lose_requests(now, node) {
            if let Some(run) = self.run_mut(lost.job, lost.stage) {
                run.part_ended(lost.wave, node);
            }
            self.settle(now, lost.job, lost.stage);
        }
        self.report_memory(now);
        self.report_lost(now, node);
        let stages: Vec<_> =
            self.jobs.iter().flat_map(|(key, r)| r.stages.keys().map(|stage| (*key, *stage))).collect();
        stages.into_iter().for_each(|(key, stage)| self.settle(now, key, stage));
    }

    fn lose_requests(&mut self, now: Nanos, node: &str) -> Vec<Requested> {
        let its = self.requests.iter().filter(|(_, r)| r.node == node);
        let its: Vec<RequestId> = its.map(|(id, _)| *id).collect();
        its.into_iter().filter_map(|id| self.void(now, id)).collect()
    }

    /// Removes a request of which nothing more will be reported.
    pub(super) fn void(&mut self, now: Nanos, id: RequestId) -> Option<Requested> {
        let requested = self.requests.remove(&id)?;
        self.count(requested.state, RequestState::Ended);
        self.queues.end(requested.queue, id, now, None);
        Some(requested)
    }
}
