//! What jobs move on all nodes, and how their rate limits are divided among the nodes.
//!
//! Each node reports once a second what its jobs move, while any does. The nodes on which a limited
//! job pays for something share its limit ([`forebay_policy::job_limits`]).

use forebay_policy::job_limits::{Demand, Rule, Rules, shares};
use forebay_policy::machine::Nanos;
use forebay_wire::traffic::{SERVERS_SHOWN_MAX, most_active};
use forebay_wire::{JobName, JobTraffic};
use std::collections::BTreeMap;

/// How often the limits are divided.
const EVERY_NS: u64 = 1_000_000_000;

/// A node hears of shares that differ by more than one part in this many.
const CHANGE_PARTS: u64 = 16;

/// What one node may move of each limited job.
type Shares = BTreeMap<JobName, u64>;

/// See the module.
#[derive(Debug, Default)]
pub struct Limits {
    rules: Rules,
    /// What jobs move by node, as last reported.
    moved: BTreeMap<String, Vec<JobTraffic>>,
    /// Shares by node, as last sent.
    sent: BTreeMap<String, Shares>,
    /// When they were divided last.
    divided: Nanos,
}

impl Limits {
    /// Takes in limits that a node knows; returns those that the others do not.
    pub fn merge(&mut self, limits: Vec<Rule>) -> Vec<Rule> {
        limits.into_iter().filter(|limit| self.rules.merge(limit.clone())).collect()
    }

    /// All of them, including those that were lifted.
    pub fn all(&self) -> Vec<Rule> {
        self.rules.all().to_vec()
    }

    /// Takes in what a node reports of its jobs.
    pub fn report(&mut self, node: &str, moved: Vec<JobTraffic>) {
        self.moved.insert(node.to_owned(), moved);
    }

    /// Forgets what is known of a node that has joined, or is gone.
    pub fn forget(&mut self, node: &str) {
        self.moved.remove(node);
        self.sent.remove(node);
    }

    /// Whether the limits have to be divided again: once a second, if there are any or were.
    pub fn is_due(&mut self, now: Nanos) -> bool {
        let is_due = now.saturating_since(self.divided) >= EVERY_NS;
        if is_due {
            self.divided = now;
        }
        is_due && (self.rules.in_force().next().is_some() || self.sent.values().any(|sent| !sent.is_empty()))
    }

    /// Divides the limits; returns the shares of the nodes that have to hear of them.
    pub fn divide(&mut self) -> Vec<(String, Vec<(JobName, u64)>)> {
        let mut wanted: BTreeMap<&JobName, Vec<(&String, Demand)>> = BTreeMap::new();
        for (node, jobs) in &self.moved {
            for job in jobs {
                let is_held = job.was_held || job.held > 0;
                let demand = Demand { bytes_per_s: job.paid_bytes_per_s, is_held };
                if demand != Demand::default() {
                    wanted.entry(&job.job).or_default().push((node, demand));
                }
            }
        }
        let mut of_nodes: BTreeMap<String, Shares> =
            self.moved.keys().map(|node| (node.clone(), Shares::new())).collect();
        for (name, nodes) in wanted {
            let Some(rate) = self.rules.rate_of(name.user, &name.job) else { continue };
            let demands: Vec<Demand> = nodes.iter().map(|(_, demand)| *demand).collect();
            for ((node, _), share) in nodes.iter().zip(shares(rate, &demands)) {
                of_nodes.entry((*node).clone()).or_default().insert(name.clone(), share);
            }
        }
        let mut to_send = Vec::new();
        for (node, shares) in of_nodes {
            let sent = self.sent.entry(node.clone()).or_default();
            if differ(sent, &shares) {
                sent.clone_from(&shares);
                to_send.push((node, shares.into_iter().collect()));
            }
        }
        to_send
    }

    /// What jobs move on one node, as it reported last.
    pub fn traffic_of(&self, node: &str) -> Vec<JobTraffic> {
        self.moved.get(node).cloned().unwrap_or_default()
    }

    /// What jobs move on all nodes, those that move most first.
    pub fn traffic(&self) -> Vec<JobTraffic> {
        let mut jobs: BTreeMap<&JobName, JobTraffic> = BTreeMap::new();
        for job in self.moved.values().flatten() {
            let sum = jobs
                .entry(&job.job)
                .or_insert_with(|| JobTraffic { job: job.job.clone(), ..JobTraffic::default() });
            sum.add(job);
            sum.limit_bytes_per_s = self.rules.rate_of(job.job.user, &job.job.job);
        }
        most_active(jobs.into_values().collect(), SERVERS_SHOWN_MAX)
    }
}

fn differ(sent: &Shares, now: &Shares) -> bool {
    let is_other = |(name, share): (&JobName, &u64)| {
        sent.get(name).is_none_or(|sent| sent.abs_diff(*share) > sent / CHANGE_PARTS)
    };
    sent.len() != now.len() || now.iter().any(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::ServerTraffic;

    fn name() -> JobName {
        JobName { user: 7, job: "climate".into() }
    }

    fn moving(paid_bytes_per_s: u64, was_held: bool) -> Vec<JobTraffic> {
        let server = ServerTraffic { read_bytes: 9, read_bytes_per_s: 5, ..ServerTraffic::default() };
        let servers = vec![server];
        vec![JobTraffic { job: name(), paid_bytes_per_s, was_held, servers, ..JobTraffic::default() }]
    }

    fn limit(rate: u64, set_ms: u64) -> Rule {
        Rule { job: "climate".into(), rate_bytes_per_s: Some(rate), set_ms, ..Rule::default() }
    }

    #[test]
    fn nodes_share_a_limit_and_hear_of_changes_that_matter() {
        let mut limits = Limits::default();
        assert_eq!(limits.merge(vec![limit(1000, 1)]).len(), 1);
        assert_eq!(limits.merge(vec![limit(2000, 1), limit(500, 0)]).len(), 1, "the higher of one moment");
        limits.report("a", moving(100, true));
        assert_eq!(limits.divide(), [("a".to_owned(), vec![(name(), 2000)])]);
        limits.report("b", moving(100, true));
        let both = limits.divide();
        assert_eq!(both.len(), 2);
        assert!(both.iter().all(|(_, shares)| shares == &[(name(), 1000)]), "{both:?}");
        assert!(limits.divide().is_empty(), "nothing new");
        limits.report("b", moving(0, false));
        assert!(limits.divide().contains(&("a".to_owned(), vec![(name(), 2000)])));
        let traffic = limits.traffic();
        assert_eq!((traffic.len(), traffic[0].limit_bytes_per_s, traffic[0].bytes()), (1, Some(2000), 18));
        limits.forget("a");
        assert_eq!(limits.traffic()[0].bytes(), 9);
    }
}
