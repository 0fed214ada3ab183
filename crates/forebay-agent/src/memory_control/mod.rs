//! The memory controller of this node: takes memory from the tier before compute runs short of it,
//! and gives it back when compute needs less.
//!
//! One thread looks at the places where memory may run short ([`crate::memory::memory_place`]) and
//! reports to the machine that decides ([`forebay_policy::memory::node`]). It looks as rarely as
//! that wants, and immediately when the kernel reports a stall, or use beyond a threshold. Nothing
//! here waits for another node, so the cost does not depend on the cluster.
//!
//! | file | what it does |
//! | --- | --- |
//! | `recorded` | the machine, and the log of what it hears and decides |
//! | `sources` | the places, and what the kernel and a service manager report |
//! | `watched` | one place and its threshold |
//! | `weight` | what other nodes take as this node's size: changes of the capacity, damped |
//! | `calls` | waits for the kernel's events |
//! | `history` | the last minutes, for display |

mod calls;
mod history;
mod recorded;
mod sources;
#[cfg(test)]
mod tests;
mod watched;
mod weight;

use crate::cache::{Cache, Freed};
use crate::config::MemoryConfig;
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::memory::memory_place::{BUFFER_BYTES, Use};
use crate::memory::parts::parts;
use crate::stop::{Stop, Wake};
use calls::Calls;
use forebay_policy::machine::Nanos;
use forebay_policy::memory::Reason;
use forebay_policy::memory::node::{Action, Event};
use forebay_wire::{MemoryPlace, MemoryStatus};
use history::History;
pub use recorded::Recorded;
use sources::Sources;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use watched::Watched;
use weight::Weight;

/// Time between two searches for the places, if one of them is gone.
const SEARCH: Duration = Duration::from_secs(1);

/// Shortest time between two looks, whatever the kernel reports.
const LOOK_AT_MOST: Duration = Duration::from_micros(500);

/// The controller; shared by its thread and those who ask it or report to it.
#[derive(Debug)]
pub struct Control {
    /// The configuration, and the least that the tier keeps, in bytes.
    config: Mutex<(MemoryConfig, u64)>,
    is_new: AtomicBool,
    cache: Arc<Cache>,
    counters: Arc<Counters>,
    wake: Arc<Wake>,
    weight_bytes: AtomicU64,
    seen: Mutex<Seen>,
}

/// What it has seen and done, for display.
#[derive(Debug, Default)]
struct Seen {
    places: Vec<MemoryPlace>,
    /// Named groups that are not there.
    awaited: Vec<String>,
    alarms: Vec<String>,
    history: History,
}

impl Control {
    /// A controller of `cache`, whose capacity is the most that the operator allows. `wake` is
    /// called when the agent ends.
    pub fn new(
        config: MemoryConfig,
        min_bytes: u64,
        cache: Arc<Cache>,
        counters: Arc<Counters>,
        wake: Arc<Wake>,
    ) -> Self {
        let weight_bytes = AtomicU64::new(cache.budget.most_bytes());
        let (config, is_new) = (Mutex::new((config, min_bytes)), AtomicBool::new(false));
        Control { config, is_new, cache, counters, wake, weight_bytes, seen: Mutex::default() }
    }

    /// Changes target, least size and watched groups; the law stays.
    pub fn reconfigure(&self, config: &MemoryConfig, min_bytes: u64) {
        let mut now = lock(&self.config);
        // The laws forget what they have learnt under another target.
        let is_new = now.0.target != config.target || now.0.watch != config.watch;
        *now = (MemoryConfig { policy: now.0.policy.clone(), ..config.clone() }, min_bytes);
        self.is_new.fetch_or(is_new, Ordering::AcqRel);
        self.wake.call();
    }

    fn min_bytes(&self) -> u64 {
        lock(&self.config).1
    }

    /// Sets the most that the tier may have, which it has immediately. The controller then takes
    /// from it what compute needs.
    pub fn set_max(&self, bytes: u64) -> Freed {
        let freed = self.cache.set_capacity(bytes);
        self.weight_bytes.store(bytes, Ordering::Release);
        self.wake.call();
        freed
    }

