//! `load`: loads files into the tier, with true progress.
//!
//! The walk and the load run at the same time, so a tree of a million files starts immediately.
//! Ctrl-C cancels: what is fetched stays, what is not yet fetched is forgotten. At the end the
//! agent has seen every page of every file in the tier, all of the version the file has; with
//! `--verify` every byte is compared as well.

use crate::Outcome;
use crate::cli::{Global, LoadArgs};
use crate::files::for_each_file;
use crate::out::{no_agent, print, with_path};
use crate::served::why_unserved;
use crate::verify::{Compared, compare};
use forebay_agent::units::Human;
use forebay_client::{Client, Load, LoadFailure};
use forebay_wire::LoadProgress;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Failures printed one by one; the rest is counted.
const SHOWN_FAILURES: usize = 20;

/// How long a load waits before it prints what it waits for, where there is no bar.
const WAITS_LONG: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Report {
    files: u64,
    /// The files that are in the tier now.
    #[serde(skip)]
    loaded: u64,
    failed: u64,
    bytes_fetched: u64,
    bytes_resident: u64,
    seconds: f64,
    cancelled: bool,
    verified_bytes: Option<u64>,
    /// Bytes of the verified files that have left the tier since they were loaded: not compared.
    not_in_tier_bytes: Option<u64>,
    failures: Vec<(String, String)>,
}

/// Loads what the user named.
pub fn load(global: &Global, args: &LoadArgs) -> Outcome {
    let client = global.client();
    let mut job = Job::begin(&client, args).map_err(|e| no_agent(global, &e))?;
    let started = Instant::now();
    let fed = job.feed(args);
    let ended = fed.and_then(|()| job.wait());
    job.bar.finish_and_clear();
    let not_loaded = job.load.failures().len() as u64;
    let mut report = match ended {
        Ok(()) => job.report(started.elapsed(), false),
        Err(Ended::Cancelled) => {
            job.progress = job.load.cancel().unwrap_or(job.progress);
            let failures = std::mem::take(&mut job.failures);
            report_of(&job.progress, failures, started.elapsed(), true)
        }
        Err(Ended::Agent(e)) => return Err(no_agent(global, &e)),
    };
    report.loaded = report.files.saturating_sub(not_loaded);
    if args.verify && !report.cancelled {
        verify_all(&client, &job.paths, &mut report);
    }
    print(global, &report, |out| report.write(out))?;
    Ok(match (report.cancelled, report.failed) {
        (true, _) => ExitCode::from(130),
        (false, 0) => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    })
}

