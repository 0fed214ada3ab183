//! `forebay mount`: programs see on a mount what they see on the PFS, reads come from the tier, and
//! nobody is stuck, whichever process dies.
//!
//! Most tests run a case of `mount.py` on the PFS and on a mount of it, and compare what it prints.

use crate::common::{
    Agent, FOREBAY, MIB, OTHER_UID, Setup, SlowFs, assert_content, content, make_file, make_files,
    open_dir_in, pfs_and_agent, plain_pfs, send_signal, state, text, wait_for,
};
use crate::intercept::has;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// True if the user wants no tests that mount.
pub(crate) fn skips() -> bool {
    std::env::var_os("FOREBAY_SKIP_FUSE").is_some_and(|value| value == "1")
}

/// A directory as the PFS; `None` if the user wants no tests that mount.
pub(crate) fn pfs_to_mount() -> Option<TempDir> {
    (!skips()).then(plain_pfs)
}

/// A mount, and its process. Dropping it unmounts.
pub(crate) struct Mount {
    pub(crate) at: PathBuf,
    _dir: TempDir,
}

impl Mount {
    /// A mount of a directory as the PFS.
    pub(crate) fn without_agent() -> Option<(TempDir, Self)> {
        let pfs = pfs_to_mount()?;
        let mount = Mount::new(pfs.path(), "none", &[]);
        Some((pfs, mount))
    }

    pub(crate) fn new(pfs: &Path, socket: &str, options: &[&str]) -> Self {
        Mount::made(|mount| mount.command(pfs, socket, options))
    }

    pub(crate) fn with_environment(pfs: &Path, socket: &str, variables: &[(&str, &str)]) -> Self {
        Mount::made(|mount| {
            let mut command = mount.command(pfs, socket, &[]);
            command.envs(variables.iter().copied());
            command
        })
    }

    fn made(command: impl FnOnce(&Mount) -> Command) -> Self {
        let dir = open_dir_in("/tmp");
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).unwrap();
        let mount = Mount { at, _dir: dir };
        let out = command(&mount).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        mount
    }

    fn command(&self, pfs: &Path, socket: &str, options: &[&str]) -> Command {
        let mut command = Command::new(FOREBAY);
        command.arg("mount").args(options).arg(pfs).arg(&self.at).env("FOREBAY_SOCKET", socket);
        command.env_remove("FOREBAY_CONFIG");
        command
    }

    /// Mounts at the same place.
    fn again(&self, pfs: &Path, socket: &str, options: &[&str]) -> Output {
        self.command(pfs, socket, options).output().unwrap()
    }

    /// The process that serves this mount.
    pub(crate) fn pid(&self) -> u32 {
        let is_it = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|b| *b == 0).collect();
            words.contains(&&b"--foreground"[..])
                && words.contains(&self.at.as_os_str().as_encoded_bytes())
                && ![' ', 'Z'].contains(&state(*pid))
        };
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pid = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it);
        pid.expect("the mount has a process")
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.at)
    }
}

fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == at.to_str())
}

impl Drop for Mount {
    fn drop(&mut self) {
        while self.is_mounted() {
            let out = Command::new(FOREBAY).args(["umount", "--lazy"]).arg(&self.at).output().unwrap();
            assert!(out.status.success() || std::thread::panicking(), "{}", text(&out.stderr));
        }
    }
}

/// Runs a case of `mount.py` in a new directory of `root`; `there` is another way to the directory.
pub(crate) fn transcript(case: &str, root: &Path, there: &Path) -> String {
    let name = format!("case-{case}");
    std::fs::create_dir(root.join(&name)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/mount.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(case).arg(root.join(&name)).arg(there.join(&name));
    let out = command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).output().unwrap();
    assert!(
        out.status.success(),
        "{case} on {}: {}\n{}",
        root.display(),
        text(&out.stdout),
        text(&out.stderr)
    );
    assert!(out.stdout.len() > 20, "{case} has done nothing");
    text(&out.stdout)
}

/// The case prints the same on a plain directory and on mounts with these options: without an
/// agent, where it is the PFS's, and with one.
#[track_caller]
pub(crate) fn same_with(case: &str, options: &[&str]) {
    if skips() {
        return;
    }
    let plain = plain_pfs();
    let expected = transcript(case, plain.path(), plain.path());
    for with_agent in [false, true] {
        let pfs = plain_pfs();
        let agent = with_agent.then(|| Agent::on(pfs.path()));
        let socket = agent.as_ref().map_or("none".into(), |agent| agent.socket().display().to_string());
        let mount = Mount::new(pfs.path(), &socket, options);
        let got = transcript(case, &mount.at, pfs.path());
        assert!(got == expected, "{case}, agent {with_agent}: {}", difference(&expected, &got));
    }
}

