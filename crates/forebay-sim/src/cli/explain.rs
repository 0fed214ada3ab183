//! `sim explain`: a recorded decision in words.

use std::io::Write;

use serde_json::Value;

use super::replay::{Line, read};
use super::{ExplainArgs, say, table};
use crate::error::{Error, Result};
use crate::report::number;

fn decision(line: &Line) -> Option<&Value> {
    line.action.as_ref().filter(|a| a["is"] == "decided")
}

pub fn explain(args: &ExplainArgs, out: &mut dyn Write) -> Result<()> {
    let (setup, lines) = read(&args.trace)?;
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
        return Err(Error::Usage(format!(
            "{} has no decision {wanted}; it has {} of them, numbered from 1",
            args.trace.display(),
            decisions.len()
        )));
    };
    let job = d["job"].as_u64().and_then(|j| setup.jobs.get(j as usize)).map_or("?", |j| j.name.as_str());
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
        say(out, &format!("  {}", phase(p, &setup)))?;
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
