//! Planners during I/O phases when what they believe turns out wrong: several jobs of both kinds, a
//! job that ends while its wave is delayed, and a clock that steps.

use crate::common::{MIB, make_file, pfs_with, plain_pfs, wait_for};
use crate::coordinator::{Cluster, EXTENT, SEED, begin_with, run_task};
use forebay_client::{Client, HpcJob, HpcJobOptions, Job};
use forebay_wire::PlanLog;
use std::time::Duration;

/// A job that knows its phases and has an hour for each.
fn hpc(client: &Client, name: &str) -> HpcJob {
    let hour = Duration::from_secs(3600);
    let options = HpcJobOptions { io: hour, allowance_permille: 1000, ..HpcJobOptions::named(name) };
    client.open_hpc_job(&options).unwrap()
}

/// A job whose phases may not take longer than alone: a planner that delays waits for their end.
fn strict(client: &Client, name: &str) -> HpcJob {
    let io = Duration::from_secs(3600);
    let options = HpcJobOptions { io, allowance_permille: 0, ..HpcJobOptions::named(name) };
    client.open_hpc_job(&options).unwrap()
}

fn slots(count: u32) -> Vec<(String, u32)> {
    (0..2).map(|node| (format!("n{node}"), count)).collect()
}

fn plans(cluster: &Cluster) -> PlanLog {
    cluster.client(0).plans(1000).unwrap()
}

fn is_over(cluster: &Cluster, client: usize) -> bool {
    cluster.client(client).jobs().is_ok_and(|jobs| jobs.iter().all(|job| job.ended))
}

#[test]
fn plans_for_two_analytics_jobs_heed_the_phases_of_two_hpc_jobs() {
    let pfs = plain_pfs();
    let paths = ["one", "two"].map(|name| pfs.path().join(name));
    paths.iter().for_each(|path| make_file(path, SEED, 16 * EXTENT));
    let mut cluster = Cluster::start_with(2, pfs.path(), "planner = \"forebay\"\n");
    let clients = [0, 1].map(|node| cluster.client(node));
    let writers = [hpc(&clients[0], "ocean"), hpc(&clients[1], "air")];
    let jobs: Vec<(Job, u32)> =
        (0..2).map(|i| begin_with(&clients[i], &paths[i], slots(2), |_| String::new())).collect();
    let (_, tasks) = jobs[0];
    for task in 0..tasks {
        // Phases begin and end while tasks run, those of one job during those of the other.
        let (writer, beside) = (&writers[task as usize % 2], &writers[(task as usize + 1) % 2]);
        if task % 4 < 2 {
            writer.phase_begin(8 * MIB, Duration::ZERO).unwrap();
        }
        for i in 0..2 {
            run_task(&cluster, &jobs[i].0, &paths[i], task);
        }
        if task % 4 >= 2 {
            beside.phase_end().unwrap();
        }
    }
    wait_for("all phases are known", || {
        plans(&cluster).phases.iter().filter(|phase| phase.observed_ms.is_some()).count() == 8
    });
    let log = plans(&cluster);
    let planned =
        |job: usize| log.plans.iter().filter(|plan| plan.came_bytes > 0 && plan.job == "app").nth(job);
    assert!(planned(1).is_some(), "nothing was prefetched: {log:?}");
    assert!(log.plans.iter().any(|plan| plan.phases.len() == 2), "a plan heeds both HPC jobs: {log:?}");
    for (node, client) in clients.iter().enumerate() {
        let status = client.hpc_jobs().unwrap();
        let own = status.iter().find(|job| job.node == format!("n{node}")).unwrap();
        assert_eq!(own.ended, 4, "{own:?}");
    }
    drop(jobs);
    wait_for("nothing is kept for the jobs", || cluster.sum("planned_bytes") == 0);
    let text = cluster.end_and_replay();
    assert!(text.contains("ocean") && text.contains("air"));
}

