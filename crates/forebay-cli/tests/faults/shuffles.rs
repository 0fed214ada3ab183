//! Map outputs whose reader's agent restarts. What Spark and MapReduce do with them is tested in
//! Java.

use crate::common::plain_pfs;
use crate::coordinator::Cluster;
use forebay_wire::shuffle::{App, Block};
use std::time::{Duration, Instant};

const BYTES: &[u8] = b"of another node";

fn block(map: u64) -> Block {
    Block { shuffle: 0, map, first: 0, end: 1, from: 0, most: u64::MAX }
}

#[test]
fn a_fetch_waits_for_its_agent_and_what_is_lost_is_said_at_once() {
    let pfs = plain_pfs();
    let mut cluster = Cluster::start(2, pfs.path(), &[]);
    let (reader, writer) = (cluster.client(0), cluster.client(1));
    let driver = reader.begin_shuffles().unwrap();
    driver.set_lives(0, true).unwrap();
    let app: App = driver.app().clone();
    let at_writer = writer.join_shuffles(app.clone()).unwrap();
    let mut output = at_writer.map_output(0, 7).unwrap();
    output.append(BYTES).unwrap();
    output.commit(&[BYTES.len() as u64]).unwrap();

    cluster.kill_agent(0);
    let fetched = std::thread::scope(|scope| {
        let fetched = scope.spawn(|| driver.fetch(vec!["n1".into()], vec![block(7)]));
        let joined = scope.spawn(|| reader.join_shuffles(app.clone()));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!fetched.is_finished() && !joined.is_finished(), "nobody has waited for the agent");
        cluster.start_killed(0);
        joined.join().unwrap().unwrap();
        fetched.join().unwrap().unwrap()
    });
    let mut bytes = vec![0; BYTES.len()];
    assert_eq!(fetched.read_at(0, &mut bytes, 0).unwrap(), BYTES.len());
    assert_eq!(bytes, BYTES);

    let asked = Instant::now();
    let lost = driver.fetch(vec!["n1".into()], vec![block(8)]).unwrap_err();
    assert_eq!(lost.kind(), std::io::ErrorKind::NotFound, "{lost}");
    assert!(asked.elapsed() < Duration::from_secs(10), "an output that is not there was waited for");
}
