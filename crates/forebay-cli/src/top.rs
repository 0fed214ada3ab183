//! `top`: one page of the cluster in the terminal: nodes, I/O phases, jobs, what they move on each
//! server, and the latest decisions with their reasons.
//!
//! It asks the agent, as any program does, and the agent asks the coordinator. The page is plain
//! text that replaces the previous one; one line counts the rows that do not fit.

use crate::Outcome;
use crate::cli::{Global, TopArgs};
use crate::out::{no_agent, print, short};
use crate::traffic;
use forebay_agent::units::Human;
use forebay_client::Client;
use forebay_wire::hpc::{PhaseEntry, PlanEntry};
use forebay_wire::{HpcStatus, JobStatus, NodeStatus, Overview, PlanLog, Role};
use serde::Serialize;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// Decisions, and phases, of which the page shows the latest.
const LOG_ENTRIES: u32 = 64;

/// Size of the page for a terminal that does not report its size, and for `--once`.
const USUAL: Size = Size { rows: 50, columns: 120 };

/// A node that has been silent for this long, two heartbeats, may be gone.
pub const SILENT_MS: u64 = 2000;

#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    columns: usize,
}

/// Everything on the page.
#[derive(Debug, Default, Serialize)]
struct Picture {
    overview: Overview,
    jobs: Vec<JobStatus>,
    hpc: Vec<HpcStatus>,
    log: PlanLog,
}

/// Shows the page, and refreshes it unless `--once` is given.
pub fn top(global: &Global, args: &TopArgs) -> Outcome {
    let client = global.client();
    let is_live = !args.once && !global.json && io::stdout().is_terminal();
    loop {
        let picture = take(&client).map_err(|e| no_agent(global, &e))?;
        let size = if is_live { terminal() } else { Size { rows: usize::MAX, ..USUAL } };
        let text = render(&picture, size);
        print(global, &picture, |out| {
            if is_live {
                // Home and clear: the next page replaces the previous one.
                write!(out, "\x1b[H\x1b[2J")?;
            }
            out.write_all(text.as_bytes())
        })?;
        if args.once || !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(args.interval_ms));
    }
}

fn take(client: &Client) -> io::Result<Picture> {
    Ok(Picture {
        overview: client.overview()?,
        jobs: client.jobs()?,
        hpc: client.hpc_jobs()?,
        log: client.plans(LOG_ENTRIES)?,
    })
}

fn terminal() -> Size {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or(USUAL, |size| Size { rows: size.ws_row.into(), columns: size.ws_col.into() })
}

/// The page. Nodes get half of the rows at most, and the other parts share what is left.
fn render(picture: &Picture, size: Size) -> String {
    let mut lines = head(&picture.overview);
    // One row is left for the cursor.
    let room = size.rows.saturating_sub(lines.len() + 1);
    let nodes = nodes(&picture.overview.nodes);
    let phases = phases(picture);
    let jobs = jobs(&picture.jobs);
    let traffic = traffic::table(&picture.overview.traffic);
    let for_nodes = (room / 2).max(room.saturating_sub(phases.len() + jobs.len() + 3));
    let mut left = room;
    for (part, most) in [(nodes, for_nodes), (phases, room / 4), (jobs, room / 4), (traffic, room / 4)] {
        let shown = fit(part, most.max(3).min(left));
        left = left.saturating_sub(shown.len());
        lines.extend(shown);
    }
    lines.extend(fit(decisions(&picture.log.plans, picture.overview.now_ms), left));
    let mut text = String::new();
    for line in lines {
        text.extend(line.chars().take(size.columns));
        text.push('\n');
    }
    text
}

/// The first lines of a part, and how many are left out.
fn fit(mut part: Vec<String>, most: usize) -> Vec<String> {
    if part.len() > most && most > 0 {
        let over = part.len() - (most - 1);
        part.truncate(most - 1);
        part.push(format!("  ... {over} more"));
    }
    part.truncate(most);
    part
}

