//! A user whose jobs change all the time, along with another user's job: real agents, a real
//! coordinator.

use crate::common::{Helper, MIB, OTHER_UID, make_file, plain_pfs, wait_for};
use crate::coordinator::{Cluster, EXTENT, SEED, begin, run_task};
use crate::roles::{Raw, hear, say};
use forebay_client::Client;
use forebay_wire::{JobUpdate, Part, Reply, Request, Split};
use std::path::Path;

/// Each report makes the coordinator think again, about as much as a user may report.
#[test]
fn a_user_that_keeps_the_coordinator_busy_costs_no_member_and_no_plan() {
    let pfs = plain_pfs();
    let data = pfs.path().join("data");
    make_file(&data, SEED, 8 * EXTENT);
    let cluster = Cluster::start(2, pfs.path(), &[512 * MIB, 512 * MIB]);
    let epoch = cluster.epoch(0);
    let start = |node: usize| {
        let socket = cluster.socket(node);
        Helper::start_as(
            &socket,
            Some(OTHER_UID),
            "churn",
            &[socket.to_str().unwrap(), data.to_str().unwrap()],
        )
    };
    let mut busy = [start(0), start(1)];
    busy.iter_mut().for_each(|helper| drop(helper.expect("began")));
    let (job, tasks) = begin(&cluster.client(0), &data, 2);
    let ours = || {
        let jobs = cluster.client(1).jobs().unwrap_or_default();
        jobs.into_iter().find(|job| job.name == "app").and_then(|job| job.stages.into_iter().next())
    };
    wait_for("another user's job is planned", || ours().is_some_and(|stage| !stage.waves.is_empty()));
    for task in 0..tasks {
        run_task(&cluster, &job, &data, task);
    }
    wait_for("its tasks are known to have ended", || ours().is_some_and(|stage| stage.tasks_done == tasks));
    let reported: u64 = busy.iter_mut().map(|helper| helper.expect("reported").parse::<u64>().unwrap()).sum();
    assert!(reported > 10_000, "only {reported} reports");
    assert_eq!(cluster.epoch(0), epoch, "a member was lost");
    busy.into_iter().for_each(Helper::finish);
    drop(job);
}

/// Reports large jobs and the ends of their tasks, one by one.
pub fn churn(socket: &str, path: &str) {
    let file = Client::from_env().file_ref(path).unwrap();
    let split = |task: u64| {
        let part = Part { file: 0, offset: task % 8 * EXTENT, len: EXTENT };
        Split { parts: vec![part], preferred_node: String::new() }
    };
    let raws: Vec<Raw> = (0..4).map(|_| Raw::connect(Path::new(socket))).collect();
    let done = |raw: &Raw, update| assert_eq!(raw.ask(&Request::JobUpdates(vec![update]), &[]), Reply::Done);
    for raw in &raws {
        done(raw, JobUpdate::Begin { name: "churn".into(), planner: "forebay".into() });
        done(raw, JobUpdate::Slots(vec![("n0".into(), 7), ("n1".into(), 5)]));
        done(raw, JobUpdate::Files(vec![file.clone()]));
        for stage in 0..2 {
            for _ in 0..4 {
                done(raw, JobUpdate::Splits { stage, splits: (0..2500).map(split).collect() });
            }
            done(raw, JobUpdate::StageReady { stage });
        }
    }
    say("began");
    let mut reported = 0;
    for task in 0..300 {
        for (raw, stage) in raws.iter().flat_map(|raw| [(raw, 0), (raw, 1)]) {
            done(raw, JobUpdate::TaskStarted { stage, task, host: "n1".into() });
            done(raw, JobUpdate::TaskEnded { stage, task, ok: task % 3 > 0, run_ms: 10 });
            done(raw, JobUpdate::Slots(vec![("n0".into(), 7 + task % 2), ("n1".into(), 5)]));
            reported += 3;
        }
    }
    say(&format!("reported {reported}"));
    while hear().is_some() {}
}
