//! Cielo and its workload, as in *Optimal Cooperative Checkpointing for Shared High-Performance
//! Computing Platforms*, IPDPSW 2018.

use super::{Class, Platform};

const YEAR_S: f64 = 365.0 * 86_400.0;
const NODES: u32 = 17_784;
/// Cores of a node.
pub const CORES: u32 = 16;
const NODE_BYTES: f64 = 32e9;
/// What a node writes to the tier; the paper has none.
const TIER_BYTES_PER_S: f64 = 1e9;

/// Name, cores, hours; input, output and checkpoint as multiples of the job's memory; share of the
/// platform, to be divided by the sum.
type Apex = (&'static str, u32, f64, [f64; 3], f64);

/// The workload of the APEX request for proposals, as in the authors' simulator.
const APEX: [Apex; 4] = [
    ("EAP", 16_384, 262.4, [0.03, 1.05, 1.6], 0.6),
    ("LAP", 4_096, 64.0, [0.05, 2.2, 1.85], 0.05),
    ("Silverton", 32_768, 128.0, [0.7, 0.43, 3.5], 0.15),
    ("VPIC", 30_000, 157.2, [0.1, 2.7, 0.85], 0.1),
];

/// Cielo with this PFS and these nodes, all of whose failures are permanent.
pub fn cielo(pfs_gb_per_s: f64, node_fails_years: f64) -> Platform {
    let shares: f64 = APEX.iter().map(|class| class.4).sum();
    let class = |&(name, cores, hours, parts, share): &Apex| {
        let nodes = cores / CORES;
        let [input_bytes, output_bytes, checkpoint_bytes] =
            parts.map(|part| part * NODE_BYTES * f64::from(nodes));
        let (name, share, work_s) = (name.into(), share / shares, hours * 3600.0);
        Class { name, nodes, share, work_s, input_bytes, output_bytes, checkpoint_bytes }
    };
    Platform {
        nodes: NODES,
        pfs_bytes_per_s: pfs_gb_per_s * 1e9,
        tier_bytes_per_s: TIER_BYTES_PER_S,
        node_fails_s: node_fails_years * YEAR_S,
        failures: [0.0, 0.0, 1.0, 0.0],
        classes: APEX.iter().map(class).collect(),
    }
}
