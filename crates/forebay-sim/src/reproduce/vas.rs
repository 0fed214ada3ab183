//! Analytics shipping: Xu, Goldstone, Liu, Chen, Neitzel and Yu, *Exploiting Analytics Shipping
//! with Virtualized MapReduce on HPC Backend Storage Servers*, TPDS 2016. Ten storage servers that
//! run MapReduce, with and without locality, and two shuffles.
//!
//! The paper publishes neither compute times nor bandwidths of disks. Tasks compute nothing here,
//! so each time is the time of the I/O, and its changes do not depend on the disks' bandwidth. The
//! data path is that of its Figure 5, without a page cache.

use crate::cluster::{self, JobOutcome, JobSpec, Outcome, Placement, Reduce, Setup, Shipping, Shuffle};
use crate::colocate::HpcSpec;
use crate::colocate::knowledge::Knowledge;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::parallel::{in_parallel, threads};
use crate::report::{Record, Report, number};
use crate::trace::Trace;
use crate::{arrivals::Arrivals, world};

const GB: u64 = 1_000_000_000;
/// Stripes and splits: the paper's.
const STRIPE: u64 = 128 << 20;
/// Slave nodes, and containers of 1 GB in a virtual machine of 6 GB.
const SERVERS: u32 = 10;
const SLOTS: u32 = 6;
/// Bandwidth from a virtual machine to another host (Table 1, case 4), in bytes per second.
const LINK: f64 = 6.1e9 / 8.0;
/// A disk of the paper's kind (7,200 rpm); no record depends on it.
const DISK: f64 = 100e6;
/// Bytes of a client's request.
const REQUEST: u64 = 4 << 20;
/// Number of runs, each with other places of the stripes.
const SEEDS: u64 = 10;
/// Sizes of TeraSort in Figures 8, 9 and 11.
const SIZES_GB: [u64; 4] = [10, 20, 30, 40];

/// What runs MapReduce on the servers: whether it knows where stripes are, and its shuffle.
#[derive(Clone, Copy)]
struct Scheme {
    name: &'static str,
    knows_layout: bool,
    shuffle: Shuffle,
}

const LUSTRE: Scheme = Scheme { name: "YARN-Lustre", knows_layout: false, shuffle: Shuffle::Fetch };
/// The scheme of YARN on HDFS, whose first replica is local.
const LOCALITY: Scheme =
    Scheme { name: "YARN-HDFS, VAS-Locality-Only", knows_layout: true, shuffle: Shuffle::Fetch };
const VAS: Scheme = Scheme { name: "VAS", knows_layout: true, shuffle: Shuffle::Files };
const SCHEMES: [Scheme; 3] = [LUSTRE, LOCALITY, VAS];

impl Scheme {
    fn setup(&self, jobs: Vec<JobSpec>, seed: u64) -> Setup {
        Setup {
            policy: "naive-bb".into(),
            system: None,
            nodes: 1,
            slots: 1,
            tier_bytes: 1,
            extent_bytes: STRIPE,
            page_bytes: 2 << 20,
            fetch_threads: 1,
            locality_wait_ns: 0,
            servers: SERVERS,
            server_bytes_per_s: LINK,
            stripe_bytes: STRIPE,
            placement: Placement::Random,
            layout_known: self.knows_layout,
            read_ahead_bytes: REQUEST,
            write_bytes: REQUEST,
            streams: false,
            shuffle: self.shuffle,
            shipping: Some(Shipping {
                policy: "always".into(),
                slots: SLOTS,
                cpu_times: 1.0,
                io_share: 1.0,
                disk_bytes_per_s: DISK,
            }),
            jobs,
            seed,
            horizon_ns: None,
        }
    }
}

/// A job that only reads.
fn reads(gb: u64) -> JobSpec {
    JobSpec {
        name: "job".into(),
        input_bytes: gb * GB,
        file_bytes: gb * GB,
        split_bytes: STRIPE,
        task_cpu_ns: 0,
        first_task_cpu_ns: None,
        servers: None,
        starts_ns: 0,
        after: None,
        output_bytes: 0,
        spilled_bytes: 0,
        result_bytes: 0,
        reduce: None,
    }
}

/// All bytes are spilled, shuffled and written; a reduce task for each container.
fn tera_sort(gb: u64) -> JobSpec {
    let reduce = Reduce { tasks: SERVERS * SLOTS, bytes: gb * GB, task_cpu_ns: 0 };
    JobSpec { output_bytes: gb * GB, spilled_bytes: gb * GB, reduce: Some(reduce), ..reads(gb) }
}

/// Each map task writes as much as a split has.
fn writes(gb: u64) -> JobSpec {
    JobSpec { output_bytes: gb * GB, ..reads(gb) }
}

