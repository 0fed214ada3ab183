//! The slow file system is a file system: what is true of its backing directory is true of its
//! mount. Needs root and /dev/fuse; FOREBAY_SKIP_FUSE=1 leaves these tests out.

#![allow(clippy::unwrap_used)] // helpers of tests: a failed unwrap is a failed test

mod common;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Lab, pattern};

const MIB: usize = 1 << 20;

#[test]
fn bytes_come_back_as_they_went() {
    let Some(lab) = Lab::start(|config| config.stripe_bytes = 64 << 10) else { return };
    let data = pattern(5 * MIB + 123, 1);
    fs::write(lab.at("f"), &data).unwrap();
    assert!(fs::read(lab.at("f")).unwrap() == data);
    assert!(fs::read(lab.behind("f")).unwrap() == data);

    let file = File::open(lab.at("f")).unwrap();
    for (offset, len) in [(0, 1), (65_535, 2), (65_536 * 7 - 5, 200_000), (5 * MIB, 123), (MIB - 1, MIB + 2)]
    {
        let mut part = vec![0; len];
        file.read_exact_at(&mut part, offset as u64).unwrap();
        assert!(part == data[offset..offset + len], "{len} bytes at {offset}");
    }
    assert_eq!(file.read_at(&mut [0; 10], data.len() as u64).unwrap(), 0);
}

#[test]
fn overwritten_appended_truncated() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), "0123456789").unwrap();
    let file = OpenOptions::new().write(true).open(lab.at("f")).unwrap();
    file.write_all_at(b"AB", 4).unwrap();
    let mut end = OpenOptions::new().append(true).open(lab.at("f")).unwrap();
    end.write_all(b"xyz").unwrap();
    assert_eq!(fs::read(lab.at("f")).unwrap(), b"0123AB6789xyz");
    file.set_len(3).unwrap();
    assert_eq!(fs::read(lab.at("f")).unwrap(), b"012");
    File::create(lab.at("f")).unwrap();
    assert_eq!(fs::metadata(lab.behind("f")).unwrap().len(), 0);
}

#[test]
fn identity_is_the_backing_files() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::create_dir(lab.at("d")).unwrap();
    fs::write(lab.at("d/f"), "abc").unwrap();
    for name in ["d/f", "d", ""] {
        let (here, there) = (fs::metadata(lab.at(name)).unwrap(), fs::metadata(lab.behind(name)).unwrap());
        let identity =
            |m: &fs::Metadata| (m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
        assert_eq!(identity(&here), identity(&there), "{name}");
        assert_eq!((here.mode(), here.uid(), here.nlink()), (there.mode(), there.uid(), there.nlink()));
    }
}

#[test]
fn what_is_open_survives_rename_over_and_unlink() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("old"), "old bytes").unwrap();
    fs::write(lab.at("new"), "new").unwrap();
    let mut old = OpenOptions::new().read(true).write(true).open(lab.at("old")).unwrap();
    fs::rename(lab.at("new"), lab.at("old")).unwrap();
    assert_eq!(fs::read(lab.at("old")).unwrap(), b"new");
    assert_eq!(fs::metadata(lab.at("new")).unwrap_err().kind(), ErrorKind::NotFound);

    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old bytes");
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    old.write_all_at(b"OLD", 0).unwrap();
    old.set_len(5).unwrap();
    old.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(old.metadata().unwrap().len(), 5);

    let reader = File::open(lab.at("old")).unwrap();
    fs::remove_file(lab.at("old")).unwrap();
    assert!(fs::read_dir(lab.mount()).unwrap().next().is_none());
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"new");
    assert_eq!(reader.metadata().unwrap().len(), 3);
}

#[test]
fn changes_behind_the_mount_are_seen_at_the_next_open() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), pattern(MIB, 1)).unwrap();
    assert!(fs::read(lab.at("f")).unwrap() == pattern(MIB, 1));
    fs::write(lab.behind("f"), pattern(MIB, 2)).unwrap(); // same length: only the bytes differ
    assert!(fs::read(lab.at("f")).unwrap() == pattern(MIB, 2));
    fs::write(lab.behind("g"), "other").unwrap();
    fs::rename(lab.behind("g"), lab.behind("f")).unwrap();
    assert_eq!(fs::read(lab.at("f")).unwrap(), b"other");
    fs::remove_file(lab.behind("f")).unwrap();
    assert_eq!(fs::read(lab.at("f")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir_all(lab.behind("a/b")).unwrap();
    fs::write(lab.behind("a/b/c"), "deep").unwrap();
    assert_eq!(fs::read(lab.at("a/b/c")).unwrap(), b"deep");
    fs::rename(lab.behind("a"), lab.behind("z")).unwrap();
    assert_eq!(fs::read(lab.at("z/b/c")).unwrap(), b"deep");
}

#[test]
fn what_is_mounted_inside_the_backing_directory_is_not_entered() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::create_dir(lab.behind("d")).unwrap();
    assert!(fs::read_dir(lab.at("d")).is_ok());
    assert!(
        Command::new("mount").args(["-t", "tmpfs", "none"]).arg(lab.behind("d")).status().unwrap().success()
    );
    let entered = fs::read_dir(lab.at("d")).map(drop);
    assert!(Command::new("umount").arg(lab.behind("d")).status().unwrap().success());
    assert_eq!(entered.unwrap_err().raw_os_error(), Some(libc::EXDEV));
    assert!(fs::read_dir(lab.at("d")).is_ok());
}

