//! The life of an agent: without root, twice, dropped; loads with a rate; jobs; two writers.

use crate::common::{
    Agent, BASE, FOREBAY, Helper, MIB, OTHER_UID, PAGE, Setup, assert_content, content, make_file,
    open_dir_in, pfs_and_agent, pfs_with, plain_pfs, read_all, text, wait_for,
};
use crate::roles::verify_once;
use forebay_client::{ReadMode, WriteMode};
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

#[test]
fn an_agent_without_root_has_its_tier_kept_for_it() {
    let (pfs, path) = pfs_with("f", 1, 2 * MIB);
    let mut setup = Setup::new(pfs.path());
    setup.backing = "namespace";
    setup.uid = Some(OTHER_UID);
    let mut agent = Agent::start(setup);
    assert!(agent.status().tier.contains("user namespace"), "{}", agent.status().tier);
    verify_once(&agent.client(), &path, 1, 0);
    assert_eq!(agent.used("pages"), 2 * MIB);
    agent.kill_9();
    agent.restart();
    assert_eq!((agent.counter("adopted_files_total"), agent.used("pages")), (1, 2 * MIB));
    let file = agent.client().open_with(&path, ReadMode::TierOnly).unwrap();
    assert_content(&read_all(&file).unwrap(), 1, 0);
    drop(file);

    let keepers = || keepers_of(&agent.state_dir());
    assert_eq!(keepers().len(), 1);
    // SIGTERM leaves the cache to the next agent; dropping ends the keeper.
    let state = agent.state_dir();
    let drop_it = || {
        let mut down = Command::new(agent.dir().join("forebay"));
        std::os::unix::process::CommandExt::uid(&mut down, OTHER_UID);
        std::os::unix::process::CommandExt::gid(&mut down, OTHER_UID);
        down.args(["down", "--drop", "--state-dir"]).arg(&state).env("FOREBAY_SOCKET", agent.socket());
        down.current_dir("/").output().unwrap()
    };
    let out = drop_it();
    assert!(out.status.success(), "{}", text(&out.stderr));
    wait_for("the keeper has ended", || keepers().is_empty());
    let out = drop_it();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("there is nothing to drop"), "{}", text(&out.stderr));
}

/// Processes that keep the tier of `state`.
fn keepers_of(state: &std::path::Path) -> Vec<u32> {
    let wanted = format!("\0keeper\0{}\0", state.display());
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| text(&line).contains(&wanted))
    })
    .collect()
}

