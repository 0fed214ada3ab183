//! The memory controller: how much of a node's memory the tier may have.
//!
//! Compute comes first: when it needs memory the tier gives way before the node swaps; when it
//! needs less the tier takes what is left. The machine receives samples of the node's memory and
//! answers with the tier's capacity and with the time of the next sample. It runs on each node by
//! itself, so its cost does not depend on the size of the cluster. The law is a policy, one file
//! here and a line in [`POLICIES`]:
//!
//! | policy | law |
//! | --- | --- |
//! | `static` | never changes |
//! | `dynims` | u - lambda v (r - r0) / r0 each period, as published |
//! | `forebay` | releases immediately and ahead of growth, takes what is free immediately |
//!
//! Source: DynIMS, dissertation, chapter 3.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos, UnknownPolicy, named};

mod dynims;
mod forebay;
pub mod node;

/// What the machine receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A requested sample.
    Sample(Sample),
    /// Memory runs short: the kernel reports stalls, or use has passed [`Config::alarm_bytes`].
    /// Comes without a request.
    Pressure(Sample),
}

/// How the law learns of swift growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// The kernel reports when use passes the threshold, so a quiet node or group is sampled
    /// rarely.
    #[default]
    Threshold,
    /// Nothing is reported before memory is exhausted: only samples show growth.
    None,
}

/// A node's memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Memory in use, the tier included (v).
    pub used_bytes: u64,
    /// The part of it that the tier holds.
    pub tier_bytes: u64,
}

/// What it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Sets the capacity of the tier; what is above it has to be evicted immediately.
    Resize {
        /// The capacity (u).
        capacity_bytes: u64,
        /// Why.
        why: Reason,
    },
    /// Requests the next sample.
    Watch {
        /// Time until then, in ns from now.
        after_ns: u64,
    },
}

/// Why the capacity changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// More memory is in use than the target.
    Above,
    /// Less memory is in use than the target.
    Below,
    /// Use would be above the target before the next sample.
    Growth,
}

/// Configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Memory of the node (M).
    pub memory_bytes: u64,
    /// Target utilisation (r0), above 0 and below 1.
    pub target: f64,
    /// Gain of the published law (lambda); it is stable between 0 and 2.
    pub gain: f64,
    /// The tier is resized by whole blocks (B).
    pub block_bytes: u64,
    /// Least capacity of the tier (U_min).
    pub min_bytes: u64,
    /// Greatest capacity of the tier (U_max).
    pub max_bytes: u64,
    /// Period (T).
    pub period_ns: u64,
    /// Period while memory use grows; only `forebay` uses it.
    pub fast_period_ns: u64,
    /// What reports growth between samples; only `forebay` uses it.
    #[serde(default)]
    pub alarm: Alarm,
}

impl Default for Config {
    /// The paper's values, for 125 GB of memory. It does not publish B; 128 MiB is an HDFS block,
    /// and small enough for the dead zone of two blocks to be no more than a fifth of a percent of
    /// the memory.
    fn default() -> Self {
        Config {
            memory_bytes: 125_000_000_000,
            target: 0.95,
            gain: 0.5,
            block_bytes: 128 << 20,
            min_bytes: 0,
            max_bytes: 60_000_000_000,
            period_ns: 100_000_000,
            fast_period_ns: 10_000_000,
            alarm: Alarm::Threshold,
        }
    }
}

impl Config {
    /// Returns r0 M.
    pub fn target_bytes(&self) -> f64 {
        self.target * self.memory_bytes as f64
    }

    /// Returns the use above which an alarm is wanted under a law that aims at r0 M.
    pub fn alarm_bytes(&self) -> u64 {
        self.alarm_above(self.target_bytes())
    }

    /// Returns a fifth of a percent of the memory above `target_bytes`. Kernels report a threshold
    /// of memory use immediately and at no cost, while a stall comes when memory is exhausted.
    fn alarm_above(&self, target_bytes: f64) -> u64 {
        (target_bytes + 0.002 * self.memory_bytes as f64) as u64
    }
}

/// What a law wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// The new capacity, before its limits are applied; `None` to leave it.
    pub capacity: Option<(u64, Reason)>,
    /// When to sample again, in ns from now.
    pub after_ns: u64,
}

/// The part that differs between policies.
pub trait Policy: Send {
    /// The use that the law aims at, in bytes: r0 M, unless the law needs more room.
    fn target_bytes(&self, config: &Config) -> f64 {
        config.target_bytes()
    }

    /// The capacity after `sample`, where it is `capacity_bytes` now.
    fn next(&mut self, now: Nanos, config: &Config, capacity_bytes: u64, sample: Sample) -> Wish;
}

/// Keeps the initial capacity.
struct Static;

