//! One place where memory may run short, and the threshold of use that the kernel watches there.

use super::calls::Calls;
use crate::memory::alarm::Alarm;
use crate::memory::place::{BUFFER_BYTES, Place, Use};
use forebay_policy::memory::node::Event;

/// Failures of a place that are logged.
const COMPLAINTS_MAX: u32 = 1;

/// See the module.
pub struct Watched {
    /// Where.
    pub place: Place,
    last: Option<Use>,
    /// Why the last look failed, if it did.
    problem: Option<String>,
    threshold: Option<Alarm>,
    complaints: u32,
}

impl Watched {
    /// Nothing is known of `place` yet.
    pub fn new(place: Place) -> Self {
        Watched { place, last: None, problem: None, threshold: None, complaints: 0 }
    }

    /// Looks at the place, which has this number; returns what the controller is to hear.
    pub fn look(&mut self, number: u32, buffer: &mut [u8; BUFFER_BYTES]) -> Event {
        match self.place.look(buffer) {
            Ok(found) => (self.last, self.problem) = (found, None),
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
                self.threshold = None;
                Event::Unlimited { place: number }
            }
            Some(Use { total_bytes, used_bytes, shared_bytes }) => {
                Event::Place { place: number, total_bytes, used_bytes, shared_bytes }
            }
        }
    }

    /// Why the last look failed, if it did.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Has the kernel watch use beyond so many bytes, in place of what it watched here. Without
    /// that the place is looked at as often as its law wants.
    pub fn watch(&mut self, bytes: u64, calls: &Calls) {
        self.threshold = Alarm::of_threshold(&self.place, bytes);
        if let Some(alarm) = &self.threshold {
            let _ = calls.add(alarm);
        }
    }

    /// The threshold of use that the kernel watches.
    pub fn alarm(&self) -> Option<&Alarm> {
        self.threshold.as_ref()
    }

    /// What was seen last, nothing if nothing could be; `None` for a place without a limit.
    pub fn seen(&self) -> Option<Use> {
        let nothing = Use { total_bytes: 0, used_bytes: 0, shared_bytes: 0 };
        self.last.or_else(|| self.problem.is_some().then_some(nothing))
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
        let seen =
            Event::Place { place: 3, total_bytes: 1_000_000, used_bytes: 500_000, shared_bytes: 300_000 };
        assert_eq!(watched.look(3, &mut buffer), seen);
        write("memory.current", "?\n");
        assert_eq!(watched.look(3, &mut buffer), Event::Unreadable { place: 3 });
        assert!(watched.problem().unwrap().contains('?') && watched.seen().unwrap().total_bytes == 1_000_000);
        write("memory.max", "max\n");
        assert_eq!(watched.look(3, &mut buffer), Event::Unlimited { place: 3 });
        assert!(watched.problem().is_none() && watched.seen().is_none());
    }
}
