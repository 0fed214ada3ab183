//! One place where memory may run short, and the threshold of use that the kernel watches there.

use super::calls::Calls;
use crate::memory::alarm::Alarm;
use crate::memory::memory_place::{BUFFER_BYTES, Place, Use};
use forebay_policy::machine::Nanos;
use forebay_policy::memory as law;
use forebay_policy::memory::node::Event;

/// Most failures of a place that are logged.
const COMPLAINTS_MAX: u32 = 1;

/// A threshold that is wrong by more than this fraction (one in 8) of what is left above it is set
/// again.
const SLACK_PARTS: u64 = 8;

/// Least time for which a threshold is kept, even a wrong one; meanwhile the law looks by itself.
/// Setting one takes 10 to 50 ms, in which nobody looks: the kernel waits for all processors.
const KEPT_NS: u64 = 10_000_000_000;

/// See the module.
pub struct Watched {
    /// Where.
    pub place: Place,
    last: Option<Use>,
    /// Why the last look failed, if it did.
    problem: Option<String>,
    /// The operator has named the group, and it has ended since.
    gone: bool,
    /// Use above which the law wants to be woken.
    wanted_bytes: Option<u64>,
    /// What the kernel watches for that, and at how many counted bytes.
    threshold: Option<Threshold>,
    /// The kernel has refused to watch one.
    is_refused: bool,
    complaints: u32,
}

struct Threshold {
    alarm: Alarm,
    bytes: u64,
    since: Nanos,
}

impl Watched {
    /// A place of which nothing is known yet.
    pub fn new(place: Place) -> Self {
        Watched {
            place,
            last: None,
            problem: None,
            gone: false,
            wanted_bytes: None,
            threshold: None,
            is_refused: false,
            complaints: 0,
        }
    }

    /// Looks at the place, which has this number; returns what the controller is to hear.
    pub fn look(&mut self, number: u32, buffer: &mut [u8; BUFFER_BYTES]) -> Event {
        match self.place.look(buffer) {
            Ok(found) => (self.last, self.problem) = (found, None),
            // A job has ended, and its limit with it.
            Err(_) if self.place.is_named && self.place.has_ended() => {
                (self.last, self.problem, self.gone) = (None, None, true);
            }
            Err(e) => {
                if self.complaints < COMPLAINTS_MAX {
                    let name = &self.place.name;
                    tracing::warn!(
                        "cannot read the memory use of {name}: {e}; the tier does not grow meanwhile"
                    );
                }
                self.complaints = self.complaints.saturating_add(1);
                self.problem = Some(e);
                return Event::Unreadable { place: number };
            }
        }
        match self.last {
            None => {
                // It was for the limit that is gone.
                (self.threshold, self.wanted_bytes) = (None, None);
                Event::Unlimited { place: number }
            }
            Some(Use { total_bytes, used_bytes, shared_bytes, counted }) => {
                let hears = self.due_bytes().is_some_and(|due| {
                    let is_late = |t: &Threshold| t.bytes > due + self.slack_bytes();
                    let can_pass = |t: &Threshold| counted.is_some_and(|c| t.bytes < c.most_bytes);
                    self.threshold.as_ref().is_some_and(|t| !is_late(t) && can_pass(t))
                });
                let alarm = if hears { law::Alarm::Threshold } else { law::Alarm::None };
                Event::Place { place: number, total_bytes, used_bytes, shared_bytes, alarm }
            }
        }
    }

    /// Whether it is a named group that is not there, or was there and has ended.
    pub fn is_awaited(&self) -> bool {
        self.gone || self.place.is_absent()
    }

    /// Whether a group of this name may have come since, which is another one.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Why the last look failed, if it did.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Records that the law wants to be woken when more than `bytes` are in use.
    pub fn want(&mut self, bytes: u64) {
        if self.wanted_bytes.replace(bytes) != Some(bytes) {
            self.threshold = None;
        }
    }

