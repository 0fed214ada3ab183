//! MooseFS 3, from Debian: a master on the head, a chunk server on each server, one copy of each
//! chunk.
//!
//! Nothing comes from `/etc/mfs`, and no daemon may fork into the background: all run in the
//! foreground of a service.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::PATIENCE;
use super::packages;
use super::plan::{HEAD, Role};
use super::service::Raising;
use super::space;
use super::state::Record;
use crate::LabError;

/// Programs and their packages.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("mfsmaster", "moosefs-master"),
    ("mfschunkserver", "moosefs-chunkserver"),
    ("mfsmount", "moosefs-client"),
    ("mfssetgoal", "moosefs-client"),
];

/// Where the master listens for chunk servers.
const CHUNKSERVER_PORT: u16 = 9420;

/// Where the master listens for clients.
const CLIENT_PORT: u16 = 9421;

/// The metadata of an empty file system in Debian's package.
const EMPTY_METADATA: &str = "/var/lib/mfs/metadata.mfs.empty";

/// The same in a package from elsewhere: version 1.5 or later treats this as an empty file system.
const EMPTY_SIGNATURE: &[u8] = b"MFSM NEW";

/// Starts the master and the chunk servers and waits until they know each other.
///
/// # Errors
/// If something does not come up.
pub fn start_servers(lab: &mut Raising) -> Result<(), LabError> {
    let failed = |e| LabError::io("cannot write the configuration of MooseFS", e);
    let master = write_master(&lab.record).map_err(failed)?;
    lab.start(HEAD, "mfsmaster", master)?;
    let head = lab.record.holder(HEAD)?;
    let listens = || space::connections(head, CLIENT_PORT).is_ok_and(|(listens, _)| listens);
    lab.wait_for("mfsmaster", PATIENCE, listens)?;
    let servers = lab.names(Role::Server);
    for server in &servers {
        let holder = lab.record.holder(server)?;
        let chunkserver = space::inside(holder, || write_chunkserver(&lab.record, server).map_err(failed))?;
        lab.start(server, &format!("mfschunkserver-{server}"), chunkserver)?;
    }
    let known =
        || space::connections(head, CHUNKSERVER_PORT).is_ok_and(|(_, joined)| joined == servers.len());
    // Whichever is missing, the master knows of it.
    lab.wait_for("mfsmaster", PATIENCE, known)
}

fn write_master(record: &Record) -> io::Result<Command> {
    let dir = record.place.server_files(HEAD);
    fs::create_dir_all(&dir)?;
    let empty = fs::read(EMPTY_METADATA).unwrap_or_else(|_| EMPTY_SIGNATURE.to_vec());
    fs::write(dir.join("metadata.mfs"), empty)?;
    fs::write(dir.join("exports.cfg"), "* / rw,alldirs,maproot=0,mingoal=1\n* . rw\n")?;
    fs::write(dir.join("topology.cfg"), "")?;
    // Chunks of deleted files go within a minute and not within five: they take this machine's
    // memory. And none is moved from server to server: it would take the bandwidth that is being
    // measured, and count as sent.
    let text = format!(
        "WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {0}\nEXPORTS_FILENAME = {0}/exports.cfg\n\
         TOPOLOGY_FILENAME = {0}/topology.cfg\nCHUNKS_LOOP_MIN_TIME = 60\nCHUNKS_SOFT_DEL_LIMIT = 1000\n\
         CHUNKS_HARD_DEL_LIMIT = 5000\nCHUNKS_WRITE_REP_LIMIT = 0\nCHUNKS_READ_REP_LIMIT = 0\nFILE_UMASK = 022\n",
        dir.display()
    );
    foreground("mfsmaster", &dir, &text)
}

fn write_chunkserver(record: &Record, server: &str) -> io::Result<Command> {
    let dir = record.place.server_files(server);
    let chunks = record.place.store(server).join("chunks");
    fs::create_dir_all(&chunks)?;
    fs::write(dir.join("hdd.cfg"), format!("{}\n", chunks.display()))?;
    // The lab needs the round trip of an fsync, not that the data survives this machine.
    let text = format!(
        "WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {0}\nHDD_CONF_FILENAME = {0}/hdd.cfg\n\
         MASTER_HOST = {1}\nHDD_LEAVE_SPACE_DEFAULT = 64MiB\nHDD_FSYNC_BEFORE_CLOSE = 0\nWORKERS_MAX = 32\n",
        dir.display(),
        head_address(record)
    );
    foreground("mfschunkserver", &dir, &text)
}

fn foreground(program: &str, dir: &Path, configuration: &str) -> io::Result<Command> {
    let path = dir.join(format!("{program}.cfg"));
    fs::write(&path, configuration)?;
    let mut command = packages::command(program);
    command.arg("-f").arg("-c").arg(path).arg("start").current_dir("/");
    Ok(command)
}

fn head_address(record: &Record) -> String {
    record.node(HEAD).map(|head| head.address.to_string()).unwrap_or_default()
}

/// The client of a compute node.
pub fn mount(record: &Record) -> Command {
    let mut command = packages::command("mfsmount");
    command.arg(record.place.pfs()).args(["-f", "-H", &head_address(record)]).current_dir("/");
    command
}

/// One copy of each chunk, so that four servers have the bandwidth of four; and what is deleted is
/// gone, not in the trash.
///
/// # Errors
/// If the tools fail, with their message.
pub fn settle(record: &Record, client: &str) -> Result<(), LabError> {
    let holder = record.holder(client)?;
    for (tool, value) in [("mfssetgoal", "1"), ("mfssettrashtime", "0")] {
        let mut command = packages::command(tool);
        command.args(["-r", value]).arg(record.place.pfs()).stdin(Stdio::null());
        let failed = |e| LabError::io(format!("cannot run {tool}"), e);
        let output = space::inside(holder, || command.output().map_err(failed))?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            return Err(LabError::new(format!("{tool} failed: {}", String::from_utf8_lossy(&said).trim())));
        }
    }
    Ok(())
}
