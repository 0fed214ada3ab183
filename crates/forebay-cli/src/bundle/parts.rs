//! The parts of a bundle.

use crate::cli::{BundleArgs, Global};
use crate::metrics::Metrics;
use forebay_wire::cluster::CLUSTER_PROTOCOL;
use forebay_wire::message::PROTOCOL;
use forebay_wire::peer::PEER_PROTOCOL;
use std::fmt::Write as _;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A part that takes longer has failed: an agent or a file system may hang.
const PART_TIME: Duration = Duration::from_secs(20);

/// Limit on the bytes of one part.
const PART_BYTES_MAX: u64 = 8 << 20;

/// Lines of the audit log.
const AUDIT_LINES: usize = 200;

/// A part: its content, or why there is none.
pub struct Part {
    pub name: &'static str,
    pub content: Result<String, String>,
}

/// Collects all parts, one after the other.
pub fn collect(global: &Global, args: &BundleArgs) -> Vec<Part> {
    let mut parts = vec![
        Part { name: "version.txt", content: Ok(version()) },
        Part { name: "kernel.txt", content: Ok(kernel()) },
        Part { name: "mounts.txt", content: mounts(global) },
    ];
    let config: Vec<String> =
        args.config.iter().flat_map(|path| ["--config".to_owned(), path.display().to_string()]).collect();
    let of_config = |words: &[&str]| {
        words.iter().map(|word| (*word).to_owned()).chain(config.iter().cloned()).collect::<Vec<_>>()
    };
    let mut commands = vec![
        ("config.json", of_config(&["config", "show", "--origin"])),
        ("doctor.json", of_config(&["doctor"])),
        ("status.json", of_words(&["status"])),
        ("memory.json", of_words(&["memory"])),
        ("jobs.json", of_words(&["jobs", "--hpc"])),
        ("limits.json", of_words(&["limit"])),
        ("dirty.json", of_words(&["dirty"])),
        ("checkpoints.json", of_words(&["checkpoint", "list"])),
        ("log-filter.json", of_words(&["log"])),
    ];
    if args.cluster {
        commands.push(("cluster-top.json", of_words(&["top", "--once"])));
        commands.push(("cluster-doctor.json", of_config(&["doctor", "--cluster"])));
        commands.push(("cluster-log-filter.json", of_words(&["log", "--coordinator"])));
    }
    parts.extend(commands.into_iter().map(|(name, words)| Part { name, content: run(global, &words) }));
    let client = global.client();
    let socket = client.socket().map(std::path::Path::to_owned);
    parts.push(Part {
        name: "metrics.txt",
        content: within(move || Metrics::new(socket, None).text().map_err(|e| e.to_string())),
    });
    let asked = client.clone();
    let log = within(move || asked.admin().last_log().map_err(|e| e.to_string()));
    parts.push(Part { name: "log.txt", content: log });
    if args.cluster {
        let asked = client.clone();
        let nodes = within(move || {
            let nodes = asked.health().map_err(|e| e.to_string())?;
            serde_json::to_string_pretty(&nodes).map_err(|e| e.to_string())
        });
        parts.push(Part { name: "cluster-nodes.json", content: nodes });
    }
    parts.push(Part { name: "audit.txt", content: audit(global) });
    parts
}

fn of_words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Does something in a thread of its own, which is left behind if it takes too long.
fn within(body: impl FnOnce() -> Result<String, String> + Send + 'static) -> Result<String, String> {
    let (done, ended) = channel();
    let spawned = std::thread::Builder::new().name("part".into()).spawn(move || {
        // Nobody waits for one that is late.
        let _ = done.send(body());
    });
    spawned.map_err(|e| format!("no thread: {e}"))?;
    let late = |_| format!("no answer within {} s", PART_TIME.as_secs());
    ended.recv_timeout(PART_TIME).map_err(late)?
}

