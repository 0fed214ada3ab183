//! A run: rounds until the time is over, and a report.

use crate::actor::usual_bytes;
use crate::content::{State, fill};
use crate::faults::{DEMANDED, DEMANDED_OF_ROOT, Faults};
use crate::history::Contents;
use crate::oracle::Rules;
use crate::report::{Totals, explain};
use crate::round::{self, Cast, Outcome, Plan};
use crate::stage::{Setup, Stage};
use clap::Args;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What `forebay-chaos run` is told.
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

/// Small enough for a tmpfs of logs, and enough that hot and cold differ.
const FILES: u32 = 64;
const LARGE: u32 = 2;
const LARGE_BYTES: u64 = 64 << 20;
const NODES: u32 = 2;
const CAST: Cast = Cast { writers: 4, appenders: 4, readers: 6 };

const RULES: Rules =
    Rules { look_ns: 50_000_000, granularity_ns: 20_000_000, plain_is_coherent: true, one_kernel: true };

/// Runs; true if all was well.
pub fn run(args: &RunArgs) -> io::Result<bool> {
    let seed = args.seed.unwrap_or_else(|| crate::record::now_ns() & 0xffff_ffff);
    std::fs::create_dir_all(&args.out)?;
    let report = args.out.join(format!("seed-{seed}.txt"));
    let mut chaos = Chaos::new(args.clone(), seed, File::create(&report)?)?;
    chaos.say(&format!("chaos: seed {seed}, {} s on ext4; report in {}", args.seconds, report.display()))?;
    chaos.rounds()?;
    chaos.finish()
}

struct Chaos {
    args: RunArgs,
    seed: u64,
    report: File,
    stage: Stage,
    faults: Faults,
    totals: Totals,
    shown: usize,
}

impl Chaos {
    fn new(args: RunArgs, seed: u64, report: File) -> io::Result<Self> {
        let beside = std::env::current_exe()?.with_file_name("forebay");
        let forebay = std::fs::canonicalize(args.forebay.clone().unwrap_or(beside)).map_err(|e| {
            io::Error::other(format!("the program under test, forebay: {e}; build it or give --forebay"))
        })?;
        let setup = Setup {
            forebay,
            dir: PathBuf::from(format!("/dev/shm/forebay-chaos-{}", std::process::id())),
            disk: args.out.clone(),
            files: FILES,
            large: LARGE,
            large_bytes: LARGE_BYTES,
            nodes: NODES,
        };
        let stage = Stage::start(setup)?;
        let faults = Faults::new(seed, args.fault_every_ms);
        Ok(Chaos { args, seed, report, stage, faults, totals: Totals::default(), shown: 0 })
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        println!("{text}");
        writeln!(self.report, "{text}")
    }

    /// The files of the first round.
    fn first(&self) -> io::Result<Contents> {
        let mut contents = Contents::new();
        for path in 0..FILES {
            // Numbers that no process of the run draws.
            let (write, size) = (path + 1, usual_bytes(path, FILES, LARGE, LARGE_BYTES));
            let mut bytes = vec![0; size as usize];
            fill(write, 0, &mut bytes);
            let name = self.stage.path(path);
            std::fs::write(&name, &bytes)?;
            let mut state = State::default();
            state.put(0, size, write);
            contents.insert(path, (std::fs::metadata(&name)?.ino(), state));
        }
        Ok(contents)
    }

    fn rounds(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let end = Duration::from_secs(self.args.seconds);
        let mut contents = self.first()?;
        let (mut round, mut next_process) = (0, 0);
        while begin.elapsed() < end {
            let length = Duration::from_secs(self.args.round).min(end - begin.elapsed());
            let plan = Plan {
                seed: self.seed,
                round,
                length: length.max(Duration::from_secs(3)),
                cast: CAST,
                rules: RULES,
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

    /// Adds a round up, and tells what was wrong; false if something was.
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
            "round {round}: {} reads verified, {} MiB, {} kills, {} long writes, {bad} violations",
            v.reads,
            v.bytes >> 20,
            self.faults.kills,
            self.totals.long_writes
        );
        self.say(&line)?;
        self.faults.diary.clear();
        Ok(outcome.violations.is_empty() && outcome.trouble.is_empty())
    }

    fn finish(mut self) -> io::Result<bool> {
        let table = self.totals.table(&self.faults.happened, self.faults.kills);
        self.say(&table)?;
        let mut well = self.totals.bad() == 0;
        let of_root = if self.stage.mounted { DEMANDED_OF_ROOT } else { &[] };
        let never: Vec<_> =
            DEMANDED.iter().chain(of_root).filter(|f| !self.faults.happened.contains_key(**f)).collect();
        if !never.is_empty() {
            self.say(&format!("never happened: {never:?}"))?;
            well &= self.args.short;
        }
        let seed = self.seed;
        let mut report = self.report;
        for left in self.stage.end() {
            well = false;
            writeln!(report, "left behind: {left}")?;
            println!("left behind: {left}");
        }
        let verdict = if well { "all is well" } else { "FAILED" };
        let seconds = self.args.seconds;
        println!("chaos: {verdict}; again: forebay-chaos run --seed {seed} --seconds {seconds}");
        Ok(well)
    }
}
