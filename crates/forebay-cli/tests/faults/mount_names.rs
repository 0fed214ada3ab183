//! A file under two names, the PFS's and a mount's: the mount refuses what would destroy it, where
//! it can know. And names that change on the PFS while programs use them.

use crate::common::{Agent, OTHER_UID, open_dir_in, text};
use crate::mount::{Mount, pfs_to_mount, skips, with_own_mounts};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// In these scripts, `P` is the file's name on the PFS and `M` the one on the mount.
const BEGIN: &str = "P=/mnt/pfs/f M=/mnt/at/f
$F mount /mnt/pfs /mnt/at
kept() { [ \"$(cat $P)\" = precious ] && echo kept || echo \"LOST: $*\"; }
try() { rm -f $P; echo precious > $P; \"$@\" > /mnt/state/out 2>&1 && echo -n 'done ' || echo -n 'refused '; kept \"$@\"; }
sh_() { sh -c \"$1\" sh $P $M; }
";

#[track_caller]
fn script(lines: &str, expected: &str) {
    if skips() {
        return;
    }
    let said = with_own_mounts(&format!("{BEGIN}{lines}\n$F umount /mnt/at"));
    let wrong = said.lines().zip(expected.split(' ')).position(|(a, b)| !a.ends_with(b));
    assert!(
        wrong.is_none() && said.lines().count() == expected.split(' ').count(),
        "at line {wrong:?}: {said}"
    );
}

#[test]
fn a_program_that_copies_a_file_onto_its_name_on_the_mount_is_refused() {
    script(
        "try cp $P $M
try cp -a $P /mnt/at/
try cp -f $P $M
try dd if=$P of=$M
try sh_ 'cat < $1 > $2'
try python3 -c 'import shutil, sys; shutil.copyfile(*sys.argv[1:])' $P $M
try python3 -c 'import os, sys; f = open(sys.argv[1]); os.truncate(sys.argv[2], 3)' $P $M
try install -m 644 $P $M
try mv $P $M
try mv $P /mnt/at/
cd /mnt/pfs
try mv f /mnt/at/
try $F cp $P $M
try $F cp $M $P
cd /",
        "kept kept kept kept kept kept kept kept kept kept kept kept kept",
    );
}

#[test]
fn what_a_program_does_with_one_name_or_with_new_content_is_not_refused() {
    script(
        "ok() { rm -f $P; echo precious > $P; \"$@\" && echo ok || echo \"REFUSED: $*\"; }
ok sh_ 'rm $2; ! test -e $1'
ok sh_ 'cat < $2 > $1.new; cat < $1.new > $2'
ok python3 -c 'import sys; f = open(sys.argv[2]); open(sys.argv[2], \"w\")' $P $M
ok python3 -c 'import sys; f = open(sys.argv[1], \"r+\"); open(sys.argv[2], \"w\")' $P $M
ok python3 -c 'import os, sys; f = open(sys.argv[1]); os.truncate(sys.argv[2], 100)' $P $M
ok sh_ 'echo new > $1.new; mv $1.new $2; grep new $1'
ok sh_ 'cmp $1 $2'
unshare --mount sh -c 'mount --bind /mnt/at /mnt/pfs; rm /mnt/pfs/f' && ls /mnt/pfs | grep -c '^f$' || true",
        "ok ok ok ok ok new ok ok 0",
    );
}

#[test]
fn users_who_cannot_enter_the_directory_of_the_pfs_have_one_name_for_a_file() {
    if skips() {
        return;
    }
    let closed = open_dir_in("/tmp");
    let pfs = closed.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    std::fs::set_permissions(&pfs, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(pfs.join("f"), b"precious").unwrap();
    std::fs::set_permissions(pfs.join("f"), std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let agent = Agent::on(&pfs);
    assert!(agent.cli(&["load", pfs.to_str().unwrap()]).status.success());
    let mount = Mount::new(&pfs, agent.socket().to_str().unwrap(), &[]);
    let as_user = |program: &str, paths: &[&std::path::Path]| {
        Command::new(program).args(paths).uid(OTHER_UID).output().unwrap()
    };
    let (there, here) = (pfs.join("f"), mount.at.join("f"));
    let before = agent.counter("opens_cached_total");
    assert_eq!(as_user("cat", &[&here]).stdout, b"precious");
    assert!(agent.counter("opens_cached_total") > before, "the file is not read from the tier");
    for (from, to) in [(&there, &here), (&here, &there), (&here, &here)] {
        for program in ["cp", "mv"] {
            assert!(!as_user(program, &[from, to]).status.success());
            assert_eq!(std::fs::read(&there).unwrap(), b"precious");
        }
    }
}

#[test]
fn names_that_change_all_the_time_on_the_pfs_give_no_errors() {
    let Some(pfs) = pfs_to_mount() else { return };
    for source in ["a", "b"] {
        std::fs::create_dir(pfs.path().join(source)).unwrap();
        std::fs::write(pfs.path().join(source).join("f"), source).unwrap();
    }
    let at = |name: &str| pfs.path().join(name);
    std::fs::hard_link(at("a/f"), at("f")).unwrap();
    let mount = Mount::new(pfs.path(), "none", &[]);
    let (renames, has_ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let here = mount.at.join("f");
    let errors = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::SeqCst) {
                for source in ["b/f", "a/f"] {
                    std::fs::hard_link(at(source), at("new")).unwrap();
                    std::fs::rename(at("new"), at("f")).unwrap();
                    renames.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let open = || std::fs::File::options().write(true).create(true).truncate(false).open(&here).map(drop);
        let stat = || std::fs::metadata(&here).map(drop);
        let chmod = || std::fs::set_permissions(&here, std::fs::Permissions::from_mode(0o644));
        let mut errors = Vec::new();
        for _ in 0..2_000 {
            for (name, result) in [("open", open()), ("stat", stat()), ("chmod", chmod())] {
                errors.extend(result.err().map(|e| format!("{name}: {e}")));
            }
        }
        has_ended.store(true, Ordering::SeqCst);
        errors
    });
    let renames = renames.into_inner();
    assert!(renames > 2_000, "{renames} renames: the name was not renamed all the time");
    assert!(
        errors.is_empty(),
        "{} of 6000 calls failed beside {renames} renames: {}",
        errors.len(),
        errors[0]
    );
}

#[test]
fn memory_of_names_is_released_once_the_kernel_forgets_them() {
    let Some(pfs) = pfs_to_mount() else { return };
    let count = 30_000;
    let name = |number: usize| format!("{number:0>240}");
    for number in 0..count {
        std::fs::write(pfs.path().join(name(number)), b"").unwrap();
    }
    let mount = Mount::new(pfs.path(), "none", &[]);
    let status = format!("/proc/{}/status", mount.pid());
    let resident_kib = || -> usize {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    assert!(std::fs::metadata(mount.at.join(name(0))).is_ok());
    let before = resident_kib();
    for number in 0..count {
        assert!(std::fs::metadata(mount.at.join(name(number))).is_ok());
    }
    let full = resident_kib();
    assert!(full > before + (8 << 10), "{before} to {full} KiB: the names take no memory");
    (0..count).for_each(|number| std::fs::remove_file(mount.at.join(name(number))).unwrap());
    crate::common::wait_for("the memory is released", || resident_kib() < before + (full - before) / 3);
    let out = Command::new("ls").arg(&mount.at).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
}
