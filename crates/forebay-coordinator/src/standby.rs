//! What a candidate does with agents while it does not lead: it names the leader, or lets them wait
//! for the next one.
//!
//! An agent that has lost the leader comes to a candidate before there is another one. If it were
//! refused it would come again and again, each time with a proof of who it is. So its join is kept,
//! and answered when the next leader is known: by this candidate, if that is it.

use crate::members::Session;
use forebay_policy::machine::Nanos;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, ToAgent, ToCoordinator};
use std::collections::BTreeMap;

/// How long a join is kept: longer than an election takes, where all agents prove themselves
/// meanwhile, and less than an agent waits for its welcome.
const KEPT_NS: u64 = 4_500_000_000;

/// How often joins that are kept are looked at.
const LOOK_NS: u64 = 100_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Standby {
    /// Where the leader is, and its term.
    leader: Option<(String, u64)>,
    /// Why nobody leads.
    problem: String,
    kept: BTreeMap<Session, (Nanos, ToCoordinator)>,
}

impl Standby {
    /// Notes who leads, or that nobody does because of a problem.
    pub fn set(&mut self, leader: Option<(String, u64)>, problem: String) {
        (self.leader, self.problem) = (leader, problem);
    }

    /// Where the leader is, and its term; and why nobody leads.
    pub fn leader(&self) -> (Option<&(String, u64)>, &str) {
        (self.leader.as_ref(), &self.problem)
    }

    /// Handles what an agent says. Only a join is kept; `false`: the connection is of no use.
    pub fn hear(&mut self, now: Nanos, session: Session, message: ToCoordinator) -> bool {
        let is_join = matches!(message, ToCoordinator::Join { .. });
        is_join && self.kept.insert(session, (now, message)).is_none()
    }

    /// Notes that the connection is gone.
    pub fn forget(&mut self, session: Session) {
        self.kept.remove(&session);
    }

    /// The joins that are answered now, and their answers.
    pub fn answers(&mut self, now: Nanos) -> Vec<(Session, ToAgent)> {
        let leader_term = self.leader.as_ref().map_or(0, |(_, term)| *term);
        let is_over = |since: Nanos, join: &ToCoordinator| {
            let is_other = match join {
                ToCoordinator::Join { protocol, term, .. } => {
                    *protocol != CLUSTER_PROTOCOL || leader_term > *term
                }
                _ => true,
            };
            is_other || now.saturating_since(since) >= KEPT_NS
        };
        let kept = self.kept.iter().filter(|(_, (since, join))| is_over(*since, join));
        let over: Vec<Session> = kept.map(|(session, _)| *session).collect();
        over.iter().for_each(|session| self.forget(*session));
        over.into_iter().map(|session| (session, self.refusal())).collect()
    }

    fn refusal(&self) -> ToAgent {
        let refusal = match (&self.leader, self.problem.as_str()) {
            (Some((leader, _)), _) => format!("this candidate does not lead; the leader is {leader}"),
            (None, "") => "no candidate leads yet".to_owned(),
            (None, problem) => format!("no candidate leads: {problem}"),
        };
        let (leader, term) = self.leader.clone().unwrap_or_default();
        ToAgent::Welcome { protocol: CLUSTER_PROTOCOL, refusal, heartbeat_ms: 0, term, leader }
    }

    /// Takes all joins, since the candidate leads.
    pub fn take(&mut self) -> Vec<(Session, ToCoordinator)> {
        std::mem::take(&mut self.kept).into_iter().map(|(session, (_, join))| (session, join)).collect()
    }

    /// When there is something to do next.
    pub fn next_deadline(&self, now: Nanos) -> Option<Nanos> {
        (!self.kept.is_empty()).then(|| now + LOOK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::NodeInfo;

    fn join(term: u64) -> ToCoordinator {
        let node = NodeInfo::default();
        ToCoordinator::Join { protocol: CLUSTER_PROTOCOL, node, incarnation: 1, attempt: 0, term }
    }

    #[test]
    fn an_agent_that_has_lost_the_leader_waits_and_others_are_sent_there() {
        let mut standby = Standby::default();
        standby.set(Some(("n1:1".into(), 5)), String::new());
        assert!(standby.hear(Nanos(0), 1, join(0)) && standby.hear(Nanos(0), 2, join(5)));
        assert!(!standby.hear(Nanos(0), 3, ToCoordinator::Leave), "only a join is answered");
        let answers = standby.answers(Nanos(1));
        let [(1, ToAgent::Welcome { leader, term: 5, .. })] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(leader, "n1:1");
        standby.set(Some(("n2:1".into(), 6)), String::new());
        assert!(matches!(&standby.answers(Nanos(2))[..], [(2, ToAgent::Welcome { term: 6, .. })]));
    }

    #[test]
    fn nobody_waits_for_long_and_who_waits_hears_why() {
        let mut standby = Standby::default();
        standby.set(None, "etcd does not answer".into());
        standby.hear(Nanos(0), 1, join(5));
        assert!(standby.answers(Nanos(KEPT_NS - 1)).is_empty());
        let answers = standby.answers(Nanos(KEPT_NS));
        let [(1, ToAgent::Welcome { refusal, .. })] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(refusal, "no candidate leads: etcd does not answer");
        standby.hear(Nanos(0), 2, join(5));
        assert_eq!(standby.take(), [(2, join(5))]);
    }
}
