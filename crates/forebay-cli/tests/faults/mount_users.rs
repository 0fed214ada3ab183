//! `forebay mount`, used by several users: nobody takes threads or descriptors from others, and
//! nobody gains or loses rights through the name of a program.

use crate::common::{Agent, MIB, OTHER_UID, PATIENCE, make_file, send_signal, text, wait_for};
use crate::mount::{Mount, Rig, pfs_to_mount, skips, with_own_mounts, with_own_mounts_say};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const BEGIN: &str = "import ctypes, errno, fcntl, os, signal, sys, threading
directory, pfs = sys.argv[1:3]
threading.stack_size(65536)
os.chdir(directory)
def many(count, work):
    for number in range(count):
        threading.Thread(target=work, args=(str(number),), daemon=True).start()
def say(*words):
    print(*words, flush=True)
";

/// A Python program of another user, in a directory of a mount.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(mount: &Path, pfs: &Path, script: &str) -> Self {
        let mut command = Command::new("prlimit");
        command.args(["--nofile=4096", "python3", "-c", &format!("{BEGIN}{script}")]).args([mount, pfs]);
        command.uid(OTHER_UID).gid(OTHER_UID).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Program { child, input, output: BufReader::new(output) }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// How many of its threads are in the system call of this number.
    fn calls(&self, number: libc::c_long) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let calls = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("syscall")).ok());
        calls.filter(|call| call.split(' ').next() == Some(&number.to_string())).count()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn for_all(pfs: &Path, names: &[&str]) {
    for name in names {
        std::fs::create_dir(pfs.join(name)).unwrap();
        std::fs::set_permissions(pfs.join(name), std::fs::Permissions::from_mode(0o1777)).unwrap();
    }
}

/// Runs a shell script in the mount until it ends.
fn shell(mount: &Path, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(mount);
    let mut child = command.spawn().unwrap();
    wait_for(script, || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success(), "{script}");
}

#[test]
fn opens_of_one_user_that_wait_for_leases_hold_up_nobody() {
    let Some(pfs) = pfs_to_mount() else { return };
    for_all(pfs.path(), &["a", "b"]);
    let mount = Mount::new(pfs.path(), "none", &[]);
    let count = 600;
    let script = format!(
        "signal.signal(signal.SIGIO, signal.SIG_IGN)
leased = [os.open(f'{{pfs}}/{{number}}', os.O_RDWR | os.O_CREAT) for number in range({count})]
for file in leased:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
many({count}, lambda name: os.open(name, os.O_RDONLY))
say('begun')
sys.stdin.readline()
os.rename('0', '../b/renamed')
say('renamed')
sys.stdin.readline()"
    );
    let mut program = Program::start(&mount.at.join("a"), &pfs.path().join("a"), &script);
    assert_eq!(program.line(), "begun");
    wait_for("all opens wait", || program.calls(libc::SYS_openat) == count);
    shell(
        &mount.at,
        "stat a/1; ls a b; echo new > a/new; cat a/new; mv a/new b/new; ln b/new a/new; rm a/new b/new",
    );
    // The kernel lets only one program rename between directories.
    program.input.write_all(b"\n").unwrap();
    assert_eq!(program.line(), "renamed");
    assert_eq!(program.calls(libc::SYS_openat), count, "the leases have ended before");
    program.child.kill().unwrap();
    wait_for("the program is gone", || program.child.try_wait().unwrap().is_some());
    shell(&mount.at, "cat a/1");
}

#[test]
fn reads_of_one_user_that_wait_for_the_agent_hold_up_nobody() {
    let Some(pfs) = pfs_to_mount() else { return };
    for_all(pfs.path(), &["a"]);
    let agent = Agent::on(pfs.path());
    let count = 600;
    for number in 0..count {
        std::fs::write(pfs.path().join(format!("a/{number}")), b"content").unwrap();
    }
    let deadline = (2 * PATIENCE).as_millis().to_string();
    let socket = agent.socket().display().to_string();
    let mount = Mount::with_environment(pfs.path(), &socket, &[("FOREBAY_DEADLINE_MS", &deadline)]);
    let script = format!(
        "files = [os.open(str(number), os.O_RDONLY) for number in range({count})]
say('open')
sys.stdin.readline()
many({count}, lambda name: os.pread(files[int(name)], 10, 0))
sys.stdin.readline()"
    );
    let mut program = Program::start(&mount.at.join("a"), pfs.path(), &script);
    assert_eq!(program.line(), "open");
    send_signal(agent.pid(), libc::SIGSTOP);
    program.input.write_all(b"\n").unwrap();
    wait_for("all reads wait", || program.calls(libc::SYS_pread64) == count);
    shell(&mount.at, "stat a/1; echo new > a/new; mv a/new new; rm new");
    assert_eq!(program.calls(libc::SYS_pread64), count, "the reads do not wait any more");
    send_signal(agent.pid(), libc::SIGCONT);
    wait_for("all reads have ended", || program.calls(libc::SYS_pread64) == 0);
}

