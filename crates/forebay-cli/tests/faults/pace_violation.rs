//! An agent that ignores the pace of its prefetch requests.

use crate::common::{MIB, pfs_with, wait_for};
use crate::coordinator::{Cluster, Played, SEED, begin_with};
use forebay_client::{HpcJob, HpcJobOptions};
use forebay_wire::JobUpdate;
use forebay_wire::cluster::{NodeInfo, RequestProgress, ToAgent, ToCoordinator};
use std::time::{Duration, Instant};

/// What was requested of the played agent.
#[derive(Default)]
struct Heard {
    requests: Vec<u64>,
    paused: Vec<u64>,
    resumed: usize,
}

impl Heard {
    fn hear(&mut self, agent: &mut Played) {
        for message in agent.hear() {
            match message {
                ToAgent::Fetch(request) => self.requests.push(request.request),
                ToAgent::Adjust { request, threads: 0, .. } => self.paused.push(request),
                ToAgent::Adjust { .. } => self.resumed += 1,
                _ => {}
            }
        }
        agent.beat();
    }
}

fn progress(request: u64, fetched_bytes: u64, done: bool) -> ToCoordinator {
    ToCoordinator::Progress(RequestProgress {
        request,
        fetched_bytes,
        resident_bytes: 0,
        failed_bytes: 0,
        done,
    })
}

/// It continues to fetch when a planner has paused its requests for a phase.
#[test]
fn an_agent_that_fetches_in_a_pause_is_logged_and_gets_no_more_requests() {
    let (pfs, path) = pfs_with("data", SEED, 48 * MIB);
    let cluster = Cluster::start_with(1, pfs.path(), "planner = \"forebay\"\n");
    let client = cluster.client(0);
    let real = client.members().unwrap().nodes[0].clone();
    let node = NodeInfo { name: "n1".into(), host: "n1".into(), address: "127.0.0.1:9".into(), ..real };
    let mut agent = Played::join_as(cluster.address(), node);
    cluster.wait_members(2);
    let options =
        HpcJobOptions { io: Duration::from_secs(3600), allowance_permille: 0, ..HpcJobOptions::named("sim") };
    let writer: HpcJob = client.open_hpc_job(&options).unwrap();
    let (job, _) = begin_with(&client, &path, vec![("n1".into(), 12)], |_| "n1".into());
    // Tasks read the first wave by themselves.
    let starts = (0..12).map(|task| JobUpdate::TaskStarted { stage: 0, task, host: "n1".into() });
    job.report(&starts.collect::<Vec<_>>()).unwrap();
    let mut heard = Heard::default();
    wait_for("it is asked for some of the second wave", || {
        heard.hear(&mut agent);
        !heard.requests.is_empty()
    });
    // When one request ends another comes.
    let before = heard.requests.len();
    agent.say(&progress(heard.requests[0], MIB, true));
    wait_for("it is asked for more", || {
        heard.hear(&mut agent);
        heard.requests.len() > before
    });
    writer.phase_begin(8 * MIB, Duration::ZERO).unwrap();
    wait_for("its requests are paused", || {
        heard.hear(&mut agent);
        !heard.paused.is_empty()
    });
    let paused = heard.paused[0];
    let mut fetched_bytes = 0;
    wait_for("the coordinator names it", || {
        fetched_bytes += MIB;
        agent.say(&progress(paused, fetched_bytes, false));
        heard.hear(&mut agent);
        cluster.log("coordinator.log").contains("the node prefetches although its requests are paused")
    });
    assert!(fetched_bytes > 16 * MIB, "it was named for {fetched_bytes} bytes");
    writer.phase_end().unwrap();
    wait_for("what it has goes on", || {
        heard.hear(&mut agent);
        heard.resumed > 0
    });
    let before = heard.requests.len();
    agent.say(&progress(paused, fetched_bytes, true));
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        heard.hear(&mut agent);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heard.requests.len(), before, "it was asked for more");
}
