//! Scenarios of kind `broadcast`.

use super::GB;
use super::reader::Section;
use crate::broadcast::{OWNER, SPREAD, Setup};
use crate::error::Result;

/// Reads the whole file.
///
/// # Errors
/// One line that names file, key, value and what is allowed.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    const MIB: u64 = 1 << 20;
    root.choice("kind", &["broadcast"], None)?;
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let cluster = root.need("cluster")?;
    let file = root.need("file")?;
    let pfs = root.need("pfs")?;
    let page_mib = file.whole("page_mib", 1, 64, Some(2))?;
    let setup = Setup {
        policy: cluster.choice("policy", &[OWNER, SPREAD], Some(SPREAD))?,
        nodes: cluster.whole("nodes", 2, 4096, None)? as usize,
        link_bytes_per_s: cluster.number("link_gb_per_s", 1e-3, 1e3, None)? * GB,
        request_ns: (cluster.number("request_us", 0.0, 1e6, Some(50.0))? * 1e3) as u64,
        window_bytes: cluster.whole("window_mib", page_mib, 1 << 20, Some(64))? * MIB,
        start_ns: (cluster.number("start_s", 0.0, 1e3, Some(0.0))? * 1e9) as u64,
        pfs_bytes_per_s: pfs.number("gb_per_s", 1e-3, 1e6, None)? * GB,
        fetches: pfs.whole("fetches", 1, 64, Some(1))? as usize,
        file_bytes: file.whole("mib", page_mib, 1 << 20, None)? * MIB,
        page_bytes: page_mib * MIB,
        extent_bytes: file.whole("extent_mib", page_mib, 1 << 20, Some(128))? * MIB,
        seed,
    };
    cluster.done()?;
    file.done()?;
    pfs.done()?;
    root.complete(setup)
}