/// A job under the schemes, by seeds.
struct Runs(Vec<Vec<Outcome>>);

impl Runs {
    fn of(spec: &JobSpec) -> Result<Self> {
        let runs = SCHEMES.len() * SEEDS as usize;
        let one = |i: usize| {
            let setup = SCHEMES[i / SEEDS as usize].setup(vec![spec.clone()], i as u64 % SEEDS);
            cluster::simulate(&setup, &mut Trace::off())
        };
        let outcomes = in_parallel(runs, threads(None), one).into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Runs(outcomes.chunks(SEEDS as usize).map(<[Outcome]>::to_vec).collect()))
    }

    fn values(&self, scheme: Scheme, of: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        let at = SCHEMES.iter().position(|s| s.name == scheme.name).unwrap_or_default();
        self.0[at].iter().map(of).collect()
    }

    fn mean(&self, scheme: Scheme, of: impl Fn(&Outcome) -> f64) -> Estimate {
        Estimate::of(&self.values(scheme, of))
    }

    /// The change in percent from `base` to a scheme, placement by placement.
    fn change(&self, scheme: Scheme, base: Scheme, of: impl Fn(&Outcome) -> f64 + Copy) -> Estimate {
        Estimate::change_percent(&self.ratios(scheme, base, of))
    }

    fn ratios(&self, scheme: Scheme, base: Scheme, of: impl Fn(&Outcome) -> f64 + Copy) -> Vec<f64> {
        let pairs = self.values(scheme, of).into_iter().zip(self.values(base, of));
        pairs.map(|(ours, base)| ours / base).collect()
    }
}

fn job(outcome: &Outcome) -> &JobOutcome {
    &outcome.jobs[0]
}

fn time(outcome: &Outcome) -> f64 {
    job(outcome).map_ns as f64
}

fn local_percent(outcome: &Outcome) -> f64 {
    let maps = job(outcome).tasks - SERVERS * SLOTS;
    100.0 * f64::from(job(outcome).local) / f64::from(maps)
}

/// Adds the part to the report.
///
/// # Errors
/// If a run does not end.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "VAS: analytics on storage servers");
    report.text(
        "Ten servers with six containers each, splits and stripes of 128 MiB at random places, and the data path of the paper's Figure 5 without a page cache. Tasks compute nothing, because no compute time is printed: changes of times are those of I/O alone.",
    );
    let sorts = SIZES_GB.iter().map(|gb| Runs::of(&tera_sort(*gb))).collect::<Result<Vec<_>>>()?;
    table(report, &sorts[2]);
    let mut records = jobs(&sorts[2])?;
    records.extend(locality(&sorts));
    records.extend(beside()?);
    report.records(records);
    Ok(())
}

/// Times, local map tasks, and bytes of each scheme.
fn table(report: &mut Report, sort: &Runs) {
    let row = |scheme: &Scheme| {
        let cell = |of: fn(&Outcome) -> f64| number(sort.mean(*scheme, of).mean);
        vec![
            scheme.name.to_owned(),
            cell(|o| time(o) * 1e-9),
            cell(local_percent),
            cell(|o| o.link_bytes as f64 / GB as f64),
            cell(|o| o.disk_requests as f64),
        ]
    };
    report.heading(3, "TeraSort of 30 GB");
    let header = ["scheme", "time (s)", "local map tasks (%)", "network (GB)", "disk requests"];
    report.table(&header, &SCHEMES.iter().map(row).collect::<Vec<_>>());
}

const IO_ALONE: &str = "I/O alone: the paper's jobs compute as well";
const NO_LOCKS: &str = "I/O alone; locks, which hold YARN-Lustre up, cost nothing here";

