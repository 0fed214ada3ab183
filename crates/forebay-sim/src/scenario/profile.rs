//! The measured properties of a system: how fast a prefetch is, and how prefetches and I/O phases
//! disturb each other.
//!
//! Scenarios have them in their sections `[cluster]` and `[profile]`. The coordinator reads the
//! same sections from a separate file, `cluster.profile`, so that a measurement serves both.

use std::fs;
use std::path::Path;

use forebay_model::forecast::Division;
use forebay_model::profile::{Curve, Profile, Separable, Setting};
use forebay_policy::planner::{Config, DirectStrain};
use forebay_policy::stage::DEFAULT_THREADS;

use super::reader::Section;
use super::{File, GB, MAX_GB, MAX_S};
use crate::error::{Error, Result};

/// An upper bound that only catches typing errors.
const MAX_FACTOR: f64 = 1e3;

/// Version of the file format.
const VERSION: u64 = 1;

/// Weight of a new observation unless the file says otherwise: a measurement grows old.
const LEARNING: f64 = 0.3;

/// The least I_hpc of a profile that is corrected. A correction scales the excess I_hpc - 1, at
/// most by four, so it could never move an excess of 0, which a noisy measurement may give.
const LEAST_I_HPC: f64 = 1.1;

/// Reads a profile for the coordinator. It states no memory: the members have that.
///
/// # Errors
/// One line that names file, line, key, value and what is allowed.
pub fn read(path: &Path) -> Result<Config> {
    let text = fs::read_to_string(path).map_err(Error::io("read the profile", path))?;
    let file = File::parse(path, &text)?;
    config(&Section::root(path, &file.table)).map_err(|e| match e {
        Error::Scenario { file, key, value, allowed } => {
            Error::Trace { file, line: line_of(&text, &key), problem: format!("{key} = {value}: {allowed}") }
        }
        e => e,
    })
}

fn config(root: &Section<'_>) -> Result<Config> {
    root.whole("version", VERSION, VERSION, None)?;
    let cluster = root.need("cluster")?;
    let system = System::read(&cluster)?;
    cluster.done()?;
    let mut config = system.profile(&root.need("profile")?, DEFAULT_THREADS)?;
    let planner = root.optional("planner")?;
    let learning = planner.number("learning", 0.0, 1.0, Some(LEARNING))?;
    planner.done()?;
    root.done()?;
    if learning > 0.0 {
        config.profile.i_hpc = config.profile.i_hpc.at_least(LEAST_I_HPC);
        config.direct.i_hpc = config.direct.i_hpc.max(LEAST_I_HPC);
    }
    Ok(Config { learning, ..config })
}

/// The line of `key`, or of its section if the key is missing.
fn line_of(text: &str, key: &str) -> usize {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let (mut here, mut found) = ("", 1);
    for (number, line) in (1..).zip(text.lines()) {
        let header =
            line.trim().strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(name, _)| name);
        // Not an element of a list.
        if let Some(header) = header.filter(|name| name.chars().all(|c| c.is_ascii_alphabetic())) {
            here = header;
        }
        let is_key = line.split_once('=').is_some_and(|(left, _)| left.trim() == name);
        if here == section && is_key {
            return number;
        }
        if header.is_some_and(|header| header == section || section.is_empty() && header == name) {
            found = number;
        }
    }
    found
}

/// The section `[cluster]`.
pub(super) struct System {
    pub max_nodes: u16,
    pub max_threads: u16,
    pub pfs_bytes_per_s: f64,
}

impl System {
    pub fn read(s: &Section<'_>) -> Result<Self> {
        Ok(System {
            pfs_bytes_per_s: s.number("pfs_gb_per_s", 1e-6, MAX_GB, None)? * GB,
            max_nodes: s.whole("nodes", 1, 4096, None)? as u16,
            max_threads: s.whole("max_threads", 1, 1024, Some(16))? as u16,
        })
    }

