//! What map tasks leave to reduce tasks, and how the reduce tasks get it.
//!
//! Each map task leaves an equal part to each reduce task. These read the parts where they are; or
//! the host of the map task reads each part when the task has ended and sends it to the host of the
//! reduce task, which writes it to storage.

use forebay_policy::machine::Nanos;

use super::pending::Pending;
use super::pfs::Source;
use super::{Cluster, Happening};
use crate::cluster::Shuffle;
use crate::queue::Agenda;

/// What a map task has left.
pub(super) struct Left {
    host: usize,
    place: Source,
    bytes: u64,
}

/// The part of what a map task has left that is for a reduce task, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    job: usize,
    map: usize,
    reducer: u32,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read,
    Sent,
    Written,
}

impl Cluster<'_> {
    /// Where a task on a host writes: on its own server if files can be placed, and otherwise on
    /// servers in turn from `first` on.
    pub(super) fn place(&self, host: usize, first: u64) -> Source {
        match self.setup.server_of(host).filter(|_| self.setup.layout_known) {
            Some(server) => Source::On(server),
            None => Source::From(first),
        }
    }

    /// The host on which a reduce task is to run.
    fn host_of_reducer(&self, j: usize, reducer: u32) -> usize {
        let (first, count) = self.hosts_of(self.jobs[j].side);
        first + reducer as usize % count
    }

    /// The range of what a map task has left that is for a reduce task.
    fn range(&self, j: usize, map: usize, reducer: u32) -> (u64, u64) {
        let reducers = self.setup.jobs[j].reduce.map_or(1, |reduce| reduce.tasks);
        let up_to = |r: u32| {
            let bytes = u128::from(self.jobs[j].left_by_maps[map].bytes);
            (bytes * u128::from(r) / u128::from(reducers)) as u64
        };
        (up_to(reducer), up_to(reducer + 1))
    }

    /// The servers of this range, and the bytes there.
    fn parts_left(&self, j: usize, map: usize, reducer: u32) -> Vec<(usize, u64)> {
        self.pfs.parts(&self.jobs[j].left_by_maps[map].place, self.range(j, map, reducer))
    }

    /// A map task has ended, and leaves `bytes` at a place.
    pub(super) fn map_left(
        &mut self,
        now: Nanos,
        j: usize,
        (host, place, bytes): (usize, Source, u64),
        queue: &mut impl Agenda<Happening>,
    ) {
        let Some(reduce) = self.setup.jobs[j].reduce else { return };
        let map = self.jobs[j].left_by_maps.len();
        self.jobs[j].left_by_maps.push(Left { host, place, bytes });
        if self.setup.shuffle == Shuffle::Files {
            return;
        }
        self.jobs[j].parts_left += u64::from(reduce.tasks);
        for reducer in 0..reduce.tasks {
            let range = self.range(j, map, reducer);
            let place = &self.jobs[j].left_by_maps[map].place;
            let read_at = self.pfs.read(now, place, range, self.setup.server_of(host));
            let part = Share { job: j, map, reducer, step: Step::Read };
            queue.at(read_at, Happening::Shuffled(part));
        }
    }

    /// A part has advanced by a step.
    pub(super) fn shuffled(&mut self, now: Nanos, part: Share, queue: &mut impl Agenda<Happening>) {
        let Share { job: j, map, reducer, step } = part;
        let (from, host) = (self.jobs[j].left_by_maps[map].host, self.host_of_reducer(j, reducer));
        let range = self.range(j, map, reducer);
        let bytes = range.1 - range.0;
        let (at, step) = match step {
            Step::Read => {
                let server = self.setup.server_of(from).filter(|_| from != host);
                (server.map_or(now, |server| self.pfs.send(now, server, bytes)), Step::Sent)
            }
            Step::Sent => {
                let place = self.place(host, u64::from(reducer) + map as u64);
                let written_at = self.pfs.write(now, &place, (0, bytes), self.setup.server_of(host));
                self.output_bytes += bytes;
                self.jobs[j].spilled[reducer as usize].extend(self.pfs.parts(&place, (0, bytes)));
                (written_at, Step::Written)
            }
            Step::Written => {
                self.jobs[j].parts_left -= 1;
                return self.reduce_if_all_is_there(now, j, queue);
            }
        };
        queue.at(at, Happening::Shuffled(Share { step, ..part }));
    }

    /// Reduce tasks begin when all map tasks have ended and nothing is in transit.
    pub(super) fn reduce_if_all_is_there(
        &mut self,
        now: Nanos,
        j: usize,
        queue: &mut impl Agenda<Happening>,
    ) {
        let Some(reduce) = self.setup.jobs[j].reduce else { return };
        let job = &mut self.jobs[j];
        if job.is_reducing || job.left > reduce.tasks || job.parts_left > 0 {
            return;
        }
        job.is_reducing = true;
        self.place_stage(now, j);
        let hosts = (0..reduce.tasks).map(|reducer| Some(self.host_of_reducer(j, reducer))).collect();
        self.jobs[j].pending = Pending::new(hosts);
        (0..self.slots.len()).for_each(|slot| self.take_task(now, slot, queue));
    }

    /// What a reduce task reads. Each reduce task begins with another map task.
    pub(super) fn parts_of_reducer(&self, j: usize, reducer: u32) -> Vec<(usize, u64)> {
        let job = &self.jobs[j];
        if self.setup.shuffle == Shuffle::Fetch {
            return job.spilled[reducer as usize].clone();
        }
        let maps = job.left_by_maps.len();
        (0..maps).flat_map(|i| self.parts_left(j, (i + reducer as usize) % maps, reducer)).collect()
    }
}
