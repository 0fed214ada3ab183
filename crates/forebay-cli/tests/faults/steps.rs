//! Steps of HPC jobs that share: writers wait for each other as `cluster.access` says, and never
//! for one that is dead, never ends, or has a coordinator that does not answer.

use crate::common::{Helper, MIB, plain_pfs, text, wait_for};
use crate::coordinator::Cluster;
use crate::roles::{hear, say};
use forebay_client::{Client, HpcJobOptions};
use forebay_wire::StepStatus;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Role: a writer whose job shares. For each line that it reads it begins a phase, or writes a
/// megabyte and ends it. Its phases take `io_ms` alone; `writes_to`: it says where its file is.
pub fn writes_steps(name: &str, path: &str, io_ms: &str, writes_to: &str) {
    // What `forebay run --share` declares for the program that it runs.
    let shares = !name.starts_with("runs");
    let io = Duration::from_millis(io_ms.parse().unwrap());
    let compute = Duration::from_secs(9);
    let options = HpcJobOptions { shares, io, compute, ..HpcJobOptions::named(name) };
    let job = Client::from_env().open_hpc_job(&options).unwrap();
    if writes_to == "yes" {
        job.writes_to(&[(Path::new(path), MIB)]).unwrap();
    }
    while hear().is_some() {
        say("asks");
        job.phase_begin(MIB, Duration::ZERO).unwrap();
        say("begun");
        if hear().is_none() {
            break;
        }
        std::fs::write(path, vec![7; MIB as usize]).unwrap();
        job.phase_end().unwrap();
        say("ended");
    }
}

/// Role: two jobs of one user, whose short steps follow each other without a pause, so that one of
/// them waits whenever the other ends.
pub fn hoards_steps(name: &str) {
    let one = |which: usize| {
        let io = Duration::from_millis(20);
        let options = HpcJobOptions { shares: true, io, ..HpcJobOptions::named(&format!("{name}{which}")) };
        let job = Client::from_env().open_hpc_job(&options).unwrap();
        loop {
            job.phase_begin(MIB, Duration::ZERO).unwrap();
            say("step");
            std::thread::sleep(io);
            job.phase_end().unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one(0));
        scope.spawn(|| one(1));
    });
}

/// Two nodes with a coordinator of this order, and a writer on each.
struct Two {
    cluster: Cluster,
    writers: [Helper; 2],
    pfs: tempfile::TempDir,
}

impl Two {
    fn start(access: &str) -> Self {
        Self::start_with(access, [1000, 1000])
    }

    /// Starts them with writers whose steps take this many milliseconds alone.
    fn start_with(access: &str, io_ms: [u64; 2]) -> Self {
        let pfs = plain_pfs();
        let cluster = Cluster::start_with(2, pfs.path(), &format!("access = {access:?}\n"));
        let writers = [0, 1].map(|i| writer(&cluster, i, &format!("w{i}"), pfs.path(), io_ms[i]));
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
        self.wait_until_waits(&format!("w{i}"));
    }

    fn steps(&self) -> Vec<StepStatus> {
        self.cluster.client(0).overview().unwrap().steps
    }

    /// The coordinator knows that the job waits.
    fn wait_until_waits(&self, name: &str) {
        wait_for("it waits", || self.steps().iter().any(|step| step.name == name && !step.writes));
    }

    fn is_in_phase(&self, i: usize) -> bool {
        let name = format!("w{i}");
        let jobs = self.cluster.client(i).hpc_jobs().unwrap();
        jobs.iter().any(|job| job.name == name && job.node == format!("n{i}") && job.phase.is_some())
    }

    /// A third writer, on node 0, that waits as well.
    fn third(&self, io_ms: u64) -> Helper {
        let mut third = writer(&self.cluster, 0, "third", self.pfs.path(), io_ms);
        third.say("begin");
        third.expect("asks");
        self.wait_until_waits("third");
        third
    }
}

