//! The lab's cluster: a small one comes up, holds what it promises, and leaves nothing, however it
//! ended.
//!
//! They need root, namespaces, `/dev/fuse` and the packages of the file system, and are left out
//! where something of that is missing. `FOREBAY_REQUIRE_LAB=moosefs,glusterfs,cephfs` makes them
//! fail there instead, for those file systems that it names.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod cluster;
mod kit;

use cluster::{Lab, entries, text};
use kit::{FOREBAY, succeeded, wait_for};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn moosefs_serves_two_nodes_and_leaves_nothing() {
    life("moosefs");
}

#[test]
fn glusterfs_serves_two_nodes_and_leaves_nothing() {
    life("glusterfs");
}

#[test]
fn cephfs_serves_two_nodes_and_leaves_nothing() {
    life("cephfs");
}

fn life(pfs: &'static str) {
    let Some(lab) = Lab::possible(pfs) else { return };
    succeeded(&mut lab.up());
    assert!(!lab.traces().is_empty(), "the search for traces finds nothing even now");
    nodes_are_machines_of_their_own(&lab);
    links_are_shaped_and_counted(&lab);
    stores_are_bounded(&lab);
    changes_are_seen_by_others(&lab);
    let again = lab.up().output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("is up already"), "{again:?}");
    succeeded(&mut lab.forebay(&["down"]));
    lab.assert_nothing_left();
    assert!(
        succeeded(&mut lab.forebay(&["down"])).contains("no lab"),
        "a second time there is nothing to end"
    );
}

/// Files that a program creates have the layouts that it was run with, and those that the file
/// system does not take are there all the same. `shown` prints the layouts of files.
fn layouts(pfs: &'static str, [taken, refused]: [&str; 2], shown: &str, expected: [&str; 3]) {
    let Some(lab) = Lab::possible(pfs) else { return };
    succeeded(&mut lab.up());
    let script = format!(
        "cd $FOREBAY_LAB_PFS && {FOREBAY} run --layout \"$PWD/*.yes={taken}\" --layout \"$PWD/*.no={refused}\" \
         --write-back $PWD -- python3 -c 'for n in (\"a.yes\", \"b.no\", \"c\", \"d.no\"): open(n, \"x\").write(n)' && \
         cat a.yes b.no c d.no >&2 && for f in a.yes b.no c; do {shown}; done; {FOREBAY} layout a.yes >&2"
    );
    let output = lab.run("c1", &["sh", "-c", &script]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("a.yesb.nocd.no"), "{said}");
    assert_eq!(said.matches("is created without the layout").count(), 1, "{said}");
    assert!(said.contains("  stripes of "), "{said}");
    assert_eq!(text(&output).lines().collect::<Vec<_>>(), expected, "{said}");
    succeeded(&mut lab.forebay(&["down"]));
}

#[test]
fn moosefs_gives_new_files_the_storage_class_of_their_layout() {
    let shown = "mfsgetsclass -n $f | sed 's/.* //'";
    layouts("moosefs", ["pool:3", "stripes:2"], shown, ["3", "1", "1"]);
}

#[test]
fn cephfs_gives_new_files_their_layout_before_the_first_byte() {
    let shown = r#"python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "ceph.file.layout").decode())' $f | cut -d' ' -f1-3"#;
    let default = "stripe_unit=4194304 stripe_count=1 object_size=4194304";
    let laid = "stripe_unit=1048576 stripe_count=2 object_size=4194304";
    layouts("cephfs", ["stripes:2,size:1MiB", "pool:nosuch"], shown, [laid, default, default]);
}

fn nodes_are_machines_of_their_own(lab: &Lab) {
    assert_eq!(text(&lab.run("c2", &["uname", "-n"])), "c2");
    assert_eq!(lab.run("c2", &["sh", "-c", "exit 7"]).status.code(), Some(7));
    let own = "echo $FOREBAY_LAB_NODE > $FOREBAY_LAB_DIR/node/who; cat $FOREBAY_LAB_DIR/node/who";
    assert_eq!(text(&lab.run("c1", &["sh", "-c", own])), "c1");
    assert_eq!(text(&lab.run("pfs-s2", &["sh", "-c", own])), "pfs-s2");
    assert_eq!(text(&lab.run("c1", &["cat", lab.dir.path().join("node/who").to_str().unwrap()])), "c1");
    assert!(lab.run("c1", &["getent", "hosts", "pfs-s2"]).status.success());
    let agent = lab.run("c2", &[FOREBAY, "status"]);
    assert!(agent.status.success(), "{}", String::from_utf8_lossy(&agent.stderr));
    let everywhere = lab.forebay(&["run"]).args(["--all", "--", "uname", "-n"]).output().unwrap();
    let mut lines: Vec<_> = text(&everywhere).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["c1: c1", "c2: c2"]);
    let nowhere = lab.run("c3", &["true"]);
    let message = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(!nowhere.status.success() && message.contains("no node `c3`"), "{message}");
}

