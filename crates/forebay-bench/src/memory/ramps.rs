//! Programs that take memory beside an agent, at random rates in groups of random sizes, and in
//! bursts of 4 GB at 2 GB/s, under each law.

use super::judge::Verdict;
use super::stage::{Outcome, Source, Stage};
use crate::measure::{Record, Target, median, quantile};
use crate::rig::Rig;
use forebay_policy::memory::{Config, policy};

/// The laws; each has the same ramps and the same bursts.
const LAWS: [&str; 3] = ["forebay", "dynims", "static"];

/// Ramps in one group.
const RAMPS_IN_GROUP: usize = 20;

const GROUP_MIN_BYTES: f64 = 256.0 * 1024.0 * 1024.0;
/// Size of the bursts' group; of the ramps' largest group, unless another is requested.
const GROUP_MAX_BYTES: f64 = 8.0 * 1024.0 * 1024.0 * 1024.0;
const RATE_MIN: f64 = 0.1e9;
const RATE_MAX: f64 = 10e9;

/// A ramp takes at most this share of the group, and no longer than this.
const SHARE: (f64, f64) = (0.05, 0.75);
const RAMP_S: f64 = 0.4;

/// The largest group takes at most this share of the free memory: what runs next to it needs memory
/// too.
const FREE: f64 = 0.6;

/// A group, and the ramps in it: bytes and bytes per second.
struct Plan {
    limit_bytes: u64,
    ramps: Vec<(u64, f64)>,
}

/// What a law has done.
#[derive(Default)]
struct Score {
    ramps: usize,
    kills: usize,
    verdicts: Vec<Verdict>,
    /// The requested rate and the rate reached, for each verdict.
    rates: Vec<(f64, f64)>,
}

impl Score {
    fn add(&mut self, asked: f64, outcome: Outcome) {
        self.ramps += 1;
        match outcome {
            Outcome::Killed => self.kills += 1,
            Outcome::Ended(verdict, reached) => {
                self.verdicts.push(verdict);
                self.rates.push((asked, reached));
            }
        }
    }

    fn of(&self, what: impl Fn(&Verdict) -> f64) -> Vec<f64> {
        self.verdicts.iter().map(what).collect()
    }
}

/// `--ramps` random ramps.
pub fn ramps(rig: &Rig) -> Result<Vec<Record>, String> {
    let source = Source::new(rig)?;
    let most = (rig.ramps.group_max_bytes as f64).min(free_bytes()? * FREE);
    let mut random = Random(rig.ramps.seed);
    let groups = rig.ramps.count.div_ceil(RAMPS_IN_GROUP);
    let laws = laws(rig)?;
    let mut scores: Vec<Score> = laws.iter().map(|_| Score::default()).collect();
    for number in 0..groups {
        let count = RAMPS_IN_GROUP.min(rig.ramps.count - number * RAMPS_IN_GROUP);
        let plan = plan(&mut random, most, count);
        for (law, score) in laws.iter().zip(&mut scores) {
            run(rig, &source, law, &plan, score)?;
        }
        let kills: Vec<_> = scores.iter().map(|score| score.kills).collect();
        eprintln!("  group {} of {groups}: {} MiB, kills {kills:?}", number + 1, plan.limit_bytes >> 20);
    }
    Ok(laws.iter().zip(&scores).flat_map(|(law, score)| of_ramps(law, score, most)).collect())
}

/// All laws, or the requested one.
fn laws(rig: &Rig) -> Result<Vec<&'static str>, String> {
    let found: Vec<_> =
        LAWS.into_iter().filter(|law| rig.ramps.law.as_ref().is_none_or(|only| only == law)).collect();
    if found.is_empty() { Err(format!("the laws are {}", LAWS.join(", "))) } else { Ok(found) }
}

/// As many bursts of 4 GB at 2 GB/s as there are runs.
pub fn bursts(rig: &Rig) -> Result<Vec<Record>, String> {
    const RATE: f64 = 2e9;
    let bytes = rig.sized(4_000_000_000);
    let limit_bytes = rig.sized(GROUP_MAX_BYTES as u64);
    if free_bytes()? * FREE < limit_bytes as f64 {
        return Ok(vec![Record::skipped("memory.bursts", "a group of 8 GiB takes 14 GiB of free memory")]);
    }
    let source = Source::new(rig)?;
    let mut records = Vec::new();
    for law in laws(rig)? {
        let mut score = Score::default();
        let mut stage = Stage::new(rig, &source, law, limit_bytes)?;
        for _ in 0..rig.runs {
            score.add(RATE, stage.burst(bytes, RATE)?);
            if !stage.agent().is_running() {
                drop(stage);
                stage = Stage::new(rig, &source, law, limit_bytes)?;
            }
            stage.fill()?;
        }
        records.extend(of_bursts(law, &score));
    }
    Ok(records)
}

