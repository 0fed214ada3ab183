//! Translates between the wire's messages and what the stage machine hears and says.

use forebay_policy::stage::event::{self, File, Layout, Node};
use forebay_wire::cluster::FileLayout;
use forebay_wire::{ClusterView, Declared, FileRef, JobUpdate, NodeInfo, Part, Split};
use std::collections::{BTreeMap, BTreeSet};

/// The members as the machine knows them.
pub fn nodes_of(view: &ClusterView) -> Vec<Node> {
    let mounts: BTreeSet<&String> = view.nodes.iter().flat_map(|n| &n.mounts).collect();
    let mut nodes: Vec<Node> = view.nodes.iter().map(node_of).collect();
    for mount in mounts {
        let serving: BTreeSet<&str> = view.serving(mount).into_iter().map(|n| n.name.as_str()).collect();
        let others = nodes.iter_mut().filter(|n| !serving.contains(n.name.as_str()));
        for node in others {
            node.keeps.remove(mount);
        }
    }
    nodes
}

fn node_of(info: &NodeInfo) -> Node {
    Node {
        name: info.name.clone(),
        host: info.host.clone(),
        capacity_bytes: info.capacity_bytes,
        keeps: info.mounts.iter().cloned().zip(info.extent_bytes.iter().copied()).collect(),
    }
}

/// `update` for the machine, if it is for it; new files are added to those of the job.
pub fn job_update(update: JobUpdate, files: &mut Vec<FileRef>) -> Option<event::JobUpdate> {
    Some(match update {
        JobUpdate::Begin { name, planner } => event::JobUpdate::Begin { name, planner },
        JobUpdate::Slots(slots) => event::JobUpdate::Slots { slots },
        JobUpdate::Files(named) => {
            let new = named.iter().map(file_of).collect();
            files.extend(named);
            event::JobUpdate::Files { files: new }
        }
        JobUpdate::Layouts { servers, files } => {
            let layout = |l: FileLayout| Layout { stripe_bytes: l.stripe_bytes, servers: l.servers };
            event::JobUpdate::Layouts { servers, files: files.into_iter().map(layout).collect() }
        }
        JobUpdate::Splits { stage, splits } => {
            event::JobUpdate::Splits { stage, splits: splits.into_iter().map(split_of).collect() }
        }
        JobUpdate::StageReady { stage } => event::JobUpdate::StageReady { stage },
        JobUpdate::TasksAsk => event::JobUpdate::TasksAsk,
        JobUpdate::Partitions { stage, partitions } => event::JobUpdate::Partitions { stage, partitions },
        JobUpdate::TaskStarted { stage, task, host } => event::JobUpdate::TaskStarted { stage, task, host },
        JobUpdate::TaskEnded { stage, task, ok, run_ms } => {
            event::JobUpdate::TaskEnded { stage, task, ok, run_ms }
        }
        JobUpdate::StageEnded { stage } => event::JobUpdate::StageEnded { stage },
        JobUpdate::End => event::JobUpdate::End,
        // An agent's own.
        JobUpdate::InOrder => return None,
    })
}

/// Time from phase to phase, as declared; 0 if it was not.
pub fn period_ns(job: &Declared) -> u64 {
    if job.compute_ns > 0 { job.io_ns.saturating_add(job.compute_ns) } else { 0 }
}

fn file_of(file: &FileRef) -> File {
    File { mount: file.mount.clone(), ino: file.version.ino, bytes: file.version.size }
}

fn split_of(split: Split) -> event::Split {
    let part = |p: Part| event::Part { file: p.file, offset: p.offset, len: p.len };
    event::Split { parts: split.parts.into_iter().map(part).collect(), preferred_node: split.preferred_node }
}

/// The files that `parts` name, and the parts with the files' places among these.
pub fn named(files: &[FileRef], parts: &[event::Part]) -> (Vec<FileRef>, Vec<Part>) {
    let mut places: BTreeMap<u32, u32> = BTreeMap::new();
    let (mut used, mut out) = (Vec::<FileRef>::new(), Vec::with_capacity(parts.len()));
    for part in parts {
        let Some(file) = files.get(part.file as usize) else { continue };
        let place = *places.entry(part.file).or_insert_with(|| {
            used.push(file.clone());
            used.len() as u32 - 1
        });
        out.push(Part { file: place, offset: part.offset, len: part.len });
    }
    (used, out)
}
