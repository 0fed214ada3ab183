//! Turns of I/O phases: writers that share wait for each other as the cluster's division says, and
//! never for one that is dead.

use crate::common::{Helper, MIB, plain_pfs, wait_for};
use crate::coordinator::Cluster;
use crate::roles::{hear, tell};
use forebay_client::{Client, HpcJobOptions};
use std::path::Path;
use std::time::Duration;

/// Role: a writer whose job shares. For each line that it hears it begins a phase, or writes a
/// megabyte and ends it.
pub fn takes_turns(name: &str, path: &str) {
    // What `forebay run --share` declares for the program that it runs.
    let shares = !name.starts_with("runs");
    let (io, compute) = (Duration::from_secs(1), Duration::from_secs(9));
    let options = HpcJobOptions { shares, io, compute, ..HpcJobOptions::named(name) };
    let job = Client::from_env().open_hpc_job(&options).unwrap();
    while hear().is_some() {
        tell("asks");
        job.phase_begin(MIB, Duration::ZERO).unwrap();
        tell("begun");
        if hear().is_none() {
            break;
        }
        std::fs::write(path, vec![7; MIB as usize]).unwrap();
        job.phase_end().unwrap();
        tell("ended");
    }
}

/// Two nodes, with a coordinator of this division, and a writer on each.
struct Two {
    cluster: Cluster,
    writers: [Helper; 2],
    pfs: tempfile::TempDir,
}

impl Two {
    fn start(division: &str) -> Self {
        let pfs = plain_pfs();
        let cluster = Cluster::start_with(2, pfs.path(), &format!("division = {division:?}\n"));
        let writers = [0, 1].map(|i| writer(&cluster, i, &format!("w{i}"), pfs.path()));
        Two { cluster, writers, pfs }
    }

    /// Writer `i` begins a phase and is in it.
    fn begins(&mut self, i: usize) {
        self.writers[i].say("begin");
        self.writers[i].expect("begun");
    }

    fn ends(&mut self, i: usize) {
        self.writers[i].say("end");
        self.writers[i].expect("ended");
    }

    /// Writer `i` asks for a phase and has to wait.
    fn waits(&mut self, i: usize) {
        self.writers[i].say("begin");
        self.writers[i].expect("asks");
        self.wait_until_waits(i);
    }

    fn wait_until_waits(&self, i: usize) {
        wait_for("it waits for its turn", || {
            let jobs = self.cluster.client(i).hpc_jobs().unwrap();
            jobs.iter().any(|job| job.waits_ms.is_some() && job.phase.is_none())
        });
    }

    fn is_in_phase(&self, i: usize) -> bool {
        let name = format!("w{i}");
        let jobs = self.cluster.client(i).hpc_jobs().unwrap();
        jobs.iter().any(|job| job.name == name && job.node == format!("n{i}") && job.phase.is_some())
    }
}

/// A third writer, on node 0, that waits as well.
fn third(two: &Two) -> Helper {
    let mut third = writer(&two.cluster, 0, "third", two.pfs.path());
    third.say("begin");
    third.expect("asks");
    two.wait_until_waits(0);
    third
}

fn writer(cluster: &Cluster, node: usize, name: &str, pfs: &Path) -> Helper {
    let file = pfs.join(name);
    Helper::start_as(&cluster.socket(node), None, "takes-turns", &[name, file.to_str().unwrap()])
}

#[test]
fn phases_of_writers_that_share_do_not_meet_under_set_10() {
    let mut two = Two::start("set-10");
    two.begins(0);
    two.waits(1);
    let words = crate::common::text(&two.cluster.cli(1, &["jobs", "--hpc"]).stdout);
    assert!(words.contains("for its turn"), "{words}");
    assert!(two.is_in_phase(0) && !two.is_in_phase(1));
    two.ends(0);
    two.writers[1].expect("begun");
    // The first comes again, and now waits itself.
    two.waits(0);
    assert!(two.is_in_phase(1) && !two.is_in_phase(0));
    two.ends(1);
    two.writers[0].expect("begun");
    two.ends(0);
}

#[test]
fn phases_of_the_same_writers_meet_with_fair_shares() {
    let mut two = Two::start("fair-share");
    two.begins(0);
    two.begins(1);
    assert!(two.is_in_phase(0) && two.is_in_phase(1));
}

#[test]
fn a_writer_that_is_killed_in_its_phase_or_while_it_waits_holds_up_nobody() {
    let mut two = Two::start("set-10");
    two.begins(0);
    two.waits(1);
    let mut third = third(&two);
    two.writers[1].kill_9();
    two.writers[0].kill_9();
    third.expect("begun");
}

#[test]
fn a_writer_that_stands_still_while_it_waits_loses_its_place() {
    let mut two = Two::start("set-10");
    two.begins(0);
    two.waits(1);
    let mut third = third(&two);
    crate::common::send_signal(two.writers[1].pid(), libc::SIGSTOP);
    wait_for("it no longer waits", || {
        two.cluster.client(1).hpc_jobs().unwrap().iter().all(|job| job.waits_ms.is_none())
    });
    two.ends(0);
    third.expect("begun");
    crate::common::send_signal(two.writers[1].pid(), libc::SIGCONT);
    two.wait_until_waits(1);
    third.say("end");
    two.writers[1].expect("begun");
}

#[test]
fn nobody_waits_for_a_turn_once_the_coordinator_is_dead_or_hangs() {
    let mut two = Two::start("set-10");
    two.begins(0);
    two.waits(1);
    two.cluster.stop_coordinator();
    two.writers[1].expect("begun");
    assert!(two.is_in_phase(0));
    two.ends(1);
    two.cluster.let_coordinator_go_on();
    wait_for("it answers", || two.cluster.client(1).jobs().is_ok());
    two.waits(1);
    two.cluster.kill_coordinator();
    two.writers[1].expect("begun");
    assert!(two.is_in_phase(0), "they meet");
    two.ends(1);
    two.begins(1);
}

#[test]
fn a_job_that_run_declares_to_share_shares_whatever_its_program_declares() {
    let two = Two::start("set-10");
    let names = ["runs0", "runs1"];
    let mut runs = [0, 1].map(|i| {
        let args = ["run", "--job", names[i], "--share", "--", "sleep", "120"];
        let run = two.cluster.command(i, &args).spawn().unwrap();
        wait_for("the job is there", || {
            two.cluster.client(i).hpc_jobs().unwrap().iter().any(|job| job.name == names[i])
        });
        run
    });
    // Of both no period is known: that makes them a set.
    let [mut first, mut second] = [0, 1].map(|i| writer(&two.cluster, i, names[i], two.pfs.path()));
    first.say("begin");
    first.expect("begun");
    second.say("begin");
    second.expect("asks");
    two.wait_until_waits(1);
    first.say("end");
    second.expect("begun");
    for run in &mut runs {
        crate::common::send_signal(run.id(), libc::SIGTERM);
        run.wait().unwrap();
    }
}
