//! CephFS 16 from Debian: monitor and metadata server on the head, an object store on each server,
//! one copy of each object.
//!
//! Daemons and clients use one configuration file that is written here, and no authentication;
//! nothing comes from `/etc/ceph`. There is no manager daemon: it costs 300 MB and serves
//! statistics only, so `df` shows no sizes. An object store is a sparse file on the server's
//! bounded tmpfs, which takes direct I/O since Linux 6.6.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::PATIENCE;
use super::packages;
use super::plan::{HEAD, Node, Role};
use super::process::ProcessId;
use super::service::Raising;
use super::space;
use super::state::Record;
use crate::LabError;

/// Programs and their packages.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("ceph", "ceph-common"),
    ("monmaptool", "ceph-common"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("ceph-mds", "ceph-mds"),
    ("ceph-fuse", "ceph-fuse"),
];

/// Ports of the monitor: messenger version 2 and, for `mon_host`, version 1.
const MONITOR_PORTS: [u16; 2] = [3300, 6789];

/// Space on a server's storage that the object store's own small files may take beside its data.
const OVERHEAD_BYTES: u64 = 64 << 20;

/// Starts monitor, object stores and metadata server, and waits until the file system can be
/// mounted.
///
/// # Errors
/// If something does not come up.
pub fn start_servers(lab: &mut Raising) -> Result<(), LabError> {
    let cluster = uuid()?;
    let path = configuration(&lab.record);
    let failed = |e| LabError::io(format!("cannot write {}", path.display()), e);
    let text = configuration_text(&lab.record, &cluster)?;
    fs::create_dir_all(lab.record.place.server_files(HEAD)).map_err(failed)?;
    fs::write(&path, text).map_err(failed)?;
    start_monitor(lab, &cluster)?;
    let servers = lab.names(Role::Server);
    let uuids = servers.iter().map(|_| uuid()).collect::<Result<Vec<_>, _>>()?;
    describe(&lab.record, &servers, &uuids)?;
    make_stores(&lab.record, &servers, &uuids)?;
    for (number, server) in servers.iter().enumerate() {
        let mut store = ceph(&lab.record, "ceph-osd");
        store.args(["-f", "-i", &number.to_string()]);
        lab.start(server, &format!("ceph-osd-{server}"), store)?;
    }
    let mut metadata = ceph(&lab.record, "ceph-mds");
    metadata.args(["-f", "-i", "a"]);
    lab.start(HEAD, "ceph-mds", metadata)?;
    let head = lab.record.holder(HEAD)?;
    let up = format!(" {} up", servers.len());
    let record = lab.record.clone();
    lab.wait_for("ceph-mds", PATIENCE * 2, || {
        let said = ask(&record, head, "osd stat\nmds stat\n").unwrap_or_default();
        said.contains(&up) && said.contains("up:active")
    })
}

/// The client of a compute node.
pub fn mount(record: &Record) -> Command {
    let mut command = ceph(record, "ceph-fuse");
    command.args(["-f", "-n", "client.admin"]).arg(record.place.pfs());
    command
}

fn start_monitor(lab: &mut Raising, cluster: &str) -> Result<(), LabError> {
    let head = lab.record.holder(HEAD)?;
    let store = lab.record.place.store(HEAD);
    let made = space::inside(head, || {
        ["mon", "mds"]
            .iter()
            .try_for_each(|part| fs::create_dir_all(store.join(part)))
            .map_err(|e| LabError::io(format!("cannot write below {}", store.display()), e))
    });
    made?;
    let map = store.join("monmap");
    let [v2, v1] = MONITOR_PORTS;
    let address = lab.record.node(HEAD)?.address;
    let mut tool = packages::command("monmaptool");
    tool.args(["--create", "--addv", "a", &format!("[v2:{address}:{v2},v1:{address}:{v1}]")]);
    run(head, tool.args(["--fsid", cluster]).arg(&map))?;
    let mut mkfs = ceph(&lab.record, "ceph-mon");
    run(head, mkfs.args(["--mkfs", "-i", "a", "--monmap"]).arg(&map))?;
    let mut monitor = ceph(&lab.record, "ceph-mon");
    monitor.args(["-f", "-i", "a"]);
    lab.start(HEAD, "ceph-mon", monitor)?;
    let listens = || space::connections(head, v2).is_ok_and(|(listens, _)| listens);
    lab.wait_for("ceph-mon", PATIENCE, listens)
}

/// Announces to the monitor the object stores, pools and file system to come.
fn describe(record: &Record, servers: &[String], uuids: &[String]) -> Result<(), LabError> {
    let mut lines = String::new();
    for (number, (server, uuid)) in servers.iter().zip(uuids).enumerate() {
        lines += &format!("osd new {uuid} {number}\n");
        lines += &format!("osd crush add osd.{number} 1.0 host={server} root=default\n");
    }
    lines +=
        "osd pool create lab_metadata 8\nosd pool create lab_data 32\nfs new lab lab_metadata lab_data\n";
    let said = ask(record, record.holder(HEAD)?, &lines)?;
    if said.contains("Error E") || !said.contains("new fs") {
        return Err(LabError::new(format!("the monitor of CephFS refused a command: {}", said.trim())));
    }
    Ok(())
}

