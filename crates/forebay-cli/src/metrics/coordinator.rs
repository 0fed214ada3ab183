//! The metrics of a coordinator: its members, connections and queues, what its planners decide, the
//! jobs, and the I/O phases of HPC jobs.

use super::page::Page;
use forebay_coordinator::ACTIONS;
use forebay_coordinator::report::Report;
use forebay_wire::JobStatus;

/// Writes them.
pub fn write(report: &Report, page: &mut Page) {
    process(report, page);
    members(report, page);
    plans(report, page);
    jobs(&report.jobs, page);
    phases(report, page);
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn process(report: &Report, page: &mut Page) {
    let t = &report.totals;
    page.gauge("coordinator_uptime_seconds", "Time since the coordinator's start", seconds(t.uptime_ns));
    page.counter(
        "coordinator_busy_seconds",
        "Time that the coordinator's thread did not wait",
        seconds(t.busy_ns),
    );
    let l = &t.leadership;
    if l.is_elected {
        let leads = f64::from(u8::from(l.leads));
        page.gauge("coordinator_leads", "Whether this candidate leads", leads);
        page.gauge("coordinator_leader_term", "Term of the leader that it knows; 0: none", l.leader.1 as f64);
        let since = l.since_ms as f64 / 1e3;
        page.gauge("coordinator_leader_since_seconds", "When that changed, since 1970", since);
        let elections = l.elections as f64;
        page.counter("coordinator_elections", "Times that this candidate was elected", elections);
    }
    page.gauge("coordinator_connections", "Open connections of agents", t.connections as f64);
    page.gauge(
        "coordinator_buffers_bytes",
        "Bytes in the buffers of all connections",
        t.buffers_bytes as f64,
    );
    let limit = t.buffers_bytes_max as f64;
    page.gauge("coordinator_buffers_limit_bytes", "Limit on the bytes in these buffers", limit);
    let closed = t.buffers_closed as f64;
    page.counter("coordinator_buffers_closed", "Connections closed because the buffers were full", closed);
    page.gauge("coordinator_reports_bytes", "Memory that the reports of jobs take", t.reports_bytes as f64);
}

fn members(report: &Report, page: &mut Page) {
    let (o, t) = (&report.overview, &report.totals);
    page.gauge("coordinator_members", "Nodes that are members of the cluster", o.nodes.len() as f64);
    page.counter("coordinator_views", "Views of the members that were published", t.views as f64);
    page.counter("coordinator_members_expired", "Members that sent no heartbeats", t.expired as f64);
    let capacity: u64 = o.nodes.iter().map(|node| node.capacity_bytes).sum();
    let resident: u64 = o.nodes.iter().map(|node| node.resident_bytes).sum();
    page.gauge("coordinator_tiers_bytes", "Capacity of the tiers of all members", capacity as f64);
    page.gauge("coordinator_tiers_resident_bytes", "Bytes of cached pages of all members", resident as f64);
}

fn plans(report: &Report, page: &mut Page) {
    let counts = &report.totals.counts;
    page.family("coordinator_decisions", "counter", "Decisions of planners, by action");
    for action in ACTIONS {
        let count = counts.decisions.get(action).copied().unwrap_or(0);
        page.sample("coordinator_decisions_total", &[("action", &action.replace(' ', "_"))], count as f64);
    }
    page.counter(
        "coordinator_requests",
        "Prefetch requests that were sent to agents",
        counts.requests as f64,
    );
    let pending = f64::from(report.overview.requests);
    page.gauge("coordinator_requests_pending", "Prefetch requests that have not ended", pending);
    let bytes = counts.prefetched_bytes as f64;
    page.counter("coordinator_prefetched_bytes", "Bytes that prefetch requests have fetched", bytes);
}

fn jobs(jobs: &[JobStatus], page: &mut Page) {
    let running: Vec<&JobStatus> = jobs.iter().filter(|job| !job.ended).collect();
    page.gauge("coordinator_jobs_running", "Analytics jobs that have not ended", running.len() as f64);
    let stages = || running.iter().flat_map(|job| &job.stages);
    let tasks: f64 = stages().map(|stage| f64::from(stage.tasks_running)).sum();
    page.gauge("coordinator_tasks_running", "Running tasks of these jobs", tasks);
    let waiting: f64 = stages().map(|stage| f64::from(stage.tasks_waiting)).sum();
    page.gauge("coordinator_tasks_waiting", "Of these, tasks that wait for their input", waiting);
    let waves = || stages().flat_map(|stage| &stage.waves);
    let bytes: u64 = waves().map(|wave| wave.bytes).sum();
    page.gauge("coordinator_waves_input_bytes", "Input of all waves of these jobs", bytes as f64);
    // Only waves whose tasks may still read it.
    let left = waves()
        .filter(|wave| wave.tasks_done < wave.tasks)
        .map(|wave| wave.bytes.saturating_sub(wave.fetched_bytes + wave.resident_bytes + wave.failed_bytes));
    let left = left.sum::<u64>() as f64;
    page.gauge("coordinator_waves_waiting_bytes", "Input of unfinished waves that is in no tier yet", left);
}

fn phases(report: &Report, page: &mut Page) {
    let (all, in_phase) = report.totals.hpc_jobs;
    page.family("coordinator_hpc_jobs", "gauge", "HPC jobs, in an I/O phase and outside");
    page.sample("coordinator_hpc_jobs", &[("state", "phase")], in_phase as f64);
    page.sample("coordinator_hpc_jobs", &[("state", "compute")], (all - in_phase) as f64);
    let steps = &report.totals.steps;
    page.family("coordinator_steps", "gauge", "Steps of HPC jobs that share, by what they do");
    page.sample("coordinator_steps", &[("state", "waits")], steps.waiting as f64);
    page.sample("coordinator_steps", &[("state", "writes")], steps.writing as f64);
    page.counter("coordinator_steps_let_in", "Steps that were let in", steps.granted as f64);
    page.counter("coordinator_steps_waited_seconds", "Time that they had waited", seconds(steps.waited_ns));
    let revoked = "Steps for which others no longer wait, since they do not end or their node is silent";
    page.counter("coordinator_steps_revoked", revoked, steps.revoked as f64);
    page.family("coordinator_phases_ended", "counter", "I/O phases that have ended, by their deadline");
    let results = ["in_time", "late", "unknown"];
    for (result, count) in results.iter().zip(report.totals.counts.phases_ended) {
        page.sample("coordinator_phases_ended_total", &[("result", result)], count as f64);
    }
}