impl Policy for Static {
    fn next(&mut self, _now: Nanos, config: &Config, _capacity_bytes: u64, _sample: Sample) -> Wish {
        Wish { capacity: None, after_ns: config.period_ns }
    }
}

/// Makes a policy.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// Every policy: its name and how to make it. A new one needs a file in this folder and a line
/// here.
pub const POLICIES: &[(&str, MakePolicy)] = &[
    ("static", || Box::new(Static)),
    ("dynims", || Box::new(dynims::DynIms)),
    ("forebay", || Box::new(forebay::Forebay::default())),
];

/// The policy called `name`.
///
/// # Errors
/// If `name` is unknown; lists the known names.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    Ok(named(POLICIES, "memory policy", name)?())
}

/// The controller of one node.
pub struct Controller {
    config: Config,
    policy: Box<dyn Policy>,
    capacity_bytes: u64,
}

impl Controller {
    /// A controller of a tier that has `capacity_bytes` now.
    pub fn new(policy: Box<dyn Policy>, config: Config, capacity_bytes: u64) -> Self {
        assert!(
            config.min_bytes <= config.max_bytes,
            "U_min {} is above U_max {}",
            config.min_bytes,
            config.max_bytes
        );
        assert!(
            config.target > 0.0 && config.target < 1.0,
            "a target of {} is not between 0 and 1",
            config.target
        );
        assert!(config.block_bytes > 0, "blocks need a size");
        Controller { config, policy, capacity_bytes }
    }

    /// Sets what reports growth between samples from now on.
    pub fn hears_by(&mut self, alarm: Alarm) {
        self.config.alarm = alarm;
    }

    /// Use above which the law wants an [`Event::Pressure`], in bytes.
    pub fn alarm_bytes(&self) -> u64 {
        self.config.alarm_above(self.policy.target_bytes(&self.config))
    }

    /// The tier's capacity in bytes.
    pub fn snapshot(&self) -> u64 {
        self.capacity_bytes
    }
}