fn writer(cluster: &Cluster, node: usize, name: &str, pfs: &Path, io_ms: u64) -> Helper {
    let (file, io_ms) = (pfs.join(name), io_ms.to_string());
    Helper::start_as(
        &cluster.socket(node),
        None,
        "writes-steps",
        &[name, file.to_str().unwrap(), &io_ms, "no"],
    )
}

#[test]
fn steps_of_writers_that_share_do_not_meet_in_order_of_arrival() {
    for access in ["set-10", "sa-fcfs"] {
        let mut two = Two::start(access);
        two.begins(0);
        two.waits(1);
        let words = text(&two.cluster.cli(1, &["jobs", "--hpc"]).stdout);
        assert!(words.contains("for w0 of user 0; 1.0 s alone; servers unknown"), "{words}");
        assert!(words.contains("to begin an I/O phase"), "{words}");
        assert!(two.is_in_phase(0) && !two.is_in_phase(1));
        two.ends(0);
        two.writers[1].expect("begun");
        // The first comes again, and now waits itself.
        two.waits(0);
        assert!(two.is_in_phase(1) && !two.is_in_phase(0));
        two.ends(1);
        two.writers[0].expect("begun");
        two.ends(0);
        let decided = two.cluster.end_and_replay_of("steps");
        assert_eq!(decided.matches("\"do\":\"grant\"").count(), 3, "{decided}");
    }
}

#[test]
fn the_shortest_step_goes_first_under_sjf() {
    let mut two = Two::start_with("sa-sjf", [1000, 30_000]);
    two.begins(0);
    two.waits(1);
    let mut third = two.third(2000);
    two.ends(0);
    third.expect("begun");
    assert!(!two.is_in_phase(1));
    third.say("end");
    two.writers[1].expect("begun");
}

#[test]
fn steps_of_the_same_writers_meet_under_none() {
    let mut two = Two::start("none");
    two.begins(0);
    two.begins(1);
    assert!(two.is_in_phase(0) && two.is_in_phase(1));
}