fn links_are_shaped_and_counted(lab: &Lab) {
    const SIZE_BYTES: u64 = 20 << 20;
    let write = "head -c 20971520 /dev/urandom > $FOREBAY_LAB_PFS/f && sync $FOREBAY_LAB_PFS/f && sha256sum $FOREBAY_LAB_PFS/f";
    let written = lab.run("c1", &["sh", "-c", write]);
    let received = lab.status()["servers_received_bytes"].as_u64().unwrap();
    assert!((SIZE_BYTES..2 * SIZE_BYTES).contains(&received), "the servers received {received} bytes");
    succeeded(&mut lab.forebay(&["mark"]));
    assert!(lab.status()["servers_sent_bytes"].as_u64().unwrap() < SIZE_BYTES / 10);
    let read = lab.run("c2", &["sh", "-c", "sha256sum $FOREBAY_LAB_PFS/f"]);
    assert_eq!(text(&read), text(&written));
    assert!(text(&read).contains("/pfs/f"), "{read:?}");
    let status = lab.status();
    let sent = status["servers_sent_bytes"].as_u64().unwrap();
    assert!((SIZE_BYTES..2 * SIZE_BYTES).contains(&sent), "the servers sent {sent} bytes");
    let servers = status["nodes"].as_array().unwrap().iter().filter(|n| n["role"] == "server");
    let line: Value = serde_json::from_str(&succeeded(&mut lab.forebay(&["traffic"]))).unwrap();
    assert!(line["servers_sent_bytes"].as_u64().unwrap() >= sent, "{line}");
    assert!(line["nodes"]["c2"]["received_bytes"].as_u64().unwrap() >= SIZE_BYTES, "{line}");
    the_tier_spares_the_servers(lab);
    let rates: Vec<_> = servers.map(|n| n["rates"].clone()).collect();
    let rate = serde_json::json!({ "send_bytes_per_s": 40_000_000, "receive_bytes_per_s": 40_000_000 });
    assert_eq!(rates, [rate.clone(), rate]);
    links_change_their_rate(lab);
    let compute = status["nodes"].as_array().unwrap().iter().filter(|n| n["role"] == "compute");
    for node in compute {
        assert_eq!((&node["mounted"], &node["rates"]), (&Value::Bool(true), &Value::Null), "{node}");
        for service in node["services"].as_array().unwrap() {
            assert_eq!(service["running"], true, "{node}");
        }
    }
}

fn links_change_their_rate(lab: &Lab) {
    for (rate, expected) in [("20MB/s", Some(20_000_000)), ("unlimited", None), ("40MB/s", Some(40_000_000))]
    {
        succeeded(&mut lab.forebay(&["links", rate]));
        let status = lab.status();
        for server in status["nodes"].as_array().unwrap().iter().filter(|n| n["role"] == "server") {
            let rates = serde_json::json!({ "send_bytes_per_s": expected, "receive_bytes_per_s": expected });
            assert_eq!(server["rates"], rates, "{server}");
        }
    }
}

/// Read through the agents of both nodes, a file leaves the servers once, and then not again.
fn the_tier_spares_the_servers(lab: &Lab) {
    let fetched = || {
        let of = |node| {
            let out = lab.run(node, &[FOREBAY, "status", "--json"]);
            let status: Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(status["cluster"]["view"]["nodes"].as_array().unwrap().len(), 2, "{status}");
            status["counters"]["fetched_bytes"].as_u64().expect("a counter of what was fetched")
        };
        of("c1") + of("c2")
    };
    let cat = format!("{FOREBAY} cat $FOREBAY_LAB_PFS/f | sha256sum | cut -c 1-64");
    let straight = text(&lab.run("c1", &["sh", "-c", "sha256sum $FOREBAY_LAB_PFS/f | cut -c 1-64"]));
    // A file so recently changed that its time stamps may not distinguish its versions is not
    // cached yet.
    wait_for("the file in the tier", || {
        assert_eq!(text(&lab.run("c1", &["sh", "-c", &cat])), straight);
        fetched() >= 20 << 20
    });
    let once = fetched();
    for node in ["c1", "c2"] {
        assert_eq!(text(&lab.run(node, &["sh", "-c", &cat])), straight);
    }
    assert_eq!(fetched(), once, "fetched again");
}

