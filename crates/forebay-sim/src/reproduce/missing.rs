//! What the papers print and the report does not reproduce.
//!
//! Two lists: printed numbers that a run is far from (from the records), and printed results that
//! no run stands for, with the reason.

use crate::report::{Report, number};

/// Paper, what is printed, and why nothing here stands for it.
type Item = (&'static str, &'static str, &'static str);

const WORDCOUNT: &str = "its compute and prefetch times are not printed; Sort's figures stand above, in kind, as Table 4 prints its times";
const NO_VAS: &str =
    "no model of virtual machines on storage servers, of Hadoop's shuffle or of lock contention";
const NO_COMPUTE: &str =
    "the compute times of the job's phases are not printed; the I/O model alone gives the ratio of I/O times";

/// Results without a run.
const ITEMS: &[Item] = &[
    (
        "Eley 2017, Figure 1",
        "Wordcount: map time of Eley-NoAction against NaiveBB -43 %, IOR beside it -12 %",
        WORDCOUNT,
    ),
    ("Eley 2017, Figure 2", "IOR over its time alone under NoAction beside Wordcount: +17 %", WORDCOUNT),
    (
        "Eley 2018, section 7.1",
        "estimated against observed IOR time: 3 % mean difference",
        "needs the measured runs",
    ),
    (
        "Eley 2018, section 7.1",
        "Wordcount's cost at 5 % and 15 %: 75 % and 21 %",
        "its compute and prefetch times are not printed",
    ),
    (
        "VAS",
        "job time against YARN-HDFS -12.4 %, against YARN-Lustre -25.4 %; TeraSort -16.8 % and -30.3 %",
        NO_VAS,
    ),
    ("VAS", "TestDFSIO: read +14.6 % and +69.7 %, write +18.7 % and +108 %", NO_VAS),
    (
        "VAS",
        "map tasks with local data 82.1 %, YARN-Lustre 11.6 %",
        "placement on storage servers has no scenario",
    ),
    (
        "VAS",
        "map input -21.4 %, reduce write -19.3 %, network -26.7 %, disk requests -62.3 %, MOF read 55.2 %",
        NO_VAS,
    ),
    ("VAS", "storage servers beside TeraSort: -11.9 % and -15.2 % without isolation", NO_VAS),
    (
        "TLS",
        "TeraSort 256 GB: map 5.4x faster than HDFS, 4.2x than OrangeFS; reduce 1.9x and 4.5x with 4 and 12 data nodes",
        NO_COMPUTE,
    ),
    (
        "TLS",
        "K-means 256 GB: 3.6x faster than OrangeFS, 1.6x than HDFS; 15.5 % slower with 75 % in memory",
        NO_COMPUTE,
    ),
    (
        "TLS",
        "weak scaling from 8+1 to 64+8 nodes: flat",
        "follows from the model's input, so it would show nothing",
    ),
    (
        "DynIMS, Figure 3-9",
        "Spark 5.1x faster than with 100 GB of the input in Spark's own cache",
        "the size of the data once they are objects is not printed",
    ),
    (
        "DynIMS",
        "monitoring 0.3 to 1.0 % of a core per node; control of 256 nodes 4.8 to 17.3 cores",
        "cost of another program",
    ),
    ("DynIMS", "HPL: speed over utilisation, collapse at 0.5 to 1 % swap", "no model of swap"),
    (
        "DynIMS, Figure 3-10",
        "K-means at 80 to 400 GB",
        "minutes are read off a figure; no model of its compute",
    ),
];

/// Adds the chapter.
pub fn chapter(report: &mut Report) {
    report.heading(2, "Printed, and not reproduced");
    report.heading(3, "Numbers that a run is far from");
    report.text("Numbers that miss their target on the printed one. Where the target is another, those that are off by more than 5 %, relatively.");
    let or_dash = |v: Option<f64>| v.map_or("-".into(), number);
    let far: Vec<Vec<String>> = report
        .all_records()
        .iter()
        .filter(|r| r.differs_from_print())
        .map(|r| vec![r.id.clone(), or_dash(r.paper), number(r.ours), r.unit.clone(), r.note.clone()])
        .collect();
    report.not_reproduced(&["what", "paper", "ours", "unit", "note"], &far);
    report.heading(3, "Results that no run stands for");
    let items: Vec<Vec<String>> =
        ITEMS.iter().map(|(paper, what, why)| [*paper, *what, *why].map(String::from).to_vec()).collect();
    report.not_reproduced(&["paper", "printed", "why not"], &items);
}
