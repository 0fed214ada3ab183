//! `sim broadcast`.

use super::{Output, table};
use crate::broadcast::{Outcome, Setup, simulate};
use crate::csv;
use crate::error::Result;
use crate::plot::lines::Lines;
use crate::scenario::File;
use clap::Args;
use std::path::PathBuf;

/// Options of `broadcast`.
#[derive(Args, Debug)]
pub struct BroadcastArgs {
    /// Scenario file of kind `broadcast`
    scenario: PathBuf,
    /// Set a key, such as `cluster.nodes=100`; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
    /// Draw how many nodes have all of the file over time, as SVG; the data are written to FILE.csv
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the row as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

fn key_and_value(text: &str) -> std::result::Result<(String, String), String> {
    let pair = text.split_once('=').ok_or("KEY=VALUE is needed, such as cluster.nodes=100")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

const COLUMNS: [&str; 8] =
    ["policy", "nodes", "first_s", "last_s", "bound_s", "last_to_bound", "pfs_copies", "most_sent_copies"];

fn row(setup: &Setup, outcome: &Outcome) -> Vec<String> {
    let last_s = outcome.last_s();
    vec![
        setup.policy.clone(),
        setup.nodes.to_string(),
        format!("{:.3}", outcome.ends_s.first().copied().unwrap_or(0.0)),
        format!("{last_s:.3}"),
        format!("{:.3}", outcome.bound_s),
        format!("{:.2}", last_s / (outcome.last_start_s + outcome.bound_s)),
        format!("{:.3}", outcome.pfs_copies),
        format!("{:.2}", outcome.most_sent_copies),
    ]
}

/// Runs the scenario.
pub fn broadcast(args: &BroadcastArgs, out: &mut Output<'_>) -> Result<()> {
    let mut file = File::read(&args.scenario)?;
    for (key, value) in &args.set {
        file.set(key, value)?;
    }
    let setup = file.broadcast()?;
    let outcome = simulate(&setup)?;
    if let Some(path) = &args.timeline {
        let ends = outcome.ends_s.iter().enumerate().map(|(n, at_s)| (*at_s, (n + 1) as f64));
        let lines = Lines {
            title: &format!("{} ({}), bound {:.2} s", file.name(), setup.policy, outcome.bound_s),
            x_label: "time (s)",
            y_label: "nodes that have all",
            log_x: false,
            series: vec![("nodes".into(), std::iter::once((0.0, 0.0)).chain(ends).collect())],
            marks: Vec::new(),
        };
        lines.figure().write(path, "write the timeline to")?;
    }
    let rows = [row(&setup, &outcome)];
    if let Some(path) = &args.csv {
        csv::write(path, "write the row to", &COLUMNS, &rows)?;
    }
    table(out, &COLUMNS, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broadcast::{OWNER, SPREAD};
    use std::path::Path;

    fn run(policy: &str, nodes: usize, start_s: f64) -> Outcome {
        let text = format!(
            "kind = \"broadcast\"\n[cluster]\nnodes = {nodes}\npolicy = \"{policy}\"\nlink_gb_per_s = 1\n\
             start_s = {start_s}\n[pfs]\ngb_per_s = 10\n[file]\nmib = 256\n"
        );
        let file = File::parse(Path::new("broadcast.toml"), &text).expect("it is TOML");
        simulate(&file.broadcast().expect("it is a scenario")).expect("it ends")
    }

    #[test]
    fn one_owner_sends_each_copy_and_a_chain_sends_each_page_once_from_each_node() {
        let (owner, chain) = (run(OWNER, 8, 0.0), run(SPREAD, 8, 0.0));
        assert!(owner.last_s() > 3.0 * owner.bound_s, "{owner:?}");
        assert!(chain.last_s() < 1.3 * chain.bound_s, "{chain:?}");
        assert!((chain.pfs_copies - 1.0).abs() < 1e-9 && chain.most_sent_copies < 1.02, "{chain:?}");
    }

    #[test]
    fn nodes_that_begin_late_delay_nobody() {
        let late = run(SPREAD, 50, 0.5);
        assert!(late.last_s() < late.last_start_s + 1.3 * late.bound_s, "{late:?}");
        assert!((late.pfs_copies - 1.0).abs() < 1e-9);
    }
}
