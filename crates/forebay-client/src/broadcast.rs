//! Loads files into the memory of many nodes at the same time.
//!
//! The load is an analytics job whose tasks never start. So the coordinator's planner decides when
//! each part is fetched, the brake stops it while an I/O phase of an HPC job is behind, and each
//! node gets a page of another node from that page's owner. The PFS serves each byte once.
//!
//! The nodes begin with different parts of the files, each with its own, so that at any time all
//! owners send.

use crate::error::with_message;
use crate::job::Job;
use crate::session::Client;
use forebay_wire::{FileRef, JobStatus, JobUpdate, NodeInfo, Part, Split};
use std::collections::BTreeMap;
use std::io;

/// The number of the only stage of the job.
const STAGE: u32 = 0;

/// Prefetches immediately, and leaves the phases of HPC jobs to the brake, as a load of one node
/// does.
const PLANNER: &str = "no-action";

/// Parts of a split. A packet holds thousands.
const PARTS_MAX: usize = 256;

/// A broadcast in progress. Dropping it ends it: what is not fetched yet is forgotten.
#[derive(Debug)]
pub struct Broadcast {
    client: Client,
    _job: Job,
    name: String,
    bytes: u64,
}

/// How far a broadcast is, in bytes of all nodes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroadcastProgress {
    /// Bytes to load.
    pub bytes: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Bytes that were there before.
    pub resident_bytes: u64,
    /// Bytes not loaded: the file has changed or is open for writing, the agent of a node may not
    /// open it, or a tier has no room.
    pub failed_bytes: u64,
}

impl BroadcastProgress {
    /// Whether nothing more will come.
    pub fn is_done(&self) -> bool {
        self.fetched_bytes + self.resident_bytes + self.failed_bytes >= self.bytes
    }
}

impl Client {
    /// Begins to load `files` on each of `nodes`.
    ///
    /// # Errors
    /// No agent, no nodes, or the agent refuses.
    pub fn broadcast(&self, files: Vec<FileRef>, nodes: &[NodeInfo]) -> io::Result<Broadcast> {
        if nodes.is_empty() {
            return Err(with_message(libc::ENOENT, "the cluster has no nodes to load files on"));
        }
        let (mut by_owner, mut bytes) = (BTreeMap::<String, Vec<Part>>::new(), 0);
        for (number, file) in files.iter().enumerate() {
            for extent in self.locate_ref(file, 0, file.version.size)? {
                let owner = extent.hosts.into_iter().next().unwrap_or_default();
                let part = Part { file: number as u32, offset: extent.offset, len: extent.len };
                by_owner.entry(owner).or_default().push(part);
                bytes += extent.len * nodes.len() as u64;
            }
        }
        let name = name_of_load()?;
        let job = self.begin_job(&name, PLANNER)?;
        let splits = splits(nodes, &by_owner);
        // All splits of a node are one wave.
        let each = (splits.len() / nodes.len()) as u32;
        let slots = nodes.iter().map(|node| (node.host.clone(), each)).collect();
        job.report(&[
            JobUpdate::Slots(slots),
            JobUpdate::Files(files),
            JobUpdate::Splits { stage: STAGE, splits },
            JobUpdate::StageReady { stage: STAGE },
        ])?;
        Ok(Broadcast { client: self.clone(), _job: job, name, bytes })
    }
}

/// A name that no other load of this cluster has.
fn name_of_load() -> io::Result<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("load-{:016x}", u64::from_le_bytes(random)))
}

/// The splits: for each node and each owner, what that owner has. The coordinator sends a split to
/// its node if all of it has one owner. In the first round each node takes what it owns, in the
/// next what the node after it owns, and so on.
fn splits(nodes: &[NodeInfo], by_owner: &BTreeMap<String, Vec<Part>>) -> Vec<Split> {
    let owned: Vec<(&str, &[Part])> = by_owner
        .iter()
        .flat_map(|(owner, parts)| parts.chunks(PARTS_MAX).map(move |some| (owner.as_str(), some)))
        .collect();
    let first = |node: &NodeInfo| owned.iter().position(|(owner, _)| *owner == node.host).unwrap_or(0);
    let rounds = (0..owned.len()).flat_map(|round| nodes.iter().map(move |node| (round, node)));
    rounds
        .map(|(round, node)| Split {
            parts: owned[(first(node) + round) % owned.len()].1.to_vec(),
            preferred_node: node.host.clone(),
        })
        .collect()
}

impl Broadcast {
    /// How far it is; `None` while the coordinator does not know it yet, or does not answer.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn progress(&self) -> io::Result<Option<BroadcastProgress>> {
        let jobs = self.client.jobs()?;
        Ok(jobs.iter().find(|job| job.name == self.name).map(|job| self.progress_of(job)))
    }

    fn progress_of(&self, job: &JobStatus) -> BroadcastProgress {
        let waves = job.stages.iter().flat_map(|stage| &stage.waves);
        waves.fold(BroadcastProgress { bytes: self.bytes, ..Default::default() }, |sum, wave| {
            BroadcastProgress {
                fetched_bytes: sum.fetched_bytes + wave.fetched_bytes,
                resident_bytes: sum.resident_bytes + wave.resident_bytes,
                failed_bytes: sum.failed_bytes + wave.failed_bytes,
                ..sum
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_begins_with_what_it_owns_and_gets_all() {
        let part = |offset| Part { file: 0, offset, len: 10 };
        let by_owner = BTreeMap::from(
            [("a", 0), ("b", 20), ("c", 10)].map(|(host, at)| (host.to_owned(), vec![part(at)])),
        );
        let nodes =
            ["a", "b", "c", "owns nothing"].map(|host| NodeInfo { host: host.into(), ..NodeInfo::default() });
        let splits = splits(&nodes, &by_owner);
        let of = |host: &str| {
            let own = splits.iter().filter(|split| split.preferred_node == host);
            own.map(|split| split.parts[0].offset).collect::<Vec<_>>()
        };
        assert_eq!(
            [of("a"), of("b"), of("c"), of("owns nothing")],
            [[0, 20, 10], [20, 10, 0], [10, 0, 20], [0, 20, 10]]
        );
        assert!(splits[..3].iter().zip(["a", "b", "c"]).all(|(split, host)| split.preferred_node == host));
    }
}
