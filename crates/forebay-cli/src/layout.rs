//! `layout`: how the file system has laid out files on its servers. Needs no agent.

use crate::Outcome;
use crate::cli::{Global, PathsArgs};
use crate::files::list_files;
use crate::out::{complain, name, print};
use forebay_agent::units::Human;
use forebay_pfs::Traits;
use forebay_pfs::layout::{Layout, probe_paths, probe_servers};
use serde::Serialize;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a tool of the file system may take.
const TOOL_TIME: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Report {
    path: String,
    /// `None`: the file is on one server as a whole.
    stripe_bytes: Option<u64>,
    /// In the order of the stripes, those that are known.
    servers: Vec<String>,
    is_reported: bool,
}

/// Shows the layout of files.
pub fn layout(global: &Global, args: &PathsArgs) -> Outcome {
    let (files, mut failures) = list_files(&args.paths, args.recursive);
    let mut reports = Vec::new();
    for path in files {
        match of_file(&path) {
            Ok(layout) => reports.push(report(&path, layout)),
            Err(e) => failures.push((path, e)),
        }
    }
    let code = complain(&failures);
    print(global, &reports, |out| reports.iter().try_for_each(|report| report.write(out)))?;
    Ok(code)
}

fn of_file(path: &Path) -> io::Result<Option<Layout>> {
    let real: PathBuf = path.canonicalize()?;
    if Traits::of(&real).layout_by_path {
        return Ok(probe_paths(&[&real], Instant::now() + TOOL_TIME).pop().flatten());
    }
    Ok(probe_servers(std::fs::File::open(path)?.as_fd()))
}

fn report(path: &Path, layout: Option<Layout>) -> Report {
    let is_reported = layout.is_some();
    let (stripe_bytes, mut servers, first) =
        layout.map_or((None, Vec::new(), 0), |l| (Some(l.stripe_bytes), l.servers, l.first_server));
    let by = first.checked_rem(servers.len()).unwrap_or(0);
    servers.rotate_left(by);
    let stripe_bytes = stripe_bytes.filter(|bytes| ![0, u64::MAX].contains(bytes));
    Report { path: name(path.as_os_str().as_bytes()), stripe_bytes, servers, is_reported }
}

impl Report {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.path)?;
        if !self.is_reported {
            return writeln!(out, "  the file system does not report its layout");
        }
        match self.stripe_bytes {
            Some(bytes) => writeln!(out, "  stripes of {}", Human(bytes))?,
            None => writeln!(out, "  not striped")?,
        }
        match self.servers.is_empty() {
            true => writeln!(out, "  on servers that the file system does not name, or has not chosen yet"),
            false => {
                let named = |server: &String| if server.is_empty() { "?".to_owned() } else { server.clone() };
                let names: Vec<String> = self.servers.iter().map(named).collect();
                writeln!(out, "  on {}", names.join(", "))
            }
        }
    }
}
