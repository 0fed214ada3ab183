//! What became of every file, put together from the logs of the writers.
//!
//! A name leads to an object (an inode) for a time, and an object has versions, one after the
//! other, each made by a change that took from its `begin` to its `end`. Objects and names are kept
//! apart because a handle stands for the object that it opened, whatever its name leads to later.
//! What a killed change has left is another version, found by the process after it.

use crate::content::State;
use crate::record::{Found, Op, PathId, Record, Style, Way};
use std::collections::BTreeMap;

/// A content of an object.
#[derive(Clone, Debug)]
pub struct Version {
    /// When the change that made it began, before its first system call, and ended, after its last.
    pub begin: u64,
    pub end: u64,
    pub state: State,
    /// What the file passed through on the way.
    pub passed: Vec<State>,
    /// The node that made it; `NOWHERE` for a version from before the round.
    pub node: u32,
    /// What made it, as text.
    pub what: String,
    /// The length stays, and mtime was set back to what it was.
    pub keeps_stamp: bool,
    /// Its stamps moved at its end: the length changed, or the writer set the times.
    pub stamped: bool,
}

/// Node of a version from before the round.
pub const NOWHERE: u32 = u32::MAX;

/// A change of the names, links or attributes of an object.
#[derive(Clone, Debug)]
pub struct Other {
    pub begin: u64,
    pub end: u64,
    /// Where it was made.
    pub node: u32,
    pub what: String,
}

/// A file, whatever it is called.
#[derive(Clone, Debug, Default)]
pub struct Object {
    pub ino: u64,
    pub versions: Vec<Version>,
    pub others: Vec<Other>,
}

/// A name leads to this object for a time; both ends are wide.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub object: usize,
    pub from: u64,
    pub until: u64,
}

/// What became of all files.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub objects: Vec<Object>,
    pub bindings: BTreeMap<PathId, Vec<Binding>>,
    /// When a name may lead nowhere.
    pub gaps: BTreeMap<PathId, Vec<(u64, u64)>>,
    /// How often each kind of change was done, failed or was interrupted.
    pub done: BTreeMap<&'static str, u64>,
    pub failed: BTreeMap<String, u64>,
    pub cut_off: u64,
    /// Stalled overwrites that took a tenth of a second or longer.
    pub long_writes: u64,
    /// The node of the log that is being taken in.
    node: u32,
}

/// What a round leaves to the next: the inode and the content under each name.
pub type Contents = BTreeMap<PathId, (u64, State)>;

impl History {
    pub fn of(contents: &Contents) -> Self {
        let mut history = History::default();
        for (path, (ino, state)) in contents {
            let object = history.add_object(*ino, 0, 0, state.clone(), "as the round before left it");
            history.bind(*path, object, 0);
        }
        history
    }

    fn add_object(&mut self, ino: u64, begin: u64, end: u64, state: State, what: &str) -> usize {
        let (node, what) = (if begin == 0 { NOWHERE } else { self.node }, what.into());
        let (passed, keeps_stamp, stamped) = (Vec::new(), false, false);
        let version = Version { begin, end, state, passed, node, what, keeps_stamp, stamped };
        self.objects.push(Object { ino, versions: vec![version], others: Vec::new() });
        self.objects.len() - 1
    }

    fn bind(&mut self, path: PathId, object: usize, from: u64) {
        self.bindings.entry(path).or_default().push(Binding { object, from, until: u64::MAX });
    }

    /// The name leads nowhere from `until` on, at the latest.
    fn unbind(&mut self, path: PathId, until: u64) {
        if let Some(last) = self.bindings.get_mut(&path).and_then(|b| b.last_mut()) {
            last.until = last.until.min(until);
        }
    }

    fn bound(&self, path: PathId) -> Option<usize> {
        self.bindings.get(&path)?.last().filter(|b| b.until == u64::MAX).map(|b| b.object)
    }