fn difference(expected: &str, got: &str) -> String {
    let pairs = expected.lines().zip(got.lines());
    let lines = pairs
        .filter(|(a, b)| a != b)
        .take(10)
        .map(|(a, b)| format!("\n  on the PFS: {a}\n  here:       {b}"));
    lines.collect::<String>()
}

/// A test for each of these cases of `mount.py`.
macro_rules! cases {
    ($(fn $test:ident = $case:literal;)+) => {
        $(#[test]
        fn $test() {
            same_with($case, &[]);
        })+
    };
}

cases! {
    fn names_are_made_renamed_and_removed_as_on_the_pfs = "names";
    fn a_file_without_a_name_is_used_on = "removed_while_used";
    fn attributes_are_those_of_the_pfs = "attributes";
    fn extended_attributes_are_those_of_the_pfs = "extended_attributes";
    fn acls_are_those_of_the_pfs = "acls";
    fn each_user_has_the_rights_that_the_pfs_gives = "rights";
    fn rights_do_not_depend_on_the_name_of_a_program = "names_of_programs";
    fn rights_that_change_count_at_once = "rights_that_change";
    fn a_current_directory_below_a_closed_one_can_be_used = "below_what_is_closed";
    fn contents_are_read_and_written_as_on_the_pfs = "content";
    fn appenders_lose_nothing = "appending";
    fn mappings_and_programs_work = "mappings";
    fn direct_io_works = "direct";
    fn files_without_names_are_made = "without_a_name";
    fn large_directories_are_listed = "listing";
    fn locks_hold_against_programs_on_the_pfs = "locks";
    fn a_call_that_waits_for_a_lock_ends_by_a_signal = "waits";
    fn readers_that_are_open_see_what_is_written_through_the_mount = "two_open_files";
    fn users_who_have_one_file_open_see_each_others_changes = "users_with_one_file_open";
    fn users_who_open_one_file_at_once_get_no_error = "users_who_open_one_file_at_once";
    fn flags_of_files_are_those_of_the_pfs = "flags_of_files";
    fn a_pipe_that_is_made_while_a_file_is_created_is_opened_as_a_pipe = "a_pipe_of_the_same_name";
}

/// A PFS that counts the requests that it gets, an agent, and a mount.
pub(crate) struct Rig {
    pub(crate) slow: SlowFs,
    agent: Agent,
    pub(crate) mount: Mount,
}

impl Rig {
    pub(crate) fn new() -> Option<Self> {
        let slow = SlowFs::start()?;
        let agent = Agent::start(Setup { page: 256 << 10, ..Setup::new(&slow.mount()) });
        let mount = Mount::new(&slow.mount(), agent.socket().to_str().unwrap(), &[]);
        Some(Rig { slow, agent, mount })
    }

    pub(crate) fn load(&self) {
        let out = self.agent.cli(&["load", self.slow.mount().to_str().unwrap()]);
        assert!(out.status.success(), "{}", text(&out.stderr));
    }

    pub(crate) fn evict(&self) {
        let out = self.agent.cli(&["evict", "--all"]);
        assert!(out.status.success(), "{}", text(&out.stderr));
    }
}

#[test]
fn what_is_in_the_tier_is_read_from_there() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 1, 4 * MIB);
    rig.load();
    let before = rig.slow.stats().read_bytes;
    assert_content(&std::fs::read(rig.mount.at.join("f")).unwrap(), 1, 0);
    let file = File::open(rig.mount.at.join("f")).unwrap();
    let mut part = vec![0; 10_000];
    file.read_exact_at(&mut part, 1_234_567).unwrap();
    assert_content(&part, 1, 1_234_567);
    assert_eq!(rig.slow.stats().read_bytes, before, "bytes came from the PFS");
}

#[test]
fn what_is_not_in_the_tier_is_fetched_once() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 2, 4 * MIB);
    let before = rig.slow.stats().read_bytes;
    for _ in 0..3 {
        assert_content(&std::fs::read(rig.mount.at.join("f")).unwrap(), 2, 0);
    }
    let read = rig.slow.stats().read_bytes - before;
    assert!((4 * MIB..5 * MIB).contains(&read), "the PFS has served {read} bytes");
}

#[test]
fn an_open_after_a_close_on_the_pfs_sees_the_change() {
    let Some(rig) = Rig::new() else { return };
    let (there, here) = (rig.slow.at("f"), rig.mount.at.join("f"));
    for seed in 0..50 {
        std::fs::write(&there, content(seed, 0, 100_000 + seed as usize)).unwrap();
        let got = std::fs::read(&here).unwrap();
        assert_eq!(got.len(), 100_000 + seed as usize);
        assert_content(&got, seed, 0);
        if seed % 10 == 0 {
            rig.load();
        }
    }
}

