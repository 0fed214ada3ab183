//! Processes: which one, whether it is alive, which are in a namespace, and how to end them.
//!
//! A process is identified by its number and its start time, as numbers are used again. Which
//! processes belong to a lab is asked of the kernel: those in one of its network namespaces, see
//! [`members`].

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A process, and not another one that got its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process that has this number now; `None` if there is none, or only its remains.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&String::from_utf8_lossy(&stat))?;
        (state != 'Z' && state != 'X').then_some(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal, unless the process has gone.
    pub fn signal(self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid as i32)
        {
            // It may have ended just now, which is as good.
            let _ = kill_process(pid, signal);
        }
    }

    /// The session it belongs to; `None` if it has gone.
    pub fn session(self) -> Option<u32> {
        let session = rustix::process::getsid(Pid::from_raw(self.pid as i32)).ok()?;
        u32::try_from(session.as_raw_nonzero().get()).ok()
    }

    /// Its program's name, for messages.
    pub fn name(self) -> String {
        std::fs::read(format!("/proc/{}/comm", self.pid))
            .map_or_else(|_| "?".to_owned(), |name| String::from_utf8_lossy(&name).trim().to_owned())
    }
}

/// Parses state and start time. The name before them may hold anything, including brackets and
/// blanks.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    // Field 22 of proc(5); the state is field 3.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A namespace, as the kernel distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespaceId {
    device: u64,
    inode: u64,
}

impl NamespaceId {
    /// The namespace behind a file such as `/proc/1/ns/net` or `/run/netns/NAME`.
    pub fn of(path: impl AsRef<Path>) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }

    /// The network namespace of a process.
    pub fn net_of(pid: u32) -> Option<Self> {
        Self::of(format!("/proc/{pid}/ns/net"))
    }

    /// The pid namespace of a process: another than ours in most containers.
    pub fn pid_of(pid: u32) -> Option<Self> {
        Self::of(format!("/proc/{pid}/ns/pid"))
    }
}

/// The signs by which a process is recognised as a lab's.
#[derive(Debug, Default)]
pub struct Signs {
    /// It is in one of these network namespaces.
    pub namespaces: BTreeSet<NamespaceId>,
    /// It is in another network namespace than ours, and its environment has this line and the
    /// variable below: a node whose name in `/run/netns` has been removed. It must be in our own
    /// pid namespace: a container may have inherited the environment, or have a lab of its own with
    /// the same name.
    pub tag: String,
    /// The variable that accompanies the tag.
    pub variable: &'static str,
    /// It is one of these: some processes overwrite their environment.
    pub pids: BTreeSet<u32>,
}

/// All processes with one of the signs, except this one.
pub fn members(signs: &Signs) -> BTreeSet<ProcessId> {
    members_called(signs, |_| true)
}

/// The processes of [`members`] with a name that is `wanted`. Nothing but the name is looked at for
/// the others: the kernel shows nobody the state of a process that has hung in the middle of an
/// `exec`.
pub fn members_called(signs: &Signs, wanted: impl Fn(&str) -> bool) -> BTreeSet<ProcessId> {
    pids_called(signs, wanted).into_iter().filter_map(ProcessId::of).collect()
}

/// Numbers of [`members_called`], without a look at the state of any process: such a look can wait
/// for a file system.
pub fn pids_called(signs: &Signs, wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let ours = NamespaceId::of("/proc/self/ns/net");
    let our_pids = NamespaceId::of("/proc/self/ns/pid");
    let is_among_ours = |pid| our_pids.is_some() && NamespaceId::pid_of(pid) == our_pids;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if !std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| wanted(name.trim())) {
            continue;
        }
        let Some(net) = NamespaceId::net_of(pid).filter(|_| pid != std::process::id()) else { continue };
        let is_sure = signs.namespaces.contains(&net) || signs.pids.contains(&pid);
        if is_sure || (Some(net) != ours && is_among_ours(pid) && has_tag(pid, signs)) {
            found.push(pid);
        }
    }
    found
}

fn has_tag(pid: u32, signs: &Signs) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| is_tagged(&environ, signs))
}

fn is_tagged(environ: &[u8], signs: &Signs) -> bool {
    let (tag, variable) = (signs.tag.as_bytes(), signs.variable.as_bytes());
    let lines = || environ.split(|b| *b == 0);
    let names_node = |line: &[u8]| line.strip_prefix(variable).is_some_and(|value| value.starts_with(b"="));
    lines().any(|line| line == tag) && lines().any(names_node)
}

