//! `plan`: what the planners knew, expected and chose, why, and what came of it.

use crate::Outcome;
use crate::cli::{Global, PlanCommand, PlanLogArgs};
use crate::out::{name, no_agent, print};
use forebay_agent::units::Human;
use forebay_wire::PlanLog;
use forebay_wire::hpc::{PhaseEntry, PlanEntry, PlanPhase, PlanStep};
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs a subcommand.
pub fn plan(global: &Global, command: &PlanCommand) -> Outcome {
    match command {
        PlanCommand::Log(args) => log(global, args),
    }
}

fn log(global: &Global, args: &PlanLogArgs) -> Outcome {
    let log = global.client().plans(args.last).map_err(|e| no_agent(global, &e))?;
    print(global, &log, |out| write(&log, out))?;
    Ok(ExitCode::SUCCESS)
}

fn seconds(ms: u64) -> String {
    format!("{:.2} s", ms as f64 / 1e3)
}

/// Writes the entries in the order of time.
fn write(log: &PlanLog, out: &mut dyn Write) -> io::Result<()> {
    if log.plans.is_empty() && log.phases.is_empty() {
        return writeln!(out, "nothing was planned, and no I/O phase was reported");
    }
    let mut phases = log.phases.iter().peekable();
    for plan in &log.plans {
        while let Some(phase) = phases.next_if(|phase| phase.at_ms <= plan.at_ms) {
            write_phase(phase, out)?;
        }
        write_plan(plan, out)?;
    }
    phases.try_for_each(|phase| write_phase(phase, out))?;
    if let Some((count, error)) = mean_error(&log.phases) {
        let percent = error * 100.0;
        writeln!(out, "{count} phases observed; mean relative error of the estimated time: {percent:.1} %")?;
    }
    Ok(())
}

fn write_plan(plan: &PlanEntry, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {} plans the wave from task {} of stage {} of {}: {}",
        seconds(plan.at_ms),
        plan.planner,
        plan.task,
        plan.stage,
        name(plan.job.as_bytes()),
        plan.action
    )?;
    writeln!(
        out,
        "  known     {} to fetch, {} of compute hide it{}",
        Human(plan.left_bytes),
        seconds(plan.hidden_ms),
        plan.phases.iter().map(known).collect::<String>()
    )?;
    let steps: Vec<String> = plan.steps.iter().map(step).collect();
    writeln!(out, "  chosen    {}, of {} alternatives", or_none(&steps.join("; ")), plan.candidates)?;
    writeln!(out, "  because   {}", plan.reason)?;
    let fetched = plan.fetched_in_ms.map_or("unknown".into(), |ms| format!("fetched after {}", seconds(ms)));
    let margin = plan
        .margin_ms
        .map_or(String::new(), |ms| format!(", {:.2} s before the tightest deadline", ms as f64 / 1e3));
    writeln!(out, "  expected  {fetched}{margin}")?;
    match plan.came_in_ms {
        Some(ms) => writeln!(out, "  came      {} after {}", Human(plan.came_bytes), seconds(ms)),
        None => writeln!(out, "  came      nothing"),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "no prefetch" } else { text }
}

fn known(phase: &PlanPhase) -> String {
    let left = phase.left_ms.map_or("nobody knows when".into(), seconds);
    match phase.in_phase {
        true => {
            let deadline = phase.deadline_ms.unwrap_or(0) as f64 / 1e3;
            format!(
                "; {} needs {left} of I/O alone, deadline in {deadline:.2} s",
                name(phase.name.as_bytes())
            )
        }
        false => format!("; next phase of {} in {left}", name(phase.name.as_bytes())),
    }
}

fn step(step: &PlanStep) -> String {
    let yields = if step.yields { ", not during phases" } else { "" };
    match (step.nodes, step.rate_permille) {
        (0, _) => format!("after {} pause", seconds(step.after_ms)),
        (nodes, 1000) => {
            format!("after {} {nodes} nodes x {} threads{yields}", seconds(step.after_ms), step.threads)
        }
        (nodes, rate) => format!(
            "after {} {nodes} nodes x {} threads at {:.1} % of their speed{yields}",
            seconds(step.after_ms),
            step.threads,
            f64::from(rate) / 10.0
        ),
    }
}

fn write_phase(phase: &PhaseEntry, out: &mut dyn Write) -> io::Result<()> {
    let known = |ms: Option<u64>| ms.map_or("unknown".into(), seconds);
    let came = match (phase.observed_ms, phase.deadline_ms) {
        (None, _) => "has not ended".into(),
        (Some(took), Some(deadline)) if took > deadline => format!("took {}: late", seconds(took)),
        (Some(took), _) => format!("took {}", seconds(took)),
    };
    writeln!(
        out,
        "{}: I/O phase of {} ({}): alone {}, deadline {}, estimated {}; {came}; {} prefetched meanwhile",
        seconds(phase.at_ms),
        name(phase.name.as_bytes()),
        Human(phase.bytes),
        known(phase.alone_ms),
        known(phase.deadline_ms),
        known(phase.estimated_ms),
        Human(phase.beside_bytes)
    )
}

/// How many phases have both an estimate and an end, and the mean of the relative errors.
fn mean_error(phases: &[PhaseEntry]) -> Option<(usize, f64)> {
    let errors = phases.iter().filter_map(|phase| {
        let (estimated, observed) = (phase.estimated_ms? as f64, phase.observed_ms? as f64);
        (observed > 0.0).then(|| (estimated - observed).abs() / observed)
    });
    let errors: Vec<f64> = errors.collect();
    (!errors.is_empty()).then(|| (errors.len(), errors.iter().sum::<f64>() / errors.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_counts_phases_that_were_estimated_and_have_ended() {
        let phase =
            |estimated_ms, observed_ms| PhaseEntry { estimated_ms, observed_ms, ..PhaseEntry::default() };
        assert_eq!(mean_error(&[phase(None, Some(5)), phase(Some(5), None)]), None);
        let phases = [phase(Some(110), Some(100)), phase(Some(90), Some(100)), phase(None, Some(1))];
        let (count, error) = mean_error(&phases).unwrap();
        assert!(count == 2 && (error - 0.1).abs() < 1e-9);
    }

    #[test]
    fn the_log_is_written_in_the_order_of_time() {
        let phase = PhaseEntry {
            at_ms: 1500,
            name: "sim".into(),
            observed_ms: Some(2),
            deadline_ms: Some(1),
            ..PhaseEntry::default()
        };
        let plan =
            |at_ms| PlanEntry { at_ms, planner: "eley".into(), job: "app".into(), ..PlanEntry::default() };
        let mut out = Vec::new();
        write(&PlanLog { plans: vec![plan(1000), plan(2000)], phases: vec![phase] }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word} in {text}"));
        assert!(at("1.00 s: eley") < at("phase of sim") && at("phase of sim") < at("2.00 s: eley"));
        assert!(at("late") > 0);
    }
}
