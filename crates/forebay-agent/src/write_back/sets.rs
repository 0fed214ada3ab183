//! Sets of checkpoints: which files a job wrote in one burst, and which sets stay in the tier.
//!
//! A rule names files of a user by their job or by a pattern. Its files form a set as long as less
//! than a gap passes between the last close and the next open. A set has *ended* after that. It is
//! *whole* if its programs have closed all of its files. The newest whole sets of a rule are held,
//! as many as the rule says, and so is the set that is being written.
//!
//! What happens comes in, with its time; which copies are released and which markers are due comes
//! out. Nothing here asks a file, a clock or the tier.

use super::pattern;
use forebay_wire::{CheckpointRule, SetState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Rules of one user.
const RULES_MAX: usize = 64;

/// Files of all sets of a user, about 5 MB of memory; a set with one more is not whole.
const FILES_MAX: usize = 20_000;

/// Sets of a rule that are listed although they are not held.
const LISTED: usize = 8;

/// Sets that a rule may hold.
const KEEP_MAX: u32 = 1000;

/// All rules of a node, with their sets.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Sets {
    numbers: u64,
    /// By user and selector.
    pub rules: Vec<Rule>,
}

/// A rule of a user.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rule {
    /// The user whose rule it is.
    pub uid: u32,
    /// Name of a job, or a pattern of paths.
    pub selector: String,
    /// Whole sets that are held.
    pub keep: u32,
    /// Name of the marker; empty for none.
    pub marker: String,
    /// Groups of its user when it was made, the first one first.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// Oldest first.
    pub sets: Vec<Set>,
}

/// What was written in one burst.
#[derive(Debug, Serialize, Deserialize)]
pub struct Set {
    /// Counts the sets of the node.
    pub number: u64,
    /// When its first file was opened, and when it was last written; nanoseconds since 1970.
    pub began_ns: i64,
    last_ns: i64,
    /// No files follow.
    pub has_ended: bool,
    /// Its files, by the number of their copy.
    pub files: BTreeMap<u64, Member>,
    /// A file that went past the tier, or was lost sight of.
    pub past_tier: Option<String>,
    /// Its copies need not stay.
    pub is_released: bool,
    /// The state of its marker.
    pub mark: Mark,
}

/// A file of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Label of its mount.
    pub mount: String,
    /// Its inode there.
    pub ino: u64,
    /// Its group, which the marker gets as well.
    pub gid: u32,
    /// Its path, as far as is known.
    pub path: Vec<u8>,
    /// Length in bytes.
    pub bytes: u64,
    /// Last write, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Whether its programs have closed it.
    pub closed: Closed,
    /// The PFS has it.
    pub is_on_pfs: bool,
    /// Another content has taken its place.
    pub is_changed: bool,
    /// It was pinned for its set.
    pub is_pinned: bool,
}

/// Whether the programs that wrote a file have closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closed {
    /// Not yet.
    Open,
    /// Yes.
    Well,
    /// One has ended before.
    Not,
}

/// The state of the marker of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// It does not exist.
    None,
    /// It is at this path.
    Written(Vec<u8>),
    /// It could not be written: why, and how often that was tried.
    Failed(String, u32),
}

/// Attempts to write a marker.
const ATTEMPTS: u32 = 5;

/// A marker that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueMarker {
    /// Number of the set.
    pub set: u64,
    /// Label of the mount.
    pub mount: String,
    /// Directory that holds all files of the set.
    pub directory: PathBuf,
    /// Name in it.
    pub name: String,
    /// User and group.
    pub owner: (u32, u32),
    /// The set's rule.
    pub selector: String,
    /// The files.
    pub files: Vec<Member>,
}

/// A marker that does not hold any more: mount, path, user and group.
pub type Withdrawn = (String, PathBuf, (u32, u32));

/// A file that a program has opened for writing.
#[derive(Debug)]
pub struct Opened<'a> {
    /// Its user.
    pub uid: u32,
    /// The program's job, if it has one.
    pub job: Option<&'a str>,
    /// Number of the dirty file.
    pub copy: u64,
    /// As a member of its set.
    pub member: Member,
}