/// What the servers keep takes memory up to `--store`, whichever node writes.
fn stores_are_bounded(lab: &Lab) {
    const STORE_BYTES: u64 = 512 << 20;
    let store =
        |server: &str| lab.dir.path().join("servers").join(server).join("store").display().to_string();
    let used = ["pfs-s1", "pfs-s2"].map(|server| {
        let look = lab.run(server, &["stat", "-f", "-c", "%S %b %f", &store(server)]);
        let numbers: Vec<u64> = text(&look).split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers[0] * numbers[1], STORE_BYTES, "{server}");
        numbers[0] * (numbers[1] - numbers[2])
    });
    assert!(used.iter().sum::<u64>() >= 20 << 20, "the file lies elsewhere: {used:?}");
    let fill = format!("head -c 600M /dev/zero > {0}/fill; wc -c < {0}/fill; rm {0}/fill", store("pfs-s1"));
    let filled = lab.run("pfs-s1", &["sh", "-c", &fill]);
    assert!(String::from_utf8_lossy(&filled.stderr).contains("No space left"), "{filled:?}");
    assert!(text(&filled).parse::<u64>().unwrap() <= STORE_BYTES, "{filled:?}");
}

/// What Forebay relies on to distinguish versions of a file, for a change that leaves the size as
/// it was.
fn changes_are_seen_by_others(lab: &Lab) {
    let version = || text(&lab.run("c2", &["sh", "-c", "stat -c '%i %s %.9Y %.9Z' $FOREBAY_LAB_PFS/f"]));
    let before = version();
    // MooseFS keeps whole seconds.
    std::thread::sleep(Duration::from_millis(1100));
    let change = "dd if=/dev/urandom of=$FOREBAY_LAB_PFS/f bs=1M seek=16 count=1 conv=notrunc,fsync";
    assert!(lab.run("c1", &["sh", "-c", change]).status.success());
    wait_for("another version on the other node", || version() != before);
    let sums = ["c1", "c2"].map(|node| text(&lab.run(node, &["sh", "-c", "sha256sum $FOREBAY_LAB_PFS/f"])));
    assert_eq!(sums[0], sums[1]);
}

/// Starts `up`, kills it as soon as `moment` has come, and clears up.
fn killed_when(what: &str, moment: impl Fn(&Lab) -> bool) {
    let Some(lab) = Lab::possible("moosefs") else { return };
    let mut up: Child = lab.up().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(what, || moment(&lab));
    up.kill().unwrap();
    assert!(!up.wait().unwrap().success(), "`up` had come to its end before: {what}");
    assert!(!lab.traces().is_empty(), "nothing was there to be cleared");
    let status = lab.forebay(&["status"]).output().unwrap();
    assert!(!status.status.success(), "half a lab passes for a whole one");
    succeeded(&mut lab.forebay(&["down"]));
    lab.assert_nothing_left();
}

#[test]
fn an_up_killed_while_it_makes_the_network_is_cleared() {
    killed_when("a namespace", |lab| {
        entries("/run/netns").iter().any(|n| n.to_string_lossy().contains(&format!("forebay-{}-", lab.name)))
    });
}

#[test]
fn an_up_killed_while_servers_start_is_cleared() {
    killed_when("a master", |lab| lab.processes().iter().any(|(_, name)| name == "mfsmaster"));
}

#[test]
fn an_up_killed_with_clients_mounted_is_cleared() {
    killed_when("a client", |lab| lab.processes().iter().any(|(_, name)| name == "mfsmount"));
}

#[test]
fn an_up_clears_what_a_killed_one_has_left() {
    let Some(lab) = Lab::possible("moosefs") else { return };
    let mut up: Child = lab.up().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("a master", || lab.processes().iter().any(|(_, name)| name == "mfsmaster"));
    up.kill().unwrap();
    up.wait().unwrap();
    succeeded(&mut lab.up());
    assert!(lab.run("c2", &["sh", "-c", "echo x > $FOREBAY_LAB_PFS/f"]).status.success());
    succeeded(&mut lab.forebay(&["down"]));
    lab.assert_nothing_left();
}

