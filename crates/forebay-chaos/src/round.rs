//! A round: everybody reads, writes and breaks things for some seconds; then all is repaired, every
//! file is read in every way on every node, and what was seen is judged.

use crate::actor::{FILES, Role};
use crate::appender;
use crate::content::State;
use crate::faults::Faults;
use crate::history::{Contents, History};
use crate::oracle::{self, Rules, Verified, Violation};
use crate::record::{Record, now_ns, read_log};
use crate::stage::{NODES, Stage, processes_with};
use crate::troupe::Troupe;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

/// How many actors there are of each role.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    pub writers: u32,
    pub appenders: u32,
    pub readers: u32,
}

/// The outcome of a round.
pub struct Outcome {
    pub history: History,
    pub contents: Contents,
    pub verified: Verified,
    pub violations: Vec<Violation>,
    /// Hangs, leaks, lost records, failed processes: all that is not a reading of a file.
    pub trouble: Vec<String>,
    pub next_process: u32,
    pub handles: u64,
}

/// How a round is run.
pub struct Plan<'a> {
    pub seed: u64,
    pub round: u32,
    pub length: Duration,
    pub cast: Cast,
    pub rules: Rules,
    pub contents: &'a Contents,
    pub next_process: u32,
}

/// Runs a round.
///
/// # Errors
/// If the test itself cannot continue.
pub fn run(stage: &mut Stage, faults: &mut Faults, plan: &Plan<'_>) -> io::Result<Outcome> {
    let dir = stage.setup.dir.join(format!("r{}", plan.round));
    std::fs::create_dir_all(&dir)?;
    let begin = now_ns();
    let until = begin + plan.length.as_nanos() as u64;
    (0..NODES).try_for_each(|node| stage.mount_on(node))?;
    let mut troupe = Troupe::new(plan.seed, plan.round, until, dir.clone(), plan.next_process);
    troupe.start(stage, Role::Writer, plan.cast.writers)?;
    troupe.start(stage, Role::Appender, plan.cast.appenders)?;
    troupe.start(stage, Role::Reader, plan.cast.readers)?;
    // The last part without faults, so that what they have done can be seen.
    let calm = until - (plan.length.as_nanos() as u64 / 6).min(2 * SECOND_NS);
    loop {
        faults.step(stage, &mut troupe, now_ns() < calm)?;
        if !troupe.step(stage)? {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    faults.settle(stage, &mut troupe)?;
    let checked = check(stage, plan, &dir, troupe.next_process())?;
    let mut outcome = judge(plan, &troupe, &checked)?;
    outcome.trouble.append(&mut troupe.trouble);
    outcome.trouble.append(&mut faults.trouble);
    verify(stage, &mut outcome);
    Ok(outcome)
}

/// Makes what the actors of the first round find, and returns it.
///
/// # Errors
/// If it cannot be made.
pub fn first(stage: &Stage, seed: u64) -> io::Result<Contents> {
    let dir = stage.setup.dir.join("first");
    std::fs::create_dir_all(&dir)?;
    let mut troupe = Troupe::new(seed, 0, now_ns(), dir, 0);
    troupe.start(stage, Role::Setup, 1)?;
    while troupe.step(stage)? {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut contents = Contents::new();
    for record in logs_of(troupe.logs(Role::Setup))? {
        if let Record::Observed { path, found: Some(found), .. } = record {
            contents.insert(path, (found.ino, State::found(found.parts)));
        }
    }
    match troupe.trouble.is_empty() && contents.len() == FILES as usize {
        true => Ok(contents),
        false => Err(io::Error::other(format!("the first files could not be made: {:?}", troupe.trouble))),
    }
}

/// Reads every file in every way on every node, once nothing else runs any more.
fn check(stage: &mut Stage, plan: &Plan<'_>, dir: &Path, next_process: u32) -> io::Result<Troupe> {
    // Wait until all nodes see what the others did last.
    let lag_ns = plan.rules.lag_ns;
    std::thread::sleep(Duration::from_nanos(lag_ns + lag_ns.min(SECOND_NS)));
    let until = now_ns() + SECOND_NS;
    let mut troupe = Troupe::new(plan.seed, plan.round, until, dir.to_owned(), next_process);
    troupe.start(stage, Role::Check, NODES)?;
    while troupe.step(stage)? {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(troupe)
}

fn logs_of(paths: Vec<(PathBuf, u32)>) -> io::Result<Vec<Record>> {
    let mut all = Vec::new();
    for (path, _) in paths {
        all.append(&mut read_log(&path)?);
    }
    Ok(all)
}

fn judge(plan: &Plan<'_>, troupe: &Troupe, checked: &Troupe) -> io::Result<Outcome> {
    let mut history = History::of(plan.contents);
    let mut trouble: Vec<String> = checked.trouble.clone();
    for (log, node) in troupe.logs(Role::Writer) {
        if let Err(why) = history.take(&read_log(&log)?, node) {
            trouble.push(format!("{}: {why}", log.display()));
        }
    }
    let mut seen = logs_of(troupe.logs(Role::Reader))?;
    seen.extend(logs_of(checked.logs(Role::Check))?);
    let (mut verified, mut violations, mut handles) = (Verified::default(), Vec::new(), 0);
    for record in &seen {
        let Record::Handle(handle) = record else { continue };
        handles += 1;
        match oracle::judge(&history, &plan.rules, handle) {
            Ok(v) => verified += v,
            Err(violation) => violations.push(*violation),
        }
    }
    seen.extend(logs_of(troupe.logs(Role::Appender))?);
    let (lost, looks) = appender::judge(&seen, plan.rules.plain, plan.rules.lag_ns);
    trouble.extend(lost.into_iter().map(|why| format!("lost or broken append: {why}")));
    verified.reads += looks;
    let contents = history.contents();
    let next_process = checked.next_process();
    Ok(Outcome { history, contents, verified, violations, trouble, next_process, handles })
}

/// Runs the program's own check, and checks what a round may leave in an agent: nothing but pages.
fn verify(stage: &mut Stage, outcome: &mut Outcome) {
    let root = stage.root().to_string_lossy().into_owned();
    for number in 0..NODES {
        if let Ok(status) = stage.status(number) {
            stage.note_from_disk(number, &status);
        }
        match stage.cli(number, &["verify", "--recursive", &root]) {
            Ok(out) if out.status.success() => {}
            Ok(out) => outcome.trouble.push(format!(
                "`forebay verify` on node {number}: {} {}",
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr)
            )),
            Err(e) => outcome.trouble.push(format!("`forebay verify` on node {number}: {e}")),
        }
        // The mount holds connections of its own.
        if let Err(e) = stage.unmount_on(number) {
            outcome.trouble.push(format!("`forebay umount` on node {number}: {e}"));
        }
        if let Some(leak) = leak(stage, number) {
            outcome.trouble.push(format!("leak: agent {number}: {leak}"));
        }
    }
}

/// What an agent still holds for clients that are gone.
fn leak(stage: &Stage, number: u32) -> Option<String> {
    let deadline = now_ns() + 15 * SECOND_NS;
    loop {
        let why = match stage.status(number) {
            Ok(status) => {
                let counter = |name: &str| status.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
                let pending: u64 = status.mounts.iter().map(|m| u64::from(m.fetches_pending as u32)).sum();
                let held =
                    (status.connections, status.scratch_files, counter("client_pinned_bytes"), pending);
                // The one connection is the one that asks.
                if held.0 <= 1 && (held.1, held.2, held.3) == (0, 0, 0) {
                    return None;
                }
                format!("connections, memory-only files, pinned bytes, fetches: {held:?}")
            }
            Err(e) => e.to_string(),
        };
        if now_ns() > deadline {
            return Some(format!("{why}\n{}", processes(&stage.setup.dir)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The processes that have to do with this directory, which may hold what an agent still has.
fn processes(dir: &Path) -> String {
    let lines = processes_with(dir).into_iter().map(|(pid, line)| format!("  {pid} {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// What an agent that has released everything still holds.
pub fn leak_when_empty(stage: &Stage, number: u32) -> Option<String> {
    for path in (0..FILES).map(|p| stage.path(p)) {
        let _ = stage.cli(number, &["unpin", &path]);
    }
    let deadline = now_ns() + 20 * SECOND_NS;
    loop {
        let evicted = stage.client(number).admin().evict_all();
        let status = match (evicted, stage.status(number)) {
            (Ok(_), Ok(status)) => status,
            (Err(e), _) | (_, Err(e)) => return Some(e.to_string()),
        };
        let gone = gone_but_pinned(stage, number);
        let left: Vec<_> = status
            .used_bytes
            .iter()
            .filter(|(class, bytes)| {
                *bytes > at_most(class) && !(gone > 0 && ["pages", "metadata"].contains(&&**class))
            })
            .collect();
        let copies = std::fs::read_dir(stage.nodes[number as usize].dir.join("tier/copies"))
            .map_or(0, Iterator::count);
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", status.pid)).map_or(0, Iterator::count);
        // Each copy has a record next to it.
        if left.is_empty() && status.files == gone && copies as u64 == 2 * gone && descriptors < 100 {
            return None;
        }
        if now_ns() > deadline {
            return Some(format!(
                "{} files, {} pinned bytes, {left:?}, {copies} files in the tier, {descriptors} descriptors",
                status.files, status.pinned_bytes
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How many of the remaining files are pinned and have no name any more, through which they could
/// be unpinned: a documented limit.
fn gone_but_pinned(stage: &Stage, number: u32) -> u64 {
    let listed = stage.client(number).admin().list().unwrap_or_default();
    listed.iter().filter(|file| file.pinned).count() as u64
}

/// For each class of the budget, the most that an agent that holds nothing may have. A connection
/// between agents is kept for ten seconds and costs its buffers meanwhile.
fn at_most(class: &str) -> u64 {
    match class {
        "pages" | "metadata" | "scratch" => 0,
        "clients" => 200 << 10,
        _ => u64::MAX,
    }
}
