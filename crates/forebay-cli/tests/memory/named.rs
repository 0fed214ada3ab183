//! Control groups that the configuration names (`memory.watch`): the tier also gives way to their
//! limits, and they come and go with their jobs.

use crate::common::{CAPACITY, LIMIT, MIB, Tier, end_hog, group, start_hog, wait_for};
use crate::kit;
use std::path::{Path, PathBuf};
use std::process::Command;

fn watching(up: Command, group: &str) -> Tier {
    Tier::with(up, "forebay", &format!("watch = [{group:?}]"))
}

/// What `forebay status` says about memory.
fn sources(tier: &Tier) -> String {
    let said = tier.says("status");
    said.lines().find(|line| line.starts_with("memory ")).unwrap_or_default().to_owned()
}

#[test]
fn the_tier_gives_way_to_a_named_group_and_the_group_may_come_and_go() {
    const TAKEN: u64 = 400 * MIB;
    let Some(group) = group("named") else { return };
    let name = format!("/{}", group.directory.file_name().unwrap().to_string_lossy());
    let directory = group.directory.display().to_string();
    let tier = watching(Command::new(kit::FOREBAY), &name);
    wait_for("the status names the group", || sources(&tier).contains(&directory).then_some(()));
    assert!(tier.says("memory").contains(&directory) && tier.says("doctor").contains(&directory));
    let (hog, is_full) = start_hog(&group, TAKEN);
    assert!(is_full && group.kills().unwrap() == 0, "{} kills", group.kills().unwrap());
    // The agent is not in the group; it leaves the room below the limit to the job all the same.
    wait_for("the tier has given way", || (tier.capacity() < LIMIT - TAKEN).then_some(()));
    tier.read();
    end_hog(hog);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));

    drop(group);
    wait_for("the agent sees that the group has ended", || {
        tier.says("memory").contains(&format!("no group  {name}")).then_some(())
    });
    assert!(!sources(&tier).contains(&directory) && !tier.says("status").contains("NOT WATCHED"));
    assert!(tier.says("doctor").contains("not there now"), "{}", tier.says("doctor"));
    assert_eq!(tier.capacity(), CAPACITY);
    let group = crate::common::group("named").unwrap();
    let (hog, is_full) = start_hog(&group, TAKEN);
    assert!(is_full && group.kills().unwrap() == 0, "{} kills", group.kills().unwrap());
    wait_for("the tier gives way again", || (tier.capacity() < LIMIT - TAKEN).then_some(()));
    end_hog(hog);
    wait_for("and has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
}

/// Where groups of version 2 are mounted, if they are.
fn mounted() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

/// The files of a group of version 2 that only the test writes.
struct Slice(PathBuf);

impl Slice {
    fn uses(&self, bytes: u64) {
        let write = |name: &str, text: String| std::fs::write(self.0.join(name), text).unwrap();
        write("memory.current", format!("{bytes}\n"));
        write(
            "memory.stat",
            "anon 1\nactive_file 0\ninactive_file 0\nshmem 0\nslab_reclaimable 4096\n".into(),
        );
        write("memory.high", "max\n".into());
        write("memory.max", format!("{LIMIT}\n"));
    }
}

#[test]
fn a_named_group_of_version_2_is_read_and_the_limits_that_it_reaches_wake_the_agent() {
    let Some(root) = mounted() else {
        return eprintln!("left out: no control groups of version 2 are mounted here");
    };
    let dir = tempfile::tempdir().unwrap();
    let slice = Slice(dir.path().join("foo.slice"));
    std::fs::create_dir(&slice.0).unwrap();
    std::fs::write(slice.0.join("memory.events"), "high 0\nmax 0\n").unwrap();
    slice.uses(100 * MIB);
    let mut up = Command::new("unshare");
    let script = format!("mount --bind {} {} && exec \"$0\" \"$@\"", dir.path().display(), root.display());
    up.args(["--mount", "sh", "-c", &script]);
    let allowed = Command::new("unshare").args(["--mount", "true"]).output();
    if !allowed.is_ok_and(|out| out.status.success()) {
        return eprintln!("left out: nothing can be mounted here");
    }
    up.arg(Path::new(kit::FOREBAY));
    let tier = watching(up, "/foo.slice");
    let name = root.join("foo.slice").display().to_string();
    wait_for("the status names the group", || sources(&tier).contains(&name).then_some(()));
    let events = format!("limits ({name}/memory.events)");
    assert!(sources(&tier).contains(&events), "{}", sources(&tier));
    assert!(tier.says("memory").contains("reclaimable slab 4.00 KiB"), "{}", tier.says("memory"));
    let alarms = tier.counter("memory_alarms_total");
    std::fs::write(slice.0.join("memory.events"), "high 1\nmax 0\n").unwrap();
    wait_for("the agent hears of a limit that was reached", || {
        (tier.counter("memory_alarms_total") > alarms).then_some(())
    });
    slice.uses(LIMIT);
    wait_for("the tier has given way", || (tier.capacity() == 0).then_some(()));
    tier.read();
    slice.uses(100 * MIB);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
}
