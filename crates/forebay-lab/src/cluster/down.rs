//! `forebay lab down`: ends whatever exists of a lab, as the kernel reports it, and deletes its
//! files.
//!
//! It does not ask whether the lab was ever complete. All processes in the lab's network namespaces
//! are asked to end and, a second later, killed; this is repeated until there are none, since a
//! process may start another meanwhile. Mounts end with the processes that see them. Then the names
//! of the namespaces and the host's link go, and last the directory, if it bears the mark of a lab.
//!
//! A process that waits for a FUSE file system cannot be killed until the kernel has given up the
//! connection to that file system. Worse, a process that closes files of it in the middle of an
//! `exec` blocks everybody that looks at it, and the client itself may be the one that looks
//! (mfsmount reads `/proc/PID/cwd`): neither ever continues, not even when killed. So `down` aborts
//! the nodes' FUSE connections first and then kills the clients, before it looks at any other
//! process. Every wait has an end, and `down` reports what is left then.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde::Serialize;

use super::plan::{self, Place};
use super::process::{
    NamespaceId, ProcessId, Signs, members, members_called, pids_called, variable, wait_until,
};
use super::space::{DIR_VARIABLE, LAB_VARIABLE, NODE_VARIABLE, namespace_path};
use super::{cpu, directory, fuse, lock, net, packages, space, state};
use crate::{LabError, mountinfo};

/// How long processes may take to end by themselves. What they hold is thrown away anyway; a
/// MooseFS master that still has clients waits for them longer than anyone wants to.
const GRACE: Duration = Duration::from_secs(1);

/// How long the kernel may take to end killed processes: their memory has to be released.
const KILL_PATIENCE: Duration = Duration::from_secs(20);

/// Programs that serve a mount of the PFS on a node.
const PFS_CLIENTS: [&str; 3] = ["mfsmount", "glusterfs", "ceph-fuse"];

/// What was done, and what could not be done.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name of the lab.
    pub lab: String,
    /// Number of processes found.
    pub processes: usize,
    /// Number of them that had to be killed.
    pub killed: usize,
    /// Number of network namespaces that were removed.
    pub namespaces: usize,
    /// The directory that was deleted.
    pub directory: Option<PathBuf>,
    /// Why its directory was left alone, if it was.
    pub kept: Option<String>,
    /// What is left, one sentence each.
    pub left: Vec<String>,
}

impl Report {
    /// # Errors
    /// If something is left, with all of it.
    pub fn complete(&self) -> Result<(), LabError> {
        if self.left.is_empty() {
            return Ok(());
        }
        Err(LabError::new(format!(
            "not all of lab `{}` could be cleared: {}",
            self.lab,
            self.left.join("; ")
        )))
    }

    fn nothing_was_there(&self) -> bool {
        self.processes == 0 && self.namespaces == 0 && self.directory.is_none() && self.kept.is_none()
    }
}

/// Ends a lab and reports the result.
///
/// # Errors
/// If another command works on it, or if something is left.
pub fn down(lab: &str, json: bool) -> Result<(), LabError> {
    plan::check_name(lab)?;
    super::root::need_root("down")?;
    if namespaces(lab)
        .iter()
        .any(|name| NamespaceId::of(namespace_path(name)) == NamespaceId::of("/proc/self/ns/net"))
    {
        return Err(LabError::new(format!("this is inside of lab `{lab}`: end it from the host")));
    }
    packages::clear_leftover();
    let lock = lock::lab(lab)?;
    let report = clear(lab)?;
    report.complete()?;
    lock.remove();
    if json {
        return crate::print::print_json(&report);
    }
    if report.nothing_was_there() {
        println!("no lab `{lab}` was up");
    } else {
        println!(
            "lab `{lab}` is down: {} processes ended ({} had to be killed), {} namespaces removed",
            report.processes, report.killed, report.namespaces
        );
    }
    if let Some(kept) = &report.kept {
        println!("{kept}");
    }
    Ok(())
}

/// Clears a lab; the caller holds its lock.
///
/// # Errors
/// If its record cannot be removed. What else is left is in the report.
pub fn clear(lab: &str) -> Result<Report, LabError> {
    let mut report = Report { lab: lab.to_owned(), ..Report::default() };
    abort_connections(lab);
    let clients = end_clients(lab);
    let directory = directory(lab);
    end_processes(lab, clients, &mut report);
    net::disconnect_host(lab);
    remove_namespaces(lab, &mut report);
    report.left.extend(cpu::remove(lab));
    if report.left.is_empty() {
        delete(lab, directory, &mut report);
    }
    if !wait_until(KILL_PATIENCE, || !net::host_link_exists(lab)) {
        report.left.push(format!("link {}", plan::host_link(lab)));
    }
    if report.left.is_empty() {
        state::remove(lab)?;
    }
    Ok(report)
}

/// Whether the kernel knows of anything that belongs to a lab.
pub fn anything_left(lab: &str) -> bool {
    !namespaces(lab).is_empty() || net::host_link_exists(lab) || cpu::exist(lab) || !processes(lab).is_empty()
}

