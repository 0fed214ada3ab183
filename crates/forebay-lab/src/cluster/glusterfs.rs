//! GlusterFS from Debian without its manager: the daemons take volume files that are written here.
//!
//! `glusterd` would keep its state in `/var/lib/glusterd` and wants to be the only one on its
//! machine, and this machine is several. Its task would be to write these files; nothing else that
//! the lab needs depends on it.
//!
//! A file is on one server as a whole unless shards are requested. Those spread it over all
//! servers, but then a client does not see that another has written beyond a file's first shard:
//! neither time stamps nor size change for it (10.3, with and without `utime`; seen 2.5 s after the
//! fsync). A cache that goes by version must not rely on that, so shards are for files that are
//! written once. Erasure coding would spread files and keep the times right, but two cores encode
//! 60 MB/s.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use super::PATIENCE;
use super::packages;
use super::plan::{Node, Role};
use super::service::Raising;
use super::space;
use super::state::Record;
use crate::LabError;

/// Programs and their packages.
pub const PROGRAMS: &[(&str, &str)] =
    &[("glusterfsd", "glusterfs-server"), ("glusterfs", "glusterfs-client")];

const PORT: u16 = 49152;
/// Bounds on the size of a shard in GlusterFS.
const SHARD_MIN: u64 = 4 << 20;
const SHARD_MAX: u64 = 4 << 40;

/// Checks whether a file can be in pieces of this size.
///
/// # Errors
/// If it cannot, with the possible sizes.
pub fn check_stripe(bytes: u64) -> Result<(), LabError> {
    if (SHARD_MIN..=SHARD_MAX).contains(&bytes) && bytes.is_power_of_two() {
        return Ok(());
    }
    Err(LabError::new("--stripe: GlusterFS has shards of 4MiB, 8MiB, 16MiB ... 4TiB"))
}

/// Starts a brick on each server and waits until all listen.
///
/// # Errors
/// If something does not come up.
pub fn start_servers(lab: &mut Raising) -> Result<(), LabError> {
    let failed = |e| LabError::io("cannot write the configuration of GlusterFS", e);
    fs::write(client_file(&lab.record), client_volume(&lab.record.nodes, lab.record.stripe_bytes))
        .map_err(failed)?;
    let servers = lab.names(Role::Server);
    for server in &servers {
        let holder = lab.record.holder(server)?;
        let brick = space::inside(holder, || write_brick(&lab.record, server).map_err(failed))?;
        lab.start(server, &format!("glusterfsd-{server}"), brick)?;
    }
    for server in &servers {
        let holder = lab.record.holder(server)?;
        let listens = || space::connections(holder, PORT).is_ok_and(|(listens, _)| listens);
        lab.wait_for(&format!("glusterfsd-{server}"), PATIENCE, listens)?;
    }
    Ok(())
}

fn write_brick(record: &Record, server: &str) -> io::Result<Command> {
    let dir = record.place.server_files(server);
    let brick = record.place.store(server).join("brick");
    fs::create_dir_all(&brick)?;
    let volume = dir.join("brick.vol");
    fs::write(&volume, brick_volume(&brick.display().to_string()))?;
    let mut command = packages::command("glusterfsd");
    command.arg("-N").arg("-f").arg(volume).arg("-l").arg(record.place.log(&format!("glusterfsd-{server}")));
    command.arg("-p").arg(dir.join("pid")).current_dir("/");
    Ok(command)
}

/// The client of a compute node.
pub fn mount(record: &Record) -> Command {
    let mut command = packages::command("glusterfs");
    command.arg("-N").arg("-f").arg(client_file(record)).arg("-l").arg("/dev/stderr");
    // Otherwise pages that another client has overwritten since are read from the page cache, even
    // by a later open.
    command.arg("--fopen-keep-cache=off");
    command.arg(record.place.pfs()).current_dir("/");
    command
}

fn client_file(record: &Record) -> PathBuf {
    record.place.dir.join("servers").join("client.vol")
}

fn brick_volume(dir: &str) -> String {
    let mut text = String::new();
    volume(&mut text, "posix", "storage/posix", &[("directory", dir), ("ctime", "on")], &[]);
    volume(&mut text, "locks", "features/locks", &[], &["posix"]);
    volume(&mut text, "brick", "performance/io-threads", &[("thread-count", "16")], &["locks"]);
    let port = PORT.to_string();
    let options = [
        ("transport-type", "tcp"),
        ("transport.socket.listen-port", port.as_str()),
        ("auth.addr.brick.allow", "*"),
    ];
    // The daemon looks for its server by the name of the brick's directory.
    volume(&mut text, dir, "protocol/server", &options, &["brick"]);
    text
}

fn client_volume(nodes: &[Node], stripe_bytes: Option<u64>) -> String {
    let mut text = String::new();
    let port = PORT.to_string();
    let servers: Vec<&Node> = nodes.iter().filter(|node| node.role == Role::Server).collect();
    for server in &servers {
        let address = server.address.to_string();
        let options = [
            ("transport-type", "tcp"),
            ("remote-host", address.as_str()),
            ("remote-port", port.as_str()),
            ("remote-subvolume", "brick"),
            ("ping-timeout", "10"),
        ];
        volume(&mut text, &server.name, "protocol/client", &options, &[]);
    }
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    volume(&mut text, "distribute", "cluster/distribute", &[], &names);
    let mut below = "distribute";
    if let Some(bytes) = stripe_bytes {
        volume(&mut text, "shard", "features/shard", &[("shard-block-size", &bytes.to_string())], &[below]);
        below = "shard";
    }
    // The writer's times are stored with the file, so that every client sees the same ones.
    volume(&mut text, "utime", "features/utime", &[("noatime", "on")], &[below]);
    volume(&mut text, "write-behind", "performance/write-behind", &[("cache-size", "64MB")], &["utime"]);
    volume(&mut text, "pfs", "performance/io-threads", &[], &["write-behind"]);
    text
}

fn volume(text: &mut String, name: &str, kind: &str, options: &[(&str, &str)], below: &[&str]) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "volume {name}\n  type {kind}");
    for (key, value) in options {
        let _ = writeln!(text, "  option {key} {value}");
    }
    if !below.is_empty() {
        let _ = writeln!(text, "  subvolumes {}", below.join(" "));
    }
    let _ = writeln!(text, "end-volume");
}

#[cfg(test)]
mod tests {
    use super::super::plan::nodes;
    use super::*;

    #[test]
    fn every_server_is_part_of_the_clients_volume() {
        let text = client_volume(&nodes(0, 2, 1, 0).unwrap(), None);
        assert!(text.contains("option remote-host 10.77.0.12\n"), "{text}");
        assert!(text.contains("type cluster/distribute\n  subvolumes pfs-s1 pfs-s2\nend-volume\n"), "{text}");
        assert_eq!(text.matches("end-volume").count(), 2 + 4);
    }

    #[test]
    fn shards_stand_between_the_servers_and_the_times() {
        let text = client_volume(&nodes(0, 2, 1, 0).unwrap(), Some(8 << 20));
        assert!(
            text.contains(
                "type features/shard\n  option shard-block-size 8388608\n  subvolumes distribute\n"
            ),
            "{text}"
        );
        assert!(text.contains("type features/utime\n  option noatime on\n  subvolumes shard\n"), "{text}");
        for (bytes, good) in
            [(4 << 20, true), (64 << 20, true), (1 << 20, false), (6 << 20, false), (0, false)]
        {
            assert_eq!(check_stripe(bytes).is_ok(), good, "{bytes}");
        }
    }
}