/// Reads to the end and keeps the beginning, so that the writer does not have to wait.
fn read(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What has come before an error is shown.
        let _ = from.by_ref().take(PART_BYTES_MAX).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a command of this program prints: one that ends by itself harms no other part.
fn run(global: &Global, words: &[String]) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(program);
    command.arg("--json").args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(socket) = &global.socket {
        command.arg("--socket").arg(socket);
    }
    let shown = words.join(" ");
    let mut child = command.spawn().map_err(|e| format!("cannot run forebay {shown}: {e}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (done, ended) = channel();
    let reader = std::thread::Builder::new().name("part".into()).spawn(move || {
        let texts = std::thread::scope(|threads| {
            let said = threads.spawn(|| read(err));
            (read(out), said.join().unwrap_or_default())
        });
        let _ = done.send(texts);
    });
    reader.map_err(|e| format!("no thread: {e}"))?;
    match ended.recv_timeout(PART_TIME) {
        Ok((text, said)) => {
            // A command that finds problems fails, and prints them.
            let _ = child.wait();
            if text.trim().is_empty() { Err(format!("forebay {shown}: {}", said.trim())) } else { Ok(text) }
        }
        Err(_) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(format!("forebay {shown}: no answer within {} s", PART_TIME.as_secs()))
        }
    }
}

fn version() -> String {
    format!(
        "forebay {}\nprotocol {PROTOCOL}\npeer protocol {PEER_PROTOCOL}\ncluster protocol {CLUSTER_PROTOCOL}\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// What the kernel says, without anything about users.
fn kernel() -> String {
    let uname = rustix::system::uname();
    let mut text = format!(
        "{} {} {} {}\n",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        uname.version().to_string_lossy(),
        uname.machine().to_string_lossy()
    );
    for path in [
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/pressure/memory",
        "/proc/pressure/io",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/fs/file-nr",
        "/proc/sys/vm/overcommit_memory",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "/proc/self/limits",
    ] {
        let content = std::fs::read_to_string(path).unwrap_or_else(|e| format!("{e}\n"));
        let _ = write!(text, "\n== {path}\n{content}");
    }
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let _ = writeln!(text, "\nprocessors: {cpus}");
    text
}

/// The mounts that the agent serves, with their options, and what else is mounted by type. Options
/// that may name users or secrets are left out.
fn mounts(global: &Global) -> Result<String, String> {
    let table =
        std::fs::read_to_string("/proc/self/mounts").map_err(|e| format!("/proc/self/mounts: {e}"))?;
    let served = global.client().admin().status().map(|status| status.mounts).unwrap_or_default();
    let (mut text, mut others) = (String::new(), std::collections::BTreeMap::<&str, u32>::new());
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, at, kind, options, ..] = fields[..] else { continue };
        match served.iter().find(|mount| mount.root == at.as_bytes()) {
            Some(mount) => {
                let is_safe = |option: &&str| !option.contains('=') || is_plain(option);
                let options: Vec<&str> = options.split(',').filter(is_safe).collect();
                let _ = writeln!(text, "served {}: {kind} {}", mount.label, options.join(","));
            }
            None => *others.entry(kind).or_default() += 1,
        }
    }
    for (kind, count) in others {
        let _ = writeln!(text, "other {kind}: {count}");
    }
    Ok(text)
}

/// Whether the value of an option is a number, such as a size.
fn is_plain(option: &str) -> bool {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let named = ["user", "uid", "gid", "group", "pass", "secret", "key"];
    !named.iter().any(|word| name.contains(word))
        && value.starts_with(|c: char| c.is_ascii_digit())
        && value.len() < 16
}

fn audit(global: &Global) -> Result<String, String> {
    let client = global.client();
    let Some(directory) = client.socket().and_then(std::path::Path::parent) else {
        return Err("no agent".into());
    };
    // Where it is unless the configuration says otherwise.
    let path = directory.join("audit.log");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(AUDIT_LINES)..].join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_fails_has_its_reason() {
        let global = Global { json: false, socket: Some("/nowhere/agent.sock".into()) };
        let why = run(&global, &of_words(&["status"])).unwrap_err();
        assert!(!why.is_empty());
        assert_eq!(within(|| Err("broken".into())), Err("broken".into()));
        assert!(within(|| panic!("a bug")).is_err());
        assert!(kernel().contains("MemTotal") && version().contains("peer protocol"));
    }

    #[test]
    fn options_with_names_or_secrets_are_left_out() {
        assert!(is_plain("rsize=1048576") && is_plain("attrib_timeout=0.1"));
        for bad in ["username=fred", "password=123", "secret=AQB", "user_id=5", "addr=fs1"] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
