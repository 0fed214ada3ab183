//! A data set as an image that nobody can write: squashfs through the kernel, or through
//! squashfuse.

use crate::common::{Agent, FOREBAY, PAGE, content, open_dir_in, read_all, text, wait_for};
use crate::roles::verify_once;
use forebay_client::ReadMode;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Kernel,
    Fuse,
}

struct Image {
    dir: TempDir,
    by: By,
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

impl Image {
    /// `None` if this machine lacks what it takes.
    fn mount(by: By) -> Option<Self> {
        let image = Image { dir: open_dir_in("/tmp"), by };
        std::fs::create_dir(image.root()).unwrap();
        if image.serve(1) {
            return Some(image);
        }
        let is_required = by == By::Fuse && std::env::var_os("FOREBAY_REQUIRE_IMAGES").is_some();
        assert!(!is_required, "cannot make or mount an image");
        eprintln!("left out: cannot make or mount an image ({by:?})");
        None
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn file(&self) -> PathBuf {
        self.root().join("f")
    }

    /// Mounts an image of the file with content `seed`. The times of all images are the same.
    fn serve(&self, seed: u64) -> bool {
        let (source, image) = (self.dir.path().join("source"), self.dir.path().join(format!("image{seed}")));
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("f"), content(seed, 0, 3 * PAGE as usize)).unwrap();
        let mut make = Command::new("mksquashfs");
        make.args([&source, &image]).args(["-all-time", "1000000000", "-mkfs-time", "0", "-noappend"]);
        let mut mount = match self.by {
            By::Kernel => Command::new("mount"),
            By::Fuse => Command::new("squashfuse"),
        };
        if self.by == By::Kernel {
            mount.args(["-o", "loop,ro"]);
        }
        run(&mut make) && run(mount.args([&image, &self.root()]))
    }

    fn unmount(&self) -> bool {
        run(Command::new("umount").arg(self.root()))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn is_cached(agent: &Agent, path: &Path) -> bool {
    let file = agent.client().open_with(path, ReadMode::TierOnly);
    file.is_ok_and(|file| read_all(&file).is_ok())
}

#[test]
fn files_of_images_are_cached_and_those_of_the_next_image_are_not_taken_for_them() {
    for by in [By::Kernel, By::Fuse] {
        let Some(image) = Image::mount(by) else { continue };
        let mut agent = Agent::on(&image.root());
        wait_for("the image is cached", || agent.status().mounts[0].cached);
        let said = agent.status().mounts[0].stamps.clone();
        assert!(said.contains("nobody can change files of"), "{said}");
        let out = agent.cli(&["load", image.root().to_str().unwrap()]);
        assert!(out.status.success(), "{by:?}: {}{}", text(&out.stdout), text(&out.stderr));
        assert!(is_cached(&agent, &image.file()));
        let before = image.file().metadata().unwrap();

        assert!(image.unmount() && image.serve(2), "{by:?}");
        assert_same_stamps(&before, &image.file().metadata().unwrap());
        verify_once(&agent.client(), &image.file(), 2, 0);
        wait_for("the next image is cached", || {
            verify_once(&agent.client(), &image.file(), 2, 0);
            is_cached(&agent, &image.file())
        });

        // Even while no agent runs.
        agent.kill_9();
        assert!(image.unmount() && image.serve(3), "{by:?}");
        agent.restart();
        verify_once(&agent.client(), &image.file(), 3, 0);
    }
}

/// Otherwise the agent would distinguish the images anyway.
fn assert_same_stamps(a: &std::fs::Metadata, b: &std::fs::Metadata) {
    use std::os::unix::fs::MetadataExt;
    let identity = |m: &std::fs::Metadata| (m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime());
    assert_eq!(identity(a), identity(b));
}

#[test]
fn doctor_and_status_say_why_a_read_only_mount_is_or_is_not_cached() {
    let Some(image) = Image::mount(By::Kernel) else { return };
    let out = Command::new(FOREBAY).args(["doctor", "--pfs"]).arg(image.root()).output().unwrap();
    assert!(text(&out.stdout).contains("nobody can change files of squashfs"), "{}", text(&out.stdout));

    // Other nodes may write what is mounted read-only here.
    let Some(slow) = crate::common::SlowFs::start() else { return };
    let bind = open_dir_in("/tmp");
    assert!(run(Command::new("mount").arg("--bind").args([slow.mount(), bind.path().to_owned()])));
    let is_read_only = run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(bind.path()));
    let agent = Agent::on(bind.path());
    let said = agent.status().mounts[0].clone();
    drop(agent);
    run(Command::new("umount").arg("-l").arg(bind.path()));
    assert!(is_read_only && !said.cached, "{}", said.stamps);
    assert!(said.stamps.contains("mount.stamps = \"trust\"") && !said.stamps.contains("probe_dir"));
}
