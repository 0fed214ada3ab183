//! A PFS that is not mounted any more. Its root is a directory all the same, of the file system
//! below it: empty, healthy, and not the PFS.

use crate::common::{
    Agent, FOREBAY, MIB, Setup, content, grow_old, make_file, open_dir_in, read_all, text, wait_for,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A memory file system of its own that stands for the PFS.
pub struct Mounted {
    dir: TempDir,
}

impl Mounted {
    pub fn new() -> Self {
        let mounted = Mounted { dir: open_dir_in("/tmp") };
        std::fs::create_dir(mounted.root()).unwrap();
        mounted.mount();
        mounted
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("pfs")
    }

    pub fn mount(&self) {
        let mut command = Command::new("mount");
        assert!(command.args(["-t", "tmpfs", "none"]).arg(self.root()).status().unwrap().success());
    }

    pub fn unmount(&self) -> bool {
        Command::new("umount").arg("-l").arg(self.root()).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// An overlay over a memory file system, mounted on a directory.
struct Overlay {
    root: PathBuf,
    below: Mounted,
}

impl Overlay {
    fn mount(root: &Path) -> Self {
        let overlay = Overlay { root: root.to_owned(), below: Mounted::new() };
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| overlay.below.root().join(name));
        [&lower, &upper, &work].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let mut command = Command::new("mount");
        command.args(["-t", "overlay", "overlay", "-o", &options]).arg(root);
        assert!(command.status().unwrap().success());
        overlay
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.root).status();
    }
}

fn up(config: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(FOREBAY);
    command.args(["up", "--foreground", "--config"]).arg(config).env_remove("FOREBAY_SOCKET");
    let out = command.stdin(Stdio::null()).output().unwrap();
    (out.status.code(), text(&out.stderr))
}

#[test]
fn a_pfs_that_was_unmounted_is_not_served_and_is_said_to_be_missing() {
    let pfs = Mounted::new();
    let agent = Agent::start(Setup::new(&pfs.root()));
    let path = pfs.root().join("f");
    make_file(&path, 1, MIB);
    let root = pfs.root().display().to_string();
    let load = || agent.cli(&["load", "-q", &root]);
    assert!(load().status.success());
    assert!(pfs.unmount(), "nothing was mounted");
    // A program on that node continues to write, into the directory below.
    std::fs::write(&path, content(2, 0, 100)).unwrap();
    grow_old(&path);
    assert!(!agent.client().open(&path).unwrap().is_tiered(), "the directory below is served as the PFS");
    let out = load();
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing is mounted on") && said.contains(&root), "{said}");
    let out = agent.cli(&["doctor"]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.lines().any(|l| l.starts_with("BAD ") && l.contains("nothing is mounted on")), "{said}");
    let said = text(&agent.cli(&["status"]).stdout);
    assert!(said.contains("NOTHING IS MOUNTED THERE") && !said.contains("time stamps"), "{said}");
    let out = agent.cli(&["verify", &root]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing is mounted on") && said.contains("1 bad"), "{said}");
    pfs.mount();
    make_file(&path, 3, MIB);
    let out = load();
    assert!(out.status.success(), "{}", text(&out.stdout));
    assert!(agent.client().open(&path).unwrap().is_tiered(), "what is mounted again is not served");
}

#[test]
fn a_pfs_that_is_mounted_after_the_start_is_not_taken_for_the_local_directory() {
    let local = Mounted::new();
    let root = local.root().join("pfs");
    std::fs::create_dir(&root).unwrap();
    let hour = Setup { settle_ms: 3_600_000, ..Setup::new(&root) };
    let agent = Agent::start(hour);
    let path = root.join("f");
    make_file(&path, 1, MIB);
    let read = || read_all(&agent.client().open(&path).unwrap()).unwrap();
    wait_for("a local file is cached without settling", || {
        read();
        agent.used("pages") >= MIB
    });
    // Overlay: no lease proves there that nobody writes.
    let _overlay = Overlay::mount(&root);
    agent.client().admin().evict_all().unwrap();
    make_file(&path, 2, MIB);
    assert_eq!(read(), content(2, 0, MIB as usize));
    wait_for("the new mount is measured", || agent.status().mounts[0].cached);
    assert_eq!(read(), content(2, 0, MIB as usize));
    assert_eq!(agent.used("pages"), 0, "a file that may be written is cached before it has settled");
}

#[test]
fn an_agent_that_requires_a_mount_does_not_start_on_a_directory() {
    let dir = open_dir_in("/tmp");
    let (config, root) = (dir.path().join("c.toml"), dir.path().join("pfs"));
    std::fs::create_dir(&root).unwrap();
    let state = dir.path().join("state");
    let text = format!(
        "[agent]\nstate_dir = {state:?}\n[[mount]]\nlabel = \"pfs\"\nroot = {root:?}\nrequire_mount = true\n"
    );
    std::fs::write(&config, text).unwrap();
    let (code, said) = up(&config);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nothing is mounted on") && said.contains("mount.require_mount"), "{said}");
}

#[test]
fn a_directory_that_no_agent_serves_cannot_be_loaded() {
    let (pfs, elsewhere) = (open_dir_in("/tmp"), open_dir_in("/dev/shm"));
    let agent = Agent::on(pfs.path());
    make_file(&elsewhere.path().join("f"), 1, 100);
    for path in [elsewhere.path().to_owned(), elsewhere.path().join("f")] {
        let out = agent.cli(&["load", "-q", path.to_str().unwrap()]);
        let said = text(&out.stdout);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("loaded 0 files") && said.contains("1 failed"), "{said}");
    }
}