/// A file that its PFS reports to be on `server` as a whole.
fn file_on(pfs: &Path, name: &str, server: &str) {
    let path = pfs.join(name);
    std::fs::write(&path, b"").unwrap();
    let layout = format!(r#"{{"stripe_bytes":1073741824,"servers":["{server}"],"first_server":0}}"#);
    rustix::fs::setxattr(
        &path,
        forebay_pfs::layout::LAYOUT_XATTR,
        layout.as_bytes(),
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
}

#[test]
fn steps_on_other_servers_do_not_wait_where_the_order_knows_servers() {
    for (access, meet) in [("sa-fcfs", true), ("set-10", false)] {
        let pfs = plain_pfs();
        let cluster = Cluster::start_with(1, pfs.path(), &format!("access = {access:?}\n"));
        let mut writers = [("a", "x"), ("b", "y"), ("c", "x")].map(|(name, server)| {
            file_on(pfs.path(), name, server);
            let file = pfs.path().join(name);
            let mut writer = Helper::start_as(
                &cluster.socket(0),
                None,
                "writes-steps",
                &[name, file.to_str().unwrap(), "1000", "yes"],
            );
            writer.say("begin");
            writer.expect("asks");
            wait_for("its step is there", || {
                cluster.client(0).overview().unwrap().steps.iter().any(|step| step.name == name)
            });
            writer
        });
        writers[0].expect("begun");
        let steps = cluster.client(0).overview().unwrap().steps;
        let step = |name: &str| steps.iter().find(|step| step.name == name).unwrap();
        assert_eq!((step("b").writes, step("c").writes), (meet, false), "{steps:?}");
        assert_eq!(step("c").waits_for, ["a of user 0"]);
        assert_eq!(step("b").servers, ["y"]);
        for writer in &mut writers {
            writer.say("end");
            writer.expect("ended");
        }
    }
}

#[test]
fn a_writer_that_is_killed_in_its_step_or_while_it_waits_holds_up_nobody() {
    let mut two = Two::start("sa-fcfs");
    two.begins(0);
    two.waits(1);
    let mut third = two.third(1000);
    two.writers[1].kill_9();
    two.writers[0].kill_9();
    third.expect("begun");
}

#[test]
fn a_node_that_is_silent_loses_the_tokens_of_its_writers() {
    let mut two = Two::start_with("sa-fcfs", [600_000, 1000]);
    two.begins(0);
    two.waits(1);
    two.cluster.stop_agent(0);
    two.writers[1].expect("begun");
    two.cluster.let_agent_go_on(0);
    two.ends(1);
}

#[test]
fn a_writer_that_stands_still_while_it_waits_loses_its_place() {
    let mut two = Two::start("sa-fcfs");
    two.begins(0);
    two.waits(1);
    let mut third = two.third(1000);
    crate::common::send_signal(two.writers[1].pid(), libc::SIGSTOP);
    wait_for("it no longer waits", || two.steps().iter().all(|step| step.name != "w1"));
    two.ends(0);
    third.expect("begun");
    crate::common::send_signal(two.writers[1].pid(), libc::SIGCONT);
    two.wait_until_waits("w1");
    third.say("end");
    two.writers[1].expect("begun");
}

#[test]
fn a_step_that_never_ends_holds_up_others_for_three_times_what_it_takes() {
    let mut two = Two::start_with("sa-fcfs", [400, 1000]);
    two.begins(0);
    two.waits(1);
    two.writers[1].expect("begun");
    assert!(text(&two.cluster.cli(1, &["jobs", "--hpc"]).stdout).contains("w1"));
    let decided = two.cluster.end_and_replay_of("steps");
    assert!(decided.contains("\"do\":\"revoke\"") || decided.contains("\"is\":\"done\""), "{decided}");
}

#[test]
fn nobody_waits_once_the_coordinator_is_dead_or_hangs() {
    let mut two = Two::start("sa-fcfs");
    two.begins(0);
    two.waits(1);
    two.cluster.stop_coordinator();
    two.writers[1].expect("begun");
    assert!(two.is_in_phase(0));
    two.ends(1);
    two.cluster.let_coordinator_go_on();
    wait_for("it answers", || two.cluster.client(1).jobs().is_ok());
    two.ends(0);
    two.begins(0);
    two.waits(1);
    two.cluster.kill_coordinator();
    two.writers[1].expect("begun");
    assert!(two.is_in_phase(0), "they meet");
    two.ends(1);
    two.begins(1);
}

#[test]
fn no_step_waits_for_longer_than_its_node_allows() {
    let mut two = Two::start_with("sa-fcfs", [600_000, 1000]);
    two.begins(0);
    two.cluster.reload(1, "[cluster]\n", "[cluster]\naccess_wait_s = 1\n");
    let mut late = writer(&two.cluster, 1, "late", two.pfs.path(), 1000);
    late.say("begin");
    late.expect("asks");
    late.expect("begun");
    assert!(two.is_in_phase(0), "they meet");
    wait_for("both write", || two.steps().iter().filter(|step| step.writes).count() == 2);
    let mut cluster = two.cluster;
    drop(two.writers);
    let decided = cluster.end_and_replay_of("steps");
    assert!(decided.contains("\"because\":\"begun\""), "it has not waited");
}

/// Another user's jobs have a short step waiting whenever one ends. A long one waits for its
/// patience only: half of what any job may wait.
#[test]
fn a_user_whose_short_steps_never_cease_does_not_starve_another() {
    let pfs = plain_pfs();
    let cluster = Cluster::start_with(2, pfs.path(), "access = \"sa-sjf\"\naccess_wait_s = 4\n");
    let mut hoarder = Helper::start_as(&cluster.socket(0), Some(1234), "hoards-steps", &["short"]);
    hoarder.expect("step");
    let mut long = writer(&cluster, 1, "long", pfs.path(), 30_000);
    long.say("begin");
    long.expect("begun");
    let mut cluster = cluster;
    hoarder.kill_9();
    drop(long);
    let decided = cluster.end_and_replay_of("steps");
    assert!(decided.contains("\"because\":\"overdue\""), "it was let in for another reason");
}

/// `forebay run --share` of a program that writes 64 KiB at a time and declares nothing.
fn unchanged(cluster: &Cluster, name: &str, file: &Path, blocks: u32) -> Child {
    let script = format!(
        "import os, time\nf = os.open({file:?}, os.O_CREAT | os.O_WRONLY)\nfor i in range({blocks}):\n    \
         os.write(f, bytes(65536))\n    time.sleep(0.005)\n"
    );
    let args = ["run", "--job", name, "--share", "--", "python3", "-c", &script];
    let mut run = cluster.command(0, &args);
    run.env("FOREBAY_PRELOAD", crate::intercept::library()).stdin(Stdio::null()).spawn().unwrap()
}

fn bytes_of(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.len())
}

#[test]
fn a_program_that_declares_nothing_is_held_at_a_write_until_it_is_let_in() {
    let mut two = Two::start_with("sa-fcfs", [600_000, 1000]);
    two.begins(0);
    let (file, blocks) = (two.pfs.path().join("unchanged"), 600);
    let mut run = unchanged(&two.cluster, "unchanged", &file, blocks);
    two.wait_until_waits("unchanged");
    let mut last = 0;
    wait_for("its file no longer grows", || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut last, bytes_of(&file)) == last
    });
    assert!(last > 0 && last < u64::from(blocks) * 65536, "it is held in its middle: {last}");
    assert!(run.try_wait().unwrap().is_none());
    two.ends(0);
    assert!(run.wait().unwrap().success());
    assert_eq!(bytes_of(&file), u64::from(blocks) * 65536);
}

