//! The table `[ship]`: on which storage servers analytics may run, and how much they may use there.

use super::table::{Entry, Key, default_of, keys, section};
use std::path::PathBuf;

section! {
    /// What `forebay ship` may do.
    ShipConfig, SHIP {
        /// Storage servers on which `forebay ship` may start executors, by the names that Spark
        /// shall know. Empty: none.
        "ship.hosts" => hosts: Vec<String> = r#""""#, texts();
        /// Command that starts {command} on storage server {host}, as a user who may create control
        /// groups there. Its end, or the end of its standard input, must end the command.
        "ship.launch" => launch: String = r#""ssh -o BatchMode=yes {host} {command}""#, parsed(launch);
        /// Name or address by which storage servers reach the node that submits. Empty: its host
        /// name.
        "ship.address" => address: String = r#""""#, text();
        /// Cores of each storage server that analytics may use at most; as many tasks run there at
        /// a time, at least one.
        "ship.cores" => cores: f64 = "1.0", number(0.05..=1024.0);
        /// Memory of each storage server that analytics may use: half of it for the heaps of
        /// executors, the rest for what they need beside it and for an agent that `forebay ship`
        /// starts.
        "ship.memory" => memory_bytes: u64 = r#""2GiB""#, bytes(MEMORY_MIN..=u64::MAX);
        /// Weight of the analytics' processes on a storage server; others have 100.
        "ship.cpu_weight" => cpu_weight: u64 = "10", number(1..=10_000);
        /// Weight of the analytics' own requests to disks, where the scheduler of the disks knows
        /// weights. Reads of the PFS are requests of the storage daemon.
        "ship.io_weight" => io_weight: u64 = "10", number(1..=1000);
        /// Bytes a second that analytics may read from each of ship.disks, and write to it, for
        /// their local files. 0B: not limited.
        "ship.io_rate" => io_rate_bytes_per_s: u64 = r#""0B""#, bytes(0..=u64::MAX);
        /// Share of ship.cores and ship.io_rate that analytics may use however busy the storage
        /// daemon is, and at their start.
        "ship.floor" => floor: f64 = r#""10%""#, share(1.0..=100.0);
        /// Names of the storage daemon's processes, as `ps -o comm` shows them. If it waits for
        /// processors or disks, analytics give way.
        "ship.daemons" => daemons: Vec<String> =
            r#"["mfschunkserver", "glusterfsd", "ceph-osd", "beegfs-storage", "pvfs2-server"]"#, texts();
        /// Disks of the storage daemon, such as ["sdb", "nvme0n1"]. Empty: all are observed, none
        /// is limited.
        "ship.disks" => disks: Vec<String> = r#""""#, texts();
        /// The storage daemon's disks are slow if a request takes longer in the mean, in
        /// milliseconds.
        "ship.disk_slow_ms" => disk_slow_ms: u64 = "20", number(1..=60_000);
        /// They are slow if more requests are at one of them in the mean.
        "ship.disk_queue" => disk_queue: f64 = "32.0", number(1.0..=100_000.0);
        /// User whose rights executors have on the storage servers. Empty: the user who started
        /// {command} there, who must not be root.
        "ship.user" => user: String = r#""""#, text();
        /// Directory on the storage servers for local files of Spark.
        "ship.work_dir" => work_dir: PathBuf = r#""/var/tmp/forebay-ship""#, dir();
        /// SPARK_HOME, the same on all nodes. Empty: that of the environment of `forebay ship`.
        "ship.spark_home" => spark_home: Option<PathBuf> = r#""""#, path();
        /// The plug-in's jar, the same on all nodes.
        "ship.jar" => jar: PathBuf = r#""/opt/forebay/forebay-spark.jar""#, dir();
        /// Where executors keep map outputs: spark, in local files; tier, in the memory of the
        /// agents.
        "ship.shuffle" => shuffle: String = r#""spark""#, parsed(shuffle);
    }
}

/// The least memory that Spark needs, in bytes.
const MEMORY_MIN: u64 = 512 << 20;

fn launch(text: &str) -> Result<String, String> {
    let has = |word: &str| text.split_whitespace().any(|part| part.contains(word));
    match has("{host}") && text.split_whitespace().any(|part| part == "{command}") {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?}: write a command with {{host}} and, as a word, {{command}}")),
    }
}

fn shuffle(text: &str) -> Result<String, String> {
    match text {
        "spark" | "tier" => Ok(text.to_owned()),
        _ => Err(format!("{text:?}: write spark or tier")),
    }
}

impl Default for ShipConfig {
    fn default() -> Self {
        Self::defaults()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_names_host_and_command() {
        assert!(launch("srun -w {host} --overlap {command}").is_ok());
        for text in ["ssh {host}", "sh -c {command}", "ssh {host} sh -c '{command}'"] {
            assert!(launch(text).is_err(), "{text}");
        }
    }
}