    /// The configuration with the section `[profile]`; without memory and without learning.
    /// Planners that choose no setting use `default_threads` on each node unless the section states
    /// others.
    pub fn profile(&self, s: &Section<'_>, default_threads: u16) -> Result<Config> {
        let System { max_nodes, max_threads, pfs_bytes_per_s } = *self;
        let (most_nodes, most_threads) = (u64::from(max_nodes), u64::from(max_threads));
        s.complete(Config {
            profile: Profile {
                wave_bytes: s.number("bytes_gb", 1e-6, MAX_GB, None)? * GB,
                prefetch_s: separable(s, ["prefetch_s", "prefetch_nodes", "prefetch_threads"], 1e-6, MAX_S)?,
                i_hpc: interference(s, ["i_hpc", "i_hpc_nodes", "i_hpc_threads"])?,
                i_bd: interference(s, ["i_bd", "i_bd_nodes", "i_bd_threads"])?,
                max_nodes,
                max_threads,
            },
            default_setting: Setting::new(
                s.whole("default_nodes", 1, most_nodes, Some(most_nodes))? as u16,
                s.whole("default_threads", 1, most_threads, Some(most_threads.min(default_threads.into())))?
                    as u16,
            ),
            direct: DirectStrain {
                speed_bytes_per_s: s.number("direct_gb_per_s", 1e-6, MAX_GB, Some(pfs_bytes_per_s / GB))?
                    * GB,
                i_hpc: s.number("direct_i_hpc", 1.0, MAX_FACTOR, Some(2.0))?,
                i_bd: s.number("direct_i_bd", 1.0, MAX_FACTOR, Some(2.0))?,
                with_compute: false,
            },
            pfs_bytes_per_s,
            ram_bytes: 0,
            learning: 0.0,
            division: Division::default(),
            reaction_s: 0.0,
        })
    }
}

/// A value with one node and one thread, and its curves over nodes and threads (flat if they are
/// missing).
fn separable(s: &Section<'_>, keys: [&'static str; 3], min: f64, max: f64) -> Result<Separable> {
    let at_one = s.number(keys[0], min, max, None)?;
    let curve = |key: &'static str| -> Result<Curve> {
        let points = s.points(key)?.unwrap_or_else(|| vec![(1, 1.0)]);
        if points.first().is_none_or(|p| p.0 != 1) {
            return Err(s.error(key, "the first point must be at 1, to which the others are relative"));
        }
        Curve::relative(&points).map_err(|why| s.error(key, why))
    };
    Ok(Separable { at_one, nodes: curve(keys[1])?, threads: curve(keys[2])? })
}

/// An interference factor. Nothing runs faster because it is disturbed: the factor is at least 1 at
/// every setting.
fn interference(s: &Section<'_>, keys: [&'static str; 3]) -> Result<Separable> {
    let factor = separable(s, keys, 1.0, MAX_FACTOR)?;
    let least = factor.at_one * factor.nodes.least() * factor.threads.least();
    if least < LEAST_FACTOR {
        let at_fault = if factor.nodes.least() < factor.threads.least() { keys[1] } else { keys[2] };
        let [one, nodes, threads] = keys;
        return Err(s.error(
            at_fault,
            format!(
                "{one}, {nodes} and {threads} together make a factor of {least}, and at least 1 is needed"
            ),
        ));
    }
    Ok(factor)
}

/// 1, less what rounding takes from a curve of raw measurements.
pub(super) const LEAST_FACTOR: f64 = 1.0 - 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_line_of_its_key_or_section() {
        let text = "version = 1\n\n[cluster]\nnodes = 8\n[profile]\nprefetch_nodes = [\n[1, 8],\n[2, 4]]\ni_hpc = 0\n";
        for (key, line) in
            [("version", 1), ("cluster.nodes", 4), ("profile.i_hpc", 9), ("profile.i_bd", 5), ("planner", 1)]
        {
            assert_eq!(line_of(text, key), line, "{key}");
        }
    }

    #[test]
    fn no_setting_is_taken_for_harmless_where_observations_correct_the_profile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profile.toml");
        let cluster = "version = 1\n[cluster]\npfs_gb_per_s = 1\nnodes = 4\n";
        let profile = "[profile]\nbytes_gb = 1\nprefetch_s = 2\ni_hpc = 1\ni_hpc_nodes = [[1, 1], [4, 1.6]]\ni_bd = 1\ndirect_i_hpc = 1\n";
        let read_with = |planner: &str| {
            fs::write(&path, format!("{cluster}{profile}{planner}")).unwrap();
            let config = read(&path).unwrap();
            let settings = [1, 4].map(|nodes| config.profile.strain(Setting::new(nodes, 1)).i_hpc);
            ([settings[0], settings[1], config.direct.i_hpc], config.profile.i_bd.at_one)
        };
        assert_eq!(read_with(""), ([1.1, 1.6, 1.1], 1.0));
        assert_eq!(read_with("[planner]\nlearning = 0\n"), ([1.0, 1.6, 1.0], 1.0));
    }
}