#[test]
fn a_lab_without_its_record_is_cleared_from_what_the_kernel_shows() {
    let Some(lab) = Lab::possible("moosefs") else { return };
    succeeded(&mut lab.up());
    // A program that ignores the request to end, and one node whose name is gone.
    let mut stubborn = lab.forebay(&["run"]);
    stubborn.args(["--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]);
    let mut stubborn = stubborn.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stubborn.stdout.take().unwrap()), &mut ready)
        .unwrap();
    std::fs::remove_file(format!("/run/forebay-lab/{}.json", lab.name)).unwrap();
    let name = format!("forebay-{}-c2", lab.name);
    assert!(Command::new("ip").args(["netns", "del", &name]).status().unwrap().success());
    succeeded(&mut lab.forebay(&["down"]));
    assert!(!stubborn.wait().unwrap().success());
    lab.assert_nothing_left();
}

/// A client of the PFS that stands still, and a program that closes a file of it in the middle of
/// an `exec`: until the client is gone nobody can look at that program, and a process that tries
/// hangs as well.
#[test]
fn a_program_that_hangs_in_an_exec_does_not_hold_up_the_end() {
    let Some(lab) = Lab::possible("moosefs") else { return };
    succeeded(&mut lab.up());
    hangs_in_an_exec(&lab, "$FOREBAY_LAB_PFS/f", "mfsmount");
}

/// The same with a FUSE server that the lab has not started and does not know by name.
#[test]
fn a_program_that_hangs_on_a_fuse_mount_of_its_own_does_not_hold_up_the_end() {
    let Some(lab) = Lab::possible("glusterfs") else { return };
    succeeded(lab.up().arg("--no-agents"));
    let serve = format!(
        "cd $FOREBAY_LAB_DIR/node && mkdir back mnt && cp {} own-server && \
         ./own-server slowfs --backing $PWD/back --mount $PWD/mnt --rate unlimited --daemonize",
        env!("CARGO_BIN_EXE_forebay-lab")
    );
    let served = lab.run("c1", &["sh", "-c", &serve]);
    assert!(served.status.success(), "{served:?}");
    hangs_in_an_exec(&lab, "$FOREBAY_LAB_DIR/node/mnt/f", "own-server");
}

/// Stops `server` while a program on c1 closes `file` in the middle of an `exec`, and ends the lab.
fn hangs_in_an_exec(lab: &Lab, file: &str, server: &str) {
    let hang = "import os, signal, sys\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n\
        file = open(os.path.expandvars(sys.argv[1]), 'w')\n\
        print(os.getpid(), flush=True)\n\
        signal.sigwait([signal.SIGUSR1])\n\
        os.execvp('sleep', ['sleep', '1000'])";
    let mut program = lab.forebay(&["run"]);
    program.args(["--node", "c1", "--", "python3", "-c", hang, file]);
    let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    let mut said = std::io::BufReader::new(program.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut pid).unwrap();
    let signal = |name: &str, to: &str| {
        assert!(Command::new("kill").args([name, to]).status().unwrap().success());
    };
    let servers = lab.processes_called(server);
    let there = succeeded(Command::new("ip").args(["netns", "pids", &format!("forebay-{}-c1", lab.name)]));
    let here = servers.iter().filter(|server| there.lines().any(|pid| pid == *server));
    assert_eq!(here.map(|server| signal("-STOP", server)).count(), 1);
    signal("-USR1", pid.trim());
    wait_for("the program to hang", || {
        let mut look = Command::new("timeout");
        look.args(["1", "cat"]).arg(format!("/proc/{}/stat", pid.trim())).stdout(Stdio::null());
        look.status().unwrap().code() == Some(124)
    });
    let mut down = Command::new("timeout");
    down.args(["60", FOREBAY, "lab", "down", "--name", &lab.name]).env_remove("FOREBAY_LAB");
    let ended = down.status().unwrap();
    if !ended.success() {
        // Or nobody could look at the program ever again.
        servers.iter().for_each(|server| signal("-KILL", server));
    }
    assert!(ended.success(), "{ended}");
    program.wait().unwrap();
    lab.assert_nothing_left();
}