impl Set {
    fn is_open(&self) -> bool {
        self.files.values().any(|file| file.closed == Closed::Open)
    }

    /// See [`SetState`].
    pub fn state(&self) -> SetState {
        let any = |is: fn(&Member) -> bool| self.files.values().any(is);
        match () {
            () if !self.has_ended => SetState::Writing,
            () if self.past_tier.is_some() => SetState::PastTier,
            () if any(|file| file.closed == Closed::Not) => SetState::NotClosed,
            () if any(|file| file.is_changed) => SetState::Changed,
            () => SetState::Whole,
        }
    }

    /// The directory that holds all of its files.
    pub fn directory(&self) -> PathBuf {
        let parent = |file: &Member| path_of(file).parent().map(Path::to_path_buf).unwrap_or_default();
        let mut parents = self.files.values().map(parent);
        let first = parents.next().unwrap_or_default();
        parents.fold(first, |common, other| {
            common.ancestors().find(|dir| other.starts_with(dir)).unwrap_or(Path::new("")).to_path_buf()
        })
    }
}

/// The path of a file.
pub fn path_of(file: &Member) -> &Path {
    Path::new(OsStr::from_bytes(&file.path))
}

impl Rule {
    fn covers(&self, uid: u32, job: Option<&str>, path: &[u8]) -> bool {
        if self.uid != uid {
            return false;
        }
        if !self.selector.contains('/') {
            return job == Some(self.selector.as_str());
        }
        pattern::matches(&self.selector, &String::from_utf8_lossy(path))
    }

    /// User and group as which the marker next to a file is written: the file's group, if it is one
    /// of the user's.
    fn owner(&self, gid: u32) -> (u32, u32) {
        let first = self.groups.first().copied().unwrap_or(gid);
        (self.uid, if self.groups.contains(&gid) { gid } else { first })
    }

    /// Notes that a file is written again, which is no longer part of the sets before number
    /// `number`. Returns their markers, with the mount and the owner.
    fn withdraw(&mut self, number: u64, (mount, ino): (&str, u64)) -> Vec<Withdrawn> {
        let mut withdrawn = Vec::new();
        for at in 0..self.sets.len() {
            let set = &mut self.sets[at];
            let mut gid = None;
            let same = |file: &&mut Member| file.mount == mount && file.ino == ino;
            for file in set.files.values_mut().filter(same).filter(|_| set.number != number) {
                (file.is_changed, file.closed) = (true, Closed::Well);
                gid = Some(file.gid);
            }
            if let Some(gid) = gid
                && let Mark::Written(path) = std::mem::replace(&mut set.mark, Mark::None)
            {
                withdrawn.push((mount.to_owned(), OsStr::from_bytes(&path).into(), self.owner(gid)));
            }
        }
        withdrawn
    }

    /// The set that a file joins that is opened now.
    fn current(&mut self, numbers: &mut u64, now_ns: i64, gap_ns: i64) -> &mut Set {
        let goes_on =
            |set: &Set| !set.has_ended && (set.is_open() || now_ns.saturating_sub(set.last_ns) <= gap_ns);
        if !self.sets.last().is_some_and(goes_on) {
            self.sets.iter_mut().for_each(|set| set.has_ended = true);
            *numbers += 1;
            self.sets.push(Set {
                number: *numbers,
                began_ns: now_ns,
                last_ns: now_ns,
                has_ended: false,
                files: BTreeMap::new(),
                past_tier: None,
                is_released: false,
                mark: Mark::None,
            });
        }
        // There is one now.
        let last = self.sets.len() - 1;
        &mut self.sets[last]
    }

