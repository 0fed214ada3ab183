//! The memory controller of a node: a law for each place where memory may run short, and for the
//! tier the least capacity that a law allows.
//!
//! A place is the node itself, or a control group with a limit. A law is built for the memory of
//! its place and for what the operator allows the tier; when one of these changes it starts from
//! scratch. What cannot be read never makes the tier grow.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Alarm, Config as LawConfig, Controller, Event as LawEvent, Reason, Sample, policy};
use crate::machine::{Machine, Nanos};

/// The capacity changes by whole blocks: by a thousandth of the memory, at least by a huge page.
const BLOCKS: u64 = 1024;
const BLOCK_MIN_BYTES: u64 = 2 << 20;

/// Longest time between two looks, whatever the laws request: a group may be given a limit.
const LOOK_AT_LEAST_NS: u64 = 1_000_000_000;

/// Fraction of the capacity that is released at an alarm while a place cannot be read.
const BLIND_PARTS: u64 = 4;

/// Limit on places; later ones have no law.
const PLACES_MAX: u32 = 64;

/// What the controller is built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Name of the law.
    pub policy: String,
    /// Share of each place's memory that may be in use.
    pub target: f64,
    /// Period of the laws.
    pub period_ns: u64,
    /// Gain of the law `dynims`.
    #[serde(default = "usual_gain")]
    pub gain: f64,
}

/// The gain for logs that do not record it.
fn usual_gain() -> f64 {
    LawConfig::default().gain
}

/// Input of the controller. A look is a `Look`, the readings of each place, and `Decide`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// The places have changed: all laws start from scratch.
    Moved,
    /// A look begins.
    Look {
        /// The least capacity that the operator allows.
        min_bytes: u64,
        /// The greatest capacity that the operator allows.
        max_bytes: u64,
        /// The current capacity.
        capacity_bytes: u64,
        /// What the tier holds.
        tier_bytes: u64,
        /// The kernel has asked for the look: memory runs short.
        pressed: bool,
    },
    /// The memory of a place, and what is in use of it.
    Place {
        /// Its number, from 0.
        place: u32,
        /// The node's memory, or the group's limit.
        total_bytes: u64,
        /// Memory that cannot be reclaimed immediately.
        used_bytes: u64,
        /// The part of `used_bytes` in tmpfs: the tier holds no more than this.
        shared_bytes: u64,
        /// What reports growth there between two looks.
        #[serde(default)]
        alarm: Alarm,
    },
    /// A place no longer has a limit.
    Unlimited {
        /// Its number.
        place: u32,
    },
    /// A place could not be read, or not be understood: the tier does not grow, and releases a
    /// quarter of its capacity if the kernel has requested the look.
    Unreadable {
        /// Its number.
        place: u32,
    },
    /// The look is over.
    Decide,
}

/// What it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// The law of a place is new: a look is wanted as soon as use there exceeds this.
    Threshold {
        /// The place.
        place: u32,
        /// The use, in bytes.
        bytes: u64,
    },
    /// Sets the capacity of the tier.
    Resize {
        /// The capacity.
        capacity_bytes: u64,
        /// The place that allows no more; `None`: the operator, or a place that cannot be read.
        place: Option<u32>,
        /// Why its law has changed what it allows, if it has.
        why: Option<Reason>,
    },
    /// Requests the next look.
    Watch {
        /// Time until then, in ns from now.
        after_ns: u64,
    },
}

/// See the module.
pub struct NodeMemory {
    config: Config,
    laws: Vec<Option<Law>>,
    look: Look,
    /// Actions of the law that was asked last.
    wishes: Vec<super::Action>,
}

/// The law of a place, and what it was built for.
struct Law {
    controller: Controller,
    total_bytes: u64,
    bounds: (u64, u64),
}

/// What a look has found up to now.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    bounds: (u64, u64),
    /// The capacity before the look, as it is and as the operator allows it.
    held_bytes: u64,
    before_bytes: u64,
    tier_bytes: u64,
    pressed: bool,
    capacity_bytes: u64,
    by: Option<(u32, Option<Reason>)>,
    after_ns: u64,
}

impl NodeMemory {
    /// Creates a controller that knows no place yet.
    ///
    /// # Errors
    /// If no law has that name, or the target is not a share.
    pub fn new(config: Config) -> Result<Self, String> {
        policy(&config.policy).map_err(|e| e.to_string())?;
        if !(config.target > 0.0 && config.target < 1.0) {
            return Err(alloc::format!("a target of {} is not between 0 and 1", config.target));
        }
        Ok(NodeMemory { config, laws: Vec::new(), look: Look::default(), wishes: Vec::with_capacity(2) })
    }

    /// Returns the capacity that the last look has led to, in bytes.
    pub fn snapshot(&self) -> u64 {
        self.look.capacity_bytes
    }

