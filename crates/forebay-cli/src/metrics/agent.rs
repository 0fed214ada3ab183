//! The metrics of an agent: of its status, its memory, its mounts, and the coordinator's jobs.

use super::page::Page;
use forebay_agent::counters::HELP;
use forebay_wire::{JobStatus, MemoryStatus, ServerTraffic, Status};

/// Values of a status that are not counters although they are among them, with their help.
const GAUGES: &[(&str, &str)] = &[
    ("remote_page_bytes", "Bytes of remote pages; at most a quarter of the capacity"),
    ("lent_bytes", "Bytes of pages that are being sent to peers and cannot be evicted"),
    ("planned_bytes", "Bytes of cached pages that jobs will read"),
    ("announced_bytes", "Bytes of cached pages whose next use a job has announced"),
    ("client_pinned_bytes", "Bytes of pages that programs have mapped"),
    ("closes_waiting", "Packets of foreign descriptors to close; if constant, a server does not answer"),
    ("dirty_files", "Files that the PFS does not have yet"),
    ("dirty_bytes", "Memory that they take"),
    ("parked_files", "Of these, files that the PFS does not take; `forebay dirty` says why"),
    ("oldest_dirty_seconds", "Time for which the oldest of the others has waited to be written"),
    ("certificate_expires_timestamp_seconds", "When the node's certificate ends, since 1970"),
    ("held_files", "Copies that programs map, also those that an earlier agent let them map"),
    ("tmpfs_free_bytes", "Free bytes of the tier's file system"),
    ("tmpfs_total_bytes", "Size of the tier's file system"),
];

/// What a value among the counters of a status is; empty for one of another version.
pub fn help(name: &str) -> &'static str {
    let known = GAUGES.iter().chain(HELP).find(|known| known.0 == name);
    known.map_or("", |known| known.1.trim().trim_end_matches('.'))
}

/// Everything that an agent reports of itself and of the coordinator's jobs.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub status: Status,
    pub memory: MemoryStatus,
    /// None if the coordinator does not answer.
    pub jobs: Option<Vec<JobStatus>>,
}

impl Snapshot {
    /// Writes them.
    pub fn write(&self, page: &mut Page) {
        self.agent(page);
        self.memory(page);
        self.mounts(page);
        self.traffic(page);
        self.cluster(page);
        for (name, value) in &self.status.counters {
            if GAUGES.iter().any(|gauge| gauge.0 == name) {
                page.gauge(name, help(name), *value as f64);
            } else {
                page.counter(name, help(name), *value as f64);
            }
        }
    }

    fn agent(&self, page: &mut Page) {
        let s = &self.status;
        page.gauge("uptime_seconds", "Time since the agent's start", s.uptime_ms as f64 / 1e3);
        page.gauge("capacity_bytes", "Budget for everything the agent uses", s.capacity_bytes as f64);
        page.family("used_bytes", "gauge", "Bytes of the budget in use");
        for (class, bytes) in &s.used_bytes {
            page.sample("used_bytes", &[("class", class)], *bytes as f64);
        }
        page.gauge("resident_bytes", "Bytes of cached pages", s.resident_bytes as f64);
        page.gauge("pinned_bytes", "Bytes of pinned files", s.pinned_bytes as f64);
        page.gauge("cached_files", "Cached files", s.files as f64);
        page.gauge("memory_only_files", "Memory-only files", s.scratch_files as f64);
        page.gauge("connections", "Open connections of programs", s.connections as f64);
    }

    fn memory(&self, page: &mut Page) {
        let m = &self.memory;
        let target = f64::from(m.target_per_10000) / 1e4;
        page.gauge("memory_target_ratio", "Share of the memory that may be in use", target);
        page.gauge("tier_bytes", "Bytes that the tier holds, buffers included", m.tier_bytes as f64);
        page.gauge("tier_min_bytes", "The least that the tier may have", m.min_bytes as f64);
        page.gauge("tier_max_bytes", "The most that the operator allows the tier", m.max_bytes as f64);
        page.family("memory_total_bytes", "gauge", "Memory of the node, and limits of control groups");
        for place in &m.places {
            page.sample("memory_total_bytes", &[("place", &place.name)], place.total_bytes as f64);
        }
        page.family("memory_used_bytes", "gauge", "Memory in use that cannot be taken back at once");
        for place in &m.places {
            page.sample("memory_used_bytes", &[("place", &place.name)], place.used_bytes as f64);
        }
        let problems = self.status.memory_problems.len() as f64;
        page.gauge("memory_problems", "Places whose memory use cannot be read now", problems);
    }

    fn mounts(&self, page: &mut Page) {
        type Of = fn(&forebay_wire::MountStatus) -> f64;
        let families: [(&str, &str, &str, Of); 6] = [
            ("mount_up", "gauge", "Whether the PFS is mounted", |m| f64::from(u8::from(m.mounted))),
            ("mount_cached", "gauge", "Whether files are cached", |m| f64::from(u8::from(m.cached))),
            ("mount_fetched_bytes", "counter", "Bytes read from the PFS", |m| m.fetched_bytes as f64),
            ("mount_fetch_errors", "counter", "Fetches that failed", |m| m.fetch_errors as f64),
            ("mount_fetches_pending", "gauge", "Fetches waiting or in progress", |m| {
                m.fetches_pending as f64
            }),
            ("mount_slowest_fetch_seconds", "gauge", "Age of the oldest fetch in progress", |m| {
                m.slowest_ms as f64 / 1e3
            }),
        ];
        for (name, kind, help, of) in families {
            page.family(name, kind, help);
            let sample = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            for mount in &self.status.mounts {
                page.sample(&sample, &[("mount", &mount.label)], of(mount));
            }
        }
    }