#[test]
fn names_are_bytes() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    let long = vec![b'n'; 255];
    let names: [&[u8]; 6] = [b"\xff\xfe\x80", b"new\nline", b" ", b"-rf", b"\xe4\xf6\xfc", &long];
    for name in names {
        let path = lab.mount().join(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
    }
    let mut listed: Vec<_> =
        fs::read_dir(lab.mount()).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    let mut expected: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    let too_long = lab.mount().join(OsStr::from_bytes(&[b'n'; 256]));
    assert_eq!(fs::write(too_long, "").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn large_directories_are_listed_whole() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    for i in 0..3000 {
        File::create(lab.behind(&format!("file with a name of some length {i:05}"))).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(lab.mount()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3000);
}

#[test]
fn links_pipes_and_modes() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), "x").unwrap();
    fs::hard_link(lab.at("f"), lab.at("hard")).unwrap();
    assert_eq!(fs::metadata(lab.at("hard")).unwrap().nlink(), 2);
    fs::remove_file(lab.at("f")).unwrap();
    assert_eq!(fs::read(lab.at("hard")).unwrap(), b"x");
    symlink("hard", lab.at("soft")).unwrap();
    symlink("nowhere", lab.at("broken")).unwrap();
    assert_eq!(fs::read(lab.at("soft")).unwrap(), b"x");
    assert_eq!(fs::read_link(lab.at("broken")).unwrap(), Path::new("nowhere"));
    assert!(fs::symlink_metadata(lab.at("broken")).unwrap().is_symlink());
    assert!(Command::new("mkfifo").arg(lab.at("pipe")).status().unwrap().success());
    assert!(fs::metadata(lab.at("pipe")).unwrap().file_type().is_fifo());
    fs::set_permissions(lab.at("hard"), fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(fs::metadata(lab.behind("hard")).unwrap().mode() & 0o7777, 0o4711);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123_456_789);
    let file = File::options().write(true).open(lab.at("hard")).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(time)).unwrap();
    assert_eq!(fs::metadata(lab.behind("hard")).unwrap().modified().unwrap(), time);
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(lab.at("m")).unwrap();
    assert_eq!(fs::metadata(lab.behind("m")).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn a_sparse_tebibyte() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(lab.at("huge")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"island", 1 << 39).unwrap();
    assert_eq!(fs::metadata(lab.at("huge")).unwrap().len(), 1 << 40);
    assert!(fs::metadata(lab.at("huge")).unwrap().blocks() < 1000);
    let mut bytes = [9; 8];
    file.read_exact_at(&mut bytes, (1 << 39) - 1).unwrap();
    assert_eq!(&bytes, b"\0island\0");
    file.seek(SeekFrom::End(-3)).unwrap();
    assert_eq!(file.read(&mut bytes).unwrap(), 3);
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)).unwrap();
    assert!(((1 << 39) - 4096..=1 << 39).contains(&data), "{data}");
}