#[test]
fn a_user_who_keeps_descriptors_leaves_most_to_others() {
    let Some(pfs) = pfs_to_mount() else { return };
    for_all(pfs.path(), &["a"]);
    let ways = [
        "os.open('f', os.O_RDONLY | os.O_CREAT)",
        "os.open('.', os.O_RDONLY | os.O_DIRECTORY)",
        "os.open('.', os.O_TMPFILE | os.O_RDWR)",
        "fcntl.fcntl(os.open('f', os.O_RDWR), 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0))",
    ];
    for way in ways {
        let mount = Mount::new(pfs.path(), "none", &[]);
        let few = Rlimit { current: Some(512), maximum: Some(512) };
        prlimit(Pid::from_raw(mount.pid() as i32), Resource::Nofile, few).unwrap();
        let script = format!(
            "import struct
import resource
open('f', 'w').close()
kept, refused = 0, None
while refused is None and kept < 1000:
    try:
        {way}
        kept += 1
    except OSError as error:
        refused = errno.errorcode[error.errno]
say(kept, refused)
sys.stdin.readline()"
        );
        let mut program = Program::start(&mount.at.join("a"), pfs.path(), &script);
        let said = program.line();
        let (kept, refused) = said.split_once(' ').unwrap();
        assert!(["EMFILE", "ENOLCK"].contains(&refused), "{way}: {said}");
        // A file without a name and a lock take two each.
        assert!((60..=128).contains(&kept.parse::<u32>().unwrap()), "{way}: {said}");
        let open = || File::open(mount.at.join("a/f")).unwrap();
        let _of_root: Vec<_> = (0..200).map(|_| open()).collect();
        let mut third = Command::new("cat");
        let out = third.arg(mount.at.join("a/f")).uid(OTHER_UID + 1).output().unwrap();
        assert!(out.status.success(), "{way}: {}", text(&out.stderr));
        drop(program);
        wait_for("what has ended is returned", || {
            let script = "[os.open('f', os.O_RDONLY) for _ in range(100)]\nsay('open')";
            Program::start(&mount.at.join("a"), pfs.path(), script).line() == "open"
        });
    }
}

#[test]
fn files_that_a_user_removes_while_they_are_in_use_take_its_own_descriptors() {
    let Some(pfs) = pfs_to_mount() else { return };
    for_all(pfs.path(), &["a"]);
    let mount = Mount::new(pfs.path(), "none", &[]);
    let few = Rlimit { current: Some(512), maximum: Some(512) };
    prlimit(Pid::from_raw(mount.pid() as i32), Resource::Nofile, few).unwrap();
    let script = "names = [str(number) for number in range(600)]
for name in names:
    os.close(os.open(name, os.O_CREAT))
for name in names:
    os.open(name, os.O_PATH)
    os.unlink(name)
say('removed')
sys.stdin.readline()";
    let mut program = Program::start(&mount.at.join("a"), pfs.path(), script);
    assert_eq!(program.line(), "removed");
    assert_eq!(std::fs::read_dir(pfs.path().join("a")).unwrap().count(), 0);
    std::fs::write(mount.at.join("f"), b"x").unwrap();
    let open = || File::open(mount.at.join("f")).unwrap();
    let _of_root: Vec<_> = (0..200).map(|_| open()).collect();
}

#[test]
fn a_signal_interrupts_no_call_of_a_program_whose_name_is_not_text() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 5, MIB);
    let script = "libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, b'caf\\xc3')
signal.signal(signal.SIGUSR1, lambda *_: None)
file = os.open('f', os.O_RDONLY)
say('open')
sys.stdin.readline()
room = ctypes.create_string_buffer(100)
say(libc.read(file, room, 100), errno.errorcode.get(ctypes.get_errno()))";
    let mut program = Program::start(&rig.mount.at, &rig.mount.at, script);
    assert_eq!(program.line(), "open");
    rig.slow.fault("all=hang,path=f");
    program.input.write_all(b"\n").unwrap();
    wait_for("the read hangs", || rig.slow.stats().hung_now > 0 && program.calls(libc::SYS_read) == 1);
    for _ in 0..20 {
        send_signal(program.child.id(), libc::SIGUSR1);
        // Longer than the mount needs to look at the program.
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
    rig.slow.fault("none");
    assert_eq!(program.line(), "100 None");
}

#[test]
fn a_mount_that_does_not_see_a_program_refuses_it() {
    with_own_mounts_say(
        "mount --bind /mnt/at /mnt/at
mount --make-shared /mnt/at
mkdir /mnt/at/lustre
inside() { unshare --pid --fork --kill-child --mount --propagation unchanged sh -c \"$1\"; }
! inside \"$F mount /mnt/pfs /mnt/at/lustre\" 2> /mnt/state/log
grep -o '/proc is that of another PID namespace' /mnt/state/log
inside \"mount -t proc proc /proc; $F mount --foreground /mnt/pfs /mnt/at/lustre\" > /mnt/state/log &
until grep -q ' /mnt/at/lustre .* fuse.forebay ' /proc/self/mountinfo; do sleep 0.05; done
! as_user cat /mnt/at/lustre/f 2> /mnt/state/log
grep -o 'Permission denied' /mnt/state/log
umount /mnt/at/lustre",
        "/proc is that of another PID namespace\nPermission denied\n",
    );
}

#[test]
fn a_program_does_not_get_the_groups_of_an_earlier_one_with_its_number() {
    if skips() {
        return;
    }
    let script = "import os
for groups in [61005], [], [61005]:
    with open('/proc/sys/kernel/ns_last_pid', 'w') as last:
        last.write('499')
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setgid(5)
        os.setuid(5)
        for _ in range(2):
            try:
                print(os.getpid(), open('/mnt/at/s').read().strip(), flush=True)
            except PermissionError:
                print(os.getpid(), 'refused', flush=True)
        os._exit(0)
    os.waitpid(child, 0)";
    let said = with_own_mounts(&format!(
        "chgrp 61005 /mnt/pfs/s
chmod 640 /mnt/pfs/s
$F mount /mnt/pfs /mnt/at
python3 -c \"{script}\"
$F umount /mnt/at"
    ));
    let [secret, refused] = ["500 secret\n".repeat(2), "500 refused\n".repeat(2)];
    assert_eq!(said, format!("{secret}{refused}{secret}"));
}