#[test]
fn readers_of_a_mount_go_on_when_the_agent_is_killed() {
    let Some(mut rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 3, 4 * MIB);
    make_file(&rig.slow.at("g"), 4, MIB);
    rig.load();
    let mut file = File::open(rig.mount.at.join("f")).unwrap();
    let mut half = vec![0; 2 << 20];
    file.read_exact(&mut half).unwrap();
    rig.agent.kill_9();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert_content(&rest, 3, 2 * MIB);
    assert_content(&std::fs::read(rig.mount.at.join("g")).unwrap(), 4, 0);
    std::fs::write(rig.mount.at.join("h"), b"written without an agent").unwrap();
    rig.agent.restart();
    wait_for("the mount uses the new agent", || {
        let before = rig.agent.counter("opens_cached_total");
        assert_content(&std::fs::read(rig.mount.at.join("g")).unwrap(), 4, 0);
        rig.agent.counter("opens_cached_total") > before
    });
}

#[test]
fn a_program_that_is_killed_while_the_pfs_hangs_dies() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 5, MIB);
    make_file(&rig.slow.at("g"), 6, MIB);
    rig.slow.fault("all=hang,path=f");
    for command in [&["cat"][..], &["stat"], &["dd", "of=/dev/null", "if=f"], &["mv", "-T", "--", "f"]] {
        let mut program = Command::new(command[0]);
        program.args(&command[1..]).current_dir(&rig.mount.at).stdout(Stdio::null());
        if command[0] != "dd" {
            program.arg("f");
        }
        let mut child = program.spawn().unwrap();
        wait_for("the program hangs", || {
            rig.slow.stats().hung_now > 0 || child.try_wait().unwrap().is_some()
        });
        // Others are served meanwhile.
        assert_content(&std::fs::read(rig.mount.at.join("g")).unwrap(), 6, 0);
        child.kill().unwrap();
        wait_for("the program is gone", || child.try_wait().unwrap().is_some());
    }
    // Each keeps a thread of the mount, even when it is killed.
    let hangs =
        || Command::new("cat").arg("f").current_dir(&rig.mount.at).stdout(Stdio::null()).spawn().unwrap();
    let mut many: Vec<_> = (0..64).map(|_| hangs()).collect();
    assert_content(&std::fs::read(rig.mount.at.join("g")).unwrap(), 6, 0);
    for child in &mut many {
        assert!(child.try_wait().unwrap().is_none(), "the file does not hang");
        child.kill().unwrap();
    }
    wait_for("all programs are gone", || many.iter_mut().all(|child| child.try_wait().unwrap().is_some()));
    assert_content(&std::fs::read(rig.mount.at.join("g")).unwrap(), 6, 0);
    rig.slow.fault("none");
    wait_for("the file can be read again", || {
        std::fs::read(rig.mount.at.join("f")).is_ok_and(|b| b == content(5, 0, MIB as usize))
    });
}