/// Runs the ramps of the plan.
fn run(rig: &Rig, source: &Source, law: &str, plan: &Plan, score: &mut Score) -> Result<(), String> {
    let mut stage = Stage::new(rig, source, law, plan.limit_bytes)?;
    for (bytes, rate) in &plan.ramps {
        let kills = score.kills;
        score.add(*rate, stage.burst(*bytes, *rate)?);
        if law == LAWS[0] && score.kills > kills {
            let (limit, bytes, rate) = (plan.limit_bytes >> 20, bytes >> 20, rate / 1e9);
            eprintln!("  killed: {bytes} MiB at {rate:.1} GB/s in a group of {limit} MiB");
        }
        if !stage.agent().is_running() {
            drop(stage);
            stage = Stage::new(rig, source, law, plan.limit_bytes)?;
        }
        stage.fill()?;
    }
    Ok(())
}

fn plan(random: &mut Random, most: f64, count: usize) -> Plan {
    let limit_bytes = random.log_uniform(GROUP_MIN_BYTES, most) as u64 >> 20 << 20;
    let ramp = |_| {
        let rate = random.log_uniform(RATE_MIN, RATE_MAX);
        let share = SHARE.0 + random.uniform() * (SHARE.1 - SHARE.0);
        let bytes = (share * limit_bytes as f64).min(rate * RAMP_S);
        ((bytes as u64 >> 12 << 12).max(1 << 20), rate)
    };
    Plan { limit_bytes, ramps: (0..count).map(ramp).collect() }
}

const MS: f64 = 1e3;

/// Median, 99th percentile and largest, in ms; the target holds for all of them. From the first
/// page of a burst that does not fit, and the longest that any such page has waited.
fn reactions(group: &str, law: &str, score: &Score, target: Target) -> Vec<Record> {
    let first = "from the first page that does not fit beside the tier below r0, to as much free";
    let longest = "longest time until what exceeds r0 + 0.2 % is free";
    let kinds = [
        ("first_page", score.of(|v| v.first_page_s * MS), first),
        ("reaction", score.of(|v| v.reaction_s * MS), longest),
    ];
    let rows = kinds.iter().flat_map(|(kind, values, note)| {
        [("median", 0.5), ("p99", 0.99), ("max", 1.0)].map(|(name, share)| {
            let id = format!("{group}.{law}.{kind}.{name}");
            Record::alone(&id, quantile(values, share), "ms", target, values.len(), note)
        })
    });
    rows.collect()
}

/// How long what the law `forebay` keeps free lasts at the highest rate: in the smallest group, and
/// in one of 4 GiB. A reaction later than that cannot prevent a kill.
fn bounds() -> Vec<Record> {
    let row = |(name, bytes): (&str, f64)| {
        let config = Config { memory_bytes: bytes as u64, ..Config::default() };
        let free = policy("forebay").map_or(0.0, |law| bytes - law.target_bytes(&config));
        let note = format!("what is kept free, {:.0} MiB, lasts so long at 10 GB/s", free / MIB);
        let id = format!("memory.ramps.bound.{name}");
        Record::alone(&id, free / RATE_MAX * MS, "ms", Target::Report, 1, &note)
    };
    [("256m", GROUP_MIN_BYTES), ("4g", 4.0 * 1024.0 * MIB)].map(row).into()
}