/// Value of a variable in the environment that a process was started with.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut lines = environ.split(|b| *b == 0).filter_map(|line| std::str::from_utf8(line).ok());
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

/// Waits until `done`, checking repeatedly, for at most `patience`. Returns whether it became true.
pub fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(lab: &str) -> Signs {
        Signs { tag: format!("FOREBAY_LAB={lab}"), variable: "FOREBAY_LAB_NODE", ..Signs::default() }
    }

    #[test]
    fn a_process_is_distinguished_from_a_later_one_of_the_same_number() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { start_ticks: me.start_ticks + 1, ..me }.is_alive());
        assert_eq!(ProcessId::of(u32::MAX), None);
    }

    #[test]
    fn names_with_brackets_do_not_confuse() {
        let stat = "12 (a) b) c) S 1 12 12 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3";
        assert_eq!(parse_stat(stat), Some(('S', 987_654)));
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn an_ended_child_that_nobody_has_waited_for_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(wait_until(Duration::from_secs(30), || ProcessId::of(pid).is_none()));
        child.wait().unwrap();
    }

    #[test]
    fn those_in_our_own_namespace_are_not_members_for_their_environment_alone() {
        let mut command = std::process::Command::new("sleep");
        command.arg("60").env("FOREBAY_LAB", "x").env("FOREBAY_LAB_NODE", "c1");
        let mut child = command.spawn().unwrap();
        assert!(wait_until(Duration::from_secs(30), || variable(child.id(), "FOREBAY_LAB").is_some()));
        let pid = child.id();
        let strangers = members(&tagged("x"));
        let namespaces = NamespaceId::of("/proc/self/ns/net").into_iter().collect();
        let ours = members(&Signs { namespaces, ..Signs::default() });
        let known = members(&Signs { pids: [pid].into(), ..Signs::default() });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(strangers.iter().all(|p| p.pid != pid), "{strangers:?}");
        assert!(ours.iter().any(|p| p.pid == pid), "{ours:?}");
        assert!(known.iter().map(|p| p.pid).eq([pid]), "{known:?}");
    }

    #[test]
    fn the_name_of_the_lab_alone_is_no_sign_without_that_of_the_node() {
        let signs = tagged("x");
        assert!(is_tagged(b"A=1\0FOREBAY_LAB=x\0FOREBAY_LAB_DIR=/d\0FOREBAY_LAB_NODE=c1\0", &signs));
        for stranger in [
            &b"FOREBAY_LAB=x\0FOREBAY_LAB_DIR=/d\0"[..],
            b"FOREBAY_LAB=x\0FOREBAY_LAB_NODES=c1\0",
            b"FOREBAY_LAB=xy\0FOREBAY_LAB_NODE=c1\0",
            b"FOREBAY_LAB_NODE=c1\0",
            b"",
        ] {
            assert!(!is_tagged(stranger, &signs), "{}", String::from_utf8_lossy(stranger));
        }
    }

    /// A container that was given our environment is not ours to end.
    #[test]
    fn those_in_another_pid_namespace_are_not_members_for_their_environment_alone() {
        let unshare = |program: &[&str]| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--map-root-user", "--net", "--pid", "--fork", "--kill-child"]).args(program);
            command
        };
        if !unshare(&["true"]).output().is_ok_and(|out| out.status.success()) {
            return eprintln!("left out: namespaces cannot be made here");
        }
        let lab = format!("t{}", std::process::id());
        let mut command = unshare(&["sleep", "60"]);
        let mut child = command.env("FOREBAY_LAB", &lab).env("FOREBAY_LAB_NODE", "c1").spawn().unwrap();
        let (outer, mut inner) = (child.id(), None);
        let came = wait_until(Duration::from_secs(30), || {
            let entries = std::fs::read_dir("/proc").unwrap().flatten();
            let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            inner = pids.find(|pid| {
                variable(*pid, "FOREBAY_LAB").as_ref() == Some(&lab)
                    && ProcessId::of(*pid).is_some_and(|process| process.name() == "sleep")
            });
            inner.is_some()
        });
        let found: Vec<u32> = members(&tagged(&lab)).iter().map(|p| p.pid).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(came, "no process was seen in the namespace");
        // The process that made the namespace is not in it itself.
        assert_eq!(found, [outer], "{inner:?} is in another");
    }
}
