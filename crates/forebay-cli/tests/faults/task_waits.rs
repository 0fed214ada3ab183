//! Tasks that wait for input that is delayed for an I/O phase: until it is there, and for nobody
//! that is dead.

use crate::common::{MIB, PATIENCE, counter, make_file, plain_pfs, text, wait_for};
use crate::coordinator::{Cluster, EXTENT, SEED};
use forebay_client::{Client, HpcJob, HpcJobOptions, Job};
use forebay_wire::{JobUpdate, Part, Split};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const TASKS: u32 = 4;

/// Kills something on which the wait depends.
type Death = fn(Delayed) -> Delayed;

/// Two nodes, a phase that is under way on the second, and an application whose first wave is two
/// tasks that have slots on the first.
struct Delayed {
    cluster: Cluster,
    writer: HpcJob,
    /// The driver's job.
    job: Job,
    path: PathBuf,
    _pfs: tempfile::TempDir,
}

impl Delayed {
    fn start(lines: &str) -> Self {
        let pfs = plain_pfs();
        let path = pfs.path().join("data");
        make_file(&path, SEED, u64::from(TASKS) * EXTENT);
        let cluster = Cluster::start_with(2, pfs.path(), &format!("planner = \"full-delay\"\n{lines}"));
        let writer = cluster.client(1).open_hpc_job(&HpcJobOptions::named("writer")).unwrap();
        // Nobody knows how long it takes: nothing is prefetched during it.
        writer.phase_begin(MIB, Duration::ZERO).unwrap();
        wait_for("the coordinator hears of the phase", || {
            let log = cluster.client(0).plans(10).unwrap();
            !log.phases.is_empty()
        });
        let client = cluster.client(0);
        let job = client.begin_job("app", "").unwrap();
        let file = client.file_ref(&path).unwrap();
        let part = |task: u32| Part { file: 0, offset: u64::from(task) * EXTENT, len: EXTENT };
        let split = |task| Split { parts: vec![part(task)], preferred_node: "n0".into() };
        job.report(&[
            JobUpdate::TasksAsk,
            JobUpdate::Slots(vec![("n0".into(), 2)]),
            JobUpdate::Files(vec![file]),
            // Tasks know their partitions only.
            JobUpdate::Partitions { stage: 3, partitions: (0..TASKS).map(|task| 10 + task).collect() },
            JobUpdate::Splits { stage: 3, splits: (0..TASKS).map(split).collect() },
            JobUpdate::StageReady { stage: 3 },
        ])
        .unwrap();
        let started = |task| JobUpdate::TaskStarted { stage: 3, task, host: "n0".into() };
        job.report(&[started(0), started(1)]).unwrap();
        Delayed { cluster, writer, job, path, _pfs: pfs }
    }

    /// Whether task 0 may read, asked once. Its node is not that of the phase.
    fn asks(&self) -> std::io::Result<bool> {
        self.cluster.client(0).task_may_read("app", 3, 10)
    }

    fn is_shown(&self) -> bool {
        text(&self.cluster.cli(0, &["jobs"]).stdout).contains("2 waiting for their input")
    }

    fn waits(&self) {
        assert!(!self.asks().unwrap(), "it may read beside the phase");
        wait_for("it is shown that two tasks wait", || self.is_shown());
        assert_eq!(self.cluster.sum("fetched_bytes"), 0, "something was fetched beside the phase");
    }

    /// Waits until the task may read, in the time that a test has.
    fn may_read(client: &Client) {
        let began = Instant::now();
        while !client.task_may_read("app", 3, 10).unwrap() {
            assert!(began.elapsed() < PATIENCE, "it still waits");
        }
    }
}

#[test]
fn a_task_waits_until_the_phase_is_over_and_its_input_is_there() {
    let mut delayed = Delayed::start("");
    delayed.waits();
    delayed.writer.phase_end().unwrap();
    Delayed::may_read(&delayed.cluster.client(0));
    assert!(!delayed.is_shown());
    let waves = delayed.cluster.client(0).jobs().unwrap()[0].stages[0].waves.clone();
    assert_eq!(waves[0].fetched_bytes, 2 * EXTENT, "the first wave is in the tier");
    // What it reads now is a hit.
    let client = delayed.cluster.client(0);
    crate::cluster::read_piece(&client, &delayed.path, SEED, 0, EXTENT as usize);
    assert_eq!(counter(&delayed.cluster.status(0), "fetch_requests_total"), 0);
    // A stage of which nothing was reported, and a job that nobody knows, wait for nothing.
    delayed.job.report(&[JobUpdate::StageReady { stage: 4 }]).unwrap();
    assert!(client.task_may_read("app", 4, 0).unwrap());
    assert!(client.task_may_read("another", 3, 10).unwrap());
    let log = delayed.cluster.end_and_replay();
    assert!(log.contains("may_read") && log.contains("task_asks"), "{log}");
}

#[test]
fn nobody_waits_for_longer_than_the_limit() {
    let delayed = Delayed::start("task_wait_s = 3\n");
    delayed.waits();
    // The phase continues.
    Delayed::may_read(&delayed.cluster.client(0));
    let phases = delayed.cluster.client(1).hpc_jobs().unwrap();
    assert!(phases.iter().any(|job| job.phase.is_some()), "{phases:?}");
}

#[test]
fn a_limit_of_zero_means_that_tasks_never_wait() {
    let delayed = Delayed::start("task_wait_s = 0\n");
    assert!(delayed.asks().unwrap());
    assert!(!delayed.is_shown());
}

#[test]
fn tasks_read_when_the_writer_dies_or_the_coordinator_or_the_driver_or_their_agent() {
    let deaths: [(&str, Death); 4] = [
        ("writer", |delayed| {
            let Delayed { cluster, writer, job, path, _pfs } = delayed;
            drop(writer);
            let writer = cluster.client(1).open_hpc_job(&HpcJobOptions::named("another")).unwrap();
            Delayed { cluster, writer, job, path, _pfs }
        }),
        ("coordinator", |mut delayed| {
            delayed.cluster.kill_coordinator();
            delayed
        }),
        ("coordinator that hangs", |delayed| {
            delayed.cluster.stop_coordinator();
            delayed
        }),
        ("driver", |delayed| {
            let Delayed { cluster, writer, job, path, _pfs } = delayed;
            drop(job);
            let job = cluster.client(0).begin_job("the next", "").unwrap();
            Delayed { cluster, writer, job, path, _pfs }
        }),
    ];
    for (who, dies) in deaths {
        let delayed = Delayed::start("");
        delayed.waits();
        let client = delayed.cluster.client(0);
        // One that waits in this moment, and one that asks afterwards.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Delayed::may_read(&client));
            let after = dies(delayed);
            waiting.join().unwrap_or_else(|_| panic!("{who}"));
            Delayed::may_read(&after.cluster.client(0));
        });
    }
    // Without an agent the question fails immediately, and the task continues.
    let mut delayed = Delayed::start("");
    delayed.waits();
    let client = delayed.cluster.client(0);
    delayed.cluster.kill_agent(0);
    assert!(client.task_may_read("app", 3, 10).is_err());
}
