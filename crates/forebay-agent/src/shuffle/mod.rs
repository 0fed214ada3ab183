//! Map outputs of Spark and MapReduce: memory-only files that outlive the process that wrote them.
//!
//! An application of Spark begins at the agent of its driver's node, its *origin*, and lives as
//! long as that connection. The origin of a MapReduce job is the node of its master, and it lives
//! as long as the master listens for its tasks. Its outputs are memory-only files under its token
//! ([`crate::jobs::scratch_files`]), on whatever node an executor of it wrote them. Every other
//! agent that has some asks the origin every [`CHECK`] whether the application lives, and which
//! shuffles it has removed. One question settles every end: a driver that is killed, executors that
//! are all gone, and a shuffle that is removed while no executor runs here. An origin that does not
//! answer within [`GRACE`], or does not know the application, ends it here. If the origin's agent
//! restarts, the driver resumes its application. The coordinator takes no part.
//!
//! | file | what it does |
//! | --- | --- |
//! | `blocks` | finds blocks here, and fetches those of other nodes |
//! | `copies` | second copies, on other nodes |
//! | `disk` | where spilled outputs are |
//! | `spill` | moves outputs to a local disk when others need their memory |

mod blocks;
mod copies;
mod disk;
mod spill;

pub use disk::Spill;

use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::counters::{Counters, add};
use crate::fetch::peer_link::Link as PeerLink;
use crate::jobs::scratch_files::{Job, Jobs};
use crate::lock::lock;
use crate::stop::Stop;
use crate::user_limits::Shares;
use forebay_wire::link::Security;
use forebay_wire::owner;
use forebay_wire::shuffle::{App, shuffle_of};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often an origin is asked, and how long an output that nobody needs any more stays.
const CHECK: Duration = Duration::from_secs(2);

/// How long an origin may fail to answer, or answer only that it has restarted and knows nothing of
/// the application. After that its node, or the driver, counts as lost.
const GRACE: Duration = Duration::from_secs(60);

/// Longest wait for an answer: an origin answers such a question from memory.
const ASK_TIME: Duration = Duration::from_secs(2);

/// Most ended applications that a node remembers.
const ENDED_MAX: usize = 1024;

/// Most connections to one node that are kept while nobody uses them.
const IDLE_MAX: usize = 4;

/// Most applications of one user on one node.
const USER_APPS_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Shuffles {
    files: Arc<Jobs>,
    cache: Arc<Cache>,
    shares: Arc<Shares>,
    counters: Arc<Counters>,
    cluster: Arc<Cluster>,
    security: Security,
    stop: Arc<Stop>,
    /// Where outputs go when memory is short; `None` if the operator names no directory.
    spill: Option<Spill>,
    /// By token.
    apps: Mutex<BTreeMap<String, Application>>,
    /// Applications that have ended here recently: a task of one is not to begin it again.
    ended: Mutex<VecDeque<String>>,
    /// Connections that nobody uses now, by node.
    idle: Mutex<BTreeMap<String, Vec<PeerLink>>>,
}

#[derive(Debug)]
struct Application {
    uid: u32,
    origin: String,
    /// As of [`App::master_port`].
    master_port: Option<u16>,
    /// Shuffles that are not removed yet; known at its origin only.
    shuffles: BTreeSet<u32>,
    /// When its origin last said that it lives.
    heard: Instant,
}

impl Application {
    fn as_named(&self, token: &str) -> App {
        App { token: token.to_owned(), origin: self.origin.clone(), master_port: self.master_port }
    }
}

impl Shuffles {
    /// No applications yet; their outputs are among `files`.
    pub fn new(
        files: Arc<Jobs>,
        (cache, shares, counters): (Arc<Cache>, Arc<Shares>, Arc<Counters>),
        (cluster, security): (Arc<Cluster>, Security),
        stop: Arc<Stop>,
        spill: Option<Spill>,
    ) -> Self {
        let (apps, ended, idle) = (Mutex::default(), Mutex::default(), Mutex::default());
        Shuffles { files, cache, shares, counters, cluster, security, stop, spill, apps, ended, idle }
    }

    /// Name of this node.
    pub fn node(&self) -> &str {
        self.cluster.node()
    }

    /// Begins an application whose driver runs here, under `token`.
    ///
    /// # Errors
    /// The user has too many.
    pub fn begin(&self, uid: u32, token: String) -> Result<App, String> {
        let app = App { token, origin: self.node().to_owned(), master_port: None };
        self.admit(uid, &app, BTreeSet::new())?;
        Ok(app)
    }

    /// Continues an application whose driver runs here, and which began at an earlier agent, with
    /// the shuffles `alive`; `false`: it has ended.
    ///
    /// # Errors
    /// It continues already, or the user has too many.
    pub fn resume(&self, uid: u32, app: &App, alive: Vec<u32>) -> Result<bool, String> {
        if app.origin != self.node() || app.master_port.is_some() || self.has_ended(&app.token) {
            return Ok(false);
        }
        if lock(&self.apps).contains_key(&app.token) {
            return Err("the application goes on already".into());
        }
        self.admit(uid, app, alive.into_iter().collect())?;
        Ok(true)
    }

