//! `profile`: measures how fast prefetches from a PFS are, and how much they and the I/O phases of
//! HPC jobs disturb each other.
//!
//! Readers stand for a prefetch and writers for an I/O phase. Nodes are varied with one thread
//! each, and threads on one node, each alone and along with the writers: O(n + m) runs, from which
//! the model of Yildiz et al. (FGCS 2018, equations 1 to 4) gives all n x m. Each run is repeated
//! until its readings agree; if they do not, the command says so and takes the median all the same.

mod file;
mod measure;
mod worker;

use crate::Outcome;
use crate::cli::{Global, ProfileArgs};
use crate::out::print;
use file::{Measured, Setting};
use forebay_agent::units::Human;
use forebay_sim::plot::lines::Lines;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Bench, Ended, Readers};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
pub use worker::worker;

/// Readings agree if the middle ones differ from the median by less than this share.
const SPREAD: f64 = 0.05;
const FEWEST_RUNS: usize = 3;

#[derive(Serialize)]
struct Report {
    wave_bytes: u64,
    write_alone_s: f64,
    settings: Vec<Setting>,
    /// Runs whose readings do not agree.
    uncertain: Vec<String>,
    profile: String,
}

/// Measures, and writes the profile.
pub fn profile(global: &Global, args: &ProfileArgs) -> Outcome {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))
            .map_err(|e| format!("cannot handle signals: {e}"))?;
    }
    let bar = progress_bar(args);
    let measured = Bench::new(args, &stopped).and_then(|bench| measure(&bench, args, &bar));
    bar.finish_and_clear();
    let mut report = match measured {
        Ok(report) => report,
        Err(Ended::Cancelled) => return Ok(ExitCode::from(130)),
        Err(Ended::Failed(why)) => return Err(why),
    };
    let measured = Measured { report_bytes: report.wave_bytes, args, settings: &report.settings };
    report.profile = measured.text();
    if let Some(path) = &args.output {
        measured.write(path, &report.profile)?;
    }
    if let Some(path) = &args.plot {
        figure(&report).write(path, "write the figure to").map_err(|e| e.to_string())?;
    }
    print(global, &report, |out| report.write(out, args))?;
    Ok(ExitCode::SUCCESS)
}

/// 1, 2, 4 and so on, and the last.
fn steps(most: u16) -> Vec<u16> {
    let mut steps: Vec<u16> = (0..16).map(|i| 1 << i).take_while(|&n| n < most).collect();
    steps.push(most);
    steps
}

/// Nodes with one thread each, then threads on one node.
fn readers(args: &ProfileArgs) -> Vec<Readers> {
    let nodes = steps(args.nodes).into_iter().map(|nodes| Readers { nodes, threads: 1 });
    let threads = steps(args.threads).into_iter().skip(1).map(|threads| Readers { nodes: 1, threads });
    nodes.chain(threads).collect()
}

