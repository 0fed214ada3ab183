//! Nodes: making one, and working inside it.
//!
//! A node is a network, a mount and a host-name namespace. The network namespace has a name below
//! `/run/netns`, which alone would keep it alive; the other two live as long as a process is in
//! them, so each node has a *holder*, a `sleep` that is in all three. A process that wants to get
//! in follows the holder.
//!
//! Mounts of the host come into a node as they are made, but nothing a node mounts is seen outside
//! (the propagation is `slave`): when a node's last process is gone, so are its mounts, whatever
//! state they were in.
//!
//! Work inside is done by a thread that goes there and ends afterwards. A single thread can enter
//! alone, and what it starts is inside as well; so errors come back as values and no helper program
//! is needed.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
    move_into_thread_name_spaces,
};

use super::plan::Place;
use super::process::ProcessId;
use super::{cpu, store};
use crate::LabError;

/// Variable with the lab's name in the environment of every process of a lab.
pub const LAB_VARIABLE: &str = "FOREBAY_LAB";

/// Variable with the lab's directory.
pub const DIR_VARIABLE: &str = "FOREBAY_LAB_DIR";

/// Variable with the node's name.
pub const NODE_VARIABLE: &str = "FOREBAY_LAB_NODE";

/// The program that holds a node's namespaces open.
pub const HOLDER: &str = "sleep";

/// Where the name of a network namespace is.
pub fn namespace_path(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Makes the mount and host-name namespaces of a node whose network namespace exists already, with
/// storage of `store_bytes` if it is a server. Returns the holder, a child.
///
/// # Errors
/// Which step failed and why.
pub fn hold(place: &Place, node: &str, store_bytes: Option<u64>) -> Result<Child, LabError> {
    let mut command = Command::new(HOLDER);
    // Not our own output: a reader of that would wait for the holder's end.
    command.arg("infinity").current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    in_thread(|| {
        enter_net(&place.namespace(node))?;
        leave(UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::FS)
            .map_err(|e| LabError::io(format!("cannot make namespaces for node {node}"), e))?;
        furnish(place, node)?;
        if let Some(bytes) = store_bytes {
            store::attach(place, node, bytes)?;
        }
        spawn(place, node, command, None)
    })
}

/// Sets what is different on each node: host name, table of names, own directory.
fn furnish(place: &Place, node: &str) -> Result<(), LabError> {
    let failed = |what: &str, e: rustix::io::Errno| LabError::io(format!("cannot {what} of node {node}"), e);
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|e| failed("cut off the mounts", e))?;
    rustix::system::sethostname(node.as_bytes()).map_err(|e| failed("set the host name", e))?;
    mount_bind(place.hosts_file(), "/etc/hosts").map_err(|e| failed("replace /etc/hosts", e))?;
    mount_bind(place.own_files(node), place.own()).map_err(|e| failed("bind the own directory", e))
}

/// Runs `work` in a thread inside the node that `holder` holds.
///
/// # Errors
/// If the node is gone, or the error of `work`.
pub fn inside<T: Send>(
    holder: ProcessId,
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    in_thread(|| {
        enter(holder)?;
        work()
    })
}

/// Whether somebody listens on a TCP port of a node, and from how many addresses there are
/// connections to it.
///
/// # Errors
/// If the node's connections cannot be listed.
pub fn connections(holder: ProcessId, port: u16) -> Result<(bool, usize), LabError> {
    inside(holder, || {
        let read = |table: &str| fs::read_to_string(format!("/proc/thread-self/net/{table}"));
        let text = read("tcp").map_err(|e| LabError::io("cannot read /proc/thread-self/net/tcp", e))?;
        // Without IPv6 there is no second table.
        Ok(parse_connections(&(text + &read("tcp6").unwrap_or_default()), port))
    })
}