    fn place(&mut self, now: Nanos, place: u32, memory: Memory, out: &mut Vec<Action>) {
        let NodeMemory { config, laws, look, wishes } = self;
        let Some(slot) = slot(laws, place) else { return };
        let fits = |law: &Law| (law.total_bytes, law.bounds) == (memory.total_bytes, look.bounds);
        if !slot.as_ref().is_some_and(fits) {
            let Ok(policy) = policy(&config.policy) else { return };
            let config = law_config(config, look.bounds, memory.total_bytes);
            let controller = Controller::new(policy, config, look.before_bytes);
            out.push(Action::Threshold { place, bytes: controller.alarm_bytes() });
            *slot = Some(Law { controller, total_bytes: memory.total_bytes, bounds: look.bounds });
        }
        let Some(law) = slot else { return };
        law.controller.hears_by(memory.alarm);
        let tier_bytes = look.tier_bytes.min(memory.used_bytes).min(memory.shared_bytes);
        let sample = Sample { used_bytes: memory.used_bytes, tier_bytes };
        let event = if look.pressed { LawEvent::Pressure(sample) } else { LawEvent::Sample(sample) };
        wishes.clear();
        law.controller.handle(now, event, wishes);
        let mut why = None;
        for wish in wishes {
            match wish {
                super::Action::Resize { why: reason, .. } => why = Some(*reason),
                super::Action::Watch { after_ns } => look.after_ns = look.after_ns.min(*after_ns),
            }
        }
        let capacity_bytes = law.controller.snapshot();
        if capacity_bytes < look.capacity_bytes {
            (look.capacity_bytes, look.by) = (capacity_bytes, Some((place, why)));
        }
    }

    /// Handles a place that cannot be read: the tier does not grow, and if the kernel reports that
    /// memory is short, it releases a fraction, as the shortage is unknown.
    fn blind(&mut self) {
        let look = &mut self.look;
        let given = if look.pressed { look.before_bytes / BLIND_PARTS } else { 0 };
        let bytes = look.before_bytes.saturating_sub(given).max(look.bounds.0);
        if bytes < look.capacity_bytes {
            (look.capacity_bytes, look.by) = (bytes, None);
        }
    }

    fn decide(&mut self, out: &mut Vec<Action>) {
        let Look { capacity_bytes, held_bytes, by, after_ns, .. } = self.look;
        if capacity_bytes != held_bytes {
            let (place, why) = (by.map(|by| by.0), by.and_then(|by| by.1));
            out.push(Action::Resize { capacity_bytes, place, why });
        }
        out.push(Action::Watch { after_ns });
    }
}

/// The memory of a place, and what is in use of it.
struct Memory {
    total_bytes: u64,
    used_bytes: u64,
    shared_bytes: u64,
    alarm: Alarm,
}

/// Returns the slot for the law of a place; `None` if there are too many places.
fn slot(laws: &mut Vec<Option<Law>>, place: u32) -> Option<&mut Option<Law>> {
    let number = place as usize;
    if place < PLACES_MAX && number >= laws.len() {
        laws.resize_with(number + 1, || None);
    }
    laws.get_mut(number)
}

/// Returns the configuration of a law for a memory of `total_bytes`.
fn law_config(config: &Config, (min_bytes, max_bytes): (u64, u64), total_bytes: u64) -> LawConfig {
    LawConfig {
        memory_bytes: total_bytes,
        target: config.target,
        gain: config.gain,
        block_bytes: (total_bytes / BLOCKS / BLOCK_MIN_BYTES * BLOCK_MIN_BYTES).max(BLOCK_MIN_BYTES),
        min_bytes,
        max_bytes,
        period_ns: config.period_ns,
        fast_period_ns: config.period_ns / 10,
        ..LawConfig::default()
    }
}

