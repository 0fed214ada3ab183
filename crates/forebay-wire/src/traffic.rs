//! Jobs by their traffic with the PFS: what each moves on which server, and their rate limits.
//!
//! A job is what programs of one user call by one name ([`crate::Request::SetJob`]); programs
//! without a name are one job of their user, with an empty name.

use crate::counted::sequence;
pub use forebay_policy::job_limits::Rule as Limit;
use serde::{Deserialize, Serialize};

/// Bytes of the longest name of a job.
pub const JOB_NAME_BYTES_MAX: usize = 256;

/// Whether a job may have this name.
pub fn is_job_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= JOB_NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

/// Rows of servers, of all jobs together, that people are shown.
pub const SERVERS_SHOWN_MAX: usize = 256;

/// The same in a report to the coordinator, which keeps one of each node.
pub const SERVERS_REPORTED_MAX: usize = 64;

/// A job of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobName {
    /// The user.
    pub user: u32,
    /// The name; empty: programs without one.
    pub job: String,
}

/// What a job moves, on one node or on all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTraffic {
    /// The job.
    pub job: JobName,
    /// Its rate limit for all nodes together.
    pub limit_bytes_per_s: Option<u64>,
    /// Bytes that the limit has let go in the last second. A node pays for the pages that other
    /// nodes read for it, and these do not.
    pub paid_bytes_per_s: u64,
    /// Time that its requests have waited for the limit, in milliseconds.
    pub held_ms: u64,
    /// It has kept requests waiting in the last second.
    pub was_held: bool,
    /// Requests that wait for it now.
    pub held: u32,
    /// By server. Those of a job begin with its first traffic.
    #[serde(deserialize_with = "sequence")]
    pub servers: Vec<ServerTraffic>,
}

/// What a job moves to and from one server of a PFS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTraffic {
    /// Label of the mount.
    pub mount: String,
    /// The server; empty if the PFS does not report it.
    pub server: String,
    /// Bytes read since the agent's start.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Rate of reads over the last second.
    pub read_bytes_per_s: u64,
    /// Rate of writes.
    pub written_bytes_per_s: u64,
    /// Reads and writes.
    pub calls: u64,
    /// Time that they have taken, in milliseconds, added up.
    pub waited_ms: u64,
    /// The same in the last second: more than 1000 if several waited at a time.
    pub waited_ms_per_s: u64,
}

impl JobTraffic {
    /// Bytes per second, both ways.
    pub fn bytes_per_s(&self) -> u64 {
        self.servers.iter().map(|s| s.read_bytes_per_s + s.written_bytes_per_s).sum()
    }

    /// Bytes since the start, both ways.
    pub fn bytes(&self) -> u64 {
        self.servers.iter().map(|s| s.read_bytes + s.written_bytes).sum()
    }

    /// Adds what another node reports of the same job.
    pub fn add(&mut self, other: &JobTraffic) {
        self.limit_bytes_per_s = self.limit_bytes_per_s.or(other.limit_bytes_per_s);
        self.paid_bytes_per_s += other.paid_bytes_per_s;
        self.held_ms += other.held_ms;
        self.was_held |= other.was_held;
        self.held += other.held;
        for theirs in &other.servers {
            let is_same =
                |ours: &&mut ServerTraffic| (&ours.mount, &ours.server) == (&theirs.mount, &theirs.server);
            match self.servers.iter_mut().find(is_same) {
                Some(ours) => ours.add(theirs),
                None => self.servers.push(theirs.clone()),
            }
        }
    }
}

impl ServerTraffic {
    fn add(&mut self, other: &ServerTraffic) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.read_bytes_per_s += other.read_bytes_per_s;
        self.written_bytes_per_s += other.written_bytes_per_s;
        self.calls += other.calls;
        self.waited_ms += other.waited_ms;
        self.waited_ms_per_s += other.waited_ms_per_s;
    }
}

/// The jobs and servers that move most now, and then those that have moved most: at most `rows`
/// rows.
pub fn most_active(mut jobs: Vec<JobTraffic>, rows: usize) -> Vec<JobTraffic> {
    // The coordinator divides a limit by what it hears.
    let pays = |job: &JobTraffic| job.limit_bytes_per_s.is_some() && job.paid_bytes_per_s > 0;
    jobs.sort_by_key(|job| std::cmp::Reverse((pays(job), job.bytes_per_s(), job.held, job.bytes())));
    let mut left = rows;
    for job in &mut jobs {
        job.servers.sort_by_key(|s| {
            std::cmp::Reverse((s.read_bytes_per_s + s.written_bytes_per_s, s.read_bytes + s.written_bytes))
        });
        job.servers.truncate(left);
        left -= job.servers.len();
    }
    jobs.retain(|job| !job.servers.is_empty() || job.held_ms > 0 || pays(job));
    jobs.truncate(rows);
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, servers: &[(&str, u64)]) -> JobTraffic {
        let server = |(server, read_bytes): &(&str, u64)| ServerTraffic {
            server: (*server).into(),
            read_bytes: *read_bytes,
            read_bytes_per_s: *read_bytes,
            ..ServerTraffic::default()
        };
        let name = JobName { user: 1, job: name.into() };
        JobTraffic { job: name, servers: servers.iter().map(server).collect(), ..JobTraffic::default() }
    }

    #[test]
    fn nodes_add_up_by_server_and_the_most_active_come_first() {
        let mut sum = job("a", &[("s1", 5)]);
        sum.add(&job("a", &[("s1", 2), ("s2", 1)]));
        assert_eq!((sum.bytes(), sum.servers.len()), (8, 2));
        let many: Vec<_> = (0..SERVERS_SHOWN_MAX as u64).map(|n| ("s", n)).collect();
        let shown = most_active(
            vec![job("b", &[("s1", 1)]), sum, job("c", &many), job("idle", &[])],
            SERVERS_SHOWN_MAX,
        );
        let names: Vec<_> = shown.iter().map(|job| job.job.job.as_str()).collect();
        assert_eq!(names, ["c"], "the others have no rows left");
        assert_eq!(shown[0].servers[0].read_bytes, SERVERS_SHOWN_MAX as u64 - 1);
    }
}