fn head(o: &Overview) -> Vec<String> {
    let s = &o.sample;
    vec![
        format!(
            "forebay top: {} nodes, tier {} of {}, up {}, view {}",
            o.nodes.len(),
            Human(s.resident_bytes),
            Human(s.capacity_bytes),
            seconds(o.now_ms),
            o.epoch
        ),
        format!(
            "PFS reads {}/s, of that prefetch {}/s; {} prefetch requests pending",
            Human(s.fetched_bytes_per_s),
            Human(s.prefetched_bytes_per_s),
            o.requests
        ),
    ]
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}

fn nodes(nodes: &[NodeStatus]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<24} {:<10} {:>10} {:>10} {:>5} {:>12} {:>8}",
        "NODE", "ROLE", "TIER", "CACHED", "%", "FROM PFS", "REQUESTS"
    )];
    lines.extend(nodes.iter().map(|node| {
        let role = if node.role == Role::CoLocated { "co-located" } else { "dedicated" };
        let percent = node.resident_bytes as f64 * 100.0 / node.capacity_bytes.max(1) as f64;
        let silent = match node.silent_ms {
            ms if ms > SILENT_MS => format!("  silent for {}", seconds(ms)),
            _ => String::new(),
        };
        format!(
            "{:<24} {role:<10} {:>10} {:>10} {percent:>5.1} {:>12} {:>8}{silent}",
            short(&node.name, 24),
            Human(node.capacity_bytes).to_string(),
            Human(node.resident_bytes).to_string(),
            Human(node.fetched_bytes).to_string(),
            node.requests
        )
    }));
    lines
}

/// I/O phases under way with their progress and deadline, and HPC jobs between two phases.
fn phases(picture: &Picture) -> Vec<String> {
    let mut lines =
        vec![format!("{:<24} {:<24} {:>9} {:>10}  STATE", "HPC JOB", "PROGRESS", "RUNS FOR", "DEADLINE")];
    let mut names = Vec::new();
    for entry in picture.log.phases.iter().filter(|phase| phase.observed_ms.is_none()) {
        lines.push(phase_line(entry, picture));
        names.push(entry.name.as_str());
    }
    for job in picture.hpc.iter().filter(|job| !names.contains(&job.name.as_str())) {
        let state = match job.next_in_ms {
            Some(ms) => format!("computes; next phase expected in {}", seconds(ms)),
            None => "computes".into(),
        };
        let counts = format!("{} phases, {} late", job.ended, job.late);
        lines.push(format!("{:<24} {counts:<24} {:>9} {:>10}  {state}", short(&job.name, 24), "-", "-"));
    }
    if lines.len() == 1 {
        return vec!["no HPC jobs".into()];
    }
    lines
}

fn phase_line(entry: &PhaseEntry, picture: &Picture) -> String {
    let now_ms = picture.overview.now_ms;
    let lasted_ms = now_ms.saturating_sub(entry.at_ms);
    let on_board = picture.hpc.iter().filter(|job| job.name == entry.name).find_map(|job| job.phase.as_ref());
    let done = match (on_board, entry.alone_ms, entry.left_ms) {
        (Some(phase), _, _) if phase.bytes > 0 => Some(phase.done_bytes as f64 / phase.bytes as f64),
        (_, Some(alone), Some(left)) if alone > 0 => Some(1.0 - left as f64 / alone as f64),
        _ => None,
    };
    let progress = done.map_or("length unknown".to_owned(), |share| {
        let share = share.clamp(0.0, 1.0);
        let full = (share * 16.0) as usize;
        format!("[{}{}] {:.0} %", "#".repeat(full), ".".repeat(16 - full), share * 100.0)
    });
    let deadline = entry
        .deadline_ms
        .map_or("-".into(), |deadline| format!("{:+.1} s", (deadline as f64 - lasted_ms as f64) / 1e3));
    let state = match on_board {
        Some(phase) if phase.is_behind => "BEHIND: prefetches stop for it",
        _ if entry.deadline_ms.is_some_and(|deadline| lasted_ms > deadline) => "LATE",
        _ => "in time",
    };
    format!(
        "{:<24} {progress:<24} {:>9} {deadline:>10}  {state}, {} prefetched meanwhile",
        short(&entry.name, 24),
        seconds(lasted_ms),
        Human(entry.beside_bytes)
    )
}