/// Names of a lab's network namespaces.
pub fn namespaces(lab: &str) -> Vec<String> {
    let prefix = plan::prefix(lab);
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// All processes of a lab, including those that `run` has started.
pub fn processes(lab: &str) -> BTreeSet<ProcessId> {
    members(&signs(lab))
}

fn signs(lab: &str) -> Signs {
    // Both are set for whatever `up` and `run` start, even with `--free`.
    Signs {
        namespaces: spaces(lab),
        tag: format!("{LAB_VARIABLE}={lab}"),
        variable: NODE_VARIABLE,
        pids: cpu::members(lab),
    }
}

fn spaces(lab: &str) -> BTreeSet<NamespaceId> {
    let ours = NamespaceId::of("/proc/self/ns/net");
    let mut spaces: BTreeSet<_> =
        namespaces(lab).iter().filter_map(|name| NamespaceId::of(namespace_path(name))).collect();
    // A name whose namespace was never bound to it is a plain file, and no process is in it.
    spaces.retain(|space| Some(*space) != ours);
    spaces
}

/// Where the lab's files are: as the record says; otherwise as its processes know; otherwise at the
/// default place.
fn directory(lab: &str) -> PathBuf {
    if let Ok(Some(record)) = state::load(lab) {
        return record.place.dir;
    }
    let reported = processes(lab).iter().find_map(|process| variable(process.pid, DIR_VARIABLE));
    reported.map_or_else(|| plan::default_dir(lab), PathBuf::from)
}

/// Aborts the FUSE connections of the nodes, so that nobody waits for a file system any more. Where
/// that is not possible, killing the clients is mostly enough.
fn abort_connections(lab: &str) {
    let wanted = |name: &str| name == space::HOLDER || PFS_CLIENTS.contains(&name);
    if let Err(why) = fuse::abort(pids_called(&signs(lab), wanted).into_iter()) {
        eprintln!("programs may wait for the file system until its clients have ended: {why}");
    }
}

/// Kills the clients of the PFS, which releases everybody that waits for one. Returns the clients.
fn end_clients(lab: &str) -> BTreeSet<ProcessId> {
    let clients = members_called(&signs(lab), |name| PFS_CLIENTS.contains(&name));
    for client in &clients {
        client.signal(Signal::KILL);
    }
    wait_until(KILL_PATIENCE, || clients.iter().all(|client| !client.is_alive()));
    clients
}

fn end_processes(lab: &str, clients: BTreeSet<ProcessId>, report: &mut Report) {
    let mut seen = processes(lab);
    let clients_killed = clients.len();
    report.killed = clients_killed;
    let mut signalled = clients;
    signalled.extend(&seen);
    for process in &seen {
        process.signal(Signal::TERM);
    }
    if !seen.is_empty() {
        wait_until(GRACE, || seen.iter().all(|process| !process.is_alive()));
    }
    let ended = wait_until(KILL_PATIENCE, || {
        let remaining = processes(lab);
        for process in &remaining {
            signalled.insert(*process);
            process.signal(Signal::KILL);
        }
        report.killed = report.killed.max(clients_killed + remaining.len());
        seen.extend(&remaining);
        remaining.is_empty()
    });
    report.processes = signalled.len();
    if !ended {
        let names =
            processes(lab).iter().map(|p| format!("process {} ({})", p.pid, p.name())).collect::<Vec<_>>();
        report.left.extend(names);
    }
}

fn remove_namespaces(lab: &str, report: &mut Report) {
    for name in namespaces(lab) {
        let path = namespace_path(&name);
        // Fails if nothing was ever mounted under the name; then nothing needs to be done.
        let _ = unmount(&path, UnmountFlags::DETACH);
        match fs::remove_file(&path) {
            Ok(()) => report.namespaces += 1,
            Err(e) => report.left.push(format!("namespace {name}: {e}")),
        }
    }
}

/// Deletes the lab's directory, if it is a lab's and nothing is mounted below it.
fn delete(lab: &str, dir: PathBuf, report: &mut Report) {
    let place = Place { name: lab.to_owned(), dir };
    if !directory::owner(&place).is_ok_and(|owner| owner.as_deref() == Some(lab)) {
        return;
    }
    // Others can put a mark into a directory where they may write, such as `/tmp`, and direct us
    // there.
    let fault = directory::fault(&place.dir).unwrap_or_else(|e| Some(format!("cannot be examined ({e})")));
    if let Some(why) = fault {
        report.kept = Some(format!(
            "{} bears the mark of lab `{lab}`, but {why}: remove it yourself",
            place.dir.display()
        ));
        return;
    }
    if let Some(mount) = mountinfo::read().iter().find(|mount| mount.mount_point.starts_with(&place.dir)) {
        report.left.push(format!("{} is mounted, unmount it first", mount.mount_point.display()));
        return;
    }
    match remove_tree(&place.dir) {
        Ok(()) => report.directory = Some(place.dir),
        Err(e) => report.left.push(format!("directory {}: {e}", place.dir.display())),
    }
}

/// Tries again if something was put into it meanwhile; the marker goes with the rest.
fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => fs::remove_dir_all(dir),
        other => other,
    }
}