/// The progress bar of a load.
pub fn bar(is_quiet: bool) -> ProgressBar {
    let bar = if is_quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {msg} {eta}";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

enum Ended {
    Cancelled,
    Agent(io::Error),
}

struct Job {
    load: Load,
    client: Client,
    pin: bool,
    keep_paths: bool,
    paths: Vec<PathBuf>,
    failures: Vec<LoadFailure>,
    added: u64,
    /// Sum of the lengths of the files added.
    bytes: u64,
    progress: LoadProgress,
    interrupted: Arc<AtomicBool>,
    bar: ProgressBar,
    /// Since when it waits for something other than bytes.
    waits_since: Option<Instant>,
    /// What it waits for has been printed, or a bar shows it, or nobody wants to know.
    said: bool,
    last_poll: Instant,
}

impl Job {
    fn begin(client: &Client, args: &LoadArgs) -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        let bar = bar(args.quiet);
        let said = args.quiet || !bar.is_hidden();
        Ok(Job {
            load: client.load(args.rate)?,
            client: client.clone(),
            pin: args.pin,
            keep_paths: args.verify,
            paths: Vec::new(),
            failures: Vec::new(),
            added: 0,
            bytes: 0,
            progress: LoadProgress::default(),
            interrupted,
            bar,
            waits_since: None,
            said,
            last_poll: Instant::now(),
        })
    }

    fn feed(&mut self, args: &LoadArgs) -> Result<(), Ended> {
        let mounts = self.client.admin().status().map_err(Ended::Agent)?.mounts;
        let (paths, refused): (Vec<_>, Vec<_>) = args
            .paths
            .iter()
            .map(|path| (path.clone(), why_unserved(&mounts, path)))
            .partition(|(_, why)| why.is_none());
        let paths: Vec<PathBuf> = paths.into_iter().map(|(path, _)| path).collect();
        self.failures.extend(refused.into_iter().map(|(path, why)| LoadFailure {
            path,
            errno: libc::ENODEV,
            message: why.unwrap_or_default(),
        }));
        let mut unreadable = Vec::new();
        for_each_file(&paths, true, &mut |path| self.add(path), &mut |path, e| {
            unreadable.push(LoadFailure {
                path: path.to_owned(),
                errno: e.raw_os_error().unwrap_or(0),
                message: e.to_string(),
            });
        })?;
        self.failures.append(&mut unreadable);
        self.load.flush().map_err(Ended::Agent)
    }

    fn add(&mut self, path: &Path) -> Result<(), Ended> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Ended::Cancelled);
        }
        if self.pin
            && let Err(e) = self.client.admin().pin(path, true)
        {
            self.failures.push(LoadFailure {
                path: path.to_owned(),
                errno: e.raw_os_error().unwrap_or(0),
                message: format!("cannot be pinned: {e}"),
            });
        }
        self.bytes += std::fs::metadata(path).map_or(0, |m| m.len());
        self.added += 1;
        if self.keep_paths {
            self.paths.push(path.to_owned());
        }
        self.load.add(path).map_err(Ended::Agent)?;
        if self.last_poll.elapsed() > Duration::from_millis(200) {
            self.poll(Duration::ZERO)?;
        }
        Ok(())
    }

    fn poll(&mut self, limit: Duration) -> Result<(), Ended> {
        self.progress = self.load.poll(limit).map_err(Ended::Agent)?;
        self.last_poll = Instant::now();
        self.bar.set_length(self.bytes);
        self.bar.set_position(self.progress.bytes_fetched + self.progress.bytes_resident);
        let waits = match self.progress.waits_for.as_str() {
            "" => String::new(),
            what => format!(", waiting for {what}"),
        };
        let message = format!("{}/{} files{waits}", self.progress.files_done, self.added);
        if waits.is_empty() {
            self.waits_since = None;
        } else if self.waits_since.get_or_insert_with(Instant::now).elapsed() > WAITS_LONG && !self.said {
            self.said = true;
            eprintln!("forebay load: {message}");
        }
        self.bar.set_message(message);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Ended> {
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Ended::Cancelled);
            }
            self.poll(Duration::from_millis(200))?;
            if self.progress.idle {
                return Ok(());
            }
        }
    }

    fn report(&mut self, elapsed: Duration, cancelled: bool) -> Report {
        let mut failures = std::mem::take(&mut self.failures);
        failures.extend_from_slice(self.load.failures());
        report_of(&self.progress, failures, elapsed, cancelled)
    }
}

fn report_of(
    progress: &LoadProgress,
    failures: Vec<LoadFailure>,
    elapsed: Duration,
    cancelled: bool,
) -> Report {
    Report {
        files: progress.files_done,
        loaded: 0,
        failed: failures.len() as u64,
        bytes_fetched: progress.bytes_fetched,
        bytes_resident: progress.bytes_resident,
        seconds: elapsed.as_secs_f64(),
        cancelled,
        verified_bytes: None,
        not_in_tier_bytes: None,
        failures: failures.into_iter().map(|f| (f.path.display().to_string(), f.message)).collect(),
    }
}

fn verify_all(client: &Client, paths: &[PathBuf], report: &mut Report) {
    let mut verified = Compared::default();
    for path in paths {
        match compare(client, path) {
            Ok(compared) => verified += compared,
            Err(e) => {
                report.failed += 1;
                report.failures.push((path.display().to_string(), e));
            }
        }
    }
    report.verified_bytes = Some(verified.bytes);
    report.not_in_tier_bytes = Some(verified.absent_bytes);
}

impl Report {
    fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for (path, message) in self.failures.iter().take(SHOWN_FAILURES) {
            writeln!(out, "{}", with_path(Path::new(path), message))?;
        }
        if self.failures.len() > SHOWN_FAILURES {
            writeln!(out, "... and {} more failures", self.failures.len() - SHOWN_FAILURES)?;
        }
        let rate = self.bytes_fetched as f64 / self.seconds.max(1e-9);
        let what = if self.cancelled { "cancelled after" } else { "loaded" };
        writeln!(
            out,
            "{what} {} files, {} fetched, {} resident before, {} failed, in {:.2} s ({}/s)",
            self.loaded,
            Human(self.bytes_fetched),
            Human(self.bytes_resident),
            self.failed,
            self.seconds,
            Human(rate as u64),
        )?;
        match self.verified_bytes {
            Some(bytes) => {
                let absent = self.not_in_tier_bytes.unwrap_or(0);
                write!(out, "compared {} with the PFS: equal", Human(bytes))?;
                writeln!(out, "; {} not in the tier", Human(absent))
            }
            None => Ok(()),
        }
    }
}