#[test]
fn a_mount_whose_process_is_killed_can_be_replaced() {
    let Some(pfs) = pfs_to_mount() else { return };
    std::fs::write(pfs.path().join("f"), b"content").unwrap();
    let mount = Mount::new(pfs.path(), "none", &[]);
    let open = File::open(mount.at.join("f")).unwrap();
    send_signal(mount.pid(), libc::SIGKILL);
    wait_for("the mount is dead", || {
        std::fs::metadata(&mount.at).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
    });
    let out = mount.again(pfs.path(), "none", &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(std::fs::read(mount.at.join("f")).unwrap(), b"content");
    let mut byte = [0];
    // The old file is passed to the PFS by the kernel, or it has lost its server.
    let old = open.read_at(&mut byte, 0);
    assert!(old.as_ref().is_ok_and(|n| *n == 1) || old.is_err(), "{old:?}");
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let count = table.lines().filter(|line| line.split(' ').nth(4) == mount.at.to_str()).count();
    assert_eq!(count, 1, "the dead mount is still there");
}

#[test]
fn a_signal_unmounts_and_so_does_umount() {
    let Some((pfs, mount)) = Mount::without_agent() else { return };
    let pid = mount.pid();
    send_signal(pid, libc::SIGTERM);
    wait_for("it is unmounted", || !mount.is_mounted());
    wait_for("its process has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    assert!(mount.again(pfs.path(), "none", &["-o", "ro"]).status.success());
    let refused = std::fs::write(mount.at.join("f"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let pid = mount.pid();
    std::fs::write(pfs.path().join("f"), b"x").unwrap();
    let open = File::open(mount.at.join("f")).unwrap();
    let umount =
        |options: &[&str]| Command::new(FOREBAY).arg("umount").args(options).arg(&mount.at).output().unwrap();
    let busy = umount(&[]);
    assert!(!busy.status.success() && text(&busy.stderr).contains("--lazy"), "{}", text(&busy.stderr));
    assert!(umount(&["--lazy"]).status.success());
    assert!(!mount.is_mounted());
    assert_eq!(open.read_at(&mut [0; 10], 0).unwrap(), 1, "what is open can be used");
    drop(open);
    wait_for("its process has ended", || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn many_mounts_leave_nothing() {
    let Some(pfs) = pfs_to_mount() else { return };
    std::fs::write(pfs.path().join("f"), b"x").unwrap();
    let count = std::env::var("FOREBAY_TEST_MOUNTS").map_or(20, |count| count.parse().unwrap());
    let dir = open_dir_in("/tmp");
    let at = dir.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let run = |command: &str, paths: &[&Path]| {
        let out =
            Command::new(FOREBAY).arg(command).args(paths).env("FOREBAY_SOCKET", "none").output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
    };
    for _ in 0..count {
        run("mount", &[pfs.path(), &at]);
        assert_eq!(std::fs::read(at.join("f")).unwrap(), b"x");
        run("umount", &[&at]);
    }
    assert!(!is_mounted(&at));
    wait_for("no process of them is left", || {
        let lines = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        !lines.any(|line| line.split(|b| *b == 0).any(|word| word == at.as_os_str().as_encoded_bytes()))
    });
}

#[test]
fn a_limit_of_open_files_is_the_programs_error() {
    let Some(pfs) = pfs_to_mount() else { return };
    std::fs::write(pfs.path().join("f"), b"x").unwrap();
    let mount = Mount::new(pfs.path(), "none", &[]);
    let pid = rustix::process::Pid::from_raw(mount.pid() as i32);
    let few = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, few).unwrap();
    let mut open = Vec::new();
    let refused = loop {
        match File::open(mount.at.join("f")) {
            Ok(file) => open.push(file),
            Err(e) => break e,
        }
        assert!(open.len() < 1000, "the limit is not met");
    };
    assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
    assert!(open.len() > 10);
    drop(open);
    wait_for("files can be opened again", || std::fs::read(mount.at.join("f")).is_ok());
}

#[test]
fn a_program_run_with_a_mount_of_its_own_is_the_only_one_that_sees_it() {
    let Some(slow) = SlowFs::start() else { return };
    let agent = Agent::start(Setup { page: 256 << 10, ..Setup::new(&slow.mount()) });
    make_file(&slow.at("f"), 7, MIB);
    let out = agent.cli(&["load", slow.mount().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let before = slow.stats().read_bytes;
    let script = "stat -f -c %T . && grep ' fuse.forebay ' /proc/self/mountinfo | grep -c \" $PWD \" && cksum < f && echo new > g && exit 7";
    let mut command = agent.command(&["run", "--mount", "--", "sh", "-c", script]);
    let out = command.current_dir(slow.mount()).output().unwrap();
    assert_eq!(out.status.code(), Some(7), "{}", text(&out.stderr));
    assert_eq!(slow.stats().read_bytes, before, "bytes came from the PFS");
    let plain = Command::new("cksum").stdin(File::open(slow.at("f")).unwrap()).output().unwrap();
    let (words, sum) = (text(&out.stdout), text(&plain.stdout));
    assert!(words.contains("\n1\n") && words.contains(sum.trim()), "{words} and {sum}");
    assert_eq!(std::fs::read(slow.at("g")).unwrap(), b"new\n");
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_ours =
        |line: &&str| line.contains(" fuse.forebay ") && line.contains(slow.mount().to_str().unwrap());
    assert_eq!(table.lines().find(is_ours), None, "others see the mount");
}

#[test]
fn a_users_mount_serves_that_user_only() {
    let Some(pfs) = pfs_to_mount() else { return };
    std::fs::write(pfs.path().join("f"), b"x").unwrap();
    let mount = Mount::new(pfs.path(), "none", &["--private"]);
    assert_eq!(std::fs::read(mount.at.join("f")).unwrap(), b"x");
    let mut other = Command::new("cat");
    std::os::unix::process::CommandExt::uid(&mut other, OTHER_UID);
    let out = other.arg(mount.at.join("f")).output().unwrap();
    assert!(
        !out.status.success() && text(&out.stderr).contains("Permission denied"),
        "{}",
        text(&out.stderr)
    );
    let mode = std::fs::metadata(pfs.path().join("f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o004, 0o004, "the PFS would have let it");
}

/// The options of the mount in the kernel's table: of the mount point, and of the file system.
pub(crate) fn mount_options(mount: &Mount) -> (String, String) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == mount.at.to_str()).unwrap();
    (line.split(' ').nth(5).unwrap().to_owned(), line.rsplit(' ').next().unwrap().to_owned())
}

#[test]
fn set_user_id_programs_and_devices_are_enabled_each_by_its_option() {
    let Some(pfs) = pfs_to_mount() else { return };
    let (id, zero) = (pfs.path().join("id"), pfs.path().join("zero"));
    std::fs::copy("/usr/bin/id", &id).unwrap();
    std::fs::set_permissions(&id, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o666));
    rustix::fs::mknodat(rustix::fs::CWD, &zero, kind, mode, rustix::fs::makedev(1, 5)).unwrap();
    for (option, suid, dev) in
        [("rw", false, false), ("suid", true, false), ("dev", false, true), ("dev,suid", true, true)]
    {
        let mount = Mount::new(pfs.path(), "none", &["-o", option]);
        let mut program = Command::new(mount.at.join("id"));
        std::os::unix::process::CommandExt::uid(&mut program, OTHER_UID);
        let is_root = text(&program.output().unwrap().stdout).contains("euid=0");
        assert_eq!(is_root, suid, "-o {option}");
        let opened = File::open(mount.at.join("zero"));
        assert_eq!(opened.is_ok(), dev, "-o {option}: {opened:?}");
        let (at, _) = mount_options(&mount);
        assert_eq!((at.contains("nosuid"), at.contains("nodev")), (!suid, !dev), "{at}");
    }
}

#[test]
fn the_kernel_asks_for_no_more_bytes_than_an_answer_has() {
    let Some((_pfs, mount)) = Mount::without_agent() else { return };
    let (_, of_fs) = mount_options(&mount);
    assert!(of_fs.split(',').any(|option| option == "max_read=1048576"), "{of_fs}");
}

#[test]
fn a_mount_in_the_background_keeps_nothing_of_its_starter() {
    let Some((_pfs, mount)) = Mount::without_agent() else { return };
    let stderr = format!("/proc/{}/fd/2", mount.pid());
    let to = || std::fs::read_link(&stderr).unwrap();
    wait_for("messages go elsewhere", || to() == Path::new("/dev/null"));
}

#[test]
fn a_mount_without_descriptors_does_not_forget_the_groups_of_a_program() {
    let Some(pfs) = pfs_to_mount() else { return };
    let denied_group = 4242;
    std::os::unix::fs::chown(pfs.path(), None, Some(denied_group)).unwrap();
    // Others may enter, and members of the group may not.
    std::fs::set_permissions(pfs.path(), std::fs::Permissions::from_mode(0o705)).unwrap();
    std::fs::write(pfs.path().join("f"), b"x").unwrap();
    let mount = Mount::new(pfs.path(), "none", &[]);
    let stat = |groups: &str| {
        let mut command = Command::new("setpriv");
        let user = OTHER_UID.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--groups", groups, "stat"]);
        command.arg(mount.at.join("f")).env("LC_ALL", "C").output().unwrap()
    };
    assert!(stat("4243").status.success(), "others may enter");
    let pid = rustix::process::Pid::from_raw(mount.pid() as i32);
    let few = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, few).unwrap();
    let mut open = Vec::new();
    let mut refusals = 0;
    for _ in 0..200 {
        match File::open(mount.at.join("f")) {
            Ok(file) => open.push(file),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EMFILE));
                refusals += 1;
            }
        }
    }
    assert!(refusals > 0, "the limit is not met");
    for _ in 0..20 {
        let out = stat("4242");
        let why = text(&out.stderr);
        assert!(!out.status.success(), "a member of the group came in: {}", text(&out.stdout));
        assert!(why.contains("Permission denied") || why.contains("Too many open files"), "{why}");
    }
}

#[test]
fn a_reader_that_opens_a_file_while_it_is_truncated_reads_nothing_beyond_its_end() {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let Some(rig) = Rig::new() else { return };
    let rounds = 100;
    make_files(rounds, 200 << 10, |round| rig.slow.at(&format!("f{round}")));
    rig.load();
    let (has_begun, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let opened_meanwhile = AtomicUsize::new(0);
    for round in 0..rounds {
        let path = rig.mount.at.join(format!("f{round}"));
        let readers = Mutex::new(Vec::new());
        has_begun.store(false, Ordering::SeqCst);
        has_ended.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::SeqCst) {
                    let file = File::open(&path).unwrap();
                    let has_read = file.read_at(&mut [0; 10], 100_000).unwrap() > 0;
                    if has_read && has_begun.load(Ordering::SeqCst) {
                        opened_meanwhile.fetch_add(1, Ordering::SeqCst);
                    }
                    readers.lock().unwrap().push(file);
                }
            });
            wait_for("a reader", || !readers.lock().unwrap().is_empty());
            has_begun.store(true, Ordering::SeqCst);
            let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
            // SAFETY: a C string.
            let done = unsafe { libc::truncate(path.as_ptr(), 10) };
            let beyond = |file: &File| file.read_at(&mut [0; 10], 100_000).map_or(0, |n| n);
            let stale = readers.lock().unwrap().iter().filter(|file| beyond(file) > 0).count();
            // Before anything panics: the thread would continue forever.
            has_ended.store(true, Ordering::SeqCst);
            assert_eq!((done, stale), (0, 0), "round {round}: readers of bytes that were cut off");
        });
    }
    assert!(opened_meanwhile.into_inner() > 0, "nobody has opened a file meanwhile");
}

