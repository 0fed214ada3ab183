//! Programs that nobody has changed map files under `forebay run`: the mapping is of the tier's
//! copy, stays whole whatever happens to the tier and to the file, and takes no memory once it is
//! gone.

use crate::common::{
    Agent, BASE, MIB, Program, Setup, content, make_file, make_files, pfs_and_agent, plain_pfs, text,
    wait_for,
};
use crate::intercept::{Rig, command, plain, stepwise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SEED: u64 = 78;

/// Maps a file, and returns whether the mapping is of the tier.
const PRELUDE: &str = r#"
import hashlib, mmap, os, sys
def mapped(name, flags=mmap.MAP_SHARED, **more):
    with open(name, "rb") as file:
        return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ, **more)
def areas():
    return sum("/copies/0" in line and ".record" not in line for line in open("/proc/self/maps"))
def digest(map):
    map.madvise(mmap.MADV_DONTNEED)
    return hashlib.sha256(map).hexdigest()
def say(*words):
    print(*words); input()
"#;

fn start(agent: &Agent, directory: &Path, script: &str) -> Program {
    stepwise(agent, directory, &format!("{PRELUDE}{script}"))
}

/// An agent over a plain directory with one file of 6 MiB in the tier, which a program has mapped
/// and checks at each step.
struct Mapped {
    pfs: tempfile::TempDir,
    agent: Agent,
    program: Program,
}

const SIZE: u64 = 6 * MIB + 17;

impl Mapped {
    fn new() -> Self {
        let pfs = plain_pfs();
        let agent = Agent::on(pfs.path());
        make_file(&pfs.path().join("data"), SEED, SIZE);
        load(&agent, pfs.path());
        let program = start(
            &agent,
            pfs.path(),
            r#"
before = hashlib.sha256(open("data", "rb").read()).hexdigest()
map = mapped("data")
while True:
    assert areas() == 1 and digest(map) == before
    say("right")
"#,
        );
        let mut mapped = Mapped { pfs, agent, program };
        mapped.program.expect("right");
        assert_eq!(mapped.agent.counter("client_pinned_bytes"), pages(SIZE));
        mapped
    }

    #[track_caller]
    fn check(&mut self) {
        self.program.say();
        self.program.expect("right");
    }

    fn end(self) {
        self.program.kill();
        wait_for("the pins are gone", || self.agent.counter("client_pinned_bytes") == 0);
        self.agent.assert_nothing_left();
    }
}

/// What the pages of a file take.
fn pages(size: u64) -> u64 {
    size.next_multiple_of(crate::common::PAGE)
}

