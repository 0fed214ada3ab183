//! Files that are dirty on other nodes: one node has the newest bytes of a file, and all others
//! find them there.
//!
//! Before a program gets to write a file into the tier, its node *claims* the file at the
//! coordinator. A program on another node that opens an empty or recent file, which may be such a
//! one, has its agent ask the coordinator, and gets the whole content as its holder has it at that
//! time. A program on another node that writes the file calls it in: its holder writes what it has
//! to the PFS, where both continue.
//!
//! A pass makes a file recent on the PFS, and one that takes long is stamped again, so that nobody
//! mistakes half a file for a whole one.

use crate::cache::held::Held;
use crate::cluster::Cluster;
use crate::coordinator::claims::Claims;
use crate::fetch::peer_link::Link as PeerLink;
use crate::lock::lock;
use forebay_pfs::lease::is_alone;
use forebay_wire::cluster::DirtyFile;
use forebay_wire::link::Security;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long to retry a holder that does not answer: its agent may be restarting.
pub(super) const HOLDER_MAX: Duration = Duration::from_secs(15);
pub(super) const HOLDER_PAUSE: Duration = Duration::from_millis(200);

/// A PFS that hangs holds nobody here for longer.
const CALL_IN_MAX: Duration = Duration::from_secs(600);

/// How long no byte of a content may come before its holder counts as gone.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long a content that nobody reads is kept: other programs of the job come a little later.
const UNUSED_MAX: Duration = Duration::from_secs(5);

/// What this node knows of the dirty files of all.
#[derive(Debug)]
pub struct Elsewhere {
    claims: Arc<Claims>,
    cluster: Arc<Cluster>,
    security: Security,
    /// Contents of files of other nodes.
    pub(super) contents: Mutex<BTreeMap<DirtyFile, Arc<Mutex<Contents>>>>,
}

/// The contents of one file: the last is the newest, the others are still read here.
pub(super) type Contents = Vec<Content>;

#[derive(Debug)]
pub(super) struct Content {
    pub(super) fd: OwnedFd,
    /// Length, and mtime in nanoseconds since 1970, at its holder; `None` if it may have changed
    /// without another time.
    pub(super) stamp: Option<(u64, i64)>,
    pub(super) used: Instant,
    pub(super) _room: Held,
}

impl Elsewhere {
    /// Starts with nothing dirty.
    pub fn new(claims: Arc<Claims>, cluster: Arc<Cluster>, security: Security) -> Self {
        Elsewhere { claims, cluster, security, contents: Mutex::default() }
    }

    /// What this node has reported.
    pub fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// The nodes.
    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn connect(&self, holder: &str, deadline: Instant) -> io::Result<PeerLink> {
        let view = self.cluster.view();
        let node = view.cluster.nodes.iter().find(|node| node.name == holder);
        let node = node.filter(|node| !node.address.is_empty());
        let node = node.ok_or_else(|| io::Error::other("it serves no peers"))?;
        PeerLink::connect(&self.security, self.cluster.node(), node, deadline)
    }

    /// Has the holder write the file to the PFS, and waits for that: at most for `patience`, or
    /// with `gives_up` false, as long as the holder is doing it, up to [`CALL_IN_MAX`]. Returns
    /// whether it has happened.
    pub fn call_in(
        &self,
        holder: &str,
        file: &DirtyFile,
        truncated: bool,
        patience: Duration,
        gives_up: bool,
    ) -> bool {
        let mut empties = truncated;
        let last = Instant::now() + CALL_IN_MAX;
        let mut until = Instant::now() + patience;
        while Instant::now() < until {
            let called = self.connect(holder, until).and_then(|mut link| {
                loop {
                    let is_last = gives_up && Instant::now() + SILENCE_MAX / 10 > until;
                    if link.call_in(file, empties, is_last, Instant::now() + SILENCE_MAX)? || is_last {
                        return Ok(!is_last);
                    }
                    empties = false;
                    if !gives_up {
                        until = last.min(Instant::now() + patience);
                    }
                    if Instant::now() >= last {
                        return Ok(false);
                    }
                }
            });
            match called {
                Ok(is_done) => return is_done,
                Err(e) => tracing::debug!(holder, error = %e, "cannot call in a file of another node"),
            }
            std::thread::sleep(HOLDER_PAUSE);
        }
        false
    }

    /// Gives back the memory of contents that nobody reads.
    pub fn keep_house(&self) {
        lock(&self.contents).retain(|_, contents| {
            let Ok(mut of_file) = contents.try_lock() else { return true };
            let last = of_file.len();
            let mut number = 0;
            of_file.retain(|content| {
                number += 1;
                let is_fresh = number == last && content.used.elapsed() < UNUSED_MAX;
                is_fresh || !is_alone(content.fd.as_fd())
            });
            let is_wanted = !of_file.is_empty() || Arc::strong_count(contents) > 1;
            drop(of_file);
            is_wanted
        });
    }
}