    /// Ends sets, and releases those that are not held any more. Returns the copies that were
    /// pinned for them.
    fn settle(&mut self) -> Vec<u64> {
        self.sets.retain(|set| !set.has_ended || !set.files.is_empty() || set.past_tier.is_some());
        let mut held = 0;
        let mut released = Vec::new();
        for set in self.sets.iter_mut().rev() {
            let is_whole = set.state() == SetState::Whole && !set.is_released;
            if !set.has_ended || is_whole && held < self.keep {
                held += u32::from(is_whole);
            } else {
                released.extend(release(set));
            }
        }
        let gone = |set: &Set| set.is_released;
        let surplus = self.sets.iter().filter(|set| gone(set)).count().saturating_sub(LISTED);
        for _ in 0..surplus {
            // One whose marker is due has to be known until that is written.
            let is_done = |set: &Set| gone(set) && (self.marker.is_empty() || set.mark != Mark::None);
            match self.sets.iter().position(is_done).or_else(|| self.sets.iter().position(gone)) {
                Some(at) => _ = self.sets.remove(at),
                None => break,
            }
        }
        released
    }
}

fn release(set: &mut Set) -> Vec<u64> {
    set.is_released = true;
    let pinned = set.files.iter_mut().filter(|(_, file)| file.is_pinned);
    pinned
        .map(|(copy, file)| {
            file.is_pinned = false;
            *copy
        })
        .collect()
}

impl Sets {
    /// Makes, changes or ends a rule of user `uid`. Returns copies that are released by that.
    ///
    /// # Errors
    /// The reason.
    pub fn set_rule(
        &mut self,
        (uid, groups): (u32, &[u32]),
        wanted: CheckpointRule,
    ) -> Result<Vec<u64>, String> {
        let CheckpointRule { selector, keep, marker } = wanted;
        let is_name = |name: &str| !name.contains('/') && !matches!(name, "." | "..") && name.len() < 200;
        if selector.is_empty() || selector.len() > 4096 || glob::Pattern::new(&selector).is_err() {
            return Err("a rule for checkpoints names a job, or a pattern of absolute paths".into());
        }
        if keep.is_some_and(|keep| keep > KEEP_MAX) {
            return Err(format!("at most {KEEP_MAX} sets can be kept"));
        }
        if let Some(name) = marker.as_deref().filter(|name| !is_name(name)) {
            return Err(format!("a marker has a name without slashes, and {name:?} is none"));
        }
        let at = self.rules.iter().position(|rule| rule.uid == uid && rule.selector == selector);
        let at = match at {
            Some(at) => at,
            None if self.rules.iter().filter(|rule| rule.uid == uid).count() >= RULES_MAX => {
                return Err(format!("a user has at most {RULES_MAX} rules; end one by `keep 0`"));
            }
            None => {
                let (marker, groups) = (String::new(), Vec::new());
                self.rules.push(Rule { uid, selector, keep: 0, marker, groups, sets: Vec::new() });
                self.rules.len() - 1
            }
        };
        let rule = &mut self.rules[at];
        rule.groups = groups.to_vec();
        rule.keep = keep.unwrap_or(rule.keep);
        rule.marker = marker.unwrap_or(std::mem::take(&mut rule.marker));
        let mut released = rule.settle();
        if rule.keep == 0 && rule.marker.is_empty() {
            released.extend(rule.sets.iter_mut().flat_map(release));
            self.rules.remove(at);
        }
        Ok(released)
    }

    /// Notes that a program has opened a file. Returns markers of earlier sets that had the file,
    /// with the mount and the owner: they do not hold any more.
    pub fn opened(&mut self, file: Opened<'_>, (now_ns, gap_ns): (i64, i64)) -> Vec<Withdrawn> {
        let Opened { uid, job, copy, member } = file;
        let mut withdrawn = Vec::new();
        let own = self.rules.iter().filter(|rule| rule.uid == uid).flat_map(|rule| &rule.sets);
        let is_full = own.map(|set| set.files.len()).sum::<usize>() >= FILES_MAX;
        for rule in self.rules.iter_mut().filter(|rule| rule.covers(uid, job, &member.path)) {
            let set = rule.current(&mut self.numbers, now_ns, gap_ns);
            let number = set.number;
            set.last_ns = now_ns;
            if is_full {
                set.past_tier = Some(format!("the sets of the user have more than {FILES_MAX} files"));
            } else {
                set.files.insert(copy, member.clone());
            }
            let is_other = |known: u64, file: &Member| {
                known != copy && (&file.mount, file.ino) == (&member.mount, member.ino)
            };
            set.files.retain(|known, file| !is_other(*known, file));
            withdrawn.extend(rule.withdraw(number, (&member.mount, member.ino)));
        }
        withdrawn
    }