#[test]
fn moosefs_ends_in_time_whichever_daemon_was_killed_under_fsync() {
    ends_in_time("moosefs", &["mfsmaster", "mfschunkserver", "mfsmount"]);
}

#[test]
fn glusterfs_ends_in_time_whichever_daemon_was_killed_under_fsync() {
    ends_in_time("glusterfs", &["glusterfsd", "glusterfs"]);
}

#[test]
fn cephfs_ends_in_time_whichever_daemon_was_killed_under_fsync() {
    ends_in_time("cephfs", &["ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse"]);
}

/// For each daemon a lab: programs write and fsync, the daemon is killed, and `down` neither waits
/// for it nor leaves a program.
fn ends_in_time(pfs: &'static str, daemons: &[&str]) {
    const BOUND: Duration = Duration::from_secs(30);
    for daemon in daemons {
        let Some(lab) = Lab::possible(pfs) else { return };
        succeeded(lab.up().arg("--no-agents"));
        let mut programs = ["c1", "c2"].map(|node| fsync_in_a_loop(&lab, node));
        let victims = lab.processes_called(daemon);
        assert!(!victims.is_empty(), "no {daemon} runs");
        assert!(Command::new("kill").arg("-KILL").args(&victims).status().unwrap().success());
        wait_for("the daemon's end", || lab.processes_called(daemon).is_empty());
        // Time for the programs to get stuck.
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        let down = lab.forebay(&["down"]).output().unwrap();
        let took = start.elapsed();
        assert!(down.status.success(), "{daemon}: {}", String::from_utf8_lossy(&down.stderr));
        assert!(took < BOUND, "{daemon}: `down` took {took:?}");
        for program in &mut programs {
            program.wait().unwrap();
        }
        lab.assert_nothing_left();
    }
}

/// A program on a node that writes and fsyncs until it is killed or fails; it has done so once when
/// this returns.
fn fsync_in_a_loop(lab: &Lab, node: &str) -> Child {
    let code = "import os\n\
        name = os.environ['FOREBAY_LAB_PFS'] + '/' + os.environ['FOREBAY_LAB_NODE']\n\
        file = os.open(name, os.O_RDWR | os.O_CREAT)\n\
        for i in range(1 << 30):\n \
            os.pwrite(file, bytes(1 << 20), (i % 8) << 20)\n \
            os.fsync(file)\n \
            if i == 0: print('on', flush=True)";
    let mut program = lab.forebay(&["run"]);
    program.args(["--node", node, "--", "python3", "-c", code]).stderr(Stdio::null());
    let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(program.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
    assert_eq!(said.trim(), "on", "the program on {node} could not write");
    program
}

/// Whether control groups for cores can be made here, tried in another way than the lab does.
fn groups_can_be_made() -> bool {
    let has_cpu = |root: &Path| {
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        // In version 2 the controller must be passed on, which is refused in many containers.
        let gives = || std::fs::write(root.join("cgroup.subtree_control"), "+cpu").is_ok();
        root.join("cpu.shares").exists()
            || controllers.split_whitespace().any(|name| name == "cpu") && gives()
    };
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"].map(Path::new);
    roots.into_iter().filter(|root| has_cpu(root)).any(|root| {
        let group = root.join(format!("forebaytry{}", std::process::id()));
        std::fs::create_dir(&group).and_then(|()| std::fs::remove_dir(&group)).is_ok()
    })
}

/// A tenth of a core is used up by a busy loop immediately, so what it gets is what it may have.
#[test]
fn a_node_has_its_cores_and_no_more() {
    let Some(lab) = Lab::possible("moosefs") else { return };
    let up = lab.up().args(["--cpus", "0.1"]).output().unwrap();
    let said = String::from_utf8_lossy(&up.stderr);
    if !up.status.success() && said.contains("control groups") && !groups_can_be_made() {
        return eprintln!("left out: {said}");
    }
    assert!(up.status.success(), "{said}");
    assert_eq!(lab.status()["cpus"], 0.1);
    let busy = "import time\n\
        start, used = time.monotonic(), time.process_time()\n\
        while time.monotonic() - start < 1: pass\n\
        print((time.process_time() - used) / (time.monotonic() - start))\n\
        print(open('/proc/self/cgroup').read())";
    let used = |arguments: &[&str]| -> (f64, String) {
        let mut program = lab.forebay(&["run"]);
        program.args(["--node", "c2"]).args(arguments).args(["--", "python3", "-c", busy]);
        let said = succeeded(&mut program);
        let (share, groups) = said.split_once('\n').unwrap();
        (share.parse().unwrap(), groups.to_owned())
    };
    let (share, groups) = used(&[]);
    // One period's worth may have been saved up.
    assert!(share <= 0.2, "{share} of a core");
    let group = format!("/forebay-{}/c2", lab.name);
    assert!(groups.contains(&group), "{groups}");
    assert!(!used(&["--free"]).1.contains(&group), "who is free belongs to no node's cores");
    let out = lab.run("pfs-s1", &["cat", "/proc/self/cgroup"]);
    assert!(out.status.success() && !text(&out).contains(&lab.name), "servers are not limited: {out:?}");
    let agents = succeeded(Command::new("ip").args(["netns", "pids", &format!("forebay-{}-c2", lab.name)]));
    let inside = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&group))
    };
    assert!(agents.split_whitespace().filter(inside).count() >= 2, "agent and mount: {agents}");
    succeeded(&mut lab.forebay(&["down"]));
    lab.assert_nothing_left();
}

