//! Stages that run on the storage servers: hosts of tasks, after the nodes.

use forebay_policy::machine::Nanos;
use forebay_policy::ship::{Action, Event, Side, StageId, Work};

use super::Cluster;
use crate::cluster::Shuffle;

/// The name of a stage of a job: the first, or the second.
fn stage_id(job: usize, is_reduce: bool) -> StageId {
    2 * job as u64 + u64::from(is_reduce)
}

impl Cluster<'_> {
    /// Gives the next stage of a job a side: where the policy puts it, if servers run tasks. If map
    /// outputs are fetched while map tasks run, reduce tasks run where these do.
    pub(super) fn place_stage(&mut self, now: Nanos, j: usize) {
        let is_reduce = self.jobs[j].is_reducing;
        let fetches = self.setup.shuffle == Shuffle::Fetch;
        let Some(work) = self.setup.shipping.is_some().then(|| self.work(j)) else { return };
        let (Some(ship), false) = (&mut self.ship, is_reduce && fetches) else { return };
        let ready = Event::Ready { stage: stage_id(j, is_reduce), work, busy: self.others_busy };
        for Action::Run { side, why, .. } in ship.handle(now, ready, self.record) {
            self.jobs[j].side = side;
            self.jobs[j].done.placed.push((side, why));
        }
    }

    /// A task of the stage that a job is in has ended.
    pub(super) fn notify_ship(&mut self, now: Nanos, j: usize) {
        let stage = stage_id(j, self.jobs[j].is_reducing);
        if let Some(ship) = &mut self.ship {
            ship.handle(now, Event::TaskEnded { stage }, self.record);
        }
    }

    /// The work of the stage that a job is about to begin.
    fn work(&self, j: usize) -> Work {
        let (spec, servers) = (&self.setup.jobs[j], f64::from(self.setup.servers));
        let known = self.setup.layout_known;
        let result_bytes = spec.result_bytes;
        if let Some(reduce) = spec.reduce.filter(|_| self.jobs[j].is_reducing) {
            return Work {
                tasks: reduce.tasks,
                task_cpu_ns: reduce.task_cpu_ns,
                read_bytes: reduce.bytes,
                busiest_bytes: (reduce.bytes as f64 / servers) as u64,
                local: 1.0 / servers,
                write_bytes: spec.output_bytes,
                writes_local: known,
                result_bytes,
            };
        }
        let splits = &self.jobs[j].splits;
        let at_server: u64 = splits.iter().map(|split| self.pfs.server_with_most(j, *split).1).sum();
        let leaves = spec.reduce.map_or(spec.output_bytes, |reduce| reduce.bytes);
        Work {
            tasks: splits.len() as u32,
            task_cpu_ns: spec.task_cpu_ns,
            read_bytes: spec.input_bytes,
            busiest_bytes: self.pfs.bytes_on_servers(j).into_iter().max().unwrap_or(0),
            local: if known { at_server as f64 / spec.input_bytes as f64 } else { 1.0 / servers },
            write_bytes: 2 * spec.spilled_bytes + leaves,
            writes_local: known,
            result_bytes: if spec.reduce.is_none() { result_bytes } else { 0 },
        }
    }

    /// The servers that are to run the map tasks of a job: those with most of their splits, if the
    /// file system reports where these are.
    pub(super) fn preferred_servers(&self, j: usize) -> Vec<Option<usize>> {
        let server = |split: &(u32, u64, u64)| {
            self.setup
                .layout_known
                .then(|| self.setup.nodes as usize + self.pfs.server_with_most(j, *split).0)
        };
        self.jobs[j].splits.iter().map(server).collect()
    }

    /// Hosts of a side.
    pub(super) fn hosts_of(&self, side: Side) -> (usize, usize) {
        match side {
            Side::Compute => (0, self.setup.nodes as usize),
            Side::Storage => (self.setup.nodes as usize, self.setup.servers as usize),
        }
    }

    /// The side that a host is on.
    pub(super) fn side_of(&self, host: usize) -> Side {
        if self.setup.server_of(host).is_some() { Side::Storage } else { Side::Compute }
    }
}
