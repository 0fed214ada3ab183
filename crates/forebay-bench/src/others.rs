//! What other programs measure: Python, the eviction policies, the peers.
//!
//! A program that is not installed is skipped, and the line says why.

use crate::hadoop::{self, Figures};
use crate::measure::{Record, Target, median};
use crate::rig::{Rig, json_of, make_file};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter that has the binding: `make python` puts it into `target/venv`.
fn interpreter() -> Option<PathBuf> {
    let python = Path::new("target/venv/bin/python").to_path_buf();
    let found = Command::new(&python).args(["-c", "import forebay"]).output();
    found.is_ok_and(|o| o.status.success()).then_some(python)
}

/// Cached reads of 1 MiB into a buffer, Python beside the client core, in turn in one process each.
pub fn python(rig: &Rig) -> Result<Vec<Record>, String> {
    const ID: &str = "read.python.seq.1t";
    let Some(python) = interpreter() else {
        return Ok(vec![Record::skipped(ID, "target/venv has no forebay; make python")]);
    };
    let bytes = rig.sized(1 << 30);
    let path = rig.directory_pfs().join("data");
    make_file(&path, bytes)?;
    let agent = rig.agent(&rig.directory_pfs(), "4GiB")?;
    agent.load(&path)?;
    let file = agent.client().open(&path).map_err(|e| e.to_string())?;
    let in_python = |buffer: &str| {
        let mut command = Command::new(&python);
        command.arg("bench/python_read.py").arg(&path).args(["--buffer", buffer]);
        json_of(command.env("FOREBAY_SOCKET", agent.socket()))?["gb_per_s"]
            .as_f64()
            .ok_or_else(|| "no figure from bench/python_read.py".to_owned())
    };
    let pairs = |buffer: &str, at: usize| {
        let core = || crate::read::sequential_file(&file, bytes, 4, at);
        crate::measure::in_turn(rig.runs, || in_python(buffer), core)
    };
    let note =
        "readinto a buffer of 1 MiB on a page boundary; reference: the client core in Rust, the same buffer";
    let aligned = Record::pairs(ID, &pairs("aligned", 0)?, "GB/s", Target::RatioAtLeast(0.9), note);
    let note = "readinto a bytearray; reference: the client core in Rust, as far off a page boundary";
    let id = "read.python.seq.bytearray";
    let offset = Record::pairs(id, &pairs("bytearray", BYTEARRAY_AT)?, "GB/s", Target::Report, note);
    Ok(vec![aligned, offset])
}

/// glibc's distance of a large allocation from the start of its page, plus that of the bytes of a
/// bytearray from its own.
const BYTEARRAY_AT: usize = 16;

/// The default policy beside LRU and LFU: the smallest lead over the better of the two on each kind
/// of trace.
pub fn hit_ratio(rig: &Rig) -> Result<Vec<Record>, String> {
    let out = rig.dir.join("hit_ratio.json");
    let mut command = Command::new("cargo");
    command.args([
        "run",
        "--release",
        "-q",
        "-p",
        "forebay-policy",
        "--example",
        "hit_ratio",
        "--",
        "--json",
    ]);
    command.arg(&out).args(if rig.quick { &["--scale", "0.1"][..] } else { &[] });
    let output = command.output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = std::fs::read(&out).map_err(|e| e.to_string())?;
    let rows: Vec<Value> = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    ["loop", "zipf", "scan+zipf"].iter().map(|family| lead(family, &rows)).collect()
}

fn lead(family: &str, rows: &[Value]) -> Result<Record, String> {
    let of = |row: &Value, policy: &str| row["policies"][policy].as_f64();
    let rows: Vec<_> = rows.iter().filter(|row| row["family"] == family).collect();
    let leads: Option<Vec<(f64, f64)>> =
        rows.iter().map(|row| Some((of(row, "w-lfu")?, of(row, "lru")?.max(of(row, "lfu")?)))).collect();
    let leads = leads.filter(|l| !l.is_empty()).ok_or_else(|| format!("no trace of family {family}"))?;
    let least = leads.iter().map(|(ours, best)| ours - best).fold(f64::INFINITY, f64::min);
    let id = format!("hit_ratio.{}", family.replace('+', "_"));
    let note = format!(
        "smallest lead of w-lfu over the better of LRU and LFU on {} traces; medians {:.3} and {:.3}",
        leads.len(),
        median(leads.iter().map(|l| l.0)),
        median(leads.iter().map(|l| l.1)),
    );
    Ok(Record::alone(&id, least, "of hits", Target::AtLeast(0.0), 1, &note))
}