#[test]
fn a_program_that_is_held_goes_on_when_its_agent_dies() {
    let mut two = Two::start_with("sa-fcfs", [600_000, 1000]);
    two.begins(1);
    let (file, blocks) = (two.pfs.path().join("unchanged"), 600);
    let mut run = unchanged(&two.cluster, "unchanged", &file, blocks);
    two.wait_until_waits("unchanged");
    two.cluster.kill_agent(0);
    assert!(run.wait().unwrap().success());
    assert_eq!(bytes_of(&file), u64::from(blocks) * 65536);
}

#[test]
fn under_coflow_the_second_of_two_programs_writes_for_a_part_of_the_time() {
    let two = Two::start("coflow");
    let files = ["first", "second"].map(|name| two.pfs.path().join(name));
    let mut first = unchanged(&two.cluster, "first", &files[0], 1000);
    wait_for("it writes", || two.steps().iter().any(|step| step.name == "first"));
    let mut second = unchanged(&two.cluster, "second", &files[1], 1000);
    let paced = || two.steps().into_iter().find(|step| step.name == "second" && step.pace_permille < 1000);
    wait_for("the second is paced", || paced().is_some());
    let words = text(&two.cluster.cli(0, &["jobs", "--hpc"]).stdout);
    assert!(words.contains("5 % of the time"), "{words}");
    let before = [bytes_of(&files[0]), bytes_of(&files[1])];
    wait_for("the first moves 16 MiB", || bytes_of(&files[0]) >= before[0] + 16 * MIB);
    let moved = bytes_of(&files[1]) - before[1];
    assert!(moved < 8 * MIB, "the second has moved {moved} bytes meanwhile");
    assert!(first.wait().unwrap().success());
    assert!(second.wait().unwrap().success());
    assert_eq!(bytes_of(&files[1]), 1000 * 65536);
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
    // The period of neither is known: that makes them a set.
    let [mut first, mut second] = [0, 1].map(|i| writer(&two.cluster, i, names[i], two.pfs.path(), 1000));
    first.say("begin");
    first.expect("begun");
    second.say("begin");
    second.expect("asks");
    two.wait_until_waits(names[1]);
    first.say("end");
    second.expect("begun");
    for run in &mut runs {
        crate::common::send_signal(run.id(), libc::SIGTERM);
        run.wait().unwrap();
    }
}
