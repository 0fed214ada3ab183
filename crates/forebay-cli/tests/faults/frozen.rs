//! `forebay run --frozen`: programs see in the tree what they see in the plain one, at almost no
//! request to the PFS; and their own changes.

use crate::common::{Agent, MIB, OTHER_UID, Setup, SlowFs, content, grow_old, plain_pfs, text};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Requests to the PFS that a run may cost besides those of its check: those for directories above
/// the tree, and for the root of the mount.
const FEW: u64 = 60;

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A tree with everything that a walk meets.
fn make_tree(at: &Path) {
    for (name, bytes) in [
        ("package/__init__.py", "".as_bytes()),
        ("package/module.py", b"NUMBER = 1\n"),
        ("package/sub/deep.py", b"DEEP = 1\n"),
        ("data/big", &content(3, 0, 3 * MIB as usize)),
        ("bin/program", b"#!/bin/sh\necho \"$0 $1\"\n"),
    ] {
        write(&at.join(name), bytes);
    }
    std::fs::set_permissions(at.join("bin/program"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let library = glob_library();
    std::fs::copy(library, at.join("data/library.so")).unwrap();
    std::fs::hard_link(at.join("package/module.py"), at.join("data/linked.py")).unwrap();
    for i in 0..300 {
        write(&at.join(format!("many/m{i}.py")), format!("N = {i}\n").as_bytes());
    }
    for (name, target) in [
        ("link", "package"),
        ("dangling", "nowhere"),
        ("loop", "loop"),
        ("out", "../outside"),
        ("absolute", "/usr/bin"),
    ] {
        symlink(target, at.join(name)).unwrap();
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    write(&at.parent().unwrap().join("outside/file"), b"outside\n");
    grow_old(&at.join("pipe"));
}

fn glob_library() -> PathBuf {
    let entries = std::fs::read_dir("/lib/x86_64-linux-gnu").or_else(|_| std::fs::read_dir("/usr/lib"));
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("libz.so.1");
    entries.unwrap().flatten().map(|entry| entry.path()).find(is_it).expect("zlib is installed")
}

/// Runs a program with the tree frozen.
fn frozen(agent: &Agent, tree: &Path, program: &[&str]) -> Command {
    let mut command = agent.command(&["run", "--frozen"]);
    command.arg(tree).arg("--").args(program).stdin(Stdio::null());
    command
}

fn run(mut command: Command) -> Output {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}\n{}", text(&out.stdout), text(&out.stderr));
    out
}

/// What a shell prints in the frozen tree, which is its current directory.
fn shell(agent: &Agent, tree: &Path, script: &str) -> String {
    let mut command = frozen(agent, tree, &["sh", "-c", script]);
    command.current_dir(tree);
    let out = run(command);
    assert_eq!(text(&out.stderr), "", "{script}");
    text(&out.stdout)
}

fn pfs_with_tree() -> Option<(SlowFs, PathBuf)> {
    let slow = SlowFs::start()?;
    make_tree(&slow.behind("project/tree"));
    let tree = slow.at("project/tree");
    Some((slow, tree))
}

#[test]
fn programs_see_in_a_frozen_tree_what_they_see_in_the_plain_one() {
    let Some((_slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(tree.parent().unwrap().parent().unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/frozen.py");
    let program = ["python3", script.to_str().unwrap(), tree.to_str().unwrap()];
    let mut plain = Command::new(program[0]);
    plain.args(&program[1..]).env("PYTHONHASHSEED", "0").stdin(Stdio::null());
    let plain = run(plain);
    assert!(plain.stdout.len() > 100_000, "it has done nothing");
    for turn in ["first", "second"] {
        let mut command = frozen(&agent, &tree, &program);
        let out = run({
            command.env("PYTHONHASHSEED", "0");
            command
        });
        assert_eq!(text(&out.stderr), text(&plain.stderr));
        let (got, want) = (text(&out.stdout), text(&plain.stdout));
        let different = got.lines().zip(want.lines()).find(|(a, b)| a != b);
        assert_eq!(different, None, "in the {turn} run");
        assert_eq!(got.len(), want.len(), "in the {turn} run");
    }
}

#[test]
fn a_second_run_of_an_unchanged_tree_asks_the_pfs_only_whether_it_is_unchanged() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(&slow.mount());
    shell(&agent, &tree, "true");
    let before = slow.stats();
    shell(&agent, &tree, "true");
    let checked = slow.stats();
    assert_eq!(checked.read_bytes, before.read_bytes, "contents were read again");
    let of_check = checked.meta_ops - before.meta_ops;
    // Not a script that looks for its own settings above the current directory.
    let python =
        Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output().unwrap();
    // The same, and every name is looked at, looked up in vain, and read.
    let script = "find . -printf '%s %m %T@ %l' > /dev/null; for i in $(seq 200); do cat many/m$i.py; test -e many/none$i; done | cksum; \
                  python3 -B -c 'import sys; sys.path.insert(0, \"many\"); import m1, m2; open(\"data/big\").fileno()'; \
                  cat data/big | cksum; cat link/sub/deep.py";
    let out = shell(&agent, &tree, &script.replace("python3", &text(&python.stdout)));
    assert!(out.ends_with("DEEP = 1\n"), "{out}");
    let used = slow.stats();
    assert_eq!(used.read_bytes, checked.read_bytes, "contents came from the PFS");
    let more = (used.meta_ops - checked.meta_ops).saturating_sub(of_check);
    assert!(more < FEW, "{more} requests beside {of_check} of the check");
    assert!(of_check > 300, "{of_check}: every file is checked");
}

#[test]
fn a_mount_answers_for_a_frozen_tree_until_it_is_unmounted() {
    use crate::mount::Mount;
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(&slow.mount());
    let socket = agent.socket();
    let option = format!("-ofrozen={}", tree.display());
    let mount = Mount::new(&slow.mount(), socket.to_str().unwrap(), &[&option]);
    let see = || {
        let mut command = Command::new("sh");
        command.args(["-c", "find . -printf '%p %s %m\\n' | sort | cksum; cat many/*.py data/big | cksum"]);
        command.current_dir(mount.at.join("project/tree"));
        text(&run(command).stdout)
    };
    let first = see();
    let before = slow.stats();
    assert_eq!(see(), first);
    let after = slow.stats();
    assert_eq!(after.read_bytes, before.read_bytes, "contents came from the PFS");
    assert!(after.meta_ops - before.meta_ops < FEW, "{} requests", after.meta_ops - before.meta_ops);
    // Others' changes are not seen before the next mount.
    write(&slow.behind("project/tree/many/new.py"), b"N = 1\n");
    assert_eq!(see(), first);
    drop(mount);
    let mount = Mount::new(&slow.mount(), socket.to_str().unwrap(), &["--frozen", tree.to_str().unwrap()]);
    assert!(mount.at.join("project/tree/many/new.py").exists());
    let elsewhere = agent.cli(&["mount", "--frozen", "/usr", slow.mount().to_str().unwrap(), "/mnt"]);
    assert!(text(&elsewhere.stderr).contains("--frozen /usr: not on "), "{}", text(&elsewhere.stderr));
}

#[test]
fn a_tree_that_was_changed_between_two_runs_is_seen_as_it_is() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(&slow.mount());
    let see = || {
        shell(
            &agent,
            &tree,
            "cat package/*.py data/linked.py; ls package many | cksum; readlink link; ls -l bin",
        )
    };
    see();
    let changes: [&dyn Fn(); 6] = [
        &|| std::fs::write(tree.join("package/module.py"), b"NUMBER = 2\n").unwrap(),
        &|| std::fs::write(tree.join("package/new.py"), b"NEW = 1\n").unwrap(),
        &|| std::fs::remove_file(tree.join("many/m7.py")).unwrap(),
        &|| std::fs::rename(tree.join("package/new.py"), tree.join("package/newer.py")).unwrap(),
        &|| {
            std::fs::remove_file(tree.join("link")).unwrap();
            symlink("data", tree.join("link")).unwrap();
        },
        &|| {
            std::fs::set_permissions(tree.join("bin/program"), std::fs::Permissions::from_mode(0o700))
                .unwrap()
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let before = see();
        change();
        let plain = Command::new("sh")
            .args([
                "-c",
                "cat package/*.py data/linked.py; ls package many | cksum; readlink link; ls -l bin",
            ])
            .current_dir(&tree)
            .output()
            .unwrap();
        let after = see();
        assert_eq!(after, text(&plain.stdout), "change {number}");
        assert_ne!(after, before, "change {number} has changed nothing");
    }
}

#[test]
fn changes_by_others_during_a_run_are_not_seen_and_own_ones_are() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(&slow.mount());
    let script = "cat package/module.py > /dev/null; echo ready; read line; cat package/module.py; ls package; \
                  test -e package/other.py || echo absent";
    let mut command = frozen(&agent, &tree, &["sh", "-c", script]);
    command.current_dir(&tree).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    std::fs::write(tree.join("package/module.py"), b"NUMBER = 9\n").unwrap();
    std::fs::write(tree.join("package/other.py"), b"OTHER = 1\n").unwrap();
    drop(child.stdin.take());
    std::io::Read::read_to_string(&mut out, &mut line).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "ready\nNUMBER = 1\n__init__.py\nmodule.py\nsub\nabsent\n");
    let own = "cat package/module.py; echo 'NUMBER = 3' > package/module.py; cat package/module.py data/linked.py; \
               stat -c %s package/module.py; echo more >> package/sub/deep.py; cat package/sub/deep.py; \
               mkdir package/__pycache__; echo pyc > package/__pycache__/x.pyc; cat package/__pycache__/x.pyc; ls package; \
               mv many/m1.py many/moved.py; test -e many/m1.py || cat many/moved.py; rm many/m2.py; \
               test -e many/m2.py || echo removed; chmod 600 many/m3.py; stat -c %a many/m3.py; \
               truncate -s 3 many/m4.py; cat many/m4.py; echo; ln many/m5.py many/m5-too; stat -c %h many/m5.py; \
               mv package/sub package/moved; cat package/moved/deep.py; rmdir package/sub 2> /dev/null || echo gone";
    let mut plain = Command::new("cp");
    plain.args(["-a", "."]).arg(slow.behind("copy")).current_dir(&tree);
    run(plain);
    let mut plain = Command::new("sh");
    plain.args(["-c", own]).current_dir(slow.at("copy"));
    let want = text(&run(plain).stdout);
    assert!(want.contains("removed") && want.ends_with("gone\n"), "{want}");
    assert_eq!(shell(&agent, &tree, own), want);
    let differ = Command::new("diff").arg("-r").args([&tree, &slow.at("copy")]).output().unwrap();
    assert!(
        !text(&differ.stdout).contains("differ\n") && !text(&differ.stdout).contains("Only in"),
        "{}",
        text(&differ.stdout)
    );
}

#[test]
fn what_a_user_may_not_see_stays_out_of_a_frozen_tree() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(&slow.mount());
    std::fs::set_permissions(
        slow.behind("project/tree/package/module.py"),
        std::fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    std::fs::set_permissions(slow.behind("project/tree/many"), std::fs::Permissions::from_mode(0o700))
        .unwrap();
    assert_eq!(shell(&agent, &tree, "cat package/module.py many/m1.py"), "NUMBER = 1\nN = 1\n");
    // A process of another user in root's run, and root's image for another user's run.
    let script = "exec setpriv --reuid $0 --regid $0 --clear-groups sh -c 'cat package/module.py; ls'";
    let mut command = frozen(&agent, &tree, &["sh", "-c", script, &OTHER_UID.to_string()]);
    let out = command.current_dir(&tree).output().unwrap();
    assert!(!out.status.success() && out.stdout.is_empty(), "{}", text(&out.stdout));
    let client = agent.client();
    assert!(client.image(tree.as_os_str().as_encoded_bytes()).unwrap().is_some(), "root has an image");
    let mut other = agent.command(&["run", "--frozen"]);
    other.arg(&tree).args(["--", "sh", "-c", "cat package/module.py many/m1.py data/linked.py; ls many"]);
    let out = other.uid(OTHER_UID).gid(OTHER_UID).current_dir(&tree).output().unwrap();
    assert!(!out.status.success(), "{}", text(&out.stdout));
    assert_eq!(text(&out.stdout), "", "{}", text(&out.stderr));
}

#[test]
fn a_run_goes_on_without_the_agent_and_begins_without_one() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let mut agent = Agent::on(&slow.mount());
    let script = "echo ready; read line; cat many/m1.py package/module.py; cksum < data/big; test -e many/none || echo absent";
    let mut command = frozen(&agent, &tree, &["sh", "-c", script]);
    command.current_dir(&tree).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    agent.kill_9();
    drop(child.stdin.take());
    std::io::Read::read_to_string(&mut out, &mut line).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(line.starts_with("ready\nN = 1\nNUMBER = 1\n") && line.ends_with("\nabsent\n"), "{line}");
    let out = run({
        let mut command = frozen(&agent, &tree, &["cat", "many/m1.py"]);
        command.current_dir(&tree);
        command
    });
    assert_eq!(text(&out.stdout), "N = 1\n");
    assert_eq!(text(&out.stderr).lines().count(), 1, "{}", text(&out.stderr));
}

#[test]
fn without_room_for_the_contents_the_pfs_serves_them_and_one_line_says_so() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let huge = std::fs::File::create(slow.behind("project/tree/data/huge")).unwrap();
    huge.set_len(300 * MIB).unwrap();
    grow_old(&slow.behind("project/tree/data/huge"));
    let agent = Agent::start(Setup::new(&slow.mount()));
    let mut command = frozen(&agent, &tree, &["sh", "-c", "cat many/m1.py; head -c 9 data/huge | wc -c"]);
    let before = slow.stats().read_bytes;
    let out = run({
        command.current_dir(&tree);
        command
    });
    assert_eq!(text(&out.stdout), "N = 1\n9\n");
    assert!(slow.stats().read_bytes - before < 50 * MIB, "the contents of the file were taken in vain");
    let said = text(&out.stderr);
    assert!(said.lines().count() == 1 && said.contains("found no room in the tier"), "{said}");
}

#[test]
fn an_image_is_kept_within_the_budget_until_the_operator_evicts_all() {
    let Some((slow, tree)) = pfs_with_tree() else { return };
    let agent = Agent::on(&slow.mount());
    assert_eq!(agent.used("scratch"), 0);
    shell(&agent, &tree, "true");
    let used = agent.used("scratch");
    assert!(used > 3 * MIB, "{used}");
    shell(&agent, &tree, "true");
    assert_eq!(agent.used("scratch"), used, "a second run takes no more");
    assert!(agent.cli(&["evict", "--all"]).status.success());
    crate::common::wait_for("the room is released", || agent.used("scratch") == 0);
    // Nothing says that the tree is on no PFS of the agent.
    let elsewhere = plain_pfs();
    let out = frozen(&agent, elsewhere.path(), &["echo", "runs"]).output().unwrap();
    assert_eq!(text(&out.stdout), "runs\n");
    assert!(
        text(&out.stderr).contains("not on a file system that the agent serves"),
        "{}",
        text(&out.stderr)
    );
}