fn of_ramps(law: &str, score: &Score, most: f64) -> Vec<Record> {
    let is_ours = law == "forebay";
    let target = |target| if is_ours { target } else { Target::Report };
    let alone = |name: &str, value, unit, target, note: &str| {
        Record::alone(&format!("memory.ramps.{law}.{name}"), value, unit, target, score.ramps, note)
    };
    let asked = format!("groups of 256 MiB to {:.1} GiB, 0.1 to 10 GB/s", most / 1024f64.powi(3));
    let fastest = score.rates.iter().filter(|(asked, _)| *asked > 5e9).map(|(asked, got)| got / asked);
    let fast: Vec<f64> = fastest.collect();
    let above = score.of(|v| v.above_s * MS);
    let over = above.iter().filter(|ms| **ms > 50.0).count();
    let tier: Vec<_> = score.verdicts.iter().map(|v| (v.tier_mean / MIB, v.clairvoyant_mean / MIB)).collect();
    let total = (tier.iter().map(|t| t.0).sum::<f64>(), tier.iter().map(|t| t.1).sum::<f64>());
    let note = "mean over the ramps; reference: the largest tier that keeps use below r0";
    let mut records = vec![
        alone("kills", score.kills as f64, "kills", target(Target::AtMost(0.0)), &asked),
        alone("above.max", quantile(&above, 1.0), "ms", target(Target::AtMost(50.0)), "above r0 + 2 %"),
        alone("above.ramps", over as f64, "ramps", target(Target::AtMost(0.0)), "above r0 + 2 % over 50 ms"),
        alone("rate", 100.0 * median(fast.into_iter()), "%", Target::Report, "reached of 5 to 10 GB/s"),
        alone(
            "least",
            quantile(&score.of(|v| v.least), 0.5),
            "",
            Target::Report,
            "smallest tier / fits; median",
        ),
        Record::pairs(
            &format!("memory.ramps.{law}.tier"),
            &[(total.0 / tier.len().max(1) as f64, total.1 / tier.len().max(1) as f64)],
            "MiB",
            target(Target::RatioAtLeast(0.95)),
            note,
        ),
    ];
    records.extend(reactions("memory.ramps", law, score, Target::Report));
    if is_ours {
        records.extend(bounds());
    }
    records
}

fn of_bursts(law: &str, score: &Score) -> Vec<Record> {
    let is_ours = law == "forebay";
    let target = |target| if is_ours { target } else { Target::Report };
    let mut records = reactions("memory.bursts", law, score, target(Target::AtMost(20.0)));
    let id = |name: &str| format!("memory.bursts.{law}.{name}");
    let kills = score.kills as f64;
    let note = "4 GB at 2 GB/s in a group of 8 GiB";
    records.push(Record::alone(&id("kills"), kills, "kills", target(Target::AtMost(0.0)), score.ramps, note));
    let above = quantile(&score.of(|v| v.above_s * MS), 1.0);
    let note = "above r0 + 2 %, longest of the bursts";
    records.push(Record::alone(&id("above"), above, "ms", target(Target::AtMost(50.0)), score.ramps, note));
    let tier: Vec<_> = score.verdicts.iter().map(|v| (v.tier_mean / MIB, v.clairvoyant_mean / MIB)).collect();
    let note = "reference: the largest tier that keeps use below r0";
    records.push(Record::pairs(&id("tier"), &tier, "MiB", target(Target::RatioAtLeast(0.95)), note));
    let rates = score.rates.iter().map(|(_, reached)| reached / 1e9);
    records.push(Record::alone(&id("rate"), median(rates), "GB/s", Target::Report, score.ramps, "reached"));
    records
}

const MIB: f64 = 1024.0 * 1024.0;

fn free_bytes() -> Result<f64, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| format!("/proc/meminfo: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.map(|kib| kib * 1024.0).ok_or_else(|| "/proc/meminfo has no MemAvailable".into())
}

/// SplitMix64: the same ramps for the same seed.
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }

    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.uniform())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ramps_are_those_of_their_seed_and_within_their_bounds() {
        let make = |seed| {
            let mut random = Random(seed);
            (0..50).map(|_| plan(&mut random, GROUP_MAX_BYTES, 20)).collect::<Vec<_>>()
        };
        let (one, same, other) = (make(1), make(1), make(2));
        assert!(one.iter().zip(&same).all(|(a, b)| a.ramps == b.ramps && a.limit_bytes == b.limit_bytes));
        assert!(one[0].ramps != other[0].ramps);
        for plan in &one {
            let limit = plan.limit_bytes as f64;
            assert!((GROUP_MIN_BYTES - MIB..=GROUP_MAX_BYTES).contains(&limit), "{limit}");
            for (bytes, rate) in &plan.ramps {
                assert!(
                    (RATE_MIN..=RATE_MAX).contains(rate) && *bytes as f64 <= 0.75 * limit,
                    "{bytes} at {rate}"
                );
            }
        }
    }
}