impl Machine for NodeMemory {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Moved => self.laws.clear(),
            Event::Look { min_bytes, max_bytes, capacity_bytes, tier_bytes, pressed } => {
                let bounds = (min_bytes.min(max_bytes), max_bytes);
                self.look = Look {
                    bounds,
                    held_bytes: capacity_bytes.min(max_bytes),
                    before_bytes: capacity_bytes.clamp(bounds.0, bounds.1),
                    tier_bytes,
                    pressed,
                    capacity_bytes: max_bytes,
                    by: None,
                    after_ns: LOOK_AT_LEAST_NS,
                };
            }
            Event::Place { place, total_bytes, used_bytes, shared_bytes, alarm } => {
                self.place(now, place, Memory { total_bytes, used_bytes, shared_bytes, alarm }, out);
            }
            Event::Unlimited { place } => {
                if let Some(law) = self.laws.get_mut(place as usize) {
                    *law = None;
                }
            }
            Event::Unreadable { .. } => self.blind(),
            Event::Decide => self.decide(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn node(policy: &str) -> NodeMemory {
        let config = Config { policy: policy.into(), target: 0.95, period_ns: 100_000_000, gain: 0.5 };
        NodeMemory::new(config).expect("it exists")
    }

    /// One look, at places with a total and a use in MiB; the node's tier holds all it may. A total
    /// of 0 stands for a place that cannot be read.
    fn look(node: &mut NodeMemory, ms: u64, capacity: u64, places: &[(u64, u64)]) -> Vec<Action> {
        let mut out = Vec::new();
        let (capacity_bytes, max_bytes) = (capacity * MIB, 400 * MIB);
        let look = Event::Look {
            min_bytes: 0,
            max_bytes,
            capacity_bytes,
            tier_bytes: capacity_bytes,
            pressed: false,
        };
        let place = |(place, (total, used)): (u32, &(u64, u64))| match total {
            0 => Event::Unreadable { place },
            total => Event::Place {
                place,
                total_bytes: total * MIB,
                used_bytes: used * MIB,
                shared_bytes: used * MIB,
                alarm: Alarm::Threshold,
            },
        };
        let events = [look].into_iter().chain((0..).zip(places).map(place)).chain([Event::Decide]);
        events.for_each(|event| node.handle(Nanos(ms * 1_000_000), event, &mut out));
        out
    }

    #[test]
    fn the_tier_gives_way_to_use_and_to_a_lower_limit() {
        let mut m = node("forebay");
        let out = look(&mut m, 0, 300, &[(1000, 600)]);
        assert_eq!(out[0], Action::Threshold { place: 0, bytes: 952 * MIB });
        assert_eq!(m.snapshot(), 400 * MIB, "300 of compute leave 650");
        // 700 of compute leave 250 below the target of 950.
        let out = look(&mut m, 100, 300, &[(1000, 1000)]);
        assert!((240..=250).contains(&(m.snapshot() / MIB)), "{out:?}");
        assert!(matches!(
            out[..],
            [Action::Resize { place: Some(0), why: Some(_), .. }, Action::Watch { .. }]
        ));
        // A limit of 800 leaves 60 beside 700.
        look(&mut m, 200, 300, &[(800, 1000)]);
        assert!((50..=60).contains(&(m.snapshot() / MIB)));
    }

    #[test]
    fn the_place_with_the_least_room_decides_and_one_that_cannot_be_read_lets_nothing_grow() {
        let mut m = node("forebay");
        look(&mut m, 0, 300, &[(10_000, 900), (1000, 800)]);
        let out = look(&mut m, 100, 300, &[(10_000, 1100), (1000, 1000)]);
        assert!(matches!(out[0], Action::Resize { place: Some(1), .. }), "{out:?}");
        let capacity = m.snapshot() / MIB;
        // All of it is free again, but the memory at the second place is unknown.
        for ms in [200, 300, 400] {
            look(&mut m, ms, capacity, &[(10_000, 200), (0, 0)]);
            assert_eq!(m.snapshot(), capacity * MIB);
        }
        look(&mut m, 500, capacity, &[(10_000, 200), (1000, capacity)]);
        assert_eq!(m.snapshot(), 400 * MIB);
    }

    #[test]
    fn without_a_limit_the_tier_has_what_the_operator_allows() {
        let mut m = node("forebay");
        look(&mut m, 0, 300, &[(1000, 900)]);
        let mut out = Vec::new();
        let look =
            Event::Look { min_bytes: 0, max_bytes: 7, capacity_bytes: 3, tier_bytes: 0, pressed: false };
        for event in [look, Event::Unlimited { place: 0 }, Event::Decide] {
            m.handle(Nanos(1), event, &mut out);
        }
        let resize = Action::Resize { capacity_bytes: 7, place: None, why: None };
        assert_eq!(out, vec![resize, Action::Watch { after_ns: LOOK_AT_LEAST_NS }]);
    }

    #[test]
    fn an_alarm_while_a_place_cannot_be_read_takes_a_quarter_each_time_but_not_the_least() {
        let mut m = node("forebay");
        let mut blind = |capacity_bytes, pressed| {
            let look = Event::Look { min_bytes: 50, max_bytes: 400, capacity_bytes, tier_bytes: 0, pressed };
            let events = [look, Event::Unreadable { place: 0 }, Event::Decide];
            events.into_iter().for_each(|event| m.handle(Nanos(0), event, &mut Vec::new()));
            m.snapshot()
        };
        assert_eq!(blind(200, false), 200);
        assert_eq!(blind(200, true), 150);
        assert_eq!(blind(60, true), 50);
    }

    /// A machine that was suspended sees hours between two looks, and one whose clock was set back
    /// sees negative time. Neither is growth: the law responds to the samples.
    #[test]
    fn a_clock_that_jumps_changes_nothing_but_the_time() {
        for jump_ms in [0, 7_200_000] {
            let mut m = node("forebay");
            for ms in (0..5_000).step_by(100) {
                look(&mut m, 10_000 + ms, 400, &[(2000, 1000)]);
            }
            assert_eq!(m.snapshot(), 400 * MIB);
            // Between the looks compute took all that was left: 1900 less 1800 stay below 95 %.
            let after_ms = if jump_ms == 0 { 9_000 } else { 15_000 + jump_ms };
            let out = look(&mut m, after_ms, 400, &[(2000, 2000)]);
            assert!((290..=300).contains(&(m.snapshot() / MIB)), "{out:?}");
            assert!(matches!(out[..], [Action::Resize { why: Some(Reason::Above), .. }, _]), "{out:?}");
            for ms in (100..2_000).step_by(100) {
                look(&mut m, after_ms + ms, 300, &[(2000, 1000)]);
            }
            assert_eq!(m.snapshot(), 400 * MIB, "it is free again");
        }
    }

    /// The result of a look at a place.
    #[derive(Clone, Copy, Debug)]
    enum Found {
        Used(u64),
        Unlimited,
        Unreadable,
    }

    fn found() -> impl Strategy<Value = Found> {
        prop_oneof![
            6 => (1u64..2500).prop_map(Found::Used),
            1 => Just(Found::Unlimited),
            1 => Just(Found::Unreadable),
        ]
    }

    /// A look: how long after the last one, in ms; what the operator allows, in MiB; whether the
    /// kernel has requested it.
    #[derive(Clone, Copy, Debug)]
    struct Looked {
        after_ms: i64,
        bounds: (u64, u64),
        pressed: bool,
        found: [Found; 2],
    }

    fn looked() -> impl Strategy<Value = Looked> {
        let bounds = prop_oneof![4 => Just((20, 400)), 1 => (0u64..300, 0u64..500)];
        let after = prop_oneof![8 => 0i64..200, 1 => -5_000i64..10_000_000];
        (after, bounds, any::<bool>(), found(), found()).prop_map(|(after_ms, bounds, pressed, one, two)| {
            Looked { after_ms, bounds, pressed, found: [one, two] }
        })
    }

    /// Looks only at the places of `numbers`.
    fn hear(node: &mut NodeMemory, ms: i64, capacity_bytes: u64, looked: &Looked, numbers: &[u32]) -> u64 {
        let (min, max) = looked.bounds;
        let (min_bytes, max_bytes) = (min * MIB, max * MIB);
        let tier_bytes = capacity_bytes;
        let look = Event::Look { min_bytes, max_bytes, capacity_bytes, tier_bytes, pressed: looked.pressed };
        let event = |&place: &u32| match looked.found[place as usize] {
            Found::Unlimited => Event::Unlimited { place },
            Found::Unreadable => Event::Unreadable { place },
            Found::Used(used) => Event::Place {
                place,
                total_bytes: [2000, 1000][place as usize] * MIB,
                used_bytes: used * MIB,
                shared_bytes: used * MIB / 2,
                alarm: if used % 2 == 0 { Alarm::None } else { Alarm::Threshold },
            },
        };
        let events = [look].into_iter().chain(numbers.iter().map(event)).chain([Event::Decide]);
        let now = Nanos(ms.max(0) as u64 * 1_000_000);
        events.for_each(|event| node.handle(now, event, &mut Vec::new()));
        node.snapshot()
    }

    proptest! {
        /// Whatever is seen, and whatever the operator and the clock do: the capacity stays within
        /// what the operator allows, does not grow while a place cannot be read, and is no more
        /// than the place with the least room would allow alone.
        #[test]
        fn each_place_holds_the_tier_as_it_would_alone(
            which in 0usize..3, looks in prop::collection::vec(looked(), 1..40)
        ) {
            let name = super::super::POLICIES[which].0;
            let (mut both, mut first, mut second) = (node(name), node(name), node(name));
            let (mut capacity, mut ms) = (400 * MIB, 10_000);
            for look in &looks {
                ms += look.after_ms;
                let together = hear(&mut both, ms, capacity, look, &[0, 1]);
                let one = hear(&mut first, ms, capacity, look, &[0]);
                let two = hear(&mut second, ms, capacity, look, &[1]);
                prop_assert_eq!(together, one.min(two));
                let (max, min) = (look.bounds.1 * MIB, look.bounds.0.min(look.bounds.1) * MIB);
                prop_assert!((min..=max).contains(&together), "{} in {:?}", together, look);
                if look.found.iter().any(|found| matches!(found, Found::Unreadable)) {
                    prop_assert!(together <= capacity.max(min), "{} > {}", together, capacity);
                }
                capacity = together;
            }
        }
    }
}
