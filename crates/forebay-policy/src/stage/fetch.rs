//! Requests under way: their pace, their progress and their end.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::event::{Action, JobKey, Progress, RequestId, WaveId};
use super::waves::{Adjusted, Pace};
use super::{RequestState, Requested, Stages};
use crate::machine::Nanos;

/// Limit on the bytes of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 50;

impl RequestState {
    pub(super) fn at(pace: Pace) -> Self {
        if pace.threads == 0 { RequestState::Rests } else { RequestState::Fetches }
    }
}

impl Stages {
    /// Adjusts the pace of a wave's requests to its setting. One that is paused leaves its queue,
    /// so that its server and its node have a place for others, and returns when it continues.
    pub(super) fn adjust(&mut self, now: Nanos, key: JobKey, stage: u32, wave: WaveId) {
        let Some(run) = self.run_mut(key, stage) else { return };
        let of = (run.serial, wave);
        for Adjusted { node, request, pace, was_paused } in run.adjust(wave) {
            let Some(&Requested { queue, at, .. }) = self.requests.get(&request) else { continue };
            let Pace { threads, rate_bytes_per_s, setting } = pace;
            match (was_paused, threads == 0) {
                (false, true) => self.queues.end(queue, request, now, None),
                (true, false) => self.queues.begin(queue, request, at, of, now),
                _ => {}
            }
            self.set_state(request, RequestState::at(pace));
            if let Some(requested) = self.requests.get_mut(&request) {
                requested.pace_limit.adjust(now, pace);
            }
            self.out.push(Action::Adjust { request, node, threads, rate_bytes_per_s, setting });
        }
    }

    /// Records a node's report of the progress of a request.
    pub(super) fn progress(&mut self, now: Nanos, node: &str, request: RequestId, progress: Progress) {
        let Some(of) = self.requests.get_mut(&request).filter(|of| of.node == node) else { return };
        let (key, stage, wave, queue, number) = (of.job, of.stage, of.wave, of.queue, of.number);
        // No request has more, and sums do not overflow.
        let sane = |bytes: u64| bytes.min(REQUEST_BYTES_MAX);
        let progress = Progress {
            fetched_bytes: sane(progress.fetched_bytes),
            resident_bytes: sane(progress.resident_bytes),
            failed_bytes: sane(progress.failed_bytes),
            ..progress
        };
        // In a model of whole parts nodes have settings, not rates.
        if !self.config.rules.whole_parts {
            let is_new = self.pace_limits.observe(now, node, &mut of.pace_limit, progress.fetched_bytes);
            if is_new {
                // For now, tasks do not get their input from that node.
                self.let_all_read(now);
            }
        }
        let Some(run) = self.run_mut(key, stage) else { return };
        let fetched = run.progress(wave, node, number, request, &progress);
        if self.speed.observe(now, fetched) {
            self.report_speed(now);
        }
        if progress.done {
            self.set_state(request, RequestState::Ended);
            let mostly_fetched = progress.fetched_bytes > progress.resident_bytes + progress.failed_bytes;
            self.queues.end(queue, request, now, mostly_fetched.then_some(progress.fetched_bytes));
            self.adjust(now, key, stage, wave);
            self.settle(now, key, stage);
        }
    }

    /// Returns whether requests are under way and all of them are paused, as beside an I/O phase.
    /// Nodes then stop the pages of requests in their middle, including those that they fetch for
    /// requests of other nodes.
    pub fn do_requests_rest(&self) -> bool {
        self.fetching == 0 && self.resting > 0
    }

    pub(super) fn set_state(&mut self, request: RequestId, state: RequestState) {
        if let Some(requested) = self.requests.get_mut(&request) {
            let before = core::mem::replace(&mut requested.state, state);
            self.count(before, state);
        }
    }

    /// Updates the counts after a request has changed its state.
    pub(super) fn count(&mut self, before: RequestState, state: RequestState) {
        match before {
            RequestState::Fetches => self.fetching -= 1,
            RequestState::Rests => self.resting -= 1,
            RequestState::Ended => {}
        }
        match state {
            RequestState::Fetches => self.fetching += 1,
            RequestState::Rests => self.resting += 1,
            RequestState::Ended => {}
        }
    }

    pub(super) fn release(&mut self, now: Nanos, requests: Vec<RequestId>) {
        let mut by_node: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for request in requests {
            if let Some(of) = self.void(now, request) {
                by_node.entry(of.node).or_default().push(request);
            }
        }
        self.out.extend(by_node.into_iter().map(|(node, requests)| Action::Release { node, requests }));
    }
}
