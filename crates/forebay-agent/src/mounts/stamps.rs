//! Whether the time stamps of a mount can be believed: measured when it is first served, and again
//! after a remount.
//!
//! A mount is known by the kernel's number for it. Every request looks that up anyway
//! (`MountState::has_device`), so a remount is noticed by the first request after it. Until the new
//! mount is measured, nothing of it is cached and no copy is handed out. The measurement has a
//! thread of its own: on a file system that hangs it hangs alone.

use crate::config::MountConfig;
use crate::lock::lock;
use forebay_pfs::stamps::Stamps;
use forebay_pfs::{ChangeStamp, Source};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a mount that could not be measured is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether the stamps of one mount can be believed.
#[derive(Debug)]
pub struct StampCheck {
    config: MountConfig,
    source: Arc<dyn Source>,
    /// The mount that is there, as the last request found it.
    present: AtomicU64,
    /// The mount whose stamps can be believed.
    believed: AtomicU64,
    /// The mount whose last changes only ctime shows.
    by_ctime: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The mount that `verdict` is about; 0 before the first.
    mount: u64,
    verdict: Verdict,
    since: Instant,
    /// What was logged last: of which mount, and why it is not cached.
    said: (u64, String),
}

#[derive(Clone, Debug)]
enum Verdict {
    Measuring,
    Believed(String, ChangeStamp),
    Refused(String),
    /// It could not be measured: that may pass.
    Unknown(String),
}

/// What a caller may do with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its stamps can be believed.
    Believed,
    /// That is being found out.
    Measuring,
    /// They cannot, or nobody knows.
    Refused,
}

impl StampCheck {
    /// A check of a mount that nobody has looked at yet.
    pub fn new(config: &MountConfig, source: Arc<dyn Source>) -> Arc<Self> {
        let (since, said) = (Instant::now(), (0, String::new()));
        let state = State { mount: 0, verdict: Verdict::Measuring, since, said };
        Arc::new(StampCheck {
            config: config.clone(),
            source,
            present: AtomicU64::new(0),
            believed: AtomicU64::new(0),
            by_ctime: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Whether the last request found this mount there.
    pub fn is_present(&self, mount: u64) -> bool {
        self.present.load(Ordering::Acquire) == mount
    }

    /// Records that a request has found this mount there; its number is not 0.
    pub fn found(&self, mount: u64) {
        self.present.store(mount, Ordering::Release);
    }

    /// The stamp that shows when a file of the present mount was last changed.
    pub fn change_stamp(&self) -> ChangeStamp {
        let present = self.present.load(Ordering::Acquire);
        match present != 0 && self.by_ctime.load(Ordering::Acquire) == present {
            true => ChangeStamp::Ctime,
            false => ChangeStamp::Newer,
        }
    }

    /// Whether stamps can be believed now; begins to measure where that is not known.
    pub fn trust(self: &Arc<Self>) -> Trust {
        let present = self.present.load(Ordering::Acquire);
        if self.config.trusts_stamps || self.believed.load(Ordering::Acquire) == present && present != 0 {
            return Trust::Believed;
        }
        let mut state = lock(&self.state);
        let again = matches!(state.verdict, Verdict::Unknown(_)) && state.since.elapsed() > AGAIN;
        if state.mount != present || again {
            (state.mount, state.verdict, state.since) = (present, Verdict::Measuring, Instant::now());
            let check = self.clone();
            let body = move || check.measure(present);
            if let Err(e) = std::thread::Builder::new().name("stamps".into()).spawn(body) {
                state.verdict = Verdict::Unknown(format!("cannot be measured: {e}"));
            }
        }
        match state.verdict {
            Verdict::Measuring => Trust::Measuring,
            Verdict::Believed(..) => Trust::Believed,
            Verdict::Refused(_) | Verdict::Unknown(_) => Trust::Refused,
        }
    }

    /// Waits until it is known, at most until `deadline`.
    pub fn wait(&self, deadline: Instant) {
        let mut state = lock(&self.state);
        while matches!(state.verdict, Verdict::Measuring) && !self.config.trusts_stamps {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the mount is cached, and why, as operators see it.
    pub fn report(&self) -> (bool, String) {
        if self.config.trusts_stamps {
            return (true, "time stamps are trusted, as mount.stamps says".into());
        }
        match lock(&self.state).verdict.clone() {
            Verdict::Measuring => (false, "its time stamps are still being measured".into()),
            Verdict::Believed(why, _) => (true, why),
            Verdict::Refused(why) | Verdict::Unknown(why) => (false, why),
        }
    }

    fn measure(&self, mount: u64) {
        let verdict = verdict(&self.config, &*self.source);
        let mut state = lock(&self.state);
        if state.mount != mount {
            return;
        }
        match &verdict {
            Verdict::Believed(_, by) => {
                let by_ctime = if *by == ChangeStamp::Ctime { mount } else { 0 };
                self.by_ctime.store(by_ctime, Ordering::Release);
                self.believed.store(mount, Ordering::Release);
            }
            // Not again by each of the repeated attempts that find the same.
            Verdict::Refused(why) | Verdict::Unknown(why) if state.said != (mount, why.clone()) => {
                tracing::warn!(mount = self.config.label, "is not cached, reads go to the PFS: {why}");
                state.said = (mount, why.clone());
            }
            _ => {}
        }
        state.verdict = verdict;
        drop(state);
        self.changed.notify_all();
    }
}

fn verdict(config: &MountConfig, source: &dyn Source) -> Verdict {
    if let Some(fs_type) = source.traits().unchanging {
        return Verdict::Believed(format!("nobody can change files of {fs_type}"), ChangeStamp::Ctime);
    }
    let dir = config.probe_dir.as_deref().unwrap_or(&config.root);
    match source.measure_stamps(dir, config.revalidate) {
        Ok(Stamps::Follow { within, ctime }) => {
            let follow = format!("time stamps follow writes {} ms apart", within.as_millis());
            match ctime {
                true => Verdict::Believed(follow, ChangeStamp::Ctime),
                false => Verdict::Believed(
                    format!("{follow}, but ctime does not: a file with an mtime in the future is not cached"),
                    ChangeStamp::Newer,
                ),
            }
        }
        Ok(Stamps::Rest(change)) => Verdict::Refused(format!(
            "{change} does not move the time stamps, so the agent cannot distinguish new content from old; \
             mount.stamps = \"trust\" caches it anyway"
        )),
        Err(e) => unmeasured(source, dir, &e),
    }
}

/// The verdict without the right to write there: the type of the file system decides.
fn unmeasured(source: &dyn Source, dir: &Path, e: &io::Error) -> Verdict {
    if let Some(by) = source.traits().known_stamps {
        let why = format!("time stamps are trusted for the file system's type; {}: {e}", dir.display());
        return Verdict::Believed(why, by);
    }
    let remedy = match e.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "if nobody changes its files on any node while they are cached, set mount.stamps = \"trust\""
        }
        _ => {
            "set mount.probe_dir to a directory where the agent may write, or mount.stamps = \"trust\" if \
             nobody changes its files while they are cached"
        }
    };
    Verdict::Unknown(format!(
        "whether its time stamps follow writes is unknown: cannot write a file in {} ({e}); {remedy}",
        dir.display()
    ))
}