fn load(agent: &Agent, path: &Path) {
    let out = agent.cli(&["load", path.to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn mappings_of_all_kinds_behave_as_those_of_the_file() {
    let Some(rig) = Rig::new() else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/mapped.c");
    let built = plain(rig.scratch.path(), &format!("cc -w -O1 -o mapped {}", source.display()));
    assert!(built.status.success(), "{}", text(&built.stderr));
    let sizes = [3 * MIB + 17, 2 * MIB, 4097];
    for (i, size) in sizes.into_iter().enumerate() {
        make_file(&rig.slow.at(&format!("f{i}")), SEED, size);
    }
    rig.load();
    let program = rig.scratch.path().join("mapped");
    for i in 0..sizes.len() {
        let file = rig.slow.at(&format!("f{i}"));
        let expected = plain(rig.scratch.path(), &format!("{} {}", program.display(), file.display()));
        assert!(expected.status.success() && text(&expected.stderr) == "of the tier: 0\n");
        let run = [program.to_str().unwrap(), file.to_str().unwrap()];
        let got = command(&rig.agent, rig.scratch.path(), &run).output().unwrap();
        assert_eq!(text(&got.stdout), text(&expected.stdout), "{i}: {}", text(&got.stderr));
        assert!(
            got.status.success() && text(&got.stderr).starts_with("of the tier: 5\n"),
            "{i}: {}",
            text(&got.stderr)
        );
    }
}

#[test]
fn what_python_maps_is_the_tiers_copy_and_the_file_system_is_not_read() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("data"), SEED, 5 * MIB + 17);
    rig.load();
    let script = format!(
        r#"{PRELUDE}
for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE, mmap.MAP_SHARED | mmap.MAP_POPULATE):
    map = mapped("data", flags)
    print(digest(map)); print("tier", areas(), file=sys.stderr)
    map.close()
copy = mmap.mmap(os.open("data", os.O_RDONLY), 0, access=mmap.ACCESS_COPY)
copy[5000:5005] = b"other"
print(hashlib.sha256(copy).hexdigest())
try:
    import numpy
    array = numpy.memmap("data", mode="r")
    print(int(array.sum(dtype="u8")))
except ImportError: pass
"#
    );
    std::fs::write(rig.scratch.path().join("script.py"), script).unwrap();
    let run = ["python3", rig.scratch.path().join("script.py").to_str().unwrap()].map(str::to_owned);
    let expected = plain(&rig.slow.mount(), &run.join(" "));
    let before = rig.slow.stats().read_bytes;
    let got = command(&rig.agent, &rig.slow.mount(), &run.each_ref().map(String::as_str)).output().unwrap();
    assert!(expected.status.success() && got.status.success(), "{}", text(&got.stderr));
    assert_eq!(text(&got.stdout), text(&expected.stdout));
    assert_eq!(text(&got.stderr).matches("tier 1\n").count(), 3, "{}", text(&got.stderr));
    assert_eq!(rig.slow.stats().read_bytes, before, "the file system was read");
}

#[test]
fn what_is_mapped_cold_is_fetched_once_and_mapped_from_the_tier_then() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("small"), SEED, 3 * MIB);
    make_file(&rig.slow.at("large"), SEED, 9 * MIB);
    let before = rig.slow.stats().read_bytes;
    let script = r#"
small = mapped("small")
digest(small)
say("small", areas())
large = mapped("large")
say("large", areas())
large = mapped("large")
say("again", areas(), len(large) == large.size())
digest(large)
say("read")
"#;
    let mut program = start(&rig.agent, &rig.slow.mount(), script);
    program.expect("small 1");
    assert_eq!(rig.slow.stats().read_bytes - before, 3 * MIB, "fetched once, before it was mapped");
    program.say();
    program.expect("large 1");
    wait_for("the large file is in the tier", || rig.agent.status().resident_bytes == 12 * MIB);
    program.say();
    program.expect("again 2 True");
    program.say();
    program.expect("read");
    assert_eq!(rig.slow.stats().read_bytes - before, 12 * MIB);
    program.say();
    program.end();
}

#[test]
fn a_mapping_stays_when_all_is_evicted_and_the_tier_is_shrunk_and_full() {
    let mut mapped = Mapped::new();
    let other = mapped.pfs.path().join("other");
    make_file(&other, SEED + 1, 2 * MIB);
    load(&mapped.agent, &other);
    assert_eq!(mapped.agent.client().admin().evict_all().unwrap(), 2 * MIB, "the other file alone");
    mapped.check();
    assert_eq!(mapped.agent.client().admin().evict(&mapped.pfs.path().join("data")).unwrap(), 0);
    mapped.check();
    load(&mapped.agent, &other);
    mapped.agent.client().admin().set_capacity(BASE).unwrap();
    assert_eq!(mapped.agent.used("pages"), SIZE.next_multiple_of(4096), "the tier was not shrunk");
    mapped.check();
    mapped.agent.client().admin().set_capacity(BASE + 12 * MIB).unwrap();
    let evicted = mapped.agent.counter("evicted_pages_total");
    for i in 0..4 {
        let path = mapped.pfs.path().join(format!("more{i}"));
        make_file(&path, i, 4 * MIB);
        crate::roles::verify_once(&mapped.agent.client(), &path, i, 0);
    }
    assert!(mapped.agent.counter("evicted_pages_total") > evicted, "the tier was never full");
    mapped.check();
    mapped.end();
}

