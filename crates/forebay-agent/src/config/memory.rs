//! The section `[memory]`: how the tier gives way to compute.

use super::table::{Entry, Key, default_of, keys, section};
use crate::units::Amount;
use forebay_policy::memory;
use std::time::Duration;

/// Time between two samples of memory use on a quiet node. While use grows, or little memory is
/// free and the kernel watches no threshold, the agent samples up to ten times as often, and
/// immediately when the kernel reports stalls or use beyond the target.
pub const PERIOD: Duration = Duration::from_millis(100);

/// The fraction of the distance from the target that the law `dynims` corrects in each period: it
/// is sluggish far below, and oscillates above 2.
pub const GAIN: f64 = 0.5;

section! {
    /// How the tier gives way to compute, validated.
    MemoryConfig, MEMORY {
        /// The law by which the tier releases memory when compute needs it, and grows again, up to
        /// tier.capacity: forebay, dynims, or static, which never changes the capacity.
        "memory.policy" => policy: String = r#""forebay""#, parsed(law);
        /// Share of the memory that may be in use before the tier shrinks: of the node's memory,
        /// and of the limit of each control group that contains the agent. Clean pages of the page
        /// cache count as free. The law forebay keeps 40 MB free in any case, but at most an eighth
        /// of the memory.
        "memory.target" => target: f64 = r#""95%""#, share(50.0..=99.0);
        /// The tier keeps this much even if compute runs short: a size, or a share of the node's
        /// memory or control group limit.
        "memory.min" => min: Amount = r#""0""#, amount();
        /// Control groups whose memory limits also bind the tier, as paths below the top group,
        /// such as "/system.slice/foo.slice": the tier gets at most what they leave of their
        /// limits, as if it were inside. A group may come later and go with its job.
        "memory.watch" => watch: Vec<String> = "[]", names(groups);
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self::defaults()
    }
}

fn law(name: &str) -> Result<String, String> {
    memory::policy(name).map(|_| name.to_owned()).map_err(|e| e.to_string())
}

/// Most control groups that are watched; each is read at every sample.
const GROUPS_MAX: usize = 16;

fn groups(names: Vec<String>) -> Result<Vec<String>, String> {
    if names.len() > GROUPS_MAX {
        return Err(format!("it has {} groups; at most {GROUPS_MAX} can be watched", names.len()));
    }
    let is_path = |name: &&String| {
        let mut parts = name.strip_prefix('/').unwrap_or("").split('/');
        !parts.any(|part| part.is_empty() || part == "." || part == "..")
    };
    match names.iter().find(|name| !is_path(name)) {
        Some(name) => Err(format!(
            "{name:?} is not the path of a control group below the top one, such as \
             \"/system.slice/foo.slice\""
        )),
        None => Ok(names),
    }
}
