//! Where the coordinator is.

use forebay_wire::link::{Security, Stream};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// Bytes sent and not acknowledged by the coordinator's machine end the connection after this time.
/// Without it a machine that has vanished would be noticed after a quarter of an hour.
const UNACKNOWLEDGED_MS: u32 = 5000;

/// How long one of several candidates may take to accept a connection: its machine may be gone, and
/// another one may lead.
const CANDIDATE_TIME: Duration = Duration::from_secs(1);

/// A way to the coordinator of this very process.
pub type Connect = dyn Fn() -> io::Result<Stream> + Send + Sync;

/// Where the coordinator is.
pub enum CoordinatorAddress {
    /// In this process.
    Local(Box<Connect>),
    /// At one of these, each `HOST:PORT`: the candidates, or the only one.
    Remote(Vec<String>, Security),
}

impl fmt::Debug for CoordinatorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoordinatorAddress::Local(_) => f.write_str("Local"),
            CoordinatorAddress::Remote(candidates, _) => f.write_str(&candidates.join(", ")),
        }
    }
}

impl CoordinatorAddress {
    /// Connects to the coordinator of this process, or to the one at `address`.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn connect(&self, address: &str, deadline: Instant) -> io::Result<Stream> {
        match self {
            CoordinatorAddress::Local(connect) => connect(),
            CoordinatorAddress::Remote(candidates, security) => {
                let is_one_of_many = candidates.len() > 1;
                let soon = Instant::now() + CANDIDATE_TIME;
                let stream = security.connect(address, if is_one_of_many { soon } else { deadline })?;
                rustix::net::sockopt::set_tcp_user_timeout(stream.socket(), UNACKNOWLEDGED_MS)?;
                Ok(stream)
            }
        }
    }

    /// The candidates; one without a name for the coordinator of this process.
    pub(super) fn candidates(&self) -> Vec<String> {
        match self {
            CoordinatorAddress::Local(_) => vec![String::new()],
            CoordinatorAddress::Remote(candidates, _) => candidates.clone(),
        }
    }
}

/// Which candidate to try next: the one that another has named, or else one after the other.
#[derive(Debug)]
pub(super) struct Search {
    candidates: Vec<String>,
    at: usize,
    named: Option<String>,
    /// Tries since the last pause.
    tries: usize,
}

impl Search {
    /// Begins with one of them; agents begin with different ones.
    pub(super) fn new(candidates: Vec<String>, first: usize) -> Self {
        let at = first % candidates.len().max(1);
        Search { candidates, at, named: None, tries: 0 }
    }

    /// The next one.
    pub(super) fn next(&mut self) -> String {
        self.tries += 1;
        if let Some(named) = self.named.take() {
            return named;
        }
        let next = self.candidates[self.at].clone();
        self.at = (self.at + 1) % self.candidates.len();
        next
    }

    /// Takes the leader that the candidate just tried has named.
    pub(super) fn name(&mut self, leader: String) {
        self.named = Some(leader).filter(|leader| !leader.is_empty());
    }

    /// Whether all have been tried since the last time, so that it is time for a pause.
    pub(super) fn is_round_over(&mut self) -> bool {
        // Each may have named one.
        let is_over = self.tries >= self.candidates.len() * 2
            || self.named.is_none() && self.tries >= self.candidates.len();
        if is_over {
            (self.tries, self.named) = (0, None);
        }
        is_over
    }

    /// Records that the candidate at `address` was the right one. When it is lost, the others come
    /// before it.
    pub(super) fn found(&mut self, address: &str) {
        (self.tries, self.named) = (0, None);
        if let Some(at) = self.candidates.iter().position(|candidate| candidate == address) {
            self.at = (at + 1) % self.candidates.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_candidate_is_tried_and_the_one_that_is_named_first() {
        let mut search = Search::new(vec!["a".into(), "b".into()], 3);
        assert_eq!(search.next(), "b");
        search.name("x".into());
        assert!(!search.is_round_over());
        assert_eq!(search.next(), "x");
        assert!(search.is_round_over(), "as many were tried as there are");
        assert_eq!((search.next(), search.is_round_over()), ("a".into(), false));
        search.name(String::new());
        assert_eq!((search.next(), search.is_round_over()), ("b".into(), true));
        search.found("a");
        assert_eq!(search.next(), "b", "the one that was lost comes last");
        let mut one = Search::new(vec!["a".into()], 0);
        assert_eq!((one.next(), one.is_round_over()), ("a".into(), true));
    }
}
