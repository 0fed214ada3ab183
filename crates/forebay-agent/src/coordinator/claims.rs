//! Which files are dirty on this node, as the coordinator is to know them, and questions about
//! those of other nodes.

use super::link::{Asked, Link};
use crate::cluster::Cluster;
use crate::lock::lock;
use forebay_wire::cluster::{DirtyFile, SHARED, ToCoordinator};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the coordinator's answer is waited for: longer than a new one waits for all agents to
/// report before it answers.
const ANSWER: Duration = Duration::from_secs(5);

/// Most files in one message, whose length is limited.
const REPORTED_AT_ONCE: usize = 50_000;

/// No agent asks this: nobody waits for the answer.
const NOBODY: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub struct Claims {
    link: Arc<Link>,
    cluster: Arc<Cluster>,
    /// Files of this node, and how often each is claimed.
    own: Mutex<BTreeMap<DirtyFile, u32>>,
}

/// A claim to a file, for as long as this lives.
#[derive(Debug)]
pub struct Claim<'a> {
    claims: &'a Claims,
    file: &'a DirtyFile,
    /// The other node on which it is dirty; an error if nobody knows.
    pub holder: io::Result<Option<String>>,
    /// The node, now gone, on which it was dirty until now; empty if there was none.
    pub before: String,
}

impl Claim<'_> {
    /// Whether other nodes may have written the file since this node, which was gone, had it.
    pub fn was_taken(&self) -> bool {
        let is_shared = self.holder.as_ref().is_ok_and(|holder| holder.as_deref() == Some(SHARED));
        is_shared || !self.before.is_empty() && self.before == self.claims.cluster.node()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.release(self.file, false);
    }
}

impl Claims {
    /// Claims of a node on which nothing is dirty.
    pub fn new(link: Arc<Link>, cluster: Arc<Cluster>) -> Self {
        Claims { link, cluster, own: Mutex::default() }
    }

    /// Whether there can be other nodes.
    pub fn are_others(&self) -> bool {
        self.cluster.has_others()
    }

    /// Claims the file as dirty here, unless it is dirty on another node.
    pub fn claim<'a>(&'a self, file: &'a DirtyFile) -> Claim<'a> {
        // Before the question: a new connection reports it.
        self.report(file.clone());
        let (holder, before) = match self.ask(Asked::Claims(file.clone())) {
            Ok((holder, before)) => (Ok(holder), before),
            Err(e) => (Err(e), String::new()),
        };
        Claim { claims: self, file, holder, before }
    }

    /// Reports a file that is dirty here, or claimed; counts it once more if it was before.
    pub fn report(&self, file: DirtyFile) {
        let mut own = lock(&self.own);
        let claims = own.entry(file.clone()).or_default();
        *claims += 1;
        if *claims == 1 {
            self.link.say(ToCoordinator::Dirty { ask: NOBODY, file }, None);
        }
    }

    /// Whether a file is dirty here, or claimed.
    pub fn has(&self, file: &DirtyFile) -> bool {
        lock(&self.own).contains_key(file)
    }

    /// Takes one [`Claims::report`] back.
    pub fn release(&self, file: &DirtyFile, is_shared: bool) {
        let mut own = lock(&self.own);
        let Some(claims) = own.get_mut(file) else { return };
        *claims -= 1;
        if *claims == 0 {
            own.remove(file);
            self.link.say(ToCoordinator::Clean { file: file.clone(), is_shared }, None);
        }
    }

    /// Hands all that a new connection has to report to `then`, after which it takes reports;
    /// meanwhile nothing changes.
    pub fn report_again(&self, then: impl FnOnce(Vec<ToCoordinator>)) {
        let own = lock(&self.own);
        let files: Vec<DirtyFile> = own.keys().cloned().collect();
        let (most, last) = files.split_at(files.len() - files.len() % REPORTED_AT_ONCE);
        let report =
            |files: &[DirtyFile], is_last| ToCoordinator::AllDirty { files: files.to_vec(), is_last };
        let most = most.chunks(REPORTED_AT_ONCE).map(|files| report(files, false));
        then(most.chain([report(last, true)]).collect());
    }

    /// The other node on which the file is dirty, if there is one.
    ///
    /// # Errors
    /// The coordinator does not answer.
    pub fn holder(&self, file: &DirtyFile) -> io::Result<Option<String>> {
        self.ask(Asked::Reads(file.clone())).map(|(holder, _)| holder)
    }

    /// Reports that programs here write the file to the PFS, though it is dirty on another node,
    /// which does not answer.
    pub fn note_written(&self, file: &DirtyFile) {
        self.link.say(ToCoordinator::Written(file.clone()), None);
    }

    /// As [`Claims::holder`], for a program that writes the file to the PFS, and has `emptied` it:
    /// then what a node that is gone has is void.
    ///
    /// # Errors
    /// The coordinator does not answer.
    pub fn holder_for_writer(&self, file: &DirtyFile, emptied: bool) -> io::Result<Option<String>> {
        let asked = if emptied { Asked::Empties(file.clone()) } else { Asked::Reads(file.clone()) };
        self.ask(asked).map(|(holder, _)| holder)
    }

    fn ask(&self, asked: Asked) -> io::Result<(Option<String>, String)> {
        if !self.are_others() {
            return Ok((None, String::new()));
        }
        let (holder, before) = self.link.ask_dirty(&asked, ANSWER)?;
        let other = Some(holder).filter(|holder| !holder.is_empty() && holder != self.cluster.node());
        Ok((other, before))
    }
}