fn jobs(jobs: &[JobStatus]) -> Vec<String> {
    let running: Vec<&JobStatus> = jobs.iter().filter(|job| !job.ended).collect();
    if running.is_empty() {
        return vec!["no analytics jobs".into()];
    }
    let mut lines = vec![format!(
        "{:<24} {:<10} {:>6} {:>12} {:>8} {:>10} {:>10} {:>6}",
        "ANALYTICS JOB", "PLANNER", "STAGES", "TASKS DONE", "RUNNING", "INPUT", "PREFETCHED", "WAVES"
    )];
    lines.extend(running.into_iter().map(|job| {
        let sum = |of: fn(&forebay_wire::cluster::StageStatus) -> u32| -> u64 {
            job.stages.iter().map(|stage| u64::from(of(stage))).sum()
        };
        let waves = || job.stages.iter().flat_map(|stage| &stage.waves);
        let tasks = format!("{}/{}", sum(|stage| stage.tasks_done), sum(|stage| stage.tasks));
        format!(
            "{:<24} {:<10} {:>6} {tasks:>12} {:>8} {:>10} {:>10} {:>6}",
            short(&job.name, 24),
            short(&job.planner, 10),
            job.stages.len(),
            sum(|stage| stage.tasks_running),
            Human(waves().map(|wave| wave.bytes).sum()).to_string(),
            Human(waves().map(|wave| wave.fetched_bytes).sum()).to_string(),
            waves().count()
        )
    }));
    lines
}

/// The decisions, the latest first.
fn decisions(plans: &[PlanEntry], now_ms: u64) -> Vec<String> {
    if plans.is_empty() {
        return vec!["no decisions".into()];
    }
    let mut lines =
        vec![format!("{:>9} {:<11} {:<24} {:<13} BECAUSE", "BEFORE", "PLANNER", "WAVE", "ACTION")];
    lines.extend(plans.iter().rev().map(|plan| {
        let wave = format!("{} {}.{}", short(&plan.job, 12), plan.stage, plan.task);
        format!(
            "{:>9} {:<11} {wave:<24} {:<13} {}",
            seconds(now_ms.saturating_sub(plan.at_ms)),
            short(&plan.planner, 11),
            plan.action,
            plan.reason
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(nodes: usize) -> Picture {
        let node = |i| NodeStatus {
            name: format!("n{i:03}"),
            capacity_bytes: 100,
            resident_bytes: 50,
            ..NodeStatus::default()
        };
        let overview =
            Overview { nodes: (0..nodes).map(node).collect(), now_ms: 9000, ..Overview::default() };
        let phase = PhaseEntry {
            at_ms: 8000,
            name: "climate".into(),
            alone_ms: Some(2000),
            deadline_ms: Some(2100),
            left_ms: Some(500),
            ..PhaseEntry::default()
        };
        let plan = |i| PlanEntry {
            job: format!("app{i}"),
            action: "wait".into(),
            reason: "it would be late".into(),
            ..PlanEntry::default()
        };
        let log = PlanLog { plans: (0..20).map(plan).collect(), phases: vec![phase] };
        let job = |i| JobStatus { name: format!("job{i}"), ..JobStatus::default() };
        Picture { overview, log, jobs: (0..10).map(job).collect(), ..Picture::default() }
    }

    #[test]
    fn a_page_of_a_hundred_nodes_fits_and_says_what_is_left_out() {
        for rows in [10, 24, 50, 200] {
            let text = render(&picture(100), Size { rows, columns: 80 });
            assert!(text.lines().count() < rows, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80));
            assert_eq!(text.contains("more"), rows < 200, "{text}");
            assert!(text.contains("n000") && text.contains("climate"), "{text}");
        }
        let all = render(&picture(100), Size { rows: usize::MAX, columns: 120 });
        assert!(all.contains("n099") && all.contains("job9") && all.contains("app0"), "{all}");
        assert!(all.contains("[############....] 75 %") && all.contains("+1.1 s"), "{all}");
        assert!(all.lines().filter(|line| line.ends_with("it would be late")).count() == 20, "{all}");
    }

    #[test]
    fn a_phase_after_its_deadline_is_late() {
        let mut picture = picture(1);
        picture.overview.now_ms = 10_200;
        let text = render(&picture, USUAL);
        assert!(text.contains("-0.1 s") && text.contains("LATE"), "{text}");
    }
}