    /// What jobs move on each server; as many rows as a status has.
    fn traffic(&self, page: &mut Page) {
        type Of = fn(&ServerTraffic) -> f64;
        let families: [(&str, &str, Of); 4] = [
            ("job_read_bytes", "Bytes that the agent has read from the PFS for a job", |s| {
                s.read_bytes as f64
            }),
            ("job_written_bytes", "Bytes that it has written there", |s| s.written_bytes as f64),
            ("job_calls", "Reads and writes of the PFS for a job", |s| s.calls as f64),
            ("job_waited_seconds", "Time that these have taken, added up", |s| s.waited_ms as f64 / 1e3),
        ];
        for (name, help, of) in families {
            page.family(name, "counter", help);
            for job in &self.status.traffic {
                let user = job.job.user.to_string();
                for server in &job.servers {
                    let labels = [
                        ("user", user.as_str()),
                        ("job", &job.job.job),
                        ("mount", &server.mount),
                        ("server", &server.server),
                    ];
                    page.sample(&format!("{name}_total"), &labels, of(server));
                }
            }
        }
        let limited = || self.status.traffic.iter().filter(|job| job.limit_bytes_per_s.is_some());
        page.family("job_limit_bytes_per_second", "gauge", "Rate limit of a job, of all nodes together");
        for job in limited() {
            let labels = [("user", job.job.user.to_string()), ("job", job.job.job.clone())];
            let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
            page.sample("job_limit_bytes_per_second", &labels, job.limit_bytes_per_s.unwrap_or(0) as f64);
        }
        page.family("job_held_seconds", "counter", "Time that requests of a job have waited for its limit");
        for job in self.status.traffic.iter().filter(|job| job.held_ms > 0) {
            let labels = [("user", job.job.user.to_string()), ("job", job.job.job.clone())];
            let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
            page.sample("job_held_seconds_total", &labels, job.held_ms as f64 / 1e3);
        }
    }

    fn cluster(&self, page: &mut Page) {
        let c = &self.status.cluster;
        let is_connected = f64::from(u8::from(c.connected));
        page.gauge("coordinator_connected", "Whether the coordinator answers", is_connected);
        page.gauge("coordinator_term", "Term of the last elected coordinator; 0: none", c.leader.1 as f64);
        let changed = c.since_ms as f64 / 1e3;
        page.gauge(
            "coordinator_connection_seconds",
            "Time since the coordinator was joined, or lost",
            changed,
        );
        page.gauge("cluster_members", "Nodes that the coordinator knows", c.view.nodes.len() as f64);
        page.gauge("peers_avoided", "Peers that are not asked for now", c.avoided.len() as f64);
        let Some(jobs) = &self.jobs else { return };
        let running: Vec<&JobStatus> = jobs.iter().filter(|job| !job.ended).collect();
        page.gauge("jobs_running", "Analytics jobs that have not ended", running.len() as f64);
        let stages = || running.iter().flat_map(|job| &job.stages);
        let tasks: f64 = stages().map(|stage| f64::from(stage.tasks_running)).sum();
        page.gauge("tasks_running", "Running tasks of these jobs", tasks);
        let waiting: f64 = stages().map(|stage| f64::from(stage.tasks_waiting)).sum();
        page.gauge("tasks_waiting", "Of these, tasks that wait for their input", waiting);
        let waves = || stages().flat_map(|stage| &stage.waves);
        let (bytes, fetched) = waves()
            .fold((0.0_f64, 0.0_f64), |sum, w| (sum.0 + w.bytes as f64, sum.1 + w.fetched_bytes as f64));
        page.gauge("waves_input_bytes", "Input of all waves of these jobs", bytes);
        page.gauge("waves_prefetched_bytes", "Prefetched bytes of it", fetched);
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::Format;
    use super::*;
    use forebay_wire::MountStatus;

    fn snapshot() -> Snapshot {
        let counters = vec![
            ("opens_total".to_owned(), 3),
            ("fetched_bytes".to_owned(), 4096),
            ("held_files".to_owned(), 2),
        ];
        let mount = MountStatus { label: "a\"b\\c\nd".into(), mounted: true, ..MountStatus::default() };
        let status = Status { counters, mounts: vec![mount], ..Status::default() };
        Snapshot { status, ..Snapshot::default() }
    }

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        snapshot().write(&mut page);
        page.end()
    }

    #[test]
    fn counters_end_in_total_and_gauges_do_not() {
        let text = page(Format::OpenMetrics);
        assert!(text.contains("# TYPE forebay_opens counter\n"), "{text}");
        assert!(
            text.contains("# HELP forebay_opens Files opened through the agent\nforebay_opens_total 3\n")
        );
        assert!(text.contains("# UNIT forebay_fetched_bytes bytes\n"), "{text}");
        assert!(text.contains("forebay_fetched_bytes_total 4096\n") && text.ends_with("# EOF\n"));
        assert!(text.contains("# TYPE forebay_held_files gauge\n"));
        let plain = page(Format::Plain);
        assert!(plain.contains("# TYPE forebay_opens_total counter\n"), "{plain}");
        assert!(!plain.contains("# UNIT") && !plain.contains("EOF"));
    }

    #[test]
    fn labels_are_escaped() {
        let text = page(Format::Plain);
        assert!(text.contains(r#"forebay_mount_up{mount="a\"b\\c\nd"} 1"#), "{text}");
    }
}