#[test]
fn a_user_who_waits_for_many_locks_leaves_places_to_others() {
    let Some(pfs) = pfs_to_mount() else { return };
    std::fs::write(pfs.path().join("f"), b"x").unwrap();
    std::fs::set_permissions(pfs.path().join("f"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let mount = Mount::new(pfs.path(), "none", &[]);
    let holder = File::open(mount.at.join("f")).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let script = "import errno, fcntl, os, sys, threading
user = int(sys.argv[2])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
threading.stack_size(65536)
refused = threading.Semaphore(0)
def wait():
    try:
        fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
    except OSError as error:
        if error.errno == errno.ENOLCK:
            refused.release()
for _ in range(1100):
    threading.Thread(target=wait, daemon=True).start()
for _ in range(50):
    refused.acquire()
print('refused', flush=True)
sys.stdin.read()
os._exit(0)";
    let mut greedy = Command::new("prlimit");
    greedy.args(["--nofile=4096", "python3", "-c", script]).arg(mount.at.join("f"));
    greedy.arg(OTHER_UID.to_string());
    let mut greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 8];
    greedy.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"refused\n");
    let tasks = format!("/proc/{}/task", mount.pid());
    let waits = || {
        let comm = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
        let names = std::fs::read_dir(&tasks).unwrap().flatten().map(comm);
        names.flatten().filter(|name| name == "lock\n").count()
    };
    let before = waits();
    let mut other = Command::new("flock").arg(mount.at.join("f")).arg("true").spawn().unwrap();
    wait_for("another user waits", || waits() > before || other.try_wait().unwrap().is_some());
    greedy.kill().unwrap();
    greedy.wait().unwrap();
    drop(holder);
    let status = other.wait().unwrap();
    assert!(status.success(), "another user got no lock: {status}");
    wait_for("no thread waits for a program that has died", || waits() == 0);
}

