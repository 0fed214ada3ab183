//! One place where memory may run short, with its law and its threshold.

use super::calls::Calls;
use crate::config::MemoryConfig;
use crate::memory::alarm::Alarm;
use crate::memory::place::{BUFFER_BYTES, Place, Use};
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::{self, Action, Controller, Event, Reason, Sample};
use std::time::Duration;

/// The capacity changes by whole blocks: by a thousandth of the memory, at least by a huge page.
const BLOCKS: u64 = 1024;
const BLOCK_MIN_BYTES: u64 = 2 << 20;

/// Failures of a place that are logged.
const COMPLAINTS_MAX: u32 = 1;

/// Between what the capacity may be, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Never less.
    pub min_bytes: u64,
    /// Never more.
    pub max_bytes: u64,
    /// Now.
    pub capacity_bytes: u64,
}

/// What the law of a place wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// The most that the tier may have.
    pub capacity_bytes: u64,
    /// Why it changed, if it did.
    pub reason: Option<Reason>,
    /// When to look again.
    pub after: Duration,
}

/// See the module.
pub struct Watched {
    /// Where.
    pub place: Place,
    law: Option<Law>,
    last: Option<Use>,
    is_new: bool,
    complaints: u32,
}

struct Law {
    controller: Controller,
    /// What it was made for.
    total_bytes: u64,
    min_bytes: u64,
    max_bytes: u64,
    threshold: Option<Alarm>,
    actions: Vec<Action>,
}

impl Watched {
    /// Nothing is known of `place` yet.
    pub fn new(place: Place) -> Self {
        Watched { place, law: None, last: None, is_new: true, complaints: 0 }
    }

    /// Looks, and asks the law; `None` where no limit is.
    ///
    /// # Errors
    /// What cannot be read. The law keeps what it had decided.
    pub fn look(
        &mut self,
        now: Nanos,
        pressed: bool,
        config: &MemoryConfig,
        bounds: &Bounds,
        tier_bytes: u64,
        buffer: &mut [u8; BUFFER_BYTES],
    ) -> Result<Option<Wish>, String> {
        self.last = self.place.look(buffer)?;
        let Some(Use { total_bytes, used_bytes, shared_bytes }) = self.last else {
            self.law = None;
            return Ok(None);
        };
        let fits = |law: &Law| {
            (law.total_bytes, law.min_bytes, law.max_bytes)
                == (total_bytes, bounds.min_bytes, bounds.max_bytes)
        };
        if !self.law.as_ref().is_some_and(fits) {
            self.is_new = true;
            self.law = Some(Law::new(&self.place, config, bounds, total_bytes)?);
        }
        let Some(law) = &mut self.law else { return Ok(None) };
        let sample = Sample { used_bytes, tier_bytes: tier_bytes.min(used_bytes).min(shared_bytes) };
        let event = if pressed { Event::Pressure(sample) } else { Event::Sample(sample) };
        law.actions.clear();
        law.controller.handle(now, event, &mut law.actions);
        let mut wish = Wish { capacity_bytes: law.controller.snapshot(), reason: None, after: config.period };
        for action in &law.actions {
            match action {
                Action::Resize { why, .. } => wish.reason = Some(*why),
                Action::Watch { after_ns } => wish.after = Duration::from_nanos(*after_ns),
            }
        }
        Ok(Some(wish))
    }

    /// The threshold of use that the kernel watches.
    pub fn alarm(&self) -> Option<&Alarm> {
        self.law.as_ref()?.threshold.as_ref()
    }

    /// Whether a failure should be logged.
    pub fn complains(&mut self) -> bool {
        self.complaints += 1;
        self.complaints <= COMPLAINTS_MAX
    }

    /// What was seen last, with the name of the place.
    pub fn seen(&self) -> Option<(&str, Use)> {
        Some((&self.place.name, self.last?))
    }