    /// The most that the operator allows, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.cache.budget.most_bytes()
    }

    /// The size by which other nodes place extents here, in bytes.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes.load(Ordering::Acquire)
    }

    /// The last minutes, for display.
    pub fn status(&self) -> MemoryStatus {
        let (config, min_bytes) = lock(&self.config).clone();
        let seen = lock(&self.seen);
        MemoryStatus {
            policy: config.policy,
            target_per_10000: (config.target * 10_000.0).round() as u32,
            min_bytes: min_bytes.min(self.max_bytes()),
            max_bytes: self.max_bytes(),
            capacity_bytes: self.cache.budget.capacity_bytes(),
            tier_bytes: self.cache.budget.used_bytes(),
            weight_bytes: self.weight_bytes(),
            places: seen.places.iter().map(with_parts).collect(),
            alarms: seen.alarms.clone(),
            awaited: seen.awaited.clone(),
            points: seen.history.points(),
        }
    }

    /// The names of the places, and of what wakes the controller, for display.
    pub fn sources(&self) -> (Vec<String>, Vec<String>) {
        let seen = lock(&self.seen);
        (seen.places.iter().map(|place| place.name.clone()).collect(), seen.alarms.clone())
    }

    /// Why places cannot be read, for display; nothing if all can.
    pub fn problems(&self) -> Vec<String> {
        let seen = lock(&self.seen);
        let problem = |place: &MemoryPlace| format!("{}: {}", place.name, place.problem);
        seen.places.iter().filter(|place| !place.problem.is_empty()).map(problem).collect()
    }

    /// Runs the thread until the agent ends. Without a decision log, a look that changes nothing
    /// allocates nothing.
    pub fn run(&self, stop: &Stop, mut machine: Recorded) {
        hurry();
        let calls = match Calls::new(&self.wake) {
            Ok(calls) => calls,
            Err(e) => return tracing::error!("there is no memory controller, the capacity stays: {e}"),
        };
        let started = Instant::now();
        let mut watch = lock(&self.config).0.watch.clone();
        let mut sources = Sources::new(&watch, &calls);
        machine.moved(Nanos(0), sources.names());
        let mut buffer = Box::new([0; BUFFER_BYTES]);
        let mut weight = Weight::new(self.max_bytes());
        let (mut pressed, mut searched) = (false, started);
        while !stop.is_stopping() {
            let looked = Instant::now();
            let now = Nanos(looked.duration_since(started).as_nanos() as u64);
            let max_bytes = self.max_bytes();
            if self.is_new.swap(false, Ordering::AcqRel) {
                let config = lock(&self.config).0.clone();
                machine.configure(&config);
                watch = config.watch;
                sources.search(&watch, &calls);
                machine.moved(now, sources.names());
            }
            let searches = self.look(now, (pressed, max_bytes), &mut machine, &mut sources, &mut buffer);
            let after = self.carry_out((now, max_bytes), &machine, &mut sources, &calls);
            if searches && looked.duration_since(searched) >= SEARCH {
                if sources.search(&watch, &calls) {
                    machine.moved(now, sources.names());
                }
                searched = looked;
            }
            let bytes = weight.of(now, self.cache.budget.capacity_bytes(), self.max_bytes());
            self.weight_bytes.store(bytes, Ordering::Release);
            pressed = calls.wait(after, &self.wake);
            if pressed {
                sources.renew();
            }
            add(&self.counters.memory_alarms_total, u64::from(pressed));
            // A threshold may be passed back and forth very often.
            std::thread::sleep(LOOK_AT_MOST.saturating_sub(looked.elapsed()));
        }
    }

    /// Looks at every place, and reports to the machine. Returns whether a place could not be read,
    /// or is not there yet.
    fn look(
        &self,
        now: Nanos,
        (pressed, max_bytes): (bool, u64),
        machine: &mut Recorded,
        sources: &mut Sources,
        buffer: &mut [u8; BUFFER_BYTES],
    ) -> bool {
        let budget = &self.cache.budget;
        machine.begin(now);
        machine.hear(
            now,
            Event::Look {
                min_bytes: self.min_bytes().min(max_bytes),
                max_bytes,
                capacity_bytes: budget.capacity_bytes(),
                tier_bytes: budget.used_bytes(),
                pressed,
            },
        );
        let mut searches = false;
        for (number, place) in (0..).zip(&mut sources.watched) {
            machine.hear(now, place.look(number, buffer));
            searches |= place.problem().is_some() || place.is_awaited();
            add(&self.counters.memory_unreadable_total, u64::from(place.problem().is_some()));
        }
        machine.hear(now, Event::Decide);
        searches
    }

    /// Does what the machine has decided, and returns when to look again.
    fn carry_out(
        &self,
        (now, max_bytes): (Nanos, u64),
        machine: &Recorded,
        sources: &mut Sources,
        calls: &Calls,
    ) -> Duration {
        let (mut after, mut capacity, mut reason) = (SEARCH, self.cache.budget.capacity_bytes(), None);
        for action in machine.decided() {
            match *action {
                Action::Threshold { place, bytes } => sources.watched[place as usize].want(bytes),
                Action::Resize { capacity_bytes, why, .. } => {
                    (capacity, reason) = (capacity_bytes, why);
                    self.resize(max_bytes, capacity_bytes, why);
                }
                Action::Watch { after_ns } => after = Duration::from_nanos(after_ns),
            }
        }
        let calm = reason.is_none();
        sources.watched.iter_mut().for_each(|watched| watched.watch(now, calm, calls));
        let mut seen = lock(&self.seen);
        if !sources.alarms().map(|alarm| &alarm.name).eq(&seen.alarms) {
            seen.alarms = sources.alarms().map(|alarm| alarm.name.clone()).collect();
        }
        if !sources.awaited().eq(&seen.awaited) {
            seen.awaited = sources.awaited().cloned().collect();
        }
        note_places(&mut seen.places, &sources.watched);
        let node = seen.places.first().map(|p| (p.used_bytes, p.total_bytes)).unwrap_or_default();
        seen.history.note(now, node, (self.cache.budget.used_bytes(), capacity), reason);
        after
    }

    /// Resizes the tier, unless the operator has set another maximum since the look began.
    fn resize(&self, max_bytes: u64, capacity_bytes: u64, why: Option<Reason>) {
        if let Some(freed) = self.cache.give_way(max_bytes, capacity_bytes) {
            add(&self.counters.capacity_changes_total, 1);
            let of_reason = why.map(|why| match why {
                Reason::Above => &self.counters.capacity_changes_above_total,
                Reason::Below => &self.counters.capacity_changes_below_total,
                Reason::Growth => &self.counters.capacity_changes_growth_total,
            });
            of_reason.into_iter().for_each(|counter| add(counter, 1));
            add(&self.counters.released_bytes, freed.bytes);
        }
    }
}