    /// Notes that a file of user `uid` that is to be written back went to the PFS instead: mount,
    /// inode and path. Returns what [`Sets::opened`] does.
    pub fn went_past(
        &mut self,
        (uid, job): (u32, Option<&str>),
        (mount, ino, path): (&str, u64, &[u8]),
        (now_ns, gap_ns): (i64, i64),
    ) -> Vec<Withdrawn> {
        let mut withdrawn = Vec::new();
        for rule in self.rules.iter_mut().filter(|rule| rule.covers(uid, job, path)) {
            let set = rule.current(&mut self.numbers, now_ns, gap_ns);
            let number = set.number;
            set.last_ns = now_ns;
            set.past_tier = Some(String::from_utf8_lossy(path).into_owned());
            withdrawn.extend(rule.withdraw(number, (mount, ino)));
        }
        withdrawn
    }

    /// The set of a file, newest first, and what the file is there.
    fn each(&mut self, copy: u64) -> impl Iterator<Item = (&mut Set, u64)> {
        let sets = self.rules.iter_mut().flat_map(|rule| rule.sets.iter_mut());
        sets.filter(move |set| set.files.get(&copy).is_some_and(|file| !file.is_changed))
            .map(move |set| (set, copy))
    }

    /// Changes what is known of a file.
    fn change(&mut self, copy: u64, act: impl Fn(&mut Member)) -> bool {
        let mut is_known = false;
        for (set, copy) in self.each(copy) {
            set.files.get_mut(&copy).into_iter().for_each(&act);
            is_known = true;
        }
        is_known
    }

    /// Notes that nobody has the file open for writing any more.
    pub fn closed(&mut self, copy: u64, is_well: bool, now_ns: i64) {
        for (set, copy) in self.each(copy) {
            set.last_ns = now_ns;
            let closed = if is_well { Closed::Well } else { Closed::Not };
            set.files.get_mut(&copy).into_iter().for_each(|file| file.closed = closed);
        }
    }

    /// Notes that a program writes the file again.
    pub fn reopened(&mut self, copy: u64, now_ns: i64) {
        for (set, copy) in self.each(copy) {
            set.last_ns = now_ns;
            set.files.get_mut(&copy).into_iter().for_each(|file| {
                (file.closed, file.is_on_pfs) = (Closed::Open, false);
            });
        }
    }

    /// Notes that the PFS has all of a closed file.
    pub fn drained(&mut self, copy: u64, (bytes, mtime_ns): (u64, i64)) {
        self.change(copy, |file| {
            (file.is_on_pfs, file.bytes, file.mtime_ns) = (true, bytes, mtime_ns);
        });
    }

    /// Notes that the file has another name.
    pub fn renamed(&mut self, copy: u64, path: &[u8]) {
        self.change(copy, |file| file.path = path.to_vec());
    }

    /// Whether the names of a file still matter: until its set has ended, and its marker is
    /// written.
    pub fn follows(&self, copy: u64) -> bool {
        self.rules.iter().any(|rule| {
            let is_awaited = |set: &Set| {
                !set.has_ended
                    || !rule.marker.is_empty() && set.mark == Mark::None && set.state() == SetState::Whole
            };
            rule.sets.iter().any(|set| is_awaited(set) && set.files.contains_key(&copy))
        })
    }

    /// Notes that the writers of a file continue on the PFS.
    pub fn left(&mut self, copy: u64, path: &[u8]) {
        for (set, copy) in self.each(copy) {
            set.past_tier = Some(String::from_utf8_lossy(path).into_owned());
            set.files.remove(&copy);
        }
    }