#[test]
fn a_mapping_stays_when_the_agent_is_killed_and_the_next_one_evicts_all() {
    let mut mapped = Mapped::new();
    mapped.agent.kill_9();
    mapped.check();
    mapped.agent.restart();
    assert_eq!((mapped.agent.counter("adopted_files_total"), mapped.agent.counter("held_files")), (1, 1));
    assert_eq!(mapped.agent.counter("client_pinned_bytes"), pages(SIZE));
    assert_eq!(mapped.agent.client().admin().evict_all().unwrap(), 0);
    mapped.check();
    mapped.end();
}

#[test]
fn a_mapping_shows_the_old_content_when_the_file_is_changed_cut_off_replaced_and_removed() {
    let mut mapped = Mapped::new();
    let (path, new) = (mapped.pfs.path().join("data"), mapped.pfs.path().join("new"));
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"changed", 5000).unwrap();
    mapped.check();
    file.set_len(0).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    mapped.check();
    file.write_all_at(&content(SEED + 1, 0, SIZE as usize), 0).unwrap();
    mapped.check();
    make_file(&new, SEED + 2, SIZE);
    std::fs::rename(&new, &path).unwrap();
    // The new version is cached next to the mapped one, and the old one is to go.
    load(&mapped.agent, &path);
    assert!(mapped.agent.used("pages") > 2 * 6 * MIB);
    mapped.agent.client().admin().evict_all().unwrap();
    assert_eq!(mapped.agent.used("pages"), SIZE.next_multiple_of(4096), "the new version was not evicted");
    mapped.check();
    std::fs::remove_file(&path).unwrap();
    mapped.check();
    mapped.end();
}

#[test]
fn a_forked_child_keeps_its_mapping_when_its_parent_has_ended() {
    let (pfs, agent) = pfs_and_agent();
    make_file(&pfs.path().join("data"), SEED, SIZE);
    load(&agent, pfs.path());
    let script = r#"
map = mapped("data")
before = digest(map)
if os.fork() != 0:
    os._exit(0)
while True:
    assert areas() == 1 and digest(map) == before
    say("right")
"#;
    let mut program = start(&agent, pfs.path(), script);
    // `wait` would close its standard input, which is the child's as well.
    wait_for("the parent has ended", || {
        program.process.0.try_wait().unwrap().is_some_and(|status| status.success())
    });
    program.expect("right");
    // Several looks at what is mapped.
    for _ in 0..3 {
        assert_eq!(agent.client().admin().evict_all().unwrap(), 0);
        assert_eq!(agent.counter("client_pinned_bytes"), pages(SIZE));
        program.say();
        program.expect("right");
    }
    program.end_input();
    wait_for("the child's pins are gone", || agent.counter("client_pinned_bytes") == 0);
    agent.assert_nothing_left();
}

#[test]
fn what_is_unmapped_can_be_evicted_and_more_than_a_quarter_is_not_mapped() {
    let (pfs, agent) = pfs_and_agent();
    // A quarter is 24 MiB.
    make_files(4, 10 * MIB, |i| pfs.path().join(format!("f{i}")));
    load(&agent, pfs.path());
    let script = r#"
maps = [mapped(f"f{i}") for i in range(4)]
say(areas(), [digest(map) == hashlib.sha256(open(f"f{i}", "rb").read()).hexdigest() for i, map in enumerate(maps)])
for map in maps[:2]: map.close()
say("closed", areas())
maps = [mapped(f"f{i}") for i in range(4)]
say("again", areas())
"#;
    let mut program = start(&agent, pfs.path(), script);
    program.expect("2 [True, True, True, True]");
    assert_eq!(agent.counter("client_pinned_bytes"), 20 * MIB);
    program.say();
    program.expect("closed 0");
    wait_for("what is unmapped is not pinned", || agent.counter("client_pinned_bytes") == 0);
    assert_eq!(agent.client().admin().evict(&pfs.path().join("f0")).unwrap(), 10 * MIB);
    load(&agent, pfs.path());
    program.say();
    program.expect("again 2");
    program.say();
    program.end();
    wait_for("the program's pins are gone", || agent.counter("client_pinned_bytes") == 0);
    agent.assert_nothing_left();
}