/// Both directions of a shared link wait in one token bucket: all bytes pass it, and together they
/// take at least the time that its rate allows. A slower machine only adds to that time.
#[test]
fn reads_beside_a_write_share_a_link_and_writers_are_nodes_of_their_own() {
    const FILE_BYTES: u64 = 8 << 20;
    const RATE_BYTES_PER_S: u64 = 4_000_000;
    // What may leave immediately, and the messages of programs that have started already.
    const SLACK_BYTES: f64 = (512 << 10) as f64;
    let Some(lab) = Lab::possible("moosefs") else { return };
    let mut up = lab.forebay(&["up", "--servers", "1", "--nodes", "2", "--writers", "1", "--shared-links"]);
    up.args(["--rate", "40MB/s", "--store", "1GiB", "--capacity", "64MiB", "--dir"]).arg(lab.dir.path());
    let (place, groups) = (tempfile::tempdir().unwrap(), groups_can_be_made());
    if groups {
        up.args(["--writer-cpus", "0.5", "--server-cpus", "0.8"]);
    }
    up.arg("--profile").arg(profile_in(place.path()));
    succeeded(&mut up);
    a_writer_is_a_client_with_cores_of_its_own(&lab, groups);
    the_coordinator_has_the_profile(&lab);
    assert_eq!(shared_rate(&lab), Some(40_000_000));
    let write = |name: &str| {
        format!("head -c {FILE_BYTES} /dev/urandom > $FOREBAY_LAB_PFS/{name} && sync $FOREBAY_LAB_PFS/{name}")
    };
    assert!(lab.run("c1", &["sh", "-c", &write("f")]).status.success());
    succeeded(&mut lab.forebay(&["links", "4MB/s"]));
    assert_eq!(shared_rate(&lab), Some(RATE_BYTES_PER_S));
    let start = Instant::now();
    succeeded(&mut lab.forebay(&["mark"]));
    let passed_before = bytes_through_the_bucket(&lab);
    let both = [("w1", write("g")), ("c2", "cat $FOREBAY_LAB_PFS/f > /dev/null".to_owned())];
    let programs = both.map(|(node, line)| {
        lab.forebay(&["run"]).args(["--node", node, "--", "sh", "-c", &line]).spawn().unwrap()
    });
    for mut program in programs {
        assert!(program.wait().unwrap().success());
    }
    let passed = bytes_through_the_bucket(&lab) - passed_before;
    let status = lab.status();
    let elapsed_s = start.elapsed().as_secs_f64();
    let counted = |name: &str| status[name].as_u64().unwrap();
    let (sent, received) = (counted("servers_sent_bytes"), counted("servers_received_bytes"));
    assert!(sent >= FILE_BYTES && received >= FILE_BYTES, "sent {sent}, received {received}");
    assert!(passed >= 2 * FILE_BYTES, "{passed} bytes passed the bucket, {sent} sent, {received} received");
    // Not `sent`: what the bucket has dropped was sent twice, and took none of its time.
    let most = RATE_BYTES_PER_S as f64 * elapsed_s * 1.05 + SLACK_BYTES;
    assert!(passed as f64 <= most, "{passed} bytes passed the bucket in {elapsed_s} s");
    succeeded(&mut lab.forebay(&["links", "unlimited"]));
    assert_eq!(shared_rate(&lab), None);
    assert_eq!(lab.status()["shared_links"], true);
    succeeded(&mut lab.forebay(&["down"]));
    lab.assert_nothing_left();
}