    /// Notes that a file was removed, or given up. Returns whether it was pinned for a set.
    pub fn removed(&mut self, copy: u64) -> bool {
        let mut was_pinned = false;
        for (set, copy) in self.each(copy) {
            was_pinned |= set.files.remove(&copy).is_some_and(|file| file.is_pinned);
        }
        was_pinned
    }

    /// Notes that the file `copy` is the cached copy `now` from now on. Returns whether it is to be
    /// pinned.
    pub fn kept(&mut self, copy: u64, now: u64) -> bool {
        let mut is_held = false;
        let rules = self.rules.iter_mut().filter(|rule| rule.keep > 0);
        for set in rules.flat_map(|rule| rule.sets.iter_mut()).filter(|set| !set.is_released) {
            if let Some(file) = set.files.remove(&copy) {
                is_held |= !file.is_changed;
                set.files.insert(now, file);
            }
        }
        is_held
    }

    /// Copies of sets that are not released.
    pub fn held_copies(&self) -> impl Iterator<Item = u64> {
        let held = self.rules.iter().filter(|rule| rule.keep > 0).flat_map(|rule| &rule.sets);
        held.filter(|set| !set.is_released).flat_map(|set| set.files.keys().copied())
    }

    /// Notes that a copy was pinned for its set.
    pub fn pinned(&mut self, copy: u64) {
        self.change(copy, |file| file.is_pinned = true);
    }

    /// Ends sets whose gap is over. Returns copies that are released; `None`: no set has ended.
    pub fn settle(&mut self, (now_ns, gap_ns): (i64, i64)) -> Option<Vec<u64>> {
        let mut released: Option<Vec<u64>> = None;
        for rule in &mut self.rules {
            let mut is_news = false;
            for set in rule.sets.iter_mut().filter(|set| !set.has_ended && !set.is_open()) {
                set.has_ended = now_ns.saturating_sub(set.last_ns) > gap_ns;
                is_news |= set.has_ended;
            }
            if is_news {
                released.get_or_insert_default().extend(rule.settle());
            }
        }
        released
    }

    /// Whether a marker of these rules of user `uid` is due, or will be when its gap is over.
    pub fn awaits_markers(&self, uid: u32, selectors: &[String]) -> bool {
        let is_meant = |of: u32, selector: &String| of == uid && selectors.contains(selector);
        let marked = self.rules.iter().filter(|rule| !rule.marker.is_empty());
        let mut meant = marked.filter(|rule| is_meant(rule.uid, &rule.selector));
        meant.any(|rule| rule.sets.iter().any(|set| !set.has_ended && !set.is_open()))
            || self.due_markers().iter().any(|due| is_meant(due.owner.0, &due.selector))
    }

    /// Makes room for what user `uid` writes: the oldest held set of a rule gives way, but not its
    /// newest. Returns its copies; `None`: there is no such set.
    pub fn give_way(&mut self, uid: u32) -> Option<Vec<u64>> {
        let is_held = |set: &Set| set.has_ended && !set.is_released && set.state() == SetState::Whole;
        let of_user = self.rules.iter_mut().filter(|rule| rule.uid == uid);
        let several = of_user.filter(|rule| rule.sets.iter().filter(|set| is_held(set)).count() > 1);
        let oldest = several.filter_map(|rule| rule.sets.iter_mut().find(|set| is_held(set)));
        oldest.min_by_key(|set| set.number).map(release)
    }

