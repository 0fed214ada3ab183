//! `load --nodes`: loads files into the memory of many nodes, each byte of the PFS once.

use crate::Outcome;
use crate::cli::{Global, LoadArgs};
use crate::files::for_each_file;
use crate::out::{no_agent, print, with_path};
use forebay_agent::units::Human;
use forebay_client::{BroadcastProgress, Client};
use forebay_wire::{FileRef, NodeInfo};
use indicatif::ProgressBar;
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(100);

/// How long a coordinator may stay silent before it counts as down.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Report {
    nodes: usize,
    files: usize,
    failed_files: usize,
    bytes_fetched: u64,
    bytes_resident: u64,
    bytes_failed: u64,
    seconds: f64,
    /// Nodes that have left the cluster meanwhile.
    left: Vec<String>,
    cancelled: bool,
}

/// Loads what the user named on the nodes that the user named.
pub fn load(global: &Global, args: &LoadArgs) -> Outcome {
    let client = global.client();
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(|e| e.to_string())?;
    }
    let members = client.members().map_err(|e| no_agent(global, &e))?.nodes;
    let nodes = chosen(members, &args.nodes)?;
    let (files, failed_files) = files_of(&client, args);
    let (started, count) = (Instant::now(), files.len());
    let bar = crate::load::bar(args.quiet);
    bar.set_message(format!("{} nodes", nodes.len()));
    let (progress, left) = match files.is_empty() {
        true => Default::default(),
        false => wait(&client, &files, &nodes, &bar, &interrupted).map_err(|e| no_agent(global, &e))?,
    };
    bar.finish_and_clear();
    let report = Report {
        nodes: nodes.len() - left.len(),
        files: count,
        failed_files,
        bytes_fetched: progress.fetched_bytes,
        bytes_resident: progress.resident_bytes,
        bytes_failed: progress.failed_bytes,
        seconds: started.elapsed().as_secs_f64(),
        left,
        cancelled: !progress.is_done(),
    };
    print(global, &report, |out| report.write(out))?;
    Ok(match &report {
        report if report.cancelled => ExitCode::from(130),
        report if report.failed_files > 0 || report.bytes_failed > 0 || !report.left.is_empty() => {
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    })
}

fn chosen(members: Vec<NodeInfo>, names: &[String]) -> Result<Vec<NodeInfo>, String> {
    if members.is_empty() {
        return Err(
            "this agent has no coordinator, so it knows no other nodes; leave --nodes out to load files here"
                .into(),
        );
    }
    if names == ["all"] {
        return Ok(members);
    }
    let known: Vec<&str> = members.iter().map(|node| node.name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no node is called {unknown}; the nodes are {}", known.join(", ")));
    }
    Ok(members.into_iter().filter(|node| names.contains(&node.name)).collect())
}

/// The files that the user named, and how many cannot be loaded, which are printed.
fn files_of(client: &Client, args: &LoadArgs) -> (Vec<FileRef>, usize) {
    let mut files = Vec::new();
    let failed = std::cell::Cell::new(0);
    let fail = |path: &std::path::Path, e: &io::Error| {
        failed.set(failed.get() + 1);
        eprintln!("forebay load: {}", with_path(path, e));
    };
    let Ok(()) = for_each_file(
        &args.paths,
        true,
        &mut |path| {
            match client.file_ref(path) {
                Ok(file) if file.version.size > 0 => files.push(file),
                Ok(_) => {}
                Err(e) => fail(path, &e),
            }
            Ok::<(), Infallible>(())
        },
        &mut |path, e| fail(path, &e),
    );
    (files, failed.get())
}

/// Waits for the end. If nodes leave the cluster, the load begins again on the others, which have
/// most of it by then; their names are returned.
fn wait(
    client: &Client,
    files: &[FileRef],
    nodes: &[NodeInfo],
    bar: &ProgressBar,
    interrupted: &AtomicBool,
) -> io::Result<(BroadcastProgress, Vec<String>)> {
    let mut nodes = nodes.to_vec();
    let mut left = Vec::new();
    let mut broadcast = client.broadcast(files.to_vec(), &nodes)?;
    let (mut last, mut heard) = (BroadcastProgress::default(), Instant::now());
    loop {
        let members = client.members()?.nodes;
        let is_there = |node: &NodeInfo| members.iter().any(|member| member.name == node.name);
        if !nodes.iter().all(is_there) {
            left.extend(nodes.iter().filter(|node| !is_there(node)).map(|node| node.name.clone()));
            nodes.retain(is_there);
            broadcast = client.broadcast(files.to_vec(), &nodes)?;
            last = BroadcastProgress::default();
        }
        match broadcast.progress() {
            Ok(Some(progress)) => (last, heard) = (progress, Instant::now()),
            Ok(None) | Err(_) if heard.elapsed() < PATIENCE => {}
            Ok(None) => {
                return Err(io::Error::other(
                    "the coordinator does not know of the load: it is down, or was restarted",
                ));
            }
            Err(e) => return Err(e),
        }
        bar.set_length(last.bytes);
        bar.set_position(last.fetched_bytes + last.resident_bytes);
        if last.bytes > 0 && last.is_done() || interrupted.load(Ordering::Relaxed) {
            return Ok((last, left));
        }
        std::thread::sleep(POLL);
    }
}

impl Report {
    fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let all = self.bytes_fetched + self.bytes_resident;
        let what = if self.cancelled { "cancelled after" } else { "loaded" };
        writeln!(
            out,
            "{what} {} files on {} nodes, {} fetched, {} resident before, in {:.2} s ({}/s in all)",
            self.files,
            self.nodes,
            Human(self.bytes_fetched),
            Human(self.bytes_resident),
            self.seconds,
            Human((all as f64 / self.seconds.max(1e-9)) as u64),
        )?;
        for node in &self.left {
            writeln!(out, "node {node} has left the cluster during the load")?;
        }
        if self.bytes_failed > 0 {
            writeln!(
                out,
                "{} were not loaded: a file has changed or is open for writing, a node's agent may not open it, or its tier has no \
                 room; the agents' logs say which",
                Human(self.bytes_failed)
            )?;
        }
        Ok(())
    }
}
