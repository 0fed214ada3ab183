//! How much each job moves on each server of the file systems, and how long it waits there.

use crate::out::short;
use forebay_agent::units::Human;
use forebay_wire::{JobTraffic, ServerTraffic};
use std::collections::BTreeMap;

/// A table by server, the busiest first: jobs that share a server are next to each other. Jobs that
/// move nothing now follow. Empty if there are none.
pub fn table(jobs: &[JobTraffic]) -> Vec<String> {
    let rows: Vec<(&JobTraffic, &ServerTraffic)> =
        jobs.iter().flat_map(|job| job.servers.iter().map(move |server| (job, server))).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let now = |s: &ServerTraffic| s.read_bytes_per_s + s.written_bytes_per_s;
    let mut of_servers: BTreeMap<(&str, &str), (u64, Vec<_>)> = BTreeMap::new();
    for (job, server) in rows {
        let of_server = of_servers.entry((&server.mount, &server.server)).or_default();
        of_server.0 += now(server);
        of_server.1.push((job, server));
    }
    let mut of_servers: Vec<_> = of_servers.into_iter().collect();
    of_servers.sort_by_key(|(_, (rate, _))| std::cmp::Reverse(*rate));
    let mut lines = vec![format!(
        "{:<24} {:<20} {:>6} {:>11} {:>11} {:>6} {:>9} {:>10} {:>10}  LIMIT",
        "SERVER", "JOB", "USER", "READS", "WRITES", "SHARE", "WAITS", "READ", "WRITTEN"
    )];
    for ((mount, server), (rate, mut rows)) in of_servers {
        rows.sort_by_key(|(_, s)| std::cmp::Reverse((now(s), s.read_bytes + s.written_bytes)));
        let place = if server.is_empty() { mount.to_owned() } else { format!("{mount} {server}") };
        for (job, s) in rows {
            let share = (now(s) * 100).checked_div(rate).map_or("-".to_owned(), |share| format!("{share} %"));
            lines.push(format!(
                "{:<24} {:<20} {:>6} {:>11} {:>11} {share:>6} {:>7} ms {:>10} {:>10}  {}",
                short(&place, 24),
                short(if job.job.job.is_empty() { "-" } else { &job.job.job }, 20),
                job.job.user,
                format!("{}/s", Human(s.read_bytes_per_s)),
                format!("{}/s", Human(s.written_bytes_per_s)),
                s.waited_ms_per_s,
                Human(s.read_bytes).to_string(),
                Human(s.written_bytes).to_string(),
                limit(job),
            ));
        }
    }
    lines
}

fn limit(job: &JobTraffic) -> String {
    match (job.limit_bytes_per_s, job.held) {
        (None, _) => "-".into(),
        (Some(rate), 0) => format!("{}/s", Human(rate)),
        (Some(rate), held) => format!("{}/s, {held} wait for it", Human(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::JobName;

    #[test]
    fn jobs_that_share_a_server_stand_together_with_their_shares() {
        let job = |name: &str, servers: &[(&str, u64)]| JobTraffic {
            job: JobName { user: 7, job: name.into() },
            limit_bytes_per_s: (name == "slow").then_some(1 << 20),
            servers: servers
                .iter()
                .map(|(server, rate)| ServerTraffic {
                    mount: "pfs".into(),
                    server: (*server).into(),
                    read_bytes_per_s: *rate,
                    ..ServerTraffic::default()
                })
                .collect(),
            ..JobTraffic::default()
        };
        let lines = table(&[
            job("fast", &[("s1", 300), ("s2", 10)]),
            job("slow\n", &[]),
            job("slow", &[("s1", 100)]),
        ]);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[1].starts_with("pfs s1") && lines[1].contains("fast") && lines[1].contains("75 %"));
        assert!(lines[2].starts_with("pfs s1") && lines[2].contains("slow") && lines[2].contains("25 %"));
        assert!(lines[2].ends_with("1.00 MiB/s") && lines[3].contains("100 %"), "{lines:?}");
        assert!(table(&[]).is_empty());
    }
}