#[test]
fn a_file_that_changed_lately_or_is_open_for_writing_is_mapped_from_the_file_system() {
    let pfs = plain_pfs();
    make_file(&pfs.path().join("data"), SEED, 5 * MIB);
    let script = r#"
map = mapped("data")
say(areas())
map = mapped("data")
say(areas())
print(map[5000:5007])
"#;
    let lately = Agent::start(Setup { map_rest_ms: 3_600_000, ..Setup::new(pfs.path()) });
    let agent = Agent::on(pfs.path());
    for (agent, wanted) in [(&lately, "0"), (&agent, "1")] {
        load(agent, pfs.path());
        let mut program = start(agent, pfs.path(), script);
        program.expect(wanted);
        program.kill();
    }
    let writer = File::options().write(true).open(pfs.path().join("data")).unwrap();
    let mut program = start(&agent, pfs.path(), script);
    program.expect("0");
    writer.write_all_at(b"changed", 5000).unwrap();
    program.say();
    program.expect("0");
    program.say();
    program.expect("b'changed'");
    program.end();
}

#[test]
fn a_program_that_opens_for_writing_or_locks_what_it_has_mapped_maps_the_file_again() {
    let (pfs, agent) = pfs_and_agent();
    for name in ["own", "flock", "lockf"] {
        make_file(&pfs.path().join(name), SEED, MIB + 17);
    }
    load(&agent, pfs.path());
    let script = r#"
import fcntl
map, private = mapped("own"), mapped("own", mmap.MAP_PRIVATE)
assert areas() == 2
writer = os.open("own", os.O_RDWR)
assert areas() == 1
os.pwrite(writer, b"written", 5000)
assert map[5000:5007] == b"written" and len(map) == len(private)
assert mapped("own")[5000:5007] == b"written"
maps, files = [mapped(name) for name in ("flock", "lockf")], [open(name, "rb") for name in ("flock", "lockf")]
assert areas() == 3
fcntl.flock(files[0], fcntl.LOCK_SH)
fcntl.lockf(files[1], fcntl.LOCK_SH)
assert areas() == 1
say("locked")
print([map[5000:5007] for map in maps], areas())
"#;
    let mut program = start(&agent, pfs.path(), script);
    program.expect("locked");
    for name in ["flock", "lockf"] {
        let writer = File::options().write(true).open(pfs.path().join(name)).unwrap();
        writer.write_all_at(b"changed", 5000).unwrap();
    }
    program.say();
    program.expect("[b'changed', b'changed'] 1");
    program.end();
}

/// What the dynamic linker maps is the file, and a program starts without a request for it.
#[test]
fn libraries_and_programs_are_mapped_from_the_file_system() {
    let (pfs, agent) = pfs_and_agent();
    let build =
        "printf 'int answer(void) { return 42; }' > a.c && cc -shared -fPIC -o liba.so a.c && cp /bin/true .";
    assert!(plain(pfs.path(), build).status.success());
    for name in ["liba.so", "true"] {
        crate::common::grow_old(&pfs.path().join(name));
    }
    load(&agent, pfs.path());
    let opens = agent.counter("opens_total");
    assert!(command(&agent, pfs.path(), &["./true"]).status().unwrap().success());
    let script = format!(
        "{PRELUDE}import ctypes; print(ctypes.CDLL('./liba.so').answer(), areas()); fd = os.open('liba.so', os.O_RDONLY); size = os.fstat(fd).st_size; m = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC); print(areas())"
    );
    let out = command(&agent, pfs.path(), &["python3", "-c", &script]).output().unwrap();
    assert_eq!(text(&out.stdout), "42 0\n0\n", "{}", text(&out.stderr));
    assert_eq!(agent.counter("opens_total"), opens, "the agent was asked");
}