#[test]
fn a_job_that_ends_while_its_wave_is_delayed_leaves_nothing_and_the_next_one_is_planned() {
    let (pfs, path) = pfs_with("data", SEED, 16 * EXTENT);
    let mut cluster = Cluster::start_with(2, pfs.path(), "planner = \"full-delay\"\n");
    let clients = [0, 1].map(|node| cluster.client(node));
    let writer = strict(&clients[1], "sim");
    writer.phase_begin(8 * MIB, Duration::ZERO).unwrap();
    wait_for("the coordinator knows the phase", || plans(&cluster).phases.len() == 1);
    let begin = || begin_with(&clients[0], &path, slots(2), |_| String::new());
    let (job, _) = begin();
    wait_for("its wave is delayed", || plans(&cluster).plans.iter().any(|p| p.began_in_ms.is_none()));
    // A task that is early reads by itself.
    run_task(&cluster, &job, &path, 0);
    drop(job);
    wait_for("it is over", || is_over(&cluster, 0));
    let fetched = cluster.sum("pages_planned_total");
    writer.phase_end().unwrap();
    wait_for("the phase is over", || plans(&cluster).phases[0].observed_ms.is_some());
    // Two heartbeats later there is still nothing for it.
    std::thread::sleep(Duration::from_millis(2000));
    assert_eq!((cluster.sum("pages_planned_total"), cluster.sum("planned_bytes")), (fetched, 0));
    assert_eq!(fetched, 0, "the wave was not delayed");
    let (job, tasks) = begin();
    wait_for("the next job's wave comes", || cluster.sum("pages_planned_total") > 0);
    (0..tasks).for_each(|task| run_task(&cluster, &job, &path, task));
    drop(job);
    wait_for("nothing is kept for it", || cluster.sum("planned_bytes") == 0);
    cluster.end_and_replay();
}

/// The clock of node 1 is two hours ahead, steps back and forth, and is two hours back when its
/// agent is started again.
#[test]
fn a_clock_that_steps_on_one_node_ends_no_phase_and_no_membership() {
    let (pfs, path) = pfs_with("data", SEED, 8 * EXTENT);
    let mut cluster = Cluster::start_with(2, pfs.path(), "planner = \"forebay\"\n");
    let (library, clock) = (pfs.path().join("clock.so"), pfs.path().join("clock"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/clock.c");
    let mut cc = std::process::Command::new("cc");
    let built = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]).status().unwrap();
    assert!(built.success());
    let ahead_by = |seconds: u64| {
        let file = std::fs::File::options().create(true).write(true).truncate(false).open(&clock).unwrap();
        file.set_len(seconds).unwrap();
    };
    ahead_by(7200);
    let env = || vec![("LD_PRELOAD".into(), library.clone()), ("FOREBAY_TEST_CLOCK".into(), clock.clone())];
    let start_again = |cluster: &mut Cluster| {
        let epoch = cluster.epoch(0);
        cluster.start_again(1, env());
        wait_for("it is back", || {
            cluster.epoch(0) > epoch
                && cluster.epoch(0) == cluster.epoch(1)
                && cluster.status(1).cluster.connected
        });
        cluster.wait_members(2);
    };
    start_again(&mut cluster);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", cluster.status(1).pid)).unwrap();
    assert!(maps.contains("clock.so"), "its clock is right");
    let epoch = cluster.epoch(0);

    let writer = hpc(&cluster.client(1), "sim");
    writer.phase_begin(8 * MIB, Duration::ZERO).unwrap();
    let client = cluster.client(0);
    let (job, tasks) = begin_with(&client, &path, slots(2), |_| String::new());
    for task in 0..tasks {
        ahead_by([0, 1_000_000, 7200, 0][task as usize % 4]);
        run_task(&cluster, &job, &path, task);
        writer.phase_progress(u64::from(task) * MIB).unwrap();
    }
    // Longer than a lease, and than a node may be silent.
    std::thread::sleep(Duration::from_secs(4));
    let own = cluster.client(1).hpc_jobs().unwrap().into_iter().find(|job| job.name == "sim").unwrap();
    let phase = own.phase.as_ref().expect("the phase is under way");
    assert!(!phase.is_behind && own.cut_off == 0 && own.lasted_ms < 3_600_000, "{own:?}");
    assert_eq!((cluster.sum("brakes_total"), cluster.epoch(0)), (0, epoch), "a member has gone");
    writer.phase_end().unwrap();
    wait_for("its end is known", || plans(&cluster).phases.iter().any(|phase| phase.observed_ms.is_some()));
    drop(job);
    wait_for("nothing is kept for the job", || cluster.sum("planned_bytes") == 0);

    ahead_by(0);
    start_again(&mut cluster);
    cluster.end_and_replay();
}
