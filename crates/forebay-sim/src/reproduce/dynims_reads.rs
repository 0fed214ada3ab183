//! DynIMS, Figures 3-7 and 3-9: what a larger tier is worth to readers.
//!
//! Four nodes read 320 GB repeatedly, from a tier of 25 GB (static) or of 60 GB (DynIMS, most of
//! the time) on each; the rest comes from data nodes, whose page cache has 160 GB. A tier that
//! keeps what it has, as LFU does, hits as often as its fraction of the data says. One rate is not
//! published, that of the data nodes' disks; it is fitted to the published 32.1.

use crate::report::{Record, Report};

const NODES: f64 = 4.0;
const DATA_GB: f64 = 320.0;
const DATA_NODES_CACHE_GB: f64 = 160.0;
const STATIC_GB: f64 = 25.0;
const DYNIMS_GB: f64 = 60.0;
/// MB/s of a node: its memory and its link (chapter 2).
const MEMORY: f64 = 6267.0;
const LINK: f64 = 1170.0;
/// How many times as fast as without a tier DynIMS reads, as published.
const DYNIMS_TIMES: f64 = 32.1;

/// Fraction of the data that tiers of `tier_gb` on each node hold.
fn hits(tier_gb: f64) -> f64 {
    (NODES * tier_gb / DATA_GB).min(1.0)
}

/// Seconds per MB of a node, beside disks of `disk` MB/s, if the data nodes' cache hits as often as
/// it has room: the best that can be.
fn seconds(tier_gb: f64, disk: f64) -> f64 {
    let memory = hits(tier_gb);
    let cached = (DATA_NODES_CACHE_GB / DATA_GB).min(1.0 - memory);
    memory / MEMORY + cached / LINK + (1.0 - memory - cached) / disk
}

/// Adds the figures to the report.
pub fn all(report: &mut Report) {
    report.heading(3, "Figures 3-7 and 3-9: reads beside HPCC");
    report.text(
        "Part of 320 GB that the tiers of four nodes hold, and how much faster than the data nodes' disks a node reads. The disks' rate is \
         not printed and fitted to DynIMS' 32.1; then the rest follows. Without a page cache in the data nodes, 31 % of hits could make \
         reads at most 1.45 times as fast.",
    );
    // With DynIMS nothing is left for the disks.
    let disk = 1.0 / (DYNIMS_TIMES * seconds(DYNIMS_GB, f64::INFINITY));
    let times = |tier_gb: f64| 1.0 / disk / seconds(tier_gb, disk);
    let unit = "times as fast as without a tier";
    let (fixed, dynamic) = (times(STATIC_GB), times(DYNIMS_GB));
    let spark = dynamic / fixed;
    report.records(vec![
        Record::print("dynims/hits/static", 31.0, 100.0 * hits(STATIC_GB), "% of reads"),
        Record::print("dynims/hits/dynims", 75.0, 100.0 * hits(DYNIMS_GB), "% of reads"),
        Record::print("dynims/read/dynims", DYNIMS_TIMES, dynamic, unit)
            .note(format!("with disks of {disk:.0} MB/s for each node"))
            .fitted(),
        Record::print("dynims/read/static", 7.8, fixed, unit)
            .note("the printed figure needs more hits than the tier and the data nodes' cache have room for"),
        Record::direction(
            "dynims/spark/static",
            spark,
            "times as fast with DynIMS, if jobs did nothing but read",
            "not below the printed figure, which has compute in it",
            spark >= 3.8,
        )
        .beside(3.8),
    ]);
}