    /// Whether the limit is new since this was last called; its threshold is then watched.
    pub fn take_is_new(&mut self, calls: &Calls) -> bool {
        if let (true, Some(alarm)) = (self.is_new, self.alarm()) {
            // Without it the place is looked at as often as its law wants.
            let _ = calls.add(alarm);
        }
        std::mem::take(&mut self.is_new)
    }
}

impl Law {
    fn new(place: &Place, config: &MemoryConfig, bounds: &Bounds, total_bytes: u64) -> Result<Self, String> {
        let block_bytes = (total_bytes / BLOCKS / BLOCK_MIN_BYTES * BLOCK_MIN_BYTES).max(BLOCK_MIN_BYTES);
        let period_ns = config.period.as_nanos() as u64;
        let law = memory::Config {
            memory_bytes: total_bytes,
            target: config.target,
            block_bytes,
            min_bytes: bounds.min_bytes,
            max_bytes: bounds.max_bytes,
            period_ns,
            fast_period_ns: period_ns / 10,
            ..memory::Config::default()
        };
        let threshold = Alarm::of_threshold(place, law.alarm_bytes());
        let controller = Controller::new(memory::policy(&config.policy)?, law, bounds.capacity_bytes);
        Ok(Law {
            controller,
            total_bytes,
            min_bytes: bounds.min_bytes,
            max_bytes: bounds.max_bytes,
            threshold,
            actions: Vec::with_capacity(2),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::limit::Group;
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    fn group(directory: &Path, limit: u64, used: u64) -> Place {
        let write = |name: &str, text: String| std::fs::write(directory.join(name), text).unwrap();
        write("memory.max", format!("{limit}\n"));
        write("memory.current", format!("{used}\n"));
        write("memory.stat", "active_file 0\ninactive_file 0\n".into());
        Place::of(Group { version: 2, directory: directory.to_owned() }, u64::MAX).unwrap()
    }

    const BOUNDS: Bounds = Bounds { min_bytes: 0, max_bytes: 400 * MIB, capacity_bytes: 400 * MIB };

    #[test]
    fn the_tier_gives_way_to_use_and_to_a_lower_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut watched = Watched::new(group(dir.path(), 1000 * MIB, 600 * MIB));
        let (config, mut buffer) = (MemoryConfig::default(), [0; BUFFER_BYTES]);
        let mut look = |ms: u64, tier: u64| {
            watched
                .look(Nanos(ms * 1_000_000), false, &config, &BOUNDS, tier * MIB, &mut buffer)
                .unwrap()
                .unwrap()
        };
        assert_eq!(look(0, 300).capacity_bytes, 400 * MIB);
        // 700 MiB of compute leave 250 below the target of 950.
        std::fs::write(dir.path().join("memory.current"), (1000 * MIB).to_string()).unwrap();
        let wish = look(100, 300);
        assert!((240..=250).contains(&(wish.capacity_bytes / MIB)), "{wish:?}");
        assert!(matches!(wish.reason, Some(Reason::Above | Reason::Growth)), "{wish:?}");
        // A limit of 800 leaves 60 beside 700.
        std::fs::write(dir.path().join("memory.max"), (800 * MIB).to_string()).unwrap();
        let wish = look(200, 300);
        assert!((50..=60).contains(&(wish.capacity_bytes / MIB)), "{wish:?}");
    }

    #[test]
    fn a_place_that_cannot_be_read_is_an_error_and_its_law_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut watched = Watched::new(group(dir.path(), 1000 * MIB, 600 * MIB));
        let (config, mut buffer) = (MemoryConfig::default(), [0; BUFFER_BYTES]);
        watched.look(Nanos(0), false, &config, &BOUNDS, 0, &mut buffer).unwrap();
        std::fs::write(dir.path().join("memory.current"), "?\n").unwrap();
        assert!(watched.look(Nanos(1), false, &config, &BOUNDS, 0, &mut buffer).is_err());
        assert!(watched.law.is_some() && watched.complains() && !watched.complains());
    }
}