/// Raises the priority of this thread: programs that take memory compete with it for the
/// processors, and each millisecond that it waits for one may cost 10 MB. It runs seldom, and not
/// for long. Without privileges its priority stays as it is.
fn hurry() {
    let _ = rustix::process::setpriority_process(None, -20);
}

fn with_parts(place: &MemoryPlace) -> MemoryPlace {
    MemoryPlace { parts: parts(&place.name), ..place.clone() }
}

fn note_places(seen: &mut Vec<MemoryPlace>, watched: &[Watched]) {
    let found = || watched.iter().filter_map(|watched| Some((watched, watched.seen()?)));
    let is_same = |(a, b): (&MemoryPlace, (&Watched, Use))| a.name == b.0.place.name;
    if seen.len() != found().count() || !seen.iter().zip(found()).all(is_same) {
        let place = |(watched, _): (&Watched, Use)| MemoryPlace {
            name: watched.place.name.clone(),
            ..MemoryPlace::default()
        };
        *seen = found().map(place).collect();
    }
    for (place, (watched, found)) in seen.iter_mut().zip(found()) {
        (place.total_bytes, place.used_bytes) = (found.total_bytes, found.used_bytes);
        let problem = watched.problem().unwrap_or_default();
        if place.problem != problem {
            problem.clone_into(&mut place.problem);
        }
    }
}
