//! Everything that the papers publish, and what we have beside it.
//!
//! A published result is a record with the paper's number, or an item of [`NOT_REPRODUCED`].
//! Numbers that follow from other published ones, inputs, and what only a figure shows are not
//! results.

use crate::report::{Class, Printed, Record, Report, number};

/// Results that have two records: the second predicts what the first was fitted on, and counts.
pub const PREDICTED: [(&str, &str); 3] = [
    ("eley/table5/", "eley/table5-left-out/"),
    ("bb/catalyst/sjf/", "bb/catalyst/predicted/sjf/"),
    ("bb/catalyst/fcfs/", "bb/catalyst/predicted/fcfs/"),
];

/// Parts whose numbers come from formulas. The numbers of all others come from simulated events.
const FORMULAS: [&str; 2] = ["tls/", "dynims/"];

/// Results without a run: the part that they belong to, where they are, how many they are, what
/// they say, and why we have nothing beside them.
type Item = (&'static str, &'static str, usize, &'static str, &'static str);

const NO_WORDCOUNT: &str = "its compute and prefetch times are not printed";
const NO_CACHE: &str = "no model of the servers' page cache and cores";
const NO_LOCKS: &str = "no model of contention for locks";
const NO_COMPUTE: &str = "the compute times of the job's phases are not printed";
const OTHER_PROGRAM: &str = "cost of another program";

const NOT_REPRODUCED: &[Item] = &[
    ("eley", "2017, Figure 1", 2, "Wordcount: map time -43 % by NoAction, IOR beside it -12 %", NO_WORDCOUNT),
    ("eley", "2017, Figure 2", 1, "IOR +17 % under NoAction beside Wordcount", NO_WORDCOUNT),
    ("eley", "2018, section 7.1", 2, "Wordcount's cost at 5 and 15 %: 75 and 21 %", NO_WORDCOUNT),
    (
        "eley",
        "2018, Table 4",
        6,
        "estimated IOR time of 5 iterations, 3 % from the observed ones in the mean",
        "the estimates belong to moments of a measured run that are not printed",
    ),
    (
        "tls",
        "Figure 2-12",
        4,
        "TeraSort: map 5.4 and 4.2 times as fast as on HDFS and OrangeFS; reduce 1.9 and 4.5 times with 4 and 12 data nodes",
        NO_COMPUTE,
    ),
    (
        "tls",
        "Figures 2-13, 2-15",
        3,
        "K-means: 3.6 and 1.6 times as fast as on OrangeFS and HDFS; 15.5 % slower with 75 % in memory",
        NO_COMPUTE,
    ),
    (
        "dynims",
        "section 3.4.2",
        1,
        "random reads 25 % slower than sequential ones",
        "no model of the data nodes' page cache",
    ),
    (
        "dynims",
        "Figure 3-9",
        2,
        "Spark 5.1 times as fast as with 25 GB of its own cache, which is 1.3 times slower than Alluxio",
        "the size of the data as objects is not printed",
    ),
    (
        "dynims",
        "Figure 3-10",
        20,
        "K-means with 80 to 400 GB and four settings, in minutes",
        "no model of its compute",
    ),
    (
        "dynims",
        "section 3.3",
        2,
        "monitoring: 0.3 to 1.0 % of a core, stream processing below 10 %",
        OTHER_PROGRAM,
    ),
    (
        "dynims",
        "section 3.5",
        3,
        "control of 256 nodes: 17.3 and 4.8 cores; 1,280 nodes on 24 cores",
        OTHER_PROGRAM,
    ),
    (
        "vas",
        "Figure 4",
        2,
        "storage servers beside TeraSort on other disks: sequential reads -11.9 %, random reads -15.2 %",
        NO_CACHE,
    ),
    ("vas", "Figure 7", 2, "TestDFSIO against HDFS: reads +69.7 %, writes +108 %", "no model of HDFS"),
    ("vas", "Figure 7", 1, "YARN on HDFS up to 16.2 % faster than on Lustre", NO_LOCKS),
    (
        "vas",
        "Figure 8",
        3,
        "map input -21.4 and -15 %, reduce write -19.3 %",
        "no model of the order in which a disk serves requests",
    ),
    ("vas", "Figure 10", 1, "best split size 128 MB", "the start of a container is not printed"),
    ("vas", "Figure 11", 3, "reads of map output: -55.2, -15.9 and -69 % by locks on the servers", NO_LOCKS),
    ("vas", "section 4.1.3", 1, "25 s to start the virtual machines", OTHER_PROGRAM),
];

/// How far a record is from the published number, in percent of it.
fn off_percent(record: &Record) -> Option<f64> {
    let (paper, difference) = record.paper.zip(record.difference)?;
    Some(if difference == 0.0 { 0.0 } else { 100.0 * difference / paper.abs() })
}

/// Whether another record covers the same published result.
fn is_predicted(record: &Record) -> bool {
    PREDICTED.iter().any(|(fitted, _)| record.id.starts_with(fitted))
}

/// Adds the chapter, on the parts in `parts` or on everything.
pub fn chapter(report: &mut Report, parts: &[&str], everything: bool) {
    let (mut printed, mut rows) = (Printed::default(), Vec::new());
    for record in report.all_records().iter().filter(|r| r.paper.is_some() && !is_predicted(r)) {
        let formula = FORMULAS.iter().any(|part| record.id.starts_with(part));
        let (counter, how) = match (record.class, record.met) {
            (Class::Fitted, _) => (&mut printed.fitted, "fitted on it"),
            (Class::Print, Some(true)) if formula => (&mut printed.computed, "within 5 %, formula"),
            (Class::Print, Some(true)) => (&mut printed.simulated, "within 5 %, simulation"),
            (Class::Print, _) => (&mut printed.off, "off"),
            _ => (&mut printed.direction, "direction only"),
        };
        *counter += 1;
        rows.push(vec![
            record.id.clone(),
            record.paper.map_or("-".into(), number),
            number(record.ours),
            record.unit.clone(),
            off_percent(record).filter(|off| off.is_finite()).map_or("-".into(), number),
            how.into(),
            record.note.clone(),
        ]);
    }
    let items = || NOT_REPRODUCED.iter().filter(|item| everything || parts.contains(&item.0));
    printed.not_reproduced = items().map(|item| item.2).sum();
    report.printed(printed);
    report.heading(2, "What the papers print");
    report.text(&format!("{} {}", printed.headline(), printed.rest()));
    report.text(
        "*Direction only*: our run has another workload or other moments, or the paper prints a bound.",
    );
    report.table(&["what", "paper", "ours", "unit", "off (%)", "compared", "note"], &rows);
    report.heading(3, "Not reproduced");
    let row = |&(paper, place, count, what, why): &Item| {
        [paper.to_uppercase(), place.into(), count.to_string(), what.into(), why.into()].to_vec()
    };
    report.table(&["paper", "where", "results", "printed", "why not"], &items().map(row).collect::<Vec<_>>());
}