    /// What each name leads to in the end.
    pub fn contents(&self) -> Contents {
        let last = |path: &PathId| {
            let object = &self.objects[self.bound(*path)?];
            Some((*path, (object.ino, object.versions.last()?.state.clone())))
        };
        self.bindings.keys().filter_map(last).collect()
    }

    /// Takes in a writer's log. Each name is written by one writer only, so logs need not be
    /// merged.
    ///
    /// # Errors
    /// The log does not make sense.
    pub fn take(&mut self, log: &[Record], node: u32) -> Result<(), String> {
        self.node = node;
        let mut open: Option<(u64, Op)> = None;
        for record in log {
            match record {
                Record::Begin { at, op } => match open.replace((*at, op.clone())) {
                    None => {}
                    Some((_, op)) => return Err(format!("{op:?} has no end")),
                },
                Record::Done { at, inos } => {
                    let (begin, op) = open.take().ok_or("an end without a beginning")?;
                    *self.done.entry(op.name()).or_default() += 1;
                    self.apply(&op, begin, *at, inos);
                }
                Record::Failed { errno, .. } => {
                    let what = open.as_ref().map_or("?", |(_, op)| op.name());
                    *self.failed.entry(format!("{what}: error {errno}")).or_default() += 1;
                }
                Record::Observed { .. } => {}
                other => return Err(format!("not a writer's: {other:?}")),
            }
            if let Record::Observed { at, path, found } = record {
                let (begin, op) = open.clone().ok_or("observed without a change")?;
                self.observe(&op, begin, *at, *path, found.as_ref());
                if op.paths().last() == Some(path) {
                    self.cut_off += 1;
                    open = None;
                }
            }
        }
        match open {
            Some((_, op)) => Err(format!("{op:?} has no end, and nobody looked what it left")),
            None => Ok(()),
        }
    }

    fn apply(&mut self, op: &Op, begin: u64, end: u64, inos: &[u64]) {
        let path = op.paths()[0];
        let Some(object) = self.bound(path) else { return };
        if let Op::Overwrite { style: Style::Stalled(_), .. } = op {
            self.long_writes += u64::from(end - begin >= 100_000_000);
        }
        match op {
            Op::Rewrite { way: Way::Rename, .. } | Op::Rewrite { way: Way::Unlink, .. } => {
                self.replace(op, begin, end, (path, object), inos[0]);
            }
            Op::Exchange { other, .. } => {
                let Some(second) = self.bound(*other) else { return };
                for (name, from, to) in [(path, object, second), (*other, second, object)] {
                    self.unbind(name, end);
                    self.bind(name, to, begin);
                    self.add_other(from, begin, end, op);
                }
            }
            Op::Away { .. } => {
                self.gaps.entry(path).or_default().push((begin, end));
                self.add_other(object, begin, end, op);
            }
            Op::Link { .. } | Op::Chmod { .. } => self.add_other(object, begin, end, op),
            _ => self.add_version(object, op, begin, end),
        }
    }

    fn replace(&mut self, op: &Op, begin: u64, end: u64, (path, old): (PathId, usize), ino: u64) {
        let states = op.states(&State::default());
        let new = match op {
            Op::Rewrite { way: Way::Unlink, .. } => {
                self.gaps.entry(path).or_default().push((begin, end));
                let new = self.add_object(ino, begin, begin, State::default(), "created");
                self.add_version(new, op, begin, end);
                new
            }
            // A reader that finds it by its name finds it whole.
            _ => {
                let state = states.last().cloned().unwrap_or_default();
                self.add_object(ino, begin, begin, state, &format!("{op:?}"))
            }
        };
        self.add_other(old, begin, end, op);
        self.unbind(path, end);
        self.bind(path, new, begin);
    }

    fn add_other(&mut self, object: usize, begin: u64, end: u64, op: &Op) {
        self.objects[object].others.push(Other { begin, end, node: self.node, what: format!("{op:?}") });
    }