#[test]
fn an_agent_refuses_to_start_twice_and_leaves_the_first_alone() {
    let pfs = plain_pfs();
    let mut setup = Setup::new(pfs.path());
    setup.backing = "mount";
    let agent = Agent::start(setup);
    let total = agent.counter("tmpfs_total_bytes");
    let state = agent.state_dir();
    let up = |more: &[&str]| {
        let mut up = Command::new(FOREBAY);
        up.args(["up", "--backing", "mount", "--capacity", "64MiB", "--pfs"]).arg(pfs.path());
        up.arg("--state-dir").arg(&state).args(more).env_remove("FOREBAY_SOCKET").output().unwrap()
    };
    let out = up(&[]);
    assert_eq!(out.status.code(), Some(1));
    let wanted = format!("an agent is running already (process {})", agent.pid());
    assert!(text(&out.stderr).contains(&wanted), "{}", text(&out.stderr));
    // Even one that does not ask first, as a service manager starts it.
    let out = up(&["--foreground"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("another agent has this tier"), "{}", text(&out.stderr));
    assert_eq!((agent.status().pid, agent.counter("tmpfs_total_bytes")), (agent.pid(), total));
}

#[test]
fn down_of_root_names_the_agent_of_a_user_and_each_message_leads_to_its_end() {
    let pfs = plain_pfs();
    let programs = open_dir_in("/tmp");
    let program = programs.path().join("forebay");
    std::fs::copy(FOREBAY, &program).unwrap();
    // Where the agent of a user without a runtime directory is.
    let state = tempfile::Builder::new().prefix("forebay-").tempdir_in("/tmp").unwrap();
    std::os::unix::fs::chown(state.path(), Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    let tier = tempfile::tempdir_in("/dev/shm").unwrap();
    std::os::unix::fs::chown(tier.path(), Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    let socket = state.path().join("agent.sock").to_str().unwrap().to_owned();
    let mut up = Command::new(&program);
    std::os::unix::process::CommandExt::uid(&mut up, OTHER_UID);
    std::os::unix::process::CommandExt::gid(&mut up, OTHER_UID);
    let config = programs.path().join("config.toml");
    let toml = format!(
        "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"64MiB\"\nbacking = \"directory\"\ndirectory = {:?}\n[[mount]]\nlabel = \"pfs\"\nroot = {:?}\n",
        state.path(),
        tier.path(),
        pfs.path()
    );
    std::fs::write(&config, toml).unwrap();
    up.args(["up", "--foreground", "--config"]).arg(&config);
    up.env_remove("FOREBAY_SOCKET").current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    let mut agent = up.spawn().unwrap();
    let root = |args: &[&str], trusts: bool| {
        let mut command = Command::new(FOREBAY);
        command.args(args).env("FOREBAY_SOCKET", "/nowhere/agent.sock").env_remove("FOREBAY_TRUST_UID");
        if trusts {
            command.env("FOREBAY_TRUST_UID", OTHER_UID.to_string());
        }
        let out = command.output().unwrap();
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    wait_for("the agent answers", || {
        assert!(agent.try_wait().unwrap().is_none(), "the agent has ended");
        root(&["status", "--socket", &socket], true).0 == Some(0)
    });
    let (code, said) = root(&["down"], false);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("no agent at /nowhere/agent.sock") && said.contains("other agents of this machine"),
        "{said}"
    );
    assert!(said.contains(&socket) && said.contains("--socket"), "{said}");
    let (code, said) = root(&["down", "--socket", &socket], false);
    let trust = format!("FOREBAY_TRUST_UID={OTHER_UID}");
    assert!(code == Some(1) && said.contains("is not trusted") && said.contains(&trust), "{said}");
    assert!(agent.try_wait().unwrap().is_none(), "it was ended although it is not trusted");
    let (code, said) = root(&["down", "--socket", &socket], true);
    assert!(code == Some(0) && said.contains(&format!("agent {} has ended", agent.id())), "{said}");
    assert!(agent.wait().unwrap().success());
}

#[test]
fn dropping_finds_the_tier_that_was_taken_and_refuses_when_there_is_none() {
    let (pfs, path) = pfs_with("f", 1, MIB);
    for backing in ["directory", "mount"] {
        let mut setup = Setup::new(pfs.path());
        setup.backing = backing;
        let mut agent = Agent::start(setup);
        verify_once(&agent.client(), &path, 1, 0);
        let tier = if backing == "mount" { agent.state_dir().join("tier") } else { agent.dir().join("tier") };
        let state = agent.state_dir().to_str().unwrap().to_owned();
        let mounted =
            || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(tier.to_str().unwrap());
        assert_eq!(mounted(), backing == "mount");
        // The directory of a live agent may not be taken away.
        let mut stolen = Command::new(FOREBAY);
        stolen.args(["down", "--drop", "--state-dir", &state]).env("FOREBAY_SOCKET", "/nowhere/agent.sock");
        assert_eq!(stolen.output().unwrap().status.code(), Some(1));
        agent.kill_9();
        assert!(tier.join("copies").exists() && std::fs::read_dir(tier.join("copies")).unwrap().count() == 2);
        let out = agent.cli(&["down", "--drop", "--state-dir", &state]);
        assert!(out.status.success(), "{backing}: {}", text(&out.stderr));
        assert!(!tier.join("copies").exists() && !mounted(), "{backing}: the tier is still there");
        let out = agent.cli(&["down", "--drop", "--state-dir", &state]);
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains("there is nothing to drop"), "{}", text(&out.stderr));
        assert!(!mounted(), "a tier was made in order to be dropped");
    }
}

#[test]
fn a_load_keeps_its_rate_on_average() {
    let pfs = plain_pfs();
    make_file(&pfs.path().join("f"), 1, 16 * MIB);
    let agent = Agent::on(pfs.path());
    let out =
        agent.cli(&["--json", "load", "-q", "--rate", "8MiB/s", pfs.path().join("f").to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["bytes_fetched"].as_u64(), Some(16 * MIB));
    // The burst is 4 MiB; for the rest there was a second for each 8 MiB at least, however slow the
    // machine.
    let least = (16.0 - 4.0) / 8.0;
    assert!(report["seconds"].as_f64().unwrap() > 0.99 * least, "{report}");
    agent.assert_nothing_left();
}

#[test]
fn a_load_ended_by_ctrl_c_leaves_nothing_under_way() {
    let pfs = plain_pfs();
    make_file(&pfs.path().join("f"), 1, 32 * MIB);
    let agent = Agent::on(pfs.path());
    let mut command =
        agent.command(&["--json", "load", "-q", "--rate", "1MiB/s", pfs.path().to_str().unwrap()]);
    let load = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_for("the load has begun", || agent.counter("pages_loaded_total") > 0);
    crate::common::send_signal(load.id(), libc::SIGINT);
    let out = load.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["cancelled"].as_bool(), Some(true));
    wait_for("nothing is under way", || {
        let s = agent.status();
        s.connections <= 1 && s.mounts[0].fetches_pending == 0
    });
    let fetched = agent.counter("fetched_bytes");
    assert!(fetched < 32 * MIB, "the load was done before it was cancelled");
    verify_once(&agent.client(), &pfs.path().join("f"), 1, 0);
    agent.assert_nothing_left();
}

#[test]
fn memory_only_files_are_the_jobs_and_gone_with_it() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    let source = pfs.path().join("source");
    make_file(&source, 1, 3 * MIB);
    let scratch = pfs.path().join("scratch");
    let script = format!(
        "{FOREBAY} cp --write memory '{0}' '{1}' && {FOREBAY} cat '{1}' | cmp - '{0}' && test ! -e '{1}' \
         && {FOREBAY} --json status",
        source.display(),
        scratch.display()
    );
    let out = agent.cli(&["run", "sh", "-c", &script]);
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    let at = text(&out.stdout).find("{\n").expect("the state is printed");
    let during: serde_json::Value = serde_json::from_slice(&out.stdout[at..]).unwrap();
    assert_eq!(during["scratch_files"].as_u64(), Some(1));
    wait_for("the job's files are gone", || agent.status().scratch_files == 0);
    let out = agent.cli(&["cat", scratch.to_str().unwrap()]);
    assert!(!out.status.success() && out.stdout.is_empty());
    // Another job does not see them, and one that wants too much gets an error.
    let mut first = Helper::start(&agent, "job", &[scratch.to_str().unwrap(), "100000"]);
    first.expect("written");
    let client = agent.client();
    client.begin_scratch_job().unwrap();
    assert_eq!(client.open(&scratch).unwrap_err().kind(), ErrorKind::NotFound);
    let mut writer = client.create(&scratch, WriteMode::MemoryOnly).unwrap();
    let error = writer.write_all(&content(1, 0, 40 << 20)).and_then(|()| writer.close()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    drop(client);
    first.finish();
    agent.assert_nothing_left();
}

#[test]
fn a_memory_only_copy_outside_of_a_job_is_refused() {
    let (pfs, agent) = pfs_and_agent();
    let (source, target) = (pfs.path().join("source"), pfs.path().join("target"));
    make_file(&source, 1, MIB);
    let (from, to) = (source.to_str().unwrap(), target.to_str().unwrap());
    for job in [None, Some("")] {
        let mut command = agent.command(&["cp", "--write", "memory", from, to]);
        match job {
            Some(job) => command.env("FOREBAY_JOB", job),
            None => command.env_remove("FOREBAY_JOB"),
        };
        let out = command.output().unwrap();
        let said = text(&out.stderr);
        assert!(!out.status.success() && out.stdout.is_empty(), "{}", text(&out.stdout));
        assert!(said.contains(to) && said.contains("forebay run"), "it does not say what to do: {said}");
    }
    assert!(!target.exists());
    // What it says is what helps.
    let script = format!("{FOREBAY} cp --write memory {from} {to} && {FOREBAY} cat {to}");
    let out = agent.cli(&["run", "sh", "-c", &script]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_content(&out.stdout[out.stdout.len() - MIB as usize..], 1, 0);
    agent.assert_nothing_left();
}

#[test]
fn a_writer_whose_version_is_superseded_does_not_cache_wrong_bytes() {
    let pfs = plain_pfs();
    let path = pfs.path().join("f");
    let agent = Agent::on(pfs.path());
    let client = agent.client();
    let len = 8 * PAGE as usize;
    // The other one writes between two of its writes, after its last one, and after it has closed.
    for when in 0..3 {
        let mut writer = client.create(&path, WriteMode::Through).unwrap();
        let bytes = content(1, 0, len);
        writer.write_all(&bytes[..len / 2]).unwrap();
        writer.flush().unwrap();
        let overtake = || {
            crate::common::grow_old(&path);
            let other = std::fs::File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&other, &content(2, 100, 1000), 100).unwrap();
        };
        if when == 0 {
            overtake();
        }
        writer.write_all(&bytes[len / 2..]).unwrap();
        writer.flush().unwrap();
        if when == 1 {
            overtake();
        }
        writer.close().unwrap();
        if when == 2 {
            assert!(agent.counter("pages_written_total") > 0, "nothing was cached that could be wrong");
            overtake();
        }
        let direct = std::fs::read(&path).unwrap();
        assert_content(&direct[100..1100], 2, 100);
        for _ in 0..2 {
            assert!(read_all(&client.open(&path).unwrap()).unwrap() == direct, "wrong bytes, case {when}");
            crate::common::grow_old(&path);
        }
        assert!(agent.cli(&["verify", path.to_str().unwrap()]).status.success());
    }
}

#[test]
fn a_configuration_of_several_files_is_shown_with_its_origins_and_reloaded_by_a_signal() {
    let (dir, pfs) = (open_dir_in("/dev/shm"), plain_pfs());
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("conf.d")).unwrap();
    let main = format!("[[mount]]\nlabel = \"pfs\"\nroot = {:?}\n", pfs.path());
    std::fs::write(at("forebay.toml"), main).unwrap();
    let set = |capacity: &str, more: &str| {
        let text = format!("[tier]\ncapacity = {capacity:?}\nlimit = \"256MiB\"\n{more}");
        std::fs::write(at("conf.d/50-node.toml"), text).unwrap();
    };
    set("64MiB", "");
    std::fs::write(at("conf.d/ignored.txt"), "nonsense").unwrap();
    let forebay = |arguments: &[&str]| {
        let mut command = Command::new(FOREBAY);
        command.args(arguments).env("FOREBAY_CONFIG", dir.path());
        command.env("FOREBAY_SOCKET", at("state/agent.sock")).env("FOREBAY_AGENT_CONNECTIONS_MAX", "50");
        let out = command.output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    let shown = forebay(&["config", "show", "--origin"]);
    for line in [
        &*format!("capacity = \"64MiB\"  # {}:2", at("conf.d/50-node.toml").display()),
        "connections_max = 50  # FOREBAY_AGENT_CONNECTIONS_MAX",
        "socket_mode = \"0666\"  # default",
        &*format!("label = \"pfs\"  # {}:2", at("forebay.toml").display()),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }

    forebay(&["up"]);
    let status = || serde_json::from_str::<serde_json::Value>(&forebay(&["--json", "status"])).unwrap();
    let capacity = || status()["capacity_bytes"].as_u64().unwrap();
    assert_eq!(capacity(), 64 * MIB);
    let pid = status()["pid"].as_u64().unwrap() as libc::pid_t;
    let log = || std::fs::read_to_string(at("state/agent.log")).unwrap();
    // SAFETY: the agent's own process.
    let reload = || assert_eq!(unsafe { libc::kill(pid, libc::SIGHUP) }, 0);

    set("96MiB", "eviction = \"lru\"\n");
    reload();
    wait_for("the capacity changes", || capacity() == 96 * MIB);
    wait_for("it says what waits", || log().contains("at_the_next_start=\"tier.eviction\""));
    set("96MiB", "eviction = \"lru\"\n[memory]\ntarget = \"80%\"\nmin = \"48MiB\"\n");
    reload();
    let memory = || serde_json::from_str::<serde_json::Value>(&forebay(&["--json", "memory"])).unwrap();
    wait_for("the memory controller changes", || {
        let memory = memory();
        memory["target_per_10000"] == 8000 && memory["min_bytes"] == 48 * MIB
    });
    // As logrotate does; and another file.
    let has_capacity = |file: &str| {
        forebay(&["capacity", "96MiB"]);
        std::fs::read_to_string(at(file)).is_ok_and(|log| log.contains("capacity"))
    };
    assert!(has_capacity("state/audit.log"));
    std::fs::rename(at("state/audit.log"), at("moved.log")).unwrap();
    assert!(!has_capacity("state/audit.log"), "it writes to the file that it has open");
    reload();
    wait_for("commands are in the new file", || has_capacity("state/audit.log"));
    set("96MiB", &format!("[agent]\naudit_log = {:?}\n", at("other.log")));
    reload();
    wait_for("commands are in the other file", || has_capacity("other.log"));
    assert!(!log().contains("agent.audit_log"), "it waits for nothing: {}", log());
    set("lots", "");
    reload();
    wait_for("an error changes nothing", || log().contains("\"lots\" is not a size"));
    assert_eq!(capacity(), 96 * MIB);
    forebay(&["down", "--drop"]);
}