    /// Markers that are to be written now.
    pub fn due_markers(&self) -> Vec<DueMarker> {
        let mut due = Vec::new();
        for rule in self.rules.iter().filter(|rule| !rule.marker.is_empty()) {
            for (at, set) in rule.sets.iter().enumerate() {
                let is_tried = match &set.mark {
                    Mark::None => false,
                    Mark::Failed(_, attempts) => *attempts >= ATTEMPTS,
                    Mark::Written(_) => true,
                };
                let is_drained = set.files.values().all(|file| file.is_on_pfs) && !set.files.is_empty();
                if is_tried || set.state() != SetState::Whole || !is_drained {
                    continue;
                }
                let directory = set.directory();
                // A newer one is there already.
                let is_late = rule.sets[at + 1..]
                    .iter()
                    .any(|newer| matches!(newer.mark, Mark::Written(_)) && newer.directory() == directory);
                let Some(first) = set.files.values().next().filter(|_| !is_late) else { continue };
                due.push(DueMarker {
                    set: set.number,
                    mount: first.mount.clone(),
                    directory,
                    name: rule.marker.clone(),
                    owner: rule.owner(first.gid),
                    selector: rule.selector.clone(),
                    files: set.files.values().cloned().collect(),
                });
            }
        }
        due
    }

    /// Notes that the marker of a set is being written, to this path. Returns `false` if the set is
    /// not what it was.
    pub fn begins_marker(&mut self, number: u64, path: &Path) -> bool {
        let is_due = self.due_markers().iter().any(|due| due.set == number);
        if is_due {
            self.marked(number, Ok(path.as_os_str().as_bytes().to_vec()));
        }
        is_due
    }

    /// Notes that the marker of a set was written, to a path, or was not.
    pub fn marked(&mut self, number: u64, result: Result<Vec<u8>, String>) {
        let sets = self.rules.iter_mut().flat_map(|rule| rule.sets.iter_mut());
        for set in sets.filter(|set| set.number == number) {
            let attempts = if let Mark::Failed(_, attempts) = &set.mark { *attempts } else { 0 };
            set.mark = match &result {
                Ok(path) => Mark::Written(path.clone()),
                Err(why) => Mark::Failed(why.clone(), attempts + 1),
            };
        }
    }

