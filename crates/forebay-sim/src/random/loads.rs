//! Random loads on nodes, and memory laws compared with a clairvoyant on them.
//!
//! | drawn | from |
//! | --- | --- |
//! | memory of the node | 4 to 256 GiB; blocks of a thousandth of it, whole pages of 2 MiB |
//! | refill of the tier, release | 0.5 to 4 GB/s; 40 to 400 GB/s |
//! | most that compute needs | 0.5 to 0.93 of the memory |
//! | what it needs all the time | 0.2 to 0.6 of that |
//! | processes | 1 to 4, each of one of the shapes below; they share the rest |
//! | bursts | rise of 0.1 to 10 GB/s, hold 0.2 to 20 s, rest 2 to 30 s, jitter 0.8 |
//! | ramps | rise and fall of 0.1 to 10 GB/s, hold and rest 1 to 30 s, jitter 0.3 |
//! | sawtooth | period 0.5 to 30 s, falls immediately, jitter 0 or 0.1 |
//! | phases, as in HPL | rise of 1 to 10 GB/s, hold 10 to 60 s, rest 2 to 20 s, jitter 0.1 |
//! | drift | there and back in 60 to 600 s |
//! | churn | rise of 10 GB/s, hold and rest 0.05 to 1 s, jitter 0.9, a fifth as high |
//! | noise, two of three loads | deviation 0.02 to 0.5 % of the memory, new every 20 to 200 ms |
//!
//! Where two values are given, the distribution is log-uniform. A run takes two minutes; r0 is
//! 0.95, the period 100 ms.

use forebay_model::rng::Rng;
use forebay_policy::memory::Config;

use super::{between, by_order};
use crate::error::Result;
use crate::memory::{Load, Noise, Outcome, Pulse, Setup, simulate};
use crate::trace::Trace;

const GB: f64 = 1e9;
const GIB: f64 = (1u64 << 30) as f64;
const PAGE_BYTES: u64 = 2 << 20;
const DURATION_S: f64 = 120.0;

/// Properties common to all nodes of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Seed of all nodes.
    pub seed: u64,
    /// Whether the tier refills and releases memory immediately, so that it is always as large as
    /// its law allows.
    pub at_once: bool,
}

impl Family {
    /// Node `number` under the law `policy`.
    pub fn node(&self, number: u64, policy: &str) -> Setup {
        let mut setup = node(Rng::new(self.seed).fork(number), policy);
        if self.at_once {
            (setup.refill_bytes_per_s, setup.release_bytes_per_s) = (None, None);
        }
        setup
    }

    /// Runs node `number` under the law `policy`.
    ///
    /// # Errors
    /// If no law has this name.
    pub fn run(&self, number: u64, policy: &str) -> Result<Outcome> {
        simulate(&self.node(number, policy), &mut Trace::off())
    }
}

fn node(mut rng: Rng, policy: &str) -> Setup {
    let memory = (by_order(&mut rng, 4.0, 256.0) * GIB) as u64 / PAGE_BYTES * PAGE_BYTES;
    let config = Config {
        memory_bytes: memory,
        block_bytes: (memory / 1000 / PAGE_BYTES).max(1) * PAGE_BYTES,
        max_bytes: memory,
        ..Config::default()
    };
    let most = memory as f64 * between(&mut rng, 0.5, 0.93);
    let base_bytes = most * between(&mut rng, 0.2, 0.6);
    let parts: Vec<f64> = (0..1 + rng.below(4)).map(|_| between(&mut rng, 0.3, 1.0)).collect();
    let all: f64 = parts.iter().sum();
    let pulses = parts.iter().map(|part| process(&mut rng, (most - base_bytes) * part / all)).collect();
    let noise = (rng.below(3) > 0).then(|| Noise {
        deviation_bytes: memory as f64 * by_order(&mut rng, 0.0002, 0.005),
        every_ns: by_order(&mut rng, 20.0, 200.0) as u64 * 1_000_000,
    });
    let mut setup = Setup {
        policy: policy.into(),
        config,
        start_bytes: 0,
        refill_bytes_per_s: Some(by_order(&mut rng, 0.5, 4.0) * GB),
        release_bytes_per_s: Some(by_order(&mut rng, 40.0, 400.0) * GB),
        // The published prototype polls and has no alarm.
        has_alarm: policy != "dynims",
        load: Load { base_bytes, pulses, noise, trace: Vec::new() },
        duration_ns: (DURATION_S * 1e9) as u64,
        seed: rng.next_u64(),
    };
    setup.start_full();
    setup
}

/// A process of at most `bytes`.
fn process(rng: &mut Rng, bytes: f64) -> Pulse {
    let any = |rng: &mut Rng| by_order(rng, 0.1, 10.0) * GB;
    let mut pulse = Pulse {
        name: String::new(),
        bytes,
        rise_bytes_per_s: any(rng),
        fall_bytes_per_s: 50.0 * GB,
        hold_s: 0.0,
        rest_s: 0.0,
        count: u32::MAX,
        jitter: 0.0,
        starts_s: between(rng, 0.0, 20.0),
    };
    let name = ["burst", "ramp", "sawtooth", "phases", "drift", "churn"][rng.below(6) as usize];
    pulse.name = name.into();
    match name {
        "burst" => {
            pulse.hold_s = by_order(rng, 0.2, 20.0);
            pulse.rest_s = by_order(rng, 2.0, 30.0);
            pulse.jitter = 0.8;
        }
        "ramp" => {
            pulse.fall_bytes_per_s = any(rng);
            pulse.hold_s = by_order(rng, 1.0, 30.0);
            pulse.rest_s = by_order(rng, 1.0, 30.0);
            pulse.jitter = 0.3;
        }
        "sawtooth" => {
            pulse.rise_bytes_per_s = (bytes / by_order(rng, 0.5, 30.0)).min(10.0 * GB);
            pulse.jitter = 0.1 * rng.below(2) as f64;
        }
        "phases" => {
            pulse.rise_bytes_per_s = by_order(rng, 1.0, 10.0) * GB;
            pulse.hold_s = by_order(rng, 10.0, 60.0);
            pulse.rest_s = by_order(rng, 2.0, 20.0);
            pulse.jitter = 0.1;
        }
        "drift" => {
            pulse.rise_bytes_per_s = 2.0 * bytes / by_order(rng, 60.0, 600.0);
            pulse.fall_bytes_per_s = pulse.rise_bytes_per_s;
        }
        _ => {
            pulse.bytes = bytes / 5.0;
            pulse.rise_bytes_per_s = 10.0 * GB;
            pulse.hold_s = by_order(rng, 0.05, 1.0);
            pulse.rest_s = by_order(rng, 0.05, 1.0);
            pulse.jitter = 0.9;
        }
    }
    pulse
}