fn make_stores(record: &Record, servers: &[String], uuids: &[String]) -> Result<(), LabError> {
    std::thread::scope(|scope| {
        let start =
            |number: usize| scope.spawn(move || make_store(record, number, &servers[number], &uuids[number]));
        let threads: Vec<_> = (0..servers.len()).map(start).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn make_store(record: &Record, number: usize, server: &str, uuid: &str) -> Result<(), LabError> {
    let holder = record.holder(server)?;
    let dir = store_of(record, server);
    space::inside(holder, || {
        fs::create_dir_all(&dir).map_err(|e| LabError::io(format!("cannot make {}", dir.display()), e))
    })?;
    let mut mkfs = ceph(record, "ceph-osd");
    mkfs.args(["-i", &number.to_string(), "--no-mon-config", "--mkfs", "--osd-uuid", uuid]);
    run(holder, &mut mkfs).map(drop)
}

/// Gives commands to the monitor in one session: each run of the tool starts a Python, which takes
/// half a second.
fn ask(record: &Record, head: ProcessId, lines: &str) -> Result<String, LabError> {
    let mut command = ceph(record, "ceph");
    command.args(["--connect-timeout", "20"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |e| LabError::io("cannot run ceph", e);
    let output = space::inside(head, || {
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(lines.as_bytes()).map_err(failed)?;
        }
        child.wait_with_output().map_err(failed)
    })?;
    Ok(words(&output))
}

/// Runs a tool on a node to its end.
fn run(holder: ProcessId, command: &mut Command) -> Result<String, LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |e| LabError::io(format!("cannot run {program}"), e);
    let output = space::inside(holder, || command.stdin(Stdio::null()).output().map_err(failed))?;
    if output.status.success() {
        return Ok(words(&output));
    }
    Err(LabError::new(format!("{program} failed: {}", words(&output).trim())))
}

fn words(output: &Output) -> String {
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

fn ceph(record: &Record, program: &str) -> Command {
    let mut command = packages::command(program);
    command.arg("-c").arg(configuration(record)).current_dir("/");
    command.env_remove("CEPH_ARGS").env_remove("CEPH_CONF");
    command
}

fn configuration(record: &Record) -> PathBuf {
    record.place.server_files(HEAD).join("ceph.conf")
}

fn store_of(record: &Record, server: &str) -> PathBuf {
    record.place.store(server).join("osd")
}

fn uuid() -> Result<String, LabError> {
    let path = "/proc/sys/kernel/random/uuid";
    let text = fs::read_to_string(path).map_err(|e| LabError::io(format!("cannot read {path}"), e))?;
    Ok(text.trim().to_owned())
}

/// Caches are small, since many labs share one machine. Deadlines of heartbeats are long: a machine
/// whose cores are busy would otherwise lose its servers.
fn configuration_text(record: &Record, cluster: &str) -> Result<String, LabError> {
    let address = record.node(HEAD)?.address;
    let [v2, v1] = MONITOR_PORTS;
    let block_bytes = record.store_bytes.saturating_sub(OVERHEAD_BYTES);
    let head = record.place.store(HEAD);
    let mut text = format!(
        "[global]\nfsid = {cluster}\nmon_host = [v2:{address}:{v2},v1:{address}:{v1}]\nmon_initial_members = a\n\
         auth_cluster_required = none\nauth_service_required = none\nauth_client_required = none\nkeyring = /dev/null\n\
         admin_socket =\npid_file =\nlog_file =\nlog_to_stderr = true\nrun_dir = {head}\nsetuser_match_path = /none\n\
         osd_pool_default_size = 1\nosd_pool_default_min_size = 1\nosd_crush_chooseleaf_type = 0\n\
         osd_pool_default_pg_autoscale_mode = off\nosd_crush_update_on_start = false\nosd_class_update_on_start = false\n\
         osd_heartbeat_grace = 60\nmds_beacon_grace = 60\nmon_osd_down_out_interval = 0\n\
         [mon]\nmon_data = {mon}\nmon_cluster_log_file = /dev/null\nmon_allow_pool_size_one = true\n\
         mon_data_avail_crit = 1\nmon_data_avail_warn = 1\nauth_allow_insecure_global_id_reclaim = false\n\
         [mds]\nmds_data = {mds}\nmds_cache_memory_limit = 134217728\n\
         [client]\nclient_oc_size = 67108864\n\
         [osd]\nosd_objectstore = bluestore\nbluestore_block_size = {block_bytes}\nbluestore_cache_autotune = false\n\
         bluestore_cache_size = 33554432\nosd_op_num_shards = 2\nbluestore_rocksdb_options = {ROCKSDB}\n",
        head = show(&head),
        mon = show(&head.join("mon")),
        mds = show(&head.join("mds")),
    );
    let servers = record.nodes.iter().filter(|node: &&Node| node.role == Role::Server);
    for (number, server) in servers.enumerate() {
        text += &format!("[osd.{number}]\nosd_data = {}\n", show(&store_of(record, &server.name)));
    }
    Ok(text)
}

/// Ceph's own options, with tables in memory of 16 MiB instead of 256 MiB.
const ROCKSDB: &str = "compression=kNoCompression,max_write_buffer_number=4,min_write_buffer_number_to_merge=1,\
    recycle_log_file_num=4,write_buffer_size=16777216,writable_file_max_buffer_size=0,max_background_compactions=2";

fn show(path: &Path) -> String {
    path.display().to_string()
}