    /// Has the kernel watch what the law wants, where the kernel can. It also counts clean pages,
    /// so its threshold follows them. If they take so much that it cannot be passed, the law has
    /// to look by itself. Nothing is replaced unless all is `calm`.
    pub fn watch(&mut self, now: Nanos, calm: bool, calls: &Calls) {
        let Some(bytes) = self.due_bytes().filter(|_| !self.is_refused) else { return };
        let keeps = |t: &Threshold| {
            let is_right = t.bytes.abs_diff(bytes) <= self.slack_bytes();
            is_right || !calm || now.saturating_since(t.since) < KEPT_NS
        };
        if self.threshold.as_ref().is_some_and(keeps) {
            return;
        }
        let alarm = Alarm::of_threshold(&self.place, bytes);
        self.is_refused = alarm.is_none();
        self.threshold = alarm.map(|alarm| Threshold { alarm, bytes, since: now });
        if let Some(threshold) = &self.threshold {
            let _ = calls.add(&threshold.alarm);
        }
    }

    /// Where the kernel's threshold has to be for what the law wants, as of the last look.
    fn due_bytes(&self) -> Option<u64> {
        let (wanted, seen) = (self.wanted_bytes?, self.last?);
        Some(threshold_bytes(wanted, seen.used_bytes, seen.counted?.bytes))
    }

    fn slack_bytes(&self) -> u64 {
        let left = |seen: Use| seen.total_bytes.saturating_sub(self.wanted_bytes.unwrap_or(0));
        self.last.map_or(0, left) / SLACK_PARTS
    }

    /// The threshold of use that the kernel watches.
    pub fn alarm(&self) -> Option<&Alarm> {
        self.threshold.as_ref().map(|threshold| &threshold.alarm)
    }

    /// What was seen last, nothing if nothing could be; `None` for a place without a limit.
    pub fn seen(&self) -> Option<Use> {
        let nothing = Use { total_bytes: 0, used_bytes: 0, shared_bytes: 0, counted: None };
        self.last.or_else(|| self.problem.is_some().then_some(nothing))
    }
}

/// Counted bytes at which `wanted` bytes are in use, as long as what is counted but not in use
/// stays what it is.
fn threshold_bytes(wanted: u64, used: u64, counted: u64) -> u64 {
    if counted >= used {
        wanted.saturating_add(counted - used)
    } else {
        wanted.saturating_sub(used - counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::limit::Group;

    #[test]
    fn what_cannot_be_understood_is_an_error_and_a_group_without_a_limit_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "1000000\n");
        write("memory.current", "600000\n");
        write("memory.stat", "active_file 0\ninactive_file 100000\nshmem 300000\n");
        let group = Group { version: 2, directory: dir.path().to_owned() };
        let mut watched = Watched::new(Place::of(group, u64::MAX));
        let mut buffer = [0; BUFFER_BYTES];
        let seen = Event::Place {
            place: 3,
            total_bytes: 1_000_000,
            used_bytes: 500_000,
            shared_bytes: 300_000,
            alarm: law::Alarm::None,
        };
        assert_eq!(watched.look(3, &mut buffer), seen);
        write("memory.current", "?\n");
        assert_eq!(watched.look(3, &mut buffer), Event::Unreadable { place: 3 });
        assert!(watched.problem().unwrap().contains('?') && watched.seen().unwrap().total_bytes == 1_000_000);
        write("memory.max", "max\n");
        assert_eq!(watched.look(3, &mut buffer), Event::Unlimited { place: 3 });
        assert!(watched.problem().is_none() && watched.seen().is_none());
    }

    #[test]
    fn a_threshold_counts_what_the_kernel_counts() {
        assert_eq!(threshold_bytes(950, 500, 600), 1050, "100 are clean");
        assert_eq!(threshold_bytes(950, 500, 400), 850, "100 of the kernel's are not counted");
        assert_eq!(threshold_bytes(10, 500, 400), 0);
    }
}
