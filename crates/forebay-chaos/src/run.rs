//! A run: rounds until the time is over, and a report.

use crate::faults::{DEMANDED, Faults};
use crate::report::{Totals, explain};
use crate::round::{self, Cast, Outcome, Plan};
use crate::stage::{NODES, Setup, Stage};
use crate::test_place::Pfs;
use clap::{Args, ValueEnum};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The options of `forebay-chaos run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// All decisions follow from it; printed, and random if not given
    #[arg(long, env = "FOREBAY_CHAOS_SEED")]
    seed: Option<u64>,
    /// How long to run, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Length of a round, in seconds
    #[arg(long, default_value_t = 12)]
    round: u64,
    /// What lies beneath: this machine's own disk, or a lab's file system. May be given more than
    /// once; the time is divided [default: all that this machine can run, half of the time for
    /// ext4]
    #[arg(long)]
    pfs: Vec<Pfs>,
    /// The program under test [default: beside this one]
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Where reports go
    #[arg(long, default_value = "target/chaos")]
    out: PathBuf,
    /// Mean time between faults, in milliseconds
    #[arg(long, default_value_t = 250)]
    fault_every_ms: u64,
    /// Violations that are printed in full; all are counted
    #[arg(long, default_value_t = 5)]
    show: usize,
    /// Go on after a round with violations
    #[arg(long)]
    keep_going: bool,
    /// A short run need not have seen every kind of fault
    #[arg(long)]
    short: bool,
}

const CAST: Cast = Cast { writers: 4, appenders: 4, readers: 6 };

/// Length in seconds of a run that shows whether it has reached the goals of an hour.
const GOALS_SECONDS: u64 = 3600;

/// Runs; true if all was well.
pub fn run(args: &RunArgs) -> io::Result<bool> {
    let seed = args.seed.unwrap_or_else(|| crate::record::now_ns() & 0xffff_ffff);
    std::fs::create_dir_all(&args.out)?;
    let wanted = if args.pfs.is_empty() { Pfs::value_variants() } else { &args.pfs };
    let mut possible = Vec::new();
    for pfs in wanted {
        match pfs.missing() {
            None => possible.push(*pfs),
            Some(why) => println!("chaos: {pfs} is skipped: {why}"),
        }
    }
    // Reads of a local disk are the cheapest: most of them are there.
    let others = possible.iter().filter(|p| **p != Pfs::Ext4).count() as u64;
    let share = |pfs: Pfs| if pfs == Pfs::Ext4 { others.max(1) } else { 1 };
    let shares: u64 = possible.iter().map(|p| share(*p)).sum();
    let (mut well, mut sum) = (true, Sum::default());
    for pfs in possible {
        let seconds = (args.seconds * share(pfs) / shares).max(1);
        for (seed, seconds) in parts(pfs, seed, seconds) {
            let report = args.out.join(format!("{pfs}-seed-{seed}.txt"));
            let mut chaos = Chaos::new(args.clone(), pfs, seconds, seed, File::create(&report)?)?;
            chaos
                .say(&format!("chaos: seed {seed}, {seconds} s on {pfs}; report in {}", report.display()))?;
            chaos.rounds()?;
            sum.add(&chaos);
            well &= chaos.finish()?;
        }
    }
    println!(
        "chaos: {}; {} reads verified, {} of the tier, {} kills, {} long writes, {} violations",
        if well { "all is well" } else { "FAILED" },
        sum.reads,
        sum.tier_reads,
        sum.kills,
        sum.long_writes,
        sum.bad
    );
    if args.seconds >= GOALS_SECONDS {
        sum.goals().iter().for_each(|line| println!("chaos: {line}"));
    }
    Ok(well)
}

/// The seed and the seconds of each part of a file system's time. Each part has its own servers,
/// since some file systems keep deleted data until their storage is full.
fn parts(pfs: Pfs, seed: u64, seconds: u64) -> Vec<(u64, u64)> {
    let count = seconds.div_ceil(pfs.longest_seconds());
    let end = |part: u64| seconds * part / count;
    (0..count).map(|part| (seed.wrapping_add(part), end(part + 1) - end(part))).collect()
}

/// The sums over all file systems.
#[derive(Default)]
struct Sum {
    reads: u64,
    tier_reads: u64,
    kills: u64,
    long_writes: u64,
    bad: u64,
}

impl Sum {
    /// Returns a line for each goal of an hour. The goals are not part of the verdict, because a
    /// slow machine misses them and has found nothing wrong.
    fn goals(&self) -> Vec<String> {
        let goals = [
            ("kills", self.kills, 500),
            ("verified reads", self.reads, 1_000_000),
            ("long writes", self.long_writes, 1000),
        ];
        let line = |(what, done, least): (&str, u64, u64)| {
            let verdict = if done >= least { "met" } else { "missed" };
            format!("goal of an hour, {least} {what}: {verdict}, {done}")
        };
        goals.map(line).to_vec()
    }

    fn add(&mut self, chaos: &Chaos) {
        self.reads += chaos.totals.verified.reads;
        self.tier_reads += chaos.totals.verified.tier_reads;
        self.kills += chaos.faults.kills;
        self.long_writes += chaos.totals.long_writes;
        self.bad += chaos.totals.bad();
    }
}

struct Chaos {
    args: RunArgs,
    pfs: Pfs,
    seconds: u64,
    seed: u64,
    report: File,
    stage: Stage,
    faults: Faults,
    totals: Totals,
    shown: usize,
}

impl Chaos {
    fn new(args: RunArgs, pfs: Pfs, seconds: u64, seed: u64, report: File) -> io::Result<Self> {
        let beside = std::env::current_exe()?.with_file_name("forebay");
        let forebay = std::fs::canonicalize(args.forebay.clone().unwrap_or(beside)).map_err(|e| {
            io::Error::other(format!("the program under test, forebay: {e}; build it or give --forebay"))
        })?;
        let setup = Setup {
            forebay,
            dir: PathBuf::from(format!("/dev/shm/forebay-chaos-{}", std::process::id())),
            disk: args.out.clone(),
            pfs,
        };
        let stage = Stage::start(setup)?;
        let faults = Faults::new(seed, args.fault_every_ms);
        Ok(Chaos { args, pfs, seconds, seed, report, stage, faults, totals: Totals::default(), shown: 0 })
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        println!("{text}");
        writeln!(self.report, "{text}")
    }

    fn rounds(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let end = Duration::from_secs(self.seconds);
        let mut contents = round::first(&self.stage, self.seed)?;
        let (mut round, mut next_process) = (0, 0);
        while begin.elapsed() < end {
            let length = Duration::from_secs(self.args.round).min(end - begin.elapsed());
            let plan = Plan {
                seed: self.seed,
                round,
                length: length.max(Duration::from_secs(3)),
                cast: CAST,
                rules: self.pfs.rules(),
                contents: &contents,
                next_process,
            };
            let mut outcome = round::run(&mut self.stage, &mut self.faults, &plan)?;
            if round % 4 == 3 {
                self.look_for_leaks(&mut outcome);
            }
            let well = self.take(round, &outcome)?;
            if !well && !self.args.keep_going {
                break;
            }
            std::fs::remove_dir_all(self.stage.setup.dir.join(format!("r{round}")))?;
            (contents, next_process) = (outcome.contents, outcome.next_process);
            round += 1;
        }
        Ok(())
    }

    fn look_for_leaks(&self, outcome: &mut Outcome) {
        for number in 0..NODES {
            if let Some(leak) = round::leak_when_empty(&self.stage, number) {
                outcome.trouble.push(format!("leak: agent {number}: {leak}"));
            }
        }
    }

    /// Adds a round, and reports what was wrong; false if something was.
    fn take(&mut self, round: u32, outcome: &Outcome) -> io::Result<bool> {
        self.totals.add(&outcome.history, outcome.verified, outcome.handles);
        for violation in &outcome.violations {
            *self.totals.violations.entry(violation.kind.to_owned()).or_default() += 1;
            let text = explain(violation, &outcome.history, &self.faults.diary);
            writeln!(self.report, "round {round}: {text}")?;
            if self.shown < self.args.show {
                self.shown += 1;
                println!("round {round}: {text}");
            }
        }
        for trouble in &outcome.trouble {
            let kind = trouble.split(':').next().unwrap_or("trouble").to_owned();
            *self.totals.violations.entry(kind).or_default() += 1;
            self.say(&format!("round {round}: {trouble}"))?;
        }
        let (v, bad) = (self.totals.verified, self.totals.bad());
        let line = format!(
            "round {round}: {} reads verified, {} of the tier, {} MiB, {} kills, {} long writes, {bad} violations",
            v.reads,
            v.tier_reads,
            v.bytes >> 20,
            self.faults.kills,
            self.totals.long_writes
        );
        self.say(&line)?;
        self.faults.diary.clear();
        Ok(outcome.violations.is_empty() && outcome.trouble.is_empty())
    }

    fn finish(mut self) -> io::Result<bool> {
        let from_disk = self.stage.pages_from_disk();
        let table = self.totals.table(&self.faults.happened, self.faults.kills, from_disk);
        self.say(&table)?;
        let mut well = self.totals.bad() == 0;
        let possible = self.stage.possible();
        let demanded = DEMANDED.iter().chain(&possible);
        let never: Vec<_> = demanded.filter(|f| !self.faults.happened.contains_key(**f)).collect();
        if !never.is_empty() {
            self.say(&format!("never happened: {never:?}"))?;
            well &= self.args.short;
        }
        // A tier that keeps nothing shows no wrong byte either.
        if self.totals.verified.tier_reads == 0 {
            self.say("no read returned bytes of the tier: this run shows nothing about it")?;
            well = false;
        }
        if from_disk == 0 && !self.args.short {
            self.say("no page was read from a disk level: this run shows nothing about it")?;
            well = false;
        }
        let seed = self.seed;
        let mut report = self.report;
        for left in self.stage.end() {
            well = false;
            writeln!(report, "left behind: {left}")?;
            println!("left behind: {left}");
        }
        let verdict = if well { "all is well" } else { "FAILED" };
        let (seconds, pfs) = (self.seconds, self.pfs);
        println!("chaos: {verdict}; again: forebay-chaos run --pfs {pfs} --seed {seed} --seconds {seconds}");
        Ok(well)
    }
}

#[cfg(test)]
mod tests {
    use super::{Sum, parts};
    use crate::test_place::Pfs;

    #[test]
    fn a_long_run_on_cephfs_is_divided() {
        assert_eq!(parts(Pfs::Ext4, 7, 3600), [(7, 3600)]);
        assert_eq!(parts(Pfs::Cephfs, 7, 500), [(7, 500)]);
        assert_eq!(parts(Pfs::Cephfs, 7, 1201), [(7, 400), (8, 400), (9, 401)]);
    }

    #[test]
    fn each_goal_of_an_hour_is_met_or_missed() {
        let sum = Sum { reads: 1_000_000, kills: 499, long_writes: 2000, ..Sum::default() };
        let said = sum.goals().join("\n");
        assert!(said.contains("500 kills: missed, 499"), "{said}");
        assert!(said.contains("1000000 verified reads: met, 1000000"), "{said}");
        assert!(said.contains("1000 long writes: met, 2000"), "{said}");
    }
}