    /// Takes up what an earlier agent has noted: what it did not see the end of is not whole.
    /// Returns copies that are released.
    pub fn adopt(&mut self) -> Vec<u64> {
        for set in self.rules.iter_mut().flat_map(|rule| rule.sets.iter_mut()).filter(|set| !set.has_ended) {
            set.has_ended = true;
            set.past_tier = Some("the agent ended while the set was written".into());
        }
        self.rules.iter_mut().flat_map(Rule::settle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: i64 = 10;

    fn rule(selector: &str, keep: u32, marker: &str) -> CheckpointRule {
        CheckpointRule { selector: selector.into(), keep: Some(keep), marker: Some(marker.into()) }
    }

    fn member(path: &str, ino: u64) -> Member {
        Member {
            mount: "pfs".into(),
            ino,
            gid: 7,
            path: path.into(),
            bytes: 0,
            mtime_ns: 0,
            closed: Closed::Open,
            is_on_pfs: false,
            is_changed: false,
            is_pinned: false,
        }
    }

    fn open(sets: &mut Sets, path: &str, copy: u64, now: i64) -> usize {
        let member = member(path, copy % 100);
        sets.opened(Opened { uid: 1, job: Some("j"), copy, member }, (now, GAP)).len()
    }

    /// Writes a file, drains it and keeps its copy.
    fn write(sets: &mut Sets, path: &str, copy: u64, now: i64) {
        open(sets, path, copy, now);
        sets.closed(copy, true, now);
        sets.drained(copy, (5, now));
        if sets.kept(copy, copy) {
            sets.pinned(copy);
        }
    }

    fn states(sets: &Sets) -> Vec<(u64, SetState, bool)> {
        sets.rules[0].sets.iter().map(|set| (set.number, set.state(), !set.is_released)).collect()
    }

    #[test]
    fn a_set_is_what_is_written_without_a_gap_and_the_newest_whole_ones_are_held() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[7]), rule("/p/**", 1, "")).unwrap();
        write(&mut sets, "/p/a/1", 1, 0);
        write(&mut sets, "/p/a/2", 2, 10);
        write(&mut sets, "/q/3", 3, 11);
        assert_eq!(sets.settle((20, GAP)), None);
        assert_eq!(states(&sets), [(1, SetState::Writing, true)]);
        sets.settle((21, GAP));
        assert_eq!(states(&sets), [(1, SetState::Whole, true)]);
        assert_eq!(sets.rules[0].sets[0].files.len(), 2);
        // One that is being written takes the place of none.
        write(&mut sets, "/p/b/1", 4, 30);
        open(&mut sets, "/p/b/2", 5, 35);
        assert_eq!(sets.settle((99, GAP)), None);
        assert_eq!(states(&sets), [(1, SetState::Whole, true), (2, SetState::Writing, true)]);
        // Its program is killed: it is not whole, and what is good stays.
        sets.closed(5, false, 100);
        assert_eq!(sets.settle((111, GAP)), Some(vec![4]));
        assert_eq!(states(&sets), [(1, SetState::Whole, true), (2, SetState::NotClosed, false)]);
        write(&mut sets, "/p/c/1", 6, 200);
        assert_eq!(sets.settle((211, GAP)), Some(vec![1, 2]));
        assert_eq!(states(&sets)[2], (3, SetState::Whole, true));
    }

    #[test]
    fn a_file_that_is_written_again_leaves_no_whole_set_behind_and_withdraws_its_marker() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[7]), rule("j", 2, "DONE")).unwrap();
        write(&mut sets, "/p/a", 1, 0);
        assert_eq!(sets.due_markers(), [], "files may follow");
        assert!(sets.awaits_markers(1, &["j".into()]) && !sets.awaits_markers(1, &["k".into()]));
        sets.settle((11, GAP));
        assert!(sets.awaits_markers(1, &["j".into()]) && !sets.awaits_markers(2, &["j".into()]));
        let due = sets.due_markers();
        assert_eq!((due[0].set, due[0].directory.as_path(), due[0].owner), (1, Path::new("/p"), (1, 7)));
        sets.marked(1, Ok(b"/p/DONE".to_vec()));
        assert!(!sets.awaits_markers(1, &["j".into()]));
        assert_eq!(sets.due_markers(), []);
        assert_eq!(open(&mut sets, "/p/a", 101, 50), 1, "the same inode");
        assert_eq!(states(&sets)[0].1, SetState::Changed);
        sets.closed(101, true, 51);
        sets.settle((100, GAP));
        assert_eq!(sets.due_markers(), [], "the file system does not have it yet");
        sets.drained(101, (1, 1));
        // Its directory got its final name meanwhile.
        assert!(sets.follows(101));
        sets.renamed(101, b"/p/final/a");
        let due = sets.due_markers();
        assert_eq!((due[0].set, due[0].directory.as_path()), (2, Path::new("/p/final")));
        sets.marked(2, Ok(b"/p/final/DONE".to_vec()));
        assert!(!sets.follows(101));
    }

    #[test]
    fn a_file_that_is_written_past_the_tier_withdraws_the_marker_also_while_that_is_written() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[3, 7]), rule("/p/*", 1, "DONE")).unwrap();
        write(&mut sets, "/p/a", 1, 0);
        sets.settle((11, GAP));
        assert!(sets.begins_marker(1, Path::new("/p/DONE")) && !sets.begins_marker(1, Path::new("/p/DONE")));
        let past = |sets: &mut Sets| sets.went_past((1, Some("j")), ("pfs", 1, b"/p/a"), (50, GAP));
        // The file has a group of its user.
        assert_eq!(past(&mut sets), [("pfs".to_owned(), PathBuf::from("/p/DONE"), (1, 7))]);
        assert_eq!(states(&sets)[0].1, SetState::Changed);
        assert_eq!((past(&mut sets), sets.due_markers()), (vec![], vec![]));
        // It has another group.
        sets.set_rule((1, &[3]), rule("/p/*", 1, "DONE")).unwrap();
        write(&mut sets, "/p/b", 2, 100);
        sets.settle((200, GAP));
        assert_eq!(sets.due_markers()[0].owner, (1, 3));
    }

    #[test]
    fn a_late_marker_does_not_replace_a_newer_one() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[7]), rule("/p/*", 0, "DONE")).unwrap();
        open(&mut sets, "/p/1", 1, 0);
        sets.closed(1, true, 0);
        write(&mut sets, "/p/2", 2, 100);
        sets.settle((200, GAP));
        assert_eq!(sets.due_markers().iter().map(|due| due.set).collect::<Vec<_>>(), [2]);
        sets.marked(2, Ok(b"/p/DONE".to_vec()));
        sets.drained(1, (1, 1));
        assert_eq!(sets.due_markers(), []);
        for _ in 0..ATTEMPTS {
            sets.marked(2, Err("no room".into()));
        }
        assert_eq!(sets.due_markers().iter().map(|due| due.set).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_set_whose_files_went_past_the_tier_is_not_whole_nor_is_one_that_an_agent_did_not_see_end() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[7]), rule("/p/*", 2, "DONE")).unwrap();
        write(&mut sets, "/p/1", 1, 0);
        sets.went_past((1, None), ("pfs", 50, b"/p/large"), (1, GAP));
        sets.settle((50, GAP));
        assert_eq!(states(&sets), [(1, SetState::PastTier, false)]);
        write(&mut sets, "/p/2", 2, 100);
        open(&mut sets, "/p/3", 3, 100);
        sets.left(3, b"/p/3");
        write(&mut sets, "/p/4", 4, 200);
        let mut sets: Sets = serde_json::from_str(&serde_json::to_string(&sets).unwrap()).unwrap();
        sets.adopt();
        let expected = [1, 2, 3].map(|number| (number, SetState::PastTier, false));
        assert_eq!(states(&sets), expected);
        assert_eq!(sets.due_markers(), []);
    }

    #[test]
    fn old_sets_give_way_to_what_is_written_and_the_newest_does_not() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[7]), rule("/p/*", 3, "")).unwrap();
        for (number, now) in [(1, 0), (2, 100), (3, 200)] {
            write(&mut sets, &format!("/p/{number}"), number, now);
        }
        sets.settle((300, GAP));
        assert_eq!(sets.give_way(2), None, "another user");
        assert_eq!(sets.give_way(1), Some(vec![1]));
        assert_eq!(sets.give_way(1), Some(vec![2]));
        assert_eq!(sets.give_way(1), None);
        assert_eq!(sets.set_rule((1, &[7]), rule("/p/*", 0, "")), Ok(vec![3]));
        assert!(sets.rules.is_empty());
    }

    #[test]
    fn a_file_that_is_replaced_within_its_burst_is_none_of_the_set() {
        let mut sets = Sets::default();
        sets.set_rule((1, &[7]), rule("/p/*", 1, "")).unwrap();
        write(&mut sets, "/p/manifest", 1, 0);
        write(&mut sets, "/p/manifest.new", 2, 1);
        sets.renamed(2, b"/p/manifest");
        assert!(sets.removed(1) && !sets.removed(1));
        sets.settle((20, GAP));
        assert_eq!(states(&sets), [(1, SetState::Whole, true)]);
        assert_eq!(sets.rules[0].sets[0].files.keys().collect::<Vec<_>>(), [&2]);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let mut sets = Sets::default();
        for (selector, keep, marker) in
            [("", 1, ""), ("/p/[", 1, ""), ("j", 5000, ""), ("j", 1, "a/b"), ("j", 1, "..")]
        {
            assert!(
                sets.set_rule((1, &[7]), rule(selector, keep, marker)).is_err(),
                "{selector} {keep} {marker}"
            );
        }
        for number in 0..RULES_MAX {
            sets.set_rule((1, &[7]), rule(&format!("job-{number}"), 1, "")).unwrap();
        }
        assert!(sets.set_rule((1, &[7]), rule("one more", 1, "")).is_err());
        sets.set_rule((2, &[7]), rule("one more", 1, "")).unwrap();
    }
}