#[test]
fn of_many_open_files_only_those_that_are_read_stay_registered() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if skips() || limit.maximum.is_some_and(|maximum| maximum < 20_000) {
        eprintln!("left out: it needs mounts and 20,000 descriptors");
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let (pfs, agent) = pfs_and_agent();
    let count = 6_000;
    let bytes_of = |number: usize| content(number as u64, 0, 100);
    for number in 0..count {
        std::fs::write(pfs.path().join(number.to_string()), bytes_of(number)).unwrap();
    }
    let out = agent.cli(&["load", pfs.path().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mount = Mount::new(pfs.path(), agent.socket().to_str().unwrap(), &[]);
    let open = |number: usize| File::open(mount.at.join(number.to_string())).unwrap();
    let files: Vec<_> = (0..count).map(open).collect();
    let is_right = |number: usize, expected: &[u8]| {
        let mut bytes = vec![0; 100];
        assert_eq!(files[number].read_at(&mut bytes, 0).unwrap(), 100);
        assert_eq!(bytes, expected, "file {number}");
    };
    (0..count).for_each(|number| is_right(number, &bytes_of(number)));
    // A registered file has two descriptors besides that of the PFS's file.
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap().count();
    assert!((count + 4_096..count + 2 * 4_096 + 200).contains(&descriptors), "{descriptors} descriptors");
    let before = agent.counter("opens_cached_total");
    (0..count).for_each(|number| is_right(number, &bytes_of(number)));
    // The kernel may drop a page whenever it likes; of these it has dropped 16 at most.
    let registered = agent.counter("opens_cached_total") - before;
    assert!(
        registered < count as u64 / 20,
        "the kernel has kept too few: {registered} were registered again"
    );
    for number in (0..count).step_by(100) {
        std::fs::write(pfs.path().join(number.to_string()), content(1, 0, 100)).unwrap();
        let mut bytes = vec![0; 100];
        wait_for("the new bytes", || {
            files[number].read_at(&mut bytes, 0).unwrap();
            bytes == content(1, 0, 100)
        });
    }
}

/// Runs a script as root with mounts of its own. In it, `F` is the program, `/mnt` is empty, users
/// may open `/dev/fuse`, and `/mnt/pfs` has a file `f` for all and a file `s` for root.
#[track_caller]
pub(crate) fn with_own_mounts(script: &str) -> String {
    let begin = "set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir -m 777 /mnt/bin /mnt/pfs /mnt/at /mnt/state /mnt/dev
mount --bind $(dirname $1) /mnt/bin
F=/mnt/bin/$(basename $1)
mknod -m 666 /mnt/dev/fuse c 10 229
mount --bind /mnt/dev/fuse /dev/fuse
echo open > /mnt/pfs/f
echo secret > /mnt/pfs/s
chmod 600 /mnt/pfs/s
as_user() { setpriv --reuid games --regid games --clear-groups \"$@\"; }
";
    // A script waits for files that an agent makes, which may not come.
    let mut command = Command::new("timeout");
    command.args(["--signal", "KILL", "120", "unshare", "--mount", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "bash", "-c"]);
    command.arg(format!("{begin}{script}")).arg("script").arg(FOREBAY).stdin(Stdio::null());
    command.env("FOREBAY_SOCKET", "none").env_remove("FOREBAY_CONFIG");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// Unless the user wants no tests that mount, runs a script as [`with_own_mounts`] does, which has
/// to print this.
#[track_caller]
pub(crate) fn with_own_mounts_say(script: &str, expected: &str) {
    if !skips() {
        assert_eq!(with_own_mounts(script), expected);
    }
}

#[test]
fn a_user_mounts_without_root() {
    if !has("fusermount3") {
        return;
    }
    with_own_mounts_say(
        "as_user $F mount /mnt/pfs /mnt/at
grep -c ' /mnt/at .* fuse.forebay ' /proc/self/mountinfo
as_user cat /mnt/at/f
! as_user cat /mnt/at/s
! cat /mnt/at/f
as_user sh -c 'echo new > /mnt/at/new'
stat -c %U /mnt/pfs/new
as_user $F umount /mnt/at
! grep ' /mnt/at ' /proc/self/mountinfo",
        "1\nopen\ngames\n",
    );
}

#[test]
fn a_user_runs_a_program_with_a_mount_of_its_own_without_root() {
    if !has("fusermount3") {
        return;
    }
    with_own_mounts_say(
        "chown games /mnt/state
chmod 700 /mnt/state
chown games:games /mnt/pfs
mkdir -m 777 /mnt/pfs/of_root
export FOREBAY_SOCKET=/mnt/state/agent.sock
as_user env -u FOREBAY_SOCKET $F up --foreground --pfs /mnt/pfs --capacity 64MiB --state-dir /mnt/state > /mnt/log 2>&1 &
until [ -e $FOREBAY_SOCKET ]; do sleep 0.05; done
as_user $F run --mount -- sh -c '
    grep -c \" /mnt/pfs .* fuse.forebay \" /proc/self/mountinfo; cat /mnt/pfs/f; ! cat /mnt/pfs/s; id -u; echo new > /mnt/pfs/new
    echo new > /mnt/pfs/of_root/new || echo refused'
stat -c %U /mnt/pfs/new
kill %1",
        // The kernel refuses to change what belongs to a user whom the namespace does not know.
        "1\nopen\n5\nrefused\ngames\n",
    );
}

#[test]
fn a_user_runs_a_program_with_a_mount_of_its_own_and_roots_agent() {
    if !has("fusermount3") {
        return;
    }
    with_own_mounts_say(
        "chown games:games /mnt/pfs
chmod 755 /mnt/state
start() {
    env -u FOREBAY_SOCKET $F up --foreground --pfs /mnt/pfs --capacity 64MiB --state-dir /mnt/state >> /mnt/log 2>&1 &
    until $F status; do sleep 0.05; done > /dev/null 2>&1
}
export FOREBAY_SOCKET=/mnt/state/agent.sock
start
sleep 0.1
as_user $F run --mount -- sh -c '
    cat /mnt/pfs/f; ! cat /mnt/pfs/s
    $1 ls /mnt/pfs/f | grep -c /mnt/pfs/f
    $1 cp --write memory /mnt/pfs/f /mnt/pfs/m > /dev/null && $1 cat /mnt/pfs/m
    touch /mnt/bin/../at/asked; until [ -e /mnt/state/again ]; do sleep 0.05; done
    $1 ls /mnt/pfs/f; cat /mnt/pfs/f' sh $F 2> /mnt/errors &
run=$!
until [ -e /mnt/at/asked ]; do sleep 0.05; done
$F ls | grep -c /mnt/pfs/f
$F down > /dev/null
start
touch /mnt/state/again
wait $run
grep -c 'does not exist in this user namespace' /mnt/errors
! grep TRUST_UID /mnt/errors
$F down > /dev/null",
        "open\n1\nopen\n1\nopen\n1\n",
    );
}

#[test]
fn root_of_a_user_namespace_has_only_the_rights_of_its_user() {
    with_own_mounts_say(
        "$F mount /mnt/pfs /mnt/at
as_user unshare --user --map-root-user sh -c 'id -u; cat /mnt/at/f; ! cat /mnt/at/s; echo new > /mnt/at/new'
stat -c %U /mnt/pfs/new
$F umount /mnt/at",
        "0\nopen\ngames\n",
    );
}

#[test]
fn a_container_that_binds_the_directory_above_sees_a_mount_that_is_replaced() {
    if skips() {
        return;
    }
    let said = with_own_mounts(
        "mkdir /mnt/at/lustre /mnt/itself /mnt/above
mount --bind /mnt/at /mnt/at
mount --make-rshared /mnt/at
$F mount /mnt/pfs /mnt/at/lustre
unshare --mount --propagation slave sh -c '
    mount --rbind /mnt/at/lustre /mnt/itself; mount --rbind /mnt/at /mnt/above
    mount --make-rslave /mnt/itself; mount --make-rslave /mnt/above
    cat /mnt/itself/f /mnt/above/lustre/f; touch /mnt/state/ready
    until [ -e /mnt/state/replaced ]; do sleep 0.05; done
    ! cat /mnt/itself/f; cat /mnt/above/lustre/f' &
until [ -e /mnt/state/ready ]; do sleep 0.05; done
kill -9 $(pgrep -f 'in-background /mnt/pfs /mnt/at/lustre')
until ! stat /mnt/at/lustre; do sleep 0.05; done
$F mount /mnt/pfs /mnt/at/lustre
touch /mnt/state/replaced
wait %1
$F umount /mnt/at/lustre",
    );
    let lines: Vec<_> = said.lines().filter(|line| *line == "open").collect();
    assert_eq!(lines.len(), 3, "{said}");
}

/// What mount(8) needs: its helper in /sbin, and the program where the helper is installed.
const INSTALLED: &str = "mkdir -p /mnt/up /mnt/work /mnt/usr/sbin
ln -s /mnt/bin /mnt/usr/bin
mount -t overlay -o lowerdir=/usr/sbin,upperdir=/mnt/up,workdir=/mnt/work overlay /usr/sbin
cp $HELPER /mnt/usr/sbin/
ln -sf /mnt/usr/sbin/mount.fuse.forebay /usr/sbin/mount.fuse.forebay
";

fn installed_say(script: &str, expected: &str) {
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/mount.fuse.forebay");
    with_own_mounts_say(&format!("HELPER='{}'\n{INSTALLED}{script}", helper.display()), expected);
}

#[test]
fn mount_8_finds_the_program_wherever_it_is_installed() {
    installed_say(
        "cp /etc/fstab /mnt/fstab
echo '/mnt/pfs /mnt/at fuse.forebay _netdev,nofail,x-systemd.requires-mounts-for=/mnt/pfs 0 0' >> /mnt/fstab
mount --bind /mnt/fstab /etc/fstab
mount /mnt/at
cat /mnt/at/f
umount /mnt/at
mount -t fuse.forebay -o ro /mnt/pfs /mnt/at
touch /mnt/at/new && echo wrong || true
umount /mnt/at",
        "open\n",
    );
}

#[test]
fn autofs_mounts_at_the_first_access() {
    if !has("automount") {
        return;
    }
    installed_say(
        "mount -t tmpfs tmpfs /run
mkdir /mnt/auto
echo 'lustre -fstype=fuse.forebay :/mnt/pfs' > /mnt/map
echo '/mnt/auto /mnt/map' > /mnt/master
setsid automount --foreground --timeout 600 /mnt/master > /mnt/state/log 2>&1 &
until grep -q ' /mnt/auto .*autofs' /proc/self/mountinfo; do sleep 0.05; done
timeout 60 cat /mnt/auto/lustre/f
grep -c ' /mnt/auto/lustre .* fuse.forebay ' /proc/self/mountinfo
umount /mnt/auto/lustre",
        "open\n1\n",
    );
}