fn progress_bar(args: &ProfileArgs) -> ProgressBar {
    let bar = ProgressBar::new(1 + 2 * readers(args).len() as u64);
    let style = ProgressStyle::with_template("{msg:32} {wide_bar} {pos}/{len}  {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn measure(bench: &Bench<'_>, args: &ProfileArgs, bar: &ProgressBar) -> Result<Report, Ended> {
    let none = Readers { nodes: 0, threads: 0 };
    let mut uncertain = Vec::new();
    let mut repeat = |readers: Readers, with_writers: bool| -> Result<(f64, f64), Ended> {
        let name = match (readers, with_writers) {
            (r, _) if r == none => "the writers alone".to_owned(),
            (Readers { nodes, threads }, false) => format!("{nodes} nodes, {threads} threads alone"),
            (Readers { nodes, threads }, true) => format!("{nodes} nodes, {threads} threads together"),
        };
        bar.set_message(name.clone());
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        while reads.len() < args.runs.max(FEWEST_RUNS) {
            let times = bench.run(readers, with_writers)?;
            reads.push(times.read_s.unwrap_or(1.0));
            writes.push(times.write_s.unwrap_or(1.0));
            if reads.len() >= FEWEST_RUNS && spread(&reads) <= SPREAD && spread(&writes) <= SPREAD {
                break;
            }
        }
        let worst = spread(&reads).max(spread(&writes));
        if worst > SPREAD {
            uncertain.push(format!("{name}: {} readings within {:.0} %", reads.len(), worst * 100.0));
        }
        bar.inc(1);
        Ok((median(&reads), median(&writes)))
    };
    let (_, write_alone_s) = repeat(none, true)?;
    let mut settings = Vec::new();
    for readers in readers(args) {
        let (prefetch_s, _) = repeat(readers, false)?;
        let (read_s, write_s) = repeat(readers, true)?;
        settings.push(Setting {
            nodes: readers.nodes,
            threads: readers.threads,
            prefetch_s,
            // Nothing becomes faster because it is disturbed; readings below 1 are noise.
            i_hpc: (write_s / write_alone_s).max(1.0),
            i_bd: (read_s / prefetch_s).max(1.0),
        });
    }
    let (wave_bytes, profile) = (bench.wave_bytes(), String::new());
    Ok(Report { wave_bytes, write_alone_s, settings, uncertain, profile })
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Median distance from the median, as a share of it: one outlier does not count.
fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|v| (v - middle).abs()).collect();
    median(&distances) / middle
}

fn figure(report: &Report) -> forebay_sim::figure::Figure {
    let nodes = |of: fn(&Setting) -> f64| {
        report.settings.iter().filter(|s| s.threads == 1).map(|s| (f64::from(s.nodes), of(s))).collect()
    };
    let threads = |of: fn(&Setting) -> f64| {
        report.settings.iter().filter(|s| s.nodes == 1).map(|s| (f64::from(s.threads), of(s))).collect()
    };
    let series: Vec<(String, Vec<(f64, f64)>)> = vec![
        ("I_hpc, nodes".to_owned(), nodes(|s| s.i_hpc)),
        ("I_hpc, threads".to_owned(), threads(|s| s.i_hpc)),
        ("I_bd, nodes".to_owned(), nodes(|s| s.i_bd)),
        ("I_bd, threads".to_owned(), threads(|s| s.i_bd)),
    ];
    Lines {
        title: "Interference of prefetches and I/O phases",
        x_label: "nodes with one thread, or threads of one node",
        y_label: "time together / time alone",
        log_x: true,
        series,
        marks: vec![("no interference".to_owned(), 1.0)],
    }
    .figure()
}

impl Report {
    fn write(&self, out: &mut dyn Write, args: &ProfileArgs) -> io::Result<()> {
        let written = args.writer_bytes * u64::from(args.writers);
        writeln!(out, "{} writers alone: {} in {:.2} s", args.writers, Human(written), self.write_alone_s)?;
        writeln!(out, "nodes  threads  {:>12}  {:>10}  I_hpc  I_bd", "prefetch", "rate")?;
        for s in &self.settings {
            let rate = Human((self.wave_bytes as f64 / s.prefetch_s) as u64).to_string();
            writeln!(
                out,
                "{:5}  {:7}  {:10.2} s  {:>8}/s  {:5.2}  {:4.2}",
                s.nodes, s.threads, s.prefetch_s, rate, s.i_hpc, s.i_bd
            )?;
        }
        for run in &self.uncertain {
            writeln!(out, "readings differ, {run}; try more --runs, more --bytes or a quieter PFS")?;
        }
        match &args.output {
            Some(path) => writeln!(out, "profile: {}", path.display()),
            None => write!(out, "\n{}", self.profile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_powers_of_two_and_the_last() {
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(6), [1, 2, 4, 6]);
        assert_eq!(steps(8), [1, 2, 4, 8]);
    }

    #[test]
    fn one_outlier_does_not_make_readings_differ() {
        assert!(spread(&[1.0, 1.01, 9.0, 1.0, 1.02]) < SPREAD);
        assert!(spread(&[1.0, 2.0, 3.0]) > SPREAD);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
