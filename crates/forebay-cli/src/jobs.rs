//! `jobs`: the analytics jobs that the coordinator knows, their stages and waves, and the outcome
//! of their prefetches; and the HPC jobs that this node's agent knows, with their I/O phases.

use crate::Outcome;
use crate::cli::{Global, JobsArgs};
use crate::out::{name, no_agent, print};
use forebay_agent::units::Human;
use forebay_wire::cluster::{StageStatus, WaveStatus};
use forebay_wire::{HpcStatus, JobStatus, StepStatus};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two pages.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Shows the jobs.
pub fn jobs(global: &Global, args: &JobsArgs) -> Outcome {
    let client = global.client();
    loop {
        let hpc = client.hpc_jobs().map_err(|e| no_agent(global, &e))?;
        let jobs = if args.hpc { Ok(Vec::new()) } else { client.jobs() };
        let jobs = jobs.map_err(|e| no_agent(global, &e))?;
        if args.watch && !global.json && io::stdout().is_terminal() {
            // Home and clear: the next page replaces the last one.
            print!("\x1b[H\x1b[2J");
        }
        match args.hpc {
            true => print(global, &hpc, |out| {
                write(&jobs, &hpc, out)?;
                // Without a coordinator no step waits.
                let steps = client.overview().map(|overview| overview.steps).unwrap_or_default();
                steps.iter().try_for_each(|step| write_step(step, out))
            })?,
            false => print(global, &jobs, |out| write(&jobs, &hpc, out))?,
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

fn write_step(step: &StepStatus, out: &mut dyn Write) -> io::Result<()> {
    let since_s = step.since_ms as f64 / 1e3;
    write!(out, "step of {} of user {}: ", name(step.name.as_bytes()), step.user)?;
    match (step.writes, step.waits_for.as_slice()) {
        (true, _) => write!(out, "has written for {since_s:.1} s")?,
        (false, []) => write!(out, "has waited for {since_s:.1} s")?,
        (false, [first, others @ ..]) => {
            write!(out, "has waited for {since_s:.1} s for {}", name(first.as_bytes()))?;
            if !others.is_empty() {
                write!(out, " and {} more", others.len())?;
            }
        }
    }
    if step.pace_permille < 1000 {
        write!(out, ", {} % of the time", f64::from(step.pace_permille) / 10.0)?;
    }
    if let Some(ms) = step.alone_ms {
        write!(out, "; {:.1} s alone", ms as f64 / 1e3)?;
    }
    match step.servers.as_slice() {
        [] => writeln!(out, "; servers unknown"),
        [server] => writeln!(out, "; on {}", name(server.as_bytes())),
        servers => writeln!(out, "; on {} servers", servers.len()),
    }
}

fn write(jobs: &[JobStatus], hpc: &[HpcStatus], out: &mut dyn Write) -> io::Result<()> {
    if jobs.is_empty() && hpc.is_empty() {
        return writeln!(out, "no jobs");
    }
    for job in jobs {
        let state = if job.ended { ", ended" } else { "" };
        let (title, planner) = (name(job.name.as_bytes()), name(job.planner.as_bytes()));
        writeln!(out, "{title}: {} slots, planner {planner}{state}", job.slots)?;
        for stage in &job.stages {
            write_stage(stage, out)?;
        }
    }
    hpc.iter().try_for_each(|job| write_hpc(job, out))
}

fn write_hpc(job: &HpcStatus, out: &mut dyn Write) -> io::Result<()> {
    write!(
        out,
        "HPC job {} of user {} on {}: ",
        name(job.name.as_bytes()),
        job.user,
        name(job.node.as_bytes())
    )?;
    match &job.phase {
        None => match job.waits_ms {
            Some(ms) => write!(out, "has waited {:.1} s to begin an I/O phase", ms as f64 / 1e3)?,
            None => write!(out, "no I/O phase")?,
        },
        Some(phase) => {
            write!(out, "in an I/O phase for {:.1} s, ", job.lasted_ms as f64 / 1e3)?;
            match phase.bytes {
                0 => write!(out, "{} moved", Human(phase.done_bytes))?,
                bytes => write!(out, "{} of {} moved", Human(phase.done_bytes), Human(bytes))?,
            }
            match phase.slack_ns {
                Some(slack) => write!(out, ", {:.2} s in hand", slack as f64 / 1e9)?,
                None => write!(out, ", length unknown")?,
            }
            if phase.is_behind {
                write!(out, "; prefetches stop for it")?;
            }
        }
    }
    if let Some(ms) = job.next_in_ms {
        write!(out, ", the next is expected in {:.1} s", ms as f64 / 1e3)?;
    }
    if job.ended > 0 {
        write!(out, "; {} phases: {} in time, {} late", job.ended, job.in_time, job.late)?;
    }
    if job.cut_off > 0 {
        write!(out, ", {} never ended and were cut off", job.cut_off)?;
    }
    match job.alone_bytes_per_s {
        0 => writeln!(out),
        rate => writeln!(out, "; {}/s alone", Human(rate)),
    }
}

fn write_stage(stage: &StageStatus, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "  stage {}: {} of {} tasks done", stage.stage, stage.tasks_done, stage.tasks)?;
    write!(out, ", {} running, {} local", stage.tasks_running, stage.tasks_local)?;
    if stage.tasks_waiting > 0 {
        write!(out, ", {} waiting for their input", stage.tasks_waiting)?;
    }
    match hidden(&stage.waves) {
        Some(share) => writeln!(out, "; {:.0} % of the prefetch time hidden behind compute", share * 100.0)?,
        None => writeln!(out)?,
    }
    if stage.waves.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "    {:>4} {:>11} {:>10} {:>10} {:>10} {:>10}  {:>15} {:>15}",
        "wave", "tasks", "input", "fetched", "resident", "given up", "prefetch s", "compute s"
    )?;
    for (number, wave) in stage.waves.iter().enumerate() {
        let size = |bytes: u64| Human(bytes).to_string();
        writeln!(
            out,
            "    {:>4} {:>11} {:>10} {:>10} {:>10} {:>10}  {:>15} {:>15}",
            number,
            format!("{}/{}", wave.tasks_done, wave.tasks),
            size(wave.bytes),
            size(wave.fetched_bytes),
            size(wave.resident_bytes),
            size(wave.failed_bytes),
            span(wave.prefetch_began_ms, wave.prefetch_ended_ms),
            span(wave.compute_began_ms, wave.compute_ended_ms),
        )?;
    }
    Ok(())
}

/// `12.3 - 15.0`, with dots for what has not come yet.
fn span(began: Option<u64>, ended: Option<u64>) -> String {
    let seconds = |ms: Option<u64>| ms.map_or("...".to_owned(), |ms| format!("{:.1}", ms as f64 / 1e3));
    match began {
        None => "-".into(),
        Some(_) => format!("{} - {}", seconds(began), seconds(ended)),
    }
}

/// The share of all prefetch time during which an earlier wave of the stage computed; `None` if
/// nothing was prefetched.
fn hidden(waves: &[WaveStatus]) -> Option<f64> {
    let (mut hidden_ms, mut all_ms) = (0, 0);
    for (number, wave) in waves.iter().enumerate() {
        let (Some(began), Some(ended)) = (wave.prefetch_began_ms, wave.prefetch_ended_ms) else { continue };
        all_ms += ended - began;
        let mut spans: Vec<(u64, u64)> = waves[..number]
            .iter()
            .filter_map(|w| {
                Some((w.compute_began_ms?.max(began), w.compute_ended_ms.unwrap_or(ended).min(ended)))
            })
            .filter(|(from, to)| from < to)
            .collect();
        spans.sort_unstable();
        let mut upto = began;
        for (from, to) in spans {
            hidden_ms += to.saturating_sub(from.max(upto));
            upto = upto.max(to);
        }
    }
    (all_ms > 0).then(|| hidden_ms as f64 / all_ms as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(prefetch: (u64, u64), compute: (u64, u64)) -> WaveStatus {
        WaveStatus {
            prefetch_began_ms: Some(prefetch.0),
            prefetch_ended_ms: Some(prefetch.1),
            compute_began_ms: Some(compute.0),
            compute_ended_ms: Some(compute.1),
            ..WaveStatus::default()
        }
    }

    #[test]
    fn hidden_is_what_lies_behind_the_compute_of_earlier_waves() {
        assert_eq!(hidden(&[]), None);
        // The first has nothing to hide behind; half of the second's is hidden behind it.
        let waves = [wave((0, 10), (10, 20)), wave((15, 25), (25, 30))];
        assert_eq!(hidden(&waves), Some(0.25));
        // Overlapping computes count once.
        let waves = [wave((0, 0), (0, 100)), wave((0, 0), (50, 100)), wave((0, 100), (100, 110))];
        assert_eq!(hidden(&waves), Some(1.0));
    }

    #[test]
    fn a_jobs_name_cannot_write_lines_of_its_own() {
        let name = "\x1b[2J\r\nHPC job root of user 0\u{202e}".to_owned();
        let mut out = Vec::new();
        write(&[JobStatus { name, ..JobStatus::default() }], &[], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().count() == 1 && !text.trim_end().contains(crate::out::is_hostile), "{text:?}");
    }
}