/// Alluxio and JuiceFS, where they are installed: their figures, and ours against them.
pub fn peers(rig: &Rig) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    let size = if rig.quick { "128" } else { "1024" };
    let Ours { read: ours, mapped, rss, java } = our_read(rig)?;
    for (peer, faster, what) in
        [("alluxio", 3.0, "Java client, short circuit"), ("juicefs", 5.0, "FUSE mount")]
    {
        let mut command = Command::new("python3");
        command.arg(format!("bench/peers/{peer}.py")).args(["--json", "--size-mib", size]);
        let list = json_of(&mut command)?;
        let figure = |id: &str| {
            let row = list.as_array().and_then(|rows| rows.iter().find(|r| r["id"] == id));
            row.and_then(|r| r["value"].as_f64())
        };
        let (read, memory) = (figure(&format!("peer.{peer}.read")), figure(&format!("peer.{peer}.rss")));
        let (id_read, id_rss) = (format!("peer.{peer}.read"), format!("peer.{peer}.rss"));
        match (read, memory) {
            (Some(read), Some(memory)) => {
                let note = format!("our mapped read, every byte summed in place; reference: {peer}, {what}");
                let id_mapped = format!("peer.{peer}.read.mapped");
                let target = Target::RatioAtLeast(faster);
                records.push(Record::pairs(&id_mapped, &[(mapped, read)], "GB/s", target, &note));
                let note = format!("our client core, cached, 1 MiB; reference: {peer}, {what}");
                records.push(Record::pairs(
                    &id_read,
                    &[(ours, read)],
                    "GB/s",
                    Target::RatioAtLeast(faster),
                    &note,
                ));
                let note = format!(
                    "memory of our agent after the reads, the tier's pages not counted; reference: {peer}'s"
                );
                if let Some(java) = java.filter(|_| peer == "alluxio") {
                    records.extend(java_beside_java(&java, read, faster));
                }
                records.push(Record::pairs(
                    &id_rss,
                    &[(rss, memory)],
                    "MiB",
                    Target::RatioAtMost(0.2),
                    &note,
                ));
            }
            _ => records.extend([
                Record::skipped(&id_read, "not installed"),
                Record::skipped(&id_rss, "not installed"),
            ]),
        }
    }
    Ok(records)
}

/// The same users, the same language: our Hadoop file system beside Alluxio's client.
fn java_beside_java(ours: &Figures, alluxio: f64, faster: f64) -> [Record; 2] {
    let row = |id: &str, value: f64, what: &str| {
        let note =
            format!("forebay:// in Java, {what}, 1 MiB; reference: Alluxio's Java client, short circuit");
        Record::pairs(id, &[(value, alluxio)], "GB/s", Target::RatioAtLeast(faster), &note)
    };
    [
        // The better of the two kinds of buffer, as it is Alluxio's that is reported.
        row("peer.alluxio.read.hadoop", ours.direct.max(ours.array), "copied"),
        row("peer.alluxio.read.hadoop.mapped", ours.mapped, "every byte summed in place"),
    ]
}

/// Our own cached read in GB/s, and the agent's anonymous memory after it in MiB.
struct Ours {
    read: f64,
    mapped: f64,
    rss: f64,
    /// Where the jar is built.
    java: Option<Figures>,
}

fn our_read(rig: &Rig) -> Result<Ours, String> {
    let bytes = rig.sized(1 << 30);
    let path = rig.directory_pfs().join("data");
    make_file(&path, bytes)?;
    let agent = rig.agent(&rig.directory_pfs(), "4GiB")?;
    agent.load(&path)?;
    let file = agent.client().open(&path).map_err(|e| e.to_string())?;
    let passes = (0..rig.runs)
        .map(|_| crate::read::sequential_file(&file, bytes, 4, 0))
        .collect::<Result<Vec<_>, _>>()?;
    let mapped =
        (0..rig.runs).map(|_| crate::read::mapped_file(&file, bytes, 4)).collect::<Result<Vec<_>, _>>()?;
    let rss = agent.memory("RssAnon")? + agent.memory("RssFile")?;
    let java = match hadoop::missing() {
        Some(_) => None,
        None => Some(hadoop::measure(&path, &agent.socket(), rig.runs)?),
    };
    Ok(Ours {
        read: median(passes.into_iter()),
        mapped: median(mapped.into_iter()),
        rss: rss as f64 / f64::from(1 << 20),
        java,
    })
}