/// A profile whose prefetch takes a time that no default has.
fn profile_in(place: &Path) -> PathBuf {
    let path = place.join("profile.toml");
    let text = "version = 1\n[cluster]\npfs_gb_per_s = 0.04\nnodes = 2\n[profile]\nbytes_gb = 0.1\n\
                prefetch_s = 7.125\ni_hpc = 1.5\ni_bd = 1.25\n";
    std::fs::write(&path, text).unwrap();
    path
}

fn the_coordinator_has_the_profile(lab: &Lab) {
    let log = lab.dir.path().join("nodes/head/decisions/decisions-000001.log");
    wait_for("the decision log has its first line", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("7.125"))
    });
}

fn a_writer_is_a_client_with_cores_of_its_own(lab: &Lab, groups: bool) {
    let status = lab.status();
    let writer = status["nodes"].as_array().unwrap().iter().find(|n| n["name"] == "w1").unwrap();
    assert_eq!((&writer["role"], &writer["mounted"]), (&"writer".into(), &true.into()), "{writer}");
    assert!(lab.run("w1", &[FOREBAY, "status"]).status.success(), "the writer's agent does not answer");
    let everywhere = succeeded(lab.forebay(&["run"]).args(["--all", "--", "true"]));
    assert!(!everywhere.contains("w1"), "{everywhere}");
    if groups {
        assert_eq!((&status["writer_cpus"], &status["server_cpus"]), (&0.5.into(), &0.8.into()));
        for node in ["w1", "pfs-s1"] {
            let group = format!("/forebay-{}/{node}", lab.name);
            let out = lab.run(node, &["cat", "/proc/self/cgroup"]);
            assert!(text(&out).contains(&group), "{out:?}");
        }
    }
}

/// The rate of the only server's link as `status` reports it; each direction has none of its own.
fn shared_rate(lab: &Lab) -> Option<u64> {
    let status = lab.status();
    let server = status["nodes"].as_array().unwrap().iter().find(|n| n["role"] == "server").unwrap();
    let rates = &server["rates"];
    assert!(rates["send_bytes_per_s"].is_null() && rates["receive_bytes_per_s"].is_null(), "{rates}");
    rates["both_bytes_per_s"].as_u64()
}

/// What the kernel has let through the bucket of the only server's link.
fn bytes_through_the_bucket(lab: &Lab) -> u64 {
    let mut tc = Command::new("tc");
    tc.args([
        "-n",
        &format!("forebay-{}-switch", lab.name),
        "-s",
        "-j",
        "qdisc",
        "show",
        "dev",
        "ifb-pfs-s1",
    ]);
    let queues: Value = serde_json::from_str(&succeeded(&mut tc)).unwrap();
    queues.as_array().unwrap().iter().find(|queue| queue["kind"] == "tbf").unwrap()["bytes"].as_u64().unwrap()
}

#[test]
fn a_directory_with_something_in_it_is_refused_and_left_alone() {
    let Some(lab) = Lab::possible("moosefs") else { return };
    let precious = lab.dir.path().join("precious");
    std::fs::write(&precious, "x").unwrap();
    let up = lab.up().output().unwrap();
    assert!(String::from_utf8_lossy(&up.stderr).contains("is not empty"), "{up:?}");
    succeeded(&mut lab.forebay(&["down"]));
    assert_eq!(std::fs::read(&precious).unwrap(), b"x");
    std::fs::remove_file(precious).unwrap();
}

#[test]
fn what_a_lab_cannot_be_is_refused_before_anything_is_made() {
    for (arguments, why) in [
        (&["up", "--name", "a-b"][..], "cannot be named"),
        (&["up", "--dir", "relative"], "absolute"),
        (&["up", "--rate", "0MB/s"], "zero"),
        (&["up", "--cpus", "0"], "number of cores"),
        (&["up", "--writers", "33"], "at most 32"),
        (&["up", "--store", "100MiB"], "each needs at least"),
        (&["down", "--name", "../x"], "cannot be named"),
        (&["status", "--name", "nosuchlab"], "no lab `nosuchlab` is up"),
    ] {
        let out =
            Command::new(FOREBAY).arg("lab").args(arguments).env_remove("FOREBAY_LAB").output().unwrap();
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && message.contains(why), "{arguments:?}: {message}");
    }
}