fn parse_connections(text: &str, port: u16) -> (bool, usize) {
    let local = format!(":{port:04X}");
    let (mut listens, mut peers) = (false, Vec::new());
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.get(1).is_some_and(|address| address.ends_with(&local)) {
            match fields.get(3) {
                Some(&"0A") => listens = true,
                Some(&"01") => peers.extend(fields[2].split(':').next()),
                _ => {}
            }
        }
    }
    peers.sort_unstable();
    peers.dedup();
    (listens, peers.len())
}

/// Runs `work` in a thread inside a network namespace only.
///
/// # Errors
/// If the namespace is gone, or the error of `work`.
pub fn inside_net<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    in_thread(|| {
        enter_net(namespace)?;
        work()
    })
}

pub(super) fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, LabError> + Send) -> Result<T, LabError> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Takes the calling thread into a node, for good. Its working directory is `/` afterwards.
///
/// # Errors
/// If the node is gone.
pub fn enter(holder: ProcessId) -> Result<(), LabError> {
    let gone = |e| LabError::io("the node is gone; `forebay lab down` and `up` make a new lab", e);
    let pid = Pid::from_raw(holder.pid as i32).ok_or_else(|| gone(rustix::io::Errno::SRCH))?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(gone)?;
    // After the handle is open: from now on the number cannot be given to another.
    if !holder.is_alive() {
        return Err(gone(rustix::io::Errno::SRCH));
    }
    // A thread that shares its working directory with others may not change the mounts it sees.
    leave(UnshareFlags::FS).map_err(gone)?;
    let all = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    move_into_thread_name_spaces(handle.as_fd(), all | ThreadNameSpaceType::NETWORK)
        .map_err(|e| LabError::io("cannot enter the node's namespaces", e))
}

fn enter_net(namespace: &str) -> Result<(), LabError> {
    let failed = |e| LabError::io(format!("cannot enter network namespace {namespace}"), e);
    let file = File::open(namespace_path(namespace)).map_err(failed)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| failed(e.into()))
}

pub(super) fn leave(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the flags leave file descriptors and memory shared; working directory, mounts and
    // host name of this thread become its own, on which no other code of this process relies.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Starts a service inside a node, in its own session, so that a Ctrl-C meant for `lab up` does not
/// reach it. Its output goes to its log; `cpu_door` leads to the cores it may use, if those are
/// limited.
///
/// # Errors
/// If it cannot be started.
pub fn start(
    place: &Place,
    node: &str,
    holder: ProcessId,
    service: &str,
    mut command: Command,
    cpu_door: Option<File>,
) -> Result<Child, LabError> {
    let path = place.log(service);
    let failed = |e| LabError::io(format!("cannot open the log {}", path.display()), e);
    let log = File::options().create(true).append(true).open(&path).map_err(failed)?;
    command.stdout(log.try_clone().map_err(failed)?).stderr(log);
    inside(holder, || spawn(place, node, command, cpu_door))
}

fn spawn(place: &Place, node: &str, mut command: Command, cpu_door: Option<File>) -> Result<Child, LabError> {
    if let Some(door) = cpu_door {
        cpu::join_as_child(&mut command, door);
    }
    command.stdin(Stdio::null()).env(LAB_VARIABLE, &place.name).env(DIR_VARIABLE, &place.dir);
    command.env(NODE_VARIABLE, node);
    // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|e| LabError::io(format!("cannot start {program} on node {node}"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_address() {
        let text = "  sl  local_address rem_address   st tx_queue\n\
             0: 00000000:24CC 00000000:0000 0A 00000000:00000000\n\
             1: 02004D0A:24CC 0B004D0A:9000 01 00000000:00000000\n\
             2: 02004D0A:24CC 0B004D0A:9002 01 00000000:00000000\n\
             3: 02004D0A:24CC 0C004D0A:9000 01 00000000:00000000\n\
             4: 02004D0A:24CC 0D004D0A:9000 06 00000000:00000000\n\
             5: 02004D0A:9000 0E004D0A:24CC 01 00000000:00000000\n";
        assert_eq!(parse_connections(text, 9420), (true, 2));
        assert_eq!(parse_connections(text, 9421), (false, 0));
    }
}