    fn has_ended(&self, token: &str) -> bool {
        lock(&self.ended).iter().any(|ended| ended == token)
    }

    /// Adds a process of an application that runs here.
    ///
    /// # Errors
    /// `NotFound`: the application has ended, is another user's, its master cannot be watched, or
    /// the user has too many. `ResourceBusy`: its driver, on this node, has not come back yet, or
    /// this agent knows no node yet.
    pub fn join(&self, uid: u32, app: &App) -> io::Result<()> {
        let not_found = |why: String| io::Error::new(io::ErrorKind::NotFound, why);
        let known = |application: &Application| (application.uid, application.as_named(&app.token));
        let known = lock(&self.apps).get(&app.token).map(known);
        match known {
            Some((owner, _)) if owner != uid => {
                return Err(not_found("the application is another user's".into()));
            }
            Some((_, known)) if app.master_port.is_none() || known == *app => return Ok(()),
            None if app.master_port.is_none() && self.has_ended(&app.token) => {
                return Err(not_found("the application has ended".into()));
            }
            None if app.master_port.is_none() && app.origin == self.node() => {
                let why = "this agent has started anew, and the driver has not taken its application up";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            // A job, or the next attempt of its master.
            Some(_) | None => {}
        }
        if app.master_port.is_some() {
            match self.ask_origin(app, uid, &[]) {
                Ok((true, _)) => {}
                Ok((false, _)) => {
                    return Err(not_found(format!("no master of this job listens on node {}", app.origin)));
                }
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => return Err(e),
                Err(e) => return Err(not_found(format!("node {} of the job's master: {e}", app.origin))),
            }
        }
        self.admit(uid, app, BTreeSet::new()).map_err(not_found)
    }

    fn admit(&self, uid: u32, app: &App, shuffles: BTreeSet<u32>) -> Result<(), String> {
        let mut apps = lock(&self.apps);
        if let Some(known) = apps.get_mut(&app.token) {
            (known.origin, known.master_port) = (app.origin.clone(), app.master_port);
            return Ok(());
        }
        if apps.values().filter(|known| known.uid == uid).count() >= USER_APPS_MAX {
            return Err(format!("this user has {USER_APPS_MAX} applications at this agent already"));
        }
        let App { token, origin, master_port } = app.clone();
        let heard = Instant::now();
        apps.insert(token, Application { uid, origin, master_port, shuffles, heard });
        let job = Job { uid, files: BTreeMap::new() };
        lock(&self.files.by_token).entry(app.token.clone()).or_insert(job);
        Ok(())
    }

    /// Records that the application has this shuffle, or has removed it.
    pub fn set_lives(&self, token: &str, shuffle: u32, lives: bool) {
        if let Some(app) = lock(&self.apps).get_mut(token) {
            let _was_known = if lives { app.shuffles.insert(shuffle) } else { app.shuffles.remove(&shuffle) };
        }
        if !lives {
            self.remove(token, shuffle);
        }
    }

    /// Whether user `uid` has the application `token` here.
    pub fn has(&self, uid: u32, token: &str) -> bool {
        lock(&self.apps).get(token).is_some_and(|app| app.uid == uid)
    }

    /// Removes the outputs of a shuffle from this node.
    pub fn remove(&self, token: &str, shuffle: u32) {
        let (uid, removed) = {
            let mut jobs = lock(&self.files.by_token);
            let Some(job) = jobs.get_mut(token) else { return };
            let names: Vec<_> =
                job.files.keys().filter(|name| shuffle_of(name) == Some(shuffle)).cloned().collect();
            (job.uid, names.iter().filter_map(|name| job.files.remove(name)).collect::<Vec<_>>())
        };
        for output in removed {
            self.files.give_up(uid, output);
        }
    }

    /// Ends the application whose driver's connection has ended, unless this agent is about to end,
    /// which closes all connections. The next agent takes it up.
    pub fn driver_left(&self, token: &str) {
        if !self.stop.is_stopping() {
            self.end(token);
        }
    }

    /// Removes the outputs of an application, which may begin here again.
    fn forget(&self, token: &str) {
        lock(&self.apps).remove(token);
        self.files.end(token);
    }

    /// Ends the application and removes its outputs.
    pub fn end(&self, token: &str) {
        self.forget(token);
        let mut ended = lock(&self.ended);
        if ended.len() >= ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back(token.to_owned());
    }

    /// Answers another node whether an application whose origin is here lives, and which of
    /// `shuffles` it has removed.
    ///
    /// # Errors
    /// The kernel does not show its sockets, or this agent has started after the application.
    pub fn asked(&self, uid: u32, app: &App, shuffles: &[u32]) -> io::Result<(bool, Vec<u32>)> {
        if let Some(port) = app.master_port {
            // YARN starts nothing of ours in the master, but each task knows where it listens.
            return Ok((owner::listens(uid, port)?, Vec::new()));
        }
        let apps = lock(&self.apps);
        Ok(match apps.get(&app.token).filter(|app| app.uid == uid && app.origin == self.node()) {
            Some(app) => (true, shuffles.iter().copied().filter(|s| !app.shuffles.contains(s)).collect()),
            None if self.has_ended(&app.token) => (false, Vec::new()),
            None => return Err(io::Error::other("the agent has started anew, and knows nothing of it")),
        })
    }

    fn ask_origin(&self, app: &App, uid: u32, shuffles: &[u32]) -> io::Result<(bool, Vec<u32>)> {
        if app.origin == self.node() {
            return self.asked(uid, app, shuffles);
        }
        let deadline = Instant::now() + ASK_TIME;
        self.at_peer(&app.origin, deadline, |link| link.shuffles(app, uid, shuffles, deadline))
    }

    /// Asks the origins of applications that have outputs here, until the agent ends.
    pub fn watch(&self) {
        while !self.stop.wait(CHECK) {
            let others: Vec<_> = lock(&self.apps)
                .iter()
                .filter(|(_, app)| app.origin != self.node() || app.master_port.is_some())
                .map(|(token, app)| (app.as_named(token), app.uid))
                .collect();
            others.iter().for_each(|(app, uid)| self.check(app, *uid));
            self.remove_late();
        }
    }

    /// Removes what speculative tasks on the driver's own node have written for shuffles that were
    /// removed before.
    fn remove_late(&self) {
        let own: Vec<_> = lock(&self.apps)
            .iter()
            .filter(|(_, app)| app.origin == self.node() && app.master_port.is_none())
            .map(|(token, app)| (token.clone(), app.shuffles.clone()))
            .collect();
        for (token, alive) in own {
            let found = self.shuffles_of(&token);
            found.difference(&alive).for_each(|shuffle| self.remove(&token, *shuffle));
        }
    }

    /// The shuffles of an application that have outputs here.
    fn shuffles_of(&self, token: &str) -> BTreeSet<u32> {
        let jobs = lock(&self.files.by_token);
        let files = jobs.get(token).into_iter().flat_map(|job| job.files.keys());
        files.filter_map(|name| shuffle_of(name)).collect()
    }

    fn check(&self, app: &App, uid: u32) {
        let App { token, origin, .. } = app;
        let shuffles: Vec<u32> = self.shuffles_of(token).into_iter().collect();
        match self.ask_origin(app, uid, &shuffles) {
            Ok((true, removed)) => {
                removed.into_iter().for_each(|shuffle| self.remove(token, shuffle));
                if let Some(app) = lock(&self.apps).get_mut(token) {
                    app.heard = Instant::now();
                }
            }
            Ok((false, _)) => self.end(token),
            Err(e) => {
                let silent = lock(&self.apps).get(token).map(|app| app.heard.elapsed());
                if silent.is_some_and(|silent| silent >= GRACE) {
                    tracing::warn!(origin, error = %e, "the node of an application's driver is gone; its map outputs are removed");
                    add(&self.counters.shuffle_origins_lost_total, 1);
                    // The driver may be there, and take it up at an agent that comes back late.
                    self.forget(token);
                }
            }
        }
    }

    /// Has a peer answer `ask`, on a connection that is kept for the next question. A kept one may
    /// have been closed meanwhile; then a new one is used.
    fn at_peer<T>(
        &self,
        node: &str,
        deadline: Instant,
        mut ask: impl FnMut(&mut PeerLink) -> io::Result<T>,
    ) -> io::Result<T> {
        let kept = lock(&self.idle).get_mut(node).and_then(Vec::pop);
        if let Some(mut link) = kept {
            match ask(&mut link) {
                Ok(answer) => return Ok(self.keep(node, link, answer)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
                Err(e) => tracing::debug!(node, error = %e, "asks again on a new connection"),
            }
        }
        let mut link = self.connect(node, deadline)?;
        let answer = ask(&mut link)?;
        Ok(self.keep(node, link, answer))
    }

    fn keep<T>(&self, node: &str, link: PeerLink, answer: T) -> T {
        let mut idle = lock(&self.idle);
        let links = idle.entry(node.to_owned()).or_default();
        if links.len() < IDLE_MAX {
            links.push(link);
        }
        answer
    }

    fn connect(&self, name: &str, deadline: Instant) -> io::Result<PeerLink> {
        let view = self.cluster.view();
        let node = view.cluster.nodes.iter().find(|node| node.name == name);
        let node = node.filter(|node| !node.address.is_empty()).ok_or_else(|| {
            // An agent that has just started knows no node yet.
            let is_alone = view.cluster.nodes.is_empty();
            let kind = if is_alone { io::ErrorKind::ResourceBusy } else { io::ErrorKind::NotConnected };
            io::Error::new(kind, format!("node {name} is not in the cluster, or serves no peers"))
        })?;
        PeerLink::connect(&self.security, self.node(), node, deadline)
    }
}
