//! `ls` and `stat`: show the content of the tier.

use crate::Outcome;
use crate::cli::{Global, LsArgs, PathsArgs};
use crate::files::list_files;
use crate::out::{complain, name, no_agent, print};
use forebay_agent::units::Human;
use forebay_client::{Client, EXTENT_BYTES};
use forebay_pfs::layout::Layout;
use serde::Serialize;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Serialize)]
struct Row {
    path: String,
    mount: String,
    size_bytes: u64,
    resident_bytes: u64,
    pinned: bool,
    stale: bool,
}

/// Lists files and how much of them is resident.
pub fn ls(global: &Global, args: &LsArgs) -> Outcome {
    let client = global.client();
    let (rows, code) = if args.paths.is_empty() {
        let files = client.admin().list().map_err(|e| no_agent(global, &e))?;
        let rows = files.into_iter().map(|f| Row {
            path: name(&f.path),
            mount: f.mount,
            size_bytes: f.version.size,
            resident_bytes: f.resident_bytes.min(f.version.size),
            pinned: f.pinned,
            stale: f.stale,
        });
        (rows.collect(), ExitCode::SUCCESS)
    } else {
        named(global, &client, &args.paths, args.recursive)?
    };
    print(global, &rows, |out| write_rows(&rows, out))?;
    Ok(code)
}

/// Rows for the files the user named; every one is opened with the user's own rights.
fn named(
    global: &Global,
    client: &Client,
    paths: &[PathBuf],
    recursive: bool,
) -> Result<(Vec<Row>, ExitCode), String> {
    client.admin().status().map_err(|e| no_agent(global, &e))?;
    let (files, mut failures) = list_files(paths, recursive);
    let mut rows = Vec::new();
    for path in files {
        match client.open(&path) {
            Ok(file) => rows.push(Row {
                path: name(path.as_os_str().as_bytes()),
                mount: mount_label(client, &path),
                size_bytes: file.size().unwrap_or(0),
                resident_bytes: file.resident_bytes(),
                pinned: file.is_pinned(),
                stale: false,
            }),
            Err(e) => failures.push((path, e)),
        }
    }
    Ok((rows, complain(&failures)))
}

fn mount_label(client: &Client, path: &Path) -> String {
    let Ok(absolute) = path.canonicalize() else { return String::new() };
    let mounts = client.mounts();
    let on = mounts.iter().filter(|m| absolute.as_os_str().as_bytes().starts_with(&m.root));
    on.max_by_key(|m| m.root.len()).map(|m| m.label.clone()).unwrap_or_default()
}

fn write_rows(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let mut total = 0;
    for row in rows {
        total += row.resident_bytes;
        let share = (row.resident_bytes * 100).checked_div(row.size_bytes).unwrap_or(100);
        let marks = [(row.pinned, " pinned"), (row.stale, " stale")];
        let marks: String = marks.iter().filter(|m| m.0).map(|m| m.1).collect();
        writeln!(
            out,
            "{:>10} {share:>3} % of {:>10}  {}{marks}",
            Human(row.resident_bytes).to_string(),
            Human(row.size_bytes).to_string(),
            row.path
        )?;
    }
    writeln!(out, "{:>10} in {} files", Human(total).to_string(), rows.len())
}

#[derive(Serialize)]
struct FileReport {
    path: String,
    size_bytes: u64,
    resident_bytes: u64,
    pinned: bool,
    tiered: bool,
    stripe_bytes: Option<u64>,
    extents: Vec<ExtentReport>,
}

#[derive(Serialize)]
struct ExtentReport {
    offset: u64,
    bytes: u64,
    resident_bytes: u64,
    /// The storage servers of the extent's bytes, where the PFS reports them; several if it is
    /// striped over them.
    servers: Vec<String>,
}

/// Shows files extent by extent.
pub fn stat(global: &Global, args: &PathsArgs) -> Outcome {
    let client = global.client();
    client.admin().status().map_err(|e| no_agent(global, &e))?;
    let (files, mut failures) = list_files(&args.paths, args.recursive);
    let mut reports = Vec::new();
    for path in files {
        match client.open(&path).and_then(|file| report(&file)) {
            Ok(report) => reports.push(report),
            Err(e) => failures.push((path, e)),
        }
    }
    let code = complain(&failures);
    print(global, &reports, |out| reports.iter().try_for_each(|r| r.write(out)))?;
    Ok(code)
}

fn report(file: &forebay_client::File) -> io::Result<FileReport> {
    let layout = file.layout();
    let extents = file.extents().into_iter().enumerate().map(|(i, (bytes, resident_bytes))| {
        let offset = i as u64 * EXTENT_BYTES;
        let servers = layout.as_ref().map(|l| servers(l, offset, bytes)).unwrap_or_default();
        ExtentReport { offset, bytes, resident_bytes, servers }
    });
    Ok(FileReport {
        path: name(file.path().as_os_str().as_bytes()),
        size_bytes: file.size()?,
        resident_bytes: file.resident_bytes(),
        pinned: file.is_pinned(),
        tiered: file.is_tiered(),
        stripe_bytes: layout.as_ref().map(|l| l.stripe_bytes),
        extents: extents.collect(),
    })
}

/// The servers of `bytes` from `offset` on, each once, in the order of its first stripe.
fn servers(layout: &Layout, offset: u64, bytes: u64) -> Vec<String> {
    let step = layout.stripe_bytes.max(1);
    let first = offset / step * step;
    // One stripe on each server comes before the first server's second.
    let stripes = bytes.saturating_add(offset - first).div_ceil(step).min(layout.servers.len() as u64);
    let mut names: Vec<String> = Vec::new();
    for stripe in 0..stripes {
        match layout.server_of(first.saturating_add(stripe.saturating_mul(step))) {
            Some(name) if !names.iter().any(|known| known == name) => names.push(name.to_owned()),
            _ => {}
        }
    }
    names
}

impl FileReport {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.path)?;
        if !self.tiered {
            return writeln!(out, "  not on a file system that an agent serves: programs read it directly");
        }
        let pinned = if self.pinned { ", pinned" } else { "" };
        writeln!(out, "  {} of {} resident{pinned}", Human(self.resident_bytes), Human(self.size_bytes))?;
        if let Some(stripe) = self.stripe_bytes {
            writeln!(out, "  striped by {}", Human(stripe))?;
        }
        for extent in &self.extents {
            let server = match extent.servers.as_slice() {
                [] => String::new(),
                names => format!("  from {}", names.join(", ")),
            };
            let (resident, bytes) =
                (Human(extent.resident_bytes).to_string(), Human(extent.bytes).to_string());
            writeln!(out, "  at {:>14}: {resident:>10} of {bytes:>10}{server}", extent.offset)?;
        }
        Ok(())
    }
}
