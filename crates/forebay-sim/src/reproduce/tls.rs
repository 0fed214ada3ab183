//! Two-level storage: TLS, dissertation, chapter 2. Where HDFS overtakes, what memory adds, and the
//! storage mountain.

use forebay_model::storage::{Cluster, Locality, Mountain};

use crate::error::Result;
use crate::plot::heat::Heat;
use crate::plot::lines::Lines;
use crate::report::{Record, Report, number};

/// The paper's cluster: MB/s, a backplane that does not block.
fn palmetto(pfs_gb_per_s: f64) -> Cluster {
    Cluster {
        compute_nodes: 1.0,
        link: 1170.0,
        backplane: f64::INFINITY,
        disk_read: 237.0,
        disk_write: 116.0,
        memory: 6267.0,
        pfs_aggregate: 1000.0 * pfs_gb_per_s,
    }
}

/// More nodes than any crossover needs.
const LIMIT: u32 = 100_000;

/// PFS aggregate in GB/s; the published crossovers for reading with 0, 0.2 and 0.5 in memory, and
/// for writing.
const PRINTED: [(f64, [f64; 3], f64); 2] =
    [(10.0, [43.0, 53.0, 83.0], 259.0), (50.0, [211.0, 262.0, 414.0], 1294.0)];
const HITS: [f64; 3] = [0.0, 0.2, 0.5];
/// Hit ratio, and published aggregates there in GB/s at both PFS. The published gains follow from
/// them.
const AGGREGATES: [(f64, [f64; 2]); 2] = [(0.2, [12.5, 62.0]), (0.5, [19.6, 98.0])];

fn hdfs_read(c: &Cluster) -> f64 {
    c.hdfs_read(Locality::Local)
}

/// Adds the part to the report.
///
/// # Errors
/// If a figure cannot be written.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Two-level storage");
    report.text(
        "Throughput models of HDFS, PFS and two-level storage (TLS), equations re-derived; rho 1170, mu 237 (read) and 116 \
         (write), nu 6267 MB/s.",
    );
    crossovers(report);
    aggregates(report);
    throughput_figure(report)?;
    mountain(report)
}

fn crossovers(report: &mut Report) {
    report.heading(3, "Compute nodes from which HDFS's aggregate is higher");
    let mut records = Vec::new();
    for (pfs, reads, write) in PRINTED {
        let cluster = palmetto(pfs);
        for (hit, printed) in HITS.into_iter().zip(reads) {
            let got = cluster.crossover(LIMIT, hdfs_read, |c| c.tls_read(hit));
            records.push(nodes(format!("tls/read/{pfs}/{hit}"), printed, got));
        }
        let got = cluster.crossover(LIMIT, Cluster::hdfs_write, Cluster::tls_write);
        records.push(nodes(format!("tls/write/{pfs}"), write, got));
    }
    report.records(records);
}

fn nodes(id: String, printed: f64, got: Option<u32>) -> Record {
    Record::print(id, printed, got.map_or(f64::NAN, f64::from), "nodes")
}

/// Aggregate reads at the crossover.
fn aggregates(report: &mut Report) {
    report.heading(3, "Aggregate read throughput where HDFS draws level");
    let mut records = Vec::new();
    for (hit, printed) in AGGREGATES {
        for ((pfs, ..), printed) in PRINTED.into_iter().zip(printed) {
            let cluster = palmetto(pfs);
            let n = cluster.crossover(LIMIT, hdfs_read, |c| c.tls_read(hit)).map_or(f64::NAN, f64::from);
            let got = n * cluster.with_nodes(n).tls_read(hit) / 1000.0;
            let id = format!("tls/aggregate/{pfs}/{hit}");
            records.push(Record::print(id, printed, got, "GB/s"));
        }
    }
    report.records(records);
}