    fn add_version(&mut self, object: usize, op: &Op, begin: u64, end: u64) {
        let before = self.last_state(object);
        let mut passed = op.states(&before);
        let Some(state) = passed.pop() else { return };
        let (keeps_stamp, stamped) = (keeps_stamp(op, &state, &before), stamps(op, &state, &before));
        let (node, what) = (self.node, format!("{op:?}"));
        let version = Version { begin, end, state, passed, node, what, keeps_stamp, stamped };
        self.objects[object].versions.push(version);
    }

    fn last_state(&self, object: usize) -> State {
        self.objects[object].versions.last().map(|v| v.state.clone()).unwrap_or_default()
    }

    /// Takes in what an interrupted change between `begin` and `at` left: it may have been done
    /// wholly, partly or not at all.
    fn observe(&mut self, op: &Op, begin: u64, at: u64, path: PathId, found: Option<&Found>) {
        self.gaps.entry(path).or_default().push((begin, at));
        let old = self.bound(path);
        let Some(found) = found else {
            self.unbind(path, at);
            return;
        };
        let state = State::found(found.parts.clone());
        // Only objects that this change worked on: inode numbers are used again.
        let mut known: Vec<usize> = op.paths().iter().filter_map(|p| self.bound(*p)).collect();
        known.extend(
            op.paths().iter().filter_map(|p| Some(self.bindings.get(p)?.iter().rev().nth(1)?.object)),
        );
        // A name's new object may have got the number of the old one, to which nothing was written.
        let replaces = matches!(op, Op::Rewrite { way: Way::Rename | Way::Unlink, .. });
        let is_it = |o: &usize| {
            self.objects[*o].ino == found.ino && (!replaces || self.last_state(*o).equals(&state))
        };
        let same = known.into_iter().find(is_it);
        if let Some(old) = old {
            self.add_other(old, begin, at, op);
            if !replaces {
                self.add_torn(old, op, begin, at);
            }
        }
        if replaces && let Some(object) = same {
            // It was killed before it replaced anything: the file is as it was.
            return self.bind_if_new(path, object, old, (begin, at));
        }
        let new = match same {
            Some(object) => object,
            None => self.add_object(found.ino, begin, begin, State::default(), "created by what was cut off"),
        };
        if same.is_none() {
            self.add_torn(new, op, begin, at);
        }
        let what = format!("left by what was cut off: {op:?}");
        let keeps_stamp = keeps_stamp(op, &state, &self.last_state(new));
        let (node, passed, stamped) = (self.node, Vec::new(), false);
        let version = Version { begin, end: at, state, passed, node, what, keeps_stamp, stamped };
        self.objects[new].versions.push(version);
        self.bind_if_new(path, new, old, (begin, at));
    }

    fn bind_if_new(&mut self, path: PathId, new: usize, old: Option<usize>, (begin, end): (u64, u64)) {
        if old != Some(new) {
            self.unbind(path, end);
            self.bind(path, new, begin);
        }
    }

    fn add_torn(&mut self, object: usize, op: &Op, begin: u64, end: u64) {
        let before = self.last_state(object);
        let mut passed = op.states(&before);
        let Some(state) = passed.pop() else { return };
        let (node, what) = (self.node, format!("cut off: {op:?}"));
        let (keeps_stamp, stamped) = (keeps_stamp(op, &state, &before), false);
        let version = Version { begin, end, state, passed, node, what, keeps_stamp, stamped };
        self.objects[object].versions.push(version);
    }
}

/// Returns whether a reader that has the file open can distinguish the contents only by ctime.
fn keeps_stamp(op: &Op, after: &State, before: &State) -> bool {
    matches!(op, Op::Overwrite { keep_mtime: true, .. }) && after.size() == before.size()
}

/// Returns whether every file system has new stamps when the change ends, however late it moves the
/// stamps of a write.
fn stamps(op: &Op, after: &State, before: &State) -> bool {
    let times_set = matches!(
        op,
        Op::Touch { .. }
            | Op::Overwrite { keep_mtime: true, .. }
            | Op::Overwrite { style: Style::Mapped { touch: true }, .. }
    );
    times_set || after.size() != before.size()
}
