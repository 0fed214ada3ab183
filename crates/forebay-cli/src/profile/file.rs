//! The profile as the coordinator and the simulator read it.

use crate::cli::ProfileArgs;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// What one number of nodes and threads gives.
#[derive(Clone, Copy, Serialize)]
pub struct Setting {
    pub nodes: u16,
    pub threads: u16,
    /// The time to prefetch the wave alone.
    pub prefetch_s: f64,
    pub i_hpc: f64,
    pub i_bd: f64,
}

/// What was measured.
pub struct Measured<'a> {
    pub report_bytes: u64,
    pub args: &'a ProfileArgs,
    pub settings: &'a [Setting],
}

/// Counts and values, in ascending counts.
type Points = Vec<(u16, f64)>;

impl Measured<'_> {
    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let fastest = self.settings.iter().map(|s| s.prefetch_s).fold(f64::INFINITY, f64::min);
        let gb = self.report_bytes as f64 / 1e9;
        let mut text = format!(
            "# Measured by `forebay profile {}`.\nversion = 1\n\n[cluster]\npfs_gb_per_s = {:.6}\nnodes = {}\n\
             max_threads = {}\n\n[profile]\nbytes_gb = {gb:.6}\n",
            self.args.directory.display(),
            gb / fastest,
            self.args.nodes,
            self.args.threads
        );
        self.quantity(&mut text, "prefetch", "prefetch_s", |s| s.prefetch_s, level);
        self.quantity(&mut text, "i_hpc", "i_hpc", |s| s.i_hpc, rising);
        self.quantity(&mut text, "i_bd", "i_bd", |s| s.i_bd, rising);
        text
    }

    /// A value with one node and one thread, and its curves.
    fn quantity(
        &self,
        text: &mut String,
        name: &str,
        at_one: &str,
        of: fn(&Setting) -> f64,
        shape: fn(Points) -> Points,
    ) {
        let nodes = self.settings.iter().filter(|s| s.threads == 1).map(|s| (s.nodes, of(s)));
        let threads = self.settings.iter().filter(|s| s.nodes == 1).map(|s| (s.threads, of(s)));
        let (nodes, threads) = (shape(nodes.collect()), shape(threads.collect()));
        let _ = writeln!(text, "{at_one} = {:.6}", nodes.first().map_or(1.0, |p| p.1));
        for (kind, points) in [("nodes", nodes), ("threads", threads)] {
            let points: Vec<String> = points.iter().map(|(n, v)| format!("[{n}, {v:.6}]")).collect();
            let _ = writeln!(text, "{name}_{kind} = [{}]", points.join(", "));
        }
    }

    /// Writes the file, after it was read as the coordinator will.
    pub fn write(&self, path: &Path, text: &str) -> Result<(), String> {
        fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        forebay_sim::scenario::profile::read(path).map(|_| ()).map_err(|e| e.to_string())
    }
}

/// More nodes or threads do not disturb less: where readings say so, it is noise, and the model
/// would carry it to settings that nobody has measured.
fn rising(points: Points) -> Points {
    let mut least = 1.0_f64;
    points
        .into_iter()
        .map(|(count, value)| {
            least = least.max(value);
            (count, least)
        })
        .collect()
}

/// Readings this close, as a share, are equal: repeats do not distinguish them.
const EQUAL: f64 = 0.03;

/// More nodes or threads that seem a little slower than fewer are as fast.
fn level(points: Points) -> Points {
    let mut fastest = f64::INFINITY;
    points
        .into_iter()
        .map(|(count, value)| {
            let is_equal = value > fastest && value <= fastest * (1.0 + EQUAL);
            fastest = fastest.min(value);
            (count, if is_equal { fastest } else { value })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_readers_are_slower_only_by_more_than_readings_differ() {
        let points = vec![(1, 3.86), (2, 2.0), (4, 2.05), (8, 2.5)];
        assert_eq!(level(points), [(1, 3.86), (2, 2.0), (4, 2.0), (8, 2.5)]);
    }

    #[test]
    fn factors_never_fall_with_more_readers() {
        assert_eq!(rising(vec![(1, 1.2), (2, 1.1), (4, 1.5)]), [(1, 1.2), (2, 1.2), (4, 1.5)]);
    }
}
