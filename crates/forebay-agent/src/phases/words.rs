//! Translates between the board of the policy crate and the wire.

use forebay_policy::phases::bursts::Burst;
use forebay_policy::phases::{Declared, JobStatus, RemotePhase, Report};
use forebay_wire::{EarlierPhase, HpcJob, HpcPhase, HpcStatus, HpcUpdate};

/// A job as its program declares it.
pub fn declared(job: HpcJob, user: u32) -> Declared {
    let burst = |p: &EarlierPhase| Burst { start_ns: p.start_ns, end_ns: p.end_ns, bytes: p.bytes };
    Declared {
        earlier: job.earlier.iter().map(burst).collect(),
        name: job.name,
        user,
        allowance_permille: job.allowance_permille,
        weight: job.weight.max(1),
        shares: job.shares,
        io_ns: job.io_ns,
        compute_ns: job.compute_ns,
        phases: job.phases,
    }
}

fn job(declared: Declared) -> HpcJob {
    HpcJob {
        name: declared.name,
        user: declared.user,
        allowance_permille: declared.allowance_permille,
        weight: declared.weight,
        shares: declared.shares,
        io_ns: declared.io_ns,
        compute_ns: declared.compute_ns,
        phases: declared.phases,
        // What is learnt of them the coordinator hears with the phases.
        earlier: Vec::new(),
    }
}

/// For the coordinator.
pub fn update(reported: Report) -> HpcUpdate {
    match reported {
        Report::Joins(declared) => HpcUpdate::Joins(job(declared)),
        Report::Expects { in_ns, expected } => HpcUpdate::Expects {
            in_ns,
            io_ns: expected.io_ns,
            compute_ns: expected.compute_ns,
            phases: expected.phases,
        },
        Report::Begins { bytes, alone_ns, deadline_ns, is_observed } => {
            HpcUpdate::PhaseBegins { bytes, alone_ns, deadline_ns, is_observed }
        }
        Report::Left { left_ns } => HpcUpdate::PhaseLeft { left_ns },
        Report::Ends => HpcUpdate::PhaseEnds,
        Report::Leaves => HpcUpdate::Leaves,
    }
}

/// A phase of this node, for other nodes.
pub fn phase(phase: RemotePhase) -> HpcPhase {
    HpcPhase {
        name: phase.name,
        user: phase.user,
        is_behind: phase.is_behind,
        done_bytes: phase.done,
        bytes: phase.bytes,
        slack_ns: phase.slack_ns,
    }
}

/// A phase of another node, for the board.
pub fn remote(phase: HpcPhase) -> RemotePhase {
    RemotePhase {
        name: phase.name,
        user: phase.user,
        is_behind: phase.is_behind,
        done: phase.done_bytes,
        bytes: phase.bytes,
        slack_ns: phase.slack_ns,
    }
}

/// A job for people; those of this node are at `here`. One that waits to begin a phase has waited
/// for `waits_ns`.
pub fn status(job: JobStatus, here: &str, waits_ns: Option<u64>) -> HpcStatus {
    let [ended, in_time, late, cut_off] = job.phases;
    HpcStatus {
        name: job.name,
        user: job.user,
        node: if job.node.is_empty() { here.to_owned() } else { job.node },
        phase: job.phase.map(phase),
        lasted_ms: job.lasted_ns / 1_000_000,
        ended,
        in_time,
        late,
        cut_off,
        io_ms: (job.io_ns > 0).then_some(job.io_ns / 1_000_000),
        alone_bytes_per_s: job.alone_bytes_per_s,
        next_in_ms: job.next_in_ns.map(|ns| ns / 1_000_000),
        waits_ms: waits_ns.map(|ns| ns / 1_000_000),
    }
}
