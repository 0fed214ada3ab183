//! A file system whose time stamps do not follow writes, or only in whole seconds.

use crate::common::{
    Agent, FOREBAY, MIB, OTHER_UID, Setup, SlowFs, assert_content, content, make_file, plain_pfs, read_all,
    text, wait_for,
};
use forebay_lab::slowfs::Stamps;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn read(agent: &Agent, path: &Path, seed: u64) {
    let bytes = read_all(&agent.client().open(path).unwrap()).unwrap();
    assert_eq!(bytes.len() as u64, MIB);
    assert_content(&bytes, seed, 0);
}

fn measured(agent: &Agent, what: &str) {
    wait_for(what, || agent.status().mounts[0].stamps.contains(what));
}

fn doctor(args: &[&str]) -> Output {
    Command::new(FOREBAY).arg("doctor").args(args).output().unwrap()
}

/// No file of the measurement is left.
fn assert_clean(dir: &Path) {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(".forebay")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_file_system_whose_stamps_rest_is_not_cached_unless_the_operator_says_so() {
    let Some(slow) = SlowFs::start_with(Stamps::Still) else { return };
    let path = slow.at("f");
    make_file(&path, 1, MIB);
    let before = path.metadata().unwrap().modified().unwrap();
    let agent = Agent::on(&slow.mount());
    for seed in 1..4 {
        std::fs::write(&path, content(seed, 0, MIB as usize)).unwrap();
        // Even while it is being measured.
        read(&agent, &path, seed);
        read(&agent, &path, seed);
    }
    measured(&agent, "does not move");
    std::fs::write(&path, content(4, 0, MIB as usize)).unwrap();
    assert_eq!(path.metadata().unwrap().modified().unwrap(), before, "these stamps move");
    read(&agent, &path, 4);
    assert_eq!((agent.used("pages"), agent.status().mounts[0].cached), (0, false));
    let load = agent.cli(&["load", path.to_str().unwrap()]);
    let said = text(&load.stdout) + &text(&load.stderr);
    assert!(!load.status.success() && said.contains("is not cached"), "{said}");
    assert_eq!(agent.log().matches("is not cached").count(), 1, "{}", agent.log());
    assert!(text(&agent.cli(&["status"]).stdout).contains("NOT CACHED: an overwrite in place does not move"));
    let doctor = doctor(&["--pfs", slow.mount().to_str().unwrap()]);
    assert_eq!(doctor.status.code(), Some(1));
    let said = text(&doctor.stdout);
    assert!(said.contains("an overwrite in place does not move them"), "{said}");

    let trusting = Agent::start(Setup { stamps: "trust", ..Setup::new(&slow.mount()) });
    read(&trusting, &path, 4);
    assert!(trusting.used("pages") >= MIB && trusting.status().mounts[0].cached);
    assert_clean(&slow.mount());
}

#[test]
fn a_file_system_of_whole_seconds_is_cached_once_that_is_measured() {
    let Some(slow) = SlowFs::start_with(Stamps::Seconds) else { return };
    let path = slow.at("f");
    make_file(&path, 1, MIB);
    let agent = Agent::on(&slow.mount());
    // It waits for the measurement, and for the two seconds.
    let load = agent.cli(&["load", path.to_str().unwrap()]);
    assert!(load.status.success(), "{}{}", text(&load.stdout), text(&load.stderr));
    read(&agent, &path, 1);
    assert!(agent.used("pages") >= MIB);
    measured(&agent, "follow writes");
    assert_clean(&slow.mount());
}

#[test]
fn a_mount_is_measured_again_when_it_is_mounted_anew() {
    let Some(mut slow) = SlowFs::start() else { return };
    let path = slow.at("f");
    make_file(&path, 1, MIB);
    let agent = Agent::on(&slow.mount());
    measured(&agent, "follow writes");
    read(&agent, &path, 1);
    assert!(agent.used("pages") >= MIB);
    slow.remount(Stamps::Still);
    for seed in [2, 3] {
        std::fs::write(&path, content(seed, 0, MIB as usize)).unwrap();
        read(&agent, &path, seed);
    }
    measured(&agent, "does not move");
    let warnings = || agent.log().matches("is not cached").count();
    assert_eq!(warnings(), 1, "{}", agent.log());
    slow.remount(Stamps::Exact);
    read(&agent, &path, 3);
    measured(&agent, "follow writes");
    slow.remount(Stamps::Still);
    read(&agent, &path, 3);
    measured(&agent, "does not move");
    assert_eq!(warnings(), 2, "each result is logged: {}", agent.log());
    slow.remount(Stamps::Exact);
    read(&agent, &path, 3);
    measured(&agent, "follow writes");
    agent.client().admin().evict_all().unwrap();
    read(&agent, &path, 3);
    assert!(agent.used("pages") >= MIB);
}

#[test]
fn where_the_agent_may_not_write_the_type_decides_or_a_directory_is_named() {
    let pfs = plain_pfs();
    let uid = Some(OTHER_UID);
    let agent = Agent::start(Setup { uid, ..Setup::new(pfs.path()) });
    measured(&agent, "trusted for the file system's type");

    let Some((slow, path)) = SlowFs::with("f", 1, MIB) else { return };
    let agent = Agent::start(Setup { uid, ..Setup::new(&slow.mount()) });
    measured(&agent, "mount.probe_dir");
    read(&agent, &path, 1);
    assert_eq!(agent.used("pages"), 0);
    std::fs::create_dir(slow.at("own")).unwrap();
    std::os::unix::fs::chown(slow.at("own"), uid, uid).unwrap();
    let probe_dir = Some(slow.at("own"));
    let agent = Agent::start(Setup { uid, probe_dir, ..Setup::new(&slow.mount()) });
    measured(&agent, "follow writes");
    read(&agent, &path, 1);
    assert!(agent.used("pages") >= MIB);
    assert_clean(&slow.at("own"));
}

#[test]
fn doctor_measures_what_another_mount_sees() {
    let Some(slow) = SlowFs::start() else { return };
    let mount = slow.mount();
    let (mount, same) = (mount.to_str().unwrap(), mount.to_str().unwrap());
    let good = doctor(&["--pfs", mount, "--second", same]);
    assert!(text(&good.stdout).contains("follow writes"), "{}", text(&good.stdout));
    // Not the same directory.
    let pfs = plain_pfs();
    let other = doctor(&["--pfs", mount, "--second", pfs.path().to_str().unwrap()]);
    assert!(text(&other.stdout).contains("cannot be measured"), "{}", text(&other.stdout));
    assert_clean(&slow.mount());
}

#[test]
fn a_probe_file_that_is_replaced_while_it_is_used_is_not_written() {
    let Some(slow) = SlowFs::start_with(Stamps::Still) else { return };
    let (elsewhere, mount, bait) = (plain_pfs(), slow.mount(), slow.at("bait"));
    let victims = [elsewhere.path().join("victim"), slow.at("victim")];
    victims.iter().for_each(|victim| std::fs::write(victim, b"precious").unwrap());
    for is_symbolic in [true, false] {
        match is_symbolic {
            true => std::os::unix::fs::symlink(&victims[0], &bait).unwrap(),
            false => std::fs::hard_link(&victims[1], &bait).unwrap(),
        }
        let mut doctor = Command::new(FOREBAY);
        let doctor =
            doctor.args(["doctor", "--pfs", mount.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
        // Measuring such a file system takes three seconds.
        wait_for("the probe file is replaced", || {
            let names = std::fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().path());
            let mut probes = names.filter(|path| path.to_string_lossy().contains("/.forebay-probe-"));
            probes.next().is_some_and(|probe| std::fs::rename(&bait, probe).is_ok())
        });
        let said = text(&doctor.wait_with_output().unwrap().stdout);
        victims.iter().for_each(|victim| assert_eq!(victim.metadata().unwrap().len(), 8, "{said}"));
        assert!(said.contains("cannot be measured"), "{said}");
        assert_clean(&mount);
    }
}

#[test]
fn doctor_reports_what_a_second_mount_sees_of_a_long_write() {
    let Some(mut slow) = SlowFs::start() else { return };
    let mount = slow.mount();
    let look = |second: &Path| {
        let second = second.to_str().unwrap();
        doctor(&["--pfs", mount.to_str().unwrap(), "--second", second, "--long-write", "4MiB"])
    };
    let line = |said: &str| said.lines().find(|line| line.contains("long write")).unwrap().to_owned();
    let second = slow.serve_also(Stamps::Exact);
    let said = line(&text(&look(&second).stdout));
    let moved = said.split("moved ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(said.starts_with("good") && moved.is_some_and(|times| times > 0), "{said}");
    let second = slow.serve_also(Stamps::Still);
    let said = line(&text(&look(&second).stdout));
    assert!(said.starts_with("BAD") && said.contains("moved 0 times"), "{said}");
    assert_clean(&mount);
}