#[test]
fn attributes_are_stored_and_the_virtual_ones_are_not() {
    let Some(lab) = Lab::start(|config| config.servers = 3) else { return };
    fs::write(lab.at("f"), "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(lab.at("f"), "user.colour", b"red", flags).unwrap();
    let mut value = [0; 100];
    let len = rustix::fs::getxattr(lab.behind("f"), "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"red");
    let len = rustix::fs::listxattr(lab.at("f"), &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"user.colour\0");
    rustix::fs::removexattr(lab.at("f"), "user.colour").unwrap();
    let gone = rustix::fs::getxattr(lab.at("f"), "user.colour", &mut value[..]).unwrap_err();
    assert_eq!(gone, rustix::io::Errno::NODATA);

    let layout = forebay_lab::slowfs::remote::layout(&lab.at("f")).unwrap();
    let ino = fs::metadata(lab.at("f")).unwrap().ino();
    assert_eq!(layout.servers, ["server0", "server1", "server2"]);
    assert_eq!((layout.stripe_bytes, layout.first_server), (1 << 20, (ino % 3) as usize));
    let refused = rustix::fs::setxattr(lab.at("f"), "user.forebay.layout", b"{}", flags).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::PERM);
    forebay_lab::slowfs::remote::layout(lab.mount()).unwrap_err();
}

#[test]
fn permissions_are_those_of_the_caller() {
    let Some(lab) = Lab::start(|config| config.allow_other = true) else { return };
    let nobody = |script: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).current_dir("/").uid(65_534).gid(65_534);
        shell.env("M", lab.mount()).output().unwrap().status.success()
    };
    // The temporary directory around the mount is root's alone.
    fs::set_permissions(lab.mount().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(lab.at("open")).unwrap();
    fs::set_permissions(lab.at("open"), fs::Permissions::from_mode(0o2777)).unwrap();
    fs::write(lab.at("secret"), "s").unwrap();
    fs::set_permissions(lab.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();

    assert!(nobody("umask 027; cd $M/open && echo x > f && mkdir d && ln -s f l && mkfifo p"));
    for name in ["f", "d", "l", "p"] {
        let meta = fs::symlink_metadata(lab.behind(&format!("open/{name}"))).unwrap();
        assert_eq!(meta.uid(), 65_534, "{name}");
        assert_eq!(meta.gid(), 0, "{name}: the directory has the set-group-id bit");
    }
    assert_eq!(fs::metadata(lab.behind("open/f")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(lab.behind("open/d")).unwrap().mode() & 0o7777, 0o2750);
    assert!(!nobody("cat $M/secret"));
    assert!(!nobody("echo x > $M/new"));
    assert!(!nobody("chown 1 $M/open/f"));
    assert!(nobody("test \"$(cat $M/open/f)\" = x"));
}

#[test]
fn other_users_stay_out_unless_let_in() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::set_permissions(lab.mount().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut ls = Command::new("ls");
    assert!(!ls.arg(lab.mount()).uid(65_534).gid(65_534).output().unwrap().status.success());
}

#[test]
fn ten_thousand_files_open_at_once() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), "x").unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let files: Vec<_> = (0..10_000).map(|_| File::open(lab.at("f")).unwrap()).collect();
    assert_eq!(lab.stats().open_files_now, 10_000);
    drop(files);
    // close(2) does not wait for the release; it follows at once.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while lab.stats().open_files_now > 0 {
        assert!(std::time::Instant::now() < deadline, "files stay open");
        std::thread::yield_now();
    }
}

/// The same random operations on the mount and on a plain directory: same results, same errors,
/// same trees.
#[test]
fn random_operations_agree_with_a_plain_directory() {
    let Some(lab) = Lab::start(|config| config.stripe_bytes = 4096) else { return };
    let plain = tempfile::tempdir().unwrap();
    let mut rng = common::pattern(4000 * 8, 42).into_iter();
    let mut next = |n: usize| rng.next().unwrap() as usize % n;
    for step in 0..4000 {
        let (op, a, b, size) = (next(11), name(next(40)), name(next(40)), next(200) * 100);
        let results: Vec<_> = [lab.mount(), plain.path()]
            .map(|root| operate(op, &root.join(&a), &root.join(&b), size).map_err(|e| e.raw_os_error()))
            .into();
        assert_eq!(results[0], results[1], "step {step}: operation {op} on {a} and {b}, {size} bytes");
    }
    let (here, there) = (tree(lab.mount(), Path::new("")), tree(plain.path(), Path::new("")));
    assert!(here.len() > 5, "the test made hardly anything: {here:?}");
    assert!(here == there);
}

fn name(i: usize) -> String {
    match i {
        0..=9 => format!("f{i}"),
        10..=14 => format!("d{}", i - 10),
        _ => format!("d{}/f{}", (i - 15) % 5, (i - 15) / 5),
    }
}

fn operate(op: usize, a: &Path, b: &Path, size: usize) -> std::io::Result<Vec<u8>> {
    let none = |()| Vec::new();
    match op {
        0 | 1 => fs::write(a, pattern(size, size as u64)).map(none),
        2 => fs::read(a),
        3 => fs::rename(a, b).map(none),
        4 => fs::remove_file(a).map(none),
        5 => fs::create_dir(a).map(none),
        6 => fs::remove_dir(a).map(none),
        7 => fs::hard_link(a, b).map(none),
        8 => OpenOptions::new().write(true).open(a)?.set_len(size as u64).map(none),
        9 => {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(a)?;
            file.write_all_at(&pattern(300, size as u64), size as u64).map(none)
        }
        _ => {
            let meta = fs::symlink_metadata(a)?;
            let len = if meta.is_dir() { 0 } else { meta.len() };
            Ok(format!("{len} {} {:o}", meta.nlink(), meta.mode()).into_bytes())
        }
    }
}

fn tree(root: &Path, below: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            found.push((path.display().to_string(), b"dir".to_vec()));
            found.extend(tree(root, &path));
        } else {
            found.push((path.display().to_string(), fs::read(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}
