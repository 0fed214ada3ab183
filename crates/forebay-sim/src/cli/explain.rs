//! `sim explain`: a recorded decision in words.

use serde_json::Value;

use super::explain_access::{Entry, entries};
use super::replay::{Line, read};
use super::{ExplainArgs, Output, say, table};
use crate::error::{Error, Result};
use crate::report::number;
use crate::scenario::Scenario;
use crate::{burst, colocate};

fn decision(line: &Line) -> Option<&Value> {
    line.action.as_ref().filter(|a| a["is"] == "decided")
}

pub fn explain(args: &ExplainArgs, out: &mut Output<'_>) -> Result<()> {
    match read(&args.trace)? {
        (Scenario::Colocation(setup), lines) => prefetches(args, &setup, &lines, out),
        (Scenario::BurstBuffer(setup), lines) => access(args, &setup, &lines, out),
    }
}

fn no_such(args: &ExplainArgs, wanted: u64, count: usize) -> Error {
    let trace = args.trace.display();
    Error::Usage(format!("{trace} has no decision {wanted}; it has {count} of them, numbered from 1"))
}

/// Who was let in, who waited, who got nodes.
fn access(args: &ExplainArgs, setup: &burst::Setup, lines: &[Line], out: &mut Output<'_>) -> Result<()> {
    let entries = entries(setup, lines);
    let Some(wanted) = args.decision else {
        let row = |(i, e): (usize, &Entry)| {
            let time = number(e.t_ns as f64 * 1e-9);
            let cells =
                [(i + 1).to_string(), time, e.what.into(), e.job.clone(), e.step.clone(), e.why.clone()];
            cells.to_vec()
        };
        let rows: Vec<Vec<String>> = entries.iter().enumerate().map(row).collect();
        return table(out, &["decision", "time_s", "what", "job", "step", "reason"], &rows);
    };
    let found = usize::try_from(wanted).ok().and_then(|w| w.checked_sub(1)).and_then(|i| entries.get(i));
    let Some(e) = found else { return Err(no_such(args, wanted, entries.len())) };
    if out.json {
        return out.value(&serde_json::json!({
            "decision": wanted, "time_s": e.t_ns as f64 * 1e-9, "what": e.what, "job": e.job, "step": e.step,
            "reason": e.why, "seen": e.seen, "done": e.done,
        }));
    }
    let of = if e.step == "-" { e.job.clone() } else { format!("step {} of {}", e.step, e.job) };
    let policy = format!("allocation {}, access {}", setup.allocation, setup.access);
    let time = number(e.t_ns as f64 * 1e-9);
    say(out, &format!("Decision {wanted} at {time} s ({policy}): {of}: {}", e.what))?;
    say(out, &format!("because {}", e.why))?;
    for (title, lines) in [("seen", &e.seen), ("done", &e.done)] {
        say(out, &format!("\n{title}:"))?;
        lines.iter().try_for_each(|line| say(out, &format!("  {line}")))?;
    }
    Ok(())
}

fn prefetches(
    args: &ExplainArgs,
    setup: &colocate::Setup,
    lines: &[Line],
    out: &mut Output<'_>,
) -> Result<()> {
    let decisions: Vec<(&Line, &Value)> = lines.iter().filter_map(|l| Some((l, decision(l)?))).collect();
    let Some(wanted) = args.decision else {
        let rows: Vec<Vec<String>> = decisions.iter().map(|(l, d)| summary(l, d)).collect();
        return table(
            out,
            &["decision", "time_s", "job", "wave", "action", "cost_s", "margin_s", "reason"],
            &rows,
        );
    };
    let found = decisions.iter().find(|(_, d)| d["id"] == wanted);
    let Some((line, d)) = found else {
        return Err(no_such(args, wanted, decisions.len()));
    };
    let job = d["job"].as_u64().and_then(|j| setup.jobs.get(j as usize)).map_or("?", |j| j.name.as_str());
    if out.json {
        let time_s = line.t_ns as f64 * 1e-9;
        return out.value(
            &serde_json::json!({ "time_s": time_s, "policy": setup.policy, "job": job, "decided": d }),
        );
    }
    say(
        out,
        &format!(
            "Decision {wanted} at {} s by policy {}: {} for wave {} of {job}",
            number(line.t_ns as f64 * 1e-9),
            setup.policy,
            words(&d["kind"]),
            d["wave"]
        ),
    )?;
    say(out, &format!("because {}", d["reason"].as_str().unwrap_or("?")))?;
    say(out, "\nseen:")?;
    say(
        out,
        &format!("  {} GB of the wave to fetch", number(d["left_bytes"].as_f64().unwrap_or(0.0) / 1e9)),
    )?;
    say(
        out,
        &format!("  {} s of compute to hide it, {} waves in the tier", value(&d["hidden_s"]), d["buffered"]),
    )?;
    for p in d["phases"].as_array().into_iter().flatten() {
        say(out, &format!("  {}", phase(p, setup)))?;
    }
    say(out, "\ndone:")?;
    for step in d["steps"].as_array().into_iter().flatten() {
        say(out, &format!("  {}", step_words(step)))?;
    }
    let e = &d["estimate"];
    say(out, &format!("\nexpected of it, as the best of {} candidates:", d["candidates"]))?;
    say(
        out,
        &format!(
            "  the wave is there in {} s, which costs {} s",
            value(&e["fetched_in_s"]),
            value(&e["cost_s"])
        ),
    )?;
    say(out, &format!("  the tightest phase ends {} s before its deadline", value(&e["margin_s"])))
}

fn summary(line: &Line, d: &Value) -> Vec<String> {
    let e = &d["estimate"];
    vec![
        d["id"].to_string(),
        number(line.t_ns as f64 * 1e-9),
        d["job"].to_string(),
        d["wave"].to_string(),
        words(&d["kind"]),
        value(&e["cost_s"]),
        value(&e["margin_s"]),
        d["reason"].as_str().unwrap_or("?").into(),
    ]
}

fn words(kind: &Value) -> String {
    kind.as_str().unwrap_or("?").replace('_', " ")
}

fn value(v: &Value) -> String {
    v.as_f64().map_or("-".into(), number)
}

fn phase(p: &Value, setup: &crate::colocate::Setup) -> String {
    let name = p["hpc"].as_u64().and_then(|h| setup.hpc.get(h as usize)).map_or("?", |h| h.name.as_str());
    if p["in_phase"] == true {
        format!("{name}: {} s of I/O left, deadline in {} s", value(&p["left_s"]), value(&p["deadline_s"]))
    } else if p["left_s"].is_null() {
        format!("{name}: no more phases")
    } else {
        format!("{name}: next phase in {} s", value(&p["left_s"]))
    }
}

fn step_words(step: &Value) -> String {
    let at = number(step["at"].as_f64().unwrap_or(0.0) * 1e-9);
    let s = &step["setting"];
    let how = if s["nodes"] == 0 {
        "wait".into()
    } else {
        format!(
            "{} nodes x {} threads at {} % rate",
            s["nodes"],
            s["threads"],
            number(100.0 * s["rate"].as_f64().unwrap_or(1.0))
        )
    };
    let yields = if step["yields"] == true { ", pausing in phases" } else { "" };
    format!("from {at} s: {how}{yields}")
}