/// Figures 7 and 9.
fn jobs(sort: &Runs) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    // SecondarySort has as much intermediate data as TeraSort; WordCount hardly any.
    let (count, writes) = (Runs::of(&reads(30))?, Runs::of(&writes(30))?);
    for (name, base, [one, all], note) in
        [("hdfs", LOCALITY, [-16.8, -12.4], IO_ALONE), ("lustre", LUSTRE, [-30.3, -25.4], NO_LOCKS)]
    {
        let change = sort.change(VAS, base, time);
        let mean = (2.0 * change.mean + count.change(VAS, base, time).mean) / 3.0;
        let unit = format!("% job time of VAS against {}", base.name);
        let lower = |id: &str, ours: f64, paper: f64| {
            let id = format!("vas/{id}/{name}");
            Record::direction(id, ours, &unit, "below 0", ours < 0.0).beside(paper).note(note)
        };
        records.push(lower("terasort", change.mean, one).over(&change));
        records.push(lower("three-jobs", mean, all));
    }
    for (name, paper, runs) in [("read", 14.6, &count), ("write", 18.7, &writes)] {
        let more = runs.change(VAS, LUSTRE, |outcome| 1.0 / time(outcome));
        let (id, unit) = (format!("vas/dfsio/{name}"), "% bandwidth of VAS against YARN-Lustre");
        let met = more.interval.is_some_and(|(low, _)| low > 0.0);
        let record = Record::direction(id, more.mean, unit, "the interval is above 0", met).over(&more);
        records.push(record.beside(paper).note("the disks are the limit, local or not"));
    }
    let network = sort.change(VAS, LUSTRE, |o| o.link_bytes as f64);
    let requests = sort.change(VAS, LUSTRE, |o| o.disk_requests as f64);
    for (id, paper, change, unit, note) in [
        ("network", -26.7, network, "% network traffic", "bytes; printed is throughput, 'up to'"),
        (
            "disk-requests",
            -62.3,
            requests,
            "% disk requests",
            "8 passes over the data become 6, in larger requests; no page cache",
        ),
    ] {
        records.push(Record::print(format!("vas/{id}"), paper, change.mean, unit).over(&change).note(note));
    }
    Ok(records)
}

/// Figure 8.
fn locality(sorts: &[Runs]) -> Vec<Record> {
    let local = |scheme: Scheme| {
        Estimate::of(&sorts.iter().flat_map(|runs| runs.values(scheme, local_percent)).collect::<Vec<_>>())
    };
    let (ours, yarn) = (local(LOCALITY), local(LUSTRE));
    let unit = "% of the map tasks";
    let ratios = sorts.iter().flat_map(|runs| runs.ratios(LOCALITY, LUSTRE, time));
    let less = Estimate::change_percent(&ratios.collect::<Vec<_>>());
    let job = "% job time of VAS-Locality-Only against YARN-Lustre, all sizes";
    vec![
        Record::print("vas/local/vas", 82.1, ours.mean, unit).over(&ours),
        Record::print("vas/local/lustre", 11.6, yarn.mean, unit).over(&yarn).note("one of ten by chance"),
        Record::direction("vas/locality", less.mean, job, "the interval is below 0", less.below(0.0))
            .over(&less)
            .beside(-4.0)
            .note("'up to'; the disks are the limit, local or not"),
    ]
}

/// A job on eight servers beside I/O phases, with a share of the disks.
fn shipped(spec: JobSpec, io_share: f64) -> Result<world::Outcome> {
    let mut cluster = VAS.setup(vec![spec], 0);
    cluster.servers = 8;
    cluster.shipping = cluster.shipping.map(|s| Shipping { io_share, ..s });
    let hpc = vec![HpcSpec {
        name: "BT-IO".into(),
        compute_ns: 1_000_000_000,
        io_ns: 2_000_000_000,
        phases: 8,
        allowance: 0.05,
        processes: 36,
        starts_ns: 0,
        io_first: false,
        arrivals: Arrivals::Periodic,
        knowledge: Knowledge::default(),
    }];
    let (buffers, memory, horizon_ns) = (None, None, None);
    let setup = world::Setup { cluster, buffers, hpc, memory, faults: Vec::new(), seed: 0, horizon_ns };
    world::simulate(&setup, &mut Trace::off())
}

/// Figure 12, and what isolation is for.
fn beside() -> Result<Vec<Record>> {
    // 20,000 postings, read during the first phase.
    let k_means =
        JobSpec { input_bytes: GB / 50, file_bytes: GB / 200, starts_ns: 1_500_000_000, ..reads(1) };
    let slowdown = |spec: &JobSpec, share: f64| -> Result<f64> {
        Ok(100.0 * shipped(spec.clone(), share)?.hpc[0].slowdown())
    };
    let loss = slowdown(&k_means, 1.0)?;
    let (isolated, not) = (slowdown(&tera_sort(10), 0.1)?, slowdown(&tera_sort(10), 1.0)?);
    let unit = "% longer I/O of BT-IO beside shipped";
    Ok(vec![
        Record::direction(
            "vas/bt-io",
            loss,
            &format!("{unit} K-means"),
            "no visible loss: below 1",
            loss < 1.0,
        )
        .note("20 MB of input; BT-IO: 8 phases of 2 s, assumed"),
        Record::reported("vas/unisolated", not, &format!("{unit} TeraSort, not isolated")),
        Record::checked(
            "vas/isolated",
            isolated,
            &format!("{unit} TeraSort"),
            "less than that",
            isolated < not,
        )
        .note("tasks may take a tenth of each disk"),
    ])
}