fn throughput_figure(report: &mut Report) -> Result<()> {
    let ns: Vec<f64> = (0..=60).map(|i| 10f64.powf(1.0 + i as f64 / 20.0)).collect();
    for (p, (pfs, reads, _)) in PRINTED.into_iter().enumerate() {
        let line = |name: &str, f: &dyn Fn(&Cluster) -> f64| {
            let points = ns.iter().map(|&n| (n, n * f(&palmetto(pfs).with_nodes(n)) / 1000.0)).collect();
            (name.to_string(), points)
        };
        // HDFS grows without end; values above three times the PFS's bandwidth show nothing more.
        let top = 3.0 * pfs;
        let (name, all): (String, Vec<(f64, f64)>) = line("HDFS", &hdfs_read);
        let hdfs = (name, all.into_iter().filter(|p| p.1 <= top).collect());
        let svg = Lines {
            title: &format!("Aggregate read throughput, PFS of {pfs} GB/s"),
            x_label: "compute nodes",
            y_label: "GB/s",
            log_x: true,
            series: vec![
                hdfs,
                line("PFS", &Cluster::pfs),
                line("TLS, 0.2 in memory", &|c| c.tls_read(0.2)),
                line("TLS, 0.5 in memory", &|c| c.tls_read(0.5)),
            ],
            marks: vec![],
        };
        // Where HDFS draws level with two-level storage, whose series are the third and the fourth.
        let level = |i: usize| (2 + i, (reads[1 + i], AGGREGATES[i].1[p]));
        let svg = svg.figure_beside(&[level(0), level(1)]);
        report.figure(
            &format!("tls-read-{pfs}.svg"),
            &svg,
            "Aggregate read throughput over compute nodes",
        )?;
    }
    Ok(())
}

const GB: f64 = 1e9;
const MB: f64 = 1e6;

/// One compute node of the paper's prototype. The ridges are as measured; the PFS ridge and the
/// request times are fitted to what Figures 2-10 and 2-11 show: below 1 GB/s beyond the tier, below
/// 512 MB/s at 256 GB, and a fall once the skip passes the buffers.
const PROTOTYPE: Mountain = Mountain {
    tier_bytes: 16.0 * GB,
    memory: 13.2 * GB,
    pfs: 0.47 * GB,
    upper_buffer_bytes: MB,
    lower_buffer_bytes: 4.0 * MB,
    access_bytes: MB,
    memory_request_s: 20e-6,
    pfs_request_s: 2e-3,
};

fn mountain(report: &mut Report) -> Result<()> {
    report.heading(3, "Figure 2-9: the storage mountain");
    report.text(
        "Read throughput of one node over data size and skip size, from the model: a tier of 16 GB (where the printed cliff is), \
         buffers of 1 and 4 MB; the PFS ridge of 0.47 GB/s and request times of 20 us and 2 ms are fitted.",
    );
    let sizes: Vec<f64> = (0..=8).map(|i| f64::from(1 << i)).collect();
    let skips = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let read = |size: f64, skip: f64| PROTOTYPE.read(size * GB, skip * MB) / MB;
    let heat = Heat {
        title: "Read throughput (MB/s)",
        columns: skips.iter().map(|s| format!("{s} MB")).collect(),
        x_label: "skip size",
        rows: sizes.iter().map(|s| format!("{s} GB")).collect(),
        y_label: "data size",
        values: sizes.iter().map(|&size| skips.iter().map(|&skip| read(size, skip)).collect()).collect(),
    };
    report.figure("tls-mountain.svg", &heat.figure(), "The storage mountain")?;
    let large = read(256.0, 0.0);
    let beyond = read(32.0, 0.0);
    let fall = read(32.0, 64.0) / beyond;
    report.records(vec![
        Record::print("tls/mountain/memory-ridge", 13_200.0, read(8.0, 0.0), "MB/s").fitted(),
        Record::direction("tls/mountain/beyond-tier", beyond, "MB/s", "below 1000 at 32 GB", beyond < 1000.0)
            .beside(1000.0)
            .fitted(),
        Record::direction("tls/mountain/256", large, "MB/s", "below 512, at 256 GB", large < 512.0)
            .beside(512.0)
            .fitted(),
        Record::direction(
            "tls/mountain/skip",
            fall,
            "of the throughput without skips, at 32 GB and 64 MB",
            "less than half",
            fall < 0.5,
        )
        .fitted()
        .note(format!("at 16 GB, from memory: {}", number(read(16.0, 64.0) / read(16.0, 0.0)))),
    ]);
    Ok(())
}
