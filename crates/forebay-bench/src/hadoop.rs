//! Cached reads through the Hadoop file system, beside the client core in the same minutes.
//!
//! The JVM runs the jar as it is shipped, on the Hadoop that the contract tests run on; each run
//! starts one, which reads the file in three ways until its compiler has settled, and the client
//! core reads it in turn with it.

use crate::measure::{Record, Target};
use crate::read::{mapped_file, sequential_file};
use crate::rig::{Rig, json_of, make_file};
use forebay_client::File;
use std::path::Path;
use std::process::Command;

const JAR: &str = "target/forebay-spark.jar";
const TESTS: &str = "target/java/contract/test-classes";
const HADOOP: &str = "target/java/contract/hadoop.classpath";

/// GB/s of one run: into a direct buffer, into an array, and mapped with every byte summed.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Into a direct buffer.
    pub direct: f64,
    /// Into an array.
    pub array: f64,
    /// Summed in place.
    pub mapped: f64,
}

/// Returns why it cannot be measured here; `None` if it can.
pub fn missing() -> Option<String> {
    let built = [(JAR, "make java"), (HADOOP, "make test-java")];
    let absent = built.iter().find(|(file, _)| !Path::new(file).exists());
    absent.map(|(file, how)| format!("no {file}; {how}"))
}

/// One run of the JVM on `path`, cached, with the agent at `socket`.
pub fn measure(path: &Path, socket: &Path, passes: usize) -> Result<Figures, String> {
    let hadoop = std::fs::read_to_string(HADOOP).map_err(|e| format!("{HADOOP}: {e}"))?;
    let mut command = Command::new("java");
    command.arg("-cp").arg(format!("{JAR}:{TESTS}:{}", hadoop.trim())).arg("io.forebay.hadoop.ReadBench");
    command.arg(path).arg(passes.to_string()).env("FOREBAY_SOCKET", socket);
    let printed = json_of(&mut command)?;
    let figure = |kind: &str| {
        printed[kind].as_f64().ok_or_else(|| format!("no figure {kind:?} from io.forebay.hadoop.ReadBench"))
    };
    Ok(Figures { direct: figure("direct")?, array: figure("array")?, mapped: figure("mapped")? })
}

/// What the client core does with the same file: copied and mapped.
fn core(file: &File, bytes: u64) -> Result<(f64, f64), String> {
    Ok((sequential_file(file, bytes, 4, 0)?, mapped_file(file, bytes, 4)?))
}

/// Reads of 1 MiB through `forebay://`, cached.
pub fn read(rig: &Rig) -> Result<Vec<Record>, String> {
    const ID: &str = "hadoop.read.cached";
    if let Some(why) = missing() {
        return Ok(vec![Record::skipped(ID, &why)]);
    }
    let bytes = rig.sized(1 << 30);
    let path = rig.directory_pfs().join("data");
    make_file(&path, bytes)?;
    let agent = rig.agent(&rig.directory_pfs(), "4GiB")?;
    agent.load(&path)?;
    let file = agent.client().open(&path).map_err(|e| e.to_string())?;
    core(&file, bytes)?;
    let mut runs = Vec::new();
    for _ in 0..rig.runs {
        // The core before and after: a neighbour that comes or goes meanwhile disturbs both sides.
        let before = core(&file, bytes)?;
        let ours = measure(&path, &agent.socket(), 5)?;
        let after = core(&file, bytes)?;
        runs.push((ours, (f64::midpoint(before.0, after.0), f64::midpoint(before.1, after.1))));
    }
    let row = |id: &str, pairs: Vec<(f64, f64)>, target: Target, what: &str| {
        let note = format!("{what}, 1 MiB, one thread; reference: the client core in Rust");
        Record::pairs(id, &pairs, "GB/s", target, &note)
    };
    let pairs = |of: fn(&Figures) -> f64| runs.iter().map(|(f, core)| (of(f), core.0)).collect();
    let mapped = runs.iter().map(|(f, core)| (f.mapped, core.1)).collect();
    Ok(vec![
        row(ID, pairs(|f| f.direct), Target::RatioAtLeast(0.8), "forebay:// into a direct buffer"),
        row(
            "hadoop.read.cached.array",
            pairs(|f| f.array),
            Target::RatioAtLeast(0.8),
            "forebay:// into an array",
        ),
        row(
            "hadoop.read.cached.mapped",
            mapped,
            Target::Report,
            "forebay:// mapped, every byte summed in place",
        ),
    ])
}