impl Machine for Controller {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        let (Event::Sample(sample) | Event::Pressure(sample)) = event;
        let wish = self.policy.next(now, &self.config, self.capacity_bytes, sample);
        if let Some((bytes, why)) = wish.capacity {
            let capacity_bytes = bytes.clamp(self.config.min_bytes, self.config.max_bytes);
            if capacity_bytes != self.capacity_bytes {
                self.capacity_bytes = capacity_bytes;
                out.push(Action::Resize { capacity_bytes, why });
            }
        }
        out.push(Action::Watch { after_ns: wish.after_ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GB: u64 = 1_000_000_000;

    fn config() -> Config {
        Config { block_bytes: GB, ..Config::default() }
    }

    fn resized(m: &mut Controller, at_ms: u64, compute: u64) -> Option<(u64, Reason)> {
        let tier_bytes = m.snapshot();
        let mut out = Vec::new();
        let sample = Sample { used_bytes: compute + tier_bytes, tier_bytes };
        m.handle(Nanos(at_ms * 1_000_000), Event::Sample(sample), &mut out);
        match out[0] {
            Action::Resize { capacity_bytes, why } => Some((capacity_bytes, why)),
            Action::Watch { .. } => None,
        }
    }

    /// v = 125 GB, r = 1, r0 = 0.95: 40 - 0.5 * 125 * 0.05 / 0.95 = 36.71, which is the 37th block.
    #[test]
    fn the_printed_law_by_hand() {
        let mut m = Controller::new(policy("dynims").expect("it exists"), config(), 40 * GB);
        assert_eq!(resized(&mut m, 0, 85 * GB), Some((37 * GB, Reason::Above)));
        // 118.75 is the target: within two blocks of it nothing happens.
        assert_eq!(resized(&mut m, 100, 80 * GB), None);
        assert_eq!(resized(&mut m, 200, 83 * GB), None);
        // v = 47 GB: 37 + 0.5 * 47 * 0.574 / 0.95 = 51.2; and so on, no further than U_max.
        assert_eq!(resized(&mut m, 300, 10 * GB), Some((52 * GB, Reason::Below)));
        assert_eq!(resized(&mut m, 400, 10 * GB), Some((60 * GB, Reason::Below)));
    }

    fn forebay(tier_bytes: u64) -> Controller {
        Controller::new(policy("forebay").expect("it exists"), config(), tier_bytes)
    }

    /// `forebay` releases all that is needed immediately, more if use continues to grow, and takes
    /// what is free as soon as compute has left it.
    #[test]
    fn forebay_gives_ahead_of_growth_and_takes_what_is_free() {
        let mut m = forebay(40 * GB);
        // 118.75 is the target: 28.75 are left beside 90, and 24.75 beside 94. A single jump is not
        // growth that lasts.
        assert_eq!(resized(&mut m, 0, 90 * GB), Some((28 * GB, Reason::Above)));
        assert_eq!(resized(&mut m, 100, 94 * GB), Some((24 * GB, Reason::Above)));
        // 4 GB in 100 ms once more: that is expected until the next sample, 10 ms from now, and for
        // 10 more until the decision takes effect.
        assert_eq!(resized(&mut m, 200, 98 * GB), Some((19 * GB, Reason::Growth)));
        // 58.75 are free, less half a deviation, which is at least an eighth of a block.
        assert_eq!(resized(&mut m, 1000, 60 * GB), Some((58 * GB, Reason::Below)));
        // What comes within a fifth of a period has to wait for the next sample.
        assert_eq!(resized(&mut m, 1010, 55 * GB), None);
        assert_eq!(resized(&mut m, 1020, 55 * GB), Some((60 * GB, Reason::Below)));
    }

    /// Compute goes up and down by 0.5 GB around 80, from sample to sample: nothing moves. A peak
    /// of 6 GB is met immediately, and when it is over what it took is taken back immediately.
    #[test]
    fn forebay_is_not_shaken_by_noise() {
        let mut m = forebay(30 * GB);
        let noise = |i: u64| 80 * GB + GB / 2 * (i % 2) - GB / 4;
        for i in 0..300 {
            resized(&mut m, 100 * i, noise(i));
        }
        assert_eq!(m.snapshot(), 38 * GB);
        for i in 300..400 {
            assert_eq!(resized(&mut m, 100 * i, noise(i)), None, "at sample {i}");
        }
        assert_eq!(resized(&mut m, 40_000, 86 * GB), Some((32 * GB, Reason::Above)));
        resized(&mut m, 40_100, noise(1));
        assert_eq!(m.snapshot(), 38 * GB);
    }

    /// A program takes 3 GB at 10 GB/s on a node of 4 GB: at no time is more in use than 2 % above
    /// the target, and at most a fortieth of the memory is made free for growth that then ends.
    #[test]
    fn forebay_keeps_what_fits_beside_a_swift_burst() {
        const MB: u64 = 1_000_000;
        let block_bytes = 2 * MB;
        let config = Config { memory_bytes: 4 * GB, max_bytes: 4 * GB, block_bytes, ..Config::default() };
        let mut m = Controller::new(policy("forebay").expect("it exists"), config, 3_600 * MB);
        let compute = |us: u64| 200 * MB + (us.saturating_sub(1_000_000) * 10_000).min(3 * GB);
        let (mut us, mut next, mut least) = (0, 0, u64::MAX);
        while us < 2_000_000 {
            let used_bytes = compute(us) + m.snapshot();
            let alarmed = used_bytes > m.config.alarm_bytes();
            if us >= next || alarmed && next > us + 10_000 {
                let (sample, mut out) = (Sample { used_bytes, tier_bytes: m.snapshot() }, Vec::new());
                let event = if us < next { Event::Pressure(sample) } else { Event::Sample(sample) };
                m.handle(Nanos(us * 1_000), event, &mut out);
                let Some(Action::Watch { after_ns }) = out.last() else { panic!("{out:?}") };
                next = us + after_ns / 1_000;
            }
            assert!(used_bytes < 3_880 * MB, "{used_bytes} bytes at {us} us");
            least = least.min(m.snapshot());
            us += 100;
        }
        assert!((500 * MB..=600 * MB).contains(&least), "{least} of the 600 MB that fit");
        assert!(m.snapshot() > 590 * MB, "{}", m.snapshot());
    }

    proptest! {
        /// Whatever happens the capacity stays within its limits, and compute that has more never
        /// gives the tier more than is free. (It may have more than beside less compute: `forebay`
        /// may treat a smaller load as the lull of an oscillation and leave what is free, and the
        /// published law's step v (r - r0) is greatest at v = r0 M / 2.)
        #[test]
        fn limits_hold_and_more_compute_takes_nothing_from_the_target(
            which in 0usize..3, start in 0u64..=60, loads in prop::collection::vec(0u64..130, 1..30), more in 0u64..20
        ) {
            let make = || Controller::new(policy(POLICIES[which].0).expect("it exists"), config(), start * GB);
            let (mut m, mut other) = (make(), make());
            for (i, &load) in loads.iter().enumerate() {
                let last = i + 1 == loads.len();
                resized(&mut m, 100 * i as u64, load * GB);
                resized(&mut other, 100 * i as u64, (load + if last { more } else { 0 }) * GB);
                prop_assert!(m.snapshot() <= 60 * GB);
            }
            let last = loads.last().expect("there is one") + more;
            let is_free = (last * GB + other.snapshot()) as f64 <= config().target_bytes();
            prop_assert!(is_free || other.snapshot() <= m.snapshot());
        }
    }
}
